//! What threads of this process meet on: atomics, fences, locks, and how to wait for one another.
//!
//! These are the standard library's. They have a name of their own so that the code which is hard
//! to get right can be compiled a second time, unchanged, with the types of a model checker in
//! their place: `tests/loom` does that to `copy`, `order`, `shm::gate` and `shm::sessions`, which
//! therefore take nothing of the kind from elsewhere.

use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Looks that somebody who waits for another process takes at least, however long it has been away itself.
const LEAST_LOOKS: u32 = 1000;

/// Waiting for another process, which may not answer.
#[derive(Debug)]
pub(crate) struct Patience {
    end: Instant,
    looks: u32,
}

impl Patience {
    /// Waits for so long from now on.
    pub(crate) fn of(time: Duration) -> Patience {
        Patience { end: Instant::now() + time, looks: 0 }
    }

    /// Waits a little; false: it was enough. A gap in the running of this process is no silence of the other one.
    pub(crate) fn wait(&mut self) -> bool {
        back_off(self.looks);
        self.looks = self.looks.saturating_add(1);
        self.looks < LEAST_LOOKS || Instant::now() < self.end
    }
}

/// Waits a little for another thread, the longer the more often the caller has waited already.
pub(crate) fn back_off(waited: u32) {
    match waited {
        0..100 => std::hint::spin_loop(),
        100..200 => std::thread::yield_now(),
        _ => std::thread::sleep(Duration::from_micros(50)),
    }
}
