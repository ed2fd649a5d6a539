//! The activity of the cluster in the last minutes, for each second, for the status page.

use std::collections::VecDeque;

use fusee_core::stats::{OpKind, SessionWork};
use serde::Serialize;

/// Number of seconds of activity that are kept.
const KEPT: usize = 600;

/// The cluster's totals since its start, at one time.
#[derive(Clone, Copy, Debug)]
struct ActivitySample {
    at_ms: u64,
    work: SessionWork,
    damaged: u64,
}

/// The samples of the cluster's totals in the last minutes.
#[derive(Debug, Default)]
pub struct ActivityHistory(VecDeque<ActivitySample>);

/// Rates per second. Every list is as long as `at_ms`.
#[derive(Debug, Serialize, PartialEq)]
pub struct ActivityRates {
    /// End of each interval between two samples, in milliseconds since 1970.
    at_ms: Vec<u64>,
    /// Searches per second. `writes` and `others` are the rates of other kinds of operations.
    reads: Vec<f64>,
    writes: Vec<f64>,
    others: Vec<f64>,
    /// Mean number of phases of an operation; 0 if no operation ended.
    phases: Vec<f64>,
    /// Percentage of accesses to index caches that found a right hint; 0 if there was no access.
    hits: Vec<f64>,
    conflicts: Vec<f64>,
    damaged: Vec<f64>,
}

/// Returns the class of a kind of operation: 0 for searches, 1 for writes, 2 for others.
fn class(kind: OpKind) -> usize {
    match kind {
        OpKind::Search | OpKind::SearchMany => 0,
        OpKind::Insert | OpKind::Update | OpKind::Upsert | OpKind::Delete => 1,
        OpKind::Move | OpKind::Scan | OpKind::Reclaim => 2,
    }
}

impl ActivityHistory {
    /// Adds a sample of the present totals.
    pub fn add(&mut self, at_ms: u64, work: SessionWork, damaged: u64) {
        // A lower total or an earlier time comes from another master or clock, so that the older samples cannot be
        // compared with the new one.
        let is_later = self.0.back().is_none_or(|last| {
            let begins = |kind: usize| work.operations[kind] >= last.work.operations[kind];
            at_ms > last.at_ms && (0..OpKind::ALL.len()).all(begins)
        });
        if !is_later {
            self.0.clear();
        }
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
        self.0.push_back(ActivitySample { at_ms, work, damaged });
    }

    /// Returns the rates of the cluster's activity between successive samples.
    pub fn rates(&self) -> ActivityRates {
        let mut rates = ActivityRates {
            at_ms: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            others: Vec::new(),
            phases: Vec::new(),
            hits: Vec::new(),
            conflicts: Vec::new(),
            damaged: Vec::new(),
        };
        for (before, after) in self.0.iter().zip(self.0.iter().skip(1)) {
            let seconds = (after.at_ms - before.at_ms) as f64 / 1e3;
            let work = after.work.since(&before.work);
            let mut sums = [0; 3];
            for kind in OpKind::ALL {
                sums[class(kind)] += work.operations[kind as usize];
            }
            let [reads, writes, others] = sums.map(|sum| sum as f64 / seconds);
            let operations: u64 = sums.iter().sum();
            let phases: u64 = work.phases.iter().sum();
            rates.at_ms.push(after.at_ms);
            rates.reads.push(reads);
            rates.writes.push(writes);
            rates.others.push(others);
            rates.phases.push(phases as f64 / operations.max(1) as f64);
            let right = work.hints.saturating_sub(work.wrong_hints);
            rates.hits.push(100.0 * right as f64 / work.cache_accesses.max(1) as f64);
            rates.conflicts.push(work.lost_rounds as f64 / seconds);
            rates.damaged.push(after.damaged.saturating_sub(before.damaged) as f64 / seconds);
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(searches: u64, phases: u64) -> SessionWork {
        let mut work = SessionWork::default();
        work.operations[OpKind::Search as usize] = searches;
        work.phases[OpKind::Search as usize] = phases;
        (work.cache_accesses, work.hints, work.wrong_hints) = (searches, phases / 2, phases / 10);
        work
    }

    #[test]
    fn rates_are_between_samples() {
        let mut history = ActivityHistory::default();
        history.add(1_000, work(0, 0), 0);
        history.add(2_000, work(100, 150), 0);
        history.add(4_000, work(200, 250), 4);
        let rates = history.rates();
        assert_eq!(rates.at_ms, [2_000, 4_000]);
        assert_eq!((rates.reads, rates.phases), (vec![100.0, 50.0], vec![1.5, 1.0]));
        assert_eq!(rates.damaged, [0.0, 2.0]);
        // In the first interval, 75 of 100 accesses found a hint, and 15 of these hints were wrong. In the second
        // interval, 50 of 100 accesses found a hint, and 10 of these hints were wrong.
        assert_eq!(rates.hits, [60.0, 40.0]);
    }

    #[test]
    fn another_master_begins_anew_and_nothing_grows_forever() {
        let mut history = ActivityHistory::default();
        for second in 1..2_000 {
            history.add(second * 1_000, work(second, second), 0);
        }
        assert_eq!(history.rates().at_ms.len(), KEPT);
        history.add(2_001_000, work(5, 5), 0);
        assert_eq!(history.rates().at_ms.len(), 0);
    }
}
