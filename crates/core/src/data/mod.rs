//! Redundancy of the contents of regions: objects, block headers, free bitmaps, block tables.
//!
//! A region's [`Scheme`] decides how the region's objects survive failures. Only this module knows the consequences;
//! all other modules ask this one:
//!
//! | question | answer |
//! |---|---|
//! | Where does an object lie? | [`View::object`], [`View::object_of`]: an [`ObjectLocation`] |
//! | What is written? | `ObjectLocation::write` |
//! | Where is the key READ, also if a node is silent? | `ObjectLocation::read_at` |
//! | What is READ for the value, and what does that show? | `ObjectLocation::fetch`, `Fetch::of_key` |
//! | What is READ for a check, and which parts are whole? | `ObjectLocation::read_all`, `ObjectReads::judge` |
//! | Which key do the starts of all replicas or chunks show? | `ObjectLocation::read_starts`, `ObjectReads::key` |
//! | How is a damaged part written anew? | `ObjectReadResult::mend` |
//! | Which copies does a word keep from reuse? | `ObjectLocation::has_copy`, `ObjectLocation::read_copy_words` |
//! | Can a write be speculative? | `Region::lies_beside` |
//! | Can a slot contain a word before the word's object is complete? | `ObjectLocation::may_be_incomplete` |
//! | How is an incomplete object completed? | `complete` |
//! | How does a region get another place? | `copy_to` |
//! | Where is the header of a block? | [`View::block`]: a [`BlockLocation`] |
//! | Where is the valid free bitmap? | [`View::bitmap`] |
//! | Which node hands out blocks, and since when? | [`Region::primary`], [`Region::primary_since`] |
//! | Do the objects survive the loss of these nodes? | [`Region::survives`] |
//! | Was the pair of a slot word lost with its only node? | [`View::is_gone`], [`View::is_being_lost`] |
//!
//! Each scheme answers these questions in a file of its own (`replicated.rs`, `coded.rs`). This file calls the schemes
//! by the macro `by_scheme`, or by a `match` where the arguments differ. In every scheme, each place of a region has
//! block table and block headers; only the free bitmaps on the primary are valid.
//!
//! [`View::object`]: crate::view::View::object
//! [`View::object_of`]: crate::view::View::object_of
//! [`View::block`]: crate::view::View::block
//! [`View::bitmap`]: crate::view::View::bitmap
//! [`View::is_gone`]: crate::view::View::is_gone
//! [`View::is_being_lost`]: crate::view::View::is_being_lost

mod block;
mod bulk_copy;
mod coded;
mod complete;
mod copies;
mod object_reads;
mod policy;
mod redundancy;
mod replicated;
mod single_place;

use alloc::vec::Vec;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

pub use block::BlockLocation;
pub(crate) use block::clear_bitmap;
pub(crate) use bulk_copy::{CopyResult, copy_bytes};
pub use coded::Columns;
pub(crate) use complete::complete;
pub(crate) use copies::{Copies, PerCopy};
use copies::{encode_copy_words, is_copy, named_in};
use object_reads::WholeObjectParts;
pub(crate) use object_reads::{
    Fetch, FetchResult, KeyReadResult, ObjectReadResult, ObjectReads, ReplicaContents,
};
pub use policy::{
    Demotion, Fallback, MAX_PROMOTE_AFTER, MAX_RULES, Placement, Policy, PolicyError, PolicyField,
    PromotedRedundancy, Promotion, RedundancyDemand, RedundancyRules, SizeRule, Transitions,
};
pub use redundancy::{
    MIN_PAYLOAD_BYTES, MIN_PAYLOADS_PER_KEY, Orientation, OrientationError, ParseRedundancyError,
    Redundancy, RedundancyError,
};

use crate::erasure::MAX_CHUNKS;
use crate::layout::{Address, HEADER_BYTES, Identity, Object, Pair, Slot, UNIT_BYTES};
use crate::verbs::{Fabric, FailedVerb, MnId, Span, VerbBatch};
use crate::view::{Geometry, MAX_REPLICAS, PoolPlace, Subtable, ViewError};

