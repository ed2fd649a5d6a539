//! The context in which the master handles one event: the time, the settings, and the decisions so far.
//!
//! Calls to memory nodes are registered here: the call's token leads from an answer to the purpose of the call. A
//! cancelled call has no purpose any more.

use std::collections::BTreeMap;

use fusee_control::events::{Level, Topic};
use fusee_control::node::NodeRequest;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, MnId};

use super::MasterAction;
use super::decision::{Decision, NextView};
use super::roster::Roster;
use crate::record::RecordWrite;
use crate::settings::ClusterSettings;

/// The purpose of a call to a memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallPurpose {
    /// Find out whether it still runs, while the cluster forms.
    Look,
    /// Reserve memory for the first view.
    Format,
    /// Find out whether a member still runs that another process cannot reach.
    Probe,
    /// Fence these sessions.
    Fence(Vec<ClientId>),
    /// Forget the fences of ended sessions.
    Forget,
    /// Be at the view of this number.
    Stand(u64),
    /// Take bars back.
    Unbar,
    /// Reserve room for replicas.
    Grow,
    /// Reserve room for siblings of subtables.
    Split,
    /// Reserve room for regions.
    AddRegions,
    /// Become a member.
    Admit,
}

/// Calls to memory nodes that are under way.
#[derive(Debug, Default)]
pub(super) struct NodeCalls {
    by_token: BTreeMap<u64, (MnId, CallPurpose)>,
    next_token: u64,
}

impl NodeCalls {
    /// Returns the token of the next call; no earlier call had it.
    pub fn next_token(&self) -> u64 {
        self.next_token
    }

    /// Ends a call by its answer. Returns `None` for an answer to a cancelled call, or of a node that was not called.
    pub fn answered(&mut self, node: MnId, token: u64) -> Option<CallPurpose> {
        let (called, purpose) = self.by_token.remove(&token)?;
        (called == node).then_some(purpose)
    }

    /// Cancels all calls to a node.
    pub fn cancel_node(&mut self, node: MnId) {
        self.by_token.retain(|_, (called, _)| *called != node);
    }

    /// Cancels all calls for a purpose.
    pub fn cancel(&mut self, cancelled: &CallPurpose) {
        self.by_token.retain(|_, (_, purpose)| purpose != cancelled);
    }

    /// Cancels all calls. Their tokens are not used again.
    pub fn cancel_all(&mut self) {
        self.by_token.clear();
    }
}

/// The context of one event.
#[derive(Debug)]
pub(super) struct EventContext<'a> {
    /// The time of the event.
    pub now_ms: u64,
    pub settings: &'a ClusterSettings,
    /// The master's secret, from which the hash keys of new clusters are derived.
    pub secret: HashKey,
    pub calls: &'a mut NodeCalls,
    decisions: Vec<Decision>,
    actions: Vec<MasterAction>,
}

impl<'a> EventContext<'a> {
    pub fn new(
        now_ms: u64,
        settings: &'a ClusterSettings,
        secret: HashKey,
        calls: &'a mut NodeCalls,
    ) -> EventContext<'a> {
        EventContext { now_ms, settings, secret, calls, decisions: Vec::new(), actions: Vec::new() }
    }

    /// Removes and returns the decisions that are to be applied, in order.
    pub fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// Returns the actions of the host, in order.
    pub fn into_actions(self) -> Vec<MasterAction> {
        self.actions
    }

    /// Adds an action of the host, behind all earlier ones.
    pub fn act(&mut self, action: MasterAction) {
        self.actions.push(action);
    }

    /// Adds a decision.
    pub fn decide(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    /// Has the host do something.
    pub fn push(&mut self, action: MasterAction) {
        self.decide(Decision::Act(Box::new(action)));
    }

    /// Puts a view in force.
    pub fn set_view(&mut self, next: NextView) {
        self.decide(Decision::SetView(Box::new(next)));
    }

    /// Changes the store, unless there is nothing to change.
    pub fn persist(&mut self, writes: Vec<RecordWrite>) {
        if !writes.is_empty() {
            self.push(MasterAction::Persist(writes));
        }
    }

    /// Tells the operator of an ordinary event.
    pub fn info(&mut self, topic: Topic, text: impl Into<String>) {
        self.push(MasterAction::Tell(Level::Info, Some(topic), text.into()));
    }

    /// Tells the operator of an event that deserves attention.
    pub fn warn(&mut self, topic: Topic, text: impl Into<String>) {
        self.push(MasterAction::Tell(Level::Warn, Some(topic), text.into()));
    }

    /// Logs a client's mistake. It is no event, since a client may repeat it as often as it likes.
    pub fn complain(&mut self, text: impl Into<String>) {
        self.push(MasterAction::Tell(Level::Warn, None, text.into()));
    }

    /// Calls a member or candidate, once. Returns `None` if there is no such node.
    pub fn call(
        &mut self,
        roster: &Roster,
        node: MnId,
        request: NodeRequest,
        purpose: CallPurpose,
    ) -> Option<u64> {
        let control = roster.get(node)?.control.clone();
        let token = self.calls.next_token;
        self.calls.next_token += 1;
        self.calls.by_token.insert(token, (node, purpose));
        self.push(MasterAction::Call { node, control, token, request });
        Some(token)
    }
}
