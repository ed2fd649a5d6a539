//! The lease of a session.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::sync::AtomicU64;

/// The session's lease. All times are in nanoseconds, by the clock of the session's environment.
#[derive(Debug)]
pub struct Lease {
    /// The end of the lease by the session's clock, in nanoseconds; `u64::MAX` if it never ends.
    heard_until_ns: AtomicU64,
    /// Length of the longest lease of which a master has told this session, in nanoseconds.
    longest_ns: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX - 1)
}

impl Lease {
    /// Makes a lease that never ends.
    pub(super) fn forever() -> Lease {
        Lease { heard_until_ns: AtomicU64::new(u64::MAX), longest_ns: AtomicU64::new(0) }
    }

    /// Sets the end of the lease, whatever the end was before.
    pub(super) fn ends(&self, until: Duration) {
        self.heard_until_ns.store(nanos(until), Relaxed);
    }

    /// Records the length of a lease of which a master has told the session.
    pub fn publish(&self, lease: Duration) {
        self.longest_ns.fetch_max(nanos(lease), Relaxed);
    }

    /// Returns, to the session, the longest lease of which a master has told the session.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.load(Relaxed))
    }

    /// Extends the lease, on behalf of the keeper, after the master has heard of the session.
    pub fn extend(&self, until: Duration) {
        // Relaxed suffices: an operation that does not see the new end yet asks the memory nodes instead.
        self.heard_until_ns.fetch_max(nanos(until), Relaxed);
    }

    /// Returns, to the session, whether its lease is valid at `now`. The time `now` must not be earlier than the clock
    /// shows.
    #[inline]
    pub fn is_valid(&self, now: Duration) -> bool {
        nanos(now) < self.heard_until_ns.load(Relaxed)
    }
}
