//! The sealing of blocks, and the end of a session.
//!
//! The header of a sealed block says that no operation of the owner is under way in the block, and where the objects
//! that were never allocated begin. Recovery need not read the objects of such a block, and must not: an object that
//! was allocated there and never written consists of zeros, like an object that was never allocated.
//!
//! So an owner sets free bits in its own block only when the block is sealed. Other sessions free only objects to which
//! a slot has led, so these objects have bytes in the block. But an object that the owner frees, because the session
//! leaves or after a comparison with the index, was possibly never written. A recovery that took such an object for
//! never allocated would hand it on with its bit set, and the bit would be set once more when the object is freed.

use alloc::vec::Vec;

use super::freed::{by_word, set_free};
use super::upkeep::{LOOKED_AT_TOGETHER, MemoryUpkeep};
use crate::data::PerPlace;
use crate::host::Host;
use crate::layout::{Address, BlockHeader};
use crate::mutant::{Mutant, passes, removed};
use crate::slab::{Block, BlockRemainder};
use crate::store::Store;
use crate::verbs::Fabric;
use crate::view::PoolPlace;

impl<F: Fabric, H: Host> Store<F, H> {
    /// Ends the use of all blocks, so that other sessions can use them. Sets the bits of free objects in all blocks
    /// that can be sealed, and returns the remainder of each block. A block whose bits could not be set becomes
    /// unverified. To be called when no operation runs, and none begins any more.
    pub async fn leave(&self) -> Vec<BlockRemainder> {
        self.memory.take_back(&self.host);
        set_free(self).await;
        self.memory.slabs.borrow_mut().set_aside();
        let blocks: Vec<(Address, Vec<Address>)> = {
            let slabs = self.memory.slabs.borrow();
            let idle = |b: &Block| (b.address, b.not_set_free().collect::<Vec<Address>>());
            slabs.aside().iter().map(idle).collect()
        };
        let mut upkeep = MemoryUpkeep::begin(self);
        let to_seal = blocks.iter().filter(|(_, idle)| !idle.is_empty()).map(|(block, _)| *block);
        for blocks in to_seal.collect::<Vec<Address>>().chunks(LOOKED_AT_TOGETHER) {
            seal(&mut upkeep, blocks).await;
        }
        let mut free_bits = Vec::new();
        for (block, objects) in blocks {
            let is_sealed = passes(Mutant::MarksInUse, self.memory.is_sealed(block));
            by_word(objects.iter().copied(), &mut free_bits);
            let is_good = objects.is_empty() || is_sealed && upkeep.set_free_bits(&free_bits).await;
            if let Some(found) = self.memory.slabs.borrow_mut().aside_at(block) {
                upkeep
                    .primary_since(block)
                    .into_iter()
                    .for_each(|primary_since| found.bitmap.follow(primary_since));
                if !is_good {
                    found.bitmap.unverify();
                }
            }
        }
        upkeep.finish();
        self.memory.slabs.borrow_mut().take_remainders()
    }
}

/// Seals those of these blocks that can be sealed, by WRITEs of their headers, in one phase.
pub(super) async fn seal<F: Fabric, H: Host>(
    upkeep: &mut MemoryUpkeep<'_, F, H>,
    blocks: &[Address],
) {
    if removed(Mutant::MarksInUse) {
        return;
    }
    upkeep.op.batch.clear();
    let seals = PostedSeals::post(upkeep, blocks);
    let is_good = upkeep.sure_phase().await;
    seals.end(upkeep, is_good);
}

/// The blocks whose seals are posted, as WRITEs of their headers.
pub(super) struct PostedSeals {
    blocks: Vec<Address>,
}

impl PostedSeals {
    /// Posts the headers that seal these blocks, so that recovery does not read their objects. Skips blocks that cannot
    /// be sealed now.
    pub fn post<F: Fabric, H: Host>(
        upkeep: &mut MemoryUpkeep<'_, F, H>,
        blocks: &[Address],
    ) -> PostedSeals {
        let sealing: Vec<(Address, BlockHeader)> = {
            let slabs = upkeep.op.store.memory.slabs.borrow();
            let quiet = slabs.aside().iter().filter(|b| b.may_seal());
            let quiet = quiet.filter(|b| blocks.contains(&b.address));
            quiet.filter_map(|b| Some((b.address, slabs.sealed(b.address)?))).collect()
        };
        let mut posted = Vec::new();
        for (block, header) in sealing {
            if upkeep.is_frozen(block) {
                continue;
            }
            if let Some(found) = upkeep.op.store.memory.slabs.borrow_mut().aside_at(block) {
                found.held = true;
            }
            let header = header.encode();
            let span = upkeep.op.batch.stage(header.len() as u32);
            upkeep.op.batch.bytes_mut(span).copy_from_slice(&header);
            let places: PerPlace<PoolPlace> = upkeep.places_in(block, 0).collect();
            for place in places {
                upkeep.op.batch.write(place.node, place.offset, span);
            }
            posted.push(block);
        }
        PostedSeals { blocks: posted }
    }

    /// Notes that the WRITEs that seal these blocks have ended, all successfully if `is_good`. If a WRITE can still
    /// execute, notes nothing: its block must not be used, and the session has to be recovered.
    pub fn end<F: Fabric, H: Host>(self, upkeep: &MemoryUpkeep<'_, F, H>, is_good: bool) {
        if !upkeep.op.pin.traces.has_posted() {
            let mut slabs = upkeep.op.store.memory.slabs.borrow_mut();
            self.blocks.iter().for_each(|block| slabs.end_seal(*block, is_good));
        }
    }
}
