//! The counters of a session, for other threads of its process to read.

use std::sync::Arc;

use fusee_core::stats::{Counters, SessionWork};

use super::cache::{CacheCounters, CacheStats};
use super::gate::WorkCounters;
use crate::telemetry::SessionLatencies;

/// The counters of a session.
#[derive(Debug)]
pub struct SessionCounters {
    /// Operations.
    pub store: Arc<Counters>,
    /// Accesses to its index cache.
    pub cache: Arc<CacheCounters>,
    /// Latencies of operations.
    pub latencies: Arc<SessionLatencies>,
}

impl WorkCounters for SessionCounters {
    fn work(&self) -> SessionWork {
        let CacheStats { accesses, hints, wrong, .. } = self.cache.stats();
        let mut work = SessionWork::from(&self.store.stats());
        work.add(&SessionWork {
            cache_accesses: accesses,
            hints,
            wrong_hints: wrong,
            ..SessionWork::default()
        });
        work
    }
}
