//! Epochs, which tell when freed memory can be used again (P §4.4).
//!
//! An operation belongs to the newest epoch that its session knows when the operation begins. Sessions report the
//! oldest epoch to which one of their operations belongs. When all sessions are pinned in the newest epoch, and one of
//! them waits for memory, another epoch begins. The waiting sessions learn the epoch [`ClusterEpochs::passed`]: no
//! operation of an earlier epoch runs any more, anywhere. The following count as pinned, too:
//!
//! * sessions that have expired, until they are recovered: their verbs can execute until they are fenced, and their
//!   unfinished writes are completed later;
//! * the master's jobs, and failed jobs until their session is fenced;
//! * sessions that have not reported to this master yet, as if they were pinned in the first epoch.
//!
//! Epochs never decrease, not even when another master takes over: like client ids, they come from ranges that are
//! stored before their first number is used.

use fusee_control::master::ClusterEpochs;

use super::context::EventContext;
use super::facts::ClusterFacts;
use super::job_scheduler::JobScheduler;
use crate::record::{MasterRecord, RecordWrite};

/// The number of epochs that one write to the store reserves.
const EPOCHS_PER_RECORD: u64 = 1 << 16;

/// The newest epoch, and whether another one is to begin.
#[derive(Debug, Default)]
pub(super) struct EpochCounter {
    newest: u64,
    /// The end of the range of epochs that the store has reserved.
    end: u64,
    begun_ms: u64,
    /// Whether a session waits for a later epoch.
    wanted: bool,
}

impl EpochCounter {
    /// Restores from the store that epochs before `end` have possibly begun.
    pub fn restore(&mut self, end: u64) {
        (self.newest, self.end) = (end, end);
    }

    /// Records that a session waits for a later epoch.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns the newest epoch. Before sessions learn it, the range that includes it is stored.
    pub fn newest(&mut self, ctx: &mut EventContext<'_>) -> u64 {
        if self.newest == self.end {
            self.end += EPOCHS_PER_RECORD;
            ctx.persist(vec![RecordWrite::Put(MasterRecord::Epochs { end: self.end })]);
        }
        self.newest
    }

    /// Returns the epochs for the answers to heartbeats.
    pub fn epochs(&self, cluster: &ClusterFacts, jobs: &JobScheduler) -> ClusterEpochs {
        let newest = self.newest;
        let (passed, settled) = cluster.sessions.epochs().unwrap_or((newest, newest));
        let held = jobs.held_epoch().unwrap_or(newest);
        ClusterEpochs { newest, passed: passed.min(held), settled: settled.min(held) }
    }

    /// Begins another epoch, if one is wanted, all sessions are pinned in the newest epoch, and it has lasted long
    /// enough.
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
