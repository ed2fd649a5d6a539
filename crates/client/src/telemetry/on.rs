//! Telemetry of single operations, with the feature `telemetry`: a `tracing` span and the latency of each operation.
//! Without the feature, this module is not compiled.
//!
//! Spans have the target `fusee::operation`, the level INFO, and the field names of OpenTelemetry (`otel.kind`,
//! `otel.status_code`, `db.system.name`, `db.operation.name`, `error.type`): the crate `tracing-opentelemetry` turns
//! them into traces. They contain no keys or values.

use std::time::Instant;

use fusee_core::Error;
use fusee_core::stats::{Counter, OpKind};
use tracing::Span;
use tracing::field::Empty;

use crate::prometheus::MetricHistogram;

/// Number of bounds between latency buckets: two per power of two, from 128 ns on: 128, 192, 256, 384, ...
const BOUNDS: usize = 54;
const FIRST_POWER: u32 = 7;

/// Returns the upper bound of histogram bucket `n`, in nanoseconds.
const fn bound_ns(n: usize) -> u64 {
    let power = 1 << (FIRST_POWER + n as u32 / 2);
    power + if n % 2 == 1 { power / 2 } else { 0 }
}

/// Returns the bucket of a time: the first whose bound is at least the time; `BOUNDS` if the time exceeds all bounds.
fn bucket(ns: u64) -> usize {
    // The time is greater than `below`, and at most twice `below`.
    let power = (ns.max(2) - 1).ilog2();
    let Some(octave) = power.checked_sub(FIRST_POWER) else { return 0 };
    let below = 1u64 << power;
    let first = 2 * octave as usize + 1;
    (first + usize::from(ns > below + below / 2)).min(BOUNDS)
}

/// Latencies of operations of one kind.
#[derive(Debug)]
struct KindLatencies {
    buckets: [Counter; BOUNDS + 1],
    sum_ns: Counter,
}

impl Default for KindLatencies {
    fn default() -> KindLatencies {
        KindLatencies {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum_ns: Counter::default(),
        }
    }
}

/// Latencies of a session's operations. Only that session's thread adds to them.
#[derive(Debug, Default)]
pub struct SessionLatencies([KindLatencies; OpKind::ALL.len()]);

/// Sums of the [`SessionLatencies`] of several sessions.
#[derive(Clone, Debug, Default)]
pub struct LatencySums(Vec<(u64, Vec<u64>)>);

impl LatencySums {
    pub(crate) fn add(&mut self, latencies: &SessionLatencies) {
        self.0.resize_with(OpKind::ALL.len(), || (0, vec![0; BOUNDS + 1]));
        for ((sum_ns, buckets), times) in self.0.iter_mut().zip(&latencies.0) {
            *sum_ns += times.sum_ns.get();
            buckets.iter_mut().zip(&times.buckets).for_each(|(sum, n)| *sum += n.get());
        }
    }

    /// Returns the histogram of one kind of operation: bounds in seconds, each with the number of operations that took
    /// no longer; the sum in seconds; and the number of operations.
    pub fn kind(&self, kind: OpKind) -> MetricHistogram {
        let Some((sum_ns, counts)) = self.0.get(kind as usize) else {
            return MetricHistogram::default();
        };
        let bounds = (0..BOUNDS).map(|n| bound_ns(n) as f64 / 1e9);
        MetricHistogram::new(bounds, counts, *sum_ns as f64 / 1e9)
    }
}

/// A running operation: its kind, start and span.
pub struct OperationSpan {
    kind: OpKind,
    at: Instant,
    span: Span,
}

impl OperationSpan {
    pub fn now(kind: OpKind) -> OperationSpan {
        let span = tracing::info_span!(
            target: "fusee::operation",
            "fusee",
            otel.name = kind.name(),
            otel.kind = "client",
            otel.status_code = Empty,
            db.system.name = "fusee",
            db.operation.name = kind.name(),
            error.type = Empty,
        );
        OperationSpan { kind, at: Instant::now(), span }
    }

    pub fn ends<T>(self, latencies: &SessionLatencies, result: &Result<T, Error>) {
        let ns = self.at.elapsed().as_nanos() as u64;
        let times = &latencies.0[self.kind as usize];
        times.buckets[bucket(ns)].add(1);
        times.sum_ns.add(ns);
        if let Err(error) = result {
            self.failed(error);
        }
    }

    /// Ends a batch of writes. Adds no latency, because those of the single writes are unknown.
    pub fn ends_with(self, outcomes: &[Result<(), Error>]) {
        let wrong = |outcome: &Result<(), Error>| outcome.clone().err().filter(is_wrong);
        if let Some(error) = outcomes.iter().find_map(wrong) {
            self.failed(&error);
        }
    }

    fn failed(&self, error: &Error) {
        if is_wrong(error) {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", tracing::field::display(error));
        }
    }
}

/// Returns whether an error is a failure, rather than a regular answer about the key.
fn is_wrong(error: &Error) -> bool {
    !matches!(error, Error::NotFound | Error::AlreadyExists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_first_bucket_that_holds_it() {
        for n in 1..BOUNDS {
            assert!(bound_ns(n) > bound_ns(n - 1));
        }
        let times = (0..3_000).chain(
            (12..40)
                .flat_map(|power| [-1, 0, 1].map(|by| (1u64 << power).saturating_add_signed(by))),
        );
        for ns in times.chain([u64::MAX]) {
            let first = (0..BOUNDS).find(|n| ns <= bound_ns(*n)).unwrap_or(BOUNDS);
            assert_eq!(bucket(ns), first, "{ns}");
        }
    }
}
