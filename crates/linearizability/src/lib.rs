//! A checker of linearizability, for histories of operations on keys.
//!
//! A history is linearizable (Herlihy and Wing) if every operation can be given one *instant* (its linearization point)
//! between its invocation and its return such that the operations, executed one after another at these instants, give
//! the answers of the history. An operation that never returned can have its instant at any time after its invocation,
//! or have none. Keys are independent of each other, so each key is checked separately.
//!
//! [`check`] checks the history of one key, and [`OperationHistory`] a stream of operations on many keys. The module
//! `search` is the algorithm, and `explain` makes verdicts readable. The check is exact: it finds every violation, and
//! reports nothing else. It takes about a microsecond per operation while few operations on a key overlap, however many
//! operations never returned.
#![forbid(unsafe_code)]

mod bits;
mod explain;
mod frontier;
mod history;
mod plan;
mod search;

pub use explain::Refutation;
pub use history::{HistoryFindings, HistoryRecord, OperationHistory};

use std::fmt;

/// The number that identifies a value. If every write has a value of its own, the check finds more violations.
pub type HistoryValue = u64;

/// The request of an operation, with the value that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HistoryCall {
    /// INSERT.
    Insert(HistoryValue),
    /// UPDATE.
    Update(HistoryValue),
    /// UPSERT.
    Upsert(HistoryValue),
    /// DELETE.
    Delete,
    /// SEARCH.
    Search,
}

/// The answer of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HistoryAnswer {
    /// The operation took effect; only for writes.
    Done,
    /// The key exists already; only for an INSERT.
    Exists,
    /// The key does not exist; for an UPDATE, DELETE or SEARCH.
    Absent,
    /// The key has this value; only for a SEARCH.
    Found(HistoryValue),
}

/// One operation of a history. Times can be of any clock that never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryOperation {
    /// The request of the operation.
    pub call: HistoryCall,
    /// The time at which the operation was invoked.
    pub invoked: u64,
    /// The time of the return, and the answer; `None` if the operation never returned.
    pub returned: Option<(u64, HistoryAnswer)>,
}

/// The proof that no order explains a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The first operation, by the time of its return, whose answer no order explains.
    pub operation: HistoryOperation,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no order of the operations explains {:?}", self.operation)
    }
}

/// Checks a history of one key, which is absent at the beginning. The operations can be in any order.
///
/// # Panics
/// If an operation returns before it is invoked.
pub fn check(history: &[HistoryOperation]) -> Result<(), Violation> {
    match search::search(history, usize::MAX).verdict {
        search::SearchVerdict::Explained => Ok(()),
        search::SearchVerdict::Unexplained => {
            let first = explain::first_unexplained(history);
            Err(Violation { operation: history[first] })
        }
        search::SearchVerdict::Undecided => unreachable!("the search has no limit"),
    }
}

#[cfg(test)]
mod tests;
