//! Records of operations, for the check of the whole history: one [`RecordedOperation`] per operation.
//!
//! A run of millions of operations keeps all records, so each record is packed into 32 bytes (widths of fields in
//! bits):
//!
//! ```text
//! | key 32, worker 32 | value 64 | invoked 56, call 8 | returned 56, answer 8 |
//! ```
//!
//! A value is identified by its writer (24 bits) and by the write's number among the writes of that writer (40 bits,
//! see [`super::value`]). Times are nanoseconds of a clock that all processes share.

use fusee_linearizability::{
    HistoryAnswer, HistoryCall, HistoryOperation, HistoryRecord, HistoryValue,
};

use super::clock::SHARED_SLACK_NS;
use super::value::ValueOrigin;
use super::verify::{LoggedWrite, WriteEffect, WriteOutcome};

/// Bytes of a packed record.
pub const ENTRY_BYTES: usize = 32;
/// The exclusive upper bound of key numbers.
pub const MAX_KEYS: u64 = 1 << 32;
/// The exclusive upper bound of worker numbers.
pub const MAX_WORKERS: u64 = 1 << WORKER_BITS;

/// Maximum difference in speed of the monotonic clocks of two hosts, per mille: the clock of each host, with its
/// crystal's error and all corrections (`adjtimex(2)`), is wrong by at most 0.05 %.
pub const MAX_DRIFT_PER_MILLE: u64 = 1;

const SEQUENCE_BITS: u32 = 40;
const WORKER_BITS: u32 = u64::BITS - SEQUENCE_BITS;
const TIME_BITS: u32 = 56;

/// The operations of which workers keep records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum RecordScope {
    /// No operation, because the logs of writes suffice.
    Nothing,
    /// Writes only, from which another process makes the logs of writes.
    Writes,
    /// Every operation.
    All,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedEnd {
    /// The operation was answered at this time, with this answer.
    Answered(u64, HistoryAnswer),
    /// The outcome is unknown: the operation has possibly taken effect, or still can.
    Unknown,
    /// The operation had no effect.
    NotApplied,
}

/// The record of one operation of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedOperation {
    /// The number of the key.
    pub key: u64,
    /// The number of the worker.
    pub worker: u64,
    /// The request.
    pub call: HistoryCall,
    /// The time of the call.
    pub invoked: u64,
    /// The end of the operation.
    pub end: RecordedEnd,
}

/// Returns the number that identifies a value, by its writer and the number of its write.
pub fn value_of(writer: u64, sequence: u64) -> HistoryValue {
    writer << SEQUENCE_BITS | sequence & ((1 << SEQUENCE_BITS) - 1)
}

impl From<ValueOrigin> for HistoryAnswer {
    fn from(origin: ValueOrigin) -> HistoryAnswer {
        HistoryAnswer::Found(value_of(origin.writer, origin.sequence))
    }
}

/// Names a value for people: write 17 of worker 3 is `w3.17`.
pub fn name_of(value: HistoryValue) -> String {
    format!("w{}.{}", value >> SEQUENCE_BITS, value & ((1 << SEQUENCE_BITS) - 1))
}

/// A record, packed into 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedOperation([u64; 4]);

impl PackedOperation {
    /// Returns the bytes, as processes of one host exchange them.
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a record from these bytes.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> PackedOperation {
        let (words, _) = bytes.as_chunks::<8>();
        let mut packed = [0; 4];
        for (word, bytes) in packed.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        PackedOperation(packed)
    }
}

impl RecordedOperation {
    /// Returns the record with times by another clock. The clock of `self` is ahead of the other clock by `least` to
    /// `most` nanoseconds, and the difference grows by at most [`MAX_DRIFT_PER_MILLE`] of the time since the clock's
    /// start. The operation began and ended within the returned times.
    pub fn by_another_clock(self, least: u64, most: u64) -> RecordedOperation {
        let invoked = self.invoked.saturating_sub(most);
        let end = match self.end {
            RecordedEnd::Answered(time, answer) => {
                let time = time.saturating_sub(least);
                RecordedEnd::Answered(time + time / 1000 * MAX_DRIFT_PER_MILLE, answer)
            }
            end => end,
        };
        RecordedOperation { invoked, end, ..self }
    }
}

impl From<RecordedOperation> for PackedOperation {
    fn from(entry: RecordedOperation) -> PackedOperation {
        let (call, written) = match entry.call {
            HistoryCall::Search => (0, 0),
            HistoryCall::Insert(value) => (1, value),
            HistoryCall::Update(value) => (2, value),
            HistoryCall::Upsert(value) => (3, value),
            HistoryCall::Delete => (4, 0),
        };
        let (answer, returned, found) = match entry.end {
            RecordedEnd::Unknown => (0, 0, None),
            RecordedEnd::NotApplied => (1, 0, None),
            RecordedEnd::Answered(time, HistoryAnswer::Done) => (2, time, None),
            RecordedEnd::Answered(time, HistoryAnswer::Exists) => (3, time, None),
            RecordedEnd::Answered(time, HistoryAnswer::Absent) => (4, time, None),
            RecordedEnd::Answered(time, HistoryAnswer::Found(value)) => (5, time, Some(value)),
        };
        debug_assert!(entry.key < MAX_KEYS && entry.worker < MAX_WORKERS, "{entry:?}");
        PackedOperation([
            entry.key << 32 | entry.worker,
            found.unwrap_or(written),
            entry.invoked << 8 | call,
            returned << 8 | answer,
        ])
    }
}

