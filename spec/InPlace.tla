------------------------------ MODULE InPlace -------------------------------
(***************************************************************************)
(* Moves in place by one session, concurrently and one after another: each *)
(* may have read the slot long before it begins.                           *)
(*                                                                         *)
(* There is one slot, with a primary and backups. A word is <<1, t>>, the  *)
(* stripe at turn t, or <<2, u>>, the object of UPDATE u. Every Move of    *)
(* the word of turn t puts the word of turn t + 1 there. The session       *)
(* registers one Move at a time; from the registration of a Move to its    *)
(* end, nothing else writes the next turn. UPDATEs are by other sessions,  *)
(* each with a word of its own. Snapshot.tla has the details of a round.   *)
(***************************************************************************)
\* Promise RED-17
EXTENDS Naturals, FiniteSets

CONSTANTS
  Moves, Updates,  \* operations, as numbers: each begins once
  Backups,         \* the number of backups
  Removed

VARIABLES
  prim, back,  \* the words on the primary and on each backup
  op,          \* operation -> [pc, old, saw]
  past,        \* words that the primary has shown
  bad          \* what has gone wrong

vars == <<prim, back, op, past, bad>>

Has(what) == what \notin Removed
Ops       == Moves \cup Updates
Bs        == 1..Backups
NoWord    == <<0, 0>>

Own(o)       == IF o \in Moves THEN <<1, op[o].old[2] + 1>> ELSE <<2, o>>
IsLess(v, w) == v[1] < w[1] \/ (v[1] = w[1] /\ v[2] < w[2])

Init ==
  /\ prim = <<1, 0>> /\ back = [b \in Bs |-> <<1, 0>>]
  /\ op = [o \in Ops |-> [pc |-> "idle", old |-> NoWord, saw |-> [b \in Bs |-> NoWord]]]
  /\ past = {<<1, 0>>} /\ bad = "nothing"

Goes(o, to) == op' = [op EXCEPT ![o].pc = to]

\* An operation reads the slot. If the word is no stripe any more, no Move in place begins.
Read(o) ==
  /\ op[o].pc = "idle" /\ (o \in Updates \/ prim[1] = 1)
  /\ op' = [op EXCEPT ![o].pc = IF o \in Moves THEN "read" ELSE "competes", ![o].old = prim]
  /\ UNCHANGED <<prim, back, past, bad>>

Runs(o) == op[o].pc \in {"checks", "competes", "decides", "fixes", "commits", "waits"}

\* While a Move of an object runs, no other Move of the object begins.
Register(o) ==
  /\ op[o].pc = "read"
  /\ Goes(o, CASE \E m \in Moves : Runs(m) -> "elsewhere"
               [] Has("the slot is read once more") -> "checks"
               [] OTHER -> "competes")
  /\ UNCHANGED <<prim, back, past, bad>>

\* The Move reads the slot once more, in the batch of its WRITEs.
Check(o) ==
  /\ op[o].pc = "checks"
  /\ Goes(o, IF prim = op[o].old THEN "competes" ELSE "elsewhere")
  /\ UNCHANGED <<prim, back, past, bad>>

\* If a backup already has the operation's own word, this is as good as a successful CAS.
CasBackup(o, b) ==
  /\ op[o].pc = "competes" /\ op[o].saw[b] = NoWord
  /\ LET now == IF back[b] = op[o].old THEN Own(o) ELSE back[b] IN
     /\ back' = [back EXCEPT ![b] = now]
     /\ op' = [op EXCEPT ![o].saw[b] = now]
  /\ UNCHANGED <<prim, past, bad>>

Count(o, w)   == Cardinality({b \in Bs : op[o].saw[b] = w})
IsMost(o, w)  == 2 * Count(o, w) > Backups
Seen(o)       == {op[o].saw[b] : b \in Bs}
IsSmallest(o) == Own(o) \in Seen(o) /\ \A w \in Seen(o) : ~IsLess(w, Own(o))

\* Rules 1 and 2; if no word has a majority, the primary is read for Rule 3.
Decide(o) ==
  /\ op[o].pc = "competes" /\ \A b \in Bs : op[o].saw[b] # NoWord
  /\ Goes(o, CASE Count(o, Own(o)) = Backups -> "commits"
               [] IsMost(o, Own(o)) -> "fixes"
               [] \E w \in Seen(o) : IsMost(o, w) -> "waits"
               [] OTHER -> "decides")
  /\ UNCHANGED <<prim, back, past, bad>>

Rule3(o) ==
  /\ op[o].pc = "decides"
  /\ Goes(o, IF prim = op[o].old /\ IsSmallest(o) THEN "fixes" ELSE "waits")
  /\ UNCHANGED <<prim, back, past, bad>>

Fix(o) ==
  /\ op[o].pc = "fixes"
  /\ LET foreign == {b \in Bs : op[o].saw[b] # Own(o)} IN
     IF foreign = {} THEN Goes(o, "commits") /\ UNCHANGED <<back, bad>>
     ELSE \E b \in foreign :
            /\ IF back[b] = op[o].saw[b]
               THEN back' = [back EXCEPT ![b] = Own(o)] /\ UNCHANGED bad
               ELSE bad' = "a backup changed under its winner" /\ UNCHANGED back
            /\ op' = [op EXCEPT ![o].saw[b] = Own(o)]
  /\ UNCHANGED <<prim, past>>

Commit(o) ==
  /\ op[o].pc = "commits"
  /\ IF prim = op[o].old
     THEN /\ prim' = Own(o)
          /\ past' = past \cup {Own(o)}
          /\ bad' = IF Own(o) \in past THEN "a word comes back" ELSE bad
          /\ Goes(o, "done")
     ELSE /\ bad' = IF Backups = 0 THEN bad ELSE "the primary changed under its winner"
          /\ Goes(o, "lost")
          /\ UNCHANGED <<prim, past>>
  /\ UNCHANGED back

Lose(o) ==
  /\ op[o].pc = "waits" /\ prim # op[o].old
  /\ Goes(o, "lost")
  /\ UNCHANGED <<prim, back, past, bad>>

AtRest == \A o \in Ops : op[o].pc \in {"idle", "elsewhere", "done", "lost"}

Next ==
  \/ \E o \in Ops : \/ Read(o) \/ Decide(o) \/ Rule3(o) \/ Fix(o) \/ Commit(o) \/ Lose(o)
                    \/ \E b \in Bs : CasBackup(o, b)
  \/ \E m \in Moves : Register(m) \/ Check(m)
  \/ AtRest /\ UNCHANGED vars

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------

\* A winner is alone, and no turn is used twice.
AsItShould == bad = "nothing"

\* When no operation runs, all replicas of the slot are equal.
ReplicasAgree == AtRest => \A b \in Bs : back[b] = prim
=============================================================================
