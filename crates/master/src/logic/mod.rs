//! What the master decides: a state machine without sockets, clocks, threads or files.
//!
//! The host feeds [`Event`]s and carries out the [`Action`]s of each in their order; an
//! [`Action::Persist`] has to be durable before any later one, and may be before an earlier one.
//! The master names memory nodes, forms the cluster once enough of them are there, and from then on
//! hands out client ids and the view. Gets and puts never come here.
//!
//! Joining and identities:
//!
//! * It leads one cluster, which somebody has asked for, and hears nobody of another one (`identity`).
//! * A memory node is known by its identity, a random number that it draws when it starts. A join
//!   may be repeated: it gives the same name. Names of members are never given twice (`names`).
//! * A new identity at the control address of a node that no view uses takes its place: two
//!   processes cannot listen at one address, so the old one is gone.
//! * While no view uses a node, it may join again with other addresses. Once one does, that is
//!   refused: sessions hold the addresses in their views.
//! * Nodes that join a formed cluster become members at once (`admitting`).
//!
//! When the cluster is formed:
//!
//! * Who is gone is decided in `presence`: sessions are given up, memory nodes are lost.
//! * What is given up is shut out at all members (`fencing`) before anything follows from it.
//! * The view goes through its stages (`change`), jobs are started, clients are recovered.
//! * Members show the number of the view before one without a member takes effect (`standing`).
//! * Leases rest on contact with more than half of the members (`contact`).
//! * What may have been read without a master is settled (`barred`).
//! * Missing replicas are added where there is room (`growth`).
//! * Then replicas move until all members have their shares (`balance`), and those that are drained
//!   nothing (`draining`).
//! * The index grows when clients find no room in it (`splitting`).
//! * Memory that nobody reads is looked at for damage (`scrubbing`).
//! * Epochs say when memory may be used again (`epochs`).
//! * Regions are added when clients find no free block (`adding`).
//!
//! Restarts: names, client ids, sessions and the view come back from the store. With a view, all
//! that is to be done follows from it and from the sessions; nothing else is remembered. Without
//! a view, the master asks the nodes it knows whether they are still there, and forms the cluster
//! with those that answer or join: an unfinished attempt to form it leaves nothing that the next
//! does not sweep away (see `format`).

mod adding;
mod admitting;
pub(crate) mod balance;
mod barred;
mod change;
mod contact;
mod context;
mod draining;
mod epochs;
mod fencing;
mod format;
mod forming;
mod growth;
mod history;
mod identity;
mod joining;
mod names;
mod presence;
mod requests;
mod reserving;
mod scrubbing;
mod shortage;
mod splitting;
mod standing;
mod telling;

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::Caller;
use fusee_core::change::Stage;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::{Member, View, ViewError};

use crate::jobs::{Job, JobError, JobReport};
use crate::record::{Record, Write};
use crate::sessions::Sessions;
use crate::settings::Settings;
use adding::Adding;
use admitting::Admitting;
use barred::Settling;
use change::Repair;
use contact::Contact;
use context::{Calls, Ctx, Purpose};
use epochs::Epoch;
use fencing::Fences;
use format::Attempt;
use growth::Growth;
use history::History;
use names::Names;
use presence::Presences;
use scrubbing::Scrubbing;
use shortage::Shortage;
use splitting::Splitting;
use standing::Standing;
use telling::Told;

/// How long to wait before forming is tried again, or an absent node is asked again.
const RETRY_MS: u64 = 1_000;