/// The largest number of places of a region.
pub(crate) const MAX_PLACES: usize = MAX_CHUNKS;
const _: () = assert!(MAX_REPLICAS <= MAX_PLACES);

/// Finds the place of the copy with this address and length; `None` if the copy is lost.
pub(crate) type PlaceOfCopy<'v> = dyn Fn(Address, u64) -> Option<PoolPlace> + 'v;

/// The parts of a view that a job needs to fill places of a region.
#[derive(Clone, Copy)]
pub(crate) struct CopyContext<'v> {
    pub geometry: &'v Geometry,
    /// The blocks of the region, in order, by the table of its primary.
    pub blocks: &'v [RegionBlock],
    pub place_of_copy: &'v PlaceOfCopy<'v>,
}

/// A block of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionBlock {
    /// The offset of the block in its region, in bytes.
    pub offset: u64,
    /// The length of the block.
    pub bytes: u64,
}

/// One item for each place of a region, without heap allocation.
pub(crate) type PerPlace<T> = ArrayVec<T, MAX_PLACES>;

/// The way in which the objects of a region survive failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Scheme {
    /// Each of the region's places holds all bytes of every object.
    Replicated,
    /// Each of the region's places holds one chunk of every object.
    Coded(Columns),
    /// Objects have one place. When the place is lost, the objects are lost, and the region is *gone*: its number is
    /// never used for another region.
    Alone(SinglePlaceUse),
}

/// The use of a region that has only one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SinglePlaceUse {
    /// Copies of EC-oriented objects, on this node. The region is given up when the node is lost or drained.
    Copies(MnId),
    /// Pairs without redundancy, on any node. If the pairs are lost, contains the node that was lost and had the pairs.
    Pairs(Option<MnId>),
}

/// Calls a function in the module of the region's scheme.
macro_rules! by_scheme {
    ($region:expr, $question:ident($($argument:expr),*)) => {
        match &$region.scheme {
            Scheme::Replicated | Scheme::Alone(_) => replicated::$question($($argument),*),
            Scheme::Coded(columns) => coded::$question(columns, $($argument),*),
        }
    };
}

/// A region of the global memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// The way in which the region's objects survive failures.
    scheme: Scheme,
    /// The start of the region on each of its memory nodes, the primary first.
    places: Vec<PoolPlace>,
    /// The number of the view in which the region's present first place became the first. When a place becomes the
    /// first, its free bitmaps are all zeros.
    primary_since: u64,
}

impl Region {
    /// Returns a region that has every byte on each of these places. `primary_since` is the number of the view in which
    /// the first place became the first. In a view, a region has at least one place.
    pub fn replicated(places: Vec<PoolPlace>, primary_since: u64) -> Region {
        Region { scheme: Scheme::Replicated, places, primary_since }
    }

    /// Returns a region for objects of this redundancy, with all its places. The other arguments are those of
    /// [`Region::replicated`].
    pub fn new(redundancy: Redundancy, places: Vec<PoolPlace>, primary_since: u64) -> Region {
        let scheme = match redundancy {
            Redundancy::Replicated => Scheme::Replicated,
            Redundancy::Coded(coding) => Scheme::Coded(Columns::all(coding)),
            Redundancy::Oriented(of) => Scheme::Coded(Columns::oriented(of)),
            Redundancy::Copies(node) => Scheme::Alone(SinglePlaceUse::Copies(node)),
            Redundancy::None => Scheme::Alone(SinglePlaceUse::Pairs(None)),
        };
        Region { scheme, places, primary_since }
    }

    /// Returns the redundancy of the region's objects.
    #[inline]
    pub fn redundancy(&self) -> Redundancy {
        match &self.scheme {
            Scheme::Replicated => Redundancy::Replicated,
            Scheme::Coded(columns) => columns.redundancy(),
            Scheme::Alone(SinglePlaceUse::Copies(node)) => Redundancy::Copies(*node),
            Scheme::Alone(SinglePlaceUse::Pairs(_)) => Redundancy::None,
        }
    }

