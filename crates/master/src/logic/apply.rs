//! The only place that carries decisions out.
//!
//! The parts of the logic, its *concerns*, make decisions ([`Decision`]). Here a decision changes the facts of the
//! cluster, calls other concerns that it affects, and becomes actions for the host: records for the store, replies,
//! calls, jobs and texts. Decisions are carried out in the order in which they were made; decisions that follow from
//! one are carried out before the next one.

use std::collections::VecDeque;

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use fusee_control::master::MasterReply;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;

use super::cluster_identity::expel;
use super::context::EventContext;
use super::decision::{Decision, Expiry, NextView};
use super::held_heartbeats::HeartbeatSender;
use super::{MasterAction, MasterState};
use crate::record::{CLUSTER_KEY, MasterRecord, RecordWrite, VIEW_KEY};

impl MasterState {
    /// Carries out all decisions made so far. The resulting actions for the host stay in the context.
    pub(super) fn apply(&mut self, ctx: &mut EventContext<'_>) {
        let mut left = VecDeque::from(ctx.take_decisions());
        while let Some(decision) = left.pop_front() {
            self.carry_out(ctx, decision);
            for following in ctx.take_decisions().into_iter().rev() {
                left.push_front(following);
            }
        }
    }

    fn carry_out(&mut self, ctx: &mut EventContext<'_>, decision: Decision) {
        match decision {
            Decision::Act(action) => ctx.act(*action),
            Decision::SetView(next) => self.set_view(ctx, *next),
            Decision::Lose { nodes, view } => self.lose(ctx, &nodes, *view),
            Decision::Leave { node, view } => self.leave(ctx, node, *view),
            Decision::Suspect { node, why } => self.suspect(ctx, node, &why),
            Decision::NodeSilent { node, why } => self.node_silent(ctx, node, why),
            Decision::Trust(node) => self.trust(node),
            Decision::Departed(node) => self.cluster.roster.departed(node),
            Decision::Arrived(node) => self.arrived(ctx, node),
            Decision::Probe(node) => self.detector.probe(ctx, &self.cluster, node),
            Decision::Bars { node, bars } => self.contact.bars(node, bars),
            Decision::Expire(sessions) => self.expire(ctx, &sessions),
            Decision::RetireRepairer(client) => self.retire(client),
            Decision::EndRepairer(client) => self.jobs.forget_retired(client),
            Decision::CannotSplit { subtable, slot } => {
                self.splits.cannot_split(ctx, &self.cluster, subtable, slot);
            }
            Decision::StartJob(job) => {
                self.jobs.start(ctx, &mut self.cluster, &mut self.epochs, job);
            }
            Decision::NoteFull { node, regions } => {
                self.cluster.full.insert((node, regions));
            }
            Decision::LookAgain => self.look_again(),
            Decision::MoveToBack(purpose) => self.rotation.move_to_back(purpose),
            Decision::Whole => self.history.whole(ctx.now_ms),
            Decision::AddDamage(damage) => self.cluster.sessions.add_damage(damage),
            Decision::SetProblem(problem) => self.cluster.problem = problem,
            Decision::BeginAttempt(number) => {
                self.cluster.last_attempt = number;
                ctx.persist(vec![RecordWrite::Put(MasterRecord::Attempt(number))]);
            }
            Decision::Formed(view) => self.formed(ctx, *view),
            Decision::GiveFormingUp(problem) => {
                self.formation.give_up(ctx, &self.cluster, problem);
            }
            Decision::Drain(node) => {
                let write = self.cluster.roster.drain(node);
                ctx.persist(vec![write]);
            }
            Decision::Keep(node) => {
                let write = self.cluster.roster.keep(node);
                ctx.persist(vec![write]);
            }
            Decision::DestroyCluster => self.destroy(ctx),
        }
    }

    /// Puts a view in force. The view is stored before any process learns of it.
    fn set_view(&mut self, ctx: &mut EventContext<'_>, next: NextView) {
        let NextView { view, is_shown, mut writes, topic, text } = next;
        view.check().expect("a view that follows from a good one is good");
        if is_shown {
            writes.push(self.views.require(view.number, self.cluster.members()));
        }
        writes.push(RecordWrite::Put(MasterRecord::View(view.clone())));
        ctx.persist(writes);
        ctx.info(topic, text);
        if let Some(old) = &self.cluster.view {
            self.history.view_changes(ctx.now_ms, old, &view);
        }
        self.detector.view_begins(ctx.now_ms, ctx.settings.lease);
        if let Some(old) = self.cluster.view.replace(view) {
            self.updates.replaced(old);
        }
    }

