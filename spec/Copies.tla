------------------------------- MODULE Copies -------------------------------
(***************************************************************************)
(* EC-oriented replication: stripes whose parity is not written yet, and   *)
(* their copies; Moves in place; how a set is sealed.                      *)
(*                                                                         *)
(* One slot, with a primary and a backup or none; one coded set.  A word   *)
(* [a, t, g, v] leads to stripe a of generation g; its turn t says what    *)
(* protects it: even, a copy; odd, parity.  With a = 0 it leads to an      *)
(* object elsewhere, which is always there.  v, the value, is told by      *)
(* nobody: the properties need it.                                         *)
(*                                                                         *)
(* There are two data chunks, each with the copy words; only these are     *)
(* told apart.  If "data" is lost, that is chunk 1: headers and copy words *)
(* are read from the other one, the value is not.  "par" is the node with  *)
(* parity and with the copies.  A stripe has one copy (r = 2); a second    *)
(* one goes by the same rules.                                             *)
(*                                                                         *)
(* Session "o" owns the blocks of the set, until it hands them on; "x" is  *)
(* a stranger; "r" reads; one comparison of blocks with the index runs at  *)
(* a time, and so does one repair of a damaged chunk.  What a round        *)
(* does is Snapshot.tla's: here it is a CAS of the backup, one of the      *)
(* primary, and losers that wait.  Who loses does not start again.         *)
(*                                                                         *)
(* Views: 0; 1 frozen; 2 transforming; 3 switched, the set is sealed; 4    *)
(* stable, and what has gone is used for something else.                   *)
(***************************************************************************)
\* Promise RED-9
EXTENDS Naturals, FiniteSets

CONSTANTS
  Stripes, Copies,     \* addresses, which are numbers
  Backups,             \* 0 or 1
  Turns0,              \* turns of the stripe that is there at first
  Owns, Strange,       \* what the owner and the stranger may do
  MaxOwn, MaxStrange, MaxReads, MaxCompared, MaxCrashes,
  MaxHandOns, MaxRepairs, MaxSuspended,
  CanLose, CanLeave,   \* of "data" and "par"; one of each at most
  Removed

VARIABLES
  prim, back,  \* the word on the primary, and on the backup
  data,        \* stripe -> [g, v] of its data chunks
  cw,          \* stripe -> chunk -> turn 0 or 2 -> copy word, as [o, g]
  copy,        \* address of a copy -> [g, v] of what stands there
  par,         \* place 1 or 2 -> stripe -> [g, v] of its parity chunk
  obj,         \* address -> [st, g, knows]: used, free or gone; who may know what was there
  op,          \* session -> its operation
  queue,       \* session -> what it has freed, and not set free: [o, g]
  rd,          \* the reader
  cmp,         \* the comparison
  rep,         \* the repair
  owner,       \* whose the blocks are
  view,        \* [num, moves, copied, sealed]
  lost,        \* the node that is lost, or "none"
  past,        \* words that the primary has shown
  told,        \* [a, g, t, c]: copies of which any chunk has told
  seen,        \* values since the reader began
  mess,        \* somebody died, and no comparison has come since
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
(* Views, and who acts by which. *)

IsSealed(vn) == vn >= 3
IsFrozen(vn) == vn \in 1..3
Place(vn)    == IF view.moves /\ IsSealed(vn) THEN 2 ELSE 1
IsThere(p)   == ~(lost = "par" /\ p = 1)

\* Whoever begins has heard of what everybody has acknowledged, at least.
Floor == IF ~Has("writers leave before the sealing") \/ ~Has("readers leave before the copies go") THEN 0
         ELSE CASE view.num <= 1 -> 0 [] view.num \in {2, 3} -> 1 [] OTHER -> 3

Runs(s)  == op[s].pc \notin {"idle", "dead", "suspended"}
InFlight == {s \in Writers : op[s].pc # "idle"} \cup (IF rd.pc = "idle" THEN {} ELSE {"r"})
ActNot(vn) == (\A s \in Writers : Runs(s) => op[s].vn >= vn) /\ (rd.pc = "idle" \/ rd.vn >= vn)

---------------------------------------------------------------------------
(* What a word keeps, by a view. *)

\* Chunks that can be read.
Left == IF lost = "data" THEN {2} ELSE Chunks

\* By the copy words of chunk j.
CopiesOf(w, j) == IF w.a # 0 /\ IsEven(w.t) THEN {cw[w.a][j][w.t]} \ {None} ELSE {}
Keeps(w, vn, j) == IF w.a = 0 THEN {}
                   ELSE {Ref(w.a, w.g)} \cup (IF IsSealed(vn) THEN {} ELSE CopiesOf(w, j))

IsUsed(r) == obj[r.o].st = "used" /\ obj[r.o].g = r.g

\* The operation of a session ends; these it has freed.
EndsWith(s, freed) ==
  /\ op' = [op EXCEPT ![s] = Idle]
  /\ queue' = [queue EXCEPT ![s] = @ \cup freed]
  /\ obj' = [o \in Objects |-> [obj[o] EXCEPT !.knows = @ \ {s}]]
  /\ cmp' = [cmp EXCEPT !.ops = @ \ {s}]

Goes(s, to) == op' = [op EXCEPT ![s].pc = to] /\ UNCHANGED <<queue, obj, cmp>>

\* The primary shows w.
Shows(w) ==
  /\ prim' = w
  /\ past' = past \cup {w}
  /\ seen' = IF rd.pc = "idle" THEN {} ELSE seen \cup {w.v}
  /\ bad' = IF w \in past THEN "a word comes back" ELSE bad

---------------------------------------------------------------------------
(* Writers.  A phase is a step, or two where something may come in between. *)

Free(S) == {o \in S : obj[o].st = "free" /\ obj[o].knows = {}}

IsMove(kind) == kind \in {"DEMOTE", "PROMOTE"}

\* Where new objects and Moves in place are allowed.
MayWrite(vn) == vn \in {0, 4} \/ ~Has("writes wait for the sealing")
MayMove(vn)  == vn = 0 \/ (vn \in {1, 2} /\ ~Has("moves wait for the sealing"))

\* In a sealed set a mutant has its copies somewhere else.
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

\* The slot is read, and what is needed is allocated.
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

\* Copy words that are read before the slot, or beside it.
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

\* What a word keeps, as the operation of a session takes it.
KeepsFor(s, w, j) ==
  LET p == op[s].peek IN
  IF w.a # 0 /\ p.a = w.a /\ p.g = w.g /\ IsEven(w.t) /\ ~IsSealed(op[s].vn)
  THEN {Ref(w.a, w.g)} \cup ({p.words[w.t]} \ {None})
  ELSE Keeps(w, op[s].vn, j)

\* It stops before any CAS: a node did not answer, or it has not found what it moves.
Stops(s) == EndsWith(s, op[s].own) /\ UNCHANGED <<memory, bad>>

\* What a write is to do next.
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

\* The copy words for the turn to come, one chunk after the other.
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

\* An own word that stands there already is as good as one that was put there.
CasBackup(s) ==
  /\ op[s].pc = "back"
  /\ IF Backups = 1 /\ back \notin {op[s].old, op[s].new}
     THEN op' = [op EXCEPT ![s].pc = "wait"] /\ UNCHANGED back
     ELSE back' = (IF Backups = 1 THEN op[s].new ELSE back) /\ op' = [op EXCEPT ![s].pc = "prim"]
  /\ queue' = [queue EXCEPT ![s] = @ \cup IF op[s].kind = "DEMOTE" /\ ~Has("copies stay until the commit")
                                          THEN CopiesOf(op[s].old, 2) ELSE {}]
  /\ UNCHANGED <<prim, memory, obj, rd, cmp, others, past, seen, n, bad>>

\* Who loses frees what it has allocated, and nothing else.
LosersFree(s) ==
  (IF Has("losers free their copies") THEN op[s].own ELSE {})
    \cup (IF op[s].kind = "DEMOTE" /\ ~Has("losers leave the old copies") THEN CopiesOf(op[s].old, 2) ELSE {})

\* Whoever replaces a word frees what it kept.  It reads the copy words that tell while it is pinned.
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

\* Its winner may be dead, and is recovered when the set is sealed: it waits on by the newer view.  So does
\* a write whose CAS of the primary has no answer: it is suspended, and finds out later.
WaitsOn(s) ==
  /\ op[s].pc \in {"wait", "prim"} /\ op[s].vn < view.num
  /\ op[s].pc = "wait" => Has("losers wait on")
  /\ op' = [op EXCEPT ![s].vn = view.num]
  /\ UNCHANGED <<prim, back, memory, obj, queue, rd, cmp, others, past, seen, n, bad>>

\* The CAS of the primary executes, and nobody answers it.
Unanswered(s) ==
  /\ op[s].pc = "prim" /\ prim = op[s].old /\ op[s].vn = 0 /\ n.suspended < MaxSuspended
  /\ Shows(op[s].new)
  /\ back' = IF Backups = 1 THEN back ELSE op[s].new
  /\ op' = [op EXCEPT ![s].pc = "unanswered"]
  /\ n' = [n EXCEPT !.suspended = @ + 1]
  /\ UNCHANGED <<memory, obj, queue, rd, cmp, others>>

\* Then the write is suspended, when the view changes.  It is not pinned any more, so whatever it knows is used again; but
\* what it is to free nobody else takes for lost.
Suspend(s) ==
  /\ op[s].pc = "unanswered" /\ op[s].vn < view.num
  /\ op' = [op EXCEPT ![s].pc = "suspended"]
  /\ obj' = [o \in Objects |-> [obj[o] EXCEPT !.knows = @ \ {s}]]
  /\ cmp' = IF Has("suspended writes hold what they free") THEN cmp ELSE [cmp EXCEPT !.ops = @ \ {s}]
  /\ UNCHANGED <<prim, back, memory, queue, rd, others, past, seen, n, bad>>

\* Its word has been chosen, or was replaced before: it frees what that has replaced.
Resolve(s) ==
  /\ op[s].pc = "suspended" /\ view.num = 3
  /\ \E j \in Left : EndsWith(s, IF Has("resolved writes free") THEN Keeps(op[s].old, 3, j) \ Keeps(op[s].new, 3, j)
                                 ELSE {})
  /\ UNCHANGED <<prim, back, memory, rd, others, past, seen, n, bad>>

\* By a view that the session knows.
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
(* A crash, and its recovery.                                              *)

Crash(s) ==
  /\ n.crashes < MaxCrashes /\ op[s].pc # "dead" /\ (op[s].pc # "idle" \/ queue[s] # {})
  /\ op' = [op EXCEPT ![s].pc = "dead"]
  /\ queue' = [queue EXCEPT ![s] = {}]
  /\ n' = [n EXCEPT !.crashes = @ + 1]
  /\ mess' = TRUE /\ cmp' = [cmp EXCEPT !.clean = FALSE]
  /\ UNCHANGED <<prim, back, memory, obj, rd, rep, owner, view, lost, past, seen, bad>>

\* It finds what the dead session had put on the backup: nobody else can take that any more.  A stripe
\* says with which turn it was born.
Recover(s) ==
  /\ op[s].pc = "dead" /\ view.num \in {0, 4}
  /\ IF /\ Backups = 1 /\ back = op[s].new /\ prim = op[s].old /\ back # prim
        /\ ~IsMove(op[s].kind) \/ Has("all turns are looked for")
     THEN Shows(back)
     ELSE UNCHANGED <<prim, past, seen, bad>>
  /\ EndsWith(s, {})
  /\ UNCHANGED <<back, memory, rd, others, n>>

---------------------------------------------------------------------------
(* The comparison of blocks with the index. *)

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

\* Even words are followed to their copies.
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
(* The reader. *)

\* Who has read a chunk before the slot may know a copy that was another Move's.
Hints == UNION {{[w |-> w, c |-> x.c] : x \in {y \in told : /\ y.a = w.a /\ y.g = w.g /\ y.t = w.t
                                                            /\ y.c # None}} : w \in past}

\* With the cached address of a copy, or without.
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

\* The copy counts if the slot shows the word that it belongs to.
Judge(w, v) ==
  IF v # 0 /\ (w = rd.hint.w \/ ~Has("copies count with their word")) THEN Returns(v)
  ELSE /\ rd' = [rd EXCEPT !.pc = "find", !.w = w, !.val = 0]
       /\ UNCHANGED <<seen, obj, bad>>

\* What stands in a copy now, if it is that one.
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

\* What the word leads to: by its data chunks, or, if one of their nodes is silent, by what protects it.
\* Found is the value, 0 if it is not there.
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
(* Blocks are handed on; a damaged chunk is repaired. *)

Other(s) == CHOOSE x \in Writers : x # s

\* Not while the owner writes there or moves in place, nor before it is recovered.
HandOn ==
  /\ n.hands < MaxHandOns /\ view.num \in {0, 4}
  /\ LET o == op[owner] IN
     /\ o.own = {}
     /\ IsMove(o.kind) => IF o.pc = "dead" THEN ~Has("blocks of the dead wait") ELSE ~Has("moves count as writes")
  /\ owner' = Other(owner)
  /\ n' = [n EXCEPT !.hands = @ + 1]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, rep, view, lost, past, seen, mess, bad>>

\* Chunk 2 says what belongs into chunk 1, which is damaged but for its copy words.
BeginRepair ==
  /\ rep = NoRep /\ n.repairs < MaxRepairs /\ lost = "none" /\ view.num = 0
  /\ \E s \in Stripes : data[s].g # 0 /\ rep' = [s |-> s, g |-> data[s].g, words |-> cw[s][2]]
  /\ n' = [n EXCEPT !.repairs = @ + 1]
  /\ UNCHANGED <<prim, back, memory, obj, op, queue, rd, cmp, owner, view, lost, past, seen, mess, bad>>

\* The stripe is still what it was: the repair is pinned.
Repair ==
  /\ rep # NoRep
  /\ rep' = NoRep
  /\ cw' = IF data[rep.s].g = rep.g /\ lost = "none" /\ ~Has("repairs leave copy words")
           THEN [cw EXCEPT ![rep.s][1] = rep.words] ELSE cw
  /\ UNCHANGED <<prim, back, data, told, copy, par, obj, op, queue, rd, cmp, owner, view, lost, past, seen, mess,
                 n, bad>>

---------------------------------------------------------------------------
(* A node is lost, or has to leave; the set is sealed. *)

Lose(m) ==
  /\ m \in CanLose /\ lost = "none" /\ (view.num = 0 \/ m = "data")
  /\ lost' = m
  /\ IF m = "par"
     THEN /\ par' = [par EXCEPT ![1] = [s \in Stripes |-> Nothing]]
          /\ copy' = [c \in Copies |-> Nothing]
     ELSE UNCHANGED <<par, copy>>
  /\ UNCHANGED <<prim, back, data, cw, told, obj, op, queue, rd, cmp, rep, owner, view, past, seen, mess, n, bad>>

\* Parity gets another place, if it was lost there or has to leave.
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

\* A column that leaves is copied as it is.
CopyColumn ==
  /\ view.num = 2 /\ ~view.copied
  /\ view' = [view EXCEPT !.copied = TRUE]
  /\ par' = [par EXCEPT ![2] = par[1]]
  /\ UNCHANGED <<prim, back, data, cw, told, copy, obj, op, queue, rd, cmp, rep, owner, lost, past, seen, mess, n, bad>>

\* The parity of a stripe is made of what can be read of it, if that is its value.
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

\* The copies go, and the place that parity has left.
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

\* Nothing is stuck.
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

\* Nothing is freed twice, or where it has gone; no word comes back; no WRITE goes where memory is another's;
\* a winner is alone.
AsItShould == bad \notin {"freed twice", "freed where copies were", "a word comes back",
                          "a WRITE where copies were", "a WRITE where parity was", "a winner is not alone"}

\* A reader returns what was there while it read.
ReadsWhatWasThere == bad # "a value that was not there"

\* It finds what the slot shows.
FindsTheValue == bad # "a value is not found"

Standing == {prim} \cup (IF Backups = 1 THEN {back} ELSE {})

\* What a word keeps that stands somewhere is not free.
KeptIsUsed ==
  \A w \in Standing, j \in Left : \A r \in Keeps(w, IF lost = "par" THEN 3 ELSE view.num, j) : IsUsed(r)

DataIsGood(w)   == data[w.a] = [g |-> w.g, v |-> w.v]
MainIsGood(w)   == data[w.a].g = w.g /\ \A j \in Left : \E r \in CopiesOf(w, j) : copy[r.o] = [g |-> r.g, v |-> w.v]
ParityIsGood(w) == par[Place(view.num)][w.a] = [g |-> w.g, v |-> w.v]
ProtectionIsGood(w) == IF IsEven(w.t) /\ ~IsSealed(view.num) THEN MainIsGood(w) ELSE ParityIsGood(w)

\* Whatever stands in the slot can be read, also if one more node is lost as long as none is.
CanBeRead ==
  \A w \in {x \in Standing : x.a # 0} :
    /\ lost # "data" => DataIsGood(w)
    /\ lost # "par" \/ IsSealed(view.num) => ProtectionIsGood(w)

\* When nothing runs, what is used is kept, unless somebody died and nobody has compared since.
NothingLeaks ==
  AtRest /\ ~mess /\ (lost = "none" \/ view.num = 4) =>
    \A o \in Objects : obj[o].st = "used" => Ref(o, obj[o].g) \in Keeps(prim, view.num, 2)

\* Then all replicas of the slot are the same.
ReplicasAgree == AtRest => back = prim
=============================================================================
