//! Phases of a benchmark: the job of the workers, and its limits.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fusee_cli::interrupt;

use super::store::BenchSession;
use super::worker::{Worker, WorkerContext};
use fusee_workload::{KeyChooser, WorkloadOperation, YcsbTrace, YcsbWorkload};

/// Number of operations that a thread takes from the common budget at a time.
const CHUNK: u64 = 32;

/// The job of the workers.
#[derive(Clone, Debug)]
pub enum PhaseJob {
    /// Insert new keys, until the process has this number of keys of its own.
    Insert {
        /// Maximum number of keys.
        keys: u64,
    },
    /// Update the keys that the worker inserted, one after the other.
    Update,
    /// Read the keys that the worker inserted, one after the other.
    Search,
    /// Delete the keys that the worker inserted.
    Delete,
    /// Run a mix of operations on the keys of all workers.
    Ycsb {
        /// The mix of operations.
        workload: YcsbWorkload,
        /// The choice of keys.
        chooser: KeyChooser,
        /// Number of keys that all processes together loaded.
        keys: u64,
        /// Whether the process requests only its own keys.
        own: bool,
    },
    /// Run the operations of files, of which each worker has a part.
    Trace {
        /// The content of the files.
        trace: Arc<YcsbTrace>,
        /// Number of workers of all processes, which share the operations.
        workers: u64,
        /// Number of operations of all workers together.
        operations: u64,
    },
}

/// A job with its limits; the phase ends at the first limit that is reached.
#[derive(Clone, Debug)]
pub struct BenchPhase {
    /// The job.
    pub job: PhaseJob,
    /// Number of operations of all workers together.
    pub operations: u64,
    /// The time after which workers start no new operations.
    pub time: Option<Duration>,
}

/// The operations that workers have not yet taken from a phase.
#[derive(Debug)]
pub struct PhaseBudget {
    taken: AtomicU64,
    total: u64,
}

impl PhaseBudget {
    /// Returns a budget of this number of operations.
    pub fn new(total: u64) -> PhaseBudget {
        PhaseBudget { taken: AtomicU64::new(0), total }
    }
}

/// The operations that one thread has taken from the budget for its workers.
pub struct BudgetShare<'a> {
    budget: &'a PhaseBudget,
    left: Cell<u64>,
}

impl BudgetShare<'_> {
    /// Returns an empty share.
    pub fn of(budget: &PhaseBudget) -> BudgetShare<'_> {
        BudgetShare { budget, left: Cell::new(0) }
    }

    /// Takes one operation, if one is left.
    fn take(&self) -> bool {
        if self.left.get() == 0 {
            let first = self.budget.taken.fetch_add(CHUNK, Ordering::Relaxed);
            self.left.set(self.budget.total.saturating_sub(first).min(CHUNK));
        }
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left > 0
    }
}

impl BenchPhase {
    /// Runs one worker through the phase, and counts its operations in `done` for the progress bar.
    pub async fn run<S: BenchSession>(
        &self,
        board: &WorkerContext,
        share: &BudgetShare<'_>,
        worker: &mut Worker<'_, S>,
        done: &AtomicU64,
    ) {
        let time = self.time.map_or(u64::MAX, |time| time.as_nanos() as u64);
        let mut now = board.clock.now();
        let deadline = now.saturating_add(time);
        let mut chooser = match &self.job {
            PhaseJob::Ycsb { chooser, .. } => Some(chooser.clone()),
            _ => None,
        };
        let mut turn = 0;
        let goes_on = || !board.has_ended() && !interrupt::is_requested();
        while now < deadline && goes_on() && share.take() {
            match self.step(board, worker, &mut chooser, turn).await {
                Some(end) => now = end,
                None => break,
            }
            turn += 1;
            // Only this thread writes the counter. Therefore a load and a store suffice, which are cheaper than an
            // atomic addition.
            done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            worker.take_turns().await;
        }
    }

    /// Runs one operation and returns the time of its end, or `None` if nothing is left to do.
    async fn step<S: BenchSession>(
        &self,
        board: &WorkerContext,
        worker: &mut Worker<'_, S>,
        chooser: &mut Option<KeyChooser>,
        turn: usize,
    ) -> Option<u64> {
        let own = |keys: &[u64]| (!keys.is_empty()).then(|| keys[turn % keys.len()]);
        let end = match (&self.job, chooser) {
            (PhaseJob::Ycsb { workload, keys, own, .. }, Some(chooser)) => {
                let request = workload.draw(&mut worker.rng);
                if request == WorkloadOperation::Insert && workload.adds_keys() {
                    let key = board.part.key(board.frontier.claim());
                    return Some(worker.insert_new(key).await);
                }
                let loaded = board.part.count(*keys);
                // Of the keys that were inserted after loading, a process knows only those that it inserted itself.
                let more = board.frontier.acknowledged().saturating_sub(loaded);
                let first = if *own { loaded } else { *keys };
                let key = match chooser.next(&mut worker.rng, first + more) {
                    index if *own => board.part.key(index),
                    key if key < *keys => key,
                    later => board.part.key(loaded + later - keys),
                };
                self::request(worker, request, key).await
            }
            (PhaseJob::Trace { trace, workers, operations }, _) => {
                let turn = turn as u64;
                let (operation, key) = trace.turn(worker.number(), *workers, turn, *operations)?;
                request(worker, operation, key).await
            }
            (PhaseJob::Ycsb { .. }, None) => unreachable!("a YCSB phase has a chooser"),
            (PhaseJob::Insert { keys }, _) => {
                let key = board.part.key(board.frontier.claim_below(*keys)?);
                worker.own_keys.push(key);
                worker.insert_new(key).await
            }
            (PhaseJob::Update, _) => worker.update(own(&worker.own_keys)?).await,
            (PhaseJob::Search, _) => worker.search(own(&worker.own_keys)?).await,
            (PhaseJob::Delete, _) => {
                let key = worker.own_keys.pop()?;
                worker.delete(key).await
            }
        };
        Some(end)
    }
}

async fn request<S: BenchSession>(
    worker: &mut Worker<'_, S>,
    operation: WorkloadOperation,
    key: u64,
) -> u64 {
    match operation {
        WorkloadOperation::Search => worker.search(key).await,
        WorkloadOperation::Update => worker.update(key).await,
        WorkloadOperation::Insert => worker.insert(key).await,
        WorkloadOperation::Delete => worker.delete(key).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_spent_exactly() {
        for total in [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 5] {
            let budget = PhaseBudget::new(total);
            let shares =
                [BudgetShare::of(&budget), BudgetShare::of(&budget), BudgetShare::of(&budget)];
            let mut taken = 0;
            for turn in 0..10 * CHUNK {
                taken += u64::from(shares[turn as usize % 3].take());
            }
            assert_eq!(taken, total);
        }
    }
}
