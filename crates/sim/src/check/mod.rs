//! Checkers of the protocol's promises, one for each group of promises. None of them knows the injected faults.

pub(crate) mod checkers;
pub(crate) mod entries;
mod quiescence;
pub(crate) mod reuse;

pub use quiescence::{check_nothing_lost, check_quiescent, check_replicas_agree, lost_objects};
