---------------------------- MODULE Generations ----------------------------
(***************************************************************************)
(* Generations never restart: no word recurs within a window of epochs.    *)
(* Code: core/src/slab/generations.rs, core/src/slab.rs,                   *)
(* core/src/store/memory/reclaim.rs, core/src/layout/block.rs.             *)
(*                                                                         *)
(* There is one block. It is used in *tenures*: in each, its objects have  *)
(* one size class, and begin at the addresses `Starts[class]`. A tenure    *)
(* ends when the whole block is free: the block is overwritten with zeros, *)
(* waits, and goes back to the pool, which hands it out again for any      *)
(* class. An owner may die during a tenure; the next owner reads from      *)
(* memory what it needs.                                                   *)
(*                                                                         *)
(* A word is an address and a generation, modulo G. The word `watched` is  *)
(* chosen at the start; `since` counts the epochs in which `watched` has   *)
(* been nowhere, up to Window. No step is decided by these two variables,  *)
(* nor by `bad`.                                                           *)
(*                                                                         *)
(* Another master may continue with epochs that are far ahead. Some        *)
(* sessions learn these epochs before other sessions do, which still       *)
(* decide by the values they saw before.                                   *)
(***************************************************************************)
\* Promise MEM-24
EXTENDS Naturals, FiniteSets

CONSTANTS
  G,         \* the number of generations
  Spread,    \* how far the generations of a tenure's objects may be apart if its end has a base
  Window,    \* the number of epochs in which a word must not recur
  Cap,       \* lives of an object that an owner counts; more lives are not distinguished
  MaxDeaths,
  Removed

ASSUME Spread + 1 < G /\ Cap > G

VARIABLES
  class,
  phase,     \* use, zeroing, zeroed, pool
  base,      \* in the header: the count from which all generations of the block begin
  wrapped,   \* in the header: objects may have had more lives than generations can tell
  emptied,   \* in the header: the block was emptied without a base, and must not be used for a while
  ready,     \* the epochs until the block may be used; the header names the last of them
  owed,      \* what is to be added to the base, if the header does not have it yet
  stand,     \* in memory: address -> the generation in the object's header, or None
  live,      \* addresses of objects whose word may be anywhere
  waited,    \* addresses whose former objects no session knows any more
  lives,     \* the owner's: address -> lives of the object after the base
  wide,      \* the owner's: it cannot tell how far the objects' generations are apart
  stale,     \* the owner's: it must not use the block that it was given
  rested,    \* an epoch has passed after the block was filled with zeros
  deaths,
  jumped,    \* epochs are far ahead, and not all sessions have learnt that
  watched, since, bad

vars == <<class, phase, base, wrapped, emptied, ready, owed, stand, live, waited, lives, wide, stale, rested,
          deaths, jumped, watched, since, bad>>

None     == G
\* Two classes, whose objects have one address in common.
Classes  == {1, 2}
Starts   == <<{1, 2}, {1, 3}>>
Addrs    == UNION {Starts[c] : c \in Classes}
Has(what) == what \notin Removed
Max(S)   == CHOOSE x \in S : \A y \in S : x >= y
Min(S)   == CHOOSE x \in S : \A y \in S : x <= y

\* The number of lives that the header of a block can tell, unless the block is `wrapped`. With more lives, an object
\* that is behind the base would look like one that is ahead.
Told == G - 1 - Spread

Init ==
  /\ class \in Classes /\ phase = "use"
  /\ base = 0 /\ wrapped = FALSE /\ emptied = FALSE /\ ready = 0 /\ owed = 0
  /\ stand = [a \in Addrs |-> None] /\ live = {} /\ waited = Addrs
  /\ lives = [a \in Addrs |-> 0] /\ wide = FALSE /\ stale = FALSE /\ rested = TRUE
  /\ deaths = 0 /\ jumped = FALSE
  /\ watched \in {<<a, g>> : a \in Addrs, g \in 0..(G - 1)}
  /\ since = Window /\ bad = FALSE

header == <<class, base, wrapped, emptied, owed>>
owner  == <<lives, wide, stale>>

\* Another master takes over, which matters only while a block waits. The master publishes the epoch before which no
\* operation runs only when all sessions have learnt the new epochs.
Jump ==
  /\ ~jumped /\ ready > 0
  /\ jumped' = TRUE
  /\ ready' = IF Has("windows end when all have heard") THEN ready ELSE 0
  /\ UNCHANGED <<header, phase, stand, live, waited, owner, rested, deaths, watched, since, bad>>

\* By the numbers of the epochs, all that any session has seen before was long ago.
Heard ==
  /\ jumped /\ jumped' = FALSE
  /\ ready' = 0 /\ since' = Window
  /\ UNCHANGED <<header, phase, stand, live, waited, owner, rested, deaths, watched, bad>>

Tick ==
  /\ ~jumped /\ UNCHANGED jumped
  /\ since' = IF since < Window THEN since + 1 ELSE since
  /\ waited' = Addrs \ live
  /\ rested' = TRUE
  /\ ready' = IF ready > 0 THEN ready - 1 ELSE 0
  /\ UNCHANGED <<header, phase, stand, live, owner, deaths, watched, bad>>

\* An object is allocated and written.
Alloc(a) ==
  /\ phase = "use" /\ ~stale
  /\ a \in Starts[class] \ live /\ a \in waited
  /\ LET g == (base + lives[a]) % G
         n == lives[a] + 1
     IN /\ stand' = [stand EXCEPT ![a] = g]
        /\ lives' = [lives EXCEPT ![a] = IF n = Cap THEN Cap - G ELSE n]
        /\ wide' = (wide \/ n = Cap)
        \* The header is written in the same batch, before the object.
        /\ wrapped' = (wrapped \/ (n > Told /\ Has("wrapped is told")))
        /\ bad' = (bad \/ (<<a, g>> = watched /\ since < Window))
  /\ emptied' = FALSE
  /\ live' = live \cup {a}
  /\ UNCHANGED <<class, phase, base, ready, owed, waited, stale, rested, deaths, watched, since>>

