//! The search for memory by an operation that finds its slab empty: its steps, their order, and the point at which the
//! search fails.
//!
//! 1. The session's own memory: the session sets the bits of the objects that it freed, and reclaims free objects in
//!    its blocks ([`reclaim`](super::reclaim)). If the pool was empty when the session last asked, the operation also
//!    waits for objects that become reclaimable soon.
//! 2. Another block: an orphaned one, or one of the pool (`Blocks::alloc_block`).
//! 3. If the pool is empty, everything that can help: the session reads the bitmaps of all its blocks, compares
//!    unverified blocks with the index, empties sparse blocks of other slabs ([`evacuate`](super::evacuate)), and asks
//!    for blocks that other sessions hand on, a few at a time. As the last resort it makes all its blocks unverified,
//!    so that they are compared, too.
//!
//! If an object should lie [beside](crate::data::Region::lies_beside) a subtable
//! ([`speculation`](crate::store::write::speculation)) and there is no such memory, it is allocated elsewhere. After
//! its write, the session searches for a block beside that subtable, for the next object.
//!
//! A slab's search happens about once per block of objects. When half of a block's objects are used up, one operation
//! does a part of the search in advance, so that memory is reclaimable when it is needed. While an operation searches,
//! the session offers no blocks to other sessions; afterwards, the operation that has searched offers the unused
//! blocks.
//!
//! Blocks that other sessions hand on take a while to come. An operation that waits for them is unpinned, so that the
//! memory of all sessions can still be reclaimed. Meanwhile it offers the blocks that it does not need itself, because
//! otherwise two sessions could each wait for blocks that the other one keeps.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cell::{Cell, RefCell};

use super::reclaim::{BlockCollector, CollectResult, read_headers};
use super::{is_frozen, set_free, window_epoch};
use crate::data::Region;
use crate::error::{Error, FailedWriteOutcome};
use crate::host::{BlockAnswer, BlockDemand, GiveUp, Host};
use crate::mutant::{Mutant, removed};
use crate::slab::{Block, SlabKind, SlabShortage, Slabs, USED_AGAIN_AT};
use crate::store::Store;
use crate::store::session::OperationPin;
use crate::verbs::Fabric;
use crate::view::View;

/// The largest number of blocks that a search requests in a row, before it collects memory and pauses.
const ASKED_TOGETHER: u32 = 8;
/// The number of times that a search finds nothing to wait for, before it fails: no session has a block to hand on, and
/// none of the session's own memory is about to become free. Once is enough if, in addition, no session was doing
/// anything that frees memory.
const ASKED_IN_VAIN: u32 = 4;
/// The number of pauses after which a session that waits for the end of a block's window asks again for another block.
const ASKED_EVERY: u32 = 32;
/// The number of pauses in which a search waits for room for the pairs of sparse blocks.
const EVACUATIONS_WAITED: u32 = 64;
/// The number of pauses that one wait for other sessions' blocks counts as.
const PAUSES_PER_WAIT: u32 = 10;
/// The largest number of pauses, some 50 ms together, in which an operation waits for reclaimable objects in its
/// session's blocks.
const RECLAIM_PAUSES: u32 = 128;

/// A search for memory in advance, for one slab.
pub(in crate::store) struct MemoryLookAhead<'s, F, H> {
    pub store: &'s Store<F, H>,
    pub kind: SlabKind,
}

impl<'s, F: Fabric, H: Host> MemoryLookAhead<'s, F, H> {
    /// Searches for memory in advance, when half of a block's objects are used up. If instead an object should have
    /// been allocated on the nodes of a subtable's replicas and was not, searches for a block there.
    pub async fn run(&self, lack: SlabShortage) {
        let store = self.store;
        let _ends = MemorySearchGuard::begin(&store.memory.allocating);
        store.memory.take_back(&store.host);
        set_free(store).await;
        if let SlabShortage::Beside(subtable) = lack {
            return self.look_beside(subtable).await;
        }
        self.collector(None).collect(false).await;
        self.grow().await;
    }

