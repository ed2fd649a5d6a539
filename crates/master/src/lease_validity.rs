//! The time for which a master is allowed to assume that it leads.
//!
//! The master's lease ends at etcd a fixed time after the last renewal that etcd received. The master counts from the
//! moment when it *sent* that renewal, by a clock that includes sleep of the machine. So as long as clocks run at about
//! the same speed, the master stops leading before another one can be elected. This does not help if the process is
//! stopped between reading the clock and its next step, or if its clock is slow: then the condition of every write
//! prevents harm (see `store::etcd`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fusee_fabric::Clock;

/// The interval at which [`LeaseValidity::over`] reads the clock.
const LOOK: Duration = Duration::from_millis(20);

/// The validity of a lease, by the clock of this process. The validity can be extended, and it can be ended for good.
#[derive(Debug)]
pub(crate) struct LeaseValidity {
    begun: Duration,
    /// The end of the validity, in microseconds from `begun`; 0 if the validity was ended for good.
    until_us: AtomicU64,
    lease: Duration,
}

impl LeaseValidity {
    /// Returns the present time, by the clock of all leases.
    pub fn now() -> Duration {
        Clock::Precise.now()
    }

    /// Returns the validity of a lease that was requested at `asked`.
    pub fn new(asked: Duration, lease: Duration) -> LeaseValidity {
        let until_us = AtomicU64::new(lease.as_micros() as u64);
        LeaseValidity { begun: asked, until_us, lease }
    }

    /// Returns the length of the lease after a renewal.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns whether the lease is still valid.
    pub fn holds(&self) -> bool {
        self.holds_at(LeaseValidity::now())
    }

    fn holds_at(&self, now: Duration) -> bool {
        // Relaxed: no other data depends on the number.
        let until_us = self.until_us.load(Ordering::Relaxed);
        now.saturating_sub(self.begun).as_micros() < u128::from(until_us)
    }

    /// Extends the validity, because etcd received a renewal that was sent at `sent`. A lease that is not valid any
    /// more stays invalid, because the logic that relied on it has stopped acting.
    pub fn renewed(&self, sent: Duration) {
        let until = sent.saturating_sub(self.begun) + self.lease;
        let until = until.as_micros() as u64;
        let later = |now: u64| (now != 0 && self.holds()).then_some(now.max(until));
        let _over = self.until_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// Ends the validity of the lease for good.
    pub fn end(&self) {
        self.until_us.store(0, Ordering::Relaxed);
    }

    /// Waits until the lease is not valid any more.
    pub async fn over(&self) {
        while self.holds() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenure_that_has_run_out_stays_so() {
        let lease = Duration::from_millis(1);
        let expired = LeaseValidity::new(LeaseValidity::now(), lease);
        std::thread::sleep(2 * lease);
        assert!(!expired.holds());
        expired.renewed(LeaseValidity::now());
        assert!(!expired.holds(), "an expired tenure came back");
    }

    #[test]
    fn a_tenure_counts_from_when_the_renewal_was_sent_and_is_not_revived() {
        let lease = Duration::from_secs(60);
        // The clock shows a time long after the machine's start.
        let now = LeaseValidity::now() + Duration::from_secs(1000);
        let long_ago = now - Duration::from_secs(50);
        let tenure = LeaseValidity::new(long_ago, lease);
        assert!(tenure.holds_at(now));
        tenure.renewed(now);
        assert_eq!(tenure.until_us.load(Ordering::Relaxed) / 1_000_000, 110);
        // A renewal's answer that comes late does not shorten the validity.
        tenure.renewed(long_ago);
        assert_eq!(tenure.until_us.load(Ordering::Relaxed) / 1_000_000, 110);
        tenure.end();
        tenure.renewed(now);
        assert!(!tenure.holds());
    }
}
