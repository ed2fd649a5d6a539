//! The report of the YCSB benchmark.

use serde::Serialize;

use super::YcsbArgs;
use super::drivers::YcsbDrivers;
use crate::check::CheckReport;
use crate::report::{BenchFindings, BenchReport, OperationReport, PhaseReport, operations_table};

/// The results.
#[derive(Serialize)]
pub struct YcsbReport {
    /// The name of the workload, or `files`.
    pub workload: String,
    /// Number of lines in the file of operations, which is repeated as often as the run takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_operations: Option<u64>,
    pub load: PhaseReport,
    /// Why the run ended: `operations`, `seconds`, `memory` (of an embedded cluster), `check_ops`, `errors` or
    /// `interrupted`.
    pub ended_by: &'static str,
    #[serde(flatten)]
    pub run: PhaseReport,
    pub check: Option<CheckReport>,
    /// The drivers, if there were several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<YcsbDrivers>,
}

impl BenchFindings for YcsbReport {
    type Settings = YcsbArgs;

    fn title(report: &BenchReport<'_, YcsbReport>) -> String {
        let YcsbArgs { keys, processes, join, load, load_file, trans_file, .. } = report.settings;
        let processes = match (join, processes) {
            (Some(drivers), _) => format!("{drivers} drivers, each "),
            (None, 1) => String::new(),
            (None, processes) => format!("{processes} processes, together "),
        };
        let what = match (&load_file, &trans_file) {
            (Some(load), Some(trans)) => format!("of {} and {}", load.display(), trans.display()),
            _ => report.findings.workload.clone(),
        };
        format!(
            "YCSB {what}: {keys} keys, pairs of {} bytes, {processes}{} threads x {} coroutines",
            load.pair_bytes, load.threads, load.coroutines,
        )
    }

    fn summary(report: &BenchReport<'_, YcsbReport>) -> String {
        let YcsbReport { load, run, ended_by, file_operations, .. } = &report.findings;
        let times = file_operations.map_or_else(String::new, |lines| {
            format!(", {:.2} times the file", run.operations as f64 / lines as f64)
        });
        let ended = match *ended_by {
            "memory" => ", ended early: the memory for writes was used up",
            "errors" => ", ended early: too many errors",
            "check_ops" => ", ended early: no more operations are recorded (--check-ops)",
            "interrupted" => ", INTERRUPTED",
            _ => "",
        };
        let together =
            report.findings.together.as_ref().map(YcsbDrivers::table).unwrap_or_default();
        format!(
            "{together}load        {} keys in {:.2} s\n\
             run         {} operations in {:.2} s: {:.1} kops/s{times}{ended}\n",
            load.operations,
            load.duration_s,
            run.operations,
            run.duration_s,
            run.throughput_ops_per_s / 1000.0,
        )
    }

    fn rows(report: &BenchReport<'_, YcsbReport>) -> String {
        let YcsbReport { run, check, .. } = &report.findings;
        let check = check.as_ref().map(CheckReport::table).unwrap_or_default();
        let rows = run.per_operation.iter();
        let rows = rows.map(|(name, op)| (*name, op, Some(op.count as f64 / run.duration_s)));
        let rows: Vec<(&str, &OperationReport, Option<f64>)> = rows.collect();
        format!("{check}\n{}", operations_table(rows))
    }

    fn was_interrupted(&self) -> bool {
        self.together.as_ref().is_some_and(|together| together.interrupted.is_some())
    }

    fn problems(&self) -> Vec<String> {
        let interrupted = self.together.iter().filter_map(|together| together.interrupted.clone());
        self.check.iter().flat_map(CheckReport::problems).chain(interrupted).collect()
    }
}
