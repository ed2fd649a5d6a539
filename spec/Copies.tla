------------------------------- MODULE Copies -------------------------------
(***************************************************************************)
(* EC-oriented replication: stripes whose parity is not written yet, and   *)
(* their copies; Moves in place; and the sealing of a set, which writes    *)
(* all missing parity.                                                     *)
(*                                                                         *)
(* There is one slot, with a primary and one backup or none, and one coded *)
(* set. A word [a, t, g, v] leads to stripe a with generation g. Its turn  *)
(* t says what protects the stripe: an even turn, a copy; an odd turn,     *)
(* parity. With a = 0 the word leads to an object elsewhere, which is      *)
(* always there. The value v is part of no real word; only the properties  *)
(* use it.                                                                 *)
(*                                                                         *)
(* A stripe has two data chunks, each with copy words, which alone are     *)
(* told apart. If "data" is lost, that is chunk 1: headers and copy words  *)
(* are read from the other chunk, but the value cannot be. "par" is the    *)
(* node with parity and with the copies. A stripe has one copy (r = 2); a  *)
(* second copy would follow the same rules.                                *)
(*                                                                         *)
(* Session "o" owns the blocks of the set until it hands them on; "x" is   *)
(* another session; "r" reads. At most one comparison of blocks with the   *)
(* index runs at a time, and at most one repair of a damaged chunk.        *)
(* Snapshot.tla has the rounds: here a round is a CAS on the backup, a CAS *)
(* on the primary, and losers that wait. A loser does not start again.     *)
(*                                                                         *)
(* Views: 0 stable; 1 frozen; 2 transforming; 3 switched, the set is       *)
(* sealed; 4 stable, and the memory of the copies is used for something    *)
(* else.                                                                   *)
(***************************************************************************)
\* Promise RED-9
EXTENDS Naturals, FiniteSets

CONSTANTS
  Stripes, Copies,     \* addresses, which are numbers
  Backups,             \* 0 or 1
  Turns0,              \* turns that the first stripe may have at the start
  Owns, Strange,       \* kinds of operations of the owner and of the other session
  MaxOwn, MaxStrange, MaxReads, MaxCompared, MaxCrashes,
  MaxHandOns, MaxRepairs, MaxSuspended,
  CanLose, CanLeave,   \* "data" and "par" nodes that may be lost, or may leave; at most one of each
  Removed

VARIABLES
  prim, back,  \* the word on the primary, and on the backup
  data,        \* stripe -> [g, v] of its data chunks
  cw,          \* stripe -> chunk -> turn 0 or 2 -> copy word, as [o, g]
  copy,        \* address of a copy -> [g, v] of its contents
  par,         \* place 1 or 2 -> stripe -> [g, v] of its parity chunk
  obj,         \* address -> [st, g, knows]: used, free or gone; sessions that may know its contents
  op,          \* session -> its operation
  queue,       \* session -> what it has freed without setting the bits: [o, g]
  rd,          \* the reader
  cmp,         \* the comparison
  rep,         \* the repair
  owner,       \* the owner of the blocks
  view,        \* [num, moves, copied, sealed]
  lost,        \* the node that is lost, or "none"
  past,        \* words that the primary has shown
  told,        \* [a, g, t, c]: copies that any chunk has named
  seen,        \* values that the primary has shown since the reader began
  mess,        \* a session died, and no comparison has run since
  n,           \* counters that bound the model
  bad          \* what has gone wrong

vars == <<prim, back, data, cw, copy, par, obj, op, queue, rd, cmp, rep, owner, view, lost, past,
          told, seen, mess, n, bad>>

Has(what)  == what \notin Removed
Writers    == {"o", "x"}
Chunks     == {1, 2}
Objects    == Stripes \cup Copies
None       == [o |-> 0, g |-> 0]
Nothing    == [g |-> 0, v |-> 0]
IsEven(t)  == t % 2 = 0
Min(S)     == CHOOSE x \in S : \A y \in S : x <= y
Ref(o, g)  == [o |-> o, g |-> g]

Word(a, t, g, v) == [a |-> a, t |-> t, g |-> g, v |-> v]
NoWord == Word(0, 0, 0, 0)

NoWords == [u \in {0, 2} |-> None]
Idle    == [pc |-> "idle", kind |-> "none", vn |-> 0, old |-> NoWord, new |-> NoWord,
            c |-> None, own |-> {}, val |-> 0, peek |-> [a |-> 0, g |-> 0, words |-> NoWords]]
NoRead  == [pc |-> "idle", vn |-> 0, w |-> NoWord, hint |-> [w |-> NoWord, c |-> None], val |-> 0]
NoRep   == [s |-> 0, g |-> 0, words |-> NoWords]
NoCmp   == [pc |-> "idle", cands |-> {}, words |-> {}, keep |-> {}, ops |-> {}, clean |-> FALSE]

S0 == Min(Stripes)
C0 == Min(Copies)