    /// Returns the redundancy of the pair that a slot word leads to in this region.
    pub(crate) fn redundancy_of(&self, word: Slot) -> Redundancy {
        match self.redundancy() {
            Redundancy::Oriented(of) if !word.turn().is_multiple_of(2) => {
                Redundancy::Coded(of.coding())
            }
            other => other,
        }
    }

    /// Whether the region's objects lie on the nodes of all backups of a subtable, and on no node without a replica of
    /// the subtable. Only then is a session allowed to CAS the slot in the phase that WRITEs the object.
    pub fn lies_beside(&self, subtable: &Subtable) -> bool {
        by_scheme!(self, lies_beside(self, subtable))
    }

    /// Checks the number and kind of the region's places, but not where they are.
    pub(crate) fn check(&self) -> Result<(), ViewError> {
        match &self.scheme {
            Scheme::Alone(alone) => alone.check(&self.places),
            Scheme::Coded(columns) => coded::check(columns, self),
            Scheme::Replicated => replicated::check(self),
        }
    }

    /// Returns the columns of the region, if it is coded.
    pub fn columns(&self) -> Option<&Columns> {
        match &self.scheme {
            Scheme::Coded(columns) => Some(columns),
            Scheme::Replicated | Scheme::Alone(_) => None,
        }
    }

    /// Whether at least one column contains a parity chunk; true if the region is not coded.
    pub fn has_parity(&self) -> bool {
        self.columns().is_none_or(|columns| {
            let k = columns.coding().k();
            columns.chunks().iter().any(|chunk| usize::from(*chunk) >= k)
        })
    }

    /// Returns the node whose copies the region holds, if it is a region for copies.
    pub fn copies_on(&self) -> Option<MnId> {
        match &self.scheme {
            Scheme::Alone(SinglePlaceUse::Copies(node)) => Some(*node),
            Scheme::Replicated | Scheme::Coded(_) | Scheme::Alone(SinglePlaceUse::Pairs(_)) => None,
        }
    }

    /// Whether the region is for pairs without redundancy.
    pub fn has_single_pairs(&self) -> bool {
        matches!(&self.scheme, Scheme::Alone(SinglePlaceUse::Pairs(_)))
    }

    /// Returns the lost node that had the region's pairs, if the pairs had no redundancy and are lost.
    pub fn lost_with(&self) -> Option<MnId> {
        match &self.scheme {
            Scheme::Alone(SinglePlaceUse::Pairs(node)) => *node,
            Scheme::Replicated | Scheme::Coded(_) | Scheme::Alone(SinglePlaceUse::Copies(_)) => {
                None
            }
        }
    }

    /// Whether the region is for EC-oriented objects.
    #[inline]
    pub fn is_oriented(&self) -> bool {
        matches!(&self.scheme, Scheme::Coded(columns) if columns.is_oriented())
    }

    /// Whether some objects of the region possibly lack their parity.
    pub(crate) fn may_lack_parity(&self) -> bool {
        matches!(&self.scheme, Scheme::Coded(columns) if columns.may_lack_parity())
    }

    /// Notes that all objects have their parity, and that new objects are written with parity.
    pub(crate) fn note_all_parity(&mut self) {
        if let Scheme::Coded(columns) = &mut self.scheme {
            columns.set_may_lack_parity(false);
        }
    }

    /// Lets EC-oriented objects be written without parity again, if all columns of the region are there.
    pub(crate) fn saves_parity(&mut self) {
        if let Scheme::Coded(columns) = &mut self.scheme
            && columns.chunks().len() == columns.coding().chunks()
        {
            columns.set_may_lack_parity(true);
        }
    }

    /// Returns the start of the region on each of its memory nodes, the primary first. Callers need the places to
    /// place, move and count extents. The contents of the places can differ, depending on the scheme.
    #[inline]
    pub fn places(&self) -> &[PoolPlace] {
        &self.places
    }

