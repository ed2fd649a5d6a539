//! Garbage collection (P §4.4): objects that are set free in the bitmaps of their blocks ([`freed`](super::freed)) are
//! reclaimed by the blocks' owners. Blocks that are wholly free return to the pool.
//!
//! *Reclaiming.* When a session needs memory, it READs the bitmaps of its blocks, and notes which objects are set free.
//! It can reuse these objects when all operations have ended that had begun before the READ was answered
//! (`Epochs::has_passed`), because only these operations possibly know the objects. The session clears the bits of a
//! block when it takes that block into use. The bits of its other blocks stay, so that their next owner finds the free
//! objects.
//!
//! *Given back.* An object that was written, and that no CAS has named, is free without a bit in a bitmap. It is reused
//! after the same wait.
//!
//! *Blocks.* The session keeps one wholly free block for each slab; if memory is short, only one for the slab that is
//! short. The other wholly free blocks are overwritten by zeros and wait once more, because no operation that has seen
//! the old contents is allowed to meet objects of the next owner. Before that, their headers say where the next owner's
//! generations begin, or before which epoch the next owner must not use the block. So an owner reads the header of a
//! block before it allocates there.
//!
//! [`out_of_memory`](super::out_of_memory) decides when all this is done.

use alloc::vec::Vec;
use core::cell::Cell;
use core::cmp::Reverse;

use super::compare::compare_unverified;
use super::seal::PostedSeals;
use super::upkeep::{LOOKED_AT_TOGETHER, MemoryUpkeep};
use super::{set_free, window_epoch};
use crate::data::{MAX_PLACES, PerPlace};
use crate::host::Host;
use crate::layout::{Address, BLOCK_HEADER_BYTES, HEADER_BYTES, Object, bitmap_bytes};
use crate::mutant::{Mutant, removed};
use crate::slab::{Block, BlockZeroing, ReplicaHeaders, SeenFreeBits, SlabKind};
use crate::store::Store;
use crate::verbs::{Fabric, MAX_BATCH_VERBS, Ticket};
use crate::view::PoolPlace;

/// The largest number of a session's blocks that wait at one time for the ends of their windows: until the slot words
/// of their former objects are allowed to recur.
const WAITING_TOGETHER: usize = 4;
/// The number of zero bytes that one WRITE writes into a block that is emptied.
const CHUNK_BYTES: u64 = 1 << 20;

/// The collection of free memory in the session's blocks, so that one slab gets a block that it can use.
pub(super) struct BlockCollector<'s, F, H> {
    pub store: &'s Store<F, H>,
    /// The slab that is to get a block.
    pub kind: SlabKind,
    /// The slab can use a block if at least one in `least` of its objects is free.
    pub least: u32,
    /// If set, the slab's block has to lie on the nodes of this subtable's replicas.
    pub beside: Option<u32>,
}

