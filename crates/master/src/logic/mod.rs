//! The master's decisions: a state machine without sockets, clocks, threads or files.
//!
//! The host passes in [`Event`]s and carries out the resulting [`Action`]s in order. The writes of an
//! [`Action::Persist`] must be durable before any later action is carried out; they may be durable before earlier ones.
//! The master names memory nodes, forms the cluster once enough of them have joined, and then hands out client ids and
//! views. Gets and puts never pass it.
//!
//! Joining and identities:
//!
//! * The master leads one cluster, which an operator has asked for, and refuses requests of other clusters
//!   (`identity`).
//! * A memory node is known by its identity, a random number that it draws when it starts. A repeated join gives the
//!   same name (`roster`). The name of a member is never given again (`names`).
//! * A node with a new identity replaces a node with the same control address that no view uses: two processes cannot
//!   listen at one address, so the old process has ended.
//! * A node that no view uses may join again with other addresses. A node that a view uses may not: sessions hold its
//!   addresses in their views.
//! * Nodes that join a formed cluster become members at once (`admitting`).
//!
//! In a formed cluster:
//!
//! * `presence` decides which sessions have expired and which memory nodes are lost (`losing`).
//! * Heartbeats are answered when there is news (`holding`).
//! * Expired sessions are fenced at all members (`fencing`) before anything follows from their end.
//! * The view goes through its stages (`change`); jobs do the work, and recover clients (`repair`).
//! * Before a view without a former member takes effect, its members show its number (`standing`).
//! * Leases rest on contact with more than half of the members (`contact`).
//! * Slots that may have been read without a master are settled (`barred`).
//! * Missing replicas (`missing`) are added where there is room (`growth`).
//! * Then replicas move until all members have their shares (`rebalance`) and drained members are empty (`draining`).
//! * The index grows when clients find no free slot (`splitting`).
//! * Splits, new regions and missing replicas take turns at changing the view (`turns`).
//! * Jobs look for damage in memory that no client reads (`scrubbing`).
//! * Epochs tell when freed memory may be used again (`epochs`).
//! * Regions are added when clients find no free block (`adding`).
//!
//! Restarts: names, client ids, sessions and the view come from the store. With a view, all pending work follows from
//! the view and the sessions; nothing else is stored. Without a view, the master asks the nodes that it knows whether
//! they still run, and forms the cluster with those that answer or join. The next attempt to form it removes all that
//! an unfinished one has left (see `format`).

mod adding;
mod admitting;
mod barred;
mod change;
mod contact;
mod context;
mod draining;
mod epochs;
mod event;
mod fencing;
mod format;
mod forming;
mod growth;
mod history;
mod holding;
mod identity;
mod joining;
mod losing;
mod missing;
mod names;
mod presence;
pub(crate) mod rebalance;
mod repair;
mod requests;
mod reserving;
mod roster;
mod scrubbing;
mod shortage;
mod splitting;
mod standing;
mod telling;
mod turns;

use fusee_control::master::MasterReply;
use fusee_control::node::NodeReply;
use fusee_core::change::Stage;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::View;

use crate::record::Record;
use crate::sessions::{SessionState, Sessions};
use crate::settings::Settings;
use adding::Adding;
use admitting::Admitting;
use barred::Settling;
use contact::Contact;
use context::{Calls, Ctx, Purpose};
use epochs::Epoch;
pub use event::{Action, Event, RestoreError};
use fencing::Fences;
use forming::Forming;
use growth::Growth;
use history::History;
use holding::Held;
use identity::Identity;
use losing::Losing;
use presence::Presences;
use repair::Repair;
use roster::Roster;
use scrubbing::Scrubbing;
use shortage::Shortage;
use splitting::Splitting;
use standing::Standing;
use telling::Informed;
use turns::Turns;

/// The pause before forming is tried again, or an absent node is asked again.
const RETRY_MS: u64 = 1_000;

#[derive(Debug)]
enum Phase {
    Forming(Forming),
    Formed(View),
}

/// The master: its settings, the calls that it has made, and its state.
#[derive(Debug)]
pub struct Master {
    settings: Settings,
    secret: HashKey,
    calls: Calls,
    state: State,
}

/// The master's knowledge.
#[derive(Debug)]
struct State {
    identity: Identity,
    last_attempt: u64,
    roster: Roster,
    phase: Phase,
    problem: Option<String>,
    sessions: Sessions,
    presences: Presences,
    /// The time, in listened milliseconds, at which the view came into force, or this process learned of it.
    view_heard_ms: u64,
    /// See [`Master::finish`].
    finishes: bool,
    held: Held,
    losing: Losing,
    fences: Fences,
    standing: Standing,
    contact: Contact,
    settling: Settling,
    repair: Repair,
    growth: Growth,
    splitting: Splitting,
    turns: Turns,
    scrubbing: Scrubbing,
    adding: Adding,
    shortage: Shortage,
    admitting: Admitting,
    history: History,
    epochs: Epoch,
    told: Informed,
}

impl Master {
    /// Returns a master that goes on from a store's records. `random` and `secret` are random numbers; the master never
    /// reveals `secret`.
    pub fn restore(
        settings: Settings,
        random: u64,
        secret: HashKey,
        records: Vec<Record>,
    ) -> Result<Master, RestoreError> {
        let state = State::restore(random, records)?;
        Ok(Master { settings, secret, calls: Calls::default(), state })
    }

