//! Records of operations, for the check of the whole history: one [`Entry`] per operation.
//!
//! A run of millions of operations keeps all entries, so they are packed into 32 bytes:
//!
//! ```text
//! | key 32, worker 32 | value 64 | invoked 56, call 8 | returned 56, answer 8 |
//! ```
//!
//! A value is identified by its writer and by the number of the write among the writer's (see
//! [`super::value`]): 24 and 40 bits. Times are nanoseconds of a clock that all processes share.

use fusee_linearizability::{Answer, Call, Operation, Record, Value};

use super::clock::SHARED_SLACK_NS;
use super::value::Origin;
use super::verify::{Effect, Write, WriteOutcome};

/// Bytes of a packed entry.
pub const ENTRY_BYTES: usize = 32;
/// The bound of key numbers, exclusive.
pub const MAX_KEYS: u64 = 1 << 32;
/// The bound of worker numbers, exclusive.
pub const MAX_WORKERS: u64 = 1 << WORKER_BITS;

/// The difference in speed of the monotonic clocks of two hosts, at most: each may be corrected by
/// 0.05 % (`adjtimex(2)`), its crystal included.
pub const MAX_DRIFT_PER_MILLE: u64 = 1;

const SEQUENCE_BITS: u32 = 40;
const WORKER_BITS: u32 = u64::BITS - SEQUENCE_BITS;
const TIME_BITS: u32 = 56;

/// The operations of which workers keep records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Keep {
    /// None: the logs of the writes suffice.
    Nothing,
    /// Writes, from which another process makes logs.
    Writes,
    /// Every operation.
    All,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this answer, at this time.
    Answered(u64, Answer),
    /// The operation may have taken effect, or may still.
    Unknown,
    /// The operation had no effect.
    NotApplied,
}

/// One operation of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the key.
    pub key: u64,
    /// The number of the worker.
    pub worker: u64,
    /// The request.
    pub call: Call,
    /// The time of the call.
    pub invoked: u64,
    /// The result.
    pub end: End,
}

/// Returns the identification of a value.
pub fn value_of(writer: u64, sequence: u64) -> Value {
    writer << SEQUENCE_BITS | sequence & ((1 << SEQUENCE_BITS) - 1)
}

impl From<Origin> for Answer {
    fn from(origin: Origin) -> Answer {
        Answer::Found(value_of(origin.writer, origin.sequence))
    }
}

/// Names a value for people: write 17 of worker 3 is `w3.17`.
pub fn name_of(value: Value) -> String {
    format!("w{}.{}", value >> SEQUENCE_BITS, value & ((1 << SEQUENCE_BITS) - 1))
}

/// An entry in 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed([u64; 4]);

impl Packed {
    /// Returns the bytes, as they go from process to process on one host.
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads an entry from these bytes.
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Packed {
        let (words, _) = bytes.as_chunks::<8>();
        let mut packed = [0; 4];
        for (word, bytes) in packed.iter_mut().zip(words) {
            *word = u64::from_le_bytes(*bytes);
        }
        Packed(packed)
    }
}

impl Entry {
    /// Returns the entry by another clock. The entry's clock may be ahead of that by `least` to
    /// `most`, and by up to [`MAX_DRIFT_PER_MILLE`] of the time since its begin: the operation
    /// began and ended within the returned times.
    pub fn by_another_clock(self, least: u64, most: u64) -> Entry {
        let invoked = self.invoked.saturating_sub(most);
        let end = match self.end {
            End::Answered(time, answer) => {
                let time = time.saturating_sub(least);
                End::Answered(time + time / 1000 * MAX_DRIFT_PER_MILLE, answer)
            }
            end => end,
        };
        Entry { invoked, end, ..self }
    }
}

impl From<Entry> for Packed {
    fn from(entry: Entry) -> Packed {
        let (call, written) = match entry.call {
            Call::Search => (0, 0),
            Call::Insert(value) => (1, value),
            Call::Update(value) => (2, value),
            Call::Upsert(value) => (3, value),
            Call::Delete => (4, 0),
        };
        let (answer, returned, found) = match entry.end {
            End::Unknown => (0, 0, None),
            End::NotApplied => (1, 0, None),
            End::Answered(time, Answer::Done) => (2, time, None),
            End::Answered(time, Answer::Exists) => (3, time, None),
            End::Answered(time, Answer::Absent) => (4, time, None),
            End::Answered(time, Answer::Found(value)) => (5, time, Some(value)),
        };
        debug_assert!(entry.key < MAX_KEYS && entry.worker < MAX_WORKERS, "{entry:?}");
        Packed([
            entry.key << 32 | entry.worker,
            found.unwrap_or(written),
            entry.invoked << 8 | call,
            returned << 8 | answer,
        ])
    }
}

