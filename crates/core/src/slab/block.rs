//! A block of a session: its grant, its free objects, and its remainder for other sessions.
//!
//! A block tells which steps are allowed. The slabs decide when a step is done, and to which block.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::generations::{Generations, ReplicaHeaders};
use crate::data::Redundancy;
use crate::layout::{Address, BlockHeader, BlockShape, Identity, SizeClass, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;

/// The kind of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabKind {
    /// The size of its objects, on each of their places.
    pub class: SizeClass,
    /// The redundancy of its objects: its blocks are in regions for it.
    pub redundancy: Redundancy,
}

impl SlabKind {
    /// Returns the kind for pairs of these lengths; `None` over 15 MiB.
    #[inline]
    pub fn of(redundancy: Redundancy, key_bytes: usize, value_bytes: usize) -> Option<SlabKind> {
        let class = redundancy.class(key_bytes, value_bytes)?;
        Some(SlabKind { redundancy, class })
    }

    /// Returns the number of words that lead to one of its objects, one after the other.
    pub(crate) fn turns(self) -> u16 {
        if matches!(self.redundancy, Redundancy::Oriented(_)) { Slot::TURNS } else { 1 }
    }

    /// Returns the kind for log objects of DELETEs.
    pub fn of_logs(key_bytes: usize) -> Option<SlabKind> {
        SlabKind::of(Redundancy::Replicated, key_bytes, 0)
    }
}

/// A block that this client may allocate objects from. Its block table entries name the client
/// on all replicas of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// Its first byte, where its header begins.
    pub address: Address,
    /// The redundancy of its region.
    pub redundancy: Redundancy,
    /// The class of its objects. It is another one than was asked for if no other block was left: all
    /// its objects may turn out to be free, so that it can go back to the pool.
    pub class: SizeClass,
    /// The first object never allocated; more than 0 in a block that another client left.
    pub first: u32,
    /// See [`BlockRemainder::marked`].
    pub marked: Option<u64>,
    /// Whether the pool had no block any more, and other sessions left this one.
    pub pool_is_empty: bool,
}

impl BlockGrant {
    pub(super) fn kind(&self) -> SlabKind {
        SlabKind { redundancy: self.redundancy, class: self.class }
    }
}

/// The remainder of a block that its owner has stopped using.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRemainder {
    /// The block's address.
    pub block: Address,
    /// The class of its objects.
    pub class: SizeClass,
    /// From this object on none was ever allocated; the number of its objects if all were.
    pub first: u32,
    /// The view since which its free bitmap is at its place
    /// ([`Region::primary_since`](crate::data::Region::primary_since)), if the bitmap tells which of the objects
    /// before `first` are free. If `None`, or if the bitmap has moved since, only the whole index tells it.
    pub marked: Option<u64>,
}

/// Bits of a free bitmap that were seen set. They stay set until the block is needed, so that another
/// session that gets it meanwhile finds them, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenFreeBits {
    /// The bitmap: that of the place that leads the region since this view
    /// ([`Region::primary_since`](crate::data::Region::primary_since)).
    pub primary_since: u64,
    /// The mark by which they had been seen ([`Epochs::mark`](crate::host::Epochs::mark)).
    pub mark: u64,
    /// Number and bits of every word that is not zero.
    pub words: Vec<(u32, u64)>,
    /// The objects that they stand for.
    pub objects: u32,
}

/// Whether the free bitmap of a block tells all free objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// It does.
    Verified,
    /// To be compared with the index.
    Due,
    /// The comparison had found, by this mark, the objects that no slot keeps.
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
    /// Objects that were given back, and may be known to operations that read their former contents.
    pub(super) returned: Vec<u32>,
    /// Objects that were given back, and are free when all operations have ended that began before this mark.
    waiting: Option<(u64, Vec<u32>)>,
    /// The first object that was never allocated, and all after it.
    pub(super) fresh: u32,
    pub(super) generations: Generations,
    /// Objects that were handed out for operations that have not ended.
    pub(super) in_flight: u32,
    /// Objects that are being moved in place; they count in `in_flight` as well.
    moving: Vec<u32>,
    /// Whether the header says on all replicas that the block is sealed; `None` if that is not
    /// certain.
    pub(super) written: Option<bool>,
    /// The first object that may have been allocated since the block is in use.
    pub(super) in_use_from: u32,
    /// The value of `fresh` then. All headers of one use are the same: operations post them side by side.
    pub(super) was_fresh: u32,
    /// The number of free objects at which half of them are used up.
    pub(super) half: u32,
    pub seen: Option<SeenFreeBits>,
    /// The number of the last reading of its bitmap, counted over all blocks.
    pub looked: u64,
    /// As in [`SeenFreeBits`], at that reading, or when the block was granted.
    pub primary_since: u64,
    /// If there is one, nothing is `seen`.
    pub(super) verification: Verification,
    /// Its header or its bitmap is being changed. It must not be taken into use meanwhile: two
    /// headers under way could overtake each other.
    pub held: bool,
    /// It may be handed on to another session at any time.
    pub(super) offered: bool,
    /// It is in use except between two operations: then other sessions that have no block may have it.
    pub(super) lent: bool,
    /// It came because another class was short, in case it was wholly free.
    is_foreign: bool,
    /// It is being emptied, or is all zeros since a mark.
    pub scrubbed: Option<BlockZeroing>,
    /// Counts the blocks that came to the session: the oldest has the smallest.
    pub(super) born: u64,
    /// Its objects before this one have been looked at, to be demoted, since it was in use last.
    pub(super) demoted: u32,
}