impl From<PackedOperation> for RecordedOperation {
    fn from(
        PackedOperation([who, value, invoked, returned]): PackedOperation,
    ) -> RecordedOperation {
        let call = match invoked & 0xff {
            0 => HistoryCall::Search,
            1 => HistoryCall::Insert(value),
            2 => HistoryCall::Update(value),
            3 => HistoryCall::Upsert(value),
            _ => HistoryCall::Delete,
        };
        let time = returned >> 8;
        let end = match returned & 0xff {
            0 => RecordedEnd::Unknown,
            1 => RecordedEnd::NotApplied,
            2 => RecordedEnd::Answered(time, HistoryAnswer::Done),
            3 => RecordedEnd::Answered(time, HistoryAnswer::Exists),
            4 => RecordedEnd::Answered(time, HistoryAnswer::Absent),
            _ => RecordedEnd::Answered(time, HistoryAnswer::Found(value)),
        };
        RecordedOperation {
            key: who >> 32,
            worker: who & (MAX_KEYS - 1),
            call,
            invoked: invoked >> 8,
            end,
        }
    }
}

impl RecordedOperation {
    /// Converts the record for the check of the history. Returns `None` if the operation had no effect, or is a read
    /// without an answer.
    pub fn record(&self) -> Option<HistoryRecord> {
        let returned = match self.end {
            RecordedEnd::Answered(time, answer) => Some((time, answer)),
            RecordedEnd::Unknown if self.call == HistoryCall::Search => return None,
            RecordedEnd::Unknown => None,
            RecordedEnd::NotApplied => return None,
        };
        let invoked = self.invoked.saturating_sub(SHARED_SLACK_NS);
        let operation = HistoryOperation { call: self.call, invoked, returned };
        Some(HistoryRecord { key: self.key, client: self.worker as u32, operation })
    }

    /// Converts the record for the log of the worker's writes; `None` if the operation is a read.
    pub fn write(&self) -> Option<LoggedWrite> {
        let effect = match self.call {
            HistoryCall::Search => return None,
            HistoryCall::Delete => WriteEffect::Absent,
            _ => WriteEffect::Value,
        };
        let fate = match self.end {
            RecordedEnd::Answered(time, HistoryAnswer::Done) => WriteOutcome::Acknowledged(time),
            RecordedEnd::Unknown => WriteOutcome::Unknown,
            _ => WriteOutcome::NotApplied,
        };
        let start = self.invoked.saturating_sub(super::clock::SLACK_NS);
        Some(LoggedWrite { key: self.key, effect, start, fate })
    }
}

const _: () = assert!(SEQUENCE_BITS + WORKER_BITS == 64 && TIME_BITS + 8 == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_as_they_were() {
        let value = value_of(MAX_WORKERS - 1, (1 << SEQUENCE_BITS) - 1);
        let late = (1 << TIME_BITS) - 1;
        let done = RecordedEnd::Answered(late, HistoryAnswer::Done);
        for (call, end) in [
            (HistoryCall::Insert(value), done),
            (HistoryCall::Insert(7), RecordedEnd::Answered(9, HistoryAnswer::Exists)),
            (HistoryCall::Update(value), RecordedEnd::Unknown),
            (HistoryCall::Upsert(value), RecordedEnd::NotApplied),
            (HistoryCall::Delete, RecordedEnd::Answered(late, HistoryAnswer::Absent)),
            (HistoryCall::Search, RecordedEnd::Answered(late, HistoryAnswer::Found(value))),
        ] {
            for (key, worker) in [(0, 0), (MAX_KEYS - 1, MAX_WORKERS - 1)] {
                let entry = RecordedOperation { key, worker, call, invoked: late, end };
                let bytes = PackedOperation::from(entry).to_bytes();
                assert_eq!(RecordedOperation::from(PackedOperation::from_bytes(&bytes)), entry);
            }
        }
        assert_eq!(name_of(value_of(3, 17)), "w3.17");
    }

    #[test]
    fn by_another_clock_an_operation_takes_longer_never_shorter() {
        let end = RecordedEnd::Answered(3_000_000, HistoryAnswer::Done);
        let entry = RecordedOperation {
            key: 1,
            worker: 2,
            call: HistoryCall::Delete,
            invoked: 1_000_000,
            end,
        };
        let moved = entry.by_another_clock(500_000, 700_000);
        assert_eq!(
            (moved.invoked, moved.end),
            (300_000, RecordedEnd::Answered(2_502_500, HistoryAnswer::Done))
        );
        let unknown = RecordedOperation { end: RecordedEnd::Unknown, ..entry }
            .by_another_clock(500_000, 700_000);
        assert_eq!((unknown.invoked, unknown.end), (300_000, RecordedEnd::Unknown));
    }

    #[test]
    fn what_had_no_effect_is_no_part_of_the_history() {
        let entry = |call, end| RecordedOperation { key: 1, worker: 2, call, invoked: 5_000, end };
        assert_eq!(entry(HistoryCall::Delete, RecordedEnd::NotApplied).record(), None);
        assert_eq!(entry(HistoryCall::Search, RecordedEnd::Unknown).record(), None);
        let pending = entry(HistoryCall::Update(1), RecordedEnd::Unknown).record().unwrap();
        assert_eq!((pending.operation.invoked, pending.operation.returned), (4_900, None));
        let absent =
            entry(HistoryCall::Delete, RecordedEnd::Answered(6_000, HistoryAnswer::Absent));
        assert_eq!(absent.write().unwrap().fate, WriteOutcome::NotApplied);
        assert_eq!(
            absent.record().unwrap().operation.returned,
            Some((6_000, HistoryAnswer::Absent))
        );
    }
}
