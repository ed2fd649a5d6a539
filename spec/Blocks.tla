------------------------------- MODULE Blocks -------------------------------
(***************************************************************************)
(* Blocks of many sizes: when blocks are split, merged, and used again, no *)
(* word recurs within a window of epochs.                                  *)
(* Why: decision 0067.                                                     *)
(*                                                                         *)
(* A region is one block, the *whole*, or two halves. The table of its     *)
(* primary has the base of each free block: the generation with which all  *)
(* objects of the next tenure begin. An owner gets the base with the block *)
(* and returns the block with another base. Halves inherit the base of the *)
(* block that was split. Merged halves keep a base that both have; without *)
(* one, the merged block is *mixed*: whoever gets it waits a whole window. *)
(*                                                                         *)
(* `Generations` models a tenure in detail. Here a life of an object is    *)
(* one step: the object is allocated, and no slot shows its word any more. *)
(* (For a word that recurs, take the end of its first life and the start   *)
(* of its next.) A new owner learns from headers how many lives each       *)
(* object has had, because there are not too many (`Most`).                *)
(*                                                                         *)
(* A backup has a table and headers, too. It learns of a split or a merger *)
(* when it records the owner of a block. The primary may be lost; then the *)
(* backup is the primary.                                                  *)
(*                                                                         *)
(* A word is an address and a generation, modulo G. The word `watched` is  *)
(* chosen at the start; `since` counts the epochs in which `watched` has   *)
(* been nowhere, up to Window. No step is decided by these two variables,  *)
(* nor by `bad`.                                                           *)
(***************************************************************************)
\* Promise MEM-24
EXTENDS Naturals, FiniteSets

CONSTANTS
  G,         \* the number of generations
  Spread,    \* how far the generations of a tenure's objects may be apart if its end has a base
  Window,    \* the number of epochs in which a word must not recur
  Most,      \* lives of an object in a tenure
  Left,      \* the addresses of the left half's objects
  Backups,   \* 0 or 1
  MaxDeaths,
  Removed

\* So no block is `wrapped`, and headers tell all lives.
ASSUME Most <= G - 1 - Spread /\ Backups \in {0, 1} /\ 1 \in Left /\ Left \subseteq {1, 2}

VARIABLES
  whole,     \* on the primary, the region is one block
  phase,     \* block -> its phase, or none: the block is not there
  table,     \* on the primary: block -> the base with which it is free, or with which it was granted
  head,      \* on the primary: block -> the base in its header, or None
  backup,    \* whole, table and head of the backup, and whether it is there
  ready,     \* block -> the epochs until it may be used, or returned
  lives,     \* address -> lives of the object after the base
  waited,    \* addresses whose former objects no session knows any more
  deaths,
  watched, since, bad

pool  == <<whole, phase, table, head>>
word  == <<watched, since, bad>>
vars  == <<pool, backup, ready, lives, waited, deaths, word>>

None     == G
Mixed    == G
\* The phases of a block are: pool; asked: only the primary has recorded the owner; granted: both nodes have; use: the
\* block has a header; zeroing; returning: only the backup has recorded the block as free; taken: another owner has the
\* block of a dead one, and has not written a header yet.
\* A block has the number of its first unit. Of the objects of the whole, one begins at an address of each half.
Units    == {1, 2}
Halves   == <<Left, {3}>>
Addrs    == Halves[1] \cup Halves[2]
Blocks   == IF whole THEN {1} ELSE Units
Inside(b) == IF whole THEN Addrs ELSE Halves[b]
Starts(b) == IF whole THEN {1, 3} ELSE Halves[b]
Has(what) == what \notin Removed
Max(S)   == CHOOSE x \in S : \A y \in S : x >= y
Min(S)   == CHOOSE x \in S : \A y \in S : x <= y

Init ==
  /\ whole = TRUE
  /\ phase = [b \in Units |-> IF b = 1 THEN "pool" ELSE "none"]
  /\ table = [b \in Units |-> 0] /\ head = [b \in Units |-> None]
  /\ backup = [there |-> Backups = 1, whole |-> TRUE, table |-> table, head |-> head]
  /\ ready = [b \in Units |-> 0]
  /\ lives = [a \in Addrs |-> 0] /\ waited = Addrs
  /\ deaths = 0
  /\ watched \in {<<a, g>> : a \in Addrs, g \in 0..(G - 1)}
  /\ since = Window /\ bad = FALSE

Tick ==
  /\ since' = IF since < Window THEN since + 1 ELSE since
  /\ waited' = Addrs
  /\ ready' = [b \in Units |-> IF ready[b] > 0 THEN ready[b] - 1 ELSE 0]
  /\ UNCHANGED <<pool, backup, lives, deaths, watched, bad>>

