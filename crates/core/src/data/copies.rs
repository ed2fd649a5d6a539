//! Copies of EC-oriented objects (EOR, E §4.2).
//!
//! An EC-oriented object is a stripe, which is allowed to lack its parity, with one or two *copies* of the pair
//! elsewhere. The copies lie on the nodes of the stripe's first parity chunks, so no node has two of the data chunks
//! and copies. A copy is an ordinary object, in an ordinary block of a region that has one place. No slot word leads to
//! it. *Copy words* in the data chunks, and in parity that is written with them, name the copies: one word for each
//! copy and each turn at which there are copies ([`Slot::turn`]).
//!
//! A slot word that leads to the stripe also keeps the copies from reuse, and a session that frees the stripe also
//! frees the copies.
//!
//! Copy words are put only where there are none, for all copies of an object or for none, and are never changed. So a
//! session that READs the copy words of a turn after the slot has shown that turn gets the valid ones, as long as the
//! slot shows the word. The repair of a chunk takes the copy words from the other chunks.
//!
//! *Fewer copies* than the redundancy demands are written if too few nodes are without a data chunk, which happens only
//! in a region that has lost a column. In such a region all objects have the parity of the remaining columns, and
//! survive as much as coded ones, whatever copies they have. Excess copy words name the last copy again, so that a Move
//! in place always puts all words, and at most one of two Moves finds the places of the words empty.

use arrayvec::ArrayVec;

use super::{ObjectLocation, ObjectReadResult, PerPlace, PlaceOfCopy, Redundancy};
use crate::layout::{
    Chunk, Identity, MAX_COPIES, Object, Opcode, Slot, copy_of, copy_word, copy_words_at,
};
use crate::mutant::{Mutant, removed};
use crate::verbs::{FailedVerb, MnId, Span, Ticket, VerbBatch};
use crate::view::PoolPlace;

/// One item for each copy of an object.
pub(crate) type PerCopy<T> = ArrayVec<T, MAX_COPIES>;

/// READs of an object's copy words for one turn, from every column that has them.
#[derive(Debug)]
pub(crate) struct CopyWordReads {
    /// The identity of the object.
    identity: Identity,
    copies: usize,
    first: Ticket,
    columns: u32,
}

/// CASes that put copy words into the data chunks of an object.
#[derive(Debug)]
pub(crate) struct CopyWordSwaps {
    first: Option<Ticket>,
    count: u32,
}

/// The copies that copy words name.
#[derive(Debug)]
pub(crate) struct Copies {
    /// The copy that each copy word names, by the word's number; `None` if no column names one.
    named: PerCopy<Option<Identity>>,
    /// A failed READ because of which `named` possibly lacks a copy.
    silent: Option<FailedVerb>,
}

/// READs of the copies of an EC-oriented object.
#[derive(Debug)]
pub(crate) struct CopyReads(PerCopy<(Identity, Ticket)>);

