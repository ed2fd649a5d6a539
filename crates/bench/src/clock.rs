//! The clocks of the benchmarks, in nanoseconds.
//!
//! *Alone*, the processor's time-stamp counter: reading it costs about 10 ns, a third of
//! `Instant::now`; an operation on shared memory takes about a microsecond. Where the counter is
//! unusable, `quanta` falls back to the system's clock.
//!
//! *Shared*, for times that are compared between processes: the system's monotonic clock, which
//! is one for all processes of a host and costs twice as much.
//!
//! The counter is read out of order: the processor may read it while earlier instructions are
//! still under way, or later ones already. Latencies do not suffer from tens of nanoseconds, but
//! a verdict on which of two writes of two threads came first could be wrong. So a write counts
//! as begun [`SLACK_NS`] before it was seen to begin; that is more than a full reorder buffer of
//! cache misses, and than the offset between the counters of two cores. The monotonic clock waits
//! for earlier instructions and is corrected for the offset; what remains is that the first few
//! of the later ones may overtake it: [`SHARED_SLACK_NS`].

use rustix::time::{ClockId, clock_gettime};

/// The time by which a write may have begun earlier than measured, for the verifier.
pub const SLACK_NS: u64 = 1000;
/// The same for the shared clock, for the check of the whole history. The longer it is, the more
/// operations are falsely taken for concurrent.
pub const SHARED_SLACK_NS: u64 = 100;

/// Nanoseconds since the clock was made; the same for all its clones.
#[derive(Clone, Debug)]
pub enum BenchClock {
    /// For this process.
    Alone {
        /// The counter.
        clock: quanta::Clock,
        /// Its value in the beginning.
        origin: u64,
    },
    /// For all processes of this host.
    Shared {
        /// The value of the monotonic clock in the beginning.
        origin_ns: u64,
    },
}

impl BenchClock {
    /// Starts at [`SLACK_NS`], so that no write has begun before 0.
    pub fn start() -> BenchClock {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        BenchClock::Alone { clock, origin }
    }

    /// Returns the same time in all processes that pass the same [`monotonic_ns`].
    pub fn shared(origin_ns: u64) -> BenchClock {
        BenchClock::Shared { origin_ns }
    }

    /// Returns the nanoseconds.
    pub fn now(&self) -> u64 {
        let since = match self {
            BenchClock::Alone { clock, origin } => clock.delta_as_nanos(*origin, clock.raw()),
            BenchClock::Shared { origin_ns } => monotonic_ns().saturating_sub(*origin_ns),
        };
        since + SLACK_NS
    }
}

/// Returns the time of the system's monotonic clock.
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