Init ==
  \E t \in Turns0 :
    LET w == Word(S0, t, 1, 1)
        c == IF IsEven(t) THEN Ref(C0, 1) ELSE None
    IN /\ prim = w /\ back = w
       /\ data = [s \in Stripes |-> IF s = S0 THEN [g |-> 1, v |-> 1] ELSE Nothing]
       /\ cw = [s \in Stripes |-> [j \in Chunks |-> [u \in {0, 2} |-> IF s = S0 /\ u = t THEN c
                                                                   ELSE None]]]
       /\ copy = [x \in Copies |-> IF x = c.o THEN [g |-> 1, v |-> 1] ELSE Nothing]
       /\ par = [p \in {1, 2} |-> [s \in Stripes |-> IF p = 1 /\ s = S0 /\ ~IsEven(t)
                                                     THEN [g |-> 1, v |-> 1] ELSE Nothing]]
       /\ obj = [o \in Objects |-> IF o \in {S0, c.o} THEN [st |-> "used", g |-> 1, knows |-> {}]
                                   ELSE [st |-> "free", g |-> 0, knows |-> {}]]
       /\ past = {w} /\ told = {[a |-> S0, g |-> 1, t |-> t, c |-> c]}
       /\ op = [s \in Writers |-> Idle] /\ queue = [s \in Writers |-> {}]
       /\ rd = NoRead /\ cmp = NoCmp /\ rep = NoRep /\ owner = "o"
       /\ view = [num |-> 0, moves |-> FALSE, copied |-> FALSE, sealed |-> {}]
       /\ lost = "none" /\ seen = {} /\ mess = FALSE
       /\ n = [own |-> 0, strange |-> 0, reads |-> 0, compared |-> 0, crashes |-> 0, v |-> 1,
               hands |-> 0, repairs |-> 0, suspended |-> 0]
       /\ bad = "nothing"

memory == <<data, cw, told, copy, par>>
others == <<rep, owner, view, lost, mess>>

---------------------------------------------------------------------------
(* Views, and the views by which sessions act.                             *)

IsSealed(vn) == vn >= 3
IsFrozen(vn) == vn \in 1..3
Place(vn)    == IF view.moves /\ IsSealed(vn) THEN 2 ELSE 1
IsThere(p)   == ~(lost = "par" /\ p = 1)

\* A session that begins knows at least the view that all sessions have acknowledged.
Floor == IF ~Has("writers leave before the sealing") \/ ~Has("readers leave before the copies go") THEN 0
         ELSE CASE view.num <= 1 -> 0 [] view.num \in {2, 3} -> 1 [] OTHER -> 3