    /// Returns the first place. Its node hands out the region's blocks, and the free bitmaps there are the valid ones.
    ///
    /// # Panics
    /// Panics if the region has no place, because it is gone.
    #[inline]
    pub fn primary(&self) -> PoolPlace {
        self.places[0]
    }

    /// Returns all places but the first. Their nodes keep the region's block table, too.
    pub fn backups(&self) -> &[PoolPlace] {
        self.places.get(1..).unwrap_or_default()
    }

    /// Returns the number of the view in which the region's present first place became the first. When a place becomes
    /// the first, its free bitmaps are all zeros.
    #[inline]
    pub fn primary_since(&self) -> u64 {
        self.primary_since
    }

    /// Whether one of the region's places is on a memory node.
    pub fn lies_on(&self, node: MnId) -> bool {
        self.places.iter().any(|place| place.node == node)
    }

    /// Whether the region's objects survive the loss of these memory nodes, or are allowed to be lost (regions of one
    /// place).
    pub fn survives(&self, is_lost: impl Fn(MnId) -> bool) -> bool {
        match &self.scheme {
            Scheme::Alone(_) => true,
            Scheme::Coded(columns) => coded::survives(columns, self, is_lost),
            Scheme::Replicated => replicated::survives(self, is_lost),
        }
    }

    /// Whether the region's objects are lost.
    pub(crate) fn is_gone(&self) -> bool {
        !self.survives(|_| false)
    }

    /// Removes the lost places, for the view with the number `view`.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(&PoolPlace) -> bool, view: u64) {
        if self.places.first().is_some_and(&is_lost) {
            self.primary_since = view;
        }
        for at in (0..self.places.len()).rev().filter(|at| is_lost(&self.places[*at])) {
            self.scheme.loses(at, self.places[at].node);
        }
        self.places.retain(|place| !is_lost(place));
    }

    /// Makes the switch to the view with the number `view`. A place joins, a place leaves, or the joining place
    /// replaces the leaving one. If `renewed`, the region's free bitmaps begin anew, with zeros.
    pub(crate) fn exchange(
        &mut self,
        joining: Option<PoolPlace>,
        leaving: Option<PoolPlace>,
        renewed: bool,
        view: u64,
    ) {
        if self.places.first() == leaving.as_ref() || renewed {
            self.primary_since = view;
        }
        let leaves = self.position(leaving);
        let chunk = self.scheme.next_chunk(leaves);
        if let Some(at) = leaves {
            self.places.remove(at);
            self.scheme.remove(at);
        }
        if let Some(joining) = joining {
            let at = leaves.unwrap_or(self.places.len());
            self.places.insert(at, joining);
            self.scheme.insert(at, chunk);
        }
    }

    fn position(&self, leaving: Option<PoolPlace>) -> Option<usize> {
        leaving.and_then(|leaving| self.places.iter().position(|place| *place == leaving))
    }

    /// Returns the object of `bytes` bytes at an offset of the region, which has this address.
    #[inline]
    pub(crate) fn object(&self, address: Address, offset: u64, bytes: u64) -> ObjectLocation<'_> {
        ObjectLocation { region: self, address, offset, bytes, may_lack_parity: false }
    }

    /// Whether the region has places. Only a region of one place can have none: it is gone, and its number is never
    /// used for another region.
    #[inline]
    pub fn is_there(&self) -> bool {
        !self.places.is_empty()
    }

    /// Returns the node of the primary; `None` if the region is gone.
    pub fn leader(&self) -> Option<MnId> {
        self.places.first().map(|place| place.node)
    }

    /// Returns the region's block at an offset.
    #[inline]
    pub(crate) fn block(&self, offset: u64) -> BlockLocation<'_> {
        BlockLocation::new(self, offset)
    }

    /// Fills a place that is to join the region, from the region's present places. If a place leaves the region, the
    /// new place replaces it. No session writes objects to the region while this runs.
    pub(crate) async fn copy_to<F: Fabric>(
        &self,
        fabric: &F,
        context: CopyContext<'_>,
        joining: PoolPlace,
        leaving: Option<PoolPlace>,
        copied: &mut CopyResult,
    ) -> Result<(), FailedVerb> {
        match &self.scheme {
            Scheme::Replicated | Scheme::Alone(_) => {
                replicated::copy_to(self, fabric, context, joining, copied).await
            }
            Scheme::Coded(columns) => {
                let chunk = self.scheme.next_chunk(self.position(leaving));
                coded::copy_to(columns, self, fabric, context, joining, chunk, copied).await
            }
        }
    }

    /// Writes the parity that EC-oriented objects of the region lack, to the present columns. No session writes objects
    /// to the region while this runs.
    pub(crate) async fn write_parity<F: Fabric>(
        &self,
        fabric: &F,
        context: CopyContext<'_>,
        copied: &mut CopyResult,
    ) -> Result<(), FailedVerb> {
        match &self.scheme {
            Scheme::Replicated | Scheme::Alone(_) => Ok(()),
            Scheme::Coded(columns) => {
                coded::write_parity(columns, self, fabric, context, copied).await
            }
        }
    }
}