impl ObjectLocation<'_> {
    /// Whether this slot word keeps copies of the object from reuse, in addition to the object.
    pub fn has_copy(self, word: Slot) -> bool {
        self.region.is_oriented() && word.turn().is_multiple_of(2)
    }

    /// Returns the number of copies that the object should have, at turns with copies.
    pub fn copies(self) -> usize {
        match self.region.redundancy() {
            Redundancy::Oriented(of) => of.copies(),
            _ => 0,
        }
    }

    /// Returns the nodes for the object's copies: for each copy one node without a data chunk; fewer nodes if too few
    /// nodes have no data chunk.
    pub(crate) fn copies_go_to(self, members: impl Iterator<Item = MnId>) -> PerCopy<MnId> {
        let mut nodes = PerCopy::new();
        let Some(columns) = self.columns() else { return nodes };
        let first_parity = columns.coding().k() as u8;
        let parity = columns.chunks().iter().zip(self.region.places());
        let mut parity: PerPlace<(u8, MnId)> =
            parity.map(|(chunk, place)| (*chunk, place.node)).collect();
        parity.retain(|(chunk, _)| *chunk >= first_parity);
        parity.sort_unstable();
        // If too few nodes with parity columns are left, nodes without a column get copies as well.
        let others = members.filter(|node| !self.region.lies_on(*node));
        let there = parity.iter().map(|(_, node)| *node).chain(others);
        nodes.extend(there.take(self.copies()));
        if removed(Mutant::CopiesOnOneNode) {
            let first = nodes.first().copied();
            nodes.iter_mut().for_each(|node| *node = first.unwrap_or(*node));
        }
        nodes
    }

    /// Returns, for each column, the place where the copy words for the turn of a slot word begin.
    pub fn copy_words(self, word: Slot) -> impl Iterator<Item = PoolPlace> {
        let at = copy_words_at(word.turn(), self.bytes);
        self.places().map(move |place| place.plus(at))
    }

    /// Posts the CASes that put all copy words for the turn of a slot word into each data chunk. The CASes succeed only
    /// in places without a copy word, so the copy words of one turn are put at most once in a life (one allocation) of
    /// the object.
    pub(crate) fn put_copy_words(
        self,
        batch: &mut VerbBatch,
        word: Slot,
        copies: &[Identity],
    ) -> CopyWordSwaps {
        let columns = self.columns().expect("EC-oriented objects have columns");
        let put: PerCopy<u64> = words_of(self.identity_of(word), self.copies(), copies).collect();
        let k = columns.coding().k();
        let data = self.copy_words(word).zip(columns.chunks());
        let mut first = None;
        let mut count = 0;
        for (place, _) in data.filter(|(_, chunk)| usize::from(**chunk) < k) {
            for (number, put) in put.iter().enumerate() {
                let place = place.plus(8 * number as u64);
                if removed(Mutant::CopyWordsOverwritten) {
                    let span = batch.stage(8);
                    batch.bytes_mut(span).copy_from_slice(&put.to_le_bytes());
                    batch.write(place.node, place.offset, span);
                    continue;
                }
                let cas = batch.cas(place.node, place.offset, 0, *put);
                first.get_or_insert(cas);
                count += 1;
            }
        }
        CopyWordSwaps { first, count }
    }

    /// Posts the READs of the copy words for the turn of a slot word.
    pub(crate) fn read_copy_words(self, batch: &mut VerbBatch, word: Slot) -> CopyWordReads {
        let columns = self.columns().expect("EC-oriented objects have columns");
        let k = columns.coding().k();
        let copies = self.copies();
        // Data chunks come first. Parity chunks are read only where they are written with each object, because
        // otherwise they are possibly left from an earlier use of the object.
        let mut order: PerPlace<(u8, PoolPlace)> =
            columns.chunks().iter().copied().zip(self.copy_words(word)).collect();
        order.retain(|(chunk, _)| usize::from(*chunk) < k || !columns.may_lack_parity());
        order.sort_unstable_by_key(|(chunk, _)| *chunk);
        let mut first = None;
        for (_, place) in &order {
            first.get_or_insert(batch.read(place.node, place.offset, 8 * copies as u32));
        }
        let first = first.expect("a region in a view has columns");
        let columns = order.len() as u32;
        CopyWordReads { identity: self.identity_of(word), copies, first, columns }
    }
}

/// Returns the copy words of an object that has the copies `copies` and should have `count`.
fn words_of(
    object: Identity,
    count: usize,
    copies: &[Identity],
) -> impl Iterator<Item = u64> + use<'_> {
    let last = copies.len().saturating_sub(1);
    (0..count).filter_map(move |number| {
        let copy = copies.get(number.min(last))?;
        Some(copy_word(object, number, *copy))
    })
}

/// Puts the copy words of a turn into a chunk of an object that has the copies `copies` and should have `count`.
pub(super) fn encode_copy_words(
    chunk: &mut [u8],
    turn: u16,
    object: Identity,
    count: usize,
    copies: &[Identity],
) {
    let at = copy_words_at(turn, chunk.len() as u64) as usize;
    for (place, word) in
        chunk[at..].as_chunks_mut().0.iter_mut().zip(words_of(object, count, copies))
    {
        *place = word.to_le_bytes();
    }
}

/// Returns the copies that a chunk names for a turn, with the numbers of the copy words.
pub(super) fn named_in(
    chunk: &[u8],
    turn: u16,
    object: Identity,
) -> impl Iterator<Item = (usize, Identity)> + use<'_> {
    let at = copy_words_at(turn, chunk.len() as u64) as usize;
    named_by(&chunk[at..], object)
}

fn named_by(words: &[u8], object: Identity) -> impl Iterator<Item = (usize, Identity)> + use<'_> {
    let words = words.as_chunks().0.iter().take(MAX_COPIES).enumerate();
    words.filter_map(move |(number, word)| {
        Some((number, copy_of(object, number, u64::from_le_bytes(*word))?))
    })
}

