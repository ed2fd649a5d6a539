//! The reservation of room for siblings of subtables and for new regions, before the view names them.
//!
//! All chosen members are asked at once. A member whose pool is full is left out; any other failure ends the attempt.
//! Nothing of this is stored: the extents are reserved under the numbers that they are going to have, so this master or
//! the next one gets the same places when it asks again.

use std::collections::BTreeMap;

use fusee_control::node::{Extent, NodeRefusal, NodeReply, NodeRequest};
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::{PoolPlace, View};

use super::context::{CallPurpose, EventContext};
use super::facts::ClusterFacts;

/// The pause after a node failed to reserve room, in milliseconds.
pub(super) const PAUSE_MS: u64 = 1_000;
/// The longest wait for the answers of all nodes, in milliseconds.
const PATIENCE_MS: u64 = 15_000;
/// The time for which view changes of another purpose wait for a reservation, in milliseconds.
pub(super) const ALONE_MS: u64 = 500;

/// A region or subtable for which room is being reserved.
#[derive(Debug)]
pub(super) struct NewExtent {
    pub extent: Extent,
    /// The redundancy of a region's objects.
    pub redundancy: Redundancy,
    /// The chosen members, the primary first, each with the offset that it has reserved.
    nodes: Vec<(MnId, Option<u64>)>,
}

impl NewExtent {
    pub fn new(extent: Extent, redundancy: Redundancy, nodes: Vec<MnId>) -> NewExtent {
        NewExtent {
            extent,
            redundancy,
            nodes: nodes.into_iter().map(|node| (node, None)).collect(),
        }
    }

    /// Returns the places that members have reserved for the extent.
    pub fn places(&self) -> Vec<PoolPlace> {
        let given = self.nodes.iter();
        let given =
            given.filter_map(|(node, at)| at.map(|offset| PoolPlace { node: *node, offset }));
        given.collect()
    }
}

/// The new extents of one view change, for which members are reserving room.
#[derive(Debug)]
pub(super) struct ExtentReservation {
    /// The number of the view for which the room is reserved.
    pub view: u64,
    /// The new extents, in the order of their regions' or subtables' numbers.
    pub items: Vec<NewExtent>,
    /// The index of the extent for which each call asks, by the call's token.
    calls: BTreeMap<u64, usize>,
    begun_ms: u64,
}

/// The consequence of a node's answer for the reservation.
pub(super) enum ReservationOutcome {
    /// Answers of other nodes are missing, or this answer belongs to no call of the reservation.
    Waits,
    /// The node has no room, and answers of other nodes are missing.
    Full,
    /// All answers have come. `full` tells that the node of the last answer has no room.
    Complete {
        full: bool,
    },
    Problem(String),
}

impl ExtentReservation {
    /// Returns whether further answers are of use: the view is the same, and the wait is not over.
    pub fn goes_on(&self, now_ms: u64, view: u64) -> bool {
        self.view == view && now_ms < self.begun_ms + PATIENCE_MS
    }

    /// Returns whether the reservation has begun only a short time ago.
    pub fn is_young(&self, now_ms: u64) -> bool {
        now_ms < self.begun_ms + ALONE_MS
    }

    /// Handles a node's answer to a call of the reservation, or the failure of the call.
    pub fn answer(
        &mut self,
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
    ) -> ReservationOutcome {
        let Some(at) = self.calls.remove(&token) else { return ReservationOutcome::Waits };
        let nodes = &mut self.items[at].nodes;
        let full = match result {
            Ok(NodeReply::Reserved { offset }) => {
                let asked = nodes.iter_mut().find(|(asked, _)| *asked == node);
                asked.into_iter().for_each(|(_, given)| *given = Some(offset));
                false
            }
            Ok(NodeReply::Refused(NodeRefusal::PoolFull { .. })) => {
                nodes.retain(|(asked, _)| *asked != node);
                true
            }
            Ok(other) => {
                return ReservationOutcome::Problem(format!("{node} answered by {other:?}"));
            }
            Err(cause) => {
                return ReservationOutcome::Problem(format!("{node} does not answer: {cause}"));
            }
        };
        match (self.calls.is_empty(), full) {
            (true, full) => ReservationOutcome::Complete { full },
            (false, true) => ReservationOutcome::Full,
            (false, false) => ReservationOutcome::Waits,
        }
    }
}

/// Returns the request to reserve an extent of a view.
pub fn request(view: &View, attempt: u64, extent: Extent, redundancy: Redundancy) -> NodeRequest {
    let geometry = &view.geometry;
    let (bytes, block_bytes) = match extent {
        Extent::Region { .. } => (geometry.region_bytes, geometry.block_bytes),
        Extent::Subtable { .. } => (geometry.subtable_bytes(), 0),
    };
    let cluster = view.cluster;
    let view = view.number;
    NodeRequest::Reserve { cluster, attempt, view, extent, bytes, block_bytes, redundancy }
}

/// Asks the chosen members to reserve room for all these extents; `None` if there is no node to ask.
pub(super) fn reserve(
    ctx: &mut EventContext<'_>,
    cluster: &ClusterFacts,
    items: Vec<NewExtent>,
    purpose: &CallPurpose,
) -> Option<ExtentReservation> {
    let view = cluster.view.as_ref()?;
    let mut calls = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        for (node, _) in &item.nodes {
            let request = request(view, cluster.last_attempt, item.extent, item.redundancy);
            if let Some(token) = ctx.call(&cluster.roster, *node, request, purpose.clone()) {
                calls.insert(token, at);
            }
        }
    }
    let begun_ms = ctx.now_ms;
    let reserving = ExtentReservation { view: view.number, items, calls, begun_ms };
    (!reserving.calls.is_empty()).then_some(reserving)
}
