//! `--check`: tells whether the recorded history of a run is linearizable.
//!
//! The run uses real processes, real memory and real time; the checker is the simulator's. The checker finds errors
//! that the verification of the final state cannot find: a stale read in the middle of the run, a key that came back
//! for a moment, or two INSERTs of one key that both succeeded.

use std::fmt::Write as _;
use std::time::Instant;

use fusee_linearizability::{OperationHistory, Refutation};
use serde::Serialize;

use super::record::{PackedOperation, RecordedOperation, name_of};

/// The result of the check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// Operations that were checked, including those that load keys and read them back.
    pub operations: u64,
    /// Keys that were checked.
    pub keys: u64,
    /// Operations that began before an earlier operation on the same key had ended.
    pub overlapping: u64,
    /// Writes of unknown outcome among the operations.
    pub pending: u64,
    /// The duration of the check.
    pub duration_s: f64,
    /// The largest number of states that one key was possibly in at one time; it grows with the overlap of operations.
    pub peak_frontier: usize,
    /// Keys for which the checker came to no decision, because too many operations overlapped.
    pub undecided_keys: u64,
    /// Keys whose history is not linearizable.
    pub violations: u64,
    /// The operations that show the violation on the first key that has one, one operation a line.
    pub explanation: Option<String>,
}

/// Checks the history of these operations.
pub fn check(entries: &[PackedOperation]) -> CheckReport {
    let start = Instant::now();
    let records = entries.iter().filter_map(|packed| RecordedOperation::from(*packed).record());
    let findings = records.collect::<OperationHistory>().check();
    CheckReport {
        operations: findings.operations,
        keys: findings.keys,
        overlapping: findings.overlapping,
        pending: findings.pending,
        duration_s: start.elapsed().as_secs_f64(),
        peak_frontier: findings.peak_frontier,
        undecided_keys: findings.undecided_keys,
        violations: findings.violations,
        explanation: findings.refutation.as_deref().map(explain),
    }
}

fn explain(refutation: &Refutation) -> String {
    format!(
        "key number {}: of {} operations these show it (wW.N is the value of write N of worker W, \
         times are in ns)\n{}",
        refutation.key,
        refutation.operations,
        refutation.render(name_of)
    )
}

impl CheckReport {
    /// Tells whether the history of every key was decided and is linearizable.
    pub fn is_clean(&self) -> bool {
        self.violations == 0 && self.undecided_keys == 0
    }

    /// Returns why a run with this history fails.
    pub fn problems(&self) -> Option<String> {
        (!self.is_clean()).then(|| {
            format!(
                "{} keys are not linearizable, {} undecided\n{}",
                self.violations,
                self.undecided_keys,
                self.explanation.as_deref().unwrap_or_default()
            )
        })
    }

    /// Returns the report's lines for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "checked     {} operations on {} keys, {} overlapped earlier ones, {} pending: {} \
             violations ({:.2} s)\n\
             \x20           recording costs throughput: do not quote the figures of this run\n",
            self.operations,
            self.keys,
            self.overlapping,
            self.pending,
            self.violations,
            self.duration_s
        );
        if self.undecided_keys > 0 {
            let _ = writeln!(text, "            {} keys undecided", self.undecided_keys);
        }
        for line in self.explanation.iter().flat_map(|text| text.lines()) {
            let _ = writeln!(text, "            {line}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use fusee_linearizability::{HistoryAnswer, HistoryCall};

    use super::*;
    use crate::record::{RecordedEnd, value_of};

    fn entry(worker: u64, call: HistoryCall, invoked: u64, end: RecordedEnd) -> PackedOperation {
        RecordedOperation { key: 3, worker, call, invoked: invoked * 1000, end }.into()
    }

    fn done(time: u64, answer: HistoryAnswer) -> RecordedEnd {
        RecordedEnd::Answered(time * 1000, answer)
    }

    /// Returns a history in which two workers write a key in turn, and a third one reads it.
    fn entries() -> Vec<PackedOperation> {
        let mut entries =
            vec![entry(0, HistoryCall::Insert(value_of(0, 0)), 1, done(2, HistoryAnswer::Done))];
        for i in 1..100 {
            let value = value_of(i % 2, i);
            let at = 10 * i;
            entries.push(entry(
                i % 2,
                HistoryCall::Update(value),
                at,
                done(at + 2, HistoryAnswer::Done),
            ));
            let found = HistoryAnswer::Found(value);
            entries.push(entry(2, HistoryCall::Search, at + 4, done(at + 6, found)));
        }
        entries
    }

    #[test]
    fn a_good_history_is_counted() {
        let mut good = entries();
        good.push(entry(1, HistoryCall::Delete, 2_000, RecordedEnd::Unknown));
        good.push(entry(1, HistoryCall::Update(value_of(1, 200)), 2_001, RecordedEnd::NotApplied));
        let report = check(&good);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.operations, report.keys, report.pending), (200, 1, 1));
        let table = report.table();
        assert!(table.contains("200 operations on 1 keys, 0 overlapped earlier ones, 1 pending"));
        assert!(report.table().contains("do not quote"));
    }

    /// The values of two reads are exchanged, as if a write had taken effect too late; the check reports that.
    #[test]
    fn a_doctored_history_is_reported() {
        let mut doctored = entries();
        let at = |entries: &[PackedOperation], i: usize| RecordedOperation::from(entries[i]);
        let one = at(&doctored, 50);
        let other = at(&doctored, 52);
        assert_eq!((one.call, other.call), (HistoryCall::Search, HistoryCall::Search));
        let RecordedEnd::Answered(_, answer) = one.end else { unreachable!("it was answered") };
        let RecordedEnd::Answered(time, other_answer) = other.end else {
            unreachable!("so was this")
        };
        doctored[52] =
            RecordedOperation { end: RecordedEnd::Answered(time, answer), ..other }.into();
        let RecordedEnd::Answered(time, _) = one.end else { unreachable!("it was answered") };
        doctored[50] =
            RecordedOperation { end: RecordedEnd::Answered(time, other_answer), ..one }.into();
        let report = check(&doctored);
        assert_eq!((report.violations, report.operations), (1, 199));
        let explanation = report.explanation.clone().unwrap();
        assert!(explanation.starts_with("key number 3: of 199 operations"), "{explanation}");
        // The write of the value begins after the end of the read that returned the value.
        let lines: Vec<&str> = explanation.lines().skip(1).collect();
        assert!(lines.len() <= 4, "{explanation}");
        let marked: Vec<&&str> = lines.iter().filter(|l| l.contains("<- cannot")).collect();
        assert!(matches!(marked[..], [line] if line.contains("SEARCH")), "{explanation}");
        assert!(report.table().contains("cannot be explained"));
    }
}
