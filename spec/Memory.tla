------------------------------- MODULE Memory -------------------------------
(***************************************************************************)
(* The ownership of a block, and the reuse of what is in it.               *)
(* Code: client/src/logic/blocks.rs, gate/ and keeper.rs,                  *)
(* memory-node/src/logic.rs, master/src/sessions.rs and logic/epochs.rs,   *)
(* master/src/jobs.rs; core/src/ended_clients.rs, slab.rs,                 *)
(* store/memory/{freed,reclaim,compare,seal}.rs.                           *)
(*                                                                         *)
(* There is one block, with a table entry on each replica; one object in   *)
(* the block, and one slot that may name the object.                       *)
(*                                                                         *)
(* Ownership. Sessions send two requests to memory nodes: ALLOC, and       *)
(* `SetOwner`, which takes a block over, records it, or gives it back. A   *)
(* request without an answer in time was executed, or is *late*: it may    *)
(* arrive at any time from then on, or never. The request by which a       *)
(* session hands a block on to the master may be late as well; it is       *)
(* repeated until it is answered. A node executes a session's requests in  *)
(* turn: a request that the session has given up takes no effect there     *)
(* after the answer to a later request.                                    *)
(*                                                                         *)
(* Reuse. An operation may know an object if the operation began before    *)
(* the object was freed. So may a session that died with an operation,     *)
(* until it is recovered, and a job of the master. `knows` is the set of   *)
(* those that may know the object that was freed or overwritten last. It   *)
(* is a ghost, like `life` and `bad`: no step is decided by them.          *)
(*                                                                         *)
(* The block has more objects, but only one fact about them matters: one   *)
(* of them is taken into use, so that the header tells recovery which      *)
(* objects it has to walk through. An object that is all zeros, and that   *)
(* the header does not call allocated, is as good as new for the next      *)
(* owner.                                                                  *)
(*                                                                         *)
(* Snapshot.tla has the details of a round: here a word is replaced in one *)
(* step. Gate.tla has the details of what a keeper may say for its         *)
(* session: here a heartbeat is one step.                                  *)
(***************************************************************************)
\* Promise MEM-12
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Sessions,
  Backups,      \* replicas of the block besides the primary
  MaxGivenUp,   \* requests without an answer in time
  MaxCrashes,
  MaxHandOns,   \* how often each session may hand the block on
  MaxLives,     \* how often the object is allocated; 0: there are no objects
  MaxEpoch,
  MaxJobs,
  Removed

VARIABLES
  tab,      \* node -> the owner of the block in its table; 0: none
  fence,    \* node -> over: sessions whose requests it refuses; fenced: sessions whose fence it has not forgotten
  late,     \* requests that were given up: [s, n, kind, from, to, lives, once]
  lateOn,   \* requests to the master that were given up: <<session, serial, new, marked>>
  ses,      \* session -> see Init
  mas,      \* the master: see Init
  obj,      \* the object, its slot, and what the block's holder knows: see Init
  ep,       \* epochs: see Init
  n         \* counters that bound the model

vars == <<tab, fence, late, lateOn, ses, mas, obj, ep, n>>

P       == 1
Nodes   == 1..(Backups + 1)
Forth   == [i \in Nodes |-> i]                     \* the primary first
Back    == [i \in Nodes |-> Backups + 2 - i]       \* the primary last
Nobody  == 0
NoMsg   == [kind |-> "none"]
Idle    == 99                                      \* no epoch
Job     == 0
Objects == MaxLives > 0
Min(S)  == CHOOSE x \in S : \A y \in S : x <= y

Has(what) == what \notin Removed

Session0 ==
  [st |-> "open",        \* open, leaving; crashed, reading; closed, recovered
   pc |-> "idle",        \* idle, alloc, record, adopt, return; find, and then re-record, re-adopt
   todo |-> <<>>,        \* nodes that are still to be asked
   msg |-> NoMsg,        \* the request whose answer the session waits for
   held |-> FALSE,
   doubt |-> FALSE,      \* the session has given the block back, and not all nodes have confirmed that
   missed |-> FALSE,     \* some table may have an entry that the session does not know of
   adopting |-> Nobody,  \* the session from which it has begun to take the block over
   lives |-> FALSE,      \* whether that session lived, by the master's answer
   adopted |-> Nobody,   \* the session from which it took the block over, while the master does not know
   given |-> FALSE,      \* it has handed the block on, and knows of no session that has taken it over
   serial |-> 0,
   batch |-> <<>>,       \* what it hands on, until the master answers: <<serial, new, marked>>
   shown |-> {}]         \* its recovery: the nodes whose tables name it

Init ==
  /\ tab = [m \in Nodes |-> Nobody]
  /\ fence = [m \in Nodes |-> [over |-> {}, fenced |-> {}]]
  /\ late = {} /\ lateOn = {}
  /\ ses = [s \in Sessions |-> Session0]
  /\ mas = [left |-> Nobody,                         \* the owner of the orphaned block, if there is one
            new |-> FALSE, marked |-> FALSE,         \* what the master was told of the block
            given |-> [s \in Sessions |-> <<>>],     \* the block given to each session: <<owner, new, marked>>
            limbo |-> [s \in Sessions |-> <<>>],     \* such a block, under the name of an owner that lives
            heard |-> [s \in Sessions |-> 0]]        \* the serial of the session's last hand-on
  /\ obj = [life |-> 0, slot |-> 0, mark |-> FALSE, knows |-> {}, bad |-> FALSE,
            lived |-> FALSE,                         \* an object was written after the last zeros
            bytes |-> FALSE,                         \* the object is not zeros
            way |-> {},                              \* sessions whose WRITEs of the object may still execute
            header |-> "none",                       \* of the block: none, use, rest
            told |-> FALSE,                          \* the header says that the object was allocated
            lost |-> FALSE,                          \* a mark was lost with a session
            hv |-> "new", e |-> Idle]                \* what the holder knows, and from which epoch on
  /\ ep = [newest |-> 1, job |-> Idle,
           know |-> [s \in Sessions |-> 1],          \* the newest epoch that the session knows
           op |-> [s \in Sessions |-> Idle],         \* the epoch of its operation
           acts |-> [s \in Sessions |-> 1],          \* what the master knows: acts_in, frees_in
           frees |-> [s \in Sessions |-> 1],
           freed |-> [s \in Sessions |-> Idle],      \* the epoch from which on it has freed objects that it has not marked
           marking |-> [s \in Sessions |-> FALSE]]
  /\ n = [up |-> 0, crash |-> 0, job |-> 0]

IsOpen(s)  == ses[s].st \in {"open", "leaving"}
IsDying(s) == ses[s].st \in {"crashed", "reading"}

---------------------------------------------------------------------------
(* The epoch before which no operation runs any more, and the epoch before *)
(* which all that was freed is marked: Sessions::epochs,                   *)
(* QuestionEpochs::pass.                                                   *)

Counted == {s \in Sessions : IsOpen(s) \/ (IsDying(s) /\ Has("the dead count"))}
Held    == IF Has("jobs count") THEN {ep.job} ELSE {}
Passed  == Min({ep.newest} \cup {ep.acts[s] : s \in Counted} \cup Held)
Settled == Min({Passed} \cup {ep.frees[s] : s \in Counted})

HasPassed == obj.e # Idle /\ IF Has("epochs pass whole") THEN obj.e < Passed ELSE obj.e <= Passed

---------------------------------------------------------------------------
(* Memory nodes: NodeLogic::handle.                                        *)

\* Whether a node executes a request. Table is what its table then says.
Obeys(t, m) ==
  CASE m.s \in fence[m.n].over /\ (Has("the fenced ask for nothing") \/ m.to = m.s) -> FALSE
    [] m.kind = "alloc"  -> t[m.n] = Nobody
    [] m.kind = "set"    -> /\ ~(m.lives /\ m.from \in fence[m.n].fenced /\ Has("not from the fenced"))
                            /\ ~(m.once /\ t[m.n] = m.to /\ Has("not what it has got since"))
                            /\ t[m.n] \in {m.from, m.to}
    [] OTHER             -> FALSE

Table(t, m) ==
  IF ~Obeys(t, m) THEN t
  ELSE [t EXCEPT ![m.n] = IF m.kind = "alloc" THEN m.s ELSE m.to]

\* A late request executes, or never will.
Late ==
  \E m \in late :
    /\ late' = late \ {m}
    /\ \/ tab' = Table(tab, m)
       \/ tab' = tab
    /\ UNCHANGED <<fence, lateOn, ses, mas, obj, ep, n>>

\* A request that a session has given up takes no effect after the answer to a later request.
InTurn(s, node) ==
  IF Has("requests in turn") THEN {m \in late : ~(m.s = s /\ m.n = node)} ELSE late

---------------------------------------------------------------------------
(* Sessions: BlockSource. *)

Set(s, node, from, to, lives) ==
  [s |-> s, n |-> node, kind |-> "set", from |-> from, to |-> to, lives |-> lives, once |-> FALSE]
Ask(s, node, kind) ==
  [s |-> s, n |-> node, kind |-> kind, from |-> Nobody, to |-> s, lives |-> FALSE, once |-> FALSE]

\* The request to the next node in `todo`, according to the session's step.
Request(s, r) ==
  LET node == Head(r.todo) IN
  CASE r.pc = "alloc"  -> Ask(s, node, "alloc")
    [] r.pc = "find"   -> Ask(s, node, "tables")
    [] r.pc \in {"record", "re-record"} -> Set(s, node, Nobody, s, FALSE)
    [] r.pc = "re-adopt" -> Set(s, node, r.adopting, s, FALSE)
    [] r.pc = "return" -> Set(s, node, s, Nobody, FALSE)
    [] r.pc = "adopt"  -> Set(s, node, r.adopting, s, r.lives)

\* The session continues at this step: it asks the next node, if there is one.
Doing(s, r, pc, todo) ==
  LET q == [r EXCEPT !.pc = pc, !.todo = todo] IN
  IF todo = <<>> THEN [q EXCEPT !.pc = "idle", !.msg = NoMsg]
  ELSE [q EXCEPT !.msg = Request(s, q)]

Rests(r)     == [r EXCEPT !.pc = "idle", !.todo = <<>>, !.msg = NoMsg, !.lives = FALSE]
Holds(s, r)  == [Rests(r) EXCEPT !.held = TRUE, !.given = FALSE, !.adopting = Nobody,
                                 !.adopted = IF r.pc \in {"adopt", "re-adopt"} THEN r.adopting
                                             ELSE @]
Returns(s, r) ==
  LET q == IF Has("what is given back is not reported") THEN [r EXCEPT !.adopted = Nobody] ELSE r
  IN  Doing(s, [q EXCEPT !.held = FALSE, !.doubt = TRUE], "return", Back)

\* After the answer of a node (which has executed the request or refused it); `t` are the tables.
Answered(s, r, ok, t) ==
  LET node == r.msg.n
      rest == Tail(r.todo)
      next == IF rest = <<>> THEN Holds(s, r) ELSE Doing(s, r, r.pc, rest)
  IN
  CASE r.pc = "alloc" /\ ok ->
         \* An allocation that may be freed yet is not used, though the tables name the session.
         IF r.doubt THEN Rests([r EXCEPT !.missed = TRUE])
         ELSE IF Backups = 0 \/ ~Has("recorded before use") THEN Holds(s, r)
         ELSE Doing(s, r, "record", Tail(Forth))
    [] r.pc = "alloc" /\ ~ok -> Rests(r)
    [] r.pc \in {"record", "re-record", "adopt", "re-adopt"} /\ ok -> next
    [] r.pc \in {"re-record", "re-adopt"} /\ ~ok -> Rests([r EXCEPT !.missed = TRUE])
    [] r.pc = "record" /\ ~ok -> Returns(s, r)
    [] r.pc = "return" ->
         IF rest = <<>> THEN Rests([r EXCEPT !.doubt = FALSE]) ELSE Doing(s, r, "return", rest)
    [] r.pc = "adopt" /\ ~ok ->
         IF node = P THEN Rests([r EXCEPT !.adopting = Nobody]) ELSE Rests([r EXCEPT !.missed = TRUE])
    [] r.pc = "find" ->
         IF t[P] # s \/ r.held THEN Rests([r EXCEPT !.missed = FALSE])
         \* The session may have got back a block that it handed on, without an answer.
         ELSE IF r.given THEN Rests([r EXCEPT !.missed = Has("handed on may be missed")])
         ELSE IF r.adopting # Nobody THEN Doing(s, [r EXCEPT !.missed = TRUE], "re-adopt", Forth)
         ELSE IF Backups = 0 THEN Holds(s, r)
         ELSE Doing(s, [r EXCEPT !.missed = TRUE], "re-record", Tail(Forth))

\* No answer came in time.
GaveUp(s, r0) ==
  LET r    == [r0 EXCEPT !.missed = TRUE]
      rest == Tail(r.todo)
  IN
  CASE r.pc = "return" ->
         IF rest = <<>> \/ Has("the primary last, and only then") THEN Rests(r)
         ELSE Doing(s, r, "return", rest)
    [] r.pc = "record" -> Returns(s, r)
    [] OTHER -> Rests(r)

\* What the holder knows of the object when it gets the block.
Comes(s, r, q) ==
  IF q.held /\ ~r.held
  THEN IF r.pc \in {"adopt", "re-adopt"}
       THEN LET was == mas.given[s] IN
            [obj EXCEPT !.hv = IF was # <<>> /\ was[2] THEN "new"
                               ELSE IF was # <<>> /\ was[3] THEN "taken" ELSE "doubt", !.e = Idle]
       ELSE [obj EXCEPT !.hv = "new", !.e = Idle]
  ELSE obj

Answer(s) ==
  LET r == ses[s] IN
  /\ IsOpen(s) /\ r.msg # NoMsg
  /\ LET t == Table(tab, r.msg)
         q == Answered(s, r, Obeys(tab, r.msg), t)
     IN /\ tab' = t
        /\ ses' = [ses EXCEPT ![s] = q]
        /\ late' = InTurn(s, r.msg.n)
        /\ obj' = Comes(s, r, q)
        /\ UNCHANGED <<fence, lateOn, mas, ep, n>>

GiveUp(s) ==
  LET r == ses[s] IN
  /\ IsOpen(s) /\ r.msg # NoMsg /\ n.up < MaxGivenUp
  /\ n' = [n EXCEPT !.up = @ + 1]
  /\ \/ tab' = Table(tab, r.msg) /\ UNCHANGED late
     \/ r.msg.kind # "tables" /\ late' = late \cup {r.msg} /\ UNCHANGED tab
  /\ ses' = [ses EXCEPT ![s] = GaveUp(s, r)]
  /\ UNCHANGED <<fence, lateOn, mas, obj, ep>>

May(s) == ses[s].st = "open" /\ ses[s].pc = "idle"

Alloc(s) ==
  /\ May(s) /\ ~ses[s].held /\ tab[P] = Nobody
  /\ ses' = [ses EXCEPT ![s] = Doing(s, @, "alloc", <<P>>)]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* The session repeats the return that was not confirmed, and looks for blocks that it does not know of, also before it
\* ends.
Find(s) ==
  /\ IsOpen(s) /\ ses[s].pc = "idle" /\ ses[s].missed
  /\ ses' = [ses EXCEPT ![s] = IF @.doubt THEN Returns(s, @) ELSE Doing(s, @, "find", <<P>>)]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* If the object of a block is surely free, and has been zeros for long enough, the block goes back to the pool.
Return(s) ==
  /\ May(s) /\ ses[s].held /\ ep.op[s] = Idle
  /\ Objects => obj.hv = "zeros" /\ (HasPassed \/ ~Has("zeros wait"))
  /\ ses' = [ses EXCEPT ![s] = Returns(s, @)]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

---------------------------------------------------------------------------
(* Orphaned blocks: Sessions (the master's), SessionGate::hand_on.         *)

\* If a session says that it has a block, no earlier gift of the block to another session is valid.
IsHad(m, s) ==
  IF ~Has("who has it says so") THEN m
  ELSE [m EXCEPT !.given = [x \in Sessions |-> IF x = s THEN @[x] ELSE <<>>],
                 !.limbo = [x \in Sessions |-> <<>>]]

Keep(m, owner, new, marked) == [m EXCEPT !.left = owner, !.new = new, !.marked = marked]

\* The master learns which block a session hands on.
HandedOn(m, s, serial, new, marked) ==
  IF ~IsOpen(s) \/ (serial <= m.heard[s] /\ Has("serials")) THEN m
  ELSE Keep(IsHad([m EXCEPT !.heard[s] = serial, !.given[s] = <<>>], s), s, new, marked)

\* Between two operations the holder lets the keeper hand the block on.
HandOn(s) ==
  LET r == ses[s]
      new == obj.hv = "new"
      marked == obj.hv \in {"taken", "seen"} IN
  /\ May(s) /\ r.held /\ r.batch = <<>> /\ r.serial < MaxHandOns
  /\ ep.op[s] = Idle /\ obj.hv \notin {"zeros"}
  /\ ses' = [ses EXCEPT ![s].held = FALSE, ![s].given = TRUE, ![s].adopted = Nobody,
                        ![s].serial = @ + 1, ![s].batch = <<r.serial + 1, new, marked>>]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* The keeper tells the master, and is answered; or no answer comes.
Tell(s) ==
  LET b == ses[s].batch IN
  /\ IsOpen(s) /\ b # <<>>
  /\ \/ mas' = HandedOn(mas, s, b[1], b[2], b[3])
        /\ ses' = [ses EXCEPT ![s].batch = <<>>]
        /\ UNCHANGED <<lateOn, n>>
     \/ /\ n.up < MaxGivenUp /\ n' = [n EXCEPT !.up = @ + 1]
        /\ lateOn' = lateOn \cup {<<s, b[1], b[2], b[3]>>}
        /\ UNCHANGED <<mas, ses>>
  /\ UNCHANGED <<tab, fence, late, obj, ep>>

LateOn ==
  \E b \in lateOn :
    /\ lateOn' = lateOn \ {b}
    /\ \/ mas' = HandedOn(mas, b[1], b[2], b[3], b[4])
       \/ mas' = mas
    /\ UNCHANGED <<tab, fence, late, ses, obj, ep, n>>

\* A session reports which block it has taken over, and from which session.
Reported(m, s) ==
  IF ses[s].adopted # Nobody /\ m.given[s] # <<>> /\ m.given[s][1] = ses[s].adopted
  THEN [m EXCEPT !.given[s] = <<>>] ELSE m

\* With the report the session asks for an orphaned block, is given one, and begins to take it over; or no answer comes.
Take(s) ==
  LET r == [ses[s] EXCEPT !.adopted = Nobody]
      o == mas.left IN
  /\ May(s) /\ ~r.held /\ o # Nobody
  /\ ~IsDying(o) \/ ~Has("not of who is recovered")
  /\ mas' = [Reported(mas, s) EXCEPT !.left = Nobody, !.given[s] = <<o, mas.new, mas.marked>>]
  /\ \/ /\ ~r.doubt
        /\ LET once  == o # s /\ r.adopting = Nobody
               given == r.given /\ once /\ Has("handed on until it is taken")
               q == [r EXCEPT !.given = given, !.adopting = o, !.lives = o # s /\ IsOpen(o)]
           IN  ses' = [ses EXCEPT ![s] = [Doing(s, q, "adopt", Forth) EXCEPT !.msg.once = once]]
        /\ UNCHANGED n
     \/ /\ r.doubt
        /\ ses' = [ses EXCEPT ![s] = r]
        /\ UNCHANGED n
     \/ /\ n.up < MaxGivenUp /\ n' = [n EXCEPT !.up = @ + 1]
        /\ UNCHANGED ses
  /\ UNCHANGED <<tab, fence, late, lateOn, obj, ep>>

\* The session reports when there is no orphaned block.
Report(s) ==
  /\ May(s) /\ ses[s].adopted # Nobody
  /\ ses' = [ses EXCEPT ![s].adopted = Nobody]
  /\ mas' = Reported(mas, s)
  /\ UNCHANGED <<tab, fence, late, lateOn, obj, ep, n>>

\* A session has ended without a word on the block that it was given.
ReturnGiven(m, s) ==
  LET g == m.given[s]
      q == [m EXCEPT !.given[s] = <<>>] IN
  IF g = <<>> \/ m.left # Nobody THEN q
  ELSE IF g[1] # s /\ IsOpen(g[1])
       THEN IF Has("limbo") THEN [q EXCEPT !.limbo[g[1]] = g] ELSE Keep(q, g[1], g[2], g[3])
  \* The recovery of the owner finds what the tables then say is the owner's.
  ELSE IF g[1] # s /\ IsDying(g[1]) /\ Has("left to its recovery") THEN q
  ELSE Keep(q, g[1], g[2], g[3])

\* No operation of the owner runs in the block, and the header says so (Store::seal).
AtRestNow(o) ==
  IF Has("the owner marks at rest") THEN [o EXCEPT !.header = "rest", !.told = o.hv # "new"] ELSE o

Leave(s) ==
  /\ May(s) /\ ep.op[s] = Idle
  /\ ep.freed[s] = Idle
  /\ ses' = [ses EXCEPT ![s].st = "leaving"]
  /\ obj' = IF ses[s].held /\ obj.hv \in {"free", "zeros"}
            THEN [AtRestNow(obj) EXCEPT !.mark = TRUE, !.hv = "taken"]     \* Store::leave
            ELSE obj
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, ep, n>>

\* Whether the session asks all members. It does so unless it knows all that the tables say (BlockSource::is_settled).
Asks(s) ==
  LET r == ses[s] IN
  r.missed \/ r.doubt \/ r.adopting # Nobody

IsSettled(s) == Asks(s) => ~\E m \in Nodes : tab[m] = s /\ ~ses[s].held

IsLeaving(s) == ses[s].st = "leaving" /\ ses[s].pc = "idle" /\ ses[s].batch = <<>>

Close(s) ==
  LET r     == ses[s]
      told  == IF r.held THEN Keep(IsHad(mas, s), s, obj.hv = "new", obj.hv \in {"taken", "seen"})
               ELSE mas
      after == ReturnGiven(IF r.held THEN [told EXCEPT !.given[s] = <<>>] ELSE told, s)
      limbo == after.limbo[s]
  IN
  /\ IsLeaving(s) /\ IsSettled(s)
  /\ late' = IF Asks(s) /\ Has("requests in turn") THEN {m \in late : m.s # s} ELSE late
  /\ mas' = IF limbo # <<>> /\ ~r.held /\ after.left = Nobody
            THEN Keep([after EXCEPT !.limbo[s] = <<>>], s, limbo[2], limbo[3])
            ELSE [after EXCEPT !.limbo[s] = <<>>]
  /\ ses' = [ses EXCEPT ![s] = [Session0 EXCEPT !.st = "closed"]]
  /\ UNCHANGED <<tab, fence, lateOn, obj, ep, n>>

---------------------------------------------------------------------------
(* A session that dies is fenced at all members, and recovered.            *)

Crash(s) ==
  /\ IsOpen(s)
  /\ \/ n.crash < MaxCrashes
     \/ IsLeaving(s) /\ ~IsSettled(s)     \* the session does not end in order
     \/ s \in obj.way
  /\ n' = [n EXCEPT !.crash = IF @ < MaxCrashes THEN @ + 1 ELSE @]
  /\ late' = IF ses[s].msg # NoMsg /\ ses[s].msg.kind # "tables" THEN late \cup {ses[s].msg} ELSE late
  /\ ses' = [ses EXCEPT ![s] = [Session0 EXCEPT !.st = "crashed"]]
  /\ mas' = [mas EXCEPT !.limbo[s] = <<>>]
  /\ obj' = [obj EXCEPT !.lost = @ \/ ep.freed[s] # Idle]
  /\ UNCHANGED <<tab, fence, lateOn, ep>>

Fence(s, node) ==
  /\ ses[s].st = "crashed" /\ s \notin fence[node].over
  /\ fence' = [fence EXCEPT ![node] = [over |-> @.over \cup {s}, fenced |-> @.fenced \cup {s}]]
  /\ UNCHANGED <<tab, late, lateOn, ses, mas, obj, ep, n>>

\* A node learns that a session has ended, and forgets its fence. The fence matters only to requests that say that the
\* session lives, and only when they execute. Therefore it is enough that a node may forget while there is such a
\* request.
Forget(s, node) ==
  /\ ses[s].st = "recovered" \/ (IsDying(s) /\ ~Has("fences last until the recovery"))
  /\ s \in fence[node].fenced
  /\ \E m \in late \cup {ses[x].msg : x \in Sessions} :
       m.kind = "set" /\ m.lives /\ m.from = s /\ m.n = node
  /\ fence' = [fence EXCEPT ![node].fenced = @ \ {s}]
  /\ UNCHANGED <<tab, late, lateOn, ses, mas, obj, ep, n>>

\* The recovery asks all nodes which blocks belong to the client.
Read(s) ==
  /\ ses[s].st = "crashed"
  /\ (\A m \in Nodes : s \in fence[m].over) \/ ~Has("recovery after the fence")
  /\ ses' = [ses EXCEPT ![s].st = "reading", ![s].shown = {m \in Nodes : tab[m] = s}]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* What recovery treats as new: Recovery::walk.
IsNew ==
  LET told == obj.told /\ (obj.header = "rest" \/ Has("headers tell what was allocated"))
  IN ~told /\ ~obj.bytes

\* A block that all replicas give to the client goes to another session; a block that only some of them do belongs to
\* the owner that the others name.
Recover(s) ==
  LET shown == ses[s].shown
      owned == shown = Nodes
      other == Min(Nodes \ shown)
      told  == mas.left = s
      kept(free) == IF owned /\ ~free /\ ~told
                    THEN Keep(IsHad(mas, s), s, IsNew, FALSE)
                    ELSE IF owned THEN IsHad(mas, s) ELSE mas
  IN
  /\ ses[s].st = "reading"
  \* A block without any write goes back to the pool.
  /\ \E free \in (IF Objects THEN {owned /\ obj.header = "none"} ELSE {FALSE, owned}) :
     \* Recovery begins again if the tables have changed since they were read, because one job recovers several clients.
     /\ IF shown # {m \in Nodes : tab[m] = s} /\ (free \/ (~owned /\ Has("recovery reads again")))
        THEN /\ ses' = [ses EXCEPT ![s].st = "crashed"]
             /\ UNCHANGED <<tab, mas, obj, ep>>
        ELSE /\ tab' = IF free THEN [m \in Nodes |-> Nobody]
                       ELSE IF owned \/ ~Has("tables are made equal") THEN tab
                       ELSE [m \in Nodes |-> IF tab[m] = s THEN tab[other] ELSE tab[m]]
             /\ mas' = IF owned THEN [kept(free) EXCEPT !.given[s] = <<>>,
                                                  !.left = IF free /\ @ = s THEN Nobody ELSE @]
                       ELSE ReturnGiven(kept(free), s)
             /\ ses' = [ses EXCEPT ![s] = [Session0 EXCEPT !.st = "recovered"]]
             /\ ep' = [ep EXCEPT !.op[s] = Idle, !.freed[s] = Idle, !.marking[s] = FALSE]
             /\ obj' = [obj EXCEPT !.knows = @ \ {s}]
  /\ UNCHANGED <<fence, late, lateOn, n>>

---------------------------------------------------------------------------
(* Operations, and what they free. *)

Running == {s \in Sessions : ep.op[s] # Idle} \cup (IF ep.job # Idle THEN {Job} ELSE {})

Begin(s) ==
  /\ Objects /\ ses[s].st = "open" /\ ep.op[s] = Idle
  /\ ep' = [ep EXCEPT !.op[s] = ep.know[s]]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj, n>>

\* An operation does not end while a WRITE of it may execute: in that case its session is fenced.
End(s) ==
  /\ IsOpen(s) /\ ep.op[s] # Idle
  /\ s \notin obj.way \/ ~Has("answers are awaited")
  /\ ep' = [ep EXCEPT !.op[s] = Idle]
  /\ obj' = [obj EXCEPT !.knows = @ \ {s}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

\* The header that is written with an object that is taken into use.
InUse(o) == [o EXCEPT !.header = "use", !.told = o.hv # "new" \/ (o.header = "use" /\ @)]

\* The holder's operation takes another object of the block.
UseOther(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.header # "use" /\ obj.hv # "zeros"
  /\ obj' = InUse(obj)
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The holder's operation takes the object in vain: the object was given back before any of it was written, or the
\* operation was dropped.
TakeInVain(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.hv = "new" /\ ~obj.bytes
  /\ \E hv \in {"free", "taken"} : obj' = [InUse(obj) EXCEPT !.hv = hv]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The holder's operation takes the object, and its WRITE is not answered. The object is given back.
WriteInVain(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.hv \in {"new", "free"} /\ s \notin obj.way
  /\ n.up < MaxGivenUp /\ n' = [n EXCEPT !.up = @ + 1]
  /\ obj' = [InUse(obj) EXCEPT !.hv = "free", !.way = @ \cup {s}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep>>

\* The unanswered WRITE executes after all, on some replica.
LateWrite(s) ==
  /\ s \in obj.way
  /\ \E m \in Nodes :
       /\ s \notin fence[m].over
       /\ obj' = [obj EXCEPT !.way = @ \ {s}, !.bytes = TRUE, !.bad = @ \/ tab[m] # s]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The holder's operation takes the object, and its word is put into the slot.
Write(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.hv \in {"new", "free"} /\ obj.life < MaxLives
  /\ obj' = [InUse(obj) EXCEPT !.life = @ + 1, !.slot = obj.life + 1, !.hv = "taken", !.e = Idle,
                        !.bytes = TRUE, !.lived = TRUE,
                        !.bad = @ \/ obj.slot # 0 \/ obj.knows # {}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* Any operation may replace the word, and thereby frees the object.
Replace(s) ==
  /\ ses[s].st = "open" /\ ep.op[s] # Idle /\ obj.slot # 0
  /\ obj' = [obj EXCEPT !.slot = 0, !.knows = Running]
  /\ ep' = [ep EXCEPT !.freed[s] = IF @ = Idle THEN ep.op[s] ELSE Min({@, ep.op[s]})]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

\* The freed object is marked in two steps: the gate allows the mark, and the FAA executes.
MayMark(s) ==
  /\ IsOpen(s) /\ ep.freed[s] # Idle /\ ~ep.marking[s]
  /\ ep' = [ep EXCEPT !.marking[s] = TRUE]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj, n>>

Mark(s) ==
  /\ IsOpen(s) /\ ep.marking[s]
  /\ ep' = [ep EXCEPT !.marking[s] = FALSE, !.freed[s] = Idle]
  /\ obj' = [obj EXCEPT !.mark = TRUE, !.bad = @ \/ obj.mark]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

\* The keeper stops waiting for marks of what its session has freed.
Revoke(s) ==
  /\ IsOpen(s) /\ ep.freed[s] # Idle /\ ep.freed[s] < ep.newest
  /\ ~ep.marking[s] \/ ~Has("not what is being marked")
  /\ ep' = [ep EXCEPT !.freed[s] = Idle]
  /\ obj' = [obj EXCEPT !.lost = TRUE]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

---------------------------------------------------------------------------
(* The holder collects. `e` is the newest epoch when the master was asked, *)
(* after the look.                                                         *)

Holder(s) == ses[s].st = "open" /\ ses[s].held

Look(s) ==
  /\ Holder(s) /\ obj.hv = "taken" /\ obj.mark
  /\ obj' = [obj EXCEPT !.hv = "seen",
                        !.e = IF Has("asks behind the look") THEN Idle ELSE 1]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

AskMaster(s) ==
  /\ Holder(s) /\ obj.hv \in {"seen", "compared", "zeros"} /\ obj.e = Idle
  /\ obj' = [obj EXCEPT !.e = ep.newest]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

TakeIn(s) ==
  /\ Holder(s) /\ obj.hv = "seen"
  /\ HasPassed \/ ~Has("reuse waits")
  /\ obj' = [obj EXCEPT !.mark = FALSE, !.hv = "free", !.e = Idle]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The last resort: the bitmap is not trusted, and the block is compared with the index.
Doubts(s) ==
  /\ Holder(s) /\ obj.hv = "taken"
  /\ obj' = [obj EXCEPT !.hv = "doubt"]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

Compare(s) ==
  /\ Holder(s) /\ obj.hv = "doubt"
  /\ obj' = [obj EXCEPT !.hv = IF obj.slot = 0 THEN "compared" ELSE "taken", !.e = Idle]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

MarkGarbage(s) ==
  /\ Holder(s) /\ obj.hv = "compared" /\ obj.e # Idle
  /\ obj.e < Settled \/ ~Has("compared is settled")
  /\ obj' = [AtRestNow(obj) EXCEPT !.mark = TRUE, !.hv = "seen"]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

Zero(s) ==
  /\ Holder(s) /\ obj.hv = "free" /\ ep.op[s] = Idle
  /\ obj' = [obj EXCEPT !.hv = "zeros", !.e = Idle, !.lived = FALSE, !.knows = Running,
                        !.bytes = FALSE, !.header = "rest", !.told = TRUE]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

---------------------------------------------------------------------------
(* Epochs. *)

Learn(s) ==
  /\ IsOpen(s) /\ ep.know[s] < ep.newest
  /\ ep' = [ep EXCEPT !.know[s] = ep.newest]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj, n>>

Pulse(s) ==
  LET acts == IF ep.op[s] = Idle THEN ep.know[s] ELSE ep.op[s] IN
  /\ Objects /\ IsOpen(s)
  /\ ep' = [ep EXCEPT !.acts[s] = acts, !.frees[s] = Min({acts, ep.freed[s]})]
  /\ ep' # ep
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj, n>>

NextEpoch ==
  /\ Objects /\ ep.newest < MaxEpoch /\ Passed = ep.newest
  /\ obj.hv \in {"seen", "compared", "zeros"} /\ obj.e # Idle      \* a session waits for it
  /\ ep' = [ep EXCEPT !.newest = @ + 1]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj, n>>

JobBegins ==
  /\ Objects /\ ep.job = Idle /\ n.job < MaxJobs
  /\ n' = [n EXCEPT !.job = @ + 1]
  /\ ep' = [ep EXCEPT !.job = ep.newest]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj>>

JobEnds ==
  /\ ep.job # Idle
  /\ ep' = [ep EXCEPT !.job = Idle]
  /\ obj' = [obj EXCEPT !.knows = @ \ {Job}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

---------------------------------------------------------------------------

AtRest == /\ \A s \in Sessions : ses[s].st \in {"closed", "recovered"}
          /\ late = {} /\ lateOn = {} /\ ep.job = Idle

Terminated == AtRest /\ UNCHANGED vars

Next ==
  \/ \E s \in Sessions :
       \/ Answer(s) \/ GiveUp(s) \/ Alloc(s) \/ Find(s) \/ Return(s) \/ HandOn(s) \/ Tell(s)
       \/ Take(s) \/ Report(s) \/ Leave(s) \/ Close(s) \/ Crash(s) \/ Read(s) \/ Recover(s)
       \/ Begin(s) \/ End(s) \/ Write(s) \/ WriteInVain(s) \/ LateWrite(s) \/ UseOther(s) \/ TakeInVain(s) \/ Replace(s) \/ MayMark(s) \/ Mark(s) \/ Revoke(s)
       \/ Look(s) \/ AskMaster(s) \/ TakeIn(s) \/ Doubts(s) \/ Compare(s) \/ MarkGarbage(s)
       \/ Zero(s) \/ Learn(s) \/ Pulse(s)
       \/ \E node \in Nodes : Fence(s, node) \/ Forget(s, node)
  \/ Late \/ LateOn \/ NextEpoch \/ JobBegins \/ JobEnds
  \/ Terminated

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Properties. *)

Symmetry == Permutations(Sessions)

Owners == {s \in Sessions : ses[s].held}

\* A session that has the block is its only owner, and every table names it: if the session dies, the block is found.
OneOwner ==
  /\ Cardinality(Owners) <= 1
  /\ \A s \in Owners : \A m \in Nodes : tab[m] = s

\* No object is reused that a slot names, or that an operation may know; no bit is set twice.
NoEarlyReuse == ~obj.bad

\* No slot names an object whose bit is set.
MarkedIsFree == obj.mark => obj.slot = 0

\* When nothing runs, the block is in the pool, or the master knows it under its owner's name.
NothingLeaks ==
  AtRest => \/ \A m \in Nodes : tab[m] = Nobody
            \/ mas.left # Nobody /\ \A m \in Nodes : tab[m] = mas.left

\* And the object is named or marked, or the next owner knows that it has to look.
ObjectsAreFound ==
  AtRest /\ mas.left # Nobody /\ obj.lived /\ ~obj.lost =>
    /\ ~mas.new
    /\ obj.slot # 0 \/ obj.mark \/ ~mas.marked

=============================================================================
