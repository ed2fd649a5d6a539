//! Memory nodes that join a formed cluster become members at once.
//!
//! The node is bound to the cluster ([`NodeRequest::Format`], which it refuses if it serves another one), and tells its
//! identity once more. Then the next view has it, with nothing on it. This needs no change in stages: the node is used
//! only after a later change places something there, and that change waits until all sessions know a view with the
//! node. From then on new regions and siblings may go there, and replicas move there until it has its share
//! (`rebalance`).
//!
//! Nothing of this is stored before the view; a master that starts anew asks again.

use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;

use super::MasterState;
use super::context::{CallPurpose, EventContext};
use super::reservation::PAUSE_MS;

/// The longest wait for an answer.
const PATIENCE_MS: u64 = 2_000;

/// The node that is being admitted, and those that cannot be.
#[derive(Debug, Default)]
pub(super) struct MemberAdmission {
    under_way: Option<AdmissionCandidate>,
    /// Nodes that have refused.
    unfit: BTreeSet<MnId>,
    not_before_ms: u64,
}

#[derive(Debug)]
struct AdmissionCandidate {
    node: MnId,
    identity: u64,
    token: Option<u64>,
    until_ms: u64,
    /// It has answered: it becomes a member with the next stable view, however long that takes.
    is_ready: bool,
}

impl MemberAdmission {
    /// Returns whether a node is being admitted.
    pub fn is_for(&self, node: MnId) -> bool {
        self.under_way.as_ref().is_some_and(|candidate| candidate.node == node)
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: MnId) {
        self.under_way.take_if(|candidate| candidate.node == node);
        self.unfit.remove(&node);
    }
}

impl MasterState {
    /// Begins to make a member of a waiting node, if there is one. Returns whether that is under way.
    pub(super) fn admit(&mut self, ctx: &mut EventContext<'_>) -> bool {
        if let Some(candidate) = &self.admitting.under_way {
            let is_there = self.roster.identity_of(candidate.node);
            let goes_on = candidate.is_ready || candidate.until_ms > ctx.now_ms;
            if goes_on && is_there == Some(candidate.identity) {
                return true;
            }
            self.admitting.under_way = None;
        }
        let may_begin = self.admitting.not_before_ms <= ctx.now_ms && self.may_change_members();
        let Some(view) = self.view().filter(|_| may_begin) else {
            return false;
        };
        let waits =
            |node: &MnId| view.member(*node).is_none() && !self.admitting.unfit.contains(node);
        let Some(node) = self.roster.present().find(waits) else { return false };
        let Some(identity) = self.roster.identity_of(node) else { return false };
        let request = NodeRequest::Format { cluster: view.cluster, attempt: self.last_attempt };
        let token = ctx.call(&self.roster, node, request, CallPurpose::Admit);
        let until_ms = ctx.now_ms + PATIENCE_MS;
        let candidate = AdmissionCandidate { node, identity, token, until_ms, is_ready: false };
        self.admitting.under_way = Some(candidate);
        true
    }

    /// Returns whether the members may change: one change after the other, and all members show its number before the
    /// next.
    fn may_change_members(&self) -> bool {
        self.standing.is_settled() && !self.has_bars()
    }

    pub(super) fn admit_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let candidate = &mut self.admitting.under_way;
        let Some(AdmissionCandidate { node, identity, .. }) =
            candidate.take_if(|candidate| candidate.token == Some(token))
        else {
            return;
        };
        let problem = match result {
            Ok(NodeReply::Done) => {
                // If this answer has the expected identity, the same process has given the answer before.
                let token = ctx.call(&self.roster, node, NodeRequest::Describe, CallPurpose::Admit);
                let until_ms = ctx.now_ms + PATIENCE_MS;
                let candidate =
                    AdmissionCandidate { node, identity, token, until_ms, is_ready: false };
                self.admitting.under_way = Some(candidate);
                return;
            }
            Ok(NodeReply::Description(found)) if found.identity == identity => {
                let until_ms = ctx.now_ms + PATIENCE_MS;
                let candidate =
                    AdmissionCandidate { node, identity, token: None, until_ms, is_ready: true };
                self.admitting.under_way = Some(candidate);
                return;
            }
            Ok(NodeReply::Refused(refusal)) => {
                self.admitting.unfit.insert(node);
                refusal.to_string()
            }
            Ok(other) => format!("it answered by {other:?}"),
            Err(cause) => cause,
        };
        self.admitting.not_before_ms = ctx.now_ms + PAUSE_MS;
        let text = format!("{node} does not become a member: {problem}");
        ctx.warn(Topic::Member, text);
    }

    /// Makes a node that has answered a member, in a stable view. Returns whether there was one.
    pub(super) fn take_member_in(&mut self, ctx: &mut EventContext<'_>) -> bool {
        if !self.may_change_members() {
            return false;
        }
        let ready = self.admitting.under_way.take_if(|candidate| candidate.is_ready);
        let Some(AdmissionCandidate { node, identity, .. }) = ready else { return false };
        let (Some(view), Some(member)) = (self.view(), self.roster.get(node)) else { return false };
        if member.identity != identity || view.member(node).is_some() {
            return false;
        }
        let next = view.with_member(member.clone());
        let text = format!("view {}: {node} is a member", next.number);
        let writes = vec![self.members_change(next.number)];
        self.growth.look_again();
        self.set_view(ctx, next, writes, (Topic::Member, text));
        true
    }
}