Split ==
  /\ whole /\ phase[1] = "pool"
  /\ whole' = FALSE
  /\ phase' = [b \in Units |-> "pool"]
  /\ table' = [b \in Units |-> IF Has("halves inherit the base") THEN table[1] ELSE 0]
  /\ UNCHANGED <<head, backup, ready, lives, waited, deaths, word>>

\* Bases are modulo G, so only for bases that are close to each other it is sure which one is the larger.
Larger(one, other) == CASE (one + 1) % G = other -> other
                        [] (other + 1) % G = one -> one
                        [] OTHER -> Mixed

Merged(one, other) ==
  CASE one = other -> one
    [] one # other /\ Mixed \in {one, other} -> Mixed
    [] OTHER -> IF Has("merged takes no larger base") THEN Mixed ELSE Larger(one, other)

Merge ==
  /\ ~whole /\ \A b \in Units : phase[b] = "pool"
  /\ whole' = TRUE
  /\ phase' = [phase EXCEPT ![2] = "none"]
  /\ table' = [table EXCEPT ![1] = Merged(table[1], table[2]), ![2] = 0]
  /\ UNCHANGED <<head, backup, ready, lives, waited, deaths, word>>

Wait(base) == IF base = Mixed /\ Has("mixed blocks wait") THEN Window ELSE 0

\* The primary records a session as owner, and answers.
Grant(b) ==
  /\ phase[b] = "pool"
  /\ phase' = [phase EXCEPT ![b] = IF backup.there THEN "asked" ELSE "granted"]
  /\ ready' = [ready EXCEPT ![b] = Wait(table[b])]
  /\ UNCHANGED <<whole, table, head, backup, lives, waited, deaths, word>>

\* The backup records the owner. All blocks that are free on the primary are free on the backup, so the backup can merge
\* them, too. If the backup has to split a block, the other half inherits the base in the backup's table.
Record(b) ==
  /\ phase[b] = "asked"
  /\ phase' = [phase EXCEPT ![b] = "granted"]
  /\ LET old   == backup.table
         halves == IF backup.whole THEN [h \in Units |-> old[1]] ELSE old
         new   == IF whole THEN [h \in Units |-> 0] ELSE halves
     IN backup' = [backup EXCEPT !.whole = whole, !.table = [new EXCEPT ![b] = table[b]]]
  /\ UNCHANGED <<whole, table, head, ready, lives, waited, deaths, word>>

\* The owner takes the block into use. The header is written before the first object.
Use(b) ==
  /\ phase[b] = "granted" /\ ready[b] = 0
  /\ phase' = [phase EXCEPT ![b] = "use"]
  /\ LET base == IF table[b] = Mixed THEN 0 ELSE table[b]
     IN /\ head' = [head EXCEPT ![b] = base]
        /\ backup' = IF backup.there THEN [backup EXCEPT !.head[b] = base] ELSE backup
  /\ UNCHANGED <<whole, table, ready, lives, waited, deaths, word>>

\* The next owner of a dead owner's block writes its own header.
UseTaken(b) ==
  /\ phase[b] = "taken"
  /\ phase' = [phase EXCEPT ![b] = "use"]
  /\ backup' = IF backup.there THEN [backup EXCEPT !.head[b] = head[b]] ELSE backup
  /\ UNCHANGED <<whole, table, head, ready, lives, waited, deaths, word>>

\* An object is allocated and freed.
Live(b, a) ==
  /\ phase[b] = "use" /\ ready[b] = 0
  /\ a \in Starts(b) \cap waited /\ lives[a] < Most
  /\ LET this == <<a, (head[b] + lives[a]) % G>>
     IN /\ bad' = (bad \/ (this = watched /\ since < Window))
        /\ since' = IF this = watched THEN 0 ELSE since
  /\ lives' = [lives EXCEPT ![a] = @ + 1]
  /\ waited' = waited \ {a}
  /\ UNCHANGED <<pool, backup, ready, deaths, watched>>

Used(b)   == {lives[a] : a \in {x \in Starts(b) : lives[x] > 0}}
Narrow(b) == Used(b) = {} \/ Max(Used(b)) - Min(Used(b)) <= Spread
Latest(b) == IF Used(b) = {} THEN 0 ELSE Max(Used(b))

\* The whole block is free. The owner writes the next base into the header, and begins to write zeros. A tenure that has
\* no base at its end waits.
BeginReturn(b) ==
  /\ phase[b] = "use" /\ ready[b] = 0
  /\ phase' = [phase EXCEPT ![b] = "zeroing"]
  /\ LET next == IF Narrow(b) THEN (head[b] + Latest(b)) % G ELSE head[b]
     IN /\ head' = [head EXCEPT ![b] = next]
        /\ backup' = IF backup.there THEN [backup EXCEPT !.head[b] = next] ELSE backup
  /\ ready' = [ready EXCEPT ![b] = IF Narrow(b) THEN 0 ELSE Window]
  /\ lives' = [a \in Addrs |-> IF a \in Inside(b) THEN 0 ELSE lives[a]]
  /\ waited' = waited \ Inside(b)
  /\ UNCHANGED <<whole, table, deaths, word>>

