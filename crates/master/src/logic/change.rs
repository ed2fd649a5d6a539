//! The view goes through its stages, and jobs do the work in between.
//!
//! What is next follows from the stored view and the stored sessions:
//!
//! | view | what is waited for | then |
//! |---|---|---|
//! | any stage | – | a member is lost: *frozen*, without it |
//! | frozen | all open sessions act by it, all given-up ones are fenced, no job runs (1) | transforming |
//! | transforming | the job that makes the replicas equal | switched |
//! | switched | as for frozen, and no write is left to look for; the job that clears what has moved (2) | stable |
//! | stable | given-up sessions are recovered, some at a time | what is wanted next (3) |
//!
//! 1. If it loses a member, see `standing`; if any is barred, see `barred`.
//! 2. After a split or a move.
//! 3. Full subtables are split; regions, members and replicas are added; replicas move.
//!
//! Jobs run one at a time, each under the session of the *repairer*. When one fails, its verbs may
//! still be on their way: then the repairer is retired, that is fenced like a client that is given
//! up, and the next job has another one. So it is with the repairers of an earlier master. A job
//! that began by an older view counts as a session that still acts by it.
//!
//! If the last replica of anything is lost, the view stays as it is: there is no better one.

use std::collections::BTreeSet;

use fusee_core::change::Stage;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::stats::Damage;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::context::Ctx;
use super::{Action, Level, Phase, State};
use crate::jobs::{Job, JobError, JobReport, Recovered};
use crate::record::{Record, Write, draining_key, member_key};

/// How long to wait after a job failed; doubled for every failure in a row, up to the second.
const PAUSE_MS: u64 = 50;
const MAX_PAUSE_MS: u64 = 1_600;
/// Clients that one job recovers at most.
const TOGETHER: usize = 32;

/// The job under way, and those who do the work.
#[derive(Debug, Default)]
pub(super) struct Repair {
    /// The session of the jobs; recorded.
    current: Option<ClientId>,
    /// Sessions of jobs that failed, and of earlier masters: recorded until they are fenced.
    pub retired: BTreeSet<ClientId>,
    /// The epoch of the oldest of these jobs; that of an earlier master's is not known.
    retired_in: u64,
    running: Option<Running>,
    next_token: u64,
    failures: u32,
    not_before_ms: u64,
    /// The losses, and the view, of which it is known that something would have no replica left.
    hopeless: Option<(u64, BTreeSet<MnId>)>,
}

impl Repair {
    /// That of another cluster. A job may still be under way: its name is not used again.
    pub fn anew(&self) -> Repair {
        Repair { next_token: self.next_token, ..Repair::default() }
    }
}

#[derive(Debug)]
struct Running {
    token: u64,
    view: u64,
    epoch: u64,
}

impl State {
    /// A repair session does not go on; it may be an earlier master's.
    pub(super) fn retire(&mut self, repairer: ClientId) {
        if removed(Mutant::EarlierRepairerGoesOn) {
            return;
        }
        self.repair.retired.insert(repairer);
        self.fences.add(repairer);
    }

    /// The epoch of the oldest job of which something may still execute.
    pub(super) fn held_epoch(&self) -> Option<u64> {
        let retired = (!self.repair.retired.is_empty()).then_some(self.repair.retired_in);
        let running = self.repair.running.as_ref().map(|running| running.epoch);
        retired.into_iter().chain(running).min()
    }

    /// Does what is due in a formed cluster.
    pub(super) fn keep_whole(&mut self, ctx: &mut Ctx<'_>, is_tick: bool) {
        if self.view().is_none() {
            return;
        }
        if is_tick {
            self.expire(ctx);
        }
        self.go_on_without(ctx);
        self.fence_all(ctx);
        self.stand_all(ctx);
        while self.step(ctx) {}
    }

    /// Takes a step if one is due; whether another may follow at once.
    fn step(&mut self, ctx: &mut Ctx<'_>) -> bool {
        match self.stage() {
            Some(Stage::Frozen)
                if self.repair.running.is_none()
                    && (self.all_follow() || removed(Mutant::ChangeDoesNotWait))
                    && self.may_take_effect(ctx) =>
            {
                if !(self.bars_are_told() && self.widen_scope(ctx)) {
                    self.advance(ctx);
                }
                true
            }
            Some(Stage::Switched) if self.all_follow() || removed(Mutant::SwitchDoesNotWait) => {
                if self.view().is_some_and(View::is_to_be_cleared) {
                    self.start_job(ctx, Job::Clear);
                    return false;
                }
                self.advance(ctx);
                true
            }
            Some(Stage::Transforming) => {
                // All who were given up before this stage are fenced, even if this master has yet to hear it.
                let dead = self.sessions.given_up().collect();
                self.start_job(ctx, Job::Transform { dead });
                false
            }
            Some(Stage::Frozen | Stage::Switched) => false,
            None if self.mind_bars(ctx) => false,
            None => {
                let splits = self.split(ctx);
                let grows = self.add_regions(ctx) || splits;
                if self.sessions.given_up().next().is_none() {
                    if !grows && !self.admit(ctx) {
                        self.grow(ctx);
                        self.scrub(ctx);
                    }
                } else if self.may_start(ctx) {
                    let fenced = self.sessions.given_up().filter(|client| self.is_fenced(*client));
                    let clients: Vec<ClientId> = fenced.take(TOGETHER).collect();
                    if !clients.is_empty() {
                        self.start_job(ctx, Job::Recover { clients });
                    }
                }
                false
            }
        }
    }