/// The progress of a block on its way back to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockZeroing {
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

    /// Returns the number of objects that can be handed out.
    pub fn free_objects(&self) -> u32 {
        self.free.len() as u32 + (self.shape.objects - self.fresh)
    }

    pub fn has_room(&self) -> bool {
        let is_ours = !self.held && !self.offered;
        let is_usable = self.scrubbed.is_none() && self.generations.is_known();
        self.free_objects() > 0 && is_usable && is_ours
    }

    /// Returns the number of objects that were given back and cannot be handed out yet.
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

    /// Returns the number of objects that can be handed out once those seen free are reclaimed, and those
    /// given back have waited.
    pub fn prospect(&self) -> u32 {
        let seen = self.seen.as_ref().map_or(0, |seen| seen.objects);
        self.free_objects() + self.returned_objects() + seen
    }

    /// Whether no object of it is in use, once those seen free are reclaimed.
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
    pub fn may_zero(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        self.is_free() && self.seen.is_none() && is_ours
    }

    pub fn verification(&self) -> &Verification {
        &self.verification
    }

    /// Records that the free bitmap is not trusted, and the state of the comparison with the index.
    pub fn unverify(&mut self, verification: Verification) {
        (self.verification, self.seen) = (verification, None);
    }

    /// Records that the free bitmap tells all free objects, except those freed since `seen`.
    pub fn verify(&mut self, seen: Option<SeenFreeBits>) {
        (self.verification, self.seen) = (Verification::Verified, seen);
    }

    /// Returns the allocated objects that these set bits stand for, and the bits of these objects.
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
                // Other bits stand for no object that was allocated.
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

    /// Returns the header that says that the block is in use.
    pub(super) fn header_in_use(&self, owner: ClientId) -> BlockHeader {
        let class = self.kind.class;
        let base = self.generations.base();
        let first = self.in_use_from;
        let fresh = self.was_fresh;
        BlockHeader { class, owner, first, fresh, sealed: false, base }
    }

    /// Begins to move one of its objects in place, so that an operation is under way in the block. Returns the header
    /// that has to say so first, unless the present one does; `None` if the object cannot be moved now.
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

    /// Whether it has EC-oriented objects that were not examined for demotion yet, and can be now.
    pub(super) fn may_demote(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        let is_due = self.kind.turns() > 1 && self.demoted < self.fresh;
        is_due && is_ours && self.generations.is_known()
    }

    /// Returns the next of these objects that may be in use, if there is one. All up to it count as examined then.
    pub(super) fn next_to_demote(&mut self) -> Option<Address> {
        let taken = self.taken();
        let next = (self.demoted..self.fresh).find(|object| taken[*object as usize]);
        self.demoted = next.map_or(self.fresh, |object| object + 1);
        next.map(|object| self.object(object))
    }

    /// Records that the Move in place of an object has ended.
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

    /// Whether the header may be written that says that the block is sealed. Not before the header was read: it
    /// contains the base, which is known only from there.
    pub fn may_seal(&self) -> bool {
        let is_known = self.generations.is_known() || removed(Mutant::SealsUnread);
        self.is_quiet() && self.written != Some(true) && self.scrubbed.is_none() && is_known
    }

    /// Whether its header says on all replicas that it is sealed.
    pub fn is_sealed(&self) -> bool {
        self.written == Some(true)
    }

    /// Returns for every object whether it was allocated and is not free.
    pub fn taken(&self) -> Vec<bool> {
        let mut taken = vec![false; self.shape.objects as usize];
        taken[..self.fresh as usize].fill(true);
        self.idle().for_each(|object| taken[object as usize] = false);
        taken
    }

    /// Returns the objects that were allocated once, and belong to no operation and no slot.
    fn idle(&self) -> impl Iterator<Item = u32> + '_ {
        let waiting = self.waiting.iter().flat_map(|(_, objects)| objects);
        self.free.iter().chain(&self.returned).chain(waiting).copied()
    }

    /// Returns those of these objects that have a header to be read first.
    pub fn unknown<'o>(&self, objects: &'o [u32]) -> impl Iterator<Item = u32> + use<'o, '_> {
        objects.iter().copied().filter(|object| self.generations.is_unknown(*object))
    }

    /// Whether the block's header is to be read in this epoch, before objects are allocated.
    pub fn is_unread(&self, epoch: u64) -> bool {
        self.generations.is_unread(epoch)
    }

    /// Takes the headers of the block's replicas, which were read in this epoch.
    pub fn read(&mut self, headers: &ReplicaHeaders, epoch: u64) {
        self.generations.read(headers, epoch);
    }

    /// Whether it would wait for a whole window on its way back to the pool, and can be used as it is.
    pub fn is_better_kept(&self) -> bool {
        self.generations.is_known() && self.generations.is_apart()
    }

    /// Whether no session may use it before a later epoch than this: it was emptied without a base.
    pub fn waits_for_its_window(&self, epoch: u64) -> bool {
        self.generations.waits(epoch)
    }

    /// Whether its header was read, whatever it says.
    pub fn is_read(&self) -> bool {
        !self.generations.is_open()
    }

    /// Whether none of its headers tells its base.
    pub fn is_lost(&self) -> bool {
        self.is_read() && !self.generations.is_known()
    }

    /// Forgets what is known, since emptying the block failed: some of its objects are zeros, some are not.
    pub fn forget(&mut self) {
        (self.free, self.returned, self.waiting) = (VecDeque::new(), Vec::new(), None);
        self.generations.forget();
        self.scrubbed = None;
        self.unverify(Verification::Due);
    }

    /// Begins to empty the block, in this epoch. Its header says that before the first zero is written.
    pub fn begin_zeroing(&mut self, epoch: u64) {
        self.generations.end_tenure(epoch);
        (self.scrubbed, self.written) = (Some(BlockZeroing::Begun), None);
    }

    /// Records that it is all zeros at this mark, and that its header says that it is sealed.
    pub fn end_zeroing(&mut self, mark: u64) {
        (self.scrubbed, self.written) = (Some(BlockZeroing::Done(mark)), Some(true));
    }

    /// Returns the epoch before which no session may use the emptied block.
    pub fn not_before(&self) -> u64 {
        self.generations.base().not_before
    }

    /// Takes the identities in the headers of the replicas of an object.
    pub fn learn(&mut self, object: u32, standing: impl Iterator<Item = Option<Identity>>) {
        let at = self.object(object);
        let standing = standing.map(|identity| identity.and_then(|i| i.generation_at(at)));
        self.generations.learn(object, standing);
    }

    /// Makes objects allocatable: their bits are cleared, and their generations known.
    pub fn reclaim(&mut self, objects: &[u32]) {
        self.free.extend(objects);
    }

    /// Begins to use the block.
    pub(super) fn use_from_here(&mut self) {
        if !core::mem::take(&mut self.lent) {
            self.half = self.free_objects() / 2;
        }
        self.is_foreign = false;
        let from = self.idle().fold(self.fresh, u32::min);
        if self.written == Some(true) {
            (self.in_use_from, self.was_fresh) = (from, self.fresh);
        }
        // Objects before that were reclaimed, when no operation was under way here.
        if from < self.in_use_from {
            (self.in_use_from, self.was_fresh, self.written) = (from, self.fresh, None);
        }
    }

    /// Records the view since which the free bitmap is at its place. If it has moved, bits are missing.
    pub fn follow(&mut self, primary_since: u64) {
        let before = core::mem::replace(&mut self.primary_since, primary_since);
        let is_elsewhere = before != primary_since && !removed(Mutant::AnotherBitmapUnnoticed);
        if is_elsewhere && self.verification == Verification::Verified {
            self.unverify(Verification::Due);
        }
    }

    pub(super) fn remainder(&self) -> BlockRemainder {
        let Block { address, kind: SlabKind { class, .. }, fresh, .. } = *self;
        let marked = (self.verification == Verification::Verified).then_some(self.primary_since);
        BlockRemainder { block: address, class, first: fresh, marked }
    }

    /// Returns the remainder for another session, if no operation is under way in the block. The bits of
    /// reclaimed objects are not set any more, so another session would find them only by the whole index:
    /// a block with such objects, of which there are few, stays, unless it is lent.
    pub(super) fn spare(&self) -> Option<BlockRemainder> {
        let is_spare = self.is_quiet() && !self.held && self.scrubbed.is_none();
        let is_all_marked = self.free.is_empty() && self.returned_objects() == 0;
        if !is_spare || !(is_all_marked || self.lent) {
            return None;
        }
        let rest = self.remainder();
        Some(BlockRemainder { marked: rest.marked.filter(|_| is_all_marked), ..rest })
    }

    /// Whether this session has no use for it: its bitmap was read, and it does not go back to the pool.
    pub(super) fn is_surplus(&self) -> bool {
        let is_known = self.looked > 0 && self.verification == Verification::Verified;
        self.is_foreign && is_known && !self.is_free()
    }

    /// Returns the objects that are free although they were allocated once: a session that leaves has to
    /// set their bits again.
    pub fn not_set_free(&self) -> impl Iterator<Item = Address> + '_ {
        self.idle().map(|object| self.object(object))
    }
}