/// What happens to the master.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody asks; the token comes back with the reply, which may take its time.
    Request {
        /// Names the request.
        token: u64,
        /// Who asks. Connection 0 is one that never closes, inside of the process.
        caller: Caller,
        /// What is asked.
        request: MasterRequest,
    },
    /// A connection has ended; no request comes over it any more.
    ConnectionClosed {
        /// Which.
        connection: u64,
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
    /// A job has ended: no verb of it is posted any more.
    JobDone {
        /// The job's token.
        token: u64,
        /// What came of it.
        result: Result<JobReport, JobError>,
    },
    /// Time passes, and nothing else that has happened is left to be told: only now is somebody
    /// taken for dead, who may have spoken meanwhile. To be given at start, and then at least eight
    /// times in a lease: after half a lease without any event the master counts as having been
    /// away, and nothing expires.
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
// An action is carried out as soon as it is made: a few of them exist at a time.
#[allow(clippy::large_enum_variant)]
pub enum Action {
    /// Change the store: all of these or none, durably before any later action.
    Persist(Vec<Write>),
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
    /// Run a job ([`jobs::run`](crate::jobs::run)) with a fabric session of its own to all members
    /// of the view, and report when both have ended. There is never a second one at a time.
    Job {
        /// Comes back with the result.
        token: u64,
        /// Whose name the fabric session has.
        client: ClientId,
        /// By which view.
        view: Box<View>,
        /// What to do.
        job: Job,
    },
    /// Remove all records but those of destroyed clusters, some at a time: none of them counts any more. To
    /// be done before anything of a later event.
    Clear,
    /// Tell people.
    Log(Level, String),
}

/// Why a store's contents cannot be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The view is broken.
    #[error("the stored view is unusable: {0}")]
    View(#[from] ViewError),
    /// The view is not of the cluster that the store is of.
    #[error("the stored view is of another cluster than the store: restore the store from a copy")]
    Cluster,
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

/// The master: its settings, the calls that it has made, and its [`State`].
#[derive(Debug)]
pub struct Master {
    settings: Settings,
    calls: Calls,
    state: State,
}

/// What the master knows.
#[derive(Debug)]
struct State {
    /// `None` until somebody asks for one.
    cluster: Option<ClusterId>,
    /// Those that were given up here.
    destroyed: BTreeSet<ClusterId>,
    /// Other clusters whose members or clients have come here.
    strangers: BTreeSet<ClusterId>,
    last_attempt: u64,
    members: BTreeMap<MnId, Member>,
    /// Members once; the cluster goes on without them.
    lost: BTreeMap<MnId, Member>,
    /// Members that are to leave.
    draining: BTreeSet<MnId>,
    /// Those that have left in good order.
    drained: BTreeMap<MnId, Member>,
    names: Names,
    /// Members that have spoken to this process.
    present: BTreeSet<MnId>,
    phase: Phase,
    problem: Option<String>,
    sessions: Sessions,
    presences: Presences,
    fences: Fences,
    standing: Standing,
    contact: Contact,
    settling: Settling,
    repair: Repair,
    growth: Growth,
    splitting: Splitting,
    scrubbing: Scrubbing,
    adding: Adding,
    shortage: Shortage,
    admitting: Admitting,
    history: History,
    epochs: Epoch,
    told: Told,
}

impl Master {
    /// A master that goes on from a store's records. `random` is a random number.
    pub fn restore(
        settings: Settings,
        random: u64,
        records: Vec<Record>,
    ) -> Result<Master, RestoreError> {
        let state = State::restore(random, records)?;
        Ok(Master { settings, calls: Calls::default(), state })
    }

    /// The cluster that it leads; `None` until one is to be formed.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.state.cluster
    }

    /// The view in force.
    pub fn view(&self) -> Option<&View> {
        self.state.view()
    }

    /// Decides about an event. `now_ms` grows; where it starts does not matter.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let Master { settings, calls, state } = self;
        let mut ctx = Ctx::new(now_ms, settings, calls);
        state.handle(&mut ctx, event);
        ctx.into_actions()
    }
}

impl State {
    /// Of a master over an empty store.
    fn new(random: u64) -> State {
        State {
            cluster: None,
            destroyed: BTreeSet::new(),
            strangers: BTreeSet::new(),
            last_attempt: 0,
            members: BTreeMap::new(),
            lost: BTreeMap::new(),
            draining: BTreeSet::new(),
            drained: BTreeMap::new(),
            names: Names::default(),
            present: BTreeSet::new(),
            phase: Phase::Forming { attempt: None, try_at_ms: 0, look_at_ms: 0 },
            problem: None,
            sessions: Sessions::new(1),
            presences: Presences::default(),
            fences: Fences::default(),
            standing: Standing::default(),
            contact: Contact::new(random),
            settling: Settling::default(),
            repair: Repair::default(),
            growth: Growth::default(),
            splitting: Splitting::default(),
            scrubbing: Scrubbing::default(),
            adding: Adding::default(),
            shortage: Shortage::new(random),
            admitting: Admitting::default(),
            history: History::default(),
            epochs: Epoch::default(),
            told: Told::default(),
        }
    }

