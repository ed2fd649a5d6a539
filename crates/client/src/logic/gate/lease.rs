//! Until when the session counts as heard by the master.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sync::AtomicU64;

/// The session's lease, in nanoseconds of the clock of its surroundings.
#[derive(Debug)]
pub struct Lease {
    /// Until when the session counts as heard; `u64::MAX`: always.
    heard_until_ns: AtomicU64,
    /// The longest lease that a master has told.
    longest_ns: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)
}

impl Lease {
    /// Of a session that always counts as heard.
    pub(super) fn forever() -> Lease {
        Lease { heard_until_ns: AtomicU64::new(u64::MAX), longest_ns: AtomicU64::new(0) }
    }

    /// The session counts as heard only for so long.
    pub(super) fn ends(&self, until: Duration) {
        self.heard_until_ns.store(nanos(until), Relaxed);
    }

    /// A master has told a lease.
    pub fn publish(&self, lease: Duration) {
        self.longest_ns.fetch_max(nanos(lease), Relaxed);
    }

    /// To the session: the longest lease that a master has told.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Relaxed))
    }

    /// From the keeper: the master has heard of the session.
    pub fn hear(&self, until: Duration) {
        // Relaxed: an operation that does not see it yet asks the memory nodes.
        self.heard_until_ns.fetch_max(nanos(until), Relaxed);
    }

    /// To the session: whether it counts as heard, at a time that is not behind.
    #[inline]
    pub fn is_heard(&self, now: Duration) -> bool {
        nanos(now) < self.heard_until_ns.load(Relaxed)
    }
}