Returned(bases, b) == IF Has("the base is returned") THEN [bases EXCEPT ![b] = head[b]] ELSE bases
Zeroed(heads, b)   == IF Has("free headers are zeros") THEN [heads EXCEPT ![b] = None] ELSE heads

\* The block is zeros, and no running operation has seen its objects. The backup records it as free before the primary
\* does.
ReturnToBackup(b) ==
  /\ phase[b] = "zeroing" /\ ready[b] = 0 /\ Inside(b) \subseteq waited /\ backup.there
  /\ phase' = [phase EXCEPT ![b] = "returning"]
  /\ backup' = [backup EXCEPT !.table = Returned(@, b), !.head = Zeroed(@, b)]
  /\ UNCHANGED <<whole, table, head, ready, lives, waited, deaths, word>>

ReturnToPrimary(b) ==
  /\ \/ phase[b] = "returning"
     \/ phase[b] = "zeroing" /\ ready[b] = 0 /\ Inside(b) \subseteq waited /\ ~backup.there
  /\ phase' = [phase EXCEPT ![b] = "pool"]
  /\ table' = Returned(table, b) /\ head' = Zeroed(head, b)
  /\ UNCHANGED <<whole, backup, ready, lives, waited, deaths, word>>

\* The owner dies. A block without a header goes back to the pool, with the base in the table. Another owner takes over
\* a block that has a header, and reads it; the tables name the new owner.
Die(b) ==
  /\ phase[b] \notin {"pool", "none"} /\ deaths < MaxDeaths
  /\ deaths' = deaths + 1
  /\ IF head[b] = None
     THEN /\ phase' = [phase EXCEPT ![b] = "pool"]
          /\ ready' = [ready EXCEPT ![b] = 0]
          /\ table' = IF table[b] = Mixed /\ ~Has("a mixed block stays mixed when its owner dies")
                      THEN [table EXCEPT ![b] = 0] ELSE table
          /\ UNCHANGED <<backup, waited>>
     ELSE /\ phase' = [phase EXCEPT ![b] = IF backup.there THEN "taken" ELSE "use"]
          \* Only a header that says so makes the next owner wait.
          /\ ready' = [ready EXCEPT ![b] = IF phase[b] \in {"asked", "granted"} THEN 0 ELSE @]
          /\ waited' = waited \ Inside(b)
          /\ backup' = IF backup.there /\ ~Has("hand-overs leave the bases")
                       THEN [backup EXCEPT !.table[b] = table[b]] ELSE backup
          /\ UNCHANGED table
  /\ UNCHANGED <<whole, head, lives, word>>

\* The primary is lost. Sessions ask again for blocks whose owner the backup has not recorded.
Lose ==
  /\ backup.there
  /\ backup' = [backup EXCEPT !.there = FALSE, !.whole = TRUE, !.table = [b \in Units |-> 0],
                              !.head = [b \in Units |-> None]]
  /\ whole' = backup.whole /\ table' = backup.table /\ head' = backup.head
  /\ LET after(b) ==
           CASE backup.whole /\ b = 2 -> "none"
             [] backup.whole # whole \/ phase[b] \in {"pool", "asked", "returning"} -> "pool"
             \* A block that was handed over, and has no header, is as if it were granted.
             [] phase[b] = "taken" -> IF backup.head[b] = None THEN "granted" ELSE "use"
             [] OTHER -> phase[b]
     IN /\ phase' = [b \in Units |-> after(b)]
        /\ ready' = [b \in Units |-> CASE after(b) \in {"pool", "none"} -> 0
                                       [] phase[b] = "taken" /\ after(b) = "granted" -> Wait(backup.table[b])
                                       [] OTHER -> ready[b]]
  /\ UNCHANGED <<lives, waited, deaths, word>>

Next ==
  \/ Tick \/ Split \/ Merge \/ Lose
  \/ \E b \in Blocks :
       \/ Grant(b) \/ Record(b) \/ Use(b) \/ UseTaken(b)
       \/ BeginReturn(b) \/ ReturnToBackup(b) \/ ReturnToPrimary(b) \/ Die(b)
       \/ \E a \in Addrs : Live(b, a)

Spec == Init /\ [][Next]_vars

\* The states that a model tells apart if nothing is removed: the base in a table does not matter while the same replica
\* has a header, because the base of the next tenure takes its place first.
Matters(bases, heads) == [b \in Units |-> IF heads[b] = None THEN bases[b] ELSE 0]
View == <<whole, phase, Matters(table, head), head, [backup EXCEPT !.table = Matters(@, backup.head)],
          ready, lives, waited, deaths, word>>

\* No word recurs within the window.
NoWordRecurs == ~bad
=============================================================================
