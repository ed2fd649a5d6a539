-------------------------------- MODULE Names -------------------------------
(***************************************************************************)
(* Names for what the .cfg files put into the constants.  A program is one *)
(* letter per operation, clients separated by "_": ID_I is one client that *)
(* INSERTs and then DELETEs, and one that INSERTs.  UD_UD: each client     *)
(* UPDATEs or DELETEs.  Everything is about key a; a "b" after a letter    *)
(* means key b.  U UPDATE, D DELETE, I INSERT, P UPSERT, S SEARCH, W any   *)
(* write.                                                                  *)
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

Op(name, key) == [op |-> name, key |-> key]
U  == {Op("UPDATE", a)}
D  == {Op("DELETE", a)}
I  == {Op("INSERT", a)}
P  == {Op("UPSERT", a)}
S  == {Op("SEARCH", a)}
Ib == {Op("INSERT", b)}
Db == {Op("DELETE", b)}
Ub == {Op("UPDATE", b)}
W  == U \cup D \cup I \cup P

\* For the constants of models in which somebody speculates.
Yes       == TRUE
OnAll     == Nodes0            \* objects beside every replica of the slots
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

\* Three clients.
U_S_S  == <<<<U>>, <<S>>, <<S>>>>
U_U_U  == <<<<U>>, <<U>>, <<U>>>>
W_W_W  == <<<<W>>, <<W>>, <<W>>>>
W_W_S  == <<<<W>>, <<W>>, <<S>>>>
I_I_I  == <<<<I>>, <<I>>, <<I>>>>
I_Ib_I == <<<<I>>, <<Ib>>, <<I>>>>
I_I_D  == <<<<I>>, <<I>>, <<D>>>>
=============================================================================
