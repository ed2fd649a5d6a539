//! Pauses: the longest time between two acknowledged writes, or between two answered reads.
//!
//! The begin and the end of the period count as answers, so that a session that never goes on shows a long pause. Times
//! are nanoseconds of one clock.

use serde::Serialize;

use super::load::FailoverTrace;
use crate::record::{RecordedEnd, RecordedOperation};
use fusee_linearizability::{HistoryAnswer, HistoryCall};

/// The longest pauses of a period, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pauses {
    /// The longest time in which no session had a write acknowledged (or a read answered).
    pub overall_ms: f64,
    /// The longest pause of each thread, which has one session after the other.
    pub per_session_ms: Vec<f64>,
}

impl Pauses {
    /// Returns the pauses in the sessions' writes between two times.
    pub fn of_writes(traces: &[FailoverTrace], from: u64, to: u64) -> Pauses {
        Pauses::between(traces, false, from, to)
    }

    /// Returns the pauses in the sessions' reads between two times.
    pub fn of_reads(traces: &[FailoverTrace], from: u64, to: u64) -> Pauses {
        Pauses::between(traces, true, from, to)
    }

    fn between(traces: &[FailoverTrace], reads: bool, from: u64, to: u64) -> Pauses {
        let times: Vec<Vec<u64>> = traces.iter().map(|trace| answered(trace, reads)).collect();
        let ms = |ns: u64| ns as f64 / 1e6;
        Pauses {
            overall_ms: ms(longest(times.iter().flatten().copied(), from, to)),
            per_session_ms: times
                .iter()
                .map(|times| ms(longest(times.iter().copied(), from, to)))
                .collect(),
        }
    }

    /// Returns the longest pause of any thread.
    pub fn worst_session_ms(&self) -> f64 {
        self.per_session_ms.iter().copied().fold(0.0, f64::max)
    }
}

/// Returns the times at which the reads of a thread were answered, or at which its writes were acknowledged.
fn answered(trace: &FailoverTrace, reads: bool) -> Vec<u64> {
    let entries = trace.writers.iter().flat_map(|(_, _, entries)| entries);
    let times = entries.filter_map(|packed| {
        let RecordedOperation { call, end, .. } = (*packed).into();
        match end {
            RecordedEnd::Answered(time, answer) => {
                let counts =
                    if reads { call == HistoryCall::Search } else { answer == HistoryAnswer::Done };
                counts.then_some(time)
            }
            _ => None,
        }
    });
    times.collect()
}

fn longest(times: impl Iterator<Item = u64>, from: u64, to: u64) -> u64 {
    let mut times: Vec<u64> = times.filter(|time| (from..to).contains(time)).collect();
    times.extend([from, to]);
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_includes_those_at_the_ends() {
        let longest = |times: &[u64]| longest(times.iter().copied(), 100, 200);
        assert_eq!(longest(&[]), 100);
        assert_eq!(longest(&[150]), 50);
        assert_eq!(longest(&[160, 110]), 50);
        assert_eq!(longest(&[110, 120, 130]), 70);
        assert_eq!(longest(&[50, 190, 300]), 90, "what is outside does not count");
        assert_eq!(longest(&[170, 175, 180]), 70);
    }
}
