//! One client of a benchmark: a coroutine on a session of any store, which runs operations, and times, logs and checks
//! them.
//!
//! Every value that a worker writes names the write (see [`super::value`]), and every write is logged with its times
//! and outcome (see [`super::verify`]). Every value that is read is checked before the next operation: it must be whole
//! and belong to the right key.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use fusee_client::OpKind;
use fusee_linearizability::{HistoryAnswer, HistoryCall};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::clock::{BenchClock, SLACK_NS};
use super::record::{PackedOperation, RecordScope, RecordedEnd, RecordedOperation, value_of};
use super::store::{BenchSession, OperationError};
use super::tally::OperationTally;
use super::value::{HEADER_BYTES, ValueOrigin, mix};
use super::verify::{LoggedWrite, Mismatch, WriteEffect, WriteLog, WriteOutcome, self_check};
use fusee_workload::{Frontier, KEY_BYTES, KeyNaming, WorkloadShare};

/// Number of failed operations after which a run stops early. Something is broken then, and if each operation ran into
/// its timeout, the run could take for ever.
const MAX_ERRORS: u64 = 1000;

/// Number of refusals for lack of memory after which a run stops early. No memory will be freed then, and each refusal
/// takes as long as the cluster looks for memory.
const MAX_REFUSALS: u64 = 16;

/// The state that all workers share.
pub struct WorkerContext {
    /// The clock of times that are compared between threads.
    pub clock: BenchClock,
    /// The keys of this process's share that exist.
    pub frontier: Frontier,
    /// The share of the workload that this process runs.
    pub part: WorkloadShare,
    /// The operations to record, in addition to the logs of writes.
    pub keep: RecordScope,
    /// The names of the keys.
    pub keys: KeyNaming,
    /// Whether workers insert and delete all keys, so that a read is right at any time whether it finds the key or not.
    pub keys_come_and_go: bool,
    /// Bytes of key and value together.
    pub pair_bytes: usize,
    /// The start of all random sequences.
    pub seed: u64,
    /// Whether the phases are to end early; code outside the workers sets this.
    pub is_over: Arc<AtomicBool>,
    errors: AtomicU64,
    /// Keys whose insert failed, so that they are possibly missing.
    doubtful: Mutex<HashSet<u64>>,
}

impl WorkerContext {
    /// Returns the state before the first operation.
    ///
    /// # Panics
    ///
    /// Panics if pairs are too small for a key and the smallest value.
    pub fn new(pair_bytes: usize, seed: u64) -> WorkerContext {
        assert!(pair_bytes >= KEY_BYTES + HEADER_BYTES, "pairs must hold a key and a header");
        WorkerContext {
            clock: BenchClock::start(),
            frontier: Frontier::new(0),
            part: WorkloadShare::WHOLE,
            keep: RecordScope::Nothing,
            keys: KeyNaming::Numbered,
            keys_come_and_go: false,
            pair_bytes,
            seed,
            is_over: Arc::default(),
            errors: AtomicU64::new(0),
            doubtful: Mutex::default(),
        }
    }

    /// Returns the length of the value of a key.
    pub fn value_bytes(&self, key: u64) -> usize {
        self.pair_bytes - self.keys.name(key).len()
    }

    /// Returns whether a read of this key is right whether it finds the key or not.
    fn comes_and_goes(&self, key: u64) -> bool {
        self.keys_come_and_go || self.keys.may_be_absent(key)
    }

    /// Returns whether so many operations have failed that it is pointless to go on.
    pub fn is_broken(&self) -> bool {
        self.errors.load(Ordering::Relaxed) >= MAX_ERRORS
    }

    /// Returns whether to start no more operations, because of errors in this process or because the phases were ended.
    pub fn has_ended(&self) -> bool {
        self.is_broken() || self.is_over.load(Ordering::Relaxed)
    }

