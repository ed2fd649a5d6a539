//! Garbage collection (P §4.4): objects to which no slot leads are set free in the bitmaps of their blocks, and
//! reclaimed by the blocks' owners. Blocks that are wholly free return to the pool.
//!
//! *Freeing.* Every slot word protects one object from reuse: the pair that the word leads to, or, if the slot is free,
//! the object of the writer that freed the slot, whose identity the word contains ([`Slot::object`]). Only the winner
//! of a round, which replaces a word, frees the object that the word protected. The loser of a round frees its own
//! object once the round is over, because then no replica shows its word. If a crash or a lost memory node leaves an
//! object without a free bit, a comparison with the whole index finds it ([`compare`](super::compare)).
//!
//! *Setting free.* Freed objects wait in the session until there are some, and are then set free together: one FAA for
//! each bitmap word. Exactly one client ever sets a bit, and only the block's owner clears it, so no addition carries
//! into a neighbouring bit. Bitmaps are not replicated: if the node that holds a bitmap is lost, so are its bits.
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
//! *Blocks.* The session keeps one wholly free block of each class; if memory is short, only one of the class that is
//! short. The other wholly free blocks are overwritten by zeros and wait once more, because no operation that has seen
//! the old contents is allowed to meet objects of the next owner. Before that, their headers say where the next owner's
//! generations begin, or before which epoch the next owner must not use the block. So an owner reads the header of a
//! block before it allocates there.
//!
//! [`out_of_memory`](super::out_of_memory) decides when all this is done.

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

/// The number of freed objects whose free bits are set together.
pub(in crate::store) const SET_FREE_TOGETHER: usize = 64;
/// The number of blocks whose free bitmaps are read together.
pub(super) const LOOKED_AT_TOGETHER: usize = 8;
/// The largest number of a session's blocks that wait for their windows at one time.
const WAITING_TOGETHER: usize = 4;
/// The number of zero bytes that one WRITE writes into a block that is emptied.
const CHUNK_BYTES: u64 = 1 << 20;

/// The bits to set in one word of a block's free bitmap.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeBits {
    block: Address,
    word: u32,
    bits: u64,
}

/// Objects that the session has freed and whose free bits are not set yet.
#[derive(Debug, Default)]
pub(super) struct PendingFreeBits {
    /// The slot words that led to the freed objects, before they were replaced.
    words: RefCell<Vec<Slot>>,
    /// An empty list, kept for its memory: the bits to set, the next time that objects are set free.
    free_bits: RefCell<Vec<FreeBits>>,
    /// The local epoch of the oldest operation that freed one of the waiting objects, or that holds memory; `None`
    /// without freed or held objects.
    since: Cell<Option<u64>>,
    /// The local epochs in which those suspended operations were pinned that have possibly replaced slot words.
    held: RefCell<Vec<u64>>,
    /// The number of times that the waiting objects were left to a comparison.
    times_left: Cell<u64>,
    /// Whether an operation is setting free bits.
    setting_free: Cell<bool>,
}

/// The hold of a suspended operation on memory whose slot word it has possibly replaced. The operation frees this
/// memory when its result is known. Before that, no comparison ends that could free this memory.
#[derive(Debug)]
pub(in crate::store) struct MemoryHold {
    since: u64,
    times_left: u64,
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Frees the memory that a replaced word has protected: its object, and the object's copies if there are any.
    pub(in crate::store) fn free(&mut self, word: Slot) {
        if self.pin.has_lost_hold() {
            return self.store.counters.add_left_to_comparison(1);
        }
        if let (Some(_), Some(since)) = (word.object(), self.pin.since()) {
            self.store.free(word, since);
        }
    }

    /// Frees the writer's own object after a lost round, unless the word `now`, which the slot shows, has this object's
    /// identity. The copies of the own word are freed separately ([`copies`](crate::store::write::copies)).
    pub(in crate::store) fn free_lost(&mut self, own: Slot, now: Slot) {
        if now.identity() != own.identity() {
            self.free(own.withdrawn());
        }
    }
}

