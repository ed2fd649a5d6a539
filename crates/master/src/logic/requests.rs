//! Requests to the master, except for the joins of memory nodes.

use fusee_control::master::{
    BlockOwners, MasterReply, MasterRequest, MemberState, MemberStatus, Orphan, Status,
};
use fusee_control::rpc::Caller;
use fusee_core::data::Redundancy;
use fusee_core::layout::{BlockShape, SizeClass};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Member, View};

use super::context::EventContext;
use super::held_heartbeats::HeartbeatSender;
use super::{FormationState, MasterState, refused};

impl MasterState {
    /// Returns the reply to a request; `None` if it comes later.
    pub(super) fn answer(
        &mut self,
        ctx: &mut EventContext<'_>,
        caller: Caller,
        token: u64,
        request: MasterRequest,
    ) -> Option<MasterReply> {
        let connection = caller.connection;
        Some(match request {
            MasterRequest::Form { .. } | MasterRequest::Destroy { .. } => {
                unreachable!("answered before")
            }
            MasterRequest::Join { identity, control, tcp, shm, verbs, pool_bytes } => {
                // The node is named below.
                let node = MnId(u16::MAX);
                let new = Member { node, identity, control, tcp, shm, verbs, pool_bytes };
                let reply = self.join(ctx, new, caller.elsewhere);
                if let MasterReply::Joined { node } = reply {
                    self.node_joined(node, connection);
                }
                reply
            }
            MasterRequest::Open => self.open(ctx, connection),
            MasterRequest::TakeOrphan { client, turn, adopted, class, redundancy, full, view } => {
                self.sessions.note_adopted(client, &adopted);
                self.take_orphan(ctx, (client, turn), (class, redundancy, full), view)
            }
            MasterRequest::HandOn { client, serial, orphans, used } => {
                self.hand_on(ctx, (client, serial), (&orphans, &used))
            }
            MasterRequest::Close { client, orphans, work } => {
                self.sessions.add_work(client, &work);
                self.close(ctx, client, &orphans)
            }
            MasterRequest::Heartbeat { sessions, newer_than, known, reclaims, acked } => {
                if self.view().is_none() {
                    return Some(self.not_ready(ctx));
                }
                let clients = self.heartbeats(connection, &sessions);
                let stirs = sessions.iter().any(|heartbeat| heartbeat.stirs);
                self.shortage.heard(&clients, acked, stirs);
                let mark = self.epochs.newest(ctx);
                if reclaims {
                    self.epochs.want();
                }
                let asker = HeartbeatSender::Sessions {
                    clients,
                    newer_than,
                    known,
                    reclaims,
                    mark,
                    acked,
                    asked_ms: ctx.now_ms,
                };
                self.wait(ctx, token, asker);
                return None;
            }
            MasterRequest::Abandon { client } => {
                if self.sessions.is_open(client) {
                    self.expire(ctx, &[(client, "it ended half-way in an operation")]);
                }
                MasterReply::Done
            }
            MasterRequest::Split { subtable, view } => self.split_wanted(ctx, subtable, view),
            MasterRequest::Drain { node, cancel } => self.drain(ctx, node, cancel),
            MasterRequest::MoreRoom { client, view, redundancy, call } => {
                self.region_wanted(ctx, client, (view, redundancy), call)
            }
            MasterRequest::Unreachable { node } => {
                self.probe(ctx, node);
                MasterReply::Done
            }
            MasterRequest::Alive { identity, heard, bars } => {
                return self.alive(ctx, connection, token, (identity, heard, bars));
            }
            MasterRequest::GetView { newer_than } => match &self.phase {
                FormationState::Formed(view) => {
                    let newer = view.number > newer_than;
                    MasterReply::View(newer.then(|| view.clone()))
                }
                FormationState::Forming(_) => self.not_ready(ctx),
            },
            // The host answers this if there is a view.
            MasterRequest::ViewPiece { .. } => self.not_ready(ctx),
            MasterRequest::Status => MasterReply::Status(Box::new(self.status(ctx))),
            MasterRequest::Events { .. } => refused("its host keeps the events"),
            MasterRequest::Owners => match &self.phase {
                FormationState::Formed(_) => MasterReply::Owners(self.owners()),
                FormationState::Forming(_) => self.not_ready(ctx),
            },
        })
    }

