//! Sessions that work in step: all sessions do one task, then all wait for the next task.
//!
//! The sessions stay the same from task to task, with their blocks and caches. A task is one operation on each of its
//! keys; a session that is free takes the next key. Over time every session therefore writes every key, and objects
//! that one session frees lie in blocks of another. No two sessions write one key at the same time, as the
//! [`ChurnModel`] demands.
//!
//! In a task that aims at running out of memory, doing so is no error: a session that fills then ends its task. A
//! session that runs out of memory several times in a row in another task gives up for the rest of the task, because
//! each refusal can take seconds.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{BlockingClient, OpKind, Redundancy, WriteError};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::model::{ABSENT, ChurnModel};
use crate::redundant::{RedundantClient, RedundantSession};
use crate::store::{BenchSession, BenchStore};
use crate::tally::OperationTally;
use crate::value::{ValueOrigin, mix};
use fusee_workload::key_bytes;

/// The interval between checks whether a task is done.
const POLL: Duration = Duration::from_millis(2);
/// Number of refusals in a row after which a session gives up.
const REFUSALS_IN_A_ROW: u32 = 4;
/// Number of failed operations, in all tasks together, after which the sessions stop.
const MAX_ERRORS: u64 = 1000;

/// The operation that a task runs on every key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChurnTask {
    /// Insert the key with a value of this version. Running out of memory is an error.
    Insert(u32),
    /// Insert the key with a value of this version, until memory is used up.
    Fill(u32),
    /// Replace the key's value by a value of this version, and read a random key of the task.
    Update(u32),
    Delete,
    /// Read the key, whether it exists or not.
    Check,
}

/// The keys of a task: first the listed keys, then the keys from `first` on; `count` keys in all.
#[derive(Clone, Debug, Default)]
pub struct ChurnKeys {
    pub listed: Arc<Vec<u64>>,
    pub first: u64,
    pub count: u64,
}

impl ChurnKeys {
    /// Returns the keys from 0 up to `count`.
    pub fn below(count: u64) -> ChurnKeys {
        ChurnKeys { count, ..ChurnKeys::default() }
    }

    /// Returns these keys and no others.
    pub fn listed(keys: Vec<u64>) -> ChurnKeys {
        ChurnKeys { count: keys.len() as u64, listed: Arc::new(keys), first: 0 }
    }

    fn get(&self, at: u64) -> Option<u64> {
        let later = || self.first + at - self.listed.len() as u64;
        (at < self.count).then(|| self.listed.get(at as usize).copied().unwrap_or_else(later))
    }
}

/// The result of a task.
#[derive(Debug, Default)]
pub struct ChurnTaskResult {
    pub tally: OperationTally,
    /// Number of keys that sessions took.
    pub taken: u64,
    /// Number of operations refused for lack of memory, in tasks where that is no error.
    pub refused: u64,
    /// The longest time that a refused operation took.
    pub slowest_refusal: Duration,
    /// Whether a session gave up.
    pub gave_up: bool,
    pub duration: Duration,
}

/// The state that all threads share.
pub struct ChurnWorkerPool<'a> {
    store: RedundantClient<'a>,
    model: &'a ChurnModel,
    sessions: usize,
    value_bytes: usize,
    seed: u64,
    task: Mutex<Option<(ChurnTask, ChurnKeys)>>,
    next: AtomicU64,
    working: AtomicUsize,
    errors: AtomicU64,
    barrier: Barrier,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    done: Mutex<ChurnTaskResult>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions of a load, and the pairs that they write.
#[derive(Clone, Copy, Debug)]
pub struct ChurnLoad {
    pub sessions: u16,
    pub value_bytes: usize,
    pub seed: u64,
    pub redundancy: Redundancy,
}

