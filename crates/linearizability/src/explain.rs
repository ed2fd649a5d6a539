//! Explanations of verdicts, for human readers.
//!
//! A history that is not linearizable has a first *unexplained* return: some order explains the events before this
//! return, but no order explains these events and the return. The explanation consists of as few as possible of the
//! operations up to that return. With the answer of the unexplained operation, these operations are not linearizable;
//! without the answer, they are. The explanation contains the write of every value that it reads.
//!
//! To drop operations, halves of the history are tried first, then ever smaller pieces (Zeller and Hildebrandt,
//! "Simplifying and isolating failure-inducing input", 2002).

use std::collections::HashSet;
use std::fmt;

use super::history::HistoryRecord;
use super::search::{SearchVerdict, search};
use super::{HistoryAnswer, HistoryCall, HistoryOperation, HistoryValue};

/// Limit of the effort to shorten one history: the sum of the numbers of operations in all searches. It bounds the time
/// to some ten seconds.
const MAX_EFFORT: usize = 20_000_000;
/// Limit of the number of situations in one attempt. An attempt that exceeds the limit is not accepted as an
/// explanation.
const MAX_SITUATIONS: usize = 1 << 16;
/// Largest number of operations of an explanation that is also shortened by dropping any two of them together.
const SHORT: usize = 100;

/// The return of an operation. Returns are ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OperationReturn {
    time: u64,
    /// The operation's index in the history.
    operation: usize,
}

/// Returns the index of the first operation, by the time of its return, whose answer no order explains.
///
/// # Panics
/// If the history is linearizable.
pub fn first_unexplained(history: &[HistoryOperation]) -> usize {
    let returns =
        history.iter().enumerate().filter_map(|(operation, HistoryOperation { returned, .. })| {
            returned.map(|(time, _)| OperationReturn { time, operation })
        });
    let mut returns: Vec<OperationReturn> = returns.collect();
    returns.sort_unstable();
    let explained = |end: &OperationReturn| {
        let until: Vec<HistoryOperation> = until(history, *end).map(|(_, o)| o).collect();
        search(&until, usize::MAX).verdict == SearchVerdict::Explained
    };
    let first = returns.partition_point(explained);
    returns.get(first).expect("the history is not linearizable").operation
}

/// Returns the operations of a history, with their indices, as they were known right after this return.
fn until(
    history: &[HistoryOperation],
    end: OperationReturn,
) -> impl Iterator<Item = (usize, HistoryOperation)> {
    let begun = history.iter().copied().enumerate().filter(move |(_, o)| o.invoked <= end.time);
    begun.map(move |(i, operation)| {
        let is_there = |time: u64| OperationReturn { time, operation: i } <= end;
        let returned = operation.returned.filter(|(time, _)| is_there(*time));
        (i, HistoryOperation { returned, ..operation })
    })
}

/// A key whose history is not linearizable, with an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refutation {
    /// The number of the key whose history is not linearizable.
    pub key: u64,
    /// Number of operations on the key that were checked.
    pub operations: usize,
    /// The first operation, by the time of its return, whose answer no order explains.
    pub unexplained: HistoryRecord,
    /// The explanation, with as few operations as possible, ordered by the time of invocation.
    pub explanation: Vec<HistoryRecord>,
}

impl Refutation {
    /// Makes the refutation of a history of one key, which must not be linearizable.
    pub(super) fn new(records: &[HistoryRecord]) -> Refutation {
        let operations: Vec<HistoryOperation> = records.iter().map(|r| r.operation).collect();
        let first = first_unexplained(&operations);
        let (time, _) = operations[first].returned.expect("only what returns is unexplained");
        let end = OperationReturn { time, operation: first };
        let mut rest: Vec<HistoryRecord> = until(&operations, end)
            .filter(|(i, _)| *i != first)
            .map(|(i, operation)| HistoryRecord { operation, ..records[i] })
            .collect();
        rest.sort_by_key(|record| record.operation.invoked);
        let mut attempt = ShrinkingExplanation { rest, unexplained: records[first], effort: 0 };
        attempt.shrink();
        let mut explanation = attempt.rest;
        let at = explanation
            .partition_point(|r| r.operation.invoked <= attempt.unexplained.operation.invoked);
        explanation.insert(at, attempt.unexplained);
        Refutation {
            key: records[first].key,
            operations: records.len(),
            unexplained: records[first],
            explanation,
        }
    }

