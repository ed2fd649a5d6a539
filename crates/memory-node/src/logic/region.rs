//! The blocks of a region on this node: their owners, and the list of free blocks.

use fusee_core::data::Redundancy;
use fusee_core::verbs::ClientId;
use fusee_core::view::{Geometry, TABLE_ENTRY_BYTES};

use super::NodeEffect;

/// A region of which one place is in this node's pool.
#[derive(Debug)]
pub(super) struct NodeRegion {
    pub offset: u64,
    /// The number of the view for which the region was last reserved.
    pub since: u64,
    pub geometry: Geometry,
    pub primary: bool,
    /// The redundancy of the region's objects.
    pub redundancy: Redundancy,
    /// The block allocation table: the owner of each block.
    pub owners: Vec<ClientId>,
    /// The blocks to hand out, the next one last. A listed block that has meanwhile got an owner is skipped when it
    /// is reached, so that no request has to search the list.
    free: Vec<u32>,
    /// For each block of the region: whether `free` lists the block.
    listed: Vec<bool>,
}

impl NodeRegion {
    pub fn new(
        offset: u64,
        since: u64,
        geometry: Geometry,
        primary: bool,
        redundancy: Redundancy,
    ) -> NodeRegion {
        let blocks = geometry.blocks_per_region();
        let free = if primary { (0..blocks).rev().collect() } else { Vec::new() };
        NodeRegion {
            offset,
            since,
            geometry,
            primary,
            redundancy,
            owners: vec![ClientId::NOBODY; blocks as usize],
            free,
            listed: vec![primary; blocks as usize],
        }
    }

    /// Lists all free blocks, when this node becomes the region's primary.
    pub fn list_free(&mut self) {
        self.listed = self.owners.iter().map(|owner| *owner == ClientId::NOBODY).collect();
        let free = (0u32..).zip(&self.listed).filter(|(_, free)| **free);
        self.free = free.map(|(block, _)| block).collect();
        self.free.reverse();
    }

    /// Returns whether the list of free blocks has more than a quarter of all blocks.
    pub fn has_spare(&self) -> bool {
        self.free.len() > self.owners.len() / 4
    }

    /// Takes a free block off the list.
    pub fn take_free(&mut self) -> Option<u32> {
        while let Some(block) = self.free.pop() {
            self.listed[block as usize] = false;
            if self.owners[block as usize] == ClientId::NOBODY {
                return Some(block);
            }
        }
        None
    }

    pub fn set_owner(&mut self, block: u32, owner: ClientId) -> NodeEffect {
        let at = block as usize;
        self.owners[at] = owner;
        if owner == ClientId::NOBODY && self.primary && !self.listed[at] {
            self.free.push(block);
            self.listed[at] = true;
        }
        let offset = self.offset + u64::from(block) * TABLE_ENTRY_BYTES;
        NodeEffect::WriteTable { offset, value: owner.0 }
    }

    pub fn owned(&self) -> u64 {
        self.owners.iter().filter(|owner| **owner != ClientId::NOBODY).count() as u64
    }
}