    /// Returns the reply that the cluster is not formed yet, or the reason why it cannot be formed of the nodes that
    /// have joined.
    pub(super) fn not_ready(&self, ctx: &EventContext<'_>) -> MasterReply {
        if let (FormationState::Forming(forming), Some(problem)) = (&self.phase, &self.problem)
            && (forming.needs_another_node() || self.identity.exists())
        {
            return refused(problem.clone());
        }
        let joined = self.roster.present().len() as u32;
        MasterReply::NotReady { joined, expected: ctx.settings.memory_nodes }
    }

    fn open(&mut self, ctx: &mut EventContext<'_>, connection: u64) -> MasterReply {
        let FormationState::Formed(view) = &self.phase else { return self.not_ready(ctx) };
        let view = view.clone();
        let epoch = self.epochs.newest(ctx);
        let mut writes = Vec::new();
        let since = (view.number, epoch);
        let heard_ms = self.presences.listened_ms();
        let opened = self.sessions.open(heard_ms, connection, since, &mut writes);
        let Some(client) = opened else {
            return refused("all client ids have been used; format the cluster anew");
        };
        ctx.persist(writes);
        let lease_ms = ctx.settings.lease.lease_ms;
        let behind_ms = self.behind_ms(ctx.now_ms);
        let policy = ctx.settings.redundancy;
        MasterReply::Opened { client, view, epoch, lease_ms, behind_ms, policy }
    }

    /// Gives a session an orphaned block.
    ///
    /// No block of a region that is being copied: its new owner would be recorded on replicas whose table has been
    /// copied already. And none to a session that is pinned by an older view: it would not record itself as owner on a
    /// replica that was added since, and what it writes would be taken for a block that it never took over. (Before
    /// another replica is added, the master waits for the sessions that are pinned by this view.)
    fn take_orphan(
        &mut self,
        ctx: &mut EventContext<'_>,
        asker: (ClientId, u64),
        (class, redundancy, full): (Option<SizeClass>, Redundancy, bool),
        by: u64,
    ) -> MasterReply {
        let FormationState::Formed(view) = &self.phase else { return self.not_ready(ctx) };
        if by != view.number {
            return MasterReply::Orphan { orphan: None, owner_lives: false };
        }
        let mut writes = Vec::new();
        let block_bytes = view.geometry.block_bytes;
        // A session that needs room at once cannot use a block whose objects have all been allocated once.
        let has_room = |orphan: &Orphan| {
            BlockShape::new(block_bytes, orphan.class).is_some_and(|s| orphan.first < s.objects)
        };
        let may_use = |orphan: &Orphan| {
            let region = view.regions.get(orphan.block.region as usize);
            region.is_some_and(|region| region.redundancy() == redundancy && region.is_there())
                && !view.is_region_frozen(orphan.block.region)
        };
        // A session that takes a block of any class first gets one without room, so that those with room are left to
        // sessions that can use them.
        let has_room = |orphan: &Orphan| has_room(orphan) == class.is_some();
        let first = |orphan: &Orphan| may_use(orphan) && has_room(orphan);
        let sessions = &mut self.sessions;
        sessions.forget_used(ctx.now_ms);
        let mut orphan = sessions.take_orphan(asker, class, first, &mut writes);
        if orphan.is_none() && full {
            // Objects that are not marked as free are found only when memory is short.
            let is_marked = |left: &Orphan| class.is_none() || left.marked.is_some();
            let may_use = |orphan: &Orphan| may_use(orphan) && is_marked(orphan);
            orphan = sessions.take_orphan(asker, class, may_use, &mut writes);
        }
        ctx.persist(writes);
        let owner_lives = orphan.is_some_and(|left| self.sessions.is_open(left.owner));
        MasterReply::Orphan { orphan, owner_lives }
    }

