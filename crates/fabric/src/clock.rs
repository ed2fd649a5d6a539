//! Clocks for leases. They never go back and are cheap to read.
//!
//! Every process measures leases by one of these clocks. `std::time::Instant` is unsuitable: it stands still while
//! the machine sleeps, and other machines go on meanwhile. The end of "The session's side" in `docs/protocol.md`
//! has the argument about sleep. A value means something only in comparison with other values of the same clock in
//! the same process.

use std::time::Duration;

use crate::FabricKind;

/// A clock of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// A clock that also counts the time in which the machine sleeps. A read costs some tens of nanoseconds.
    Precise,
    /// A cheaper clock, behind by up to [`Clock::lag`]. It stands still while the machine sleeps.
    Coarse,
}

impl Clock {
    /// Returns the clock for sessions over a fabric. Over shared memory it is the coarse clock, because the session and
    /// its memory nodes sleep together, on one machine, and a read of the precise clock costs much compared to a verb.
    pub fn of(kind: FabricKind) -> Clock {
        match kind {
            FabricKind::Shm => Clock::Coarse,
            FabricKind::Tcp | FabricKind::Verbs => Clock::Precise,
        }
    }

    fn id(self) -> libc::clockid_t {
        match self {
            Clock::Precise => libc::CLOCK_BOOTTIME,
            Clock::Coarse => libc::CLOCK_MONOTONIC_COARSE,
        }
    }

    /// Returns the time that the clock shows now.
    #[inline]
    pub fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a live, writable timespec, which the call fills in. Both clocks are older than the
        // other Linux features that this crate needs; the result is checked nevertheless.
        let result = unsafe { libc::clock_gettime(self.id(), &mut time) };
        assert_eq!(result, 0, "Linux has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Returns the longest time by which the clock can be behind.
    pub fn lag(self) -> Duration {
        match self {
            Clock::Precise => Duration::ZERO,
            // The longest tick of timers that kernels are built with.
            Clock::Coarse => Duration::from_millis(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_on() {
        for clock in [Clock::Precise, Clock::Coarse] {
            let begun = std::time::Instant::now();
            let before = clock.now();
            std::thread::sleep(Duration::from_millis(30));
            let passed = clock.now() - before;
            let real = begun.elapsed();
            assert!(passed + clock.lag() >= Duration::from_millis(30), "{clock:?}: {passed:?}");
            assert!(passed <= real + clock.lag(), "{clock:?}: {passed:?} in {real:?}");
        }
    }
}
