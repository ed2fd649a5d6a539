------------------------------- MODULE Changes ------------------------------
(***************************************************************************)
(* The module of the models whose .cfg files say "MODULE Changes".         *)
(***************************************************************************)
EXTENDS Change, Names

\* The nodes of the subtable that no change touches.
Nowhere      == <<>>
OnOtherNodes == <<8, 9>>
OnAThird     == <<2>>
=============================================================================
