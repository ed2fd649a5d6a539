//! What the threads of a session and of its keeper meet on: atomics, locks, a barrier.
//!
//! These are the standard library's and the fabric's. They have a name of their own so that the
//! [`Gate`](crate::logic::Gate) can be compiled a second time, unchanged, with the types of a model checker in
//! their place: `tests/loom` does that.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use fusee_fabric::barrier;
