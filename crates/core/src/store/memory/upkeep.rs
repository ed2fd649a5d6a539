//! An operation that maintains the session's own blocks: the phases, and the places of blocks, that its tasks share.

use alloc::vec::Vec;

use super::is_frozen;
use crate::host::Host;
use crate::layout::Address;
use crate::mutant::{Mutant, removed};
use crate::stats::OpKind;
use crate::store::{Store, StoreOp};
use crate::verbs::{Fabric, MAX_BATCH_VERBS};
use crate::view::PoolPlace;

/// The largest number of blocks whose free bitmaps are read, or that are sealed, in one phase.
pub(super) const LOOKED_AT_TOGETHER: usize = 8;

/// The bits to set in one word of a free bitmap.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeBits {
    /// The first address for which the word has a bit.
    pub first: Address,
    pub bits: u64,
}

/// An operation of the session that maintains the session's own blocks.
pub(super) struct MemoryUpkeep<'s, F: Fabric, H: Host> {
    pub op: StoreOp<'s, F, H>,
}

impl<'s, F: Fabric, H: Host> MemoryUpkeep<'s, F, H> {
    /// Begins an operation that maintains the session's blocks.
    pub fn begin(store: &'s Store<F, H>) -> MemoryUpkeep<'s, F, H> {
        MemoryUpkeep { op: store.operation() }
    }

    /// Ends the operation.
    pub fn finish(self) {
        self.op.finish(OpKind::Reclaim);
    }

    /// Waits until no verb that was posted to silent nodes can execute any more. Returns false if the host ends the
    /// wait before that.
    async fn outlive_unanswered(&mut self) -> bool {
        for node in self.op.pin.traces.unanswered() {
            self.op.store.host.report_unreachable(*node);
        }
        loop {
            let newest = self.op.store.newest_view();
            if self.op.pin.traces.forget_nodes_outside(&newest) {
                return true;
            }
            if self.op.pause().await.is_err() {
                return false;
            }
        }
    }

    /// Executes a phase whose outcome has to be known before the operation can end. Returns whether all its verbs
    /// succeeded.
    pub async fn sure_phase(&mut self) -> bool {
        if self.op.batch.verbs().is_empty() {
            return true;
        }
        // WRITEs of this phase must not execute after the operation has ended, so they count as posted, as CASes do.
        // Verbs of an earlier phase can possibly still execute, so the earlier traces are restored after this phase.
        let before = self.op.pin.traces.begin_sure_phase();
        self.op.phase().await;
        let is_good = self.op.batch.check().is_ok();
        let is_over = is_good || removed(Mutant::LateVerbsNotAwaited);
        if is_over {
            self.op.pin.traces.end_sure_phase(before);
        } else if self.outlive_unanswered().await {
            self.op.pin.traces.end_all_phases(before);
        }
        is_good
    }

    /// Returns whether the view forbids new objects in a block.
    pub fn is_frozen(&self, block: Address) -> bool {
        is_frozen(&self.op.view, block)
    }

    /// Returns the place `offset` bytes after a block's start, on each replica of the block.
    pub fn places_in(
        &self,
        block: Address,
        offset: u64,
    ) -> impl Iterator<Item = PoolPlace> + use<'_, 's, F, H> {
        let places = self.op.view.block(block).into_iter().flat_map(|found| found.places());
        places.map(move |place| place.plus(offset))
    }

    /// Returns the number of the view since which the free bitmap of a block has been at its present place; `None` if
    /// the view has lost the block.
    pub fn primary_since(&self, block: Address) -> Option<u64> {
        self.op.view.block(block).map(|found| found.primary_since())
    }

    /// Returns the place of the free bitmap of a block.
    pub fn bitmap(&self, block: Address) -> Option<PoolPlace> {
        self.op.view.bitmap(block)
    }

    /// Sets bits of free bitmaps, in as many phases as necessary. Returns whether all verbs succeeded.
    pub async fn set_free_bits(&mut self, free_bits: &[FreeBits]) -> bool {
        let mut is_good = true;
        for free_bits in free_bits.chunks(MAX_BATCH_VERBS) {
            self.op.batch.clear();
            for FreeBits { first, bits } in free_bits {
                let Some(word) = self.bitmap(*first) else { continue };
                // The bitmap words lie anywhere in the pool, so they are prefetched together.
                self.op.store.fabric.prefetch(word.node, word.offset);
                self.op.batch.faa(word.node, word.offset, *bits);
            }
            is_good &= self.sure_phase().await;
        }
        is_good
    }

    /// Adds numbers to words of a block's bitmap, by FAA. Returns whether this succeeded.
    pub async fn add(&mut self, block: Address, words: impl Iterator<Item = (u32, u64)>) -> bool {
        let Some(bitmap) = self.bitmap(block) else { return false };
        let words: Vec<(u32, u64)> = words.collect();
        for words in words.chunks(MAX_BATCH_VERBS) {
            self.op.batch.clear();
            for (word, add) in words {
                self.op.batch.faa(bitmap.node, bitmap.offset + u64::from(*word) * 8, *add);
            }
            if !self.sure_phase().await {
                return false;
            }
        }
        true
    }

    /// Clears bits that are set in a block's bitmap. Returns whether this succeeded.
    pub async fn clear(&mut self, block: Address, words: &[(u32, u64)]) -> bool {
        self.add(block, words.iter().map(|(word, bits)| (*word, bits.wrapping_neg()))).await
    }
}
