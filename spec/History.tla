------------------------------ MODULE History ------------------------------
(***************************************************************************)
(* Is the history so far linearizable?  A monitor that forgets the past.   *)
(*                                                                         *)
(* For each key it keeps the *frontier*: all pairs of a value (0: absent)  *)
(* and an assignment, to every open operation, of "not yet" or of the      *)
(* answer it got at its instant, that explain everything seen so far.  An operation may have    *)
(* its instant anywhere between its invocation and its return; one that    *)
(* never returns (its client crashed) may have one later, or never.  An    *)
(* empty frontier means: no order explains this history.  This is the      *)
(* subset construction of the just-in-time search in                       *)
(* crates/sim/src/linearizability.rs, hence sound and complete for what it *)
(* is shown.                                                               *)
(*                                                                         *)
(* It is shown more than the answers: in every state somebody could read   *)
(* the primary in an instant, so the primary's value of a key is taken to  *)
(* be the answer of such a SEARCH, in every state.  That makes the value   *)
(* of the key a known quantity while the primary lives, keeps the frontier *)
(* small, and checks more than any number of SEARCHes whose READs do not   *)
(* tear.  SEARCHes with torn READs, of an old view, or of backups while    *)
(* the primary is dead are operations of the models.                       *)
(*                                                                         *)
(* Invocations are as late and answers as early as the code allows, which  *)
(* makes the check as strict as possible.                                  *)
(***************************************************************************)
EXTENDS Naturals

Open        == <<"open", 0>>      \* invoked, its instant is still to come
NoAns       == <<"none", 0>>      \* no operation on this key
Done        == <<"done", 0>>
Exists      == <<"exists", 0>>
Absent      == <<"absent", 0>>
NotApplied  == <<"not applied", 0>>
Buried      == <<"buried", 0>>    \* its client crashed, and recovery is through with it
Found(v)    == <<"found", v>>

\* They change no value, so nobody asks when: the history has those only that end as they begin.
Moves == {"MOVE", "TURN"}

\* The instant of an operation on a key with value v (0: absent): new value, answer.
Effect(op, id, v) ==
  CASE op = "SEARCH" -> <<v, IF v = 0 THEN Absent ELSE Found(v)>>
    [] op = "INSERT" -> IF v = 0 THEN <<id, Done>> ELSE <<v, Exists>>
    [] op = "UPDATE" -> IF v # 0 THEN <<id, Done>> ELSE <<v, Absent>>
    [] op = "DELETE" -> IF v # 0 THEN <<0, Done>> ELSE <<v, Absent>>
    [] op = "UPSERT" -> <<id, Done>>
    [] op \in Moves  -> <<v, IF v = 0 THEN Absent ELSE Done>>

\* All <<value, assignment>> that come of S by giving open operations their instants.
\* ctx[c] is the operation of client c: a record with op and id.
RECURSIVE Closure(_, _)
Closure(S, ctx) ==
  LET after(p, c) == LET e == Effect(ctx[c].op, ctx[c].id, p[1])
                     IN  <<e[1], [p[2] EXCEPT ![c] = e[2]]>>
      T == S \cup UNION {{after(p, c) : c \in {c \in DOMAIN p[2] : p[2][c] = Open}} : p \in S}
  IN  IF T = S THEN S ELSE Closure(T, ctx)

Observed(F, v) == {p \in F : p[1] = v}

Invoked(F, c) == {<<p[1], [p[2] EXCEPT ![c] = Open]>> : p \in F}

\* "Not applied" claims that the operation never took effect.  A crashed one has taken effect by
\* the end of its recovery, or never will.
Answered(F, c, ans) ==
  LET fits(p) == CASE ans = NotApplied -> p[2][c] = Open
                   [] ans = Buried     -> TRUE
                   [] OTHER            -> p[2][c] = ans
  IN  {<<p[1], [p[2] EXCEPT ![c] = NoAns]>> : p \in {p \in F : fits(p)}}
=============================================================================
