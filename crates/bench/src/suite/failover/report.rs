//! The report of `fusee-bench failover`.

use std::fmt::Write as _;

use fusee_cli::quantity::count_with_noun;
use serde::Serialize;

use super::FailoverArgs;
use super::pauses::Pauses;
use crate::check::CheckReport;
use crate::report::{BenchFindings, BenchReport, ErrorCounts};

/// The durations of the stages of the change, in milliseconds, as the master measured them.
#[derive(Debug, Serialize)]
pub struct FailoverStageTimes {
    pub subtables: u64,
    pub frozen_ms: u64,
    pub transforming_ms: u64,
    pub switched_ms: u64,
}

/// The operations of the sessions in a period.
#[derive(Debug, Serialize)]
pub struct FailoverPeriod {
    /// Operations that were answered.
    pub operations: u64,
    /// The number of reads among these operations.
    pub searches: u64,
    /// The longest times without an acknowledged write.
    pub writes: Pauses,
    /// The longest times without an answered read.
    pub reads: Pauses,
}

/// Memory nodes that were killed at the same time, and what happened afterwards.
#[derive(Debug, Serialize)]
pub struct FailoverLoss {
    pub nodes: Vec<String>,
    /// The period until the next nodes are killed, or until the load ends.
    #[serde(flatten)]
    pub period: FailoverPeriod,
    /// The time from the kill until the sessions had a stable view without these nodes.
    pub stable_ms: Option<f64>,
    pub stages: Option<FailoverStageTimes>,
    /// The time from the kill until no replica or column was missing; `None` if that never happened.
    pub whole_ms: Option<f64>,
    /// Number of subtables that lack a replica at the end, and of regions that lack a replica or a column.
    pub missing_replicas: u64,
}

/// The results.
#[derive(Debug, Serialize)]
pub struct FailoverReport {
    /// The period before the first kill, for comparison.
    pub before: FailoverPeriod,
    /// The losses, in the order in which the nodes were killed.
    pub losses: Vec<FailoverLoss>,
    /// Number of sessions that replaced lost sessions.
    pub sessions_again: u64,
    pub errors: ErrorCounts,
    pub acknowledged_writes: u64,
    /// Keys whose final value contradicts the acknowledged writes.
    pub lost_writes: u64,
    /// Number of reads during the run whose value contradicts the writes.
    pub wrong_reads: u64,
    pub verified_keys: u64,
    pub linearizable: bool,
    pub check: CheckReport,
    /// Other problems, which fail the run.
    pub problems: Vec<String>,
    /// Descriptions of some errors and wrong values.
    pub examples: Vec<String>,
}

impl BenchFindings for FailoverReport {
    type Settings = FailoverArgs;

    fn title(report: &BenchReport<'_, FailoverReport>) -> String {
        let FailoverArgs { keys, threads, rate, spare, redundancy, cluster, .. } = report.settings;
        let nodes = cluster.memory_nodes();
        let losses = report.settings.losses();
        let spare = match (*spare, losses) {
            (false, _) => String::new(),
            (true, 1) => " and a spare".into(),
            (true, _) => format!(" and {losses} spares"),
        };
        let killed = report.findings.losses.iter().map(|loss| loss.nodes.join(" and "));
        format!(
            "kill -9 of {} in a cluster of {nodes} memory nodes{spare}, under YCSB A:\n\
             {keys} keys, pairs of {} bytes, {redundancy}, {}, {rate} operations a second",
            killed.collect::<Vec<_>>().join(", then "),
            cluster.pair_bytes,
            count_with_noun(*threads, "session"),
        )
    }

    fn summary(report: &BenchReport<'_, FailoverReport>) -> String {
        let found = &report.findings;
        let mut text = String::new();
        found.before.tell(&mut text, "before");
        found.losses.iter().for_each(|loss| loss.tell(&mut text));
        found.answers(&mut text);
        text
    }

    fn problems(&self) -> Vec<String> {
        let mut wrong = self.problems.clone();
        if self.lost_writes > 0 || self.wrong_reads > 0 {
            let lost = self.lost_writes;
            let reads = self.wrong_reads;
            wrong.push(format!("{lost} lost writes, {reads} wrong reads"));
        }
        if !self.linearizable {
            let bad = self.check.violations;
            let undecided = self.check.undecided_keys;
            wrong.push(format!("{bad} keys are not linearizable, {undecided} undecided"));
        }
        wrong
    }
}

impl FailoverReport {
    fn answers(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "errors      {}, {} opened again",
            self.errors.total,
            count_with_noun(self.sessions_again, "session")
        );
        for (kind, count) in &self.errors.by_kind {
            let _ = writeln!(text, "            {count} x {kind}");
        }
        let _ = writeln!(
            text,
            "lost        {} of {} acknowledged writes ({} keys read back); {} wrong reads",
            self.lost_writes, self.acknowledged_writes, self.verified_keys, self.wrong_reads
        );
        for example in self.problems.iter().chain(&self.examples) {
            let _ = writeln!(text, "            {example}");
        }
        let check = &self.check;
        let _ = writeln!(
            text,
            "linearizable  {}: {} operations on {} keys checked, {} pending, {} violations \
             ({:.2} s)",
            if self.linearizable { "yes" } else { "NO" },
            check.operations,
            check.keys,
            check.pending,
            check.violations,
            check.duration_s
        );
        for line in check.explanation.iter().flat_map(|text| text.lines()) {
            let _ = writeln!(text, "            {line}");
        }
    }
}

impl FailoverPeriod {
    fn tell(&self, text: &mut String, name: &str) {
        let FailoverPeriod { operations, writes, reads, .. } = self;
        let _ = writeln!(
            text,
            "{name:<12}{operations} operations; no write for {:.1} ms at most, no read for {:.1} ms; \
             of one session {:.1} and {:.1} ms",
            writes.overall_ms,
            reads.overall_ms,
            writes.worst_session_ms(),
            reads.worst_session_ms()
        );
    }
}

impl FailoverLoss {
    fn tell(&self, text: &mut String) {
        let _ = writeln!(text, "killed      {}", self.nodes.join(", "));
        self.period.tell(text, "  then");
        match self.stable_ms {
            Some(ms) => {
                let _ = write!(text, "  view      stable again {ms:.1} ms after the kill");
            }
            None => text.push_str("  view      NOT stable again"),
        }
        if let Some(stages) = &self.stages {
            let _ = write!(
                text,
                " (frozen {} ms, transforming {} ms, switched {} ms; {} subtables)",
                stages.frozen_ms, stages.transforming_ms, stages.switched_ms, stages.subtables
            );
        }
        let _ = match self.whole_ms {
            Some(ms) => writeln!(text, "\n  replicas  all there again after {:.2} s", ms / 1000.0),
            None => writeln!(
                text,
                "\n  replicas  {} subtables and regions lack a replica or a column, for want of room \
                 (--spare adds memory nodes)",
                self.missing_replicas
            ),
        };
    }
}
