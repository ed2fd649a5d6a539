//! The comparison of blocks with the whole index, which finds free bits that have been lost.
//!
//! If a client dies, the free bits of objects that it had freed are possibly not set, and it is not known which objects
//! of its own blocks were free. If a memory node is lost, so are the free bitmaps on it. The blocks concerned are
//! *unverified* until their owner has compared them:
//!
//! 1. Note which objects are not free, in each block without a write under way.
//! 2. READ all slots on all replicas, in any order. Every writer of the noted objects has ended, or is recovered, so no
//!    process puts the objects' words into slots any more, unless the view changes, which makes the comparison void. So
//!    a replica that shows the word of a noted object at the end of this step has shown it all the time, and an object
//!    to which no slot leads is garbage. A word that only backups show was left by a writer that lost its round. Such a
//!    word protects its object, too: it usually vanishes, but if a memory node is lost, a view change can settle on it.
//!    A word at an even turn also protects its object's copies, which the copy words name as long as the word is in the
//!    slot. If the word is replaced meanwhile, the writer that replaces it frees the copies.
//! 3. Wait until all operations have ended that had begun before the end of step 2, and until the free bits of all
//!    objects that they freed are set, or never will be (`Epochs::is_settled`). A free bit that is set later would be
//!    taken for that of a later object at the same address.
//! 4. READ the bitmap, and set the missing bits of the garbage; no other session sets these. From now on the bitmap
//!    shows all free objects. If the bitmap has moved since step 1, the new one possibly lacks bits of other objects.
//!    Then the block counts as seen in the older view, and the next READ of the bitmap makes the block unverified
//!    again.
//!
//! A comparison costs as much as reading the index once, so it is done only when memory is short.

use alloc::vec;
use alloc::vec::Vec;

use super::seal::seal;
use super::upkeep::MemoryUpkeep;
use crate::host::Host;
use crate::layout::{Address, BlockShape, Slot, UNIT_BYTES, bitmap_bytes};
use crate::mutant::{Mutant, guard, passes, right_or};
use crate::slab::{Block, SeenFreeBits, Verification};
use crate::store::Store;
use crate::store::write::find_copies;
use crate::verbs::Fabric;
use crate::view::{MAX_REPLICAS, PoolPlace};

/// The number of bytes of the index that are read in one phase, unless a single subtable has more.
const PHASE_BYTES: u64 = 1 << 20;

/// A block whose objects are compared with the index.
struct ComparedBlock {
    block: Address,
    bytes: u64,
    shape: BlockShape,
    taken: Vec<bool>,
    kept: Vec<bool>,
    /// The number of the view since which the block's free bitmap is at its present place.
    primary_since: u64,
}

/// A block's comparison whose mark is settled (step 3), so that the garbage can be set free.
struct SettledComparison {
    block: Address,
    /// The mark that was taken after all slots had been read.
    mark: u64,
    /// The numbers, within the block, of the objects to which no slot led.
    garbage: Vec<u32>,
}

/// A comparison of blocks with the index, as an operation of the session.
struct IndexComparison<'s, F: Fabric, H: Host> {
    upkeep: MemoryUpkeep<'s, F, H>,
    /// The blocks to compare, in the order of their addresses.
    targets: Vec<ComparedBlock>,
}

/// Continues the comparison of all unverified blocks: ends the comparison of blocks that have waited long enough,
/// and compares the other blocks with the index.
pub(super) async fn compare_unverified<F: Fabric, H: Host>(store: &Store<F, H>) {
    end_comparison(store).await;
    let upkeep = MemoryUpkeep::begin(store);
    let targets = targets(&upkeep);
    if targets.is_empty() {
        upkeep.finish();
        return;
    }
    let mut comparison = IndexComparison { upkeep, targets };
    let compared = comparison.compare().await;
    let IndexComparison { upkeep, targets } = comparison;
    upkeep.finish();
    if !compared {
        return;
    }
    let mark = store.host.mark();
    let mut slabs = store.memory.slabs.borrow_mut();
    for ComparedBlock { block, taken, kept, primary_since, .. } in targets {
        let garbage = (0u32..).zip(taken.iter().zip(&kept)).filter(|(_, (t, k))| **t && !**k);
        let garbage = garbage.map(|(object, _)| object).collect();
        if let Some(found) = slabs.find(block) {
            found.bitmap.note_compared(primary_since, mark, garbage);
        }
    }
}

