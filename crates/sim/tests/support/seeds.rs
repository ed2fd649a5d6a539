//! The choice of seeds for histories that run under many schedules.

/// Without `FUSEE_TESTS=all`, one of this many seeds runs.
const SAMPLED: u64 = 4;

/// The seeds with which a test runs a history.
pub struct Seeds {
    seeds: std::ops::Range<u64>,
    /// Whether these are all seeds of the test, so that counts of events are those that the test expects.
    pub are_all: bool,
}

impl Seeds {
    /// Returns the seed that `FUSEE_SIM_SEED` names; else the first `all` seeds, or a quarter of them without
    /// `FUSEE_TESTS=all`.
    pub fn of(all: u64) -> Seeds {
        if let Ok(seed) = std::env::var("FUSEE_SIM_SEED") {
            let seed: u64 = seed.parse().expect("FUSEE_SIM_SEED is a number");
            return Seeds { seeds: seed..seed + 1, are_all: false };
        }
        let are_all = std::env::var("FUSEE_TESTS").is_ok_and(|value| value == "all");
        Seeds { seeds: 0..if are_all { all } else { all.div_ceil(SAMPLED) }, are_all }
    }

    /// Calls `run` with each seed. If it panics, prints how to repeat the seed.
    pub fn for_each(self, mut run: impl FnMut(u64)) {
        for seed in self.seeds {
            let run = std::panic::AssertUnwindSafe(|| run(seed));
            std::panic::catch_unwind(run).unwrap_or_else(|panic| {
                eprintln!("failed: FUSEE_SIM_SEED={seed}");
                std::panic::resume_unwind(panic)
            });
        }
    }
}
