//! The session's half of two-level memory allocation: slabs of objects, cut from blocks (P §4.4).
//!
//! For each size class and redundancy ([`SlabKind`]) a session owns blocks and allocates their objects. A block goes
//! through these states:
//!
//! ```text
//! granted --> in use --> aside --> sealed --> its free objects are reclaimed --> in use ...
//!                                          `-> all its objects are free: back to the pool
//! ```
//!
//! * *In use*: objects are allocated from the block. The header says so on all replicas before another process can
//!   learn of any of the objects, so recovery finds all writes that are possibly under way. Several blocks of a slab
//!   can be in use together ([`IN_USE_TOGETHER`]), each of them best for other objects ([`Slabs::allocate`]).
//! * *Aside*: the block is used up, other blocks are in use, or the block's region is frozen. Writes are possibly still
//!   under way.
//! * *Sealed*: no write is under way, and the header says so. Objects are reclaimed from sealed blocks only
//!   ([`store`]), and only sealed blocks can leave the session.
//!
//! An object that was allocated becomes free again in one of two ways: it is given back ([`Slabs::give_back`]) because
//! no CAS has named it, or its bit in the block's free bitmap was set. In both cases the object is allocated again,
//! with the next generation, only when every operation has ended that had begun before. So the former content of the
//! object is never taken for the new one (`slab/generations.rs`).
//!
//! [`store`]: crate::store

mod bitmap_state;
mod block;
mod evacuation;
mod generations;
mod header_state;
mod in_flight;
mod reusable;

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::layout::{Address, BlockHeader, BlockShape, Identity, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;
pub(crate) use bitmap_state::{SeenFreeBits, Verification};
pub(crate) use block::{Block, BlockZeroing};
pub use block::{BlockGrant, BlockRemainder, ReturnedBlock, SlabKind};
pub(crate) use evacuation::{BlockEvacuation, EvacuationChoice};
pub(crate) use generations::ReplicaHeaders;
pub use generations::WINDOW_EPOCHS;

/// An object that is allocated to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address of the object.
    pub address: Address,
    /// The kind of the object's slab.
    pub kind: SlabKind,
    /// The generation for the object's header and slot word.
    pub generation: u16,
    /// The header of the object's block, with the block's address, until the header is known to be written. The header
    /// is posted in the batch that writes the object, before the object. So no object of a block becomes visible before
    /// the header from which recovery learns of the object, whichever operation comes first and whichever fails.
    pub header: Option<(Address, BlockHeader)>,
}

impl Allocation {
    /// Returns the identity for the object's header and slot word.
    pub fn identity(&self) -> Identity {
        Identity::new(self.address, self.generation)
    }
}

/// A block is taken into use again only if at least one in `USED_AGAIN_AT` of its objects is free, as long as there are
/// other blocks.
pub(crate) const USED_AGAIN_AT: u32 = 8;
/// The largest number of blocks of a slab that are in use together.
pub const IN_USE_TOGETHER: usize = 8;
/// A slab that is new, or has searched for a better block in vain, searches again when it has allocated as many objects
/// as 1 / `CONTENT_FOR` of a block.
const CONTENT_FOR: u32 = 8;
/// A slab grows when it has recently written this many times as many bytes as its blocks have.
const GROWS_AFTER: u64 = 2;
/// A slab has outgrown blocks with less than one in this many bytes of its largest block.
const OUTGROWN: u64 = 32;
/// The number of epochs, some seconds, for which writes count as recent.
const RECENT_EPOCHS: u64 = 256;
/// The least number of objects that a slab allocates before it searches for a better block again.
const CONTENT_FOR_AT_LEAST: u32 = 4;

