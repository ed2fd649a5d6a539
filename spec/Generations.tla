---------------------------- MODULE Generations ----------------------------
(***************************************************************************)
(* Generations never restart: no word comes back within a window of        *)
(* epochs.                                                                 *)
(* Code: core/src/slab/generations.rs, core/src/slab.rs,                   *)
(* core/src/store/reclaim.rs, core/src/recovery/walk.rs,                   *)
(* core/src/layout/block.rs.                                               *)
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
(***************************************************************************)
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
  ready,     \* in the header: so many epochs the block must not be used any more
  stand,     \* in memory: address -> the generation in the object's header; None
  live,      \* addresses whose word may stand somewhere
  waited,    \* addresses of which nobody knows any more what was there
  lives,     \* of the owner: address -> lives since the base
  wide,      \* of the owner: it cannot tell how far they are apart
  stale,     \* of the owner: what it was given must not be used
  rested,    \* an epoch has passed since the block was zeros
  deaths,
  watched, since, bad

vars == <<class, phase, base, wrapped, ready, stand, live, waited, lives, wide, stale, rested,
          deaths, watched, since, bad>>

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
  /\ base = 0 /\ wrapped = FALSE /\ ready = 0
  /\ stand = [a \in Addrs |-> None] /\ live = {} /\ waited = Addrs
  /\ lives = [a \in Addrs |-> 0] /\ wide = FALSE /\ stale = FALSE /\ rested = TRUE
  /\ deaths = 0
  /\ watched \in {<<a, g>> : a \in Addrs, g \in 0..(G - 1)}
  /\ since = Window /\ bad = FALSE

Tick ==
  /\ since' = IF since < Window THEN since + 1 ELSE since
  /\ waited' = Addrs \ live
  /\ rested' = TRUE
  /\ ready' = IF ready > 0 THEN ready - 1 ELSE 0
  /\ UNCHANGED <<class, phase, base, wrapped, stand, live, lives, wide, stale, deaths, watched, bad>>

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
  /\ live' = live \cup {a}
  /\ UNCHANGED <<class, phase, base, ready, waited, stale, rested, deaths, watched, since>>

Gone(a) ==
  /\ live' = live \ {a}
  /\ since' = IF <<a, stand[a]>> = watched THEN 0 ELSE since

\* No slot shows its word any more, and nobody puts it into one.
End(a) ==
  /\ a \in live
  /\ Gone(a)
  /\ waited' = waited \ {a}
  /\ UNCHANGED <<class, phase, base, wrapped, ready, stand, lives, wide, stale, rested, deaths,
                 watched, bad>>

\* It was written, and no CAS has mentioned it: it is given back.
GiveBack(a) ==
  /\ phase = "use" /\ a \in live
  /\ Gone(a)
  /\ waited' = IF Has("given back waits") THEN waited \ {a} ELSE waited
  /\ UNCHANGED <<class, phase, base, wrapped, ready, stand, lives, wide, stale, rested, deaths,
                 watched, bad>>

Used   == {lives[a] : a \in {x \in Starts[class] : lives[x] > 0}}
Narrow == Used = {} \/ Max(Used) - Min(Used) <= Spread
Leader == IF Used = {} THEN 0 ELSE Max(Used)

\* The block is wholly free.  The header is written before the zeros.
BeginReturn ==
  /\ phase = "use" /\ live \cap Starts[class] = {}
  /\ phase' = "zeroing"
  /\ IF ~wide /\ ~stale /\ (Narrow \/ ~Has("spread is bounded"))
     THEN /\ base' = IF Has("bases go on") THEN (base + Leader) % G ELSE 0
          /\ wrapped' = FALSE /\ ready' = 0
     ELSE /\ base' = base /\ wrapped' = TRUE
          /\ ready' = IF Has("without a base it waits") THEN Window ELSE 0
  /\ UNCHANGED <<class, stand, live, waited, lives, wide, stale, rested, deaths, watched, since, bad>>

Zero(a) ==
  /\ phase = "zeroing" /\ stand[a] # None
  /\ stand' = [stand EXCEPT ![a] = None]
  /\ UNCHANGED <<class, phase, base, wrapped, ready, live, waited, lives, wide, stale, rested,
                 deaths, watched, since, bad>>

\* All of it is zeros; what other classes had written there was so long before.
EndZero ==
  /\ phase = "zeroing" /\ \A a \in Starts[class] : stand[a] = None
  /\ phase' = "zeroed" /\ rested' = FALSE
  /\ stand' = [a \in Addrs |-> None]
  /\ UNCHANGED <<class, base, wrapped, ready, live, waited, lives, wide, stale, deaths, watched,
                 since, bad>>

ToPool ==
  /\ phase = "zeroed" /\ rested /\ ready = 0
  /\ phase' = "pool"
  /\ UNCHANGED <<class, base, wrapped, ready, stand, live, waited, lives, wide, stale, rested,
                 deaths, watched, since, bad>>

\* The next owner reads the header.  A block that is wrapped has waited.
Grant ==
  /\ phase = "pool"
  /\ phase' = "use" /\ class' \in Classes
  /\ lives' = [a \in Addrs |-> 0] /\ wide' = FALSE /\ stale' = FALSE /\ wrapped' = FALSE
  /\ base' = IF Has("the pool has bases") THEN base ELSE 0
  /\ waited' = Addrs
  /\ UNCHANGED <<ready, stand, live, rested, deaths, watched, since, bad>>

\* What a new owner makes of an object's header, in a block of this base.
Learnt(a) ==
  IF stand[a] = None THEN 0
  ELSE LET ahead == (stand[a] + 1 + G - base) % G
       IN IF ahead > Told /\ ~wrapped THEN 0 ELSE ahead

\* The owner dies; another one takes the block over.  It was in use, or was being emptied.
Die ==
  /\ phase # "pool" /\ deaths < MaxDeaths
  /\ deaths' = deaths + 1
  /\ phase' = "use"
  \* Emptied without a base, and it has not waited: nothing of it may be used before it was emptied again.
  /\ stale' = (ready > 0 \/ (wrapped /\ phase \in {"zeroing", "zeroed"}))
  /\ wide' = wrapped
  \* Of the objects that were written, some may show the life before: the WRITE was torn, or one
  \* replica alone is read.
  /\ lives' = [a \in Addrs |-> Learnt(a)]
  /\ waited' = waited \ Starts[class]
  /\ UNCHANGED <<class, base, wrapped, ready, stand, live, rested, watched, since, bad>>

Next ==
  \/ Tick
  \/ \E a \in Addrs : Alloc(a) \/ End(a) \/ GiveBack(a) \/ Zero(a)
  \/ BeginReturn \/ EndZero \/ ToPool \/ Grant \/ Die

Spec == Init /\ [][Next]_vars

\* No word comes back within the window.
NoWordRecurs == ~bad
=============================================================================
