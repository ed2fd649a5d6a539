------------------------------ MODULE Steered ------------------------------
(***************************************************************************)
(* When a reader may use the result of a READ that a switch redirected to  *)
(* any address.  Code: core/src/store/read/steered.rs,                     *)
(* memory-node/src/logic.rs (release).                                     *)
(*                                                                         *)
(* There is one slot, whose objects all have one address. They differ in   *)
(* their generations, of which there are G, and which wrap around. The     *)
(* objects' region has a place on the node of the slot's primary, or has   *)
(* left it. When the region has left, its bytes stay there until the node  *)
(* releases the extent and zeroes it; only then may the region come back.  *)
(* A generation is used again only if every reader that began while its    *)
(* last object was there has ended.                                        *)
(*                                                                         *)
(* A steered READ returns any bytes of that node: an object of any         *)
(* generation that is still there, or no object.                           *)
(***************************************************************************)
\* Promise LIN-19
EXTENDS Naturals, FiniteSets

CONSTANTS
  G,          \* the number of generations
  MaxWrites,  \* the number of objects that are written
  MaxMoves,   \* how often the region leaves the node or comes back
  Readers,
  Removed

VARIABLES
  word,     \* the generation that the slot shows
  value,    \* the value of that word's object
  kept,     \* reader -> the generations that the reader may still know
  extent,   \* the region's extent on the node: its object, or None
  is_here,  \* whether the region has a place on the node by the view
  written, moved,
  reader    \* the state of each reader: the word it has READ, and the value at that time

vars == <<word, value, kept, extent, is_here, written, moved, reader>>

None   == [gen |-> G, value |-> 0]
Idle   == [pc |-> "idle", gen |-> G, value |-> 0, got |-> 0, here |-> FALSE]
Object == [gen : 0..G, value : 0..MaxWrites]

Init == /\ word = 0 /\ value = 0 /\ kept = [r \in Readers |-> {}]
        /\ extent = [gen |-> 0, value |-> 0]
        /\ is_here = TRUE
        /\ written = 0 /\ moved = 0
        /\ reader = [r \in Readers |-> Idle]

---------------------------------------------------------------------------
(* A writer replaces the object. The next generation is that of its        *)
(* object.                                                                 *)

Next1(g) == (g + 1) % G

Write ==
  /\ written < MaxWrites
  /\ \/ "generations are not used again" \in Removed
     \/ \A r \in Readers : Next1(word) \notin kept[r]
  /\ written' = written + 1
  /\ word' = Next1(word)
  /\ value' = written + 1
  /\ extent' = IF is_here THEN [gen |-> Next1(word), value |-> written + 1] ELSE extent
  /\ kept' = [r \in Readers |-> IF reader[r].pc = "idle" THEN {} ELSE kept[r] \cup {Next1(word)}]
  /\ UNCHANGED <<is_here, moved, reader>>

---------------------------------------------------------------------------
(* The region.                                                              *)

Leave ==
  /\ is_here /\ moved < MaxMoves
  \* A change of the view waits until no reader reads by the view before it.
  /\ \A r \in Readers : reader[r].pc = "idle"
  /\ is_here' = FALSE /\ moved' = moved + 1
  /\ UNCHANGED <<word, value, kept, extent, written, reader>>

\* The node zeroes an extent that it releases.
Release ==
  /\ ~is_here /\ extent # None
  /\ extent' = None
  /\ UNCHANGED <<word, value, kept, is_here, written, moved, reader>>

\* The node has one extent of a region at a time. A region that comes back is filled before any session reads it there.
Return ==
  /\ ~is_here /\ moved < MaxMoves
  /\ extent = None
  /\ \A r \in Readers : reader[r].pc = "idle"
  /\ is_here' = TRUE /\ moved' = moved + 1
  /\ extent' = [gen |-> word, value |-> value]
  /\ UNCHANGED <<word, value, kept, written, reader>>

---------------------------------------------------------------------------
(* A reader: it READs the word, and then steers a READ to the object.      *)

Begin(r) ==
  /\ reader[r].pc = "idle"
  /\ reader' = [reader EXCEPT ![r] = [Idle EXCEPT !.pc = "begun"]]
  /\ kept' = [kept EXCEPT ![r] = {word}]
  /\ UNCHANGED <<word, value, extent, is_here, written, moved>>

ReadWord(r) ==
  /\ reader[r].pc = "begun"
  /\ reader' = [reader EXCEPT ![r] = [pc |-> "word", gen |-> word, value |-> value, got |-> 0,
                                      here |-> is_here]]
  /\ UNCHANGED <<word, value, kept, extent, is_here, written, moved>>

\* The reader accepts an object with the identity of the word, if its view has the region on the node.
Accepts(r, o) ==
  /\ o # None
  /\ \/ o.gen = reader[r].gen
     \/ "the identity is compared" \in Removed
  /\ \/ reader[r].here
     \/ "only where the region is" \in Removed

Steered(r) ==
  /\ reader[r].pc = "word"
  /\ \E o \in {extent, None} :
       reader' = [reader EXCEPT ![r] =
         IF Accepts(r, o) THEN [@ EXCEPT !.pc = "took", !.got = o.value] ELSE Idle]
  /\ kept' = IF Accepts(r, extent) THEN kept ELSE [kept EXCEPT ![r] = {}]
  /\ UNCHANGED <<word, value, extent, is_here, written, moved>>

End(r) ==
  /\ reader[r].pc = "took"
  /\ reader' = [reader EXCEPT ![r] = Idle]
  /\ kept' = [kept EXCEPT ![r] = {}]
  /\ UNCHANGED <<word, value, extent, is_here, written, moved>>

Next == \/ Write \/ Leave \/ Release \/ Return
        \/ \E r \in Readers : Begin(r) \/ ReadWord(r) \/ Steered(r) \/ End(r)

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------

TypeOK == /\ word \in 0..(G - 1) /\ value \in 0..MaxWrites
          /\ extent \in Object /\ is_here \in BOOLEAN

\* The value that a reader has accepted is the value of the word that it has READ.
TakesWhatTheWordSays ==
  \A r \in Readers : reader[r].pc = "took" => reader[r].got = reader[r].value
=============================================================================
