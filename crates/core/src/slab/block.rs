//! A block of a session: the grant, the free objects, and the remainder for other sessions.
//!
//! The functions of a block tell which steps are allowed. The slabs decide when a step is made, and with which block.

use alloc::vec;
use alloc::vec::Vec;

use super::bitmap_state::BitmapState;
use super::generations::Generations;
use super::header_state::HeaderState;
use super::in_flight::ObjectsInFlight;
use super::reusable::ReusableObjects;
use crate::data::Redundancy;
use crate::layout::{Address, BlockHeader, BlockShape, Identity, SizeClass, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::verbs::ClientId;

/// A block is evacuated only if at least one in `EVACUATED_AT` of its objects is free.
const EVACUATED_AT: u64 = 4;

/// The kind of a slab: the size class and the redundancy of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabKind {
    /// The size class of an object on each of its places.
    pub class: SizeClass,
    /// The redundancy of the objects; the slab's blocks are in regions of this redundancy.
    pub redundancy: Redundancy,
}

impl SlabKind {
    /// Returns the kind for pairs of these lengths; `None` over [`SizeClass::MAX`].
    #[inline]
    pub fn of(redundancy: Redundancy, key_bytes: usize, value_bytes: usize) -> Option<SlabKind> {
        let class = redundancy.class(key_bytes, value_bytes)?;
        Some(SlabKind { redundancy, class })
    }

    /// Returns the number of generations of one life of an object: the turns of an EC-oriented object, otherwise 1.
    pub(crate) fn turns(self) -> u16 {
        if matches!(self.redundancy, Redundancy::Oriented(_)) { Slot::TURNS } else { 1 }
    }
}

/// A block that was given to this session. The block's table entries name the session on all places of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrant {
    /// The first byte of the block, where the block's header begins.
    pub address: Address,
    /// The length of the block.
    pub bytes: u64,
    /// See [`BlockRemainder::base`].
    pub base: Option<u16>,
    /// The redundancy of the block's region.
    pub redundancy: Redundancy,
    /// The class of the block's objects. It is not the class that was asked for if no other block was left: possibly
    /// all objects of the block turn out to be free, so that the block can go back to the pool.
    pub class: SizeClass,
    /// The first object that was never allocated; more than 0 in a block that another session left.
    pub first: u32,
    /// See [`BlockRemainder::marked`].
    pub marked: Option<u64>,
    /// Whether the pool had no free block any more, and this block was left by another session.
    pub pool_is_empty: bool,
}

impl BlockGrant {
    pub(super) fn kind(&self) -> SlabKind {
        SlabKind { redundancy: self.redundancy, class: self.class }
    }
}

/// The description of a block that its owner has stopped using, for the next owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRemainder {
    /// The block's address.
    pub block: Address,
    /// The length of the block.
    pub bytes: u64,
    /// The generation with which the block's objects begin, if the block has no header on any replica. `None` if the
    /// block then has to wait a window.
    pub base: Option<u16>,
    /// The class of the block's objects.
    pub class: SizeClass,
    /// The first object that was never allocated; neither was any object behind it. The number of objects if all were
    /// allocated.
    pub first: u32,
    /// The number of the view since which the free bitmap is at its place
    /// ([`Region::primary_since`](crate::data::Region::primary_since)), if the bitmap tells which of the objects before
    /// `first` are free. If `None`, or if the bitmap has moved since, only a comparison with the whole index tells
    /// that.
    pub marked: Option<u64>,
}

/// A block that goes back to the pool. It contains only zeros behind its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedBlock {
    /// The block's address.
    pub address: Address,
    /// The length of the block.
    pub bytes: u64,
    /// The generation with which the objects of the next owner begin.
    pub base: u16,
}

