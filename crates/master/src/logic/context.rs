//! What every step of the master gets: the time, the settings, and a place for what is to be done.
//!
//! One event has one context. What steps put into it is carried out in that order
//! ([`Action`](super::Action)). Calls to memory nodes are registered here: an answer finds its
//! purpose by the call's token, and calls that are cancelled find none.

use std::collections::BTreeMap;

use fusee_control::events::{Level, Topic};
use fusee_control::node::NodeRequest;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, MnId};

use super::Action;
use super::roster::Roster;
use crate::record::Write;
use crate::settings::Settings;

/// What a memory node is called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To learn whether it is still there, while the cluster forms.
    Look,
    /// To reserve what the first view needs.
    Format,
    /// To learn whether a member is there that somebody cannot reach.
    Probe,
    /// To fence these sessions.
    Fence(Vec<ClientId>),
    /// To forget whom it has fenced and who is over.
    Forget,
    /// To stand at the view of this number.
    Stand(u64),
    /// To take bars back.
    Unbar,
    /// To reserve room for replicas.
    Grow,
    /// To reserve room for siblings of subtables.
    Split,
    /// To reserve room for regions.
    AddRegions,
    /// To become a member.
    Admit,
}

/// Calls to memory nodes that are under way.
#[derive(Debug, Default)]
pub(super) struct Calls {
    by_token: BTreeMap<u64, (MnId, Purpose)>,
    next_token: u64,
}

impl Calls {
    /// The token of the next call; no earlier call had it.
    pub fn next_token(&self) -> u64 {
        self.next_token
    }

    /// Ends a call by its answer. `None` for answers to cancelled calls, and for answers of other nodes.
    pub fn answered(&mut self, node: MnId, token: u64) -> Option<Purpose> {
        let (called, purpose) = self.by_token.remove(&token)?;
        (called == node).then_some(purpose)
    }

    /// Cancels all calls to a node.
    pub fn cancel_node(&mut self, node: MnId) {
        self.by_token.retain(|_, (called, _)| *called != node);
    }

    /// Cancels all calls for a purpose.
    pub fn cancel(&mut self, cancelled: &Purpose) {
        self.by_token.retain(|_, (_, purpose)| purpose != cancelled);
    }

    /// Cancels all calls. Their tokens are not used again.
    pub fn cancel_all(&mut self) {
        self.by_token.clear();
    }
}

/// The context of one event.
#[derive(Debug)]
pub(super) struct Ctx<'a> {
    /// When it happens.
    pub now_ms: u64,
    pub settings: &'a Settings,
    /// Of this master: what clusters that it forms hash keys by is derived from it.
    pub secret: HashKey,
    pub calls: &'a mut Calls,
    actions: Vec<Action>,
}

impl<'a> Ctx<'a> {
    pub fn new(
        now_ms: u64,
        settings: &'a Settings,
        secret: HashKey,
        calls: &'a mut Calls,
    ) -> Ctx<'a> {
        Ctx { now_ms, settings, secret, calls, actions: Vec::new() }
    }

    /// All that is to be done, in order.
    pub fn into_actions(self) -> Vec<Action> {
        self.actions
    }

    /// Adds something to do.
    pub fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Changes the store, unless there is nothing to change.
    pub fn persist(&mut self, writes: Vec<Write>) {
        if !writes.is_empty() {
            self.push(Action::Persist(writes));
        }
    }

    /// Tells what is as it should be.
    pub fn info(&mut self, topic: Topic, text: impl Into<String>) {
        self.push(Action::Tell(Level::Info, Some(topic), text.into()));
    }

    /// Tells what is worth a look.
    pub fn warn(&mut self, topic: Topic, text: impl Into<String>) {
        self.push(Action::Tell(Level::Warn, Some(topic), text.into()));
    }

    /// Tells what a client gets wrong, as often as it pleases: in the log alone.
    pub fn complain(&mut self, text: impl Into<String>) {
        self.push(Action::Tell(Level::Warn, None, text.into()));
    }

    /// Calls a member or candidate, once. `None` if there is no such node.
    pub fn call(
        &mut self,
        roster: &Roster,
        node: MnId,
        request: NodeRequest,
        purpose: Purpose,
    ) -> Option<u64> {
        let control = roster.get(node)?.control.clone();
        let token = self.calls.next_token;
        self.calls.next_token += 1;
        self.calls.by_token.insert(token, (node, purpose));
        self.push(Action::Call { node, control, token, request });
        Some(token)
    }
}
