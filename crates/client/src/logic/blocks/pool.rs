//! Requests for blocks of the pool: which blocks a slab accepts, and how the memory nodes are asked for one.

use std::time::Duration;

use fusee_control::node::{
    AcceptedOrders, BlockId, BlockRequest, MAX_ALLOC_REGIONS, NodeRefusal, NodeReply,
};
use fusee_core::data::{Redundancy, Region};
use fusee_core::error::Error;
use fusee_core::host::BlockDemand;
use fusee_core::layout::{BlockShape, Slot};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::slab::SlabKind;
use fusee_core::verbs::MnId;
use fusee_core::view::{Geometry, View};

use super::{BlockSource, Environment, RunningCountGuard, is_valid};

/// Limit of useless grants in a row: of blocks in regions that are being copied. If a memory node exceeds the limit,
/// the request for a block goes to the next node.
const FROZEN_GRANTS: usize = 4;
/// Interval at which a request to the pool checks whether the session is still taking over blocks that the block tables
/// possibly already show as its own.
const TAKEN_BACK_POLL: Duration = Duration::from_micros(100);

/// The block of the pool that a session wants.
#[derive(Clone, Copy)]
pub(super) struct PoolDemand {
    pub redundancy: Redundancy,
    pub orders: AcceptedOrders,
    /// A demand that is not [urgent](BlockDemand::is_urgent) is met only if a memory node has such blocks to spare.
    pub demand: BlockDemand,
}

impl PoolDemand {
    /// Accepts mixed blocks, too. A session can use no object of such a block before a window has passed.
    pub fn or_mixed(self) -> PoolDemand {
        let orders = AcceptedOrders { mixed: true, ..self.orders };
        PoolDemand { orders, ..self }
    }
}

/// A block of the pool that was granted, with its base ([`NodeReply::Allocated`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PoolGrant {
    pub block: BlockId,
    pub base: Option<u16>,
}

impl PoolGrant {
    /// Takes over what a memory node has answered. A base that is no generation counts as none, so the session waits.
    pub fn answered(block: BlockId, base: Option<u16>) -> PoolGrant {
        PoolGrant { block, base: base.filter(|base| *base < Slot::GENERATIONS) }
    }
}

/// The number of objects for which a block has room, unless a slab has larger blocks already, or such blocks are used
/// up.
const OBJECTS_AT_LEAST: u32 = 8;

/// Returns the orders of blocks that a slab accepts which has `bytes` bytes in blocks: at least an order with room for
/// one object, at most one that doubles the slab's memory.
pub(super) fn accepted_orders(kind: SlabKind, bytes: u64, geometry: &Geometry) -> AcceptedOrders {
    let first = |objects| {
        let has_room = |order: &u8| {
            let shape = BlockShape::new(geometry.order_bytes(*order), kind.class);
            shape.is_some_and(|shape| shape.objects >= objects)
        };
        (0..=geometry.max_order()).find(has_room).unwrap_or(geometry.max_order())
    };
    let grown = (bytes / geometry.frame_bytes()).max(1).ilog2() as u8;
    let most = first(OBJECTS_AT_LEAST).max(grown.min(geometry.max_order()));
    AcceptedOrders { least: first(1), most, mixed: false }
}

impl<E: Environment> BlockSource<E> {
    /// Sends ALLOC to one memory node after the other, until one has granted a block and all replicas of the block's
    /// table name this session as the owner.
    pub(super) async fn allocate(
        &self,
        wanted: PoolDemand,
        view: &View,
    ) -> Result<PoolGrant, Error> {
        while self.taking_back.get() > 0 && !removed(Mutant::OwnOrphansTakenMeanwhile) {
            self.env.sleep(TAKEN_BACK_POLL).await;
        }
        let _ends = RunningCountGuard::begin(&self.allocating);
        let members = &view.members;
        let first = self.turn.get();
        self.turn.set(first.wrapping_add(1));
        let mut last_failure = None;
        for i in 0..members.len() {
            let node = members[first.wrapping_add(i) % members.len()].node;
            // Regions for copies of EC-oriented pairs lie on node `owner` only, so no other node has such a block.
            if matches!(wanted.redundancy, Redundancy::Copies(owner) if owner != node) {
                continue;
            }
            match self.allocate_at(node, first, wanted, view).await {
                Ok(Some(granted)) => return Ok(granted),
                Ok(None) => {}
                Err(failure) => last_failure = Some(failure),
            }
        }
        match last_failure {
            Some(reason) => Err(Error::Allocation { reason }),
            None => Err(Error::OutOfMemory),
        }
    }

