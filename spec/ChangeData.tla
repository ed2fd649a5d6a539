----------------------------- MODULE ChangeData -----------------------------
(***************************************************************************)
(* The replicas of objects while the view changes, which Change.tla leaves *)
(* out. Code: core/src/view/steps.rs, core/src/data/ (copying a region),   *)
(* core/src/store/write/, search.rs and session/resolve.rs,                *)
(* master/src/logic/change.rs.                                             *)
(*                                                                         *)
(* There is one region and one slot. A writer WRITEs an object to all      *)
(* replicas of its view, by one verb each, and then commits the object's   *)
(* word. Change.tla has the round of the slot, and how the slot's replicas *)
(* become equal. A reader READs the slot and then the object, on any       *)
(* replica of its view. A view may lose a node of the region, which is     *)
(* dead or only cut off from the master, and give the region another node; *)
(* or a replica may move. The master copies objects one by one. A replica  *)
(* may be damaged if another whole replica of the object is left.          *)
(*                                                                         *)
(* `whole` has the places at which an object is complete. The memory of a  *)
(* replica that has moved away is used for something else once no session  *)
(* reads there.                                                            *)
(***************************************************************************)
\* Promise CHG-16: A view change keeps the objects with the slots.
EXTENDS Naturals, FiniteSets

CONSTANTS
  Writers, Readers,
  Nodes, Reps0,   \* at the start the region has replicas on Reps0
  MaxObjects,
  CanDie, CanCut, MaxLost,
  MaxMoves,       \* how often a replica moves while no node is lost
  MaxDamages,
  Removed

VARIABLES
  view,    \* [num, stage, reps, joining, leaving]
  word,    \* the object that the slot leads to
  whole,   \* <<node, object>>
  ses,     \* session -> [pc, knows, acts, reps, todo, id]
  lost,    \* [dead, cut]: nodes that crashed; nodes that are only cut off
  n,       \* [objects, damages, moves]
  bad      \* a session did not find the object of its word

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

\* New objects are not placed in a region that is changing. An operation begins by the newest view.
BeginWrite(s) ==
  /\ s \in Writers /\ ses[s].pc = "idle" /\ n.objects < MaxObjects
  /\ ses[s].knows = view.num
  /\ view.stage = "ok" \/ ~Has("writes wait")
  /\ n' = [n EXCEPT !.objects = @ + 1]
  /\ ses' = [ses EXCEPT ![s] = [@ EXCEPT !.pc = "write", !.acts = view.num, !.reps = view.reps,
                                         !.todo = view.reps, !.id = n.objects + 1]]
  /\ UNCHANGED <<view, word, whole, lost, bad>>

\* A WRITE executes. A WRITE to a dead node has no answer: the operation stops, and begins again with another object
\* when the view has changed.
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

\* The session READs the slot, and notes where it will READ the object.
BeginRead(s) ==
  /\ s \in Readers /\ ses[s].pc = "idle"
  /\ ses[s].knows = view.num
  /\ ses' = [ses EXCEPT ![s] = [@ EXCEPT !.pc = "read", !.acts = view.num, !.reps = view.reps,
                                         !.id = word]]
  /\ UNCHANGED <<view, word, whole, lost, n, bad>>

\* If a replica is damaged, another one is read. A replica that never got the object looks like a damaged one, so one of
\* the replicas that the session can read must have the object.
Read(s) ==
  /\ ses[s].pc = "read"
  /\ LET seen == ses[s].reps \ lost.dead IN
     /\ bad' = (bad \/ (seen # {} /\ \A m \in seen : <<m, ses[s].id>> \notin whole))
     /\ ses' = [ses EXCEPT ![s] = [Idle EXCEPT !.knows = ses[s].knows]]
  /\ UNCHANGED <<view, word, whole, lost, n>>

\* The session acts by no older view.
Acknowledged(s) == ses[s].knows >= view.num /\ (ses[s].acts = 0 \/ ses[s].acts >= view.num)

---------------------------------------------------------------------------
(* Failures. *)

Losses == Cardinality(lost.dead \cup lost.cut)

\* A whole replica of the slot's object is left without node m.
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

\* A bit flips in a replica of the live object.
Damage(m) ==
  /\ n.damages < MaxDamages /\ m \in Reps0 /\ <<m, word>> \in whole
  /\ \E x \in view.reps \ {m} : x \notin lost.dead \cup lost.cut /\ <<x, word>> \in whole
  /\ Losses = 0 /\ MaxLost = 0
  /\ whole' = whole \ {<<m, word>>}
  /\ n' = [n EXCEPT !.damages = @ + 1]
  /\ UNCHANGED <<view, word, ses, lost, bad>>

---------------------------------------------------------------------------
(* The master. *)

\* The view without a lost member, and with another node in its place, if there is one.
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
  \* The contents of a node that joins are copied anew.
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

\* The slot's object is copied. If one replica is damaged, another one is the source.
Copy(to) ==
  /\ view.stage = "transforming" /\ to \in view.joining \ lost.dead /\ <<to, word>> \notin whole
  /\ \E from \in view.reps \ lost.dead : <<from, word>> \in whole
  /\ whole' = whole \cup {<<to, word>>}
  /\ UNCHANGED <<view, word, ses, lost, n, bad>>

\* The condition for a complete copy. The mutant copies from the first remaining replica, whatever its contents are;
\* without the mutant the object must be whole.
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

\* The replica that has moved away is released when no session reads there.
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

\* A session at any view finds the object of the slot's word.
FindsTheObject == ~bad

\* In a stable view all replicas have the slot's object, except damaged ones.
AllHaveTheObject ==
  view.stage \in {"switched", "ok"} /\ n.damages = 0 =>
    \A m \in view.reps \ lost.dead : <<m, word>> \in whole

\* A replica that has joined has the slot's object, even if another one was damaged.
JoinedIsWhole ==
  view.stage = "switched" => \A m \in view.reps \ Reps0 : <<m, word>> \in whole

=============================================================================
