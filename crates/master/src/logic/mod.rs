//! The master's decisions: a state machine without sockets, clocks, threads or files.
//!
//! The host passes in [`MasterEvent`]s and carries out the resulting [`MasterAction`]s in order. The writes of an
//! [`MasterAction::Persist`] must be durable before any later action is carried out; they may be durable before
//! earlier ones. The master names memory nodes, forms the cluster once enough of them have joined, and then hands out
//! client ids and views. Gets and puts never pass it.
//!
//! Joining and identities:
//!
//! * The master leads one cluster, which an operator has asked for, and refuses requests of other clusters
//!   (`identity`).
//! * A memory node is known by its identity, a random number that it draws when it starts. A repeated join gives the
//!   same name (`roster`). The name of a member is never given again (`node_names`).
//! * A node with a new identity replaces a node with the same control address that no view uses: two processes cannot
//!   listen at one address, so the old process has ended.
//! * A node that no view uses may join again with other addresses. A node that a view uses may not: sessions hold its
//!   addresses in their views.
//! * Nodes that join a formed cluster become members at once (`admitting`).
//!
//! In a formed cluster:
//!
//! * `failure_detector` decides which sessions have expired and which memory nodes are lost (`losing`).
//! * Heartbeats are answered when there is news (`held_heartbeats`).
//! * Expired sessions are fenced at all members (`fencing`) before anything follows from their end.
//! * The view goes through its stages (`change`); jobs do the work, and recover clients (`repair`).
//! * Before a view without a former member takes effect, its members show its number (`standing`).
//! * Leases rest on contact with more than half of the members (`contact`).
//! * Slots that may have been read without a master are settled (`barred`).
//! * Missing replicas (`missing_replicas`) are added where there is room (`growth`).
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
//! an unfinished one has left (see `formation_attempt`).

mod admission;
mod bar_settlement;
mod change;
mod change_history;
mod change_rotation;
mod cluster_identity;
mod contact;
mod context;
mod draining;
mod epochs;
mod event;
mod failure_detector;
mod fencing;
mod formation;
mod formation_attempt;
mod held_heartbeats;
mod job_scheduler;
mod joining;
mod member_loss;
mod member_views;
mod missing_replicas;
mod node_names;
pub(crate) mod rebalance;
mod region_addition;
mod replica_addition;
mod requests;
mod reservation;
mod roster;
mod scrubbing;
mod shortage;
mod splitting;
mod view_updates;

use fusee_control::master::MasterReply;
use fusee_control::node::NodeReply;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

use crate::record::MasterRecord;
use crate::sessions::{SessionRegistry, SessionState};
use crate::settings::ClusterSettings;
use admission::MemberAdmission;
use bar_settlement::BarSettlement;
use change_history::ChangeHistory;
use change_rotation::ChangeRotation;
use cluster_identity::ClusterIdentity;
use contact::Contact;
use context::{CallPurpose, EventContext, NodeCalls};
use epochs::EpochCounter;
pub use event::{MasterAction, MasterEvent, RestoreError};
use failure_detector::FailureDetector;
use fencing::Fences;
use formation::FormationProgress;
use held_heartbeats::HeldHeartbeats;
use job_scheduler::JobScheduler;
use member_loss::FailedMembers;
use member_views::MemberViews;
use region_addition::RegionAddition;
use replica_addition::ReplicaAddition;
use roster::Roster;
use scrubbing::ScrubState;
use shortage::MemoryShortage;
use splitting::SubtableSplits;
use view_updates::ViewUpdateCache;

/// The pause before forming is tried again, or an absent node is asked again.
const RETRY_MS: u64 = 1_000;

#[derive(Debug)]
enum FormationState {
    Forming(FormationProgress),
    Formed(View),
}

/// The master: its settings, the calls that it has made, and its state.
#[derive(Debug)]
pub struct MasterLogic {
    settings: ClusterSettings,
    secret: HashKey,
    calls: NodeCalls,
    state: MasterState,
}