#[derive(Debug)]
struct Slab {
    kind: SlabKind,
    /// The slab's blocks that are in use.
    in_use: Vec<Block>,
    /// Whether an operation is asking for a block of the slab's kind.
    asking: bool,
    /// Whether half of a block's free objects are used up, so that it is time to search for the next block.
    is_half_used: bool,
    /// The subtable beside which the slab should have allocated a recent object, but had no block for it.
    lacks_beside: Option<u32>,
    /// The number of objects that the slab has to allocate before `lacks_beside` can be set again.
    content_for: u32,
    /// Whether an operation is searching for a better block for the slab.
    looking: bool,
    /// The number of bytes of the objects that were allocated since the epoch `written_since`.
    written: u64,
    written_since: u64,
}

impl Slab {
    fn new(kind: SlabKind) -> Slab {
        Slab {
            kind,
            in_use: Vec::new(),
            asking: false,
            is_half_used: false,
            lacks_beside: None,
            content_for: CONTENT_FOR_AT_LEAST,
            looking: false,
            written: 0,
            written_since: 0,
        }
    }

    /// Lets the slab allocate from its present blocks for a while, without a search for a better block.
    fn defer_block_search(&mut self) {
        let objects = self.in_use.iter().map(|block| block.shape.objects).max();
        let part = objects.unwrap_or(0) / CONTENT_FOR;
        self.content_for = part.max(CONTENT_FOR_AT_LEAST);
    }
}

/// The reason for which a slab should get another block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlabShortage {
    /// Half of the free objects of a block are used up.
    Half,
    /// An object should have been allocated beside this subtable, and was allocated elsewhere.
    Beside(u32),
}

/// All slabs of one session.
#[derive(Debug)]
pub struct Slabs {
    owner: ClientId,
    slabs: Vec<Slab>,
    /// The session's blocks that are not in use, of all slabs.
    aside: Vec<Block>,
    /// The number of blocks that the session has got so far.
    born: u64,
}

impl Slabs {
    /// Returns slabs without blocks.
    pub fn new(owner: ClientId) -> Slabs {
        Slabs { owner, slabs: Vec::new(), aside: Vec::new(), born: 0 }
    }

    fn slab(&mut self, kind: SlabKind) -> &mut Slab {
        let number = self.slab_number(kind);
        &mut self.slabs[number]
    }

    /// Returns the number of the slab of a kind. A slab's number never changes.
    fn slab_number(&mut self, kind: SlabKind) -> usize {
        let found = self.slabs.iter().position(|s| s.kind == kind);
        found.unwrap_or_else(|| {
            self.slabs.push(Slab::new(kind));
            self.slabs.len() - 1
        })
    }

    /// Returns whether the caller has to ask for a block of this kind, until it calls [`Slabs::end_ask`]. Other
    /// operations that need such a block wait until `end_ask` is called. Otherwise every operation that finds the slab
    /// empty would get a block of its own.
    pub fn begin_ask(&mut self, kind: SlabKind) -> bool {
        !core::mem::replace(&mut self.slab(kind).asking, true)
    }

    /// Ends a request for a block, whether or not a block has come. From here on, the blocks that were evacuated for
    /// the slab can be used again.
    pub fn end_ask(&mut self, kind: SlabKind) {
        self.slab(kind).asking = false;
        let is_one = |block: &&mut Block| block.evacuated_for == Some(kind);
        self.aside.iter_mut().filter(is_one).for_each(|block| block.evacuated_for = None);
    }

    /// Adds a block that was granted when a slab asked for one of this kind. Returns whether a block as the grant
    /// describes it can exist.
    pub fn add_block(&mut self, kind: SlabKind, grant: BlockGrant) -> bool {
        let shape = BlockShape::new(grant.bytes, grant.class);
        let shape = shape.filter(|shape| grant.first <= shape.objects);
        let Some(shape) = shape else { return false };
        debug_assert!(self.find(grant.address).is_none(), "the block is the session's already");
        let mut block = Block::new(&grant, shape, grant.kind() != kind);
        self.born += 1;
        block.born = self.born;
        self.aside.push(block);
        let of_kind = |block: &&mut Block| block.kind == kind;
        let largest = self.blocks().filter(of_kind).map(|block| block.bytes).max().unwrap_or(0);
        let is_small = |block: &&mut Block| block.bytes < largest / OUTGROWN;
        let small = self.blocks().filter(of_kind).filter(is_small);
        small.for_each(|block| block.outgrown = true);
        true
    }

