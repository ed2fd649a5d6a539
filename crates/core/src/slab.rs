//! The client's half of two-level allocation: slabs cut from blocks (P §4.4).
//!
//! Per size class and redundancy ([`SlabKind`]) a session owns blocks and takes their objects. A block goes round:
//!
//! ```text
//! granted --> in use --> aside --> sealed --> its free objects are reclaimed --> in use ...
//!                                          `-> all its objects are free: back to the pool
//! ```
//!
//! * *In use*: objects are allocated from it. Its header says so on all replicas before anybody can
//!   learn of one of them: that is how recovery finds what may be under way. Some blocks of a slab may be in use
//!   together ([`IN_USE_TOGETHER`]), each best for other objects ([`Slabs::allocate`]).
//! * *Aside*: it is used up, or others are in use, or its region is frozen. Writes may still be under way.
//! * *Sealed*: none is, and the header says so. Only from such blocks objects are reclaimed ([`store`]), and
//!   can leave the session.
//!
//! An object that was allocated is free again in one of two ways: no CAS has mentioned it, so it is
//! given back ([`Slabs::give_back`]); or its bit in the block's free bitmap was set. Either way it is
//! allocated again when every operation has ended that had begun before, with the next generation,
//! so that what was there before is never taken for it (`slab/generations.rs`).
//!
//! [`store`]: crate::store

mod block;
mod generations;

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::layout::{Address, BlockHeader, BlockShape, Identity, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;
pub(crate) use block::{Block, Scrub, Seen, Verification};
pub use block::{BlockGrant, Remainder, SlabKind};
pub(crate) use generations::Headers;
pub use generations::WINDOW_EPOCHS;

/// An object to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Where it is.
    pub address: Address,
    /// Its slab.
    pub kind: SlabKind,
    /// The generation for its header and slot.
    pub generation: u16,
    /// The header of its block, with the block's address, until it is known to be written: goes
    /// into the same batch, before the object. So no object of a block can be visible before the
    /// header by which recovery finds it, whichever operation comes first and whichever fails.
    pub header: Option<(Address, BlockHeader)>,
}

impl Allocation {
    /// For its header and slot.
    pub fn identity(&self) -> Identity {
        Identity::new(self.address, self.generation)
    }
}

/// Of so many objects of a block one has to be free for it to be taken into use again, as long as
/// there are other blocks.
pub(crate) const USED_AGAIN_AT: u32 = 8;
/// Blocks of a slab that are in use together, at most.
pub const IN_USE_TOGETHER: usize = 8;
/// A slab that looked for a better block in vain, or is new, does so after this part of a block's objects.
const CONTENT_FOR: u32 = 8;
/// And not before so many objects.
const CONTENT_FOR_AT_LEAST: u32 = 4;

#[derive(Debug)]
struct Slab {
    kind: SlabKind,
    /// The blocks in use.
    in_use: Vec<Block>,
    /// Whether an operation is asking for a block of this class.
    asking: bool,
    /// Whether it is time to look for the next block.
    is_half_used: bool,
    /// The subtable beside which an object would have been best, and was not allocated.
    lacks_beside: Option<u32>,
    /// Objects to allocate before that counts again.
    content_for: u32,
    /// Whether an operation looks for a better block.
    looking: bool,
}

impl Slab {
    fn new(kind: SlabKind, block_bytes: u64) -> Slab {
        let mut slab = Slab {
            kind,
            in_use: Vec::new(),
            asking: false,
            is_half_used: false,
            lacks_beside: None,
            content_for: 0,
            looking: false,
        };
        slab.is_content(block_bytes);
        slab
    }

    /// For a while it takes objects from the blocks that are there.
    fn is_content(&mut self, block_bytes: u64) {
        let shape = BlockShape::new(block_bytes, self.kind.class);
        let part = shape.map_or(0, |shape| shape.objects) / CONTENT_FOR;
        self.content_for = part.max(CONTENT_FOR_AT_LEAST);
    }
}

/// What a slab is short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Half of what a block had to give was used up.
    Half,
    /// An object would have been best beside this subtable, and was allocated elsewhere.
    Beside(u32),
}

/// All slabs of one session.
#[derive(Debug)]
pub struct Slabs {
    owner: ClientId,
    block_bytes: u64,
    slabs: Vec<Slab>,
    /// The blocks that are not in use, of all classes.
    aside: Vec<Block>,
    /// Blocks that came so far.
    born: u64,
}

impl Slabs {
    /// No blocks yet.
    pub fn new(owner: ClientId, block_bytes: u64) -> Slabs {
        Slabs { owner, block_bytes, slabs: Vec::new(), aside: Vec::new(), born: 0 }
    }