impl<F: Fabric, H: Host> BlockCollector<'_, F, H> {
    /// Does what is due for the blocks that are not in use: reads headers and bitmaps, reclaims free objects, and
    /// returns wholly free blocks. If memory is `short`, treats all blocks, and also compares unverified ones with the
    /// index. Only one operation at a time collects, because its findings about a block are valid only while no other
    /// operation collects.
    pub async fn collect(&self, short: bool) -> CollectResult {
        let Self { store, kind, least, .. } = *self;
        if store.memory.reclaiming.replace(true) {
            return CollectResult::Waiting;
        }
        let _ends = ReclaimGuard(&store.memory.reclaiming);
        if short {
            store.memory.slabs.borrow_mut().set_aside();
            set_free(store).await;
        }
        read_headers(store).await;
        self.reclaim_due().await;
        let freed = self.return_blocks(short).await;
        if short {
            compare_unverified(store).await;
        }
        let epoch = window_epoch(&store.host);
        let waits = |b: &Block| {
            let is_of_use = b.is_free() || b.is_worth_reclaiming(kind, least);
            ((self.awaits_epochs(b) || b.reusable.returned_objects() > 0) && is_of_use)
                || (b.scrubbed.is_some() && !b.generations.waits(epoch))
                || !b.bitmap.is_verified()
                || !b.is_quiet()
        };
        let waits = store.memory.slabs.borrow().aside().iter().any(waits);
        // If memory is short, bitmaps are read again only when nothing that was seen before has to wait.
        let seen = if short && waits { false } else { self.read_free_bitmaps(short).await };
        match () {
            () if freed => CollectResult::Freed,
            () if seen || waits => CollectResult::Waiting,
            () => CollectResult::Nothing,
        }
    }

    /// Reads the free bitmaps of some blocks, or of all, and seals those blocks that can be sealed. Returns whether
    /// anything new is set free.
    async fn read_free_bitmaps(&self, all: bool) -> bool {
        let mut upkeep = MemoryUpkeep::begin(self.store);
        let limit = if all { usize::MAX } else { LOOKED_AT_TOGETHER };
        let blocks = self.to_look_at(limit, &upkeep);
        let mut any = false;
        for blocks in blocks.chunks(LOOKED_AT_TOGETHER) {
            any |= upkeep.read_bitmaps_of(blocks).await;
            if upkeep.op.pin.traces.has_posted() {
                break;
            }
        }
        upkeep.finish();
        any
    }

    /// Returns the blocks whose bitmaps have not been read for the longest time, at most `limit`; those of the slab's
    /// kind come first.
    fn to_look_at(&self, limit: usize, upkeep: &MemoryUpkeep<'_, F, H>) -> Vec<Address> {
        let slabs = self.store.memory.slabs.borrow();
        let due = |b: &&Block| {
            let is_known = self.awaits_epochs(b) || !b.bitmap.is_verified();
            !is_known && b.scrubbed.is_none() && !b.is_free()
        };
        let order = |b: &Block| (b.kind != self.kind, b.bitmap.last_look(), b.address);
        let mut due: Vec<(bool, u64, Address)> =
            slabs.aside().iter().filter(due).map(order).collect();
        due.sort_unstable();
        due.truncate(limit);
        let known = |(.., block): &(bool, u64, Address)| upkeep.bitmap(*block).map(|_| *block);
        due.iter().filter_map(known).collect()
    }

    /// Returns whether no running operation can know the objects whose free bits were seen.
    fn is_reclaimable(&self, seen: &SeenFreeBits) -> bool {
        self.store.host.has_passed(seen.mark) || removed(Mutant::ReusedAtOnce)
    }

    /// Returns whether a block has objects that were seen set free, and that still have to wait.
    fn awaits_epochs(&self, block: &Block) -> bool {
        block.bitmap.seen().is_some_and(|seen| !self.is_reclaimable(seen))
    }

    /// Makes freed objects allocatable that have become reclaimable, unless another operation is collecting.
    pub async fn reclaim_what_is_due(&self) {
        if !self.store.memory.reclaiming.replace(true) {
            let _ends = ReclaimGuard(&self.store.memory.reclaiming);
            self.reclaim_due().await;
        }
    }

    /// Makes objects allocatable that were given back long enough ago. If the slab has no unused block that it can use,
    /// reclaims the free objects of the one block that has most of them.
    async fn reclaim_due(&self) {
        let Self { store, kind, least, beside } = *self;
        let has_passed = |mark| store.host.has_passed(mark);
        for block in store.memory.slabs.borrow_mut().blocks() {
            block.reusable.take_returned(has_passed, || store.host.mark());
        }
        let mut upkeep = MemoryUpkeep::begin(store);
        let best = {
            let slabs = store.memory.slabs.borrow();
            let reclaimable =
                |b: &&Block| b.bitmap.seen().is_some_and(|seen| self.is_reclaimable(seen));
            let may_be = |b: &Block| {
                let lies_there = |subtable| upkeep.op.view.lies_beside(b.address, subtable);
                beside.is_none_or(lies_there) && !upkeep.is_frozen(b.address)
            };
            // A block with a write under way is excluded, because a WRITE of its header is possibly under way, too.
            let can_be =
                |b: &&Block| b.is_quiet() && b.is_worth_reclaiming(kind, least) && may_be(b);
            let is_there = |b: &Block| b.suits(kind, least) && may_be(b);
            let reclaimable = slabs.aside().iter().filter(reclaimable).filter(can_be);
            let best = reclaimable.max_by_key(|b| b.prospect()).map(|b| b.address);
            best.filter(|_| !slabs.aside().iter().any(is_there))
        };
        if let Some(block) = best {
            upkeep.reclaim(block).await;
        }
        upkeep.finish();
    }

    /// Returns wholly free blocks to the pool: all but one of each slab; if memory is short, all but one of the slab
    /// that is short. Keeps further blocks that, once emptied, would have to wait for a whole window, unless memory is
    /// short and they belong to another slab. A block is zeroed in one call, and returned in a later one. Returns
    /// whether a block went back.
    async fn return_blocks(&self, short: bool) -> bool {
        let store = self.store;
        let mut freed = false;
        for (block, state) in self.to_return(short) {
            let mut upkeep = MemoryUpkeep::begin(store);
            if upkeep.is_frozen(block) {
                continue;
            }
            match state {
                None => {
                    if store.memory.is_seen(block) {
                        upkeep.reclaim(block).await;
                    }
                    upkeep.zero_block(block).await;
                }
                Some(BlockZeroing::Done(mark))
                    if store.host.has_passed(mark)
                        || removed(Mutant::ZeroedBlockReturnedAtOnce) =>
                {
                    if store.memory.waits_for_its_window(&store.host, block) {
                        continue;
                    }
                    let Some(returned) = store.memory.slabs.borrow_mut().remove(block) else {
                        continue;
                    };
                    store.host.free_block(returned, &upkeep.op.view.clone()).await;
                    freed = true;
                }
                _ => {}
            }
            upkeep.finish();
        }
        freed
    }

    fn to_return(&self, short: bool) -> Vec<(Address, Option<BlockZeroing>)> {
        let slabs = self.store.memory.slabs.borrow();
        let mut kept: Vec<SlabKind> = Vec::new();
        let mut blocks = Vec::new();
        let is_reclaimable =
            |b: &Block| b.bitmap.seen().is_none_or(|seen| self.is_reclaimable(seen));
        let free = |b: &&Block| b.is_free() && b.bitmap.is_verified() && is_reclaimable(b);
        let epoch = window_epoch(&self.store.host);
        let waiting = slabs.aside().iter().filter(|b| b.generations.waits(epoch)).count();
        let mut may_wait = WAITING_TOGETHER.saturating_sub(waiting);
        // Of each slab the largest free block stays.
        let mut free: Vec<&Block> = slabs.aside().iter().filter(free).collect();
        free.sort_by_key(|block| Reverse(block.bytes));
        for block in free {
            let is_other = short && block.kind != self.kind;
            if block.scrubbed.is_none() && block.generations.is_open() {
                // The block possibly waits for its window. If the block was emptied now, its wait would begin anew.
                continue;
            }
            if block.scrubbed.is_none()
                && (block.generations.is_better_kept() || block.generations.is_lost())
            {
                // The block's own slab can use the block at once, while an emptied block has to wait for a whole
                // window.
                if !block.generations.is_lost() && !is_other || may_wait == 0 {
                    continue;
                }
                may_wait -= 1;
            }
            let is_kept = kept.contains(&block.kind) || is_other || block.generations.is_lost();
            if is_kept || block.scrubbed.is_some() {
                blocks.push((block.address, block.scrubbed))
            } else {
                kept.push(block.kind)
            }
        }
        blocks
    }
}

