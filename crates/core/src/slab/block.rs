//! A block of a session: what comes with it, what is free in it, and what is left of it for others.
//!
//! It says what may be done with it. When that is done, and to which of its blocks, is the slabs' business.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::generations::{Generations, Headers};
use crate::data::Redundancy;
use crate::layout::{Address, BlockHeader, BlockShape, Identity, SizeClass, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;

/// What a slab is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabKind {
    /// The size of its objects, on each of their places.
    pub class: SizeClass,
    /// How its objects survive failures: its blocks are of regions for them.
    pub redundancy: Redundancy,
}

impl SlabKind {
    /// Where pairs of these lengths go; `None` over 15 MiB.
    #[inline]
    pub fn of(redundancy: Redundancy, key_bytes: usize, value_bytes: usize) -> Option<SlabKind> {
        let class = redundancy.class(key_bytes, value_bytes)?;
        Some(SlabKind { redundancy, class })
    }

    /// So many words lead to one of its objects, one after the other.
    pub(crate) fn turns(self) -> u16 {
        if matches!(self.redundancy, Redundancy::Oriented(_)) { Slot::TURNS } else { 1 }
    }

    /// The slab of the log objects of DELETEs.
    pub fn of_logs(key_bytes: usize) -> Option<SlabKind> {
        SlabKind::of(Redundancy::Replicated, key_bytes, 0)
    }
}

/// A block that this client may allocate objects from. Its block table entries name the client
/// on all replicas of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// Its first byte, which is where its header goes.
    pub address: Address,
    /// That of its region.
    pub redundancy: Redundancy,
    /// The class of its objects. Another one than was asked for if nothing else was left: all of it
    /// may turn out to be free, so that it can go back to the pool.
    pub class: SizeClass,
    /// The first object never allocated; more than 0 in a block that another client left.
    pub first: u32,
    /// See [`Remainder::marked`].
    pub marked: Option<u64>,
    /// Whether the pool had no block any more, and this is one of those that others left.
    pub pool_is_empty: bool,
}

impl BlockGrant {
    pub(super) fn kind(&self) -> SlabKind {
        SlabKind { redundancy: self.redundancy, class: self.class }
    }
}

/// What is left of a block whose owner has done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remainder {
    /// The block's address.
    pub block: Address,
    /// The class of its objects.
    pub class: SizeClass,
    /// From this object on none was ever allocated; the number of its objects if all were.
    pub first: u32,
    /// With the view since which its free bitmap is where it is, if that tells which of the others
    /// are free ([`Region::primary_since`](crate::data::Region::primary_since)). If not, or if the bitmap is
    /// elsewhere since, only a look at the whole index does.
    pub marked: Option<u64>,
}

/// Bits of a free bitmap that were seen set. They stay set until the block is needed: somebody else
/// who gets it meanwhile finds them too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The bitmap: that of the place that leads the region since this view
    /// ([`Region::primary_since`](crate::data::Region::primary_since)).
    pub primary_since: u64,
    /// When they had been seen ([`Epochs::mark`](crate::host::Epochs::mark)).
    pub mark: u64,
    /// Number and bits of every word that is not zero.
    pub words: Vec<(u32, u64)>,
    /// The objects that they stand for.
    pub objects: u32,
}

/// Why the free bitmap of a block does not tell all that is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// It does.
    Verified,
    /// To be compared with the index.
    Due,
    /// At this mark the objects had been found that no slot keeps.
    Compared { mark: u64, garbage: Vec<u32> },
}

