//! Garbage collection (P §4.4): objects that nothing refers to are set free in the bitmaps of
//! their blocks, reclaimed by the blocks' owners and used again; blocks that are wholly free return
//! to the pool.
//!
//! *Freeing.* Every word of a slot keeps one object from being reused: the pair it refers to,
//! or in a free slot the log object of the writer that freed it, whose identity stands there
//! ([`Slot::object`]). The writer that replaces a word frees what it kept: the winner of the round, alone.
//! The loser of a round frees its own object once the round is over, since its word then stands on
//! no replica. What a crash or a lost memory node leaves with no bit set is found by a comparison with the
//! whole index ([`compare`](super::compare)).
//!
//! *Setting free.* Freed objects wait in the session until there are some, and are then set free together:
//! one FAA per word of a bitmap. Exactly one client ever sets a bit, and only the block's owner
//! clears it, so nothing is ever carried into a neighbour. Bitmaps are not replicated: if a node
//! that holds them is lost, so are its bits.
//!
//! *Reclaiming.* When a session needs a block it looks at those that it has, notes what is set free,
//! and may use it when all operations have ended that had begun before the look
//! (`Epochs::has_passed`): these are all that can know the object. It clears the bits of one block, when
//! it takes that into use; those of the others stay, so that their next owner finds what is free.
//!
//! *Given back.* An object that was written, and that no CAS has mentioned, is free without a bit in
//! a bitmap. It waits for the end of the same operations all the same.
//!
//! *Blocks.* Of a class's blocks that are wholly free one is kept; all are given up if the pool is
//! exhausted. Such a block is overwritten by zeros first, and waits once more: no operation that has seen
//! what was there before must meet what the next owner writes. Its header says before that where
//! the next owner's generations begin, or before which epoch it must not use the block. An owner
//! reads the header of a block before it allocates there.
//!
//! When all this is done stands in [`out_of_memory`](super::out_of_memory).

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::MemoryUpkeep;
use crate::data::{MAX_PLACES, PerPlace};
use crate::host::Host;
use crate::layout::{Address, BLOCK_HEADER_BYTES, HEADER_BYTES, Object, Slot, bitmap_bytes};
use crate::mutant::{Mutant, removed};
use crate::slab::{Block, BlockZeroing, ReplicaHeaders, SeenFreeBits, SlabKind, Verification};
use crate::store::{Store, StoreOp};
use crate::verbs::{Fabric, MAX_BATCH_VERBS, Ticket};
use crate::view::{PoolPlace, View};

/// So many freed objects are set free together.
pub(in crate::store) const SET_FREE_TOGETHER: usize = 64;
/// Blocks that one look goes to.
pub(super) const LOOKED_AT_TOGETHER: usize = 8;
/// Blocks of a session that wait for a window together.
const WAITING_TOGETHER: usize = 4;
/// Bytes that are overwritten in one WRITE.
const CHUNK_BYTES: u64 = 1 << 20;

/// Bits to be set in a word of a block's free bitmap.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeBits {
    block: Address,
    word: u32,
    bits: u64,
}

/// Freed objects that are not set free yet.
#[derive(Debug, Default)]
pub(super) struct PendingFreeBits {
    /// Words that kept what is free now.
    words: RefCell<Vec<Slot>>,
    /// Kept for the next time that some are set free.
    free_bits: RefCell<Vec<FreeBits>>,
    /// If there are any: the local epoch of the oldest operation that freed one, or holds some.
    since: Cell<Option<u64>>,
    /// The local epochs in which operations that are suspended may have replaced words.
    held: RefCell<Vec<u64>>,
    /// The number of times that waiting objects were left to a comparison.
    times_left: Cell<u64>,
    /// Whether some are being set free.
    setting_free: Cell<bool>,
}

