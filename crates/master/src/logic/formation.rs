//! The way from the request for a cluster, and memory nodes that joined, to the first view.
//!
//! A master over an empty store only waits for the request ([`Form`](fusee_control::master::MasterRequest::Form)): it
//! may have been started over the wrong store, and the memory nodes that it would take in may belong to a cluster that
//! is alive. See `identity`.
//!
//! Once enough nodes are present, the first of them by name are planned for and asked for memory. Any failure ends the
//! attempt with a text for the operator, which sessions are told as well. Another attempt follows after a pause, or
//! when another node joins. No attempt is made before processes that belong to this cluster already have had the time
//! to report (`identity`).

use fusee_control::count_with_noun;
use fusee_control::events::Topic;
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::{Member, View};

use super::context::{CallPurpose, EventContext};
use super::formation_attempt::{FormationAttempt, FormationOutcome};
use super::{FormationState, MasterState, RETRY_MS};
use crate::plan::PlacementPlan;
use crate::record::{MasterRecord, RecordWrite};

/// The time for which a master listens before it forms a cluster: a few times the interval at which memory nodes ask a
/// master that does not answer.
const LISTENS_MS: u64 = 300;

/// The progress to the first view.
#[derive(Debug, Default)]
pub(super) struct FormationProgress {
    attempt: Option<FormationAttempt>,
    /// The time of the next attempt; `u64::MAX` if only another node can help.
    try_at_ms: u64,
    /// The time at which absent nodes are asked next.
    look_at_ms: u64,
}

impl FormationProgress {
    /// Schedules the next attempt: what was impossible may be possible then.
    pub fn try_at(&mut self, at_ms: u64) {
        self.try_at_ms = at_ms;
    }

    /// Returns whether only another node can help.
    pub fn needs_another_node(&self) -> bool {
        self.try_at_ms == u64::MAX
    }
}

impl MasterState {
    /// Does all that is due: repeats calls, looks for absent nodes, starts to form the cluster.
    pub(super) fn proceed(&mut self, ctx: &mut EventContext<'_>) {
        let FormationState::Forming(forming) = &mut self.phase else { return };
        // No cluster was asked for.
        if self.identity.cluster().is_none() {
            return;
        }
        let mut calls = Vec::new();
        if let Some(attempt) = &mut forming.attempt {
            let repeats = attempt.repeats(ctx.now_ms).into_iter();
            calls.extend(repeats.map(|(node, request)| (node, request, CallPurpose::Format)));
        }
        let has_listened = !self.identity.is_new() || self.presences.listened_ms() >= LISTENS_MS;
        let start = forming.attempt.is_none()
            && forming.try_at_ms <= ctx.now_ms
            && has_listened
            && !self.identity.exists();
        if forming.look_at_ms <= ctx.now_ms {
            forming.look_at_ms = ctx.now_ms + RETRY_MS;
            let nodes = self.roster.nodes().map(|member| member.node);
            let absent = nodes.filter(|node| !self.roster.is_present(*node));
            calls.extend(absent.map(|node| (node, NodeRequest::Describe, CallPurpose::Look)));
        }
        for (node, request, purpose) in calls {
            ctx.call(&self.roster, node, request, purpose);
        }
        if start && self.roster.present().len() >= ctx.settings.memory_nodes as usize {
            self.start_attempt(ctx);
        }
    }

    fn start_attempt(&mut self, ctx: &mut EventContext<'_>) {
        let chosen = self.roster.present().take(ctx.settings.memory_nodes as usize);
        let chosen: Vec<Member> =
            chosen.filter_map(|node| self.roster.get(node).cloned()).collect();
        let plan = match PlacementPlan::new(ctx.settings, chosen) {
            Ok(plan) => plan,
            // A pause does not help, but another node may.
            Err(error) => return self.hold(ctx, u64::MAX, error.to_string()),
        };
        let Some(cluster) = self.identity.cluster() else { return };
        self.last_attempt += 1;
        ctx.persist(vec![RecordWrite::Put(MasterRecord::Attempt(self.last_attempt))]);
        let text = format!(
            "forming the cluster of {}",
            count_with_noun(plan.members().len(), "memory node")
        );
        ctx.info(Topic::Cluster, text);
        // A new key for each attempt: no session hashes by a key before its view is stored.
        let hash_key = ctx.secret.derived((cluster.word(), self.last_attempt));
        let begun = FormationAttempt::new(plan, cluster, hash_key, self.last_attempt);
        let calls = begun.first_calls();
        if let FormationState::Forming(forming) = &mut self.phase {
            forming.attempt = Some(begun);
        }
        for (node, request) in calls {
            ctx.call(&self.roster, node, request, CallPurpose::Format);
        }
    }

