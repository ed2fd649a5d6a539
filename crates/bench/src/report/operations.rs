//! Latencies and costs of the operations of a phase.
//!
//! Costs (round trips, verbs) include every operation that ended; latencies include only operations that succeeded.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_client::{KindStats, OpKind};
use serde::Serialize;

use crate::driver::PhaseResult;
use crate::tally::Latencies;

/// The quantiles at which a latency distribution has a point, in addition to each hundredth.
const CDF_TAIL: [f64; 4] = [0.995, 0.999, 0.9999, 1.0];

/// Latencies and costs of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// Operations that succeeded.
    pub count: u64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
    /// 99.9th percentile of latency.
    pub p999_us: f64,
    /// Largest latency.
    pub max_us: f64,
    /// Mean round trips of an operation.
    pub phases_mean: f64,
    /// The most round trips that one operation took.
    pub phases_max: u32,
    /// Mean READs, WRITEs and atomics of an operation.
    pub verbs_mean: f64,
    /// Mean CASes and FAAs of an operation.
    pub atomics_mean: f64,
    /// Mean bytes that an operation moved.
    pub bytes_mean: f64,
    /// Points of the latency distribution: latency in microseconds, and share of operations that were not slower.
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

/// The results of a phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// Operations that succeeded.
    pub operations: u64,
    /// Time from the begin of the first operation to the end of the last operation, in seconds.
    pub duration_s: f64,
    /// Operations that succeeded, per second.
    pub throughput_ops_per_s: f64,
    /// Latencies and costs, by kind of operation.
    pub per_operation: BTreeMap<&'static str, OperationReport>,
}

impl PhaseReport {
    /// Creates the report of a phase, with latency distributions or without.
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

/// Returns a table of operations for people.
pub fn operations_table<'a>(
    rows: impl IntoIterator<Item = (&'a str, &'a OperationReport, Option<f64>)>,
) -> String {
    let mut text = format!(
        "{:<9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>12} {:>7} {:>8}\n",
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
            "{name:<9} {:>9} {rate:>9} {:>8.2} {:>8.2} {:>8.2} {:>9.1} {phases:>12} {:>7.2} {:>8.0}",
            op.count, op.p50_us, op.p99_us, op.p999_us, op.max_us, op.verbs_mean, op.bytes_mean
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The columns stay apart even with the large figures of a busy machine.
    #[test]
    fn columns_stay_apart_however_long_their_numbers_are() {
        let of = OperationReport {
            count: 12_345_678_901,
            p50_us: 18.82,
            p99_us: 160_301.05,
            p999_us: 1_160_301.05,
            max_us: 99_160_301.1,
            phases_mean: 12_345.67,
            phases_max: 4_000_000_000,
            verbs_mean: 1_234_567.89,
            atomics_mean: 0.0,
            bytes_mean: 123_456_789_012.0,
            cdf: Vec::new(),
        };
        let table = operations_table([("search_many", &of, Some(123_456_789_012.3))]);
        let row = table.lines().last().unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        let all = ["search_many", "12345678901", "123456789.0", "18.82", "160301.05", "1160301.05"];
        assert_eq!(cells[..6], all);
        assert_eq!(
            cells[6..],
            ["99160301.1", "12345.67", "(4000000000)", "1234567.89", "123456789012"]
        );
    }
}