/// Memory that a suspended operation may have replaced, and frees when resolved. No comparison takes it earlier.
#[derive(Debug)]
pub(in crate::store) struct MemoryHold {
    since: u64,
    times_left: u64,
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Nothing refers any more to what a word has kept: its object, and if it has one, the copy beside it.
    pub(in crate::store) fn free(&mut self, word: Slot) {
        if self.pin.has_lost_hold() {
            return self.store.counters.add_left_to_comparison(1);
        }
        if let (Some(_), Some(since)) = (word.object(), self.pin.since()) {
            self.store.free(word, since);
        }
    }

    /// A round was lost, and its slot shows this word since. The copies of an own word are freed apart
    /// ([`copies`](crate::store::write::copies)).
    pub(in crate::store) fn free_lost(&mut self, own: Slot, now: Slot) {
        if now.identity() != own.identity() {
            self.free(own.withdrawn());
        }
    }
}

impl<F: Fabric, H: Host> MemoryUpkeep<'_, F, H> {
    /// Waits until nothing of what was posted to silent nodes can execute any more; whether that
    /// came about.
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

    /// One phase whose outcome has to be known before the operation may end. Whether all went well.
    pub(super) async fn sure_phase(&mut self) -> bool {
        if self.op.batch.verbs().is_empty() {
            return true;
        }
        // Also what is not atomic must not execute later. Of an earlier phase something still may.
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

    /// Sets bits of free bitmaps, in as many phases as it takes. Whether all went well.
    pub(super) async fn set_free_bits(&mut self, free_bits: &[FreeBits]) -> bool {
        let mut is_good = true;
        for free_bits in free_bits.chunks(MAX_BATCH_VERBS) {
            self.op.batch.clear();
            for FreeBits { block, word, bits } in free_bits {
                let Some(bitmap) = self.bitmap(*block) else { continue };
                let offset = bitmap.offset + u64::from(*word) * 8;
                // They lie anywhere in the pool: let them come all together.
                self.op.store.fabric.prefetch(bitmap.node, offset);
                self.op.batch.faa(bitmap.node, offset, *bits);
            }
            is_good &= self.sure_phase().await;
        }
        is_good
    }

    pub(in crate::store) fn is_frozen(&self, block: Address) -> bool {
        is_frozen(&self.op.view, block)
    }

    /// The replicas of a block, or with `offset` more of a place in it.
    pub(super) fn places_in(
        &self,
        block: Address,
        offset: u64,
    ) -> impl Iterator<Item = PoolPlace> + use<'_, F, H> {
        let places = self.op.view.block(block).into_iter().flat_map(|found| found.places());
        places.map(move |place| place.plus(offset))
    }

    /// Returns the view since which the free bitmap of a block is where it is.
    pub(super) fn primary_since(&self, block: Address) -> Option<u64> {
        self.op.view.block(block).map(|found| found.primary_since())
    }

    /// Returns the place of the free bitmap of a block.
    pub(super) fn bitmap(&self, block: Address) -> Option<PoolPlace> {
        self.op.view.block(block).map(|found| found.bitmap())
    }
}

/// Whether no new object may be placed in a block.
pub(in crate::store) fn is_frozen(view: &View, block: Address) -> bool {
    view.change.is_some()
        && view.is_region_frozen((block.bytes() / view.geometry.region_bytes) as u32)
        && !removed(Mutant::WritesWhileFrozen)
}

impl<F: Fabric, H: Host> Store<F, H> {
    fn free(&self, word: Slot, since: u64) {
        self.memory.freed.words.borrow_mut().push(word);
        self.waits_since(since);
    }

    /// Something is freed, or held, by an operation that is pinned in this local epoch.
    fn waits_since(&self, since: u64) {
        // The operation that frees first need not be the one that began first.
        if self.memory.freed.since.get().is_none_or(|oldest| since < oldest) {
            self.memory.freed.since.set(Some(since));
            self.host.publish_older(since);
        }
    }

