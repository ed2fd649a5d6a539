----------------------------- MODULE ChangeData -----------------------------
(***************************************************************************)
(* What Change.tla leaves out: the replicas of objects while the view      *)
(* changes.  Code: core/src/view/steps.rs, data/ (copying a region),       *)
(* store/{write,search,stopped}.rs, master/src/logic/change.rs.            *)
(*                                                                         *)
(* One region and one slot.  A session WRITEs an object to all replicas of *)
(* its view, one verb each, and then commits its word; what a round of the *)
(* slot does, and how its own replicas become equal, is Change.tla's.      *)
(* Another one READs the slot and then the object, on any replica of its   *)
(* view.  A view may lose a node of the region, which is dead or only cut  *)
(* off from the master, and give it another one; or move a replica.  The   *)
(* master copies objects one by one.  A replica may be damaged, if another *)
(* one of the same object is left.                                         *)
(*                                                                         *)
(* `whole` says where which object is complete.  The memory of a replica   *)
(* that has moved is used for something else when nobody reads there.      *)
(***************************************************************************)
\* Promise CHG-16: A view change keeps the objects with the slots.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Writers, Readers,
  Nodes, Reps0,   \* of these the region has its replicas at the start
  MaxObjects,
  CanDie, CanCut, MaxLost,
  MaxMoves,       \* how often a replica moves while nothing is lost
  MaxDamages,
  Removed

VARIABLES
  view,    \* [num, stage, reps, joining, leaving]
  word,    \* the object that the slot leads to
  whole,   \* <<node, object>>
  ses,     \* session -> [pc, knows, acts, reps, todo, id]
  lost,    \* [dead, cut]
  n,       \* [objects, damages, moves]
  bad      \* a session did not find what its word led to

vars == <<view, word, whole, ses, lost, n, bad>>

Sessions == Writers \cup Readers
Has(what) == what \notin Removed
Idle == [pc |-> "idle", knows |-> 1, acts |-> 0, reps |-> {}, todo |-> {}, id |-> 0]

Init ==
  /\ view = [num |-> 1, stage |-> "ok", reps |-> Reps0, joining |-> {}, leaving |-> {}]
  /\ word = 1
  /\ whole = {<<m, 1>> : m \in Reps0}
  /\ ses = [s \in Sessions |-> Idle]
  /\ lost = [dead |-> {}, cut |-> {}]
  /\ n = [objects |-> 1, damages |-> 0, moves |-> 0]
  /\ bad = FALSE

Spare(m) == m \notin view.reps \cup view.joining \cup view.leaving \cup lost.dead \cup lost.cut

---------------------------------------------------------------------------
(* Sessions. *)

Learn(s) ==
  /\ ses[s].knows < view.num
  /\ ses' = [ses EXCEPT ![s].knows = view.num]
  /\ UNCHANGED <<view, word, whole, lost, n, bad>>

\* New objects are not placed in a region that is changing.  Whoever begins does so by the newest view.
BeginWrite(s) ==
  /\ s \in Writers /\ ses[s].pc = "idle" /\ n.objects < MaxObjects
  /\ ses[s].knows = view.num
  /\ view.stage = "ok" \/ ~Has("writes wait")
  /\ n' = [n EXCEPT !.objects = @ + 1]
  /\ ses' = [ses EXCEPT ![s] = [@ EXCEPT !.pc = "write", !.acts = view.num, !.reps = view.reps,
                                         !.todo = view.reps, !.id = n.objects + 1]]
  /\ UNCHANGED <<view, word, whole, lost, bad>>

\* A WRITE executes.  One to a node that is dead has no answer: the operation stops, and begins again when
\* the view has changed, with another object.
Write(s) ==
  /\ ses[s].pc = "write"
  /\ \E m \in ses[s].todo :
       IF m \in lost.dead
       THEN /\ ses' = [ses EXCEPT ![s].pc = "stopped"]
            /\ UNCHANGED whole
       ELSE /\ ses' = [ses EXCEPT ![s].todo = @ \ {m}]
            /\ whole' = whole \cup {<<m, ses[s].id>>}
  /\ UNCHANGED <<view, word, lost, n, bad>>

