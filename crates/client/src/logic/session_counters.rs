//! The counters of a session, which other threads of its process can read.

use std::sync::Arc;

use fusee_core::stats::{Counters, SessionWork};

use super::cache::{CacheCounters, CacheStats};
use super::gate::WorkCounters;
use crate::telemetry::SessionLatencies;

/// The counters of a session.
#[derive(Debug)]
pub struct SessionCounters {
    /// Counters of the session's operations.
    pub store: Arc<Counters>,
    /// Counters of accesses to the session's index cache.
    pub cache: Arc<CacheCounters>,
    /// Latencies of the session's operations.
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
