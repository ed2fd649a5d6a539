//! The state of a block's free bitmap: which free objects it shows, and which of its bits were seen.

use alloc::vec::Vec;

use crate::mutant::{Mutant, removed};

/// Bits of a free bitmap that were seen set. They are not cleared before the session needs the block, so another
/// session that gets the block before that finds the set bits as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenFreeBits {
    /// The number of the view in which the bitmap's place became the region's first place
    /// ([`Region::primary_since`](crate::data::Region::primary_since)).
    pub primary_since: u64,
    /// A mark ([`Epochs::mark`](crate::host::Epochs::mark)) that was taken no earlier than the bits were seen.
    pub mark: u64,
    /// Number and set bits of each word of the free bitmap that is not zero.
    pub words: Vec<(u32, u64)>,
    /// The number of free objects whose bits are set in `words`.
    pub objects: u32,
}

/// Whether the free bitmap of a block shows all free objects of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// The bitmap shows all free objects of the block.
    Verified,
    /// The bitmap possibly lacks bits, and the block is to be compared with the index.
    Due,
    /// A comparison that ended no later than this mark found the objects to which no slot word leads (`garbage`).
    Compared { mark: u64, garbage: Vec<u32> },
}

/// The free bitmap of one block, as the block's owner knows it.
#[derive(Debug)]
pub(crate) struct BitmapState {
    /// The bits that were seen set; always `None` while the bitmap possibly lacks bits.
    seen: Option<SeenFreeBits>,
    /// The number of the last reading of the bitmap, counted over all blocks; 0 if it was never read.
    last_look: u64,
    /// The view since which the bitmap was at its place ([`SeenFreeBits::primary_since`]) when it was last read, or
    /// when the block was granted.
    primary_since: u64,
    /// Whether the bitmap shows all free objects.
    verification: Verification,
}

impl BitmapState {
    /// Returns the state for a block that is granted with this [`BlockGrant::marked`](super::BlockGrant::marked).
    pub fn granted(marked: Option<u64>) -> BitmapState {
        let verification =
            if marked.is_some() { Verification::Verified } else { Verification::Due };
        BitmapState { seen: None, last_look: 0, primary_since: marked.unwrap_or(0), verification }
    }

    /// Returns the bits that were seen set, if there are any.
    pub fn seen(&self) -> Option<&SeenFreeBits> {
        self.seen.as_ref()
    }

    /// Returns the number of the last reading of the bitmap; 0 if it was never read.
    pub fn last_look(&self) -> u64 {
        self.last_look
    }

    /// Whether the bitmap shows all free objects of the block.
    pub fn is_verified(&self) -> bool {
        self.verification == Verification::Verified
    }

    /// Returns how far the verification of the bitmap has come.
    pub fn verification(&self) -> &Verification {
        &self.verification
    }

    /// Returns the view since which the bitmap is at its place; `None` if the bitmap possibly lacks bits.
    pub fn verified_since(&self) -> Option<u64> {
        self.is_verified().then_some(self.primary_since)
    }

    /// Records that the bitmap was read, by the reading's number and the view since which the bitmap is at its place.
    pub fn note_look(&mut self, look: u64, primary_since: u64) {
        self.last_look = look;
        self.follow(primary_since);
    }

    /// Records the view since which the bitmap is at its place. If the bitmap has moved, it lacks bits.
    pub fn follow(&mut self, primary_since: u64) {
        let before = core::mem::replace(&mut self.primary_since, primary_since);
        let is_elsewhere = before != primary_since && !removed(Mutant::AnotherBitmapUnnoticed);
        if is_elsewhere && self.is_verified() {
            self.unverify();
        }
    }

    /// Records bits of the verified bitmap that were seen set.
    pub fn note_seen(&mut self, seen: SeenFreeBits) {
        debug_assert!(self.is_verified(), "the bitmap possibly lacks bits");
        self.seen = Some(seen);
    }

    /// Takes the bits that were seen set, because they are about to be cleared. From then on it is not known which bits
    /// are set.
    pub fn take_seen(&mut self) -> Option<SeenFreeBits> {
        let seen = self.seen.take()?;
        self.unverify();
        Some(seen)
    }

    /// Records that the bitmap possibly lacks bits.
    pub fn unverify(&mut self) {
        (self.verification, self.seen) = (Verification::Due, None);
    }

    /// Records that a comparison with the index, in the view since which the bitmap is at its place, has found the
    /// objects to which no slot word leads.
    pub fn note_compared(&mut self, primary_since: u64, mark: u64, garbage: Vec<u32>) {
        self.primary_since = primary_since;
        (self.verification, self.seen) = (Verification::Compared { mark, garbage }, None);
    }

    /// Records that the bitmap shows all free objects of the block, except objects freed after the bits `seen` were
    /// read.
    pub fn verify(&mut self, seen: Option<SeenFreeBits>) {
        (self.verification, self.seen) = (Verification::Verified, seen);
    }
}
