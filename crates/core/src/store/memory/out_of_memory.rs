//! The search for memory of an operation that finds its slab empty: its steps, their order, and the point at which
//! there is no memory.
//!
//! 1. The session's own memory: the session sets the bits of the objects that it freed, and reclaims free objects in
//!    its blocks ([`reclaim`](super::reclaim)). A DELETE waits for objects that can be used soon; so do all
//!    operations if the pool had nothing left the last time.
//! 2. Another block: an orphaned one, or one of the pool (`Blocks::alloc_block`).
//! 3. If the pool is empty, everything that may help: all blocks are looked at, unverified ones are compared with the
//!    index, and blocks that other sessions hand on are looked through, a few at a time. As the last resort no bitmap
//!    is trusted any more.
//!
//! An object that is best beside a subtable ([`speculation`](crate::store::write::speculation)) takes any memory that
//! there is, too. When its write has ended, the session looks for a block in the best place for the next object.
//!
//! This happens once in a block's worth of objects. One operation does some of it earlier, when half of the objects
//! are used up, so that memory can be reused when it is needed. Meanwhile nothing is offered to others; the operation
//! that looked for memory offers the rest when it is done.
//!
//! Blocks that other sessions hand on take a while to come. An operation that waits for them is not pinned, so that
//! memory of all sessions goes on becoming free. It also offers the blocks that it does not need itself: otherwise
//! two sessions might each wait for blocks that the other one keeps.

use alloc::sync::Arc;
use core::cell::{Cell, RefCell};

use super::reclaim::{CollectResult, is_frozen};
use crate::data::Region;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::{BlockAnswer, GiveUp, Host};
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::slab::{Allocation, Block, SlabKind, SlabShortage, Slabs, USED_AGAIN_AT};
use crate::store::Store;
use crate::store::session::OperationPin;
use crate::verbs::Fabric;
use crate::view::View;

/// Marks (`Epochs::mark`) after which all blocks may become unverified again, at the soonest.
const UNVERIFY_PAUSE: u64 = 256;
/// The largest number of blocks that are asked for together when the pool is empty.
const ASKED_TOGETHER: u32 = 8;
/// Times in which no session has anything to hand on, and none of the session's own memory is left to wait for,
/// before there is no memory. Once is enough if besides no session did anything by which memory becomes free.
const ASKED_IN_VAIN: u32 = 4;
/// Pauses after which a session that waits for the window of a block asks for another block again.
const ASKED_EVERY: u32 = 32;
/// The number of pauses as which a wait for others counts.
const PAUSES_PER_WAIT: u32 = 10;
/// Pauses of an operation that waits for a block of its session, at most: some 50 ms.
const RECLAIM_PAUSES: u32 = 128;

impl<F: Fabric, H: Host> Store<F, H> {
    /// Allocates an object of a class from this session's slabs, by this view, preferably beside a subtable. A block
    /// that is not in use already is taken if one in `least` of its objects is free.
    pub(in crate::store) fn allocate(
        &self,
        kind: SlabKind,
        least: u32,
        view: &View,
        beside: Option<u32>,
    ) -> Option<Allocation> {
        let best = beside.map(|at| (at, move |block| view.lies_beside(block, at)));
        self.memory.slabs.borrow_mut().allocate(kind, least, |block| is_frozen(view, block), best)
    }

    /// Gives back to its slab an object that no CAS has mentioned.
    pub(in crate::store) fn give_back(&self, object: &Allocation) {
        let host = &self.host;
        let mut slabs = self.memory.slabs.borrow_mut();
        slabs.give_back(object, |mark| host.has_passed(mark), || host.mark());
    }

    /// Looks for memory when half of a block is used up, for the time when all of it is. If an object would have been
    /// better beside a subtable and was not, looks for a block there.
    pub(in crate::store) async fn look_ahead(&self, kind: SlabKind, lack: SlabShortage) {
        let _ends = MemorySearchGuard::begin(&self.memory.allocating);
        self.take_back();
        self.set_free(1).await;
        if let SlabShortage::Beside(subtable) = lack {
            return self.look_beside(kind, subtable).await;
        }
        self.collect(kind, USED_AGAIN_AT, None, false).await;
    }