    /// Sends ALLOC to one memory node. Returns `None` if the node has no free block, and `Err` with the reason if the
    /// node possibly has one later.
    async fn allocate_at(
        &self,
        node: MnId,
        turn: usize,
        wanted: PoolDemand,
        view: &View,
    ) -> Result<Option<PoolGrant>, String> {
        let mut frozen = Vec::new();
        let copied = format!("{node}: what it has free is being copied");
        while frozen.len() <= FROZEN_GRANTS {
            let request = alloc_request(wanted, node, turn, &frozen, view);
            let Some(request) = request else { return Ok(None) };
            match self.ask(node, request).await {
                Ok(NodeReply::Allocated { block, .. })
                    if self.unconfirmed.borrow().contains_key(&block) =>
                {
                    // The node has executed the return of the block, but another node's acknowledgement is missing.
                    self.missed.set(true);
                    return Err(format!("{node}: {block:?} may yet be freed"));
                }
                // The node was not told that this region is frozen, because there are more frozen regions than one
                // request can name. The block table of the region's new replica was possibly copied before the grant:
                // then it does not show the block, and the new replica's node would not hear of the block's return
                // either. So the block is not used now; it is found as a missed block when the change is over.
                Ok(NodeReply::Allocated { block, .. })
                    if is_frozen(view, block) && !removed(Mutant::FrozenGrantTaken) =>
                {
                    self.missed.set(true);
                    frozen.push(block.region);
                }
                Ok(NodeReply::Allocated { block, base }) if is_valid(view, block) => {
                    let granted = PoolGrant::answered(block, base);
                    let Err(error) = self.record_on_backups(granted, view).await else {
                        self.holds(block);
                        return Ok(Some(granted));
                    };
                    self.give_back(granted, view).await;
                    return Err(error.to_string());
                }
                Ok(NodeReply::Allocated { block, base }) => {
                    // The block lies in a region that only a newer view has. No backup knows of the block yet, so it is
                    // returned to this node only.
                    self.return_to(&[node], PoolGrant::answered(block, base)).await;
                    return Err(format!("{node}: {block:?} is not of this view"));
                }
                Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)) if frozen.is_empty() => {
                    return Ok(None);
                }
                Ok(NodeReply::Refused(NodeRefusal::NoFreeBlock)) => return Err(copied),
                Ok(other) => return Err(format!("{node}: {other:?}")),
                Err(error) => {
                    if error.may_take_effect() {
                        self.missed.set(true);
                    }
                    return Err(format!("{node}: {error}"));
                }
            }
        }
        Err(copied)
    }
}

/// Makes an ALLOC for a memory node; `None` if the node cannot have such a block. If there are too many frozen or
/// wanted regions to name them all, each value of `turn` selects others. Among the frozen regions, those of `given`, in
/// which the node has just granted a block, come first.
fn alloc_request(
    wanted: PoolDemand,
    node: MnId,
    turn: usize,
    given: &[u32],
    view: &View,
) -> Option<BlockRequest> {
    let change = view.change.as_ref();
    let regions = change.into_iter().flat_map(|change| &change.regions).map(|r| r.region);
    // Frozen regions elsewhere are named, too: a node at an older or newer view is possibly the primary of other
    // regions than this view says.
    let lies_there =
        |region: &u32| view.regions.get(*region as usize).is_some_and(|r| r.lies_on(node));
    let (here, elsewhere): (Vec<u32>, Vec<u32>) = regions.partition(lies_there);
    let others = [here, elsewhere].map(|regions| in_turn(regions, turn)).concat();
    let others = others.into_iter().filter(|region| !given.contains(region));
    let frozen: Vec<u32> = given.iter().copied().chain(others).take(MAX_ALLOC_REGIONS).collect();
    let mut spare_of = Vec::new();
    let PoolDemand { redundancy, orders, demand } = wanted;
    if !demand.is_urgent() {
        let subtable = match demand {
            BlockDemand::Beside(subtable) => Some(view.subtables.get(subtable as usize)?),
            _ => None,
        };
        let is_asked_for = |(number, region): &(u32, &Region)| {
            let is_there = region.is_there() && region.leader() == Some(node);
            let is_beside = subtable.is_none_or(|subtable| region.lies_beside(subtable));
            let fits = region.redundancy() == redundancy && is_beside;
            is_there && fits && !view.is_region_frozen(*number)
        };
        let asked_for = (0..).zip(&view.regions).filter(is_asked_for);
        spare_of = in_turn(asked_for.map(|(number, _)| number).collect(), turn);
        if spare_of.is_empty() {
            return None;
        }
        spare_of.truncate(MAX_ALLOC_REGIONS);
    }
    Some(BlockRequest::Alloc { redundancy, orders, frozen, spare_of })
}

/// Rotates the list of regions, so that it begins with other regions for each value of `turn`.
fn in_turn(mut regions: Vec<u32>, turn: usize) -> Vec<u32> {
    let first = turn.wrapping_mul(MAX_ALLOC_REGIONS).checked_rem(regions.len()).unwrap_or(0);
    regions.rotate_left(first);
    regions
}

fn is_frozen(view: &View, block: BlockId) -> bool {
    is_valid(view, block) && view.is_region_frozen(block.region)
}

#[cfg(test)]
mod tests;
