//! Copies of EC-oriented objects (EOR, E §4.2).
//!
//! An EC-oriented object is a stripe whose parity may be missing, and *copies* of the pair elsewhere, one or two: on
//! the nodes of the stripe's first parity chunks, so that no node has two of a data chunk and the copies. A copy is an
//! ordinary object, in an ordinary block, of a region that has one place. No word leads to it. *Copy words* in every
//! chunk name them, a word for each copy and each turn in which there are copies ([`Slot::turn`]).
//!
//! So a word that leads to the stripe keeps all of them, and whoever frees one frees the others.
//!
//! Copy words are put where there were none, all of an object or none, and never changed: whoever reads them after the
//! slot has shown their turn reads those that count, as long as the word stands. What repairs a chunk takes them from
//! the others.
//!
//! *Fewer copies* than there should be are written where too few nodes have no data chunk: only in a region that has
//! lost a column. There all objects have the parity of the columns that are left, and survive as much as coded ones,
//! whatever copies they have. Copy words that are left over name the last copy again: so a Move in place always puts
//! all words, and of two of them one at most finds none.

use arrayvec::ArrayVec;

use super::{Found, ObjectAt, PerPlace, PlaceOfCopy, Redundancy};
use crate::layout::{
    Chunk, Identity, MAX_COPIES, Object, Opcode, Slot, copy_of, copy_word, copy_words_at,
};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Batch, FailedVerb, MnId, Span, Ticket};
use crate::view::Place;

/// Something for each copy of an object.
pub(crate) type PerCopy<T> = ArrayVec<T, MAX_COPIES>;

/// READs of the copy words of a turn, from every column that has them.
#[derive(Debug)]
pub(crate) struct CopyWords {
    /// The object's.
    identity: Identity,
    copies: usize,
    first: Ticket,
    columns: u32,
}

/// CASes that put copy words into the data chunks of an object.
#[derive(Debug)]
pub(crate) struct PutCopyWords {
    first: Option<Ticket>,
    count: u32,
}

/// The copies that copy words name.
#[derive(Debug)]
pub(crate) struct Copies {
    /// By the numbers of their words; `None` where no column names one.
    named: PerCopy<Option<Identity>>,
    /// Somebody who did not answer, if a word may be missing therefore.
    silent: Option<FailedVerb>,
}

/// READs of copies.
#[derive(Debug)]
pub(crate) struct ReadCopies(PerCopy<(Identity, Ticket)>);

impl ObjectAt<'_> {
    /// Whether this word keeps a copy beside it.
    pub fn has_copy(self, word: Slot) -> bool {
        self.region.is_oriented() && word.turn().is_multiple_of(2)
    }

    /// How many copies it should have, at turns with copies.
    pub fn copies(self) -> usize {
        match self.region.redundancy() {
            Redundancy::Oriented(of) => of.copies(),
            _ => 0,
        }
    }

    /// On which nodes copies of it go: different ones without a data chunk, as many as it should have, or as there are.
    pub(crate) fn copies_go_to(self, members: impl Iterator<Item = MnId>) -> PerCopy<MnId> {
        let mut nodes = PerCopy::new();
        let Some(columns) = self.columns() else { return nodes };
        let first_parity = columns.coding().k() as u8;
        let parity = columns.chunks().iter().zip(self.region.places());
        let mut parity: PerPlace<(u8, MnId)> =
            parity.map(|(chunk, place)| (*chunk, place.node)).collect();
        parity.retain(|(chunk, _)| *chunk >= first_parity);
        parity.sort_unstable();
        // Where too few of the columns are to spare anybody else will do.
        let others = members.filter(|node| !self.region.lies_on(*node));
        let there = parity.iter().map(|(_, node)| *node).chain(others);
        nodes.extend(there.take(self.copies()));
        if removed(Mutant::CopiesOnOneNode) {
            let first = nodes.first().copied();
            nodes.iter_mut().for_each(|node| *node = first.unwrap_or(*node));
        }
        nodes
    }

    /// Where the copy words for the turn of a word begin, on each column.
    pub fn copy_words(self, word: Slot) -> impl Iterator<Item = Place> {
        let at = copy_words_at(word.turn(), self.bytes);
        self.places().map(move |place| place.plus(at))
    }

    /// Posts the CASes that put all copy words for the turn of this word into each data chunk, where there are none:
    /// they are put there once in the life of the object.
    pub(crate) fn put_copy_words(
        self,
        batch: &mut Batch,
        word: Slot,
        copies: &[Identity],
    ) -> PutCopyWords {
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
        PutCopyWords { first, count }
    }

    /// Posts the READs of the copy words for the turn of this word.
    pub(crate) fn read_copy_words(self, batch: &mut Batch, word: Slot) -> CopyWords {
        let columns = self.columns().expect("EC-oriented objects have columns");
        let k = columns.coding().k();
        let copies = self.copies();
        // Data chunks first, and parity only where it is written with each object: else it may be of what was here
        // before.
        let mut order: PerPlace<(u8, Place)> =
            columns.chunks().iter().copied().zip(self.copy_words(word)).collect();
        order.retain(|(chunk, _)| usize::from(*chunk) < k || !columns.may_lack_parity());
        order.sort_unstable_by_key(|(chunk, _)| *chunk);
        let mut first = None;
        for (_, place) in &order {
            first.get_or_insert(batch.read(place.node, place.offset, 8 * copies as u32));
        }
        let first = first.expect("a region in a view has columns");
        let columns = order.len() as u32;
        CopyWords { identity: self.identity_of(word), copies, first, columns }
    }
}