    /// Allocates the next object of a kind, from a block that is not frozen. A block that is not in use yet has to have
    /// at least one free object in `least`. `None` if there is no such block. `best` names a subtable, and prefers
    /// blocks for which its function returns true, because they lie beside that subtable.
    #[inline]
    pub fn allocate(
        &mut self,
        kind: SlabKind,
        least: u32,
        is_frozen: impl Fn(Address) -> bool,
        best: Option<(u32, impl Fn(Address) -> bool)>,
    ) -> Option<Allocation> {
        let owner = self.owner;
        let number = self.slab_number(kind);
        let slab = &mut self.slabs[number];
        slab.content_for = slab.content_for.saturating_sub(1);
        let is_best = |b: &Block| best.as_ref().is_none_or(|(_, is_best)| is_best(b.address));
        let gives = |b: &Block| b.has_room() && !is_frozen(b.address);
        let mut at = slab.in_use.iter().position(|b| gives(b) && is_best(b));
        if at.is_none()
            && let Some((subtable, _)) = &best
        {
            if slab.content_for == 0 && !slab.looking {
                slab.lacks_beside = Some(*subtable);
            }
            at = slab.in_use.iter().position(gives);
        }
        let at = at
            .or_else(|| self.take_into_use(kind, least, &is_frozen, is_best))
            .or_else(|| self.take_into_use(kind, least, &is_frozen, |_| true));
        let at = at?;
        let slab = &mut self.slabs[number];
        slab.written += kind.class.bytes();
        let block = &mut slab.in_use[at];
        let index = match block.reusable.take() {
            Some(index) => index,
            None => {
                block.fresh += 1;
                block.generations.push();
                block.fresh - 1
            }
        };
        let (generation, wraps) = block.generations.next(index);
        if wraps {
            block.header.make_uncertain();
        }
        block.in_flight.begin();
        slab.is_half_used |= block.free_objects() == block.half;
        let header = (!block.header.is_in_use()).then(|| {
            // From here on, the operation that posts the header can be dropped or fail at any time, and leave the
            // header on some replicas only.
            block.header.make_uncertain();
            (block.address, block.header_in_use(owner))
        });
        Some(Allocation { address: block.object(index), kind, generation, header })
    }

    /// Takes a block into use: the one with most free objects, of the blocks not in use for which `is_best` holds.
    /// Returns the block's number among the blocks in use; `None` if there is no such block, or too many blocks are in
    /// use. Sets those blocks in use aside from which no object can be allocated.
    #[cold]
    fn take_into_use(
        &mut self,
        kind: SlabKind,
        least: u32,
        is_frozen: impl Fn(Address) -> bool,
        is_best: impl Fn(&Block) -> bool,
    ) -> Option<usize> {
        let usable = |b: &Block| b.suits(kind, least) && !is_frozen(b.address) && is_best(b);
        let usable = self.aside.iter().enumerate().filter(|(_, b)| usable(b));
        let (best, _) = usable.max_by_key(|(_, b)| b.free_objects())?;
        let slab = self.slabs.iter_mut().find(|slab| slab.kind == kind)?;
        let gives = |b: &Block| b.has_room() && !is_frozen(b.address);
        if slab.in_use.iter().filter(|b| gives(b)).count() == IN_USE_TOGETHER {
            return None;
        }
        let mut next = self.aside.swap_remove(best);
        next.use_from_here();
        next.demoted = 0;
        self.aside.extend(slab.in_use.extract_if(.., |b| !gives(b)));
        slab.in_use.push(next);
        Some(slab.in_use.len() - 1)
    }