    /// Asks for a larger block if the slab writes fast, unless memory is short. A failure is no error, because the slab
    /// has other blocks.
    async fn grow(&self) {
        let Self { store, kind } = *self;
        let view = store.newest_view();
        let largest = view.geometry.block_bytes;
        let epoch = store.host.epoch();
        let should_grow = store.memory.slabs.borrow_mut().should_grow(kind, largest, epoch);
        if !should_grow || store.memory.pool_was_empty.get() {
            return;
        }
        if store.memory.slabs.borrow_mut().begin_ask(kind) {
            let _ends = AllocBlockGuard { slabs: &store.memory.slabs, kind };
            let least = &mut { USED_AGAIN_AT };
            let search = MemorySearch { store, kind, least, view: &view };
            let _ = search.ask_for_block(BlockDemand::Growth).await;
        }
    }

    /// Searches for a block on the nodes of a subtable's replicas: among the session's blocks, then elsewhere if the
    /// pool has blocks to spare. Does nothing if the pool is empty, because then each slab keeps only one block in use,
    /// and other sessions get the rest. A failure is no error, because writes can do without such a block.
    async fn look_beside(&self, subtable: u32) {
        let Self { store, kind } = *self;
        if !store.memory.slabs.borrow_mut().begin_look(kind) {
            return;
        }
        let mut looking = BetterBlockGuard { slabs: &store.memory.slabs, kind, found: false };
        let view = store.newest_view();
        let at = view.subtables.get(subtable as usize);
        let is_one = |region: &Region| {
            let lies_there = at.is_some_and(|at| region.lies_beside(at));
            region.redundancy() == kind.redundancy && lies_there
        };
        if store.memory.pool_was_empty.get() || !view.regions.iter().any(is_one) {
            return;
        }
        self.collector(Some(subtable)).collect(false).await;
        let is_used = || {
            let lies_there = |block| view.lies_beside(block, subtable);
            let is_frozen = |block| is_frozen(&view, block);
            store.memory.slabs.borrow_mut().use_best(kind, USED_AGAIN_AT, is_frozen, lies_there)
        };
        // The block is taken into use at once, because a block that is not in use is offered to other sessions, and
        // this session cannot use it until it is taken back.
        looking.found = is_used();
        if !looking.found {
            let least = &mut { USED_AGAIN_AT };
            let search = MemorySearch { store, kind, least, view: &view };
            let _ = search.ask_for_block(BlockDemand::Beside(subtable)).await;
            looking.found = is_used();
        }
    }

    fn collector(&self, beside: Option<u32>) -> BlockCollector<'s, F, H> {
        let Self { store, kind } = *self;
        BlockCollector { store, kind, least: USED_AGAIN_AT, beside }
    }
}

/// A search for memory for one slab. The operation that searches must be unpinned during the search: otherwise memory
/// that the operation possibly knows would never become reclaimable.
pub(in crate::store) struct MemorySearch<'s, F, H> {
    pub store: &'s Store<F, H>,
    pub kind: SlabKind,
    /// A block that is not in use is taken into use if at least one in `least` of its objects is free.
    pub least: &'s mut u32,
    /// The view in which the search begins. A newer view ends the search.
    pub view: &'s Arc<View>,
}

