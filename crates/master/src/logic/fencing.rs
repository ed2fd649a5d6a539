//! Fencing of sessions that have expired, and of the master's own repair sessions that have failed.
//!
//! The master sends each member one request at a time, which lists all fences that the member has not acknowledged, up
//! to [`MAX_CLIENTS`]. Only a session that all members have fenced counts as gone, because until then one of its CASes
//! can still arrive. Acknowledgements are kept in memory only. A master that restarts asks the members again, which
//! changes nothing.
//!
//! When sessions have ended, the master also tells the members which sessions live: at once after many ends, otherwise
//! some time later. Then a member forgets the fences of the ended sessions, and can lend their log areas again.

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

/// The time from one list of living sessions that a member is told to the next, in milliseconds. After the ends of at
/// least [`ENDED_TOGETHER`] sessions it is [`PAUSE_MS`].
const LIVING_PAUSE_MS: u64 = 1000;
const ENDED_TOGETHER: u64 = 64;

/// The sessions to fence, and for each member the fences that it has still to acknowledge.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// The sessions to fence.
    clients: BTreeSet<ClientId>,
    members: BTreeMap<MnId, MemberFences>,
    /// The number of repair sessions that have ended since this master began to lead.
    ended_repairers: u64,
}

/// The fences of one member.
#[derive(Debug, Default)]
struct MemberFences {
    /// The sessions whose fence the member has not acknowledged.
    left: BTreeSet<ClientId>,
    /// The time at which the member is told again which sessions to fence, unless it answers before.
    again_ms: u64,
    /// The number of sessions that had ended when the member was last told which sessions live; `None` if this master
    /// has not told it yet.
    ended: Option<u64>,
    /// The time at which the member was last told so, whether or not it has answered.
    told_ms: u64,
}

impl MemberFences {
    /// Returns whether the member is to be told which sessions live, when `ended` sessions have ended.
    fn is_to_be_told(&self, ended: u64, now_ms: u64) -> bool {
        let is_short = self.ended.is_none_or(|known| ended - known >= ENDED_TOGETHER);
        let pause = if is_short { PAUSE_MS } else { LIVING_PAUSE_MS };
        self.ended.is_none_or(|known| ended > known) && now_ms >= self.told_ms.saturating_add(pause)
    }
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
            let left = self.clients.clone();
            let new = || MemberFences { left, again_ms: 0, ended: None, told_ms: 0 };
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

    /// Tells the members which sessions to fence, and which sessions live.
    pub fn step(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        jobs: &JobScheduler,
    ) {
        let members = cluster.members();
        self.follow(&members);
        let mut list = None;
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
            let ended = self.ended_repairers + cluster.sessions.ended();
            if told.is_to_be_told(ended, ctx.now_ms) {
                told.told_ms = ctx.now_ms;
                let living = list.get_or_insert_with(|| living(cluster, jobs)).clone();
                let request = NodeRequest::Living { living };
                ctx.call(&cluster.roster, node, request, CallPurpose::Forget { ended });
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
        self.ended_repairers += over.len() as u64;
        for client in over {
            self.forget_client(client);
            ctx.decide(Decision::EndRepairer(client));
        }
    }

    /// Handles a member's answer to a request to fence sessions, or the failure of that request.
    pub fn fence_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
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
        } else {
            told.again_ms = ctx.now_ms + PAUSE_MS;
            ctx.decide(Decision::Probe(node));
        }
    }

    /// Notes that a member knows which sessions live, when `ended` sessions had ended. Without an answer, the member is
    /// told again.
    pub fn living_answered(&mut self, node: MnId, ended: u64, result: &Result<NodeReply, String>) {
        let told = self.members.get_mut(&node);
        if let (Some(told), Ok(NodeReply::Done)) = (told, result) {
            told.ended = told.ended.max(Some(ended));
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