    /// Looks for a block beside a subtable: among those of the session, or another one if the pool has some to spare.
    /// Writes do without such a block meanwhile, so a failure here is no error. While memory is short a slab has one
    /// block in use, and others have the rest.
    async fn look_beside(&self, kind: SlabKind, subtable: u32) {
        if !self.memory.slabs.borrow_mut().begin_look(kind) {
            return;
        }
        let mut looking = BetterBlockGuard { slabs: &self.memory.slabs, kind, found: false };
        let view = self.newest_view();
        let at = view.subtables.get(subtable as usize);
        let is_one = |region: &Region| {
            let lies_there = at.is_some_and(|at| region.lies_beside(at));
            region.redundancy() == kind.redundancy && lies_there
        };
        if self.memory.pool_was_empty.get() || !view.regions.iter().any(is_one) {
            return;
        }
        self.collect(kind, USED_AGAIN_AT, Some(subtable), false).await;
        let is_used = || {
            let lies_there = |block| view.lies_beside(block, subtable);
            let is_frozen = |block| is_frozen(&view, block);
            self.memory.slabs.borrow_mut().use_best(kind, USED_AGAIN_AT, is_frozen, lies_there)
        };
        // Used at once: a block that is not in use is offered to others, and of no use here until it is taken back.
        looking.found = is_used();
        if !looking.found {
            let least = &mut { USED_AGAIN_AT };
            let search = MemorySearch { store: self, kind, to_delete: false, least, view: &view };
            let _ = search.ask_for_block(false, Some(subtable)).await;
            looking.found = is_used();
        }
    }

    /// Waits until there is memory to allocate from, or a newer view has come. The caller must not be pinned
    /// meanwhile: memory that it could know of would never become free. `to_delete`: the memory is for a DELETE,
    /// which may have blocks that are kept back.
    pub(in crate::store) async fn await_room(
        &self,
        kind: SlabKind,
        to_delete: bool,
        least: &mut u32,
        view: &Arc<View>,
    ) -> Result<(), Error> {
        self.take_back();
        MemorySearch { store: self, kind, to_delete, least, view }.run().await
    }

    /// Offers the blocks that are not in use to sessions that are short of memory, unless an operation here is busy
    /// with them. Of a class that is short here, only some blocks are offered.
    pub(in crate::store) fn offer(&self) {
        if self.memory.allocating.get() == 0 {
            // Other sessions may have taken some already.
            self.take_back();
            let mut slabs = self.memory.slabs.borrow_mut();
            if self.host.take_memory_call() || self.memory.pool_was_empty.get() {
                slabs.use_one();
            }
            let (spare, surplus) = slabs.offer();
            let frees_soon = slabs.frees_soon();
            drop(slabs);
            self.host.offer(spare, surplus, frees_soon);
        }
    }

    /// Offers other sessions the block for log objects between two DELETEs, if there are not enough such blocks for
    /// all sessions.
    pub(in crate::store) fn lend(&self, key: Key<'_>) {
        if let Some(kind) = SlabKind::of_logs(key.len()) {
            self.memory.slabs.borrow_mut().lend(kind);
            self.offer();
        }
    }

    pub(in crate::store) fn take_back(&self) {
        let gone = self.host.take_back();
        let unmarked = self.memory.slabs.borrow_mut().take_back(&gone);
        self.counters.add_left_to_comparison(unmarked);
    }

    /// Waits a little for blocks that others hand on.
    async fn await_others(&self) {
        self.offer_during(self.host.await_others()).await;
    }

    /// Waits until some of the session's own memory may have become free.
    async fn pause_and_offer(&self, attempt: u32) -> Result<(), GiveUp> {
        self.offer_during(self.host.pause(attempt)).await
    }

    /// Waits, and meanwhile offers others the memory that is not needed here.
    async fn offer_during<T>(&self, waiting: impl Future<Output = T>) -> T {
        let _pauses = MemoryWaitGuard::begin(&self.memory.allocating);
        self.offer();
        let done = waiting.await;
        self.take_back();
        done
    }

