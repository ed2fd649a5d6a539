//! What the master decides: a state machine without sockets, clocks, threads or files.
//!
//! The host feeds [`Event`]s and carries out the [`Action`]s of each in their order; an
//! [`Action::Persist`] has to be durable before any later one. The master names memory nodes,
//! forms the cluster once enough of them are there, and from then on hands out client ids and
//! the view. Gets and puts never come here.
//!
//! Joining and identities:
//!
//! * A memory node is known by its identity, a random number that it draws when it starts. A join
//!   may be repeated: it gives the same name. Names are never given twice.
//! * A new identity at the control address of a node that no view uses takes its place: two
//!   processes cannot listen at one address, so the old one is gone.
//! * While no view uses a node, it may join again with other addresses. Once one does, that is
//!   refused: sessions hold the addresses in their views.
//! * Nodes that join a formed cluster get a name and wait.
//!
//! Restarts: names, client ids and the view come back from the store. Without a view, the master
//! asks the nodes it knows whether they are still there, and forms the cluster with those that
//! answer or join: an unfinished attempt to form it leaves nothing that the next does not sweep
//! away (see `format`). All of that ends with the record of the first view.

mod format;
mod forming;

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{MasterReply, MasterRequest, MemberStatus, Status};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::verbs::MnId;
use fusee_core::view::{Member, View, ViewError};

use crate::record::Record;
use crate::sessions::Sessions;
use crate::settings::{MAX_MEMORY_NODES, Settings};
use format::Attempt;

/// How long to wait before forming is tried again, or an absent node is asked again.
const RETRY_MS: u64 = 1_000;
/// The longest address that a node may give.
const MAX_ADDRESS_BYTES: usize = 512;

/// What happens to the master.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody asks; the token comes back with the reply.
    Request {
        /// Names the request.
        token: u64,
        /// What is asked.
        request: MasterRequest,
    },
    /// A memory node answered a call, or did not.
    NodeAnswer {
        /// The node.
        node: MnId,
        /// The call's token.
        token: u64,
        /// The answer, or why there is none.
        result: Result<NodeReply, String>,
    },
    /// Time passes. To be given at start and then several times a second.
    Tick,
}

/// How much an [`Action::Log`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Info,
    /// Worth a look.
    Warn,
}

/// What the host has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Store these, all or none, durably before any later action.
    Persist(Vec<Record>),
    /// Answer a request.
    Reply {
        /// The request's token.
        token: u64,
        /// The answer.
        reply: MasterReply,
    },
    /// Call a memory node, once, and report the answer.
    Call {
        /// The node.
        node: MnId,
        /// Host and port of its control service.
        control: String,
        /// Comes back with the answer.
        token: u64,
        /// What to ask.
        request: NodeRequest,
    },
    /// Tell people.
    Log(Level, String),
}

/// Why a store's contents cannot be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The view is broken.
    #[error("the stored view is unusable: {0}")]
    View(#[from] ViewError),
}

#[derive(Debug)]
enum Phase {
    Forming {
        attempt: Option<Attempt>,
        /// When to try next; `u64::MAX` if only another node can help.
        try_at_ms: u64,
        /// When to ask absent nodes next.
        look_at_ms: u64,
    },
    Formed(View),
}

/// The state of the master.
#[derive(Debug)]
pub struct Master {
    settings: Settings,
    cluster: Option<u64>,
    fresh_cluster: u64,
    last_attempt: u64,
    members: BTreeMap<MnId, Member>,
    next_node: u16,
    /// Members that have spoken to this process.
    present: BTreeSet<MnId>,
    phase: Phase,
    problem: Option<String>,
    sessions: Sessions,
    /// Calls under way; a call that belongs to an attempt is forgotten with it.
    calls: BTreeMap<u64, (MnId, Purpose)>,
    next_call: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Is it still there?
    Look,
    Format,
}

type Actions = Vec<Action>;