    /// Whether nobody keeps the stage from ending.
    fn all_follow(&self) -> bool {
        self.laggards().next().is_none()
            && self.sessions.given_up().all(|client| self.is_fenced(client))
    }

    fn advance(&mut self, ctx: &mut Ctx<'_>) {
        let leaves_frozen = self.stage() == Some(Stage::Frozen);
        let mut writes = Vec::new();
        if leaves_frozen {
            let is_told = self.settles_bars() || self.loses_a_member();
            writes.extend(self.scope_is_fixed(self.standing.number(), is_told));
            writes.append(&mut self.standing.settle());
        }
        let Some(view) = self.view().map(View::advanced) else { return };
        let stage = match view.change.as_ref().map(|change| change.stage) {
            Some(Stage::Frozen) => "frozen",
            Some(Stage::Transforming) => "transforming",
            Some(Stage::Switched) => "switched",
            None => "stable",
        };
        let text = format!("view {}: {stage}", view.number);
        self.set_view(ctx, view, writes, text);
    }

    /// The stage of the change that is under way.
    pub(super) fn stage(&self) -> Option<Stage> {
        self.view().and_then(|view| view.change.as_ref()).map(|change| change.stage)
    }

    /// A new view is in force, once it is stored.
    pub(super) fn set_view(
        &mut self,
        ctx: &mut Ctx<'_>,
        view: View,
        mut writes: Vec<Write>,
        text: String,
    ) {
        view.check().expect("a view that follows from a good one is good");
        writes.push(Write::Put(Record::View(view.clone())));
        ctx.persist(writes);
        ctx.info(text);
        if let Phase::Formed(old) = &self.phase {
            self.history.view_changes(ctx.now_ms, old, &view);
        }
        if let Phase::Formed(old) = std::mem::replace(&mut self.phase, Phase::Formed(view)) {
            self.told.replaced(old);
        }
    }

    /// Makes the view without the members that are gone, as far as something is left without them.
    fn go_on_without(&mut self, ctx: &mut Ctx<'_>) {
        let losing = self.presences.losing.clone();
        let Some(view) = self.view() else { return };
        if losing.is_empty() {
            if self.repair.hopeless.take().is_some() {
                self.problem = None;
            }
            return;
        }
        let tried = (view.number, losing);
        if self.repair.hopeless.as_ref() == Some(&tried) {
            return;
        }
        let (number, losing) = tried;
        let mut lost: Vec<MnId> = Vec::new();
        let mut without = None;
        let mut problem = None;
        for node in &losing {
            lost.push(*node);
            match view.without(&lost) {
                Ok(view) => without = Some(view),
                Err(nothing) => {
                    lost.pop();
                    problem = Some((*node, nothing));
                }
            }
        }
        if let Some(view) = without {
            self.lose(ctx, &lost, view);
        }
        self.repair.hopeless = problem.as_ref().map(|_| {
            let number = self.view().map_or(number, |view| view.number);
            (number, self.presences.losing.clone())
        });
        if let Some((node, nothing)) = problem {
            let problem =
                format!("{node} is lost, and without it {nothing}. {}", self.what_is_gone());
            ctx.warn(problem.clone());
            self.problem = Some(problem);
        }
    }

    /// What has no living replica, and the way out.
    fn what_is_gone(&self) -> String {
        let losing = &self.presences.losing;
        let Some(view) = self.view() else { return String::new() };
        let is_lost = |node: MnId| losing.contains(&node);
        let tables = view.subtables.iter().filter(|table| !table.survives(is_lost)).count();
        let regions = view.regions.iter().filter(|region| !region.survives(is_lost)).count();
        let (all_tables, all_regions) = (view.subtables.len(), view.regions.len());
        let names: Vec<String> = losing.iter().map(MnId::to_string).collect();
        format!(
            "{} are gone, and with them {tables} of {all_tables} index subtables and {regions} of \
             {all_regions} regions: the cluster goes on when one of these processes is heard again (one \
             that is started anew is empty, and another one). If none will be, what it held is lost: give \
             it up with `fusee destroy`, and form a new one with `fusee form`",
            names.join(", ")
        )
    }

