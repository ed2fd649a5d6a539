//! The result of a survey of the memory.
//!
//! All numbers are of one place of each region: a block counts once, at the memory node with its
//! region's primary. Two sums hold in every survey, whatever was read:
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
    /// The number of the newest view that was used.
    pub view: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The memory nodes, by their names.
    pub nodes: Vec<NodeMemory>,
    /// The size classes that have blocks, the smallest first.
    pub classes: Vec<ClassMemory>,
    /// The owners of blocks, by their ids.
    pub owners: Vec<OwnerMemory>,
    /// The memory of all pairs of each redundancy, according to the index.
    pub redundancies: Vec<RedundancyMemory>,
    /// Blocks of all regions.
    pub blocks: u64,
    /// Blocks without an owner.
    pub free_blocks: u64,
    /// Blocks with an owner but without a header: just granted, and never used before. A block that
    /// was used before counts by its old header until its owner writes another.
    pub blank_blocks: u64,
    /// Blocks with a header that no correct client writes, or that changed during each read.
    pub unreadable_headers: u64,
    /// Blocks with an owner in the table that has never been a session.
    pub unreadable_owners: u64,
    /// Free bits that are set where no object starts.
    pub stray_marks: u64,
    /// Lost regions of pairs without redundancy, by the node that had them.
    pub lost_regions: BTreeMap<MnId, u64>,
}

/// A memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// Its name.
    pub node: MnId,
    /// Bytes that it lends.
    pub pool_bytes: u64,
    /// Replicas of subtables that the view has there.
    pub subtables: u64,
    /// Bytes of these replicas.
    pub subtable_bytes: u64,
    /// Replicas of regions that the view has there.
    pub regions: u64,
    /// Bytes of these replicas.
    pub region_bytes: u64,
    /// Bytes of those replicas whose pairs have no redundancy: they are lost with the node.
    pub single_region_bytes: u64,
    /// Bytes that the node itself has reserved: these replicas, padding for alignment, and extents
    /// that a view change adds or has not released yet. `None` if the node did not answer.
    pub reserved_bytes: Option<u64>,
    /// Blocks of the regions whose primary the node has.
    pub blocks: u64,
    /// Those blocks without an owner.
    pub free_blocks: u64,
}

impl NodeMemory {
    /// Returns the bytes that are not reserved, if that is known: room for more subtables and
    /// regions.
    pub fn free_bytes(&self) -> Option<u64> {
        self.reserved_bytes.map(|reserved| self.pool_bytes.saturating_sub(reserved))
    }
}

/// A size class. Each of its objects has its free bit set, or is new, or neither: then it is in use,
/// or a session may allocate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMemory {
    /// The class.
    pub class: SizeClass,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Blocks of the class.
    pub blocks: u64,
    /// Objects that these blocks have room for.
    pub objects: u64,
    /// Objects whose free bits are set: they wait for the owners of their blocks.
    pub marked: u64,
    /// Objects that were never allocated, as far as the master knows: it knows this of orphaned
    /// blocks only, not of blocks that open sessions use.
    pub new: u64,
}

/// An owner of blocks, as block tables name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerMemory {
    /// The owner's client id.
    pub owner: ClientId,
    /// The state of the owner.
    pub state: OwnerState,
    /// Its blocks.
    pub blocks: u64,
    /// Those blocks that the master gives to other sessions next.
    pub handed_on: u64,
    /// Bytes of objects in its blocks whose free bits are set.
    pub marked_bytes: u64,
}

/// The state of the owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The session is open.
    Open,
    /// The session has expired and is not recovered yet.
    Expired,
    /// The session has ended. Its blocks keep its name until another session takes them over.
    Departed,
}

/// Counts of a part of the memory, to be added up.
#[derive(Debug, Default)]
pub(super) struct SurveyTally {
    pub nodes: BTreeMap<MnId, NodeBlockCounts>,
    pub classes: BTreeMap<SizeClass, ClassCounts>,
    pub owners: BTreeMap<ClientId, OwnerCounts>,
    pub blank: u64,
    pub unreadable: u64,
    pub stray_marks: u64,
}

/// Blocks of the regions whose primary a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeBlockCounts {
    pub all: u64,
    pub free: u64,
}

/// Counts of a size class, as in [`ClassMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassCounts {
    pub blocks: u64,
    pub objects: u64,
    pub marked: u64,
    pub new: u64,
}

/// Counts of an owner, as in [`OwnerMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerCounts {
    pub blocks: u64,
    pub handed_on: u64,
    pub marked_bytes: u64,
}

impl SurveyTally {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: SurveyTally) {
        for (node, blocks) in other.nodes {
            let sum = self.nodes.entry(node).or_default();
            (sum.all, sum.free) = (sum.all + blocks.all, sum.free + blocks.free);
        }
        for (class, of) in other.classes {
            let sum = self.classes.entry(class).or_default();
            sum.blocks += of.blocks;
            sum.objects += of.objects;
            sum.marked += of.marked;
            sum.new += of.new;
        }
        for (owner, of) in other.owners {
            let sum = self.owners.entry(owner).or_default();
            sum.blocks += of.blocks;
            sum.handed_on += of.handed_on;
            sum.marked_bytes += of.marked_bytes;
        }
        self.blank += other.blank;
        self.unreadable += other.unreadable;
        self.stray_marks += other.stray_marks;
    }
}