    /// Has all blocks compared with the index: the last resort, once in a while. Bits that a session did not set in
    /// time never come (`Epochs::may_set_free`), and it is not known where they are missing. Returns whether any
    /// block was trusted before.
    fn unverify_all(&self) -> bool {
        let now = self.host.mark();
        if now < self.memory.unverifies_from.get() {
            return false;
        }
        self.memory.unverifies_from.set(now + UNVERIFY_PAUSE);
        self.memory.slabs.borrow_mut().unverify_all()
    }
}

/// The search for memory for one slab.
struct MemorySearch<'s, F, H> {
    store: &'s Store<F, H>,
    kind: SlabKind,
    /// Whether the memory is for a DELETE, which may have blocks that are kept back.
    to_delete: bool,
    /// A block that is not in use already is taken if one in so many of its objects is free.
    least: &'s mut u32,
    /// The view by which memory is searched.
    view: &'s Arc<View>,
}

impl<F: Fabric, H: Host> MemorySearch<'_, F, H> {
    /// Waits until there is memory to allocate from, or a newer view has come. One operation of a slab at a time
    /// searches.
    async fn run(&mut self) -> Result<(), Error> {
        let Self { store, kind, .. } = *self;
        for attempt in 0.. {
            if self.has_room() || self.has_newer_view() {
                return Ok(());
            }
            if store.memory.slabs.borrow_mut().begin_ask(kind) {
                let _ends = AllocBlockGuard { slabs: &store.memory.slabs, kind };
                let _allocates = MemorySearchGuard::begin(&store.memory.allocating);
                store.take_back();
                let done = self.search().await;
                store.host.end_search(kind);
                return done;
            }
            if store.host.pause(attempt).await.is_err() {
                let waiting_for = "a block that another operation asked for";
                return Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied });
            }
        }
        unreachable!("the loop ends by return")
    }

    /// Gets memory to allocate from, unless a newer view comes.
    async fn search(&mut self) -> Result<(), Error> {
        let Self { store, kind, to_delete, .. } = *self;
        store.set_free(1).await;
        store.collect(kind, *self.least, None, false).await;
        // If the pool has no block left, to ask for one makes other sessions hand over theirs.
        if to_delete || store.memory.pool_was_empty.get() {
            self.await_reclaimable().await;
        }
        if self.has_room() {
            return Ok(());
        }
        let mut asked = self.ask().await?;
        while asked == BlockRequestResult::Block && !self.has_room() {
            if to_delete {
                // Better a little later than with one of the last blocks.
                store.collect(kind, *self.least, None, false).await;
                if self.await_reclaimable().await {
                    return Ok(());
                }
            }
            asked = self.ask().await?;
        }
        // From now on any free object will do.
        *self.least = u32::MAX;
        let mut together = 1;
        let mut in_vain = 0;
        let mut attempt = 0;
        loop {
            let is_newer = asked == BlockRequestResult::NewerView || self.has_newer_view();
            if is_newer || self.has_room() {
                return Ok(());
            }
            match store.collect(kind, *self.least, None, true).await {
                CollectResult::Waiting => {}
                // The memory that was waited for has just come.
                CollectResult::Nothing if self.has_room() => return Ok(()),
                CollectResult::Freed | CollectResult::Nothing
                    if asked == BlockRequestResult::Called =>
                {
                    store.await_others().await;
                    attempt += PAUSES_PER_WAIT;
                    asked = self.ask().await?;
                }
                // A block comes out of its window in some seconds. Other sessions may return blocks before that.
                CollectResult::Nothing
                    if asked == BlockRequestResult::Nothing && store.any_waits_for_its_window() =>
                {
                    if attempt % ASKED_EVERY == 0 {
                        asked = self.ask().await?;
                    }
                }
                CollectResult::Nothing if asked == BlockRequestResult::Nothing => {
                    if !store.unverify_all() {
                        // Other sessions may have needed all their memory when they were asked. If no session did
                        // anything, there was a time in this operation at which no memory could be had.
                        in_vain += 1;
                        if store.host.is_exhausted() || in_vain == ASKED_IN_VAIN {
                            return Err(Error::OutOfMemory);
                        }
                        asked = self.ask().await?;
                    }
                }
                // There are more blocks where the last one came from. Do not take all of them at once: others need
                // some.
                CollectResult::Freed | CollectResult::Nothing => {
                    for _ in 0..together {
                        asked = self.ask().await?;
                        if asked != BlockRequestResult::LastBlock {
                            break;
                        }
                    }
                    together = (together * 2).min(ASKED_TOGETHER);
                }
            }
            if store.pause_and_offer(attempt).await.is_err() {
                return Err(Error::OutOfMemory);
            }
            attempt += 1;
        }
    }

    fn has_room(&self) -> bool {
        let slabs = self.store.memory.slabs.borrow();
        slabs.has_room(self.kind, *self.least, |block| is_frozen(self.view, block))
    }

    fn has_newer_view(&self) -> bool {
        self.store.newest_view().number > self.view.number
    }

    /// If a class can soon use a block of the session, waits for that, for some time. Returns whether there is room
    /// then.
    async fn await_reclaimable(&self) -> bool {
        let Self { store, kind, .. } = *self;
        let least = *self.least;
        for attempt in 0..RECLAIM_PAUSES {
            if self.has_room() {
                return true;
            }
            let frees_soon = |b: &Block| {
                let any = b.seen.is_some() || b.returned_objects() > 0;
                any && b.is_worth_reclaiming(kind, least)
            };
            let any = store.memory.slabs.borrow().aside().iter().any(frees_soon);
            if !any || store.host.pause(attempt).await.is_err() {
                break;
            }
            store.reclaim_what_is_due(kind, least).await;
        }
        self.has_room()
    }

    /// Asks for a block; for a DELETE first for one that is kept back for DELETEs. If the block comes later, looks
    /// meanwhile for memory that the session has freed itself.
    async fn ask(&mut self) -> Result<BlockRequestResult, Error> {
        let Self { store, kind, to_delete, .. } = *self;
        loop {
            let mut asked = BlockRequestResult::Nothing;
            if to_delete {
                asked = self.ask_for_block(true, None).await?;
            }
            if asked == BlockRequestResult::Nothing {
                asked = self.ask_for_block(false, None).await?;
            }
            if asked != BlockRequestResult::Later {
                return Ok(asked);
            }
            // While this operation waits, others must not have to wait for its memory.
            store.offer_during(store.host.await_pool(self.view)).await;
            if self.has_newer_view() {
                return Ok(BlockRequestResult::NewerView);
            }
            if removed(Mutant::AwaitsOnlyThePool) {
                continue;
            }
            // From now on any free object will do.
            *self.least = u32::MAX;
            store.memory.slabs.borrow_mut().set_full_aside(kind);
            store.set_free(1).await;
            store.collect(kind, *self.least, None, false).await;
            if self.has_room() {
                return Ok(BlockRequestResult::Block);
            }
        }
    }

    /// Returns whether a class has a block whose header is yet to be read.
    fn has_unread(&self) -> bool {
        let epoch = self.store.window_epoch();
        let mut slabs = self.store.memory.slabs.borrow_mut();
        slabs.blocks().any(|b| b.kind == self.kind && b.is_unread(epoch))
    }

    /// Waits until the headers of a class's blocks are read, or a newer view has come. Returns whether a newer view
    /// has come.
    async fn await_headers(&self) -> Result<bool, Error> {
        for attempt in 0.. {
            self.store.read_headers().await;
            if !self.has_unread() {
                return Ok(false);
            }
            if self.has_newer_view() {
                return Ok(true);
            }
            if self.store.host.pause(attempt).await.is_err() {
                let waiting_for = "a memory node to show the header of a block";
                return Err(Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied });
            }
        }
        unreachable!("the loop ends by return")
    }

    /// Adds a block, unless a newer view comes or there is none; with `beside`, only a block beside that subtable.
    async fn ask_for_block(
        &self,
        kept_back: bool,
        beside: Option<u32>,
    ) -> Result<BlockRequestResult, Error> {
        let Self { store, kind, .. } = *self;
        // Otherwise one block after the other would come from a memory node that answers, and none would be of use.
        if self.has_unread() && self.await_headers().await? {
            return Ok(BlockRequestResult::NewerView);
        }
        // Pinned by this view until the block is recorded on all replicas: no replica that would not know of the
        // block is added meanwhile.
        let (mut pin, newest) = OperationPin::new(store);
        if newest.number > self.view.number {
            return Ok(BlockRequestResult::NewerView);
        }
        if removed(Mutant::AsksUnpinned) {
            pin.pause();
        }
        let grant = store.host.alloc_block(kind, kept_back, beside, self.view).await;
        drop(pin);
        let grant = match grant {
            Ok(BlockAnswer::Block(grant)) => grant,
            Ok(BlockAnswer::Called) => {
                store.memory.pool_was_empty.set(true);
                return Ok(BlockRequestResult::Called);
            }
            Ok(BlockAnswer::Later) => return Ok(BlockRequestResult::Later),
            Ok(BlockAnswer::NewerView) => return Ok(BlockRequestResult::NewerView),
            Err(Error::OutOfMemory) => {
                // If no block lies beside a subtable, that says nothing about the pool.
                let was_empty = &store.memory.pool_was_empty;
                was_empty.set(was_empty.get() || beside.is_none());
                return Ok(BlockRequestResult::Nothing);
            }
            Err(error) => return Err(error),
        };
        // The block was lost while the session asked for it.
        if store.newest_view().block(grant.address).is_none() {
            return Ok(BlockRequestResult::NewerView);
        }
        if !store.memory.slabs.borrow_mut().add_block(kind, grant) {
            return Err(Error::Corrupt { what: "a granted block has no room for one object" });
        }
        if self.await_headers().await? {
            return Ok(BlockRequestResult::NewerView);
        }
        store.memory.pool_was_empty.set(grant.pool_is_empty);
        Ok(if grant.pool_is_empty {
            BlockRequestResult::LastBlock
        } else {
            BlockRequestResult::Block
        })
    }
}

