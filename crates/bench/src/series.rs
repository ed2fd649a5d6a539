//! Latencies over time, taken from threads without stopping them.
//!
//! Every thread notes its operations in an [`OperationMeter`]; the time series takes the contents of all meters once in
//! an interval. Operations while the view was *changing* are kept apart. These are the operations for which, as their
//! session saw it, a view with a change under way was in force at the begin, or a newer view came before the end. This
//! distinction costs two loads of a word per operation. A session learns of the begin and the end of a change some time
//! after the master; the session's operations depend on the time when the session learns.
//!
//! An operation belongs to the interval in which it ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fusee_client::{BlockingClient, OpKind, Session, View};
use serde::Serialize;

use super::tally::{Latencies, OperationTally};
use super::worker::Worker;

/// The operations that ended within some time.
#[derive(Debug, Default)]
pub struct IntervalSample {
    /// Operations during which the view did not change.
    pub calm: OperationTally,
    /// Operations during at least a part of which the view was changing.
    pub changing: OperationTally,
}

impl IntervalSample {
    /// Adds the operations of another thread or interval.
    pub fn merge(&mut self, other: &IntervalSample) {
        self.calm.merge(&other.calm);
        self.changing.merge(&other.changing);
    }

    /// Returns all operations.
    pub fn all(&self) -> OperationTally {
        let mut all = self.calm.clone();
        all.merge(&self.changing);
        all
    }
}

/// The operations that a thread has noted since the contents were last taken.
#[derive(Debug, Default)]
pub struct OperationMeter(Mutex<IntervalSample>);

impl OperationMeter {
    /// Returns the contents, and empties the meter.
    pub fn take(&self) -> IntervalSample {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, is_changing: bool, kind: OpKind, latency_ns: u64) {
        let mut sample = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let IntervalSample { calm, changing } = &mut *sample;
        (if is_changing { changing } else { calm }).record(kind, latency_ns);
    }
}

/// Takes the contents of all meters, and returns their sum.
pub fn take_all(meters: &[OperationMeter]) -> IntervalSample {
    let mut all = IntervalSample::default();
    meters.iter().for_each(|meter| all.merge(&meter.take()));
    all
}

/// A session whose operations are noted in a meter.
pub struct MeteredSession<'a> {
    session: &'a Session,
    meter: &'a OperationMeter,
    view: Arc<View>,
}

impl<'a> MeteredSession<'a> {
    /// Returns a session whose operations are noted in this meter.
    pub fn new(
        client: &BlockingClient,
        session: &'a Session,
        meter: &'a OperationMeter,
    ) -> MeteredSession<'a> {
        MeteredSession { session, meter, view: client.view() }
    }

    /// Runs an operation of a worker of the session, and notes the operation if it succeeds. Returns the time of the
    /// operation's end.
    pub fn run<'w>(
        &mut self,
        worker: &mut Worker<'w, Session>,
        operation: impl AsyncFnOnce(&mut Worker<'w, Session>) -> u64,
    ) -> u64 {
        self.update_view();
        let changing_before = self.view.change.is_some();
        let end = self.session.block_on(operation(worker));
        let changed = self.update_view();
        if let Some((kind, latency_ns)) = worker.latest.take() {
            self.meter.note(changing_before || changed, kind, latency_ns);
        }
        end
    }

    /// Takes the newer view, if there is one. Returns whether there was.
    fn update_view(&mut self) -> bool {
        let newer = self.session.newer_view(self.view.number);
        let came = newer.is_some();
        if let Some(newer) = newer {
            self.view = newer;
        }
        came
    }
}

/// The latencies of one kind of operation.
#[derive(Clone, Debug, Serialize)]
pub struct LatencySummary {
    /// Operations that succeeded.
    pub count: u64,
    /// Operations that succeeded, per second.
    pub per_s: f64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency.
    pub p99_us: f64,
    /// 99.9th percentile of latency.
    pub p999_us: f64,
    /// Largest latency.
    pub max_us: f64,
}

impl LatencySummary {
    fn new(latencies: &Latencies, seconds: f64) -> LatencySummary {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        LatencySummary {
            count: latencies.len(),
            per_s: latencies.len() as f64 / seconds.max(1e-9),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: latencies.max() as f64 / 1000.0,
        }
    }

    /// Returns one line of a table for people, under [`LatencySummary::HEADER`].
    pub fn row(&self) -> String {
        format!(
            "{:>12} {:>10.1} {:>10.1} {:>10.1} {:>11.1}",
            self.count, self.p50_us, self.p99_us, self.p999_us, self.max_us
        )
    }

    /// The header of [`LatencySummary::row`].
    pub const HEADER: &str = "       count     p50 us     p99 us   p99.9 us      max us";
}

/// Latencies by kind of operation, under the paper's names.
pub type LatencyByOperation = BTreeMap<&'static str, LatencySummary>;

/// Returns the latencies of a tally that covers this number of seconds.
pub fn operations(tally: &OperationTally, seconds: f64) -> LatencyByOperation {
    let kinds = OpKind::ALL.into_iter();
    kinds
        .filter_map(|kind| {
            Some((kind.name(), LatencySummary::new(tally.latencies(kind)?, seconds)))
        })
        .collect()
}

/// Returns at most `most` rows of a series, evenly spread, with the last row.
pub fn thinned<T>(rows: &[T], most: usize) -> impl Iterator<Item = &T> {
    let step = rows.len().div_ceil(most.max(1)).max(1);
    let skipped = rows.len().checked_sub(1).map_or(0, |last| last % step);
    rows.iter().skip(skipped).step_by(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_taken_once_and_kept_apart() {
        let meters = [OperationMeter::default(), OperationMeter::default()];
        meters[0].note(false, OpKind::Search, 1_000);
        meters[0].note(true, OpKind::Search, 5_000);
        meters[1].note(true, OpKind::Insert, 9_000);
        let taken = take_all(&meters);
        assert_eq!((taken.calm.operations(), taken.changing.operations()), (1, 2));
        let all = operations(&taken.all(), 2.0);
        assert_eq!((all["search"].count, all["insert"].count), (2, 1));
        assert_eq!((all["search"].per_s, all["search"].max_us.round()), (1.0, 5.0));
        assert!(!all.contains_key("update"));
        assert_eq!(take_all(&meters).all().operations(), 0);
    }

    #[test]
    fn long_series_are_thinned_to_their_end() {
        let rows: Vec<u32> = (0..100).collect();
        assert_eq!(thinned(&rows, 1000).count(), 100);
        for most in [1, 2, 7, 24, 99] {
            let thin: Vec<u32> = thinned(&rows, most).copied().collect();
            assert!(thin.len() <= most && thin.last() == Some(&99), "{most}: {thin:?}");
        }
        assert_eq!(thinned(&[] as &[u32], 3).count(), 0);
    }
}
