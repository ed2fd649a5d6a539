//! The verdict whether the store kept what it acknowledged.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_cli::failure::Failure;
use serde::Serialize;

use crate::tally::OperationTally;

/// Numbers of failed operations.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorCounts {
    /// Number of operations that failed.
    pub total: u64,
    /// Number of failed operations, by kind of error.
    pub by_kind: BTreeMap<String, u64>,
}

/// The verdict whether the store kept what it acknowledged.
#[derive(Clone, Debug, Serialize)]
pub struct BenchVerdict {
    /// Operations that failed, in all phases.
    pub errors: ErrorCounts,
    /// Keys that were read back at the end.
    pub verified_keys: u64,
    /// Number of reads whose value contradicts the acknowledged writes, during the run or at the end.
    pub mismatches: u64,
    /// Number of mismatches, by kind of mismatch.
    pub mismatches_by_kind: BTreeMap<String, u64>,
    /// Descriptions of some errors and mismatches.
    pub examples: Vec<String>,
    /// Failures of steps after the measurement: reading all keys back, and removing them.
    pub problems: Vec<String>,
}

impl BenchVerdict {
    /// Judges the tally of all phases.
    pub fn new(tally: &OperationTally, verified_keys: u64, problems: Vec<String>) -> BenchVerdict {
        BenchVerdict {
            errors: ErrorCounts { total: tally.error_count(), by_kind: tally.errors.clone() },
            verified_keys,
            mismatches: tally.mismatch_count(),
            mismatches_by_kind: tally.mismatches.clone(),
            examples: tally.examples.clone(),
            problems,
        }
    }

    /// Returns the verdict's lines of the table.
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
    /// Returns why a run with this verdict fails.
    pub fn problems(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.errors.total > 0 || self.mismatches > 0 {
            wrong.push(format!("{} errors, {} mismatches", self.errors.total, self.mismatches));
        }
        wrong.extend(self.problems.iter().cloned());
        wrong
    }
}

/// Returns the result of a step after the measurement. If the step failed, notes this problem, so that the report still
/// appears.
pub fn attempt<T: Default>(problems: &mut Vec<String>, step: Result<T, Failure>) -> T {
    step.unwrap_or_else(|failure| {
        problems.push(failure.to_string());
        T::default()
    })
}
