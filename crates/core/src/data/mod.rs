//! Redundancy of what lies in regions: objects, block headers, free bitmaps, block tables.
//!
//! A region's [`Scheme`] says how its objects survive failures. This module alone knows what follows
//! from that; everybody else asks:
//!
//! | question | answer |
//! |---|---|
//! | Where does an object lie? | [`View::object`], [`View::object_of`]: an [`ObjectAt`] |
//! | What is written? | `ObjectAt::write` |
//! | What is read first, and what if a node is silent? | `ObjectAt::read_at` |
//! | What is read to be sure, and is the object whole? | `ObjectAt::read_all`, `Reads::judge` |
//! | What must agree? | `ObjectAt::read_starts`, `Reads::key` |
//! | How is a damaged part written anew? | `Found::mend` |
//! | May a write be speculative? | `ObjectAt::lies_beside` |
//! | How is an incomplete object completed? | `complete` |
//! | How does a region get another place? | `copy_to` |
//! | Where are header and free bitmap of a block? | [`View::block`]: a [`BlockAt`] |
//! | Who hands out blocks, and since when? | [`Region::primary`], [`Region::primary_since`] |
//! | How many nodes may be lost? | [`Region::survives`] |
//!
//! The answers that a scheme gives lie in a file of its own (`replicated.rs`); `by_scheme` has the one
//! `match`. Block tables and block headers stand on each place of a region whatever its scheme; a free
//! bitmap counts on the primary only.
//!
//! [`View::object`]: crate::view::View::object
//! [`View::object_of`]: crate::view::View::object_of
//! [`View::block`]: crate::view::View::block

mod block;
mod complete;
mod copy;
mod replicated;

use alloc::vec::Vec;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

pub use block::BlockAt;
pub(crate) use block::clear_bitmaps;
pub(crate) use complete::complete;
pub(crate) use copy::{Copied, copy_bytes};
pub(crate) use replicated::{Found, Reads, ShownKey};

use crate::layout::Address;
use crate::verbs::{Batch, Fabric, FailedVerb, MnId, Span};
use crate::view::{Geometry, MAX_REPLICAS, Place, Subtable, exchange};

/// Something for each place of a region, without touching the heap.
pub(crate) type PerPlace<T> = ArrayVec<T, MAX_REPLICAS>;

/// How the objects of a region survive failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Scheme {
    /// Every byte stands on each of the region's places.
    Replicated,
}

/// What the scheme of a region has for a question.
macro_rules! by_scheme {
    ($region:expr, $question:ident($($argument:expr),*)) => {
        match $region.scheme {
            Scheme::Replicated => replicated::$question($($argument),*),
        }
    };
}

/// A region of the global memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// How its objects survive failures.
    scheme: Scheme,
    /// Where it starts on each of its memory nodes, the primary first.
    places: Vec<Place>,
    /// The number of the view since which the first place is the first: with another one came other
    /// free bitmaps, all zeros.
    primary_since: u64,
}

impl Region {
    /// A region of which every byte stands on each of these places, whose first one is the first since
    /// the view of this number. A view has at least one place of each region.
    pub fn replicated(places: Vec<Place>, primary_since: u64) -> Region {
        Region { scheme: Scheme::Replicated, places, primary_since }
    }

    /// Where it starts on each of its memory nodes, the primary first: extents to be placed, moved and
    /// counted. What lies in them is not the same in every scheme.
    #[inline]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The first place: its node hands out the region's blocks, and the free bitmaps there count.
    ///
    /// # Panics
    /// If it has no place, so that it is in no view.
    #[inline]
    pub fn primary(&self) -> Place {
        self.places[0]
    }

    /// The other places. Their nodes keep the block table as well.
    pub fn backups(&self) -> &[Place] {
        &self.places[1..]
    }

    /// The number of the view since which the primary is the primary: with another one came other
    /// free bitmaps, all zeros.
    #[inline]
    pub fn primary_since(&self) -> u64 {
        self.primary_since
    }