fn targets<F: Fabric, H: Host>(upkeep: &MemoryUpkeep<'_, F, H>) -> Vec<ComparedBlock> {
    let slabs = upkeep.op.store.memory.slabs.borrow();
    let due = slabs.aside().iter();
    let is_quiet = |b: &Block| passes(Mutant::ComparesBesideWrites, b.is_quiet());
    let due = due.filter(|b| {
        *b.bitmap.verification() == Verification::Due && is_quiet(b) && b.scrubbed.is_none()
    });
    let target = |b: &Block| {
        let shape = b.shape;
        let taken = b.taken();
        let primary_since = upkeep.primary_since(b.address)?;
        let kept = vec![false; taken.len()];
        Some(ComparedBlock { block: b.address, bytes: b.bytes, shape, taken, kept, primary_since })
    };
    let mut targets: Vec<ComparedBlock> = due.filter_map(target).collect();
    targets.sort_unstable_by_key(|target| target.block);
    targets
}

/// Sets free the garbage of those blocks whose comparison has waited long enough (step 4).
async fn end_comparison<F: Fabric, H: Host>(store: &Store<F, H>) {
    let settled: Vec<SettledComparison> = {
        let slabs = store.memory.slabs.borrow();
        let quiet = slabs.aside().iter().filter(|b| b.is_quiet());
        let due = quiet.filter_map(|b| match b.bitmap.verification() {
            Verification::Compared { mark, garbage } => {
                let is_settled = store.host.is_settled(*mark);
                let is_settled = passes(Mutant::ComparedIsNotSettled, is_settled);
                is_settled.then(|| SettledComparison {
                    block: b.address,
                    mark: *mark,
                    garbage: garbage.clone(),
                })
            }
            Verification::Verified | Verification::Due => None,
        });
        due.collect()
    };
    for comparison in settled {
        let mut upkeep = MemoryUpkeep::begin(store);
        comparison.set_free(&mut upkeep).await;
        upkeep.finish();
    }
}

impl<F: Fabric, H: Host> IndexComparison<'_, F, H> {
    /// Reads the index and notes which objects its slots lead to. Returns false if the comparison has to be repeated
    /// later.
    async fn compare(&mut self) -> bool {
        let view = self.upkeep.op.view.clone();
        let bytes = view.geometry.subtable_bytes();
        let together = (PHASE_BYTES / (bytes * MAX_REPLICAS as u64)).max(1) as usize;
        if view.change.is_some() {
            return false;
        }
        for subtables in view.subtables.chunks(together) {
            let most = right_or(Mutant::ComparesPrimariesOnly, MAX_REPLICAS, 1);
            let replicas = subtables.iter().flat_map(|s| s.replicas().iter().take(most)).copied();
            let mut keeping = Vec::new();
            if !self.note_all(replicas, bytes, &mut keeping).await
                || !self.note_copies(keeping).await
            {
                return false;
            }
        }
        true
    }

    /// Notes the copies that these words protect. Returns false if a copy was possibly not found, or a newer view has
    /// come.
    async fn note_copies(&mut self, mut keeping: Vec<Slot>) -> bool {
        keeping.sort_unstable_by_key(|word| word.0);
        keeping.dedup();
        let Some(copies) = find_copies(&mut self.upkeep.op, &keeping).await else { return false };
        for copy in &copies {
            note_object(copy.address(), &mut self.targets);
        }
        !self.upkeep.op.newer_view_has_come()
    }

    /// Reads these replicas of subtables, in one phase, and notes the objects that their words protect. Returns false
    /// if the comparison has to be repeated later.
    async fn note_all(
        &mut self,
        replicas: impl Iterator<Item = PoolPlace>,
        bytes: u64,
        keeping: &mut Vec<Slot>,
    ) -> bool {
        let of_copies = |target: &ComparedBlock| {
            let region = self.upkeep.op.view.region_of(target.block);
            region.is_some_and(|(region, _)| region.copies_on().is_some())
        };
        let follows = guard(Mutant::CompareIgnoresCopies, self.targets.iter().any(of_copies));
        self.upkeep.op.batch.clear();
        let mut reads = Vec::new();
        for place in replicas {
            for at in (0..bytes).step_by(PHASE_BYTES as usize) {
                let count = PHASE_BYTES.min(bytes - at);
                reads.push(self.upkeep.op.batch.read(place.node, place.offset + at, count as u32));
            }
        }
        self.upkeep.op.phase().await;
        // A view change must not wait for a comparison, so the comparison ends.
        if self.upkeep.op.newer_view_has_come() {
            return false;
        }
        for read in reads {
            let Ok(bytes) = self.upkeep.op.batch.data(read) else { return false };
            let most = right_or(Mutant::ComparesFewSlots, usize::MAX, 8);
            for word in bytes.as_chunks().0.iter().take(most) {
                let word = Slot(u64::from_le_bytes(*word));
                if let Some(object) = word.object() {
                    note_object(object, &mut self.targets);
                }
                if follows
                    && self
                        .upkeep
                        .op
                        .view
                        .object_of(word)
                        .is_some_and(|object| object.has_copy(word))
                {
                    keeping.push(word);
                }
            }
        }
        true
    }
}