/// A block that belongs to the session.
#[derive(Debug)]
pub(crate) struct Block {
    pub address: Address,
    pub bytes: u64,
    pub kind: SlabKind,
    pub shape: BlockShape,
    /// The objects before `fresh` that can be allocated again, now or later.
    pub reusable: ReusableObjects,
    /// The first object of the block that was never allocated. Neither was any object behind it.
    pub(super) fresh: u32,
    pub generations: Generations,
    /// The block's objects for which operations are under way.
    pub(super) in_flight: ObjectsInFlight,
    /// The block's header.
    pub header: HeaderState,
    /// Half of the number of objects that were free when the block was taken into use.
    pub(super) half: u32,
    /// The block's free bitmap.
    pub bitmap: BitmapState,
    /// Whether the header or the bitmap is being changed. While it is, the block must not be taken into use: if two
    /// headers were being written at a time, the earlier one could arrive last.
    pub held: bool,
    /// Whether the block is offered, so that it can be handed over to another session at any time.
    pub(super) offered: bool,
    /// Whether the block was taken out of use only to lend it: sessions that have no block can get it until an
    /// operation of this session needs it.
    pub(super) lent: bool,
    /// Whether the session got the block when it needed another size class, because the block is possibly wholly free.
    is_foreign: bool,
    /// Whether the block is small beside the slab's other blocks. It is used only when memory is short, because to
    /// collect a block costs as much whatever its size.
    pub(super) outgrown: bool,
    /// The slab for which the block's pairs are being moved into other blocks, so that this one becomes free.
    pub(super) evacuated_for: Option<SlabKind>,
    /// The number of objects that stayed in the block at the last evacuation.
    pub(super) stayed: u32,
    /// The progress of emptying the block; `None` if the block is not being emptied.
    pub scrubbed: Option<BlockZeroing>,
    /// The block's number in the order in which the session got its blocks; the oldest block has the smallest.
    pub(super) born: u64,
    /// The number of objects, from the first on, that were examined for demotion since the block was last in use.
    pub(super) demoted: u32,
}

/// The progress of emptying a block that goes back to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockZeroing {
    /// Zeros are being written over the block.
    Begun,
    /// At this mark, the block contained only zeros on all replicas.
    Done(u64),
}

impl Block {
    pub(super) fn new(grant: &BlockGrant, shape: BlockShape, is_foreign: bool) -> Block {
        Block {
            address: grant.address,
            bytes: grant.bytes,
            kind: grant.kind(),
            shape,
            reusable: ReusableObjects::default(),
            fresh: grant.first,
            generations: Generations::unread(grant.first, grant.kind().turns(), grant.base),
            in_flight: ObjectsInFlight::default(),
            header: HeaderState::unknown(grant.first),
            half: 0,
            bitmap: BitmapState::granted(grant.marked),
            held: false,
            offered: false,
            lent: false,
            is_foreign,
            outgrown: false,
            evacuated_for: None,
            stayed: 0,
            scrubbed: None,
            born: 0,
            demoted: 0,
        }
    }

    pub(super) fn object(&self, index: u32) -> Address {
        Address::new(self.address.bytes() + self.shape.offset(index))
    }

    /// Returns the number of the block's objects that can be allocated.
    pub fn free_objects(&self) -> u32 {
        self.reusable.free_objects() + (self.shape.objects - self.fresh)
    }

    pub fn has_room(&self) -> bool {
        let is_ours = !self.held && !self.offered;
        let is_usable = self.scrubbed.is_none() && self.generations.is_known();
        self.free_objects() > 0 && is_usable && is_ours
    }

    /// Whether a slab of a kind can take the block into use, if at least one in `least` objects has to be free.
    pub fn suits(&self, kind: SlabKind, least: u32) -> bool {
        let free = u64::from(self.free_objects()) * u64::from(least);
        let is_enough = self.lent || free >= u64::from(self.shape.objects);
        self.kind == kind && self.has_room() && is_enough && self.is_of_use(least)
    }

    /// Whether the slab is to use the block. A slab that is short of memory uses blocks with any free object.
    fn is_of_use(&self, least: u32) -> bool {
        let is_needed = !self.outgrown || self.lent || least == u32::MAX;
        is_needed && self.evacuated_for.is_none()
    }

    /// Whether the block's pairs can be moved into other blocks, and enough of its objects are free for that to be
    /// worthwhile. Afterwards the block is free, if its bitmap shows all free objects.
    pub(super) fn may_evacuate(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        let is_known = self.bitmap.last_look() > 0 && self.bitmap.is_verified();
        let is_sparse = u64::from(self.prospect()) * EVACUATED_AT >= u64::from(self.shape.objects);
        let has_left = self.in_use() > self.stayed;
        let can_leave =
            !matches!(self.kind.redundancy, Redundancy::Oriented(_) | Redundancy::Copies(_));
        let is_quiet = self.is_quiet() && self.generations.is_known();
        is_ours && is_known && is_quiet && can_leave && is_sparse && has_left
    }

    /// Returns the number of objects that can be allocated when the objects have been reclaimed whose bits were seen
    /// before a mark for which `has_passed` holds.
    pub(super) fn free_now(&self, has_passed: impl Fn(u64) -> bool) -> u32 {
        let seen = self.bitmap.seen().filter(|seen| has_passed(seen.mark));
        self.free_objects() + seen.map_or(0, |seen| seen.objects)
    }

