//! Memory for an operation that finds its slab empty: what it does, in which order, and when it is told
//! that there is none.
//!
//! 1. What the session has: sets free what it freed, and reclaims what is free in its blocks
//!    ([`reclaim`](super::reclaim)). A DELETE waits for what can be used soon; so does everybody where the
//!    pool had nothing left the last time.
//! 2. Another block: an orphaned one, or one of the pool (`Blocks::alloc_block`).
//! 3. If the pool is empty, everything that may help: all blocks are looked at, unverified ones are
//!    compared with the index, and what others hand on is looked through, a few blocks at a time. As the
//!    last resort no bitmap is trusted any more.
//!
//! An object that is best beside a subtable ([`speculation`](super::speculation)) takes what there is, too; when its
//! write has ended, a block is looked for where the next one is best.
//!
//! That is once in a block's worth of objects. One operation does some of it before, when half of them
//! are used up, so that something can be used again when it is time. Meanwhile nothing is offered to others;
//! whoever looked for memory offers what is left over when it has done.
//!
//! What others hand on takes a while to come. Who waits for it is not pinned, so that everybody's memory goes
//! on becoming free, and offers what it does not need itself: else two sessions might each wait for what the
//! other one keeps.

use alloc::sync::Arc;
use core::cell::{Cell, RefCell};

use super::Store;
use super::pinned::Pin;
use super::reclaim::{Left, is_frozen};
use crate::data::Region;
use crate::error::{Error, Outcome};
use crate::host::{GiveUp, Granted, Host};
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::slab::{Allocation, Block, Lack, SlabKind, Slabs, USED_AGAIN_AT};
use crate::verbs::Fabric;
use crate::view::View;

/// So many marks (`Epochs::mark`) after all blocks became unverified they do so again at the soonest.
const UNVERIFY_PAUSE: u64 = 256;
/// Blocks that are asked for together at most when the pool is empty.
const ASKED_TOGETHER: u32 = 8;
/// So often nobody has anything to hand on, and nothing of the session's own is left to wait for, before
/// there is no memory; once, if besides nobody did anything by which memory becomes free.
const ASKED_IN_VAIN: u32 = 4;
/// Who waits for the window of a block asks again after so many pauses.
const ASKED_EVERY: u32 = 32;
/// A wait for others counts as so many pauses.
const PAUSES_PER_WAIT: u32 = 10;
/// So often a DELETE pauses until a block can be used again: some 50 ms.
const RECLAIM_PAUSES: u32 = 128;

impl<F: Fabric, H: Host> Store<F, H> {
    /// An object of a class from this session's slabs, by this view; of a block of which one in
    /// `least` objects is free, if it is not in use already. Preferably beside a subtable.
    pub(super) fn allocate(
        &self,
        kind: SlabKind,
        least: u32,
        view: &View,
        beside: Option<u32>,
    ) -> Option<Allocation> {
        let best = beside.map(|at| (at, move |block| view.lies_beside(block, at)));
        self.slabs.borrow_mut().allocate(kind, least, |block| is_frozen(view, block), best)
    }

    /// When half of a block is used up: looks for what can be used when all of it is. Where an object would have been
    /// better beside a subtable and was not: for a block there.
    pub(super) async fn look_ahead(&self, kind: SlabKind, lack: Lack) {
        let _ends = Allocating::begin(&self.allocating);
        self.take_back();
        self.set_free(1).await;
        if let Lack::Beside(subtable) = lack {
            return self.look_beside(kind, subtable).await;
        }
        self.collect(kind, USED_AGAIN_AT, None, false).await;
    }

    /// Looks for a block beside a subtable: among those of the session, or another one, if the pool has some to spare.
    /// Writes do without one meanwhile, so whatever fails here is no error. Where memory is short a slab has one block
    /// in use, and others have the rest.
    async fn look_beside(&self, kind: SlabKind, subtable: u32) {
        if !self.slabs.borrow_mut().begin_look(kind) {
            return;
        }
        let mut looking = Looking { slabs: &self.slabs, kind, found: false };
        let view = self.newest_view();
        let at = view.subtables.get(subtable as usize);
        let is_one = |region: &Region| {
            let lies_there = at.is_some_and(|at| region.lies_beside(at));
            region.redundancy() == kind.redundancy && lies_there
        };
        if self.pool_was_empty.get() || !view.regions.iter().any(is_one) {
            return;
        }
        self.collect(kind, USED_AGAIN_AT, Some(subtable), false).await;
        let is_used = || {
            let lies_there = |block| view.lies_beside(block, subtable);
            let is_frozen = |block| is_frozen(&view, block);
            self.slabs.borrow_mut().use_best(kind, USED_AGAIN_AT, is_frozen, lies_there)
        };
        // Used at once: whatever is not in use is offered to others, and of no use here until it is taken back.
        looking.found = is_used();
        if !looking.found {
            let _ = self.ask_for_block(kind, false, Some(subtable), &view).await;
            looking.found = is_used();
        }
    }

