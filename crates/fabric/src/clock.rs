//! Clocks for leases. They never go back, and cost little to read.
//!
//! Every process measures leases by one of these clocks. `std::time::Instant` would not do: it stands still
//! while the machine sleeps, and other machines do not wait for that. The end of "The session's side" in
//! `docs/protocol.md` has the argument about sleep. A value means something only next to other values of the
//! same clock in the same process.

use std::time::Duration;

use crate::FabricKind;

/// A clock of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Counts the time in which the machine sleeps. A read costs some tens of nanoseconds.
    Precise,
    /// Behind by up to [`Clock::lag`], and cheap. Stands still while the machine sleeps.
    Coarse,
}

impl Clock {
    /// Returns the clock for sessions over a fabric. Over shared memory the coarse one does: the cost of the
    /// precise one would show beside accesses to memory, and all memory nodes sleep when the session does.
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

    /// Returns the time that the clock shows.
    #[inline]
    pub fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a timespec that the call fills in. Linux has had both clocks for longer than
        // anything else that we need of it; the result is checked all the same.
        let result = unsafe { libc::clock_gettime(self.id(), &mut time) };
        assert_eq!(result, 0, "Linux has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// Returns the most that the clock may be behind.
    pub fn lag(self) -> Duration {
        match self {
            Clock::Precise => Duration::ZERO,
            // One tick of the slowest timer that kernels are built with.
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
