//! The phases of a benchmark on threads, each with a session and some coroutines.
//!
//! Every thread opens its session. Then all threads go through the phases together: no thread starts a phase before all
//! threads have finished the previous one. A phase is timed from the moment when the last thread is ready to the moment
//! when the last thread is done. Sessions stay open between phases, so in the run phase their index caches still hold
//! what they learned in the load phase.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{CacheStats, KindStats, OpKind, Stats};
use fusee_linearizability::{HistoryAnswer, HistoryCall};
use futures_util::future::join_all;

use super::clock::monotonic_ns;
use super::phase::{BenchPhase, BudgetShare, PhaseBudget};
use super::progress::{PhaseProgress, bar};
use super::record::{PackedOperation, RecordScope, RecordedEnd, RecordedOperation};
use super::store::{BenchSession, BenchStore, OperationError};
use super::tally::OperationTally;
use super::verify::{Mismatch, Verifier, WriteLog, self_check};
use super::worker::{Worker, WorkerContext};
use fusee_workload::KeyNaming;

/// Number of reads of the verification that run at the same time.
const VERIFY_COROUTINES: u64 = 16;
/// Number of verified keys after which the progress bar moves.
const VERIFY_SHOWN: u64 = 1024;

/// The number of workers of this process, and their position among the workers of all processes.
#[derive(Clone, Copy, Debug)]
pub struct WorkerLayout {
    /// Number of threads, each with a session.
    pub threads: usize,
    /// Number of workers per thread.
    pub coroutines: usize,
    /// Number of threads of other processes that are numbered before the threads of this process.
    pub first_thread: usize,
}

/// An observer of the phases, which the main thread calls.
pub trait PhaseObserver {
    /// Returns whether to draw the progress bar.
    fn shows_progress(&self) -> bool {
        true
    }

    /// Called when all threads are ready for the next phase. The phase begins when this method returns.
    fn begin(&mut self) {}

    /// Called when a phase has ended. The times are those of the monotonic clock.
    fn phase_ended(&mut self, _from_ns: u64, _to_ns: u64) {}
}

/// Observes nothing.
impl PhaseObserver for () {}

/// The results of all phases.
pub struct DriverOutcome {
    /// The results, by phase.
    pub results: Vec<PhaseResult>,
    /// The writes, by worker.
    pub logs: Vec<WriteLog>,
    /// The recorded operations, by worker and in the order of their ends.
    pub entries: Vec<PackedOperation>,
}

/// The costs of a phase, by kind of operation.
pub type PhaseCosts = [KindStats; OpKind::ALL.len()];

/// The result of a phase.
#[derive(Clone, Debug, Default)]
pub struct PhaseResult {
    /// Time from the begin of the first operation to the end of the last operation.
    pub duration: Duration,
    /// Latencies, errors and mismatches.
    pub tally: OperationTally,
    /// Round trips, verbs and bytes. If an earlier phase had operations of the same kind, the maximum of round trips
    /// covers both phases.
    pub costs: PhaseCosts,
    /// The outcomes of accesses to the index caches, if the workers ran in this process.
    pub cache: CacheStats,
}

/// A counter on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PaddedCounter(pub AtomicU64);

/// The state that threads share.
struct BenchDriverState<'a, S> {
    store: &'a S,
    board: &'a WorkerContext,
    crew: WorkerLayout,
    phases: &'a [BenchPhase],
    budgets: Vec<PhaseBudget>,
    barrier: Barrier,
    counters: Vec<PaddedCounter>,
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    results: Mutex<Vec<PhaseResult>>,
    logs: Mutex<Vec<(u64, WriteLog, Vec<PackedOperation>)>>,
}

/// Runs all phases.
pub fn run<S: BenchStore>(
    store: &S,
    board: &WorkerContext,
    crew: WorkerLayout,
    phases: &[BenchPhase],
    steps: &mut dyn PhaseObserver,
) -> Result<DriverOutcome, Failure> {
    let stage = BenchDriverState {
        store,
        board,
        crew,
        phases,
        budgets: phases.iter().map(|phase| PhaseBudget::new(phase.operations)).collect(),
        barrier: Barrier::new(crew.threads + 1),
        counters: (0..crew.threads).map(|_| PaddedCounter::default()).collect(),
        failed: AtomicBool::new(false),
        failure: Mutex::default(),
        results: Mutex::new(vec![PhaseResult::default(); phases.len()]),
        logs: Mutex::default(),
    };
    let durations = std::thread::scope(|scope| {
        let _guard = ExitOnPanic;
        for thread in 0..crew.threads {
            let stage = &stage;
            scope.spawn(move || stage.thread(thread));
        }
        stage.lead_phases(steps)
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
    Ok(DriverOutcome { results, logs: all_logs, entries })
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process when a thread panics, because the other threads would wait for that thread for ever.
struct ExitOnPanic;

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(101);
        }
    }
}

