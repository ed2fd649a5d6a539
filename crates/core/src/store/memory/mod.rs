//! The memory of a session: the objects that it can allocate, and those that it has freed.
//!
//! [`SessionMemory`] owns the session's blocks, sorted into slabs, and the list of freed objects. A
//! [`MemoryUpkeep`](upkeep::MemoryUpkeep) is an operation of the session that maintains its own blocks.
//!
//! The order of calls, for one object:
//!
//! 1. A write *allocates* the object. If its slab has none, the write is unpinned, awaits memory ([`out_of_memory`]),
//!    and begins anew.
//! 2. At the end of the attempt the object is *given back* if no CAS has named it; otherwise its block notes that the
//!    write has ended.
//! 3. The writer that replaces a slot word *frees* the object that the word protected ([`freed`]). A write that is
//!    suspended before it knows whether it has replaced a word *holds* that memory until it is resolved.
//! 4. After the operation, in this order: the session *sets free* the freed objects, *looks ahead* for memory if the
//!    slab is about to lack some, and *offers* other sessions the blocks that it does not need.
//! 5. While memory is short, the session collects free objects of its blocks ([`reclaim`]), compares unverified blocks
//!    with the index ([`compare`]), and empties sparse blocks ([`evacuate`]).
//! 6. A session that leaves seals its blocks, and hands on what is left of them ([`seal`]).

mod compare;
mod evacuate;
mod freed;
mod out_of_memory;
mod reclaim;
mod seal;
mod upkeep;

pub(super) use freed::{MemoryHold, due_free_bits, set_free};
pub(super) use out_of_memory::{MemoryLookAhead, MemorySearch};

use alloc::sync::Arc;
use core::cell::{Cell, RefCell};

use freed::PendingFreeBits;

use crate::host::Host;
use crate::layout::{Address, Slot};
use crate::mutant::{Mutant, removed};
use crate::slab::{Allocation, Block, BlockZeroing, SlabKind, SlabShortage, Slabs};
use crate::stats::Counters;
use crate::verbs::ClientId;
use crate::view::View;

/// The smallest difference between the marks (`Epochs::mark`) of two times at which all blocks are made unverified.
const UNVERIFY_PAUSE: u64 = 256;

/// The blocks of a session, and the objects that it has freed.
pub(super) struct SessionMemory {
    slabs: RefCell<Slabs>,
    /// Freed objects whose free bits are not set yet.
    pub freed: PendingFreeBits,
    counters: Arc<Counters>,
    /// The number of phases that the session has used to read free bitmaps.
    looks: Cell<u64>,
    /// Whether an operation of the session collects free memory.
    reclaiming: Cell<bool>,
    /// The earliest mark at which all blocks can be made unverified again.
    unverifies_from: Cell<u64>,
    /// The number of the session's operations that are searching for memory now.
    allocating: Cell<usize>,
    /// Whether the pool had no block left when the session last asked for one.
    pool_was_empty: Cell<bool>,
}

impl SessionMemory {
    /// Creates the memory of a session of `client`, without a block.
    pub fn new(client: ClientId, counters: Arc<Counters>) -> SessionMemory {
        SessionMemory {
            slabs: RefCell::new(Slabs::new(client)),
            freed: PendingFreeBits::default(),
            counters,
            looks: Cell::new(0),
            reclaiming: Cell::new(false),
            unverifies_from: Cell::new(0),
            allocating: Cell::new(0),
            pool_was_empty: Cell::new(false),
        }
    }

    /// Allocates an object from one of this session's slabs, in this view, preferably on the nodes of the replicas of
    /// the subtable `beside`. A block that is not in use is taken into use if at least one in `least` of its objects is
    /// free. Returns `None` if the slab has no memory.
    #[inline]
    pub fn allocate(
        &self,
        kind: SlabKind,
        least: u32,
        view: &View,
        beside: Option<u32>,
    ) -> Option<Allocation> {
        let best = beside.map(|at| (at, move |block| view.lies_beside(block, at)));
        self.slabs.borrow_mut().allocate(kind, least, |block| is_frozen(view, block), best)
    }

    /// Gives an object back to its slab, if no CAS has named the object.
    pub fn give_back(&self, host: &impl Host, object: &Allocation) {
        let mut slabs = self.slabs.borrow_mut();
        slabs.give_back(object, |mark| host.has_passed(mark), || host.mark());
    }

    /// Offers the blocks that are not in use to sessions that are short of memory, unless an operation of this session
    /// searches for memory. Of a slab that is short of memory in this session, offers only some blocks.
    pub fn offer(&self, host: &impl Host) {
        if self.allocating.get() == 0 {
            // Other sessions have possibly taken some of the offered blocks already.
            self.take_back(host);
            let mut slabs = self.slabs.borrow_mut();
            if host.take_memory_call() || self.pool_was_empty.get() {
                slabs.use_one();
            }
            let (spare, surplus) = slabs.offer();
            let frees_soon = slabs.frees_soon();
            drop(slabs);
            host.offer(spare, surplus, frees_soon);
        }
    }