    fn slab(&mut self, kind: SlabKind) -> &mut Slab {
        let number = self.slab_number(kind);
        &mut self.slabs[number]
    }

    /// Which of the slabs is that of a kind. It stays so.
    fn slab_number(&mut self, kind: SlabKind) -> usize {
        let found = self.slabs.iter().position(|s| s.kind == kind);
        found.unwrap_or_else(|| {
            self.slabs.push(Slab::new(kind, self.block_bytes));
            self.slabs.len() - 1
        })
    }

    /// Whether the caller is the one to ask for a block of this class; the others wait for it.
    /// Without this, every operation that finds the slab empty would take a block of its own.
    /// Ends with [`Slabs::end_ask`].
    pub fn begin_ask(&mut self, kind: SlabKind) -> bool {
        !core::mem::replace(&mut self.slab(kind).asking, true)
    }

    /// The block has come, or will not come.
    pub fn end_ask(&mut self, kind: SlabKind) {
        self.slab(kind).asking = false;
    }

    /// Adds a block that came for a class. Returns whether there can be such a block.
    pub fn add_block(&mut self, kind: SlabKind, grant: BlockGrant) -> bool {
        let shape = BlockShape::new(self.block_bytes, grant.class);
        let shape = shape.filter(|shape| grant.first <= shape.objects);
        let Some(shape) = shape else { return false };
        debug_assert!(self.find(grant.address).is_none(), "the block is the session's already");
        let mut block = Block::new(&grant, shape, grant.kind() != kind);
        self.born += 1;
        block.born = self.born;
        self.aside.push(block);
        true
    }

