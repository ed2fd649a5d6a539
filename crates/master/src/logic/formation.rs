//! The forming of a cluster, from an operator's request until the first view.
//!
//! A master over an empty store only waits for the request ([`Form`](fusee_control::master::MasterRequest::Form)): the
//! master was possibly started on the wrong store, and the memory nodes that join possibly belong to a cluster that
//! exists. See `cluster_identity`.
//!
//! When enough nodes are present, the master makes a plan for the first of them by name, and asks them to reserve
//! memory. Any failure ends the attempt, with a text for the operator that sessions receive as well. Another attempt
//! follows after a pause, or when another node joins. Before the first attempt, the master waits so long that processes
//! of an existing cluster with this number have had the time to report (`cluster_identity`).

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::Member;

use super::RETRY_MS;
use super::cluster_identity::ClusterIdentity;
use super::context::{CallPurpose, EventContext};
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::failure_detector::FailureDetector;
use super::formation_attempt::{FormationAttempt, FormationOutcome};
use crate::plan::PlacementPlan;

/// The time for which a master listens before it forms a cluster: a few times the interval at which memory nodes ask a
/// master that does not answer.
const LISTENS_MS: u64 = 300;

/// The progress towards the first view.
#[derive(Debug, Default)]
pub(super) struct FormationProgress {
    attempt: Option<FormationAttempt>,
    /// The time of the next attempt to form the cluster; `u64::MAX` if only another node can help.
    try_at_ms: u64,
    /// The time at which absent nodes are asked next whether they still run.
    look_at_ms: u64,
}

impl FormationProgress {
    /// Schedules the next attempt to form the cluster. What was impossible before can be possible then.
    pub fn try_at(&mut self, at_ms: u64) {
        self.try_at_ms = at_ms;
    }

    /// Returns whether the cluster can only be formed when another node joins.
    pub fn needs_another_node(&self) -> bool {
        self.try_at_ms == u64::MAX
    }

    /// Repeats calls, asks absent nodes whether they still run, and starts an attempt, as far as these steps are due.
    pub fn step(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        identity: &ClusterIdentity,
        detector: &FailureDetector,
    ) {
        if cluster.view.is_some() {
            return;
        }
        // Unless an operator has requested a cluster, none is formed.
        let Some(own) = identity.cluster() else { return };
        let mut calls = Vec::new();
        if let Some(attempt) = &mut self.attempt {
            let repeats = attempt.repeats(ctx.now_ms).into_iter();
            calls.extend(repeats.map(|(node, request)| (node, request, CallPurpose::Format)));
        }
        let has_listened = !identity.is_new() || detector.listened_ms() >= LISTENS_MS;
        let start = self.attempt.is_none()
            && self.try_at_ms <= ctx.now_ms
            && has_listened
            && !identity.exists();
        if self.look_at_ms <= ctx.now_ms {
            self.look_at_ms = ctx.now_ms + RETRY_MS;
            let nodes = cluster.roster.nodes().map(|member| member.node);
            let absent = nodes.filter(|node| !cluster.roster.is_present(*node));
            calls.extend(absent.map(|node| (node, NodeRequest::Describe, CallPurpose::Look)));
        }
        for (node, request, purpose) in calls {
            ctx.call(&cluster.roster, node, request, purpose);
        }
        if start && cluster.roster.present().len() >= ctx.settings.memory_nodes as usize {
            self.start_attempt(ctx, cluster, own);
        }
    }

    fn start_attempt(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        own: ClusterId,
    ) {
        let chosen = cluster.roster.present().take(ctx.settings.memory_nodes as usize);
        let chosen: Vec<Member> =
            chosen.filter_map(|node| cluster.roster.get(node).cloned()).collect();
        let plan = match PlacementPlan::new(ctx.settings, chosen) {
            Ok(plan) => plan,
            // A later attempt with the same nodes would fail as well, so the master waits for another node.
            Err(error) => return self.hold(ctx, cluster, u64::MAX, error.to_string()),
        };
        let number = cluster.last_attempt + 1;
        ctx.decide(Decision::BeginAttempt(number));
        let text = format!(
            "forming the cluster of {}",
            count_with_noun(plan.members().len(), "memory node")
        );
        ctx.info(Topic::Cluster, text);
        // Each attempt has a different hash key. That is safe, because no session hashes by a key before its view is
        // stored.
        let hash_key = ctx.secret.derived((own.word(), number));
        let begun = FormationAttempt::new(plan, own, hash_key, number);
        for (node, request) in begun.first_calls() {
            ctx.call(&cluster.roster, node, request, CallPurpose::Format);
        }
        self.attempt = Some(begun);
    }

    /// Reports the problem, and ends the attempt if one runs. The next attempt begins at `try_at_ms`, or when another
    /// node joins.
    fn hold(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        try_at_ms: u64,
        problem: String,
    ) {
        report(ctx, cluster, problem);
        self.abandon_attempt(ctx, try_at_ms);
    }

    /// Stops forming the cluster until another node joins.
    pub fn give_up(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts, problem: String) {
        self.hold(ctx, cluster, u64::MAX, problem);
    }

    fn abandon_attempt(&mut self, ctx: &mut EventContext<'_>, try_again_ms: u64) {
        self.attempt = None;
        self.try_at_ms = try_again_ms;
        ctx.calls.cancel(&CallPurpose::Format);
    }

    /// Ends the attempt if the node takes part in it, because the node's identity or address has changed since the
    /// calls were made.
    pub fn abandon_attempt_of(&mut self, ctx: &mut EventContext<'_>, node: MnId) {
        if self.attempt.as_ref().is_some_and(|attempt| attempt.includes(node)) {
            self.abandon_attempt(ctx, ctx.now_ms);
        }
    }

    /// Handles a node's answer to a request of the attempt, or the failure of that request.
    pub fn format_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        let Some(attempt) = &mut self.attempt else { return };
        match attempt.answer(ctx.now_ms, node, result) {
            FormationOutcome::Call(request) => {
                ctx.call(&cluster.roster, node, request, CallPurpose::Format);
            }
            FormationOutcome::Wait => {}
            FormationOutcome::Repeat(problem) => report(ctx, cluster, problem),
            FormationOutcome::Abort(problem) => {
                // If another process has taken the node's place, that process joins, or the next call to the node shows
                // it.
                ctx.decide(Decision::Departed(node));
                self.hold(ctx, cluster, ctx.now_ms + RETRY_MS, problem);
            }
            FormationOutcome::Formed(view) => {
                *self = FormationProgress::default();
                ctx.decide(Decision::Formed(view));
            }
        }
    }
}

/// Handles the answer of an absent node that was asked whether it still runs, or the failure of that call.
pub(super) fn look_answered(
    ctx: &mut EventContext<'_>,
    cluster: &ClusterFacts,
    node: MnId,
    result: Result<NodeReply, String>,
) {
    if let Ok(NodeReply::Description(found)) = result
        && cluster.roster.identity_of(node) == Some(found.identity)
    {
        ctx.decide(Decision::Arrived(node));
    }
}

/// Reports a problem to operators, unless the last reported problem was the same.
fn report(ctx: &mut EventContext<'_>, cluster: &ClusterFacts, problem: String) {
    if cluster.problem.as_ref() != Some(&problem) {
        ctx.warn(Topic::Cluster, format!("cannot form the cluster: {problem}"));
        ctx.decide(Decision::SetProblem(Some(problem)));
    }
}
