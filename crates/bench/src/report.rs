//! What a benchmark tells: a table for people, or one JSON object for programs.
//!
//! Units are in the names: `_us` microseconds, `_s` seconds, `_bytes` bytes. Operations have the
//! paper's names: search, insert, update, delete. Costs (phases, verbs) count every operation
//! that ended, latencies those that succeeded.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_client::{KindStats, OpKind};
use serde::Serialize;

use super::driver::PhaseResult;
use super::machine::Machine;
use super::tally::{Latencies, Tally};

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

/// What went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Errors {
    /// Operations that failed.
    pub total: u64,
    /// By the kind of error.
    pub by_kind: BTreeMap<String, u64>,
}

/// Whether the store kept what it acknowledged.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Operations that failed, of all phases.
    pub errors: Errors,
    /// Keys that were read back at the end.
    pub verified_keys: u64,
    /// Values that must not be there, during the run or at the end.
    pub mismatches: u64,
    /// By what was wrong.
    pub mismatches_by_kind: BTreeMap<String, u64>,
    /// Some errors and mismatches in words.
    pub examples: Vec<String>,
    /// Steps after the measurement that could not be done: reading all keys back, removing them.
    pub problems: Vec<String>,
}

impl Verdict {
    /// Of a tally of everything.
    pub fn new(tally: &Tally, verified_keys: u64, problems: Vec<String>) -> Verdict {
        Verdict {
            errors: Errors { total: tally.error_count(), by_kind: tally.errors.clone() },
            verified_keys,
            mismatches: tally.mismatch_count(),
            mismatches_by_kind: tally.mismatches.clone(),
            examples: tally.examples.clone(),
            problems,
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "verified    {} keys read back, {} mismatches, {} errors\n",
            self.verified_keys, self.mismatches, self.errors.total
        );
        for (kind, count) in self.errors.by_kind.iter().chain(&self.mismatches_by_kind) {
            let _ = writeln!(text, "            {count} x {kind}");
        }
        for example in self.problems.iter().chain(&self.examples) {
            let _ = writeln!(text, "            {example}");
        }
        text
    }
}

/// The cluster that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterReport {
    /// Whether it ran inside the benchmark's process.
    pub embedded: bool,
    /// Whether the benchmark started its processes.
    pub started: bool,
    /// Memory nodes.
    pub memory_nodes: usize,
    /// Replicas of the index.
    pub index_replicas: usize,
    /// Replicas of keys and values.
    pub data_replicas: usize,
    /// Memory that all nodes lend.
    pub pool_bytes: u64,
}

impl ClusterReport {
    /// For people.
    pub fn line(&self, fabric: &str, machine: &Machine) -> String {
        format!(
            "cluster     {} memory nodes, {} index and {} data replicas, {fabric}{}\n\
             machine     {} cores, {}\n",
            self.memory_nodes,
            self.index_replicas,
            self.data_replicas,
            match (self.embedded, self.started) {
                (true, _) => ", in this process",
                (_, true) => ", started for this run",
                _ => "",
            },
            machine.cores,
            machine.cpu
        )
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
