//! The phases of a benchmark on threads, each with a session and some coroutines.
//!
//! Every thread opens its session; then all go through the phases together: no thread starts a
//! phase before all have finished the previous one. A phase is timed from the moment when the last
//! thread is ready to the moment when the last one is done. The sessions stay the same, so their
//! caches still know in the run what they learned while loading.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{CacheStats, KindStats, OpKind, Stats};
use fusee_linearizability::{Answer, Call};
use futures_util::future::join_all;

use super::clock::monotonic_ns;
use super::phase::{Budget, Phase, Share};
use super::progress::{Progress, bar};
use super::record::{End, Entry, Keep, Packed};
use super::store::{OperationError, Session, Store};
use super::tally::Tally;
use super::verify::{Log, Mismatch, Verifier, self_check};
use super::worker::{Board, Worker};
use fusee_workload::Keys;

/// Reads of the verification that run at the same time.
const VERIFY_COROUTINES: u64 = 16;
/// Keys after which the bar of the verification moves.
const VERIFY_SHOWN: u64 = 1024;

/// The number of workers, and their place among those of all processes.
#[derive(Clone, Copy, Debug)]
pub struct Crew {
    /// Threads, each with a session.
    pub threads: usize,
    /// Workers of a thread.
    pub coroutines: usize,
    /// Threads of other processes that are counted before these.
    pub first_thread: usize,
}

/// An observer of the phases, outside of the threads.
pub trait Steps {
    /// Returns whether to draw the progress.
    fn shows_progress(&self) -> bool {
        true
    }

    /// Is called when all threads are ready for the next phase, which begins when this returns.
    fn begin(&mut self) {}

    /// Is called when a phase has ended. Times are of the monotonic clock.
    fn ended(&mut self, _from_ns: u64, _to_ns: u64) {}
}

/// No observer.
impl Steps for () {}

/// The results of all phases.
pub struct Outcome {
    /// By phase.
    pub results: Vec<PhaseResult>,
    /// By worker.
    pub logs: Vec<Log>,
    /// The recorded operations, by worker and in the order of their ends.
    pub entries: Vec<Packed>,
}

/// The costs of a phase, by kind of operation.
pub type Costs = [KindStats; OpKind::ALL.len()];

/// The result of a phase.
#[derive(Clone, Debug, Default)]
pub struct PhaseResult {
    /// From the first operation to the end of the last.
    pub duration: Duration,
    /// Latencies, errors, mismatches.
    pub tally: Tally,
    /// Phases, verbs and bytes. If an earlier phase had the same kind, the maximum covers both.
    pub costs: Costs,
    /// The outcomes of accesses to the index caches, if the workers ran in this process.
    pub cache: CacheStats,
}

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Counter(pub AtomicU64);

/// The state that threads share.
struct Stage<'a, S> {
    store: &'a S,
    board: &'a Board,
    crew: Crew,
    phases: &'a [Phase],
    budgets: Vec<Budget>,
    barrier: Barrier,
    counters: Vec<Counter>,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    results: Mutex<Vec<PhaseResult>>,
    logs: Mutex<Vec<(u64, Log, Vec<Packed>)>>,
}

/// Runs all phases.
pub fn run<S: Store>(
    store: &S,
    board: &Board,
    crew: Crew,
    phases: &[Phase],
    steps: &mut dyn Steps,
) -> Result<Outcome, Failure> {
    let stage = Stage {
        store,
        board,
        crew,
        phases,
        budgets: phases.iter().map(|phase| Budget::new(phase.operations)).collect(),
        barrier: Barrier::new(crew.threads + 1),
        counters: (0..crew.threads).map(|_| Counter::default()).collect(),
        failed: AtomicBool::new(false),
        failure: Mutex::default(),
        results: Mutex::new(vec![PhaseResult::default(); phases.len()]),
        logs: Mutex::default(),
    };
    let durations = std::thread::scope(|scope| {
        let _guard = NobodyWaitsForever;
        for thread in 0..crew.threads {
            let stage = &stage;
            scope.spawn(move || stage.thread(thread));
        }
        stage.conduct(steps)
    });
    if let Some(failure) = into_inner(stage.failure) {
        return Err(failure);
    }
    let mut results = into_inner(stage.results);
    for (result, duration) in results.iter_mut().zip(durations) {
        result.duration = duration;
    }
    let mut logs = into_inner(stage.logs);
    logs.sort_by_key(|(writer, ..)| *writer);
    let mut all_logs = Vec::new();
    let mut entries = Vec::new();
    for (_, log, mut kept) in logs {
        all_logs.push(log);
        entries.append(&mut kept);
    }
    Ok(Outcome { results, logs: all_logs, entries })
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process when its thread panics: the others would wait for that thread for ever.
struct NobodyWaitsForever;

impl Drop for NobodyWaitsForever {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(101);
        }
    }
}

