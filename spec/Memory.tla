------------------------------- MODULE Memory -------------------------------
(***************************************************************************)
(* Whose a block is, and when what lies in it may be used again.           *)
(* Code: client/src/logic/blocks.rs, gate/ and keeper.rs,                  *)
(* memory-node/src/logic.rs, master/src/sessions.rs and logic/epochs.rs,   *)
(* master/src/jobs.rs; core/src/ended_clients.rs, slab.rs,                 *)
(* store/memory/{reclaim,compare}.rs.                                      *)
(*                                                                         *)
(* One block, with a table entry on each replica; one object in it, and    *)
(* one slot that may name the object.                                      *)
(*                                                                         *)
(* Ownership.  Sessions ask memory nodes: ALLOC, and `SetOwner`, which     *)
(* takes a block over, records it, or gives it back.  A request whose      *)
(* answer does not come in time was executed, or is *late*: it may arrive  *)
(* at any time from then on, or never.  So may what hands a block on to    *)
(* the master, which is repeated until it is heard.  A node executes a     *)
(* session's requests in turn: what a session had given up before it asked *)
(* for something that was answered does not take effect there any more.    *)
(*                                                                         *)
(* Reuse.  An operation may know an object if it began before the object   *)
(* was freed; so may a session that died with an operation, until it is    *)
(* recovered, and a job of the master.  `knows` is who may know what was   *)
(* freed or overwritten last.  Nobody else needs to know: nothing here     *)
(* decides by `knows`, by `life` or by `bad`.                              *)
(*                                                                         *)
(* The block has more objects, of which only one thing is of interest:     *)
(* that one is taken into use, so that the header says what recovery has   *)
(* to walk through.  What is zeros there, and not told to have been        *)
(* allocated, is as good as new for whoever comes next.                    *)
(*                                                                         *)
(* What a round does is Snapshot.tla's: a word is replaced in one step.    *)
(* What a keeper may say of its session is Gate.tla's: a pulse is one step.*)
(***************************************************************************)
\* Promise MEM-12
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Sessions,
  Backups,      \* replicas of the block besides the primary
  MaxGivenUp,   \* requests whose answers do not come in time
  MaxCrashes,
  MaxHandOns,   \* of each session
  MaxLives,     \* how often the object is allocated; 0: there are no objects
  MaxEpoch,
  MaxJobs,
  Removed

VARIABLES
  tab,      \* node -> the owner of the block in its table; 0: nobody
  fence,    \* node -> over: whose requests it refuses; fenced: those whose fence it has not forgotten
  late,     \* requests that nobody waits for: [s, n, kind, from, to, lives, once]
  lateOn,   \* the same, to the master: <<session, serial, new, marked>>
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
   msg |-> NoMsg,        \* the request whose answer it waits for
   held |-> FALSE,
   doubt |-> FALSE,      \* it has given the block back, and not all nodes have said so
   missed |-> FALSE,     \* some table may say what it does not know
   adopting |-> Nobody,  \* from whom it has begun to take the block over
   lives |-> FALSE,      \* whether that session lived, as the master said
   adopted |-> Nobody,   \* from whom it has, and the master does not know
   given |-> FALSE,      \* has handed it on, and nobody has taken it over since, as far as it knows
   serial |-> 0,
   batch |-> <<>>,       \* what the master has not been heard to know of: <<serial, new, marked>>
   shown |-> {}]         \* of its recovery: the nodes that name it

Init ==
  /\ tab = [m \in Nodes |-> Nobody]
  /\ fence = [m \in Nodes |-> [over |-> {}, fenced |-> {}]]
  /\ late = {} /\ lateOn = {}
  /\ ses = [s \in Sessions |-> Session0]
  /\ mas = [left |-> Nobody,                         \* the owner of the leftover, if there is one
            new |-> FALSE, marked |-> FALSE,         \* what was told of it
            given |-> [s \in Sessions |-> <<>>],     \* what it was given: <<owner, new, marked>>
            limbo |-> [s \in Sessions |-> <<>>],     \* the same, under the name of one that lives
            heard |-> [s \in Sessions |-> 0]]        \* the serial of what it handed on last
  /\ obj = [life |-> 0, slot |-> 0, mark |-> FALSE, knows |-> {}, bad |-> FALSE,
            lived |-> FALSE,                         \* something was there since there were zeros
            bytes |-> FALSE,                         \* it is not zeros
            way |-> {},                              \* sessions whose WRITEs of it may still execute
            header |-> "none",                       \* of the block: none, use, rest
            told |-> FALSE,                          \* by the header: it had been allocated
            lost |-> FALSE,                          \* a mark was lost with a session
            hv |-> "new", e |-> Idle]                \* what the holder knows, and since which epoch
  /\ ep = [newest |-> 1, job |-> Idle,
           know |-> [s \in Sessions |-> 1],          \* the newest epoch that it has heard of
           op |-> [s \in Sessions |-> Idle],         \* the epoch of its operation
           acts |-> [s \in Sessions |-> 1],          \* what the master has heard: acts_in, frees_in
           frees |-> [s \in Sessions |-> 1],
           freed |-> [s \in Sessions |-> Idle],      \* since when it has freed what is not marked
           marking |-> [s \in Sessions |-> FALSE]]
  /\ n = [up |-> 0, crash |-> 0, job |-> 0]

IsOpen(s)  == ses[s].st \in {"open", "leaving"}
IsDying(s) == ses[s].st \in {"crashed", "reading"}

---------------------------------------------------------------------------
(* Before which epoch no operation runs any more, and before which one all that was freed is marked:  *)
(* Master::epochs, Marks::pass.                                                                      *)

Counted == {s \in Sessions : IsOpen(s) \/ (IsDying(s) /\ Has("the dead count"))}
Held    == IF Has("jobs count") THEN {ep.job} ELSE {}
Passed  == Min({ep.newest} \cup {ep.acts[s] : s \in Counted} \cup Held)
Settled == Min({Passed} \cup {ep.frees[s] : s \in Counted})

HasPassed == obj.e # Idle /\ IF Has("epochs pass whole") THEN obj.e < Passed ELSE obj.e <= Passed

---------------------------------------------------------------------------
(* Memory nodes: Node::handle. *)

\* Whether a node does what it is asked, and what its table says then.
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

\* A late request executes; or never will.
Late ==
  \E m \in late :
    /\ late' = late \ {m}
    /\ \/ tab' = Table(tab, m)
       \/ tab' = tab
    /\ UNCHANGED <<fence, lateOn, ses, mas, obj, ep, n>>

\* What a session had given up does not take effect behind what was answered.
InTurn(s, node) ==
  IF Has("requests in turn") THEN {m \in late : ~(m.s = s /\ m.n = node)} ELSE late

---------------------------------------------------------------------------
(* Sessions: BlockSource. *)

Set(s, node, from, to, lives) ==
  [s |-> s, n |-> node, kind |-> "set", from |-> from, to |-> to, lives |-> lives, once |-> FALSE]
Ask(s, node, kind) ==
  [s |-> s, n |-> node, kind |-> kind, from |-> Nobody, to |-> s, lives |-> FALSE, once |-> FALSE]

\* The request to the next node in `todo`, by what the session is doing.
Request(s, r) ==
  LET node == Head(r.todo) IN
  CASE r.pc = "alloc"  -> Ask(s, node, "alloc")
    [] r.pc = "find"   -> Ask(s, node, "tables")
    [] r.pc \in {"record", "re-record"} -> Set(s, node, Nobody, s, FALSE)
    [] r.pc = "re-adopt" -> Set(s, node, r.adopting, s, FALSE)
    [] r.pc = "return" -> Set(s, node, s, Nobody, FALSE)
    [] r.pc = "adopt"  -> Set(s, node, r.adopting, s, r.lives)

\* It goes on with this: asks the next node, if there is one.
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

\* After the answer of a node (obeyed or not), when `t` are the tables.
Answered(s, r, ok, t) ==
  LET node == r.msg.n
      rest == Tail(r.todo)
      next == IF rest = <<>> THEN Holds(s, r) ELSE Doing(s, r, r.pc, rest)
  IN
  CASE r.pc = "alloc" /\ ok ->
         \* What may yet be freed is not taken; the tables name the session.
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
         \* What it has handed on it may have got again, and not have heard of it.
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

\* What the holder knows of the object, when it has come by the block.
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

\* It gives back once more what it could not, and looks for what it did not hear of; before it ends, too.
Find(s) ==
  /\ IsOpen(s) /\ ses[s].pc = "idle" /\ ses[s].missed
  /\ ses' = [ses EXCEPT ![s] = IF @.doubt THEN Returns(s, @) ELSE Doing(s, @, "find", <<P>>)]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* A block whose object is free for certain, and zeros for long enough, goes back to the pool.
Return(s) ==
  /\ May(s) /\ ses[s].held /\ ep.op[s] = Idle
  /\ Objects => obj.hv = "zeros" /\ (HasPassed \/ ~Has("zeros wait"))
  /\ ses' = [ses EXCEPT ![s] = Returns(s, @)]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

---------------------------------------------------------------------------
(* Leftovers: Sessions (of the master), Gate::hand_on. *)

\* Whatever others were given of what somebody says it has is of the past.
IsHad(m, s) ==
  IF ~Has("who has it says so") THEN m
  ELSE [m EXCEPT !.given = [x \in Sessions |-> IF x = s THEN @[x] ELSE <<>>],
                 !.limbo = [x \in Sessions |-> <<>>]]

Keep(m, owner, new, marked) == [m EXCEPT !.left = owner, !.new = new, !.marked = marked]

\* The master is told what a session hands on.
HandedOn(m, s, serial, new, marked) ==
  IF ~IsOpen(s) \/ (serial <= m.heard[s] /\ Has("serials")) THEN m
  ELSE Keep(IsHad([m EXCEPT !.heard[s] = serial, !.given[s] = <<>>], s), s, new, marked)

\* The holder lets the keeper hand the block on, between two operations.
HandOn(s) ==
  LET r == ses[s]
      new == obj.hv = "new"
      marked == obj.hv \in {"taken", "seen"} IN
  /\ May(s) /\ r.held /\ r.batch = <<>> /\ r.serial < MaxHandOns
  /\ ep.op[s] = Idle /\ obj.hv \notin {"zeros"}
  /\ ses' = [ses EXCEPT ![s].held = FALSE, ![s].given = TRUE, ![s].adopted = Nobody,
                        ![s].serial = @ + 1, ![s].batch = <<r.serial + 1, new, marked>>]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* The keeper tells the master, and hears that it knows; or not.
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

\* A session says what it has taken over, and under which name.
Reported(m, s) ==
  IF ses[s].adopted # Nobody /\ m.given[s] # <<>> /\ m.given[s][1] = ses[s].adopted
  THEN [m EXCEPT !.given[s] = <<>>] ELSE m

\* With that it asks for a leftover, is given one, and begins to take it over.  Or it does not hear of it.
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

\* It asks when there is none.
Report(s) ==
  /\ May(s) /\ ses[s].adopted # Nobody
  /\ ses' = [ses EXCEPT ![s].adopted = Nobody]
  /\ mas' = Reported(mas, s)
  /\ UNCHANGED <<tab, fence, late, lateOn, obj, ep, n>>

\* A session has ended, and does not say what became of what it was given.
ReturnGiven(m, s) ==
  LET g == m.given[s]
      q == [m EXCEPT !.given[s] = <<>>] IN
  IF g = <<>> \/ m.left # Nobody THEN q
  ELSE IF g[1] # s /\ IsOpen(g[1])
       THEN IF Has("limbo") THEN [q EXCEPT !.limbo[g[1]] = g] ELSE Keep(q, g[1], g[2], g[3])
  \* What the tables say is its its recovery finds, as it is by then.
  ELSE IF g[1] # s /\ IsDying(g[1]) /\ Has("left to its recovery") THEN q
  ELSE Keep(q, g[1], g[2], g[3])

\* No operation of the owner is under way in the block, and the header says so: Op::put_to_rest.
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

\* Whether it knows all that the tables say, or asks all members: BlockSource::is_settled.
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
(* Who dies is fenced everywhere, and recovered. *)

Crash(s) ==
  /\ IsOpen(s)
  /\ \/ n.crash < MaxCrashes
     \/ IsLeaving(s) /\ ~IsSettled(s)     \* it does not end in order
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

\* A node hears that a session is over, and forgets its fence.  Only requests by word that the session lives go
\* by the fence, and only when they are executed.  So it is enough that a node may hear as long as one is there.
Forget(s, node) ==
  /\ ses[s].st = "recovered" \/ (IsDying(s) /\ ~Has("fences last until the recovery"))
  /\ s \in fence[node].fenced
  /\ \E m \in late \cup {ses[x].msg : x \in Sessions} :
       m.kind = "set" /\ m.lives /\ m.from = s /\ m.n = node
  /\ fence' = [fence EXCEPT ![node].fenced = @ \ {s}]
  /\ UNCHANGED <<tab, late, lateOn, ses, mas, obj, ep, n>>

\* The recovery asks all nodes which blocks are the client's.
Read(s) ==
  /\ ses[s].st = "crashed"
  /\ (\A m \in Nodes : s \in fence[m].over) \/ ~Has("recovery after the fence")
  /\ ses' = [ses EXCEPT ![s].st = "reading", ![s].shown = {m \in Nodes : tab[m] = s}]
  /\ UNCHANGED <<tab, fence, late, lateOn, mas, obj, ep, n>>

\* What recovery takes for new: Recovery::walk.
IsNew ==
  LET told == obj.told /\ (obj.header = "rest" \/ Has("headers tell what was allocated"))
  IN ~told /\ ~obj.bytes

\* What is its everywhere goes to others; what is its on some replicas is whose the others say.
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
  \* One to which nobody has written goes back to the pool.
  /\ \E free \in (IF Objects THEN {owned /\ obj.header = "none"} ELSE {FALSE, owned}) :
     \* It begins again where the tables have changed meanwhile: one job recovers several clients.
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

\* An operation does not end as long as a WRITE of it may execute: its session is fenced then.
End(s) ==
  /\ IsOpen(s) /\ ep.op[s] # Idle
  /\ s \notin obj.way \/ ~Has("answers are awaited")
  /\ ep' = [ep EXCEPT !.op[s] = Idle]
  /\ obj' = [obj EXCEPT !.knows = @ \ {s}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

\* The header with which an object comes that is taken into use.
InUse(o) == [o EXCEPT !.header = "use", !.told = o.hv # "new" \/ (o.header = "use" /\ @)]

\* The holder's operation takes another object of the block.
UseOther(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.header # "use" /\ obj.hv # "zeros"
  /\ obj' = InUse(obj)
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The holder's operation takes the object, and nothing comes of that: it was given back before any of it
\* was written, or its operation was dropped.
TakeInVain(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.hv = "new" /\ ~obj.bytes
  /\ \E hv \in {"free", "taken"} : obj' = [InUse(obj) EXCEPT !.hv = hv]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The same, and no answer comes to its WRITE.  The object is given back.
WriteInVain(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.hv \in {"new", "free"} /\ s \notin obj.way
  /\ n.up < MaxGivenUp /\ n' = [n EXCEPT !.up = @ + 1]
  /\ obj' = [InUse(obj) EXCEPT !.hv = "free", !.way = @ \cup {s}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep>>

\* It executes after all, on some replica.
LateWrite(s) ==
  /\ s \in obj.way
  /\ \E m \in Nodes :
       /\ s \notin fence[m].over
       /\ obj' = [obj EXCEPT !.way = @ \ {s}, !.bytes = TRUE, !.bad = @ \/ tab[m] # s]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* The holder's operation takes the object, and its word comes into the slot.
Write(s) ==
  /\ ses[s].st = "open" /\ ses[s].held /\ ep.op[s] # Idle
  /\ obj.hv \in {"new", "free"} /\ obj.life < MaxLives
  /\ obj' = [InUse(obj) EXCEPT !.life = @ + 1, !.slot = obj.life + 1, !.hv = "taken", !.e = Idle,
                        !.bytes = TRUE, !.lived = TRUE,
                        !.bad = @ \/ obj.slot # 0 \/ obj.knows # {}]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, ep, n>>

\* Any operation replaces the word, and so frees the object.
Replace(s) ==
  /\ ses[s].st = "open" /\ ep.op[s] # Idle /\ obj.slot # 0
  /\ obj' = [obj EXCEPT !.slot = 0, !.knows = Running]
  /\ ep' = [ep EXCEPT !.freed[s] = IF @ = Idle THEN ep.op[s] ELSE Min({@, ep.op[s]})]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

\* What was freed is marked, in two steps: the gate says that it may be, and the FAA executes.
MayMark(s) ==
  /\ IsOpen(s) /\ ep.freed[s] # Idle /\ ~ep.marking[s]
  /\ ep' = [ep EXCEPT !.marking[s] = TRUE]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, obj, n>>

Mark(s) ==
  /\ IsOpen(s) /\ ep.marking[s]
  /\ ep' = [ep EXCEPT !.marking[s] = FALSE, !.freed[s] = Idle]
  /\ obj' = [obj EXCEPT !.mark = TRUE, !.bad = @ \/ obj.mark]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

\* The keeper does not wait any longer for what its session has freed.
Revoke(s) ==
  /\ IsOpen(s) /\ ep.freed[s] # Idle /\ ep.freed[s] < ep.newest
  /\ ~ep.marking[s] \/ ~Has("not what is being marked")
  /\ ep' = [ep EXCEPT !.freed[s] = Idle]
  /\ obj' = [obj EXCEPT !.lost = TRUE]
  /\ UNCHANGED <<tab, fence, late, lateOn, ses, mas, n>>

---------------------------------------------------------------------------
(* The holder collects.  `e` is the newest epoch when the master was asked, after the look. *)

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
  /\ obj.hv \in {"seen", "compared", "zeros"} /\ obj.e # Idle      \* somebody waits for it
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

\* Who has the block has it alone, and every table says so: whoever dies is found there.
OneOwner ==
  /\ Cardinality(Owners) <= 1
  /\ \A s \in Owners : \A m \in Nodes : tab[m] = s

\* Nothing is used again that a slot names, or that somebody may know; no bit is set twice.
NoEarlyReuse == ~obj.bad

\* A bit is set of what no slot names.
MarkedIsFree == obj.mark => obj.slot = 0

\* When nothing runs the block is in the pool, or told to the master under its owner's name.
NothingLeaks ==
  AtRest => \/ \A m \in Nodes : tab[m] = Nobody
            \/ mas.left # Nobody /\ \A m \in Nodes : tab[m] = mas.left

\* And the object is named, or marked, or whoever gets the block knows that it has to look.
ObjectsAreFound ==
  AtRest /\ mas.left # Nobody /\ obj.lived /\ ~obj.lost =>
    /\ ~mas.new
    /\ obj.slot # 0 \/ obj.mark \/ ~mas.marked

=============================================================================
