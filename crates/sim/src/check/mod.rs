//! What must hold, apart from what goes wrong: each promise has a checker of its own, and none of
//! them knows which faults were injected.

pub(crate) mod entries;
mod rest;
pub(crate) mod reuse;

pub use rest::{at_rest, nothing_is_lost, replicas_agree};
