//! The first view, made from settings and memory nodes.
//!
//! The index is placed first, then a few regions, about one for each node to lead. Clients that need more regions later
//! ask for them (`logic::region_addition`). If possible, enough room remains for the index to double. Each node is
//! asked for its regions before its subtables, one after the other. Sizes of regions are powers of two and leave no
//! gaps, so the plan knows exactly where the node's allocator, which aligns by [`extent_align_bytes`], will put them.
//! No state is kept here.

use std::collections::HashMap;

use fusee_control::node::{Extent, NodeRequest, extent_align_bytes};
use fusee_core::data::{Redundancy, Region};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_core::view::{Geometry, Member, PoolPlace, Subtable, View};

use crate::logic::rebalance::RebalanceItems;
use crate::placement::{NodeRoom, capacity, place};
use crate::settings::{ClusterSettings, MAX_REGIONS};

/// The kinds of items that the ring places; part of the hash of an item's position.
pub(crate) const SUBTABLES: u64 = 1;
pub(crate) const REGIONS: u64 = 2;

/// The limit on the number of moves that even out the plan.
const MAX_MOVES: usize = 256;

/// The nodes that are to hold each subtable and region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementPlan {
    members: Vec<Member>,
    geometry: Geometry,
    /// For each subtable, by its number, the nodes that hold it, the primary first. `regions` is the same for regions.
    subtables: Vec<Vec<MnId>>,
    regions: Vec<Vec<MnId>>,
}

/// Reasons why the cluster cannot be formed of these memory nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The replicas of the index do not fit into the pools.
    #[error(
        "pools too small: {fitting} of {subtables} index subtables ({bytes} bytes each, \
         {replicas} replicas) fit on the memory nodes; start them with pools of {} MiB each, or lower \
         index_keys",
        mib(*pool_bytes)
    )]
    Index {
        /// The number of subtables that the index needs.
        subtables: u64,
        /// The number of subtables that fit.
        fitting: u64,
        /// The size of one subtable, in bytes.
        bytes: u64,
        /// The number of replicas of each subtable.
        replicas: u8,
        /// Bytes of the pool that each of these memory nodes needs.
        pool_bytes: u64,
    },
    /// The pools have no room for data besides the index.
    #[error(
        "pools too small: beside the index not one region of {bytes} bytes fits on {replicas} \
         memory nodes; start them with pools of {} MiB each, or lower --region-bytes",
        mib(*pool_bytes)
    )]
    Regions {
        /// The size of a region, in bytes.
        bytes: u64,
        /// The number of replicas of each region.
        replicas: u8,
        /// Bytes of the pool that each of these memory nodes needs.
        pool_bytes: u64,
    },
}

/// Returns the bytes that a region takes of a pool beside subtables of this size, which are reserved from the pool's
/// end.
fn region_room(region: u64, subtable: u64) -> u64 {
    padded(region).next_multiple_of(extent_align_bytes(subtable))
}

/// Returns a number of bytes in MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Returns the most bytes that an extent takes of a pool, with the gap for its alignment.
pub(crate) fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(extent_align_bytes(bytes))
}

/// Evens out loads that hashing leaves uneven. The cluster would move these replicas right after its start, but before
/// the first view no bytes have to be copied.
fn evened(members: &[Member], mut placed: Vec<Vec<MnId>>, rooms: &[NodeRoom]) -> Vec<Vec<MnId>> {
    for _ in 0..MAX_MOVES {
        let place = |node: &MnId| PoolPlace { node: *node, offset: 0 };
        let items: Vec<Vec<PoolPlace>> =
            placed.iter().map(|nodes| nodes.iter().map(place).collect()).collect();
        let load = |node| placed.iter().flatten().filter(|at| **at == node).count() as u64;
        let left =
            rooms.iter().map(|room| NodeRoom { items: room.items - load(room.node), ..*room });
        let Some(moves) = RebalanceItems::planned(&items, left.collect()).next(members, &[]) else {
            break;
        };
        for (extent, leaving) in moves.extents {
            let Extent::Subtable { subtable: item } = extent else { continue };
            let nodes = placed[item as usize].iter_mut().filter(|node| **node == leaving.node);
            nodes.for_each(|node| *node = moves.to);
        }
    }
    placed
}