    /// Returns whether the caller has to search for a better block than those in use, until it calls
    /// [`Slabs::end_look`]. If so, sets aside the blocks from which no object can be allocated and, if
    /// [`IN_USE_TOGETHER`] blocks remain in use, the oldest one: views change, so a block that was best once is
    /// possibly not best any more.
    pub(crate) fn begin_look(&mut self, kind: SlabKind) -> bool {
        if core::mem::replace(&mut self.slab(kind).looking, true) {
            return false;
        }
        let slab = self.slabs.iter_mut().find(|slab| slab.kind == kind).expect("it is there");
        self.aside.extend(slab.in_use.extract_if(.., |b| !b.has_room()));
        if slab.in_use.len() == IN_USE_TOGETHER {
            slab.defer_block_search();
            self.aside.push(slab.in_use.remove(0));
        }
        true
    }

    /// Ends the search for a better block. If none was found, the next search begins only after a while.
    pub(crate) fn end_look(&mut self, kind: SlabKind, found: bool) {
        let slab = self.slab(kind);
        slab.looking = false;
        if !found {
            slab.defer_block_search();
        }
    }

    /// Takes a block for which `is_best` holds into use, unless such a block is in use. Returns whether such a block is
    /// in use now.
    pub(crate) fn use_best(
        &mut self,
        kind: SlabKind,
        least: u32,
        is_frozen: impl Fn(Address) -> bool,
        is_best: impl Fn(Address) -> bool,
    ) -> bool {
        let gives = |b: &Block| b.has_room() && !is_frozen(b.address) && is_best(b.address);
        self.slab(kind).in_use.iter().any(gives)
            || self.take_into_use(kind, least, &is_frozen, |b| is_best(b.address)).is_some()
    }

    /// Returns a shortage that the slab has had since the last call. Each call returns one shortage.
    #[inline]
    pub(crate) fn take_shortage(&mut self, kind: SlabKind) -> Option<SlabShortage> {
        let slab = self.slabs.iter_mut().find(|slab| slab.kind == kind)?;
        if let Some(subtable) = slab.lacks_beside.take() {
            return Some(SlabShortage::Beside(subtable));
        }
        core::mem::take(&mut slab.is_half_used).then_some(SlabShortage::Half)
    }

    /// Lends blocks when memory is short: one block of each slab stays in use, without a search for a better one for a
    /// while. Other sessions can get the other blocks, with the free objects in them.
    pub(crate) fn use_one(&mut self) {
        for slab in self.slabs.iter_mut().filter(|slab| slab.in_use.len() > 1) {
            slab.defer_block_search();
            let kept = slab.in_use.iter().position(Block::has_room).unwrap_or(0);
            slab.in_use.swap(0, kept);
            for mut block in slab.in_use.drain(1..) {
                block.lent = block.has_room();
                self.aside.push(block);
            }
        }
    }

    #[inline]
    fn block_of(&mut self, object: &Allocation) -> Option<&mut Block> {
        let holds = |b: &Block| b.holds(object.address);
        let slab = self.slabs.iter_mut().find(|s| s.kind == object.kind);
        match slab.and_then(|slab| slab.in_use.iter_mut().find(|b| holds(b))) {
            Some(block) => Some(block),
            None => self.aside.iter_mut().find(|b| holds(b)),
        }
    }

    /// Begins to move an object of the session in place. From now on an operation is under way in the object's block,
    /// which recovery therefore walks. Returns the object at another turn of `word`, with the header that the block
    /// needs for that. `None` if another session owns the block, or the object cannot be moved now.
    pub(crate) fn begin_move(&mut self, word: Slot, turn: u16) -> Option<Allocation> {
        let owner = self.owner;
        let address = word.address();
        let block = self.blocks().find(|block| block.holds(address))?;
        if !block.open_for(address) {
            return None;
        }
        let header = block.header_to_write(owner);
        let kind = block.kind;
        let generation = word.at_turn(turn).generation();
        Some(Allocation { address, kind, generation, header })
    }