/// A block of the session.
#[derive(Debug)]
pub(crate) struct Block {
    pub address: Address,
    pub kind: SlabKind,
    pub shape: BlockShape,
    /// Objects to hand out, the next one first: in turn, so that all get as many lives.
    pub(super) free: VecDeque<u32>,
    /// Objects that were given back, and may be known by now to those who read what was there before.
    pub(super) returned: Vec<u32>,
    /// The same, of which that is over when all operations have ended that began before this mark.
    waiting: Option<(u64, Vec<u32>)>,
    /// From here on no object was ever allocated.
    pub(super) fresh: u32,
    pub(super) generations: Generations,
    /// Objects that were handed out for operations that have not ended.
    pub(super) in_flight: u32,
    /// Objects that are being moved in place; they count there as well.
    moving: Vec<u32>,
    /// Whether the header says on all replicas that the block is sealed; `None` if that is not
    /// certain.
    pub(super) written: Option<bool>,
    /// The first object that may have been allocated since the block is in use.
    pub(super) in_use_from: u32,
    /// What `fresh` was then. All headers of one use are the same: operations post them side by side.
    pub(super) was_fresh: u32,
    /// When so many objects are left, half of what there was is used up.
    pub(super) half: u32,
    pub seen: Option<Seen>,
    /// The look at the bitmap that was the last, counted over all blocks.
    pub looked: u64,
    /// As in [`Seen`], of that look, or of when the block was granted.
    pub primary_since: u64,
    /// If there is one, nothing is `seen`.
    pub(super) verification: Verification,
    /// Its header or its bitmap is being changed. It must not be taken into use meanwhile: two
    /// headers under way could overtake each other.
    pub held: bool,
    /// It may be handed on to somebody else at any time.
    pub(super) offered: bool,
    /// It is in use, but for the time between two operations: others may have it then, if they have none.
    pub(super) lent: bool,
    /// It came because another class was short, in case it was wholly free.
    is_foreign: bool,
    /// It is being emptied, or since when it is all zeros.
    pub scrubbed: Option<Scrub>,
    /// Counts the blocks that came to the session: the oldest has the smallest.
    pub(super) born: u64,
    /// Its objects before this one have been looked at, to be demoted, since it was in use last.
    pub(super) demoted: u32,
}

/// How far a block is on its way back to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scrub {
    /// Zeros are being written.
    Begun,
    /// It was zeros on all replicas at this mark.
    Done(u64),
}

impl Block {
    pub(super) fn new(grant: &BlockGrant, shape: BlockShape, is_foreign: bool) -> Block {
        Block {
            address: grant.address,
            kind: grant.kind(),
            shape,
            free: VecDeque::new(),
            returned: Vec::new(),
            waiting: None,
            fresh: grant.first,
            generations: Generations::unread(grant.first, grant.kind().turns()),
            in_flight: 0,
            moving: Vec::new(),
            written: None,
            in_use_from: u32::MAX,
            was_fresh: grant.first,
            half: 0,
            seen: None,
            looked: 0,
            primary_since: grant.marked.unwrap_or(0),
            verification: if grant.marked.is_some() {
                Verification::Verified
            } else {
                Verification::Due
            },
            held: false,
            offered: false,
            lent: false,
            is_foreign,
            scrubbed: None,
            born: 0,
            demoted: 0,
        }
    }

    pub(super) fn object(&self, index: u32) -> Address {
        Address::new(self.address.bytes() + self.shape.offset(index))
    }

    /// Objects that can be handed out.
    pub fn free_objects(&self) -> u32 {
        self.free.len() as u32 + (self.shape.objects - self.fresh)
    }

    pub fn has_room(&self) -> bool {
        let is_ours = !self.held && !self.offered;
        let is_usable = self.scrubbed.is_none() && self.generations.is_known();
        self.free_objects() > 0 && is_usable && is_ours
    }

    /// Objects that were given back and cannot be handed out yet.
    pub fn returned_objects(&self) -> u32 {
        let waiting = self.waiting.as_ref().map_or(0, |(_, objects)| objects.len());
        (self.returned.len() + waiting) as u32
    }

    /// Lets objects be handed out that were given back before a mark that has passed. Those that came
    /// since wait for another mark.
    pub fn take_returned(&mut self, has_passed: impl Fn(u64) -> bool, mark: impl Fn() -> u64) {
        if self.waiting.as_ref().is_some_and(|(since, _)| has_passed(*since)) {
            let (_, objects) = self.waiting.take().expect("some are waiting");
            self.free.extend(objects);
        }
        if self.waiting.is_none() && !self.returned.is_empty() {
            self.waiting = Some((mark(), core::mem::take(&mut self.returned)));
        }
    }

