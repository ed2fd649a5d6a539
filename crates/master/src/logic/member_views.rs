//! The view that each memory node shows, and the steps that wait for it.
//!
//! A session and a member may both be cut off from the master. If the cluster goes on without that member, the session
//! would read old values there. So each member shows the number of its view in its pool's header, and a session without
//! a valid lease asks the members: what it has read counts only while more than half of the members of its view show no
//! later view. For this to be enough, a view that *loses a member* takes effect, that is, leaves *frozen*, only when:
//!
//! * all its members show its number;
//! * they are at least half of the members of every view that a session may still be pinned by, so that no more than
//!   half of these can show an older number. If more than half are lost at once, the change waits a lease instead, and
//!   then goes on: there is nothing better, see `docs/operations.md`;
//! * the leases of all sessions that do not follow have ended by the sessions' own clocks: these count less than a
//!   lease from the moment when they asked, and the master counts a whole lease since it heard them.
//!
//! The members of earlier views are recorded until a change has left *frozen*, or until all members show a later
//! number: then a session that is pinned by such a view finds no majority. One member is added, or leaves empty, at a
//! time: with two such steps between a session's view and a loss, the members that the session asks could have too
//! little in common with those that were told.

use std::collections::BTreeMap;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

use super::MasterState;
use super::context::{CallPurpose, EventContext};
use crate::record::{FORMER_KEY, MasterRecord, RecordWrite};

/// The pause after a failure.
const PAUSE_MS: u64 = 100;

/// The view numbers that members show and have to show.
#[derive(Debug, Default)]
pub(super) struct MemberViews {
    /// All members have to show this number or a later one.
    number: u64,
    members: BTreeMap<MnId, MemberView>,
    /// The members of earlier views that a session may still be pinned by; recorded.
    former: Vec<Vec<MnId>>,
}

/// The view number that a member shows, as far as it has reported.
#[derive(Debug, Default)]
struct MemberView {
    number: u64,
    /// The time at which it is told again, unless an answer comes.
    again_ms: u64,
}

impl MemberViews {
    /// Restores from the store.
    pub fn restore_former(&mut self, former: Vec<Vec<MnId>>) {
        self.former = former;
    }

    /// Sets the number of the view in force, which comes from the store or has just been formed. The numbers that its
    /// members show are not known.
    pub fn restore_number(&mut self, number: u64) {
        self.number = number;
    }

    /// Forgets the members of earlier views: no session reads by these any more. Returns the write, to be made durable
    /// together with what follows.
    pub fn settle(&mut self) -> Vec<RecordWrite> {
        let is_settled = std::mem::take(&mut self.former).is_empty();
        if is_settled { Vec::new() } else { vec![RecordWrite::Remove(FORMER_KEY.into())] }
    }

    /// Returns the members of earlier views that a session may still be pinned by.
    pub fn former(&self) -> &[Vec<MnId>] {
        &self.former
    }

    /// Returns the number that all members have to show.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether no session reads by a view with other members.
    pub fn is_settled(&self) -> bool {
        self.former.is_empty()
    }

    fn follow(&mut self, members: &[MnId]) {
        self.members.retain(|node, _| members.contains(node));
        for node in members {
            self.members.entry(*node).or_default();
        }
    }

    pub fn is_shown_by_all(&self) -> bool {
        self.is_shown_by_all_but(|_| false)
    }

    fn is_shown_by_all_but(&self, left_out: impl Fn(MnId) -> bool) -> bool {
        self.members.iter().all(|(node, shown)| shown.number >= self.number || left_out(*node))
    }

    /// Returns whether the members are at least half of those of each earlier view.
    fn are_half(&self) -> bool {
        let left =
            |set: &Vec<MnId>| set.iter().filter(|node| self.members.contains_key(node)).count();
        self.former.iter().all(|set| 2 * left(set) >= set.len())
    }
}

impl MasterState {
    /// Prepares for the next view, of this number, which has other members than the one in force. Returns the write to
    /// be made durable together with that view.
    pub(super) fn members_change(&mut self, number: u64) -> RecordWrite {
        let names = |view: &View| view.members.iter().map(|member| member.node).collect();
        let before: Option<Vec<MnId>> = self.view().map(names);
        self.standing.former.extend(before);
        self.standing.number = number;
        RecordWrite::Put(MasterRecord::Former(self.standing.former.clone()))
    }

    /// Tells members the number of the view that they have to be at.
    pub(super) fn stand_all(&mut self, ctx: &mut EventContext<'_>) {
        let Some(view) = self.view() else { return };
        let members: Vec<MnId> = view.members.iter().map(|member| member.node).collect();
        let cluster = view.cluster;
        let loses = self.loses_a_member();
        self.standing.follow(&members);
        if self.standing.is_shown_by_all() {
            let writes = if loses { Vec::new() } else { self.standing.settle() };
            ctx.persist(writes);
            return;
        }
        let number = self.standing.number;
        for node in members {
            let Some(shown) = self.standing.members.get_mut(&node) else { continue };
            if shown.number < number && shown.again_ms <= ctx.now_ms {
                // In case no answer comes at all.
                shown.again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let request = NodeRequest::StandAt { cluster, view: number };
                ctx.call(&self.roster, node, request, CallPurpose::Stand(number));
            }
        }
    }

    /// Handles a member's answer to that, or its failure.
    pub(super) fn stand_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        number: u64,
        result: Result<NodeReply, String>,
    ) {
        let Some(shown) = self.standing.members.get_mut(&node) else { return };
        if let Ok(NodeReply::Bars(bars)) = result {
            shown.number = shown.number.max(number);
            shown.again_ms = ctx.now_ms;
            self.contact.bars(node, bars);
        } else {
            shown.again_ms = ctx.now_ms + PAUSE_MS;
            self.probe(ctx, node);
        }
    }

    /// Returns whether the change under way has lost a member, and has not taken effect.
    pub(super) fn loses_a_member(&self) -> bool {
        let change = self.view().and_then(|view| view.change.as_ref());
        change.is_some_and(|change| change.data_lost && change.stage == ChangeStage::Frozen)
    }

    /// Returns whether all members show the number, except those that are gone and that the view cannot do without.
    /// This is enough for a change that loses no member: a session that, by an earlier view, has made backup reads in
    /// place of members that these bar, follows the change by now, or is fenced.
    pub(super) fn is_shown_by_all_there(&self) -> bool {
        self.standing.is_shown_by_all_but(|node| self.losing.has(node))
    }

    /// Returns whether no session reads by an earlier view at a member that the cluster goes on without.
    pub(super) fn may_take_effect(&self, ctx: &EventContext<'_>) -> bool {
        if !self.loses_a_member() {
            return !self.settles_bars() || self.is_shown_by_all_there();
        }
        let waited = self.lease_is_over(ctx, self.view_heard_ms);
        self.standing.is_shown_by_all()
            && (self.standing.are_half() || waited)
            && self.expired_leases_are_over(ctx)
    }
}