    fn lose(&mut self, ctx: &mut Ctx<'_>, lost: &[MnId], view: View) {
        let mut writes = Vec::new();
        for node in lost {
            self.presences.forget(*node);
            self.present.remove(node);
            if let Some(member) = self.members.remove(node) {
                if self.draining.remove(node) {
                    writes.push(Write::Remove(draining_key(*node)));
                }
                writes.push(Write::Remove(member_key(*node)));
                writes.push(Write::Put(Record::Lost(member.clone())));
                self.lost.insert(*node, member);
            }
        }
        writes.push(self.members_change(view.number));
        let change = view.change.as_ref().map_or(0, |change| change.subtables.len());
        let names: Vec<String> = lost.iter().map(MnId::to_string).collect();
        let text = format!(
            "view {}: frozen, without {}; {change} subtables in the scope",
            view.number,
            names.join(", ")
        );
        self.settling_is_overtaken();
        self.growth.abandon();
        self.splitting.abandon();
        self.adding.abandon();
        self.history.lost(ctx.now_ms, lost);
        self.set_view(ctx, view, writes, text);
    }

    fn may_start(&self, ctx: &Ctx<'_>) -> bool {
        let Repair { running, not_before_ms, retired, .. } = &self.repair;
        running.is_none() && *not_before_ms <= ctx.now_ms && retired.is_empty()
    }

    pub(super) fn start_job(&mut self, ctx: &mut Ctx<'_>, job: Job) {
        if !self.may_start(ctx) {
            return;
        }
        let Some(client) = self.repairer(ctx) else { return };
        let Some(view) = self.view().cloned().map(Box::new) else { return };
        let token = self.repair.next_token;
        self.repair.next_token += 1;
        let epoch = self.epochs.newest(ctx);
        self.repair.running = Some(Running { token, view: view.number, epoch });
        ctx.push(Action::Job { token, client, view, job });
    }

    /// The session of the next job.
    fn repairer(&mut self, ctx: &mut Ctx<'_>) -> Option<ClientId> {
        if self.repair.current.is_none() {
            let mut writes = Vec::new();
            let client = self.sessions.new_id(&mut writes)?;
            writes.push(Write::Put(Record::Repairer(client)));
            ctx.persist(writes);
            self.repair.current = Some(client);
        }
        self.repair.current
    }

    pub(super) fn job_done(
        &mut self,
        ctx: &mut Ctx<'_>,
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
                let text = format!("a repair stopped, and is tried again: {error}");
                ctx.warn(text);
                if let Some(node) = error.node {
                    self.probe(ctx, node);
                }
            }
        }
    }

    fn job_succeeded(&mut self, ctx: &mut Ctx<'_>, by: u64, report: JobReport) {
        match report {
            JobReport::Scrubbed { subtable, first, looked } => {
                self.has_looked(ctx, (by, subtable, first), looked);
            }
            JobReport::Cleared { slots_changed } => {
                if self.view().is_some_and(|view| view.number == by) {
                    if slots_changed > 0 {
                        let text = format!("{slots_changed} moved entries are cleared");
                        ctx.info(text);
                    }
                    // There may be room again where there was none.
                    self.growth.look_again();
                    self.advance(ctx);
                }
            }
            JobReport::Transformed { slots_changed, bytes_copied, damaged } => {
                self.sessions.add_damage(Damage { found: damaged, repaired: 0 });
                if damaged > 0 {
                    let text = format!(
                        "{damaged} objects are damaged where they were copied from; the copies are of \
                         other replicas"
                    );
                    ctx.warn(text);
                }
                if self.view().is_some_and(|view| view.number == by) {
                    let text = format!(
                        "replicas are equal: {slots_changed} slots changed, {bytes_copied} bytes \
                         copied"
                    );
                    ctx.info(text);
                    self.advance(ctx);
                }
            }
            JobReport::Recovered(recovered) => self.clients_recovered(ctx, recovered),
        }
    }

    fn clients_recovered(&mut self, ctx: &mut Ctx<'_>, all: Vec<Recovered>) {
        let Phase::Formed(view) = &self.phase else { return };
        let mut writes = Vec::new();
        let mut texts = Vec::new();
        for Recovered { recovery, owned, leftovers } in all {
            let client = recovery.client;
            let writes_before = writes.len();
            self.sessions.recovered(client, &owned, &leftovers, view, &mut writes);
            if writes.len() == writes_before {
                continue;
            }
            self.fences.forget_client(client);
            let text = format!(
                "{client} is recovered: {} blocks, {} writes completed, {} withdrawn",
                recovery.blocks, recovery.committed, recovery.aborted
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
            ctx.push(Action::Log(level, text));
        }
    }
}