Runs(s)  == op[s].pc \notin {"idle", "dead", "suspended"}
InFlight == {s \in Writers : op[s].pc # "idle"} \cup (IF rd.pc = "idle" THEN {} ELSE {"r"})
ActNot(vn) == (\A s \in Writers : Runs(s) => op[s].vn >= vn) /\ (rd.pc = "idle" \/ rd.vn >= vn)

---------------------------------------------------------------------------
(* What a word keeps in use, by a view.                                    *)

\* Chunks that can be read.
Left == IF lost = "data" THEN {2} ELSE Chunks

\* The copies that the copy words of chunk j name.
CopiesOf(w, j) == IF w.a # 0 /\ IsEven(w.t) THEN {cw[w.a][j][w.t]} \ {None} ELSE {}
Keeps(w, vn, j) == IF w.a = 0 THEN {}
                   ELSE {Ref(w.a, w.g)} \cup (IF IsSealed(vn) THEN {} ELSE CopiesOf(w, j))

IsUsed(r) == obj[r.o].st = "used" /\ obj[r.o].g = r.g

\* The operation of a session ends, after it has freed these objects.
EndsWith(s, freed) ==
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ queue' = [queue EXCEPT ![s] = @ \cup freed]
  /\ obj' = [o \in Objects |-> [obj[o] EXCEPT !.knows = @ \ {s}]]
  /\ cmp' = [cmp EXCEPT !.ops = @ \ {s}]

Goes(s, to) == op' = [op EXCEPT ![s].pc = to] /\ UNCHANGED <<queue, obj, cmp>>

\* From now on the primary shows w.
Shows(w) ==
  /\ prim' = w
  /\ past' = past \cup {w}
  /\ seen' = IF rd.pc = "idle" THEN {} ELSE seen \cup {w.v}
  /\ bad' = IF w \in past THEN "a word comes back" ELSE bad

---------------------------------------------------------------------------
(* Writers. A phase is one step, or two where another step may come        *)
(* between.                                                                *)

Free(S) == {o \in S : obj[o].st = "free" /\ obj[o].knows = {}}

IsMove(kind) == kind \in {"DEMOTE", "PROMOTE"}

\* Views in which new objects are allowed, and Moves in place.
MayWrite(vn) == vn \in {0, 4} \/ ~Has("writes wait for the sealing")
MayMove(vn)  == vn = 0 \/ (vn \in {1, 2} /\ ~Has("moves wait for the sealing"))

\* In a sealed set, the mutant has its copies elsewhere.
Needs(kind, vn) == CASE kind = "PUT" -> IF IsSealed(vn) THEN {"stripe"} ELSE {"stripe", "copy"}
                     [] kind = "PUT EC" -> {"stripe"}
                     [] kind = "PROMOTE" -> {"copy"} [] OTHER -> {}

May(s, kind, vn) ==
  CASE kind = "PUT"    -> MayWrite(vn) /\ (~IsSealed(vn) \/ ~Has("sealed sets take no copies"))
    [] kind = "PUT EC" -> MayWrite(vn)
    [] kind = "DEMOTE" -> /\ prim.a # 0 /\ IsEven(prim.t) /\ MayMove(vn)
                          /\ s = owner \/ ~Has("strangers leave stripes alone")
    [] kind = "PROMOTE" -> /\ prim.a # 0 /\ ~IsEven(prim.t) /\ prim.t < 3 /\ MayMove(vn)
    [] kind = "OUT"    -> prim.a # 0
    [] OTHER           -> TRUE

FirstStep(kind) == CASE kind \in {"PUT", "PUT EC"} -> "data" [] IsMove(kind) -> "read"
                     [] OTHER -> "back"

\* The session reads the slot, and allocates what it needs.
Begin(s, kind) ==
  /\ op[s].pc \in {"idle", "peeked"}
  /\ IF s = owner THEN kind \in Owns /\ n.own < MaxOwn ELSE kind \in Strange /\ n.strange < MaxStrange
  /\ \E vn \in Floor..view.num :
       /\ May(s, kind, vn)
       /\ "stripe" \in Needs(kind, vn) => Free(Stripes) # {}
       /\ "copy" \in Needs(kind, vn) => Free(Copies) # {}
       /\ LET stripe == IF "stripe" \in Needs(kind, vn) THEN Min(Free(Stripes)) ELSE 0
              main   == IF "copy" \in Needs(kind, vn) THEN Min(Free(Copies)) ELSE 0
              next(o) == obj[o].g + 1
              new == {o \in {stripe, main} : o # 0}
              v   == n.v + 1
              to  == CASE kind = "PUT"    -> Word(stripe, 0, next(stripe), v)
                       [] kind = "PUT EC" -> Word(stripe, 1, next(stripe), v)
                       [] kind = "DEMOTE" -> [prim EXCEPT !.t = @ + 1]
                       [] kind = "PROMOTE" -> [prim EXCEPT !.t = IF Has("a turn only grows") THEN @ + 1
                                                                 ELSE @ - 1]
                       [] kind = "UPDATE" -> Word(0, 0, v, v)
                       [] kind = "OUT"    -> Word(0, 0, v, prim.v)
          IN /\ op' = [op EXCEPT ![s] =
                  [pc |-> FirstStep(kind), kind |-> kind, vn |-> vn, old |-> prim, new |-> to,
                   c |-> IF main = 0 THEN None ELSE Ref(main, next(main)),
                   own |-> {Ref(o, next(o)) : o \in new}, val |-> to.v, peek |-> op[s].peek]]
             /\ obj' = [o \in Objects |-> IF o \in new THEN [st |-> "used", g |-> next(o), knows |-> {}]
                                          ELSE obj[o]]
             /\ n' = [n EXCEPT !.own = IF s = owner THEN @ + 1 ELSE @,
                               !.strange = IF s # owner THEN @ + 1 ELSE @,
                               !.v = IF IsMove(kind) THEN @ ELSE v]
  /\ UNCHANGED <<prim, back, memory, queue, rd, cmp, others, past, seen, bad>>

\* The session reads copy words before the slot, or beside it.
Peek(s) ==
  /\ op[s].pc = "idle" /\ ~Has("copy words are read behind the slot")
  /\ n.own < MaxOwn \/ s # owner
  /\ \E a \in Stripes :
       /\ data[a].g # 0
       /\ op' = [op EXCEPT ![s] = [Idle EXCEPT !.pc = "peeked",
                                              !.peek = [a |-> a, g |-> data[a].g, words |-> cw[a][2]]]]
  /\ UNCHANGED <<prim, back, memory, obj, queue, rd, cmp, others, past, seen, n, bad>>

GivesUp(s) ==
  /\ op[s].pc = "peeked"
  /\ EndsWith(s, {})
  /\ UNCHANGED <<prim, back, memory, rd, others, past, seen, n, bad>>

\* What a word keeps, as the session's operation sees it.
KeepsFor(s, w, j) ==
  LET p == op[s].peek IN
  IF w.a # 0 /\ p.a = w.a /\ p.g = w.g /\ IsEven(w.t) /\ ~IsSealed(op[s].vn)
  THEN {Ref(w.a, w.g)} \cup ({p.words[w.t]} \ {None})
  ELSE Keeps(w, op[s].vn, j)

\* The write stops before any CAS: a node did not answer, or the Move did not find what it moves.
Stops(s) == EndsWith(s, op[s].own) /\ UNCHANGED <<memory, bad>>

\* The next step of a write.
After(s) == CASE op[s].pc = "data" -> IF op[s].kind = "PUT EC" THEN "par"
                                 ELSE IF op[s].c = None THEN "back" ELSE "main"
              [] op[s].pc = "main" -> IF op[s].kind = "PROMOTE" THEN "word" ELSE "back"
              [] OTHER -> "back"

WriteData(s) ==
  /\ op[s].pc = "data"
  /\ IF lost = "data" THEN Stops(s)
     ELSE LET w == op[s].new IN
          /\ data' = [data EXCEPT ![w.a] = [g |-> w.g, v |-> w.v]]
          /\ cw' = [cw EXCEPT ![w.a] = [j \in Chunks |-> [u \in {0, 2} |-> IF u = 0 THEN op[s].c ELSE None]]]
          /\ told' = told \cup {[a |-> w.a, g |-> w.g, t |-> 0, c |-> op[s].c]}
          /\ UNCHANGED <<copy, par, bad>>
          /\ Goes(s, After(s))
  /\ UNCHANGED <<prim, back, rd, others, past, seen, n>>

