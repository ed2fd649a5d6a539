//! The clock of the benchmarks: the processor's time-stamp counter, in nanoseconds.
//!
//! Reading it costs about 10 ns, a third of `Instant::now`; an operation on shared memory takes
//! about a microsecond. Where the counter is unusable, `quanta` falls back to the system's clock.
//!
//! The counter is read out of order: the processor may read it while earlier instructions are
//! still under way, or later ones already. Latencies do not suffer from tens of nanoseconds, but
//! a verdict on which of two writes of two threads came first could be wrong. So a write counts
//! as begun [`SLACK_NS`] before it was seen to begin; that is more than a full reorder buffer of
//! cache misses, and than the offset between the counters of two cores.

/// How much earlier than measured a write may have begun, for the verifier.
pub const SLACK_NS: u64 = 1000;

/// Nanoseconds since it was made; the same for all its clones.
#[derive(Clone, Debug)]
pub struct Clock {
    clock: quanta::Clock,
    origin: u64,
}

impl Clock {
    /// Starts at [`SLACK_NS`], so that no write has begun before 0.
    pub fn start() -> Clock {
        let clock = quanta::Clock::new();
        let origin = clock.raw();
        Clock { clock, origin }
    }

    /// Nanoseconds.
    pub fn now(&self) -> u64 {
        self.clock.delta_as_nanos(self.origin, self.clock.raw()) + SLACK_NS
    }
}