impl Scheme {
    /// Returns the chunk number for a new place. If the new place replaces a leaving one, `leaves` is the position of
    /// that place. Returns 0 if there are no chunks. The job that fills the place and the switch that adds it use the
    /// same view, so they get the same number.
    fn next_chunk(&self, leaves: Option<usize>) -> u8 {
        match self {
            Scheme::Replicated | Scheme::Alone(_) => 0,
            Scheme::Coded(columns) => columns.next_chunk(leaves),
        }
    }

    /// Removes a place of the region that is lost with its node.
    fn loses(&mut self, at: usize, node: MnId) {
        match self {
            Scheme::Alone(SinglePlaceUse::Pairs(lost_with)) => *lost_with = Some(node),
            _ => self.remove(at),
        }
    }

    /// Removes a place of the region.
    fn remove(&mut self, at: usize) {
        if let Scheme::Coded(columns) = self {
            columns.remove(at);
        }
    }

    /// Inserts a place of the region, for the chunk of this number.
    fn insert(&mut self, at: usize, chunk: u8) {
        if let Scheme::Coded(columns) = self {
            columns.insert(at, chunk);
        }
    }
}

/// The location of an object on each place of its region.
#[derive(Clone, Copy, Debug)]
pub struct ObjectLocation<'v> {
    region: &'v Region,
    address: Address,
    offset: u64,
    bytes: u64,
    /// Whether the object possibly lacks its parity.
    may_lack_parity: bool,
}