impl<S: Store> Stage<'_, S> {
    /// Leads the threads through the phases, from the main thread.
    fn conduct(&self, steps: &mut dyn Steps) -> Vec<Duration> {
        self.barrier.wait();
        let mut durations = Vec::new();
        if self.failed.load(Ordering::Acquire) {
            return durations;
        }
        for phase in self.phases {
            for counter in &self.counters {
                counter.0.store(0, Ordering::Relaxed);
            }
            let progress = Progress::start(phase, &self.counters, steps.shows_progress());
            steps.begin();
            // Taken before the workers start: this thread may run again only after they ended.
            let start = Instant::now();
            let from_ns = monotonic_ns();
            self.barrier.wait();
            progress.watch(|| self.barrier.wait());
            durations.push(start.elapsed());
            steps.ended(from_ns, monotonic_ns());
        }
        durations
    }

    fn thread(&self, thread: usize) {
        let _guard = NobodyWaitsForever;
        let session = self.store.open().map_err(|error| {
            let failure = Failure::unreachable(format!("cannot start a session: {error}"));
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            self.failed.store(true, Ordering::Release);
        });
        self.barrier.wait();
        let Ok(session) = session else { return };
        if self.failed.load(Ordering::Acquire) {
            return;
        }
        let tally = RefCell::new(Tally::default());
        let coroutines = self.crew.coroutines;
        let mut workers: Vec<Worker<'_, S::Session>> = (0..coroutines)
            .map(|c| ((self.crew.first_thread + thread) * coroutines + c) as u64)
            .map(|writer| Worker::new(self.board, &session, &tally, writer, coroutines > 1))
            .collect();
        for (number, phase) in self.phases.iter().enumerate() {
            self.barrier.wait();
            let before = session.stats();
            let cached = session.cache_stats();
            self.run_phase(&session, thread, number, phase, &mut workers);
            self.barrier.wait();
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results[number].tally.merge(&tally.take());
            add_costs(&mut results[number].costs, &before, &session.stats());
            results[number].cache.merge(&session.cache_stats().since(&cached));
        }
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.extend(workers.into_iter().map(Worker::into_log));
    }

    fn run_phase(
        &self,
        session: &S::Session,
        thread: usize,
        number: usize,
        phase: &Phase,
        workers: &mut [Worker<'_, S::Session>],
    ) {
        let share = Share::of(&self.budgets[number]);
        let done = &self.counters[thread].0;
        let runs = workers.iter_mut().map(|worker| phase.run(self.board, &share, worker, done));
        session.block_on(join_all(runs));
    }
}

fn add_costs(costs: &mut Costs, before: &Stats, after: &Stats) {
    for (kind, sum) in OpKind::ALL.into_iter().zip(costs) {
        let before = before.kind(kind);
        let after = after.kind(kind);
        let operations = after.operations - before.operations;
        if operations == 0 {
            continue;
        }
        sum.operations += operations;
        sum.phases += after.phases - before.phases;
        sum.max_phases = sum.max_phases.max(after.max_phases);
        sum.verbs += after.verbs - before.verbs;
        sum.atomics += after.atomics - before.atomics;
        sum.bytes += after.bytes - before.bytes;
    }
}

/// The result of reading all keys back.
#[derive(Default)]
pub struct Verified {
    /// Errors and mismatches.
    pub tally: Tally,
    /// Keys that were read.
    pub keys: u64,
    /// The reads, if the board keeps records of all operations.
    pub entries: Vec<Packed>,
}

/// Reads every key that was ever inserted, through a new session with an empty cache, and compares
/// it with the logs. Ends at the first error, or when the user interrupts.
pub fn verify(store: &impl Store, board: &Board, logs: Vec<Log>) -> Result<Verified, Failure> {
    let keys = board.frontier.claimed();
    let reader = logs.len() as u64;
    let verifier = Verifier::new(keys, logs);
    let session = store
        .open()
        .map_err(|e| Failure::unreachable(format!("cannot start a session to verify: {e}")))?;
    let verified = RefCell::new(Verified::default());
    let next = AtomicU64::new(0);
    let bar = bar("verify", keys, true);
    let was_interrupted = interrupt::requested();
    let read = async || {
        loop {
            let key = next.fetch_add(1, Ordering::Relaxed);
            let failed = verified.borrow().tally.error_count() > 0;
            if key >= keys || failed || interrupt::requested() != was_interrupted {
                return;
            }
            if key.is_multiple_of(VERIFY_SHOWN) {
                bar.set_position(key);
            }
            let invoked = board.clock.now();
            let name = board.keys.name(key);
            let len = board.pair_bytes - name.len();
            let check = |found: Option<&[u8]>| {
                let value = found.map_or(Err(Mismatch::Missing), |v| self_check(key, v, len));
                (verifier.check(key, found, len), value)
            };
            let found = session.get_with(&name, check).await;
            let verified = &mut *verified.borrow_mut();
            let (verdict, value) = match found {
                Ok(found) => found,
                Err(error) => {
                    verified.tally.error(OpKind::Search, key, &error);
                    return;
                }
            };
            verified.keys += 1;
            if let Err(mismatch) = verdict {
                verified.tally.mismatch(key, &mismatch);
            }
            let answer = match value {
                Ok(origin) => Answer::from(origin),
                Err(Mismatch::Missing) => Answer::Absent,
                Err(_) => continue,
            };
            if board.keep == Keep::All {
                let end = End::Answered(board.clock.now(), answer);
                let entry = Entry { key, worker: reader, call: Call::Search, invoked, end };
                verified.entries.push(entry.into());
            }
        }
    };
    session.block_on(join_all((0..VERIFY_COROUTINES).map(|_| read())));
    bar.finish_and_clear();
    Ok(verified.into_inner())
}

