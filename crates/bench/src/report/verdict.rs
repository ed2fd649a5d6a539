//! The verdict whether the store kept what it acknowledged.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fusee_cli::failure::Failure;
use serde::Serialize;

use crate::tally::OperationTally;

/// Failed operations.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorCounts {
    /// Operations that failed.
    pub total: u64,
    /// By the kind of error.
    pub by_kind: BTreeMap<String, u64>,
}

/// The verdict whether the store kept what it acknowledged.
#[derive(Clone, Debug, Serialize)]
pub struct BenchVerdict {
    /// Operations that failed, of all phases.
    pub errors: ErrorCounts,
    /// Keys that were read back at the end.
    pub verified_keys: u64,
    /// Inadmissible values, during the run or at the end.
    pub mismatches: u64,
    /// By what was wrong.
    pub mismatches_by_kind: BTreeMap<String, u64>,
    /// Some errors and mismatches in words.
    pub examples: Vec<String>,
    /// Steps after the measurement that could not be done: reading all keys back, removing them.
    pub problems: Vec<String>,
}

impl BenchVerdict {
    /// Judges a tally of all phases.
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

    /// Returns the lines for people.
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

/// Does a step after the measurement. If it fails, the report still appears, with this problem.
pub fn attempt<T: Default>(problems: &mut Vec<String>, step: Result<T, Failure>) -> T {
    step.unwrap_or_else(|failure| {
        problems.push(failure.to_string());
        T::default()
    })
}
