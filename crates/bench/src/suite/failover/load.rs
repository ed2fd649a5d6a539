//! The load that goes on while memory nodes die: half reads, half updates, at a steady pace.
//!
//! Every thread has a session and runs one operation at a time. If the session is lost, the thread opens another
//! session, as an application would. Each session has a *writer* number of its own in histories, so that the operations
//! of successive sessions stay apart.
//!
//! The pace bounds the memory that the records of a run take. After a pause the load does not catch up.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::interrupt;

use crate::record::PackedOperation;
use crate::redundant::RedundantClient;
use crate::store::{BenchSession, BenchStore, OperationError};
use crate::tally::OperationTally;
use crate::verify::WriteLog;
use crate::worker::{Worker, WorkerContext};
use fusee_workload::{KeyChooser, WorkloadOperation, YcsbWorkload};

/// The wait after an attempt to open a session has failed, before the next attempt.
const RETRY: Duration = Duration::from_millis(5);

/// The state that threads share.
pub struct FailoverLoad<'a> {
    pub store: RedundantClient<'a>,
    pub board: &'a WorkerContext,
    pub chooser: &'a KeyChooser,
    /// Number of keys that exist.
    pub keys: u64,
    /// The time between the beginnings of two operations of a session.
    pub interval: Duration,
    /// The writer number of the next session; writer 0 loads the keys.
    pub writers: AtomicU64,
    /// Whether to stop.
    pub over: AtomicBool,
}

/// The results of a thread.
pub struct FailoverTrace {
    /// The writes and all recorded operations, by writer.
    pub writers: Vec<(u64, WriteLog, Vec<PackedOperation>)>,
    /// Latencies, errors and mismatches.
    pub tally: OperationTally,
}

impl FailoverLoad<'_> {
    /// Runs a thread until the load is over.
    pub fn thread(&self) -> FailoverTrace {
        let tally = RefCell::new(OperationTally::default());
        let mut writers = Vec::new();
        while self.goes_on() {
            match self.session(&tally) {
                Some(done) => writers.push(done),
                None => sleep(RETRY),
            }
        }
        FailoverTrace { writers, tally: tally.into_inner() }
    }

    /// Waits until this number of threads have opened their first session.
    pub fn wait_for_sessions(&self, threads: u64) {
        while self.writers.load(Ordering::Relaxed) <= threads && self.goes_on() {
            sleep(RETRY);
        }
    }

    fn goes_on(&self) -> bool {
        // Relaxed order suffices, because the change becomes visible soon enough.
        !self.over.load(Ordering::Relaxed) && !self.board.is_broken() && !interrupt::is_requested()
    }

    /// Works with one session until the session is lost or the load is over. Returns `None` if no session could be
    /// opened.
    fn session(
        &self,
        tally: &RefCell<OperationTally>,
    ) -> Option<(u64, WriteLog, Vec<PackedOperation>)> {
        let opened = self.store.open().inspect_err(|error| {
            let kind = error.kind().to_string();
            *tally.borrow_mut().errors.entry(kind).or_default() += 1;
        });
        let session = opened.ok()?;
        let writer = self.writers.fetch_add(1, Ordering::Relaxed);
        let mut worker = Worker::new(self.board, &session, tally, writer, false);
        let mut chooser = self.chooser.clone();
        let mut next = Instant::now();
        while self.goes_on() && !session.session.is_lost() {
            let request = YcsbWorkload::A.draw(&mut worker.rng);
            let key = chooser.next(&mut worker.rng, self.keys);
            session.block_on(async {
                match request {
                    WorkloadOperation::Update => worker.update(key).await,
                    _ => worker.search(key).await,
                }
            });
            let now = Instant::now();
            next = (next + self.interval).max(now);
            sleep(next - now);
        }
        Some(worker.into_log())
    }
}
