//! One client of a benchmark: a coroutine on a session, which operates, times, logs and checks.
//!
//! Every value that a worker writes names the write (see [`super::value`]), every write is logged
//! with its times and outcome (see [`super::verify`]), and every value that is read is checked to
//! be whole and of the right key before the next operation.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use fusee_client::{Error, FabricKind, OpKind, Session};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::clock::{Clock, SLACK_NS};
use super::tally::{Tally, may_have_effect};
use super::value::{HEADER_BYTES, Origin, mix};
use super::verify::{Effect, Fate, Log, Mismatch, Write, self_check};
use super::workload::{Frontier, KEY_BYTES, key_bytes};

/// A run stops early after so many failed operations: something is broken, and with a timeout
/// for each it could take for ever.
const MAX_ERRORS: u64 = 1000;

/// What all workers share.
pub struct Board {
    /// For times that are compared across threads.
    pub clock: Clock,
    /// Which keys exist.
    pub frontier: Frontier,
    /// Bytes of key and value together.
    pub pair_bytes: usize,
    /// Start of all random sequences.
    pub seed: u64,
    errors: AtomicU64,
    /// Keys whose insert failed: they may be missing.
    doubtful: Mutex<HashSet<u64>>,
}

impl Board {
    /// # Panics
    /// If pairs are too small for a key and the smallest value.
    pub fn new(pair_bytes: usize, seed: u64) -> Board {
        assert!(pair_bytes >= KEY_BYTES + HEADER_BYTES, "pairs must hold a key and a header");
        Board {
            clock: Clock::start(),
            frontier: Frontier::new(0),
            pair_bytes,
            seed,
            errors: AtomicU64::new(0),
            doubtful: Mutex::default(),
        }
    }

    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.pair_bytes - KEY_BYTES
    }

    /// Whether so much went wrong that going on is pointless.
    pub fn is_broken(&self) -> bool {
        self.errors.load(Ordering::Relaxed) >= MAX_ERRORS
    }

    fn doubt(&self, key: u64) {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
    }

    fn is_doubtful(&self, key: u64) -> bool {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner).contains(&key)
    }
}

/// One client of a benchmark.
pub struct Worker<'a> {
    board: &'a Board,
    session: &'a Session,
    /// Counts of the worker's thread.
    tally: &'a RefCell<Tally>,
    writer: u64,
    log: Log,
    value: Vec<u8>,
    /// For its choices.
    pub rng: SmallRng,
    /// The keys that it inserted and has not deleted, where a phase works on its own keys.
    pub own_keys: Vec<u64>,
    takes_turns: bool,
}

impl<'a> Worker<'a> {
    /// `writer` is its number among all workers, `takes_turns` whether others run on its session.
    pub fn new(
        board: &'a Board,
        session: &'a Session,
        tally: &'a RefCell<Tally>,
        writer: u64,
        takes_turns: bool,
    ) -> Worker<'a> {
        Worker {
            board,
            session,
            tally,
            writer,
            log: Log::default(),
            value: vec![0; board.value_bytes()],
            rng: SmallRng::seed_from_u64(mix(board.seed ^ mix(writer))),
            own_keys: Vec::new(),
            // Over TCP every operation waits, and others run meanwhile.
            takes_turns: takes_turns && session.fabric() == FabricKind::Shm,
        }
    }

    /// Its number and its writes.
    pub fn into_log(self) -> (u64, Log) {
        (self.writer, self.log)
    }

    /// Lets the other workers of the session run: on shared memory an operation may end without
    /// ever having waited, and a worker that is waiting for its turn in a conflict would starve.
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

    /// Reads a key that exists, and checks what comes. Returns the time of the end.
    pub async fn search(&mut self, key: u64) -> u64 {
        let len = self.board.value_bytes();
        let bytes = key_bytes(key);
        let clock = &self.board.clock;
        let start = clock.now();
        let mut end = start;
        let result = self
            .session
            .get_with(&bytes, |found| {
                // The operation has ended; the check is not a part of it.
                end = clock.now();
                match found {
                    Some(value) => self_check(key, value, len).map(|_| ()),
                    None => Err(Mismatch::Missing),
                }
            })
            .await;
        match result {
            Ok(checked) => {
                self.tally.borrow_mut().record(OpKind::Search, end - start);
                match checked {
                    Ok(()) => {}
                    Err(Mismatch::Missing) if self.board.is_doubtful(key) => {}
                    Err(mismatch) => self.tally.borrow_mut().mismatch(key, &mismatch),
                }
            }
            Err(error) => {
                end = clock.now();
                self.fail(OpKind::Search, key, &error);
            }
        }
        end
    }

    /// Adds a key that does not exist. Returns the time of the end.
    pub async fn insert(&mut self, key: u64) -> u64 {
        self.next_value(key);
        let start = self.board.clock.now();
        let result = self.session.insert(&key_bytes(key), &self.value).await;
        if result.is_err() {
            self.board.doubt(key);
        }
        let end = self.wrote(OpKind::Insert, key, start, result);
        self.board.frontier.finish(key);
        end
    }

    /// Replaces the value of a key that exists. Returns the time of the end.
    pub async fn update(&mut self, key: u64) -> u64 {
        self.next_value(key);
        let start = self.board.clock.now();
        let result = self.session.update(&key_bytes(key), &self.value).await;
        self.wrote(OpKind::Update, key, start, result)
    }

    /// Removes a key that exists. Returns the time of the end.
    pub async fn delete(&mut self, key: u64) -> u64 {
        let start = self.board.clock.now();
        let result = self.session.delete(&key_bytes(key)).await;
        self.wrote(OpKind::Delete, key, start, result)
    }

    fn next_value(&mut self, key: u64) {
        let sequence = self.log.next_sequence();
        Origin { key, writer: self.writer, sequence }.encode(&mut self.value);
    }

    fn wrote(&mut self, kind: OpKind, key: u64, start: u64, result: Result<(), Error>) -> u64 {
        let end = self.board.clock.now();
        let fate = match result {
            Ok(()) => {
                self.tally.borrow_mut().record(kind, end - start);
                Fate::Acknowledged(end)
            }
            Err(error) => {
                self.fail(kind, key, &error);
                if may_have_effect(&error) { Fate::Unknown } else { Fate::NotApplied }
            }
        };
        let effect = if kind == OpKind::Delete { Effect::Absent } else { Effect::Value };
        self.log.push(Write { key, effect, start: start - SLACK_NS, fate });
        end
    }

    fn fail(&self, kind: OpKind, key: u64, error: &Error) {
        self.board.errors.fetch_add(1, Ordering::Relaxed);
        self.tally.borrow_mut().error(kind, key, error);
    }
}
