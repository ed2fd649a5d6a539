//! The jobs: work on the members' memory by verbs, which the host does.
//!
//! One job runs at a time, under the session of the *repairer*. If a job fails, some of its verbs can still be under
//! way. Then the repairer is retired, that is, fenced like an expired session, and the next job has another repairer.
//! The repairers of an earlier master are retired as well. A running job that uses an older view is treated like a
//! session that is pinned by that view.

use std::collections::BTreeSet;

use fusee_control::events::Topic;
use fusee_core::verbs::ClientId;

use super::MasterAction;
use super::context::EventContext;
use super::decision::Decision;
use super::epochs::EpochCounter;
use super::facts::ClusterFacts;
use crate::jobs::{JobError, JobReport, MasterJob};
use crate::record::{MasterRecord, RecordWrite};
use crate::sessions::SessionRegistry;

/// The pause after a job failed, which doubles with every failure in a row, and its upper bound.
const PAUSE_MS: u64 = 50;
const MAX_PAUSE_MS: u64 = 1_600;

/// The job under way, and the sessions under which jobs run.
#[derive(Debug, Default)]
pub(super) struct JobScheduler {
    /// The session under which jobs run now. It is also stored.
    current: Option<ClientId>,
    /// Sessions of failed jobs and of earlier masters; stored until all members have fenced them.
    retired: BTreeSet<ClientId>,
    /// The epoch of the oldest failed job whose session is not fenced, or 0 if an earlier master's job is among them:
    /// its epoch is unknown.
    retired_in: u64,
    running: Option<RunningJob>,
    next_token: u64,
    failures: u32,
    not_before_ms: u64,
}

impl JobScheduler {
    /// Returns the state for another cluster. A job of the old cluster can still be under way, so its token is not used
    /// again.
    pub fn for_new_cluster(&self) -> JobScheduler {
        JobScheduler { next_token: self.next_token, ..JobScheduler::default() }
    }

    /// Returns the retired sessions, which members are fencing.
    pub fn retired(&self) -> impl Iterator<Item = ClientId> {
        self.retired.iter().copied()
    }

    /// Returns all sessions of jobs that have not ended: retired ones and the present one.
    pub fn sessions(&self) -> impl Iterator<Item = ClientId> {
        self.retired().chain(self.current)
    }

    /// Forgets a retired session, because all members have fenced it.
    pub fn forget_retired(&mut self, repairer: ClientId) {
        self.retired.remove(&repairer);
    }

    /// Returns whether no job is under way.
    pub fn rests(&self) -> bool {
        self.running.is_none()
    }
}

/// A job that has succeeded, with its report.
#[derive(Debug)]
pub(super) struct FinishedJob {
    /// The number of the view that the job used.
    pub view: u64,
    pub report: JobReport,
}

#[derive(Debug)]
struct RunningJob {
    token: u64,
    view: u64,
    epoch: u64,
}

impl JobScheduler {
    /// Retires a repair session, possibly of an earlier master. The caller makes all members fence the session.
    pub fn retire(&mut self, repairer: ClientId) {
        self.retired.insert(repairer);
    }

    /// Returns the epoch of the oldest job whose verbs can still execute; `None` if there is no such job.
    pub fn held_epoch(&self) -> Option<u64> {
        let retired = (!self.retired.is_empty()).then_some(self.retired_in);
        let running = self.running.as_ref().map(|running| running.epoch);
        retired.into_iter().chain(running).min()
    }

    /// Returns whether a job is allowed to start now.
    pub fn may_start(&self, now_ms: u64) -> bool {
        let JobScheduler { running, not_before_ms, retired, .. } = self;
        running.is_none() && *not_before_ms <= now_ms && retired.is_empty()
    }

    /// Starts a job, if one is allowed to start. The job belongs to the newest epoch.
    pub fn start(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &mut ClusterFacts,
        epochs: &mut EpochCounter,
        job: MasterJob,
    ) {
        if !self.may_start(ctx.now_ms) {
            return;
        }
        let Some(client) = self.repairer(ctx, &mut cluster.sessions) else { return };
        let Some(view) = cluster.view.clone().map(Box::new) else { return };
        let token = self.next_token;
        self.next_token += 1;
        let epoch = epochs.newest(ctx);
        self.running = Some(RunningJob { token, view: view.number, epoch });
        ctx.push(MasterAction::Job { token, client, view, job });
    }

    /// Returns the session for the next job; a new one if there is none.
    fn repairer(
        &mut self,
        ctx: &mut EventContext<'_>,
        sessions: &mut SessionRegistry,
    ) -> Option<ClientId> {
        if self.current.is_none() {
            let mut writes = Vec::new();
            let client = sessions.new_id(&mut writes)?;
            writes.push(RecordWrite::Put(MasterRecord::Repairer(client)));
            ctx.persist(writes);
            self.current = Some(client);
        }
        self.current
    }

    /// Records that a job has ended. Returns its report, if it was the job under way and has succeeded.
    pub fn job_done(
        &mut self,
        ctx: &mut EventContext<'_>,
        token: u64,
        result: Result<JobReport, JobError>,
    ) -> Option<FinishedJob> {
        let running = self.running.take_if(|running| running.token == token)?;
        let error = match result {
            Ok(report) => {
                self.failures = 0;
                return Some(FinishedJob { view: running.view, report });
            }
            Err(error) => error,
        };
        let pause = (PAUSE_MS << self.failures.min(8)).min(MAX_PAUSE_MS);
        self.failures += 1;
        self.not_before_ms = ctx.now_ms + pause;
        if let Some(repairer) = self.current.take_if(|_| error.may_linger) {
            if self.retired.is_empty() {
                self.retired_in = running.epoch;
            }
            ctx.decide(Decision::RetireRepairer(repairer));
        }
        if let Some((subtable, slot)) = error.unreadable {
            ctx.decide(Decision::CannotSplit { subtable, slot });
        } else {
            ctx.warn(Topic::Repair, format!("a repair stopped, and is tried again: {error}"));
        }
        if let Some(node) = error.node {
            ctx.decide(Decision::Probe(node));
        }
        None
    }
}