/// Removes the keys `0..keys` that exist, and those that follow: an interrupted benchmark may have
/// left them.
pub fn clean_up<S: Store>(store: &S, keys: u64) -> Result<(), Failure> {
    clean_up_named(store, &Keys::Numbered, keys, VERIFY_COROUTINES)
}

/// Does the same with keys of these names. Keys of files have no followers; of others, the next one
/// is looked for among `holes` keys.
pub fn clean_up_named<S: Store>(
    store: &S,
    names: &Keys,
    keys: u64,
    holes: u64,
) -> Result<(), Failure> {
    let failed = |e| Failure::operation(format!("cannot remove the benchmark's keys: {e}"));
    let session = store.open().map_err(failed)?;
    let is_named = matches!(names, Keys::Named(_));
    let next = AtomicU64::new(0);
    let limit = AtomicU64::new(keys + holes);
    let cleaner = async || {
        loop {
            let key = next.fetch_add(1, Ordering::Relaxed);
            if key >= limit.load(Ordering::Relaxed) || is_named && key >= keys {
                return Ok(());
            }
            match session.delete(&names.name(key)).await {
                Err(error) if error.answer() != Some(Answer::Absent) => return Err(error),
                Err(_) => {}
                Ok(()) => drop(limit.fetch_max(key + 1 + holes, Ordering::Relaxed)),
            }
        }
    };
    let cleaners = (0..VERIFY_COROUTINES).map(|_| cleaner());
    session.block_on(join_all(cleaners)).into_iter().collect::<Result<(), _>>().map_err(failed)
}

#[cfg(test)]
pub mod tests {
    use fusee_client::{Client, EmbeddedOptions};
    use fusee_workload::{Distribution, Part, Workload};

    use super::*;
    use crate::check::check;
    use crate::clock::Clock;
    use crate::message::Run;

    /// Lets keys come and go on an empty store, and judges all its answers.
    pub fn drive(store: &impl Store) {
        let mut board = Board::new(64, 1);
        board.clock = Clock::shared(monotonic_ns());
        board.keep = Keep::All;
        board.keys_come_and_go = true;
        let run = Run {
            workload: Workload::Churn,
            keys: 20,
            distribution: Distribution::Uniform,
            theta: 0.0,
            seed: 1,
            operations: 2000,
            seconds: None,
            files: None,
            workers: 4,
            own_keys: false,
        };
        let crew = Crew { threads: 2, coroutines: 2, first_thread: 0 };
        let phases = run.phases(Part::WHOLE, None);
        let outcome = super::run(store, &board, crew, &phases, &mut ()).unwrap();
        let Outcome { results, logs, mut entries } = outcome;
        for result in &results {
            let Tally { errors, mismatches, examples, .. } = &result.tally;
            assert!(errors.is_empty() && mismatches.is_empty(), "{examples:?}");
        }
        assert_eq!(results[1].tally.operations(), run.operations);
        let verified = verify(store, &board, logs).unwrap();
        assert_eq!((verified.keys, verified.tally.error_count()), (run.keys, 0));
        assert_eq!(verified.tally.mismatch_count(), 0, "{:?}", verified.tally.examples);
        entries.extend(verified.entries);
        let report = check(&entries);
        assert!(report.is_clean() && report.operations > run.operations, "{report:?}");
        clean_up(store, run.keys).unwrap();
        let session = store.open().ok().expect("as before");
        let absent = session
            .block_on(session.get_with(&fusee_workload::key_bytes(0), |found| found.is_none()));
        assert!(absent.is_ok_and(|absent| absent));
    }

    #[test]
    fn fusee_is_driven_as_any_store() {
        drive(&Client::embedded(EmbeddedOptions::default()).unwrap());
    }
}