    fn formed(&mut self, ctx: &mut EventContext<'_>, view: View) {
        let text = format!(
            "the cluster is formed: {}, {}, {}",
            count_with_noun(view.members.len(), "memory node"),
            count_with_noun(view.regions.len(), "region"),
            count_with_noun(view.subtables.len(), "index subtable")
        );
        // From this record on, a failed attempt no longer releases memory, because the memory can hold data.
        ctx.persist(vec![RecordWrite::Put(MasterRecord::View(view.clone()))]);
        ctx.info(Topic::Cluster, text);
        self.cluster.problem = None;
        self.views.restore_number(view.number);
        self.cluster.view = Some(view);
        self.history.view_since(ctx.now_ms);
        self.detector.view_begins(ctx.now_ms, ctx.settings.lease);
    }

    fn lose(&mut self, ctx: &mut EventContext<'_>, lost: &[MnId], mut next: NextView) {
        for node in lost {
            self.detector.forget(*node);
            self.cluster.failed.forget(*node);
            self.cluster.roster.lose(*node, &mut next.writes);
        }
        self.bars.cancel();
        self.abandon_reservations();
        self.history.lost(ctx.now_ms, lost);
        self.set_view(ctx, next);
    }

    /// Forgets the reservations of room that are under way. Later answers have no effect.
    pub(super) fn abandon_reservations(&mut self) {
        self.replicas.abandon();
        self.splits.abandon();
        self.regions.abandon();
    }

    fn leave(&mut self, ctx: &mut EventContext<'_>, node: MnId, mut next: NextView) {
        self.cluster.roster.leave(node, &mut next.writes);
        self.detector.forget(node);
        self.cluster.failed.forget(node);
        self.set_view(ctx, next);
    }

    fn suspect(&mut self, ctx: &mut EventContext<'_>, node: MnId, why: &str) {
        if self.cluster.in_view(node) && self.cluster.failed.insert(node) {
            ctx.warn(Topic::Loss, format!("{node} is lost: {why}"));
        }
    }

    /// Records that a member runs, and no longer counts as failed.
    pub(super) fn trust(&mut self, node: MnId) {
        if self.cluster.failed.forget(node) {
            // In the status, the problem of the failed member has possibly replaced the problem that replicas are
            // missing.
            self.look_again();
        }
    }

    fn node_silent(&mut self, ctx: &mut EventContext<'_>, node: MnId, why: &str) {
        self.cluster.roster.departed(node);
        if self.cluster.view.is_some() && !self.cluster.in_view(node) {
            let mut writes = Vec::new();
            self.forget_candidate(ctx, node, &mut writes);
            ctx.persist(writes);
            let text = format!("{node} is forgotten, it was no member yet: {why}");
            ctx.warn(Topic::Member, text);
        } else {
            self.suspect(ctx, node, why);
        }
    }

    fn expire(&mut self, ctx: &mut EventContext<'_>, sessions: &[Expiry]) {
        let mut writes = Vec::new();
        for Expiry { client, .. } in sessions {
            if self.cluster.sessions.expire(*client, &mut writes) {
                self.fences.add(*client);
            }
        }
        ctx.persist(writes);
        for Expiry { client, why } in sessions {
            ctx.warn(Topic::Session, format!("{client} has expired: {why}"));
        }
    }

    /// Retires the session of failed jobs, possibly one of an earlier master, so that it is fenced.
    pub(super) fn retire(&mut self, repairer: ClientId) {
        if !removed(Mutant::EarlierRepairerGoesOn) {
            self.jobs.retire(repairer);
            self.fences.add(repairer);
        }
    }

    /// Makes the master look again for room for replicas, because some node possibly has room now.
    pub(super) fn look_again(&mut self) {
        self.cluster.full.clear();
        self.replicas.look_again();
    }

    fn destroy(&mut self, ctx: &mut EventContext<'_>) {
        let Some(cluster) = self.identity.cluster() else { return };
        let gone = [VIEW_KEY, CLUSTER_KEY].map(|key| RecordWrite::Remove(key.into()));
        let mut writes = Vec::from(gone);
        writes.push(RecordWrite::Put(MasterRecord::Destroyed(cluster)));
        ctx.persist(writes);
        ctx.push(MasterAction::Clear);
        ctx.warn(Topic::Cluster, format!("cluster {cluster} is destroyed, as somebody asked"));
        let waiting = self.held.take();
        let identity = self.identity.without_own();
        // Answers to calls and jobs of the old cluster can still arrive, so their tokens are not used again.
        let jobs = self.jobs.for_new_cluster();
        *self = MasterState { identity, jobs, ..MasterState::new(ctx.calls.next_token()) };
        ctx.calls.cancel_all();
        for (token, asker) in waiting {
            let reply = match asker {
                HeartbeatSender::Node { .. } => MasterReply::Expelled,
                HeartbeatSender::Sessions { clients, known, .. } => {
                    expel(clients, known, ctx.settings.lease)
                }
            };
            ctx.push(MasterAction::Reply { token, reply });
        }
    }
}
