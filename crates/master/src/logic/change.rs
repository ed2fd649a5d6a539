//! The stages of a change of the view; jobs do the work between the stages.
//!
//! The next step follows from the stored view and the stored sessions:
//!
//! | view | waits for | then |
//! |---|---|---|
//! | any stage | – | a member is lost: *frozen*, without it |
//! | frozen | all open sessions pinned by this view, all expired ones fenced, no job running (1) | transforming |
//! | transforming | the job that makes the replicas equal | switched |
//! | switched | as for frozen, and no suspended write; the job that clears moved entries and places (2) | stable |
//! | stable | the recovery of expired sessions, some at a time | the next wanted change (3) |
//!
//! 1. If the change loses a member, also for the conditions in `member_views`; if any member is barred, for those in
//!    `bar_settlement`.
//! 2. Only after a split or a move.
//! 3. Splits, new regions and missing replicas take turns ([`change_rotation`](super::change_rotation)); then members
//!    are added; then replicas move. A master that is about to end begins none of these, nor a change that removes a
//!    lost member: the next master does.
//!
//! Jobs are in `job_scheduler`, losses in `member_loss`. If the last replica of a subtable or region is lost, the view
//! stays as it is, because no better view exists.

use fusee_control::events::Topic;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use fusee_core::view::change::{ChangeStage, ViewChange};

use super::MasterState;
use super::change_rotation::ChangePurpose;
use super::context::EventContext;
use super::decision::{Decision, NextView};
use crate::jobs::MasterJob;

/// The limit on the number of clients that one job recovers.
const TOGETHER: usize = 32;

impl MasterState {
    /// Takes all steps of the view change that are due, or begins the next view change.
    pub(super) fn change_view(&mut self, ctx: &mut EventContext<'_>) {
        while self.take_step(ctx) {
            self.apply(ctx);
        }
        self.apply(ctx);
    }

    /// Takes a step if one is due. Returns whether another step can follow at once.
    fn take_step(&mut self, ctx: &mut EventContext<'_>) -> bool {
        match self.cluster.stage() {
            Some(ChangeStage::Frozen)
                if self.jobs.rests()
                    && (self.fences.all_follow(&self.cluster)
                        || removed(Mutant::ChangeDoesNotWait))
                    && self.views.may_take_effect(
                        &self.cluster,
                        &self.detector,
                        ctx.settings.lease,
                        self.bars.settles_bars(),
                    ) =>
            {
                let MasterState { cluster, views, bars, contact, .. } = self;
                if !(views.tell_all_bars(cluster) && bars.widen_scope(ctx, cluster, contact)) {
                    self.advance(ctx);
                }
                true
            }
            Some(ChangeStage::Switched)
                if self.fences.all_follow(&self.cluster) || removed(Mutant::SwitchDoesNotWait) =>
            {
                if self.cluster.change().is_some_and(ViewChange::is_to_be_cleared) {
                    ctx.decide(Decision::StartJob(MasterJob::Clear));
                    return false;
                }
                self.advance(ctx);
                true
            }
            Some(ChangeStage::Transforming) => {
                // All sessions that expired before this stage are fenced, even if this master has not yet received the
                // acknowledgements.
                let dead = self.cluster.sessions.expired().collect();
                ctx.decide(Decision::StartJob(MasterJob::Transform { dead }));
                false
            }
            Some(ChangeStage::Frozen | ChangeStage::Switched) => false,
            None if self.cluster.finishes => {
                self.recover(ctx);
                false
            }
            None if self.bars.step(ctx, &self.cluster, &self.contact, &self.detector) => false,
            None => self.begin_change(ctx),
        }
    }

    /// Begins the next change in a stable view, or a job. Returns whether another step can follow at once.
    fn begin_change(&mut self, ctx: &mut EventContext<'_>) -> bool {
        self.regions.note_stable_view(self.cluster.view_number().unwrap_or(0));
        // Members change one at a time, and all members show the number of one such view before the next.
        let may_change_members = self.views.is_settled() && !self.contact.has_bars(&self.cluster);
        if may_change_members && self.admission.take_member_in(ctx, &self.cluster) {
            return true;
        }
        let begun = self.begin_next(ctx);
        if self.cluster.sessions.expired().next().is_some() {
            self.recover(ctx);
            return false;
        }
        let admits = self.admission.step(ctx, &self.cluster, may_change_members);
        // Replicas do not move while room for a split or a region is being reserved, however long that takes.
        let reserves_room = self.splits.has_begun() || self.regions.has_begun();
        if !admits && !begun && !reserves_room {
            self.replicas.even_out(ctx, &self.cluster, may_change_members);
            // The scrubber reads the view that results from these decisions.
            self.apply(ctx);
            self.scrub.step(ctx, &self.cluster);
        }
        false
    }

    /// Begins the next wanted change, in the order of [`change_rotation`](super::change_rotation). Returns whether all
    /// other changes wait for it.
    fn begin_next(&mut self, ctx: &mut EventContext<'_>) -> bool {
        let MasterState { cluster, splits, regions, replicas, rotation, .. } = self;
        let is_under_way = |purpose: &ChangePurpose| match purpose {
            ChangePurpose::Splits => splits.is_under_way(ctx.now_ms),
            ChangePurpose::Regions => regions.is_under_way(ctx.now_ms),
            ChangePurpose::Replicas => replicas.adds_missing(ctx.now_ms),
        };
        let first = rotation.line().into_iter().find(is_under_way);
        let mut line = first.into_iter().chain(rotation.line());
        line.any(|purpose| match purpose {
            ChangePurpose::Splits => splits.step(ctx, cluster),
            ChangePurpose::Regions => regions.step(ctx, cluster),
            ChangePurpose::Replicas => replicas.step(ctx, cluster),
        })
    }

    /// Starts a job that recovers up to [`TOGETHER`] sessions that have expired and are fenced.
    fn recover(&self, ctx: &mut EventContext<'_>) {
        if self.jobs.may_start(ctx.now_ms) {
            let MasterState { cluster, fences, .. } = self;
            let expired = cluster.sessions.expired();
            let fenced = expired.filter(|client| fences.is_fenced(cluster, *client));
            let clients: Vec<ClientId> = fenced.take(TOGETHER).collect();
            if !clients.is_empty() {
                ctx.decide(Decision::StartJob(MasterJob::Recover { clients }));
            }
        }
    }

    /// Takes the view change to its next stage.
    pub(super) fn advance(&mut self, ctx: &mut EventContext<'_>) {
        let MasterState { cluster, views, bars, contact, .. } = self;
        let mut writes = Vec::new();
        if cluster.stage() == Some(ChangeStage::Frozen) {
            writes.extend(bars.fix_scope(cluster, contact, views.number()));
            writes.append(&mut views.settle());
        }
        let Some(view) = cluster.view.as_ref().map(View::advanced) else { return };
        let stage = match view.change.as_ref().map(|change| change.stage) {
            Some(ChangeStage::Frozen) => "frozen",
            Some(ChangeStage::Transforming) => "transforming",
            Some(ChangeStage::Switched) => "switched",
            None => "stable",
        };
        let text = format!("view {}: {stage}", view.number);
        ctx.set_view(NextView { writes, ..NextView::new(view, Topic::View, text) });
    }
}