impl<'v> ObjectLocation<'v> {
    /// Returns the object's location with the knowledge from a slot word that leads to the object: whether the object
    /// possibly lacks its parity.
    pub(crate) fn of_word(self, word: Slot) -> ObjectLocation<'v> {
        let may_lack_parity = self.region.may_lack_parity() && word.turn().is_multiple_of(2);
        ObjectLocation { may_lack_parity, ..self }
    }

    /// Whether the object possibly lacks the chunk of this number.
    pub fn may_lack(self, chunk: usize) -> bool {
        let coding = self.columns().map(Columns::coding);
        self.may_lack_parity && coding.is_some_and(|coding| chunk >= coding.k())
    }

    /// Returns the length of the object, which is that of its size class, in bytes.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns the columns of the object's region, if the region is coded.
    #[inline]
    pub fn columns(self) -> Option<&'v Columns> {
        self.region.columns()
    }

    /// Returns the redundancy of the object's pair, if this slot word leads to the object.
    pub(crate) fn redundancy_of(self, word: Slot) -> Redundancy {
        self.region.redundancy_of(word)
    }

    /// Whether a Move in place has put this slot word into its slot.
    pub(crate) fn is_turned(self, word: Slot) -> bool {
        self.region.is_oriented() && word.turn() > 0
    }

    /// Returns the identity that the object's header has to show if this slot word leads to the object.
    #[inline]
    pub fn identity_of(self, word: Slot) -> Identity {
        if self.region.is_oriented() {
            word.object_identity().first_turn()
        } else {
            word.object_identity()
        }
    }

    /// Returns the places of the object's replicas or chunks, the region's primary first.
    #[inline]
    pub fn places(self) -> impl ExactSizeIterator<Item = PoolPlace> + 'v {
        self.region.places.iter().map(move |place| place.plus(self.offset))
    }

    /// Posts the WRITEs of a new object.
    #[inline]
    pub(crate) fn write(self, batch: &mut VerbBatch, pair: &Pair<'_>) {
        by_scheme!(self.region, write(self, batch, pair))
    }

    /// Posts the WRITEs of a new object in a replicated region. The bytes of the object are staged, and contain the
    /// value in its place already.
    pub(crate) fn write_around(
        self,
        batch: &mut VerbBatch,
        pair: &Pair<'_>,
        object: Span,
        value_bytes: usize,
    ) {
        assert!(self.region.redundancy().is_replicated(), "a stripe is made of a whole value");
        assert_eq!(u64::from(object.len), self.bytes, "it is of another size class");
        replicated::write_around(self, batch, pair, object, value_bytes);
    }

    /// Returns the place at which the object is read first, for its key and, if the place has the whole object, for its
    /// value. If the node `near` has the object, the place is on that node, so that the READ of a slot on that node
    /// travels in the same message, before this READ. Otherwise the object's address selects one of its nodes, so that
    /// load is spread; if that node is silent, another one is taken if possible.
    #[inline]
    pub(crate) fn read_at(self, near: MnId, is_silent: impl Fn(MnId) -> bool) -> PoolPlace {
        if let Some(columns) = self.columns().filter(|columns| columns.may_lack_parity()) {
            return coded::read_at(columns, self, near, is_silent);
        }
        if let Some(beside) = self.places().find(|place| place.node == near) {
            return beside;
        }
        let any = (self.address.bytes() / UNIT_BYTES) as u32 % self.places().len() as u32;
        let chosen = self.places().nth(any as usize).expect("a region has at least one place");
        if is_silent(chosen.node) {
            return self.places().find(|place| !is_silent(place.node)).unwrap_or(chosen);
        }
        chosen
    }

    /// Posts the READs that the object's value needs, from nodes that are not silent, as far as possible. If each place
    /// has the whole object, it is read at `first` ([`ObjectLocation::read_at`]).
    pub(crate) fn fetch(
        self,
        batch: &mut VerbBatch,
        first: PoolPlace,
        is_silent: impl Fn(MnId) -> bool,
    ) -> Fetch {
        by_scheme!(self.region, fetch(self, batch, first, is_silent))
    }

    /// Returns the number of READs that [`ObjectLocation::fetch`] posts, each of [`ObjectLocation::bytes`] bytes.
    #[inline]
    pub(crate) fn fetch_verbs(self) -> usize {
        by_scheme!(self.region, fetch_verbs())
    }

    /// Posts the WRITEs of a new EC-oriented object that has the given copies.
    pub(crate) fn write_oriented(
        self,
        batch: &mut VerbBatch,
        pair: &Pair<'_>,
        copies: &[Identity],
    ) {
        let columns = self.columns().expect("EC-oriented objects have columns");
        coded::write_oriented(columns, self, batch, pair, copies);
    }

    /// Posts the WRITEs of the parity of an EC-oriented object, to those parity columns that exist.
    pub(crate) fn write_parity(self, batch: &mut VerbBatch, pair: &Pair<'_>) {
        let columns = self.columns().expect("EC-oriented objects have columns");
        coded::write_parity_of(columns, self, batch, pair);
    }

    /// Posts READs of all replicas or chunks of the object.
    pub(crate) fn read_all(self, batch: &mut VerbBatch) -> ObjectReads {
        self.read_starts(batch, self.bytes)
    }

    /// Posts READs of the first bytes of all replicas or chunks of the object.
    pub(crate) fn read_starts(self, batch: &mut VerbBatch, bytes: u64) -> ObjectReads {
        by_scheme!(self.region, read_starts(self, batch, bytes))
    }

    /// Whether a slot can contain a word that leads to the object before the object has been written to all its places.
    pub(crate) fn may_be_incomplete(self) -> bool {
        by_scheme!(self.region, may_be_incomplete())
    }
}

