//! The jobs: work on the members' memory by verbs, which the host does.
//!
//! One job runs at a time, under the session of the *repairer*. If a job fails, its verbs may still
//! be on their way: then the repairer is retired, that is, fenced like an expired session, and the
//! next job has another one. The repairers of an earlier master are retired as well. A job that
//! began by an older view counts as a session that is still pinned by it.

use fusee_control::count_with_noun;
use fusee_control::events::{Level, Topic};
use std::collections::BTreeSet;

use fusee_core::mutant::{Mutant, removed};
use fusee_core::stats::Damage;
use fusee_core::verbs::ClientId;

use super::context::EventContext;
use super::{FormationState, MasterAction, MasterState};
use crate::jobs::{JobError, JobReport, MasterJob, RecoveredClient};
use crate::record::{MasterRecord, RecordWrite};

/// The pause after a job failed, which doubles for every failure in a row, and its upper bound.
const PAUSE_MS: u64 = 50;
const MAX_PAUSE_MS: u64 = 1_600;

/// The job under way, and the sessions of jobs.
#[derive(Debug, Default)]
pub(super) struct JobScheduler {
    /// The session of the present jobs; recorded.
    current: Option<ClientId>,
    /// Sessions of failed jobs and of earlier masters; recorded until they are fenced.
    retired: BTreeSet<ClientId>,
    /// The epoch of the oldest of the failed jobs, or 0: the epochs of an earlier master's jobs are
    /// not known.
    retired_in: u64,
    running: Option<RunningJob>,
    next_token: u64,
    failures: u32,
    not_before_ms: u64,
}

impl JobScheduler {
    /// Returns the state for another cluster. A job may still be under way, so its token is not
    /// used again.
    pub fn for_new_cluster(&self) -> JobScheduler {
        JobScheduler { next_token: self.next_token, ..JobScheduler::default() }
    }

    /// Returns the retired sessions, which are being fenced.
    pub fn retired(&self) -> impl Iterator<Item = ClientId> {
        self.retired.iter().copied()
    }

    /// Returns all sessions of jobs that have not ended.
    pub fn sessions(&self) -> impl Iterator<Item = ClientId> {
        self.retired().chain(self.current)
    }

    /// Forgets a retired session, which is fenced.
    pub fn forget_retired(&mut self, repairer: ClientId) {
        self.retired.remove(&repairer);
    }

    /// Returns whether no job is under way.
    pub fn rests(&self) -> bool {
        self.running.is_none()
    }
}

#[derive(Debug)]
struct RunningJob {
    token: u64,
    view: u64,
    epoch: u64,
}

impl MasterState {
    /// Retires a repair session, perhaps of an earlier master.
    pub(super) fn retire(&mut self, repairer: ClientId) {
        if removed(Mutant::EarlierRepairerGoesOn) {
            return;
        }
        self.repair.retired.insert(repairer);
        self.fences.add(repairer);
    }

    /// Returns the epoch of the oldest job whose verbs may still execute.
    pub(super) fn held_epoch(&self) -> Option<u64> {
        let retired = (!self.repair.retired.is_empty()).then_some(self.repair.retired_in);
        let running = self.repair.running.as_ref().map(|running| running.epoch);
        retired.into_iter().chain(running).min()
    }

    pub(super) fn may_start(&self, ctx: &EventContext<'_>) -> bool {
        let JobScheduler { running, not_before_ms, retired, .. } = &self.repair;
        running.is_none() && *not_before_ms <= ctx.now_ms && retired.is_empty()
    }

    pub(super) fn start_job(&mut self, ctx: &mut EventContext<'_>, job: MasterJob) {
        if !self.may_start(ctx) {
            return;
        }
        let Some(client) = self.repairer(ctx) else { return };
        let Some(view) = self.view().cloned().map(Box::new) else { return };
        let token = self.repair.next_token;
        self.repair.next_token += 1;
        let epoch = self.epochs.newest(ctx);
        self.repair.running = Some(RunningJob { token, view: view.number, epoch });
        ctx.push(MasterAction::Job { token, client, view, job });
    }

