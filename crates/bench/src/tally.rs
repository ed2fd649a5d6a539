//! Counts of the workers' operations: latencies, errors and mismatches.
//!
//! A latency is the time from the call of an operation until its result is there, measured with the processor's
//! time-stamp counter. It includes the work of other coroutines of the same session in that time, and the wait of a
//! writer for the winner of a conflict. It does not include making the value, checking the value that was read, or the
//! worker's yielding between operations. A failed operation is counted as an error and has no latency.

use std::collections::BTreeMap;

use fusee_client::OpKind;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::store::OperationError;
use super::verify::Mismatch;

/// Maximum number of errors and mismatches that are described in words.
const MAX_EXAMPLES: usize = 5;
/// The latency as which all longer latencies are recorded.
const MAX_LATENCY_NS: u64 = 600_000_000_000;
/// Number of significant decimal digits of recorded latencies.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Latencies in nanoseconds.
pub type Latencies = Histogram<u64>;

/// Returns latencies without entries.
pub fn empty_latencies() -> Latencies {
    Histogram::new_with_max(MAX_LATENCY_NS, SIGNIFICANT_DIGITS).expect("constants are in range")
}

/// Counts of one thread, or sums over several.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct OperationTally {
    #[serde(with = "recorded")]
    latencies: [Option<Latencies>; OpKind::ALL.len()],
    /// Number of failed operations, by kind of error.
    pub errors: BTreeMap<String, u64>,
    /// Number of wrong reads, by kind of mismatch.
    pub mismatches: BTreeMap<String, u64>,
    /// A few errors and mismatches in words.
    pub examples: Vec<String>,
}

impl OperationTally {
    /// Counts an operation that succeeded.
    pub fn record(&mut self, kind: OpKind, latency_ns: u64) {
        self.latencies[kind as usize]
            .get_or_insert_with(empty_latencies)
            .saturating_record(latency_ns);
    }

    /// Counts an operation that failed.
    pub fn error(&mut self, kind: OpKind, key: u64, error: &impl OperationError) {
        *self.errors.entry(error.kind().to_string()).or_default() += 1;
        self.example(|| format!("{} of key number {key}: {error}", kind.name()));
    }

    /// Counts a read whose value contradicts the writes.
    pub fn mismatch(&mut self, key: u64, mismatch: &Mismatch) {
        *self.mismatches.entry(mismatch.kind().to_string()).or_default() += 1;
        self.example(|| format!("mismatch at key number {key}: {mismatch}"));
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < MAX_EXAMPLES {
            self.examples.push(text());
        }
    }

    /// Adds the counts of another thread or phase.
    pub fn merge(&mut self, other: &OperationTally) {
        for (mine, theirs) in self.latencies.iter_mut().zip(&other.latencies) {
            if let Some(theirs) = theirs {
                let mine = mine.get_or_insert_with(empty_latencies);
                mine.add(theirs).expect("all histograms have the same range");
            }
        }
        self.merge_failures(other);
    }

    /// Adds the errors and mismatches of another thread or phase, but not the latencies.
    pub fn merge_failures(&mut self, other: &OperationTally) {
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        for (kind, count) in &other.mismatches {
            *self.mismatches.entry(kind.clone()).or_default() += count;
        }
        let room = MAX_EXAMPLES - self.examples.len();
        self.examples.extend(other.examples.iter().take(room).cloned());
    }

    /// Returns the latencies of the operations of this kind that succeeded, if there were any.
    pub fn latencies(&self, kind: OpKind) -> Option<&Latencies> {
        self.latencies[kind as usize].as_ref()
    }

    /// Returns the number of operations that succeeded.
    pub fn operations(&self) -> u64 {
        self.latencies.iter().flatten().map(Latencies::len).sum()
    }

    /// Returns the number of operations that failed.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Returns the number of wrong reads.
    pub fn mismatch_count(&self) -> u64 {
        self.mismatches.values().sum()
    }
}

/// Encodes histograms as pairs of latency and count, for messages between processes.
mod recorded {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Latencies, OpKind, empty_latencies};

    type LatenciesByKind = [Option<Latencies>; OpKind::ALL.len()];

    pub fn serialize<S: Serializer>(
        all: &LatenciesByKind,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let counts = |latencies: &Latencies| -> Vec<(u64, u64)> {
            latencies.iter_recorded().map(|i| (i.value_iterated_to(), i.count_at_value())).collect()
        };
        let all: Vec<Option<Vec<(u64, u64)>>> =
            all.iter().map(|latencies| latencies.as_ref().map(counts)).collect();
        all.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<LatenciesByKind, D::Error> {
        let read = Vec::<Option<Vec<(u64, u64)>>>::deserialize(deserializer)?;
        let mut all = LatenciesByKind::default();
        for (latencies, counts) in all.iter_mut().zip(read) {
            for (latency_ns, count) in counts.into_iter().flatten() {
                let latencies = latencies.get_or_insert_with(empty_latencies);
                latencies.saturating_record_n(latency_ns, count);
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use fusee_client::WriteError;

    use super::*;

    #[test]
    fn tallies_of_threads_add_up() {
        let mut one = OperationTally::default();
        let mut two = OperationTally::default();
        one.record(OpKind::Search, 1000);
        two.record(OpKind::Search, 3000);
        two.record(OpKind::Update, u64::MAX);
        two.error(OpKind::Update, 4, &WriteError::OutOfMemory);
        two.mismatch(9, &Mismatch::Torn);
        one.merge(&two);
        assert_eq!(one.operations(), 3);
        assert_eq!(one.latencies(OpKind::Search).unwrap().len(), 2);
        assert_eq!((one.error_count(), one.mismatch_count()), (1, 1));
        assert_eq!(one.errors["out_of_memory"], 1);
        assert_eq!(one.examples.len(), 2);
        assert!(one.examples[0].contains("update of key number 4: out of memory"));
        for _ in 0..10 {
            one.merge(&two);
        }
        assert_eq!(one.examples.len(), MAX_EXAMPLES);
    }

    #[test]
    fn tallies_go_from_process_to_process() {
        let mut tally = OperationTally::default();
        for latency_ns in [1, 900, 1_234_567, MAX_LATENCY_NS] {
            tally.record(OpKind::Search, latency_ns);
            tally.record(OpKind::Search, latency_ns);
        }
        tally.error(OpKind::Update, 4, &WriteError::OutOfMemory);
        tally.mismatch(9, &Mismatch::Torn);
        let json = serde_json::to_string(&tally).unwrap();
        let back: OperationTally = serde_json::from_str(&json).unwrap();
        assert_eq!(back.latencies, tally.latencies);
        assert_eq!((back.errors, back.mismatches), (tally.errors, tally.mismatches));
        assert_eq!(back.examples, tally.examples);
    }
}