impl From<Packed> for Entry {
    fn from(Packed([who, value, invoked, returned]): Packed) -> Entry {
        let call = match invoked & 0xff {
            0 => Call::Search,
            1 => Call::Insert(value),
            2 => Call::Update(value),
            3 => Call::Upsert(value),
            _ => Call::Delete,
        };
        let time = returned >> 8;
        let end = match returned & 0xff {
            0 => End::Unknown,
            1 => End::NotApplied,
            2 => End::Answered(time, Answer::Done),
            3 => End::Answered(time, Answer::Exists),
            4 => End::Answered(time, Answer::Absent),
            _ => End::Answered(time, Answer::Found(value)),
        };
        Entry { key: who >> 32, worker: who & (MAX_KEYS - 1), call, invoked: invoked >> 8, end }
    }
}

impl Entry {
    /// Converts the entry for the check of the history; `None` if the operation was not applied, or is
    /// a read without an answer.
    pub fn record(&self) -> Option<Record> {
        let returned = match self.end {
            End::Answered(time, answer) => Some((time, answer)),
            End::Unknown if self.call == Call::Search => return None,
            End::Unknown => None,
            End::NotApplied => return None,
        };
        let invoked = self.invoked.saturating_sub(SHARED_SLACK_NS);
        let operation = Operation { call: self.call, invoked, returned };
        Some(Record { key: self.key, client: self.worker as u32, operation })
    }

    /// Converts the entry for the log of the worker's writes; `None` if it is no write.
    pub fn write(&self) -> Option<Write> {
        let effect = match self.call {
            Call::Search => return None,
            Call::Delete => Effect::Absent,
            _ => Effect::Value,
        };
        let fate = match self.end {
            End::Answered(time, Answer::Done) => WriteOutcome::Acknowledged(time),
            End::Unknown => WriteOutcome::Unknown,
            _ => WriteOutcome::NotApplied,
        };
        let start = self.invoked.saturating_sub(super::clock::SLACK_NS);
        Some(Write { key: self.key, effect, start, fate })
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
        let done = End::Answered(late, Answer::Done);
        for (call, end) in [
            (Call::Insert(value), done),
            (Call::Insert(7), End::Answered(9, Answer::Exists)),
            (Call::Update(value), End::Unknown),
            (Call::Upsert(value), End::NotApplied),
            (Call::Delete, End::Answered(late, Answer::Absent)),
            (Call::Search, End::Answered(late, Answer::Found(value))),
        ] {
            for (key, worker) in [(0, 0), (MAX_KEYS - 1, MAX_WORKERS - 1)] {
                let entry = Entry { key, worker, call, invoked: late, end };
                let bytes = Packed::from(entry).to_bytes();
                assert_eq!(Entry::from(Packed::from_bytes(&bytes)), entry);
            }
        }
        assert_eq!(name_of(value_of(3, 17)), "w3.17");
    }

    #[test]
    fn by_another_clock_an_operation_takes_longer_never_shorter() {
        let end = End::Answered(3_000_000, Answer::Done);
        let entry = Entry { key: 1, worker: 2, call: Call::Delete, invoked: 1_000_000, end };
        let moved = entry.by_another_clock(500_000, 700_000);
        assert_eq!((moved.invoked, moved.end), (300_000, End::Answered(2_502_500, Answer::Done)));
        let unknown = Entry { end: End::Unknown, ..entry }.by_another_clock(500_000, 700_000);
        assert_eq!((unknown.invoked, unknown.end), (300_000, End::Unknown));
    }

    #[test]
    fn what_had_no_effect_is_no_part_of_the_history() {
        let entry = |call, end| Entry { key: 1, worker: 2, call, invoked: 5_000, end };
        assert_eq!(entry(Call::Delete, End::NotApplied).record(), None);
        assert_eq!(entry(Call::Search, End::Unknown).record(), None);
        let pending = entry(Call::Update(1), End::Unknown).record().unwrap();
        assert_eq!((pending.operation.invoked, pending.operation.returned), (4_900, None));
        let absent = entry(Call::Delete, End::Answered(6_000, Answer::Absent));
        assert_eq!(absent.write().unwrap().fate, WriteOutcome::NotApplied);
        assert_eq!(absent.record().unwrap().operation.returned, Some((6_000, Answer::Absent)));
    }
}
