//! Metrics of a client, which its program can publish.

use fusee_core::stats::{OpKind, Stats};
use fusee_fabric::FabricKind;

use crate::logic::{CacheStats, SessionCounters, WorkTableStats};
use crate::prometheus::{MetricKind, Metrics};
#[cfg(feature = "telemetry")]
use crate::telemetry::LatencySums;

/// Counts of all sessions of a client since it joined, including ended ones
/// ([`Client::metrics`](crate::Client::metrics)). Operations are always counted, even if the counts are never read.
#[derive(Clone, Debug, Default)]
pub struct ClientMetrics {
    /// Number of the client's open sessions.
    pub sessions: u64,
    /// The fabric that all sessions of the client use.
    pub fabric: Option<FabricKind>,
    /// Whether every memory node lends shared memory on this host, but the pools were missing or closed to this
    /// process, so that another fabric was chosen ([`FabricChoice::Auto`](crate::FabricChoice::Auto)).
    pub is_shm_refused: bool,
    /// Numbers of the sessions' operations, and of the phases, verbs and bytes of these operations.
    pub stats: Stats,
    /// Accesses to the index caches, by outcome.
    pub cache: CacheStats,
    /// Requests that the work table treated, by outcome; `None` without a work table.
    pub work_table: Option<WorkTableStats>,
    /// Latencies of the sessions' operations.
    #[cfg(feature = "telemetry")]
    pub latencies: LatencySums,
}

impl ClientMetrics {
    pub(crate) fn add(&mut self, counted: &SessionCounters) {
        self.stats.merge(&counted.store.stats());
        self.cache.merge(&counted.cache.stats());
        #[cfg(feature = "telemetry")]
        self.latencies.add(&counted.latencies);
    }

    /// Adds the metrics to a page for Prometheus, as `fusee_client_...`.
    pub fn write(&self, metrics: &mut Metrics) {
        let ClientMetrics { sessions, fabric, is_shm_refused, stats, cache, .. } = self;
        metrics.one(
            MetricKind::Gauge,
            "fusee_client_sessions",
            "Sessions that are open.",
            sessions,
        );
        let help = "The fabric of its sessions.";
        let mut family = metrics.family(MetricKind::Gauge, "fusee_client_fabric", help);
        for kind in [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs] {
            family.sample(&[("fabric", &kind.to_string())], u8::from(*fabric == Some(kind)));
        }
        let help =
            "Whether shared memory was expected, and was not there or closed to this process.";
        metrics.one(MetricKind::Gauge, "fusee_client_shm_refused", help, u8::from(*is_shm_refused));
        let help = "Operations that ended.";
        let mut family = metrics.family(MetricKind::Counter, "fusee_client_operations_total", help);
        for kind in OpKind::ALL {
            family.sample(&[("kind", kind.name())], stats.kind(kind).operations);
        }
        let help = "Their phases: round trips.";
        let mut family = metrics.family(MetricKind::Counter, "fusee_client_phases_total", help);
        for kind in OpKind::ALL {
            family.sample(&[("kind", kind.name())], stats.kind(kind).phases);
        }
        let sum = |of: fn(&crate::KindStats) -> u64| -> u64 {
            OpKind::ALL.iter().map(|kind| of(stats.kind(*kind))).sum()
        };
        let damage = stats.damage();
        for (name, help, value) in [
            ("fusee_client_verbs_total", "Verbs.", sum(|kind| kind.verbs)),
            ("fusee_client_atomics_total", "CAS and FAA among them.", sum(|kind| kind.atomics)),
            ("fusee_client_verb_bytes_total", "Bytes that they moved.", sum(|kind| kind.bytes)),
            ("fusee_client_conflicts_total", "Rounds lost to others.", stats.lost_rounds()),
            ("fusee_client_damaged_replicas_total", "Replicas found damaged.", damage.found),
            ("fusee_client_repaired_replicas_total", "Of these, written anew.", damage.repaired),
            ("fusee_client_cache_accesses_total", "Accesses to index caches.", cache.accesses),
            ("fusee_client_cache_hints_total", "Those that used a hint.", cache.hints),
            ("fusee_client_cache_wrong_hints_total", "Hints that were wrong.", cache.wrong),
        ] {
            metrics.one(MetricKind::Counter, name, help, value);
        }
        #[cfg(feature = "telemetry")]
        {
            let help = "How long operations took, in seconds.";
            let name = "fusee_client_operation_seconds";
            let mut family = metrics.family(MetricKind::Histogram, name, help);
            for kind in OpKind::ALL.into_iter().filter(|kind| stats.kind(*kind).operations > 0) {
                family.histogram(("kind", kind.name()), &self.latencies.kind(kind));
            }
        }
    }
}
