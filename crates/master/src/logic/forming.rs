//! How the master gets from a wish for a cluster, and memory nodes that joined, to the first view.
//!
//! A master over an empty store does nothing but wait for that wish
//! ([`Form`](fusee_control::master::MasterRequest::Form)): it may have been started over the wrong
//! store, and the memory nodes that it would take in may be those of a cluster that is alive. See
//! `identity`.
//!
//! Once enough nodes are present, the first of them (by name) are planned for and asked for
//! memory. Whatever goes wrong ends the attempt with a text for people, which is also what
//! sessions are told; another attempt follows, after a pause or when another node joins.

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::{Member, View};

use super::context::{Ctx, Purpose};
use super::format::{Attempt, Outcome};
use super::{Phase, RETRY_MS, State};
use crate::plan::Plan;
use crate::record::{Record, Write};

impl State {
    /// Does what is due: repeats calls, looks for absent nodes, starts to form the cluster.
    pub(super) fn proceed(&mut self, ctx: &mut Ctx<'_>) {
        let Phase::Forming { attempt, try_at_ms, look_at_ms } = &mut self.phase else { return };
        // Nobody has asked for one.
        if self.cluster.is_none() {
            return;
        }
        let mut calls = Vec::new();
        if let Some(attempt) = attempt {
            let repeats = attempt.repeats(ctx.now_ms).into_iter();
            calls.extend(repeats.map(|(node, request)| (node, request, Purpose::Format)));
        }
        let start = attempt.is_none() && *try_at_ms <= ctx.now_ms;
        if *look_at_ms <= ctx.now_ms {
            *look_at_ms = ctx.now_ms + RETRY_MS;
            let absent = self.members.keys().filter(|node| !self.present.contains(node));
            calls.extend(absent.map(|node| (*node, NodeRequest::Describe, Purpose::Look)));
        }
        for (node, request, purpose) in calls {
            ctx.call(&self.members, node, request, purpose);
        }
        if start && self.present.len() >= ctx.settings.memory_nodes as usize {
            self.start_attempt(ctx);
        }
    }

    fn start_attempt(&mut self, ctx: &mut Ctx<'_>) {
        let chosen = self.present.iter().take(ctx.settings.memory_nodes as usize);
        let chosen: Vec<Member> = chosen.map(|node| self.members[node].clone()).collect();
        let plan = match Plan::new(ctx.settings, chosen) {
            Ok(plan) => plan,
            // No pause helps; another node may.
            Err(error) => return self.hold(ctx, u64::MAX, error.to_string()),
        };
        let Some(cluster) = self.cluster else { return };
        self.last_attempt += 1;
        ctx.persist(vec![Write::Put(Record::Attempt(self.last_attempt))]);
        let text = format!("forming the cluster of {} memory nodes", plan.members().len());
        ctx.info(text);
        let begun = Attempt::new(plan, cluster, self.last_attempt);
        let calls = begun.first_calls();
        if let Phase::Forming { attempt, .. } = &mut self.phase {
            *attempt = Some(begun);
        }
        for (node, request) in calls {
            ctx.call(&self.members, node, request, Purpose::Format);
        }
    }

    /// Ends the attempt, if one runs, until `try_at_ms` or another node joins.
    fn hold(&mut self, ctx: &mut Ctx<'_>, try_at_ms: u64, problem: String) {
        self.report(ctx, problem);
        self.abandon_attempt(ctx, try_at_ms);
    }

    /// Says what the matter is, once.
    fn report(&mut self, ctx: &mut Ctx<'_>, problem: String) {
        if self.problem.as_ref() != Some(&problem) {
            ctx.warn(format!("cannot form the cluster: {problem}"));
            self.problem = Some(problem);
        }
    }

    pub(super) fn format_answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        let Phase::Forming { attempt: Some(attempt), .. } = &mut self.phase else { return };
        match attempt.answer(ctx.now_ms, node, result) {
            Outcome::Call(request) => {
                ctx.call(&self.members, node, request, Purpose::Format);
            }
            Outcome::Wait => {}
            Outcome::Repeat(problem) => self.report(ctx, problem),
            Outcome::Abort(problem) => {
                // If it is another process now, its join or the next look will tell.
                self.present.remove(&node);
                self.hold(ctx, ctx.now_ms + RETRY_MS, problem);
            }
            Outcome::Formed(view) => self.formed(ctx, *view),
        }
    }

    /// An absent node answered a look, or did not.
    pub(super) fn looked(&mut self, ctx: &Ctx<'_>, node: MnId, result: Result<NodeReply, String>) {
        if let (Some(member), Ok(NodeReply::Description(found))) = (self.members.get(&node), result)
            && member.identity == found.identity
        {
            self.arrived(ctx, node);
        }
    }

    fn formed(&mut self, ctx: &mut Ctx<'_>, view: View) {
        let text = format!(
            "the cluster is formed: {} memory nodes, {} regions, {} index subtables",
            view.members.len(),
            view.regions.len(),
            view.subtables.len()
        );
        // From this record on, nothing is ever released again.
        ctx.persist(vec![Write::Put(Record::View(view.clone()))]);
        ctx.info(text);
        self.problem = None;
        self.standing.restore_number(view.number);
        self.phase = Phase::Formed(view);
        self.history.view_since(ctx.now_ms);
    }
}
