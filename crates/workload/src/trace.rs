//! Operations from files, as YCSB's `basic` binding prints them.
//!
//! ```text
//! INSERT usertable user6284781860667377211 [ field0=... field1=... ]
//! READ usertable user8517097267634966620 [ <all fields>]
//! UPDATE user8517097267634966620
//! ```
//!
//! A line consists of an operation, possibly a table, and a key; the fields in brackets behind the key are not kept.
//! Lines that are empty or begin with `*`, `"`, `[` or `#` are YCSB's other output (properties, statistics, comments),
//! and are skipped. Any other line is an error, and the error message shows the line.
//!
//! There are two files: a file of INSERTs with the keys to load, and a file of operations to run. Keys get numbers in
//! the order in which they appear, loaded keys first. Each key of the second file must be inserted by some line of
//! either file; otherwise the files do not belong together.
//!
//! Files are read in one pass, and a line has at most [`MAX_LINE_BYTES`]. In memory a key takes its bytes and eight
//! more, and an operation takes four bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use twox_hash::XxHash3_128;

use crate::requests::WorkloadOperation;

/// Greatest length of a line in bytes, without its end.
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// Greatest number of keys in both files together.
pub const MAX_TRACE_KEYS: usize = 1 << KEY_BITS;
/// Greatest number of operations in the second file.
pub const MAX_TRACE_OPERATIONS: usize = u32::MAX as usize;

const KEY_BITS: u32 = 30;
/// Number of bytes of a refused line that are shown.
const SHOWN_BYTES: usize = 40;

/// Reasons why files are refused.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file could not be read, or not to its end.
    #[error("cannot read {file}: {error}")]
    Read {
        /// The file's name.
        file: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A line cannot be used.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file's name.
        file: String,
        /// The number of the line in the file, from 1.
        line: u64,
        /// The problem of the line.
        problem: TraceLineError,
    },
    /// A file has no operations.
    #[error("{file} has no operations; expected lines like `{}`", if *.loads { LOAD_LINE } else { LINE })]
    Empty {
        /// The file's name.
        file: String,
        /// Whether the file is that of the keys to load, not that of the operations.
        loads: bool,
    },
}

const LINE: &str = "READ usertable user1";
const LOAD_LINE: &str = "INSERT usertable user1";

/// Reasons why a line is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceLineError {
    /// The line does not begin with a known operation.
    #[error("expected INSERT, READ, UPDATE or DELETE, then a key, found `{found}`")]
    NoOperation {
        /// The beginning of the line.
        found: String,
    },
    /// The operation has no key.
    #[error("expected a key behind {operation}, as in `{LINE}`")]
    NoKey {
        /// The first word of the line.
        operation: String,
    },
    /// The line has more than a table and a key.
    #[error("expected a table and a key, then nothing or fields in brackets, found `{found}`")]
    TooManyWords {
        /// The beginning of the line.
        found: String,
    },
    /// The operation is a scan, which needs an ordered index.
    #[error(
        "SCAN is no operation of this store, which has no order of keys; expected a workload with \
         scanproportion=0"
    )]
    Scan,
    /// The line is too long. The file is possibly not a text file.
    #[error("the line has more than {MAX_LINE_BYTES} bytes; expected one operation a line")]
    LineTooLong,
    /// The key is so long that the cluster would refuse it.
    #[error("the key has {bytes} bytes; expected at most {max_bytes}, which this cluster takes")]
    KeyTooLong {
        /// The length of the key, in bytes.
        bytes: usize,
        /// The greatest allowed length of a key, in bytes.
        max_bytes: usize,
    },
    /// The file of keys to load has another operation than INSERT.
    #[error("expected INSERTs alone in the file to load, found {operation}")]
    NotInsert {
        /// The first word of the line.
        operation: String,
    },
    /// The file of keys to load inserts a key twice.
    #[error("`{key}` is inserted a second time; expected every key once in the file to load")]
    Twice {
        /// The key on the line.
        key: String,
    },
    /// Neither file inserts the key, so the files do not belong together.
    #[error(
        "expected a key that one of the files inserts; nothing inserts `{key}` (are the files of \
         the same workload?)"
    )]
    NeverInserted {
        /// The key on the line.
        key: String,
    },
    /// There are more keys or operations than can be numbered.
    #[error("expected at most {max} {what}")]
    TooMany {
        /// The word `keys` or `operations`.
        what: &'static str,
        /// The greatest number of keys or operations that is allowed.
        max: usize,
    },
}

/// The operations and keys of two files, the keys to load and the operations to run.
#[derive(Debug)]
pub struct YcsbTrace {
    names: TraceKeys,
    loaded: u64,
    /// The operations: the kind in the upper bits of each word, and the number of the key in the lower ones.
    operations: Vec<u32>,
    counts: [u64; 4],
    /// One bit for each key, which is set if an operation inserts or deletes the key.
    unsettled: Vec<u64>,
    digest: u64,
}

/// The bytes of all keys, one key after the other.
#[derive(Debug, Default)]
struct TraceKeys {
    bytes: Vec<u8>,
    ends: Vec<u64>,
}