impl<'a> ChurnWorkerPool<'a> {
    /// Opens the sessions, and runs `conduct`, which gives the sessions their tasks.
    pub fn run<R>(
        client: &'a BlockingClient,
        model: &'a ChurnModel,
        load: ChurnLoad,
        conduct: impl FnOnce(&ChurnWorkerPool<'a>) -> R,
    ) -> Result<R, Failure> {
        let sessions = usize::from(load.sessions);
        let crew = ChurnWorkerPool {
            store: RedundantClient { client, redundancy: load.redundancy },
            model,
            sessions,
            value_bytes: load.value_bytes,
            seed: load.seed,
            task: Mutex::new(None),
            next: AtomicU64::new(0),
            working: AtomicUsize::new(0),
            errors: AtomicU64::new(0),
            barrier: Barrier::new(sessions + 1),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
            done: Mutex::default(),
        };
        let result = std::thread::scope(|scope| {
            for number in 0..sessions {
                let crew = &crew;
                scope.spawn(move || crew.thread(number as u64));
            }
            crew.barrier.wait();
            if crew.failed.load(Ordering::Acquire) {
                return None;
            }
            let result = conduct(&crew);
            *lock(&crew.task) = None;
            crew.barrier.wait();
            Some(result)
        });
        let failure = lock(&crew.failure).take();
        result.ok_or_else(|| {
            failure.unwrap_or_else(|| Failure::operation("no session could be started"))
        })
    }

    /// Returns whether the sessions are to go on.
    pub fn goes_on(&self) -> bool {
        !interrupt::is_requested() && !self.is_broken()
    }

    fn is_broken(&self) -> bool {
        self.errors.load(Ordering::Relaxed) >= MAX_ERRORS
    }

    /// Gives all sessions a task, waits for its end, and meanwhile calls `meanwhile` with the number of keys taken so
    /// far.
    pub fn run_task(
        &self,
        task: ChurnTask,
        keys: ChurnKeys,
        mut meanwhile: impl FnMut(u64),
    ) -> ChurnTaskResult {
        self.next.store(0, Ordering::Relaxed);
        self.working.store(self.sessions, Ordering::Release);
        let count = keys.count;
        *lock(&self.task) = Some((task, keys));
        let start = Instant::now();
        self.barrier.wait();
        while self.working.load(Ordering::Acquire) > 0 {
            sleep(POLL);
            meanwhile(self.next.load(Ordering::Relaxed).min(count));
        }
        let duration = start.elapsed();
        self.barrier.wait();
        let taken = self.next.load(Ordering::Relaxed).min(count);
        ChurnTaskResult { taken, duration, ..std::mem::take(&mut *lock(&self.done)) }
    }

    fn thread(&self, number: u64) {
        let session = self.store.open().map_err(|error| {
            let text = format!("cannot start a session: {error}");
            *lock(&self.failure) = Some(Failure::unreachable(text));
            self.failed.store(true, Ordering::Release);
        });
        self.barrier.wait();
        let Ok(session) = session else { return };
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        let mut member = ChurnWorker {
            crew: self,
            session,
            writer: number,
            value: vec![0; self.value_bytes],
            rng: SmallRng::seed_from_u64(mix(self.seed ^ mix(number))),
            done: RefCell::default(),
            refusals_in_a_row: 0,
        };
        loop {
            self.barrier.wait();
            let Some((task, keys)) = lock(&self.task).clone() else { return };
            member.work(task, &keys);
            self.add(member.done.take());
            self.working.fetch_sub(1, Ordering::Release);
            self.barrier.wait();
        }
    }

    fn add(&self, done: ChurnTaskResult) {
        let mut all = lock(&self.done);
        all.tally.merge(&done.tally);
        all.refused += done.refused;
        all.gave_up |= done.gave_up;
        all.slowest_refusal = all.slowest_refusal.max(done.slowest_refusal);
    }
}

/// The state of one session.
struct ChurnWorker<'a> {
    crew: &'a ChurnWorkerPool<'a>,
    session: RedundantSession,
    writer: u64,
    value: Vec<u8>,
    rng: SmallRng,
    done: RefCell<ChurnTaskResult>,
    refusals_in_a_row: u32,
}