WriteMain(s) ==
  /\ op[s].pc = "main"
  /\ IF lost = "par" THEN Stops(s)
     ELSE /\ copy' = [copy EXCEPT ![op[s].c.o] = [g |-> op[s].c.g, v |-> op[s].val]]
          /\ bad' = IF view.num = 4 THEN "a WRITE where copies were" ELSE bad
          /\ UNCHANGED <<data, cw, told, par>>
          /\ Goes(s, After(s))
  /\ UNCHANGED <<prim, back, rd, others, past, seen, n>>

\* The copy words for the next turn, one chunk after the other.
WriteWord(s) ==
  /\ op[s].pc \in {"word", "word 2"}
  /\ LET j == IF op[s].pc = "word" THEN 1 ELSE 2 IN
     IF j \notin Left THEN Stops(s)
     ELSE /\ cw' = [cw EXCEPT ![op[s].new.a][j][op[s].new.t] = op[s].c]
          /\ told' = told \cup {[a |-> op[s].new.a, g |-> op[s].new.g, t |-> op[s].new.t, c |-> op[s].c]}
          /\ UNCHANGED <<data, copy, par, bad>>
          /\ Goes(s, IF j = 1 THEN "word 2" ELSE "back")
  /\ UNCHANGED <<prim, back, rd, others, past, seen, n>>

WriteParity(s) ==
  /\ op[s].pc \in {"par", "late"}
  /\ LET p == Place(op[s].vn) IN
     IF ~IsThere(p) THEN Stops(s)
     ELSE /\ par' = [par EXCEPT ![p][op[s].new.a] = [g |-> op[s].new.g, v |-> op[s].val]]
          /\ bad' = IF view.num = 4 /\ view.moves /\ p = 1 THEN "a WRITE where parity was" ELSE bad
          /\ UNCHANGED <<data, cw, told, copy>>
          /\ IF op[s].pc = "late" THEN EndsWith(s, CopiesOf(op[s].old, 2)) ELSE Goes(s, "back")
  /\ UNCHANGED <<prim, back, rd, others, past, seen, n>>

\* A Move reads what it moves: a copy, or the data chunks.
ReadOld(s) ==
  /\ op[s].pc = "read"
  /\ \E j \in Left :
       LET w     == op[s].old
           r     == IF IsEven(w.t) THEN cw[w.a][j][w.t] ELSE None
           found == CASE IsEven(w.t) /\ r # None /\ lost # "par" -> copy[r.o]
                      [] ~IsEven(w.t) /\ lost # "data" -> data[w.a]
                      [] OTHER -> Nothing
       IN IF found.g # (IF IsEven(w.t) THEN r.g ELSE w.g) \/ found = Nothing THEN Stops(s)
          ELSE /\ op' = [op EXCEPT ![s].val = found.v,
                                   ![s].pc = IF op[s].kind = "PROMOTE" THEN "main"
                                             ELSE IF Has("parity before the CAS") THEN "par" ELSE "back"]
               /\ UNCHANGED <<memory, queue, obj, cmp, bad>>
  /\ UNCHANGED <<prim, back, rd, others, past, seen, n>>

\* If the session's own word is already there, this counts as a CAS that succeeded.
CasBackup(s) ==
  /\ op[s].pc = "back"
  /\ IF Backups = 1 /\ back \notin {op[s].old, op[s].new}
     THEN op' = [op EXCEPT ![s].pc = "wait"] /\ UNCHANGED back
     ELSE back' = (IF Backups = 1 THEN op[s].new ELSE back) /\ op' = [op EXCEPT ![s].pc = "prim"]
  /\ queue' = [queue EXCEPT ![s] = @ \cup IF op[s].kind = "DEMOTE" /\ ~Has("copies stay until the commit")
                                          THEN CopiesOf(op[s].old, 2) ELSE {}]
  /\ UNCHANGED <<prim, memory, obj, rd, cmp, others, past, seen, n, bad>>

\* A loser frees what it has allocated, and nothing else.
LosersFree(s) ==
  (IF Has("losers free their copies") THEN op[s].own ELSE {})
    \cup (IF op[s].kind = "DEMOTE" /\ ~Has("losers leave the old copies") THEN CopiesOf(op[s].old, 2) ELSE {})

\* The session that replaces a word frees what the word kept. It reads the copy words while it is pinned.
CasPrimary(s) ==
  /\ op[s].pc = "prim"
  /\ IF prim = op[s].old
     THEN /\ Shows(op[s].new)
          /\ back' = IF Backups = 1 THEN back ELSE op[s].new
          /\ IF op[s].kind = "DEMOTE" /\ ~Has("parity before the CAS") THEN Goes(s, "late")
             ELSE \E j \in Left :
                    EndsWith(s, IF op[s].kind = "DEMOTE" /\ ~Has("copies stay until the commit") THEN {}
                                ELSE KeepsFor(s, op[s].old, j) \ Keeps(op[s].new, op[s].vn, j))
     ELSE /\ EndsWith(s, LosersFree(s))
          /\ bad' = IF Backups = 1 THEN "a winner is not alone" ELSE bad
          /\ UNCHANGED <<prim, back, past, seen>>
  /\ UNCHANGED <<memory, rd, others, n>>