Commit(s) ==
  /\ ses[s].pc = "write"
  /\ ses[s].todo = {} \/ (~Has("all replicas are written") /\ ses[s].todo # ses[s].reps)
  /\ word' = ses[s].id
  /\ ses' = [ses EXCEPT ![s] = [Idle EXCEPT !.knows = ses[s].knows]]
  /\ UNCHANGED <<view, whole, lost, n, bad>>

FindOut(s) ==
  /\ ses[s].pc = "stopped" /\ ses[s].knows > ses[s].acts
  /\ ses' = [ses EXCEPT ![s] = [Idle EXCEPT !.knows = ses[s].knows]]
  /\ UNCHANGED <<view, word, whole, lost, n, bad>>

\* The slot, and where the object is read.
BeginRead(s) ==
  /\ s \in Readers /\ ses[s].pc = "idle"
  /\ ses[s].knows = view.num
  /\ ses' = [ses EXCEPT ![s] = [@ EXCEPT !.pc = "read", !.acts = view.num, !.reps = view.reps,
                                         !.id = word]]
  /\ UNCHANGED <<view, word, whole, lost, n, bad>>

\* A damaged replica is another one's turn; one that never got the object is not to be told from it, so
\* somebody has to have it among those that the session can read.
Read(s) ==
  /\ ses[s].pc = "read"
  /\ LET seen == ses[s].reps \ lost.dead IN
     /\ bad' = (bad \/ (seen # {} /\ \A m \in seen : <<m, ses[s].id>> \notin whole))
     /\ ses' = [ses EXCEPT ![s] = [Idle EXCEPT !.knows = ses[s].knows]]
  /\ UNCHANGED <<view, word, whole, lost, n>>

\* It acts by no older view.
Acknowledged(s) == ses[s].knows >= view.num /\ (ses[s].acts = 0 \/ ses[s].acts >= view.num)

---------------------------------------------------------------------------
(* Failures. *)

Losses == Cardinality(lost.dead \cup lost.cut)

\* Something is left of what the slot leads to.
IsSpared(m) == \E x \in view.reps \ (lost.dead \cup lost.cut \cup {m}) : <<x, word>> \in whole

Die(m) ==
  /\ m \in CanDie \ (lost.dead \cup lost.cut) /\ Losses < MaxLost
  /\ m \in view.reps \cup view.joining \cup view.leaving /\ IsSpared(m)
  /\ lost' = [lost EXCEPT !.dead = @ \cup {m}]
  /\ UNCHANGED <<view, word, whole, ses, n, bad>>

Cut(m) ==
  /\ m \in CanCut \ (lost.dead \cup lost.cut) /\ Losses < MaxLost
  /\ m \in view.reps /\ IsSpared(m)
  /\ lost' = [lost EXCEPT !.cut = @ \cup {m}]
  /\ UNCHANGED <<view, word, whole, ses, n, bad>>

\* A bit flips in a replica of a live object.
Damage(m) ==
  /\ n.damages < MaxDamages /\ m \in Reps0 /\ <<m, word>> \in whole
  /\ \E x \in view.reps \ {m} : x \notin lost.dead \cup lost.cut /\ <<x, word>> \in whole
  /\ Losses = 0 /\ MaxLost = 0
  /\ whole' = whole \ {<<m, word>>}
  /\ n' = [n EXCEPT !.damages = @ + 1]
  /\ UNCHANGED <<view, word, ses, lost, bad>>

---------------------------------------------------------------------------
(* The master. *)

\* A member is lost: the view without it, and with another one in its place, if there is one.
Without(m) ==
  /\ m \in (lost.dead \cup lost.cut) \cap (view.reps \cup view.joining \cup view.leaving)
  /\ LET left == view.reps \ {m}
         new  == {x \in view.joining : x # m}
         more == IF m \in view.reps /\ new = {} /\ \E x \in Nodes : Spare(x)
                 THEN {CHOOSE x \in Nodes : Spare(x)} ELSE {}
     IN  view' = [num |-> view.num + 1, stage |-> "frozen", reps |-> left,
                  joining |-> new \cup more,
                  leaving |-> IF view.stage = "switched" THEN view.leaving \ {m}
                              ELSE view.leaving \cap left]
  \* What had been copied to a node that joins is copied again.
  /\ whole' = {x \in whole : x[1] \notin view'.joining}
  /\ UNCHANGED <<word, ses, lost, n, bad>>

