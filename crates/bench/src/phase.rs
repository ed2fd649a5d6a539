//! Phases of a benchmark: the job of every worker, and its duration.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fusee_cli::interrupt;

use super::store::Session;
use super::worker::{Board, Worker};
use fusee_workload::{Chooser, Request, Trace, Workload};

/// Operations that a thread takes from the common budget at a time.
const CHUNK: u64 = 32;

/// The job of the workers.
#[derive(Clone, Debug)]
pub enum Job {
    /// Insert new keys, up to this number of the process's own keys.
    Insert {
        /// Keys there will be at most.
        keys: u64,
    },
    /// Update the keys that the worker inserted, in turn.
    Update,
    /// Read the keys that the worker inserted, in turn.
    Search,
    /// Delete the keys that the worker inserted.
    Delete,
    /// A mix of operations on the keys of all workers.
    Ycsb {
        /// The mix.
        workload: Workload,
        /// The choice of keys.
        chooser: Chooser,
        /// The keys that all processes loaded.
        keys: u64,
        /// Whether the process requests only its own keys.
        own: bool,
    },
    /// The operations of files, a part for each worker.
    Trace {
        /// The operations.
        trace: Arc<Trace>,
        /// Workers of all processes, which share the operations.
        workers: u64,
        /// Operations of all of them together.
        operations: u64,
    },
}

/// A job and its end: the first of these limits.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The job.
    pub job: Job,
    /// Operations of all workers together.
    pub operations: u64,
    /// The time in which workers start new operations.
    pub time: Option<Duration>,
}

/// The operations that are left to a phase.
#[derive(Debug)]
pub struct Budget {
    taken: AtomicU64,
    total: u64,
}

impl Budget {
    /// Returns a budget of this number of operations.
    pub fn new(total: u64) -> Budget {
        Budget { taken: AtomicU64::new(0), total }
    }
}

/// A thread's part of the budget, which its workers share.
pub struct Share<'a> {
    budget: &'a Budget,
    left: Cell<u64>,
}

impl Share<'_> {
    /// Returns an empty share.
    pub fn of(budget: &Budget) -> Share<'_> {
        Share { budget, left: Cell::new(0) }
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

impl Phase {
    /// Runs one worker through the phase; `done` counts for the progress bar.
    pub async fn run<S: Session>(
        &self,
        board: &Board,
        share: &Share<'_>,
        worker: &mut Worker<'_, S>,
        done: &AtomicU64,
    ) {
        let time = self.time.map_or(u64::MAX, |time| time.as_nanos() as u64);
        let mut now = board.clock.now();
        let deadline = now.saturating_add(time);
        let mut chooser = match &self.job {
            Job::Ycsb { chooser, .. } => Some(chooser.clone()),
            _ => None,
        };
        let mut turn = 0;
        let goes_on = || !board.has_ended() && !interrupt::requested();
        while now < deadline && goes_on() && share.take() {
            match self.step(board, worker, &mut chooser, turn).await {
                Some(end) => now = end,
                None => break,
            }
            turn += 1;
            // Only this thread adds: a load and a store are enough, and cheaper.
            done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            worker.take_turns().await;
        }
    }

    /// Runs one operation; returns its end, or `None` if there is nothing left to do.
    async fn step<S: Session>(
        &self,
        board: &Board,
        worker: &mut Worker<'_, S>,
        chooser: &mut Option<Chooser>,
        turn: usize,
    ) -> Option<u64> {
        let own = |keys: &[u64]| (!keys.is_empty()).then(|| keys[turn % keys.len()]);
        let end = match (&self.job, chooser) {
            (Job::Ycsb { workload, keys, own, .. }, Some(chooser)) => {
                let request = workload.draw(&mut worker.rng);
                if request == Request::Insert && workload.adds_keys() {
                    let key = board.part.key(board.frontier.claim());
                    return Some(worker.insert_new(key).await);
                }
                let loaded = board.part.count(*keys);
                // Of the keys that came later a process knows only its own.
                let more = board.frontier.acknowledged().saturating_sub(loaded);
                let first = if *own { loaded } else { *keys };
                let key = match chooser.next(&mut worker.rng, first + more) {
                    index if *own => board.part.key(index),
                    key if key < *keys => key,
                    later => board.part.key(loaded + later - keys),
                };
                self::request(worker, (request, key)).await
            }
            (Job::Trace { trace, workers, operations }, _) => {
                let turn = trace.turn(worker.number(), *workers, turn as u64, *operations)?;
                request(worker, turn).await
            }
            (Job::Ycsb { .. }, None) => unreachable!("a YCSB phase has a chooser"),
            (Job::Insert { keys }, _) => {
                let key = board.part.key(board.frontier.claim_below(*keys)?);
                worker.own_keys.push(key);
                worker.insert_new(key).await
            }
            (Job::Update, _) => worker.update(own(&worker.own_keys)?).await,
            (Job::Search, _) => worker.search(own(&worker.own_keys)?).await,
            (Job::Delete, _) => {
                let key = worker.own_keys.pop()?;
                worker.delete(key).await
            }
        };
        Some(end)
    }
}

async fn request<S: Session>(worker: &mut Worker<'_, S>, (request, key): (Request, u64)) -> u64 {
    match request {
        Request::Search => worker.search(key).await,
        Request::Update => worker.update(key).await,
        Request::Insert => worker.insert(key).await,
        Request::Delete => worker.delete(key).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_spent_exactly() {
        for total in [0, 1, CHUNK - 1, CHUNK, 3 * CHUNK + 5] {
            let budget = Budget::new(total);
            let shares = [Share::of(&budget), Share::of(&budget), Share::of(&budget)];
            let mut taken = 0;
            for turn in 0..10 * CHUNK {
                taken += u64::from(shares[turn as usize % 3].take());
            }
            assert_eq!(taken, total);
        }
    }
}
