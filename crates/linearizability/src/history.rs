//! Histories of many clients' operations on many keys, and their check.
//!
//! The program that runs operations pushes a [`HistoryRecord`] of each, in any order. [`OperationHistory::check`]
//! checks each key alone, since linearizability is a property of each key. It counts the checked
//! operations, and explains the first violation.

use super::HistoryOperation;
use super::explain::Refutation;
use super::search::{SearchVerdict, search};

/// Limit of the situations for one return. A key whose operations overlap more than that stays
/// undecided: its check would take the memory of the machine.
const MAX_SITUATIONS: usize = 1 << 20;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryRecord {
    /// The number of the key.
    pub key: u64,
    /// The number of the client, for readers.
    pub client: u32,
    /// The operation, with its times.
    pub operation: HistoryOperation,
}

/// Operations on many keys, none of which existed in the beginning.
#[derive(Clone, Debug, Default)]
pub struct OperationHistory {
    records: Vec<HistoryRecord>,
}

/// The results of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryFindings {
    /// Operations that were checked.
    pub operations: u64,
    /// Checked operations that never returned.
    pub pending: u64,
    /// Checked operations that began before an earlier one on the same key had returned.
    pub overlapping: u64,
    /// Keys that were checked.
    pub keys: u64,
    /// The greatest number of situations of a key at a time: the cost of the check.
    pub peak_frontier: usize,
    /// Keys with too many overlapping operations to be decided.
    pub undecided_keys: u64,
    /// Keys whose history is not linearizable.
    pub violations: u64,
    /// The explanation of the first violation.
    pub refutation: Option<Box<Refutation>>,
}

impl HistoryFindings {
    /// Returns whether every key was decided and is linearizable.
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.undecided_keys == 0
    }
}

impl OperationHistory {
    /// Returns an empty history.
    pub fn new() -> OperationHistory {
        OperationHistory::default()
    }

    /// Adds an operation.
    pub fn push(&mut self, record: HistoryRecord) {
        self.records.push(record);
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Checks all keys, and sorts the operations by key.
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

/// Counts the operations that begin before an earlier one has returned. They are sorted by
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