    /// Returns the number of objects in use, as far as the session knows.
    pub(super) fn in_use(&self) -> u32 {
        self.shape.objects - self.prospect()
    }

    /// Returns the objects in use, as far as the session knows.
    pub(super) fn objects_in_use(&self) -> Vec<Address> {
        let mut taken = self.taken();
        if let Some(seen) = self.bitmap.seen() {
            let (free, _) = self.marked(&seen.words);
            free.into_iter().for_each(|object| taken[object as usize] = false);
        }
        let in_use = (0..self.shape.objects).filter(|object| taken[*object as usize]);
        in_use.map(|object| self.object(object)).collect()
    }

    /// Returns the number of objects that can be allocated when the objects seen free have been reclaimed, and the
    /// objects given back have waited.
    pub fn prospect(&self) -> u32 {
        let seen = self.bitmap.seen().map_or(0, |seen| seen.objects);
        self.free_objects() + self.reusable.returned_objects() + seen
    }

    /// Whether no object of the block will be in use when the objects seen free have been reclaimed.
    pub fn is_free(&self) -> bool {
        self.prospect() == self.shape.objects && self.is_quiet()
    }

    /// Whether the block's objects are to be reclaimed for a slab of a kind that needs objects, if at least one object
    /// in `least` has to be free.
    pub fn is_worth_reclaiming(&self, kind: SlabKind, least: u32) -> bool {
        let free = u64::from(self.prospect()) * u64::from(least);
        let is_ours = !self.held && self.scrubbed.is_none();
        let is_usable = is_ours && self.generations.is_known();
        let is_enough = free >= u64::from(self.shape.objects) && self.is_of_use(least);
        self.kind == kind && is_usable && is_enough
    }

    /// Whether the block can be filled with zeros, to go back to its pool.
    pub fn may_zero(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        self.is_free() && self.bitmap.seen().is_none() && is_ours
    }

    /// Returns the allocated objects for which these set bits stand, and the bits that stand for an allocated object.
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
                // Other bits stand for no allocated object, so they are left out.
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

    /// Returns the block's header with the statement that the block is in use.
    pub(super) fn header_in_use(&self, owner: ClientId) -> BlockHeader {
        self.header.in_use(self.kind.class, owner, self.generations.base())
    }

    /// Begins to move an object of the block in place, so that an operation is under way in the block. Returns false if
    /// the object cannot be moved now.
    pub(super) fn open_for(&mut self, object: Address) -> bool {
        let Some(index) = self.shape.object_at(object.bytes() - self.address.bytes()) else {
            return false;
        };
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        if !is_ours || !self.generations.is_known() || self.in_flight.is_moving(index) {
            return false;
        }
        let is_walked = self.header.is_in_use() && self.header.in_use_from() <= index;
        if !is_walked && !removed(Mutant::RestingBlockNotWalked) {
            // If two headers were being written at a time, the earlier one could arrive last.
            if !self.is_quiet() {
                return false;
            }
            self.header.restate(0, self.fresh);
        }
        self.in_flight.begin_move(index);
        true
    }

    /// Returns the header that has to be written before the block is used, and its address; `None` if the present
    /// header will do.
    pub(super) fn header_to_write(&self, owner: ClientId) -> Option<(Address, BlockHeader)> {
        self.header.is_uncertain().then(|| (self.address, self.header_in_use(owner)))
    }

    /// Whether an object lies in the block.
    #[inline]
    pub(super) fn holds(&self, object: Address) -> bool {
        let bytes = object.bytes().checked_sub(self.address.bytes());
        bytes.is_some_and(|bytes| bytes < self.bytes)
    }

    /// Whether the block has EC-oriented objects that were not examined for demotion yet, and that can be examined now.
    pub(super) fn may_demote(&self) -> bool {
        let is_ours = !self.held && !self.offered && self.scrubbed.is_none();
        let is_due = self.kind.turns() > 1 && self.demoted < self.fresh;
        is_due && is_ours && self.generations.is_known()
    }

    /// Returns the next EC-oriented object to examine for demotion that is possibly in use, if there is one. Afterwards
    /// this object and all objects before it count as examined.
    pub(super) fn next_to_demote(&mut self) -> Option<Address> {
        let taken = self.taken();
        let next = (self.demoted..self.fresh).find(|object| taken[*object as usize]);
        self.demoted = next.map_or(self.fresh, |object| object + 1);
        next.map(|object| self.object(object))
    }

