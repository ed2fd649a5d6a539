------------------------------ MODULE Snapshot ------------------------------
(***************************************************************************)
(* The memory nodes, the fabric between them and the sessions, crashes and *)
(* their recovery, and the change of a view. Session.tla has the steps of  *)
(* a session, Words.tla the rules of a round.                              *)
(*                                                                         *)
(* Every verb is a step of its own. To keep the state space small, what a  *)
(* session computes between two phases happens in the step of the phase's  *)
(* last verb, because no other process can observe the difference. For the *)
(* same reason a crash discards the running verbs (crash and fence are one *)
(* step): verbs that still execute between crash and fence could as well   *)
(* have executed before the crash.                                         *)
(*                                                                         *)
(* If `Objects` is not empty, objects are modelled as well: which          *)
(* identities are complete on which node. If `Recording`, so are the       *)
(* records of DELETEs: each node has a log area for each client.           *)
(*                                                                         *)
(* Every behaviour is finite, so "every operation ends under fairness" is  *)
(* the same as "no deadlock", which TLC checks.                            *)
(***************************************************************************)
EXTENDS Session

CONSTANTS
  Keys,
  Clients,
  Init0,        \* slot contents at the start: a set of functions Slots -> key or NoKey
  Tear,         \* a READ of several slots reads them one by one
  MaxCrashes,   \* how many clients may crash
  CanLose,      \* nodes that may be lost
  CanRetire,    \* nodes that may be taken out of the view while they are alive
  MaxChanges,   \* how many nodes may be lost or retired, one after another or at once
  MaxRestarts   \* how often a master may die while it settles or recovers

VARIABLES
  mem,     \* node -> slot -> word
  sess,    \* client -> session
  stray,   \* verbs of a crashed client that was not fenced (a mutant)
  master,  \* the view and its change, see Init
  objs,    \* node -> identities whose objects are complete there (with speculative writes)
  logs,    \* node -> client -> numbers in the records of the client's log area there
  past,    \* what hints may contain: every <<slot, live word>> that the primary has shown
  front    \* ghost: key -> frontier (History.tla)

vars == <<mem, sess, stray, master, objs, logs, past, front>>

---------------------------------------------------------------------------
(* Ghosts. *)

\* What a reader of this replica would see.
Shown(words, k) ==
  LET holders == {s \in Slots : words[s].st = "live" /\ words[s].key = k}
      ids     == {words[s].val : s \in holders}
  IN  IF ids = {} THEN 0 ELSE CHOOSE i \in ids : \A j \in ids : i >= j

Nobody == 99   \* while the primary is dead no session reads it

ShownNow(k)  == LET p == Head(master.reps)
                IN  IF p \in master.dead THEN Nobody ELSE Shown(mem[p], k)
ShownNext(k) == LET p == Head(master'.reps)
                IN  IF p \in master'.dead THEN Nobody ELSE Shown(mem'[p], k)

Context(ses) == [c \in Clients |-> [op |-> ses[c].op, id |-> CurrentId(ses[c])]]

\* Whether client c is in the middle of an operation that changes no value.
IsUnseen(c) == c \in Clients /\ {sess[c].op, sess'[c].op} \cap Unseen # {}

\* The history grows by one step of client c on key key: an invocation (inv), an answer, neither or both, and then what
\* the primary shows. ctx: the operations before the answer.
Ghost(c, key, inv, ans, ctx) ==
  /\ front' = [k \in Keys |->
    LET mine == k = key /\ (inv \/ ans # NoAns) /\ ~IsUnseen(c)
        sees == ShownNext(k)
        f1   == IF k = key /\ inv /\ ~IsUnseen(c) THEN Invoked(front[k], c) ELSE front[k]
        f2   == IF ~mine /\ sees = ShownNow(k) THEN f1
                ELSE IF sees = Nobody THEN Closure(f1, ctx)
                ELSE Observed(Closure(f1, ctx), sees)
    IN  IF mine /\ ans # NoAns THEN Answered(f2, c, ans) ELSE f2]
  /\ past' = IF ~Speculating THEN past
             ELSE LET p      == Head(master'.reps)
                      reused == \E d \in Clients : sess'[d].reuse
                      old    == IF reused /\ "hints are young" \notin Removed
                                THEN {h \in past : h[2].id # 1} ELSE past
                  IN  old \cup (IF p \in master'.dead THEN {}
                               ELSE {<<s, mem'[p][s]>> : s \in {s \in Slots :
                                                                mem'[p][s].st = "live"}})

OnlyMemory == Ghost(0, NoKey, FALSE, NoAns, Context(sess))

---------------------------------------------------------------------------

InitReps == [i \in 1..(Backups0 + 1) |-> i - 1]

NoStray == [slot |-> NoSlot, net |-> NoNet]

Init ==
  \E f \in Init0 :
    LET \* the identities of the pairs at the start: one for each key
        word(s) == CASE f[s] = NoKey    -> Never
                     [] f[s] = Leftover -> Marker(2)
                     [] OTHER           -> Live(1, f[s])
    IN /\ mem = [n \in Nodes |-> [s \in Slots |-> word(s)]]
       /\ sess = [c \in Clients |-> Rest(c, 1, 0, InitReps)]
       /\ stray = NoStray
       /\ master = [stage |-> "ok",          \* "lost", "frozen", "switched", "ok"
                    reps |-> InitReps,       \* the view: the primary, then the backups
                    dead |-> {},
                    leaving |-> {},          \* the nodes, dead or alive, that are not in the next view
                    joining |-> {},          \* the nodes that are not in this view, but in the next
                    todo |-> {},             \* slots to settle
                    moved |-> FALSE,         \* a replica of the objects has moved
                    restarts |-> 0]
       /\ objs = [n \in Nodes |-> IF n \in Objects THEN {1} ELSE {}]
       /\ logs = [n \in Nodes |-> [c \in Clients |-> {}]]
       /\ past = IF Speculating THEN {<<s, word(s)>> : s \in {s \in Slots : f[s] # NoKey}} ELSE {}
       /\ front = [k \in Keys |-> {<<IF \E s \in Slots : f[s] = k THEN 1 ELSE 0,
                                     [c \in Clients |-> NoAns]>>}]

---------------------------------------------------------------------------
(* The fabric. *)

\* As in Change.tla, which says why: a recovery that has lost a round waits for the round's end. It matters only with
\* objects, or with several backups when settling chooses between their words.
UntilItIsOver(r, o) ==
  IF (WithObjects \/ (Backups0 > 1 /\ CanLose # {})) /\ o.ans = Buried /\ r.pc \in {"contend", "rule3"}
  THEN Cont([r EXCEPT !.pc = "await", !.seen = NoGot, !.got = NoGot, !.data = NoData])
  ELSE o

\* A log area is given to another session, empty, when its session has ended in order or is recovered.
Kept(areas, c, r) ==
  IF Recording /\ (r.pc \in {"done", "gone"}
                    \/ (r.pc = "commit" /\ "records stay until the outcome" \in Removed))
  THEN [n \in Nodes |-> [areas[n] EXCEPT ![c] = {}]] ELSE areas

\* A phase may be over. While the scope is frozen, an operation may go on or stop here. areas: the log areas by then.
EndOfVerb(c, r, inv, areas) ==
  LET outcomes ==
        IF r.net # NoNet THEN {Cont(r)}
        ELSE IF r.bad THEN {Cont(r)}      \* the model ends there: WinnersAreAlone
        ELSE IF r.fail THEN {Cont(Park(r))}
        ELSE LET o == OrNextNumber(r, {UntilItIsOver(r, x) : x \in After(r)})
             IN  o \cup (IF master.stage = "frozen" /\ \A x \in o : x.ans = NoAns
                         THEN {Cont(Park(r))} ELSE {})
  IN  \E o \in outcomes :
        /\ sess' = [sess EXCEPT ![c] = o.r]
        /\ logs' = Kept(areas, c, o.r)
        /\ Ghost(c, r.key, inv, o.ans, Context([sess EXCEPT ![c] = r]))

\* What a writer that looks at a backup concludes from a word: it reads the word's object on the same node, where the
\* object is complete.
Understood(r, n, w) ==
  IF "objects are read beside the word" \in Removed /\ r.pc \in {"contend", "fix"}
     /\ n # Primary(r) /\ w.st = "live" /\ w.id \notin objs[Primary(r)]
  THEN [w EXCEPT !.key = NoKey] ELSE w

\* The next verb of session r at node n. has: the value of objs before it.
Execute(c, r, n, inv, has) ==
  LET v     == Head(r.net[n])
      alive == n \notin master.dead
      halts == InOrder /\ r.pc = "speculate" /\ v.t = "write"   \* the verbs that follow are not posted
  IN
  /\ InOrder /\ r.pc = "speculate" /\ v.t # "write" => \A m \in Nodes : ~Writes(r.net[m])
  /\ UNCHANGED <<stray, master>>
  /\ objs' = IF alive /\ v.t = "write" THEN [has EXCEPT ![n] = @ \cup {v.id}] ELSE has
  /\ CASE ~alive ->
             /\ UNCHANGED mem
             /\ EndOfVerb(c, [r EXCEPT !.net = IF halts THEN NoNet ELSE [@ EXCEPT ![n] = <<>>],
                                       !.fail = TRUE], inv, logs)
       [] alive /\ v.t = "write" ->
             /\ UNCHANGED mem
             /\ EndOfVerb(c, [r EXCEPT !.net[n] = Tail(@)], inv, logs)
       [] alive /\ v.t = "record" ->
             /\ UNCHANGED mem
             \* The outcomes of the client's earlier DELETEs are known, so the record may overwrite theirs.
             /\ \E others \in {{}, logs[n][c]} :
                  EndOfVerb(c, [r EXCEPT !.net[n] = Tail(@)], inv, [logs EXCEPT ![n][c] = others \cup {v.id}])
       [] alive /\ v.t = "cas" ->
          LET cur == mem[n][r.slot]
          IN  /\ mem' = IF cur = v.e THEN [mem EXCEPT ![n][r.slot] = v.w] ELSE mem
              /\ EndOfVerb(c, [r EXCEPT !.net[n] = Tail(@), !.got[n] = cur,
                                        !.bad = @ \/ (v.must /\ cur # v.e)], inv, logs)
       [] alive /\ v.t = "read" ->
          /\ UNCHANGED mem
          /\ \E S \in (IF Tear THEN {{s} : s \in v.left} ELSE {v.left}) :
               LET rest == v.left \ S
                   net  == IF rest = {} THEN Tail(r.net[n]) ELSE <<Read(rest)>> \o Tail(r.net[n])
               IN  EndOfVerb(c, [r EXCEPT
                     !.net[n] = net,
                     !.data[n] = [s \in Slots |-> IF s \in S THEN Understood(r, n, mem[n][s])
                                                    ELSE @[s]]], inv, logs)

Verb(c) == \E n \in Nodes : sess[c].net[n] # <<>> /\ Execute(c, sess[c], n, FALSE, objs)

\* The object of an identity, on all live nodes that hold objects.
Everywhere(id) == [n \in Nodes |-> IF n \in Objects \ master.dead THEN objs[n] \cup {id} ELSE objs[n]]

\* Whether the first identity may recur: no slot has it, and no running operation knows it.
Returns ==
  /\ \A n \in Nodes, s \in Slots : mem[n][s].id # 1
  /\ \A c \in Clients :
       LET r == sess[c] IN
       \/ r.op = "none"
       \/ /\ r.old.id # 1 /\ r.own.id # 1
          /\ \A n \in Nodes : r.seen[n].id # 1 /\ r.got[n].id # 1

\* An operation begins, or begins again: its first phase is the READ of both buckets. Writes to a frozen scope wait;
\* reads go on.
Begin(c) ==
  LET r == sess[c] IN
  /\ r.pc = "ready"
  /\ Primary(r) \notin master.dead
  /\ \E o \in (IF r.op = "none" THEN Programs[c][r.ip] ELSE {[op |-> r.op, key |-> r.key]}) :
       /\ o.op = "SEARCH" \/ master.stage \in {"ok", "lost"}
       /\ \E reuse \in {FALSE} \cup (IF Recycling /\ Returns /\ o.op \notin Erasing THEN {TRUE} ELSE {}) :
            LET q == [r EXCEPT !.op = o.op, !.key = o.key, !.reuse = reuse]
            IN  Execute(c, Post(q, "read", To(q, ReadsAt(q), <<Read(Slots)>>)), ReadsAt(q),
                        r.op = "none",
                        IF WithObjects /\ Writing(o.op) THEN Everywhere(NextId(q)) ELSE objs)

\* An UPDATE or DELETE begins with a speculative write. An UPDATE does so only if the nodes with the slot's backups have
\* its objects, and no node without a replica of the slot has them.
BeginSpeculation(c) ==
  LET r       == sess[c]
      beside  == Backups(r) \subseteq Objects /\ Objects \ master.dead \subseteq {Primary(r)} \cup Backups(r)
  IN
  /\ Speculating /\ ~master.moved
  /\ r.pc = "ready" /\ r.tries = 0
  /\ Primary(r) \notin master.dead /\ Backups(r) # {}
  /\ master.stage \in {"ok", "lost"}
  /\ \E o \in (IF r.op = "none" THEN Programs[c][r.ip] ELSE {[op |-> r.op, key |-> r.key]}),
        h \in past :
       /\ o.op \in {"UPDATE", "UPSERT", "DELETE"}
       /\ beside \/ o.op = "DELETE" \/ "objects beside the backups" \in Removed
       /\ h[2].key = o.key \/ "hints are the key's" \in Removed
       /\ LET q == Speculate([r EXCEPT !.op = o.op, !.key = o.key], h)
          IN  \E n \in Nodes : q.net[n] # <<>> /\ Execute(c, q, n, r.op = "none", objs)

\* The primary is dead: a SEARCH reads all remaining backups.
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
          IN  \E n \in asks : Execute(c, q, n, r.op = "none", objs)

\* A loser sees that the round is over.
AwaitEnd(c) ==
  LET r == sess[c] IN
  /\ r.pc = "await"
  /\ Primary(r) \notin master.dead
  /\ \/ mem[Primary(r)][r.slot] # r.old
     \/ r.op \in Moves /\ "overtaken Moves wait" \in Removed
  /\ \E o \in (IF r.rec THEN InspectNumbers(r) ELSE LoserEnds(r, mem[Primary(r)][r.slot])) :
       /\ sess' = [sess EXCEPT ![c] = o.r]
       /\ logs' = Kept(logs, c, o.r)
       /\ UNCHANGED <<mem, stray, master>>
       /\ objs' = IF r.op = "MOVE" THEN [n \in Nodes |-> objs[n] \ {r.own.id}] ELSE objs
       /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

\* A loser stops waiting because of a change of the view, or because the primary is dead.
StopWaiting(c) ==
  LET r == sess[c] IN
  /\ r.pc = "await"
  /\ master.stage = "frozen" \/ Primary(r) \in master.dead
  /\ sess' = [sess EXCEPT ![c] = Park(r)]
  /\ UNCHANGED <<mem, stray, master, objs, logs>>
  /\ OnlyMemory

---------------------------------------------------------------------------
(* A client crashes, and is recovered. *)

\* Only a client that has posted a CAS crashes here: before that, no other client knows of the operation, and a shorter
\* program has the same behaviours.
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
  /\ UNCHANGED <<mem, master, objs, logs>>
  /\ OnlyMemory

\* Recovery finds the object by reading the blocks of the dead client, on all replicas.
Walks == LET alive == Objects \ master.dead
         IN  IF "all replicas are walked" \in Removed /\ alive # {} THEN {{n} : n \in alive} ELSE {alive}

\* Recovery finds numbers in the log areas of the dead client on the nodes of the view.
Members == {master.reps[i] : i \in 1..Len(master.reps)}
NumbersFound(c) ==
  LET read == Members \ master.dead
  IN  IF "all log areas are read" \in Removed THEN {logs[n][c] : n \in read}
      ELSE {UNION {logs[n][c] : n \in read}}

Recover(c) ==
  LET r == sess[c] IN
  /\ r.pc = "crashed"
  /\ master.stage = "ok"             \* memory nodes are handled first, then clients
  /\ UNCHANGED <<mem, stray, master>>
  /\ \E walked \in Walks, numbers \in NumbersFound(c) :
       LET q       == [r EXCEPT !.reps = master.reps, !.todo = numbers]
           isKnown == IF IsNumber(r.own) THEN ~Recording
                      ELSE ~WithObjects \/ \E n \in walked : r.own.id \in objs[n]
       IN  \E o \in IF isKnown THEN Inspect(q) ELSE InspectNumbers(q) :
            /\ sess' = [sess EXCEPT ![c] = o.r]
            /\ logs' = Kept(logs, c, o.r)
            /\ objs' = IF ~WithObjects \/ IsNumber(r.own) \/ ~isKnown \/ "recovery copies" \in Removed
                       THEN objs ELSE Everywhere(r.own.id)
            /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

\* The master that recovers the client dies (and is fenced); another master inspects again.
RestartRecovery(c) ==
  LET r == sess[c] IN
  /\ r.rec /\ r.pc # "crashed"
  /\ master.restarts < MaxRestarts
  /\ master' = [master EXCEPT !.restarts = @ + 1]
  /\ sess' = [sess EXCEPT ![c] = Park(r)]
  /\ UNCHANGED <<mem, stray, objs, logs>>
  /\ OnlyMemory

\* A replica of the objects leaves a node that keeps a replica of the slots. From now on node n stands for another node,
\* which was filled from node m. No session writes objects there meanwhile, and the objects whose words dead clients
\* have left in slots have been completed.
LeftByTheDead ==
  {sess[c].own.id : c \in {c \in Clients : sess[c].pc = "crashed"
                             /\ (\E n \in Objects \ master.dead : sess[c].own.id \in objs[n])
                             /\ \E n \in Members, s \in Slots :
                                  mem[n][s].id = sess[c].own.id}}

MoveObjects(n, m) ==
  /\ Moving /\ ~master.moved /\ master.stage = "ok"
  /\ n # m /\ {n, m} \subseteq Objects \ master.dead
  /\ \A c \in Clients : sess[c].pc \in {"ready", "done", "gone", "await", "crashed"}
  /\ LET ids   == IF "moves complete first" \in Removed THEN {} ELSE LeftByTheDead
         whole == [x \in Nodes |-> IF x \in Objects \ master.dead THEN objs[x] \cup ids ELSE objs[x]]
     IN  objs' = [whole EXCEPT ![n] = whole[m]]
  /\ master' = [master EXCEPT !.moved = TRUE]
  /\ UNCHANGED <<mem, sess, stray, logs>>
  /\ OnlyMemory

\* Mutant: a verb of a client that was not fenced.
Stray(n) ==
  /\ stray.net[n] # <<>>
  /\ LET v == Head(stray.net[n]) IN
       /\ stray' = [stray EXCEPT !.net[n] = Tail(@)]
       /\ mem' = IF v.t = "cas" /\ n \notin master.dead /\ mem[n][stray.slot] = v.e
                 THEN [mem EXCEPT ![n][stray.slot] = v.w] ELSE mem
  /\ UNCHANGED <<sess, master, objs, logs>>
  /\ OnlyMemory

---------------------------------------------------------------------------
(* A memory node is lost, or leaves: freeze, drain, settle, switch, unfreeze. *)

Alive     == Nodes \ master.dead
Active(c) == sess[c].pc \notin {"done", "gone"}

\* A node may leave at any stage: if the scope is frozen already, it is settled once more. Settling fills a spare node
\* that joins in place of the leaving one.
Leave(n, dead) ==
  LET again == master.stage \in {"frozen", "switched"} IN
  /\ n \in Members \ master.leaving
  /\ Cardinality(Members \ master.leaving) > 1
  /\ Cardinality(Nodes0) - Cardinality(Members \ (master.leaving \cup Spares)) < MaxChanges
  /\ \E c \in Clients : Active(c)
  /\ \E spare \in {{}} \cup {{m} : m \in Spares \ Members} :
       master' = [master EXCEPT !.stage = IF again THEN "frozen" ELSE "lost",
                                !.todo = IF again THEN Slots ELSE {},
                                !.leaving = @ \cup {n}, !.dead = @ \cup dead,
                                !.joining = IF @ = {} THEN spare ELSE @]
  /\ UNCHANGED <<mem, sess, stray, objs, logs>>
  /\ OnlyMemory

Lose(n)   == n \in CanLose /\ Leave(n, {n})
Retire(n) == n \in CanRetire /\ Leave(n, {})

Freeze ==
  /\ master.stage = "lost"
  /\ master' = [master EXCEPT !.stage = "frozen", !.todo = Slots]
  /\ UNCHANGED <<mem, sess, stray, objs, logs>>
  /\ OnlyMemory

\* Every session has acknowledged: none has a running verb of a write.
Drained == \A c \in Clients :
             sess[c].pc \in {"ready", "done", "gone", "crashed", "parked"} \/ sess[c].op = "SEARCH"

\* Whether a word's record is on the node of one of the replicas that show it.
HasRecord(nodes, s, w) ==
  ~Recording \/ \E n \in nodes, c \in Clients : mem[n][s] = w /\ w.id \in logs[n][c]

\* The word that all replicas of a slot will hold; pick: the word chosen from a backup.
Settled(pick, backups) ==
  IF (pick.st = "tentative" /\ "settle withdraws" \notin Removed)
     \/ ("withdrawals win" \notin Removed /\ \E b \in backups : b.st = "free" /\ b.id = pick.id)
  THEN WithdrawnWord(pick) ELSE Confirmed(pick)

\* The master writes a slot's word to the backups first, to the primary last: if the master dies half-way, the next
\* master may choose another word, and no reader has seen the first.
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
      shown    == IF primary \in Alive THEN mem[primary][s] ELSE Never
      counting == {w \in words : ~PassedOver(w, words, shown, HasRecord(backups, s, w))}
      choices  == IF settled \/ counting = {} THEN {mem[primary][s]}
                  ELSE {IF w.st = "free" THEN w ELSE Settled(w, words) : w \in counting}
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
       \* The word's object, if it has one, is first written to nodes that may lack it; but only if the slot changes on
       \* some replica.
       /\ objs' = IF WithObjects /\ "settling copies" \notin Removed
                     /\ \E j \in 1..Len(old) : old[j] \in Alive /\ mem[old[j]][s] # w
                     /\ \E n \in Objects \ master.dead : w.id \in objs[n]
                  THEN Everywhere(w.id) ELSE objs
  /\ UNCHANGED <<sess, stray, logs>>
  /\ OnlyMemory

Switch ==
  /\ master.stage = "frozen" /\ master.todo = {}
  /\ LET stays(n) == n \notin master.leaving
     IN  master' = [master EXCEPT !.stage = "switched", !.leaving = {}, !.joining = {},
                      !.reps = SelectSeq(@, stays) \o SetToSeq(master.joining)]
  /\ UNCHANGED <<mem, sess, stray, objs, logs>>
  /\ OnlyMemory

\* A session takes the new view when none of its READs at the old replicas is left.
Acknowledge(c) ==
  LET r == sess[c] IN
  /\ master.stage \in {"switched", "ok"} /\ r.reps # master.reps
  /\ r.pc = "ready"
  /\ sess' = [sess EXCEPT ![c].reps = master.reps]
  /\ UNCHANGED <<mem, stray, master, objs, logs>>
  /\ OnlyMemory

\* A suspended writer re-reads its slot.
ReadAgain(c) ==
  LET r == [sess[c] EXCEPT !.reps = master.reps] IN
  /\ master.stage \in {"switched", "ok"}
  /\ r.pc = "parked"
  /\ \E o \in Resolve(r, mem[Primary(r)][r.slot]) :
       /\ sess' = [sess EXCEPT ![c] = o.r]
       /\ logs' = Kept(logs, c, o.r)
       /\ UNCHANGED <<mem, stray, master, objs>>
       /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

Unfreeze ==
  /\ master.stage = "switched"
  /\ \A c \in Clients :
       LET r == sess[c] IN
       /\ Active(c) /\ r.pc \notin {"parked", "crashed"}
            => r.reps = master.reps \/ "old readers leave" \in Removed
       /\ r.pc = "parked" => "writers re-read first" \in Removed
  /\ master' = [master EXCEPT !.stage = "ok"]
  /\ UNCHANGED <<mem, sess, stray, objs, logs>>
  /\ OnlyMemory

---------------------------------------------------------------------------

AtRest == /\ \A c \in Clients : ~Active(c)
          /\ master.stage = "ok" /\ stray.net = NoNet

Terminated == AtRest /\ UNCHANGED vars

Next ==
  \/ \E c \in Clients : \/ Begin(c) \/ BeginSpeculation(c) \/ SearchBackups(c) \/ Verb(c) \/ AwaitEnd(c)
                        \/ Crash(c) \/ Recover(c) \/ RestartRecovery(c)
                        \/ StopWaiting(c) \/ Acknowledge(c) \/ ReadAgain(c)
  \/ \E n \in Nodes : Lose(n) \/ Retire(n) \/ Stray(n)
  \/ \E n, m \in Objects : MoveObjects(n, m)
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

\* When nothing runs, all replicas are equal, and no word is tentative.
ReplicasAgree ==
  AtRest => \A s \in Slots : \A i \in 1..Len(master.reps) :
              /\ mem[master.reps[i]][s] = mem[Head(master.reps)][s]
              /\ mem[master.reps[i]][s].st # "tentative"

\* Some order of the operations explains all answers, and all that the primary ever showed.
Linearizable == \A k \in Keys : front[k] # {}

\* Every node that holds objects has the object of each word that the primary shows.
ShownIsWritten ==
  LET p == Head(master.reps) IN
  WithObjects /\ p \notin master.dead =>
    \A s \in Slots, n \in Objects \ master.dead :
      mem[p][s].st = "live" => mem[p][s].id \in objs[n]

\* The CASes of a winner cannot fail (Error::Interrupted).
WinnersAreAlone == \A c \in Clients : ~sess[c].bad

=============================================================================
