//! The master's decisions: a state machine without sockets, clocks, threads or files.
//!
//! The host passes in [`MasterEvent`]s and carries out the resulting [`MasterAction`]s in order. Before it carries out
//! any action that follows a [`MasterAction::Persist`], the writes of that `Persist` must be durable; they are allowed
//! to become durable before earlier actions are carried out.
//!
//! Each concern is a type with a state of its own. A concern reads the facts of the cluster (`facts`) and makes
//! decisions (`decision`); only `apply` carries decisions out.
//!
//! Joining and identities:
//!
//! * The master leads one cluster, which an operator has requested, and refuses requests of other clusters
//!   (`cluster_identity`). It forms that cluster when enough memory nodes have joined (`formation`).
//! * The master recognizes a memory node by its identity, a random number that the node draws when it starts. A node
//!   that joins repeatedly gets the same name each time (`roster`). A member's name is never given to another node
//!   (`node_names`).
//! * A node with a new identity replaces a node with the same control address that no view uses: two processes cannot
//!   listen at one address, so the old process has ended.
//! * A node that no view uses is allowed to join again with other addresses. A node that a view uses is not, because
//!   sessions know its addresses from their views.
//! * Nodes that join a formed cluster become members at once (`admission`).
//!
//! In a formed cluster:
//!
//! * `failure_detector` decides which sessions have expired and which memory nodes are lost (`member_loss`).
//! * A heartbeat is answered when the master has something new to say, or after a part of a lease (`held_heartbeats`).
//! * All members fence an expired session (`fencing`) before the master acts on the session's end.
//! * A change takes the view through its stages (`change`). Jobs do the work of the stages, and recover clients
//!   (`job_scheduler`).
//! * Before a view without a former member takes effect, the remaining members show its number (`member_views`).
//! * A lease begins at the latest contact with more than half of the members, or at the heartbeat if that is earlier
//!   (`contact`).
//! * Slots that sessions have possibly read from backups, while no master ran, are settled (`bar_settlement`).
//! * Missing replicas (`missing_replicas`) are added where there is room (`replica_addition`).
//! * Then replicas move until all members have their shares (`rebalance`) and drained members are empty (`draining`).
//! * The index grows when clients find no free slot (`splitting`).
//! * Regions are added when clients find no free block (`region_addition`).
//! * Splits, new regions and missing replicas take turns at changing the view (`change_rotation`).
//! * Jobs look for damage in memory that no client reads (`scrubbing`).
//! * Epochs tell when freed memory can be used again (`epochs`).
//!
//! Restarts: names, client ids, sessions and the view come from the store. If there is a view, all pending work follows
//! from the view and the sessions, so no other plan is stored. Without a view, the master asks the nodes that it knows
//! whether they still run, and forms the cluster with the nodes that answer or join. The next attempt to form the
//! cluster releases everything that an unfinished attempt has reserved (`formation_attempt`).

mod admission;
mod apply;
mod bar_settlement;
mod change;
mod change_history;
mod change_rotation;
mod cluster_identity;
mod contact;
mod context;
mod decision;
mod draining;
mod epochs;
mod event;
mod facts;
mod failure_detector;
mod fencing;
mod formation;
mod formation_attempt;
mod held_heartbeats;
mod job_reports;
mod job_scheduler;
mod joining;
mod member_loss;
mod member_views;
mod missing_replicas;
mod node_names;
mod orphans;
pub(crate) mod rebalance;
mod region_addition;
mod replica_addition;
mod requests;
mod reservation;
mod roster;
mod scrubbing;
mod shortage;
mod splitting;
mod status;
mod view_updates;

use fusee_control::master::MasterReply;
use fusee_control::node::NodeReply;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::View;
use fusee_core::view::change::ChangeStage;

