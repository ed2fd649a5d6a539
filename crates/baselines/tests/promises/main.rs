//! Tests of each system's promises, in random histories over an adversarial network and on real fabrics, and tests of
//! the phases of its operations.

mod clover;
mod one_object;
mod pdpm;
mod published;
mod real;
mod support;
mod switched;
