//! Requests to the master, except for the joins of memory nodes.

use fusee_control::master::{BlockOwners, MasterReply};
use fusee_control::rpc::Caller;
use fusee_core::verbs::ClientId;

use super::context::EventContext;
use super::decision::{Decision, Expiry};
use super::draining;
use super::held_heartbeats::HeartbeatSender;
use super::{MasterState, orphans, refused};
use crate::request_kinds::{
    ClusterRequest, FormedRequest, IdentityRequest, LogicRequest, NodeHeartbeat, ProcessHeartbeat,
};
use crate::sessions::{SessionRegistry, SessionStart};

impl MasterState {
    /// Handles a request. Returns the reply, or `None` if the reply is sent later.
    pub(super) fn request(
        &mut self,
        ctx: &mut EventContext<'_>,
        caller: Caller,
        token: u64,
        request: LogicRequest,
    ) -> Option<MasterReply> {
        match request {
            LogicRequest::Identity(IdentityRequest::Form { cluster }) => {
                Some(self.identity.form(ctx, self.cluster.last_attempt, cluster))
            }
            LogicRequest::Identity(IdentityRequest::Destroy { cluster, with_living_data }) => {
                Some(self.identity.destroy(ctx, &self.cluster, cluster, with_living_data))
            }
            LogicRequest::Cluster(request) => {
                let asker = caller.cluster;
                let refusal = self.identity.refuse_stranger(ctx, &self.cluster, asker, &request);
                // The request has possibly shown that the cluster has been formed already.
                self.apply(ctx);
                refusal.or_else(|| self.answer(ctx, caller, token, request))
            }
        }
    }

    fn answer(
        &mut self,
        ctx: &mut EventContext<'_>,
        caller: Caller,
        token: u64,
        request: ClusterRequest,
    ) -> Option<MasterReply> {
        let connection = caller.connection;
        let reply = match request {
            ClusterRequest::Join(new) => {
                let reply = self.join(ctx, new, caller.elsewhere);
                if let MasterReply::Joined { node } = reply {
                    self.detector.node_joined(node, connection);
                }
                reply
            }
            ClusterRequest::Open => self.open(ctx, connection),
            ClusterRequest::TakeOrphan(request) => {
                self.cluster.sessions.note_adopted(request.client, &request.adopted);
                orphans::take_orphan(ctx, &mut self.cluster, &request)
                    .unwrap_or_else(|| self.not_ready(ctx))
            }
            ClusterRequest::HandOn(hand_over) => {
                orphans::hand_on(ctx, &mut self.cluster, &hand_over)
            }
            ClusterRequest::Close { client, orphans: left, work } => {
                self.cluster.sessions.add_work(client, &work);
                orphans::close(ctx, &mut self.cluster, client, &left)
            }
            ClusterRequest::Heartbeat(process) => {
                return self.heartbeat(ctx, connection, token, process);
            }
            ClusterRequest::Abandon { client } => {
                if self.cluster.sessions.is_open(client) {
                    let why = "it ended half-way in an operation";
                    ctx.decide(Decision::Expire(vec![Expiry { client, why }]));
                }
                MasterReply::Done
            }
            ClusterRequest::Unreachable { node } => {
                ctx.decide(Decision::Probe(node));
                MasterReply::Done
            }
            ClusterRequest::Alive(heartbeat) => {
                return self.node_heartbeat(ctx, connection, token, heartbeat);
            }
            ClusterRequest::FurtherClient { client } => self.further_client(ctx, client),
            ClusterRequest::Status => MasterReply::Status(Box::new(self.status(ctx))),
            ClusterRequest::Formed(request) => self.answer_formed(ctx, request),
            ClusterRequest::ViewPiece => self.not_ready(ctx),
        };
        Some(reply)
    }

    /// Returns the reply to a request that only a formed cluster can answer.
    fn answer_formed(&mut self, ctx: &mut EventContext<'_>, request: FormedRequest) -> MasterReply {
        let Some(view) = &self.cluster.view else { return self.not_ready(ctx) };
        match request {
            FormedRequest::Split { subtable, view: number } => {
                self.splits.split_wanted(ctx, &self.cluster, view, subtable, number)
            }
            FormedRequest::MoreRoom(request) => {
                let shortage = &mut self.shortage;
                self.regions.region_wanted(ctx, &self.cluster, view, shortage, request)
            }
            FormedRequest::Drain { node, cancel } => {
                draining::drain(ctx, &self.cluster, view, node, cancel)
            }
            FormedRequest::GetView { newer_than } => {
                let newer = view.number > newer_than;
                MasterReply::View(newer.then(|| view.clone()))
            }
            FormedRequest::Owners => MasterReply::Owners(owners(&self.cluster.sessions)),
        }
    }