    /// Whether a memory node has one of its places.
    pub fn lies_on(&self, node: MnId) -> bool {
        self.places.iter().any(|place| place.node == node)
    }

    /// Whether its objects survive the loss of these memory nodes.
    pub fn survives(&self, is_lost: impl Fn(MnId) -> bool) -> bool {
        by_scheme!(self, survives(self, is_lost))
    }

    /// Whether its objects are lost.
    pub(crate) fn is_gone(&self) -> bool {
        !self.survives(|_| false)
    }

    /// Goes on without the places that are lost, in the view of this number.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(&Place) -> bool, view: u64) {
        if self.places.first().is_some_and(&is_lost) {
            self.primary_since = view;
        }
        self.places.retain(|place| !is_lost(place));
    }

    /// The switch to the view of this number: one place comes, one goes, in its place if both; and the
    /// free bitmaps are others if they are `renewed`.
    pub(crate) fn exchange(
        &mut self,
        joining: Option<Place>,
        leaving: Option<Place>,
        renewed: bool,
        view: u64,
    ) {
        if self.places.first() == leaving.as_ref() || renewed {
            self.primary_since = view;
        }
        exchange(&mut self.places, joining, leaving);
    }

    /// Its object of `bytes` bytes at an offset, which has this address.
    #[inline]
    pub(crate) fn object(&self, address: Address, offset: u64, bytes: u64) -> ObjectAt<'_> {
        ObjectAt { region: self, address, offset, bytes }
    }

    /// Its block at an offset.
    #[inline]
    pub(crate) fn block(&self, offset: u64) -> BlockAt<'_> {
        BlockAt::new(self, offset)
    }

    /// Fills a place that is to be the region's, from those that it has. Nobody writes objects there
    /// meanwhile.
    pub(crate) async fn copy_to<F: Fabric>(
        &self,
        fabric: &F,
        geometry: &Geometry,
        joining: Place,
        copied: &mut Copied,
    ) -> Result<(), FailedVerb> {
        by_scheme!(self, copy_to(self, fabric, geometry, joining, copied)).await
    }
}

/// Where an object lies.
#[derive(Clone, Copy, Debug)]
pub struct ObjectAt<'v> {
    region: &'v Region,
    address: Address,
    offset: u64,
    bytes: u64,
}

impl<'v> ObjectAt<'v> {
    /// How long it is: the bytes of its size class.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Where something of it lies, the region's primary first.
    #[inline]
    pub fn places(self) -> impl ExactSizeIterator<Item = Place> + 'v {
        self.region.places.iter().map(move |place| place.plus(self.offset))
    }

    /// Posts the WRITEs of a new object.
    #[inline]
    pub(crate) fn write(self, batch: &mut Batch, object: Span) {
        by_scheme!(self.region, write(self, batch, object))
    }

    /// Where the object is read first: on the node `near`, if it has it, so that what is read from a
    /// slot there comes in the same message, and before it. Else objects of different addresses are
    /// read from different nodes; from one that is not silent, if there is any.
    #[inline]
    pub(crate) fn read_at(self, near: MnId, is_silent: impl Fn(MnId) -> bool) -> Place {
        by_scheme!(self.region, read_at(self, near, is_silent))
    }

    /// Posts READs of all that there is of it.
    pub(crate) fn read_all(self, batch: &mut Batch) -> Reads {
        self.read_starts(batch, self.bytes)
    }

    /// Posts READs of all that there is of its first bytes.
    pub(crate) fn read_starts(self, batch: &mut Batch, bytes: u64) -> Reads {
        by_scheme!(self.region, read_starts(self, batch, bytes))
    }

    /// Whether it lies beside all backups of a subtable, and nowhere but beside replicas of it. Only then
    /// may a word that refers to it be put there in the phase that writes it.
    pub(crate) fn lies_beside(self, subtable: &Subtable) -> bool {
        by_scheme!(self.region, lies_beside(self, subtable))
    }
}