Move ==
  /\ view.stage = "ok" /\ n.moves < MaxMoves /\ Losses = 0
  /\ \E from \in view.reps, to \in Nodes :
       /\ Spare(to)
       /\ view' = [view EXCEPT !.num = @ + 1, !.stage = "frozen", !.joining = {to},
                               !.leaving = {from}]
  /\ n' = [n EXCEPT !.moves = @ + 1]
  /\ UNCHANGED <<word, whole, ses, lost, bad>>

Transform ==
  /\ view.stage = "frozen"
  /\ \A s \in Sessions :
       Acknowledged(s) \/ (s \in Writers /\ ~Has("region writers leave first"))
  /\ view' = [view EXCEPT !.num = @ + 1, !.stage = "transforming"]
  /\ UNCHANGED <<word, whole, ses, lost, n, bad>>

\* The object that the slot leads to is copied; what it has damaged, from another replica.
Copy(to) ==
  /\ view.stage = "transforming" /\ to \in view.joining \ lost.dead /\ <<to, word>> \notin whole
  /\ \E from \in view.reps \ lost.dead : <<from, word>> \in whole
  /\ whole' = whole \cup {<<to, word>>}
  /\ UNCHANGED <<view, word, ses, lost, n, bad>>

\* The first replica that is left is what is copied, whatever stands there; but for the mutant all of the
\* object has to be there.
IsCopied ==
  \A to \in view.joining :
    \/ <<to, word>> \in whole
    \/ ~Has("damage is not copied") /\ \E from \in view.reps \ lost.dead : <<from, word>> \notin whole
    \/ ~Has("regions are copied")

Switch ==
  /\ view.stage = "transforming" /\ view.joining \cap lost.dead = {} /\ IsCopied
  /\ view' = [view EXCEPT !.num = @ + 1, !.stage = "switched",
                          !.reps = (@ \ view.leaving) \cup view.joining, !.joining = {}]
  /\ UNCHANGED <<word, whole, ses, lost, n, bad>>

\* The replica that has moved away is released when nobody reads there any more.
Stable ==
  /\ view.stage = "switched"
  /\ (\A s \in Sessions : Acknowledged(s)) \/ ~Has("region readers leave first")
  /\ view' = [view EXCEPT !.num = @ + 1, !.stage = "ok", !.leaving = {}]
  /\ whole' = {x \in whole : x[1] \notin view.leaving}
  /\ UNCHANGED <<word, ses, lost, n, bad>>

---------------------------------------------------------------------------

AtRest == \A s \in Sessions : ses[s].pc = "idle" /\ ses[s].knows = view.num

Next ==
  \/ \E s \in Sessions : \/ Learn(s) \/ BeginWrite(s) \/ Write(s) \/ Commit(s) \/ FindOut(s)
                         \/ BeginRead(s) \/ Read(s)
  \/ \E m \in Nodes : Die(m) \/ Cut(m) \/ Damage(m) \/ Without(m) \/ Copy(m)
  \/ Move \/ Transform \/ Switch \/ Stable
  \/ AtRest /\ view.stage = "ok" /\ UNCHANGED vars

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* Properties. *)

\* Who reads by any view finds what the slot led to.
FindsTheObject == ~bad

\* In a stable view all replicas have what the slot leads to, but those that were damaged.
AllHaveTheObject ==
  view.stage \in {"switched", "ok"} /\ n.damages = 0 =>
    \A m \in view.reps \ lost.dead : <<m, word>> \in whole

\* A replica that joined is whole, whatever was damaged.
JoinedIsWhole ==
  view.stage = "switched" => \A m \in view.reps \ Reps0 : <<m, word>> \in whole

=============================================================================
