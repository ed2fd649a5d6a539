//! Checks of the promises. Each promise has its own checker. None of them knows the injected faults.

pub(crate) mod entries;
mod quiescence;
pub(crate) mod reuse;

pub use quiescence::{lost_objects, nothing_is_lost, quiescent, replicas_agree};