/// Reads the headers of those blocks where no object can be allocated before their headers are read.
pub(super) async fn read_headers<F: Fabric, H: Host>(store: &Store<F, H>) {
    let epoch = window_epoch(&store.host);
    let unread: Vec<Address> = {
        let mut slabs = store.memory.slabs.borrow_mut();
        let unread =
            slabs.blocks().filter(|b| b.scrubbed.is_none() && b.generations.is_unread(epoch));
        unread.map(|block| block.address).collect()
    };
    if unread.is_empty() {
        return;
    }
    let mut upkeep = MemoryUpkeep::begin(store);
    let places = unread.iter().map(|block| upkeep.places_in(*block, 0).count()).max();
    for blocks in unread.chunks(MAX_BATCH_VERBS / places.unwrap_or(1).max(1)) {
        upkeep.read_headers(blocks, epoch).await;
    }
    upkeep.finish();
}

/// Notes, when the guard is dropped, that no operation is collecting any more, also if the operation is dropped.
struct ReclaimGuard<'s>(&'s Cell<bool>);

impl Drop for ReclaimGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The result of collecting free memory.
pub(super) enum CollectResult {
    /// A block went back to its pool.
    Freed,
    /// A block or an object possibly becomes free soon.
    Waiting,
    Nothing,
}