impl TraceKeys {
    fn get(&self, number: usize) -> &[u8] {
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[begin as usize..self.ends[number] as usize]
    }

    fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len() as u64);
    }
}

impl YcsbTrace {
    /// Reads both files, for a cluster that accepts keys of at most this length.
    pub fn open(load: &Path, trans: &Path, max_key_bytes: usize) -> Result<YcsbTrace, TraceError> {
        let open = |path: &Path| {
            let file = path.display().to_string();
            let opened = File::open(path);
            let opened = opened.map_err(|error| TraceError::Read { file: file.clone(), error })?;
            Ok((file, BufReader::new(opened)))
        };
        let ((load, loads), (trans, runs)) = (open(load)?, open(trans)?);
        YcsbTrace::read((&load, loads), (&trans, runs), max_key_bytes)
    }

    /// Reads the contents of both files, each with the name of its file.
    pub fn read(
        load: (&str, impl BufRead),
        trans: (&str, impl BufRead),
        max_key_bytes: usize,
    ) -> Result<YcsbTrace, TraceError> {
        let mut reading = TraceParser { max_key_bytes, ..TraceParser::default() };
        each_line(load.0, load.1, |line, _| reading.load(line))?;
        let loaded = reading.names.ends.len();
        if loaded == 0 {
            return Err(TraceError::Empty { file: load.0.to_owned(), loads: true });
        }
        each_line(trans.0, trans.1, |line, number| reading.run(line, number))?;
        if reading.operations.is_empty() {
            return Err(TraceError::Empty { file: trans.0.to_owned(), loads: false });
        }
        reading.finish(loaded, trans.0)
    }

    /// Returns the number of keys in both files, which are numbered from 0.
    pub fn keys(&self) -> u64 {
        self.names.ends.len() as u64
    }

    /// Returns the number of keys to load, which have the lowest numbers.
    pub fn loaded(&self) -> u64 {
        self.loaded
    }

    /// Returns the bytes of the key with this number.
    ///
    /// # Panics
    /// If no key has this number.
    pub fn key(&self, number: u64) -> &[u8] {
        self.names.get(number as usize)
    }

    /// Returns the length of the longest key, in bytes.
    pub fn longest_key_bytes(&self) -> usize {
        (0..self.names.ends.len()).map(|key| self.names.get(key).len()).max().unwrap_or(0)
    }

    /// Returns whether the operations insert or delete this key, so that it possibly does not exist.
    pub fn may_be_absent(&self, key: u64) -> bool {
        self.unsettled[key as usize / 64] >> (key % 64) & 1 == 1
    }

    /// Returns the number of operations of the second file.
    pub fn operations(&self) -> u64 {
        self.operations.len() as u64
    }

    /// Returns the number of operations of this kind in the second file.
    pub fn count(&self, request: WorkloadOperation) -> u64 {
        self.counts[request as usize]
    }

    /// Returns the operation that a worker runs in its turn with this number, and the operation's key. Worker w of
    /// `workers` runs the lines w, w + `workers`, w + 2 `workers`, and so on, and begins again after the last one.
    /// Returns `None` if no line is the worker's, or the operation is not among the first `operations` of all workers
    /// together.
    pub fn turn(
        &self,
        worker: u64,
        workers: u64,
        turn: u64,
        operations: u64,
    ) -> Option<(WorkloadOperation, u64)> {
        let lines = self.operations();
        if worker >= lines {
            return None;
        }
        let own = (lines - worker).div_ceil(workers);
        let line = worker + turn % own * workers;
        let before = (turn / own).saturating_mul(lines);
        if before.saturating_add(line) >= operations {
            return None;
        }
        let word = self.operations[line as usize];
        Some((REQUESTS[(word >> KEY_BITS) as usize], u64::from(word) & (MAX_TRACE_KEYS as u64 - 1)))
    }

    /// Returns a digest that is equal on all hosts for equal keys and operations.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

/// The kinds of operations, in the order of their numbers in a word.
const REQUESTS: [WorkloadOperation; 4] = [
    WorkloadOperation::Search,
    WorkloadOperation::Update,
    WorkloadOperation::Insert,
    WorkloadOperation::Delete,
];

#[derive(Default)]
struct TraceParser {
    max_key_bytes: usize,
    numbers: HashMap<Box<[u8]>, u32>,
    names: TraceKeys,
    operations: Vec<u32>,
    counts: [u64; 4],
    /// One bit for each key, which is set if the second file inserts or deletes the key.
    unsettled: Vec<u64>,
    /// Keys that no line has inserted so far, each with the number of the first line that names the key.
    wanting: HashMap<u32, u64>,
}

impl TraceParser {
    fn load(&mut self, line: &[u8]) -> Result<(), TraceLineError> {
        let (request, key) = operation(line)?;
        if request != WorkloadOperation::Insert {
            return Err(TraceLineError::NotInsert { operation: excerpt(first_word(line)) });
        }
        let keys = self.numbers.len();
        let number = self.number(key)?;
        if (number as usize) < keys {
            Err(TraceLineError::Twice { key: excerpt(key) })
        } else {
            Ok(())
        }
    }