use self::admission::MemberAdmission;
use self::bar_settlement::BarSettlement;
use self::change_history::ChangeHistory;
use self::change_rotation::ChangeRotation;
use self::cluster_identity::ClusterIdentity;
use self::contact::Contact;
use self::context::{CallPurpose, EventContext, NodeCalls};
use self::decision::Decision;
use self::epochs::EpochCounter;
pub use self::event::{MasterAction, MasterEvent, RestoreError};
use self::facts::ClusterFacts;
use self::failure_detector::FailureDetector;
use self::fencing::Fences;
use self::formation::{FormationProgress, look_answered};
use self::held_heartbeats::{HeldHeartbeats, HeldReplyFacts};
use self::job_scheduler::JobScheduler;
use self::member_loss::MemberLoss;
use self::member_views::MemberViews;
use self::region_addition::RegionAddition;
use self::replica_addition::ReplicaAddition;
use self::scrubbing::ScrubState;
use self::shortage::MemoryShortage;
use self::splitting::SubtableSplits;
use self::view_updates::ViewUpdateCache;
use crate::record::MasterRecord;
use crate::sessions::SessionState;
use crate::settings::ClusterSettings;

/// The pause before the master tries again to form the cluster, or asks an absent node again.
const RETRY_MS: u64 = 1_000;

/// The master: its settings, its calls to memory nodes under way, and its state.
#[derive(Debug)]
pub struct MasterLogic {
    settings: ClusterSettings,
    secret: HashKey,
    calls: NodeCalls,
    state: MasterState,
}

/// The facts of the cluster, and the concerns. Each concern has its own state, reads the facts, and makes decisions;
/// [`apply`] carries the decisions out.
#[derive(Debug)]
struct MasterState {
    cluster: ClusterFacts,
    identity: ClusterIdentity,
    formation: FormationProgress,
    detector: FailureDetector,
    loss: MemberLoss,
    fences: Fences,
    views: MemberViews,
    contact: Contact,
    bars: BarSettlement,
    jobs: JobScheduler,
    admission: MemberAdmission,
    splits: SubtableSplits,
    regions: RegionAddition,
    replicas: ReplicaAddition,
    rotation: ChangeRotation,
    scrub: ScrubState,
    shortage: MemoryShortage,
    epochs: EpochCounter,
    history: ChangeHistory,
    held: HeldHeartbeats,
    updates: ViewUpdateCache,
}

impl MasterLogic {
    /// Returns a master that continues from a store's records. `random` and `secret` are random numbers; the master
    /// never reveals `secret`.
    pub fn restore(
        settings: ClusterSettings,
        random: u64,
        secret: HashKey,
        records: Vec<MasterRecord>,
    ) -> Result<MasterLogic, RestoreError> {
        let state = MasterState::restore(random, records)?;
        Ok(MasterLogic { settings, secret, calls: NodeCalls::default(), state })
    }

