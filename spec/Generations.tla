---------------------------- MODULE Generations ----------------------------
(***************************************************************************)
(* Generations never restart: no word comes back within a window of        *)
(* epochs.                                                                 *)
(* Code: core/src/slab/generations.rs, core/src/slab.rs,                   *)
(* core/src/store/memory/reclaim.rs, core/src/layout/block.rs.             *)
(*                                                                         *)
(* One block.  It goes through *tenures*: one size class each, whose       *)
(* objects begin at the addresses `Starts[class]`.  A tenure ends when the *)
(* block is wholly free: it is overwritten by zeros, waits, and goes back  *)
(* to the pool, from which it comes for any class.  Owners may die in      *)
(* between; the next one learns from memory what it has to know.           *)
(*                                                                         *)
(* A word is an address and a generation, modulo G.  Which of them is      *)
(* looked at, `watched`, is chosen in the beginning; `since` is for how    *)
(* many epochs it has not stood anywhere, up to Window.  Nothing decides   *)
(* by these two, nor by `bad`.                                             *)
(*                                                                         *)
(* Another master goes on with epochs that are far ahead.  Some hear of    *)
(* that before others do, who still go by what they saw a moment ago.      *)
(***************************************************************************)
\* Promise MEM-24
EXTENDS Naturals, FiniteSets

CONSTANTS
  G,         \* generations
  Spread,    \* how far the objects of a tenure may be apart when it ends without waiting
  Window,    \* so many epochs a word must not come back
  Cap,       \* lives that an owner counts; more are not told apart
  MaxDeaths,
  Removed

ASSUME Spread + 1 < G /\ Cap > G

VARIABLES
  class,
  phase,     \* use, zeroing, zeroed, pool
  base,      \* in the header: what is not known otherwise starts here
  wrapped,   \* in the header: objects may have had more lives than generations tell
  emptied,   \* in the header: it was emptied without a base, and must not be used for a while
  ready,     \* for so many epochs, of which the header names the last
  owed,      \* what the base is to go on by, if the header does not say so yet
  stand,     \* in memory: address -> the generation in the object's header; None
  live,      \* addresses whose word may stand somewhere
  waited,    \* addresses of which nobody knows any more what was there
  lives,     \* of the owner: address -> lives since the base
  wide,      \* of the owner: it cannot tell how far they are apart
  stale,     \* of the owner: what it was given must not be used
  rested,    \* an epoch has passed since the block was zeros
  deaths,
  jumped,    \* epochs are far ahead, and not all have heard of it
  watched, since, bad

vars == <<class, phase, base, wrapped, emptied, ready, owed, stand, live, waited, lives, wide, stale, rested,
          deaths, jumped, watched, since, bad>>

None     == G
\* Two classes, whose objects share one address.
Classes  == {1, 2}
Starts   == <<{1, 2}, {1, 3}>>
Addrs    == UNION {Starts[c] : c \in Classes}
Has(what) == what \notin Removed
Max(S)   == CHOOSE x \in S : \A y \in S : x >= y
Min(S)   == CHOOSE x \in S : \A y \in S : x <= y

\* Lives that the header of a block that is not `wrapped` can tell: more, and an object that is
\* behind the base would look like one that is ahead.
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

\* Another master takes over; it matters where a block waits.  Before which epoch no operation runs is not told
\* before all have heard.
Jump ==
  /\ ~jumped /\ ready > 0
  /\ jumped' = TRUE
  /\ ready' = IF Has("windows end when all have heard") THEN ready ELSE 0
  /\ UNCHANGED <<header, phase, stand, live, waited, owner, rested, deaths, watched, since, bad>>

\* By the numbers, what anybody has seen before was long ago.
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

\* An object is allocated, and written.
Alloc(a) ==
  /\ phase = "use" /\ ~stale
  /\ a \in Starts[class] \ live /\ a \in waited
  /\ LET g == (base + lives[a]) % G
         n == lives[a] + 1
     IN /\ stand' = [stand EXCEPT ![a] = g]
        /\ lives' = [lives EXCEPT ![a] = IF n = Cap THEN Cap - G ELSE n]
        /\ wide' = (wide \/ n = Cap)
        \* The header goes into the same batch, before the object.
        /\ wrapped' = (wrapped \/ (n > Told /\ Has("wrapped is told")))
        /\ bad' = (bad \/ (<<a, g>> = watched /\ since < Window))
  /\ emptied' = FALSE
  /\ live' = live \cup {a}
  /\ UNCHANGED <<class, phase, base, ready, owed, waited, stale, rested, deaths, watched, since>>

Gone(a) ==
  /\ live' = live \ {a}
  /\ since' = IF <<a, stand[a]>> = watched THEN 0 ELSE since
  /\ UNCHANGED <<header, phase, ready, stand, owner, rested, deaths, watched, bad>>

\* No slot shows its word any more, and nobody puts it into one.
End(a) ==
  /\ a \in live
  /\ Gone(a)
  /\ waited' = waited \ {a}

\* It was written, and no CAS has mentioned it: it is given back.
GiveBack(a) ==
  /\ phase = "use" /\ a \in live
  /\ Gone(a)
  /\ waited' = IF Has("given back waits") THEN waited \ {a} ELSE waited

Used   == {lives[a] : a \in {x \in Starts[class] : lives[x] > 0}}
Narrow == Used = {} \/ Max(Used) - Min(Used) <= Spread
Latest == IF Used = {} THEN 0 ELSE Max(Used)

\* The block is wholly free.  The header is written before the zeros.
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

\* All of it is zeros, also what objects of other classes had left.
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
  \* One that was emptied without a base has waited.
  /\ wrapped' = FALSE /\ emptied' = FALSE
  /\ base' = IF Has("the pool has bases") THEN base ELSE 0
  /\ waited' = Addrs
  /\ UNCHANGED <<ready, owed, stand, live, rested, deaths, watched, since, bad>>

\* What a new owner makes of an object's header.
Learnt(a, isWrapped) ==
  IF stand[a] = None THEN 0
  ELSE LET ahead == (stand[a] + 1 + G - base) % G
       IN IF ahead > Told /\ ~isWrapped THEN 0 ELSE ahead

Learns ==
  LET isWrapped == wrapped /\ ~emptied
  IN /\ wide' = isWrapped /\ wrapped' = isWrapped
     /\ lives' = [a \in Addrs |-> Learnt(a, isWrapped)]

\* The owner dies; another one takes the block over, and reads its header.  It was in use, or was being
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

\* It reads it once more when the block need not wait any more.
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

\* No word comes back within the window.
NoWordRecurs == ~bad
=============================================================================
