//! The result of a survey of the memory.
//!
//! A block is counted once, at the memory node with its region's primary; its other replicas are not counted. Two sums
//! hold in every survey, whatever was read:
//!
//! ```text
//! blocks = free + of the classes + blank + with an unreadable header
//! blocks = free + of the owners  + with an unreadable owner
//! ```

use std::collections::BTreeMap;

use fusee_core::layout::SizeClass;
use fusee_core::verbs::{ClientId, MnId};

use super::pairs::RedundancyMemory;

/// The use of a cluster's memory ([`Admin::survey_memory`](crate::Admin::survey_memory)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySurvey {
    /// The number of the newest view that the survey used to find regions.
    pub view: u64,
    /// The memory nodes, ordered by their ids.
    pub nodes: Vec<NodeMemory>,
    /// The size classes that have blocks, the smallest first.
    pub classes: Vec<ClassMemory>,
    /// The owners of blocks, ordered by their ids.
    pub owners: Vec<OwnerMemory>,
    /// The memory of all pairs of each redundancy, according to the index.
    pub redundancies: Vec<RedundancyMemory>,
    /// The bytes of all replicas of the blocks, by their use.
    pub block_use: BlockBytes,
    /// Number of blocks in all regions.
    pub blocks: u64,
    /// Bytes of the blocks in all regions.
    pub led_bytes: u64,
    /// Number of blocks without an owner.
    pub free_blocks: u64,
    /// Bytes of the blocks without an owner.
    pub free_block_bytes: u64,
    /// Number of blocks with an owner but without a header: they were just granted.
    pub blank_blocks: u64,
    /// Number of blocks with a header that no correct client writes, or that was being written each time it was read.
    pub unreadable_headers: u64,
    /// Number of blocks whose table entry names an owner that has never been a session.
    pub unreadable_owners: u64,
    /// Number of free bits that are set where no object starts.
    pub stray_marks: u64,
    /// Number of lost regions of pairs without redundancy, for each node that held such regions.
    pub lost_regions: BTreeMap<MnId, u64>,
}

/// Bytes of blocks by their use, on all replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockBytes {
    /// Blocks without an owner.
    pub free: u64,
    /// Blocks with an owner whose headers are missing or unreadable.
    pub blank: u64,
    /// Headers of blocks, and the ends of blocks, which have no room for another object.
    pub overhead: u64,
    /// Objects whose free bits are set.
    pub marked: u64,
    /// Objects that are known never to have been allocated.
    pub new: u64,
    /// All other objects: those of pairs, and those that only open sessions know to be free.
    pub other: u64,
}

impl BlockBytes {
    fn add(&mut self, other: BlockBytes) {
        self.free += other.free;
        self.blank += other.blank;
        self.overhead += other.overhead;
        self.marked += other.marked;
        self.new += other.new;
        self.other += other.other;
    }

    fn sum(&self) -> u64 {
        self.free + self.blank + self.overhead + self.marked + self.new + self.other
    }
}

/// Bytes of all pools by their use ([`MemorySurvey::pool_use`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Objects of pairs, according to the index.
    pub pairs: u64,
    /// Freed objects, which the owners of their blocks reclaim when they need memory.
    pub freed: u64,
    /// Objects that were never allocated, in blocks that were handed on.
    pub never_used: u64,
    /// All other objects: open sessions can allocate them, or have freed them a moment ago, or they were lost with a
    /// session, until a comparison with the index finds them.
    pub held: u64,
    /// Headers of blocks, and the ends of blocks, which have no room for another object.
    pub overhead: u64,
    /// Blocks that have an owner, but no readable header.
    pub blank_blocks: u64,
    /// Blocks that every session can get.
    pub free_blocks: u64,
    /// The tables and free bitmaps of regions.
    pub tables: u64,
    /// The replicas of the index.
    pub index: u64,
    /// Reserved bytes outside of regions and subtables: alignment, and extents that a view change adds or has not
    /// released yet.
    pub padding: u64,
    /// Room for more regions and subtables.
    pub room: u64,
    /// Bytes of nodes that did not answer, outside of their regions and subtables.
    pub unknown: u64,
}