Loses(s) ==
  /\ op[s].pc = "wait" /\ prim # op[s].old
  /\ EndsWith(s, LosersFree(s))
  /\ UNCHANGED <<prim, back, memory, rd, others, past, seen, n, bad>>

\* A loser's winner may be dead, and is recovered when the set is sealed, so the loser waits on by the newer view. So
\* does a write whose CAS on the primary has no answer: it is suspended, and finds its result later.
WaitsOn(s) ==
  /\ op[s].pc \in {"wait", "prim"} /\ op[s].vn < view.num
  /\ op[s].pc = "wait" => Has("losers wait on")
  /\ op' = [op EXCEPT ![s].vn = view.num]
  /\ UNCHANGED <<prim, back, memory, obj, queue, rd, cmp, others, past, seen, n, bad>>

\* The CAS on the primary executes, and has no answer.
Unanswered(s) ==
  /\ op[s].pc = "prim" /\ prim = op[s].old /\ op[s].vn = 0 /\ n.suspended < MaxSuspended
  /\ Shows(op[s].new)
  /\ back' = IF Backups = 1 THEN back ELSE op[s].new
  /\ op' = [op EXCEPT ![s].pc = "unanswered"]
  /\ n' = [n EXCEPT !.suspended = @ + 1]
  /\ UNCHANGED <<memory, obj, queue, rd, cmp, others>>

\* The write is suspended when the view changes. It is no longer pinned, so the memory that it knows may be reused; but
\* no other session treats what it is to free as lost.
Suspend(s) ==
  /\ op[s].pc = "unanswered" /\ op[s].vn < view.num
  /\ op' = [op EXCEPT ![s].pc = "suspended"]
  /\ obj' = [o \in Objects |-> [obj[o] EXCEPT !.knows = @ \ {s}]]
  /\ cmp' = IF Has("suspended writes hold what they free") THEN cmp ELSE [cmp EXCEPT !.ops = @ \ {s}]
  /\ UNCHANGED <<prim, back, memory, queue, rd, others, past, seen, n, bad>>

\* The write's word was chosen, or was replaced before: the write frees what its word has replaced.
Resolve(s) ==
  /\ op[s].pc = "suspended" /\ view.num = 3
  /\ \E j \in Left : EndsWith(s, IF Has("resolved writes free") THEN Keeps(op[s].old, 3, j) \ Keeps(op[s].new, 3, j)
                                 ELSE {})
  /\ UNCHANGED <<prim, back, memory, rd, others, past, seen, n, bad>>

\* The session sets free bits by a view that it knows.
SetFree(s) ==
  \E r \in queue[s], vn \in Floor..view.num :
    /\ queue' = [queue EXCEPT ![s] = @ \ {r}]
    /\ IF r.o \in Copies /\ (lost = "par" \/ (IsSealed(vn) /\ Has("nothing frees into what is gone")))
       THEN UNCHANGED <<obj, bad>>
       ELSE /\ bad' = CASE r.o \in Copies /\ view.num = 4 -> "freed where copies were"
                        [] ~IsUsed(r) -> "freed twice"
                        [] OTHER -> bad
            /\ obj' = IF IsUsed(r) THEN [obj EXCEPT ![r.o].st = "free", ![r.o].knows = InFlight] ELSE obj
    /\ UNCHANGED <<prim, back, memory, op, rd, cmp, others, past, seen, n>>

---------------------------------------------------------------------------
(* A crash, and the recovery of the client.                                *)

Crash(s) ==
  /\ n.crashes < MaxCrashes /\ op[s].pc # "dead" /\ (op[s].pc # "idle" \/ queue[s] # {})
  /\ op' = [op EXCEPT ![s].pc = "dead"]
  /\ queue' = [queue EXCEPT ![s] = {}]
  /\ n' = [n EXCEPT !.crashes = @ + 1]
  /\ mess' = TRUE /\ cmp' = [cmp EXCEPT !.clean = FALSE]
  /\ UNCHANGED <<prim, back, memory, obj, rd, rep, owner, view, lost, past, seen, bad>>

\* Recovery finds the word that the dead session has put on the backup; no other session can replace that word. A stripe
\* says with which turn it was created.
Recover(s) ==
  /\ op[s].pc = "dead" /\ view.num \in {0, 4}
  /\ IF /\ Backups = 1 /\ back = op[s].new /\ prim = op[s].old /\ back # prim
        /\ ~IsMove(op[s].kind) \/ Has("all turns are looked for")
     THEN Shows(back)
     ELSE UNCHANGED <<prim, past, seen, bad>>
  /\ EndsWith(s, {})
  /\ UNCHANGED <<back, memory, rd, others, n>>

---------------------------------------------------------------------------
(* The comparison of blocks with the index.                                *)

Owned == UNION {op[s].own \cup queue[s] : s \in Writers}