    /// Whether a class may take it into use, if one in `least` objects has to be free.
    pub fn suits(&self, kind: SlabKind, least: u32) -> bool {
        let free = u64::from(self.free_objects()) * u64::from(least);
        let is_enough = self.lent || free >= u64::from(self.shape.objects);
        self.kind == kind && self.has_room() && is_enough
    }

    /// Objects that can be handed out once what was seen is reclaimed, and what was given back has
    /// waited.
    pub fn prospect(&self) -> u32 {
        let seen = self.seen.as_ref().map_or(0, |seen| seen.objects);
        self.free_objects() + self.returned_objects() + seen
    }

    /// Whether not one object of it is in use, with what is to be reclaimed.
    pub fn is_free(&self) -> bool {
        self.prospect() == self.shape.objects && self.is_quiet()
    }

    /// Whether its objects are to be reclaimed for a class that needs some, if one in `least` has to be
    /// free.
    pub fn is_worth_reclaiming(&self, kind: SlabKind, least: u32) -> bool {
        let free = u64::from(self.prospect()) * u64::from(least);
        let is_ours = !self.held && self.scrubbed.is_none();
        let is_usable = is_ours && self.generations.is_known();
        self.kind == kind && is_usable && free >= u64::from(self.shape.objects)
    }

    /// Whether it can be emptied, to go back to the pool.
    pub fn may_scrub(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        self.is_free() && self.seen.is_none() && is_ours
    }

    pub fn verification(&self) -> &Verification {
        &self.verification
    }

    /// The free bitmap is not trusted any more, or the comparison with the index is so far.
    pub fn unverify(&mut self, verification: Verification) {
        (self.verification, self.seen) = (verification, None);
    }

    /// The free bitmap tells all that is free, except what was freed since `seen`.
    pub fn verify(&mut self, seen: Option<Seen>) {
        (self.verification, self.seen) = (Verification::Verified, seen);
    }

