//! The forming of a cluster: one attempt to reserve the memory of a plan.
//!
//! Every memory node goes through the same steps, all nodes side by side: it forgets what an
//! earlier attempt reserved (no client has seen a view yet, so nothing is lost), it reserves the
//! extents of the plan one after the other, and it tells its identity once more. A process that
//! took the place of the planned one in between is found out by that: whoever answers last has
//! answered everything.
//!
//! An attempt is kept in memory only, except for its number: memory nodes tell late requests of an
//! earlier attempt by it. A master that restarts in the middle starts a new one.

use std::collections::HashMap;

use fusee_control::node::{NodeRefusal, NodeReply, NodeRequest};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::View;

use crate::plan::Plan;

/// How long to wait before a call is repeated; doubled for every failure in a row.
const FIRST_PAUSE_MS: u64 = 100;
/// Failures in a row that end the attempt: others may form the cluster without this node.
const MAX_FAILURES: u32 = 5;

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Attempt {
    plan: Plan,
    cluster: ClusterId,
    hash_key: HashKey,
    nodes: HashMap<MnId, Progress>,
}

#[derive(Debug)]
struct Progress {
    identity: u64,
    steps: Vec<NodeRequest>,
    /// Steps done, and the offsets they gave.
    done: usize,
    offsets: Vec<u64>,
    failures: u32,
    /// When to repeat the call; `None` while one is under way.
    repeat_at_ms: Option<u64>,
}

/// What an answer leads to.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Ask the node this.
    Call(NodeRequest),
    /// This node is done, others are not.
    Wait,
    /// The call is repeated later; the text is for people.
    Repeat(String),
    /// This attempt cannot succeed; the text is for people.
    Abort(String),
    /// All nodes are done.
    Formed(Box<View>),
}

impl Attempt {
    pub(super) fn new(plan: Plan, cluster: ClusterId, hash_key: HashKey, attempt: u64) -> Attempt {
        let progress = |identity, node| {
            let mut steps = vec![NodeRequest::Format { cluster, attempt }];
            steps.extend(plan.reservations(cluster, attempt, node));
            steps.push(NodeRequest::Describe);
            let offsets = Vec::new();
            Progress { identity, steps, done: 0, offsets, failures: 0, repeat_at_ms: None }
        };
        let members = plan.members().iter();
        let nodes = members.map(|member| (member.node, progress(member.identity, member.node)));
        let nodes = nodes.collect();
        Attempt { plan, cluster, hash_key, nodes }
    }

    /// Whether the node takes part.
    pub(super) fn includes(&self, node: MnId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// The first request to every node.
    pub(super) fn first_calls(&self) -> Vec<(MnId, NodeRequest)> {
        let members = self.plan.members().iter();
        members.map(|member| (member.node, self.nodes[&member.node].steps[0].clone())).collect()
    }

    /// The calls that are to be repeated now.
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

    /// Takes a node's answer to the last request.
    pub(super) fn answer(
        &mut self,
        now_ms: u64,
        node: MnId,
        result: Result<NodeReply, String>,
    ) -> Outcome {
        let Some(progress) = self.nodes.get_mut(&node) else { return Outcome::Wait };
        let failure = match (&progress.steps[progress.done], result) {
            (NodeRequest::Format { .. }, Ok(NodeReply::Done)) => None,
            (NodeRequest::Reserve { .. }, Ok(NodeReply::Reserved { offset })) => {
                progress.offsets.push(offset);
                None
            }
            (NodeRequest::Describe, Ok(NodeReply::Description(found))) => {
                if found.identity != progress.identity {
                    return Outcome::Abort(format!("{node} was restarted meanwhile"));
                }
                None
            }
            (_, Ok(NodeReply::Refused(refusal @ NodeRefusal::OtherCluster { .. }))) => {
                Some(format!("{node}: {refusal}"))
            }
            (_, Ok(NodeReply::Refused(refusal))) => {
                return Outcome::Abort(format!("{node} refused: {refusal}"));
            }
            (step, Ok(reply)) => Some(format!("{node} answered {step:?} by {reply:?}")),
            (_, Err(cause)) => Some(format!("{node} does not answer: {cause}")),
        };
        if let Some(failure) = failure {
            let pause = FIRST_PAUSE_MS << progress.failures;
            progress.failures += 1;
            if progress.failures == MAX_FAILURES {
                return Outcome::Abort(failure);
            }
            progress.repeat_at_ms = Some(now_ms + pause);
            return Outcome::Repeat(failure);
        }
        progress.failures = 0;
        progress.done += 1;
        match progress.steps.get(progress.done) {
            Some(next) => Outcome::Call(next.clone()),
            None => self.finish(),
        }
    }

    fn finish(&self) -> Outcome {
        if self.nodes.values().any(|progress| progress.done < progress.steps.len()) {
            return Outcome::Wait;
        }
        let offsets = self.nodes.iter().map(|(node, progress)| (*node, progress.offsets.clone()));
        match self.plan.view(self.cluster, self.hash_key, &offsets.collect()) {
            Ok(view) => Outcome::Formed(Box::new(view)),
            Err(what) => Outcome::Abort(what),
        }
    }
}
