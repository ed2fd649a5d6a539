//! The blocks of a region on this node: their owners, and the splitting and merging of free blocks (buddies).
//!
//! A block of order n has 2^n frames, and begins at a frame whose number is a multiple of 2^n. Together with its
//! *buddy* it makes up a block of order n + 1. Halves of a split block inherit its base. A block that is freed is
//! merged with its buddy if that is free and has the same base. Free blocks with different bases are merged only for a
//! request that would be refused otherwise: the result is *mixed*, and its next owner has to wait a window, because no
//! generation is known to be safe for all of its objects (`spec/Generations.tla`).

use std::collections::BTreeSet;

use fusee_control::node::{AcceptedOrders, BlockId};
use fusee_core::data::Redundancy;
use fusee_core::layout::{BLOCK_HEADER_BYTES, TableEntry};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::ClientId;
use fusee_core::view::{Geometry, TABLE_ENTRY_BYTES};

use super::NodeEffect;

/// A free block that an ALLOC takes if a region has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedBlock {
    /// A block of this order with a base, or a part of a larger one.
    Based(u8),
    /// A mixed block of this order, or a part of a larger one.
    Mixed(u8),
    /// A block of this order that has to be merged.
    Merged(u8),
}

impl WantedBlock {
    /// Returns what an ALLOC with these orders tries to get, the best first.
    pub fn all(orders: AcceptedOrders, max_order: u8) -> impl Iterator<Item = WantedBlock> {
        let down = (orders.least..=orders.most.min(max_order)).rev();
        let mixed = down.clone().filter(move |_| orders.mixed).map(WantedBlock::Mixed);
        let can_merge = orders.mixed && orders.least <= max_order;
        let merged = can_merge.then_some(WantedBlock::Merged(orders.least));
        down.map(WantedBlock::Based).chain(mixed).chain(merged)
    }
}

/// The base that a block has after a change of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewBase {
    /// The base that it had before.
    Kept,
    /// This base.
    Noted(Option<u16>),
}

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
    /// The block allocation table: for each frame, the block that begins there.
    table: Vec<Option<TableEntry>>,
    /// The first frames of the free blocks of each order, those with a base and the mixed ones.
    free: Vec<[BTreeSet<u32>; 2]>,
    /// The number of frames of all free blocks.
    free_frames: u64,
}

impl NodeRegion {
    pub fn new(
        offset: u64,
        since: u64,
        geometry: Geometry,
        primary: bool,
        redundancy: Redundancy,
    ) -> NodeRegion {
        let owner = ClientId::NOBODY;
        let entry = |(frame, order)| (frame, TableEntry { owner, order, base: Some(0) });
        let blocks: Vec<(u32, TableEntry)> = geometry.first_blocks().map(entry).collect();
        let (table, free) = (Vec::new(), Vec::new());
        let free_frames = 0;
        let mut region =
            NodeRegion { offset, since, geometry, primary, redundancy, table, free, free_frames };
        let is_set = region.set_table(&blocks);
        debug_assert!(is_set, "the first blocks cover the region");
        region
    }

    /// Replaces the table. Returns false, and changes nothing, if the blocks do not cover the region.
    pub fn set_table(&mut self, blocks: &[(u32, TableEntry)]) -> bool {
        let frames = self.geometry.frames_per_region();
        let mut end = 0;
        for (frame, entry) in blocks {
            if *frame != end || !self.geometry.is_block(*frame, entry.order) {
                return false;
            }
            end += 1 << entry.order;
        }
        if end != frames {
            return false;
        }
        self.table = vec![None; frames as usize];
        self.free = vec![Default::default(); usize::from(self.geometry.max_order()) + 1];
        self.free_frames = 0;
        blocks.iter().for_each(|(frame, entry)| self.insert(*frame, *entry));
        true
    }

    /// Returns the effects that write the whole table to the pool.
    pub fn table_effects(&self) -> Vec<NodeEffect> {
        (0u32..).zip(&self.table).map(|(frame, entry)| self.write(frame, *entry)).collect()
    }

