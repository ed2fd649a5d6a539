//! The state of a block's header: what it says, and whether that is known to be written.

use crate::layout::{BlockHeader, GenerationBase, SizeClass};
use crate::verbs::ClientId;

/// The statement of a block's header about the use of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockUse {
    InUse,
    Sealed,
}

/// The header of one block, as its owner knows it.
#[derive(Debug)]
pub(crate) struct HeaderState {
    /// The statement of the header on all replicas; `None` if the replicas possibly differ.
    written: Option<BlockUse>,
    /// The first object that was possibly allocated since the block was taken into use.
    in_use_from: u32,
    /// The first object that was never allocated when the block was taken into use. All headers of one use are equal,
    /// because operations post them at the same time.
    was_fresh: u32,
}

impl HeaderState {
    /// Returns the state for a block that is not in use, and of which `fresh` is the first object that was never
    /// allocated.
    pub fn unknown(fresh: u32) -> HeaderState {
        HeaderState { written: None, in_use_from: u32::MAX, was_fresh: fresh }
    }

    /// Whether the header says, on all replicas, that the block is in use.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.written == Some(BlockUse::InUse)
    }

    /// Whether the header says, on all replicas, that the block is sealed.
    pub fn is_sealed(&self) -> bool {
        self.written == Some(BlockUse::Sealed)
    }

    /// Whether the replicas of the header possibly differ, so that the header has to be written.
    pub fn is_uncertain(&self) -> bool {
        self.written.is_none()
    }

    /// Returns the first object that was possibly allocated since the block was taken into use.
    pub fn in_use_from(&self) -> u32 {
        self.in_use_from
    }

    /// Records that the header has to be written, or is being written, so that its replicas possibly differ.
    #[inline]
    pub fn make_uncertain(&mut self) {
        self.written = None;
    }

    /// Records that the header on all replicas says that the block is in use.
    pub fn note_in_use(&mut self) {
        self.written = Some(BlockUse::InUse);
    }

    /// Records that the header on all replicas says that the block is sealed.
    pub fn note_sealed(&mut self) {
        self.written = Some(BlockUse::Sealed);
    }

    /// Lets the header say, when it is written next, that `first` is the first object possibly allocated since the
    /// block was taken into use, and `fresh` the first that was never allocated.
    pub fn restate(&mut self, first: u32, fresh: u32) {
        *self = HeaderState { written: None, in_use_from: first, was_fresh: fresh };
    }

    /// Records that the block is taken into use, and that `first` is the first object that can be allocated.
    pub fn begin_use(&mut self, first: u32, fresh: u32) {
        if self.is_sealed() {
            (self.in_use_from, self.was_fresh) = (first, fresh);
        }
        // Objects before `in_use_from` were reclaimed while no operation was using the block.
        if first < self.in_use_from {
            self.restate(first, fresh);
        }
    }

    /// Returns the header with the statement that the block is in use.
    pub fn in_use(&self, class: SizeClass, owner: ClientId, base: GenerationBase) -> BlockHeader {
        let HeaderState { in_use_from: first, was_fresh: fresh, .. } = *self;
        BlockHeader { class, owner, first, fresh, sealed: false, base }
    }
}
