//! The context in which the master handles one event: the time, the settings, and the decisions so far.
//!
//! Calls to memory nodes are recorded here. The token of a call leads from the answer to the purpose of the call;
//! answers to cancelled calls are ignored.

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
    /// The call asks whether the node still runs, while the cluster forms.
    Look,
    /// The call reserves memory for the first view.
    Format,
    /// Asks whether a member still runs, because another process could not reach it or a call to it failed.
    Probe,
    /// The call tells the member to fence these sessions.
    Fence(Vec<ClientId>),
    /// The call tells the member which sessions live, when this number of sessions had ended.
    Forget { ended: u64 },
    /// The call tells the member to show this view number, or a later one.
    Stand(u64),
    /// The call tells the member to remove bars.
    Unbar,
    /// The call reserves room for replicas.
    Grow,
    /// The call reserves room for siblings of subtables that are to be split.
    Split,
    /// The call reserves room for regions.
    AddRegions,
    /// The call binds a node to the cluster, so that the node becomes a member.
    Admit,
}

/// Calls to memory nodes that are under way.
#[derive(Debug, Default)]
pub(super) struct NodeCalls {
    by_token: BTreeMap<u64, (MnId, CallPurpose)>,
    next_token: u64,
}

impl NodeCalls {
    /// Returns the token of the next call. No earlier call had this token.
    pub fn next_token(&self) -> u64 {
        self.next_token
    }

    /// Removes the call that this answer belongs to, and returns its purpose; `None` if the call was cancelled or went
    /// to another node.
    pub fn answered(&mut self, node: MnId, token: u64) -> Option<CallPurpose> {
        let (called, purpose) = self.by_token.remove(&token)?;
        (called == node).then_some(purpose)
    }

    /// Cancels all calls to a node.
    pub fn cancel_node(&mut self, node: MnId) {
        self.by_token.retain(|_, (called, _)| *called != node);
    }

    /// Cancels all calls that have this purpose.
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

    /// Returns the actions for the host, in order.
    pub fn into_actions(self) -> Vec<MasterAction> {
        self.actions
    }

    /// Adds an action for the host, behind all earlier actions.
    pub fn act(&mut self, action: MasterAction) {
        self.actions.push(action);
    }

    /// Adds a decision, behind all earlier decisions.
    pub fn decide(&mut self, decision: Decision) {
        self.decisions.push(decision);
    }

    /// Decides that the host carries out an action.
    pub fn push(&mut self, action: MasterAction) {
        self.decide(Decision::Act(Box::new(action)));
    }

    /// Decides that this view comes into force.
    pub fn set_view(&mut self, next: NextView) {
        self.decide(Decision::SetView(Box::new(next)));
    }

    /// Decides that these writes go to the store, if there are any.
    pub fn persist(&mut self, writes: Vec<RecordWrite>) {
        if !writes.is_empty() {
            self.push(MasterAction::Persist(writes));
        }
    }

    /// Decides to tell the operator of an ordinary event.
    pub fn info(&mut self, topic: Topic, text: impl Into<String>) {
        self.push(MasterAction::Tell(Level::Info, Some(topic), text.into()));
    }

    /// Decides to tell the operator of an event that deserves attention.
    pub fn warn(&mut self, topic: Topic, text: impl Into<String>) {
        self.push(MasterAction::Tell(Level::Warn, Some(topic), text.into()));
    }

    /// Decides that a client's mistake is logged. It is no event, because a client can repeat the mistake without
    /// limit.
    pub fn complain(&mut self, text: impl Into<String>) {
        self.push(MasterAction::Tell(Level::Warn, None, text.into()));
    }

    /// Decides that a member, or a node that has joined but is no member yet, is called once. Returns the call's token,
    /// or `None` if there is no such node.
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
