//! What each system promises, in random histories over an adversarial network and on real fabrics; and how many phases
//! it takes.

mod clover;
mod one_object;
mod pdpm;
mod published;
mod real;
mod support;
mod switched;