    fn close(
        &mut self,
        ctx: &mut EventContext<'_>,
        client: ClientId,
        orphans: &[Orphan],
    ) -> MasterReply {
        let FormationState::Formed(view) = &self.phase else {
            return refused("no session has been opened yet");
        };
        let mut writes = Vec::new();
        let closed = self.sessions.close(client, orphans, view, &mut writes);
        ctx.persist(writes);
        match closed {
            Ok(()) => MasterReply::Done,
            Err(reason) => {
                ctx.complain(format!("end of {client}: {reason}"));
                refused(reason)
            }
        }
    }

    fn status(&self, ctx: &EventContext<'_>) -> Status {
        let view = self.view();
        let replicas = |places: Option<usize>, setting| places.map_or(setting, |n| n as u8);
        let index = view.and_then(|view| view.subtables.iter().map(|s| s.replicas().len()).min());
        let replicated = |view: &View| {
            let regions = view.regions.iter();
            let replicated = regions.filter(|r| r.redundancy() == Redundancy::Replicated);
            replicated.map(|r| r.places().len()).min()
        };
        let data = view.and_then(replicated);
        let status = |member: &Member| MemberStatus {
            node: member.node,
            control: member.control.clone(),
            state: self.state_of(member.node),
        };
        let gone = self.roster.lost().chain(self.roster.drained());
        let mut members: Vec<MemberStatus> = self.roster.nodes().chain(gone).map(status).collect();
        members.sort_by_key(|member| member.node);
        let (recoveries, last_recoveries) = self.history.recoveries();
        let (reconfigurations, last_reconfigurations) = self.history.reconfigurations();
        let nothing = || {
            self.identity.cluster().is_none().then(|| {
                "no cluster: start this master on the store of one (--data-dir, or --store), or form a new one \
                 with `fusee form`"
                    .to_owned()
            })
        };
        let (more_regions, no_region) = self.more_regions(ctx);
        Status {
            cluster: self.identity.cluster(),
            expected_memory_nodes: ctx.settings.memory_nodes,
            members,
            index_replicas: replicas(index, ctx.settings.index_replicas),
            data_replicas: replicas(data, ctx.settings.data_replicas),
            wanted_index_replicas: ctx.settings.index_replicas,
            wanted_data_replicas: ctx.settings.data_replicas,
            missing_replicas: self.missing_replicas(ctx),
            rebalancing: self.next_moves().is_some() || self.is_moving(),
            open_sessions: self.sessions.open_sessions().count() as u64,
            expired_sessions: self.sessions.expired().count() as u64,
            sessions_opened: self.sessions.opened_count(),
            view: view.cloned(),
            view_age_ms: ctx.now_ms.saturating_sub(self.history.since_ms()),
            recoveries,
            last_recoveries,
            reconfigurations,
            last_reconfigurations,
            damage: self.sessions.damage(),
            policy: ctx.settings.redundancy,
            transitions: self.sessions.transitions(),
            work: self.sessions.work(),
            epoch: self.epochs().newest,
            lease_ms: ctx.settings.lease.lease_ms,
            scrub: self.scrubbed(),
            problem: self.problem.clone().or_else(nothing).or(self.splitting.problem(ctx.now_ms)),
            more_regions,
            no_region,
        }
    }

    fn owners(&self) -> BlockOwners {
        BlockOwners {
            open: self.sessions.open_sessions().map(|(client, _)| client).collect(),
            expired: self.sessions.expired().collect(),
            unused_from: self.sessions.unused_from(),
            orphans: self.sessions.orphans().copied().collect(),
        }
    }

    fn state_of(&self, node: MnId) -> MemberState {
        if self.roster.is_lost(node) || self.losing.has(node) {
            MemberState::Lost
        } else if self.roster.is_drained(node) {
            MemberState::Drained
        } else if self.roster.is_draining(node) {
            MemberState::Draining
        } else if self.in_view(node) {
            MemberState::InView
        } else if self.admitting.is_for(node) {
            MemberState::Joining
        } else {
            MemberState::Waiting
        }
    }
}
