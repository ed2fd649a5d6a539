------------------------------ MODULE Session ------------------------------
(***************************************************************************)
(* What a client does between two batches.                                 *)
(* Code: crates/core/src/store/{write/*,read/search}.rs.                   *)
(*                                                                         *)
(* A session is a record. Its field `net` holds the verbs of the running   *)
(* batch, one queue for each memory node: verbs to one node execute in     *)
(* order, and verbs to different nodes in any order (Snapshot.tla executes *)
(* them). When all queues are empty the phase is over, and `After` tells   *)
(* what comes next: a set of outcomes, each a new record and an answer (or *)
(* NoAns). A session touches the memory only by verbs, so everything here  *)
(* is a function of the record.                                            *)
(*                                                                         *)
(* The recovery of a crashed client (field `rec`) continues in the same    *)
(* record: it is one more writer that resumes the same round.              *)
(***************************************************************************)
EXTENDS Words, History, Sequences

CONSTANTS
  Slots,        \* the slots of a key's combined buckets; every key may be in each of them
  NoSlot,
  Backups0,     \* number of backups at the start; nodes are 0 (primary), 1, 2, ...
  Spares,       \* more nodes, which may join
  Programs,     \* client -> sequence of sets of [op, key]: the operations it may do next
  MaxAttempts   \* an operation gives up after so many attempts in vain

\* Models of speculative writes override these (decision 0021).
Speculating  == FALSE   \* UPDATE and DELETE may begin with the CASes of the backups
Recycling == FALSE   \* the first identity may recur, as after all generations of its address
InOrder   == FALSE   \* a speculative write is posted in order across nodes (shared memory)
Moving    == FALSE   \* a replica of the objects may move to another node
Recording == FALSE   \* DELETEs write records; otherwise recovery knows the number of a dead client's DELETE

\* What Init0 gives to a slot that an INSERT has withdrawn from.
Leftover == "leftover"
Objects   == {}      \* the nodes that hold the objects; {}: objects are not modelled
WithObjects == Objects # {}

Nodes0 == 0..Backups0
Nodes  == Nodes0 \cup Spares \cup Objects

Primary(r) == Head(r.reps)
Backups(r) == {r.reps[i] : i \in 2..Len(r.reps)}
First(r)   == r.reps[2]

NoNet   == [n \in Nodes |-> <<>>]
NoWords == [s \in Slots |-> Never]
NoGot   == [n \in Nodes |-> Never]
NoData  == [n \in Nodes |-> NoWords]

\* Verbs. A CAS with `must` is a winner's: if it fails, this client is not the only winner.
Cas(e, w)     == [t |-> "cas", e |-> e, w |-> w, must |-> FALSE]
MustCas(e, w) == [t |-> "cas", e |-> e, w |-> w, must |-> TRUE]
Read(S)       == [t |-> "read", left |-> S]
Write(id)     == [t |-> "write", id |-> id]    \* the whole object of this identity
Record(id)    == [t |-> "record", id |-> id]   \* WRITE of a DELETE's record to the session's log area on the node
AskView       == [t |-> "ask"]                 \* READ of the view that the node is at
Writes(verbs) == verbs # <<>> /\ Head(verbs).t = "write"

\* A session between two operations. Unused fields hold fixed values, so that states that differ only in fields that no
\* step will read are the same state.
Rest(c, ip, seq, reps) ==
  [c |-> c, ip |-> ip, seq |-> seq, reps |-> reps,
   pc |-> IF ip > Len(Programs[c]) THEN "done" ELSE "ready",
   op |-> "none", key |-> NoKey, tries |-> 0,
   vis |-> FALSE,                  \* whether this attempt has posted a CAS
   speculative |-> FALSE,                \* nothing yet shows that the round is still open
   reuse |-> FALSE,                \* its object is the first one, reused
   slot |-> NoSlot, old |-> Never, own |-> Never,    \* the round
   words |-> NoWords,              \* what the primary showed first
   look |-> NoWords, looked |-> FALSE,
   seen |-> NoGot,                 \* the words of the backups, as far as known
   net |-> NoNet, got |-> NoGot, data |-> NoData,    \* the batch and its results
   asked |-> {},                   \* the backups that a SEARCH reads without the primary
   fail |-> FALSE,                 \* a node did not answer
   bad |-> FALSE,                  \* a CAS of a winner failed, or recovery saw what no round leaves
   asks |-> FALSE,                 \* what it reads is used only if a majority shows no later view,
   shown |-> {},                   \* and these nodes have shown none (Change.tla)
   rec |-> FALSE,                  \* the client has crashed, and recovery works in its place
   todo |-> {}]                    \* the numbers that recovery has found and not examined

\* A unique identity; Rule 3 uses the order of identities.
Id(c, seq) == c * 10 + seq
\* The identity that the current attempt has used or will use.
NextId(r)    == IF r.reuse THEN 1 ELSE Id(r.c, r.seq + 1)
CurrentId(r) == IF r.vis /\ ~r.reuse THEN Id(r.c, r.seq) ELSE NextId(r)

\* These operations write a number, and have no object. A *sweep* replaces a withdrawal by a number, so that the object
\* of the withdrawal can be freed. Its round is a DELETE's, except that the old word is free.
Erasing == {"DELETE", "SWEEP"}
Writing(op) == op \notin {"SEARCH"} \cup Moves \cup Erasing

\* The word that the current attempt of such an operation writes.
OwnNumber(r) == IF "unique numbers" \in Removed THEN Number(0) ELSE Number(Id(r.c, r.seq + 1))

\* An INSERT's round on a free slot: other writers may write any keys.
OnFree(r) == r.old.st = "free" /\ ~IsNumber(r.own)

Cont(r)        == [r |-> r, ans |-> NoAns]
Answer(r, ans) == {[r |-> Rest(r.c, r.ip + 1, r.seq, r.reps), ans |-> ans]}
Gone(r)        == {[r |-> [Rest(r.c, r.ip, r.seq, r.reps) EXCEPT !.pc = "gone"],
                    ans |-> Buried]}
\* AttemptEnd::Retry: the next attempt writes a new object. The operation has had no effect yet.
Retry(r) ==
  IF r.tries + 1 >= MaxAttempts THEN Answer(r, NotApplied)
  ELSE {Cont([Rest(r.c, r.ip, r.seq, r.reps)
                EXCEPT !.op = r.op, !.key = r.key, !.tries = r.tries + 1])}

Post(r, pc, net) == [r EXCEPT !.pc = pc, !.net = net, !.got = NoGot, !.data = NoData]
To(r, n, verbs)  == [NoNet EXCEPT ![n] = verbs]
ToBackups(r, verbs(_)) == [n \in Nodes |-> IF n \in Backups(r) THEN verbs(n) ELSE <<>>]

\* An operation stops at its current step until the view has changed.
Park(r) ==
  CASE r.rec     -> [Rest(r.c, r.ip, r.seq, r.reps)       \* recovery looks again from the start
                       EXCEPT !.pc = "crashed", !.op = r.op, !.key = r.key, !.rec = TRUE,
                              !.own = r.own, !.vis = TRUE]
    [] ~r.rec /\ r.vis -> [Rest(r.c, r.ip, r.seq, r.reps)
                       EXCEPT !.pc = "parked", !.op = r.op, !.key = r.key, !.tries = r.tries,
                              !.vis = TRUE, !.slot = r.slot, !.old = r.old, !.own = r.own,
                              !.speculative = r.speculative, !.reuse = r.reuse]
    [] OTHER     -> [Rest(r.c, r.ip, IF r.pc = "copy" /\ r.op = "MOVE" THEN r.seq - 1 ELSE r.seq,
                          r.reps)                          \* no other client knows of it
                       EXCEPT !.op = r.op, !.key = r.key, !.tries = r.tries]

\* Whether the round was a Move's. `looked` is what the backups had shown (for a mutant).
IsMove(r, w) ==
  IF "the primary tells of Moves" \in Removed THEN r.looked ELSE w.moved /\ "rule L" \notin Removed

RECURSIVE After(_)
\* A batch without verbs takes no time.
Go(r) == IF r.net = NoNet THEN After(r) ELSE {Cont(r)}

---------------------------------------------------------------------------
(* Commit, withdraw, and what a loser does. *)

Commit(r, expected) ==
  Go(Post(r, "commit", To(r, Primary(r), <<IF Backups(r) = {} /\ expected.st # "tentative"
                                           THEN Cas(expected, r.own)
                                           ELSE MustCas(expected, r.own)>>)))

\* held: each backup's word of this writer.
Confirm(r, held) ==
  LET own == Confirmed(r.own)
      verbs(b) == IF held[b] = own THEN <<>> ELSE <<MustCas(held[b], own)>>
  IN  Go(Post([r EXCEPT !.own = own, !.look = NoWords, !.words = NoWords, !.looked = FALSE,
                        !.seen = NoGot],
              "confirm", ToBackups(r, verbs)))

Withdraw(r, held) ==
  LET gone == WithdrawnWord(r.own)
      verbs(b) == IF held[b] = gone THEN <<>> ELSE <<MustCas(held[b], gone)>>
  IN  Go(Post([r EXCEPT !.look = NoWords, !.words = NoWords, !.looked = FALSE, !.seen = NoGot],
              "withdraw", ToBackups(r, verbs)))

\* Another writer's round is over; w is the word that the primary shows by then.
LoserEnds(r, w) ==
  CASE r.op \in Unseen -> Answer(r, Done)  \* overtaken
    [] OnFree(r) ->                       \* the winner may have another key
         IF "insert losers retry" \in Removed THEN Answer(r, Done) ELSE Retry(r)
    [] ~OnFree(r) /\ r.op = "DELETE" ->   \* the winner may be an UPDATE, so the key is alive
         IF "delete losers retry" \in Removed THEN Answer(r, Done) ELSE Retry(r)
    \* Rule L: a Move has not overwritten the loser's value. A later word that has replaced the Move's word has.
    [] r.op \in {"UPDATE", "UPSERT"} /\ ~OnFree(r) /\ IsMove(r, w) -> Retry(r)
    [] OTHER -> Answer(r, Done)           \* took effect right before the winner

Lost(r) ==
  IF r.rec THEN Gone(r)
  ELSE {Cont([r EXCEPT !.pc = "await", !.words = NoWords, !.look = NoWords,
                       !.looked = "the primary tells of Moves" \in Removed
                                  /\ \E b \in Backups(r) : r.seen[b].moved,
                       !.seen = NoGot, !.got = NoGot, !.data = NoData])}

---------------------------------------------------------------------------
(* A winner whose word is on all backups.                                  *)

OthersIn(r, w)  == {s \in Slots \ {r.slot} : w[s].st # "free" /\ w[s].key = r.key}
InDoubt(r)      == \E s \in Slots \ {r.slot} : r.look[s].st = "free" /\ r.look[s] # r.words[s]
HeldByAll(r)    == [n \in Nodes |-> r.own]

HasLooked(r) ==
  CASE "look" \in Removed             -> Confirm(r, HeldByAll(r))
    [] "look" \notin Removed /\ OthersIn(r, r.look) # {} -> Withdraw(r, HeldByAll(r))
    [] OTHER ->
         IF InDoubt(r) /\ "second READ" \notin Removed
         THEN Go(Post([r EXCEPT !.look = NoWords, !.words = NoWords],
                      "doubt", To(r, Primary(r), <<Read(Slots)>>)))
         ELSE Confirm(r, HeldByAll(r))

HasWon(r0) ==
  LET r == [r0 EXCEPT !.seen = NoGot]
  IN CASE ~OnFree(r)        -> Commit(r, r.old)
       [] OnFree(r) /\ r.rec ->   \* tentative copies only: the client was possibly about to withdraw
            IF "recovery withdraws" \in Removed THEN Confirm(r, HeldByAll(r))
            ELSE Withdraw(r, HeldByAll(r))
       [] OTHER -> HasLooked(r)

\* By Rule 2 or 3 the winner replaces the other writers' words with its own. A look is used only if the winner's word is
\* on the first backup before.
Fix(r) ==
  LET again(b) == b = First(r) /\ OnFree(r) /\ ~r.rec /\ ~r.looked
      verbs(b) == IF r.seen[b] = r.own THEN <<>>
                  ELSE <<MustCas(r.seen[b], r.own)>> \o (IF again(b) THEN <<Read(Slots)>> ELSE <<>>)
      net      == ToBackups(r, verbs)
  IN  IF net = NoNet THEN HasWon(r) ELSE Go(Post(r, "fix", net))

---------------------------------------------------------------------------
(* The phases of a write. *)

\* A writer's CAS on a backup. A DELETE's record is WRITTEN to the backup's node in the same batch, before the CAS. So
\* each backup that shows the number has the record on its node, until recovery completes the round.
Compete(r, b) ==
  LET swap   == <<Cas(r.old, r.own)>>
      record == IF Recording /\ IsNumber(r.own)
                   /\ (b = First(r) \/ "a record beside every CAS" \notin Removed)
                THEN <<Record(r.own.id)>> ELSE <<>>
  IN  IF "records come first" \in Removed THEN swap \o record ELSE record \o swap

\* The node whose slots an operation READs first. A withdrawal on a backup may be of a round that is not over.
ReadsAt(r) == IF r.op = "SWEEP" /\ Backups(r) # {} /\ "sweeps begin at the primary" \in Removed
              THEN First(r) ELSE Primary(r)

\* The writer competes for the slot that holds the key and that showed this word.
Replace(r, s, old) ==
  LET q == [r EXCEPT !.seq = @ + 1, !.vis = TRUE, !.slot = s, !.old = old,
                     !.own = IF r.op \in Erasing THEN OwnNumber(r) ELSE Live(NextId(r), r.key)]
      verbs(b) == Compete(q, b)
  IN  IF Backups(r) = {} THEN Commit(q, q.old)
      ELSE Go(Post(q, "contend", ToBackups(q, verbs)))

\* Gives the pair of that word another redundancy. Any session may move the pair to another address, because the copy
\* has an identity of its own, and is complete before any CAS. In place, a Move only adds to what is there, and its
\* identity is the old one at the next *turn*, whichever session moves it. So only the owner of the object may.
Turn(id)     == IF "turns only grow" \in Removed /\ id >= 100 THEN id - 100 ELSE id + 100
OwnerOf(id)  == IF id % 100 = 1 THEN 1 ELSE (id % 100) \div 10
MayTurn(c, w) == OwnerOf(w.id) = c \/ "strangers move elsewhere" \in Removed

Move(r, s, old) ==
  LET id == IF r.op = "TURN" THEN Turn(old.id) ELSE NextId(r)
      q  == [r EXCEPT !.seq = IF r.op = "TURN" THEN @ ELSE @ + 1, !.slot = s, !.old = old,
                      !.own = Moved(id, old)]
      verbs(n) == IF n \in Objects \ (Nodes0 \ ({Primary(r)} \cup Backups(r))) THEN <<Write(id)>> ELSE <<>>
  IN  IF r.op = "TURN" /\ ~MayTurn(r.c, old) THEN Answer(r, NotApplied)
      ELSE Go(Post(q, "copy", [n \in Nodes |-> verbs(n)]))

AfterCopy(r0) ==
  LET r == [r0 EXCEPT !.vis = TRUE, !.data = NoData]
      verbs(b) == <<Cas(r.old, r.own)>>
  IN  IF Backups(r) = {} THEN Commit(r, r.old)
      ELSE Go(Post(r, "contend", ToBackups(r, verbs)))

\* WRITE of the object, READ of both buckets on the primary.
AfterRead(r0) ==
  LET w       == r0.data[ReadsAt(r0)]
      r       == [r0 EXCEPT !.data = NoData]
      holders == {s \in Slots : w[s].st = "live" /\ w[s].key = r.key}
      frees   == {s \in Slots : w[s].st = "free"}
      leftovers == {s \in Slots : IsWithdrawal(w[s])}
      id      == NextId(r)
      round(s, own) == [r EXCEPT !.seq = @ + 1, !.vis = TRUE, !.slot = s, !.old = w[s],
                                 !.own = own]
      install(s) ==
        LET q == [round(s, IF "confirm" \in Removed THEN Live(id, r.key) ELSE Tentative(id, r.key))
                    EXCEPT !.words = w]
            verbs(b) == IF b = First(q) THEN <<Cas(q.old, q.own), Read(Slots)>>
                        ELSE <<Cas(q.old, q.own)>>
        IN  IF Backups(r) = {}
            THEN Go(Post(q, "alone", To(q, Primary(q), <<Cas(q.old, q.own), Read(Slots)>>)))
            ELSE Go(Post(q, "contend", ToBackups(q, verbs)))
  IN  CASE r.op = "SEARCH" ->
             IF holders = {} THEN Answer(r, Absent)
             ELSE UNION {Answer(r, Found(w[s].val)) : s \in holders}
        [] r.op = "SWEEP" -> IF leftovers = {} THEN Answer(r, Done)
                             ELSE UNION {Replace(r, s, w[s]) : s \in leftovers}
        [] r.op = "INSERT" /\ holders # {} -> Answer(r, Exists)
        [] r.op \in {"UPDATE", "DELETE"} \cup Moves /\ holders = {} -> Answer(r, Absent)
        [] r.op \in Moves /\ holders # {} -> UNION {Move(r, s, w[s]) : s \in holders}
        [] r.op \in {"UPDATE", "DELETE", "UPSERT"} /\ holders # {} ->
             UNION {Replace(r, s, w[s]) : s \in holders}
        [] OTHER -> IF frees = {} THEN Answer(r, NotApplied)    \* the index is full
                    ELSE UNION {install(s) : s \in frees}

\* The primary is dead, and this SEARCH has read all remaining backups (P section 5.2). If they agree, the master will
\* settle on their words.
AfterDegraded(r) ==
  LET agree == "backups agree" \in Removed
               \/ \A s \in Slots, x, y \in r.asked : r.data[x][s] = r.data[y][s]
      holders(x) == {s \in Slots : r.data[x][s].st = "live" /\ r.data[x][s].key = r.key}
      said(x) == IF holders(x) = {} THEN Answer(r, Absent)
                 ELSE UNION {Answer(r, Found(r.data[x][s].val)) : s \in holders(x)}
  IN  IF agree THEN UNION {said(x) : x \in r.asked} ELSE {Cont(Park(r))}

AfterContend(r0) ==
  LET seen    == [b \in Backups(r0) |-> IF r0.got[b] = r0.old THEN r0.own ELSE r0.got[b]]
      looked  == OnFree(r0) /\ ~r0.rec
                 /\ (seen[First(r0)] = r0.own \/ "look behind the own word" \in Removed)
      r       == [r0 EXCEPT !.seen = [n \in Nodes |-> IF n \in Backups(r0) THEN seen[n] ELSE Never],
                            !.looked = looked,
                            !.look = IF looked THEN r0.data[First(r0)] ELSE NoWords,
                            !.got = NoGot, !.data = NoData]
      verdict == Evaluate(r.own, seen)
  IN  CASE verdict = "won"  -> Fix(r)
        [] verdict = "lost" -> Lost(r)
        [] verdict = "undecided" ->
             IF "rule 3 looks" \in Removed
             THEN IF IsSmallest(r.own, seen) THEN Fix(r) ELSE Lost(r)
             ELSE Go(Post(r, "rule3", To(r, Primary(r), <<Read({r.slot})>>)))

\* One phase: WRITE the object, CAS all backups from the hint's word, READ the slot. On a backup's node the WRITE goes
\* first. A DELETE writes its records instead.
Speculate(r, hint) ==
  LET id       == NextId(r)
      q        == [r EXCEPT !.seq = @ + 1, !.vis = TRUE, !.speculative = TRUE,
                            !.slot = hint[1], !.old = hint[2],
                            !.own = IF r.op = "DELETE" THEN OwnNumber(r) ELSE Live(id, r.key)]
      to       == IF "objects nowhere else" \in Removed THEN Objects
                  ELSE Objects \ (Nodes0 \ ({Primary(r)} \cup Backups(r)))
      write(n) == IF n \in to /\ r.op # "DELETE" THEN <<Write(id)>> ELSE <<>>
      swap(n)  == IF n \in Backups(r) THEN Compete(q, n) ELSE <<>>
      read(n)  == IF n = Primary(r) THEN <<Read({q.slot})>> ELSE <<>>
      verbs(n) == IF "write before the CAS" \in Removed THEN swap(n) \o write(n) \o read(n)
                  ELSE write(n) \o swap(n) \o read(n)
  IN  Post(q, "speculate", [n \in Nodes |-> verbs(n)])

\* If a CAS succeeded, or the primary showed the hint's word, the round of this word was open when the operation began.
\* If neither happened, the round may have been over long before. But then the session's own word is nowhere, and the
\* attempt goes on with the word that the slot shows, and with the same object or number.
AfterSpeculation(r) ==
  LET shown == r.data[Primary(r)][r.slot]
      open  == (\E n \in Backups(r) : r.got[n] = r.old) \/ shown = r.old
      q     == [r EXCEPT !.seq = @ - 1, !.vis = FALSE, !.speculative = FALSE, !.slot = NoSlot,
                         !.old = Never, !.own = Never, !.got = NoGot, !.data = NoData]
  IN  CASE open \/ "stale speculation starts again" \in Removed ->
             AfterContend([r EXCEPT !.speculative = FALSE, !.data = NoData])
        [] ~open /\ shown.st = "live" /\ shown.key = r.key -> Replace(q, r.slot, shown)
        [] OTHER -> Go(Post(q, "read", To(q, Primary(q), <<Read(Slots)>>)))

AfterRule3(r) ==
  LET seen == [b \in Backups(r) |-> r.seen[b]]
  IN  IF r.data[Primary(r)][r.slot] = r.old /\ IsSmallest(r.own, seen)
      THEN Fix([r EXCEPT !.data = NoData]) ELSE Lost(r)

AfterFix(r) ==
  HasWon([r EXCEPT !.look = IF OnFree(r) /\ ~r.rec /\ ~r.looked THEN r.data[First(r)] ELSE @,
                   !.looked = TRUE, !.got = NoGot, !.data = NoData])

AfterDoubt(r) ==
  IF OthersIn(r, r.data[Primary(r)]) # {} THEN Withdraw(r, HeldByAll(r)) ELSE Confirm(r, HeldByAll(r))

AfterCommit(r) ==
  IF r.rec THEN Gone(r)
  ELSE IF Backups(r) = {} /\ ~OnFree(r) /\ r.got[Primary(r)] # r.old
       THEN LoserEnds(r, r.got[Primary(r)])
  ELSE Answer(r, Done)

AfterWithdrawal(r) ==   \* of the backups: now the primary, which ends the round
  Go(Post(r, "withdraw primary", To(r, Primary(r), <<MustCas(r.old, WithdrawnWord(r.own))>>)))

Withdrawn(r) == IF r.rec THEN Gone(r) ELSE Retry(r)

\* With one index replica, the tentative word is on the primary. An INSERT that withdraws leaves a number, because a
\* number keeps no object.
AfterAlone(r) ==
  LET w == r.data[Primary(r)]
      q == [r EXCEPT !.words = NoWords, !.data = NoData, !.got = NoGot]
  IN  CASE r.got[Primary(r)] # r.old -> Retry(r)
        [] r.got[Primary(r)] = r.old /\ OthersIn(r, w) # {} /\ "look" \notin Removed ->
             Go(Post([q EXCEPT !.seq = @ + 1], "withdraw primary",
                     To(q, Primary(q), <<MustCas(q.own, OwnNumber(q))>>)))
        [] OTHER -> Commit([q EXCEPT !.own = Confirmed(q.own)], q.own)

---------------------------------------------------------------------------
(* Recovery by inspection. It knows the object that was being written (the *)
(* log's last one): its key, operation and identity; not how far the round *)
(* came. Of a DELETE it knows only the number, from a record. Records of   *)
(* earlier DELETEs are possibly left, so it examines all numbers that it   *)
(* finds, one after another.                                               *)

\* The primary is read first, then the backups. If the client's word is on a backup *after* the primary was read, the
\* round was still open when the primary was read, so the primary's word is the round's old one.
InspectPrimary(r) == Go(Post(r, "inspect primary", To(r, Primary(r), <<Read(Slots)>>)))
InspectBackups(r) ==
  LET verbs(b) == <<Read(Slots)>> IN Go(Post(r, "inspect backups", ToBackups(r, verbs)))

BackupsFirst == "primary first" \in Removed

Inspect(r) == IF BackupsFirst /\ Backups(r) # {} THEN InspectBackups(r) ELSE InspectPrimary(r)

InspectNumbers(r) ==
  IF r.todo = {} THEN Gone(r)
  ELSE UNION {Inspect([r EXCEPT !.own = Marker(id), !.todo = @ \ {id}]) : id \in r.todo}

\* These outcomes of a phase, or the next number if the examination of one has ended.
OrNextNumber(r, outcomes) ==
  IF r.todo = {} THEN outcomes
  ELSE UNION {IF o.ans = Buried THEN InspectNumbers(r) ELSE {o} : o \in outcomes}

Inspected(r0, w, copies) ==
  LET r    == [r0 EXCEPT !.words = NoWords, !.data = NoData, !.got = NoGot]
      mine(s) == {b \in Backups(r) : copies[b][s].id = r.own.id}
      inPrimary == {s \in Slots : w[s].id = r.own.id}
      inBackups == {s \in Slots : mine(s) # {}}
      resume(s) ==
        LET q     == [r EXCEPT !.slot = s, !.old = w[s]]
            held  == [n \in Nodes |-> IF n \in Backups(r) THEN copies[n][s] ELSE Never]
            has(st) == \E b \in mine(s) : held[b].st = st
            own   == IF OnFree(q) THEN Tentative(r.own.id, r.key) ELSE r.own
            verbs(b) == IF held[b] = own THEN <<>> ELSE <<Cas(q.old, own)>>
            posted == Post([q EXCEPT !.own = own], "contend", ToBackups(q, verbs))
        IN  CASE IsNumber(q.own) /\ q.old.st = "free" /\ ~IsWithdrawal(q.old) ->
                   {Cont([q EXCEPT !.bad = TRUE])}   \* a number replaces an entry or a withdrawal
              [] IsNumber(q.own) /\ IsWithdrawal(q.old) /\ "sweeps are completed" \in Removed -> Gone(q)
              [] OnFree(q) /\ has("free") -> Withdraw(q, held)
              [] OnFree(q) /\ ~has("free") /\ has("live") ->
                   Confirm([q EXCEPT !.own = Live(r.own.id, r.key)], held)
              [] OTHER ->
                   Go([posted EXCEPT !.got = [n \in Nodes |-> IF n \in Backups(r) /\ held[n] = own
                                                              THEN own ELSE Never]])
  IN  CASE \E s \in inPrimary : w[s].st = "tentative" ->     \* one index replica
             LET s == CHOOSE s \in inPrimary : TRUE
                 q == [r EXCEPT !.slot = s]
             IN  Go(Post(q, "withdraw primary", To(q, Primary(q), <<MustCas(w[s], WithdrawnWord(w[s]))>>)))
        [] inPrimary # {} /\ ~(\E s \in inPrimary : w[s].st = "tentative") -> Gone(r)
        [] inPrimary = {} /\ inBackups = {} -> Gone(r)
        [] OTHER -> UNION {resume(s) : s \in inBackups}

AfterInspectPrimary(r) ==
  LET w == r.data[Primary(r)]
  IN  IF BackupsFirst \/ Backups(r) = {}
      THEN Inspected(r, w, [n \in Nodes |-> IF n \in Backups(r) THEN r.look[n] ELSE NoWords])
      ELSE InspectBackups([r EXCEPT !.words = w])

AfterInspectBackups(r) ==
  IF BackupsFirst THEN InspectPrimary([r EXCEPT !.look = r.data])
  ELSE Inspected(r, r.words, r.data)

---------------------------------------------------------------------------

After(r) ==
  CASE r.pc = "read"            -> AfterRead(r)
    [] r.pc = "degraded"        -> AfterDegraded(r)
    [] r.pc = "copy"            -> AfterCopy(r)
    [] r.pc = "contend"         -> AfterContend(r)
    [] r.pc = "speculate"           -> AfterSpeculation(r)
    [] r.pc = "rule3"           -> AfterRule3(r)
    [] r.pc = "fix"             -> AfterFix(r)
    [] r.pc = "doubt"           -> AfterDoubt(r)
    [] r.pc = "confirm"         -> Commit(r, r.old)
    [] r.pc = "commit"          -> AfterCommit(r)
    [] r.pc = "withdraw"           -> AfterWithdrawal(r)
    [] r.pc = "withdraw primary"   -> Withdrawn(r)
    [] r.pc = "alone"           -> AfterAlone(r)
    [] r.pc = "inspect primary" -> AfterInspectPrimary(r)
    [] r.pc = "inspect backups" -> AfterInspectBackups(r)

---------------------------------------------------------------------------
(* Views.  Code: core/src/store/session/resolve.rs, core/src/repair/.      *)

\* What a suspended writer concludes from the word that its slot shows in the new view.
Resolve(r, w) ==
  CASE w.id = r.own.id /\ (w.st = "live" \/ IsNumber(w)) -> Answer(r, Done)
    [] w.id = r.own.id /\ ~(w.st = "live" \/ IsNumber(w)) -> Retry(r)   \* the session's own withdrawal
    [] w.id # r.own.id /\ w = r.old -> Retry(r)
    [] w.id # r.own.id /\ w # r.old /\ r.speculative
         /\ "suspended speculation starts again" \notin Removed -> Retry(r)
    [] OTHER -> LoserEnds(r, IF "rule L in a new view" \in Removed          \* not a Move's
                             THEN [w EXCEPT !.moved = FALSE] ELSE w)
=============================================================================
