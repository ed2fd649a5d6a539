//! Fencing of sessions that have expired, and of the master's own repair sessions that must not go
//! on.
//!
//! Every member of the view is told until it acknowledges: by one request at a time, about all
//! fences that it has not acknowledged, up to [`MAX_CLIENTS`]. Only a session that all members have
//! fenced counts as gone: before, a CAS of it may still arrive. Acknowledgements are kept in memory
//! only. A master that restarts asks again, which changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::node::{MAX_CLIENTS, NodeReply, NodeRequest};
use fusee_core::ended_clients::LiveClients;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::{ClientId, MnId};

use super::context::{CallPurpose, EventContext};
use super::decision::Decision;
use super::facts::ClusterFacts;
use super::job_scheduler::JobScheduler;
use crate::record::{RecordWrite, repairer_key};

/// The pause after a failure.
const PAUSE_MS: u64 = 100;

/// After so many fences a member is told which sessions live, and forgets the fences of ended ones.
const FENCED_TOGETHER: usize = 16;

/// The fences, and the members that have still to acknowledge them.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// The sessions to fence.
    clients: BTreeSet<ClientId>,
    members: BTreeMap<MnId, MemberFences>,
}

/// The state of one member.
#[derive(Debug, Default)]
struct MemberFences {
    /// The sessions whose fence it has not acknowledged.
    left: BTreeSet<ClientId>,
    /// The time at which it is told again, unless an answer comes.
    again_ms: u64,
    /// Fences since it was last told which sessions live.
    fenced: usize,
}

impl Fences {
    /// Fences a session.
    pub fn add(&mut self, client: ClientId) {
        self.clients.insert(client);
        for told in self.members.values_mut() {
            told.left.insert(client);
        }
    }

    /// Forgets a session that has ended.
    pub fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
        for told in self.members.values_mut() {
            told.left.remove(&client);
        }
    }

    /// Takes note of the present members. A new one has been told of no fence, and is told of none whose session is
    /// recovered by then. Such a session costs a block if it reaches the new member at an address at which it knows a
    /// lost one: it takes the new one for that one, is granted a block, and the region's other places refuse. Its
    /// process was stopped, and its keeper has not heard yet that it has expired.
    fn follow(&mut self, members: &[MnId]) {
        if members.len() == self.members.len()
            && members.iter().all(|node| self.members.contains_key(node))
        {
            return;
        }
        self.members.retain(|node, _| members.contains(node));
        for node in members {
            // So that the fences of former masters are forgotten with the next one, too.
            let fenced = FENCED_TOGETHER;
            let new = || MemberFences { left: self.clients.clone(), again_ms: 0, fenced };
            self.members.entry(*node).or_insert_with(new);
        }
    }

    /// Returns whether a session is to be fenced, and none of its verbs executes at any member any
    /// more.
    pub fn is_fenced(&self, cluster: &ClusterFacts, client: ClientId) -> bool {
        if removed(Mutant::RecoveryBeforeTheFence) {
            return true;
        }
        let mut members = cluster.view.iter().flat_map(|view| &view.members);
        self.clients.contains(&client)
            && members.all(|member| {
                let told = self.members.get(&member.node);
                told.is_some_and(|told| !told.left.contains(&client))
            })
    }

    /// Returns whether no session keeps the stage of the change from ending.
    pub fn all_follow(&self, cluster: &ClusterFacts) -> bool {
        cluster.lagging().next().is_none()
            && cluster.sessions.expired().all(|client| self.is_fenced(cluster, client))
    }

    /// Tells the members which sessions to fence.
    pub fn step(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        jobs: &JobScheduler,
    ) {
        let members = cluster.members();
        self.follow(&members);
        for node in members {
            let Some(told) = self.members.get_mut(&node) else { continue };
            let due = !told.left.is_empty() && told.again_ms <= ctx.now_ms;
            if due && !removed(Mutant::RecoveryBeforeTheFence) {
                // In case no answer comes at all.
                told.again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let clients: Vec<ClientId> = told.left.iter().copied().take(MAX_CLIENTS).collect();
                let request = NodeRequest::Fence { clients: clients.clone() };
                ctx.call(&cluster.roster, node, request, CallPurpose::Fence(clients));
            }
        }
        self.end_repairers(ctx, cluster, jobs);
    }

    /// Ends the repair sessions that are fenced: they leave nothing to recover.
    fn end_repairers(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        jobs: &JobScheduler,
    ) {
        let fenced = jobs.retired().filter(|client| self.is_fenced(cluster, *client));
        let over: Vec<ClientId> = fenced.collect();
        if over.is_empty() {
            return;
        }
        let removed = over.iter().map(|client| RecordWrite::Remove(repairer_key(*client)));
        ctx.persist(removed.collect());
        for client in over {
            self.forget_client(client);
            ctx.decide(Decision::EndRepairer(client));
        }
    }

    /// Handles a member's answer to a request to fence sessions, or its failure.
    pub fn fence_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        jobs: &JobScheduler,
        node: MnId,
        clients: &[ClientId],
        result: &Result<NodeReply, String>,
    ) {
        // A node that is no longer a member has left the cluster, or is lost.
        let Some(told) = self.members.get_mut(&node) else { return };
        if let Ok(NodeReply::Done) = result {
            for client in clients {
                told.left.remove(client);
            }
            told.again_ms = ctx.now_ms;
            told.fenced += clients.len();
            if told.fenced >= FENCED_TOGETHER {
                told.fenced = 0;
                let living = living(cluster, jobs);
                ctx.call(
                    &cluster.roster,
                    node,
                    NodeRequest::Living { living },
                    CallPurpose::Forget,
                );
            }
        } else {
            told.again_ms = ctx.now_ms + PAUSE_MS;
            ctx.decide(Decision::Probe(node));
        }
    }
}

/// Returns the sessions that have not ended. An expired one ends when it is recovered.
fn living(cluster: &ClusterFacts, jobs: &JobScheduler) -> LiveClients {
    let open = cluster.sessions.open_sessions().map(|(client, _)| client);
    let all = open.chain(cluster.sessions.expired()).chain(jobs.sessions());
    let in_order: BTreeSet<ClientId> = all.collect();
    LiveClients::of(in_order, cluster.sessions.unused_from())
}
