//! The memory of a session: the objects that it can allocate, and those that it has freed.
//!
//! [`SessionMemory`] owns the session's blocks, sorted into slabs, and the list of freed objects. A [`MemoryUpkeep`] is
//! an operation of the session that maintains its own blocks.
//!
//! The order of calls, for one object:
//!
//! 1. A write *allocates* the object. If its slab has none, the write is unpinned, awaits memory ([`out_of_memory`]),
//!    and begins anew.
//! 2. At the end of the attempt the object is *given back* if no CAS has named it; otherwise its block notes that the
//!    write has ended.
//! 3. The writer that replaces a slot word *frees* the object that the word protected ([`reclaim`]). A write that is
//!    suspended before it knows whether it has replaced a word *holds* that memory until it is resolved.
//! 4. After the operation, in this order: the session *sets free* the freed objects, *looks ahead* for memory if the
//!    slab is about to lack some, and *offers* other sessions the blocks that it does not need.
//! 5. While memory is short, the session collects free objects of its blocks ([`reclaim`]) and compares unverified
//!    blocks with the index ([`compare`]).
//! 6. A session that leaves seals its blocks, and hands on what is left of them ([`seal`]).

mod compare;
mod out_of_memory;
mod reclaim;
mod seal;

pub(super) use reclaim::{MemoryHold, SET_FREE_TOGETHER, is_frozen};

use core::cell::{Cell, RefCell};

use reclaim::PendingFreeBits;

use super::{Store, StoreOp};
use crate::host::Host;
use crate::layout::{Address, Slot};
use crate::slab::{Allocation, SlabKind, SlabShortage, Slabs};
use crate::stats::OpKind;
use crate::verbs::{ClientId, Fabric};
use crate::view::View;

/// The blocks of a session, and the objects that it has freed.
pub(super) struct SessionMemory {
    slabs: RefCell<Slabs>,
    /// Freed objects whose free bits are not set yet.
    freed: PendingFreeBits,
    /// The number of phases that the session has used to read free bitmaps.
    looks: Cell<u64>,
    /// Whether an operation of the session collects free memory.
    reclaiming: Cell<bool>,
    /// The earliest mark at which all blocks can be made unverified again.
    unverifies_from: Cell<u64>,
    /// The number of the session's operations that search for memory.
    allocating: Cell<usize>,
    /// Whether the pool had no block left when the session last asked for one.
    pool_was_empty: Cell<bool>,
}

impl SessionMemory {
    /// Creates the memory of a session of `client`, without a block.
    pub fn new(client: ClientId, block_bytes: u64) -> SessionMemory {
        SessionMemory {
            slabs: RefCell::new(Slabs::new(client, block_bytes)),
            freed: PendingFreeBits::default(),
            looks: Cell::new(0),
            reclaiming: Cell::new(false),
            unverifies_from: Cell::new(0),
            allocating: Cell::new(0),
            pool_was_empty: Cell::new(false),
        }
    }

    /// Notes that the header of an object's block is written.
    pub fn note_header_written(&self, object: &Allocation) {
        self.slabs.borrow_mut().header_written(object);
    }

    /// Notes that the write of an object has ended, if a CAS has named the object.
    #[inline]
    pub fn end_write(&self, object: &Allocation) {
        self.slabs.borrow_mut().end(object);
    }

    /// Begins a Move in place of a word's object to this turn. Returns `None` if the object's block is not the
    /// session's, or if another Move of the object runs.
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

    /// Returns one shortage that a slab has noted since the previous call, if there is one.
    #[inline]
    pub fn take_shortage(&self, kind: SlabKind) -> Option<SlabShortage> {
        self.slabs.borrow_mut().take_shortage(kind)
    }

    /// Returns the next object to demote, in a block that is not frozen.
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

/// An operation of the session that maintains the session's own blocks.
struct MemoryUpkeep<'s, F: Fabric, H: Host> {
    op: StoreOp<'s, F, H>,
}

impl<F: Fabric, H: Host> Store<F, H> {
    fn upkeep(&self) -> MemoryUpkeep<'_, F, H> {
        MemoryUpkeep { op: self.operation() }
    }
}

impl<F: Fabric, H: Host> MemoryUpkeep<'_, F, H> {
    fn finish(self) {
        self.op.finish(OpKind::Reclaim);
    }
}
