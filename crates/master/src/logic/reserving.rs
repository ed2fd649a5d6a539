//! Room for what is new, siblings of subtables and regions: asked for before the view names it.
//!
//! All members that were chosen are asked at once. One whose pool is full is left out; any other
//! trouble ends the attempt. Nothing of it is stored: the extents are reserved under the numbers
//! that they are going to have, so who asks again, this master or the next one, gets the same
//! places.

use std::collections::BTreeMap;

use fusee_control::node::{Extent, NodeRefusal, NodeReply, NodeRequest};
use fusee_core::data::Redundancy;
use fusee_core::verbs::MnId;
use fusee_core::view::{Place, View};

use super::State;
use super::context::{Ctx, Purpose};

/// How long to wait after a node did not do what it was asked for.
pub(super) const PAUSE_MS: u64 = 1_000;
/// How long to wait for answers, should none come at all.
const PATIENCE_MS: u64 = 15_000;
/// How long others wait for that, who want a change of another kind.
pub(super) const ALONE_MS: u64 = 500;

/// Something new.
#[derive(Debug)]
pub(super) struct Item {
    pub extent: Extent,
    /// The redundancy of its objects, if it is a region.
    pub redundancy: Redundancy,
    /// The members that were chosen, the primary first; with the offset that each gave.
    nodes: Vec<(MnId, Option<u64>)>,
}

impl Item {
    pub fn new(extent: Extent, redundancy: Redundancy, nodes: Vec<MnId>) -> Item {
        Item { extent, redundancy, nodes: nodes.into_iter().map(|node| (node, None)).collect() }
    }

    /// Where it is going to be.
    pub fn places(&self) -> Vec<Place> {
        let given = self.nodes.iter();
        let given = given.filter_map(|(node, at)| at.map(|offset| Place { node: *node, offset }));
        given.collect()
    }
}

/// Room that is being reserved.
#[derive(Debug)]
pub(super) struct Reserving {
    /// The view that it is for.
    pub view: u64,
    /// In the order of their numbers.
    pub items: Vec<Item>,
    /// By token: which item is asked about.
    calls: BTreeMap<u64, usize>,
    begun_ms: u64,
}

/// What an answer comes to.
pub(super) enum Heard {
    /// Answers are missing, or it was none of ours.
    Waits,
    /// The node has no room, and others have still to answer.
    Full,
    /// Everybody has answered; whether the last one has no room.
    Complete {
        full: bool,
    },
    Problem(String),
}

impl Reserving {
    /// Whether answers may come that are of use.
    pub fn goes_on(&self, now_ms: u64, view: u64) -> bool {
        self.view == view && now_ms < self.begun_ms + PATIENCE_MS
    }

    /// Whether it has not taken long yet.
    pub fn is_young(&self, now_ms: u64) -> bool {
        now_ms < self.begun_ms + ALONE_MS
    }

    /// A node answered.
    pub fn answer(&mut self, node: MnId, token: u64, result: Result<NodeReply, String>) -> Heard {
        let Some(at) = self.calls.remove(&token) else { return Heard::Waits };
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
            Ok(other) => return Heard::Problem(format!("{node} answered by {other:?}")),
            Err(cause) => return Heard::Problem(format!("{node} does not answer: {cause}")),
        };
        match (self.calls.is_empty(), full) {
            (true, full) => Heard::Complete { full },
            (false, true) => Heard::Full,
            (false, false) => Heard::Waits,
        }
    }
}

/// What to ask for an extent of a view.
pub(super) fn request(
    view: &View,
    attempt: u64,
    extent: Extent,
    redundancy: Redundancy,
) -> NodeRequest {
    let geometry = &view.geometry;
    let (bytes, block_bytes) = match extent {
        Extent::Region { .. } => (geometry.region_bytes, geometry.block_bytes),
        Extent::Subtable { .. } => (geometry.subtable_bytes(), 0),
    };
    let cluster = view.cluster;
    let view = view.number;
    NodeRequest::Reserve { cluster, attempt, view, extent, bytes, block_bytes, redundancy }
}

impl State {
    /// Asks for the room of all these; `None` if there is nobody to ask.
    pub(super) fn reserve(
        &mut self,
        ctx: &mut Ctx<'_>,
        items: Vec<Item>,
        purpose: &Purpose,
    ) -> Option<Reserving> {
        let view = self.view()?;
        let number = view.number;
        let attempt = self.last_attempt;
        let asks = items.iter().enumerate().flat_map(|(at, item)| {
            let request = request(view, attempt, item.extent, item.redundancy);
            item.nodes.iter().map(move |(node, _)| (at, *node, request.clone()))
        });
        let asks: Vec<(usize, MnId, NodeRequest)> = asks.collect();
        let mut calls = BTreeMap::new();
        for (at, node, request) in asks {
            if let Some(token) = ctx.call(&self.roster, node, request, purpose.clone()) {
                calls.insert(token, at);
            }
        }
        let reserving = Reserving { view: number, items, calls, begun_ms: ctx.now_ms };
        (!reserving.calls.is_empty()).then_some(reserving)
    }
}