/// A guard that counts an operation that looks for memory. It ends also if the operation is dropped.
struct MemorySearchGuard<'s>(&'s Cell<usize>);

impl<'s> MemorySearchGuard<'s> {
    fn begin(count: &'s Cell<usize>) -> MemorySearchGuard<'s> {
        count.set(count.get() + 1);
        MemorySearchGuard(count)
    }
}

impl Drop for MemorySearchGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A guard that takes an operation out of that count while it waits and does nothing about blocks. It ends also if
/// the operation is dropped.
struct MemoryWaitGuard<'s>(&'s Cell<usize>);

impl<'s> MemoryWaitGuard<'s> {
    fn begin(count: &'s Cell<usize>) -> MemoryWaitGuard<'s> {
        count.set(count.get() - 1);
        MemoryWaitGuard(count)
    }
}

impl Drop for MemoryWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// The result of asking for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockRequestResult {
    /// There is another block. It may have no room yet.
    Block,
    /// There is another block, but the pool has none left.
    LastBlock,
    /// There is no block.
    Nothing,
    /// There is no block, but other sessions are called upon to hand some on.
    Called,
    /// There may be a block soon.
    Later,
    /// There may be a block by a newer view.
    NewerView,
}

/// A guard for the search for a better block. It ends the search also if the operation fails or is dropped.
struct BetterBlockGuard<'s> {
    slabs: &'s RefCell<Slabs>,
    kind: SlabKind,
    found: bool,
}

impl Drop for BetterBlockGuard<'_> {
    fn drop(&mut self) {
        self.slabs.borrow_mut().end_look(self.kind, self.found);
    }
}

/// A guard for the request for a block. It ends the request also if the operation fails or is dropped.
struct AllocBlockGuard<'s> {
    slabs: &'s RefCell<Slabs>,
    kind: SlabKind,
}

impl Drop for AllocBlockGuard<'_> {
    fn drop(&mut self) {
        self.slabs.borrow_mut().end_ask(self.kind);
    }
}