/// The master's knowledge.
#[derive(Debug)]
struct MasterState {
    identity: ClusterIdentity,
    last_attempt: u64,
    roster: Roster,
    phase: FormationState,
    problem: Option<String>,
    sessions: SessionRegistry,
    presences: FailureDetector,
    /// The time, in listened milliseconds, at which the view came into force, or this process learned of it.
    view_heard_ms: u64,
    /// See [`MasterLogic::finish`].
    finishes: bool,
    held: HeldHeartbeats,
    losing: FailedMembers,
    fences: Fences,
    standing: MemberViews,
    contact: Contact,
    settling: BarSettlement,
    repair: JobScheduler,
    growth: ReplicaAddition,
    splitting: SubtableSplits,
    turns: ChangeRotation,
    scrubbing: ScrubState,
    adding: RegionAddition,
    shortage: MemoryShortage,
    admitting: MemberAdmission,
    history: ChangeHistory,
    epochs: EpochCounter,
    told: ViewUpdateCache,
}

impl MasterLogic {
    /// Returns a master that goes on from a store's records. `random` and `secret` are random numbers; the master never
    /// reveals `secret`.
    pub fn restore(
        settings: ClusterSettings,
        random: u64,
        secret: HashKey,
        records: Vec<MasterRecord>,
    ) -> Result<MasterLogic, RestoreError> {
        let state = MasterState::restore(random, records)?;
        Ok(MasterLogic { settings, secret, calls: NodeCalls::default(), state })
    }

    /// Returns the cluster that this master leads; `None` until an operator asks for one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.state.identity.cluster()
    }

    /// Returns the view in force.
    pub fn view(&self) -> Option<&View> {
        self.state.view()
    }

    /// Takes over the settings that a running master may change: see [`ClusterSettings::adjust`].
    pub fn adjust(&mut self, new: &ClusterSettings) {
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
    pub fn handle(&mut self, now_ms: u64, event: MasterEvent) -> Vec<MasterAction> {
        let MasterLogic { settings, secret, calls, state } = self;
        let mut ctx = EventContext::new(now_ms, settings, *secret, calls);
        state.handle(&mut ctx, event);
        ctx.into_actions()
    }
}

impl MasterState {
    /// Returns the state of a master over an empty store.
    fn new(random: u64) -> MasterState {
        MasterState {
            identity: ClusterIdentity::default(),
            last_attempt: 0,
            roster: Roster::default(),
            phase: FormationState::Forming(FormationProgress::default()),
            problem: None,
            sessions: SessionRegistry::new(1),
            presences: FailureDetector::default(),
            view_heard_ms: 0,
            finishes: false,
            held: HeldHeartbeats::default(),
            losing: FailedMembers::default(),
            fences: Fences::default(),
            standing: MemberViews::default(),
            contact: Contact::new(random),
            settling: BarSettlement::default(),
            repair: JobScheduler::default(),
            growth: ReplicaAddition::default(),
            splitting: SubtableSplits::default(),
            turns: ChangeRotation::default(),
            scrubbing: ScrubState::default(),
            adding: RegionAddition::default(),
            shortage: MemoryShortage::new(random),
            admitting: MemberAdmission::default(),
            history: ChangeHistory::default(),
            epochs: EpochCounter::default(),
            told: ViewUpdateCache::default(),
        }
    }

    fn restore(random: u64, records: Vec<MasterRecord>) -> Result<MasterState, RestoreError> {
        let mut state = MasterState::new(random);
        // Without a cluster, the other records are remainders of a destroyed one.
        let is_formed = records.iter().any(|record| matches!(record, MasterRecord::Cluster(_)));
        let is_rest = |record: &MasterRecord| {
            !matches!(record, MasterRecord::Destroyed(_) | MasterRecord::Events { .. })
        };
        if !is_formed && records.iter().any(is_rest) {
            state.identity.restore_leftovers();
        }
        let counts =
            |record: &MasterRecord| is_formed || matches!(record, MasterRecord::Destroyed(_));
        for record in records.into_iter().filter(counts) {
            state.recall(record)?;
        }
        if state.view().is_some_and(|view| state.identity.cluster() != Some(view.cluster)) {
            return Err(RestoreError::Cluster);
        }
        Ok(state)
    }

