//! A checker of linearizability, for histories of operations on keys.
//!
//! A history is linearizable (Herlihy and Wing) if every operation can be given one instant
//! between its invocation and its return such that, executed one after another at these instants,
//! the operations give the answers of the history. An operation that never returned may have any
//! instant after its invocation, or none. Keys are independent of each other, so each is checked
//! alone.
//!
//! [`check`] judges one key, [`OperationHistory`] a stream of operations on many keys. The module `search`
//! is the algorithm, `explain` makes a verdict readable. The check is exact: it finds every
//! violation, and nothing else. It takes about a microsecond per operation while few operations
//! on a key overlap, regardless of the operations that never returned.
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

/// The name of a value. If every write has its own value, the check finds more violations.
pub type HistoryValue = u64;

/// The request of an operation.
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
    /// A write took effect.
    Done,
    /// An INSERT found the key.
    Exists,
    /// An UPDATE, DELETE or SEARCH did not find the key.
    Absent,
    /// A SEARCH found this value.
    Found(HistoryValue),
}

/// One operation of a history. Time is any number that never decreases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryOperation {
    /// The request.
    pub call: HistoryCall,
    /// The time of the invocation.
    pub invoked: u64,
    /// The time of the return, and the answer; `None` if the operation never returned.
    pub returned: Option<(u64, HistoryAnswer)>,
}

/// The proof that a history has no order.
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

/// Checks a history of one key that is absent at the beginning. The operations may be in any
/// order.
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
