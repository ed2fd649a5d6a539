//! What a survey of the memory finds.
//!
//! All numbers are of one place of each region: a block counts once, at the memory node that leads
//! its region. Two sums hold in every survey, whatever was read:
//!
//! ```text
//! blocks = free + of the classes + blank + with an unreadable header
//! blocks = free + of the owners  + with an unreadable owner
//! ```

use std::collections::BTreeMap;

use fusee_core::layout::SizeClass;
use fusee_core::verbs::{ClientId, MnId};

use super::pairs::RedundancyMemory;

/// How the memory of a cluster is used ([`Client::survey_memory`](crate::Client::survey_memory)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySurvey {
    /// The number of the newest view that it was read by.
    pub view: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// The memory nodes of that view, by their names.
    pub nodes: Vec<NodeMemory>,
    /// The size classes that have blocks, the smallest first.
    pub classes: Vec<ClassMemory>,
    /// Whoever owns blocks, by name.
    pub owners: Vec<OwnerMemory>,
    /// What the pairs of each redundancy take, by the index.
    pub redundancies: Vec<RedundancyMemory>,
    /// Blocks of all regions.
    pub blocks: u64,
    /// Those that nobody owns.
    pub free_blocks: u64,
    /// Those that somebody owns and that no header has ever been written to: just granted. One that
    /// has been used before counts by its old header until its owner writes another.
    pub blank_blocks: u64,
    /// Those whose header no correct client writes, or that were changing whenever they were read.
    pub unreadable_headers: u64,
    /// Those whose table entry names a session that there has never been.
    pub unreadable_owners: u64,
    /// Free marks where no object starts.
    pub stray_marks: u64,
    /// Regions of pairs without redundancy that were lost, by the node that had them.
    pub lost_regions: BTreeMap<MnId, u64>,
}

/// A memory node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// Its name.
    pub node: MnId,
    /// Bytes that it lends.
    pub pool_bytes: u64,
    /// Replicas of index subtables that the view has there.
    pub subtables: u64,
    /// Their bytes.
    pub subtable_bytes: u64,
    /// Replicas of regions that the view has there.
    pub regions: u64,
    /// Their bytes.
    pub region_bytes: u64,
    /// Those of them whose pairs have no redundancy: they go with the node.
    pub single_region_bytes: u64,
    /// What the node itself has reserved: these, what they are aligned by, and what a change of the
    /// view adds or has not released yet. `None` if it did not say.
    pub reserved_bytes: Option<u64>,
    /// Blocks of the regions that it leads.
    pub blocks: u64,
    /// Those of them that nobody owns.
    pub free_blocks: u64,
}

impl NodeMemory {
    /// What is not reserved, if that is known: room for more subtables and regions.
    pub fn free_bytes(&self) -> Option<u64> {
        self.reserved_bytes.map(|reserved| self.pool_bytes.saturating_sub(reserved))
    }
}

/// A size class. Its objects are set free, or new, or neither: then they are in use, or in the
/// hands of a session that will use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMemory {
    /// The class.
    pub class: SizeClass,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// Objects that these have room for.
    pub objects: u64,
    /// Those that are set free: they wait for the owners of their blocks.
    pub marked: u64,
    /// Those of which the master knows that they were never allocated. It does of blocks that wait
    /// for an owner; what open sessions have not come to yet nobody else can tell.
    pub new: u64,
}

/// Whose name stands in block tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerMemory {
    /// The name.
    pub owner: ClientId,
    /// What became of it.
    pub state: OwnerState,
    /// Its blocks.
    pub blocks: u64,
    /// Those of them that the master gives to whoever needs one next.
    pub handed_on: u64,
    /// Bytes of objects in its blocks that are set free.
    pub marked_bytes: u64,
}

/// What became of the owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// Its session is open.
    Open,
    /// The master has given it up, and it is not recovered yet.
    Expired,
    /// It has ended. Its blocks stay under its name until somebody goes on with them.
    Departed,
}

/// Counts of a part of the memory, to be added up.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub nodes: BTreeMap<MnId, Blocks>,
    pub classes: BTreeMap<SizeClass, OfClass>,
    pub owners: BTreeMap<ClientId, OfOwner>,
    pub blank: u64,
    pub unreadable: u64,
    pub stray_marks: u64,
}

/// Blocks of regions that a node leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    pub all: u64,
    pub free: u64,
}

/// Counts of a size class, as in [`ClassMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfClass {
    pub blocks: u64,
    pub objects: u64,
    pub marked: u64,
    pub new: u64,
}

/// Counts of an owner, as in [`OwnerMemory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OfOwner {
    pub blocks: u64,
    pub handed_on: u64,
    pub marked_bytes: u64,
}

impl Tally {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: Tally) {
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
