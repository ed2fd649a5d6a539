//! Failure detection: leases and closed connections.
//!
//! Sessions and memory nodes report again and again (`held_heartbeats` answers them). A process that is silent for a
//! lease counts as gone. So does a process whose connection has closed, after a short grace, unless it reports over
//! another connection. Then a session expires, and a memory node is lost.
//!
//! A session that sends heartbeats but does not leave old views behind also expires after a lease: all others would
//! wait for it.
//!
//! Only detection rests on these clocks. Silence is counted in *listened* time, in which the master took in events: a
//! process that is stopped, gets no processor, or sleeps with its machine hears nothing. Therefore:
//!
//! * A step between two events counts at most an eighth of a lease, and at most 125 ms, whatever the clock says.
//! * After half a lease without an event the master was *away*. That step counts a millisecond, and every process has a
//!   whole lease from the master's return. In that lease, ends of connections do not count: a process that got no
//!   answer meanwhile has given up its connection, and the end of the old connection may be read before the first word
//!   over the new one.
//! * A master that is never present for a whole lease takes a process for gone that is silent for four leases of
//!   listened time.
//! * A question that was asked before the master was away gets its whole time from the return. If it failed, it is
//!   asked again.
//!
//! Listened time never exceeds the time that passed. So a wait here for the end of a lease is longer than the lease by
//! the clock of its owner, which counts sleep.

use std::collections::BTreeMap;

use fusee_control::node::{NodeReply, NodeRequest};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, Expiry};
use super::facts::ClusterFacts;
use crate::sessions::SessionState;
use crate::settings::LeaseSettings;

/// Bounds of the time that a suspected member has to answer a question, in milliseconds; between them it is half a
/// lease.
const MAX_PROBE_MS: u64 = 500;
const MIN_PROBE_MS: u64 = 20;
/// A view must be fetched within this many leases.
const FETCH_LEASES: u64 = 20;
/// The connection that never closes, inside of the process.
const LOCAL: u64 = 0;

/// The bound on the listened time of a step where leases are short, in milliseconds: two ticks of the host.
const MIN_STEP_MS: u64 = 10;
/// The bound where leases are long: a few steps must not use up the time for a question.
const MAX_STEP_MS: u64 = MAX_PROBE_MS / 4;

/// The listened time of a step in which the master was away. It is not 0, so that times before the gap differ from
/// times after it.
const GAP_MS: u64 = 1;

/// This many leases with gaps count as one without.
const LEASES_WITH_GAPS: u64 = 4;

/// Returns whether the master was away during this step.
fn is_gap(step_ms: u64, lease: LeaseSettings) -> bool {
    step_ms > lease.lease_ms / 2
}

/// Returns the listened time of a step, in milliseconds.
fn listened(step_ms: u64, lease: LeaseSettings) -> u64 {
    if is_gap(step_ms, lease) && !removed(Mutant::GapsAreListened) {
        return GAP_MS;
    }
    step_ms.min((lease.lease_ms / 8).clamp(MIN_STEP_MS, MAX_STEP_MS))
}

/// The last report of a memory node. All times here are in listened milliseconds.
#[derive(Debug, Default)]
struct NodeLiveness {
    heard_ms: u64,
    /// The connection of the last report.
    connection: Option<u64>,
    /// The time at which the node counts as gone, unless it reports over another connection.
    gone_at_ms: Option<u64>,
}

/// The reports of memory nodes, and the time in which the master has listened.
#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    /// The time of the last event, by the clock.
    last_ms: Option<u64>,
    /// The listened time so far.
    listened_ms: u64,
    /// The end of the last gap.
    begun_ms: u64,
    /// The time until which ends of connections do not count.
    deaf_until_ms: u64,
    /// The time at which the view came into force, or this process learned of it.
    view_heard_ms: u64,
    nodes: BTreeMap<MnId, NodeLiveness>,
    /// Open questions to members whether they still run.
    probes: BTreeMap<MnId, Probe>,
}

/// A question to a member whether it still runs.
#[derive(Clone, Copy, Debug)]
struct Probe {
    asked_ms: u64,
    /// The time for the answer, counted while the master was present.
    patience_ms: u64,
}

impl FailureDetector {
    /// Takes note of the time of an event from outside.
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

    /// Returns the listened time at a moment that may lie between two events.
    fn listened_at(&self, now_ms: u64, lease: LeaseSettings) -> u64 {
        let step_ms = now_ms.saturating_sub(self.last_ms.unwrap_or(now_ms));
        self.listened_ms + listened(step_ms, lease)
    }

