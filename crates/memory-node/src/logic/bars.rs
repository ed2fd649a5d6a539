//! The bars of this node, and its record of the last answer of a master.
//!
//! A session without a valid lease that gets no answer from a member asks the other members to *bar* the silent
//! member. When more than half of all members have barred it, no session without a valid lease relies on the barred
//! member any more, and no master grants a lease. So the session can read the words that all backups of the barred
//! member's slots agree on (`docs/decisions/0030-reads-without-a-master.md`).
//!
//! * A bar is in the pool's header before any process is told of the bar.
//! * A bar stays until the end of a view change that settles the words which sessions have possibly read.
//! * A node at view N sets no bar for a session that is pinned by an earlier view. So the answer to
//!   [`StandAt`](fusee_control::node::NodeRequest::StandAt) tells the master of every bar that is for an earlier
//!   view; bars that are set afterwards are for view N or later ones.
//!
//! A node that received an answer of a master less than a lease ago sets no bar. This is only a courtesy: it keeps a
//! session that alone is cut off from disturbing others. Nothing depends on it, or on this node's clock.

use fusee_control::master::MasterReplyId;
use fusee_control::node::{Bar, MemberBars, NodeRefusal, NodeReply};
use fusee_core::layout::{HeaderWord, MAX_BARRED_VIEW, MAX_BARS, bar_word};
use fusee_core::verbs::{ClientId, MnId};

use super::{NodeEffect, NodeLogic, NodeResult, bad};

/// The bars of a node, and the last answer of a master to the node.
#[derive(Debug, Default)]
pub(super) struct NodeBarState {
    bars: [Option<Bar>; MAX_BARS],
    changes: u64,
    now_ms: u64,
    /// The id of a master's last answer, and the time at which the answer came.
    heard: Option<(MasterReplyId, u64)>,
    lease_ms: u64,
    longest_lease_ms: u64,
}

impl NodeLogic {
    /// Sets the current time. The time must not decrease, and can begin at any value.
    pub fn pass(&mut self, now_ms: u64) {
        self.barring.now_ms = now_ms;
    }

    /// Records an answer of a master, with the master's lease in milliseconds.
    pub fn note_master_reply(&mut self, note: MasterReplyId, lease_ms: u64) {
        let barring = &mut self.barring;
        barring.heard = Some((note, barring.now_ms));
        barring.lease_ms = lease_ms;
        barring.longest_lease_ms = barring.longest_lease_ms.max(lease_ms);
    }

    /// Returns the node's report to the master: the master's last answer, and the present bars.
    pub fn heartbeat_report(&self) -> (Option<MasterReplyId>, MemberBars) {
        (self.barring.heard.map(|(note, _)| note), self.bars())
    }

    pub(super) fn bars(&self) -> MemberBars {
        let bars = self.barring.bars.iter().flatten().copied().collect();
        MemberBars { changes: self.barring.changes, bars }
    }

    fn hears_master(&self) -> bool {
        let NodeBarState { now_ms, heard, lease_ms, .. } = self.barring;
        heard.is_some_and(|(_, at_ms)| now_ms.saturating_sub(at_ms) <= lease_ms)
    }

    fn set_bar(&mut self, at: usize, bar: Option<Bar>, effects: &mut Vec<NodeEffect>) {
        self.barring.bars[at] = bar;
        self.barring.changes += 1;
        let value = bar.map_or(0, |bar| bar_word(bar.node, bar.view));
        effects.push(NodeEffect::WriteHeader { word: HeaderWord::Bar(at as u8), value });
    }

    pub(super) fn bar(
        &mut self,
        client: ClientId,
        node: MnId,
        view: u64,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        if self.over.has_ended(client) {
            return Err(NodeRefusal::Fenced { client });
        }
        if self.bound.is_none() || !(1..MAX_BARRED_VIEW).contains(&view) {
            return Err(bad("nobody is pinned by that view here"));
        }
        if view < self.stands_at {
            return Err(NodeRefusal::LaterView { view: self.stands_at });
        }
        let bars = &self.barring.bars;
        let is_for = |bar: &Option<Bar>| bar.is_some_and(|bar| bar.node == node);
        let known = bars.iter().position(is_for);
        match known.map(|at| (at, bars[at].map_or(0, |bar| bar.view))) {
            Some((_, known)) if known >= view => {}
            _ if self.hears_master() => return Err(NodeRefusal::HearsMaster),
            // A bar for a later view replaces the bar for an earlier view, because a change that settles the
            // earlier bar does not settle the later one.
            Some((at, _)) => self.set_bar(at, Some(Bar { node, view }), effects),
            None => {
                let free = bars.iter().position(Option::is_none);
                let at = free.ok_or_else(|| bad("too many are barred"))?;
                self.set_bar(at, Some(Bar { node, view }), effects);
            }
        }
        Ok(NodeReply::Barred { lease_ms: self.barring.longest_lease_ms })
    }

    pub(super) fn unbar(&mut self, settled: &[Bar], effects: &mut Vec<NodeEffect>) -> NodeReply {
        for at in 0..MAX_BARS {
            if self.barring.bars[at].is_some_and(|bar| settled.contains(&bar)) {
                self.set_bar(at, None, effects);
            }
        }
        NodeReply::Bars(self.bars())
    }

    pub(super) fn forget_bars(&mut self, effects: &mut Vec<NodeEffect>) {
        let all = self.bars().bars;
        self.unbar(&all, effects);
    }
}
