//! The forming of a cluster: one attempt to reserve the memory of a plan.
//!
//! All memory nodes go through the same steps concurrently. A node forgets the reservations of an earlier attempt (no
//! client has seen a view yet, so no data is lost), reserves the extents of the plan one after the other, and tells its
//! identity once more. If the identity in this last answer is the planned one, the same process has given all answers.
//!
//! The attempt is kept in memory only, except for its number, by which memory nodes recognize late requests of an
//! earlier attempt. A master that restarts before the attempt ends starts a new one.

use std::collections::HashMap;

use fusee_control::node::{NodeRefusal, NodeReply, NodeRequest};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::View;

use crate::plan::PlacementPlan;

/// The pause before a call is repeated; it doubles with every failure in a row.
const FIRST_PAUSE_MS: u64 = 100;
/// The number of failures of a node in a row that ends the attempt, because other nodes can possibly form the cluster
/// without it.
const MAX_FAILURES: u32 = 5;

/// An attempt to form the cluster that is under way.
#[derive(Debug)]
pub(super) struct FormationAttempt {
    plan: PlacementPlan,
    cluster: ClusterId,
    hash_key: HashKey,
    nodes: HashMap<MnId, NodeFormatProgress>,
}

#[derive(Debug)]
struct NodeFormatProgress {
    identity: u64,
    steps: Vec<NodeRequest>,
    /// The number of steps that the node has done.
    done: usize,
    offsets: Vec<u64>,
    failures: u32,
    /// The time at which to repeat the call to the node; `None` while a call is under way.
    repeat_at_ms: Option<u64>,
}

/// The consequence of a node's answer for the attempt to form the cluster.
#[derive(Debug)]
pub(super) enum FormationOutcome {
    /// Send this request to the node next.
    Call(NodeRequest),
    /// Wait: this node has done all its steps, but other nodes have not.
    Wait,
    /// Repeat the call later, because it failed; the text tells the operator why.
    Repeat(String),
    /// End the attempt, because it cannot succeed; the text tells the operator why.
    Abort(String),
    /// Form the cluster: all nodes have done all steps, and this is the first view.
    Formed(Box<View>),
}

impl FormationAttempt {
    pub(super) fn new(
        plan: PlacementPlan,
        cluster: ClusterId,
        hash_key: HashKey,
        attempt: u64,
    ) -> FormationAttempt {
        let progress = |identity, node| {
            let mut steps = vec![NodeRequest::Format { cluster, attempt }];
            steps.extend(plan.reservations(cluster, attempt, node));
            steps.push(NodeRequest::Describe);
            let offsets = Vec::new();
            NodeFormatProgress {
                identity,
                steps,
                done: 0,
                offsets,
                failures: 0,
                repeat_at_ms: None,
            }
        };
        let members = plan.members().iter();
        let nodes = members.map(|member| (member.node, progress(member.identity, member.node)));
        let nodes = nodes.collect();
        FormationAttempt { plan, cluster, hash_key, nodes }
    }

    /// Returns whether the node takes part in the attempt.
    pub(super) fn includes(&self, node: MnId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// Returns the first request to every node.
    pub(super) fn first_calls(&self) -> Vec<(MnId, NodeRequest)> {
        let members = self.plan.members().iter();
        members.map(|member| (member.node, self.nodes[&member.node].steps[0].clone())).collect()
    }

    /// Returns the calls whose time to be repeated has come.
    pub(super) fn repeats(&mut self, now_ms: u64) -> Vec<(MnId, NodeRequest)> {
        let mut calls = Vec::new();
        for (node, progress) in &mut self.nodes {
            if progress.repeat_at_ms.is_some_and(|at| at <= now_ms) {
                progress.repeat_at_ms = None;
                calls.push((*node, progress.steps[progress.done].clone()));
            }
        }
        calls.sort_by_key(|(node, _)| *node);
        calls
    }

    /// Handles a node's answer to the last request of the attempt that the node got.
    pub(super) fn answer(
        &mut self,
        now_ms: u64,
        node: MnId,
        result: Result<NodeReply, String>,
    ) -> FormationOutcome {
        let Some(progress) = self.nodes.get_mut(&node) else { return FormationOutcome::Wait };
        let failure = match (&progress.steps[progress.done], result) {
            (NodeRequest::Format { .. }, Ok(NodeReply::Done)) => None,
            (NodeRequest::Reserve { .. }, Ok(NodeReply::Reserved { offset })) => {
                progress.offsets.push(offset);
                None
            }
            (NodeRequest::Describe, Ok(NodeReply::Description(found))) => {
                if found.identity != progress.identity {
                    return FormationOutcome::Abort(format!("{node} was restarted meanwhile"));
                }
                None
            }
            (_, Ok(NodeReply::Refused(refusal @ NodeRefusal::OtherCluster { .. }))) => {
                Some(format!("{node}: {refusal}"))
            }
            (_, Ok(NodeReply::Refused(refusal))) => {
                return FormationOutcome::Abort(format!("{node} refused: {refusal}"));
            }
            (step, Ok(reply)) => Some(format!("{node} answered {step:?} by {reply:?}")),
            (_, Err(cause)) => Some(format!("{node} does not answer: {cause}")),
        };
        if let Some(failure) = failure {
            let pause = FIRST_PAUSE_MS << progress.failures;
            progress.failures += 1;
            if progress.failures == MAX_FAILURES {
                return FormationOutcome::Abort(failure);
            }
            progress.repeat_at_ms = Some(now_ms + pause);
            return FormationOutcome::Repeat(failure);
        }
        progress.failures = 0;
        progress.done += 1;
        match progress.steps.get(progress.done) {
            Some(next) => FormationOutcome::Call(next.clone()),
            None => self.finish(),
        }
    }

    fn finish(&self) -> FormationOutcome {
        if self.nodes.values().any(|progress| progress.done < progress.steps.len()) {
            return FormationOutcome::Wait;
        }
        let offsets = self.nodes.iter().map(|(node, progress)| (*node, progress.offsets.clone()));
        match self.plan.view(self.cluster, self.hash_key, &offsets.collect()) {
            Ok(view) => FormationOutcome::Formed(Box::new(view)),
            Err(what) => FormationOutcome::Abort(what),
        }
    }
}
