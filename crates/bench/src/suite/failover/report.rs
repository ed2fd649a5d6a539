//! What `bench failover` tells.

use std::fmt::Write as _;

use fusee_cli::quantity::counted;
use serde::Serialize;

use super::Args;
use super::gaps::Pauses;
use crate::check::CheckReport;
use crate::report::{Errors, Findings, Report};

/// The stages of the change, in milliseconds, as the master measured them.
#[derive(Debug, Serialize)]
pub struct Stages {
    pub subtables: u64,
    pub frozen_ms: u64,
    pub transforming_ms: u64,
    pub switched_ms: u64,
}

/// What came out.
#[derive(Debug, Serialize)]
pub struct Found {
    /// The memory node that was killed.
    pub victim: String,
    /// The longest times without an acknowledged write before the kill, for comparison.
    pub pauses_before: Pauses,
    /// And from the kill to the end of the load.
    pub pauses_after: Pauses,
    /// From the kill until the sessions had a stable view without the victim.
    pub stable_ms: Option<f64>,
    pub stages: Option<Stages>,
    /// From the kill until nothing lacked a replica; `None` if that did not come about.
    pub whole_ms: Option<f64>,
    /// Subtables and regions that lack a replica in the end.
    pub missing_replicas: u64,
    pub operations_before: u64,
    pub operations_after: u64,
    /// Sessions that took the place of others.
    pub sessions_again: u64,
    pub errors: Errors,
    pub acknowledged_writes: u64,
    /// Keys that do not hold what was acknowledged, or nothing that was ever written.
    pub lost_writes: u64,
    /// Reads during the run that returned what they must not.
    pub wrong_reads: u64,
    pub verified_keys: u64,
    pub linearizable: bool,
    pub check: CheckReport,
    /// What else went wrong.
    pub problems: Vec<String>,
    /// Some errors and wrong values in words.
    pub examples: Vec<String>,
}

impl Findings for Found {
    type Settings = Args;

    fn title(report: &Report<'_, Found>) -> String {
        let Args { keys, threads, rate, spare, cluster, .. } = report.settings;
        let nodes = cluster.memory_nodes;
        let spare = if *spare { " and a spare" } else { "" };
        format!(
            "kill -9 of {} in a cluster of {nodes} memory nodes{spare}, under YCSB A:\n\
             {keys} keys, pairs of {} bytes, {}, {rate} operations a second",
            report.findings.victim,
            cluster.pair_bytes,
            counted(*threads, "session"),
        )
    }

    fn summary(report: &Report<'_, Found>) -> String {
        let found = &report.findings;
        let mut text = String::new();
        found.operations(&mut text);
        found.view(&mut text);
        found.answers(&mut text);
        text
    }

    fn problems(&self) -> Vec<String> {
        let mut wrong = self.problems.clone();
        if self.lost_writes > 0 || self.wrong_reads > 0 {
            let (lost, reads) = (self.lost_writes, self.wrong_reads);
            wrong.push(format!("{lost} lost writes, {reads} wrong reads"));
        }
        if !self.linearizable {
            let (bad, undecided) = (self.check.violations, self.check.undecided_keys);
            wrong.push(format!("{bad} keys are not linearizable, {undecided} undecided"));
        }
        wrong
    }
}

impl Found {
    fn operations(&self, text: &mut String) {
        let (before, after) = (&self.pauses_before, &self.pauses_after);
        let _ = writeln!(
            text,
            "operations  {} before the kill, {} after it\n\
             no write    for {:.1} ms at most after the kill; of one session for {:.1} ms (before: \
             {:.1} and {:.1} ms)",
            self.operations_before,
            self.operations_after,
            after.overall_ms,
            after.worst_session_ms(),
            before.overall_ms,
            before.worst_session_ms()
        );
    }

    fn answers(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "errors      {}, {} opened again",
            self.errors.total,
            counted(self.sessions_again, "session")
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

    fn view(&self, text: &mut String) {
        match self.stable_ms {
            Some(ms) => {
                let _ = write!(text, "view        stable again {ms:.1} ms after the kill");
            }
            None => text.push_str("view        NOT stable again"),
        }
        if let Some(stages) = &self.stages {
            let _ = write!(
                text,
                " (frozen {} ms, transforming {} ms, switched {} ms; {} subtables)",
                stages.frozen_ms, stages.transforming_ms, stages.switched_ms, stages.subtables
            );
        }
        let _ = match self.whole_ms {
            Some(ms) => writeln!(text, "\nreplicas    all there again after {:.2} s", ms / 1000.0),
            None => writeln!(
                text,
                "\nreplicas    {} subtables and regions lack one, for want of room (--spare adds a \
                 memory node)",
                self.missing_replicas
            ),
        };
    }
}
