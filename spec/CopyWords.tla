----------------------------- MODULE CopyWords -----------------------------
(***************************************************************************)
(* Copy words: two Moves of one EC-oriented object put theirs for the same *)
(* turn.  The one in whose place nothing stood anywhere puts the turn's    *)
(* word into the slot; the other one goes elsewhere, and gives its copies  *)
(* back.  Whatever nodes are lost then, what is left can be read.          *)
(*                                                                         *)
(* A chunk has Words words, for as many copies.  A Move may have fewer     *)
(* copies, where there are too few nodes: what is left over names the last *)
(* one again.  A CAS is a step of its own; those of one chunk come in      *)
(* order, as they go to one node.  A Move may stop anywhere, for good.     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Chunks,      \* the number of data chunks
  Words,       \* copy words of a chunk for a turn: r - 1
  MaxLosses,   \* nodes that may be lost at once
  Removed

VARIABLES
  cw,     \* chunk -> word -> <<Move, copy>>, or NoCopy
  mv      \* Move -> [pc, copies, left, found]

vars == <<cw, mv>>

Has(what) == what \notin Removed
\* Without the rule a code may have as few data chunks as there are copies.
K         == IF Has("as many data chunks as replicas") THEN Chunks ELSE Words
NoCopy    == <<0, 0>>
Moves     == {1, 2}
Places    == (1..K) \X (1..Words)
\* Data chunk i is on node i, copy j on node K + j.
Nodes     == 1..(K + Words)
Min(a, b) == IF a < b THEN a ELSE b

\* What a Move with so many copies puts where, and does not.
Puts(m, p)   == <<m, Min(p[2], mv[m].copies)>>
ToPut(count) == {p \in Places : p[2] <= count \/ Has("all words are put")}

Init ==
  /\ cw = [i \in 1..K |-> [j \in 1..Words |-> NoCopy]]
  /\ mv \in [Moves -> {[pc |-> "puts", copies |-> c, left |-> ToPut(c), found |-> FALSE] : c \in 1..Words}]
  /\ mv[1].copies >= mv[2].copies

Put(m, p) ==
  /\ mv[m].pc = "puts" /\ p \in mv[m].left
  /\ \A q \in mv[m].left : q[1] = p[1] => q[2] >= p[2]
  /\ cw' = IF cw[p[1]][p[2]] = NoCopy \/ ~Has("put where there is none")
           THEN [cw EXCEPT ![p[1]][p[2]] = Puts(m, p)] ELSE cw
  /\ mv' = [mv EXCEPT ![m].left = @ \ {p},
                      ![m].found = @ \/ (cw[p[1]][p[2]] # NoCopy /\ Has("put where there is none"))]

\* All CASes are answered.  Of a round of two with one word both would be winners: the slot is no part of this.
End(m) ==
  /\ mv[m].pc = "puts" /\ mv[m].left = {}
  /\ mv' = [mv EXCEPT ![m].pc = IF mv[m].found THEN "elsewhere" ELSE "stands"]
  /\ UNCHANGED cw

Dies(m) ==
  /\ mv[m].pc = "puts"
  /\ mv' = [mv EXCEPT ![m].pc = "dead"]
  /\ UNCHANGED cw

Next ==
  \/ \E m \in Moves : (\E p \in Places : Put(m, p)) \/ End(m) \/ Dies(m)
  \/ (\A m \in Moves : mv[m].pc # "puts") /\ UNCHANGED vars

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------

Standing == {m \in Moves : mv[m].pc = "stands"}
Free     == {<<m, c>> \in Moves \X (1..Words) : mv[m].pc = "elsewhere"}
Named(i) == {cw[i][j] : j \in 1..Words} \ {NoCopy}

\* The word of a turn is put there once.
OneStands == Cardinality(Standing) <= 1

\* What every chunk names is what the Move has whose word stands, and all of it.
AllAreNamed ==
  \A m \in Standing, i \in 1..K : Named(i) = {<<m, c>> : c \in 1..mv[m].copies}

\* So nothing is named that was given back.
NamedIsUsed == \A m \in Standing, i \in 1..K : Named(i) \cap Free = {}

\* Whatever has all its copies can be read: by all data chunks, or by a copy that one of them names.
CanBeRead ==
  \A m \in Standing : mv[m].copies = Words =>
    \A lost \in {S \in SUBSET Nodes : Cardinality(S) <= MaxLosses} :
      \/ lost \cap (1..K) = {}
      \/ \E i \in (1..K) \ lost : \E c \in Named(i) : K + c[2] \notin lost
=============================================================================