    /// An operation that is pinned in this local epoch is about to be suspended, and may have replaced a word.
    pub(in crate::store) fn hold(&self, since: u64) -> MemoryHold {
        self.memory.freed.held.borrow_mut().push(since);
        self.waits_since(since);
        MemoryHold { since, times_left: self.memory.freed.times_left.get() }
    }

    /// Whether what is held was left to a comparison.
    pub(in crate::store) fn is_lost(&self, hold: &MemoryHold) -> bool {
        hold.times_left != self.memory.freed.times_left.get()
    }

    /// The operation has freed what it held, or leaves it alone.
    pub(in crate::store) fn end_hold(&self, hold: &MemoryHold) {
        let freed = &self.memory.freed;
        let mut held = freed.held.borrow_mut();
        let at = held.iter().position(|since| *since == hold.since && !self.is_lost(hold));
        if let Some(at) = at {
            held.swap_remove(at);
        }
        drop(held);
        if self.nothing_waits() && !freed.setting_free.get() {
            self.host.publish_freed(None);
        }
    }

    /// Whether nothing is freed that is not set free, nor held. Else what is held alone waits since it is.
    fn nothing_waits(&self) -> bool {
        let freed = &self.memory.freed;
        if freed.words.borrow().is_empty() {
            freed.since.set(freed.held.borrow().iter().copied().min());
        }
        freed.since.get().is_none()
    }

    /// Whether so much was freed that it is to be set free now.
    #[inline]
    pub(in crate::store) fn sets_free(&self, least: usize) -> bool {
        self.memory.freed.words.borrow().len() >= least.max(1)
            && !self.memory.freed.setting_free.get()
    }

    /// Sets free what was freed, if it is so much.
    pub(in crate::store) async fn set_free(&self, least: usize) {
        if self.sets_free(least) {
            // On the heap: it is rare, and the futures of operations stay small.
            alloc::boxed::Box::pin(self.set_all_free()).await;
        }
    }

    async fn set_all_free(&self) {
        if self.local_epochs.has_half_way() && !removed(Mutant::MarksHalfWay) {
            // What may still execute keeps what it has freed from being settled.
            return;
        }
        self.memory.freed.setting_free.set(true);
        let _ends = FreeBitsGuard(&self.memory.freed.setting_free);
        // Others are being freed while copies are looked for: they come next time.
        let count = self.memory.freed.words.borrow().len();
        let keeping = self.with_copies(&self.memory.freed.words.borrow());
        let copies = if keeping.is_empty() { Vec::new() } else { self.copies_of(&keeping).await };
        // Nothing is awaited between this question and the posting of the bits. If the answer is no, all that was told
        // is revoked, and so are they.
        let may_set = self.host.may_set_free();
        let mut free_bits = self.memory.freed.free_bits.take();
        {
            let mut words = self.memory.freed.words.borrow_mut();
            let taken = if may_set { count } else { words.len() };
            let view = self.view.borrow();
            let objects = words[..taken].iter();
            let objects = objects.filter_map(|word| word.object());
            if copies.is_empty() {
                by_word(&view, objects, &mut free_bits)
            } else {
                by_word(&view, objects.chain(copies), &mut free_bits)
            }
            words.drain(..taken);
            if !may_set {
                self.memory.freed.held.borrow_mut().clear();
                self.memory.freed.times_left.set(self.memory.freed.times_left.get() + 1);
            }
            drop(words);
            self.nothing_waits();
            if !may_set {
                self.counters.add_left_to_comparison(taken as u64);
                return;
            }
        }
        let mut upkeep = self.upkeep();
        upkeep.set_free_bits(&free_bits).await;
        self.memory.freed.free_bits.replace(free_bits);
        let lost = upkeep.op.pin.traces.has_posted();
        upkeep.finish();
        // If something may still execute, the session has to be fenced before it is over.
        if !lost {
            self.nothing_waits();
            self.host.publish_freed(self.memory.freed.since.get());
        }
    }

