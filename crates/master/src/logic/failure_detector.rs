//! Failure detection by leases and closed connections.
//!
//! Sessions and memory nodes send heartbeats (`held_heartbeats` answers them). A process that is silent for a lease
//! counts as dead. A process whose connection has closed counts as dead after a short grace period, unless it sends a
//! heartbeat over another connection. When a process is dead, its sessions expire, or the memory node is lost.
//!
//! A session that sends heartbeats but does not acknowledge the newest view also expires after a lease, because all
//! others would wait for it.
//!
//! Only failure detection depends on these clocks. Silence is counted in *listened* time, in which the master took in
//! events: a master that is stopped, gets no processor, or sleeps with its machine receives nothing. Therefore:
//!
//! * The time between two events counts at most as an eighth of a lease, and at most as 125 ms, whatever the clock
//!   says.
//! * After half a lease without an event the master was *away*. That time counts as one millisecond, and every process
//!   has a whole lease from the master's return. In that lease, ends of connections have no effect: a process that got
//!   no answer has closed its connection, and the master possibly reads the end of the old connection before the first
//!   message over the new one.
//! * If no lease passes without a gap, a process counts as dead when it is silent for four leases of listened time.
//! * If a member was probed before the master was away, the time for its answer begins again at the master's return. If
//!   the call failed, the member is asked again.
//!
//! Listened time never exceeds the time that has passed. So when the master waits for the end of a lease here, the
//! lease has also ended by the clock of its owner, which includes sleep.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, Expiry};
use super::facts::ClusterFacts;
use crate::sessions::SessionState;
use crate::settings::LeaseSettings;

/// Bounds of the time in which a probed member has to answer, in milliseconds; between these bounds the time is half a
/// lease.
const MAX_PROBE_MS: u64 = 500;
const MIN_PROBE_MS: u64 = 20;
/// The time that a session's process has to fetch a view, in leases.
const FETCH_LEASES: u64 = 20;
/// The number of the connection that is inside of the process and never closes.
const LOCAL: u64 = 0;

/// The upper bound on the listened time between two events where leases are short, in milliseconds: two ticks of the
/// host.
const MIN_STEP_MS: u64 = 10;
/// The upper bound where leases are long, in milliseconds: a few events must not use up the time of a probe.
const MAX_STEP_MS: u64 = MAX_PROBE_MS / 4;

/// The listened time of a gap, in which the master was away. It is not 0, so that times before the gap differ from
/// times after it.
const GAP_MS: u64 = 1;

/// If no lease passes without a gap, a process counts as dead after a silence of this many leases of listened time.
const LEASES_WITH_GAPS: u64 = 4;

/// Returns whether the master was away between two events that are this far apart.
fn is_gap(step_ms: u64, lease: LeaseSettings) -> bool {
    step_ms > lease.lease_ms / 2
}

/// Returns the listened time between two events that are `step_ms` apart, in milliseconds.
fn listened(step_ms: u64, lease: LeaseSettings) -> u64 {
    if is_gap(step_ms, lease) && !removed(Mutant::GapsAreListened) {
        return GAP_MS;
    }
    step_ms.min((lease.lease_ms / 8).clamp(MIN_STEP_MS, MAX_STEP_MS))
}

/// The last heartbeat of a memory node. All times here are in listened milliseconds.
#[derive(Debug, Default)]
struct NodeLiveness {
    heard_ms: u64,
    /// The number of the connection over which the node sent its last heartbeat.
    connection: Option<u64>,
    /// The time at which the node counts as dead because its connection has closed, unless it uses another connection.
    gone_at_ms: Option<u64>,
}

/// The heartbeats of memory nodes, and the time in which the master has listened.
#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    /// The time of the last event, by the host's clock.
    last_ms: Option<u64>,
    /// The listened time since the master's start.
    listened_ms: u64,
    /// The listened time at the end of the last gap.
    begun_ms: u64,
    /// The listened time until which the ends of connections have no effect.
    deaf_until_ms: u64,
    /// The listened time at which the view came into force, or this process learned of it.
    view_heard_ms: u64,
    nodes: BTreeMap<MnId, NodeLiveness>,
    /// The members that were asked whether they still run, and have not answered.
    probes: BTreeMap<MnId, Probe>,
}

/// A call that asks a member whether it still runs.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// The token of the call.
    token: u64,
    asked_ms: u64,
    /// The listened time that the member has for its answer, in milliseconds.
    patience_ms: u64,
}

impl FailureDetector {
    /// Records the time of an event that came from outside of the master.
    pub fn pass(&mut self, now_ms: u64, lease: LeaseSettings) {
        let step_ms = now_ms.saturating_sub(self.last_ms.unwrap_or(now_ms));
        self.last_ms = Some(now_ms);
        self.listened_ms += listened(step_ms, lease);
        if is_gap(step_ms, lease) {
            self.begun_ms = self.listened_ms;
            self.deaf_until_ms = self.begun_ms + lease.lease_ms;
        }
    }