impl Master {
    /// A master that goes on from a store's records. `fresh_cluster` is a random number, for
    /// the case that it forms a new cluster.
    pub fn restore(
        settings: Settings,
        fresh_cluster: u64,
        records: Vec<Record>,
    ) -> Result<Master, RestoreError> {
        let mut master = Master {
            settings,
            cluster: None,
            fresh_cluster,
            last_attempt: 0,
            members: BTreeMap::new(),
            next_node: 0,
            present: BTreeSet::new(),
            phase: Phase::Forming { attempt: None, try_at_ms: 0, look_at_ms: 0 },
            problem: None,
            sessions: Sessions::new(1),
            calls: BTreeMap::new(),
            next_call: 0,
        };
        for record in records {
            match record {
                Record::Cluster(cluster) => master.cluster = Some(cluster),
                Record::Attempt(attempt) => master.last_attempt = attempt,
                Record::NextNode(next) => master.next_node = next,
                Record::Member(member) => {
                    master.members.insert(member.node, member);
                }
                Record::Forgotten(node) => {
                    master.members.remove(&node);
                }
                Record::ClientIds { end } => master.sessions = Sessions::new(end),
                Record::View(view) => {
                    view.check()?;
                    master.phase = Phase::Formed(view);
                }
            }
        }
        Ok(master)
    }

    /// The view in force.
    pub fn view(&self) -> Option<&View> {
        match &self.phase {
            Phase::Formed(view) => Some(view),
            Phase::Forming { .. } => None,
        }
    }