NoteUsed ==
  /\ cmp.pc = "idle" /\ n.compared < MaxCompared /\ view.num \in {0, 4}
  /\ cmp' = [NoCmp EXCEPT !.pc = "words",
                          !.cands = {Ref(o, obj[o].g) : o \in {x \in Objects : obj[x].st = "used"}} \ Owned,
                          !.clean = \A s \in Writers : op[s].pc = "idle" /\ queue[s] = {}]
  /\ n' = [n EXCEPT !.compared = @ + 1]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, others, past, seen, bad>>

ReadWords ==
  /\ cmp.pc = "words"
  /\ cmp' = [cmp EXCEPT !.pc = "chunks", !.words = {prim, back}]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, others, past, seen, n, bad>>

\* The comparison follows even words to their copies.
ReadChunks ==
  /\ cmp.pc = "chunks"
  /\ \E j \in Left :
       LET follows(w) == w.a # 0 /\ data[w.a].g = w.g /\ Has("comparisons follow copies")
           leads(w)   == IF w.a = 0 THEN {}
                         ELSE {Ref(w.a, w.g)} \cup (IF follows(w) THEN CopiesOf(w, j) ELSE {})
       IN cmp' = [cmp EXCEPT !.pc = "wait", !.words = {}, !.keep = UNION {leads(w) : w \in cmp.words},
                             !.ops = InFlight \ {"r"}]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, others, past, seen, n, bad>>

FreeGarbage ==
  /\ cmp.pc = "wait" /\ cmp.ops = {} /\ \A s \in Writers : queue[s] = {}
  /\ LET garbage == {r \in cmp.cands \ cmp.keep : IsUsed(r)}
     IN obj' = [o \in Objects |-> IF \E r \in garbage : r.o = o
                                  THEN [obj[o] EXCEPT !.st = "free", !.knows = InFlight] ELSE obj[o]]
  /\ cmp' = NoCmp
  /\ mess' = (mess /\ ~cmp.clean)
  /\ UNCHANGED <<prim, back, memory, op, queue, rd, rep, owner, view, lost, past, seen, n, bad>>

---------------------------------------------------------------------------
(* The reader.                                                             *)