    fn doubt(&self, key: u64) {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    fn is_doubtful(&self, key: u64) -> bool {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }
}

/// One client of a benchmark.
pub struct Worker<'a, S> {
    board: &'a WorkerContext,
    session: &'a S,
    /// The counts of the worker's thread.
    tally: &'a RefCell<OperationTally>,
    writer: u64,
    log: WriteLog,
    entries: Vec<PackedOperation>,
    value: Vec<u8>,
    /// The random numbers for the worker's choices.
    pub rng: SmallRng,
    /// The keys that the worker has inserted and not deleted, for phases in which a worker uses its own keys.
    pub own_keys: Vec<u64>,
    /// The last operation that succeeded: its kind, and its latency in nanoseconds.
    pub latest: Option<(OpKind, u64)>,
    takes_turns: bool,
}

impl<'a, S: BenchSession> Worker<'a, S> {
    /// Creates a worker. `writer` is its number among all workers; `takes_turns` tells whether other workers run on its
    /// session.
    pub fn new(
        board: &'a WorkerContext,
        session: &'a S,
        tally: &'a RefCell<OperationTally>,
        writer: u64,
        takes_turns: bool,
    ) -> Worker<'a, S> {
        Worker {
            board,
            session,
            tally,
            writer,
            log: WriteLog::default(),
            entries: Vec::new(),
            value: vec![0; board.pair_bytes],
            rng: SmallRng::seed_from_u64(mix(board.seed ^ mix(writer))),
            own_keys: Vec::new(),
            latest: None,
            takes_turns: takes_turns && session.is_immediate(),
        }
    }

    /// Returns the worker's number among all workers.
    pub fn number(&self) -> u64 {
        self.writer
    }

    /// Returns the worker's number, the log of its writes, and its recorded operations.
    pub fn into_log(self) -> (u64, WriteLog, Vec<PackedOperation>) {
        (self.writer, self.log, self.entries)
    }

    /// Lets the other workers of the session run. If an operation can end without ever having waited, a worker that
    /// waits for its turn in a conflict would starve without this.
    pub async fn take_turns(&self) {
        if !self.takes_turns {
            return;
        }
        let mut yielded = false;
        poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Reads a key that exists, and checks the result. Returns the time at which the operation ended.
    pub async fn search(&mut self, key: u64) -> u64 {
        let bytes = self.board.keys.name(key);
        let len = self.board.pair_bytes - bytes.len();
        let clock = &self.board.clock;
        let start = clock.now();
        let mut end = start;
        let result = self
            .session
            .get_with(&bytes, |found| {
                // The operation ends here; its latency does not include the check.
                end = clock.now();
                match found {
                    Some(value) => self_check(key, value, len).map(HistoryAnswer::from),
                    None => Err(Mismatch::Missing),
                }
            })
            .await;
        match result {
            Ok(checked) => {
                self.record(OpKind::Search, end - start);
                let answer = match checked {
                    Ok(answer) => Some(answer),
                    Err(Mismatch::Missing) => {
                        if !self.board.comes_and_goes(key) && !self.board.is_doubtful(key) {
                            self.tally.borrow_mut().mismatch(key, &Mismatch::Missing);
                        }
                        Some(HistoryAnswer::Absent)
                    }
                    Err(mismatch) => {
                        self.tally.borrow_mut().mismatch(key, &mismatch);
                        None
                    }
                };
                if let Some(answer) = answer {
                    self.keep(key, HistoryCall::Search, start, RecordedEnd::Answered(end, answer));
                }
            }
            Err(error) => {
                end = clock.now();
                self.fail(OpKind::Search, key, &error);
            }
        }
        end
    }

    /// Adds a key that the worker has claimed. Returns the time at which the operation ended.
    pub async fn insert_new(&mut self, key: u64) -> u64 {
        let end = self.insert(key).await;
        self.board.frontier.finish(self.board.part.index(key));
        end
    }

    /// Adds a key that does not exist. Returns the time at which the operation ended.
    pub async fn insert(&mut self, key: u64) -> u64 {
        let number = self.next_value(key);
        let start = self.board.clock.now();
        let name = self.board.keys.name(key);
        let value = &self.value[..self.board.pair_bytes - name.len()];
        let result = self.session.insert(&name, value).await;
        if result.is_err() && !self.board.comes_and_goes(key) {
            self.board.doubt(key);
        }
        self.record_write(OpKind::Insert, key, HistoryCall::Insert(number), start, result)
    }

    /// Replaces the value of a key that exists. Returns the time at which the operation ended.
    pub async fn update(&mut self, key: u64) -> u64 {
        let number = self.next_value(key);
        let start = self.board.clock.now();
        let name = self.board.keys.name(key);
        let value = &self.value[..self.board.pair_bytes - name.len()];
        let result = self.session.update(&name, value).await;
        self.record_write(OpKind::Update, key, HistoryCall::Update(number), start, result)
    }

    /// Removes a key that exists. Returns the time at which the operation ended.
    pub async fn delete(&mut self, key: u64) -> u64 {
        let start = self.board.clock.now();
        let result = self.session.delete(&self.board.keys.name(key)).await;
        self.record_write(OpKind::Delete, key, HistoryCall::Delete, start, result)
    }

    /// Encodes the worker's next value, for this key; returns the number that identifies the value.
    fn next_value(&mut self, key: u64) -> u64 {
        let sequence = self.log.next_sequence();
        let len = self.board.value_bytes(key);
        ValueOrigin { key, writer: self.writer, sequence }.encode(&mut self.value[..len]);
        value_of(self.writer, sequence)
    }

    fn record_write(
        &mut self,
        kind: OpKind,
        key: u64,
        call: HistoryCall,
        start: u64,
        result: Result<(), S::Error>,
    ) -> u64 {
        let time = self.board.clock.now();
        let answer = match &result {
            Ok(()) => Some(HistoryAnswer::Done),
            Err(error) => error.answer(),
        };
        match &result {
            Err(error) if answer.is_none() || !self.board.comes_and_goes(key) => {
                self.fail(kind, key, error);
            }
            _ => self.record(kind, time - start),
        }
        let (fate, end) = match (answer, result) {
            (Some(answer @ HistoryAnswer::Done), _) => {
                (WriteOutcome::Acknowledged(time), RecordedEnd::Answered(time, answer))
            }
            (Some(answer), _) => (WriteOutcome::NotApplied, RecordedEnd::Answered(time, answer)),
            (None, Err(error)) if error.may_have_effect() => {
                (WriteOutcome::Unknown, RecordedEnd::Unknown)
            }
            (None, _) => (WriteOutcome::NotApplied, RecordedEnd::NotApplied),
        };
        let effect = if kind == OpKind::Delete { WriteEffect::Absent } else { WriteEffect::Value };
        self.log.push(LoggedWrite { key, effect, start: start - SLACK_NS, fate });
        self.keep(key, call, start, end);
        time
    }

    fn keep(&mut self, key: u64, call: HistoryCall, invoked: u64, end: RecordedEnd) {
        let wanted = match self.board.keep {
            RecordScope::Nothing => false,
            RecordScope::Writes => call != HistoryCall::Search,
            RecordScope::All => true,
        };
        if wanted {
            self.entries
                .push(RecordedOperation { key, worker: self.writer, call, invoked, end }.into());
        }
    }

    fn record(&mut self, kind: OpKind, latency_ns: u64) {
        self.tally.borrow_mut().record(kind, latency_ns);
        self.latest = Some((kind, latency_ns));
    }

    fn fail(&self, kind: OpKind, key: u64, error: &S::Error) {
        let weight = if error.is_full() { MAX_ERRORS.div_ceil(MAX_REFUSALS) } else { 1 };
        self.board.errors.fetch_add(weight, Ordering::Relaxed);
        self.tally.borrow_mut().error(kind, key, error);
    }
}
