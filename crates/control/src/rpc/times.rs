//! The times that a server takes to answer requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets of [`Times`], in microseconds.
pub const BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000,
];

/// The times of the answers to one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Counts of answers. Count i is that of answers that took at most bound i of [`BOUNDS_US`], and longer than the
    /// bound before it. The additional last count is that of answers that took longer than all bounds.
    pub counts: [u64; BOUNDS_US.len() + 1],
    /// The sum of all measured times.
    pub sum: Duration,
}

impl Times {
    fn add(&mut self, took: Duration) {
        let bucket = BOUNDS_US.partition_point(|bound| Duration::from_micros(*bound) < took);
        self.counts[bucket] += 1;
        self.sum += took;
    }
}

/// The times that a server takes to answer, by the names of requests. A time begins when the request was read, and ends
/// when its answer is ready to be sent. Requests that are refused because the sender lacks a key are not counted.
#[derive(Clone, Debug, Default)]
pub struct RequestTimes(Arc<Mutex<BTreeMap<&'static str, Times>>>);

impl RequestTimes {
    pub(super) fn add(&self, request: &'static str, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(request).or_default().add(took);
    }

    /// Returns the times measured so far.
    pub fn all(&self) -> BTreeMap<&'static str, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_where_their_bound_is() {
        let times = RequestTimes::default();
        for us in [1, 50, 51, 5_000_000, 5_000_001] {
            times.add("Open", Duration::from_micros(us));
        }
        times.add("Close", Duration::ZERO);
        let all = times.all();
        assert!(all.keys().eq(&["Close", "Open"]));
        let Times { counts, sum } = all["Open"];
        assert_eq!((counts[..2].to_vec(), counts[15], counts[16]), (vec![2, 1], 1, 1));
        assert_eq!((counts.iter().sum::<u64>(), sum), (5, Duration::from_micros(10_000_103)));
    }
}