    /// Takes the next object of a class, of a block that is not frozen and of which at least one in
    /// `least` objects is free, if it is not in use already; `None` when there is none. `best`: preferably of a block
    /// for which this holds, since it lies beside this subtable.
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
        let block = &mut slab.in_use[at];
        let index = match block.free.pop_front() {
            Some(index) => index,
            None => {
                block.fresh += 1;
                block.generations.push();
                block.fresh - 1
            }
        };
        let (generation, wraps) = block.generations.next(index);
        if wraps {
            block.written = None;
        }
        block.in_flight += 1;
        slab.is_half_used |= block.free_objects() == block.half;
        let header = (block.written != Some(false)).then(|| {
            // Whoever posts it may be dropped, or fail, at any time from now on.
            block.written = None;
            (block.address, block.header_in_use(owner))
        });
        Some(Allocation { address: block.object(index), kind, generation, header })
    }

    /// Takes the block with most free objects into use, of those aside for which `is_best` holds, if there is one, and
    /// room for it; as which of those in use. What is in use and has nothing to give is set aside.
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

    /// Whether the caller is the one to look for a better block than those in use. Those that have nothing to give are
    /// set aside, and the oldest one, if there is no room for another: views change, and what was best once need not be
    /// any more. Ends with [`Slabs::end_look`].
    pub(crate) fn begin_look(&mut self, kind: SlabKind) -> bool {
        if core::mem::replace(&mut self.slab(kind).looking, true) {
            return false;
        }
        let block_bytes = self.block_bytes;
        let slab = self.slabs.iter_mut().find(|slab| slab.kind == kind).expect("it is there");
        self.aside.extend(slab.in_use.extract_if(.., |b| !b.has_room()));
        if slab.in_use.len() == IN_USE_TOGETHER {
            slab.is_content(block_bytes);
            self.aside.push(slab.in_use.remove(0));
        }
        true
    }

    /// It has been found and is in use, or will not come: then there is no look for another one for a while.
    pub(crate) fn end_look(&mut self, kind: SlabKind, found: bool) {
        let block_bytes = self.block_bytes;
        let slab = self.slab(kind);
        slab.looking = false;
        if !found {
            slab.is_content(block_bytes);
        }
    }

    /// Whether a block for which `is_best` holds is in use, or can be from now on.
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

    /// What a slab has been short of since this was asked last; one thing at a time.
    #[inline]
    pub(crate) fn lacks(&mut self, kind: SlabKind) -> Option<Lack> {
        let slab = self.slabs.iter_mut().find(|slab| slab.kind == kind)?;
        if let Some(subtable) = slab.lacks_beside.take() {
            return Some(Lack::Beside(subtable));
        }
        core::mem::take(&mut slab.is_half_used).then_some(Lack::Half)
    }

    /// Memory is short: of each slab only one block stays in use, and for a while that is enough. Others may have the
    /// rest, also what is free in it.
    pub(crate) fn use_one(&mut self) {
        for slab in self.slabs.iter_mut().filter(|slab| slab.in_use.len() > 1) {
            slab.is_content(self.block_bytes);
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
        let holds = |b: &Block| {
            let bytes = object.address.bytes().checked_sub(b.address.bytes());
            bytes.is_some_and(|bytes| bytes < self.block_bytes)
        };
        let slab = self.slabs.iter_mut().find(|s| s.kind == object.kind);
        match slab.and_then(|slab| slab.in_use.iter_mut().find(|b| holds(b))) {
            Some(block) => Some(block),
            None => self.aside.iter_mut().find(|b| holds(b)),
        }
    }

    /// An object of the session is to be moved in place: its block counts as one in which an operation is under way,
    /// and is walked by recovery. The object as it is at another turn of that word; with the header that its block
    /// needs for that. `None` if somebody else owns the block, or it cannot be now.
    pub(crate) fn begin_move(&mut self, word: Slot, turn: u16) -> Option<Allocation> {
        let owner = self.owner;
        let address = word.address();
        let block_bytes = self.block_bytes;
        let block = self.blocks().find(|block| block.holds(address, block_bytes))?;
        let header = block.open_for(address, owner)?;
        let kind = block.kind;
        let generation = word.at_turn(turn).generation();
        Some(Allocation { address, kind, generation, header })
    }

    /// Whether others may have the block of an object, until it is taken back.
    pub(crate) fn is_offered(&self, address: Address) -> bool {
        self.aside.iter().any(|block| block.offered && block.holds(address, self.block_bytes))
    }

    /// The next object that may be demoted in place, with its slab: of the oldest block that is not in use, and has one
    /// that was not looked at since it was. What is updated goes elsewhere, so what stays in an old block is cold.
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

    /// The header that came with an object stands on all replicas.
    pub fn header_written(&mut self, object: &Allocation) {
        let Some((_, header)) = object.header else { return };
        let says =
            |b: &&mut Block| (b.in_use_from, b.generations.base()) == (header.first, header.base);
        if let Some(block) = self.block_of(object).filter(says) {
            block.written = Some(false);
        }
    }

    /// The Move in place of an object has come to its end.
    pub(crate) fn end_move(&mut self, object: &Allocation) {
        if let Some(block) = self.block_of(object) {
            block.end_move(object.address);
        }
    }

    /// The operation that an object was allocated for posts nothing about it any more, and nothing
    /// is on its way.
    #[inline]
    pub fn end(&mut self, object: &Allocation) {
        if let Some(block) = self.block_of(object) {
            block.in_flight -= 1;
        }
    }

    /// As [`Slabs::end`], for an object that no CAS has mentioned. It is free again in a later epoch:
    /// else an object could run through all generations in one. What was given back in earlier ones is
    /// free now; marks are those of [`Epochs`](crate::host::Epochs).
    pub fn give_back(
        &mut self,
        object: &Allocation,
        has_passed: impl Fn(u64) -> bool,
        mark: impl Fn() -> u64,
    ) {
        if let Some(block) = self.block_of(object) {
            block.in_flight -= 1;
            let offset = object.address.bytes() - block.address.bytes();
            let index = block.shape.object_at(offset).expect("it was allocated here");
            if removed(Mutant::GivenBackAtOnce) {
                block.free.push_front(index)
            } else {
                block.returned.push(index);
                block.take_returned(has_passed, mark);
            }
        }
    }

    /// The blocks that are not in use.
    pub(crate) fn aside(&self) -> &[Block] {
        &self.aside
    }

    /// One of them.
    pub(crate) fn aside_at(&mut self, block: Address) -> Option<&mut Block> {
        self.aside.iter_mut().find(|b| b.address == block)
    }

    /// All blocks.
    pub(crate) fn blocks(&mut self) -> impl Iterator<Item = &mut Block> {
        self.slabs.iter_mut().flat_map(|slab| &mut slab.in_use).chain(&mut self.aside)
    }

    /// Any block.
    pub(crate) fn find(&mut self, block: Address) -> Option<&mut Block> {
        self.blocks().find(|b| b.address == block)
    }

    /// Whether [`Slabs::allocate`] has something to give, from a block in use or not.
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

    /// None of the free bitmaps is trusted any more; whether one was.
    pub(crate) fn unverify_all(&mut self) -> bool {
        let trusted =
            |b: &&mut Block| b.verification == Verification::Verified && b.scrubbed.is_none();
        let unverify = |block: &mut Block| block.unverify(Verification::Due);
        self.aside.iter_mut().filter(trusted).map(unverify).count() > 0
    }

    /// No block is in use any more.
    pub(crate) fn set_aside(&mut self) {
        self.slabs.iter_mut().for_each(|slab| self.aside.append(&mut slab.in_use));
    }

    /// Those of a class in which there is no room are not in use any more.
    pub(crate) fn set_full_aside(&mut self, kind: SlabKind) {
        let Some(slab) = self.slabs.iter_mut().find(|slab| slab.kind == kind) else { return };
        self.aside.extend(slab.in_use.extract_if(.., |block| !block.has_room()));
    }

    /// The blocks in use of a class may be offered like those that are not, until this session needs them again.
    pub(crate) fn lend(&mut self, kind: SlabKind) {
        let Some(slab) = self.slabs.iter_mut().find(|slab| slab.kind == kind) else { return };
        for mut block in slab.in_use.extract_if(.., |b| b.has_room()) {
            block.lent = true;
            self.aside.push(block);
        }
    }

    /// The header of a block that is `held` says on all replicas that it is sealed, or may do so.
    pub(crate) fn end_seal(&mut self, block: Address, is_sure: bool) {
        if let Some(block) = self.aside_at(block) {
            block.held = false;
            block.written = is_sure.then_some(true);
        }
    }

    /// A block is not the session's any more.
    pub(crate) fn remove(&mut self, block: Address) {
        self.aside.retain(|b| b.address != block);
    }

    /// These blocks are gone with their regions.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(Address) -> bool) {
        self.aside.retain(|block| !is_gone(block.address));
        for slab in &mut self.slabs {
            slab.in_use.retain(|block| !is_gone(block.address));
        }
    }

    /// What others may have of the blocks that are not in use, until it is taken back. Of a class that is short
    /// here these are the blocks that are worth using again, but for the best one: who waits for that needs no
    /// other meanwhile, and who has nothing keeps what may become free. First those that
    /// need no comparison, and of these where most is known to be free: whoever is short gets something
    /// that is of use at once. Where nothing is known, more may be free by now the longer it was not
    /// looked at. Apart from these, what is of no use here.
    pub(crate) fn offer(&mut self) -> (Vec<Remainder>, Vec<Remainder>) {
        let mut spare = Vec::new();
        let mut surplus = Vec::new();
        let short = self.slabs.iter().filter(|slab| slab.asking).map(|slab| slab.kind);
        let best = |kind| {
            let of_kind = self.aside.iter().filter(|block| block.kind == kind);
            of_kind.max_by_key(|block| block.prospect()).map(|block| block.address)
        };
        let short: Vec<(SlabKind, Option<Address>)> = short.map(|c| (c, best(c))).collect();
        for block in &mut self.aside {
            let is_kept = |(kind, best): &(SlabKind, Option<Address>)| {
                let is_best = *best == Some(block.address);
                *kind == block.kind && (is_best || !block.is_worth_reclaiming(*kind, USED_AGAIN_AT))
            };
            let rest = if short.iter().any(is_kept) { None } else { block.spare() };
            block.offered = rest.is_some();
            match rest {
                Some(rest) if block.is_surplus() => surplus.push(rest),
                Some(rest) => spare.push((rest, Reverse(block.prospect()), block.looked)),
                None => {}
            }
        }
        spare.sort_by_key(|(rest, free, looked)| (rest.marked.is_none(), *free, *looked));
        (spare.into_iter().map(|(rest, ..)| rest).collect(), surplus)
    }

    /// Whether a block is about to become free, for others as well, and is not offered.
    pub(crate) fn frees_soon(&self) -> bool {
        let is_compared = |b: &Block| matches!(b.verification, Verification::Compared { .. });
        let comes = |b: &Block| b.scrubbed.is_some() && b.not_before() == 0;
        let frees_soon =
            |b: &Block| comes(b) || is_compared(b) || b.is_free() && b.scrubbed.is_none();
        self.aside.iter().any(|block| !block.offered && frees_soon(block))
    }

    /// Nothing is offered any more. These blocks are gone. Returns how many of their objects are free and not marked:
    /// whoever has got a block that was lent finds them by comparison.
    pub(crate) fn take_back(&mut self, gone: &[Address]) -> u64 {
        let gone = self.aside.extract_if(.., |block| gone.contains(&block.address));
        let unmarked = gone.map(|block| block.not_set_free().count() as u64).sum();
        self.aside.iter_mut().for_each(|block| block.offered = false);
        unmarked
    }

    /// What is left of all blocks, which this client stops using.
    pub fn take_remainders(&mut self) -> Vec<Remainder> {
        self.set_aside();
        core::mem::take(&mut self.aside).iter().map(Block::remainder).collect()
    }

    /// The header that says that a block which is not in use is sealed, and from where on it is new.
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
