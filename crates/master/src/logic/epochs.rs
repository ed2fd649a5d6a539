//! Epochs, which tell when freed memory may be used again (P §4.4).
//!
//! An operation belongs to the newest epoch that its session knows when it begins. Sessions report the oldest epoch
//! that one of their operations belongs to. When all sessions are pinned in the newest epoch, and one of them waits for
//! memory, another epoch begins. The sessions that wait are told the epoch [`ClusterEpochs::passed`], before which no
//! operation runs any more, anywhere. That counts:
//!
//! * sessions that have expired, until they are recovered: their verbs may execute until they are fenced, and their
//!   unfinished writes are completed later;
//! * the master's jobs, also failed ones until their session is fenced;
//! * sessions that this master has not heard yet, as if they were pinned in the first epoch.
//!
//! Epochs never go back, not even when another master takes over: like client ids, they come from ranges that are
//! recorded first.

use fusee_control::master::ClusterEpochs;

use super::context::EventContext;
use super::facts::ClusterFacts;
use super::job_scheduler::JobScheduler;
use crate::record::{MasterRecord, RecordWrite};

/// The epochs of one write to the store.
const EPOCHS_PER_RECORD: u64 = 1 << 16;

/// The newest epoch.
#[derive(Debug, Default)]
pub(super) struct EpochCounter {
    newest: u64,
    /// The end of the recorded range.
    end: u64,
    begun_ms: u64,
    /// A session waits for a later epoch.
    wanted: bool,
}

impl EpochCounter {
    /// Restores from the store: epochs before `end` may have begun.
    pub fn restore(&mut self, end: u64) {
        (self.newest, self.end) = (end, end);
    }

    /// Takes note that a session waits for a later epoch.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns the newest epoch, after recording that it may be told.
    pub fn newest(&mut self, ctx: &mut EventContext<'_>) -> u64 {
        if self.newest == self.end {
            self.end += EPOCHS_PER_RECORD;
            ctx.persist(vec![RecordWrite::Put(MasterRecord::Epochs { end: self.end })]);
        }
        self.newest
    }

    /// Returns the epochs for answers to sessions.
    pub fn epochs(&self, cluster: &ClusterFacts, jobs: &JobScheduler) -> ClusterEpochs {
        let newest = self.newest;
        let (passed, settled) = cluster.sessions.epochs().unwrap_or((newest, newest));
        let held = jobs.held_epoch().unwrap_or(newest);
        ClusterEpochs { newest, passed: passed.min(held), settled: settled.min(held) }
    }

    /// Begins another epoch, if one is wanted and all are pinned in the newest one.
    pub fn step(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        jobs: &JobScheduler,
    ) {
        if !self.wanted
            || cluster.view.is_none()
            || ctx.now_ms < self.begun_ms + ctx.settings.lease.epoch_ms()
            || self.epochs(cluster, jobs).passed < self.newest
        {
            return;
        }
        self.wanted = false;
        self.begun_ms = ctx.now_ms;
        self.newest += 1;
        self.newest(ctx);
    }
}
