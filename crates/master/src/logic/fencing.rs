//! Fencing: sessions that have expired, and the master's own repair sessions that are not to
//! go on.
//!
//! Every member of the view is told, again and again until it acknowledges: one request at a time,
//! about all whom it does not know of yet, up to [`MAX_CLIENTS`]. Only then does a session count as
//! gone: until then a CAS of it may arrive. What was acknowledged is kept in memory only; a master
//! that restarts asks again, which changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::{MAX_CLIENTS, NodeReply, NodeRequest};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::over::Living;
use fusee_core::verbs::{ClientId, MnId};

use super::State;
use super::context::{Ctx, Purpose};
use crate::record::{Write, repairer_key};

/// How long to wait after a failure.
const PAUSE_MS: u64 = 100;

/// When a member has fenced so many, it is told who lives, and forgets those that are over.
const FENCED_TOGETHER: usize = 16;

/// Who is fenced where.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// Who is to be fenced.
    clients: BTreeSet<ClientId>,
    members: BTreeMap<MnId, Told>,
}

/// What a member has been told.
#[derive(Debug, Default)]
struct Told {
    /// Whom it has not acknowledged.
    left: BTreeSet<ClientId>,
    /// When it is told again, unless an answer comes.
    again_ms: u64,
    /// How many it has fenced since it was told last who lives.
    fenced: usize,
}

impl Fences {
    /// Fences a client.
    pub fn add(&mut self, client: ClientId) {
        self.clients.insert(client);
        for told in self.members.values_mut() {
            told.left.insert(client);
        }
    }

    /// Forgets a client: nothing is left of it.
    pub fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
        for told in self.members.values_mut() {
            told.left.remove(&client);
        }
    }

    /// Those are the members now. Who is new has not been told of anybody.
    fn follow(&mut self, members: &[MnId]) {
        if members.len() == self.members.len()
            && members.iter().all(|node| self.members.contains_key(node))
        {
            return;
        }
        self.members.retain(|node, _| members.contains(node));
        for node in members {
            // The fences of former masters are to be forgotten, too: with the next one.
            let fenced = FENCED_TOGETHER;
            let new = || Told { left: self.clients.clone(), again_ms: 0, fenced };
            self.members.entry(*node).or_insert_with(new);
        }
    }
}

impl State {
    /// Whether no verb of a client that is to be fenced executes at any member any more.
    pub(super) fn is_fenced(&self, client: ClientId) -> bool {
        if removed(Mutant::RecoveryBeforeTheFence) {
            return true;
        }
        let mut members = self.view().into_iter().flat_map(|view| &view.members);
        self.fences.clients.contains(&client)
            && members.all(|member| {
                let told = self.fences.members.get(&member.node);
                told.is_some_and(|told| !told.left.contains(&client))
            })
    }

    /// Tells members whom to fence.
    pub(super) fn fence_all(&mut self, ctx: &mut Ctx<'_>) {
        let Some(view) = self.view() else { return };
        let members: Vec<MnId> = view.members.iter().map(|member| member.node).collect();
        self.fences.follow(&members);
        for node in members {
            let Some(told) = self.fences.members.get_mut(&node) else { continue };
            let due = !told.left.is_empty() && told.again_ms <= ctx.now_ms;
            if due && !removed(Mutant::RecoveryBeforeTheFence) {
                // Should no answer come at all.
                told.again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let clients: Vec<ClientId> = told.left.iter().copied().take(MAX_CLIENTS).collect();
                let request = NodeRequest::Fence { clients: clients.clone() };
                ctx.call(&self.roster, node, request, Purpose::Fence(clients));
            }
        }
        self.forget_repairers(ctx);
    }

    /// Repair sessions leave nothing behind: once they are fenced they are over.
    fn forget_repairers(&mut self, ctx: &mut Ctx<'_>) {
        let over: Vec<ClientId> =
            self.repair.retired().filter(|client| self.is_fenced(*client)).collect();
        if over.is_empty() {
            return;
        }
        let removed = over.iter().map(|client| Write::Remove(repairer_key(*client)));
        ctx.persist(removed.collect());
        for client in over {
            self.repair.is_over(client);
            self.fences.forget_client(client);
        }
    }

    pub(super) fn fence_answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        node: MnId,
        clients: &[ClientId],
        result: &Result<NodeReply, String>,
    ) {
        // Who is not there any more is over, or the node is lost.
        let Some(told) = self.fences.members.get_mut(&node) else { return };
        if let Ok(NodeReply::Done) = result {
            for client in clients {
                told.left.remove(client);
            }
            told.again_ms = ctx.now_ms;
            told.fenced += clients.len();
            if told.fenced >= FENCED_TOGETHER {
                told.fenced = 0;
                let living = self.living();
                ctx.call(&self.roster, node, NodeRequest::Living { living }, Purpose::Forget);
            }
        } else {
            told.again_ms = ctx.now_ms + PAUSE_MS;
            self.probe(ctx, node);
        }
    }

    /// Who is not over. An expired session is not before it is recovered.
    fn living(&self) -> Living {
        let open = self.sessions.open_sessions().map(|(client, _)| client);
        let all = open.chain(self.sessions.expired()).chain(self.repair.sessions());
        let in_order: BTreeSet<ClientId> = all.collect();
        Living::of(in_order, self.sessions.unused_from())
    }
}