    /// Does what is due about the blocks that are not in use, so that a class finds one of which one in
    /// `least` objects is free; perhaps one beside a subtable. If memory is `short` that is all blocks, and
    /// everything that may help.
    /// One operation at a time does it: what it has found out about a block holds as long as no
    /// other collects there.
    pub(super) async fn collect(
        &self,
        kind: SlabKind,
        least: u32,
        beside: Option<u32>,
        short: bool,
    ) -> CollectResult {
        if self.memory.reclaiming.replace(true) {
            return CollectResult::Waiting;
        }
        let _ends = ReclaimGuard(&self.memory.reclaiming);
        if short {
            self.memory.slabs.borrow_mut().set_aside();
            self.set_free(1).await;
        }
        self.read_headers().await;
        self.reclaim_due(kind, least, beside).await;
        let freed = self.return_blocks(kind, short).await;
        if short {
            self.compare_unverified().await;
        }
        let epoch = self.window_epoch();
        let waits = |b: &Block| {
            let is_of_use = b.is_free() || b.is_worth_reclaiming(kind, least);
            ((self.awaits_epochs(b) || b.returned_objects() > 0) && is_of_use)
                || (b.scrubbed.is_some() && !b.waits_for_its_window(epoch))
                || *b.verification() != Verification::Verified
                || !b.is_quiet()
        };
        let waits = self.memory.slabs.borrow().aside().iter().any(waits);
        // A session that is short looks once more when all that was seen can be used.
        let seen = if short && waits { false } else { self.read_free_bitmaps(kind, short).await };
        match () {
            () if freed => CollectResult::Freed,
            () if seen || waits => CollectResult::Waiting,
            () => CollectResult::Nothing,
        }
    }