    /// Ends the attempt, if one runs; the next one begins at `try_at_ms`, or when another node joins.
    fn hold(&mut self, ctx: &mut EventContext<'_>, try_at_ms: u64, problem: String) {
        self.report(ctx, problem);
        self.abandon_attempt(ctx, try_at_ms);
    }

    /// Gives up the forming of the cluster.
    pub(super) fn give_forming_up(&mut self, ctx: &mut EventContext<'_>, problem: String) {
        self.hold(ctx, u64::MAX, problem);
    }

    fn abandon_attempt(&mut self, ctx: &mut EventContext<'_>, try_again_ms: u64) {
        if let FormationState::Forming(forming) = &mut self.phase {
            forming.attempt = None;
            forming.try_at_ms = try_again_ms;
        }
        ctx.calls.cancel(&CallPurpose::Format);
    }

    /// Ends the attempt if the node takes part in it: the node has another identity or address now, and the calls were
    /// not for that.
    pub(super) fn abandon_attempt_of(&mut self, ctx: &mut EventContext<'_>, node: MnId) {
        if let FormationState::Forming(FormationProgress { attempt: Some(attempt), .. }) =
            &self.phase
            && attempt.includes(node)
        {
            self.abandon_attempt(ctx, ctx.now_ms);
        }
    }

    /// Reports a problem once.
    fn report(&mut self, ctx: &mut EventContext<'_>, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            ctx.warn(Topic::Cluster, format!("cannot form the cluster: {problem}"));
            self.problem = Some(problem);
        }
    }

    pub(super) fn format_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        let FormationState::Forming(FormationProgress { attempt: Some(attempt), .. }) =
            &mut self.phase
        else {
            return;
        };
        match attempt.answer(ctx.now_ms, node, result) {
            FormationOutcome::Call(request) => {
                ctx.call(&self.roster, node, request, CallPurpose::Format);
            }
            FormationOutcome::Wait => {}
            FormationOutcome::Repeat(problem) => self.report(ctx, problem),
            FormationOutcome::Abort(problem) => {
                // If another process has taken its place, a join or the next look shows that.
                self.roster.departed(node);
                self.hold(ctx, ctx.now_ms + RETRY_MS, problem);
            }
            FormationOutcome::Formed(view) => self.formed(ctx, *view),
        }
    }

    /// Handles an absent node's answer to a look, or its failure.
    pub(super) fn look_answered(
        &mut self,
        ctx: &EventContext<'_>,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        if let Ok(NodeReply::Description(found)) = result
            && self.roster.identity_of(node) == Some(found.identity)
        {
            self.arrived(ctx, node);
        }
    }

    fn formed(&mut self, ctx: &mut EventContext<'_>, view: View) {
        let text = format!(
            "the cluster is formed: {}, {}, {}",
            count_with_noun(view.members.len(), "memory node"),
            count_with_noun(view.regions.len(), "region"),
            count_with_noun(view.subtables.len(), "index subtable")
        );
        // From this record on, a failed attempt no longer releases memory: data may lie there.
        ctx.persist(vec![RecordWrite::Put(MasterRecord::View(view.clone()))]);
        ctx.info(Topic::Cluster, text);
        self.problem = None;
        self.standing.restore_number(view.number);
        self.phase = FormationState::Formed(view);
        self.history.view_since(ctx.now_ms);
        self.view_heard_ms = self.presences.listened_ms();
    }
}