/// The copy words of an object that is to have so many, for those copies that it has.
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

/// Puts the copy words of a turn into a chunk of an object that is to have so many copies, and has these.
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

/// The copies that the words of a turn in a chunk of this identity name, by the numbers of the words.
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

impl PutCopyWords {
    /// Whether they stand in all of them.
    pub(crate) fn stands(&self, batch: &Batch) -> Result<bool, FailedVerb> {
        let Some(first) = self.first else { return Ok(removed(Mutant::CopyWordsOverwritten)) };
        let mut stands = true;
        let looked_at = if removed(Mutant::FirstCopyWordDecides) { 1 } else { self.count };
        for cas in 0..looked_at {
            stands &= batch.found(first.plus(cas))? == 0;
        }
        Ok(stands)
    }
}

impl CopyWords {
    /// The copies that they name, on any of the columns that answered.
    pub(crate) fn named(&self, batch: &Batch) -> Copies {
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
    /// Each of those that are known.
    pub(crate) fn known(&self) -> PerCopy<Identity> {
        let mut known = PerCopy::new();
        for copy in self.named.iter().flatten() {
            if !known.contains(copy) {
                known.push(*copy);
            }
        }
        known
    }

    /// Each of them, unless somebody who did not answer may know of more. What no column names nobody can find.
    pub(crate) fn all(&self) -> Result<PerCopy<Identity>, FailedVerb> {
        self.silent.map_or_else(|| Ok(self.known()), Err)
    }

    /// Puts the copy words of a turn into a chunk of this identity.
    pub(super) fn encode(&self, chunk: &mut [u8], turn: u16, object: Identity) {
        let at = copy_words_at(turn, chunk.len() as u64) as usize;
        let places = chunk[at..].as_chunks_mut().0.iter_mut();
        for (number, (place, copy)) in places.zip(&self.named).enumerate() {
            *place = copy.map_or(0, |copy| copy_word(object, number, copy)).to_le_bytes();
        }
    }
}

impl ReadCopies {
    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Found {
    /// Posts the READs of those copies of it that are there: of an EC-oriented object of which too little is good.
    pub(crate) fn read_copies(
        &self,
        batch: &mut Batch,
        copies: &Copies,
        place_of: &PlaceOfCopy<'_>,
    ) -> ReadCopies {
        let class = self.part.and_then(|(chunk, key)| {
            let value_bytes = Chunk::value_bytes_in(batch.bytes(chunk))?;
            Object::class(key.len as usize, value_bytes)
        });
        let read = |copy: Identity| {
            let bytes = class?.bytes();
            let place = place_of(copy.address(), bytes)?;
            Some((copy, batch.read(place.node, place.offset, bytes as u32)))
        };
        ReadCopies(copies.known().into_iter().filter_map(read).collect())
    }

    /// Its value, by the first of these copies that is one of it. The failure is that of one which did not answer, or
    /// of who may know of another one.
    pub(crate) fn value_of_copies(
        &self,
        batch: &Batch,
        copies: &Copies,
        read: &ReadCopies,
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

    /// The value, by a copy that was read; `None` if it is no copy of it.
    fn value_of_copy(&self, batch: &Batch, copy: Identity, read: Span) -> Option<Span> {
        let (chunk, key) = self.part?;
        let object = Object::decode_of(batch.bytes(read), copy).ok()?;
        let is_of = is_copy(&object, batch.bytes(key))
            && Chunk::value_bytes_in(batch.bytes(chunk)) == Some(object.value().len());
        let at = object.value_offset() as u32;
        let bytes = object.value().len() as u32;
        is_of.then(|| read.part(at, bytes))
    }
}

/// Whether an object is a copy of a pair of this key.
pub(crate) fn is_copy(object: &Object<'_>, key: &[u8]) -> bool {
    object.opcode() == Some(Opcode::Copy) && object.key() == key
}

#[cfg(test)]
mod tests;