impl SettledComparison {
    /// Sets the free bits of the garbage that the comparison has found.
    async fn set_free<F: Fabric, H: Host>(&self, upkeep: &mut MemoryUpkeep<'_, F, H>) {
        let SettledComparison { block, mark, ref garbage } = *self;
        let Some(primary_since) = upkeep.primary_since(block) else { return };
        seal(upkeep, &[block]).await;
        if guard(Mutant::MarksInUse, !upkeep.op.store.memory.is_sealed(block)) {
            return;
        }
        let (bytes, words) = {
            let mut slabs = upkeep.op.store.memory.slabs.borrow_mut();
            let Some(found) = slabs.aside_at(block).filter(|b| b.is_quiet()) else { return };
            // The block stays unverified until the free bits of all its garbage are set.
            found.bitmap.unverify();
            found.held = true;
            (found.bytes, bits_of(found.shape, garbage))
        };
        let is_marked = set_missing_free(upkeep, block, bytes, &words).await;
        if let Some(found) = upkeep.op.store.memory.slabs.borrow_mut().aside_at(block) {
            found.held = false;
            if is_marked {
                let objects = garbage.len() as u32;
                let seen = SeenFreeBits { primary_since, mark, words, objects };
                found.bitmap.verify((objects > 0).then_some(seen));
            }
        }
    }
}

/// Sets those of the given bits that are missing in a block's bitmap. Returns whether all verbs succeeded.
async fn set_missing_free<F: Fabric, H: Host>(
    upkeep: &mut MemoryUpkeep<'_, F, H>,
    block: Address,
    bytes: u64,
    words: &[(u32, u64)],
) -> bool {
    let Some(set) = read_free_bitmap(upkeep, block, bytes).await else { return false };
    let missing = |(word, bits): &(u32, u64)| {
        let missing = bits & !set.get(*word as usize).copied().unwrap_or(0);
        (missing != 0).then_some((*word, missing))
    };
    upkeep.add(block, words.iter().filter_map(missing)).await
}

/// Reads the free bitmap of a block, in one phase. Returns `None` if this failed.
async fn read_free_bitmap<F: Fabric, H: Host>(
    upkeep: &mut MemoryUpkeep<'_, F, H>,
    block: Address,
    bytes: u64,
) -> Option<Vec<u64>> {
    let place = upkeep.bitmap(block)?;
    upkeep.op.batch.clear();
    let read = upkeep.op.batch.read(place.node, place.offset, bitmap_bytes(bytes) as u32);
    upkeep.op.phase().await;
    let bytes = upkeep.op.batch.data(read).ok()?;
    Some(bytes.as_chunks().0.iter().map(|w| u64::from_le_bytes(*w)).collect())
}

/// Notes that a slot leads to an object, if the object's block is compared.
fn note_object(object: Address, targets: &mut [ComparedBlock]) {
    let behind = targets.partition_point(|target| target.block <= object);
    let Some(target) = behind.checked_sub(1).map(|at| &mut targets[at]) else { return };
    let offset = object.bytes() - target.block.bytes();
    if let Some(object) = target.shape.object_at(offset).filter(|_| offset < target.bytes) {
        target.kept[object as usize] = true;
    }
}

/// Returns the bits of these objects as pairs of a bitmap word's number and the word's bits, in order.
fn bits_of(shape: BlockShape, objects: &[u32]) -> Vec<(u32, u64)> {
    let mut words: Vec<(u32, u64)> = Vec::new();
    for object in objects {
        let unit = shape.offset(*object) / UNIT_BYTES;
        let word = (unit / 64) as u32;
        let bit = 1 << (unit % 64);
        match words.last_mut() {
            Some((last, sum)) if *last == word => *sum |= bit,
            _ => words.push((word, bit)),
        }
    }
    words
}
