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

use super::format::{Attempt, Outcome};
use super::{Action, Actions, Level, Master, Phase, Purpose, RETRY_MS};
use crate::plan::Plan;
use crate::record::{Record, Write};

impl Master {
    /// Does what is due: repeats calls, looks for absent nodes, starts to form the cluster.
    pub(super) fn proceed(&mut self, now_ms: u64, out: &mut Actions) {
        let Phase::Forming { attempt, try_at_ms, look_at_ms } = &mut self.phase else { return };
        // Nobody has asked for one.
        if self.cluster.is_none() {
            return;
        }
        let mut calls = Vec::new();
        if let Some(attempt) = attempt {
            let repeats = attempt.repeats(now_ms).into_iter();
            calls.extend(repeats.map(|(node, request)| (node, request, Purpose::Format)));
        }
        let start = attempt.is_none() && *try_at_ms <= now_ms;
        if *look_at_ms <= now_ms {
            *look_at_ms = now_ms + RETRY_MS;
            let absent = self.members.keys().filter(|node| !self.present.contains(node));
            calls.extend(absent.map(|node| (*node, NodeRequest::Describe, Purpose::Look)));
        }
        for (node, request, purpose) in calls {
            self.call(node, request, purpose, out);
        }
        if start && self.present.len() >= self.settings.memory_nodes as usize {
            self.start_attempt(out);
        }
    }

    fn start_attempt(&mut self, out: &mut Actions) {
        let chosen = self.present.iter().take(self.settings.memory_nodes as usize);
        let chosen: Vec<Member> = chosen.map(|node| self.members[node].clone()).collect();
        let plan = match Plan::new(&self.settings, chosen) {
            Ok(plan) => plan,
            // No pause helps; another node may.
            Err(error) => return self.hold(u64::MAX, error.to_string(), out),
        };
        let Some(cluster) = self.cluster else { return };
        self.last_attempt += 1;
        out.push(Action::Persist(vec![Write::Put(Record::Attempt(self.last_attempt))]));
        let text = format!("forming the cluster of {} memory nodes", plan.members().len());
        out.push(Action::Log(Level::Info, text));
        let begun = Attempt::new(plan, cluster, self.last_attempt);
        let calls = begun.first_calls();
        if let Phase::Forming { attempt, .. } = &mut self.phase {
            *attempt = Some(begun);
        }
        for (node, request) in calls {
            self.call(node, request, Purpose::Format, out);
        }
    }

    /// Ends the attempt, if one runs, until `try_at_ms` or another node joins.
    fn hold(&mut self, try_at_ms: u64, problem: String, out: &mut Actions) {
        self.report(problem, out);
        self.abandon_attempt(try_at_ms);
    }

    /// Says what the matter is, once.
    fn report(&mut self, problem: String, out: &mut Actions) {
        if self.problem.as_ref() != Some(&problem) {
            out.push(Action::Log(Level::Warn, format!("cannot form the cluster: {problem}")));
            self.problem = Some(problem);
        }
    }

    pub(super) fn format_answered(
        &mut self,
        now_ms: u64,
        node: MnId,
        result: Result<NodeReply, String>,
        out: &mut Actions,
    ) {
        let Phase::Forming { attempt: Some(attempt), .. } = &mut self.phase else { return };
        match attempt.answer(now_ms, node, result) {
            Outcome::Call(request) => {
                self.call(node, request, Purpose::Format, out);
            }
            Outcome::Wait => {}
            Outcome::Repeat(problem) => self.report(problem, out),
            Outcome::Abort(problem) => {
                // If it is another process now, its join or the next look will tell.
                self.present.remove(&node);
                self.hold(now_ms + RETRY_MS, problem, out);
            }
            Outcome::Formed(view) => self.formed(now_ms, *view, out),
        }
    }

    /// An absent node answered a look, or did not.
    pub(super) fn looked(&mut self, now_ms: u64, node: MnId, result: Result<NodeReply, String>) {
        if let (Some(member), Ok(NodeReply::Description(found))) = (self.members.get(&node), result)
            && member.identity == found.identity
        {
            self.arrived(now_ms, node);
        }
    }

    fn formed(&mut self, now_ms: u64, view: View, out: &mut Actions) {
        let text = format!(
            "the cluster is formed: {} memory nodes, {} regions, {} index subtables",
            view.members.len(),
            view.regions.len(),
            view.subtables.len()
        );
        // From this record on, nothing is ever released again.
        out.push(Action::Persist(vec![Write::Put(Record::View(view.clone()))]));
        out.push(Action::Log(Level::Info, text));
        self.problem = None;
        self.standing.restore_number(view.number);
        self.phase = Phase::Formed(view);
        self.history.view_since(now_ms);
    }
}