impl<F: Fabric, H: Host> MemoryUpkeep<'_, F, H> {
    /// Reads the free bitmaps of these blocks, and seals those blocks that can be sealed, in one phase. Returns whether
    /// anything new is set free.
    async fn read_bitmaps_of(&mut self, blocks: &[Address]) -> bool {
        self.op.batch.clear();
        let reads = self.post_looks(blocks);
        let seals = PostedSeals::post(self, blocks);
        let before = removed(Mutant::MarksBeforeTheLook).then(|| self.op.store.host.mark());
        let is_good = self.sure_phase().await;
        // The mark is taken after the READ, because operations that began before the READ was answered possibly know
        // the objects.
        let mark = before.unwrap_or_else(|| self.op.store.host.mark());
        let mut slabs = self.op.store.memory.slabs.borrow_mut();
        let look = self.op.store.memory.looks.get() + 1;
        self.op.store.memory.looks.set(look);
        let mut any = false;
        for (block, primary_since, read) in reads {
            let Ok(bytes) = self.op.batch.data(read) else { continue };
            let words = (0u32..).zip(bytes.as_chunks().0).map(|(i, w)| (i, u64::from_le_bytes(*w)));
            let words: Vec<(u32, u64)> = words.filter(|(_, bits)| *bits != 0).collect();
            let Some(block) = slabs.find(block) else { continue };
            // If the region has another primary now, the bitmap that was read is the one on the new primary, which
            // possibly lacks bits.
            block.bitmap.note_look(look, primary_since);
            let is_trusted = block.bitmap.is_verified();
            let known = block.bitmap.seen().is_some_and(|seen| seen.words == words);
            // If no new free bit is set, the earlier finding stays, with its older mark.
            if words.is_empty() || known || !is_trusted {
                continue;
            }
            let objects = block.marked(&words).0.len() as u32;
            block.bitmap.note_seen(SeenFreeBits { primary_since, mark, words, objects });
            any = true;
        }
        drop(slabs);
        seals.end(self, is_good);
        any
    }

    fn post_looks(&mut self, blocks: &[Address]) -> Vec<(Address, u64, Ticket)> {
        let mut slabs = self.op.store.memory.slabs.borrow_mut();
        let mut reads = Vec::new();
        for block in blocks {
            let place = self.primary_since(*block).zip(self.bitmap(*block));
            let Some((primary_since, place)) = place else { continue };
            let Some(bytes) = slabs.find(*block).map(|found| bitmap_bytes(found.bytes)) else {
                continue;
            };
            let read = self.op.batch.read(place.node, place.offset, bytes as u32);
            reads.push((*block, primary_since, read));
        }
        reads
    }

    /// Makes those objects of a block allocatable whose free bits were seen.
    async fn reclaim(&mut self, block: Address) {
        let primary_since = self.primary_since(block);
        let (objects, cleared) = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            let Some(found) = slabs.aside_at(block).filter(|b| b.is_quiet()) else { return };
            // If this operation is dropped half-way, it is not known which bits are set, so the block stays unverified.
            let Some(seen) = found.bitmap.take_seen() else { return };
            let is_here = primary_since == Some(seen.primary_since);
            if !is_here && !removed(Mutant::MarksOfAnotherBitmap) {
                return;
            }
            found.held = true;
            found.marked(&seen.words)
        };
        let is_free = self.clear(block, &cleared).await && self.learn(block, &objects).await;
        self.release_block(block, is_free.then_some(&objects[..]));
    }

    /// Lets a block be used again. With `free`, also makes these objects allocatable, whose free bits are cleared.
    /// Without `free`, it is not known which free bits are cleared, so the block stays unverified, also for its next
    /// owner. If FAAs that clear bits can still execute, this session stays pinned until it is fenced, so that no
    /// comparison of the block ends before that.
    fn release_block(&self, block: Address, free: Option<&[u32]>) {
        if let Some(found) = self.op.store.memory.slabs.borrow_mut().aside_at(block) {
            found.held = false;
            if let Some(objects) = free {
                found.reusable.reclaim(objects);
                found.bitmap.verify(None);
            }
        }
    }

    /// Reads the unknown generations of these objects of a block, on all replicas, because a dead client's speculative
    /// write has possibly left its object on any of them. Returns whether all generations are known then.
    async fn learn(&mut self, block: Address, objects: &[u32]) -> bool {
        let unknown: Vec<(u32, u64)> = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            let Some(found) = slabs.find(block) else { return false };
            let shape = found.shape;
            found.unknown(objects).map(|object| (object, shape.offset(object))).collect()
        };
        let places = self.places_in(block, 0).count().max(1);
        for unknown in unknown.chunks(MAX_BATCH_VERBS / places) {
            self.op.batch.clear();
            let mut reads = Vec::new();
            for (object, offset) in unknown {
                let places: PerPlace<PoolPlace> = self.places_in(block, *offset).collect();
                if places.is_empty() {
                    return false;
                }
                let read = |p: PoolPlace| self.op.batch.read(p.node, p.offset, HEADER_BYTES as u32);
                reads.push((*object, places.into_iter().map(read).collect::<PerPlace<Ticket>>()));
            }
            self.op.phase().await;
            if self.op.batch.check().is_err() {
                return false;
            }
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            let Some(found) = slabs.find(block) else { return false };
            for (object, reads) in reads {
                let standing = reads
                    .into_iter()
                    .map(|read| self.op.batch.data(read).expect("checked"))
                    .map(Object::header_identity)
                    .take(if removed(Mutant::LearnsFromOneReplica) { 1 } else { MAX_PLACES });
                found.learn(object, standing);
            }
        }
        true
    }

    /// Reads the headers of these blocks on all replicas, in one phase. If a replica does not answer, the block's
    /// header has to be read again.
    async fn read_headers(&mut self, blocks: &[Address], epoch: u64) {
        self.op.batch.clear();
        let mut reads = Vec::new();
        for block in blocks {
            let places: PerPlace<PoolPlace> = self.places_in(*block, 0).collect();
            let read =
                |p: PoolPlace| self.op.batch.read(p.node, p.offset, BLOCK_HEADER_BYTES as u32);
            reads.push((*block, places.into_iter().map(read).collect::<PerPlace<Ticket>>()));
        }
        self.op.phase().await;
        let mut slabs = self.op.store.memory.slabs.borrow_mut();
        for (block, reads) in reads {
            let bytes = reads.iter().map(|read| self.op.batch.data(*read));
            let Ok(bytes) = bytes.collect::<Result<PerPlace<&[u8]>, _>>() else { continue };
            if let Some(found) = slabs.find(block).filter(|_| !bytes.is_empty()) {
                let newest = self.op.store.host.epoch();
                found.generations.read(&ReplicaHeaders::of(bytes.into_iter()), epoch, newest);
            }
        }
    }

    /// Overwrites the objects of a wholly free block by zeros on all replicas. Before that, its header is written: it
    /// says that the block is sealed, and where the next owner's generations begin. In an unsealed block, recovery
    /// would take zeros for objects that were never allocated, although a leaving session has possibly set the free
    /// bits of such objects.
    async fn zero_block(&mut self, block: Address) {
        let places: PerPlace<PoolPlace> = self.places_in(block, 0).collect();
        let (bytes, header) = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            // The block has possibly been taken into use since it was chosen, for example while another block was
            // zeroed.
            let Some(found) = slabs.aside_at(block).filter(|b| b.may_zero()) else { return };
            found.begin_zeroing(self.op.store.host.epoch());
            let bytes = found.bytes;
            let Some(header) = slabs.sealed(block) else { return };
            (bytes, header.encode())
        };
        let mut is_good = true;
        if !removed(Mutant::ZeroesBeforeTheBase) {
            is_good = self.write_header(&places, &header).await;
        }
        // The header stays until the nodes have noted the base, because a block without a header counts as never used.
        let mut at = BLOCK_HEADER_BYTES;
        while at < bytes && is_good && !self.op.pin.traces.has_posted() {
            let count = CHUNK_BYTES.min(bytes - at);
            self.op.batch.clear();
            let zeros = self.op.batch.stage(count as u32);
            self.op.batch.bytes_mut(zeros).fill(0);
            for place in &places {
                self.op.batch.write(place.node, place.offset + at, zeros);
            }
            is_good = self.sure_phase().await;
            at += count;
        }
        if self.op.pin.traces.has_posted() {
            // A WRITE of zeros can still execute, so the block must not be used.
            return;
        }
        if removed(Mutant::ZeroesBeforeTheBase) {
            is_good = self.write_header(&places, &header).await;
        }
        let mark = self.op.store.host.mark();
        if let Some(found) = self.op.store.memory.slabs.borrow_mut().aside_at(block) {
            if is_good { found.end_zeroing(mark) } else { found.forget() }
        }
    }

    /// Writes the header of a block to these replicas, in one phase. Returns whether this succeeded.
    async fn write_header(&mut self, places: &[PoolPlace], header: &[u8]) -> bool {
        self.op.batch.clear();
        let span = self.op.batch.stage(header.len() as u32);
        self.op.batch.bytes_mut(span).copy_from_slice(header);
        for place in places {
            self.op.batch.write(place.node, place.offset, span);
        }
        self.sure_phase().await
    }
}