    fn run(&mut self, line: &[u8], at: u64) -> Result<(), TraceLineError> {
        let (request, key) = operation(line)?;
        let keys = self.numbers.len();
        let number = self.number(key)?;
        if number as usize == keys && request != WorkloadOperation::Insert {
            self.wanting.insert(number, at);
        }
        if request == WorkloadOperation::Insert {
            self.wanting.remove(&number);
        }
        if matches!(request, WorkloadOperation::Insert | WorkloadOperation::Delete) {
            let word = number as usize / 64;
            self.unsettled.resize(self.unsettled.len().max(word + 1), 0);
            self.unsettled[word] |= 1 << (number % 64);
        }
        if self.operations.len() >= MAX_TRACE_OPERATIONS {
            return Err(TraceLineError::TooMany { what: "operations", max: MAX_TRACE_OPERATIONS });
        }
        self.counts[request as usize] += 1;
        self.operations.push((request as u32) << KEY_BITS | number);
        Ok(())
    }

    /// Returns the number of a key. A new key gets the next number.
    fn number(&mut self, key: &[u8]) -> Result<u32, TraceLineError> {
        if let Some(number) = self.numbers.get(key) {
            return Ok(*number);
        }
        if key.len() > self.max_key_bytes {
            let max_bytes = self.max_key_bytes;
            return Err(TraceLineError::KeyTooLong { bytes: key.len(), max_bytes });
        }
        if self.numbers.len() >= MAX_TRACE_KEYS {
            return Err(TraceLineError::TooMany { what: "keys", max: MAX_TRACE_KEYS });
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(key.into(), number);
        self.names.push(key);
        Ok(number)
    }

    fn finish(self, loaded: usize, file: &str) -> Result<YcsbTrace, TraceError> {
        if let Some((number, line)) = self.wanting.iter().min_by_key(|(_, line)| **line) {
            let key = excerpt(self.names.get(*number as usize));
            let problem = TraceLineError::NeverInserted { key };
            return Err(TraceError::Line { file: file.to_owned(), line: *line, problem });
        }
        let mut hasher = XxHash3_128::new();
        hasher.write(&(loaded as u64).to_le_bytes());
        hasher.write(&self.names.bytes);
        self.names.ends.iter().for_each(|end| hasher.write(&end.to_le_bytes()));
        self.operations.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        let mut unsettled = self.unsettled;
        unsettled.resize(self.names.ends.len().div_ceil(64), 0);
        Ok(YcsbTrace {
            names: self.names,
            loaded: loaded as u64,
            operations: self.operations,
            counts: self.counts,
            unsettled,
            digest: hasher.finish_128() as u64,
        })
    }
}

/// Calls `read` with each line of operations, without its end, and with the number of the line, from 1.
fn each_line(
    file: &str,
    mut input: impl BufRead,
    mut read: impl FnMut(&[u8], u64) -> Result<(), TraceLineError>,
) -> Result<(), TraceError> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let got = input.by_ref().take(limit).read_until(b'\n', &mut line);
        if got.map_err(|error| TraceError::Read { file: file.to_owned(), error })? == 0 {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let done = if text.len() > MAX_LINE_BYTES {
            Err(TraceLineError::LineTooLong)
        } else if is_ycsb_output(text) {
            Ok(())
        } else {
            read(text, number)
        };
        done.map_err(|problem| TraceError::Line { file: file.to_owned(), line: number, problem })?;
    }
    Ok(())
}

/// Returns whether a line is not an operation, but other output of YCSB.
fn is_ycsb_output(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), None | Some(b'*' | b'"' | b'[' | b'#'))
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn first_word(line: &[u8]) -> &[u8] {
    words(line).next().unwrap_or_default()
}

fn operation(line: &[u8]) -> Result<(WorkloadOperation, &[u8]), TraceLineError> {
    let request = match first_word(line) {
        b"READ" => WorkloadOperation::Search,
        b"UPDATE" => WorkloadOperation::Update,
        b"INSERT" => WorkloadOperation::Insert,
        b"DELETE" => WorkloadOperation::Delete,
        b"SCAN" => return Err(TraceLineError::Scan),
        _ => return Err(TraceLineError::NoOperation { found: excerpt(line.trim_ascii_start()) }),
    };
    let mut names = words(line).skip(1).take_while(|word| word[0] != b'[');
    match (names.next(), names.next(), names.next()) {
        (None, ..) => Err(TraceLineError::NoKey { operation: excerpt(first_word(line)) }),
        (Some(key), None, _) | (Some(_), Some(key), None) => Ok((request, key)),
        (Some(_), Some(_), Some(_)) => Err(TraceLineError::TooManyWords { found: excerpt(line) }),
    }
}

/// Returns the beginning of bytes from a file, escaped for a terminal.
fn excerpt(bytes: &[u8]) -> String {
    let more = if bytes.len() > SHOWN_BYTES { "..." } else { "" };
    format!("{}{more}", bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii())
}

#[cfg(test)]
mod tests;
