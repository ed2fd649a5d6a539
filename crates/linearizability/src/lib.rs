//! Is a history of operations on one key linearizable?
//!
//! A history is linearizable (Herlihy and Wing) if every operation can be given one instant
//! between its invocation and its return such that, executed one after another at these instants,
//! the operations answer what they did answer. One that never returned may have any instant after
//! its invocation, or none. Keys are independent of each other, so each is checked alone.
//!
//! [`check`] judges one key, [`History`] a stream of operations on many; `search` is the
//! algorithm, `explain` makes a verdict readable. The check is exact: it finds every violation,
//! and nothing else. It takes about a microsecond an operation while few operations on a key
//! overlap, whatever the number of operations that never returned.
#![forbid(unsafe_code)]

mod bits;
mod explain;
mod frontier;
mod history;
mod plan;
mod search;

pub use explain::Refutation;
pub use history::{Findings, History, Record};

use std::fmt;

/// What a value is known by. Different writes best write different values: the history says more.
pub type Value = u64;

/// What an operation was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// INSERT.
    Insert(Value),
    /// UPDATE.
    Update(Value),
    /// UPSERT.
    Upsert(Value),
    /// DELETE.
    Delete,
    /// SEARCH.
    Search,
}

/// What an operation answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// A write took effect.
    Done,
    /// An INSERT found the key.
    Exists,
    /// An UPDATE, DELETE or SEARCH did not.
    Absent,
    /// A SEARCH found this.
    Found(Value),
}

/// One operation of a history. Time is any number that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What was asked.
    pub call: Call,
    /// When.
    pub invoked: u64,
    /// What was answered and when; `None` if nothing ever was.
    pub returned: Option<(u64, Answer)>,
}

/// A history that no order of its operations explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The first operation, by the time of its return, whose answer cannot be explained.
    pub operation: Operation,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no order of the operations explains {:?}", self.operation)
    }
}

/// Checks a history of one key, which did not exist in the beginning. In any order.
///
/// # Panics
/// If an operation returns before it is invoked.
pub fn check(history: &[Operation]) -> Result<(), Violation> {
    match search::search(history, usize::MAX).verdict {
        search::Verdict::Explained => Ok(()),
        search::Verdict::Unexplained => {
            let first = explain::first_unexplained(history);
            Err(Violation { operation: history[first] })
        }
        search::Verdict::Undecided => unreachable!("the search has no limit"),
    }
}

#[cfg(test)]
mod tests;