    /// Returns the cluster that this master leads; `None` until an operator asks for one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.state.identity.own()
    }

    /// Returns the view in force.
    pub fn view(&self) -> Option<&View> {
        self.state.view()
    }

    /// Takes over the settings that a running master may change: see [`Settings::adjust`].
    pub fn adjust(&mut self, new: &Settings) {
        self.settings.adjust(new);
    }

    /// Tells this master that it is to end. From now on it begins no change of the view, nor anything else that the
    /// next master can do as well.
    pub fn finish(&mut self) {
        self.state.finishes = true;
    }

    /// Returns whether no process waits for this master: no change is under way, all open sessions know that, and no
    /// session is to be recovered.
    pub fn is_at_rest(&self) -> bool {
        let state = &self.state;
        state.view().is_none_or(|view| {
            let knows = |session: &SessionState| session.pinned_by >= view.number;
            let all_know = state.sessions.open_sessions().all(|(_, session)| knows(session));
            view.change.is_none() && all_know && state.sessions.expired().next().is_none()
        })
    }

    /// Decides about an event. `now_ms` never decreases, and counts the time in which the machine sleeps; its origin
    /// does not matter.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let Master { settings, secret, calls, state } = self;
        let mut ctx = Ctx::new(now_ms, settings, *secret, calls);
        state.handle(&mut ctx, event);
        ctx.into_actions()
    }
}

impl State {
    /// Returns the state of a master over an empty store.
    fn new(random: u64) -> State {
        State {
            identity: Identity::default(),
            last_attempt: 0,
            roster: Roster::default(),
            phase: Phase::Forming(Forming::default()),
            problem: None,
            sessions: Sessions::new(1),
            presences: Presences::default(),
            view_heard_ms: 0,
            finishes: false,
            held: Held::default(),
            losing: Losing::default(),
            fences: Fences::default(),
            standing: Standing::default(),
            contact: Contact::new(random),
            settling: Settling::default(),
            repair: Repair::default(),
            growth: Growth::default(),
            splitting: Splitting::default(),
            turns: Turns::default(),
            scrubbing: Scrubbing::default(),
            adding: Adding::default(),
            shortage: Shortage::new(random),
            admitting: Admitting::default(),
            history: History::default(),
            epochs: Epoch::default(),
            told: Informed::default(),
        }
    }

    fn restore(random: u64, records: Vec<Record>) -> Result<State, RestoreError> {
        let mut state = State::new(random);
        // Without a cluster, the other records are remainders of a destroyed one.
        let is_formed = records.iter().any(|record| matches!(record, Record::Cluster(_)));
        let is_rest =
            |record: &Record| !matches!(record, Record::Destroyed(_) | Record::Events { .. });
        if !is_formed && records.iter().any(is_rest) {
            state.identity.restore_leftovers();
        }
        let counts = |record: &Record| is_formed || matches!(record, Record::Destroyed(_));
        for record in records.into_iter().filter(counts) {
            state.recall(record)?;
        }
        if state.view().is_some_and(|view| state.identity.own() != Some(view.cluster)) {
            return Err(RestoreError::Cluster);
        }
        Ok(state)
    }

    fn recall(&mut self, record: Record) -> Result<(), RestoreError> {
        match record {
            Record::Cluster(cluster) => self.identity.restore_own(cluster),
            Record::Attempt(attempt) => {
                self.last_attempt = attempt;
                self.identity.restore_new();
            }
            Record::NextNode(_)
            | Record::FreeNames(_)
            | Record::Member(_)
            | Record::Lost(_)
            | Record::Draining(_)
            | Record::Drained(_) => self.roster.restore(record),
            Record::ClientIds { end } => self.sessions.restore_ids(end),
            Record::Epochs { end } => self.epochs.restore(end),
            Record::Session { client, expired, handed_on } => {
                self.sessions.restore_session(client, expired, handed_on);
                if expired {
                    self.fences.add(client);
                }
            }
            Record::Repairer(client) => self.retire(client),
            Record::Orphan(orphan) => self.sessions.restore_orphan(orphan),
            // The host keeps the events.
            Record::Events { .. } => {}
            Record::Destroyed(cluster) => self.identity.restore_destroyed(cluster),
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

    /// Returns the view in force.
    fn view(&self) -> Option<&View> {
        match &self.phase {
            Phase::Formed(view) => Some(view),
            Phase::Forming(_) => None,
        }
    }

    fn handle(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let is_tick = matches!(event, Event::Tick);
        // Jobs run inside of the host: the end of one does not show that the host has taken in messages.
        if !matches!(event, Event::JobDone { .. }) {
            self.presences.pass(ctx.now_ms, ctx.settings.lease);
        }
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
            Event::Fetching { connection } => self.fetching(connection),
            Event::NodeAnswer { node, token, result } => {
                if let Some(purpose) = ctx.calls.answered(node, token) {
                    self.node_answered(ctx, node, token, purpose, result);
                }
            }
            Event::JobDone { token, result } => self.job_done(ctx, token, result),
            Event::Tick => {}
        }
        self.proceed(ctx);
        self.reconcile(ctx, is_tick);
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
        // Also if the answer is not needed any more.
        let is_for_room = matches!(purpose, Purpose::Grow | Purpose::Split | Purpose::AddRegions);
        if is_for_room && result.is_err() {
            self.probe(ctx, node);
        }
        match purpose {
            Purpose::Look => self.looked(ctx, node, result),
            Purpose::Format => self.format_answered(ctx, node, result),
            Purpose::Probe => self.probed(ctx, node, result),
            Purpose::Fence(clients) => self.fence_answered(ctx, node, &clients, &result),
            // A lost answer does no harm: the next such call has the same effect.
            Purpose::Forget => {}
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
