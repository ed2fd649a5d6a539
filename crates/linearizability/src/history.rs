//! A stream of operations of many clients on many keys, and its check.
//!
//! Whoever runs operations pushes a [`Record`] for each, in any order. [`History::check`] takes
//! the keys one by one, as linearizability is a property of each alone, counts what it checked,
//! and explains the first violation.

use super::Operation;
use super::explain::Refutation;
use super::search::{Verdict, search};

/// A key whose operations overlap so much that one return needs more situations than this is not
/// decided: it would take the memory of the machine.
const MAX_SITUATIONS: usize = 1 << 20;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The number of the key.
    pub key: u64,
    /// Who operated; for people.
    pub client: u32,
    /// What was done, and when.
    pub operation: Operation,
}

/// Operations on many keys, none of which existed in the beginning.
#[derive(Clone, Debug, Default)]
pub struct History {
    records: Vec<Record>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Operations that were checked.
    pub operations: u64,
    /// Of these, those that never returned.
    pub pending: u64,
    /// Of these, those that began before an earlier one on the same key had returned.
    pub overlapping: u64,
    /// Keys that were checked.
    pub keys: u64,
    /// The most situations that a key was in at a time: what the check cost.
    pub peak_frontier: usize,
    /// Keys on which too many operations overlapped to tell.
    pub undecided_keys: u64,
    /// Keys whose history is not linearizable.
    pub violations: u64,
    /// The first of these.
    pub refutation: Option<Box<Refutation>>,
}

impl Findings {
    /// Whether every key was decided, and is linearizable.
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.undecided_keys == 0
    }
}

impl History {
    /// Nothing.
    pub fn new() -> History {
        History::default()
    }

    /// Adds an operation.
    pub fn push(&mut self, record: Record) {
        self.records.push(record);
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Checks all keys. Orders the operations by key.
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

/// How many operations begin before an earlier one has returned; ordered by their beginning.
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