impl ChurnWorker<'_> {
    fn work(&mut self, task: ChurnTask, keys: &ChurnKeys) {
        self.refusals_in_a_row = 0;
        // The final state is read back even after an interruption.
        let goes_on = || match task {
            ChurnTask::Check => !self.crew.is_broken(),
            _ => self.crew.goes_on(),
        };
        let is_aim = matches!(task, ChurnTask::Fill(_));
        while goes_on() {
            let at = self.crew.next.fetch_add(1, Ordering::Relaxed);
            let Some(key) = keys.get(at) else { return };
            match task {
                ChurnTask::Insert(version) | ChurnTask::Fill(version) => {
                    self.write(OpKind::Insert, key, version, is_aim);
                }
                ChurnTask::Update(version) => {
                    self.write(OpKind::Update, key, version, is_aim);
                    let any = self.rng.random_range(0..keys.count);
                    self.read(keys.get(any).unwrap_or(key));
                }
                ChurnTask::Delete => self.write(OpKind::Delete, key, ABSENT, is_aim),
                ChurnTask::Check => self.read(key),
            }
            let is_full = matches!(task, ChurnTask::Fill(_)) && self.refusals_in_a_row > 0;
            if is_full || self.refusals_in_a_row >= REFUSALS_IN_A_ROW {
                self.done.get_mut().gave_up = !is_full;
                return;
            }
        }
    }

    /// Writes a key. Running out of memory is an error unless `is_aim`.
    fn write(&mut self, kind: OpKind, key: u64, version: u32, is_aim: bool) {
        let model = self.crew.model;
        let writer = self.writer;
        let sequence = version.into();
        ValueOrigin { key, writer, sequence }.encode(&mut self.value);
        model.begin(key, version);
        let start = Instant::now();
        let bytes = key_bytes(key);
        let value = &self.value[..];
        let result = self.session.block_on(async {
            match kind {
                OpKind::Insert => self.session.insert(&bytes, value).await,
                OpKind::Delete => self.session.delete(&bytes).await,
                _ => self.session.update(&bytes, value).await,
            }
        });
        let took = start.elapsed();
        model.end(key, version, &result);
        let done = &mut *self.done.borrow_mut();
        self.refusals_in_a_row = match result {
            Err(WriteError::OutOfMemory) => self.refusals_in_a_row + 1,
            _ => 0,
        };
        match result {
            Ok(()) => done.tally.record(kind, took.as_nanos() as u64),
            Err(WriteError::OutOfMemory) if is_aim => {
                done.refused += 1;
                done.slowest_refusal = done.slowest_refusal.max(took);
            }
            Err(error) => self.fail(done, kind, key, &error),
        }
    }

    /// Reads a key, and checks its value.
    fn read(&self, key: u64) {
        let model = self.crew.model;
        let len = self.crew.value_bytes;
        let before = model.acknowledged(key);
        let start = Instant::now();
        let mut took = Duration::ZERO;
        let bytes = key_bytes(key);
        let read = self.session.get_with(&bytes, |found| {
            took = start.elapsed();
            model.check(key, before, found, len)
        });
        let read = self.session.block_on(read);
        let done = &mut *self.done.borrow_mut();
        match read {
            Ok(checked) => {
                done.tally.record(OpKind::Search, took.as_nanos() as u64);
                if let Err(mismatch) = checked {
                    done.tally.mismatch(key, &mismatch);
                }
            }
            Err(error) => self.fail(done, OpKind::Search, key, &error),
        }
    }

    fn fail(&self, done: &mut ChurnTaskResult, kind: OpKind, key: u64, error: &WriteError) {
        self.crew.errors.fetch_add(1, Ordering::Relaxed);
        done.tally.error(kind, key, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_keys_come_first_and_then_new_ones() {
        let keys = ChurnKeys { listed: Arc::new(vec![7, 3]), first: 10, count: 4 };
        let all: Vec<_> = (0..6).map(|at| keys.get(at)).collect();
        assert_eq!(all, [Some(7), Some(3), Some(10), Some(11), None, None]);
        assert_eq!(ChurnKeys::below(2).get(1), Some(1));
        assert_eq!(ChurnKeys::listed(vec![5]).get(1), None);
    }
}
