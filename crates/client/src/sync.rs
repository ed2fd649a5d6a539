//! The synchronization between sessions' threads and the keeper: atomics, locks, a barrier.
//!
//! All of these come from the standard library and the fabric. They are re-exported here so that `tests/loom` can
//! compile the [`SessionGate`](crate::logic::SessionGate) a second time, unchanged, with the types of a model checker
//! instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use fusee_fabric::barrier;
