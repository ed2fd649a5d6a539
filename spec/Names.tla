-------------------------------- MODULE Names -------------------------------
(***************************************************************************)
(* Names for the values of constants in .cfg files. A program's name has   *)
(* one letter for each operation, and "_" between clients. For example,    *)
(* ID_I is one client that INSERTs and then DELETEs, and one that INSERTs; *)
(* in UD_UD each client UPDATEs or DELETEs. All operations are on key a; a *)
(* "b" after a letter means key b. U UPDATE, D DELETE, I INSERT, P UPSERT, *)
(* S SEARCH, W any write, E an INSERT or DELETE; M a Move to another       *)
(* place, T a Move in place; X a sweep.                                    *)
(***************************************************************************)
EXTENDS Session, TLC

CONSTANTS a, b   \* keys

SlotSymmetry == Permutations(Slots)

Holding(ks) == {f \in [Slots -> ks \cup {NoKey}] :
                  \A k \in ks : Cardinality({s \in Slots : f[s] = k}) = 1}
Empty == Holding({})
HasA  == Holding({a})
HasB  == Holding({b})
AnyA  == Empty \cup HasA
HasAB == Holding({a, b})
\* One slot shows a withdrawal.
OneLeftover == {f \in [Slots -> {NoKey, Leftover}] : Cardinality({s \in Slots : f[s] = Leftover}) = 1}

Op(name, key) == [op |-> name, key |-> key]
U  == {Op("UPDATE", a)}
D  == {Op("DELETE", a)}
I  == {Op("INSERT", a)}
P  == {Op("UPSERT", a)}
S  == {Op("SEARCH", a)}
Ib == {Op("INSERT", b)}
Db == {Op("DELETE", b)}
Ub == {Op("UPDATE", b)}
M  == {Op("MOVE", a)}
T  == {Op("TURN", a)}
W  == U \cup D \cup I \cup P
E  == I \cup D
X  == {Op("SWEEP", a)}

\* For the constants of models with speculative writes.
Yes       == TRUE
OnAll     == Nodes0            \* objects on the node of every replica of the slots
OnBackups == 1..Backups0
Elsewhere == {Backups0 + 1}
OnMore    == Nodes0 \cup Elsewhere

\* Two clients.
U_U   == <<<<U>>, <<U>>>>
U_D   == <<<<U>>, <<D>>>>
D_D   == <<<<D>>, <<D>>>>
D_I   == <<<<D>>, <<I>>>>
U_S   == <<<<U>>, <<S>>>>
Ib_S  == <<<<Ib>>, <<S>>>>
Ub_Ub == <<<<Ub>>, <<Ub>>>>
U_S_U == <<<<U>>, <<S>>, <<U>>>>
U_SS  == <<<<U>>, <<S, S>>>>
UD_S  == <<<<U \cup D>>, <<S>>>>
U_UU  == <<<<U>>, <<U, U>>>>
UU_U  == <<<<U, U>>, <<U>>>>
UD_U  == <<<<U \cup D>>, <<U>>>>
UD_UD == <<<<U \cup D>>, <<U \cup D>>>>
W_W   == <<<<W>>, <<W>>>>
W_SS  == <<<<W>>, <<S, S>>>>
WW_W  == <<<<W, W>>, <<W>>>>
W_WW  == <<<<W>>, <<W, W>>>>
WW_WW == <<<<W, W>>, <<W, W>>>>
I_I   == <<<<I>>, <<I>>>>
U_Ub  == <<<<U>>, <<Ub>>>>
I_Ib  == <<<<I>>, <<Ib>>>>
I_IU  == <<<<I>>, <<I, U>>>>
ID_I  == <<<<I, D>>, <<I>>>>
DI_IS == <<<<D, I>>, <<I, S>>>>
D_S   == <<<<D>>, <<S>>>>
D_S_S == <<<<D>>, <<S>>, <<S>>>>
D_U   == <<<<D>>, <<U>>>>
D_UD  == <<<<D>>, <<U \cup D>>>>
EE_E  == <<<<E, E>>, <<E>>>>
EE_EE == <<<<E, E>>, <<E, E>>>>

X_X   == <<<<X>>, <<X>>>>
X_I   == <<<<X>>, <<I>>>>
X_ID  == <<<<X>>, <<I, D>>>>
X_IX  == <<<<X>>, <<I, X>>>>
X_XI  == <<<<X>>, <<X, I>>>>
I_IX  == <<<<I>>, <<I, X>>>>
IX_IX == <<<<I, X>>, <<I, X>>>>

M_U   == <<<<M>>, <<U>>>>
U_M   == <<<<U>>, <<M>>>>
MM_U  == <<<<M, M>>, <<U>>>>
M_UD  == <<<<M>>, <<U \cup D>>>>
M_D   == <<<<M>>, <<D>>>>
M_UU  == <<<<M>>, <<U, U>>>>
M_US  == <<<<M>>, <<U, S>>>>
M_M   == <<<<M>>, <<M>>>>
T_U   == <<<<T>>, <<U>>>>
TT_U  == <<<<T, T>>, <<U>>>>
TTT_U == <<<<T, T, T>>, <<U>>>>
TT_UD == <<<<T, T>>, <<U \cup D>>>>
T_UD  == <<<<T>>, <<U \cup D>>>>
TT_UU == <<<<T, T>>, <<U, U>>>>
T_T   == <<<<T>>, <<T>>>>

\* Three clients.
M_U_U  == <<<<M>>, <<U>>, <<U>>>>
M_M_U  == <<<<M>>, <<M>>, <<U>>>>
T_T_U  == <<<<T>>, <<T>>, <<U>>>>
M_U_S  == <<<<M>>, <<U>>, <<S>>>>
U_S_S  == <<<<U>>, <<S>>, <<S>>>>
U_U_U  == <<<<U>>, <<U>>, <<U>>>>
W_W_W  == <<<<W>>, <<W>>, <<W>>>>
X_I_I  == <<<<X>>, <<I>>, <<I>>>>
I_I_X  == <<<<I>>, <<I>>, <<X>>>>
W_W_S  == <<<<W>>, <<W>>, <<S>>>>
I_I_I  == <<<<I>>, <<I>>, <<I>>>>
I_Ib_I == <<<<I>>, <<Ib>>, <<I>>>>
I_I_D  == <<<<I>>, <<I>>, <<D>>>>
=============================================================================