    /// Returns all blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, TableEntry)> {
        let frames = (0u32..).zip(&self.table);
        frames.filter_map(|(frame, entry)| Some((frame, (*entry)?)))
    }

    /// Returns the bytes of all blocks.
    pub fn block_bytes(&self) -> u64 {
        self.table.len() as u64 * self.geometry.frame_bytes()
    }

    /// Returns the bytes of the blocks that have an owner.
    pub fn owned_bytes(&self) -> u64 {
        self.block_bytes() - self.free_frames * self.geometry.frame_bytes()
    }

    /// Returns whether more than a quarter of all memory is free.
    pub fn has_spare(&self) -> bool {
        self.free_frames > self.table.len() as u64 / 4
    }

    /// Finds a free block, which has to be split from a larger one or merged first if there is no entry for it.
    pub fn find_free(&self, wanted: WantedBlock) -> Option<(u32, u8)> {
        let (order, kind) = match wanted {
            WantedBlock::Based(order) => (order, BASED),
            WantedBlock::Mixed(order) => (order, MIXED),
            WantedBlock::Merged(order) => return self.find_mergeable(order),
        };
        let mut larger = self.free.iter().skip(usize::from(order));
        larger.find_map(|free| Some((*free[kind].first()?, order)))
    }

    /// Finds free frames that make up a block of this order.
    fn find_mergeable(&self, order: u8) -> Option<(u32, u8)> {
        if order == 0 || self.free_frames < 1 << order {
            return None;
        }
        let smaller = self.free.iter().take(usize::from(order)).flatten().flatten();
        let mut wholes = smaller.map(|frame| frame >> order << order);
        let found = wholes.find(|frame| {
            self.geometry.is_block(*frame, order) && self.owner_in(*frame, order).is_none()
        })?;
        Some((found, order))
    }

    /// Gives a free block, or free frames that make up a block, to a client. Returns the block's base.
    pub fn give(
        &mut self,
        block: BlockId,
        to: ClientId,
        effects: &mut Vec<NodeEffect>,
    ) -> Option<u16> {
        self.set_owner(block, to, NewBase::Kept, effects);
        self.table[block.frame as usize].and_then(|entry| entry.base)
    }

    /// Returns the owner of a block, which is no session if all its frames are free. If some of its frames are
    /// a part of another block that has an owner, returns `Err` with that owner.
    pub fn owner_of(&self, block: BlockId) -> Result<ClientId, ClientId> {
        if !self.geometry.is_block(block.frame, block.order) {
            return Err(ClientId::NOBODY);
        }
        match self.table[block.frame as usize] {
            Some(entry) if entry.order == block.order => Ok(entry.owner),
            _ => self.owner_in(block.frame, block.order).map_or(Ok(ClientId::NOBODY), Err),
        }
    }

    /// Returns an owner of some of the frames of a block.
    fn owner_in(&self, frame: u32, order: u8) -> Option<ClientId> {
        let (mut next, end) = (self.block_with(frame), frame + (1 << order));
        while next < end {
            let entry = self.entry(next);
            if entry.owner != ClientId::NOBODY {
                return Some(entry.owner);
            }
            next += 1 << entry.order;
        }
        None
    }

    /// Returns the first frame of the block that has this frame.
    fn block_with(&self, frame: u32) -> u32 {
        let mut firsts = (0..=self.geometry.max_order()).map(|order| frame >> order << order);
        firsts.find(|first| self.table[*first as usize].is_some()).expect("blocks cover the region")
    }

    fn entry(&self, first: u32) -> TableEntry {
        self.table[first as usize].expect("a block begins there")
    }

    /// Sets the owner of a block that has one, or whose frames are all free. A block that is freed is merged with its
    /// free buddies.
    pub fn set_owner(
        &mut self,
        block: BlockId,
        owner: ClientId,
        base: NewBase,
        effects: &mut Vec<NodeEffect>,
    ) {
        let BlockId { frame, order, .. } = block;
        self.carve(frame, order, effects);
        let before = self.remove(frame);
        let base = match base {
            NewBase::Noted(base) if !removed(Mutant::ReturnsNoBase) => base,
            NewBase::Noted(_) | NewBase::Kept => before.base,
        };
        let entry = TableEntry { owner, order, base };
        self.insert(frame, entry);
        if owner == ClientId::NOBODY {
            // A block without an owner contains only zeros, so its next owner finds no header of an earlier one.
            let offset = self.offset + self.geometry.frame_offset(frame);
            effects.push(NodeEffect::ZeroPool { offset, bytes: BLOCK_HEADER_BYTES });
            self.merge_with_buddies(frame, effects);
        } else {
            effects.push(self.write(frame, Some(entry)));
        }
    }

    /// Splits or merges free blocks, so that a block of this order begins at this frame.
    fn carve(&mut self, frame: u32, order: u8, effects: &mut Vec<NodeEffect>) {
        let mut first = self.block_with(frame);
        while self.entry(first).order > order {
            let TableEntry { order: whole, base, .. } = self.remove(first);
            let half = TableEntry { owner: ClientId::NOBODY, order: whole - 1, base };
            let other = first + (1 << half.order);
            for (first, base) in [(first, base), (other, self.inherited(base))] {
                let half = TableEntry { base, ..half };
                self.insert(first, half);
                effects.push(self.write(first, Some(half)));
            }
            first = if frame < other { first } else { other };
        }
        if self.entry(frame).order < order {
            let (mut next, end) = (frame, frame + (1 << order));
            let mut base = self.entry(frame).base;
            while next < end {
                let part = self.remove(next);
                base = merged(base, part.base);
                effects.push(self.write(next, None));
                next += 1 << part.order;
            }
            let whole = TableEntry { owner: ClientId::NOBODY, order, base };
            self.insert(frame, whole);
            effects.push(self.write(frame, Some(whole)));
        }
    }

    /// Returns the base of a half of a split block.
    fn inherited(&self, base: Option<u16>) -> Option<u16> {
        if removed(Mutant::HalvesStartAnew) { Some(0) } else { base }
    }

    /// Merges a free block with its buddies, as long as they are free and have the same base.
    fn merge_with_buddies(&mut self, frame: u32, effects: &mut Vec<NodeEffect>) {
        let (mut first, mut entry) = (frame, self.entry(frame));
        loop {
            let buddy = first ^ (1 << entry.order);
            let whole = first.min(buddy);
            let is_same = self.geometry.is_block(whole, entry.order + 1)
                && self.table[buddy as usize] == Some(entry)
                && entry.base.is_some();
            if !is_same {
                break;
            }
            self.remove(first);
            self.remove(buddy);
            effects.push(self.write(first.max(buddy), None));
            (first, entry) = (whole, TableEntry { order: entry.order + 1, ..entry });
            self.insert(first, entry);
        }
        effects.push(self.write(first, Some(entry)));
    }

    fn insert(&mut self, frame: u32, entry: TableEntry) {
        self.table[frame as usize] = Some(entry);
        if entry.owner == ClientId::NOBODY {
            self.free[usize::from(entry.order)][kind(entry.base)].insert(frame);
            self.free_frames += 1 << entry.order;
        }
    }

    fn remove(&mut self, frame: u32) -> TableEntry {
        let entry = self.table[frame as usize].take().expect("a block begins there");
        if entry.owner == ClientId::NOBODY {
            self.free[usize::from(entry.order)][kind(entry.base)].remove(&frame);
            self.free_frames -= 1 << entry.order;
        }
        entry
    }

    fn write(&self, frame: u32, entry: Option<TableEntry>) -> NodeEffect {
        let offset = self.offset + u64::from(frame) * TABLE_ENTRY_BYTES;
        NodeEffect::WriteTable { offset, value: entry.map_or(0, |entry| entry.encode()) }
    }
}

/// The index of the free blocks with a base.
const BASED: usize = 0;
/// The index of the mixed free blocks.
const MIXED: usize = 1;

fn kind(base: Option<u16>) -> usize {
    if base.is_some() { BASED } else { MIXED }
}

/// Returns the base of a block that is merged from parts with these bases.
fn merged(one: Option<u16>, other: Option<u16>) -> Option<u16> {
    if removed(Mutant::MergedTakesLargerBase) {
        return one.max(other);
    }
    one.filter(|_| one == other)
}
