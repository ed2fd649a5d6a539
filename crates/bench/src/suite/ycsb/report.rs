//! What the YCSB benchmark tells.

use serde::Serialize;

use super::Args;
use crate::check::CheckReport;
use crate::report::{Findings, OperationReport, PhaseReport, Report, operations_table};

/// What came out.
#[derive(Serialize)]
pub struct Found {
    pub workload: String,
    pub load: PhaseReport,
    /// `operations`, `seconds`, `memory` (of an embedded cluster), `check_ops`, `errors` or
    /// `interrupted`.
    pub ended_by: &'static str,
    #[serde(flatten)]
    pub run: PhaseReport,
    pub check: Option<CheckReport>,
}

impl Findings for Found {
    type Settings = Args;

    fn title(report: &Report<'_, Found>) -> String {
        let Args { keys, processes, load, .. } = report.settings;
        let processes = match processes {
            1 => String::new(),
            processes => format!("{processes} processes, together "),
        };
        format!(
            "YCSB {}: {keys} keys, pairs of {} bytes, {processes}{} threads x {} coroutines",
            report.findings.workload, load.pair_bytes, load.threads, load.coroutines,
        )
    }

    fn summary(report: &Report<'_, Found>) -> String {
        let Found { load, run, ended_by, .. } = &report.findings;
        let ended = match *ended_by {
            "memory" => ", ended early: the memory for writes was used up",
            "errors" => ", ended early: too many errors",
            "check_ops" => ", ended early: no more operations are recorded (--check-ops)",
            "interrupted" => ", INTERRUPTED",
            _ => "",
        };
        format!(
            "load        {} keys in {:.2} s\n\
             run         {} operations in {:.2} s: {:.1} kops/s{ended}\n",
            load.operations,
            load.duration_s,
            run.operations,
            run.duration_s,
            run.throughput_ops_per_s / 1000.0,
        )
    }

    fn rows(report: &Report<'_, Found>) -> String {
        let Found { run, check, .. } = &report.findings;
        let check = check.as_ref().map(CheckReport::table).unwrap_or_default();
        let rows = run.per_operation.iter();
        let rows = rows.map(|(name, op)| (*name, op, Some(op.count as f64 / run.duration_s)));
        let rows: Vec<(&str, &OperationReport, Option<f64>)> = rows.collect();
        format!("{check}\n{}", operations_table(rows))
    }

    fn problems(&self) -> Vec<String> {
        self.check.iter().flat_map(CheckReport::problems).collect()
    }
}