    /// Whether the block of an object has been offered to other sessions and has not been taken back yet.
    pub(crate) fn is_offered(&self, address: Address) -> bool {
        self.aside.iter().any(|block| block.offered && block.holds(address))
    }

    /// Returns the next object to examine for demotion in place, with its slab. It comes from the oldest block that is
    /// not in use and contains objects that were not examined since the block was in use. Updates write new objects, so
    /// objects that are left in an old block are cold.
    pub(crate) fn next_to_demote(
        &mut self,
        is_frozen: impl Fn(Address) -> bool,
    ) -> Option<(Address, SlabKind)> {
        loop {
            let is_due = |b: &&mut Block| b.may_demote() && !is_frozen(b.address);
            let oldest = self.aside.iter_mut().filter(is_due).min_by_key(|b| b.born)?;
            let kind = oldest.kind;
            if let Some(object) = oldest.next_to_demote() {
                return Some((object, kind));
            }
        }
    }

    /// Records that the header that came with an object has been written on all replicas.
    pub fn header_written(&mut self, object: &Allocation) {
        let Some((_, header)) = object.header else { return };
        let says = |b: &&mut Block| {
            (b.header.in_use_from(), b.generations.base()) == (header.first, header.base)
        };
        if let Some(block) = self.block_of(object).filter(says) {
            block.header.note_in_use();
        }
    }

    /// Records that an object's Move in place has ended.
    pub(crate) fn end_move(&mut self, object: &Allocation) {
        if let Some(block) = self.block_of(object) {
            block.end_move(object.address);
        }
    }

    /// Records that the operation for which an object was allocated posts no more verbs about the object, and that none
    /// of its posted verbs can still execute.
    #[inline]
    pub fn end(&mut self, object: &Allocation) {
        if let Some(block) = self.block_of(object) {
            block.in_flight.end();
        }
    }

    /// Records, like [`Slabs::end`], that an operation has ended its use of an object. Gives the object back for reuse,
    /// because no CAS has named it. The object becomes free in a later epoch, because otherwise it could go through all
    /// generations in one epoch. Also frees objects that were given back in earlier epochs. Marks are those of
    /// [`Epochs`](crate::host::Epochs).
    pub fn give_back(
        &mut self,
        object: &Allocation,
        has_passed: impl Fn(u64) -> bool,
        mark: impl Fn() -> u64,
    ) {
        if let Some(block) = self.block_of(object) {
            block.in_flight.end();
            let offset = object.address.bytes() - block.address.bytes();
            let index = block.shape.object_at(offset).expect("it was allocated here");
            if removed(Mutant::GivenBackAtOnce) {
                block.reusable.give_back_at_once(index)
            } else {
                block.reusable.give_back(index);
                block.reusable.take_returned(has_passed, mark);
            }
        }
    }

    /// Returns the session's blocks that are not in use.
    pub(crate) fn aside(&self) -> &[Block] {
        &self.aside
    }

    /// Returns a block that is not in use, by its address.
    pub(crate) fn aside_at(&mut self, block: Address) -> Option<&mut Block> {
        self.aside.iter_mut().find(|b| b.address == block)
    }

    /// Returns all blocks of the session, in use or not.
    pub(crate) fn blocks(&mut self) -> impl Iterator<Item = &mut Block> {
        self.slabs.iter_mut().flat_map(|slab| &mut slab.in_use).chain(&mut self.aside)
    }

    /// Returns the number of bytes of all blocks of a kind.
    pub(crate) fn bytes_of(&self, kind: SlabKind) -> u64 {
        let in_use = self.slabs.iter().flat_map(|slab| &slab.in_use);
        in_use.chain(&self.aside).filter(|block| block.kind == kind).map(|block| block.bytes).sum()
    }

