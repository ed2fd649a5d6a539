//! The report of `fusee-bench recovery`, next to the paper's Table 1.
//!
//! The parts of a recovery differ from the paper's: here one walk over the objects both reads the logs and ends the
//! requests in them, and the paper has no counterpart to the step that makes the replicas of the block tables agree.
//! The machines differ too: the paper's 163 ms are for RDMA connections and memory registration.

use std::fmt::Write as _;

use fusee_cli::recoveries::{RecoveryReport, RecoveryTimesMs};
use serde::Serialize;

use super::RecoveryArgs;
use crate::report::{BenchFindings, BenchReport};
use crate::spread::Spread;

/// The paper's Table 1, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PaperRecoveryTimes {
    source: &'static str,
    reconnect_ms: f64,
    metadata_ms: f64,
    traverse_log_ms: f64,
    recover_requests_ms: f64,
    free_lists_ms: f64,
    total_ms: f64,
}

/// Shen et al., FAST '23.
pub const PAPER: PaperRecoveryTimes = PaperRecoveryTimes {
    source: "Shen et al., FUSEE, FAST '23, Table 1",
    reconnect_ms: 163.1,
    metadata_ms: 0.3,
    traverse_log_ms: 3.5,
    recover_requests_ms: 3.5,
    free_lists_ms: 6.6,
    total_ms: 177.0,
};

/// The death of one client.
#[derive(Debug, Serialize)]
pub struct RecoveryRound {
    /// The time from the kill until a write to every key of the dead client had succeeded.
    pub writable_ms: f64,
    /// The time from the kill until the master reported the client as recovered.
    pub recovered_ms: f64,
    /// Number of stops of the client, until it was at a point where a slot is blocked.
    pub stops: u32,
    /// Whether a slot was blocked when the client was killed.
    pub blocked: bool,
    /// The recovery as the master describes it.
    pub recovery: RecoveryReport,
}

/// The medians of all rounds.
#[derive(Debug, Serialize)]
pub struct RecoverySummary {
    /// The time until all keys are writable, only of rounds in which a slot was blocked.
    pub writable_ms: Option<Spread>,
    pub recovered_ms: Option<Spread>,
    pub reconnect_ms: Option<Spread>,
    pub metadata_ms: Option<Spread>,
    pub log_ms: Option<Spread>,
    pub repair_ms: Option<Spread>,
    pub free_lists_ms: Option<Spread>,
    pub total_ms: Option<Spread>,
}

impl RecoverySummary {
    /// Summarizes these rounds.
    pub fn new(rounds: &[RecoveryRound]) -> RecoverySummary {
        let part = |of: fn(&RecoveryTimesMs) -> f64| {
            Spread::of(rounds.iter().map(|r| of(&r.recovery.parts)))
        };
        let blocked = rounds.iter().filter(|round| round.blocked);
        RecoverySummary {
            writable_ms: Spread::of(blocked.map(|round| round.writable_ms)),
            recovered_ms: Spread::of(rounds.iter().map(|round| round.recovered_ms)),
            reconnect_ms: part(|parts| parts.reconnect_ms),
            metadata_ms: part(|parts| parts.metadata_ms),
            log_ms: part(|parts| parts.log_ms),
            repair_ms: part(|parts| parts.repair_ms),
            free_lists_ms: part(|parts| parts.free_lists_ms),
            total_ms: part(|parts| parts.total_ms),
        }
    }
}

/// The results.
#[derive(Debug, Serialize)]
pub struct RecoveryBenchReport {
    /// The time of a pass over all keys without a dead client.
    pub undisturbed_ms: f64,
    pub summary: RecoverySummary,
    pub paper: PaperRecoveryTimes,
    pub rounds: Vec<RecoveryRound>,
}

impl BenchFindings for RecoveryBenchReport {
    type Settings = RecoveryArgs;

    fn title(report: &BenchReport<'_, RecoveryBenchReport>) -> String {
        let RecoveryArgs { updates, keys, cluster, .. } = report.settings;
        format!(
            "Recovery of a client killed after {updates} updates of {} bytes to {keys} keys: {} rounds",
            cluster.pair_bytes,
            report.findings.rounds.len(),
        )
    }

    fn summary(report: &BenchReport<'_, RecoveryBenchReport>) -> String {
        let RecoveryBenchReport { rounds, undisturbed_ms, .. } = &report.findings;
        let blocked = rounds.iter().filter(|round| round.blocked).count();
        let walked = Spread::of(rounds.iter().map(|round| round.recovery.walked as f64));
        format!(
            "slot        blocked by the dead client in {blocked} of {} rounds\n\
             log         {:.0} objects (median)\n\
             writing all keys takes {undisturbed_ms:.2} ms when nobody died\n",
            rounds.len(),
            walked.map_or(0.0, |walked| walked.median),
        )
    }

    fn rows(report: &BenchReport<'_, RecoveryBenchReport>) -> String {
        let RecoveryBenchReport { summary, paper, .. } = &report.findings;
        let requests = paper.traverse_log_ms + paper.recover_requests_ms;
        let mut text =
            format!("\n{:<52} {:>8} {:>17} {:>10}\n", "ms", "median", "spread", "paper*");
        for (name, spread, paper) in [
            ("fenced / connection & MR", summary.reconnect_ms, Some(paper.reconnect_ms)),
            ("metadata", summary.metadata_ms, Some(paper.metadata_ms)),
            ("log walk, and requests half-way", summary.log_ms, Some(requests)),
            ("replicas of the block tables", summary.repair_ms, None),
            ("free lists", summary.free_lists_ms, Some(paper.free_lists_ms)),
            ("total", summary.total_ms, Some(paper.total_ms)),
            ("from the kill: every key writable, if one was blocked", summary.writable_ms, None),
            ("from the kill: client recovered", summary.recovered_ms, None),
        ] {
            let paper = paper.map_or("-".into(), |ms| format!("{ms:.1}"));
            let (median, range) = match spread {
                Some(s) => (format!("{:.2}", s.median), format!("{:.2}-{:.2}", s.least, s.most)),
                None => ("-".into(), "-".into()),
            };
            let _ = writeln!(text, "{name:<52} {median:>8} {range:>17} {paper:>10}");
        }
        let _ = writeln!(text, "* {}: another machine, another network", paper.source);
        text
    }
}