impl<F: Fabric, H: Host> MemoryUpkeep<'_, F, H> {
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
    pub(super) async fn sure_phase(&mut self) -> bool {
        if self.op.batch.verbs().is_empty() {
            return true;
        }
        // WRITEs of this phase must not execute late, so they count as posted, as CASes do. Verbs of an earlier phase
        // can possibly still execute, so the earlier traces are restored after this phase.
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

    /// Sets bits of free bitmaps, in as many phases as necessary. Returns whether all verbs succeeded.
    pub(super) async fn set_free_bits(&mut self, free_bits: &[FreeBits]) -> bool {
        let mut is_good = true;
        for free_bits in free_bits.chunks(MAX_BATCH_VERBS) {
            self.op.batch.clear();
            for FreeBits { block, word, bits } in free_bits {
                let Some(bitmap) = self.bitmap(*block) else { continue };
                let offset = bitmap.offset + u64::from(*word) * 8;
                // The bitmap words lie anywhere in the pool, so they are prefetched together.
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

    /// Returns the place `offset` bytes after a block's start, on each replica of the block.
    pub(super) fn places_in(
        &self,
        block: Address,
        offset: u64,
    ) -> impl Iterator<Item = PoolPlace> + use<'_, F, H> {
        let places = self.op.view.block(block).into_iter().flat_map(|found| found.places());
        places.map(move |place| place.plus(offset))
    }

    /// Returns the view since which the free bitmap of a block has been at its present place.
    pub(super) fn primary_since(&self, block: Address) -> Option<u64> {
        self.op.view.block(block).map(|found| found.primary_since())
    }

    /// Returns the place of the free bitmap of a block.
    pub(super) fn bitmap(&self, block: Address) -> Option<PoolPlace> {
        self.op.view.block(block).map(|found| found.bitmap())
    }
}

/// Returns whether the view forbids new objects in a block, because it has frozen the block's region.
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

    /// Notes, and publishes if necessary, that an operation that is pinned in this local epoch has freed or holds
    /// something.
    fn waits_since(&self, since: u64) {
        // Of two operations that free objects, the one that frees first possibly began later.
        if self.memory.freed.since.get().is_none_or(|oldest| since < oldest) {
            self.memory.freed.since.set(Some(since));
            self.host.publish_older(since);
        }
    }

    /// Begins the hold of an operation that is pinned in this local epoch, is about to be suspended, and has possibly
    /// replaced a word.
    pub(in crate::store) fn hold(&self, since: u64) -> MemoryHold {
        self.memory.freed.held.borrow_mut().push(since);
        self.waits_since(since);
        MemoryHold { since, times_left: self.memory.freed.times_left.get() }
    }

    /// Returns whether the held memory was left to a comparison.
    pub(in crate::store) fn is_lost(&self, hold: &MemoryHold) -> bool {
        hold.times_left != self.memory.freed.times_left.get()
    }

    /// Ends a hold, after the operation has freed the memory that it held, or has left it alone.
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

    /// Returns whether there are neither freed objects that wait for their bits, nor holds. If there are only holds,
    /// lets `since` be the local epoch of the oldest hold.
    fn nothing_waits(&self) -> bool {
        let freed = &self.memory.freed;
        if freed.words.borrow().is_empty() {
            freed.since.set(freed.held.borrow().iter().copied().min());
        }
        freed.since.get().is_none()
    }

    /// Returns whether at least `least` freed objects wait, so that their bits should be set now.
    #[inline]
    pub(in crate::store) fn sets_free(&self, least: usize) -> bool {
        self.memory.freed.words.borrow().len() >= least.max(1)
            && !self.memory.freed.setting_free.get()
    }

    /// Sets the free bits of the freed objects, if at least `least` objects wait for it.
    pub(in crate::store) async fn set_free(&self, least: usize) {
        if self.sets_free(least) {
            // Boxed, because this case is rare: the futures of operations stay small.
            alloc::boxed::Box::pin(self.set_all_free()).await;
        }
    }

    async fn set_all_free(&self) {
        if self.local_epochs.has_half_way() && !removed(Mutant::MarksHalfWay) {
            // Verbs of an operation that was left half-way can still execute. So the objects that it has freed must not
            // count as settled (`Epochs::is_settled`).
            return;
        }
        self.memory.freed.setting_free.set(true);
        let _ends = FreeBitsGuard(&self.memory.freed.setting_free);
        // Further objects can be freed while the copies are searched. Their free bits are set in the next call.
        let count = self.memory.freed.words.borrow().len();
        let keeping = self.with_copies(&self.memory.freed.words.borrow());
        let copies = if keeping.is_empty() { Vec::new() } else { self.copies_of(&keeping).await };
        // Nothing is awaited between this question and the posting of the bits. If the answer is no, the bits of all
        // published objects must stay as they are, so these objects are left to a comparison.
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
        // If a FAA can still execute, the objects stay published until the session is fenced.
        if !lost {
            self.nothing_waits();
            self.host.publish_freed(self.memory.freed.since.get());
        }
    }

    /// Does what is due for the blocks that are not in use: reads headers and bitmaps, reclaims free objects, and
    /// returns wholly free blocks. Thereby the slab `kind` can get a block of which at least one in `least` objects is
    /// free; with `beside`, a block beside that subtable. If memory is `short`, treats all blocks, and also compares
    /// unverified ones with the index. Only one operation at a time collects, because its findings about a block are
    /// valid only while no other one collects.
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
        // If memory is short, bitmaps are read again only when nothing that was seen before has to wait.
        let seen = if short && waits { false } else { self.read_free_bitmaps(kind, short).await };
        match () {
            () if freed => CollectResult::Freed,
            () if seen || waits => CollectResult::Waiting,
            () => CollectResult::Nothing,
        }
    }

    /// Reads the free bitmaps of some blocks, or of all, and seals those blocks that can be sealed. Returns whether
    /// anything new is set free.
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

    /// Returns the blocks whose bitmaps have not been read for the longest time, at most `limit`; those of `kind` come
    /// first.
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

    /// Returns whether no running operation can know the objects whose free bits were seen.
    fn is_reclaimable(&self, seen: &SeenFreeBits) -> bool {
        self.host.has_passed(seen.mark) || removed(Mutant::ReusedAtOnce)
    }

    /// Returns whether a block has objects that were seen set free, and that still have to wait.
    fn awaits_epochs(&self, block: &Block) -> bool {
        block.seen.as_ref().is_some_and(|seen| !self.is_reclaimable(seen))
    }

    /// Makes freed objects allocatable that have become reclaimable, unless another operation is collecting.
    pub(super) async fn reclaim_what_is_due(&self, kind: SlabKind, least: u32) {
        if !self.memory.reclaiming.replace(true) {
            let _ends = ReclaimGuard(&self.memory.reclaiming);
            self.reclaim_due(kind, least, None).await;
        }
    }

    /// Makes objects allocatable that were given back long enough ago. If the slab `kind` has no unused block that it
    /// can use, reclaims the free objects of the block with the most of them.
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

    /// Returns wholly free blocks to the pool: all but one of each class; if memory is short, all but one of the class
    /// that is short. A block is zeroed in one call, and returned in a later one. Returns whether a block went back.
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

    /// Returns the epoch that decides whether the windows of blocks have ended. This is not the newest epoch: another
    /// master's epochs are far ahead, and a session that has not heard of them yet still relies on words that it saw a
    /// moment ago.
    pub(super) fn window_epoch(&self) -> u64 {
        if removed(Mutant::JumpsEndWindows) { self.host.epoch() } else { self.host.passed_epoch() }
    }

    /// Returns whether an emptied block still waits for the end of its window. If so, takes a new mark, so that the
    /// session wants later epochs.
    fn waits_for_its_window(&self, block: Address) -> bool {
        let epoch = self.window_epoch();
        let mut slabs = self.memory.slabs.borrow_mut();
        let waits = |b: &&mut Block| b.waits_for_its_window(epoch);
        let Some(found) = slabs.aside_at(block).filter(waits) else { return false };
        found.scrubbed = Some(BlockZeroing::Done(self.host.mark()));
        true
    }

    /// Returns whether some block waits for the end of its window. If so, takes a mark, so that the session wants later
    /// epochs.
    pub(super) fn any_waits_for_its_window(&self) -> bool {
        let epoch = self.window_epoch();
        let waits =
            self.memory.slabs.borrow().aside().iter().any(|b| b.waits_for_its_window(epoch));
        if waits {
            self.host.mark();
        }
        waits
    }

    /// Reads the headers of those blocks where no object can be allocated before their headers are read.
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
                // The block possibly waits for its window. If the block was emptied now, its wait would begin anew.
                continue;
            }
            if block.scrubbed.is_none() && (block.is_better_kept() || block.is_lost()) {
                // A slab of the block's own size class can use the block at once, while an emptied block has to wait
                // for a whole window.
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

/// Notes, when the guard is dropped, that no bits are being set any more, also if the operation is dropped.
struct FreeBitsGuard<'s>(&'s Cell<bool>);