Gone(a) ==
  /\ live' = live \ {a}
  /\ since' = IF <<a, stand[a]>> = watched THEN 0 ELSE since
  /\ UNCHANGED <<header, phase, ready, stand, owner, rested, deaths, watched, bad>>

\* No slot shows the object's word any more, and no operation puts it into a slot.
End(a) ==
  /\ a \in live
  /\ Gone(a)
  /\ waited' = waited \ {a}

\* The object was written, but no CAS has had its word: the owner gives it back.
GiveBack(a) ==
  /\ phase = "use" /\ a \in live
  /\ Gone(a)
  /\ waited' = IF Has("given back waits") THEN waited \ {a} ELSE waited

Used   == {lives[a] : a \in {x \in Starts[class] : lives[x] > 0}}
Narrow == Used = {} \/ Max(Used) - Min(Used) <= Spread
Latest == IF Used = {} THEN 0 ELSE Max(Used)

\* The whole block is free. The header is written before the zeros.
BeginReturn ==
  /\ phase = "use" /\ live \cap Starts[class] = {}
  /\ phase' = "zeroing"
  /\ IF ~wide /\ ~stale /\ (Narrow \/ ~Has("spread is bounded"))
     THEN LET next == IF Has("bases go on") THEN Latest % G ELSE 0
          IN /\ base' = IF Has("the base comes first") THEN (base + next) % G ELSE base
             /\ owed' = IF Has("the base comes first") THEN 0 ELSE next
             /\ wrapped' = FALSE /\ emptied' = FALSE /\ ready' = 0
     ELSE /\ UNCHANGED <<base, owed>>
          /\ wrapped' = TRUE /\ emptied' = TRUE
          /\ ready' = IF Has("without a base it waits") THEN Window ELSE 0
  /\ UNCHANGED <<class, stand, live, waited, owner, rested, deaths, watched, since, bad>>

Zero(a) ==
  /\ phase = "zeroing" /\ stand[a] # None
  /\ stand' = [stand EXCEPT ![a] = None]
  /\ UNCHANGED <<header, phase, ready, live, waited, owner, rested, deaths, watched, since, bad>>

\* The whole block is zeros, also where objects of other classes were.
EndZero ==
  /\ phase = "zeroing" /\ \A a \in Starts[class] : stand[a] = None
  /\ phase' = "zeroed" /\ rested' = FALSE
  /\ stand' = [a \in Addrs |-> None]
  /\ UNCHANGED <<header, ready, live, waited, owner, deaths, watched, since, bad>>

ToPool ==
  /\ phase = "zeroed" /\ rested /\ ready = 0
  /\ phase' = "pool"
  /\ base' = (base + owed) % G /\ owed' = 0
  /\ UNCHANGED <<class, wrapped, emptied, ready, stand, live, waited, owner, rested, deaths,
                 watched, since, bad>>

\* The next owner reads the header.
Grant ==
  /\ phase = "pool"
  /\ phase' = "use" /\ class' \in Classes
  /\ lives' = [a \in Addrs |-> 0] /\ wide' = FALSE /\ stale' = FALSE
  \* A block that was emptied without a base has waited.
  /\ wrapped' = FALSE /\ emptied' = FALSE
  /\ base' = IF Has("the pool has bases") THEN base ELSE 0
  /\ waited' = Addrs
  /\ UNCHANGED <<ready, owed, stand, live, rested, deaths, watched, since, bad>>

\* The lives that a new owner computes from an object's header.
Learnt(a, isWrapped) ==
  IF stand[a] = None THEN 0
  ELSE LET ahead == (stand[a] + 1 + G - base) % G
       IN IF ahead > Told /\ ~isWrapped THEN 0 ELSE ahead

Learns ==
  LET isWrapped == wrapped /\ ~emptied
  IN /\ wide' = isWrapped /\ wrapped' = isWrapped
     /\ lives' = [a \in Addrs |-> Learnt(a, isWrapped)]

\* The owner dies, and another owner takes the block over and reads its header. The block was in use, or was being
\* emptied.
Die ==
  /\ phase # "pool" /\ deaths < MaxDeaths
  /\ deaths' = deaths + 1
  /\ phase' = "use" /\ owed' = 0
  /\ IF emptied /\ ready > 0
     THEN stale' = TRUE /\ UNCHANGED <<wide, wrapped, lives>>
     ELSE stale' = FALSE /\ Learns
  /\ waited' = waited \ Starts[class]
  /\ UNCHANGED <<class, base, emptied, ready, stand, live, rested, watched, since, bad>>

\* The owner reads the header once more when the block need not wait any more.
Read ==
  /\ phase = "use" /\ stale /\ ready = 0
  /\ stale' = FALSE /\ Learns
  /\ UNCHANGED <<class, phase, base, emptied, ready, owed, stand, live, waited, rested, deaths,
                 watched, since, bad>>

Next ==
  \/ Tick \/ Jump \/ Heard
  \/ /\ UNCHANGED jumped
     /\ \/ \E a \in Addrs : Alloc(a) \/ End(a) \/ GiveBack(a) \/ Zero(a)
        \/ BeginReturn \/ EndZero \/ ToPool \/ Grant \/ Die \/ Read

Spec == Init /\ [][Next]_vars

\* No word recurs within the window.
NoWordRecurs == ~bad
=============================================================================