\* A reader that has read a chunk before the slot may know the copy of another Move.
Hints == UNION {{[w |-> w, c |-> x.c] : x \in {y \in told : /\ y.a = w.a /\ y.g = w.g /\ y.t = w.t
                                                            /\ y.c # None}} : w \in past}

\* A read begins with the cached address of a copy, or without one.
BeginRead ==
  /\ rd.pc = "idle" /\ n.reads < MaxReads
  /\ \E vn \in Floor..view.num :
       \/ rd' = [NoRead EXCEPT !.pc = "word", !.vn = vn]
       \/ \E h \in Hints :
            /\ ~IsSealed(vn)
            /\ rd' = [NoRead EXCEPT !.pc = "both", !.vn = vn, !.hint = h]
  /\ seen' = {prim.v}
  /\ n' = [n EXCEPT !.reads = @ + 1]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, cmp, others, past, bad>>

Returns(v) ==
  /\ rd' = NoRead /\ seen' = {}
  /\ obj' = [o \in Objects |-> [obj[o] EXCEPT !.knows = @ \ {"r"}]]
  /\ bad' = IF v \in seen THEN bad ELSE "a value that was not there"

\* The copy is used if the slot shows the word to which the copy belongs.
Judge(w, v) ==
  IF v # 0 /\ (w = rd.hint.w \/ ~Has("copies count with their word")) THEN Returns(v)
  ELSE /\ rd' = [rd EXCEPT !.pc = "find", !.w = w, !.val = 0]
       /\ UNCHANGED <<seen, obj, bad>>

\* The value in a copy now, or 0 if the copy is not the named one.
Copied(r) == IF /\ r # None /\ lost # "par"
                /\ copy[r.o].g = r.g \/ ~Has("copies count with their generation")
             THEN copy[r.o].v ELSE 0

ReadWord ==
  /\ rd.pc \in {"word", "both", "copied"}
  /\ CASE rd.pc = "copied" -> Judge(prim, rd.val)
       [] OTHER -> /\ rd' = [rd EXCEPT !.w = prim, !.pc = IF rd.pc = "both" THEN "worded" ELSE "find"]
                   /\ UNCHANGED <<seen, obj, bad>>
  /\ UNCHANGED <<prim, back, memory, op, queue, cmp, others, past, n>>

ReadCopy ==
  /\ rd.pc \in {"both", "worded"}
  /\ LET v == Copied(rd.hint.c) IN
     IF rd.pc = "worded" THEN Judge(rd.w, v)
     ELSE rd' = [rd EXCEPT !.val = v, !.pc = "copied"] /\ UNCHANGED <<seen, obj, bad>>
  /\ UNCHANGED <<prim, back, memory, op, queue, cmp, others, past, n>>

\* What the word leads to: by its data chunks or, if one of their nodes is silent, by its copy or parity. Each is the
\* value, or 0 if it is not there.
ByData   == IF data[rd.w.a].g = rd.w.g THEN data[rd.w.a].v ELSE 0
ByMain(j) == IF data[rd.w.a].g = rd.w.g THEN Copied(cw[rd.w.a][j][rd.w.t]) ELSE 0
ByParity == LET p == par[Place(rd.vn)][rd.w.a]
            IN IF p.g = rd.w.g \/ ~Has("parity counts with its generation") THEN p.v ELSE 0

CountsParity == \/ ~IsEven(rd.w.t) \/ IsSealed(rd.vn)
                \/ ~Has("even words have no parity")
CountsMain   == IsEven(rd.w.t) /\ ~IsSealed(rd.vn)

Find ==
  /\ rd.pc = "find"
  /\ \E v \in IF rd.w.a = 0 THEN {rd.w.v}
              ELSE (IF lost # "data" THEN {ByData} ELSE {})
                   \cup (IF CountsMain /\ lost # "par" THEN {ByMain(j) : j \in Left} ELSE {})
                   \cup (IF CountsParity /\ IsThere(Place(rd.vn)) THEN {ByParity} ELSE {}) :
       IF v # 0 THEN Returns(v)
       ELSE /\ rd' = [rd EXCEPT !.pc = "word"]
            /\ bad' = IF prim = rd.w THEN "a value is not found" ELSE bad
            /\ UNCHANGED <<seen, obj>>
  /\ UNCHANGED <<prim, back, memory, op, queue, cmp, others, past, n>>

---------------------------------------------------------------------------
(* Blocks are handed on. A damaged chunk is repaired.                      *)

Other(s) == CHOOSE x \in Writers : x # s

\* A block is not handed on while its owner writes there or moves objects in place, nor before a dead owner is
\* recovered.
HandOn ==
  /\ n.hands < MaxHandOns /\ view.num \in {0, 4}
  /\ LET o == op[owner] IN
     /\ o.own = {}
     /\ IsMove(o.kind) => IF o.pc = "dead" THEN ~Has("blocks of the dead wait") ELSE ~Has("moves count as writes")
  /\ owner' = Other(owner)
  /\ n' = [n EXCEPT !.hands = @ + 1]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, rep, view, lost, past, seen, mess, bad>>

\* Chunk 2 says what belongs into chunk 1, which is damaged except for its copy words.
BeginRepair ==
  /\ rep = NoRep /\ n.repairs < MaxRepairs /\ lost = "none" /\ view.num = 0
  /\ \E s \in Stripes : data[s].g # 0 /\ rep' = [s |-> s, g |-> data[s].g, words |-> cw[s][2]]
  /\ n' = [n EXCEPT !.repairs = @ + 1]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, owner, view, lost, past, seen, mess, bad>>

\* The stripe has not been replaced meanwhile, because the repair is pinned.
Repair ==
  /\ rep # NoRep
  /\ rep' = NoRep
  /\ cw' = IF data[rep.s].g = rep.g /\ lost = "none" /\ ~Has("repairs leave copy words")
           THEN [cw EXCEPT ![rep.s][1] = rep.words] ELSE cw
  /\ UNCHANGED <<prim, back, data, told, copy, par, obj, op, queue, rd, cmp, owner, view, lost, past, seen, mess,
                 n, bad>>

---------------------------------------------------------------------------
(* A node is lost, or has to leave. Then the set is sealed.                *)

Lose(m) ==
  /\ m \in CanLose /\ lost = "none" /\ (view.num = 0 \/ m = "data")
  /\ lost' = m
  /\ IF m = "par"
     THEN /\ par' = [par EXCEPT ![1] = [s \in Stripes |-> Nothing]]
          /\ copy' = [c \in Copies |-> Nothing]
     ELSE UNCHANGED <<par, copy>>
  /\ UNCHANGED <<prim, back, data, cw, told, obj, op, queue, rd, cmp, rep, owner, view, past, seen, mess, n, bad>>

\* Parity gets another place if its node is lost or has to leave.
Freeze ==
  /\ view.num = 0
  /\ \E m \in IF lost = "none" THEN CanLeave ELSE {lost} :
       view' = [view EXCEPT !.num = 1, !.moves = (m = "par")]
  /\ cmp' = IF cmp.pc = "wait" THEN cmp ELSE NoCmp
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, rep, owner, lost, past, seen, mess, n, bad>>

Transform ==
  /\ view.num = 1
  /\ ActNot(1) \/ ~Has("writers leave before the sealing")
  /\ view' = [view EXCEPT !.num = 2, !.copied = ~(view.moves /\ lost # "par")]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

\* A column that leaves is copied unchanged.
CopyColumn ==
  /\ view.num = 2 /\ ~view.copied
  /\ view' = [view EXCEPT !.copied = TRUE]
  /\ par' = [par EXCEPT ![2] = par[1]]
  /\ UNCHANGED <<prim, back, data, cw, told, copy, obj, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

\* The parity of a stripe is computed from what can be read of the stripe, if that is the stripe's value.
NewPlace == IF view.moves THEN 2 ELSE 1
Leads(w, s) == w.a = s /\ w.g = data[s].g
HasParity(s) == LET p == par[NewPlace][s] IN
  p.g = data[s].g \/ (p.g # 0 /\ ~Has("sealing compares generations"))
SealsIt(s) ==
  /\ Has("all complete stripes are sealed") \/ Leads(prim, s)
  /\ IF Has("sealing looks for parity") THEN ~HasParity(s)
     ELSE lost = "par" \/ ~(Leads(prim, s) /\ ~IsEven(prim.t))
Source(s) == IF lost # "data" THEN data[s].v
             ELSE LET c == cw[s][2][0] IN IF c # None /\ copy[c.o].g = c.g THEN copy[c.o].v ELSE 0

Seal(s) ==
  /\ view.num = 2 /\ view.copied /\ s \notin view.sealed
  /\ view' = [view EXCEPT !.sealed = @ \cup {s}]
  /\ par' = IF data[s].g # 0 /\ SealsIt(s) /\ Source(s) = data[s].v
            THEN [par EXCEPT ![NewPlace][s] = data[s]] ELSE par
  /\ UNCHANGED <<prim, back, data, cw, told, copy, obj, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

\* A master that takes over begins again.
Again ==
  /\ view.num = 2 /\ view.sealed # {}
  /\ view' = [view EXCEPT !.copied = ~(view.moves /\ lost # "par"), !.sealed = {}]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

Switch ==
  /\ view.num = 2 /\ view.sealed = Stripes
  /\ view' = [view EXCEPT !.num = 3]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

\* The copies are released, and so is the place that parity has left.
Stable ==
  /\ view.num = 3 /\ \A s \in Writers : op[s].pc # "suspended"
  /\ ActNot(3) \/ ~Has("readers leave before the copies go")
  /\ view' = [view EXCEPT !.num = 4]
  /\ obj' = [o \in Objects |-> IF o \in Copies THEN [st |-> "gone", g |-> 0, knows |-> {}] ELSE obj[o]]
  /\ copy' = [c \in Copies |-> Nothing]
  /\ par' = IF view.moves THEN [par EXCEPT ![1] = [s \in Stripes |-> Nothing]] ELSE par
  /\ UNCHANGED <<prim, back, data, cw, told, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

---------------------------------------------------------------------------

Kinds == {"PUT", "PUT EC", "DEMOTE", "PROMOTE", "UPDATE", "OUT"}

\* All operations have ended.
AtRest == /\ \A s \in Writers : op[s].pc = "idle" /\ queue[s] = {}
          /\ rd.pc = "idle" /\ rep = NoRep /\ view.num \in {0, 4}

Next ==
  \/ \E s \in Writers :
       \/ \E kind \in Kinds : Begin(s, kind)
       \/ Peek(s) \/ GivesUp(s) \/ WriteData(s) \/ WriteMain(s) \/ WriteWord(s) \/ WriteParity(s) \/ ReadOld(s)
       \/ CasBackup(s) \/ CasPrimary(s) \/ Loses(s) \/ WaitsOn(s) \/ SetFree(s)
       \/ Unanswered(s) \/ Suspend(s) \/ Resolve(s)
       \/ Crash(s) \/ Recover(s)
  \/ HandOn \/ BeginRepair \/ Repair
  \/ NoteUsed \/ ReadWords \/ ReadChunks \/ FreeGarbage
  \/ BeginRead \/ ReadWord \/ ReadCopy \/ Find
  \/ \E m \in {"data", "par"} : Lose(m)
  \/ \E s \in Stripes : Seal(s)
  \/ Freeze \/ Transform \/ CopyColumn \/ Again \/ Switch \/ Stable
  \/ AtRest /\ UNCHANGED vars

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Properties. *)

\* No object is freed twice, or after its memory was released; no word recurs; no WRITE goes to memory that was
\* released; a winner is alone.
AsItShould == bad \notin {"freed twice", "freed where copies were", "a word comes back",
                          "a WRITE where copies were", "a WRITE where parity was", "a winner is not alone"}

\* A reader returns a value that was there while it read.
ReadsWhatWasThere == bad # "a value that was not there"

\* A reader finds the value that the slot shows.
FindsTheValue == bad # "a value is not found"

Standing == {prim} \cup (IF Backups = 1 THEN {back} ELSE {})

\* What a word in the slot keeps is not free.
KeptIsUsed ==
  \A w \in Standing, j \in Left : \A r \in Keeps(w, IF lost = "par" THEN 3 ELSE view.num, j) : IsUsed(r)

DataIsGood(w)   == data[w.a] = [g |-> w.g, v |-> w.v]
MainIsGood(w)   == data[w.a].g = w.g /\ \A j \in Left : \E r \in CopiesOf(w, j) : copy[r.o] = [g |-> r.g, v |-> w.v]
ParityIsGood(w) == par[Place(view.num)][w.a] = [g |-> w.g, v |-> w.v]
ProtectionIsGood(w) == IF IsEven(w.t) /\ ~IsSealed(view.num) THEN MainIsGood(w) ELSE ParityIsGood(w)

\* Every word in the slot can be read. As long as no node is lost, this holds after the loss of one node as well.
CanBeRead ==
  \A w \in {x \in Standing : x.a # 0} :
    /\ lost # "data" => DataIsGood(w)
    /\ lost # "par" \/ IsSealed(view.num) => ProtectionIsGood(w)

\* When nothing runs, every used object is kept by a word, unless a session died and no comparison has run since.
NothingLeaks ==
  AtRest /\ ~mess /\ (lost = "none" \/ view.num = 4) =>
    \A o \in Objects : obj[o].st = "used" => Ref(o, obj[o].g) \in Keeps(prim, view.num, 2)

\* When nothing runs, all replicas of the slot are equal.
ReplicasAgree == AtRest => back = prim
=============================================================================