    /// Returns the listened time so far.
    pub fn listened_ms(&self) -> u64 {
        self.listened_ms
    }

    /// Returns the listened time at a moment, possibly between two events.
    fn listened_at(&self, now_ms: u64, lease: LeaseSettings) -> u64 {
        let step_ms = now_ms.saturating_sub(self.last_ms.unwrap_or(now_ms));
        self.listened_ms + listened(step_ms, lease)
    }

    /// Returns whether a lease without a gap has passed since a moment, or several leases of listened time with gaps.
    /// Within such a time, the master receives a heartbeat of every living process.
    fn is_over(&self, since_ms: u64, lease: LeaseSettings) -> bool {
        let with_gaps_ms = self.listened_ms.saturating_sub(since_ms);
        let without_ms = self.listened_ms.saturating_sub(since_ms.max(self.begun_ms));
        let is_long = with_gaps_ms > lease.lease_ms.saturating_mul(LEASES_WITH_GAPS);
        without_ms > lease.lease_ms || is_long && !removed(Mutant::GapsForgiveForEver)
    }

    /// Returns the reason why a process counts as dead, if it does. `heard_ms` is the time of its last heartbeat.
    fn gone(
        &self,
        heard_ms: u64,
        gone_at_ms: Option<u64>,
        lease: LeaseSettings,
    ) -> Option<&'static str> {
        let is_closed = |at: u64| at.max(self.deaf_until_ms) <= self.listened_ms;
        if gone_at_ms.is_some_and(is_closed) {
            return Some("its connection was closed");
        }
        self.is_over(heard_ms, lease).then_some("it is silent")
    }

    fn node_is_gone(&self, node: MnId, lease: LeaseSettings) -> Option<&'static str> {
        match self.nodes.get(&node) {
            // A node inside of this process runs as long as the process.
            Some(presence) if presence.connection == Some(LOCAL) => None,
            Some(presence) => self.gone(presence.heard_ms, presence.gone_at_ms, lease),
            None => self.gone(0, None, lease),
        }
    }

    /// Returns whether a node is inside of this process.
    pub fn is_local(&self, node: MnId) -> bool {
        let connection = self.nodes.get(&node).and_then(|presence| presence.connection);
        connection == Some(LOCAL)
    }

    /// Returns whether a node has sent a heartbeat since it joined.
    pub fn has_spoken(&self, node: MnId) -> bool {
        self.nodes.get(&node).is_some_and(|presence| presence.connection.is_some())
    }

    /// Forgets the heartbeats of a node.
    pub fn forget(&mut self, node: MnId) {
        self.nodes.remove(&node);
        self.probes.remove(&node);
    }

    /// Records that a view comes into force. From now on, sessions have a lease in which to acknowledge it.
    pub fn view_begins(&mut self, now_ms: u64, lease: LeaseSettings) {
        self.view_heard_ms = self.listened_at(now_ms, lease);
    }

    /// Records that a memory node has joined. The node is not bound to an ordinary connection, because its heartbeats
    /// can come over another one.
    pub fn node_joined(&mut self, node: MnId, connection: u64) {
        let connection = (connection == LOCAL).then_some(LOCAL);
        let heard_ms = self.listened_ms;
        self.nodes.insert(node, NodeLiveness { heard_ms, connection, gone_at_ms: None });
    }

    /// Records a memory node's heartbeat.
    pub fn node_heard(&mut self, node: MnId, connection: u64) {
        let heard_ms = self.listened_ms;
        let heard = NodeLiveness { heard_ms, connection: Some(connection), gone_at_ms: None };
        self.nodes.insert(node, heard);
    }

    /// Records that a connection has ended. Returns the time at which processes count as dead whose last heartbeat came
    /// over that connection; `None` for a connection that never ends.
    pub fn connection_closed(&mut self, connection: u64, lease: LeaseSettings) -> Option<u64> {
        if connection == LOCAL {
            return None;
        }
        let gone_at_ms = self.listened_ms.saturating_add(lease.grace_ms);
        let nodes = self.nodes.values_mut();
        for node in nodes.filter(|node| node.connection == Some(connection)) {
            node.gone_at_ms = Some(gone_at_ms);
        }
        Some(gone_at_ms)
    }

    /// Expires the sessions that are dead, and reports dead memory nodes. To be called at ticks only: at other times, a
    /// message of a process could still wait in a queue of the host.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) {
        let lease = ctx.settings.lease;
        let gone = self.gone_sessions(cluster, lease);
        let late = self.late_sessions(cluster, lease, &gone);
        ctx.decide(Decision::Expire(gone));
        ctx.decide(Decision::Expire(late));
        let listened_ms = self.listened_ms;
        let begun_ms = self.begun_ms;
        let late = self.probes.iter().filter(|(_, probe)| {
            probe.asked_ms.max(begun_ms).saturating_add(probe.patience_ms) <= listened_ms
        });
        let late: Vec<MnId> = late.map(|(node, _)| *node).collect();
        for node in late {
            self.probes.remove(&node);
            ctx.decide(Decision::Suspect { node, why: "it does not answer".into() });
        }
        for Member { node, .. } in cluster.roster.nodes() {
            if let Some(why) = self.node_is_gone(*node, lease) {
                ctx.decide(Decision::NodeSilent { node: *node, why });
            }
        }
    }

    fn gone_sessions(&self, cluster: &ClusterFacts, lease: LeaseSettings) -> Vec<Expiry> {
        let open = cluster.sessions.open_sessions();
        let gone = open.filter_map(|(client, session)| {
            let SessionState { heard_ms, gone_at_ms, .. } = *session;
            Some(Expiry { client, why: self.gone(heard_ms, gone_at_ms, lease)? })
        });
        gone.collect()
    }

    /// Returns the sessions that have not acknowledged in time the view that is in force. All other sessions wait for
    /// them. Sessions in `gone` are left out.
    fn late_sessions(
        &self,
        cluster: &ClusterFacts,
        lease: LeaseSettings,
        gone: &[Expiry],
    ) -> Vec<Expiry> {
        if !self.is_over(self.view_heard_ms, lease) {
            return Vec::new();
        }
        // A session whose process is fetching the view cannot acknowledge it yet; every piece that is fetched counts as
        // a heartbeat. The time for fetching is bounded, because all other sessions wait.
        let fetched_for_ms = self.listened_ms.saturating_sub(self.view_heard_ms);
        let may_fetch = fetched_for_ms <= FETCH_LEASES * lease.lease_ms;
        let fetches = |session: &SessionState| {
            let at_ms = session.fetched_ms.filter(|_| may_fetch);
            at_ms.is_some_and(|at_ms| !self.is_over(at_ms, lease))
        };
        let is_gone = |client| gone.iter().any(|expiry| expiry.client == client);
        let late = cluster.lagging();
        let late = late.filter(|(client, session)| !is_gone(*client) && !fetches(session));
        let why = "it does not leave old views behind";
        late.map(|(client, _)| Expiry { client, why }).collect()
    }

    /// Returns whether a lease has passed since the view came into force, or since this master learned of it.
    pub fn view_lease_is_over(&self, lease: LeaseSettings) -> bool {
        self.is_over(self.view_heard_ms, lease)
    }

    /// Returns whether the leases of all expired sessions have ended, also by the sessions' own clocks. A session can
    /// expire because its connection broke, right after a heartbeat.
    pub fn expired_leases_are_over(&self, cluster: &ClusterFacts, lease: LeaseSettings) -> bool {
        cluster.sessions.expired_heard_ms().all(|heard_ms| self.is_over(heard_ms, lease))
    }

    /// Asks a member whether it still runs, because another process could not reach it or a call to it failed.
    pub fn probe(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts, node: MnId) {
        if cluster.in_view(node) && !self.probes.contains_key(&node) {
            let patience_ms = (ctx.settings.lease.lease_ms / 2).clamp(MIN_PROBE_MS, MAX_PROBE_MS);
            let asked_ms = self.listened_ms;
            let request = NodeRequest::Describe;
            if let Some(token) = ctx.call(&cluster.roster, node, request, CallPurpose::Probe) {
                self.probes.insert(node, Probe { token, asked_ms, patience_ms });
            }
        }
    }

    /// Handles a member's answer to a probe, or the failure of the call. A failure counts only while the master still
    /// waits for this answer: afterwards the member has possibly sent a heartbeat.
    pub fn probe_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let identity = cluster.roster.identity_of(node);
        let why = match &result {
            Ok(NodeReply::Description(found)) if Some(found.identity) == identity => {
                self.probes.remove(&node);
                ctx.decide(Decision::Trust(node));
                return;
            }
            Ok(_) => "another process is in its place".to_owned(),
            Err(cause) => cause.clone(),
        };
        let Entry::Occupied(awaited) = self.probes.entry(node) else { return };
        if awaited.get().token != token {
            return;
        }
        let probe = awaited.remove();
        // If the answer was due while this master was away, the member is asked again.
        if result.is_err() && probe.asked_ms < self.begun_ms {
            ctx.decide(Decision::Probe(node));
            return;
        }
        ctx.decide(Decision::Suspect { node, why });
    }
}
