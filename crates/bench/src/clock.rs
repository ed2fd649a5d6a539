//! The clocks of the benchmarks, in nanoseconds.
//!
//! *Alone*: for the times of one process, the processor's time-stamp counter. Reading the counter costs about 10 ns, a
//! third of `Instant::now`, while an operation on shared memory takes about a microsecond. If the counter is unusable,
//! `quanta` falls back to the system's clock.
//!
//! *Shared*: for times that are compared between processes, the system's monotonic clock. All processes of a host have
//! the same monotonic clock, and reading it costs twice as much.
//!
//! The counter is read out of order: the processor can read it while earlier instructions still run, or after later
//! instructions have started. An error of tens of nanoseconds does not matter for latencies, but it could make the
//! verifier take the later of two threads' writes for the earlier one. Therefore the verifier assumes that a write
//! began [`SLACK_NS`] before its measured begin. This is longer than a full reorder buffer of cache misses takes, and
//! longer than the offset between the counters of two cores. The monotonic clock waits for earlier instructions, and is
//! corrected for the offset; only a few later instructions can still overtake the read, for which [`SHARED_SLACK_NS`]
//! allows.

use rustix::time::{ClockId, clock_gettime};

/// The verifier assumes that a write began up to this long before its measured begin.
pub const SLACK_NS: u64 = 1000;
/// The check of the whole history assumes that a write began up to this long before its begin by the shared clock. The
/// longer this time is, the more operations are wrongly taken for concurrent.
pub const SHARED_SLACK_NS: u64 = 100;

/// A clock of nanoseconds since its creation; all clones of a clock show the same time.
#[derive(Clone, Debug)]
pub enum BenchClock {
    /// A clock for this process.
    Alone {
        /// Reads the time-stamp counter.
        clock: quanta::Clock,
        /// The counter's value at the creation of this clock.
        origin: u64,
    },
    /// A clock for all processes of this host.
    Shared {
        /// The value of the monotonic clock at the start of this clock.
        origin_ns: u64,
    },
}

impl BenchClock {
    /// Creates a clock that starts at [`SLACK_NS`], so that no write seems to begin before 0.
    pub fn start() -> BenchClock {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        BenchClock::Alone { clock, origin }
    }

    /// Returns a clock that shows the same time in all processes that pass the same [`monotonic_ns`].
    pub fn shared(origin_ns: u64) -> BenchClock {
        BenchClock::Shared { origin_ns }
    }

    /// Returns the time of this clock.
    pub fn now(&self) -> u64 {
        let since = match self {
            BenchClock::Alone { clock, origin } => clock.delta_as_nanos(*origin, clock.raw()),
            BenchClock::Shared { origin_ns } => monotonic_ns().saturating_sub(*origin_ns),
        };
        since + SLACK_NS
    }
}

/// Returns the time of the system's monotonic clock, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
