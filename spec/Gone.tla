-------------------------------- MODULE Gone --------------------------------
(***************************************************************************)
(* Values without redundancy: what words are worth that lead to a region   *)
(* whose only node is lost.                                                *)
(*                                                                         *)
(* One key, one slot, with a primary and a backup, neither of them on the  *)
(* node that is lost.  A word [id, in] leads to an object in the region    *)
(* that the node has ("none"), or in one that stays ("safe").  The node is *)
(* cut off, not dead: sessions of the first view go on reading there.      *)
(*                                                                         *)
(* Views: 0; 1 frozen; 2 transforming; 3 switched; 4 stable.  A round is a *)
(* CAS of the backup and one of the primary; who loses waits, and is       *)
(* suspended by the change.                                                *)
(***************************************************************************)
\* Promise RED-13
EXTENDS Naturals, FiniteSets

CONSTANTS
  MaxUpdates, MaxInserts, MaxReads, MaxCrashes,
  CanLose,             \* whether the node is ever lost
  Removed

VARIABLES
  prim, back,  \* the word on the primary, and on the backup
  op,          \* writer -> its operation
  rd,          \* the reader
  view,        \* [num, settled]
  reused,      \* whether the region's number stands for another region by now
  order,       \* id -> when the primary has shown it first; 0: never
  inserted,    \* ids that INSERTs have written, and UPDATEs of these
  known,       \* the latest of the orders that somebody has been told of
  absent,      \* somebody was told that there is no such key
  n,           \* counters that bound the model
  bad          \* what has gone wrong

vars == <<prim, back, op, rd, view, reused, order, inserted, known, absent, n, bad>>

Has(what) == what \notin Removed
Updaters  == {"u1", "u2"}
Inserters == {"i1", "i2"}
Writers   == Updaters \cup Inserters
Ids       == 1..(1 + MaxUpdates + MaxInserts)

Word(id, in) == [id |-> id, in |-> in]
First  == Word(1, "none")
Idle   == [pc |-> "idle", vn |-> 0, old |-> First, own |-> First, late |-> FALSE]
NoRead == [pc |-> "idle", vn |-> 0, known |-> 0, late |-> FALSE]

Init ==
  /\ prim = First /\ back = First
  /\ op = [s \in Writers |-> Idle] /\ rd = NoRead
  /\ view = [num |-> 0, settled |-> FALSE] /\ reused = FALSE
  /\ order = [id \in Ids |-> IF id = 1 THEN 1 ELSE 0]
  /\ inserted = {} /\ known = 1 /\ absent = FALSE
  /\ n = [updates |-> 0, inserts |-> 0, reads |-> 0, crashes |-> 0, id |-> 1, order |-> 1]
  /\ bad = "nothing"

---------------------------------------------------------------------------
(* What a word shows to who is pinned by a view. *)

LeadsToLost(w) == w.in = "none" /\ ~reused
Value(w, vn)   == ~LeadsToLost(w) \/ vn = 0
Missing(w, vn) == LeadsToLost(w) /\ CASE vn = 0 -> FALSE
                                        [] vn = 1 -> ~Has("missing waits for older readers")
                                        [] vn = 2 -> ~Has("missing waits for the settling")
                                        [] OTHER  -> TRUE

\* Whoever begins has heard of what everybody has acknowledged, at least.
Floor == CASE view.num <= 1 -> 0 [] view.num \in {2, 3} -> 1 [] OTHER -> 3

Max(x, y) == IF x > y THEN x ELSE y

\* An answer that rests on the value of w, to who began when `before` had been told, and after somebody was
\* told that there is none, if `late`.
Tells(w, before, late) ==
  /\ known' = Max(known, order[w.id])
  /\ bad' = CASE order[w.id] < before -> "an old value"
              [] late /\ w.id \notin inserted -> "a value comes back"
              [] OTHER -> bad

---------------------------------------------------------------------------
(* Writers. *)

