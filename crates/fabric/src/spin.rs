//! To look for news for a while before sleeping.
//!
//! To put a thread to sleep and wake it again costs more than a round trip in a fast network, so
//! both ends of a connection look a little longer first. Between two looks they yield: whoever
//! else can run on the processor may be the one they wait for. Where news come late, looking is
//! in vain, and soon hardly done any more. So it is where others keep the processors busy: who
//! yields gets the processor back after milliseconds, but who sleeps is woken at once.

use std::time::{Duration, Instant};

/// How long memory nodes and sessions look for news before they sleep.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// The most waits in a row that sleep at once.
const MOST_PAUSE: u32 = 1024;

/// How one thread waits, and what came of it.
#[derive(Debug)]
pub(crate) struct Spin {
    longest: Duration,
    /// Waits that sleep at once before the next that looks.
    pause: u32,
    /// The pause after the next time in vain: twice the one before.
    next_pause: u32,
}

impl Spin {
    /// Looks for at most `longest`; zero: not at all.
    pub(crate) fn new(longest: Duration) -> Spin {
        Spin { longest, pause: 0, next_pause: 1 }
    }

    /// Looks for at most so long from now on.
    pub(crate) fn set(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// Calls `look` until it is true or time is over; whether it was true.
    pub(crate) fn until(&mut self, mut look: impl FnMut() -> bool) -> bool {
        if self.pause > 0 || self.longest.is_zero() {
            self.pause = self.pause.saturating_sub(1);
            return false;
        }
        let start = Instant::now();
        let (found, in_time) = loop {
            let found = look();
            let in_time = start.elapsed() < self.longest;
            if found || !in_time {
                break (found, in_time);
            }
            std::thread::yield_now();
        };
        if in_time {
            self.next_pause = 1;
        } else {
            self.pause = self.next_pause;
            self.next_pause = (self.next_pause * 2).min(MOST_PAUSE);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many waits look, if this is what they see.
    fn looks(spin: &mut Spin, waits: u32, mut look: impl FnMut() -> bool) -> u32 {
        let mut looked = 0;
        for _ in 0..waits {
            let mut looks = false;
            spin.until(|| {
                looks = true;
                look()
            });
            looked += u32::from(looks);
        }
        looked
    }

    #[test]
    fn who_looks_in_vain_looks_less_and_less_and_who_finds_looks_again() {
        let mut spin = Spin::new(Duration::from_micros(1));
        let few = 5..40;
        assert!(few.contains(&looks(&mut spin, 10_000, || false)));
        let mut spin = Spin { longest: Duration::from_secs(10), ..spin };
        while !spin.until(|| true) {}
        assert_eq!(looks(&mut spin, 100, || true), 100);
    }

    #[test]
    fn who_finds_too_late_looks_less() {
        let mut spin = Spin::new(Duration::from_micros(1));
        let late = || {
            std::thread::sleep(Duration::from_micros(2));
            true
        };
        assert!(looks(&mut spin, 1000, late) < 20);
    }

    #[test]
    fn without_time_nobody_looks() {
        assert!(!Spin::new(Duration::ZERO).until(|| panic!("it looks")));
    }
}
