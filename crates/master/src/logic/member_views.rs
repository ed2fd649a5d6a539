//! The view number that each memory node shows, and the steps that wait for it.
//!
//! A session and a member can both be cut off from the master. If a view change removes that member, the session would
//! read old values there. So each member shows the number of its view in its pool's header, and a session without a
//! valid lease asks the members: what the session has read is valid only if more than half of the members of its view
//! show no later view. For this to be enough, a view that *loses a member* takes effect, that is, leaves *frozen*, only
//! when:
//!
//! * all its members show its number;
//! * they are at least half of the members of every earlier view by which a session is possibly still pinned, so that
//!   no more than half of those members can show an older number. If more than half are lost at once, the change waits
//!   a lease instead, and then goes on, because no better way exists (see `docs/operations/failures.md`);
//! * the leases of all sessions that have not acknowledged the view have ended by the sessions' own clocks: a session
//!   trusts its lease for less than the whole length, from the moment when it sent its heartbeat, and the master waits
//!   for the whole length from the arrival of that heartbeat.
//!
//! The master stores the members of earlier views until a change has left *frozen*, or until all members show a later
//! number: from then on a session that is pinned by such a view finds no majority. Members are added, and empty members
//! leave, one at a time. With two such steps between a session's view and a loss, the members that the session asks
//! could have too few members in common with those that show the new number.

use std::collections::BTreeMap;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;

use super::context::{CallPurpose, EventContext};
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::failure_detector::FailureDetector;
use crate::record::{FORMER_KEY, MasterRecord, RecordWrite};
use crate::settings::LeaseSettings;

/// The pause after a member failed to answer, in milliseconds.
const PAUSE_MS: u64 = 100;

/// The view number that all members have to show, and the view numbers that they show.
#[derive(Debug, Default)]
pub(super) struct MemberViews {
    /// The view number that all members have to show; a later number is right, too.
    number: u64,
    members: BTreeMap<MnId, MemberView>,
    /// For each earlier view by which a session is possibly still pinned, its members; stored.
    former: Vec<Vec<MnId>>,
}

/// The view number that a member has reported to show in its pool header.
#[derive(Debug, Default)]
struct MemberView {
    number: u64,
    /// The time at which the member is told again which number to show, unless it answers before.
    again_ms: u64,
}

impl MemberViews {
    /// Restores from the store the members of earlier views.
    pub fn restore_former(&mut self, former: Vec<Vec<MnId>>) {
        self.former = former;
    }

    /// Sets the number that all members have to show: that of the stored view, or of the first view. Which numbers the
    /// members show is unknown then.
    pub fn restore_number(&mut self, number: u64) {
        self.number = number;
    }

    /// Forgets the members of earlier views, because no session uses these views any more. Returns the writes, which
    /// have to be made durable together with what depends on this.
    pub fn settle(&mut self) -> Vec<RecordWrite> {
        let is_settled = std::mem::take(&mut self.former).is_empty();
        if is_settled { Vec::new() } else { vec![RecordWrite::Remove(FORMER_KEY.into())] }
    }

    /// Returns the members of each earlier view by which a session is possibly still pinned.
    pub fn former(&self) -> &[Vec<MnId>] {
        &self.former
    }

    /// Returns the view number that all members have to show.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether no session uses a view with other members than the present ones.
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
        self.all_show_except(|_| false)
    }

    fn all_show_except(&self, left_out: impl Fn(MnId) -> bool) -> bool {
        self.members.iter().all(|(node, shown)| shown.number >= self.number || left_out(*node))
    }

    /// Returns whether the present members are at least half of the members of each earlier view.
    fn are_half(&self) -> bool {
        let left =
            |set: &Vec<MnId>| set.iter().filter(|node| self.members.contains_key(node)).count();
        self.former.iter().all(|set| 2 * left(set) >= set.len())
    }

    /// Requires that all members of the next view show its number. `before` has the members of the present view.
    /// Returns the write that has to be made durable together with the next view.
    pub fn require(&mut self, number: u64, before: Vec<MnId>) -> RecordWrite {
        self.former.push(before);
        self.number = number;
        RecordWrite::Put(MasterRecord::Former(self.former.clone()))
    }

    /// Tells members the view number that they have to show.
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
                // If no answer comes at all, the request is repeated one lease from now.
                shown.again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let request = NodeRequest::StandAt { cluster: view.cluster, view: number };
                ctx.call(&cluster.roster, node, request, CallPurpose::Stand(number));
            }
        }
    }

    /// Handles a member's answer to the request to show a number, or the failure of that request.
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

    /// Returns whether all members show the number, except failed ones that the view cannot do without. This is enough
    /// for a change that loses no member: if a session has made backup reads in an earlier view, because these failed
    /// members bar another one, that session has acknowledged the change by now, or is fenced.
    fn is_shown_by_all_there(&self, cluster: &ClusterFacts) -> bool {
        self.all_show_except(|node| cluster.failed.has(node))
    }

    /// Returns whether all members show the number of the frozen change, and so have reported their bars.
    pub fn tell_all_bars(&self, cluster: &ClusterFacts) -> bool {
        if cluster.loses_a_member() {
            self.is_shown_by_all()
        } else {
            self.is_shown_by_all_there(cluster)
        }
    }

    /// Returns whether the frozen change is allowed to take effect: no session that uses an earlier view reads from a
    /// member that the change removes. `settles_bars` tells whether the change also waits for the bars of all members.
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
