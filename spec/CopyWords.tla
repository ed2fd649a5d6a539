----------------------------- MODULE CopyWords -----------------------------
(***************************************************************************)
(* Copy words: two Moves of one EC-oriented object put copy words for the  *)
(* same turn. The Move that found no other copy word in any chunk puts the *)
(* turn's word into the slot. The other Move is done out of place, and     *)
(* gives its copies back. Whatever nodes are then lost, the remaining ones *)
(* suffice to read the object.                                             *)
(*                                                                         *)
(* A chunk has Words copy words, for as many copies. A Move may have fewer *)
(* copies, if there are too few nodes: then the last words name the last   *)
(* copy again. Each CAS is a step; the CASes on one chunk run in order,    *)
(* because they go to one node. A Move may stop for good at any step.      *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
  Chunks,      \* the number of data chunks
  Words,       \* number of copy words of a chunk for each turn: r - 1
  MaxLosses,   \* number of nodes that may be lost at one time
  Removed

VARIABLES
  cw,     \* chunk -> word -> <<Move, copy>>, or NoCopy
  mv      \* Move -> [pc, copies, left, found]

vars == <<cw, mv>>

Has(what) == what \notin Removed
\* Without this rule a code may have only as many data chunks as there are copies.
K         == IF Has("as many data chunks as replicas") THEN Chunks ELSE Words
NoCopy    == <<0, 0>>
Moves     == {1, 2}
Places    == (1..K) \X (1..Words)
\* Data chunk i is on node i, copy j on node K + j.
Nodes     == 1..(K + Words)
Min(a, b) == IF a < b THEN a ELSE b

\* The copy word that a Move puts at place p, and the places where a Move with this many copies puts one.
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

\* All CASes have answers. (If both Moves entered a round with one word, both would be winners. The slot is not part of
\* this module.)
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

\* The word of a turn is put into the slot by at most one Move.
OneStands == Cardinality(Standing) <= 1

\* Every chunk names exactly the copies of the Move whose word is in the slot.
AllAreNamed ==
  \A m \in Standing, i \in 1..K : Named(i) = {<<m, c>> : c \in 1..mv[m].copies}

\* Therefore no chunk names a copy that was given back.
NamedIsUsed == \A m \in Standing, i \in 1..K : Named(i) \cap Free = {}

\* A stripe with all its copies can be read: from all data chunks, or from a copy that some remaining chunk names.
CanBeRead ==
  \A m \in Standing : mv[m].copies = Words =>
    \A lost \in {S \in SUBSET Nodes : Cardinality(S) <= MaxLosses} :
      \/ lost \cap (1..K) = {}
      \/ \E i \in (1..K) \ lost : \E c \in Named(i) : K + c[2] \notin lost
=============================================================================
