//! The stages of a change of the view; jobs do the work in between.
//!
//! The next step follows from the stored view and the stored sessions:
//!
//! | view | waits for | then |
//! |---|---|---|
//! | any stage | – | a member is lost: *frozen*, without it |
//! | frozen | all open sessions pinned by it, all expired ones fenced, no job running (1) | transforming |
//! | transforming | the job that makes the replicas equal | switched |
//! | switched | as for frozen, and no suspended write; the job that clears moved entries and places (2) | stable |
//! | stable | the recovery of expired sessions, some at a time | the next wanted change (3) |
//!
//! 1. If the change loses a member, see `standing`; if any member is barred, see `bar_settlement`.
//! 2. After a split or a move.
//! 3. Full subtables are split, regions and missing replicas are added, in turns
//!    ([`change_rotation`](super::change_rotation)); members are added; then replicas move. If this master is told to
//!    end, it begins none of these, nor a change for a loss: the next master does.
//!
//! Jobs are in `repair`, losses in `member_loss`. If the last replica of anything is lost, the view stays as it is: no
//! better view exists.

use fusee_control::events::Topic;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::ClientId;
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

use super::context::EventContext;
use super::{FormationState, MasterState};
use crate::jobs::MasterJob;
use crate::record::{MasterRecord, RecordWrite};

/// The limit on clients that one job recovers.
const TOGETHER: usize = 32;

impl MasterState {
    /// Does all that is due in a formed cluster.
    pub(super) fn reconcile(&mut self, ctx: &mut EventContext<'_>, is_tick: bool) {
        if self.view().is_none() {
            return;
        }
        if is_tick {
            self.detect_failures(ctx);
        }
        self.remove_lost_members(ctx);
        self.fence_all(ctx);
        self.stand_all(ctx);
        while self.step(ctx) {}
    }

    /// Takes a step if one is due. Returns whether another may follow at once.
    fn step(&mut self, ctx: &mut EventContext<'_>) -> bool {
        match self.stage() {
            Some(ChangeStage::Frozen)
                if self.repair.rests()
                    && (self.all_follow() || removed(Mutant::ChangeDoesNotWait))
                    && self.may_take_effect(ctx) =>
            {
                if !(self.bars_are_told() && self.widen_scope(ctx)) {
                    self.advance(ctx);
                }
                true
            }
            Some(ChangeStage::Switched)
                if self.all_follow() || removed(Mutant::SwitchDoesNotWait) =>
            {
                if self.view().is_some_and(View::is_to_be_cleared) {
                    self.start_job(ctx, MasterJob::Clear);
                    return false;
                }
                self.advance(ctx);
                true
            }
            Some(ChangeStage::Transforming) => {
                // All sessions that had expired before this stage are fenced, even if this master has yet to hear of
                // it.
                let dead = self.sessions.expired().collect();
                self.start_job(ctx, MasterJob::Transform { dead });
                false
            }
            Some(ChangeStage::Frozen | ChangeStage::Switched) => false,
            None if self.finishes => {
                self.recover(ctx);
                false
            }
            None if self.handle_bars(ctx) => false,
            None => {
                self.adding.note_stable_view(self.view().map_or(0, |view| view.number));
                if self.take_member_in(ctx) {
                    return true;
                }
                let begun = self.begin_next(ctx);
                if self.sessions.expired().next().is_none() {
                    if !self.admit(ctx) && !begun && !self.reserves_room() {
                        self.even_out(ctx);
                        self.scrub(ctx);
                    }
                } else {
                    self.recover(ctx);
                }
                false
            }
        }
    }

    /// Recovers some of the sessions that have expired and are fenced.
    fn recover(&mut self, ctx: &mut EventContext<'_>) {
        if self.may_start(ctx) {
            let fenced = self.sessions.expired().filter(|client| self.is_fenced(*client));
            let clients: Vec<ClientId> = fenced.take(TOGETHER).collect();
            if !clients.is_empty() {
                self.start_job(ctx, MasterJob::Recover { clients });
            }
        }
    }

    /// Returns whether no session keeps the stage from ending.
    fn all_follow(&self) -> bool {
        self.laggards().next().is_none()
            && self.sessions.expired().all(|client| self.is_fenced(client))
    }

    pub(super) fn advance(&mut self, ctx: &mut EventContext<'_>) {
        let leaves_frozen = self.stage() == Some(ChangeStage::Frozen);
        let mut writes = Vec::new();
        if leaves_frozen {
            let is_told = self.settles_bars() || self.loses_a_member();
            writes.extend(self.fix_scope(self.standing.number(), is_told));
            writes.append(&mut self.standing.settle());
        }
        let Some(view) = self.view().map(View::advanced) else { return };
        let stage = match view.change.as_ref().map(|change| change.stage) {
            Some(ChangeStage::Frozen) => "frozen",
            Some(ChangeStage::Transforming) => "transforming",
            Some(ChangeStage::Switched) => "switched",
            None => "stable",
        };
        let text = format!("view {}: {stage}", view.number);
        self.set_view(ctx, view, writes, (Topic::View, text));
    }

    /// Returns the stage of the change that is under way.
    pub(super) fn stage(&self) -> Option<ChangeStage> {
        self.view().and_then(|view| view.change.as_ref()).map(|change| change.stage)
    }

    /// Puts a new view in force, and has it stored before that is told.
    pub(super) fn set_view(
        &mut self,
        ctx: &mut EventContext<'_>,
        view: View,
        mut writes: Vec<RecordWrite>,
        (topic, text): (Topic, String),
    ) {
        view.check().expect("a view that follows from a good one is good");
        writes.push(RecordWrite::Put(MasterRecord::View(view.clone())));
        ctx.persist(writes);
        ctx.info(topic, text);
        if let FormationState::Formed(old) = &self.phase {
            self.history.view_changes(ctx.now_ms, old, &view);
        }
        self.view_heard_ms = self.presences.listened_at(ctx.now_ms, ctx.settings.lease);
        if let FormationState::Formed(old) =
            std::mem::replace(&mut self.phase, FormationState::Formed(view))
        {
            self.told.replaced(old);
        }
    }
}
