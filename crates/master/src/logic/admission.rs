//! Memory nodes that join a formed cluster become members at once.
//!
//! The master binds the node to the cluster ([`NodeRequest::Format`], which the node refuses if it serves another
//! cluster), and asks for the node's identity once more. Then the next view lists the node, which holds nothing yet.
//! This needs no change in stages: the node is used only after a later change places something there, and that change
//! waits until all sessions know a view that lists the node. From then on, new regions and siblings can be placed on
//! the node, and replicas move there until it has its share (`rebalance`).
//!
//! Nothing of this is stored before the view; a master that restarts asks the node again.

use fusee_control::events::Topic;
use std::collections::BTreeSet;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;

use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, NextView};
use super::facts::ClusterFacts;
use super::reservation::PAUSE_MS;

/// The longest wait for an answer of the node that is being admitted, in milliseconds.
const PATIENCE_MS: u64 = 2_000;

/// The node that is being admitted, and the nodes that have refused.
#[derive(Debug, Default)]
pub(super) struct MemberAdmission {
    under_way: Option<AdmissionCandidate>,
    /// Nodes that have refused to become members.
    unfit: BTreeSet<MnId>,
    not_before_ms: u64,
}

#[derive(Debug)]
struct AdmissionCandidate {
    node: MnId,
    identity: u64,
    token: Option<u64>,
    until_ms: u64,
    /// Whether the node has given all answers. If so, it becomes a member with the next stable view, however long that
    /// takes.
    is_ready: bool,
}

impl MemberAdmission {
    /// Returns whether a node is being admitted.
    pub fn is_for(&self, node: MnId) -> bool {
        self.under_way.as_ref().is_some_and(|candidate| candidate.node == node)
    }

    /// Forgets that a node is being admitted, or has refused.
    pub fn forget(&mut self, node: MnId) {
        self.under_way.take_if(|candidate| candidate.node == node);
        self.unfit.remove(&node);
    }

    /// Begins to make a member of a waiting node, if there is such a node and members are allowed to change. Returns
    /// whether an admission is under way.
    pub fn step(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        may_change_members: bool,
    ) -> bool {
        if let Some(candidate) = &self.under_way {
            let is_there = cluster.roster.identity_of(candidate.node);
            let goes_on = candidate.is_ready || candidate.until_ms > ctx.now_ms;
            if goes_on && is_there == Some(candidate.identity) {
                return true;
            }
            self.under_way = None;
        }
        let may_begin = self.not_before_ms <= ctx.now_ms && may_change_members;
        let Some(view) = cluster.view.as_ref().filter(|_| may_begin) else {
            return false;
        };
        let waits = |node: &MnId| view.member(*node).is_none() && !self.unfit.contains(node);
        let Some(node) = cluster.roster.present().find(waits) else { return false };
        let Some(identity) = cluster.roster.identity_of(node) else { return false };
        let request = NodeRequest::Format { cluster: view.cluster, attempt: cluster.last_attempt };
        let token = ctx.call(&cluster.roster, node, request, CallPurpose::Admit);
        let until_ms = ctx.now_ms + PATIENCE_MS;
        let candidate = AdmissionCandidate { node, identity, token, until_ms, is_ready: false };
        self.under_way = Some(candidate);
        true
    }

    /// Handles the answer of the node that is being admitted, or the failure of the call to it.
    pub fn admit_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let candidate = &mut self.under_way;
        let Some(AdmissionCandidate { node, identity, .. }) =
            candidate.take_if(|candidate| candidate.token == Some(token))
        else {
            return;
        };
        let problem = match result {
            Ok(NodeReply::Done) => {
                // If the answer to `Describe` has the expected identity, the process that gives it also gave the answer
                // to `Format`.
                let token =
                    ctx.call(&cluster.roster, node, NodeRequest::Describe, CallPurpose::Admit);
                let until_ms = ctx.now_ms + PATIENCE_MS;
                let candidate =
                    AdmissionCandidate { node, identity, token, until_ms, is_ready: false };
                self.under_way = Some(candidate);
                return;
            }
            Ok(NodeReply::Description(found)) if found.identity == identity => {
                let until_ms = ctx.now_ms + PATIENCE_MS;
                let candidate =
                    AdmissionCandidate { node, identity, token: None, until_ms, is_ready: true };
                self.under_way = Some(candidate);
                return;
            }
            Ok(NodeReply::Refused(refusal)) => {
                self.unfit.insert(node);
                refusal.to_string()
            }
            Ok(other) => format!("it answered by {other:?}"),
            Err(cause) => cause,
        };
        self.not_before_ms = ctx.now_ms + PAUSE_MS;
        let text = format!("{node} does not become a member: {problem}");
        ctx.warn(Topic::Member, text);
    }

    /// Makes the admitted node a member, once it has given all answers. The view must be stable, and members allowed to
    /// change. Returns whether a node became a member.
    pub fn take_member_in(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) -> bool {
        let ready = self.under_way.take_if(|candidate| candidate.is_ready);
        let Some(AdmissionCandidate { node, identity, .. }) = ready else { return false };
        let (Some(view), Some(member)) = (&cluster.view, cluster.roster.get(node)) else {
            return false;
        };
        if member.identity != identity || view.member(node).is_some() {
            return false;
        }
        let next = view.with_member(member.clone());
        let text = format!("view {}: {node} is a member", next.number);
        ctx.decide(Decision::LookAgain);
        ctx.set_view(NextView { is_shown: true, ..NextView::new(next, Topic::Member, text) });
        true
    }
}