    /// Returns whether a lease without a gap has passed since a moment. If the master is never present for that long,
    /// several leases of listened time do: every living process is heard in one of them.
    fn is_over(&self, since_ms: u64, lease: LeaseSettings) -> bool {
        let with_gaps_ms = self.listened_ms.saturating_sub(since_ms);
        let without_ms = self.listened_ms.saturating_sub(since_ms.max(self.begun_ms));
        let is_long = with_gaps_ms > lease.lease_ms.saturating_mul(LEASES_WITH_GAPS);
        without_ms > lease.lease_ms || is_long && !removed(Mutant::GapsForgiveForEver)
    }

    /// Returns the reason why a process that was last heard at `heard_ms` counts as gone, if it does.
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
            // A node inside of this process lives as long as the process.
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

    /// Returns whether a node has reported since it joined.
    pub fn has_spoken(&self, node: MnId) -> bool {
        self.nodes.get(&node).is_some_and(|presence| presence.connection.is_some())
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: MnId) {
        self.nodes.remove(&node);
        self.probes.remove(&node);
    }

    /// Takes note that a view comes into force. Sessions have a lease from now on to follow it.
    pub fn view_begins(&mut self, now_ms: u64, lease: LeaseSettings) {
        self.view_heard_ms = self.listened_at(now_ms, lease);
    }

    /// Takes note that a memory node has joined. An ordinary connection does not bind the node: it may report over
    /// another one from now on.
    pub fn node_joined(&mut self, node: MnId, connection: u64) {
        let connection = (connection == LOCAL).then_some(LOCAL);
        let heard_ms = self.listened_ms;
        self.nodes.insert(node, NodeLiveness { heard_ms, connection, gone_at_ms: None });
    }

    /// Takes note of a memory node's report.
    pub fn node_heard(&mut self, node: MnId, connection: u64) {
        let heard_ms = self.listened_ms;
        let heard = NodeLiveness { heard_ms, connection: Some(connection), gone_at_ms: None };
        self.nodes.insert(node, heard);
    }

    /// Takes note that a connection has ended. Returns the time at which those count as gone that last reported over
    /// it; `None` for a connection that never ends.
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

    /// Expires the sessions that are gone, and notes the members that are gone. To be called at ticks only: otherwise a
    /// word from one of them might still wait in a queue of the host.
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

    /// Returns the sessions, except those that are gone, for whose step to the view in force all others have waited
    /// long enough.
    fn late_sessions(
        &self,
        cluster: &ClusterFacts,
        lease: LeaseSettings,
        gone: &[Expiry],
    ) -> Vec<Expiry> {
        if !self.is_over(self.view_heard_ms, lease) {
            return Vec::new();
        }
        // A session whose process fetches the view cannot follow it yet, and counts as heard with every piece. This is
        // bounded in time, since all others wait.
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

    /// Returns whether a lease has passed since the view came into force, as far as this master knows.
    pub fn view_lease_is_over(&self, lease: LeaseSettings) -> bool {
        self.is_over(self.view_heard_ms, lease)
    }

    /// Returns whether the leases of all expired sessions have ended by their own clocks. A session whose connection
    /// broke may have been heard a moment before.
    pub fn expired_leases_are_over(&self, cluster: &ClusterFacts, lease: LeaseSettings) -> bool {
        cluster.sessions.expired_heard_ms().all(|heard_ms| self.is_over(heard_ms, lease))
    }

    /// Asks a member, which another process cannot reach, whether it still runs.
    pub fn probe(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts, node: MnId) {
        if cluster.in_view(node) && !self.probes.contains_key(&node) {
            let patience_ms = (ctx.settings.lease.lease_ms / 2).clamp(MIN_PROBE_MS, MAX_PROBE_MS);
            let asked_ms = self.listened_ms;
            self.probes.insert(node, Probe { asked_ms, patience_ms });
            ctx.call(&cluster.roster, node, NodeRequest::Describe, CallPurpose::Probe);
        }
    }

    /// Handles the answer to that question, or its failure.
    pub fn probe_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        let probe = self.probes.remove(&node);
        // The answer was due while this master was away.
        if result.is_err() && probe.is_some_and(|probe| probe.asked_ms < self.begun_ms) {
            ctx.decide(Decision::Probe(node));
            return;
        }
        let identity = cluster.roster.identity_of(node);
        let why = match result {
            Ok(NodeReply::Description(found)) if Some(found.identity) == identity => {
                ctx.decide(Decision::Trust(node));
                return;
            }
            Ok(_) => "another process is in its place".into(),
            Err(cause) => cause,
        };
        ctx.decide(Decision::Suspect { node, why });
    }
}