    /// Whether a slab should get a larger block although its own blocks are soon free again: it has recently written
    /// its memory full several times. A block costs as much to collect whatever its size, so the memory of a slab grows
    /// with the rate at which it writes, until it has `largest` bytes. The next call begins to count anew.
    pub(crate) fn should_grow(&mut self, kind: SlabKind, largest: u64, epoch: u64) -> bool {
        let bytes = self.bytes_of(kind);
        let slab = self.slab(kind);
        let is_recent = epoch <= slab.written_since + RECENT_EPOCHS;
        let is_fast = slab.written >= GROWS_AFTER * bytes;
        if !is_recent || is_fast {
            (slab.written, slab.written_since) = (0, epoch);
        }
        is_recent && is_fast && bytes < largest
    }

    /// Returns a block by its address, in use or not.
    pub(crate) fn find(&mut self, block: Address) -> Option<&mut Block> {
        self.blocks().find(|b| b.address == block)
    }

    /// Whether [`Slabs::allocate`] can return an object, from a block in use or not.
    pub(crate) fn has_room(
        &self,
        kind: SlabKind,
        least: u32,
        is_frozen: impl Fn(Address) -> bool,
    ) -> bool {
        let mut in_use = self.slabs.iter().filter(|s| s.kind == kind).flat_map(|s| &s.in_use);
        in_use.any(|b| b.has_room() && !is_frozen(b.address))
            || self.aside.iter().any(|b| b.suits(kind, least) && !is_frozen(b.address))
    }

    /// Marks the free bitmaps of all blocks that are not in use as unverified. Returns whether any of these blocks was
    /// verified.
    pub(crate) fn unverify_all(&mut self) -> bool {
        let trusted = |b: &&mut Block| b.bitmap.is_verified() && b.scrubbed.is_none();
        let unverify = |block: &mut Block| block.bitmap.unverify();
        self.aside.iter_mut().filter(trusted).map(unverify).count() > 0
    }

    /// Takes all blocks of the session out of use.
    pub(crate) fn set_aside(&mut self) {
        self.slabs.iter_mut().for_each(|slab| self.aside.append(&mut slab.in_use));
    }

    /// Takes the blocks of one slab out of use from which no object can be allocated.
    pub(crate) fn set_full_aside(&mut self, kind: SlabKind) {
        let Some(slab) = self.slabs.iter_mut().find(|slab| slab.kind == kind) else { return };
        self.aside.extend(slab.in_use.extract_if(.., |block| !block.has_room()));
    }

    /// Ends the writing of a `held` block's header that says that the block is sealed. If `is_sure`, the header says
    /// *sealed* on all replicas; otherwise it possibly says so on some replicas.
    pub(crate) fn end_seal(&mut self, block: Address, is_sure: bool) {
        if let Some(block) = self.aside_at(block) {
            block.held = false;
            if is_sure {
                block.header.note_sealed();
            } else {
                block.header.make_uncertain();
            }
        }
    }

    /// Removes a block that goes back to the pool, and returns what is returned.
    pub(crate) fn remove(&mut self, block: Address) -> Option<ReturnedBlock> {
        let at = self.aside.iter().position(|b| b.address == block)?;
        let Block { address, bytes, generations, .. } = self.aside.swap_remove(at);
        Some(ReturnedBlock { address, bytes, base: generations.base().generation })
    }

