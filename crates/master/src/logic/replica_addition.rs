//! The addition of replicas where there is room: missing ones to restore redundancy, others in place of replicas
//! elsewhere to give members even shares.
//!
//! When the view is stable and no session needs recovery, the first subtable or region with too few replicas gets
//! another one. All subtables that one node receives are added together. Regions are added one at a time, because
//! sessions place no objects in a region that is being copied. When no replica is missing, replicas move as `rebalance`
//! chooses. After each move there is a pause as long as its bytes take at the rate of the settings. Last, members that
//! are drained and empty leave.
//!
//! First the node reserves the room. Then the next view names its place, and marks the replica as *joining*. Nothing of
//! this is stored before that view: a master that restarts asks again, and gets the same places. If an earlier
//! reservation was not used, a node has less room than the view tells. Then it refuses, and gets no further requests
//! until something changes.

use fusee_control::count_with_noun;
use fusee_control::events::Topic;

use fusee_control::node::{Extent, NodeRefusal, NodeReply, NodeRequest};
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::PoolPlace;
use fusee_core::view::change::NewReplica;

use super::change_rotation::ChangePurpose;
use super::context::{CallPurpose, EventContext};
use super::decision::{Decision, NextView};
use super::draining::finish_drain;
use super::facts::ClusterFacts;
use super::reservation;

/// The pause after a node failed to reserve room, in milliseconds.
const PAUSE_MS: u64 = 1_000;
/// The longest wait for a node's answer, in milliseconds.
const PATIENCE_MS: u64 = 15_000;

/// The reservation for replicas that is under way, and the obstacles to the next one.
#[derive(Debug, Default)]
pub(super) struct ReplicaAddition {
    under_way: Option<ReplicaReservation>,
    not_before_ms: u64,
    /// Whether the operator was told of a problem that prevents further replicas.
    told: bool,
    /// The number of the view in which nothing is left to do, unless a node joins.
    idle_in: Option<u64>,
    /// The earliest time at which replicas are allowed to move again.
    next_move_ms: u64,
}

/// The replicas for which one node is reserving room.
#[derive(Debug)]
struct ReplicaReservation {
    node: MnId,
    identity: u64,
    /// The number of the view for which the room is reserved.
    view: u64,
    /// Whether replicas leave other nodes for this node, so that they move.
    moves: bool,
    requests: Vec<NodeRequest>,
    done: usize,
    /// For each request, the place that the moving replica leaves; `None` if the request is for a missing replica.
    leaving: Vec<Option<PoolPlace>>,
    places: Vec<(Extent, NewReplica)>,
    /// The token of the call to the node that is under way.
    token: Option<u64>,
    asked_ms: u64,
}

impl ReplicaAddition {
    /// Forgets the reservation under way, because the view has changed, or this master is about to end.
    pub fn abandon(&mut self) {
        self.under_way = None;
    }

    /// Looks for room again in the present view, because some node possibly has room now.
    pub fn look_again(&mut self) {
        self.idle_in = None;
    }

    /// Returns whether a member is reserving room for missing replicas, and was asked a short time ago.
    pub fn adds_missing(&self, now_ms: u64) -> bool {
        let is_young =
            |growing: &ReplicaReservation| now_ms < growing.asked_ms + reservation::ALONE_MS;
        self.under_way.as_ref().is_some_and(|growing| !growing.moves && is_young(growing))
    }