    fn restore(random: u64, records: Vec<Record>) -> Result<State, RestoreError> {
        let mut state = State::new(random);
        // Without a cluster the rest is what was left when one was destroyed.
        let is_formed = records.iter().any(|record| matches!(record, Record::Cluster(_)));
        let counts = |record: &Record| is_formed || matches!(record, Record::Destroyed(_));
        for record in records.into_iter().filter(counts) {
            state.recall(record)?;
        }
        if state.view().is_some_and(|view| state.cluster != Some(view.cluster)) {
            return Err(RestoreError::Cluster);
        }
        Ok(state)
    }

    fn recall(&mut self, record: Record) -> Result<(), RestoreError> {
        match record {
            Record::Cluster(cluster) => self.cluster = Some(cluster),
            Record::Attempt(attempt) => self.last_attempt = attempt,
            Record::NextNode(next) => self.names.restore_next(next),
            Record::FreeNames(free) => self.names.restore_free(free),
            Record::Member(member) => drop(self.members.insert(member.node, member)),
            Record::Lost(member) => drop(self.lost.insert(member.node, member)),
            Record::Draining(node) => drop(self.draining.insert(node)),
            Record::Drained(member) => drop(self.drained.insert(member.node, member)),
            Record::ClientIds { end } => self.sessions.restore_ids(end),
            Record::Epochs { end } => self.epochs.restore(end),
            Record::Session { client, given_up, handed_on } => {
                self.sessions.restore_session(client, given_up, handed_on);
                if given_up {
                    self.fences.add(client);
                }
            }
            Record::Repairer(client) => self.retire(client),
            Record::Leftover(leftover) => self.sessions.restore_leftover(leftover),
            Record::Destroyed(cluster) => drop(self.destroyed.insert(cluster)),
            Record::Former(former) => self.standing.restore_former(former),
            Record::Settled { before, barred } => self.settling.restore(before, barred),
            Record::View(view) => {
                view.check()?;
                self.standing.restore_number(view.number);
                let stage = view.change.as_ref().map(|change| change.stage);
                self.settling.restore_frozen(stage == Some(Stage::Frozen));
                self.phase = Phase::Formed(view);
            }
        }
        Ok(())
    }

    /// The view in force.
    fn view(&self) -> Option<&View> {
        match &self.phase {
            Phase::Formed(view) => Some(view),
            Phase::Forming { .. } => None,
        }
    }

    fn handle(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let is_tick = matches!(event, Event::Tick);
        self.presences.pass(ctx.now_ms, ctx.settings.lease);
        match event {
            Event::Request { token, caller, request } => {
                let reply = self
                    .identify(ctx, caller.cluster, &request)
                    .or_else(|| self.answer(ctx, caller, token, request));
                if let Some(reply) = reply {
                    ctx.push(Action::Reply { token, reply });
                }
            }
            Event::ConnectionClosed { connection } => self.connection_closed(ctx, connection),
            Event::NodeAnswer { node, token, result } => {
                if let Some(purpose) = ctx.calls.answered(node, token) {
                    self.node_answered(ctx, node, token, purpose, result);
                }
            }
            Event::JobDone { token, result } => self.job_done(ctx, token, result),
            Event::Tick => {}
        }
        self.proceed(ctx);
        self.keep_whole(ctx, is_tick);
        self.next_epoch(ctx);
        self.follow_contact(ctx);
        self.answer_waiting(ctx);
    }

    fn node_answered(
        &mut self,
        ctx: &mut Ctx<'_>,
        node: MnId,
        token: u64,
        purpose: Purpose,
        result: Result<NodeReply, String>,
    ) {
        match purpose {
            Purpose::Look => self.looked(ctx, node, result),
            Purpose::Format => self.format_answered(ctx, node, result),
            Purpose::Probe => self.probed(ctx, node, result),
            Purpose::Fence(clients) => self.fence_answered(ctx, node, &clients, &result),
            Purpose::Stand(number) => self.stood(ctx, node, number, result),
            Purpose::Unbar => self.unbarred(ctx, node, result),
            Purpose::Grow => self.grow_answered(ctx, token, result),
            Purpose::Split => self.split_answered(ctx, node, token, result),
            Purpose::Admit => self.admit_answered(ctx, token, result),
            Purpose::AddRegions => self.add_answered(ctx, node, token, result),
        }
    }

    fn in_view(&self, node: MnId) -> bool {
        self.view().is_some_and(|view| view.member(node).is_some())
    }
}

fn refused(reason: impl Into<String>) -> MasterReply {
    MasterReply::Refused { reason: reason.into() }
}