impl CopyWordSwaps {
    /// Whether the copy words were put into all data chunks.
    pub(crate) fn stands(&self, batch: &VerbBatch) -> Result<bool, FailedVerb> {
        let Some(first) = self.first else { return Ok(removed(Mutant::CopyWordsOverwritten)) };
        let mut stands = true;
        let looked_at = if removed(Mutant::FirstCopyWordDecides) { 1 } else { self.count };
        for cas in 0..looked_at {
            stands &= batch.found(first.plus(cas))? == 0;
        }
        Ok(stands)
    }
}

impl CopyWordReads {
    /// Returns the copies that the copy words name on any of the columns that answered.
    pub(crate) fn named(&self, batch: &VerbBatch) -> Copies {
        let mut named = PerCopy::from_iter((0..self.copies).map(|_| None));
        let mut silent = None;
        for column in 0..self.columns {
            match batch.data(self.first.plus(column)) {
                Ok(bytes) => {
                    for (number, copy) in named_by(bytes, self.identity) {
                        named[number].get_or_insert(copy);
                    }
                }
                Err(failure) => silent = Some(failure),
            }
        }
        let silent = silent.filter(|_| named.iter().any(Option::is_none));
        Copies { named, silent }
    }
}

impl Copies {
    /// Returns the copies that are known, each of them once.
    pub(crate) fn known(&self) -> PerCopy<Identity> {
        let mut known = PerCopy::new();
        for copy in self.named.iter().flatten() {
            if !known.contains(copy) {
                known.push(*copy);
            }
        }
        known
    }

    /// Returns all copies that columns name, or the failure of a column that possibly names another copy. A copy that
    /// no column names cannot be found.
    pub(crate) fn all(&self) -> Result<PerCopy<Identity>, FailedVerb> {
        self.silent.map_or_else(|| Ok(self.known()), Err)
    }

    /// Puts the copy words of a turn into a chunk of the object with this identity.
    pub(super) fn encode(&self, chunk: &mut [u8], turn: u16, object: Identity) {
        let at = copy_words_at(turn, chunk.len() as u64) as usize;
        let places = chunk[at..].as_chunks_mut().0.iter_mut();
        for (number, (place, copy)) in places.zip(&self.named).enumerate() {
            *place = copy.map_or(0, |copy| copy_word(object, number, copy)).to_le_bytes();
        }
    }
}

impl CopyReads {
    /// Whether no copy was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ObjectReadResult {
    /// Posts, for an EC-oriented object of which too few chunks are good, the READs of its copies that are not lost.
    pub(crate) fn read_copies(
        &self,
        batch: &mut VerbBatch,
        copies: &Copies,
        place_of: &PlaceOfCopy<'_>,
    ) -> CopyReads {
        let class = self.part.and_then(|(chunk, key)| {
            let value_bytes = Chunk::value_bytes_in(batch.bytes(chunk))?;
            Object::class(key.len as usize, value_bytes)
        });
        let read = |copy: Identity| {
            let bytes = class?.bytes();
            let place = place_of(copy.address(), bytes)?;
            Some((copy, batch.read(place.node, place.offset, bytes as u32)))
        };
        CopyReads(copies.known().into_iter().filter_map(read).collect())
    }

    /// Returns the object's value, from the first READ that shows a copy of the object. Fails if a READ of a copy, or
    /// of a column that possibly names another copy, was not answered.
    pub(crate) fn value_of_copies(
        &self,
        batch: &VerbBatch,
        copies: &Copies,
        read: &CopyReads,
    ) -> Result<Option<Span>, FailedVerb> {
        let mut silent = copies.silent;
        for (copy, ticket) in &read.0 {
            match batch.data_span(*ticket) {
                Ok(span) => {
                    if let Some(value) = self.value_of_copy(batch, *copy, span) {
                        return Ok(Some(value));
                    }
                }
                Err(failure) => silent = Some(failure),
            }
        }
        silent.map_or(Ok(None), Err)
    }

    /// Returns the value in a copy that was read; `None` if the bytes are no copy of the object.
    fn value_of_copy(&self, batch: &VerbBatch, copy: Identity, read: Span) -> Option<Span> {
        let (chunk, key) = self.part?;
        let object = Object::decode_of(batch.bytes(read), copy).ok()?;
        let is_of = is_copy(&object, batch.bytes(key))
            && Chunk::value_bytes_in(batch.bytes(chunk)) == Some(object.value().len());
        let at = object.value_offset() as u32;
        let bytes = object.value().len() as u32;
        is_of.then(|| read.part(at, bytes))
    }
}

/// Whether an object is a copy of a pair with this key.
pub(crate) fn is_copy(object: &Object<'_>, key: &[u8]) -> bool {
    object.opcode() == Some(Opcode::Copy) && object.key() == key
}

#[cfg(test)]
mod tests;