    /// Renders the explanation, with one line per operation. `name` returns the text of a value. Times count from the
    /// first invocation.
    pub fn render(&self, name: impl Fn(HistoryValue) -> String) -> String {
        let start = self.explanation.iter().map(|r| r.operation.invoked).min().unwrap_or(0);
        let lines = self.explanation.iter().map(|record| {
            let HistoryOperation { call, invoked, returned } = record.operation;
            let call = match call {
                HistoryCall::Insert(value) => format!("INSERT {}", name(value)),
                HistoryCall::Update(value) => format!("UPDATE {}", name(value)),
                HistoryCall::Upsert(value) => format!("UPSERT {}", name(value)),
                HistoryCall::Delete => "DELETE".to_string(),
                HistoryCall::Search => "SEARCH".to_string(),
            };
            let (until, answer) = match returned {
                None => ("-".to_string(), "no answer yet".to_string()),
                Some((time, answer)) => (
                    (time - start).to_string(),
                    match answer {
                        HistoryAnswer::Done => "done".to_string(),
                        HistoryAnswer::Exists => "the key exists".to_string(),
                        HistoryAnswer::Absent => "no such key".to_string(),
                        HistoryAnswer::Found(value) => name(value),
                    },
                ),
            };
            let mark = if *record == self.unexplained { "   <- cannot be explained" } else { "" };
            format!(
                "client {:<4} from {:>10} to {until:>10}   {call:<16} -> {answer}{mark}\n",
                record.client,
                invoked - start
            )
        });
        lines.collect()
    }
}

impl fmt::Display for Refutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "key {} is not linearizable; of its {} operations these show it:",
            self.key, self.operations
        )?;
        f.write_str(&self.render(|value| value.to_string()))
    }
}

/// An explanation that is being shortened.
struct ShrinkingExplanation {
    /// All operations of the explanation except the unexplained one.
    rest: Vec<HistoryRecord>,
    unexplained: HistoryRecord,
    /// The sum of the numbers of operations in all searches so far.
    effort: usize,
}

impl ShrinkingExplanation {
    fn shrink(&mut self) {
        self.keep(|record| changes_something(&record.operation));
        self.keep(|record| record.operation.returned.is_some());
        let mut size = self.rest.len() / 2;
        while size > 0 {
            let mut start = 0;
            while start < self.rest.len() {
                // If the operations from `start` on are dropped, the operations behind them move to `start`.
                if !self.drop_where(|i| (start..start + size).contains(&i)) {
                    start += size;
                }
            }
            size /= 2;
        }
        // An INSERT and its DELETE can be dropped only together, and so can the write of a value and its SEARCH.
        while self.rest.len() <= SHORT && self.effort < MAX_EFFORT && self.drop_any_two() {}
    }

    fn drop_any_two(&mut self) -> bool {
        let n = self.rest.len();
        (0..n).any(|i| (i..n).any(|j| self.drop_where(|k| k == i || k == j)))
    }

    fn keep(&mut self, keeps: impl Fn(&HistoryRecord) -> bool) {
        let drops: Vec<bool> = self.rest.iter().map(|record| !keeps(record)).collect();
        self.drop_where(|i| drops[i]);
    }

    /// Drops the operations for which `drops` returns true, except writes of values that are read. Returns whether any
    /// operation was dropped.
    fn drop_where(&mut self, drops: impl Fn(usize) -> bool) -> bool {
        if self.effort > MAX_EFFORT {
            return false;
        }
        let stays = |i: &usize| !drops(*i);
        let kept = (0..self.rest.len()).filter(stays).map(|i| &self.rest[i]);
        let read: HashSet<HistoryValue> =
            kept.chain([&self.unexplained]).filter_map(|r| found(&r.operation)).collect();
        let is_read = |r: &HistoryRecord| written(&r.operation).is_some_and(|v| read.contains(&v));
        let fewer: Vec<HistoryRecord> = (0..self.rest.len())
            .filter(|i| stays(i) || is_read(&self.rest[*i]))
            .map(|i| self.rest[i])
            .collect();
        if fewer.len() == self.rest.len() {
            return false;
        }
        self.effort += 2 * fewer.len();
        let explains = is_explanation(&fewer, &self.unexplained);
        if explains {
            self.rest = fewer;
        }
        explains
    }
}

/// Returns whether no order explains the operations with the answer of `unexplained`, and some order explains them
/// without that answer.
fn is_explanation(rest: &[HistoryRecord], unexplained: &HistoryRecord) -> bool {
    let mut history: Vec<HistoryOperation> = rest.iter().map(|r| r.operation).collect();
    history.push(unexplained.operation);
    if search(&history, MAX_SITUATIONS).verdict != SearchVerdict::Unexplained {
        return false;
    }
    history.last_mut().expect("just added").returned = None;
    search(&history, MAX_SITUATIONS).verdict == SearchVerdict::Explained
}

fn written(operation: &HistoryOperation) -> Option<HistoryValue> {
    match operation.call {
        HistoryCall::Insert(value) | HistoryCall::Update(value) | HistoryCall::Upsert(value) => {
            Some(value)
        }
        HistoryCall::Delete | HistoryCall::Search => None,
    }
}

fn found(operation: &HistoryOperation) -> Option<HistoryValue> {
    match operation.returned {
        Some((_, HistoryAnswer::Found(value))) => Some(value),
        _ => None,
    }
}

fn changes_something(operation: &HistoryOperation) -> bool {
    let took_effect = matches!(operation.returned, None | Some((_, HistoryAnswer::Done)));
    operation.call != HistoryCall::Search && took_effect
}
