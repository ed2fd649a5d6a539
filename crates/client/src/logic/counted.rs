//! The counters of a session, for other threads of its process to read.

use std::sync::Arc;

use fusee_core::stats::{Counters, Work};

use super::cache::{CacheCounters, CacheStats};
use super::gate::Counts;
use crate::telemetry::Latencies;

/// The counters of a session.
#[derive(Debug)]
pub struct Counted {
    /// Operations.
    pub store: Arc<Counters>,
    /// Accesses to its index cache.
    pub cache: Arc<CacheCounters>,
    /// Latencies of operations.
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