impl<S: BenchStore> BenchDriverState<'_, S> {
    /// Leads the threads through the phases, from the main thread.
    fn lead_phases(&self, steps: &mut dyn PhaseObserver) -> Vec<Duration> {
        self.barrier.wait();
        let mut durations = Vec::new();
        if self.failed.load(Ordering::Acquire) {
            return durations;
        }
        for phase in self.phases {
            for counter in &self.counters {
                counter.0.store(0, Ordering::Relaxed);
            }
            let progress = PhaseProgress::start(phase, &self.counters, steps.shows_progress());
            steps.begin();
            // The time is taken before the workers start, because this thread possibly runs again only after they have
            // ended.
            let start = Instant::now();
            let from_ns = monotonic_ns();
            self.barrier.wait();
            progress.watch(|| self.barrier.wait());
            durations.push(start.elapsed());
            steps.phase_ended(from_ns, monotonic_ns());
        }
        durations
    }

    fn thread(&self, thread: usize) {
        let _guard = ExitOnPanic;
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
        let tally = RefCell::new(OperationTally::default());
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
        phase: &BenchPhase,
        workers: &mut [Worker<'_, S::Session>],
    ) {
        let share = BudgetShare::of(&self.budgets[number]);
        let done = &self.counters[thread].0;
        let runs = workers.iter_mut().map(|worker| phase.run(self.board, &share, worker, done));
        session.block_on(join_all(runs));
    }
}

fn add_costs(costs: &mut PhaseCosts, before: &Stats, after: &Stats) {
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
pub struct ReadBackResult {
    /// Errors and mismatches.
    pub tally: OperationTally,
    /// Keys that were read.
    pub keys: u64,
    /// The reads, if records of all operations are kept.
    pub entries: Vec<PackedOperation>,
}

/// Reads every key that was ever inserted, through a new session with an empty cache, and compares the values with the
/// logs of writes. Ends at the first error, or when the user interrupts.
pub fn verify(
    store: &impl BenchStore,
    board: &WorkerContext,
    logs: Vec<WriteLog>,
) -> Result<ReadBackResult, Failure> {
    let keys = board.frontier.claimed();
    let reader = logs.len() as u64;
    let verifier = Verifier::new(keys, logs);
    let session = store
        .open()
        .map_err(|e| Failure::unreachable(format!("cannot start a session to verify: {e}")))?;
    let verified = RefCell::new(ReadBackResult::default());
    let next = AtomicU64::new(0);
    let bar = bar("verify", keys, true);
    let was_interrupted = interrupt::is_requested();
    let read = async || {
        loop {
            let key = next.fetch_add(1, Ordering::Relaxed);
            let failed = verified.borrow().tally.error_count() > 0;
            if key >= keys || failed || interrupt::is_requested() != was_interrupted {
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
                Ok(origin) => HistoryAnswer::from(origin),
                Err(Mismatch::Missing) => HistoryAnswer::Absent,
                Err(_) => continue,
            };
            if board.keep == RecordScope::All {
                let end = RecordedEnd::Answered(board.clock.now(), answer);
                let entry = RecordedOperation {
                    key,
                    worker: reader,
                    call: HistoryCall::Search,
                    invoked,
                    end,
                };
                verified.entries.push(entry.into());
            }
        }
    };
    session.block_on(join_all((0..VERIFY_COROUTINES).map(|_| read())));
    bar.finish_and_clear();
    Ok(verified.into_inner())
}

/// Removes the keys `0..keys` that exist, and the keys with higher numbers that an interrupted benchmark possibly left.
pub fn clean_up<S: BenchStore>(store: &S, keys: u64) -> Result<(), Failure> {
    clean_up_named(store, &KeyNaming::Numbered, keys, VERIFY_COROUTINES)
}

/// Removes the keys with these names. If the names come from files, only the keys `0..keys` can exist. Otherwise keys
/// with higher numbers are removed too, until `holes` numbers in a row have no key.
pub fn clean_up_named<S: BenchStore>(
    store: &S,
    names: &KeyNaming,
    keys: u64,
    holes: u64,
) -> Result<(), Failure> {
    let failed = |e| Failure::operation(format!("cannot remove the benchmark's keys: {e}"));
    let session = store.open().map_err(failed)?;
    let is_named = matches!(names, KeyNaming::Named(_));
    let next = AtomicU64::new(0);
    let limit = AtomicU64::new(keys + holes);
    let cleaner = async || {
        loop {
            let key = next.fetch_add(1, Ordering::Relaxed);
            if key >= limit.load(Ordering::Relaxed) || is_named && key >= keys {
                return Ok(());
            }
            match session.delete(&names.name(key)).await {
                Err(error) if error.answer() != Some(HistoryAnswer::Absent) => return Err(error),
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
    use fusee_workload::{Distribution, WorkloadShare, YcsbWorkload};

    use super::*;
    use crate::check::check;
    use crate::clock::BenchClock;
    use crate::message::RunSpec;

    /// Lets keys come and go on an empty store, and checks all answers of the store.
    pub fn drive(store: &impl BenchStore) {
        let mut board = WorkerContext::new(64, 1);
        board.clock = BenchClock::shared(monotonic_ns());
        board.keep = RecordScope::All;
        board.keys_come_and_go = true;
        let run = RunSpec {
            workload: YcsbWorkload::Churn,
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
        let crew = WorkerLayout { threads: 2, coroutines: 2, first_thread: 0 };
        let phases = run.phases(WorkloadShare::WHOLE, None);
        let outcome = super::run(store, &board, crew, &phases, &mut ()).unwrap();
        let DriverOutcome { results, logs, mut entries } = outcome;
        for result in &results {
            let OperationTally { errors, mismatches, examples, .. } = &result.tally;
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
        drive(&Client::embedded(EmbeddedOptions::default()).unwrap().blocking());
    }
}
