-------------------------------- MODULE Gate --------------------------------
(***************************************************************************)
(* Between a session and the keeper of its process: why the keeper may     *)
(* acknowledge a view without asking the session's thread.                 *)
(* Code: client/src/logic/gate/moments.rs.                                 *)
(*                                                                         *)
(* One change: view 1 is stable, 2 frozen, 3 transforming, 4 switched,     *)
(* 5 stable.  Every load and every store of the gate is a step; all are    *)
(* sequentially consistent.  The session runs one operation after another, *)
(* and one that began by view 1 may stop.  Change.tla relies on what is    *)
(* checked here (`ActsBy`).                                                *)
(***************************************************************************)
EXTENDS Naturals

CONSTANTS MaxOps, Removed

VARIABLES
  number, oldest, stopped,   \* the gate: the newest view; what the session tells
  pc, by, ops,               \* the session: where it is, by which view, operations begun
  kpc, knum, kold,           \* the keeper: where it is, what it has loaded
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

\* After it has told.  If there is a newer view it tells that, and looks again.
LookBehind ==
  /\ pc = "told"
  /\ IF number > by THEN /\ by' = number
                         /\ oldest' = number
                         /\ UNCHANGED pc
                    ELSE /\ pc' = "acts"
                         /\ UNCHANGED <<by, oldest>>
  /\ UNCHANGED <<number, stopped, ops, keeper, remote>>

\* Mutant: first it looks, then it tells.
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

\* A node does not answer a writer: two stores, that of `stopped` first.
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

\* It looks what became of its write.
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
(* The keeper: publishes, then looks, then acknowledges. *)

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

\* Mutant: it has looked already.
PublishThen ==
  /\ kpc = "publish"
  /\ number' = knum
  /\ kpc' = "stopped"
  /\ UNCHANGED <<oldest, stopped, session, knum, kold, remote>>

\* It looks again and again until it can acknowledge.
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

\* The master waits for acknowledgements of frozen and switched.
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

\* No operation acts by an older view than was acknowledged.
NobodyIsBehind == pc = "acts" => by >= acked

\* Writes go on only when whoever was stopped has found out.
AllHaveFoundOut == current = Stable => pc \notin {"stops", "stopped"}

=============================================================================