\* In the scope of the change is every slot.
MayWrite(vn) == vn \in {0, 4} \/ (vn # 1 /\ ~Has("a loss settles every slot"))

Runs(s) == op[s].pc \in {"back", "prim", "lost"}

\* The slot is read.
Begin(s) ==
  /\ op[s].pc = "idle"
  /\ IF s \in Updaters THEN n.updates < MaxUpdates ELSE n.inserts < MaxInserts
  /\ \E vn \in Floor..view.num :
       /\ MayWrite(vn)
       /\ IF s \in Updaters THEN Value(prim, vn) ELSE Missing(prim, vn)
       /\ \E in \in {"none", "safe"} :
            /\ in = "none" => vn = 0 \/ reused
            \* The first object of a region that has the number of an earlier one.
            /\ LET id == IF in = "none" /\ reused THEN 1 ELSE n.id + 1
               IN op' = [op EXCEPT ![s] = [pc |-> "back", vn |-> vn, old |-> prim, own |-> Word(id, in),
                                           late |-> absent]]
  /\ n' = [n EXCEPT !.id = @ + 1, !.updates = @ + (IF s \in Updaters THEN 1 ELSE 0),
                    !.inserts = @ + (IF s \in Inserters THEN 1 ELSE 0)]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, bad>>

\* An UPDATE that finds no key, or an INSERT that finds one.
Answers(s) ==
  /\ op[s].pc = "idle"
  /\ IF s \in Updaters THEN n.updates < MaxUpdates ELSE n.inserts < MaxInserts
  /\ \E vn \in Floor..view.num :
       /\ MayWrite(vn)
       /\ IF s \in Updaters
          THEN Missing(prim, vn) /\ absent' = TRUE /\ UNCHANGED <<known, bad>>
          ELSE Value(prim, vn) /\ Tells(prim, known, absent) /\ UNCHANGED absent
  /\ n' = [n EXCEPT !.updates = @ + (IF s \in Updaters THEN 1 ELSE 0),
                    !.inserts = @ + (IF s \in Inserters THEN 1 ELSE 0)]
  /\ UNCHANGED <<prim, back, op, rd, view, reused, order, inserted>>

CasBackup(s) ==
  /\ op[s].pc = "back"
  /\ IF back = op[s].old
     THEN back' = op[s].own /\ op' = [op EXCEPT ![s].pc = "prim"]
     ELSE op' = [op EXCEPT ![s].pc = "lost"] /\ UNCHANGED back
  /\ UNCHANGED <<prim, rd, view, reused, order, inserted, known, absent, n, bad>>

\* The primary shows w, which session s has written.
Shows(w, s) ==
  /\ prim' = w
  /\ order' = [order EXCEPT ![w.id] = n.order + 1]
  /\ n' = [n EXCEPT !.order = @ + 1]
  /\ inserted' = IF s \in Inserters \/ prim.id \in inserted THEN inserted \cup {w.id} ELSE inserted

CasPrimary(s) ==
  /\ op[s].pc = "prim"
  /\ IF prim = op[s].old
     THEN /\ Shows(op[s].own, s)
          /\ known' = n.order + 1
          /\ bad' = CASE order[op[s].own.id] > 0 -> "a word comes back"
                      [] op[s].late /\ s \in Updaters /\ prim.id \notin inserted -> "an UPDATE of nothing"
                      [] OTHER -> bad
     ELSE bad' = "a winner is not alone" /\ UNCHANGED <<prim, order, n, inserted, known>>
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ UNCHANGED <<back, rd, view, reused, absent>>

\* The round is over: an UPDATE took effect before the winner's, an INSERT starts again.
LoserEnds(s) ==
  /\ op[s].pc = "lost" /\ prim # op[s].old
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, n, bad>>

Suspend(s) ==
  /\ op[s].pc = "lost" /\ view.num > op[s].vn
  /\ op' = [op EXCEPT ![s].pc = "suspended"]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, n, bad>>

\* A loser starts again, whatever it sees.
Resolve(s) ==
  /\ op[s].pc = "suspended" /\ view.num = 3
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, n, bad>>

Crash(s) ==
  /\ Runs(s) /\ n.crashes < MaxCrashes
  /\ op' = [op EXCEPT ![s].pc = "dead"]
  /\ n' = [n EXCEPT !.crashes = @ + 1]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, bad>>