impl Fetch {
    /// Returns the result of the executed READs, for an operation that looks for this key.
    #[inline]
    pub(crate) fn of_key(
        self,
        batch: &mut VerbBatch,
        word: Slot,
        key: &[u8],
    ) -> Result<FetchResult, FailedVerb> {
        match self.chunks {
            None => replicated::fetched(batch, self.first, word, key),
            Some(chunks) => coded::fetched(batch, self.first, chunks, word, key),
        }
    }
}

impl Fetch {
    /// Returns the key and the value that the READs show, whatever the key is. `None` if the READs prove nothing.
    pub(crate) fn pair(
        self,
        batch: &mut VerbBatch,
        word: Slot,
    ) -> Result<Option<(Span, Span)>, FailedVerb> {
        let read = batch.data_span(self.first)?;
        let Ok(object) = Object::decode(batch.bytes(read)) else { return Ok(None) };
        let key = read.part(HEADER_BYTES as u32, object.key().len() as u32);
        // `of_key` compares the object with a given key. The caller of this function looks for no particular key, so
        // `of_key` gets the key that the first READ shows.
        let shown = object.key().to_vec();
        Ok(match self.of_key(batch, word, &shown)? {
            FetchResult::Value(value) => Some((key, value)),
            FetchResult::OtherKey | FetchResult::Stale => None,
        })
    }
}

impl ObjectReads {
    /// Judges which parts of the object of this slot word are whole, and which are damaged. A part (a replica or chunk)
    /// is whole only if `holds` also returns true for its contents.
    pub(crate) fn judge(
        &self,
        batch: &mut VerbBatch,
        word: Slot,
        holds: impl Fn(&ReplicaContents<'_>) -> bool,
    ) -> ObjectReadResult {
        let identity = self.identity_of(word);
        match self.coding {
            None => replicated::judge(self, batch, identity, holds),
            Some(coding) => coded::judge(self, coding, batch, identity, holds),
        }
    }
}

impl ObjectReadResult {
    /// Posts WRITEs of chunks over the damaged ones; the chunks are made from the value of a copy.
    pub(crate) fn mend_by_copy(
        &self,
        batch: &mut VerbBatch,
        object: ObjectLocation<'_>,
        word: Slot,
        copies: &Copies,
        value: Span,
    ) {
        let (Some((chunk, key)), Some(columns)) = (self.part, object.columns()) else { return };
        let opcode = Object::decode(batch.bytes(chunk)).ok().and_then(|object| object.opcode());
        let Some(opcode) = opcode else { return };
        let [key, value] = [key, value].map(|span| batch.bytes(span).to_vec());
        let identity = object.identity_of(word);
        let pair = Pair { key: &key, value: &value, identity, opcode };
        let turn = word.turn();
        let damaged = &self.damaged;
        coded::mend_by_copy(batch, columns.coding(), &pair, turn, copies, damaged, chunk.len);
    }

    /// Posts WRITEs over the damaged replicas or chunks, unless too little of the object is left to restore them.
    /// Returns the number of bytes written.
    pub(crate) fn mend(&self, batch: &mut VerbBatch) -> u64 {
        let Some(whole) = &self.whole else { return 0 };
        match &whole.of {
            WholeObjectParts::Replica(whole) => replicated::mend(batch, *whole, &self.damaged),
            WholeObjectParts::Chunks(coding, identity, chunks) => {
                coded::mend(batch, *coding, *identity, chunks, &self.damaged)
            }
        }
    }
}
