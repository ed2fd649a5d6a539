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
//!   may be repeated: it gives the same name (`roster`). Names of members are never given twice
//!   (`names`).
//! * A new identity at the control address of a node that no view uses takes its place: two
//!   processes cannot listen at one address, so the old one is gone.
//! * While no view uses a node, it may join again with other addresses. Once one does, that is
//!   refused: sessions hold the addresses in their views.
//! * Nodes that join a formed cluster become members at once (`admitting`).
//!
//! When the cluster is formed:
//!
//! * Who is gone is decided in `presence`: sessions have expired, memory nodes are lost (`losing`).
//! * Heartbeats are answered when there is something to say (`holding`).
//! * What has expired is fenced at all members (`fencing`) before anything follows from it.
//! * The view goes through its stages (`change`), jobs are started, clients are recovered (`repair`).
//! * Members show the number of the view before one without a member takes effect (`standing`).
//! * Leases rest on contact with more than half of the members (`contact`).
//! * What may have been read without a master is settled (`barred`).
//! * Missing replicas (`missing`) are added where there is room (`growth`).
//! * Then replicas move until all members have their shares (`rebalance`), and those that are drained
//!   nothing (`draining`).
//! * The index grows when clients find no room in it (`splitting`).
//! * Where several of these want a change, they take turns (`turns`).
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

/// How long to wait before forming is tried again, or an absent node is asked again.
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

/// What the master knows.
#[derive(Debug)]
struct State {
    identity: Identity,
    last_attempt: u64,
    roster: Roster,
    phase: Phase,
    problem: Option<String>,
    sessions: Sessions,
    presences: Presences,
    /// Since when the view is in force, or this process knows it: what had been listened by then.
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
    /// A master that goes on from a store's records. `random` is a random number, and so is `secret`, which it tells
    /// nobody.
    pub fn restore(
        settings: Settings,
        random: u64,
        secret: HashKey,
        records: Vec<Record>,
    ) -> Result<Master, RestoreError> {
        let state = State::restore(random, records)?;
        Ok(Master { settings, secret, calls: Calls::default(), state })
    }

    /// The cluster that it leads; `None` until one is to be formed.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.state.identity.own()
    }

    /// The view in force.
    pub fn view(&self) -> Option<&View> {
        self.state.view()
    }

    /// Takes over settings that may change: see [`Settings::adjust`].
    pub fn adjust(&mut self, new: &Settings) {
        self.settings.adjust(new);
    }

    /// From now on no change of the view is begun, and nothing else that the next master can do as well: this one is to
    /// end.
    pub fn finish(&mut self) {
        self.state.finishes = true;
    }

    /// Whether nobody waits for this master: no change is under way, all sessions know that, and none is to be
    /// recovered.
    pub fn is_at_rest(&self) -> bool {
        let state = &self.state;
        state.view().is_none_or(|view| {
            let knows = |session: &SessionState| session.pinned_by >= view.number;
            let all_know = state.sessions.open_sessions().all(|(_, session)| knows(session));
            view.change.is_none() && all_know && state.sessions.expired().next().is_none()
        })
    }

    /// Decides about an event. `now_ms` grows, also while the machine sleeps; where it starts does not matter.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Action> {
        let Master { settings, secret, calls, state } = self;
        let mut ctx = Ctx::new(now_ms, settings, *secret, calls);
        state.handle(&mut ctx, event);
        ctx.into_actions()
    }
}

impl State {
    /// Of a master over an empty store.
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
        // Without a cluster the rest is what was left when one was destroyed.
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
            // Those are the host's.
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

    /// The view in force.
    fn view(&self) -> Option<&View> {
        match &self.phase {
            Phase::Formed(view) => Some(view),
            Phase::Forming(_) => None,
        }
    }

    fn handle(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let is_tick = matches!(event, Event::Tick);
        // The end of a job says nothing of what comes from outside.
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
        // Also if nobody waits for that answer any more.
        let is_for_room = matches!(purpose, Purpose::Grow | Purpose::Split | Purpose::AddRegions);
        if is_for_room && result.is_err() {
            self.probe(ctx, node);
        }
        match purpose {
            Purpose::Look => self.looked(ctx, node, result),
            Purpose::Format => self.format_answered(ctx, node, result),
            Purpose::Probe => self.probed(ctx, node, result),
            Purpose::Fence(clients) => self.fence_answered(ctx, node, &clients, &result),
            // Should it not have come, the next one does.
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
