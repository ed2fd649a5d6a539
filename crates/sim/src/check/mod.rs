//! What must hold, apart from what goes wrong: each promise has a checker of its own, and none of
//! them knows which faults were injected.

pub(crate) mod entries;
mod quiescence;
pub(crate) mod reuse;

pub use quiescence::{lost_objects, nothing_is_lost, quiescent, replicas_agree};
