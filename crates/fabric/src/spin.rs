//! Spinning before a thread sleeps.
//!
//! Putting a thread to sleep and waking it again costs more than a round trip in a fast network. So both ends of a
//! connection first spin for a while: they check for messages, and yield between two checks, because the thread
//! that will send the message possibly needs this processor. If messages come late, spinning is in vain, and is soon
//! almost given up. It is also given up if other threads keep the processors busy: a thread that yields gets the
//! processor back only after milliseconds, but a thread that sleeps is woken at once.

// Promise FAB-4: TCP sessions stop spinning where it does not pay.

use std::time::{Duration, Instant};

/// The default time for which memory nodes and sessions spin before they sleep.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// The longest pause: the number of consecutive waits that sleep without spinning first.
const MOST_PAUSE: u32 = 1024;

/// The spinning of one thread. It adapts to the success of the thread's earlier waits.
#[derive(Debug)]
pub(crate) struct Spin {
    longest: Duration,
    /// The number of waits that will sleep without spinning before the next wait that spins.
    pause: u32,
    /// The length of the pause after the next spin in vain. It doubles with each spin in vain.
    next_pause: u32,
}

impl Spin {
    /// Makes a `Spin` that spins for at most `longest`; zero: not at all.
    pub(crate) fn new(longest: Duration) -> Spin {
        Spin { longest, pause: 0, next_pause: 1 }
    }

    /// Sets the longest time for which the thread spins before a sleep.
    pub(crate) fn set(&mut self, longest: Duration) {
        self.longest = longest;
    }

    /// Calls `look` until it returns true or the time is up. Returns whether `look` returned true.
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

    /// Returns in how many of `waits` waits `look` is called at all.
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
