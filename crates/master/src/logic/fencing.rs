//! Shutting out: sessions that are given up, and the master's own repair sessions that are not to
//! go on.
//!
//! Every member of the view is told, again and again until it acknowledges. Only then does a
//! session count as gone: until then a CAS of it may arrive. What was acknowledged is kept in
//! memory only; a master that restarts asks again, which changes nothing.

use std::collections::BTreeMap;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, MnId};

use super::{Action, Actions, Master, Purpose};
use crate::record::{Write, repairer_key};

/// How long to wait after a failure.
const PAUSE_MS: u64 = 100;
/// How long to wait for an answer, should none come at all.
const PATIENCE_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fence {
    /// To be asked again at this time, unless an answer comes.
    Again(u64),
    Done,
}

/// Who is shut out where.
#[derive(Debug, Default)]
pub(super) struct Fences {
    fences: BTreeMap<(ClientId, MnId), Fence>,
}

impl Fences {
    fn is_done(&self, client: ClientId, node: MnId) -> bool {
        self.fences.get(&(client, node)) == Some(&Fence::Done)
    }

    /// Forgets what was about a client.
    pub fn forget_client(&mut self, client: ClientId) {
        self.fences.retain(|(fenced, _), _| *fenced != client);
    }

    /// Forgets what was about a node.
    pub fn forget_node(&mut self, node: MnId) {
        self.fences.retain(|(_, at), _| *at != node);
    }
}

impl Master {
    /// Whether no verb of a client executes at any member any more.
    pub(super) fn is_fenced(&self, client: ClientId) -> bool {
        if removed(Mutant::RecoveryBeforeTheFence) {
            return true;
        }
        let members = self.view().into_iter().flat_map(|view| &view.members);
        members.into_iter().all(|member| self.fences.is_done(client, member.node))
    }

    /// Tells members whom to shut out.
    pub(super) fn fence_all(&mut self, now_ms: u64, out: &mut Actions) {
        let clients: Vec<ClientId> =
            self.sessions.given_up().chain(self.repair.retired.iter().copied()).collect();
        let Some(view) = self.view() else { return };
        let members: Vec<MnId> = view.members.iter().map(|member| member.node).collect();
        for client in clients {
            for node in &members {
                let fence = self.fences.fences.get(&(client, *node)).copied();
                let due = match fence {
                    None => true,
                    Some(Fence::Again(at)) => at <= now_ms,
                    Some(Fence::Done) => false,
                };
                if due && !removed(Mutant::RecoveryBeforeTheFence) {
                    let again = Fence::Again(now_ms + PATIENCE_MS);
                    self.fences.fences.insert((client, *node), again);
                    let request = NodeRequest::Fence { client };
                    self.call(*node, request, Purpose::Fence(client), out);
                }
            }
        }
        self.forget_repairers(out);
    }

    /// Repair sessions leave nothing behind: once they are shut out they are over.
    fn forget_repairers(&mut self, out: &mut Actions) {
        let over: Vec<ClientId> =
            self.repair.retired.iter().copied().filter(|client| self.is_fenced(*client)).collect();
        if over.is_empty() {
            return;
        }
        let removed = over.iter().map(|client| Write::Remove(repairer_key(*client)));
        out.push(Action::Persist(removed.collect()));
        for client in over {
            self.repair.retired.remove(&client);
            self.fences.forget_client(client);
        }
    }

    pub(super) fn fence_answered(
        &mut self,
        now_ms: u64,
        node: MnId,
        client: ClientId,
        result: &Result<NodeReply, String>,
        out: &mut Actions,
    ) {
        // An entry that is gone belongs to a client that is over, or to a node that is lost.
        let Some(fence) = self.fences.fences.get_mut(&(client, node)) else { return };
        match result {
            Ok(NodeReply::Done) => *fence = Fence::Done,
            _ if *fence == Fence::Done => {}
            _ => {
                *fence = Fence::Again(now_ms + PAUSE_MS);
                self.probe(now_ms, node, out);
            }
        }
    }
}
