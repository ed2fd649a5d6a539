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

use super::context::{CallPurpose, EventContext};
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::failure_detector::FailureDetector;
use crate::record::{FORMER_KEY, MasterRecord, RecordWrite};
use crate::settings::LeaseSettings;

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

    /// Prepares for the next view, of this number, which has other members than those `before`, or has to be shown by
    /// all of them. Returns the write to be made durable together with that view.
    pub fn require(&mut self, number: u64, before: Vec<MnId>) -> RecordWrite {
        self.former.push(before);
        self.number = number;
        RecordWrite::Put(MasterRecord::Former(self.former.clone()))
    }

    /// Tells members the number of the view that they have to be at.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) {
        let Some(view) = &cluster.view else { return };
        let members = cluster.members();
        self.follow(&members);
        if self.is_shown_by_all() {
            let writes = if cluster.loses_a_member() { Vec::new() } else { self.settle() };
            ctx.persist(writes);
            return;
        }
        let number = self.number;
        for node in members {
            let Some(shown) = self.members.get_mut(&node) else { continue };
            if shown.number < number && shown.again_ms <= ctx.now_ms {
                // In case no answer comes at all.
                shown.again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let request = NodeRequest::StandAt { cluster: view.cluster, view: number };
                ctx.call(&cluster.roster, node, request, CallPurpose::Stand(number));
            }
        }
    }

    /// Handles a member's answer to that, or its failure.
    pub fn stand_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        number: u64,
        result: Result<NodeReply, String>,
    ) {
        let Some(shown) = self.members.get_mut(&node) else { return };
        if let Ok(NodeReply::Bars(bars)) = result {
            shown.number = shown.number.max(number);
            shown.again_ms = ctx.now_ms;
            ctx.decide(Decision::Bars { node, bars });
        } else {
            shown.again_ms = ctx.now_ms + PAUSE_MS;
            ctx.decide(Decision::Probe(node));
        }
    }

    /// Returns whether all members show the number, except those that are gone and that the view cannot do without.
    /// This is enough for a change that loses no member: a session that, by an earlier view, has made backup reads in
    /// place of members that these bar, follows the change by now, or is fenced.
    fn is_shown_by_all_there(&self, cluster: &ClusterFacts) -> bool {
        self.is_shown_by_all_but(|node| cluster.failed.has(node))
    }

    /// Returns whether all members have reported their bars at the number of the frozen change.
    pub fn tell_all_bars(&self, cluster: &ClusterFacts) -> bool {
        if cluster.loses_a_member() {
            self.is_shown_by_all()
        } else {
            self.is_shown_by_all_there(cluster)
        }
    }

    /// Returns whether no session reads by an earlier view at a member that the cluster goes on without. `settles_bars`
    /// tells whether the frozen change waits for the bars of all members.
    pub fn may_take_effect(
        &self,
        cluster: &ClusterFacts,
        detector: &FailureDetector,
        lease: LeaseSettings,
        settles_bars: bool,
    ) -> bool {
        if !cluster.loses_a_member() {
            return !settles_bars || self.is_shown_by_all_there(cluster);
        }
        self.is_shown_by_all()
            && (self.are_half() || detector.view_lease_is_over(lease))
            && detector.expired_leases_are_over(cluster, lease)
    }
}
