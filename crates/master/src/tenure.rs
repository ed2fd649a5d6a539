//! How long a master may believe that it leads.
//!
//! Its lease runs out at etcd a fixed time after the last renewal that etcd took. The master
//! counts from when it *sent* that renewal, by a clock that goes on while the machine sleeps. So as long as clocks run
//! at about the same speed it gives up before anybody else can be elected. A process that is stopped between a
//! look at the clock and what follows has no such luck, and neither has one whose clock is slow: they are kept
//! from harm by the guard of every write (see `store::etcd`), not by this.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fusee_fabric::Clock;

/// How often somebody who waits for the end looks.
const LOOK: Duration = Duration::from_millis(20);

/// A term of office, as far as the own clock can tell. It can be made longer, and be ended, for
/// good.
#[derive(Debug)]
pub(crate) struct Tenure {
    begun: Duration,
    /// Microseconds from `begun`; 0 once it is over.
    until_us: AtomicU64,
    lease: Duration,
}

impl Tenure {
    /// What times of a tenure are counted by.
    pub fn now() -> Duration {
        Clock::Precise.now()
    }

    /// A lease that was asked for at `asked`.
    pub fn new(asked: Duration, lease: Duration) -> Tenure {
        let until_us = AtomicU64::new(lease.as_micros() as u64);
        Tenure { begun: asked, until_us, lease }
    }

    /// How long it lasts after a renewal.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether it is not over.
    pub fn holds(&self) -> bool {
        self.holds_at(Tenure::now())
    }

    fn holds_at(&self, now: Duration) -> bool {
        // Relaxed: the number is all there is to know.
        let until_us = self.until_us.load(Ordering::Relaxed);
        now.saturating_sub(self.begun).as_micros() < u128::from(until_us)
    }

    /// A renewal that was sent at `sent` has been taken. Nothing revives a tenure that is over: a
    /// late renewal may be of a lease that nobody acts under any more.
    pub fn renewed(&self, sent: Duration) {
        let until = sent.saturating_sub(self.begun) + self.lease;
        let until = until.as_micros() as u64;
        let later = |now: u64| (now != 0 && self.holds()).then_some(now.max(until));
        let _over = self.until_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// Ends it.
    pub fn end(&self) {
        self.until_us.store(0, Ordering::Relaxed);
    }

    /// Waits until it is over.
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
        let expired = Tenure::new(Tenure::now(), lease);
        std::thread::sleep(2 * lease);
        assert!(!expired.holds());
        expired.renewed(Tenure::now());
        assert!(!expired.holds(), "an expired tenure came back");
    }

    #[test]
    fn a_tenure_counts_from_when_the_renewal_was_sent_and_is_not_revived() {
        let lease = Duration::from_secs(60);
        // As if the machine had been up for long.
        let now = Tenure::now() + Duration::from_secs(1000);
        let long_ago = now - Duration::from_secs(50);
        let tenure = Tenure::new(long_ago, lease);
        assert!(tenure.holds_at(now));
        tenure.renewed(now);
        assert_eq!(tenure.until_us.load(Ordering::Relaxed) / 1_000_000, 110);
        // An answer that comes late does not make it shorter.
        tenure.renewed(long_ago);
        assert_eq!(tenure.until_us.load(Ordering::Relaxed) / 1_000_000, 110);
        tenure.end();
        tenure.renewed(now);
        assert!(!tenure.holds());
    }
}