impl Drop for FreeBitsGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
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

/// Replaces `free_bits` by the bits of these objects, one entry for each word of their blocks' bitmaps.
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
    // This sum is different for every bitmap word, because a bitmap has fewer words than its block has bytes.
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
    /// Reads the free bitmaps of these blocks, and seals those blocks that can be sealed, in one phase. Returns whether
    /// anything new is set free.
    async fn read_bitmaps_of(&mut self, blocks: &[Address]) -> bool {
        self.op.batch.clear();
        let reads = self.post_looks(blocks);
        let sealing = self.post_seals(blocks);
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
            block.looked = look;
            // If the region has another primary now, the bitmap that was read is the one on the new primary, which
            // possibly lacks bits.
            block.follow(primary_since);
            let is_trusted = *block.verification() == Verification::Verified;
            let known = block.seen.as_ref().is_some_and(|seen| seen.words == words);
            // If no new free bit is set, the earlier finding stays, with its older mark.
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

    /// Makes those objects of a block allocatable whose free bits were seen.
    async fn reclaim(&mut self, block: Address) {
        let primary_since = self.primary_since(block);
        let (objects, cleared) = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            let Some(found) = slabs.aside_at(block).filter(|b| b.is_quiet()) else { return };
            let Some(seen) = found.seen.take() else { return };
            // If this operation is dropped half-way, it is not known which bits are set, so the block stays unverified.
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

    /// Lets a block be used again. With `free`, also makes these objects allocatable; their bits are cleared. Without
    /// `free`, some bits are possibly cleared later, so the block stays unverified, also for its next owner. Until this
    /// session is fenced, it stays pinned, so that no comparison of the block ends.
    fn release_block(&self, block: Address, free: Option<&[u32]>) {
        if let Some(found) = self.op.store.memory.slabs.borrow_mut().aside_at(block) {
            found.held = false;
            if let Some(objects) = free {
                found.reclaim(objects);
                found.verify(None);
            }
        }
    }

    /// Clears bits that are set in a block's bitmap. Returns whether this succeeded.
    async fn clear(&mut self, block: Address, words: &[(u32, u64)]) -> bool {
        self.add(block, words.iter().map(|(word, bits)| (*word, bits.wrapping_neg()))).await
    }

    /// Adds numbers to words of a block's bitmap, by FAA. Returns whether this succeeded.
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

    /// Reads the unknown generations of these objects of a block, on all replicas, because a dead client's speculative
    /// write has possibly left its object on any of them. Returns whether all generations are known then.
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
                found.read(&ReplicaHeaders::of(bytes.into_iter()), epoch);
            }
        }
    }

    /// Overwrites the objects of a wholly free block by zeros on all replicas. Before that, its header is written: it
    /// says that the block is sealed, and where the next owner's generations begin. In an unsealed block, recovery
    /// would take zeros for objects that were never allocated, although a leaving session has possibly set the free
    /// bits of such objects.
    async fn zero_block(&mut self, block: Address) {
        let places: PerPlace<PoolPlace> = self.places_in(block, 0).collect();
        let header = {
            let mut slabs = self.op.store.memory.slabs.borrow_mut();
            // The block has possibly been taken into use while the zeros were written.
            let Some(found) = slabs.aside_at(block).filter(|b| b.may_zero()) else { return };
            found.begin_zeroing(self.op.store.host.epoch());
            slabs.sealed(block).map(|header| header.encode())
        };
        let Some(header) = header else { return };
        let mut is_good = true;
        if !removed(Mutant::ZeroesBeforeTheBase) {
            is_good = self.write_header(&places, &header).await;
        }
        // The header stays, because a block without a header counts as never used. The bitmap needs no zeros, because
        // no bit is set.
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
