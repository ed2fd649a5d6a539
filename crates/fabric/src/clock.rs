//! Clocks for leases: they only grow, and cost little to read.
//!
//! Whatever a lease rests on goes by one of these, in every process: `std::time::Instant` stands still while the
//! machine sleeps, and others do not wait for that (`docs/protocol.md`). Their values mean nothing but in
//! comparison with others of the same clock and process.

use std::time::Duration;

use crate::FabricKind;

/// A clock of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Goes on while the machine sleeps. Reading it costs some tens of nanoseconds.
    Precise,
    /// Behind by up to [`Clock::lag`], and cheap. Stands still while the machine sleeps.
    Coarse,
}

impl Clock {
    /// The clock for sessions over a fabric: beside accesses to memory the precise one would be felt, and
    /// there all memory nodes sleep when the session does.
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

    /// What it shows.
    #[inline]
    pub fn now(self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a timespec that the call fills in. Linux has had both clocks for longer than
        // anything else that we need of it; the result is checked all the same.
        let result = unsafe { libc::clock_gettime(self.id(), &mut time) };
        assert_eq!(result, 0, "Linux has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// How far it may be behind.
    pub fn lag(self) -> Duration {
        match self {
            Clock::Precise => Duration::ZERO,
            // A tick, of the slowest that kernels are built with.
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
