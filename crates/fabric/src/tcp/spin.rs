//! To look for news for a while before sleeping.
//!
//! To put a thread to sleep and wake it again costs more than a round trip in a fast network, so
//! both ends of a connection look a little longer first. Between two looks they yield: whoever
//! else can run on the processor may be the one they wait for. Where news come late, looking is
//! in vain, and soon hardly done any more.

use std::time::{Duration, Instant};

/// How long memory nodes and sessions look for news before they sleep.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// The most waits in a row that sleep at once.
const MOST_PAUSE: u32 = 256;

/// How one thread waits, and what came of it.
#[derive(Debug)]
pub(super) struct Spin {
    longest: Duration,
    /// Waits that sleep at once before the next that looks.
    pause: u32,
    /// The pause after the next time in vain: twice the one before.
    next_pause: u32,
}

impl Spin {
    /// Looks for at most `longest`; zero: not at all.
    pub(super) fn new(longest: Duration) -> Spin {
        Spin { longest, pause: 0, next_pause: 1 }
    }

    /// Calls `look` until it is true or time is over; whether it was true.
    pub(super) fn until(&mut self, mut look: impl FnMut() -> bool) -> bool {
        if self.pause > 0 || self.longest.is_zero() {
            self.pause = self.pause.saturating_sub(1);
            return false;
        }
        let start = Instant::now();
        loop {
            if look() {
                self.next_pause = 1;
                return true;
            }
            if start.elapsed() >= self.longest {
                self.pause = self.next_pause;
                self.next_pause = (self.next_pause * 2).min(MOST_PAUSE);
                return false;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_in_vain_looks_less_and_less_and_who_finds_looks_again() {
        let mut spin = Spin::new(Duration::from_nanos(1));
        let mut looked = 0;
        for _ in 0..10_000 {
            let mut looks = false;
            assert!(!spin.until(|| {
                looks = true;
                false
            }));
            looked += u32::from(looks);
        }
        assert!((10_000 / MOST_PAUSE..60).contains(&looked), "{looked}");
        while !spin.until(|| true) {}
        assert!(spin.until(|| true));
    }

    #[test]
    fn without_time_nobody_looks() {
        assert!(!Spin::new(Duration::ZERO).until(|| panic!("it looks")));
    }
}
