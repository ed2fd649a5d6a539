//! Fencing of sessions that have expired, and of the master's own repair sessions that have failed.
//!
//! The master sends each member one request at a time, which lists all fences that the member has not acknowledged, up
//! to [`MAX_CLIENTS`]. Only a session that all members have fenced counts as gone, because until then one of its CASes
//! can still arrive. Acknowledgements are kept in memory only. A master that restarts asks the members again, which
//! changes nothing.

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

/// The pause after a member failed to answer, in milliseconds.
const PAUSE_MS: u64 = 100;

/// After this many fences, the master tells a member which sessions live, so that the member forgets the fences of
/// ended sessions.
const FENCED_TOGETHER: usize = 16;

/// The sessions to fence, and for each member the fences that it has still to acknowledge.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// The sessions to fence.
    clients: BTreeSet<ClientId>,
    members: BTreeMap<MnId, MemberFences>,
}

/// The fences of one member.
#[derive(Debug, Default)]
struct MemberFences {
    /// The sessions whose fence the member has not acknowledged.
    left: BTreeSet<ClientId>,
    /// The time at which the member is told again which sessions to fence, unless it answers before.
    again_ms: u64,
    /// The number of sessions fenced since the member was last told which sessions live.
    fenced: usize,
}

impl Fences {
    /// Adds a session, which all members have to fence.
    pub fn add(&mut self, client: ClientId) {
        self.clients.insert(client);
        for told in self.members.values_mut() {
            told.left.insert(client);
        }
    }

    /// Forgets the fence of a session that has ended.
    pub fn forget_client(&mut self, client: ClientId) {
        self.clients.remove(&client);
        for told in self.members.values_mut() {
            told.left.remove(&client);
        }
    }

    /// Adopts the present members. A new member knows no fence, and does not learn of fences whose sessions are
    /// recovered already. Such a session costs a block in one case: its process was stopped and does not know yet that
    /// the session expired, and the new member has the address of a lost one. Then the session takes the new member for
    /// the lost one and gets a block from it, which the region's other places refuse.
    fn follow(&mut self, members: &[MnId]) {
        if members.len() == self.members.len()
            && members.iter().all(|node| self.members.contains_key(node))
        {
            return;
        }
        self.members.retain(|node, _| members.contains(node));
        for node in members {
            // The count begins at its limit, so that after its first fence the member also forgets fences of former
            // masters.
            let fenced = FENCED_TOGETHER;
            let new = || MemberFences { left: self.clients.clone(), again_ms: 0, fenced };
            self.members.entry(*node).or_insert_with(new);
        }
    }

    /// Returns whether a session is to be fenced and all members have fenced it, so that none of its verbs executes any
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

    /// Returns whether the stage of the view change waits for no session any more.
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
                // If no answer comes at all, the request is repeated one lease from now.
                told.again_ms = ctx.now_ms.saturating_add(ctx.settings.lease.lease_ms);
                let clients: Vec<ClientId> = told.left.iter().copied().take(MAX_CLIENTS).collect();
                let request = NodeRequest::Fence { clients: clients.clone() };
                ctx.call(&cluster.roster, node, request, CallPurpose::Fence(clients));
            }
        }
        self.end_repairers(ctx, cluster, jobs);
    }

    /// Ends the repair sessions that are fenced. Unlike clients' sessions, they need no recovery.
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

    /// Handles a member's answer to a request to fence sessions, or the failure of that request.
    pub fn fence_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        jobs: &JobScheduler,
        node: MnId,
        clients: &[ClientId],
        result: &Result<NodeReply, String>,
    ) {
        // A node that is no longer a member has left the cluster or is lost, so its answer does not matter.
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

/// Returns the sessions that have not ended. An expired session ends when it is recovered.
fn living(cluster: &ClusterFacts, jobs: &JobScheduler) -> LiveClients {
    let open = cluster.sessions.open_sessions().map(|(client, _)| client);
    let all = open.chain(cluster.sessions.expired()).chain(jobs.sessions());
    let in_order: BTreeSet<ClientId> = all.collect();
    LiveClients::of(in_order, cluster.sessions.unused_from())
}
