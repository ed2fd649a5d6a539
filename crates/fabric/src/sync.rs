//! What threads of this process meet on: atomics, fences, locks, and how to wait for one another.
//!
//! These are the standard library's. They have a name of their own so that the code which is hard
//! to get right can be compiled a second time, unchanged, with the types of a model checker in
//! their place: `tests/loom` does that to `copy`, `order`, `shm::gate` and `shm::sessions`, which
//! therefore take nothing of the kind from elsewhere.

use std::time::Duration;

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Waits a little for another thread, the longer the more often the caller has waited already.
pub(crate) fn back_off(waited: u32) {
    match waited {
        0..100 => std::hint::spin_loop(),
        100..200 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}
