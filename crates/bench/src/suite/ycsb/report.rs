//! What the YCSB benchmark tells.

use serde::Serialize;

use crate::check::CheckReport;
use crate::machine::Machine;
use crate::report::{ClusterReport, OperationReport, PhaseReport, Verdict, operations_table};
use crate::zipf::Distribution;

/// What was asked for.
#[derive(Serialize)]
pub struct Settings {
    pub keys: u64,
    pub pair_bytes: usize,
    pub operations: Option<u64>,
    pub seconds: Option<f64>,
    pub processes: u16,
    pub threads: u16,
    pub coroutines: u16,
    pub distribution: Distribution,
    pub theta: f64,
    pub seed: u64,
    pub cache_entries: usize,
    pub cache_threshold: f64,
    /// The most operations that are recorded, if they are.
    pub check_ops: Option<u64>,
}

/// What came out.
#[derive(Serialize)]
pub struct Report {
    pub benchmark: &'static str,
    pub version: &'static str,
    pub workload: String,
    pub settings: Settings,
    pub machine: Machine,
    pub fabric: String,
    pub cluster: ClusterReport,
    pub load: PhaseReport,
    /// `operations`, `seconds`, `memory` (of an embedded cluster), `check_ops`, `errors` or
    /// `interrupted`.
    pub ended_by: &'static str,
    #[serde(flatten)]
    pub run: PhaseReport,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub check: Option<CheckReport>,
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let settings = &self.settings;
        let ended = match self.ended_by {
            "memory" => ", ended early: the memory for writes was used up",
            "errors" => ", ended early: too many errors",
            "check_ops" => ", ended early: no more operations are recorded (--check-ops)",
            "interrupted" => ", INTERRUPTED",
            _ => "",
        };
        let processes = match settings.processes {
            1 => String::new(),
            processes => format!("{processes} processes, together "),
        };
        let check = self.check.as_ref().map(CheckReport::table).unwrap_or_default();
        let rows = self.run.per_operation.iter();
        let rows = rows.map(|(name, op)| (*name, op, Some(op.count as f64 / self.run.duration_s)));
        let rows: Vec<(&str, &OperationReport, Option<f64>)> = rows.collect();
        format!(
            "YCSB {}: {} keys, pairs of {} bytes, {}{} threads x {} coroutines\n\n{}\
             load        {} keys in {:.2} s\n\
             run         {} operations in {:.2} s: {:.1} kops/s{ended}\n{}{check}\n{}",
            self.workload,
            settings.keys,
            settings.pair_bytes,
            processes,
            settings.threads,
            settings.coroutines,
            self.cluster.line(&self.fabric, &self.machine),
            self.load.operations,
            self.load.duration_s,
            self.run.operations,
            self.run.duration_s,
            self.run.throughput_ops_per_s / 1000.0,
            self.verdict.table(),
            operations_table(rows),
        )
    }
}
