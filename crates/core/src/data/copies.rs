//! Copies of EC-oriented objects (EOR, E §4.2).
//!
//! An EC-oriented object is a stripe whose parity may be missing, and a *copy* of the pair elsewhere: on the node of
//! the stripe's first parity chunk, so that no node has both a data chunk and the copy. The copy is an ordinary object,
//! in an ordinary block, of a region that has one place. No word leads to it. A *copy word* in every chunk
//! names it, one for each turn in which there are copies ([`Slot::turn`]).
//!
//! So a word that leads to the stripe keeps both of them, and whoever frees one frees the other.
//!
//! A copy word is put where there was none, and never changed: whoever reads it after the slot has shown its turn reads
//! the one that counts, as long as the word stands. What repairs a chunk takes it from the others.

use super::{ObjectAt, PerPlace, Region};
use crate::layout::{Identity, Object, Opcode, Slot, copy_of, copy_word, copy_word_at};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Batch, FailedVerb, MnId, Ticket};
use crate::view::{Place, ViewError};

/// See [`Region::check`].
pub(super) fn check(region: &Region, node: MnId) -> Result<(), ViewError> {
    match region.places() {
        [] => Ok(()),
        [place] if place.node == node => Ok(()),
        _ => Err(ViewError { what: "copies lie elsewhere than where they are for" }),
    }
}

/// READs of a copy word, from every column that has it.
#[derive(Debug)]
pub(crate) struct CopyWord {
    /// The object's.
    identity: Identity,
    first: Ticket,
    columns: u32,
}

/// CASes that put a copy word into the data chunks of an object.
#[derive(Debug)]
pub(crate) struct PutCopyWord {
    first: Option<Ticket>,
    count: u32,
}

impl ObjectAt<'_> {
    /// Whether this word keeps a copy beside it.
    pub fn has_copy(self, word: Slot) -> bool {
        self.region.is_oriented() && word.turn().is_multiple_of(2)
    }

    /// Where copies of it go to; `None` if it has none, or there is no node for them.
    pub(crate) fn copies_go_to(self, mut members: impl Iterator<Item = MnId>) -> Option<MnId> {
        let columns = self.region.columns().filter(|columns| columns.is_oriented())?;
        let first_parity = columns.coding().k() as u8;
        let parity = columns.chunks().iter().zip(self.region.places());
        let parity = parity.filter(|(chunk, _)| **chunk >= first_parity);
        if let Some((_, place)) = parity.min_by_key(|(chunk, _)| **chunk) {
            return Some(place.node);
        }
        // Of the columns that are there none is to spare; anybody else will do.
        members.find(|node| !self.region.lies_on(*node))
    }

    /// Where the copy word for the turn of a word stands, on each column.
    pub fn copy_words(self, word: Slot) -> impl Iterator<Item = Place> {
        let at = copy_word_at(word.turn(), self.bytes);
        self.places().map(move |place| place.plus(at))
    }

    /// Posts the CASes that put the copy word for the turn of this word into each data chunk, where there is none: it
    /// is put there once in the life of the object.
    pub(crate) fn put_copy_word(
        self,
        batch: &mut Batch,
        word: Slot,
        copy: Identity,
    ) -> PutCopyWord {
        let columns = self.columns().expect("EC-oriented objects have columns");
        let put = copy_word(self.identity_of(word), copy);
        let k = columns.coding().k();
        let data = self.copy_words(word).zip(columns.chunks());
        let mut first = None;
        let mut count = 0;
        for (place, _) in data.filter(|(_, chunk)| usize::from(**chunk) < k) {
            if removed(Mutant::CopyWordsOverwritten) {
                let span = batch.stage(8);
                batch.bytes_mut(span).copy_from_slice(&put.to_le_bytes());
                batch.write(place.node, place.offset, span);
                continue;
            }
            let cas = batch.cas(place.node, place.offset, 0, put);
            first.get_or_insert(cas);
            count += 1;
        }
        PutCopyWord { first, count }
    }

    /// Posts the READs of the copy word for the turn of this word.
    pub(crate) fn read_copy_word(self, batch: &mut Batch, word: Slot) -> CopyWord {
        let columns = self.columns().expect("EC-oriented objects have columns");
        let k = columns.coding().k();
        // Data chunks first, and parity only where it is written with each object: else it may be of what was here
        // before.
        let mut order: PerPlace<(u8, Place)> =
            columns.chunks().iter().copied().zip(self.copy_words(word)).collect();
        order.retain(|(chunk, _)| usize::from(*chunk) < k || !columns.may_lack_parity());
        order.sort_unstable_by_key(|(chunk, _)| *chunk);
        let mut first = None;
        for (_, place) in &order {
            first.get_or_insert(batch.read(place.node, place.offset, 8));
        }
        let (first, columns) = (first.expect("a region in a view has columns"), order.len() as u32);
        CopyWord { identity: self.identity_of(word), first, columns }
    }
}

impl PutCopyWord {
    /// Whether it stands in all of them.
    pub(crate) fn stands(&self, batch: &Batch) -> Result<bool, FailedVerb> {
        let Some(first) = self.first else { return Ok(removed(Mutant::CopyWordsOverwritten)) };
        let mut stands = true;
        for cas in 0..self.count {
            stands &= batch.found(first.plus(cas))? == 0;
        }
        Ok(stands)
    }
}

impl CopyWord {
    /// The copy that it names, on any of the columns that answered; `None` if it names none on all of them.
    pub(crate) fn named(&self, batch: &Batch) -> Result<Option<Identity>, FailedVerb> {
        let mut silent = None;
        for column in 0..self.columns {
            match batch.data(self.first.plus(column)) {
                Ok(bytes) => {
                    let bytes = bytes.try_into().expect("as long as was asked for");
                    if let Some(copy) = copy_of(self.identity, u64::from_le_bytes(bytes)) {
                        return Ok(Some(copy));
                    }
                }
                Err(failure) => silent = Some(failure),
            }
        }
        silent.map_or(Ok(None), Err)
    }
}

/// Whether an object is a copy of a pair of this key.
pub(crate) fn is_copy(object: &Object<'_>, key: &[u8]) -> bool {
    object.opcode() == Some(Opcode::Copy) && object.key() == key
}
