------------------------------- MODULE Change -------------------------------
(***************************************************************************)
(* A view changes in stages (docs/decisions/0012): frozen, transforming,   *)
(* switched, stable. Each stage is a view with a number of its own, which  *)
(* the master has stored before any process sees it. Code:                 *)
(* core/src/view/steps.rs, core/src/repair/.                               *)
(*                                                                         *)
(* Session.tla has all that a session does between two phases, so rounds   *)
(* are not abstracted here. Snapshot.tla has one view for all sessions,    *)
(* and one node that is dead for all. Here:                                *)
(*                                                                         *)
(* - Each session knows the view that its keeper told it last (`knows`)    *)
(*   and acts by the view under which its operation began (`acts`; 0:      *)
(*   none). The session's acknowledgement follows from these two; Gate.tla *)
(*   says why the keeper may look at them from outside. An acknowledgement *)
(*   stays true until the next view, so the messages that carry it are     *)
(*   left out.                                                             *)
(* - A lost node is dead, or only *cut off* from the master: then it still *)
(*   serves sessions at older views, or does not, at any time.             *)
(* - A silent session is fenced at all members, and the change goes on     *)
(*   without it. But it may live on, and reach a node that is cut off as   *)
(*   well.                                                                 *)
(* - The master settles by verbs of its own, each of which is a step. All  *)
(*   that a new master knows is the view, so a crash of the master changes *)
(*   something only while its verbs run.                                   *)
(* - Nodes show the view that they are at, where sessions may be silent    *)
(*   and nodes cut off (`Asking`). A session whose lease has run out by    *)
(*   its own clock (`late`) uses what it has READ only if more than half   *)
(*   of the members of its view show no later view. Any node may leave the *)
(*   session's question without an answer. A node that has fenced the      *)
(*   session may answer it, because nothing depends on the fence here.     *)
(* - Sessions in `CanBar` may read the only backup of node 0 while node 0  *)
(*   is primary and no change runs (docs/decisions/0030): more than half   *)
(*   of the members *bar* node 0, and then all leases have run out. In     *)
(*   these models any lease may end at any time, and is granted again only *)
(*   while more than half of the members bar no node. The master settles   *)
(*   what was possibly read (`SettleBarred`), or goes on without node 0. A *)
(*   session that has to ask is answered when it begins: bars and views    *)
(*   only grow, so a later answer is never better.                         *)
(* - If `Recording`, each node has a log area for each client, for the     *)
(*   records of DELETEs. Recovery finds the number of a DELETE only there. *)
(* - One slot word of a backup may turn into a number that no DELETE has   *)
(*   written (`CanDamage`). A change settles it.                           *)
(* - A key in `Apart` is in a subtable that no change touches.             *)
(*                                                                         *)
(* A verb of a suspended session that is on its way to a node that is cut  *)
(* off is not kept: it may run in the step in which the session stops. A   *)
(* session that could see the verb run later still acts by the old view,   *)
(* and until then the suspended session could as well have waited.         *)
(***************************************************************************)
EXTENDS Session

CONSTANTS
  Keys, Clients,
  Init0,        \* slot contents at the start: a set of functions Slots -> key or NoKey
  CanDie,       \* nodes that may crash
  CanCut,       \* nodes that may be treated as lost while they are alive
  MaxLost,      \* how many nodes may be lost
  Joiners,      \* nodes that may join as last replicas, one at a time
  MaxCrashes,   \* how many clients may crash
  CanExpel,     \* clients that may be silent, so that changes go on without them while they live
  CanBar,       \* clients that may read backups while the master is silent
  MaxBreaks,    \* how often a connection to a member may break while a verb runs
  MaxRestarts,  \* how often a master may die while it makes replicas equal
  Apart, ApartReps

CanDamage == {}   \* backups of which a slot word may be damaged; models override this

VARIABLES
  mem,     \* node -> slot -> word
  sess,    \* client -> session (Session.tla)
  ctl,     \* client -> what the session knows of views, see Init
  logs,    \* node -> client -> numbers in the records of the client's log area there
  stray,   \* verbs whose senders no longer wait for them: [by, n, slot, e, w, fill]
  lost,    \* [dead, cut]: nodes that crashed; nodes that are treated as lost but live
  master,  \* see Init
  front    \* ghost: key -> frontier (History.tla)

\* Whether sessions may read backups although the master has not changed the view.
Barring == CanBar # {}

\* Whether sessions may have to ask which view the nodes are at.
Asking == CanExpel # {} /\ (CanCut # {} \/ Barring)

vars == <<mem, sess, ctl, logs, stray, lost, master, front>>

ToSet(seq) == {seq[i] : i \in 1..Len(seq)}

View0 == [num |-> 1, stage |-> "ok", reps |-> [i \in 1..(Backups0 + 1) |-> i - 1],
          primaryless |-> FALSE,      \* the primary is lost, so all of reps are backups
          joining |-> {}]          \* becomes the last of reps when the change switches

Reps(v, key)    == IF key \in Apart THEN ApartReps ELSE v.reps
Members(v)      == ToSet(v.reps) \cup v.joining \cup ToSet(ApartReps)
InScope(v, key) == v.stage # "ok" /\ key \notin Apart
NoWork == [slot |-> NoSlot, now |-> {}, then |-> {}]

\* The session by which the master's repair posts its verbs.
Repair == 0

---------------------------------------------------------------------------
(* Ghosts: as in Snapshot.tla. While the primary is lost, no session of    *)
(* the newest view reads it; a read of it by a session at an older view is *)
(* a SEARCH.                                                               *)

Shown(words, k) ==
  LET holders == {s \in Slots : words[s].st = "live" /\ words[s].key = k}
      ids     == {words[s].val : s \in holders}
  IN  IF ids = {} THEN 0 ELSE CHOOSE i \in ids : \A j \in ids : i >= j

Nobody == 99

\* Some session may have read the backups. Until they and the primary are equal, readers may see what the backups show.
ReadBeside(v, ct) ==
  /\ \E c \in Clients : ct[c].beside
  /\ v.num = 1 \/ v.stage \in {"frozen", "transforming"}

Sees(m, v, ct, dead, k) ==
  LET p == Head(Reps(v, k))
      backups == {v.reps[i] : i \in 2..Len(v.reps)}
  IN  CASE p \in dead \/ (v.primaryless /\ k \notin Apart) -> Nobody
        [] p \notin dead /\ ~v.primaryless /\ k \notin Apart /\ ReadBeside(v, ct) ->
             \* Readers answer if all backups show the same.
             IF \A x \in backups \ dead, s \in Slots : m[x][s] = m[v.reps[2]][s] THEN Shown(m[v.reps[2]], k)
             ELSE Nobody
        [] OTHER -> Shown(m[p], k)

Context(ses) == [c \in Clients |-> [op |-> ses[c].op, id |-> CurrentId(ses[c])]]

Ghost(c, key, inv, ans, ctx) ==
  front' = [k \in Keys |->
    LET mine == k = key /\ (inv \/ ans # NoAns)
        sees == Sees(mem', master'.view, ctl', lost'.dead, k)
        f1   == IF k = key /\ inv THEN Invoked(front[k], c) ELSE front[k]
        f2   == IF ~mine /\ sees = Sees(mem, master.view, ctl, lost.dead, k) THEN f1
                ELSE IF sees = Nobody THEN Closure(f1, ctx)
                ELSE Observed(Closure(f1, ctx), sees)
    IN  IF mine /\ ans # NoAns THEN Answered(f2, c, ans) ELSE f2]

OnlyMemory == Ghost(0, NoKey, FALSE, NoAns, Context(sess))

---------------------------------------------------------------------------

Init ==
  \E f \in Init0 :
    LET word(s) == IF f[s] = NoKey THEN Never ELSE Live(1, f[s])
    IN /\ mem = [n \in Nodes |-> [s \in Slots |-> IF n \in Joiners THEN Never ELSE word(s)]]
       /\ sess = [c \in Clients |-> Rest(c, 1, 0, View0.reps)]
       /\ ctl = [c \in Clients |->
                   [knows |-> View0, acts |-> 0,
                    tired |-> 0,        \* the operation needs a view that is newer than this one
                    doubt |-> {},       \* nodes that have not answered a CAS of the operation
                    had |-> "nothing",  \* how far the operation had come when it was suspended
                    out |-> FALSE,      \* the master goes on without this session
                    late |-> FALSE,     \* the session's lease has run out by its own clock
                    beside |-> FALSE]]  \* the session reads the backups of node 0
       /\ logs = [n \in Nodes |-> [c \in Clients |-> {}]]
       /\ stray = {}
       /\ lost = [dead |-> {}, cut |-> {}]
       /\ master = [view |-> View0, todo |-> {}, work |-> NoWork,
                    shows |-> [n \in Nodes |-> 1],   \* the view that each node is at
                    bars |-> {},       \* the nodes that bar node 0
                    former |-> {},     \* the members of each view that no change has left behind
                    restarts |-> 0, breaks |-> 0, damages |-> 0]
       /\ front = [k \in Keys |-> {<<IF \E s \in Slots : f[s] = k THEN 1 ELSE 0,
                                     [c \in Clients |-> NoAns]>>}]

---------------------------------------------------------------------------
(* The rule by which the master chooses a slot's word (settled_word).      *)

\* has: the primary is left; backups: the words on the remaining backups, in order; proven: the numbers among these that
\* are no damage.
Settled(has, primary, backups, proven) ==
  LET counts(w) == ~PassedOver(w, ToSet(backups), IF has THEN primary ELSE Never, w \in proven)
      counting  == SelectSeq(backups, counts)
      w == CASE counting = <<>> -> primary
             [] counting # <<>> /\ has /\ \A i \in DOMAIN backups : backups[i] = primary -> primary
             [] OTHER -> counting[1]
      withdrawn == \E i \in DOMAIN backups : backups[i].st = "free" /\ backups[i].id = w.id
  IN  IF w.st = "tentative" \/ withdrawn THEN WithdrawnWord(w) ELSE w

\* While the primary is lost, a SEARCH has read all backups. It knows the word of a slot if each backup alone would be
\* settled on that word, because the next loss may leave only one of them.
AfterHeadless(r) ==
  LET at(s)     == [i \in DOMAIN r.reps |-> r.data[r.reps[i]][s]]
      alone(s, i) == Settled(FALSE, Never, <<at(s)[i]>>, {})
      words     == [s \in Slots |-> Settled(FALSE, Never, at(s), {})]
      agree     == \A s \in Slots, i, j \in DOMAIN r.reps : alone(s, i) = alone(s, j)
      holders   == {s \in Slots : words[s].st = "live" /\ words[s].key = r.key}
  IN  IF ~agree /\ "readers without a primary need agreement" \notin Removed THEN {Cont(Park(r))}
      ELSE IF holders = {} THEN Answer(r, Absent)
      ELSE UNION {Answer(r, Found(words[s].val)) : s \in holders}

---------------------------------------------------------------------------
(* The fabric. *)

Had(r) == CASE r.pc = "commit" -> "commit"
            [] r.pc \in {"withdraw", "withdraw primary"} -> "withdraw"
            [] OTHER -> "competed"

\* What the session records of its views when its operation goes from r (by view acts) to q.
Follow(c, acts, doubt, r, q) ==
  LET k == ctl[c] IN
  ctl' = [ctl EXCEPT ![c] =
    CASE q.pc = "parked" -> [k EXCEPT !.acts = 0, !.tired = acts, !.doubt = doubt, !.had = Had(r)]
      [] q.pc = "ready" /\ q.op # "none" /\ q.tries = r.tries     \* not answered by this view
                         -> [k EXCEPT !.acts = 0, !.tired = acts, !.doubt = {}]
      [] q.pc \in {"ready", "done", "gone", "crashed"}
                         -> [k EXCEPT !.acts = 0, !.tired = 0, !.doubt = {}, !.had = "nothing"]
      [] OTHER           -> [k EXCEPT !.acts = acts, !.doubt = doubt]]

\* A recovery that has lost a round ends only when the round is over. Until then the lost word may be on a backup, and
\* settling may choose it.
UntilItIsOver(r, o) ==
  IF o.ans = Buried /\ r.pc \in {"contend", "rule3"} /\ "recovery waits for the end" \notin Removed
  THEN Cont([r EXCEPT !.pc = "await", !.seen = NoGot, !.got = NoGot, !.data = NoData])
  ELSE o

\* What was READ is used if more than half of the view's members show no later view. Otherwise the operation begins
\* again by a newer view, if one comes.
IsVouchedFor(r, members) ==
  \/ ~r.asks
  \/ "the late ask" \in Removed
  \/ IF "half is not enough" \in Removed THEN 2 * Cardinality(r.shown) >= Cardinality(members)
     ELSE 2 * Cardinality(r.shown) > Cardinality(members)

Vouched(c, r, o) ==
  IF o.ans = NoAns \/ r.pc \notin {"read", "primaryless"} \/ IsVouchedFor(r, Members(ctl[c].knows))
  THEN o ELSE Cont(Park(r))

\* As in Snapshot.tla.
Kept(areas, c, r) ==
  IF Recording /\ r.pc \in {"done", "gone"} THEN [n \in Nodes |-> [areas[n] EXCEPT ![c] = {}]] ELSE areas

\* The last verb of a phase has ended, or one of the earlier verbs. areas: the log areas by then.
EndOfVerb(c, acts, doubt, r, inv, areas) ==
  LET outcomes == CASE r.net # NoNet -> {Cont(r)}
                    [] r.net = NoNet /\ r.fail -> {Cont(Park(r))}
                    [] OTHER -> IF r.pc = "primaryless" THEN {Vouched(c, r, o) : o \in AfterHeadless(r)}
                                ELSE OrNextNumber(r, {UntilItIsOver(r, Vouched(c, r, o)) : o \in After(r)})
  IN  \E o \in outcomes :
        /\ sess' = [sess EXCEPT ![c] = o.r]
        /\ logs' = Kept(areas, c, o.r)
        /\ Follow(c, acts, doubt, r, o.r)
        /\ Ghost(c, r.key, inv, o.ans, Context([sess EXCEPT ![c] = r]))

IsFenced(c) == ctl[c].out /\ "fence the silent" \notin Removed

Serves(c, n)   == n \notin lost.dead /\ (IsFenced(c) => n \in lost.cut)
MayFail(c, n)  == ~Serves(c, n) \/ n \in lost.cut

\* The next verb of session r at node n: whether it runs, and whether its answer arrives.
Execute(c, acts, r, n, inv) ==
  LET v   == Head(r.net[n])
      cas == v.t = "cas"
      cur == mem[n][r.slot]
  IN
  /\ UNCHANGED <<stray, lost, master>>
  /\ \E runs, answers \in BOOLEAN :
       /\ runs => Serves(c, n)
       /\ answers => runs
       /\ ~answers => MayFail(c, n)
       /\ v.t = "read" => runs = answers
       /\ mem' = IF runs /\ cas /\ cur = v.e THEN [mem EXCEPT ![n][r.slot] = v.w] ELSE mem
       /\ LET failed == [r EXCEPT !.net[n] = <<>>, !.fail = TRUE]
              done   == IF cas THEN [r EXCEPT !.net[n] = Tail(@), !.got[n] = cur,
                                              !.bad = @ \/ (v.must /\ cur # v.e)]
                        ELSE IF v.t = "record" THEN [r EXCEPT !.net[n] = Tail(@)]
                        ELSE [r EXCEPT !.net[n] = Tail(@),
                                       !.data[n] = [s \in Slots |-> IF s \in v.left
                                                                    THEN mem[n][s] ELSE @[s]]]
          IN  EndOfVerb(c, acts, ctl[c].doubt \cup (IF ~answers /\ v.t # "read" THEN {n} ELSE {}),
                        IF answers THEN done ELSE failed, inv,
                        IF runs /\ v.t = "record" THEN [logs EXCEPT ![n][c] = @ \cup {v.id}] ELSE logs)

\* Whether a node vouches for what is read by a view with this number.
Vouches(n, num) ==
  /\ n \notin lost.dead /\ master.shows[n] <= num
  /\ n \notin master.bars \/ "who is barred is not vouched for" \in Removed

\* A node answers which view it is at, or the answer does not arrive.
Ask(c) ==
  \E n \in Nodes, answers \in BOOLEAN :
    LET r == sess[c]
        isOld == master.shows[n] <= ctl[c].acts
        counts == (answers /\ isOld) \/ (~answers /\ "the silent do not count" \in Removed)
    IN
    /\ r.net[n] # <<>> /\ Head(r.net[n]).t = "ask"
    /\ answers => n \notin lost.dead
    /\ UNCHANGED <<mem, stray, lost, master>>
    /\ EndOfVerb(c, ctl[c].acts, ctl[c].doubt,
                 [r EXCEPT !.net[n] = Tail(@), !.shown = IF counts THEN @ \cup {n} ELSE @], FALSE, logs)

Verb(c) == \E n \in Nodes : /\ sess[c].net[n] # <<>> /\ Head(sess[c].net[n]).t # "ask"
                           /\ Execute(c, ctl[c].acts, sess[c], n, FALSE)

\* The connection to a member breaks. A verb that was under way there may still arrive, unless the session is fenced.
Break(c) ==
  \E n \in Nodes :
    LET r == sess[c]
        v == Head(r.net[n])
    IN
    /\ r.net[n] # <<>> /\ ~r.rec
    /\ n \in Members(master.view) \ lost.dead /\ ~IsFenced(c)
    /\ master.breaks < MaxBreaks
    /\ master' = [master EXCEPT !.breaks = @ + 1]
    /\ stray' = IF v.t = "cas"
                THEN stray \cup {[by |-> c, n |-> n, slot |-> r.slot, e |-> v.e, w |-> v.w,
                                 fill |-> FALSE]}
                ELSE stray
    /\ UNCHANGED <<mem, lost>>
    /\ EndOfVerb(c, ctl[c].acts, ctl[c].doubt \cup (IF v.t \in {"cas", "record"} THEN {n} ELSE {}),
                 [r EXCEPT !.net[n] = <<>>, !.fail = TRUE], FALSE, logs)

\* A verb without a waiting sender arrives, or never will.
Stray ==
  \E x \in stray :
    /\ stray' = stray \ {x}
    /\ mem' = IF x.n \notin lost.dead /\ (mem[x.n][x.slot] = x.e \/ x.fill)
              THEN [mem EXCEPT ![x.n][x.slot] = x.w] ELSE mem
    /\ UNCHANGED <<sess, ctl, logs, lost, master>>
    /\ OnlyMemory

\* An operation begins, or begins again, by the newest view that its session knows.
Begin(c) ==
  LET r == sess[c]
      v == ctl[c].knows
  IN
  /\ r.pc = "ready" /\ v.num > ctl[c].tired
  /\ \E o \in (IF r.op = "none" THEN Programs[c][r.ip] ELSE {[op |-> r.op, key |-> r.key]}) :
       LET beside   == ctl[c].beside /\ v.num = 1
           primaryless == beside \/ (InScope(v, o.key) /\ v.primaryless)
           asks     == ctl[c].late /\ ~beside
           q        == [r EXCEPT !.op = o.op, !.key = o.key, !.reps = IF beside THEN Tail(v.reps) ELSE Reps(v, o.key),
                                 !.asks = asks,
                                 !.shown = IF asks /\ Barring
                                           THEN {n \in Members(v) : Vouches(n, v.num)} ELSE {}]
           reads(n) == IF (primaryless /\ n \in ToSet(q.reps)) \/ (~primaryless /\ n = Primary(q))
                       THEN <<Read(Slots)>> ELSE <<>>
           verbs(n) == reads(n) \o (IF asks /\ n \in Members(v) /\ ~Barring THEN <<AskView>> ELSE <<>>)
           p        == Post(q, IF primaryless THEN "primaryless" ELSE "read", [n \in Nodes |-> verbs(n)])
       IN
       /\ o.op = "SEARCH" \/ ~InScope(v, o.key)
       /\ beside => o.op = "SEARCH"
       /\ c \in CanBar => beside \/ v.num > 1       \* other sessions read the primary
       /\ primaryless /\ v.stage = "frozen" => "frozen readers wait" \in Removed
       /\ \E n \in Nodes : reads(n) # <<>> /\ Execute(c, v.num, p, n, r.op = "none")

\* Whether a loser, which takes effect before the winner, must not end here: the winner's word may have been read on the
\* backups before the loser began.
LosesInVain(c) ==
  /\ Barring /\ ~IsVouchedFor(sess[c], Members(ctl[c].knows))
  /\ "losers ask" \notin Removed

\* A loser sees that the round is over.
AwaitEnd(c) ==
  LET r == sess[c] IN
  /\ r.pc = "await"
  /\ Serves(c, Primary(r))
  /\ mem[Primary(r)][r.slot] # r.old
  /\ \E o \in (IF r.rec THEN InspectNumbers(r)
              ELSE IF LosesInVain(c) THEN Retry(r) ELSE LoserEnds(r, mem[Primary(r)][r.slot])) :
       /\ sess' = [sess EXCEPT ![c] = o.r]
       /\ UNCHANGED <<mem, stray, lost, master>>
       /\ logs' = Kept(logs, c, o.r)
       /\ Follow(c, ctl[c].acts, {}, r, o.r)
       /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

\* A loser gives up its wait because of a change that includes the slot, or because the primary does not answer.
StopWaiting(c) ==
  LET r == sess[c]
      k == ctl[c]
  IN
  /\ r.pc = "await" /\ ~r.rec
  /\ \/ k.knows.num > k.acts /\ InScope(k.knows, r.key) /\ "waits end" \notin Removed
     \/ MayFail(c, Primary(r))
  /\ sess' = [sess EXCEPT ![c] = Park(r)]
  /\ Follow(c, k.acts, {}, r, Park(r))
  /\ UNCHANGED <<mem, logs, stray, lost, master>>
  /\ OnlyMemory

\* The change does not include the slot: the loser waits on, by the newer view.
WaitOn(c) ==
  LET k == ctl[c] IN
  /\ sess[c].pc = "await" /\ ~sess[c].rec /\ k.knows.num > k.acts
  /\ ~InScope(k.knows, sess[c].key) /\ "waits move on" \notin Removed
  /\ ctl' = [ctl EXCEPT ![c].acts = k.knows.num]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

---------------------------------------------------------------------------
(* Views reach sessions. Suspended operations look for their results.      *)

Active(c) == sess[c].pc \notin {"done", "gone", "crashed"} /\ ~sess[c].rec

Learn(c) ==
  /\ Active(c) /\ ~ctl[c].out
  /\ ctl[c].knows.num < master.view.num
  /\ ctl' = [ctl EXCEPT ![c].knows = master.view]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

\* See docs/protocol.md, View changes.
Found0012(r, had, w) ==
  CASE had = "commit"   -> Answer(r, Done)
    [] had = "withdraw" -> Retry(r)
    [] had = "competed" /\ w = r.old -> Retry(r)
    [] had = "competed" /\ w.id = r.own.id ->
         IF w.st = "live" \/ IsNumber(w) THEN Answer(r, Done) ELSE Retry(r)
    \* The winner's word may have been read beside the primary before this operation began.
    [] Barring /\ "stopped losers start again" \notin Removed -> Retry(r)
    [] OTHER -> LoserEnds(r, w)

MayLook(c) ==
  LET k == ctl[c] IN
  /\ k.knows.num > k.tired /\ k.doubt \cap Members(k.knows) = {}
  /\ \/ k.knows.stage = "switched" /\ InScope(k.knows, sess[c].key)
     \/ k.knows.stage = "switched" /\ "look in the scope" \in Removed
     \/ k.knows.stage = "ok" /\ "look before stable" \in Removed
     \/ k.knows.stage = "frozen" /\ "look when switched" \in Removed

Look(c) ==
  LET r == [sess[c] EXCEPT !.reps = Reps(ctl[c].knows, sess[c].key)] IN
  /\ r.pc = "parked" /\ ~ctl[c].out /\ MayLook(c)
  /\ Serves(c, Primary(r))
  /\ \E o \in Found0012(r, ctl[c].had, mem[Primary(r)][r.slot]) :
       /\ sess' = [sess EXCEPT ![c] = o.r]
       /\ logs' = Kept(logs, c, o.r)
       /\ Follow(c, 0, {}, r, o.r)
       /\ UNCHANGED <<mem, stray, lost, master>>
       /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

\* The session acts by no view older than the master's. A session whose CAS may still be on its way to a member counts
\* as acting by the old view.
ActsBy(c, num) ==
  LET k == ctl[c] IN
  /\ k.knows.num >= num
  /\ k.acts = 0 \/ k.acts >= num
  /\ sess[c].pc = "parked" => (k.doubt \cap Members(k.knows) = {} \/ "the unanswered are pinned" \in Removed)

Acknowledged(c) == Active(c) /\ ~ctl[c].out => ActsBy(c, master.view.num)

---------------------------------------------------------------------------
(* Clients crash, or are silent. *)

Crashed(c) == [Rest(c, sess[c].ip, sess[c].seq, sess[c].reps) EXCEPT
                 !.pc = "crashed", !.op = sess[c].op, !.key = sess[c].key, !.rec = TRUE,
                 !.own = sess[c].own, !.vis = TRUE]

\* The session's operation was suspended, and not by a change: the session gives up, and is recovered.
WillNotFindOut(c) ==
  sess[c].pc = "parked" /\ (sess[c].key \in Apart \/ ctl[c].doubt \cap Members(master.view) # {})

\* Crash and fence are one step, as in Snapshot.tla.
Crash(c) ==
  LET r == sess[c] IN
  /\ r.vis /\ ~r.rec /\ ~ctl[c].out
  /\ \/ Cardinality({d \in Clients : sess[d].rec \/ sess[d].pc = "gone"}) < MaxCrashes
     \/ c \in CanExpel /\ ~Acknowledged(c) /\ "fence the silent" \notin Removed
     \/ c \in CanExpel /\ WillNotFindOut(c)
  /\ sess' = [sess EXCEPT ![c] = Crashed(c)]
  /\ Follow(c, 0, {}, r, Crashed(c))
  /\ stray' = {x \in stray : x.by # c}
  /\ UNCHANGED <<mem, logs, lost, master>>
  /\ OnlyMemory

\* A session that does not acknowledge is fenced at all members, and the change goes on without it. If it has posted a
\* CAS, it has to be recovered, and its operation never returns (Crash).
Expel(c) ==
  /\ c \in CanExpel /\ Active(c) /\ ~ctl[c].out
  /\ Barring => c \in CanBar                       \* other models have these sessions
  /\ ~Acknowledged(c)
  /\ ~sess[c].vis \/ "fence the silent" \in Removed
  /\ ctl' = [ctl EXCEPT ![c].out = TRUE]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

\* By the session's own clock its lease has run out.
Late(c) ==
  /\ Asking /\ Active(c) /\ (ctl[c].out \/ (Barring /\ c \in CanExpel)) /\ ~ctl[c].late
  /\ ctl' = [ctl EXCEPT ![c].late = TRUE]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

\* The session renews its lease.
Hear(c) ==
  LET all   == Members(master.view)
      hears == all \ (master.bars \cup lost.dead)
  IN
  /\ Barring /\ c \notin CanBar /\ Active(c) /\ ~ctl[c].out /\ ctl[c].late
  /\ 2 * Cardinality(hears) > Cardinality(all) \/ "leases rest on a majority" \in Removed
  /\ ctl' = [ctl EXCEPT ![c].late = FALSE]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

\* A session for which not enough members vouched begins again, by the same view.
Again(c) ==
  /\ Barring /\ Active(c) /\ sess[c].pc = "ready" /\ ctl[c].tired = ctl[c].knows.num
  /\ ctl' = [ctl EXCEPT ![c].tired = 0]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

\* A session without a valid lease makes a member bar node 0. A node at a later view refuses.
Bar(c, n) ==
  /\ c \in CanBar /\ Active(c) /\ ctl[c].late /\ ctl[c].knows.num = 1
  /\ n \in Members(View0) \ ({0} \cup lost.dead \cup master.bars) /\ master.shows[n] = 1
  /\ master' = [master EXCEPT !.bars = @ \cup {n}]
  /\ UNCHANGED <<mem, sess, ctl, logs, stray, lost>>
  /\ OnlyMemory

\* More than half of the members have barred node 0 for a lease, so all leases that were granted before have run out.
ReadBesideIt(c) ==
  /\ c \in CanBar /\ Active(c) /\ ctl[c].late /\ ctl[c].knows.num = 1 /\ ~ctl[c].beside
  /\ \/ 2 * Cardinality(master.bars) > Cardinality(Members(View0))
     \/ master.bars # {} /\ "bars on more than half" \in Removed
  /\ (\A d \in CanExpel : Active(d) => ctl[d].late) \/ "bars wait for leases" \in Removed
  /\ sess[c].pc = "ready"
  /\ ctl' = [ctl EXCEPT ![c].beside = TRUE, ![c].tired = 0]
  /\ UNCHANGED <<mem, sess, logs, stray, lost, master>>
  /\ OnlyMemory

\* Memory nodes are dealt with first, and then clients.
Recover(c) ==
  LET r == sess[c]
      v == master.view
  IN
  /\ r.pc = "crashed" /\ v.stage = "ok"
  /\ ToSet(Reps(v, r.key)) \cap lost.dead = {}
  /\ UNCHANGED <<mem, ctl, stray, lost, master>>
  /\ LET q == [r EXCEPT !.reps = Reps(v, r.key), !.todo = UNION {logs[n][c] : n \in Members(v)}]
     IN  \E o \in IF IsNumber(r.own) /\ Recording THEN InspectNumbers(q) ELSE Inspect(q) :
           /\ sess' = [sess EXCEPT ![c] = o.r]
           /\ logs' = Kept(logs, c, o.r)
           /\ Ghost(c, r.key, FALSE, o.ans, Context(sess))

---------------------------------------------------------------------------
(* The master. *)

Losses == Cardinality(lost.dead \cup lost.cut)

\* Some replica of the index is left without this node.
IsSpared(n) == ToSet(master.view.reps) \ (lost.dead \cup {n}) # {}

Die(n) ==
  /\ n \in CanDie \ (lost.dead \cup lost.cut) /\ Losses < MaxLost
  /\ n \in Members(master.view) /\ IsSpared(n)
  /\ \E c \in Clients : Active(c) \/ sess[c].rec
  /\ lost' = [lost EXCEPT !.dead = @ \cup {n}]
  /\ UNCHANGED <<mem, sess, ctl, logs, stray, master>>
  /\ OnlyMemory

\* View::without, in any stage. The session of the repair is fenced, here in one step; so is the session by which a
\* client is being recovered.
Without(n) ==
  LET v == master.view
      stays(m) == m # n
  IN
  /\ n \in Members(v)
  /\ master' = [master EXCEPT
       !.view = [num |-> v.num + 1, stage |-> "frozen", reps |-> SelectSeq(v.reps, stays),
                 primaryless |-> v.primaryless \/ n = Head(v.reps), joining |-> v.joining \ {n}],
       !.former = IF Asking THEN @ \cup {Members(v)} ELSE @,
       !.todo = {}, !.work = NoWork]
  /\ stray' = IF "fence the repair" \in Removed THEN stray \cup master.work.now ELSE stray
  /\ sess' = [c \in Clients |-> IF sess[c].rec THEN Park(sess[c]) ELSE sess[c]]
  /\ UNCHANGED <<mem, ctl, logs>>

Detect(n) ==
  /\ n \in lost.dead /\ Without(n)
  /\ UNCHANGED lost
  /\ OnlyMemory

\* A change is still to come, which settles the word. In a cluster, scrubbing finds the damage.
Damage(n) ==
  /\ n \in CanDamage /\ master.damages = 0
  /\ master.view.num = 1 /\ \E c \in Clients : Active(c)
  /\ \E s \in Slots :
       /\ mem[n][s].st = "live"
       /\ mem' = [mem EXCEPT ![n][s] = Number(0)]
  /\ master' = [master EXCEPT !.damages = 1]
  /\ UNCHANGED <<sess, ctl, logs, stray, lost>>
  /\ OnlyMemory

\* No more than half of the members are cut off at one time. Real clusters wait for a lease then, and go on.
HalfIsLeft(n) ==
  LET left == Members(master.view) \ {n} IN
  \A set \in master.former \cup {Members(master.view)} :
    2 * Cardinality(left \cap set) >= Cardinality(set)

Cut(n) ==
  /\ Asking => HalfIsLeft(n)
  /\ n \in CanCut \ (lost.dead \cup lost.cut) /\ Losses < MaxLost /\ IsSpared(n)
  /\ \E c \in Clients : Active(c)
  /\ Without(n)
  /\ lost' = [lost EXCEPT !.cut = @ \cup {n}]
  /\ OnlyMemory

\* View::settling: no node is lost, but words on the backups of a barred node were possibly read.
SettleBarred ==
  LET v == master.view IN
  /\ master.bars # {} /\ v.num = 1 /\ MaxLost > 0    \* without losses there is no master
  /\ master' = [master EXCEPT !.view = [v EXCEPT !.num = @ + 1, !.stage = "frozen"],
                              !.former = @ \cup {Members(v)}]
  /\ sess' = [c \in Clients |-> IF sess[c].rec THEN Park(sess[c]) ELSE sess[c]]
  /\ UNCHANGED <<mem, ctl, logs, stray, lost>>
  /\ OnlyMemory

\* No change has settled the damage yet.
IsDamaged == master.damages > 0 /\ master.view.num = 1

\* View::growing.
Grow(n) ==
  LET v == master.view IN
  /\ n \in Joiners \ (Members(v) \cup lost.dead \cup lost.cut) /\ v.stage = "ok"
  /\ (\E c \in Clients : Active(c)) \/ IsDamaged
  /\ master' = [master EXCEPT !.view = [v EXCEPT !.num = @ + 1, !.stage = "frozen",
                                                 !.joining = {n}]]
  /\ sess' = [c \in Clients |-> IF sess[c].rec THEN Park(sess[c]) ELSE sess[c]]
  /\ UNCHANGED <<mem, ctl, logs, stray, lost>>
  /\ OnlyMemory

\* The slots whose replicas have to be made equal.
Unsettled(v) ==
  {s \in Slots : v.joining # {} \/ \E i, j \in DOMAIN v.reps :
                    mem[v.reps[i]][s] # mem[v.reps[j]][s] \/ mem[v.reps[i]][s].st = "tentative"}

\* A member learns of the newest view, from which another node is missing.
Stand(n) ==
  /\ master.former # {} /\ master.view.stage = "frozen"
  /\ n \in Members(master.view) \ lost.dead /\ master.shows[n] < master.view.num
  /\ master' = [master EXCEPT !.shows[n] = master.view.num,
                              !.bars = IF "bars stand until all is settled" \in Removed
                                       THEN @ \ {n} ELSE @]
  /\ UNCHANGED <<mem, sess, ctl, logs, stray, lost>>
  /\ OnlyMemory

MayTakeEffect ==
  master.former # {} =>
    /\ \/ \A n \in Members(master.view) : master.shows[n] = master.view.num
       \/ "members show it first" \in Removed
    /\ (\A c \in Clients : Active(c) /\ ctl[c].out => ctl[c].late) \/ "leases end first" \in Removed

Transform ==
  /\ master.view.stage = "frozen" /\ MayTakeEffect
  /\ \A c \in Clients :
       \/ Acknowledged(c)
       \/ "readers leave first" \in Removed /\ sess[c].op \in {"none", "SEARCH"}
       \/ "writers leave first" \in Removed /\ sess[c].op \notin {"none", "SEARCH"}
  /\ master' = [master EXCEPT !.view.num = @ + 1, !.view.stage = "transforming",
                              !.former = {}, !.todo = Unsettled(master.view)]
  /\ UNCHANGED <<mem, sess, ctl, logs, stray, lost>>
  /\ OnlyMemory

\* A number on a backup is no damage if its record is beside it. While members bar the primary, every number counts,
\* because sessions possibly read it on the backups, and recovery, which writes no records, possibly put it there.
Proven(s, nodes) ==
  LET isBarred == master.bars \cap (Members(master.view) \ lost.dead) # {}
  IN  {mem[n][s] : n \in {n \in nodes :
        \/ ~Recording
        \/ "unproven numbers are damage" \in Removed
        \/ "records prove numbers" \notin Removed /\ \E c \in Clients : mem[n][s].id \in logs[n][c]
        \/ "bars prove numbers" \notin Removed /\ isBarred}}

\* One phase READs a slot from all survivors. Then the slot's word is CASed to the backups, and to the primary last. No
\* session looks at a node that joins.
Examine(s) ==
  LET v       == master.view
      backups == IF v.primaryless THEN v.reps ELSE Tail(v.reps)
      words   == [i \in DOMAIN backups |-> mem[backups[i]][s]]
      p       == Head(v.reps)
      w       == Settled(~v.primaryless, mem[p][s], words, Proven(s, ToSet(backups)))
      verb(n) == [by |-> Repair, n |-> n, slot |-> s, e |-> mem[n][s], w |-> w,
                  fill |-> n \in v.joining]
      differ(S) == {verb(n) : n \in {n \in S : mem[n][s] # w}}
      first   == differ(ToSet(backups) \cup v.joining)
      last    == IF v.primaryless THEN {} ELSE differ({p})
  IN
  /\ s \in master.todo /\ master.work = NoWork
  /\ ToSet(v.reps) \cap lost.dead = {}
  /\ master' = IF first \cup last = {} THEN [master EXCEPT !.todo = @ \ {s}]
               ELSE [master EXCEPT !.work =
                       [slot |-> s, now |-> IF first = {} THEN last ELSE first,
                        then |-> IF first = {} THEN {} ELSE last]]
  /\ UNCHANGED <<mem, sess, ctl, logs, stray, lost>>
  /\ OnlyMemory

RepairVerb ==
  LET k == master.work IN
  \E x \in k.now :
    LET now == k.now \ {x} IN
    /\ x.n \notin lost.dead
    /\ x.fill \/ mem[x.n][x.slot] = x.e
    /\ mem' = [mem EXCEPT ![x.n][x.slot] = x.w]
    /\ master' =
         CASE now # {} -> [master EXCEPT !.work.now = now]
           [] now = {} /\ k.then # {} -> [master EXCEPT !.work.now = k.then, !.work.then = {}]
           [] OTHER -> [master EXCEPT !.work = NoWork, !.todo = @ \ {k.slot}]
    /\ UNCHANGED <<sess, ctl, logs, stray, lost>>
    /\ OnlyMemory

\* Another master takes over, and first fences the session of the repair.
NewMaster ==
  /\ master.work # NoWork /\ master.restarts < MaxRestarts
  /\ master' = [master EXCEPT !.restarts = @ + 1, !.work = NoWork,
                              !.todo = Unsettled(master.view)]
  /\ stray' = IF "fence the repair" \in Removed THEN stray \cup master.work.now ELSE stray
  /\ UNCHANGED <<mem, sess, ctl, logs, lost>>
  /\ OnlyMemory

Switch ==
  /\ master.view.stage = "transforming" /\ master.todo = {} /\ master.work = NoWork
  /\ master' = [master EXCEPT !.view.num = @ + 1, !.view.stage = "switched",
                              !.view.primaryless = FALSE, !.view.joining = {},
                              !.view.reps = @ \o SetToSeq(master.view.joining)]
  /\ UNCHANGED <<mem, sess, ctl, logs, stray, lost>>
  /\ OnlyMemory

\* No session reads at an old place, and no suspended write still has to look.
Stable ==
  /\ master.view.stage = "switched"
  /\ \A c \in Clients :
       /\ Acknowledged(c)
       /\ sess[c].pc = "parked" /\ ~ctl[c].out /\ sess[c].key \notin Apart
            => "look before stable" \in Removed
  /\ master' = [master EXCEPT !.view.num = @ + 1, !.view.stage = "ok", !.bars = {}]
  /\ ctl' = [c \in Clients |-> [ctl[c] EXCEPT !.beside = FALSE]]
  /\ UNCHANGED <<mem, sess, logs, stray, lost>>
  /\ OnlyMemory

---------------------------------------------------------------------------

AtRest == /\ \A c \in Clients : sess[c].pc \in {"done", "gone"} \/ ctl[c].out
          /\ master.view.stage = "ok" /\ stray = {} /\ ~IsDamaged

Terminated == AtRest /\ UNCHANGED vars

Next ==
  \/ \E c \in Clients : \/ Begin(c) \/ Verb(c) \/ AwaitEnd(c) \/ StopWaiting(c) \/ WaitOn(c)
                        \/ Learn(c) \/ Look(c) \/ Break(c)
                        \/ Crash(c) \/ Expel(c) \/ Recover(c) \/ Ask(c) \/ Late(c)
                        \/ Hear(c) \/ Again(c) \/ ReadBesideIt(c)
                        \/ \E n \in Nodes : Bar(c, n)
  \/ \E n \in Nodes : Die(n) \/ Detect(n) \/ Cut(n) \/ Grow(n) \/ Stand(n) \/ Damage(n)
  \/ \E s \in Slots : Examine(s)
  \/ SettleBarred
  \/ Stray \/ RepairVerb \/ NewMaster \/ Transform \/ Switch \/ Stable
  \/ Terminated

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Properties: those of Snapshot.tla.                                      *)

NoDuplicate ==
  \A k \in Keys :
    LET p == Head(Reps(master.view, k)) IN
    p \notin lost.dead /\ ~master.view.primaryless =>
      Cardinality({s \in Slots : mem[p][s].st = "live" /\ mem[p][s].key = k}) <= 1

Agrees(reps, s) == \A i \in DOMAIN reps : /\ mem[reps[i]][s] = mem[Head(reps)][s]
                                          /\ mem[reps[i]][s].st # "tentative"

ReplicasAgree ==
  AtRest => \A s \in Slots : Agrees(master.view.reps, s) /\ Agrees(ApartReps, s)

\* No session writes between the switch and the stable view, so all replicas are equal then.
SwitchedIsEqual ==
  master.view.stage = "switched" => \A s \in Slots : Agrees(master.view.reps, s)

Linearizable == \A k \in Keys : front[k] # {}

WinnersAreAlone == \A c \in Clients : ~sess[c].bad

=============================================================================
