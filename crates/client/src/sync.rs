//! The synchronization of a session's threads and its keeper: atomics, locks, a barrier.
//!
//! These are the standard library's and the fabric's. They are re-exported here so that the
//! [`SessionGate`](crate::logic::SessionGate) can be compiled a second time, unchanged, with the types of a model
//! checker instead: `tests/loom` does that.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use fusee_fabric::barrier;