    /// Returns the cluster that this master leads; `None` until an operator has requested one.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.state.identity.cluster()
    }

    /// Returns the view in force.
    pub fn view(&self) -> Option<&View> {
        self.state.cluster.view.as_ref()
    }

    /// Adopts those of the new settings that a running master is allowed to change: see [`ClusterSettings::adjust`].
    pub fn adjust(&mut self, new: &ClusterSettings) {
        self.settings.adjust(new);
    }

    /// Tells this master that it is about to end. From now on it begins no change of the view, and no other work that
    /// the next master can begin as well.
    pub fn finish(&mut self) {
        self.state.cluster.finishes = true;
        // Otherwise a change would begin when members have reserved the room that they were asked for.
        self.state.abandon_reservations();
    }

    /// Returns whether no process waits for this master: no change is under way, all open sessions have acknowledged
    /// the view, and no session needs recovery.
    pub fn is_at_rest(&self) -> bool {
        let cluster = &self.state.cluster;
        cluster.view.as_ref().is_none_or(|view| {
            let knows = |session: &SessionState| session.pinned_by >= view.number;
            let all_know = cluster.sessions.open_sessions().all(|(_, session)| knows(session));
            view.change.is_none() && all_know && cluster.sessions.expired().next().is_none()
        })
    }

    /// Handles an event, and returns the actions that the host has to carry out. `now_ms` never decreases, and includes
    /// the time during which the machine sleeps; its origin does not matter.
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
            cluster: ClusterFacts::new(),
            identity: ClusterIdentity::default(),
            formation: FormationProgress::default(),
            detector: FailureDetector::default(),
            loss: MemberLoss::default(),
            fences: Fences::default(),
            views: MemberViews::default(),
            contact: Contact::new(random),
            bars: BarSettlement::default(),
            jobs: JobScheduler::default(),
            admission: MemberAdmission::default(),
            splits: SubtableSplits::default(),
            regions: RegionAddition::default(),
            replicas: ReplicaAddition::default(),
            rotation: ChangeRotation::default(),
            scrub: ScrubState::default(),
            shortage: MemoryShortage::new(random),
            epochs: EpochCounter::default(),
            history: ChangeHistory::default(),
            held: HeldHeartbeats::default(),
            updates: ViewUpdateCache::default(),
        }
    }

    fn restore(random: u64, records: Vec<MasterRecord>) -> Result<MasterState, RestoreError> {
        let mut state = MasterState::new(random);
        // Without a record of the cluster, the other records are remainders of a destroyed one.
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
        if state
            .cluster
            .view
            .as_ref()
            .is_some_and(|view| state.identity.cluster() != Some(view.cluster))
        {
            return Err(RestoreError::Cluster);
        }
        Ok(state)
    }

    fn recall(&mut self, record: MasterRecord) -> Result<(), RestoreError> {
        match record {
            MasterRecord::Cluster(cluster) => self.identity.restore_own(cluster),
            MasterRecord::Attempt(attempt) => {
                self.cluster.last_attempt = attempt;
                self.identity.restore_new();
            }
            MasterRecord::NextNode(_)
            | MasterRecord::FreeNames(_)
            | MasterRecord::Member(_)
            | MasterRecord::Lost(_)
            | MasterRecord::Draining(_)
            | MasterRecord::Drained(_) => self.cluster.roster.restore(record),
            MasterRecord::ClientIds { end } => self.cluster.sessions.restore_ids(end),
            MasterRecord::Epochs { end } => self.epochs.restore(end),
            MasterRecord::Session { client, expired, handed_on } => {
                self.cluster.sessions.restore_session(client, expired, handed_on);
                if expired {
                    self.fences.add(client);
                }
            }
            MasterRecord::Repairer(client) => self.retire(client),
            MasterRecord::Orphan(orphan) => self.cluster.sessions.restore_orphan(orphan),
            // The host keeps the events.
            MasterRecord::Events { .. } => {}
            MasterRecord::Destroyed(cluster) => self.identity.restore_destroyed(cluster),
            MasterRecord::Former(former) => self.views.restore_former(former),
            MasterRecord::Settled { before, barred } => self.bars.restore(before, barred),
            MasterRecord::View(view) => {
                view.check()?;
                self.views.restore_number(view.number);
                let stage = view.change.as_ref().map(|change| change.stage);
                self.bars.restore_frozen(stage == Some(ChangeStage::Frozen));
                self.cluster.view = Some(view);
            }
        }
        Ok(())
    }

    fn handle(&mut self, ctx: &mut EventContext<'_>, event: MasterEvent) {
        let is_tick = matches!(event, MasterEvent::Tick);
        // Jobs run inside of the host, so the end of a job does not show that the host has taken in messages.
        if !matches!(event, MasterEvent::JobDone { .. }) {
            self.detector.pass(ctx.now_ms, ctx.settings.lease);
        }
        self.take_in(ctx, event);
        self.apply(ctx);
        self.step(ctx, is_tick);
    }

    fn take_in(&mut self, ctx: &mut EventContext<'_>, event: MasterEvent) {
        match event {
            MasterEvent::Request { token, caller, request } => {
                if let Some(reply) = self.request(ctx, caller, token, request) {
                    ctx.push(MasterAction::Reply { token, reply });
                }
            }
            MasterEvent::ConnectionClosed { connection } => {
                let lease = ctx.settings.lease;
                if let Some(gone_at_ms) = self.detector.connection_closed(connection, lease) {
                    self.cluster.sessions.connection_closed(connection, gone_at_ms);
                }
            }
            // The process at the other end fetches a view. It sends its next heartbeat when it has the view.
            MasterEvent::Fetching { connection } => {
                self.cluster.sessions.fetching(self.detector.listened_ms(), connection);
            }
            MasterEvent::NodeAnswer { node, token, result } => {
                if let Some(purpose) = ctx.calls.answered(node, token) {
                    self.node_answered(ctx, node, token, purpose, result);
                }
            }
            MasterEvent::JobDone { token, result } => {
                if let Some(job) = self.jobs.job_done(ctx, token, result) {
                    self.take_report(ctx, job);
                }
            }
            MasterEvent::Tick => {}
        }
    }

    /// Runs the concerns in this order. The decisions of each concern are carried out before the next one runs.
    fn step(&mut self, ctx: &mut EventContext<'_>, is_tick: bool) {
        self.formation.step(ctx, &self.cluster, &self.identity, &self.detector);
        self.apply(ctx);
        if self.cluster.view.is_some() {
            if is_tick {
                self.detector.step(ctx, &self.cluster);
                self.apply(ctx);
            }
            self.loss.step(ctx, &self.cluster);
            self.apply(ctx);
            self.fences.step(ctx, &self.cluster, &self.jobs);
            self.apply(ctx);
            self.views.step(ctx, &self.cluster);
            // This runs bars, admission, splits, regions, replicas and the scrubber, as far as the stage of the change
            // allows.
            self.change_view(ctx);
        }
        self.epochs.step(ctx, &self.cluster, &self.jobs);
        self.contact.step(ctx, &self.cluster, self.views.former(), &self.detector);
        let facts = HeldReplyFacts {
            cluster: &self.cluster,
            epochs: self.epochs.epochs(&self.cluster, &self.jobs),
            shortage: &self.shortage,
            contact: &self.contact,
            updates: &mut self.updates,
        };
        self.held.step(ctx, facts);
        self.apply(ctx);
    }

    fn node_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        node: MnId,
        token: u64,
        purpose: CallPurpose,
        result: Result<NodeReply, String>,
    ) {
        // A node that does not answer a request for room is probed, even if its answer is no longer needed.
        let is_for_room =
            matches!(purpose, CallPurpose::Grow | CallPurpose::Split | CallPurpose::AddRegions);
        if is_for_room && result.is_err() {
            ctx.decide(Decision::Probe(node));
        }
        let cluster = &self.cluster;
        match purpose {
            CallPurpose::Look => look_answered(ctx, cluster, node, result),
            CallPurpose::Format => self.formation.format_answered(ctx, cluster, node, result),
            CallPurpose::Probe => self.detector.probe_answered(ctx, cluster, node, token, result),
            CallPurpose::Fence(clients) => {
                self.fences.fence_answered(ctx, node, &clients, &result);
            }
            CallPurpose::Forget { ended } => self.fences.living_answered(node, ended, &result),
            CallPurpose::Stand(number) => self.views.stand_answered(ctx, node, number, result),
            CallPurpose::Unbar => self.bars.unbar_answered(ctx, node, result),
            CallPurpose::Grow => self.replicas.grow_answered(ctx, cluster, token, result),
            CallPurpose::Split => self.splits.split_answered(ctx, cluster, node, token, result),
            CallPurpose::Admit => self.admission.admit_answered(ctx, cluster, token, result),
            CallPurpose::AddRegions => {
                self.regions.add_answered(ctx, cluster, node, token, result);
            }
        }
    }
}

fn refused(reason: impl Into<String>) -> MasterReply {
    MasterReply::Refused { reason: reason.into() }
}