    /// Handles the heartbeat of a client process. Returns the reply, or `None` if it is held back.
    fn heartbeat(
        &mut self,
        ctx: &mut EventContext<'_>,
        connection: u64,
        token: u64,
        process: ProcessHeartbeat,
    ) -> Option<MasterReply> {
        if self.cluster.view.is_none() {
            return Some(self.not_ready(ctx));
        }
        let ProcessHeartbeat { sessions, newer_than, known, reclaims, acked } = process;
        let heard_ms = self.detector.listened_ms();
        for heartbeat in &sessions {
            self.cluster.sessions.heartbeat(heard_ms, connection, heartbeat);
        }
        let clients: Vec<ClientId> = sessions.iter().map(|heartbeat| heartbeat.client).collect();
        let stirs = sessions.iter().any(|heartbeat| heartbeat.stirs);
        self.shortage.heard(&clients, acked, stirs);
        let mark = self.epochs.newest(ctx);
        if reclaims {
            self.epochs.want();
        }
        let asked_ms = ctx.now_ms;
        let asker = HeartbeatSender::Sessions {
            clients,
            newer_than,
            known,
            reclaims,
            mark,
            acked,
            asked_ms,
        };
        self.held.wait(ctx, token, asker);
        None
    }

    /// Handles a memory node's heartbeat. Returns the reply, or `None` if it is held back.
    fn node_heartbeat(
        &mut self,
        ctx: &mut EventContext<'_>,
        connection: u64,
        token: u64,
        heartbeat: NodeHeartbeat,
    ) -> Option<MasterReply> {
        let NodeHeartbeat { identity, heard, bars } = heartbeat;
        let found = self.cluster.roster.find(identity);
        let Some(node) = found.map(|member| member.node) else {
            return Some(self.cluster.non_member_reply(identity));
        };
        self.detector.node_heard(node, connection);
        self.trust(node);
        self.arrived(ctx, node);
        let is_first = !self.contact.knows(heard);
        self.contact.alive(node, heard, &bars);
        if is_first {
            return Some(self.contact.noted_reply(ctx));
        }
        self.held.wait(ctx, token, HeartbeatSender::Node { identity });
        None
    }

    /// Returns the reply that the cluster is not formed yet, or why it cannot be formed with the nodes that have
    /// joined.
    fn not_ready(&self, ctx: &EventContext<'_>) -> MasterReply {
        if self.cluster.view.is_none()
            && let Some(problem) = &self.cluster.problem
            && (self.formation.needs_another_node() || self.identity.exists())
        {
            return refused(problem.clone());
        }
        let joined = self.cluster.roster.present().len() as u32;
        MasterReply::NotReady { joined, expected: ctx.settings.memory_nodes }
    }

    /// Gives a session a client id for the numbers of its DELETEs, which no session gets.
    fn further_client(&mut self, ctx: &mut EventContext<'_>, client: ClientId) -> MasterReply {
        if !self.cluster.sessions.is_open(client) {
            return refused("there is no such open session");
        }
        let mut writes = Vec::new();
        let Some(client) = self.cluster.sessions.new_id(&mut writes) else {
            return refused(IDS_USED);
        };
        ctx.persist(writes);
        MasterReply::FurtherClient { client }
    }

    fn open(&mut self, ctx: &mut EventContext<'_>, connection: u64) -> MasterReply {
        let Some(view) = self.cluster.view.clone() else { return self.not_ready(ctx) };
        let epoch = self.epochs.newest(ctx);
        let mut writes = Vec::new();
        let start = SessionStart { view: view.number, epoch };
        let heard_ms = self.detector.listened_ms();
        let opened = self.cluster.sessions.open(heard_ms, connection, start, &mut writes);
        let Some(client) = opened else { return refused(IDS_USED) };
        ctx.persist(writes);
        let lease_ms = ctx.settings.lease.lease_ms;
        let behind_ms = self.contact.behind_ms(ctx.now_ms);
        let policy = ctx.settings.redundancy;
        MasterReply::Opened { client, view, epoch, lease_ms, behind_ms, policy }
    }
}

const IDS_USED: &str = "all client ids have been used; format the cluster anew";

/// Returns the clients that memory nodes' block tables are allowed to name as owners, and the orphaned blocks.
fn owners(sessions: &SessionRegistry) -> BlockOwners {
    BlockOwners {
        open: sessions.open_sessions().map(|(client, _)| client).collect(),
        expired: sessions.expired().collect(),
        unused_from: sessions.unused_from(),
        orphans: sessions.orphans().copied().collect(),
    }
}