    /// Begins to add replicas, if some are missing and there is room. Returns whether other changes have to wait for
    /// that.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) -> bool {
        self.drop_stale_reservation(ctx, cluster);
        if self.under_way.is_some() || !self.may_grow(ctx, cluster) {
            return self.adds_missing(ctx.now_ms);
        }
        let Some((node, extents)) = cluster.choose(ctx) else { return false };
        let gains = extents.into_iter().map(|extent| (extent, None)).collect();
        self.begin(ctx, cluster, node, gains);
        self.adds_missing(ctx.now_ms)
    }

    /// Forgets the reservation if the view has changed, the node is gone, or its answer is overdue.
    fn drop_stale_reservation(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) {
        let Some(growing) = &self.under_way else { return };
        let is_over = growing.asked_ms + PATIENCE_MS <= ctx.now_ms;
        let is_there = cluster.roster.identity_of(growing.node) == Some(growing.identity);
        if is_over {
            ctx.decide(Decision::MoveToBack(ChangePurpose::Replicas));
            self.not_before_ms = ctx.now_ms + PAUSE_MS;
        }
        if is_over || !is_there || cluster.view_number() != Some(growing.view) {
            self.under_way = None;
        }
    }

    /// Moves the next replicas to even out the shares, once no missing replica can be added.
    pub fn even_out(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        may_change_members: bool,
    ) {
        self.drop_stale_reservation(ctx, cluster);
        if self.under_way.is_some() || !self.may_grow(ctx, cluster) {
            return;
        }
        let missing = cluster.missing_replicas(ctx);
        if missing == 0 {
            ctx.decide(Decision::Whole);
            self.move_next(ctx, cluster, may_change_members);
        } else if cluster.next_moves().is_some() {
            // If some members are fuller than others, a move makes room for missing replicas.
            self.move_next(ctx, cluster, may_change_members);
        } else if !finish_drain(ctx, cluster, may_change_members) {
            let text = format!(
                "{} missing, of subtables or regions: {}; start another memory node",
                count_with_noun(missing, "replica"),
                cluster.why_missing(ctx)
            );
            self.idle_until_next_view(ctx, cluster, Some(text));
        }
    }

    /// Returns whether adding or moving a replica is allowed now.
    fn may_grow(&self, ctx: &EventContext<'_>, cluster: &ClusterFacts) -> bool {
        self.not_before_ms <= ctx.now_ms
            && self.idle_in != cluster.view_number()
            && cluster.failed.is_empty()
            && cluster.sessions.expired().next().is_none()
    }

    fn move_next(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        may_change_members: bool,
    ) {
        if let Some(moves) = cluster.next_moves() {
            if self.next_move_ms <= ctx.now_ms {
                let gains = moves.extents.into_iter();
                let gains = gains.map(|(extent, leaving)| (extent, Some(leaving))).collect();
                self.begin(ctx, cluster, moves.to, gains);
            }
        } else if !finish_drain(ctx, cluster, may_change_members) {
            let stuck: Vec<String> =
                cluster.roster.draining().map(|node| node.to_string()).collect();
            let text = format!(
                "{} cannot be emptied: no other memory node has room; start another one, or take \
                 the drain back",
                stuck.join(", ")
            );
            self.idle_until_next_view(ctx, cluster, (!stuck.is_empty()).then_some(text));
        }
    }

    /// Does nothing more until the next view, because nothing is left to do, or because a problem prevents it.
    fn idle_until_next_view(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        problem: Option<String>,
    ) {
        match problem {
            Some(text) => {
                if cluster.problem.as_ref() != Some(&text) {
                    ctx.warn(Topic::Repair, text.clone());
                    ctx.decide(Decision::SetProblem(Some(text)));
                }
                self.told = true;
            }
            None if std::mem::take(&mut self.told) => ctx.decide(Decision::SetProblem(None)),
            None => {}
        }
        self.idle_in = cluster.view_number();
    }

    fn begin(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        node: MnId,
        gains: Vec<(Extent, Option<PoolPlace>)>,
    ) {
        let (Some(view), Some(member)) = (&cluster.view, cluster.roster.get(node)) else { return };
        let attempt = cluster.last_attempt;
        let requests = gains.iter().map(|(extent, _)| {
            let redundancy = match extent {
                Extent::Region { region, .. } => view.regions[*region as usize].redundancy(),
                Extent::Subtable { .. } => Redundancy::Replicated,
            };
            reservation::request(view, attempt, *extent, redundancy)
        });
        let mut requests: Vec<NodeRequest> = requests.collect();
        // If the last answer has the expected identity, the same process has given all answers.
        requests.push(NodeRequest::Describe);
        let growing = ReplicaReservation {
            node,
            identity: member.identity,
            view: view.number,
            moves: gains.iter().any(|(_, leaving)| leaving.is_some()),
            requests,
            done: 0,
            leaving: gains.iter().map(|(_, leaving)| *leaving).collect(),
            places: Vec::new(),
            token: None,
            asked_ms: 0,
        };
        let text = format!("{node} gets replicas of {} extents", gains.len());
        ctx.info(Topic::Repair, text);
        self.under_way = Some(growing);
        self.ask_for_room(ctx, cluster);
    }

    fn ask_for_room(&mut self, ctx: &mut EventContext<'_>, cluster: &ClusterFacts) {
        let Some(growing) = &self.under_way else { return };
        let node = growing.node;
        let request = growing.requests[growing.done].clone();
        let token = ctx.call(&cluster.roster, node, request, CallPurpose::Grow);
        if let Some(growing) = &mut self.under_way {
            growing.token = token;
            growing.asked_ms = ctx.now_ms;
        }
    }

    /// Handles a node's answer to a request for room, or the failure of that request.
    pub fn grow_answered(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        token: u64,
        result: Result<NodeReply, String>,
    ) {
        let Some(growing) = &mut self.under_way else { return };
        if growing.token != Some(token) {
            return;
        }
        let node = growing.node;
        let problem = match (&growing.requests[growing.done], result) {
            (NodeRequest::Reserve { extent, .. }, Ok(NodeReply::Reserved { offset })) => {
                let of = match extent {
                    Extent::Subtable { subtable } => *subtable,
                    Extent::Region { region, .. } => *region,
                };
                let joining = PoolPlace { node, offset };
                let leaving = growing.leaving[growing.done];
                growing.places.push((*extent, NewReplica { of, joining, leaving }));
                None
            }
            (NodeRequest::Describe, Ok(NodeReply::Description(found)))
                if found.identity == growing.identity =>
            {
                None
            }
            (request, Ok(NodeReply::Refused(refusal))) => {
                let regions =
                    matches!(request, NodeRequest::Reserve { extent: Extent::Region { .. }, .. });
                ctx.decide(Decision::NoteFull { node, regions });
                if !matches!(refusal, NodeRefusal::PoolFull { .. }) {
                    ctx.decide(Decision::NoteFull { node, regions: !regions });
                    let text = format!("{node} gets no replica: {refusal}");
                    ctx.warn(Topic::Repair, text);
                }
                if growing.places.is_empty() {
                    self.under_way = None;
                    return;
                }
                // The reservation continues with the places so far: the next and last request asks for the node's
                // identity.
                growing.done = growing.requests.len() - 2;
                None
            }
            (_, Ok(other)) => Some(format!("{node} answered by {other:?}")),
            (_, Err(cause)) => Some(format!("{node} does not answer: {cause}")),
        };
        if let Some(problem) = problem {
            self.under_way = None;
            ctx.decide(Decision::MoveToBack(ChangePurpose::Replicas));
            self.not_before_ms = ctx.now_ms + PAUSE_MS;
            ctx.warn(Topic::Repair, format!("no replica is added: {problem}"));
            ctx.decide(Decision::Probe(node));
            return;
        }
        growing.done += 1;
        if growing.done < growing.requests.len() {
            return self.ask_for_room(ctx, cluster);
        }
        let Some(growing) = self.under_way.take() else { return };
        self.add_replicas(ctx, cluster, &growing);
    }

    /// Makes the view with the new replicas, when room for them has been reserved.
    fn add_replicas(
        &mut self,
        ctx: &mut EventContext<'_>,
        cluster: &ClusterFacts,
        growing: &ReplicaReservation,
    ) {
        let Some(view) = &cluster.view else { return };
        if view.number != growing.view || view.change.is_some() {
            return;
        }
        let Some(member) = cluster.roster.get(growing.node) else { return };
        let mut subtables = Vec::new();
        let mut regions = Vec::new();
        let mut moved_bytes = 0;
        for (extent, gain) in &growing.places {
            let (gains, bytes) = match extent {
                Extent::Subtable { .. } => (&mut subtables, view.geometry.subtable_bytes()),
                Extent::Region { .. } => (&mut regions, view.geometry.region_bytes),
            };
            gains.push(*gain);
            moved_bytes += gain.leaving.map_or(0, |_| bytes);
        }
        let next = view.growing(&subtables, &regions);
        if let Err(error) = next.check() {
            // The offsets come from the memory node, so they are possibly wrong.
            let text = format!("{} gave room that is none: {error}", member.node);
            ctx.warn(Topic::Repair, text);
            for regions in [false, true] {
                ctx.decide(Decision::NoteFull { node: growing.node, regions });
            }
            return;
        }
        let text = format!(
            "view {}: frozen; replicas of {} and {} are put on {}",
            next.number,
            count_with_noun(subtables.len(), "subtable"),
            count_with_noun(regions.len(), "region"),
            member.node
        );
        let pause_ms = moved_bytes.saturating_mul(1_000) / ctx.settings.move_bytes_per_s;
        self.next_move_ms = self.next_move_ms.max(ctx.now_ms + pause_ms);
        if !growing.moves {
            ctx.decide(Decision::MoveToBack(ChangePurpose::Replicas));
        }
        ctx.set_view(NextView::new(next, Topic::Repair, text));
    }
}