    /// Waits until there is something to allocate from, or a newer view has come. The caller must not
    /// be pinned meanwhile: what it could know would never become free. `to_delete`: for a DELETE, which may
    /// have what is kept back.
    pub(super) async fn await_room(
        &self,
        kind: SlabKind,
        to_delete: bool,
        least: &mut u32,
        view: &Arc<View>,
    ) -> Result<(), Error> {
        self.take_back();
        for attempt in 0.. {
            if self.has_room(kind, *least, view) || self.newest_view().number > view.number {
                return Ok(());
            }
            if self.slabs.borrow_mut().begin_ask(kind) {
                let _ends = Asking { slabs: &self.slabs, kind };
                let _allocates = Allocating::begin(&self.allocating);
                self.take_back();
                let done = self.alloc_slow(kind, to_delete, least, view).await;
                self.host.end_search(kind);
                return done;
            }
            if self.host.pause(attempt).await.is_err() {
                let waiting_for = "a block that another operation asked for";
                return Err(Error::GaveUp { waiting_for, outcome: Outcome::NotApplied });
            }
        }
        unreachable!("the loop ends by return")
    }

    /// Lets others have the blocks that are not in use, if they are short of memory and nobody here does
    /// anything about them. Of a class that is short here these are only some.
    pub(super) fn offer(&self) {
        if self.allocating.get() == 0 {
            // Some may be gone already.
            self.take_back();
            let mut slabs = self.slabs.borrow_mut();
            if self.host.was_called() || self.pool_was_empty.get() {
                slabs.use_one();
            }
            let (spare, surplus) = slabs.offer();
            let frees_soon = slabs.frees_soon();
            drop(slabs);
            self.host.offer(spare, surplus, frees_soon);
        }
    }

    /// Lets others have the block for log objects, between two DELETEs, where there are not enough such
    /// blocks for all sessions.
    pub(super) fn lend(&self, key: Key<'_>) {
        if let Some(kind) = SlabKind::of_logs(key.len()) {
            self.slabs.borrow_mut().lend(kind);
            self.offer();
        }
    }

    pub(super) fn take_back(&self) {
        let gone = self.host.take_back();
        let unmarked = self.slabs.borrow_mut().take_back(&gone);
        self.counters.add_left_to_comparison(unmarked);
    }

