//! Histories of many clients' operations on many keys, and their check.
//!
//! The program that runs operations pushes a [`Record`] of each, in any order. [`History::check`]
//! checks each key alone, since linearizability is a property of each key. It counts the checked
//! operations, and explains the first violation.

use super::Operation;
use super::explain::Refutation;
use super::search::{Verdict, search};

/// Limit of the situations for one return. A key whose operations overlap more than that stays
/// undecided: its check would take the memory of the machine.
const MAX_SITUATIONS: usize = 1 << 20;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number of the key.
    pub key: u64,
    /// The number of the client, for readers.
    pub client: u32,
    /// The operation, with its times.
    pub operation: Operation,
}

/// Operations on many keys, none of which existed in the beginning.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

/// The results of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
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

impl Findings {
    /// Returns whether every key was decided and is linearizable.
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.undecided_keys == 0
    }
}

impl History {
    /// Returns an empty history.
    pub fn new() -> History {
        History::default()
    }

    /// Adds an operation.
    pub fn push(&mut self, record: Record) {
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
    pub fn check(&mut self) -> Findings {
        self.records.sort_unstable_by_key(|record| (record.key, record.operation.invoked));
        let mut findings = Findings::default();
        let mut operations: Vec<Operation> = Vec::new();
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
                Verdict::Explained => {}
                Verdict::Undecided => findings.undecided_keys += 1,
                Verdict::Unexplained => {
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
fn overlapping(operations: &[Operation]) -> u64 {
    let mut open_until = None;
    let mut count = 0;
    for operation in operations {
        count += u64::from(open_until.is_some_and(|time| operation.invoked <= time));
        let returned = operation.returned.map_or(u64::MAX, |(time, _)| time);
        open_until = open_until.max(Some(returned));
    }
    count
}

impl FromIterator<Record> for History {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> History {
        History { records: records.into_iter().collect() }
    }
}

impl Extend<Record> for History {
    fn extend<I: IntoIterator<Item = Record>>(&mut self, records: I) {
        self.records.extend(records);
    }
}
