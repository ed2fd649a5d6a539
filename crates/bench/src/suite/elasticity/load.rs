//! Sessions that come and go on demand, and that read and update while they exist.
//!
//! Thread n has a session while more than n sessions are wanted. Each time it opens a new session, as a new client
//! would, so that joining and leaving are a part of the measurement.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;

use crate::series::{MeteredSession, OperationMeter};
use crate::tally::OperationTally;
use crate::verify::WriteLog;
use crate::worker::{Worker, WorkerContext};
use fusee_workload::{KeyChooser, WorkloadOperation, YcsbWorkload};

/// The interval at which a thread without a session checks whether it has to open one.
const LOOK: Duration = Duration::from_millis(2);

/// The state that threads share.
pub struct ElasticityLoad<'a> {
    pub client: &'a BlockingClient,
    pub board: &'a WorkerContext,
    pub workload: YcsbWorkload,
    pub chooser: &'a KeyChooser,
    /// Number of keys that exist.
    pub keys: u64,
    /// The time between the beginnings of two operations of a session, if they are paced.
    pub interval: Option<Duration>,
    /// The writer number of the next session.
    pub writers: AtomicU64,
    /// Number of sessions that are wanted.
    pub wanted: AtomicU16,
    /// Number of sessions that exist.
    pub working: AtomicU16,
    /// Whether to stop.
    pub over: AtomicBool,
}

/// The results of a session.
pub struct ElasticitySessionResult {
    pub writer: u64,
    pub log: WriteLog,
    /// Errors and mismatches.
    pub tally: OperationTally,
}

impl ElasticityLoad<'_> {
    /// Returns whether the load is to go on.
    pub fn goes_on(&self) -> bool {
        // Relaxed order suffices here and in the whole module, because the change becomes visible soon enough.
        !self.over.load(Ordering::Relaxed) && !self.board.is_broken() && !interrupt::is_requested()
    }

    fn is_wanted(&self, number: u16) -> bool {
        self.goes_on() && self.wanted.load(Ordering::Relaxed) > number
    }

    /// Runs a thread until the load is over.
    pub fn thread(
        &self,
        number: u16,
        meter: &OperationMeter,
    ) -> Result<Vec<ElasticitySessionResult>, Failure> {
        let mut done = Vec::new();
        while self.goes_on() {
            if self.is_wanted(number) {
                done.push(self.session(number, meter)?);
            } else {
                sleep(LOOK);
            }
        }
        Ok(done)
    }

    fn session(
        &self,
        number: u16,
        meter: &OperationMeter,
    ) -> Result<ElasticitySessionResult, Failure> {
        let session = self.client.session()?;
        self.working.fetch_add(1, Ordering::Relaxed);
        let writer = self.writers.fetch_add(1, Ordering::Relaxed);
        let tally = RefCell::new(OperationTally::default());
        let mut worker = Worker::new(self.board, &session, &tally, writer, false);
        let mut noting = MeteredSession::new(self.client, &session, meter);
        let mut chooser = self.chooser.clone();
        let mut next = Instant::now();
        while self.is_wanted(number) {
            let request = self.workload.draw(&mut worker.rng);
            let key = chooser.next(&mut worker.rng, self.keys);
            noting.run(&mut worker, async |worker| match request {
                WorkloadOperation::Update => worker.update(key).await,
                _ => worker.search(key).await,
            });
            if let Some(interval) = self.interval {
                let now = Instant::now();
                next = (next + interval).max(now);
                sleep(next - now);
            }
        }
        self.working.fetch_sub(1, Ordering::Relaxed);
        let (writer, log, _) = worker.into_log();
        Ok(ElasticitySessionResult { writer, log, tally: tally.into_inner() })
    }
}