    /// Returns the session of the next job, which is made if there is none.
    fn repairer(&mut self, ctx: &mut EventContext<'_>) -> Option<ClientId> {
        if self.repair.current.is_none() {
            let mut writes = Vec::new();
            let client = self.sessions.new_id(&mut writes)?;
            writes.push(RecordWrite::Put(MasterRecord::Repairer(client)));
            ctx.persist(writes);
            self.repair.current = Some(client);
        }
        self.repair.current
    }

    pub(super) fn job_done(
        &mut self,
        ctx: &mut EventContext<'_>,
        token: u64,
        result: Result<JobReport, JobError>,
    ) {
        let Some(running) = self.repair.running.take_if(|running| running.token == token) else {
            return;
        };
        match result {
            Ok(report) => {
                self.repair.failures = 0;
                self.job_succeeded(ctx, running.view, report);
            }
            Err(error) => {
                let pause = (PAUSE_MS << self.repair.failures.min(8)).min(MAX_PAUSE_MS);
                self.repair.failures += 1;
                self.repair.not_before_ms = ctx.now_ms + pause;
                if let Some(repairer) = self.repair.current.take_if(|_| error.may_linger) {
                    if self.repair.retired.is_empty() {
                        self.repair.retired_in = running.epoch;
                    }
                    self.retire(repairer);
                }
                match error.unreadable {
                    Some(at) => self.cannot_split(ctx, at),
                    None => {
                        let text = format!("a repair stopped, and is tried again: {error}");
                        ctx.warn(Topic::Repair, text);
                    }
                }
                if let Some(node) = error.node {
                    self.probe(ctx, node);
                }
            }
        }
    }

    fn job_succeeded(&mut self, ctx: &mut EventContext<'_>, by: u64, report: JobReport) {
        match report {
            JobReport::Scrubbed { subtable, first, looked } => {
                self.take_scrub_findings(ctx, (by, subtable, first), looked);
            }
            JobReport::Cleared { slots_changed } => {
                if self.view().is_some_and(|view| view.number == by) {
                    if slots_changed > 0 {
                        let text = format!("{slots_changed} moved entries are cleared");
                        ctx.info(Topic::Repair, text);
                    }
                    // The cleared places may give room to replicas that found none.
                    self.growth.look_again();
                    self.advance(ctx);
                }
            }
            JobReport::Transformed { slots_changed, bytes_copied, damaged } => {
                self.sessions.add_damage(Damage { found: damaged, repaired: 0 });
                if damaged > 0 {
                    let text = format!(
                        "damaged where it was copied from: {}; the copies are of other replicas",
                        count_with_noun(damaged, "object")
                    );
                    ctx.warn(Topic::Damage, text);
                }
                if self.view().is_some_and(|view| view.number == by) {
                    let text = format!(
                        "replicas are equal: {} changed, {} copied",
                        count_with_noun(slots_changed, "slot"),
                        count_with_noun(bytes_copied, "byte")
                    );
                    ctx.info(Topic::Repair, text);
                    self.advance(ctx);
                }
            }
            JobReport::Recovered(recovered) => self.clients_recovered(ctx, recovered),
        }
    }

    fn clients_recovered(&mut self, ctx: &mut EventContext<'_>, all: Vec<RecoveredClient>) {
        let FormationState::Formed(view) = &self.phase else { return };
        let mut writes = Vec::new();
        let mut texts = Vec::new();
        for RecoveredClient { recovery, owned, orphans } in all {
            let client = recovery.client;
            let writes_before = writes.len();
            self.sessions.recovered(client, &owned, &orphans, view, &mut writes);
            if writes.len() == writes_before {
                continue;
            }
            self.fences.forget_client(client);
            let text = format!(
                "{client} is recovered: {}, {} completed, {} withdrawn",
                count_with_noun(recovery.blocks, "block"),
                count_with_noun(recovery.committed, "write"),
                recovery.withdrawn
            );
            texts.push((Level::Info, text));
            if recovery.strange > 0 {
                let text = format!("{client} left {} things no client leaves", recovery.strange);
                texts.push((Level::Warn, text));
            }
            self.history.recovered(recovery);
        }
        ctx.persist(writes);
        for (level, text) in texts {
            ctx.push(MasterAction::Tell(level, Some(Topic::Session), text));
        }
    }
}