    /// Takes the offered blocks back that no other session has taken.
    pub fn take_back(&self, host: &impl Host) {
        let gone = host.take_back();
        let unmarked = self.slabs.borrow_mut().take_back(&gone);
        self.counters.add_left_to_comparison(unmarked);
    }

    /// Makes all blocks unverified, so that they are compared with the index: the last resort, used only once in a
    /// while. If a session was too late to set its free bits, they are never set (`Epochs::may_set_free`), and it is
    /// not known where they are missing. Returns whether any block was verified before.
    fn unverify_all(&self, host: &impl Host) -> bool {
        let now = host.mark();
        if now < self.unverifies_from.get() {
            return false;
        }
        self.unverifies_from.set(now + UNVERIFY_PAUSE);
        self.slabs.borrow_mut().unverify_all()
    }

    /// Returns whether a block that is not in use has a header that says on all replicas that the block is sealed.
    fn is_sealed(&self, block: Address) -> bool {
        self.slabs.borrow_mut().aside_at(block).is_some_and(|found| found.header.is_sealed())
    }

    /// Returns whether a block that is not in use has objects that were seen set free and are not reclaimed yet.
    fn is_seen(&self, block: Address) -> bool {
        self.slabs.borrow_mut().aside_at(block).is_some_and(|b| b.bitmap.seen().is_some())
    }

    /// Returns whether an emptied block still waits for the end of its window, until the slot words of its former
    /// objects are allowed to recur. If so, takes a new mark, so that the session soon hears of later epochs.
    fn waits_for_its_window(&self, host: &impl Host, block: Address) -> bool {
        let epoch = window_epoch(host);
        let mut slabs = self.slabs.borrow_mut();
        let waits = |b: &&mut Block| b.generations.waits(epoch);
        let Some(found) = slabs.aside_at(block).filter(waits) else { return false };
        found.scrubbed = Some(BlockZeroing::Done(host.mark()));
        true
    }

    /// Returns whether some block waits for the end of its window, until the slot words of its former objects are
    /// allowed to recur. If so, takes a mark, so that the session soon hears of later epochs.
    fn any_waits_for_its_window(&self, host: &impl Host) -> bool {
        let epoch = window_epoch(host);
        let waits = self.slabs.borrow().aside().iter().any(|b| b.generations.waits(epoch));
        if waits {
            host.mark();
        }
        waits
    }

    /// Notes that the header of an object's block has been written to all replicas.
    pub fn note_header_written(&self, object: &Allocation) {
        self.slabs.borrow_mut().header_written(object);
    }

    /// Notes that the write of an object has ended, if a CAS has named the object.
    #[inline]
    pub fn end_write(&self, object: &Allocation) {
        self.slabs.borrow_mut().end(object);
    }

    /// Begins a Move in place of a word's object to this turn. Returns `None` if that is impossible now, for example
    /// because another session owns the object's block, or because another Move of the object runs.
    pub fn begin_move(&self, word: Slot, turn: u16) -> Option<Allocation> {
        self.slabs.borrow_mut().begin_move(word, turn)
    }

    /// Records that an object's Move in place has ended.
    #[inline]
    pub fn end_move(&self, object: &Allocation) {
        self.slabs.borrow_mut().end_move(object);
    }

    /// Returns whether the block of an object is offered to other sessions.
    pub fn is_offered(&self, object: Address) -> bool {
        self.slabs.borrow().is_offered(object)
    }

    /// Returns a reason for which a slab should get another block, if the slab has noted one since the previous call.
    #[inline]
    pub fn take_shortage(&self, kind: SlabKind) -> Option<SlabShortage> {
        self.slabs.borrow_mut().take_shortage(kind)
    }

    /// Returns the next object to demote, from a block that is not frozen, and the kind of its slab.
    pub fn next_to_demote(&self, view: &View) -> Option<(Address, SlabKind)> {
        self.slabs.borrow_mut().next_to_demote(|block| is_frozen(view, block))
    }

    /// Forgets the blocks that a view has lost.
    pub fn forget_lost_blocks(&self, view: &View) {
        self.slabs.borrow_mut().forget(|block| view.block(block).is_none());
    }

    /// Returns whether the pool had no block left when the session last asked for one.
    pub fn pool_was_empty(&self) -> bool {
        self.pool_was_empty.get()
    }
}

/// Returns whether the view forbids new objects at an address, because it has frozen the region.
pub(in crate::store) fn is_frozen(view: &View, at: Address) -> bool {
    view.change.is_some()
        && view.is_region_frozen((at.bytes() / view.geometry.region_bytes) as u32)
        && !removed(Mutant::WritesWhileFrozen)
}

/// Returns the epoch that decides whether the windows of blocks have ended. This is not the newest epoch: another
/// master's epochs are far ahead, and a session that has not heard of them yet still relies on words that it saw a
/// moment ago.
fn window_epoch(host: &impl Host) -> u64 {
    if removed(Mutant::JumpsEndWindows) { host.epoch() } else { host.passed_epoch() }
}