    /// Decides about an event. `now_ms` grows; where it starts does not matter.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Request { token, request } => {
                let reply = self.answer(now_ms, request, &mut actions);
                actions.push(Action::Reply { token, reply });
            }
            Event::NodeAnswer { node, token, result } => {
                // Answers to calls of an attempt that was given up find no entry.
                if let Some((called, purpose)) = self.calls.remove(&token)
                    && called == node
                {
                    self.node_answered(now_ms, node, purpose, result, &mut actions);
                }
            }
            Event::Tick => {}
        }
        self.proceed(now_ms, &mut actions);
        actions
    }

    fn answer(&mut self, now_ms: u64, request: MasterRequest, out: &mut Actions) -> MasterReply {
        match request {
            MasterRequest::Join { identity, control, tcp, shm, pool_bytes } => {
                let node = MnId(self.next_node);
                self.join(now_ms, Member { node, identity, control, tcp, shm, pool_bytes }, out)
            }
            MasterRequest::Open => self.open(out),
            MasterRequest::TakeLeftover { client, class } => {
                MasterReply::Leftover(self.sessions.take_leftover(client, class))
            }
            MasterRequest::Close { client, leftovers } => match &self.phase {
                Phase::Forming { .. } => refused("no session has been opened yet"),
                Phase::Formed(view) => match self.sessions.close(client, &leftovers, view) {
                    Ok(()) => MasterReply::Done,
                    Err(reason) => refused(reason),
                },
            },
            MasterRequest::Renew { newer_than, .. } => match &self.phase {
                Phase::Formed(view) => {
                    let newer = view.number > newer_than;
                    let view = newer.then(|| view.clone());
                    MasterReply::Renewed { view, expelled: Vec::new() }
                }
                Phase::Forming { .. } => self.not_ready(),
            },
            MasterRequest::Abandon { .. }
            | MasterRequest::Unreachable { .. }
            | MasterRequest::Alive { .. } => MasterReply::Done,
            MasterRequest::GetView { newer_than } => match &self.phase {
                Phase::Formed(view) => {
                    let newer = view.number > newer_than;
                    MasterReply::View(newer.then(|| view.clone()))
                }
                Phase::Forming { .. } => self.not_ready(),
            },
            MasterRequest::Status => MasterReply::Status(self.status()),
        }
    }

    /// Not formed: because that takes time, or because it cannot be with the nodes that came.
    fn not_ready(&self) -> MasterReply {
        if let (Phase::Forming { try_at_ms: u64::MAX, .. }, Some(problem)) =
            (&self.phase, &self.problem)
        {
            return refused(problem.clone());
        }
        let joined = self.present.len() as u32;
        MasterReply::NotReady { joined, expected: self.settings.memory_nodes }
    }

    fn open(&mut self, out: &mut Actions) -> MasterReply {
        let Phase::Formed(view) = &self.phase else { return self.not_ready() };
        let Some(opened) = self.sessions.open() else {
            return refused("all client ids have been used; format the cluster anew");
        };
        if let Some(end) = opened.record_end {
            out.push(Action::Persist(vec![Record::ClientIds { end }]));
        }
        MasterReply::Opened { client: opened.client, view: view.clone() }
    }

    fn status(&self) -> Status {
        let view = self.view();
        let replicas = |places: Option<usize>, setting| places.map_or(setting, |n| n as u8);
        let index = view.and_then(|view| view.subtables.first()).map(|s| s.places.len());
        let data = view.and_then(|view| view.regions.first()).map(|r| r.places.len());
        let member = |member: &Member| MemberStatus {
            node: member.node,
            control: member.control.clone(),
            in_view: self.in_view(member.node),
        };
        Status {
            expected_memory_nodes: self.settings.memory_nodes,
            members: self.members.values().map(member).collect(),
            index_replicas: replicas(index, self.settings.index_replicas),
            data_replicas: replicas(data, self.settings.data_replicas),
            open_sessions: self.sessions.open_count(),
            sessions_opened: self.sessions.opened_count(),
            view: view.cloned(),
            problem: self.problem.clone(),
        }
    }

    fn in_view(&self, node: MnId) -> bool {
        self.view().is_some_and(|view| view.member(node).is_some())
    }

    fn join(&mut self, now_ms: u64, new: Member, out: &mut Actions) -> MasterReply {
        if let Err(what) = check_member(&new) {
            return refused(what);
        }
        let known = self.members.values().find(|member| member.identity == new.identity);
        if let Some(known) = known.cloned() {
            return self.join_again(now_ms, &known, new, out);
        }
        let unused = |member: &&Member| !self.in_view(member.node);
        let old = self.members.values().filter(unused).find(|old| old.control == new.control);
        let old = old.map(|old| old.node);
        let count = self.members.len() - usize::from(old.is_some());
        let Some(next) =
            self.next_node.checked_add(1).filter(|_| count < MAX_MEMORY_NODES as usize)
        else {
            return refused("too many memory nodes have joined");
        };
        let node = new.node;
        let mut records = vec![Record::NextNode(next), Record::Member(new.clone())];
        if let Some(old) = old {
            out.push(Action::Log(Level::Info, format!("{node} takes the place of {old}")));
            records.push(Record::Forgotten(old));
            self.members.remove(&old);
            self.present.remove(&old);
            self.abandon_attempt_of(now_ms, old);
        }
        out.push(Action::Persist(records));
        self.next_node = next;
        let waits = if self.view().is_some() { "; the cluster is formed, it waits" } else { "" };
        let text = format!("{node} joined from {}{waits}", new.control);
        out.push(Action::Log(Level::Info, text));
        self.members.insert(node, new);
        self.arrived(now_ms, node);
        MasterReply::Joined { node }
    }

    fn join_again(
        &mut self,
        now_ms: u64,
        known: &Member,
        new: Member,
        out: &mut Actions,
    ) -> MasterReply {
        let node = known.node;
        let new = Member { node, ..new };
        if *known != new {
            if self.in_view(node) {
                return refused(format!(
                    "{node} is part of the view as {}; restart it to join from elsewhere",
                    known.control
                ));
            }
            out.push(Action::Persist(vec![Record::Member(new.clone())]));
            self.members.insert(node, new);
            self.abandon_attempt_of(now_ms, node);
        }
        self.arrived(now_ms, node);
        MasterReply::Joined { node }
    }

    fn arrived(&mut self, now_ms: u64, node: MnId) {
        if self.present.insert(node)
            && let Phase::Forming { try_at_ms, .. } = &mut self.phase
        {
            // What was impossible may be possible with this one.
            *try_at_ms = now_ms;
        }
    }

    fn abandon_attempt_of(&mut self, now_ms: u64, node: MnId) {
        if let Phase::Forming { attempt, .. } = &self.phase
            && attempt.as_ref().is_some_and(|attempt| attempt.includes(node))
        {
            self.abandon_attempt(now_ms);
        }
    }

    fn abandon_attempt(&mut self, try_again_ms: u64) {
        if let Phase::Forming { attempt, try_at_ms, .. } = &mut self.phase {
            *attempt = None;
            *try_at_ms = try_again_ms;
        }
        self.calls.retain(|_, (_, purpose)| *purpose != Purpose::Format);
    }
}

fn refused(reason: impl Into<String>) -> MasterReply {
    MasterReply::Refused { reason: reason.into() }
}

/// A join comes from anybody: its numbers and texts are bounded before they are stored.
fn check_member(member: &Member) -> Result<(), &'static str> {
    let addresses = [Some(&member.control), member.tcp.as_ref(), member.shm.as_ref()];
    if addresses.into_iter().flatten().any(|a| a.is_empty() || a.len() > MAX_ADDRESS_BYTES) {
        return Err("an address must have 1..=512 bytes");
    }
    if member.pool_bytes == 0 {
        return Err("a memory node without memory is of no use; give it a pool");
    }
    Ok(())
}
