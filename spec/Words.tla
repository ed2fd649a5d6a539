------------------------------- MODULE Words -------------------------------
(***************************************************************************)
(* Slot words, identities, and the rules of SNAPSHOT (P section 4.3).      *)
(* Code: crates/core/src/layout/slot.rs,                                   *)
(* crates/core/src/conflict_rules.rs.                                      *)
(*                                                                         *)
(* A word is a record. `id` is the writer's identity: the address and      *)
(* generation of an object that only this writer allocated, or the number  *)
(* of a DELETE, which has no object. `key` is the object's key; the        *)
(* fingerprint and the object's key are one field here, because an object  *)
(* does not change while any session may know it. `st` is the meaning of   *)
(* the size class and the tentative bit.                                   *)
(*                                                                         *)
(* A free word is one of three kinds:                                      *)
(* - A *number* is what a DELETE writes. It is used once, by one client.   *)
(*   Numbers are negative here, and so below all objects.                  *)
(* - A *withdrawal* is what an INSERT leaves that has withdrawn: it has    *)
(*   the identity of the INSERT's object.                                  *)
(* - Identity 0 is the word of a slot that was never written. (Splits,     *)
(*   which vacate slots, are not modelled.)                                *)
(*                                                                         *)
(* `val` names the writer of the value: `id` itself, except after a        *)
(* *Move*, which puts the value of its round's old word at another address *)
(* or gives it another redundancy. The word of a Move is marked as         *)
(* `moved`.                                                                *)
(*                                                                         *)
(* `Removed` names the countermeasures that a mutant takes out.            *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, Sequences

CONSTANTS NoKey, Removed

Word(id, key, st) ==
  [id |-> id, key |-> key, st |-> st, val |-> IF key = NoKey THEN 0 ELSE id, moved |-> FALSE]

Live(id, key)      == Word(id, key, "live")
Tentative(id, key) == Word(id, key, "tentative")
Moved(id, old)     == [old EXCEPT !.id = id, !.moved = TRUE]
Marker(id)         == Word(id, NoKey, "free")   \* size class 0: a slot with such a word is free
Never              == Marker(0)                 \* also the value of unused fields
Number(id)         == Marker(id - 1000)         \* of the identity that an object would have

IsNumber(w)     == w.st = "free" /\ w.id < 0
IsWithdrawal(w) == w.st = "free" /\ w.id > 0

Confirmed(w) == [w EXCEPT !.st = "live"]
WithdrawnWord(w) == Marker(w.id)

\* What the rules compare: identities, because a writer's word changes during its round.
Who(w) == IF "identity" \in Removed THEN w ELSE Word(w.id, NoKey, "any")

\* Rules 1-3 for the writer of `own`; `seen` maps each backup to its word.
Evaluate(own, seen) ==
  LET total    == Cardinality(DOMAIN seen)
      count(w) == Cardinality({b \in DOMAIN seen : Who(seen[b]) = Who(w)})
      mine     == count(own)
  IN  CASE mine = total                               -> "won"        \* Rule 1
        [] mine # total /\ 2 * mine > total           -> "won"        \* Rule 2
        [] 2 * mine <= total /\ mine # total
           /\ (mine = 0 \/ \E b \in DOMAIN seen : 2 * count(seen[b]) > total) -> "lost"
        [] OTHER                                      -> "undecided"  \* Rule 3, primary first

\* Rule 3, when the primary is known to show the old value.
IsSmallest(own, seen) == \A b \in DOMAIN seen : own.id <= seen[b].id

\* Settling passes over a number if one of the backups' words is confirmed: a number that was acknowledged or read is on
\* all backups. If only the primary shows a confirmed word, the number counts if something proves that it is no damage.
PassedOver(w, backups, primary, isProven) ==
  IsNumber(w) /\ \/ \E x \in backups : x.st = "live"
                 \/ /\ primary.st = "live"
                    /\ ~isProven \/ "the primary alone does not refute" \in Removed

\* For sets of at most one element, and for sets whose order does not matter.
RECURSIVE SetToSeq(_)
SetToSeq(S) == IF S = {} THEN <<>> ELSE LET x == CHOOSE x \in S : TRUE
                                        IN  <<x>> \o SetToSeq(S \ {x})
=============================================================================
