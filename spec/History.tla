------------------------------ MODULE History ------------------------------
(***************************************************************************)
(* Decides whether the history so far is linearizable: a monitor that      *)
(* needs no record of the past.                                            *)
(*                                                                         *)
(* For each key it keeps the *frontier*: all pairs of a value (0: absent)  *)
(* and an assignment that explain everything seen so far. The assignment   *)
(* gives to every open operation "not yet" or the answer of its            *)
(* linearization point. An operation may have this point anywhere between  *)
(* its invocation and its return. An operation that never returns (its     *)
(* client crashed) may have it later, or never. An empty frontier means    *)
(* that no order explains the history. This is the subset construction of  *)
(* the just-in-time search in crates/linearizability/src/search.rs, so it  *)
(* is sound and complete for the history that it is shown.                 *)
(*                                                                         *)
(* The monitor is shown more than the answers. In every state an           *)
(* instantaneous reader could read the primary, so the primary's value of  *)
(* a key is treated as the answer of such a SEARCH, in every state.        *)
(* Therefore the value of the key is known while the primary lives, and    *)
(* the frontier is small; and this checks more than any number of SEARCHes *)
(* whose READs are not torn. SEARCHes with torn READs, SEARCHes by an old  *)
(* view, and SEARCHes of backups while the primary is dead are operations  *)
(* of the models.                                                          *)
(*                                                                         *)
(* Invocations are as late and answers as early as the code allows, which  *)
(* makes the check as strict as possible.                                  *)
(***************************************************************************)
EXTENDS Naturals

Open        == <<"open", 0>>      \* invoked; its linearization point is still to come
NoAns       == <<"none", 0>>      \* no operation on this key
Done        == <<"done", 0>>
Exists      == <<"exists", 0>>
Absent      == <<"absent", 0>>
NotApplied  == <<"not applied", 0>>
Buried      == <<"buried", 0>>    \* its client crashed, and recovery has finished its operation
Found(v)    == <<"found", v>>

\* A Move changes no value, and neither does a sweep, which replaces a free word by another. So their linearization points
\* do not matter: the history has only those that end when they begin.
Moves  == {"MOVE", "TURN"}
Unseen == Moves \cup {"SWEEP"}

\* The effect of an operation on a key with value v (0: absent): the new value and the answer.
Effect(op, id, v) ==
  CASE op = "SEARCH" -> <<v, IF v = 0 THEN Absent ELSE Found(v)>>
    [] op = "INSERT" -> IF v = 0 THEN <<id, Done>> ELSE <<v, Exists>>
    [] op = "UPDATE" -> IF v # 0 THEN <<id, Done>> ELSE <<v, Absent>>
    [] op = "DELETE" -> IF v # 0 THEN <<0, Done>> ELSE <<v, Absent>>
    [] op = "UPSERT" -> <<id, Done>>
    [] op \in Moves  -> <<v, IF v = 0 THEN Absent ELSE Done>>
    [] op = "SWEEP"  -> <<v, Done>>

\* All <<value, assignment>> that result from S when open operations have their linearization points. ctx[c] is the
\* operation of client c: a record with op and id.
RECURSIVE Closure(_, _)
Closure(S, ctx) ==
  LET after(p, c) == LET e == Effect(ctx[c].op, ctx[c].id, p[1])
                     IN  <<e[1], [p[2] EXCEPT ![c] = e[2]]>>
      T == S \cup UNION {{after(p, c) : c \in {c \in DOMAIN p[2] : p[2][c] = Open}} : p \in S}
  IN  IF T = S THEN S ELSE Closure(T, ctx)

Observed(F, v) == {p \in F : p[1] = v}

Invoked(F, c) == {<<p[1], [p[2] EXCEPT ![c] = Open]>> : p \in F}

\* "Not applied" claims that the operation never took effect. The operation of a crashed client has taken effect by the
\* end of its recovery, or never will.
Answered(F, c, ans) ==
  LET fits(p) == CASE ans = NotApplied -> p[2][c] = Open
                   [] ans = Buried     -> TRUE
                   [] OTHER            -> p[2][c] = ans
  IN  {<<p[1], [p[2] EXCEPT ![c] = NoAns]>> : p \in {p \in F : fits(p)}}
=============================================================================