    /// Records that an object's Move in place has ended.
    pub(super) fn end_move(&mut self, object: Address) {
        if let Some(index) = self.shape.object_at(object.bytes() - self.address.bytes()) {
            self.in_flight.end_move(index);
        }
    }

    /// Whether no operation is under way for which an object of the block was allocated.
    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether the header that says that the block is sealed can be written. The sealing header contains the base, so
    /// it cannot be written before the present header was read, which alone tells the base.
    pub fn may_seal(&self) -> bool {
        let is_known = self.generations.is_known() || removed(Mutant::SealsUnread);
        self.is_quiet() && !self.header.is_sealed() && self.scrubbed.is_none() && is_known
    }

    /// Returns for every object of the block whether it was allocated and is not free.
    pub fn taken(&self) -> Vec<bool> {
        let mut taken = vec![false; self.shape.objects as usize];
        taken[..self.fresh as usize].fill(true);
        self.reusable.iter().for_each(|object| taken[object as usize] = false);
        taken
    }

    /// Returns those of these objects whose headers have to be read before they can be allocated.
    pub fn unknown<'o>(&self, objects: &'o [u32]) -> impl Iterator<Item = u32> + use<'o, '_> {
        objects.iter().copied().filter(|object| self.generations.is_unknown(*object))
    }

    /// Forgets what is known of the objects, because emptying the block failed: some objects consist of zeros, others
    /// do not.
    pub fn forget(&mut self) {
        self.reusable = ReusableObjects::default();
        self.generations.forget();
        self.scrubbed = None;
        self.bitmap.unverify();
    }

    /// Begins to empty the block, in this epoch. The header that says so has to be written before the first zero.
    pub fn begin_zeroing(&mut self, epoch: u64) {
        self.generations.end_tenure(epoch);
        self.scrubbed = Some(BlockZeroing::Begun);
        self.header.make_uncertain();
    }

    /// Records that the block contains only zeros at this mark, which has the same effect as a header that says
    /// *sealed*.
    pub fn end_zeroing(&mut self, mark: u64) {
        self.scrubbed = Some(BlockZeroing::Done(mark));
        self.header.note_sealed();
    }

    /// Learns an object's generation from the identities that its replicas show in their headers.
    pub fn learn(&mut self, object: u32, standing: impl Iterator<Item = Option<Identity>>) {
        let at = self.object(object);
        let standing = standing.map(|identity| identity.and_then(|i| i.generation_at(at)));
        self.generations.learn(object, standing);
    }

    /// Takes the block into use.
    pub(super) fn use_from_here(&mut self) {
        if !core::mem::take(&mut self.lent) {
            self.half = self.free_objects() / 2;
        }
        self.is_foreign = false;
        self.stayed = 0;
        let first = self.reusable.iter().fold(self.fresh, u32::min);
        self.header.begin_use(first, self.fresh);
    }

    pub(super) fn remainder(&self) -> BlockRemainder {
        let Block { address: block, bytes, kind: SlabKind { class, .. }, fresh: first, .. } = *self;
        let base = self.generations.base_without_header();
        BlockRemainder { block, bytes, base, class, first, marked: self.bitmap.verified_since() }
    }

    /// Returns the remainder for another session, if no operation is under way in the block. The free bits of reclaimed
    /// objects are not set any more, so another session would find these objects only by a comparison with the whole
    /// index. Therefore a block with reclaimed objects stays with this session unless it is lent. There are few such
    /// blocks.
    pub(super) fn spare(&self) -> Option<BlockRemainder> {
        let is_spare = self.is_quiet() && !self.held && self.scrubbed.is_none();
        let is_all_marked = self.reusable.is_empty();
        if !is_spare || !(is_all_marked || self.lent) {
            return None;
        }
        let rest = self.remainder();
        Some(BlockRemainder { marked: rest.marked.filter(|_| is_all_marked), ..rest })
    }

    /// Whether the block is of no use to this session: the session got the block when it needed another size class, and
    /// the block's verified bitmap, which was read, shows that the block cannot go back to the pool.
    pub(super) fn is_surplus(&self) -> bool {
        let is_known = self.bitmap.last_look() > 0 && self.bitmap.is_verified();
        self.is_foreign && is_known && !self.is_free()
    }

    /// Returns the free objects that were allocated once. A session that leaves has to set their free bits again.
    pub fn not_set_free(&self) -> impl Iterator<Item = Address> + '_ {
        self.reusable.iter().map(|object| self.object(object))
    }
}