\* It goes on with a round that it finds half-way.
Recover(s) ==
  /\ op[s].pc = "dead" /\ view.num \in {0, 4}
  /\ LET o == op[s]
         isHalfWay == back = o.own /\ prim = o.old
         isStrange == s \in Inserters /\ ~Has("recovery takes what is gone for free")
     IN IF isHalfWay /\ ~isStrange
        THEN Shows(o.own, s) ELSE UNCHANGED <<prim, order, n, inserted>>
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ UNCHANGED <<back, rd, view, reused, known, absent, bad>>

---------------------------------------------------------------------------
(* The reader. *)

BeginRead ==
  /\ rd.pc = "idle" /\ n.reads < MaxReads
  /\ \E vn \in Floor..view.num :
       rd' = [pc |-> "reads", vn |-> vn, known |-> known, late |-> absent]
  /\ n' = [n EXCEPT !.reads = @ + 1]
  /\ UNCHANGED <<prim, back, op, view, reused, order, inserted, known, absent, bad>>

\* By a view of the change it waits for the next one.
Read ==
  /\ rd.pc = "reads"
  /\ CASE Value(prim, rd.vn)   -> Tells(prim, rd.known, rd.late) /\ UNCHANGED absent
       [] Missing(prim, rd.vn) -> absent' = TRUE /\ UNCHANGED <<known, bad>>
       [] OTHER                -> UNCHANGED <<known, absent, bad>>
  /\ rd' = NoRead
  /\ UNCHANGED <<prim, back, op, view, reused, order, inserted, n>>

---------------------------------------------------------------------------
(* The change. *)

ActNot(vn) == (\A s \in Writers : Runs(s) => op[s].vn >= vn) /\ (rd.pc = "idle" \/ rd.vn >= vn)

Step(num) == view' = [view EXCEPT !.num = num]

Freeze == CanLose /\ view.num = 0 /\ Step(1)
          /\ UNCHANGED <<prim, back, op, rd, reused, order, inserted, known, absent, n, bad>>

Transform == view.num = 1 /\ ActNot(1) /\ Step(2)
             /\ UNCHANGED <<prim, back, op, rd, reused, order, inserted, known, absent, n, bad>>

\* Both replicas get the backup's word.
Settle ==
  /\ view.num = 2 /\ ~view.settled
  /\ view' = [view EXCEPT !.settled = TRUE]
  /\ IF prim # back /\ Has("a loss settles every slot")
     THEN Shows(back, CHOOSE s \in Writers : op[s].own = back)
     ELSE UNCHANGED <<prim, order, n, inserted>>
  /\ UNCHANGED <<back, op, rd, reused, known, absent, bad>>

Switch == view.num = 2 /\ view.settled /\ Step(3)
          /\ UNCHANGED <<prim, back, op, rd, reused, order, inserted, known, absent, n, bad>>

Stable ==
  /\ view.num = 3 /\ ActNot(3) /\ (\A s \in Writers : op[s].pc # "suspended") /\ Step(4)
  /\ UNCHANGED <<prim, back, op, rd, reused, order, inserted, known, absent, n, bad>>

\* A region comes, which has the number of the one that is gone.
Reuse ==
  /\ view.num = 4 /\ ~reused /\ ~Has("gone numbers stay gone") /\ reused' = TRUE
  /\ UNCHANGED <<prim, back, op, rd, view, order, inserted, known, absent, n, bad>>

AtRest == (\A s \in Writers : op[s].pc = "idle") /\ rd.pc = "idle" /\ view.num \in {0, 4}

Next ==
  \/ \E s \in Writers : \/ Begin(s) \/ Answers(s) \/ CasBackup(s) \/ CasPrimary(s) \/ LoserEnds(s)
                        \/ Suspend(s) \/ Resolve(s) \/ Crash(s) \/ Recover(s)
  \/ BeginRead \/ Read
  \/ Freeze \/ Transform \/ Settle \/ Switch \/ Stable \/ Reuse
  \/ AtRest /\ UNCHANGED vars

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Properties. *)

\* Nothing comes back: no value after somebody was told that there is none, nor one that was replaced.
NothingComesBack == bad \notin {"an old value", "a value comes back", "an UPDATE of nothing"}

\* No word comes back, and a winner is alone.
WordsAreNew == bad \notin {"a word comes back", "a winner is not alone"}

\* When nothing runs both replicas are the same.
ReplicasAgree == AtRest => back = prim
=============================================================================
