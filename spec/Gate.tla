-------------------------------- MODULE Gate --------------------------------
(***************************************************************************)
(* A session and the keeper of its process: why the keeper may acknowledge *)
(* a view without asking the session's thread.                             *)
(* Code: client/src/logic/gate/local_epochs.rs.                            *)
(*                                                                         *)
(* There is one change: view 1 is stable, 2 frozen, 3 transforming, 4      *)
(* switched, 5 stable. Every load and every store of the gate is a step;   *)
(* all of them are sequentially consistent. The session runs one operation *)
(* after another, and suspends an operation only if it began by view 1.    *)
(* Change.tla relies on the result (`ActsBy`).                             *)
(***************************************************************************)
EXTENDS Naturals

CONSTANTS MaxOps, Removed

VARIABLES
  number, oldest, stopped,   \* the gate: the newest view; what the session has stored
  pc, by, ops,               \* the session: its step, the view it acts by, the operations begun
  kpc, knum, kold,           \* the keeper: its step, and the values it has loaded
  current, acked             \* the master: the newest view; the newest acknowledged one

vars    == <<number, oldest, stopped, pc, by, ops, kpc, knum, kold, current, acked>>
gate    == <<number, oldest, stopped>>
session == <<pc, by, ops>>
keeper  == <<kpc, knum, kold>>
remote  == <<current, acked>>

Idle     == 99
Frozen   == 2
Switched == 4
Stable   == 5
Min(x, y) == IF x < y THEN x ELSE y

TellFirst == "tell, then look" \notin Removed

Init == /\ number = 1 /\ oldest = Idle /\ stopped = FALSE
        /\ pc = "idle" /\ by = 1 /\ ops = 0
        /\ kpc = "rest" /\ knum = 1 /\ kold = Idle
        /\ current = 1 /\ acked = 1

---------------------------------------------------------------------------
(* The session. *)

Begin ==
  /\ pc = "idle" /\ ops < MaxOps
  /\ ops' = ops + 1
  /\ IF TellFirst THEN /\ oldest' = by
                       /\ pc' = "told"
                  ELSE /\ UNCHANGED oldest
                       /\ pc' = "look"
  /\ UNCHANGED <<number, stopped, by, keeper, remote>>

\* The session has stored the view it acts by. If there is a newer view by now, the session stores that one, and looks
\* again.
LookBehind ==
  /\ pc = "told"
  /\ IF number > by THEN /\ by' = number
                         /\ oldest' = number
                         /\ UNCHANGED pc
                    ELSE /\ pc' = "acts"
                         /\ UNCHANGED <<by, oldest>>
  /\ UNCHANGED <<number, stopped, ops, keeper, remote>>

\* Mutant: the session loads the view's number before it stores the view it acts by.
LookFirst ==
  /\ pc = "look"
  /\ by' = number
  /\ pc' = "tell"
  /\ UNCHANGED <<gate, ops, keeper, remote>>

TellThen ==
  /\ pc = "tell"
  /\ oldest' = by
  /\ pc' = "acts"
  /\ UNCHANGED <<number, stopped, by, ops, keeper, remote>>

End ==
  /\ pc = "acts"
  /\ oldest' = Idle
  /\ pc' = "idle"
  /\ UNCHANGED <<number, stopped, by, ops, keeper, remote>>

\* A node does not answer a writer, which suspends its write by two stores. The store to `stopped` comes first.
Stop ==
  /\ pc = "acts" /\ by = 1
  /\ IF "stopped is told first" \in Removed THEN oldest' = Idle /\ UNCHANGED stopped
                                            ELSE stopped' = TRUE /\ UNCHANGED oldest
  /\ pc' = "stops"
  /\ UNCHANGED <<number, by, ops, keeper, remote>>

Stopped ==
  /\ pc = "stops"
  /\ oldest' = Idle /\ stopped' = TRUE
  /\ pc' = "stopped"
  /\ UNCHANGED <<number, by, ops, keeper, remote>>

\* The session searches for the result of its suspended write.
FindOut ==
  /\ pc = "stopped" /\ number >= Switched
  /\ pc' = "found out"
  /\ by' = number
  /\ UNCHANGED <<gate, ops, keeper, remote>>

FoundOut ==
  /\ pc = "found out"
  /\ stopped' = FALSE
  /\ pc' = "idle"
  /\ UNCHANGED <<number, oldest, by, ops, keeper, remote>>

---------------------------------------------------------------------------
(* The keeper: publishes, then looks, then acknowledges.                   *)

Publish ==
  /\ kpc = "rest" /\ number < current
  /\ IF "publish, then look" \in Removed
     THEN /\ kold' = oldest /\ knum' = current
          /\ kpc' = "publish"
          /\ UNCHANGED number
     ELSE /\ number' = current
          /\ kpc' = "number"
          /\ UNCHANGED <<kold, knum>>
  /\ UNCHANGED <<oldest, stopped, session, remote>>

\* Mutant: the keeper has loaded `oldest` already.
PublishThen ==
  /\ kpc = "publish"
  /\ number' = knum
  /\ kpc' = "stopped"
  /\ UNCHANGED <<oldest, stopped, session, knum, kold, remote>>

\* The keeper looks again and again until it can acknowledge.
Pulse ==
  /\ kpc = "rest" /\ acked < number
  /\ kpc' = "number"
  /\ UNCHANGED <<gate, session, knum, kold, remote>>

LoadNumber ==
  /\ kpc = "number"
  /\ knum' = number /\ kpc' = "oldest"
  /\ UNCHANGED <<gate, session, kold, remote>>

LoadOldest ==
  /\ kpc = "oldest"
  /\ kold' = oldest /\ kpc' = "stopped"
  /\ UNCHANGED <<gate, session, knum, remote>>

LoadStopped ==
  /\ kpc = "stopped"
  /\ acked' = IF Min(kold, knum) >= knum /\ ~(knum = Switched /\ stopped) THEN knum ELSE acked
  /\ kpc' = "rest" /\ knum' = 1 /\ kold' = Idle
  /\ UNCHANGED <<gate, session, current>>

---------------------------------------------------------------------------

\* The master waits until the frozen view and the switched one are acknowledged.
Advance ==
  /\ current < Stable
  /\ current \in {Frozen, Switched} => acked >= current
  /\ current' = current + 1
  /\ UNCHANGED <<gate, session, keeper, acked>>

Terminated == /\ pc = "idle" /\ ops = MaxOps /\ current = Stable /\ acked = Stable
              /\ kpc = "rest"
              /\ UNCHANGED vars

Next == \/ Begin \/ LookBehind \/ LookFirst \/ TellThen \/ End
        \/ Stop \/ Stopped \/ FindOut \/ FoundOut
        \/ Publish \/ PublishThen \/ Pulse \/ LoadNumber \/ LoadOldest \/ LoadStopped
        \/ Advance \/ Terminated

Spec == Init /\ [][Next]_vars

\* No operation acts by a view older than an acknowledged one.
NobodyIsBehind == pc = "acts" => by >= acked

\* Writes go on only after each suspended write has found its result.
AllHaveFoundOut == current = Stable => pc \notin {"stops", "stopped"}

=============================================================================