impl<'s, F: Fabric, H: Host> MemorySearch<'s, F, H> {
    /// Waits until there is memory to allocate from, or a newer view has come. For each slab, only one operation at a
    /// time searches, and the other operations pause.
    pub async fn run(&mut self) -> Result<(), Error> {
        let Self { store, kind, .. } = *self;
        store.memory.take_back(&store.host);
        for attempt in 0.. {
            if self.has_room() || self.has_newer_view() {
                return Ok(());
            }
            if store.memory.slabs.borrow_mut().begin_ask(kind) {
                let _ends = AllocBlockGuard { slabs: &store.memory.slabs, kind };
                let _allocates = MemorySearchGuard::begin(&store.memory.allocating);
                store.memory.take_back(&store.host);
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

    /// Searches until there is memory to allocate from, or a newer view has come.
    async fn search(&mut self) -> Result<(), Error> {
        let store = self.store;
        set_free(store).await;
        self.collector().collect(false).await;
        // If the pool has no block left, a request for a block makes other sessions hand over blocks. So the session's
        // own objects come first.
        if store.memory.pool_was_empty.get() {
            self.await_reclaimable().await;
        }
        if self.has_room() {
            return Ok(());
        }
        let mut asked = self.ask().await?;
        while asked == BlockRequestResult::Block && !self.has_room() {
            asked = self.ask().await?;
        }
        // From here on, even a block with a single free object is taken into use.
        *self.least = u32::MAX;
        let mut together = 1;
        let mut in_vain = 0;
        let mut attempt = 0;
        let mut evacuations_waited = 0;
        loop {
            let is_newer = asked == BlockRequestResult::NewerView || self.has_newer_view();
            if is_newer || self.has_room() {
                return Ok(());
            }
            let collected = self.collector().collect(true).await;
            let is_empty =
                matches!(asked, BlockRequestResult::Nothing | BlockRequestResult::Called);
            if is_empty && matches!(collected, CollectResult::Nothing) && !self.has_room() {
                // This future is on the heap, because its type contains that of a search for memory. A Move out of a
                // block does not search.
                let evacuated = Box::pin(self.evacuate()).await;
                evacuations_waited += u32::from(evacuated == EvacuationResult::Waits);
                let goes_on = match evacuated {
                    EvacuationResult::Moved => true,
                    EvacuationResult::Waits => evacuations_waited <= EVACUATIONS_WAITED,
                    EvacuationResult::Nothing => false,
                };
                if goes_on {
                    if self.pause_and_offer(attempt).await.is_err() {
                        return Err(Error::OutOfMemory);
                    }
                    attempt += 1;
                    // Other sessions possibly return blocks meanwhile.
                    if attempt % ASKED_EVERY == 0 {
                        asked = self.ask().await?;
                    }
                    continue;
                }
            }
            match collected {
                CollectResult::Waiting => {}
                // Nothing more becomes free soon, but `collect` has made room, so the search ends.
                CollectResult::Nothing if self.has_room() => return Ok(()),
                CollectResult::Freed | CollectResult::Nothing
                    if asked == BlockRequestResult::Called =>
                {
                    self.await_others().await;
                    attempt += PAUSES_PER_WAIT;
                    asked = self.ask().await?;
                }
                // One of the session's blocks can be used when its window ends, in some seconds. Other sessions
                // possibly return blocks before that, so the operation asks again now and then.
                CollectResult::Nothing
                    if asked == BlockRequestResult::Nothing
                        && store.memory.any_waits_for_its_window(&store.host) =>
                {
                    if attempt % ASKED_EVERY == 0 {
                        asked = self.ask().await?;
                    }
                }
                CollectResult::Nothing if asked == BlockRequestResult::Nothing => {
                    if !store.memory.unverify_all(&store.host) {
                        // The other sessions possibly needed all their memory when they were asked for blocks, so this
                        // operation asks them several times. But if no session was doing anything that frees memory, no
                        // memory was free at that moment, so the operation fails at once.
                        in_vain += 1;
                        if store.host.is_exhausted() || in_vain == ASKED_IN_VAIN {
                            return Err(Error::OutOfMemory);
                        }
                        asked = self.ask().await?;
                    }
                }
                // The pool has got a block back, or the latest block has no room and there are possibly more blocks.
                // The operation requests only a few at once, because other sessions need some.
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
            if self.pause_and_offer(attempt).await.is_err() {
                return Err(Error::OutOfMemory);
            }
            attempt += 1;
        }
    }

    fn collector(&self) -> BlockCollector<'s, F, H> {
        BlockCollector { store: self.store, kind: self.kind, least: *self.least, beside: None }
    }

    /// Waits a little for blocks that other sessions hand on. During the wait, offers to them the blocks that this
    /// session does not need.
    async fn await_others(&self) {
        self.offer_during(self.store.host.await_others()).await;
    }

    /// Pauses, so that some of the session's own memory can become free. During the pause, offers to other sessions the
    /// blocks that this session does not need.
    async fn pause_and_offer(&self, attempt: u32) -> Result<(), GiveUp> {
        self.offer_during(self.store.host.pause(attempt)).await
    }

    /// Awaits `waiting`. Until then, offers to other sessions the blocks that this session does not need.
    async fn offer_during<T>(&self, waiting: impl Future<Output = T>) -> T {
        let store = self.store;
        let _pauses = MemoryWaitGuard::begin(&store.memory.allocating);
        store.memory.offer(&store.host);
        let done = waiting.await;
        store.memory.take_back(&store.host);
        done
    }

    fn has_room(&self) -> bool {
        let slabs = self.store.memory.slabs.borrow();
        slabs.has_room(self.kind, *self.least, |block| is_frozen(self.view, block))
    }

    pub(super) fn has_newer_view(&self) -> bool {
        self.store.newest_view().number > self.view.number
    }

    /// If the slab can soon use objects of a block of this session, waits for them, for a limited time. Returns whether
    /// the slab has room after the wait.
    async fn await_reclaimable(&self) -> bool {
        let Self { store, kind, .. } = *self;
        let least = *self.least;
        for attempt in 0..RECLAIM_PAUSES {
            if self.has_room() {
                return true;
            }
            let frees_soon = |b: &Block| {
                let any = b.bitmap.seen().is_some() || b.reusable.returned_objects() > 0;
                any && b.is_worth_reclaiming(kind, least)
            };
            let any = store.memory.slabs.borrow().aside().iter().any(frees_soon);
            if !any || store.host.pause(attempt).await.is_err() {
                break;
            }
            self.collector().reclaim_what_is_due().await;
        }
        self.has_room()
    }

    /// Asks for a block. If the host answers that a block is possibly available later, waits, collects memory that the
    /// session itself has freed, and asks again unless the slab has room now.
    async fn ask(&mut self) -> Result<BlockRequestResult, Error> {
        let Self { store, kind, .. } = *self;
        loop {
            let demand =
                if self.has_waiting() { BlockDemand::NeededNow } else { BlockDemand::Needed };
            let asked = self.ask_for_block(demand).await?;
            if asked != BlockRequestResult::Later {
                return Ok(asked);
            }
            // While this operation waits, other sessions can have the blocks that it does not need.
            self.offer_during(store.host.await_pool(self.view)).await;
            if self.has_newer_view() {
                return Ok(BlockRequestResult::NewerView);
            }
            if removed(Mutant::AwaitsOnlyThePool) {
                continue;
            }
            // From here on, even a block with a single free object is taken into use.
            *self.least = u32::MAX;
            store.memory.slabs.borrow_mut().set_full_aside(kind);
            set_free(store).await;
            self.collector().collect(false).await;
            if self.has_room() {
                return Ok(BlockRequestResult::Block);
            }
        }
    }

    /// Returns whether the slab has a block whose header is still to be read.
    fn has_unread(&self) -> bool {
        let epoch = window_epoch(&self.store.host);
        let mut slabs = self.store.memory.slabs.borrow_mut();
        slabs.blocks().any(|b| b.kind == self.kind && b.generations.is_unread(epoch))
    }

    /// Returns whether the slab has a block that it can use when a window has passed.
    fn has_waiting(&self) -> bool {
        let epoch = window_epoch(&self.store.host);
        let mut slabs = self.store.memory.slabs.borrow_mut();
        slabs.blocks().any(|b| b.kind == self.kind && b.generations.waits(epoch))
    }

    /// Waits until the headers of the slab's blocks are read, or a newer view has come. Returns whether a newer view
    /// has come.
    async fn await_headers(&self) -> Result<bool, Error> {
        for attempt in 0.. {
            read_headers(self.store).await;
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

    /// Asks for one block, and adds it to the slab.
    async fn ask_for_block(&self, demand: BlockDemand) -> Result<BlockRequestResult, Error> {
        let Self { store, kind, .. } = *self;
        // If a memory node does not answer, the headers of its blocks cannot be read. Without this check the session
        // would get block after block, and could use none of them.
        if self.has_unread() && self.await_headers().await? {
            return Ok(BlockRequestResult::NewerView);
        }
        // The operation stays pinned in this view until all replicas have recorded the block's owner. So until then no
        // view change adds a replica that lacks the record.
        let (mut pin, newest) = OperationPin::new(store);
        if newest.number > self.view.number {
            return Ok(BlockRequestResult::NewerView);
        }
        if removed(Mutant::AsksUnpinned) {
            pin.pause();
        }
        let bytes = store.memory.slabs.borrow().bytes_of(kind);
        let grant = store.host.alloc_block(kind, bytes, demand, self.view).await;
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
                // A demand that asks only some regions says nothing about the other ones.
                let was_empty = &store.memory.pool_was_empty;
                was_empty.set(was_empty.get() || demand.is_urgent());
                return Ok(BlockRequestResult::Nothing);
            }
            Err(error) => return Err(error),
        };
        // A newer view has lost the block while the session asked for it.
        if store.newest_view().block(grant.address).is_none() {
            return Ok(BlockRequestResult::NewerView);
        }
        if !store.memory.slabs.borrow_mut().add_block(kind, grant) {
            return Err(Error::Corrupt { what: "a granted block has no room for one object" });
        }
        if self.await_headers().await? {
            return Ok(BlockRequestResult::NewerView);
        }
        let waits = |b: &mut Block| b.generations.waits(window_epoch(&store.host));
        if store.memory.slabs.borrow_mut().find(grant.address).is_some_and(waits) {
            // The block was merged from others, which happens only when no other block is left.
            store.memory.pool_was_empty.set(true);
            return Ok(BlockRequestResult::Nothing);
        }
        store.memory.pool_was_empty.set(grant.pool_is_empty);
        Ok(if grant.pool_is_empty {
            BlockRequestResult::LastBlock
        } else {
            BlockRequestResult::Block
        })
    }
}

/// Counts an operation that searches for memory, until the guard is dropped, also if the operation is dropped.
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

/// Takes an operation out of the count of searching operations while it waits and changes no blocks. The operation
/// counts again when the guard is dropped, even if that is because the operation is dropped.
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

/// The result of a request for a block, which the session's process (the [`Host`]) makes to memory nodes and master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockRequestResult {
    /// The session has got a block, which possibly has no room yet.
    Block,
    /// The session has got a block, and the pool has no further block.
    LastBlock,
    /// No memory node has a free block.
    Nothing,
    /// No memory node has a free block, but the master has called on other sessions to hand on blocks.
    Called,
    /// A block is possibly available soon.
    Later,
    /// A newer view has come, in which a block is possibly available.
    NewerView,
}

/// The result of an attempt to evacuate blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvacuationResult {
    /// Pairs were moved, or objects examined in vain, and there are possibly more. The blocks of moved pairs become
    /// free soon.
    Moved,
    /// The slab of a sparse block soon has room for the block's pairs.
    Waits,
    Nothing,
}

/// Ends the search for a block on the nodes of a subtable's replicas when the guard is dropped, also if the operation
/// fails or is dropped.
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

/// Ends the request for a block when the guard is dropped, also if the operation fails or is dropped.
struct AllocBlockGuard<'s> {
    slabs: &'s RefCell<Slabs>,
    kind: SlabKind,
}

impl Drop for AllocBlockGuard<'_> {
    fn drop(&mut self) {
        self.slabs.borrow_mut().end_ask(self.kind);
    }
}
