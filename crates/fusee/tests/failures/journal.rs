//! The journal of a client process, in files that survive the process.
//!
//! Every writer of a process has a file of its own. The writer notes an operation there before it starts the operation,
//! and again after the operation has ended, by one `write` each. Therefore a note can be read later even if the process
//! is killed at the next instruction. An operation without an end is *pending*: it has possibly taken effect, or will
//! later.
//!
//! A note has four words: `what | key << 8`, the value's name, the time in nanoseconds of the system's monotonic clock,
//! which is the same for all processes, and the value that a SEARCH found.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use fusee_client::{FailedWriteOutcome, WriteError};
use fusee_linearizability::{HistoryAnswer, HistoryCall, HistoryOperation, HistoryRecord};
use rustix::time::{ClockId, clock_gettime};

/// Length in bytes of a note, which records the beginning or end of an operation.
const NOTE_BYTES: usize = 32;
/// Nanoseconds by which an operation has possibly started before the noted time, as in the benchmarks.
const SLACK_NS: u64 = 100;

// Values of `what`: starts of operations, by call, and ends.
const SEARCH: u64 = 0;
const INSERT: u64 = 1;
const UPDATE: u64 = 2;
const UPSERT: u64 = 3;
const DELETE: u64 = 4;
const FIRST_END: u64 = 16;
const DONE: u64 = 16;
const EXISTS: u64 = 17;
const ABSENT: u64 = 18;
const FOUND: u64 = 19;
/// The operation failed and had no effect.
const NOT_APPLIED: u64 = 20;
/// The operation failed and possibly had an effect.
const UNKNOWN: u64 = 21;

/// Returns the time of the system's monotonic clock in nanoseconds.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The file of one writer, open for writing.
pub struct Journal(File);

impl Journal {
    pub fn create(path: &Path) -> Journal {
        Journal(File::create(path).unwrap())
    }

    /// Notes that an operation is about to start.
    pub fn begin(&mut self, key: u64, call: HistoryCall) {
        let (what, value) = match call {
            HistoryCall::Search => (SEARCH, 0),
            HistoryCall::Insert(value) => (INSERT, value),
            HistoryCall::Update(value) => (UPDATE, value),
            HistoryCall::Upsert(value) => (UPSERT, value),
            HistoryCall::Delete => (DELETE, 0),
        };
        self.note([what | key << 8, value, now_ns(), 0]);
    }

    /// Notes that the operation has ended. For a SEARCH the note contains the value that was found.
    pub fn end(&mut self, result: &Result<Option<u64>, WriteError>, is_search: bool) {
        let now = now_ns();
        let (what, found) = match result {
            Ok(Some(value)) => (FOUND, *value),
            Ok(None) if is_search => (ABSENT, 0),
            Ok(None) => (DONE, 0),
            Err(WriteError::AlreadyExists) => (EXISTS, 0),
            Err(WriteError::NotFound) => (ABSENT, 0),
            Err(WriteError::Corrupt { .. }) => (UNKNOWN, 0),
            Err(error) if error.outcome() == FailedWriteOutcome::Unknown => (UNKNOWN, 0),
            Err(_) => (NOT_APPLIED, 0),
        };
        self.note([what, 0, now, found]);
    }

    /// Notes that the writer has read a key together with other keys since `since_ns`. This is noted only at the end,
    /// because a read that does not end proves nothing.
    pub fn looked(&mut self, key: u64, since_ns: u64, found: Option<u64>) {
        self.note([SEARCH | key << 8, 0, since_ns, 0]);
        self.end(&Ok(found), true);
    }

    fn note(&mut self, words: [u64; 4]) {
        let mut bytes = [0; NOTE_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        self.0.write_all(&bytes).unwrap();
    }
}

/// Returns the number of notes that a writer has made so far.
pub fn notes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len() / NOTE_BYTES as u64)
}

/// Returns the operations of a writer.
pub fn read(path: &Path, writer: u32) -> Vec<HistoryRecord> {
    let bytes = fs::read(path).unwrap_or_default();
    let notes: Vec<[u64; 4]> = bytes
        .chunks_exact(NOTE_BYTES)
        .map(|note| {
            let word = |i: usize| note[8 * i..8 * i + 8].try_into().unwrap();
            [0, 1, 2, 3].map(|i| u64::from_le_bytes(word(i)))
        })
        .collect();
    let mut records = Vec::new();
    let mut notes = notes.into_iter().peekable();
    while let Some([what, value, invoked, _]) = notes.next() {
        let call = match what & 0xff {
            SEARCH => HistoryCall::Search,
            INSERT => HistoryCall::Insert(value),
            UPDATE => HistoryCall::Update(value),
            UPSERT => HistoryCall::Upsert(value),
            DELETE => HistoryCall::Delete,
            other => panic!("{} has an end without a beginning: {other}", path.display()),
        };
        let returned = match notes.next_if(|note| note[0] >= FIRST_END && note[0] <= UNKNOWN) {
            None | Some([UNKNOWN, ..]) if call == HistoryCall::Search => continue,
            None | Some([UNKNOWN, ..]) => None,
            Some([NOT_APPLIED, ..]) => continue,
            Some([DONE, _, time, _]) => Some((time, HistoryAnswer::Done)),
            Some([EXISTS, _, time, _]) => Some((time, HistoryAnswer::Exists)),
            Some([FOUND, _, time, found]) => Some((time, HistoryAnswer::Found(found))),
            Some([_, _, time, _]) => Some((time, HistoryAnswer::Absent)),
        };
        let invoked = invoked - SLACK_NS;
        let operation = HistoryOperation { call, invoked, returned };
        records.push(HistoryRecord { key: what >> 8, client: writer, operation });
    }
    records
}
