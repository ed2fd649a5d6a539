//! Synchronization between threads of this process: atomics, memory fences, locks, and back-off.
//!
//! The types are the standard library's. `tests/loom` compiles `copy`, `order`, `shm::gate` and `shm::sessions` a
//! second time, unchanged, with a model checker's types in place of this module. So those modules take such types
//! only from here.

use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// The least number of checks in a wait for another process, even if the wait takes longer because this process was
/// stopped.
const LEAST_LOOKS: u32 = 1000;

/// A limited wait for an answer of another process, because the answer possibly never comes.
#[derive(Debug)]
pub(crate) struct Patience {
    end: Instant,
    looks: u32,
}

impl Patience {
    /// Starts a wait that ends after `time`.
    pub(crate) fn of(time: Duration) -> Patience {
        Patience { end: Instant::now() + time, looks: 0 }
    }

    /// Waits a little. Returns false when the time is over and this process has checked [`LEAST_LOOKS`] times, because
    /// this process was possibly stopped for a part of the time.
    pub(crate) fn wait(&mut self) -> bool {
        back_off(self.looks);
        self.looks = self.looks.saturating_add(1);
        self.looks < LEAST_LOOKS || Instant::now() < self.end
    }
}

/// Waits a little for another thread, for longer the more often the caller has waited (`waited`).
pub(crate) fn back_off(waited: u32) {
    match waited {
        0..100 => std::hint::spin_loop(),
        100..200 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}
