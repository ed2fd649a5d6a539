//! Where a session counts, for other threads of its process to look at.

use std::sync::Arc;

use fusee_core::stats::{Counters, Work};

use super::cache::{CacheCounters, CacheStats};
use super::gate::Counts;
use crate::telemetry::Latencies;

/// What a session counts.
#[derive(Debug)]
pub struct Counted {
    /// Operations.
    pub store: Arc<Counters>,
    /// Accesses to its index cache.
    pub cache: Arc<CacheCounters>,
    /// How long operations took.
    pub latencies: Arc<Latencies>,
}

impl Counts for Counted {
    fn work(&self) -> Work {
        let CacheStats { accesses, hints, wrong, .. } = self.cache.stats();
        let mut work = Work::from(&self.store.stats());
        work.add(&Work { cache_accesses: accesses, hints, wrong_hints: wrong, ..Work::default() });
        work
    }
}
