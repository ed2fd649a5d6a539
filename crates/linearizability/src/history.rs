//! Histories of many clients' operations on many keys, and their check.
//!
//! The program that runs operations pushes a [`HistoryRecord`] of each operation, in any order.
//! [`OperationHistory::check`] checks each key separately, because a history is linearizable if it is so for each key.
//! The check counts the operations, and explains the first violation.

use super::HistoryOperation;
use super::explain::Refutation;
use super::search::{SearchVerdict, search};

/// Limit of the number of situations that the search considers at one return. A key whose operations overlap so much
/// that the limit is exceeded stays undecided, because its check would need too much memory.
const MAX_SITUATIONS: usize = 1 << 20;

/// An operation on a key, with the client that ran it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRecord {
    /// The number of the key.
    pub key: u64,
    /// The number of the client, which only human readers need.
    pub client: u32,
    /// The operation, with its times and its answer.
    pub operation: HistoryOperation,
}

/// Operations on many keys. No key exists at the beginning.
#[derive(Clone, Debug, Default)]
pub struct OperationHistory {
    records: Vec<HistoryRecord>,
}

/// The results of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFindings {
    /// Number of operations that were checked.
    pub operations: u64,
    /// Number of checked operations that never returned.
    pub pending: u64,
    /// Number of checked operations that began before an earlier operation on the same key had returned.
    pub overlapping: u64,
    /// Number of keys that were checked.
    pub keys: u64,
    /// The greatest number of situations of a key at one time, which is the cost of the check.
    pub peak_frontier: usize,
    /// Number of keys with too many overlapping operations for a verdict.
    pub undecided_keys: u64,
    /// Number of keys whose history is not linearizable.
    pub violations: u64,
    /// The explanation of the first violation, if there is one.
    pub refutation: Option<Box<Refutation>>,
}

impl HistoryFindings {
    /// Returns whether every key has a verdict and is linearizable.
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.undecided_keys == 0
    }
}

impl OperationHistory {
    /// Returns an empty history.
    pub fn new() -> OperationHistory {
        OperationHistory::default()
    }

    /// Adds an operation to the history.
    pub fn push(&mut self, record: HistoryRecord) {
        self.records.push(record);
    }

    /// Returns the number of operations in the history.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether the history has no operations.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Checks all keys. Sorts the operations by key.
    ///
    /// # Panics
    /// If an operation returns before it is invoked.
    pub fn check(&mut self) -> HistoryFindings {
        self.records.sort_unstable_by_key(|record| (record.key, record.operation.invoked));
        let mut findings = HistoryFindings::default();
        let mut operations: Vec<HistoryOperation> = Vec::new();
        for records in self.records.chunk_by(|a, b| a.key == b.key) {
            operations.clear();
            operations.extend(records.iter().map(|record| record.operation));
            let found = search(&operations, MAX_SITUATIONS);
            findings.keys += 1;
            findings.operations += records.len() as u64;
            findings.pending += operations.iter().filter(|o| o.returned.is_none()).count() as u64;
            findings.overlapping += overlapping(&operations);
            findings.peak_frontier = findings.peak_frontier.max(found.peak_frontier);
            match found.verdict {
                SearchVerdict::Explained => {}
                SearchVerdict::Undecided => findings.undecided_keys += 1,
                SearchVerdict::Unexplained => {
                    findings.violations += 1;
                    if findings.refutation.is_none() {
                        findings.refutation = Some(Box::new(Refutation::new(records)));
                    }
                }
            }
        }
        findings
    }
}

/// Returns the number of operations that begin before an earlier operation has returned. `operations` must be sorted by
/// invocation.
fn overlapping(operations: &[HistoryOperation]) -> u64 {
    let mut open_until = None;
    let mut count = 0;
    for operation in operations {
        count += u64::from(open_until.is_some_and(|time| operation.invoked <= time));
        let returned = operation.returned.map_or(u64::MAX, |(time, _)| time);
        open_until = open_until.max(Some(returned));
    }
    count
}

impl FromIterator<HistoryRecord> for OperationHistory {
    fn from_iter<I: IntoIterator<Item = HistoryRecord>>(records: I) -> OperationHistory {
        OperationHistory { records: records.into_iter().collect() }
    }
}

impl Extend<HistoryRecord> for OperationHistory {
    fn extend<I: IntoIterator<Item = HistoryRecord>>(&mut self, records: I) {
        self.records.extend(records);
    }
}
