//! How long a master may believe that it leads.
//!
//! Its lease runs out at etcd a fixed time after the last renewal that etcd took. The master
//! counts from when it *sent* that renewal, so as long as clocks run at about the same speed it
//! gives up before anybody else can be elected. A process that was stopped and goes on has no
//! such luck, and neither has one whose clock is slow: they are kept from harm by the guard of
//! every write (see `store::etcd`), not by this.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often somebody who waits for the end looks.
const LOOK: Duration = Duration::from_millis(20);

/// A term of office, as far as the own clock can tell. It can be made longer, and be ended, for
/// good.
#[derive(Debug)]
pub(crate) struct Tenure {
    begun: Instant,
    /// Microseconds from `begun`; 0 once it is over.
    until_us: AtomicU64,
    lease: Duration,
}

impl Tenure {
    /// A lease that was asked for at `asked`.
    pub fn new(asked: Instant, lease: Duration) -> Tenure {
        let until_us = AtomicU64::new(lease.as_micros() as u64);
        Tenure { begun: asked, until_us, lease }
    }

    /// How long it lasts after a renewal.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Whether it is not over.
    pub fn holds(&self) -> bool {
        // Relaxed: the number is all there is to know.
        self.begun.elapsed().as_micros() < u128::from(self.until_us.load(Ordering::Relaxed))
    }

    /// A renewal that was sent at `sent` has been taken. Nothing revives a tenure that is over: a
    /// late renewal may be of a lease that nobody acts under any more.
    pub fn renewed(&self, sent: Instant) {
        let until = sent.saturating_duration_since(self.begun) + self.lease;
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
    fn a_tenure_counts_from_when_the_renewal_was_sent_and_is_not_revived() {
        let lease = Duration::from_secs(60);
        let now = Instant::now();
        let long_ago = now.checked_sub(Duration::from_secs(50)).unwrap();
        let tenure = Tenure::new(long_ago, lease);
        assert!(tenure.holds());
        tenure.renewed(now);
        assert_eq!(tenure.until_us.load(Ordering::Relaxed) / 1_000_000, 110);
        // An answer that comes late does not make it shorter.
        tenure.renewed(long_ago);
        assert_eq!(tenure.until_us.load(Ordering::Relaxed) / 1_000_000, 110);
        tenure.end();
        tenure.renewed(Instant::now());
        assert!(!tenure.holds());
        let expired = Tenure::new(now.checked_sub(2 * lease).unwrap(), lease);
        assert!(!expired.holds());
        expired.renewed(Instant::now());
        assert!(!expired.holds(), "an expired tenure came back");
    }
}