impl PlacementPlan {
    /// Places the subtables of the index and the regions on the members.
    pub fn new(
        settings: &ClusterSettings,
        members: Vec<Member>,
    ) -> Result<PlacementPlan, PlanError> {
        let geometry = settings.geometry;
        let count = settings.subtables();
        let bytes = geometry.subtable_bytes();
        let room = |member: &Member| NodeRoom {
            node: member.node,
            items: member.pool_bytes / padded(bytes),
        };
        let rooms: Vec<NodeRoom> = members.iter().map(room).collect();
        let replicas = settings.index_replicas;
        let fitting = capacity(&rooms, replicas, count);
        let region = geometry.region_bytes;
        if fitting < count {
            let each = (count * u64::from(replicas)).div_ceil(members.len().max(1) as u64);
            let pool_bytes = each * padded(bytes) + region_room(region, bytes);
            return Err(PlanError::Index {
                subtables: count,
                fitting,
                bytes,
                replicas,
                pool_bytes,
            });
        }
        let subtables = evened(&members, place(SUBTABLES, &rooms, replicas, count), &rooms);

        let rooms = |index_growth: u64| -> Vec<NodeRoom> {
            let room = |member: &Member| {
                let holds = |nodes: &&Vec<MnId>| nodes.contains(&member.node);
                let index = subtables.iter().filter(holds).count() as u64 * padded(bytes);
                let left = (member.pool_bytes - index).saturating_sub(index * index_growth);
                let left = left - left % extent_align_bytes(bytes);
                NodeRoom { node: member.node, items: left / padded(region) }
            };
            members.iter().map(room).collect()
        };
        let replicas = settings.data_replicas;
        // The 44-bit address space is another limit, which matters only for huge regions.
        let most = MAX_REGIONS.min(fusee_core::layout::ADDRESS_SPACE_BYTES / region);
        let most = most.min(members.len() as u64);
        let mut rooms_left = rooms(1);
        let mut count = capacity(&rooms_left, replicas, most);
        if count == 0 {
            // If hardly one region fits, no room is left for the index to grow.
            rooms_left = rooms(0);
            count = capacity(&rooms_left, replicas, most);
        }
        if count == 0 {
            let of = |member: &Member| {
                subtables.iter().filter(|nodes| nodes.contains(&member.node)).count() as u64
            };
            let index = members.iter().map(of).max().unwrap_or(0) * padded(bytes);
            let pool_bytes = index + region_room(region, bytes);
            return Err(PlanError::Regions { bytes: region, replicas, pool_bytes });
        }
        let regions = evened(&members, place(REGIONS, &rooms_left, replicas, count), &rooms_left);
        Ok(PlacementPlan { members, geometry, subtables, regions })
    }

    /// Returns the memory nodes of the plan.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the extents that a node holds, in the order in which to reserve them.
    fn extents(&self, node: MnId) -> Vec<Extent> {
        let regions = (0u32..).zip(&self.regions).filter(|(_, nodes)| nodes.contains(&node));
        let regions = regions.map(|(region, nodes)| Extent::Region {
            region,
            primary: nodes.first() == Some(&node),
        });
        let subtables = (0u32..).zip(&self.subtables).filter(|(_, nodes)| nodes.contains(&node));
        let subtables = subtables.map(|(subtable, _)| Extent::Subtable { subtable });
        regions.chain(subtables).collect()
    }

    /// Returns the requests to reserve a node's extents, in the order in which to send them.
    pub fn reservations(&self, cluster: ClusterId, attempt: u64, node: MnId) -> Vec<NodeRequest> {
        let request = |extent| {
            let (bytes, block_bytes) = match extent {
                Extent::Region { .. } => (self.geometry.region_bytes, self.geometry.block_bytes),
                Extent::Subtable { .. } => (self.geometry.subtable_bytes(), 0),
            };
            let redundancy = Redundancy::Replicated;
            NodeRequest::Reserve {
                cluster,
                attempt,
                view: 0,
                extent,
                bytes,
                block_bytes,
                redundancy,
            }
        };
        self.extents(node).into_iter().map(request).collect()
    }

    /// Returns the first view, made from the offsets that each member gave in answer to
    /// [`PlacementPlan::reservations`]. The offsets come from other processes, so they are checked.
    pub fn view(
        &self,
        cluster: ClusterId,
        hash_key: HashKey,
        offsets: &HashMap<MnId, Vec<u64>>,
    ) -> Result<View, String> {
        let mut at: HashMap<(MnId, Extent), u64> = HashMap::new();
        for member in &self.members {
            let node = member.node;
            let given = offsets.get(&node).map_or(&[][..], Vec::as_slice);
            let extents = self.extents(node);
            if given.len() != extents.len() {
                return Err(format!("{node} gave {} of {} extents", given.len(), extents.len()));
            }
            self.check_apart(node, &extents, given)?;
            at.extend(extents.into_iter().map(|extent| (node, extent)).zip(given.iter().copied()));
        }
        let place = |node: MnId, extent| PoolPlace { node, offset: at[&(node, extent)] };
        let region = |(region, nodes): (u32, &Vec<MnId>)| {
            let primary = |node: &MnId| nodes.first() == Some(node);
            let extent = |node| Extent::Region { region, primary: primary(&node) };
            let places = nodes.iter().map(|node| place(*node, extent(*node))).collect();
            Region::replicated(places, 1)
        };
        let depth = self.subtables.len().ilog2() as u8;
        let subtable = |(subtable, nodes): (u32, &Vec<MnId>)| {
            let extent = Extent::Subtable { subtable };
            let places = nodes.iter().map(|node| place(*node, extent)).collect();
            Subtable::new(depth, places)
        };
        let view = View {
            number: 1,
            cluster,
            hash_key,
            geometry: self.geometry,
            members: self.members.clone(),
            regions: (0u32..).zip(&self.regions).map(region).collect(),
            directory: (0u32..).take(self.subtables.len()).collect(),
            subtables: (0u32..).zip(&self.subtables).map(subtable).collect(),
            change: None,
        };
        view.check().map_err(|error| error.to_string())?;
        Ok(view)
    }

    fn check_apart(&self, node: MnId, extents: &[Extent], offsets: &[u64]) -> Result<(), String> {
        let bytes = |extent: &Extent| match extent {
            Extent::Region { .. } => self.geometry.region_bytes,
            Extent::Subtable { .. } => self.geometry.subtable_bytes(),
        };
        let mut ranges: Vec<(u64, u64)> =
            offsets.iter().copied().zip(extents.iter().map(bytes)).collect();
        ranges.sort_unstable();
        let overlap = |pair: &[(u64, u64)]| pair[0].0.saturating_add(pair[0].1) > pair[1].0;
        if ranges.windows(2).any(overlap) {
            return Err(format!("{node} gave extents that overlap"));
        }
        Ok(())
    }
}
