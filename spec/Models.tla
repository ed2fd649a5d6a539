------------------------------- MODULE Models -------------------------------
(***************************************************************************)
(* Names for what the .cfg files put into the constants.  A program is one *)
(* letter per operation and one word per client; a slash separates         *)
(* clients: "ID_I" is one client that INSERTs and then DELETEs, and one    *)
(* that INSERTs.  Everything is about key a; a "b" after a letter means    *)
(* key b.  U UPDATE, D DELETE, I INSERT, P UPSERT, S SEARCH, W any write.  *)
(***************************************************************************)
EXTENDS Snapshot, TLC

CONSTANTS a, b   \* keys

SlotSymmetry == Permutations(Slots)

Holding(ks) == {f \in [Slots -> ks \cup {NoKey}] :
                  \A k \in ks : Cardinality({s \in Slots : f[s] = k}) = 1}
Empty == Holding({})
HasA  == Holding({a})
HasB  == Holding({b})
Any   == Empty \cup HasA

Op(name, key) == [op |-> name, key |-> key]
U  == {Op("UPDATE", a)}
D  == {Op("DELETE", a)}
I  == {Op("INSERT", a)}
P  == {Op("UPSERT", a)}
S  == {Op("SEARCH", a)}
Ib == {Op("INSERT", b)}
Db == {Op("DELETE", b)}
W  == U \cup D \cup I \cup P
UD == U \cup D
ID == I \cup D

U_U   == <<<<U>>, <<U>>>>
UD_UD == <<<<UD>>, <<UD>>>>
W_W   == <<<<W>>, <<W>>>>
W_W_W == <<<<W>>, <<W>>, <<W>>>>
WW_W  == <<<<W, W>>, <<W>>>>
WW_WW == <<<<W, W>>, <<W, W>>>>
I_I   == <<<<I>>, <<I>>>>
I_Ib  == <<<<I>>, <<Ib>>>>
ID_I  == <<<<I, D>>, <<I>>>>
II_I  == <<<<I>>, <<I>>, <<I>>>>
=============================================================================