    fn recall(&mut self, record: MasterRecord) -> Result<(), RestoreError> {
        match record {
            MasterRecord::Cluster(cluster) => self.identity.restore_own(cluster),
            MasterRecord::Attempt(attempt) => {
                self.last_attempt = attempt;
                self.identity.restore_new();
            }
            MasterRecord::NextNode(_)
            | MasterRecord::FreeNames(_)
            | MasterRecord::Member(_)
            | MasterRecord::Lost(_)
            | MasterRecord::Draining(_)
            | MasterRecord::Drained(_) => self.roster.restore(record),
            MasterRecord::ClientIds { end } => self.sessions.restore_ids(end),
            MasterRecord::Epochs { end } => self.epochs.restore(end),
            MasterRecord::Session { client, expired, handed_on } => {
                self.sessions.restore_session(client, expired, handed_on);
                if expired {
                    self.fences.add(client);
                }
            }
            MasterRecord::Repairer(client) => self.retire(client),
            MasterRecord::Orphan(orphan) => self.sessions.restore_orphan(orphan),
            // The host keeps the events.
            MasterRecord::Events { .. } => {}
            MasterRecord::Destroyed(cluster) => self.identity.restore_destroyed(cluster),
            MasterRecord::Former(former) => self.standing.restore_former(former),
            MasterRecord::Settled { before, barred } => self.settling.restore(before, barred),
            MasterRecord::View(view) => {
                view.check()?;
                self.standing.restore_number(view.number);
                let stage = view.change.as_ref().map(|change| change.stage);
                self.settling.restore_frozen(stage == Some(ChangeStage::Frozen));
                self.phase = FormationState::Formed(view);
            }
        }
        Ok(())
    }

    /// Returns the view in force.
    fn view(&self) -> Option<&View> {
        match &self.phase {
            FormationState::Formed(view) => Some(view),
            FormationState::Forming(_) => None,
        }
    }

    fn handle(&mut self, ctx: &mut EventContext<'_>, event: MasterEvent) {
        let is_tick = matches!(event, MasterEvent::Tick);
        // Jobs run inside of the host: the end of one does not show that the host has taken in messages.
        if !matches!(event, MasterEvent::JobDone { .. }) {
            self.presences.pass(ctx.now_ms, ctx.settings.lease);
        }
        match event {
            MasterEvent::Request { token, caller, request } => {
                let reply = self
                    .identify(ctx, caller.cluster, &request)
                    .or_else(|| self.answer(ctx, caller, token, request));
                if let Some(reply) = reply {
                    ctx.push(MasterAction::Reply { token, reply });
                }
            }
            MasterEvent::ConnectionClosed { connection } => self.connection_closed(ctx, connection),
            MasterEvent::Fetching { connection } => self.fetching(connection),
            MasterEvent::NodeAnswer { node, token, result } => {
                if let Some(purpose) = ctx.calls.answered(node, token) {
                    self.node_answered(ctx, node, token, purpose, result);
                }
            }
            MasterEvent::JobDone { token, result } => self.job_done(ctx, token, result),
            MasterEvent::Tick => {}
        }
        self.proceed(ctx);
        self.reconcile(ctx, is_tick);
        self.next_epoch(ctx);
        self.follow_contact(ctx);
        self.answer_waiting(ctx);
    }

    fn node_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        token: u64,
        purpose: CallPurpose,
        result: Result<NodeReply, String>,
    ) {
        // Also if the answer is not needed any more.
        let is_for_room =
            matches!(purpose, CallPurpose::Grow | CallPurpose::Split | CallPurpose::AddRegions);
        if is_for_room && result.is_err() {
            self.probe(ctx, node);
        }
        match purpose {
            CallPurpose::Look => self.look_answered(ctx, node, result),
            CallPurpose::Format => self.format_answered(ctx, node, result),
            CallPurpose::Probe => self.probe_answered(ctx, node, result),
            CallPurpose::Fence(clients) => self.fence_answered(ctx, node, &clients, &result),
            // A lost answer does no harm: the next such call has the same effect.
            CallPurpose::Forget => {}
            CallPurpose::Stand(number) => self.stand_answered(ctx, node, number, result),
            CallPurpose::Unbar => self.unbar_answered(ctx, node, result),
            CallPurpose::Grow => self.grow_answered(ctx, token, result),
            CallPurpose::Split => self.split_answered(ctx, node, token, result),
            CallPurpose::Admit => self.admit_answered(ctx, token, result),
            CallPurpose::AddRegions => self.add_answered(ctx, node, token, result),
        }
    }

    fn in_view(&self, node: MnId) -> bool {
        self.view().is_some_and(|view| view.member(node).is_some())
    }
}

fn refused(reason: impl Into<String>) -> MasterReply {
    MasterReply::Refused { reason: reason.into() }
}