impl PoolUse {
    /// Returns the names and bytes of all uses.
    pub fn named(&self) -> [(&'static str, u64); 12] {
        [
            ("pairs", self.pairs),
            ("freed", self.freed),
            ("never_used", self.never_used),
            ("held", self.held),
            ("overhead", self.overhead),
            ("blank_blocks", self.blank_blocks),
            ("free_blocks", self.free_blocks),
            ("tables", self.tables),
            ("index", self.index),
            ("padding", self.padding),
            ("room", self.room),
            ("unknown", self.unknown),
        ]
    }
}

impl MemorySurvey {
    /// Returns the bytes of all pools by their use. Their sum is the size of the pools, unless other sessions wrote, or
    /// the view changed, during the survey.
    pub fn pool_use(&self) -> PoolUse {
        let blocks = self.block_use;
        let counted: u64 = self.redundancies.iter().map(|of| of.memory_bytes).sum();
        let pairs = counted.min(blocks.other);
        let sum = |of: fn(&NodeMemory) -> u64| self.nodes.iter().map(of).sum::<u64>();
        let extents = |node: &NodeMemory| node.subtable_bytes + node.region_bytes;
        let mut all = PoolUse {
            pairs,
            freed: blocks.marked,
            never_used: blocks.new,
            held: blocks.other - pairs,
            overhead: blocks.overhead,
            blank_blocks: blocks.blank,
            free_blocks: blocks.free,
            tables: sum(|node| node.region_bytes).saturating_sub(blocks.sum()),
            index: sum(|node| node.subtable_bytes),
            ..PoolUse::default()
        };
        for node in &self.nodes {
            match node.reserved_bytes {
                Some(reserved) => {
                    all.padding += reserved.saturating_sub(extents(node));
                    all.room += node.pool_bytes.saturating_sub(reserved);
                }
                None => all.unknown += node.pool_bytes.saturating_sub(extents(node)),
            }
        }
        all
    }
}

/// The memory of one memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// The id of the node.
    pub node: MnId,
    /// Size of the node's pool, in bytes.
    pub pool_bytes: u64,
    /// Number of subtable replicas that the view places on this node.
    pub subtables: u64,
    /// Bytes of the subtable replicas on this node.
    pub subtable_bytes: u64,
    /// Number of region replicas that the view places on this node.
    pub regions: u64,
    /// Bytes of the region replicas on this node.
    pub region_bytes: u64,
    /// Bytes of the node's regions whose pairs have no redundancy and are lost with the node.
    pub single_region_bytes: u64,
    /// Bytes that are reserved according to the node itself: these replicas, padding for alignment, and extents that a
    /// view change adds or has not released yet. `None` if the node did not answer.
    pub reserved_bytes: Option<u64>,
    /// Bytes of the blocks in the regions whose primary is on this node.
    pub led_bytes: u64,
    /// Bytes of those of these blocks that have no owner.
    pub free_block_bytes: u64,
}

impl NodeMemory {
    /// Returns the bytes that are not reserved and have room for more subtables and regions; `None` if the node did not
    /// answer.
    pub fn free_bytes(&self) -> Option<u64> {
        self.reserved_bytes.map(|reserved| self.pool_bytes.saturating_sub(reserved))
    }
}

/// The memory of one size class. An object of the class has its free bit set, or was never allocated, or neither: then
/// it is in use, or its block's owner is allowed to allocate it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMemory {
    /// The size class.
    pub class: SizeClass,
    /// Size of an object, in bytes.
    pub object_bytes: u64,
    /// Number of blocks of the size class.
    pub blocks: u64,
    /// Bytes of the blocks of the size class.
    pub bytes: u64,
    /// Number of objects that fit into the blocks of the size class.
    pub objects: u64,
    /// Number of objects whose free bits are set, so that the owners of their blocks can reclaim them.
    pub marked: u64,
    /// Number of objects that are known never to have been allocated. The master knows this of orphaned blocks only,
    /// not of blocks that open sessions use.
    pub new: u64,
}

/// The memory of one owner of blocks. The owners are the clients that the block tables name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerMemory {
    /// The owner's client id.
    pub owner: ClientId,
    /// The state of the owner.
    pub state: OwnerState,
    /// Number of blocks that the owner has.
    pub blocks: u64,
    /// Bytes of the blocks that the owner has.
    pub bytes: u64,
    /// Number of the owner's blocks that are orphaned: the master gives these blocks to other sessions next.
    pub handed_on: u64,
    /// Bytes of objects in the owner's blocks whose free bits are set.
    pub marked_bytes: u64,
}

/// The state of the owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner is an open session.
    Open,
    /// The owner is a session that has expired and is not recovered yet.
    Expired,
    /// The owner is a session that has ended. Its blocks name it as owner until other sessions take them over.
    Departed,
}

/// Counts of a part of the cluster's memory. Counts of several parts can be added.
#[derive(Debug, Default)]
pub(super) struct SurveyTally {
    pub nodes: BTreeMap<MnId, NodeBlockCounts>,
    pub classes: BTreeMap<SizeClass, ClassCounts>,
    pub owners: BTreeMap<ClientId, OwnerCounts>,
    pub block_use: BlockBytes,
    pub blank: u64,
    pub unreadable: u64,
    pub stray_marks: u64,
}

/// Counts of the blocks in the regions whose primary is on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeBlockCounts {
    pub blocks: u64,
    pub bytes: u64,
    pub free_blocks: u64,
    pub free_bytes: u64,
}

/// Counts of a size class, as in [`ClassMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassCounts {
    pub blocks: u64,
    pub bytes: u64,
    pub objects: u64,
    pub marked: u64,
    pub new: u64,
}

/// Counts of an owner, as in [`OwnerMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerCounts {
    pub blocks: u64,
    pub bytes: u64,
    pub handed_on: u64,
    pub marked_bytes: u64,
}

impl SurveyTally {
    /// Adds the counts of another part of the memory.
    pub fn add(&mut self, other: SurveyTally) {
        for (node, blocks) in other.nodes {
            let sum = self.nodes.entry(node).or_default();
            sum.blocks += blocks.blocks;
            sum.bytes += blocks.bytes;
            sum.free_blocks += blocks.free_blocks;
            sum.free_bytes += blocks.free_bytes;
        }
        for (class, of) in other.classes {
            let sum = self.classes.entry(class).or_default();
            sum.blocks += of.blocks;
            sum.bytes += of.bytes;
            sum.objects += of.objects;
            sum.marked += of.marked;
            sum.new += of.new;
        }
        for (owner, of) in other.owners {
            let sum = self.owners.entry(owner).or_default();
            sum.blocks += of.blocks;
            sum.bytes += of.bytes;
            sum.handed_on += of.handed_on;
            sum.marked_bytes += of.marked_bytes;
        }
        self.block_use.add(other.block_use);
        self.blank += other.blank;
        self.unreadable += other.unreadable;
        self.stray_marks += other.stray_marks;
    }
}