    /// Removes the blocks whose regions are lost.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(Address) -> bool) {
        self.aside.retain(|block| !is_gone(block.address));
        for slab in &mut self.slabs {
            slab.in_use.retain(|block| !is_gone(block.address));
        }
    }

    /// Offers blocks that are not in use to other sessions, until they are taken back. Of a kind of which this session
    /// is short itself, offers only blocks that are worth using again, except the best one. An operation that waits for
    /// the best block needs no other. Blocks of this kind that are not worth using again stay with the session, because
    /// more of their objects can become free. In the list, blocks that need no comparison come first, those with most
    /// objects known to be free before the others, because other sessions can use them at once. Of the blocks of which
    /// nothing is known, those that were not looked at for the longest time come first, because more objects are
    /// possibly free there. Returns separately the blocks that are of no use to this session.
    pub(crate) fn offer(&mut self) -> (Vec<BlockRemainder>, Vec<BlockRemainder>) {
        let mut spare = Vec::new();
        let mut surplus = Vec::new();
        let short = self.slabs.iter().filter(|slab| slab.asking).map(|slab| slab.kind);
        let best = |kind| {
            let of_kind = self.aside.iter().filter(|block| block.kind == kind);
            of_kind.max_by_key(|block| block.prospect()).map(|block| block.address)
        };
        let short: Vec<(SlabKind, Option<Address>)> = short.map(|c| (c, best(c))).collect();
        let is_short = !short.is_empty();
        let any_is_asked = is_short || self.aside.iter().any(Block::is_surplus);
        let evacuable = if any_is_asked { self.evacuable() } else { Vec::new() };
        for block in &mut self.aside {
            let can_leave = evacuable.contains(&block.address);
            let is_kept = |(kind, best): &(SlabKind, Option<Address>)| {
                let is_best = *best == Some(block.address);
                *kind == block.kind && (is_best || !block.is_worth_reclaiming(*kind, USED_AGAIN_AT))
            };
            let is_kept = short.iter().any(is_kept) || is_short && can_leave;
            let rest = if is_kept { None } else { block.spare() };
            block.offered = rest.is_some();
            match rest {
                Some(rest) if block.is_surplus() && !can_leave => surplus.push(rest),
                Some(rest) => {
                    spare.push((rest, Reverse(block.prospect()), block.bitmap.last_look()))
                }
                None => {}
            }
        }
        spare.sort_by_key(|(rest, free, looked)| (rest.marked.is_none(), *free, *looked));
        (spare.into_iter().map(|(rest, ..)| rest).collect(), surplus)
    }

    /// Whether a block that is not offered is about to become free, for other sessions as well.
    pub(crate) fn frees_soon(&self) -> bool {
        let is_compared =
            |b: &Block| matches!(b.bitmap.verification(), Verification::Compared { .. });
        let comes = |b: &Block| b.scrubbed.is_some() && b.generations.base().not_before == 0;
        let frees_soon = |b: &Block| {
            let is_emptied = b.evacuated_for.is_some() || b.is_free() && b.scrubbed.is_none();
            comes(b) || is_compared(b) || is_emptied
        };
        self.aside.iter().any(|block| !block.offered && frees_soon(block))
    }

    /// Takes the whole offer back, and removes the blocks that other sessions have got. Returns the number of free
    /// objects in the removed blocks whose free bits are not set; the new owners find these objects by comparison.
    pub(crate) fn take_back(&mut self, gone: &[Address]) -> u64 {
        let gone = self.aside.extract_if(.., |block| gone.contains(&block.address));
        let unmarked = gone.map(|block| block.not_set_free().count() as u64).sum();
        self.aside.iter_mut().for_each(|block| block.offered = false);
        unmarked
    }

    /// Removes all blocks, because this session stops using them. Returns their remainders.
    pub fn take_remainders(&mut self) -> Vec<BlockRemainder> {
        self.set_aside();
        core::mem::take(&mut self.aside).iter().map(Block::remainder).collect()
    }

    /// Returns, for a block that is not in use, the header which says that the block is sealed, and from which object
    /// on no object was ever allocated.
    pub(crate) fn sealed(&self, block: Address) -> Option<BlockHeader> {
        let block = self.aside.iter().find(|b| b.address == block)?;
        let (Block { kind, fresh, .. }, base) = (block, block.generations.base());
        let class = kind.class;
        let fresh = *fresh;
        let owner = self.owner;
        let first = fresh;
        Some(BlockHeader { class, owner, first, fresh, sealed: true, base })
    }
}

#[cfg(test)]
mod tests;