    /// Gets something to allocate from, unless a newer view comes.
    async fn alloc_slow(
        &self,
        kind: SlabKind,
        to_delete: bool,
        least: &mut u32,
        view: &Arc<View>,
    ) -> Result<(), Error> {
        self.set_free(1).await;
        self.collect(kind, *least, None, false).await;
        // Where the pool has none left, whoever asks for a block has others asked for theirs.
        if to_delete || self.pool_was_empty.get() {
            self.await_reclaimable(kind, *least, view).await;
        }
        if self.has_room(kind, *least, view) {
            return Ok(());
        }
        let mut asked = self.ask(kind, to_delete, least, view).await?;
        while asked == Asked::Block && !self.has_room(kind, *least, view) {
            if to_delete {
                // Better a little later than one of the last blocks.
                self.collect(kind, *least, None, false).await;
                if self.await_reclaimable(kind, *least, view).await {
                    return Ok(());
                }
            }
            asked = self.ask(kind, to_delete, least, view).await?;
        }
        // Whatever there is will do now.
        *least = u32::MAX;
        let mut together = 1;
        let mut in_vain = 0;
        let mut attempt = 0;
        loop {
            let is_newer = asked == Asked::NewerView || self.newest_view().number > view.number;
            if is_newer || self.has_room(kind, *least, view) {
                return Ok(());
            }
            match self.collect(kind, *least, None, true).await {
                Left::Waiting => {}
                // What there was to wait for has just come.
                Left::Nothing if self.has_room(kind, *least, view) => return Ok(()),
                Left::Freed | Left::Nothing if asked == Asked::Called => {
                    self.await_others().await;
                    attempt += PAUSES_PER_WAIT;
                    asked = self.ask(kind, to_delete, least, view).await?;
                }
                // Something comes in some seconds. Until then others may have returned something.
                Left::Nothing if asked == Asked::Nothing && self.any_waits_for_its_window() => {
                    if attempt % ASKED_EVERY == 0 {
                        asked = self.ask(kind, to_delete, least, view).await?;
                    }
                }
                Left::Nothing if asked == Asked::Nothing => {
                    if !self.unverify_all() {
                        // Others may have needed all that they had when they were asked. If nobody did
                        // anything, there was a time in this operation at which nothing could be had.
                        in_vain += 1;
                        if self.host.is_exhausted() || in_vain == ASKED_IN_VAIN {
                            return Err(Error::OutOfMemory);
                        }
                        asked = self.ask(kind, to_delete, least, view).await?;
                    }
                }
                // There is more where the last one came from. Not all of it at once: others need some.
                Left::Freed | Left::Nothing => {
                    for _ in 0..together {
                        asked = self.ask(kind, to_delete, least, view).await?;
                        if asked != Asked::LastBlock {
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

    /// Waits a little for what others hand on.
    async fn await_others(&self) {
        self.offer_during(self.host.await_others()).await;
    }

    /// Waits until something of the session's own may have become free.
    async fn pause_and_offer(&self, attempt: u32) -> Result<(), GiveUp> {
        self.offer_during(self.host.pause(attempt)).await
    }

    /// Meanwhile others may have what is not needed here.
    async fn offer_during<T>(&self, waiting: impl Future<Output = T>) -> T {
        let _pauses = Pausing::begin(&self.allocating);
        self.offer();
        let done = waiting.await;
        self.take_back();
        done
    }

    fn has_room(&self, kind: SlabKind, least: u32, view: &View) -> bool {
        self.slabs.borrow().has_room(kind, least, |block| is_frozen(view, block))
    }

    /// If a class can soon use a block that there is: waits for that, for some time. Whether it can.
    async fn await_reclaimable(&self, kind: SlabKind, least: u32, view: &View) -> bool {
        for attempt in 0..RECLAIM_PAUSES {
            if self.has_room(kind, least, view) {
                return true;
            }
            let frees_soon = |b: &Block| {
                let any = b.seen.is_some() || b.returned_objects() > 0;
                any && b.is_worth_reclaiming(kind, least)
            };
            let any = self.slabs.borrow().aside().iter().any(frees_soon);
            if !any || self.host.pause(attempt).await.is_err() {
                break;
            }
            self.reclaim_what_is_due(kind, least).await;
        }
        self.has_room(kind, least, view)
    }

    /// Asks for a block; for a DELETE first for one that others may not have. While one is to come, what the session
    /// has freed itself may be there before.
    async fn ask(
        &self,
        kind: SlabKind,
        to_delete: bool,
        least: &mut u32,
        view: &Arc<View>,
    ) -> Result<Asked, Error> {
        loop {
            let mut asked = Asked::Nothing;
            if to_delete {
                asked = self.ask_for_block(kind, true, None, view).await?;
            }
            if asked == Asked::Nothing {
                asked = self.ask_for_block(kind, false, None, view).await?;
            }
            if asked != Asked::Later {
                return Ok(asked);
            }
            // Nobody is to wait for who waits.
            self.offer_during(self.host.await_pool(view)).await;
            if self.newest_view().number > view.number {
                return Ok(Asked::NewerView);
            }
            if removed(Mutant::AwaitsOnlyThePool) {
                continue;
            }
            // Whatever there is will do now.
            *least = u32::MAX;
            self.slabs.borrow_mut().set_full_aside(kind);
            self.set_free(1).await;
            self.collect(kind, *least, None, false).await;
            if self.has_room(kind, *least, view) {
                return Ok(Asked::Block);
            }
        }
    }

    /// The last resort: all blocks are compared with the index, once in a while. Bits that a session
    /// did not set in time never come (`Epochs::may_set_free`), and nobody knows where they are missing.
    fn unverify_all(&self) -> bool {
        let now = self.host.mark();
        if now < self.unverifies_from.get() {
            return false;
        }
        self.unverifies_from.set(now + UNVERIFY_PAUSE);
        self.slabs.borrow_mut().unverify_all()
    }

    /// Whether a class has a block whose header is yet to be read.
    fn has_unread(&self, kind: SlabKind) -> bool {
        let epoch = self.window_epoch();
        self.slabs.borrow_mut().blocks().any(|b| b.kind == kind && b.is_unread(epoch))
    }

    /// Waits until the headers of a class's blocks are read, or a newer view has come; whether it has.
    async fn await_headers(&self, kind: SlabKind, view: &Arc<View>) -> Result<bool, Error> {
        for attempt in 0.. {
            self.read_headers().await;
            if !self.has_unread(kind) {
                return Ok(false);
            }
            if self.newest_view().number > view.number {
                return Ok(true);
            }
            if self.host.pause(attempt).await.is_err() {
                let waiting_for = "a memory node to show the header of a block";
                return Err(Error::GaveUp { waiting_for, outcome: Outcome::NotApplied });
            }
        }
        unreachable!("the loop ends by return")
    }

    /// Adds a block, unless a newer view comes or there is none; perhaps only one beside a subtable.
    async fn ask_for_block(
        &self,
        kind: SlabKind,
        to_delete: bool,
        beside: Option<u32>,
        view: &Arc<View>,
    ) -> Result<Asked, Error> {
        // Else one block after the other would come from a memory node that answers, and none be of use.
        if self.has_unread(kind) && self.await_headers(kind, view).await? {
            return Ok(Asked::NewerView);
        }
        // Pinned by this view until the block is recorded on all replicas: none is added meanwhile that
        // would not know of it.
        let (mut pin, newest) = Pin::new(self);
        if newest.number > view.number {
            return Ok(Asked::NewerView);
        }
        if removed(Mutant::AsksUnpinned) {
            pin.pause();
        }
        let grant = self.host.alloc_block(kind, to_delete, beside, view).await;
        drop(pin);
        let grant = match grant {
            Ok(Granted::Block(grant)) => grant,
            Ok(Granted::Called) => {
                self.pool_was_empty.set(true);
                return Ok(Asked::Called);
            }
            Ok(Granted::Later) => return Ok(Asked::Later),
            Ok(Granted::NewerView) => return Ok(Asked::NewerView),
            Err(Error::OutOfMemory) => {
                // That none lies beside a subtable says nothing of the pool.
                self.pool_was_empty.set(self.pool_was_empty.get() || beside.is_none());
                return Ok(Asked::Nothing);
            }
            Err(error) => return Err(error),
        };
        // It was lost while it was asked for.
        if self.newest_view().block(grant.address).is_none() {
            return Ok(Asked::NewerView);
        }
        if !self.slabs.borrow_mut().add_block(kind, grant) {
            return Err(Error::Corrupt { what: "a granted block has no room for one object" });
        }
        if self.await_headers(kind, view).await? {
            return Ok(Asked::NewerView);
        }
        self.pool_was_empty.set(grant.pool_is_empty);
        Ok(if grant.pool_is_empty { Asked::LastBlock } else { Asked::Block })
    }
}

/// An operation looks for memory; also when it is dropped, it has stopped.
struct Allocating<'s>(&'s Cell<usize>);

impl<'s> Allocating<'s> {
    fn begin(count: &'s Cell<usize>) -> Allocating<'s> {
        count.set(count.get() + 1);
        Allocating(count)
    }
}

impl Drop for Allocating<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// It does nothing about blocks for a while; also when it is dropped meanwhile, it goes on as before.
struct Pausing<'s>(&'s Cell<usize>);

impl<'s> Pausing<'s> {
    fn begin(count: &'s Cell<usize>) -> Pausing<'s> {
        count.set(count.get() - 1);
        Pausing(count)
    }
}

impl Drop for Pausing<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// What asking for a block came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// There is another one. It may have no room yet.
    Block,
    /// So there is, but the pool has none left.
    LastBlock,
    /// There is none.
    Nothing,
    /// There is none, but others are called upon to hand some on.
    Called,
    /// There may be one soon.
    Later,
    /// There may be one by a newer view.
    NewerView,
}

/// An operation looks for a better block; also when it fails or is dropped, it has stopped looking.
struct Looking<'s> {
    slabs: &'s RefCell<Slabs>,
    kind: SlabKind,
    found: bool,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.slabs.borrow_mut().end_look(self.kind, self.found);
    }
}

/// An operation asks for a block; also when it fails or is dropped, it has stopped asking.
struct Asking<'s> {
    slabs: &'s RefCell<Slabs>,
    kind: SlabKind,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.slabs.borrow_mut().end_ask(self.kind);
    }
}
