//! Operations of a phase: what they took, and what they cost.
//!
//! Costs (phases, verbs) count every operation that ended, latencies those that succeeded.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_client::{KindStats, OpKind};
use serde::Serialize;

use crate::driver::PhaseResult;
use crate::tally::Latencies;

/// A distribution function has a point per hundredth, and these.
const CDF_TAIL: [f64; 4] = [0.995, 0.999, 0.9999, 1.0];

/// What one kind of operation took and cost.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// Operations that succeeded.
    pub count: u64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// Round trips, on average.
    pub phases_mean: f64,
    /// The most round trips that one operation took.
    pub phases_max: u32,
    /// READs, WRITEs and atomics, on average.
    pub verbs_mean: f64,
    /// CASes and FAAs, on average.
    pub atomics_mean: f64,
    /// Bytes moved, on average.
    pub bytes_mean: f64,
    /// Points (latency in microseconds, share of operations that were not slower).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cdf: Vec<(f64, f64)>,
}

impl OperationReport {
    fn new(latencies: &Latencies, cost: &KindStats, with_cdf: bool) -> OperationReport {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        let mean = |sum: u64| sum as f64 / cost.operations.max(1) as f64;
        let points = (0..100).map(|percent| f64::from(percent) / 100.0).chain(CDF_TAIL);
        let cdf = points.filter(|_| with_cdf).map(|share| (us(share), share)).collect();
        OperationReport {
            count: latencies.len(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: latencies.max() as f64 / 1000.0,
            phases_mean: mean(cost.phases),
            phases_max: cost.max_phases,
            verbs_mean: mean(cost.verbs),
            atomics_mean: mean(cost.atomics),
            bytes_mean: mean(cost.bytes),
            cdf,
        }
    }
}

/// What a phase gave.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// Operations that succeeded.
    pub operations: u64,
    /// From the first operation to the end of the last.
    pub duration_s: f64,
    /// Operations that succeeded, by the second.
    pub throughput_ops_per_s: f64,
    /// By kind.
    pub per_operation: BTreeMap<&'static str, OperationReport>,
}

impl PhaseReport {
    /// Of a phase, with distribution functions or without.
    pub fn new(result: &PhaseResult, with_cdf: bool) -> PhaseReport {
        let operations = result.tally.operations();
        let duration_s = result.duration.as_secs_f64();
        let kinds = OpKind::ALL.into_iter().filter_map(|kind| {
            let latencies = result.tally.latencies(kind)?;
            let cost = &result.costs[kind as usize];
            Some((kind.name(), OperationReport::new(latencies, cost, with_cdf)))
        });
        PhaseReport {
            operations,
            duration_s,
            throughput_ops_per_s: operations as f64 / duration_s.max(1e-9),
            per_operation: kinds.collect(),
        }
    }
}

/// A table of operations for people.
pub fn operations_table<'a>(
    rows: impl IntoIterator<Item = (&'a str, &'a OperationReport, Option<f64>)>,
) -> String {
    let mut text = format!(
        "{:<9}{:>10}{:>10}{:>9}{:>9}{:>9}{:>10}{:>13}{:>8}{:>9}\n",
        "",
        "count",
        "kops/s",
        "p50 us",
        "p99 us",
        "p99.9",
        "max us",
        "phases(max)",
        "verbs",
        "bytes"
    );
    for (name, op, throughput) in rows {
        let rate = throughput.map_or("-".into(), |t| format!("{:.1}", t / 1000.0));
        let phases = format!("{:.2} ({})", op.phases_mean, op.phases_max);
        let _ = writeln!(
            text,
            "{name:<9}{:>10}{rate:>10}{:>9.2}{:>9.2}{:>9.2}{:>10.1}{phases:>13}{:>8.2}{:>9.0}",
            op.count, op.p50_us, op.p99_us, op.p999_us, op.max_us, op.verbs_mean, op.bytes_mean
        );
    }
    text
}
