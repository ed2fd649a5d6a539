//! Sessions that insert, read and update while the index grows.
//!
//! A session that inserts takes the next key as soon as it has inserted the previous one. Reads and updates choose
//! among the inserted keys, each with the same probability, so that they reach all subtables. They come at a steady
//! pace; after a pause they do not catch up. The number of inserts bounds the number of updates, and thereby the memory
//! that a run takes.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::BlockingClient;
use rand::RngExt;

use crate::series::{MeteredSession, OperationMeter};
use crate::tally::OperationTally;
use crate::verify::WriteLog;
use crate::worker::{Worker, WorkerContext};

/// Minimum number of inserts for each update.
pub const INSERTS_PER_UPDATE: u64 = 2;

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowthRole {
    Insert,
    Read,
    Update,
}

/// The state that threads share.
pub struct GrowthLoad<'a> {
    pub client: &'a BlockingClient,
    pub board: &'a WorkerContext,
    /// Number of keys to insert.
    pub keys: u64,
    /// The time between the beginnings of two reads or updates of a session.
    pub interval: Duration,
    /// Number of sessions that update.
    pub writers: u64,
    /// Number of sessions that have not finished inserting.
    pub inserters_left: AtomicUsize,
    /// Whether to stop.
    pub over: AtomicBool,
}

/// The results of a thread.
pub struct GrowthThreadResult {
    pub writer: u64,
    pub log: WriteLog,
    /// Errors and mismatches.
    pub tally: OperationTally,
}

impl GrowthLoad<'_> {
    /// Returns whether keys are left to insert, and nothing asks the load to stop.
    pub fn goes_on(&self) -> bool {
        // Relaxed order suffices, because the change becomes visible soon enough.
        !self.over.load(Ordering::Relaxed)
            && self.inserters_left.load(Ordering::Relaxed) > 0
            && !self.board.is_broken()
            && !interrupt::is_requested()
    }

    /// Runs a thread until the load is over.
    pub fn thread(
        &self,
        role: GrowthRole,
        writer: u64,
        meter: &OperationMeter,
    ) -> Result<GrowthThreadResult, Failure> {
        let result = self.work(role, writer, meter);
        if role == GrowthRole::Insert {
            self.inserters_left.fetch_sub(1, Ordering::Relaxed);
        }
        result
    }

    fn work(
        &self,
        role: GrowthRole,
        writer: u64,
        meter: &OperationMeter,
    ) -> Result<GrowthThreadResult, Failure> {
        let session = self.client.session()?;
        let tally = RefCell::new(OperationTally::default());
        let mut worker = Worker::new(self.board, &session, &tally, writer, false);
        let mut noting = MeteredSession::new(self.client, &session, meter);
        let mut next = Instant::now();
        let mut turns = 0;
        while self.goes_on() {
            if role == GrowthRole::Insert {
                let Some(key) = self.board.frontier.claim_below(self.keys) else { break };
                noting.run(&mut worker, async |worker| worker.insert_new(key).await);
                continue;
            }
            let keys = self.board.frontier.acknowledged();
            let is_due = match role {
                GrowthRole::Update => turns * self.writers * INSERTS_PER_UPDATE < keys,
                _ => keys > 0,
            };
            if is_due {
                turns += 1;
                let key = worker.rng.random_range(0..keys);
                noting.run(&mut worker, async |worker| match role {
                    GrowthRole::Update => worker.update(key).await,
                    _ => worker.search(key).await,
                });
            }
            let now = Instant::now();
            next = (next + self.interval).max(now);
            sleep(next - now);
        }
        let (writer, log, _) = worker.into_log();
        Ok(GrowthThreadResult { writer, log, tally: tally.into_inner() })
    }
}
