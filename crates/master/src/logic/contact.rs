//! Contact, from which leases are counted, and the bars of memory nodes.
//!
//! A session with a valid lease trusts the primaries that it reads. But without a master, sessions read from the
//! backups of a silent primary, once more than half of all members *bar* that primary
//! (`docs/decisions/0030-reads-without-a-master.md`). So no lease is allowed to begin after that majority set its bars.
//! With every heartbeat, each member reports the latest answer of this master that it has received, and which members
//! it bars. *Contact* is the latest time such that more than half of the members have received an answer given at that
//! time or later, and barred no member when they reported this. A lease begins at contact, or when the heartbeat was
//! sent if that is earlier.
//!
//! *Why that is enough.* The master uses only answers that a member reported while it barred no member. So a member
//! that bars another one received the latest of these answers before it set the bar. Any two majorities have a member
//! in common. For each earlier view by which a session is possibly still pinned, more than half of its members are
//! required as well (`member_views`).
//!
//! * A master that has just begun has no contact. It answers the first heartbeat of each member at once.
//! * While bars are known, contact does not advance. When a change that loses members leaves *frozen*, all bars are
//!   known; from then on a majority of the remaining members is enough.
//! * A master that finds a change past *frozen* waits until all members have reported their bars.
//! * Memory nodes inside of this process end with it, so they are always in contact. So are clusters of one or two
//!   members: without the primary no majority is left, so there are no backup reads.

use std::collections::BTreeMap;

use fusee_control::master::{MasterReply, MasterReplyId};
use fusee_control::node::{Bar, MemberBars};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::MnId;
use fusee_core::view::change::ChangeStage;

use super::context::EventContext;
use super::facts::ClusterFacts;
use super::failure_detector::FailureDetector;

/// The members' reports to this master, and the time of contact (see the module's description).
#[derive(Debug, Default)]
pub(super) struct Contact {
    /// A random number that identifies this master in its answers.
    by: u64,
    members: BTreeMap<MnId, ContactReport>,
    latest_ms: Option<u64>,
}

/// The reports of one member to this master.
#[derive(Debug, Default)]
struct ContactReport {
    /// The time of the latest answer of this master that the member has received, from reports without bars.
    answered_ms: Option<u64>,
    bars: Option<MemberBars>,
}

impl Contact {
    /// Returns the state of a master that has received no report. `random` identifies it.
    pub fn new(random: u64) -> Contact {
        Contact { by: random, ..Contact::default() }
    }

    /// Returns the identification of an answer that a memory node gets at this time.
    fn note(&self, now_ms: u64) -> MasterReplyId {
        MasterReplyId { by: self.by, at_ms: now_ms }
    }

    /// Returns the answer to the heartbeat of a known node.
    pub fn noted_reply(&self, ctx: &EventContext<'_>) -> MasterReply {
        let note = self.note(ctx.now_ms);
        let lease_ms = ctx.settings.lease.lease_ms;
        MasterReply::Noted { note, lease_ms }
    }

    /// Returns whether a node has received an answer of this master. `heard` is the latest answer that the node
    /// reported.
    pub fn knows(&self, heard: Option<MasterReplyId>) -> bool {
        heard.is_some_and(|note| note.by == self.by)
    }

    /// Records a member's bars, unless the master knows later bars of this member.
    pub fn bars(&mut self, node: MnId, bars: MemberBars) {
        let said = self.members.entry(node).or_default();
        if said.bars.as_ref().is_none_or(|known| known.changes <= bars.changes) {
            said.bars = Some(bars);
        }
    }

    /// Records a member's heartbeat.
    pub fn alive(&mut self, node: MnId, heard: Option<MasterReplyId>, bars: &MemberBars) {
        self.bars(node, bars.clone());
        let own = heard.filter(|note| note.by == self.by && bars.bars.is_empty());
        let said = self.members.entry(node).or_default();
        said.answered_ms = said.answered_ms.max(own.map(|note| note.at_ms));
    }

    /// Returns whether a member has reported its bars to this master.
    pub fn is_heard(&self, node: MnId) -> bool {
        self.members.get(&node).is_some_and(|said| said.bars.is_some())
    }

    /// Returns the bars that a member has reported.
    pub fn barred_by(&self, node: MnId) -> &[Bar] {
        let bars = self.members.get(&node).and_then(|said| said.bars.as_ref());
        bars.map_or(&[], |bars| &bars.bars)
    }

    /// Returns all bars that members of the view have reported, each with the member that set it.
    pub fn all_bars(&self, cluster: &ClusterFacts) -> impl Iterator<Item = (MnId, Bar)> {
        let members = cluster.view.iter().flat_map(|view| &view.members);
        members.flat_map(|member| self.barred_by(member.node).iter().map(|bar| (member.node, *bar)))
    }

    /// Returns whether any member has reported a bar.
    pub fn has_bars(&self, cluster: &ClusterFacts) -> bool {
        self.all_bars(cluster).next().is_some()
    }

    /// Forgets the reports of members that are in none of these sets.
    fn follow(&mut self, sets: &[Vec<MnId>]) {
        self.members.retain(|node, _| sets.iter().any(|set| set.contains(node)));
    }

    /// Returns the latest time such that more than half of these members have received an answer that was given at that
    /// time or later.
    fn of(&self, members: &[MnId], answered: impl Fn(MnId) -> Option<u64>) -> Option<u64> {
        let mut all: Vec<Option<u64>> = members.iter().map(|node| answered(*node)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.get(members.len() / 2).copied().flatten()
    }

    /// Returns the time from the beginning of a session's lease until the session's heartbeat arrived at `asked_ms`, in
    /// milliseconds; `u64::MAX` without contact.
    pub fn behind_ms(&self, asked_ms: u64) -> u64 {
        if removed(Mutant::LeasesWithoutContact) {
            return 0;
        }
        // One millisecond is added because both times are rounded down to milliseconds.
        let since = |latest_ms| (asked_ms + 1).saturating_sub(latest_ms);
        self.latest_ms.map_or(u64::MAX, since)
    }

    /// Updates the time of contact. `former` has the members of each earlier view by which a session is possibly still
    /// pinned.
    pub fn step(
        &mut self,
        ctx: &EventContext<'_>,
        cluster: &ClusterFacts,
        former: &[Vec<MnId>],
        detector: &FailureDetector,
    ) {
        let Some(view) = &cluster.view else { return };
        let members = cluster.members();
        let passed = view.change.as_ref().is_some_and(|change| change.stage != ChangeStage::Frozen);
        let mut sets = vec![members.clone()];
        sets.extend(former.iter().cloned());
        self.follow(&sets);
        let is_local = |node: MnId| detector.is_local(node);
        let has_said = |node: &MnId| is_local(*node) || self.is_heard(*node);
        let is_barred = members.iter().any(|node| !self.barred_by(*node).is_empty());
        if is_barred || (passed && !members.iter().all(has_said)) {
            return;
        }
        let answered = |node: MnId| {
            if is_local(node) {
                Some(ctx.now_ms)
            } else {
                self.members.get(&node).and_then(|said| said.answered_ms)
            }
        };
        // With at most two members, the remaining ones are no majority without the barred member, so no member is ever
        // barred.
        let of = |set: &Vec<MnId>| match set.len() {
            ..=2 => Some(ctx.now_ms),
            _ => self.of(set, answered),
        };
        let latest = sets.iter().map(of).min().flatten();
        self.latest_ms = self.latest_ms.max(latest);
    }
}
