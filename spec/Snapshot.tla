------------------------------ MODULE Snapshot ------------------------------
(***************************************************************************)
(* The memory nodes, the fabric between them and the sessions, crashes and *)
(* their recovery, and the change of a view.  What a session does is in    *)
(* Session.tla, the rules of a round in Words.tla.                         *)
(*                                                                         *)
(* Every verb is a step of its own.  To keep the state space small, what a *)
(* session computes between two phases happens in the step of the phase's  *)
(* last verb: nobody can see the difference.  For the same reason a crash  *)
(* takes the verbs under way with it (crash and fence are one step): verbs *)
(* that still run between crash and fence could as well have run before    *)
(* the crash.                                                              *)
(*                                                                         *)
(* Every behaviour is finite, so "every operation ends under fairness" is  *)
(* "no deadlock": TLC checks that.                                         *)
(***************************************************************************)
EXTENDS Session

CONSTANTS
  Keys,
  Clients,
  Init0,        \* slot contents at the start: a set of functions Slots -> key or NoKey
  Tear,         \* READs of several slots take them one by one
  MaxCrashes,   \* how many clients may crash
  CanLose,      \* nodes that may be lost
  CanRetire,    \* nodes that may be taken out of the view while they are alive
  MaxChanges,   \* how many nodes may be lost or retired, one after another or at once
  MaxRestarts   \* how often a master may die in the middle of settling or of a recovery

VARIABLES
  mem,     \* node -> slot -> word
  sess,    \* client -> session
  stray,   \* verbs of a crashed client that nobody fenced (a mutant)
  master,  \* the view and its change, see Init
  front    \* ghost: key -> frontier (History.tla)

vars == <<mem, sess, stray, master, front>>

---------------------------------------------------------------------------
(* Ghosts. *)

\* What a reader of this replica would see.
Shown(words, k) ==
  LET holders == {s \in Slots : words[s].st = "live" /\ words[s].key = k}
      ids     == {words[s].id : s \in holders}
  IN  IF ids = {} THEN 0 ELSE CHOOSE i \in ids : \A j \in ids : i >= j

Nobody == 99   \* while the primary is dead nobody sees anything

ShownNow(k)  == LET p == Head(master.reps)
                IN  IF p \in master.dead THEN Nobody ELSE Shown(mem[p], k)
ShownNext(k) == LET p == Head(master'.reps)
                IN  IF p \in master'.dead THEN Nobody ELSE Shown(mem'[p], k)

Context(ses) == [c \in Clients |-> [op |-> ses[c].op, id |-> CurrentId(ses[c])]]

\* The history grows by one step of client c on key key: an invocation (inv), an answer, neither
\* or both, and whatever the primary shows from now on.  ctx: the operations before the answer.
Ghost(c, key, inv, ans, ctx) ==
  front' = [k \in Keys |->
    LET mine == k = key /\ (inv \/ ans # NoAns)
        sees == ShownNext(k)
        f1   == IF k = key /\ inv THEN Invoked(front[k], c) ELSE front[k]
        f2   == IF ~mine /\ sees = ShownNow(k) THEN f1
                ELSE IF sees = Nobody THEN Closure(f1, ctx)
                ELSE Observed(Closure(f1, ctx), sees)
    IN  IF mine /\ ans # NoAns THEN Answered(f2, c, ans) ELSE f2]

OnlyMemory == Ghost(0, NoKey, FALSE, NoAns, Context(sess))

---------------------------------------------------------------------------

InitReps == [i \in 1..(Backups0 + 1) |-> i - 1]

NoStray == [slot |-> NoSlot, net |-> NoNet]

Init ==
  \E f \in Init0 :
    LET \* the identities of pairs that are there at the start: one for each key
        word(s) == IF f[s] = NoKey THEN Never ELSE Live(1, f[s])
    IN /\ mem = [n \in Nodes |-> [s \in Slots |-> word(s)]]
       /\ sess = [c \in Clients |-> Rest(c, 1, 0, InitReps)]
       /\ stray = NoStray
       /\ master = [stage |-> "ok",          \* "lost", "frozen", "switched", "ok"
                    reps |-> InitReps,       \* the view: the primary, then the backups
                    dead |-> {},
                    leaving |-> {},          \* dead or not, not in the next view
                    joining |-> {},          \* not in this view, but in the next
                    todo |-> {},             \* slots to settle
                    restarts |-> 0]
       /\ front = [k \in Keys |-> {<<IF \E s \in Slots : f[s] = k THEN 1 ELSE 0,
                                     [c \in Clients |-> NoAns]>>}]

---------------------------------------------------------------------------
(* The fabric. *)

\* A phase may be over.  While the scope is frozen, an operation may go on or stop here.
EndOfVerb(c, r, inv) ==
  LET outcomes ==
        IF r.net # NoNet THEN {Cont(r)}
        ELSE IF r.fail THEN {Cont(Park(r))}
        ELSE LET o == After(r)
             IN  o \cup (IF master.stage = "frozen" /\ \A x \in o : x.ans = NoAns
                         THEN {Cont(Park(r))} ELSE {})
  IN  \E o \in outcomes :
        /\ sess' = [sess EXCEPT ![c] = o.r]
        /\ Ghost(c, r.key, inv, o.ans, Context([sess EXCEPT ![c] = r]))

\* The next verb of session r at node n.
Execute(c, r, n, inv) ==
  LET v == Head(r.net[n]) IN
  /\ UNCHANGED <<stray, master>>
  /\ IF n \in master.dead
     THEN /\ UNCHANGED mem
          /\ EndOfVerb(c, [r EXCEPT !.net[n] = <<>>, !.fail = TRUE], inv)
     ELSE IF v.t = "cas"
     THEN LET cur == mem[n][r.slot]
          IN  /\ mem' = IF cur = v.e THEN [mem EXCEPT ![n][r.slot] = v.w] ELSE mem
              /\ EndOfVerb(c, [r EXCEPT !.net[n] = Tail(@), !.got[n] = cur,
                                        !.bad = @ \/ (v.must /\ cur # v.e)], inv)
     ELSE /\ UNCHANGED mem
          /\ \E S \in (IF Tear THEN {{s} : s \in v.left} ELSE {v.left}) :
               LET rest == v.left \ S
                   net  == IF rest = {} THEN Tail(r.net[n]) ELSE <<Read(rest)>> \o Tail(r.net[n])
               IN  EndOfVerb(c, [r EXCEPT
                     !.net[n] = net,
                     !.data[n] = [s \in Slots |-> IF s \in S THEN mem[n][s] ELSE @[s]]], inv)

Verb(c) == \E n \in Nodes : sess[c].net[n] # <<>> /\ Execute(c, sess[c], n, FALSE)

\* An operation begins, or begins again: its first phase is the READ of both buckets.  Writes to
\* a frozen scope wait; reads go on.
Begin(c) ==
  LET r == sess[c] IN
  /\ r.pc = "ready"
  /\ Primary(r) \notin master.dead
  /\ \E o \in (IF r.op = "none" THEN Programs[c][r.ip] ELSE {[op |-> r.op, key |-> r.key]}) :
       /\ o.op = "SEARCH" \/ master.stage \in {"ok", "lost"}
       /\ Execute(c, Post([r EXCEPT !.op = o.op, !.key = o.key], "read",
                          To(r, Primary(r), <<Read(Slots)>>)),
                  Primary(r), r.op = "none")

\* The primary is dead: a SEARCH asks all backups that are left.
SearchBackups(c) ==
  LET r    == sess[c]
      asks == Backups(r) \ master.dead
      verbs(n) == IF n \in asks THEN <<Read(Slots)>> ELSE <<>>
  IN
  /\ r.pc = "ready" /\ Primary(r) \in master.dead /\ asks # {}
  /\ \E o \in (IF r.op = "none" THEN Programs[c][r.ip] ELSE {[op |-> r.op, key |-> r.key]}) :
       /\ o.op = "SEARCH"
       /\ LET q == Post([r EXCEPT !.op = o.op, !.key = o.key, !.asked = asks], "degraded",
                        ToBackups(r, verbs))
          IN  \E n \in asks : Execute(c, q, n, r.op = "none")

\* A loser sees that the round is over.
AwaitEnd(c) ==
  LET r == sess[c] IN
  /\ r.pc = "await"
  /\ Primary(r) \notin master.dead
  /\ mem[Primary(r)][r.slot] # r.old
  /\ \E o \in LoserEnds(r) :
       /\ sess' = [sess EXCEPT ![c] = o.r]
       /\ UNCHANGED <<mem, stray, master>>
       /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

\* A waiting loser gives up its wait for a change of the view, or because the primary is dead.
StopWaiting(c) ==
  LET r == sess[c] IN
  /\ r.pc = "await"
  /\ master.stage = "frozen" \/ Primary(r) \in master.dead
  /\ sess' = [sess EXCEPT ![c] = Park(r)]
  /\ UNCHANGED <<mem, stray, master>>
  /\ OnlyMemory

---------------------------------------------------------------------------
(* A client crashes, and is recovered. *)

\* Only where it has posted a CAS: before that, nobody knows of the operation, and a shorter
\* program says the same.
Crash(c) ==
  LET r == sess[c]
      crashed == [Rest(c, r.ip, r.seq, r.reps) EXCEPT
                    !.pc = "crashed", !.op = r.op, !.key = r.key, !.rec = TRUE,
                    !.own = r.own, !.vis = TRUE]
  IN
  /\ r.vis /\ ~r.rec
  /\ Cardinality({d \in Clients : sess[d].rec \/ sess[d].pc = "gone"}) < MaxCrashes
  /\ sess' = [sess EXCEPT ![c] = crashed]
  /\ stray' = IF "fence" \in Removed THEN [slot |-> r.slot, net |-> r.net] ELSE stray
  /\ UNCHANGED <<mem, master>>
  /\ OnlyMemory

Recover(c) ==
  LET r == sess[c] IN
  /\ r.pc = "crashed"
  /\ master.stage = "ok"             \* first memory nodes, then clients
  /\ \E o \in Inspect([r EXCEPT !.reps = master.reps]) :
       sess' = [sess EXCEPT ![c] = o.r]
  /\ UNCHANGED <<mem, stray, master>>
  /\ OnlyMemory

\* The master that recovers dies (and is fenced); another one looks again.
RestartRecovery(c) ==
  LET r == sess[c] IN
  /\ r.rec /\ r.pc # "crashed"
  /\ master.restarts < MaxRestarts
  /\ master' = [master EXCEPT !.restarts = @ + 1]
  /\ sess' = [sess EXCEPT ![c] = Park(r)]
  /\ UNCHANGED <<mem, stray>>
  /\ OnlyMemory

\* Mutant: a verb that nobody fenced.
Stray(n) ==
  /\ stray.net[n] # <<>>
  /\ LET v == Head(stray.net[n]) IN
       /\ stray' = [stray EXCEPT !.net[n] = Tail(@)]
       /\ mem' = IF v.t = "cas" /\ n \notin master.dead /\ mem[n][stray.slot] = v.e
                 THEN [mem EXCEPT ![n][stray.slot] = v.w] ELSE mem
  /\ UNCHANGED <<sess, master>>
  /\ OnlyMemory

---------------------------------------------------------------------------
(* A memory node is lost, or leaves: freeze, drain, settle, switch, unfreeze. *)

Alive     == Nodes \ master.dead
Active(c) == sess[c].pc \notin {"done", "gone"}

\* Whatever the stage: if the scope is frozen already, it is settled once more.  A spare node that
\* comes instead is filled by the settling.
Leave(n, dead) ==
  LET again == master.stage \in {"frozen", "switched"} IN
  /\ n \in {master.reps[i] : i \in 1..Len(master.reps)} \ master.leaving
  /\ Cardinality({master.reps[i] : i \in 1..Len(master.reps)} \ master.leaving) > 1
  /\ Cardinality(Nodes0) - Cardinality({master.reps[i] : i \in 1..Len(master.reps)}
                                          \ (master.leaving \cup Spares)) < MaxChanges
  /\ \E c \in Clients : Active(c)
  /\ \E spare \in {{}} \cup {{m} : m \in Spares \ {master.reps[i] : i \in 1..Len(master.reps)}} :
       master' = [master EXCEPT !.stage = IF again THEN "frozen" ELSE "lost",
                                !.todo = IF again THEN Slots ELSE {},
                                !.leaving = @ \cup {n}, !.dead = @ \cup dead,
                                !.joining = IF @ = {} THEN spare ELSE @]
  /\ UNCHANGED <<mem, sess, stray>>
  /\ OnlyMemory

Lose(n)   == n \in CanLose /\ Leave(n, {n})
Retire(n) == n \in CanRetire /\ Leave(n, {})

Freeze ==
  /\ master.stage = "lost"
  /\ master' = [master EXCEPT !.stage = "frozen", !.todo = Slots]
  /\ UNCHANGED <<mem, sess, stray>>
  /\ OnlyMemory

\* Every session has acknowledged: none has a verb of a write on its way.
Drained == \A c \in Clients :
             sess[c].pc \in {"ready", "done", "gone", "crashed", "parked"} \/ sess[c].op = "SEARCH"

\* The word that all replicas of a slot will hold; pick: the one taken from a backup.
Settled(pick, backups) ==
  IF (pick.st = "tentative" /\ "settle withdraws" \notin Removed)
     \/ ("aborts win" \notin Removed /\ \E b \in backups : b.st = "free" /\ b.id = pick.id)
  THEN Aborted(pick) ELSE Confirmed(pick)

\* The master writes a slot's word to the backups first, to the primary last: if it dies half-way,
\* the next master may choose another word, and nobody has seen the first.
SettleOrder ==
  LET old      == master.reps
      alive(n) == n \in Alive
      backups  == SelectSeq(Tail(old), alive) \o SetToSeq(master.joining \ master.dead)
      primary  == SelectSeq(<<Head(old)>>, alive)
  IN  IF "settle primary last" \in Removed THEN primary \o backups ELSE backups \o primary

Settle(s) ==
  LET old      == master.reps
      primary  == Head(old)
      backups  == {old[i] : i \in 2..Len(old)} \cap Alive
      words    == {mem[b][s] : b \in backups}
      settled  == primary \in Alive /\ \A b \in backups : mem[b][s] = mem[primary][s]
      choices  == IF settled \/ backups = {} THEN {mem[primary][s]}
                  ELSE {IF w.st = "free" THEN w ELSE Settled(w, words) : w \in words}
      order    == SettleOrder
      first(i) == {order[j] : j \in 1..i}
  IN
  /\ master.stage = "frozen" /\ s \in master.todo
  /\ Drained \/ "drain" \in Removed
  /\ \E w \in choices, i \in (IF master.restarts < MaxRestarts THEN 1..Len(order)
                               ELSE {Len(order)}) :
       /\ mem' = [n \in Nodes |-> IF n \in first(i) THEN [mem[n] EXCEPT ![s] = w] ELSE mem[n]]
       /\ master' = IF i = Len(order) THEN [master EXCEPT !.todo = @ \ {s}]
                    ELSE [master EXCEPT !.todo = Slots, !.restarts = @ + 1]
  /\ UNCHANGED <<sess, stray>>
  /\ OnlyMemory

Switch ==
  /\ master.stage = "frozen" /\ master.todo = {}
  /\ LET stays(n) == n \notin master.leaving
     IN  master' = [master EXCEPT !.stage = "switched", !.leaving = {}, !.joining = {},
                      !.reps = SelectSeq(@, stays) \o SetToSeq(master.joining)]
  /\ UNCHANGED <<mem, sess, stray>>
  /\ OnlyMemory

\* A session takes the new view when none of its READs is left on the old place.
Acknowledge(c) ==
  LET r == sess[c] IN
  /\ master.stage \in {"switched", "ok"} /\ r.reps # master.reps
  /\ r.pc = "ready"
  /\ sess' = [sess EXCEPT ![c].reps = master.reps]
  /\ UNCHANGED <<mem, stray, master>>
  /\ OnlyMemory

\* A writer that was stopped re-reads its slot.
ReadAgain(c) ==
  LET r == [sess[c] EXCEPT !.reps = master.reps] IN
  /\ master.stage \in {"switched", "ok"}
  /\ r.pc = "parked"
  /\ \E o \in Resolve(r, mem[Primary(r)][r.slot]) :
       /\ sess' = [sess EXCEPT ![c] = o.r]
       /\ UNCHANGED <<mem, stray, master>>
       /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

Unfreeze ==
  /\ master.stage = "switched"
  /\ \A c \in Clients :
       LET r == sess[c] IN
       /\ Active(c) /\ r.pc \notin {"parked", "crashed"}
            => r.reps = master.reps \/ "old readers leave" \in Removed
       /\ r.pc = "parked" => "writers re-read first" \in Removed
  /\ master' = [master EXCEPT !.stage = "ok"]
  /\ UNCHANGED <<mem, sess, stray>>
  /\ OnlyMemory

---------------------------------------------------------------------------

AtRest == /\ \A c \in Clients : ~Active(c)
          /\ master.stage = "ok" /\ stray.net = NoNet

Terminated == AtRest /\ UNCHANGED vars

Next ==
  \/ \E c \in Clients : \/ Begin(c) \/ SearchBackups(c) \/ Verb(c) \/ AwaitEnd(c)
                        \/ Crash(c) \/ Recover(c) \/ RestartRecovery(c)
                        \/ StopWaiting(c) \/ Acknowledge(c) \/ ReadAgain(c)
  \/ \E n \in Nodes : Lose(n) \/ Retire(n) \/ Stray(n)
  \/ \E s \in Slots : Settle(s)
  \/ Freeze \/ Switch \/ Unfreeze
  \/ Terminated

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Properties. *)

\* No key is live in two slots of a primary.
NoDuplicate ==
  LET p == Head(master.reps) IN
  p \notin master.dead =>
    \A s, t \in Slots : s # t /\ mem[p][s].st = "live" /\ mem[p][t].st = "live"
                          => mem[p][s].key # mem[p][t].key

\* When nothing runs, all replicas hold the same, and nothing is tentative.
ReplicasAgree ==
  AtRest => \A s \in Slots : \A i \in 1..Len(master.reps) :
              /\ mem[master.reps[i]][s] = mem[Head(master.reps)][s]
              /\ mem[master.reps[i]][s].st # "tentative"

\* Some order of the operations explains all answers, and what the primary ever showed.
Linearizable == \A k \in Keys : front[k] # {}

\* The CASes of a winner cannot fail (Error::Interrupted).
WinnersAreAlone == \A c \in Clients : ~sess[c].bad

=============================================================================