    /// Reads the free bitmaps of some blocks, and tells those that can be sealed.
    async fn read_free_bitmaps(&self, kind: SlabKind, all: bool) -> bool {
        let mut upkeep = self.upkeep();
        let limit = if all { usize::MAX } else { LOOKED_AT_TOGETHER };
        let blocks = self.to_look_at(kind, limit, &upkeep);
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

    /// The blocks that were not looked at for longest, first those of a class.
    fn to_look_at(
        &self,
        kind: SlabKind,
        limit: usize,
        upkeep: &MemoryUpkeep<'_, F, H>,
    ) -> Vec<Address> {
        let slabs = self.memory.slabs.borrow();
        let due = |b: &&Block| {
            let is_known = self.awaits_epochs(b) || *b.verification() != Verification::Verified;
            !is_known && b.scrubbed.is_none() && !b.is_free()
        };
        let order = |b: &Block| (b.kind != kind, b.looked, b.address);
        let mut due: Vec<(bool, u64, Address)> =
            slabs.aside().iter().filter(due).map(order).collect();
        due.sort_unstable();
        due.truncate(limit);
        let known = |(.., block): &(bool, u64, Address)| upkeep.bitmap(*block).map(|_| *block);
        due.iter().filter_map(known).collect()
    }

    /// Whether no running operation knows what was seen set free any more.
    fn is_reclaimable(&self, seen: &SeenFreeBits) -> bool {
        self.host.has_passed(seen.mark) || removed(Mutant::ReusedAtOnce)
    }

    /// Whether what was seen set free in a block cannot be used yet.
    fn awaits_epochs(&self, block: &Block) -> bool {
        block.seen.as_ref().is_some_and(|seen| !self.is_reclaimable(seen))
    }

    /// Reclaims what has become reclaimable, unless another operation does.
    pub(super) async fn reclaim_what_is_due(&self, kind: SlabKind, least: u32) {
        if !self.memory.reclaiming.replace(true) {
            let _ends = ReclaimGuard(&self.memory.reclaiming);
            self.reclaim_due(kind, least, None).await;
        }
    }

    /// Lets objects be used that were given back; if a class has no block aside that it can use, collects
    /// what is set free in the one where that is most.
    async fn reclaim_due(&self, kind: SlabKind, least: u32, beside: Option<u32>) {
        let has_passed = |mark| self.host.has_passed(mark);
        for block in self.memory.slabs.borrow_mut().blocks() {
            block.take_returned(has_passed, || self.host.mark());
        }
        let mut upkeep = self.upkeep();
        let best = {
            let slabs = self.memory.slabs.borrow();
            let reclaimable =
                |b: &&Block| b.seen.as_ref().is_some_and(|seen| self.is_reclaimable(seen));
            let may_be = |b: &Block| {
                let lies_there = |subtable| upkeep.op.view.lies_beside(b.address, subtable);
                beside.is_none_or(lies_there) && !upkeep.is_frozen(b.address)
            };
            // Else headers may be under way that say from where on the block is in use.
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

    /// Wholly free blocks go back to the pool, all but one of each class; if memory is short all but one
    /// of the class that is short. Whether one did.
    async fn return_blocks(&self, kind: SlabKind, short: bool) -> bool {
        let mut freed = false;
        for (block, state) in self.to_return(kind, short) {
            let mut upkeep = self.upkeep();
            if upkeep.is_frozen(block) {
                continue;
            }
            match state {
                None => {
                    if self.is_seen(block) {
                        upkeep.reclaim(block).await;
                    }
                    upkeep.zero_block(block).await;
                }
                Some(BlockZeroing::Done(mark))
                    if self.host.has_passed(mark) || removed(Mutant::ZeroedBlockReturnedAtOnce) =>
                {
                    if self.waits_for_its_window(block) {
                        continue;
                    }
                    self.memory.slabs.borrow_mut().remove(block);
                    self.host.free_block(block, &upkeep.op.view.clone()).await;
                    freed = true;
                }
                _ => {}
            }
            upkeep.finish();
        }
        freed
    }

    /// The epoch by which blocks wait for their windows. Not the newest: another master's are far ahead, and while not
    /// all have heard of them a session may go by what it saw a moment ago.
    pub(super) fn window_epoch(&self) -> u64 {
        if removed(Mutant::JumpsEndWindows) { self.host.epoch() } else { self.host.passed_epoch() }
    }

    /// Whether an emptied block must not be used yet. Then the session waits for later epochs.
    fn waits_for_its_window(&self, block: Address) -> bool {
        let epoch = self.window_epoch();
        let mut slabs = self.memory.slabs.borrow_mut();
        let waits = |b: &&mut Block| b.waits_for_its_window(epoch);
        let Some(found) = slabs.aside_at(block).filter(waits) else { return false };
        found.scrubbed = Some(BlockZeroing::Done(self.host.mark()));
        true
    }

    /// Whether some block waits for its window. Then the session wants later epochs.
    pub(super) fn any_waits_for_its_window(&self) -> bool {
        let epoch = self.window_epoch();
        let waits =
            self.memory.slabs.borrow().aside().iter().any(|b| b.waits_for_its_window(epoch));
        if waits {
            self.host.mark();
        }
        waits
    }

    /// Reads the headers of blocks from which nothing can be allocated before.
    pub(super) async fn read_headers(&self) {
        let epoch = self.window_epoch();
        let unread: Vec<Address> = {
            let mut slabs = self.memory.slabs.borrow_mut();
            let unread = slabs.blocks().filter(|b| b.scrubbed.is_none() && b.is_unread(epoch));
            unread.map(|block| block.address).collect()
        };
        if unread.is_empty() {
            return;
        }
        let mut upkeep = self.upkeep();
        let places = unread.iter().map(|block| upkeep.places_in(*block, 0).count()).max();
        for blocks in unread.chunks(MAX_BATCH_VERBS / places.unwrap_or(1).max(1)) {
            upkeep.read_headers(blocks, epoch).await;
        }
        upkeep.finish();
    }

    fn is_seen(&self, block: Address) -> bool {
        self.memory.slabs.borrow_mut().aside_at(block).is_some_and(|b| b.seen.is_some())
    }

    fn to_return(&self, kind: SlabKind, short: bool) -> Vec<(Address, Option<BlockZeroing>)> {
        let slabs = self.memory.slabs.borrow();
        let mut kept: Vec<SlabKind> = Vec::new();
        let mut blocks = Vec::new();
        let is_reclaimable =
            |b: &Block| b.seen.as_ref().is_none_or(|seen| self.is_reclaimable(seen));
        let free = |b: &&Block| {
            b.is_free() && *b.verification() == Verification::Verified && is_reclaimable(b)
        };
        let epoch = self.window_epoch();
        let waiting = slabs.aside().iter().filter(|b| b.waits_for_its_window(epoch)).count();
        let mut may_wait = WAITING_TOGETHER.saturating_sub(waiting);
        for block in slabs.aside().iter().filter(free) {
            let is_other = short && block.kind != kind;
            if block.scrubbed.is_none() && !block.is_read() {
                // It may have to wait, and would begin to anew.
                continue;
            }
            if block.scrubbed.is_none() && (block.is_better_kept() || block.is_lost()) {
                // Its own class can use it at once, and it would wait long.
                if !block.is_lost() && !is_other || may_wait == 0 {
                    continue;
                }
                may_wait -= 1;
            }
            let is_kept = kept.contains(&block.kind) || is_other || block.is_lost();
            if is_kept || block.scrubbed.is_some() {
                blocks.push((block.address, block.scrubbed))
            } else {
                kept.push(block.kind)
            }
        }
        blocks
    }
}

/// Bits are being set; also when the operation that does so is dropped, it has stopped.
struct FreeBitsGuard<'s>(&'s Cell<bool>);

impl Drop for FreeBitsGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// An operation collects; also when it is dropped, it has stopped collecting.
struct ReclaimGuard<'s>(&'s Cell<bool>);

impl Drop for ReclaimGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// The result of collecting.
pub(super) enum CollectResult {
    /// A block went back to the pool.
    Freed,
    /// Something may become free soon.
    Waiting,
    Nothing,
}

/// The bits of these objects, word by word of their blocks' bitmaps.
pub(super) fn by_word(
    view: &View,
    objects: impl Iterator<Item = Address>,
    free_bits: &mut Vec<FreeBits>,
) {
    free_bits.clear();
    free_bits.extend(objects.filter_map(|object| {
        let (block, word, bits) = view.geometry.free_bit(object)?;
        Some(FreeBits { block, word, bits })
    }));
    // A number for every word: a bitmap has fewer words than its block has bytes.
    free_bits.sort_unstable_by_key(|mark| mark.block.bytes() + u64::from(mark.word));
    free_bits.dedup_by(|mark, sum| {
        let same = (mark.block, mark.word) == (sum.block, sum.word);
        if same {
            sum.bits |= mark.bits;
        }
        same
    });
}

impl<F: Fabric, H: Host> MemoryUpkeep<'_, F, H> {
    /// One phase: a look at these bitmaps. Whether anything new is set free.
    async fn read_bitmaps_of(&mut self, blocks: &[Address]) -> bool {
        self.op.batch.clear();
        let reads = self.post_looks(blocks);
        let sealing = self.post_seals(blocks);
        let before = removed(Mutant::MarksBeforeTheLook).then(|| self.op.store.host.mark());
        let is_good = self.sure_phase().await;
        // After the look: an operation that was pinned before it may know what was set free.
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
            block.looked = look;
            // With another first place came another bitmap: bits may be missing.
            block.follow(primary_since);
            let is_trusted = *block.verification() == Verification::Verified;
            let known = block.seen.as_ref().is_some_and(|seen| seen.words == words);
            // What was seen before is as old as it was.
            if words.is_empty() || known || !is_trusted {
                continue;
            }
            let objects = block.marked(&words).0.len() as u32;
            block.seen = Some(SeenFreeBits { primary_since, mark, words, objects });
            any = true;
        }
        drop(slabs);
        self.end_seals(&sealing, is_good);
        any
    }

    fn post_looks(&mut self, blocks: &[Address]) -> Vec<(Address, u64, Ticket)> {
        let bytes = bitmap_bytes(self.op.view.geometry.block_bytes) as u32;
        let places =
            blocks.iter().filter_map(|b| Some((*b, self.primary_since(*b)?, self.bitmap(*b)?)));
        let places: Vec<(Address, u64, PoolPlace)> = places.collect();
        let read = |(block, primary_since, place): (Address, u64, PoolPlace)| {
            (block, primary_since, self.op.batch.read(place.node, place.offset, bytes))
        };
        places.into_iter().map(read).collect()
    }

    /// Makes the objects allocatable that were seen set free in a block.
    async fn reclaim(&mut self, block: Address) {
        let primary_since = self.primary_since(block);
        let (objects, cleared) = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            let Some(found) = slabs.aside_at(block).filter(|b| b.is_quiet()) else { return };
            let Some(seen) = found.seen.take() else { return };
            // If this ends early, it is not known which bits are set.
            found.unverify(Verification::Due);
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

    /// A block may be taken into use again; if they are free, with these objects, whose bits are
    /// clear. If some may still be cleared later the block stays unverified, for its next owner: until this
    /// session is fenced it is pinned, so no session settles on what its bitmap tells.
    fn release_block(&self, block: Address, free: Option<&[u32]>) {
        if let Some(found) = self.op.store.memory.slabs.borrow_mut().aside_at(block) {
            found.held = false;
            if let Some(objects) = free {
                found.reclaim(objects);
                found.verify(None);
            }
        }
    }

    /// Clears bits of a block's bitmap that are set. Whether it is done.
    async fn clear(&mut self, block: Address, words: &[(u32, u64)]) -> bool {
        self.add(block, words.iter().map(|(word, bits)| (*word, bits.wrapping_neg()))).await
    }

    /// Adds to words of a block's bitmap. Whether it is done.
    pub(in crate::store) async fn add(
        &mut self,
        block: Address,
        words: impl Iterator<Item = (u32, u64)>,
    ) -> bool {
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

    /// Reads the generations that are not known, of these objects of a block, on all replicas: what a
    /// speculative write of a dead client left may stand on any. Whether all are known then.
    pub(in crate::store) async fn learn(&mut self, block: Address, objects: &[u32]) -> bool {
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

    /// One phase: the headers of these blocks, on all replicas. Where one does not answer, it is to be
    /// done again.
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
                found.read(&ReplicaHeaders::of(bytes.into_iter()), epoch);
            }
        }
    }

    /// Overwrites the objects of a wholly free block by zeros on all replicas. Its header says before that
    /// it is sealed, and where the next owner's generations begin: recovery would take zeros in a block in
    /// use for objects that are new, and their marks, which a session makes that leaves, would stay set.
    async fn zero_block(&mut self, block: Address) {
        let places: PerPlace<PoolPlace> = self.places_in(block, 0).collect();
        let header = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            // It may have been taken into use meanwhile.
            let Some(found) = slabs.aside_at(block).filter(|b| b.may_zero()) else { return };
            found.begin_zeroing(self.op.store.host.epoch());
            slabs.sealed(block).map(|header| header.encode())
        };
        let Some(header) = header else { return };
        let mut is_good = true;
        if !removed(Mutant::ZeroesBeforeTheBase) {
            is_good = self.write_header(&places, &header).await;
        }
        // The header stays: a block without one is taken for one that was never used. In the bitmap
        // nothing is set.
        let bytes = self.op.view.geometry.block_bytes;
        let mut at = BLOCK_HEADER_BYTES + bitmap_bytes(bytes);
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
            // More zeros may come.
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

    /// One phase: the header of a block, on these replicas. Whether it is done.
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
