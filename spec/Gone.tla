-------------------------------- MODULE Gone --------------------------------
(***************************************************************************)
(* Values without redundancy: the meaning of words that lead to a region   *)
(* whose only node is lost.                                                *)
(*                                                                         *)
(* There is one key and one slot, with a primary and a backup; neither is  *)
(* on the lost node. A word [id, in] leads to an object in the region on   *)
(* the lost node ("none"), or to an object in a region that stays          *)
(* ("safe"). The node is cut off, not dead: sessions at the first view go  *)
(* on reading there.                                                       *)
(*                                                                         *)
(* Views: 0 stable; 1 frozen; 2 transforming; 3 switched; 4 stable. A      *)
(* round is a CAS of the backup and then one of the primary; a loser       *)
(* waits, and is suspended by the change.                                  *)
(***************************************************************************)
\* Promise RED-13
EXTENDS Naturals, FiniteSets

CONSTANTS
  MaxUpdates, MaxInserts, MaxReads, MaxCrashes,
  CanLose,             \* whether the node is ever lost
  Removed

VARIABLES
  prim, back,  \* the words on the primary and on the backup
  op,          \* writer -> its operation
  rd,          \* the reader
  view,        \* [num, settled]
  reused,      \* whether the region's number names another region by now
  order,       \* id -> the position in which the primary first showed it; 0: never shown
  inserted,    \* ids that INSERTs have written, and UPDATEs of values that INSERTs have written
  known,       \* the highest position whose value an answer has told
  absent,      \* an answer has told that the key does not exist
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
(* What a word means to a session that is pinned at view vn.               *)

LeadsToLost(w) == w.in = "none" /\ ~reused
Value(w, vn)   == ~LeadsToLost(w) \/ vn = 0
Missing(w, vn) == LeadsToLost(w) /\ CASE vn = 0 -> FALSE
                                        [] vn = 1 -> ~Has("missing waits for older readers")
                                        [] vn = 2 -> ~Has("missing waits for the settling")
                                        [] OTHER  -> TRUE

\* A session that begins knows at least the views that all sessions have acknowledged.
Floor == CASE view.num <= 1 -> 0 [] view.num \in {2, 3} -> 1 [] OTHER -> 3

Max(x, y) == IF x > y THEN x ELSE y

\* An answer that tells the value of w. The operation began when `before` was the highest position that had been told;
\* if `late`, an answer had told before it began that the key does not exist.
Tells(w, before, late) ==
  /\ known' = Max(known, order[w.id])
  /\ bad' = CASE order[w.id] < before -> "an old value"
              [] late /\ w.id \notin inserted -> "a value comes back"
              [] OTHER -> bad

---------------------------------------------------------------------------
(* Writers. *)

\* Every slot is in the scope of the change.
MayWrite(vn) == vn \in {0, 4} \/ (vn # 1 /\ ~Has("a loss settles every slot"))

Runs(s) == op[s].pc \in {"back", "prim", "lost"}

\* A write begins: it reads the slot.
Begin(s) ==
  /\ op[s].pc = "idle"
  /\ IF s \in Updaters THEN n.updates < MaxUpdates ELSE n.inserts < MaxInserts
  /\ \E vn \in Floor..view.num :
       /\ MayWrite(vn)
       /\ IF s \in Updaters THEN Value(prim, vn) ELSE Missing(prim, vn)
       /\ \E in \in {"none", "safe"} :
            /\ in = "none" => vn = 0 \/ reused
            \* The first object of a region that has the number of an earlier region.
            /\ LET id == IF in = "none" /\ reused THEN 1 ELSE n.id + 1
               IN op' = [op EXCEPT ![s] = [pc |-> "back", vn |-> vn, old |-> prim, own |-> Word(id, in),
                                           late |-> absent]]
  /\ n' = [n EXCEPT !.id = @ + 1, !.updates = @ + (IF s \in Updaters THEN 1 ELSE 0),
                    !.inserts = @ + (IF s \in Inserters THEN 1 ELSE 0)]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, bad>>

\* An UPDATE finds no key, or an INSERT finds one.
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

\* The round is over: a losing UPDATE took effect before the winner, a losing INSERT starts again.
LoserEnds(s) ==
  /\ op[s].pc = "lost" /\ prim # op[s].old
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, n, bad>>

Suspend(s) ==
  /\ op[s].pc = "lost" /\ view.num > op[s].vn
  /\ op' = [op EXCEPT ![s].pc = "suspended"]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, n, bad>>

\* A suspended loser starts again, whatever the slot shows.
Resolve(s) ==
  /\ op[s].pc = "suspended" /\ view.num = 3
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, n, bad>>

Crash(s) ==
  /\ Runs(s) /\ n.crashes < MaxCrashes
  /\ op' = [op EXCEPT ![s].pc = "dead"]
  /\ n' = [n EXCEPT !.crashes = @ + 1]
  /\ UNCHANGED <<prim, back, rd, view, reused, order, inserted, known, absent, bad>>

\* Recovery completes a round that it finds half-way.
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

\* If the view is one of the change's, a reader that finds neither a value nor a missing key waits for the next view.
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

\* A new region gets the number of the lost one.
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

\* No value is told after an answer that the key does not exist, and no value that was replaced is told again.
NothingComesBack == bad \notin {"an old value", "a value comes back", "an UPDATE of nothing"}

\* No word recurs, and a winner is alone.
WordsAreNew == bad \notin {"a word comes back", "a winner is not alone"}

\* When no operation runs, both replicas are equal.
ReplicasAgree == AtRest => back = prim
=============================================================================