    /// The objects that set bits stand for, as far as they were allocated, and the bits of these.
    pub fn marked(&self, words: &[(u32, u64)]) -> (Vec<u32>, Vec<(u32, u64)>) {
        let taken = self.taken();
        let mut objects = Vec::new();
        let mut marked = Vec::new();
        for (word, bits) in words {
            let mut known = 0;
            let mut left = *bits;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let offset = (u64::from(*word) * 64 + u64::from(bit)) * UNIT_BYTES;
                // Anything else is none of ours.
                if let Some(object) = self.shape.object_at(offset)
                    && taken[object as usize]
                {
                    objects.push(object);
                    known |= 1 << bit;
                }
            }
            if known != 0 {
                marked.push((*word, known));
            }
        }
        (objects, marked)
    }

    /// The header that says that the block is in use.
    pub(super) fn header_in_use(&self, owner: ClientId) -> BlockHeader {
        let class = self.kind.class;
        let base = self.generations.base();
        let first = self.in_use_from;
        let fresh = self.was_fresh;
        BlockHeader { class, owner, first, fresh, sealed: false, base }
    }

    /// One of its objects is to be moved in place, which makes it one in which an operation is under way. Returns the
    /// header that has to say so first, if none does; `None` if that cannot be now.
    pub(super) fn open_for(
        &mut self,
        object: Address,
        owner: ClientId,
    ) -> Option<Option<(Address, BlockHeader)>> {
        let index = self.shape.object_at(object.bytes() - self.address.bytes())?;
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        if !is_ours || !self.generations.is_known() || self.moving.contains(&index) {
            return None;
        }
        let is_walked = self.written == Some(false) && self.in_use_from <= index;
        if !is_walked && !removed(Mutant::RestingBlockNotWalked) {
            // Of two headers under way the earlier one could come last.
            if !self.is_quiet() {
                return None;
            }
            (self.in_use_from, self.was_fresh, self.written) = (0, self.fresh, None);
        }
        self.in_flight += 1;
        self.moving.push(index);
        Some(self.written.is_none().then(|| (self.address, self.header_in_use(owner))))
    }

    /// Whether an object lies in it.
    pub(super) fn holds(&self, object: Address, block_bytes: u64) -> bool {
        let bytes = object.bytes().checked_sub(self.address.bytes());
        bytes.is_some_and(|bytes| bytes < block_bytes)
    }

    /// Whether it has EC-oriented objects that nobody has looked at to demote them, and that can be now.
    pub(super) fn may_demote(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        let is_due = self.kind.turns() > 1 && self.demoted < self.fresh;
        is_due && is_ours && self.generations.is_known()
    }

    /// The next of these that may be in use, if there is one. All up to it have been looked at then.
    pub(super) fn next_to_demote(&mut self) -> Option<Address> {
        let taken = self.taken();
        let next = (self.demoted..self.fresh).find(|object| taken[*object as usize]);
        self.demoted = next.map_or(self.fresh, |object| object + 1);
        next.map(|object| self.object(object))
    }

    /// The Move in place of an object has come to its end.
    pub(super) fn end_move(&mut self, object: Address) {
        let index = self.shape.object_at(object.bytes() - self.address.bytes());
        if let Some(at) = self.moving.iter().position(|moving| Some(*moving) == index) {
            self.moving.swap_remove(at);
            self.in_flight -= 1;
        }
    }

    /// Whether no write is under way whose object lies here, and none may begin.
    pub fn is_quiet(&self) -> bool {
        self.in_flight == 0
    }

    /// Whether the header is to be told that the block is sealed. Not before it was read: a header has the
    /// base, which is known from there.
    pub fn may_seal(&self) -> bool {
        let is_known = self.generations.is_known() || removed(Mutant::SealsUnread);
        self.is_quiet() && self.written != Some(true) && self.scrubbed.is_none() && is_known
    }

    /// Whether its header says on all replicas that it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.written == Some(true)
    }

    /// Of every object, whether it was allocated and is not free.
    pub fn taken(&self) -> Vec<bool> {
        let mut taken = vec![false; self.shape.objects as usize];
        taken[..self.fresh as usize].fill(true);
        self.idle().for_each(|object| taken[object as usize] = false);
        taken
    }

    /// Objects that were allocated once, and belong to nothing.
    fn idle(&self) -> impl Iterator<Item = u32> + '_ {
        let waiting = self.waiting.iter().flat_map(|(_, objects)| objects);
        self.free.iter().chain(&self.returned).chain(waiting).copied()
    }

    /// Those of these objects whose header has to be read first.
    pub fn unknown<'o>(&self, objects: &'o [u32]) -> impl Iterator<Item = u32> + use<'o, '_> {
        objects.iter().copied().filter(|object| self.generations.is_unknown(*object))
    }

    /// Whether the block's header is to be read in this epoch, before objects are allocated.
    pub fn is_unread(&self, epoch: u64) -> bool {
        self.generations.is_unread(epoch)
    }

    /// The headers on the block's replicas were read, in this epoch.
    pub fn read(&mut self, headers: &Headers, epoch: u64) {
        self.generations.read(headers, epoch);
    }

    /// Whether it would wait for a whole window on its way back to the pool, and can be used as it is.
    pub fn is_better_kept(&self) -> bool {
        self.generations.is_known() && self.generations.is_apart()
    }

    /// Whether nobody may use it before a later epoch than this: it was emptied without a base.
    pub fn waits_for_its_window(&self, epoch: u64) -> bool {
        self.generations.waits(epoch)
    }

    /// Whether its header was read, whatever it says.
    pub fn is_read(&self) -> bool {
        !self.generations.is_open()
    }

    /// Whether no header tells anything of it.
    pub fn is_lost(&self) -> bool {
        self.is_read() && !self.generations.is_known()
    }

    /// It was to be emptied, and that failed: of its objects some are zeros, some are not.
    pub fn forget(&mut self) {
        (self.free, self.returned, self.waiting) = (VecDeque::new(), Vec::new(), None);
        self.generations.forget();
        self.scrubbed = None;
        self.unverify(Verification::Due);
    }

    /// Begins to empty the block, in this epoch. Its header says that before the first zero is written.
    pub fn begin_scrub(&mut self, epoch: u64) {
        self.generations.end_tenure(epoch);
        (self.scrubbed, self.written) = (Some(Scrub::Begun), None);
    }

    /// It is all zeros at this mark, and its header says that it is sealed.
    pub fn end_scrub(&mut self, mark: u64) {
        (self.scrubbed, self.written) = (Some(Scrub::Done(mark)), Some(true));
    }

    /// The epoch before which nobody may use the block, which is emptied.
    pub fn not_before(&self) -> u64 {
        self.generations.base().not_before
    }

    /// What the headers in the replicas of an object say.
    pub fn learn(&mut self, object: u32, standing: impl Iterator<Item = Option<Identity>>) {
        let at = self.object(object);
        let standing = standing.map(|identity| identity.and_then(|i| i.generation_at(at)));
        self.generations.learn(object, standing);
    }

    /// Objects are free from now on: their bits are cleared, and their generations known.
    pub fn reclaim(&mut self, objects: &[u32]) {
        self.free.extend(objects);
    }

    /// The block is taken into use.
    pub(super) fn use_from_here(&mut self) {
        if !core::mem::take(&mut self.lent) {
            self.half = self.free_objects() / 2;
        }
        self.is_foreign = false;
        let from = self.idle().fold(self.fresh, u32::min);
        if self.written == Some(true) {
            (self.in_use_from, self.was_fresh) = (from, self.fresh);
        }
        // Objects before that have come with a collection, when nothing was under way here.
        if from < self.in_use_from {
            (self.in_use_from, self.was_fresh, self.written) = (from, self.fresh, None);
        }
    }

    /// Since this view the free bitmap is where it is. If it was elsewhere before, bits are missing.
    pub fn follow(&mut self, primary_since: u64) {
        let before = core::mem::replace(&mut self.primary_since, primary_since);
        let is_elsewhere = before != primary_since && !removed(Mutant::AnotherBitmapUnnoticed);
        if is_elsewhere && self.verification == Verification::Verified {
            self.unverify(Verification::Due);
        }
    }

    pub(super) fn remainder(&self) -> Remainder {
        let Block { address, kind: SlabKind { class, .. }, fresh, .. } = *self;
        let marked = (self.verification == Verification::Verified).then_some(self.primary_since);
        Remainder { block: address, class, first: fresh, marked }
    }

    /// What somebody else would get, if nothing is under way about it. What was reclaimed is not set free
    /// any more, and nobody else would find it without a look at the index: such a block, of which there
    /// are few, stays, unless it is lent.
    pub(super) fn spare(&self) -> Option<Remainder> {
        let is_spare = self.is_quiet() && !self.held && self.scrubbed.is_none();
        let is_all_marked = self.free.is_empty() && self.returned_objects() == 0;
        if !is_spare || !(is_all_marked || self.lent) {
            return None;
        }
        let rest = self.remainder();
        Some(Remainder { marked: rest.marked.filter(|_| is_all_marked), ..rest })
    }

    /// Whether nobody here has a use for it: it was looked at, and does not go back to the pool.
    pub(super) fn is_surplus(&self) -> bool {
        let is_known = self.looked > 0 && self.verification == Verification::Verified;
        self.is_foreign && is_known && !self.is_free()
    }

    /// The objects that are free although they were allocated once: what a session that leaves has
    /// to mark again.
    pub fn not_set_free(&self) -> impl Iterator<Item = Address> + '_ {
        self.idle().map(|object| self.object(object))
    }
}
