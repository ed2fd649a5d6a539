//! The coded scheme: each place of a region is a *column*, which contains one chunk of every object.
//!
//! An object is a stripe, whose chunks lie at the same offset of all columns ([`layout`](crate::layout)). Any `k` good
//! chunks that agree are enough for the *whole* object. The object is *complete* when all columns of the region contain
//! their chunks. No CAS names the object earlier, so recovery never has to complete one. When a column is lost, the
//! region lacks the column's chunk number. A new column gets the chunk number of the column that it replaces or, if it
//! replaces none, the smallest missing number.

mod fill_columns;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use serde::{Deserialize, Serialize};

use super::object_reads::{
    ChunkReads, Fetch, FetchResult, ObjectReadResult, ObjectReads, PlaceRead, ReplicaContents,
    WholeObject, WholeObjectParts,
};
use super::{
    Copies, ObjectLocation, Orientation, PerPlace, Redundancy, Region, encode_copy_words, named_in,
};
use crate::erasure::{Coding, ReedSolomon};
use crate::layout::{
    Chunk, HEADER_BYTES, Identity, MAX_COPIES, Pair, Slot, Stripe, copy_word, copy_words_at,
};
use crate::mutant::{Mutant, removed};
use crate::verbs::{FailedVerb, MnId, Span, Ticket, VerbBatch};
use crate::view::{PoolPlace, Subtable, ViewError};

pub(super) use fill_columns::{copy_to, write_parity};

/// The columns of a coded region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    coding: Coding,
    /// The number of the chunk that each place of the region holds.
    chunks: Vec<u8>,
    /// The state of the region's EC-oriented objects, if the region is for these.
    oriented: Option<OrientedState>,
}

/// The state of EC-oriented objects of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OrientedState {
    orientation: Orientation,
    /// Whether the region's objects are written without parity, so that some objects possibly lack it.
    may_lack_parity: bool,
}

impl Columns {
    /// Returns the columns of a region that has all of them, in order.
    pub(super) fn all(coding: Coding) -> Columns {
        Columns { coding, chunks: (0..coding.chunks() as u8).collect(), oriented: None }
    }

    /// Returns the columns of a region for EC-oriented objects that has all of them.
    pub(super) fn oriented(orientation: Orientation) -> Columns {
        let oriented = Some(OrientedState { orientation, may_lack_parity: true });
        Columns { oriented, ..Columns::all(orientation.coding()) }
    }

    pub(super) fn redundancy(&self) -> Redundancy {
        match self.oriented {
            None => Redundancy::Coded(self.coding),
            Some(OrientedState { orientation, .. }) => Redundancy::Oriented(orientation),
        }
    }

    /// Whether the region's objects are EC-oriented.
    #[inline]
    pub fn is_oriented(&self) -> bool {
        self.oriented.is_some()
    }

    /// Whether some of the region's objects possibly lack parity.
    pub fn may_lack_parity(&self) -> bool {
        self.oriented.is_some_and(|oriented| oriented.may_lack_parity)
    }

    pub(super) fn set_may_lack_parity(&mut self, may: bool) {
        self.oriented.iter_mut().for_each(|oriented| oriented.may_lack_parity = may);
    }

    /// Returns the smallest number of columns that have to remain so that the region's objects survive.
    fn least(&self) -> usize {
        match self.oriented {
            Some(OrientedState { orientation, may_lack_parity: true }) => {
                self.coding.chunks() + 1 - orientation.replicas()
            }
            _ => self.coding.k(),
        }
    }

    /// Returns the region's erasure code.
    #[inline]
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Returns the number of the chunk that each place of the region holds.
    pub fn chunks(&self) -> &[u8] {
        &self.chunks
    }

    /// Returns the number of the chunk for a new place: see [`Scheme::next_chunk`](super::Scheme::next_chunk).
    pub(super) fn next_chunk(&self, leaves: Option<usize>) -> u8 {
        match leaves {
            Some(at) => self.chunks[at],
            None if removed(Mutant::ChunkByPosition) => self.chunks.len() as u8,
            None => (0..).find(|chunk| !self.chunks.contains(chunk)).unwrap_or_default(),
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.chunks.remove(at);
    }

    pub(super) fn insert(&mut self, at: usize, chunk: u8) {
        self.chunks.insert(at, chunk);
    }
}

/// See [`Region::check`].
pub(super) fn check(columns: &Columns, region: &Region) -> Result<(), ViewError> {
    let Columns { coding, chunks, .. } = columns;
    let is_good = |(at, chunk): (usize, &u8)| {
        usize::from(*chunk) < coding.chunks() && !chunks[..at].contains(chunk)
    };
    if chunks.len() != region.places().len() || !chunks.iter().enumerate().all(is_good) {
        return Err(ViewError { what: "the columns of a coded region are not its chunks" });
    }
    if chunks.len() < columns.least() {
        return Err(ViewError { what: "a coded region has too few columns" });
    }
    Ok(())
}

/// See [`Region::survives`].
pub(super) fn survives(columns: &Columns, region: &Region, is_lost: impl Fn(MnId) -> bool) -> bool {
    let left = region.places.iter().filter(|place| !is_lost(place.node));
    left.count() >= columns.least()
}

/// See [`ObjectLocation::write`].
pub(super) fn write(
    columns: &Columns,
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    pair: &Pair<'_>,
) {
    let few = removed(Mutant::ParityNotWritten);
    let written = if few { columns.coding.k() } else { columns.coding.chunks() };
    write_chunks(columns, at, batch, pair, 0..written, &[]);
}

/// See [`ObjectLocation::write_oriented`].
pub(super) fn write_oriented(
    columns: &Columns,
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    pair: &Pair<'_>,
    copies: &[Identity],
) {
    let data_alone = columns.may_lack_parity();
    let written = if data_alone { columns.coding.k() } else { columns.coding.chunks() };
    write_chunks(columns, at, batch, pair, 0..written, copies);
}

/// See [`ObjectLocation::write_parity`].
pub(super) fn write_parity_of(
    columns: &Columns,
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    pair: &Pair<'_>,
) {
    write_chunks(columns, at, batch, pair, columns.coding.k()..columns.coding.chunks(), &[]);
}

/// Posts the WRITEs of those chunks of an object whose numbers are in `written`.
fn write_chunks(
    columns: &Columns,
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    pair: &Pair<'_>,
    written: Range<usize>,
    copies: &[Identity],
) {
    let Columns { coding, chunks, .. } = columns;
    let bytes = at.bytes as u32;
    let stripe = batch.stage(written.end as u32 * bytes);
    let mut of_stripe = PerPlace::<&mut [u8]>::new();
    of_stripe.extend(batch.bytes_mut(stripe).chunks_exact_mut(bytes as usize));
    pair.encode_chunks(&ReedSolomon::new(*coding), &mut of_stripe);
    of_stripe
        .iter_mut()
        .for_each(|chunk| encode_copy_words(chunk, 0, pair.identity, at.copies(), copies));
    drop(of_stripe);
    let is_written = |chunk: &u8| written.contains(&usize::from(*chunk));
    for (place, chunk) in at.places().zip(chunks).filter(|(_, chunk)| is_written(chunk)) {
        batch.write(place.node, place.offset, stripe.part(u32::from(*chunk) * bytes, bytes));
    }
}

/// See [`ObjectLocation::fetch`]. READs data chunks, and parity in place of chunks of lost columns or on silent nodes.
pub(super) fn fetch(
    columns: &Columns,
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    _first: PoolPlace,
    is_silent: impl Fn(MnId) -> bool,
) -> Fetch {
    let mut all = PerPlace::<(u8, PoolPlace)>::new();
    all.extend(columns.chunks.iter().copied().zip(at.places()));
    let is_silent = |node| is_silent(node) && !removed(Mutant::CodedReadsAskSilentNodes);
    all.sort_unstable_by_key(|(chunk, place)| (is_silent(place.node), *chunk));
    all.truncate(columns.coding.k());
    all.sort_unstable_by_key(|(chunk, _)| *chunk);
    let is_oriented = columns.is_oriented();
    let coding = columns.coding;
    let may_lack_parity = at.may_lack_parity;
    let mut chunks = ChunkReads { coding, numbers: 0, is_oriented, may_lack_parity };
    let mut first = None;
    for (chunk, place) in all {
        chunks.numbers |= 1 << chunk;
        let read = batch.read(place.node, place.offset, at.bytes as u32);
        first.get_or_insert(read);
    }
    Fetch::chunks(first.expect("a region in a view has k columns"), chunks)
}

/// See [`ObjectLocation::fetch_verbs`].
pub(super) fn fetch_verbs(columns: &Columns) -> usize {
    columns.coding.k()
}

/// See [`Fetch::of_key`].
#[cold]
pub(super) fn fetched(
    batch: &mut VerbBatch,
    first: Ticket,
    reads: ChunkReads,
    word: Slot,
    key: &[u8],
) -> Result<FetchResult, FailedVerb> {
    let ChunkReads { coding, numbers, is_oriented, may_lack_parity } = reads;
    if may_lack_parity && numbers >> coding.k() << coding.k() == numbers {
        return Ok(FetchResult::Stale);
    }
    let identity =
        if is_oriented { word.object_identity().first_turn() } else { word.object_identity() };
    let mut spans = PerPlace::<(u8, Span)>::new();
    for number in (0..16u8).filter(|number| numbers >> number & 1 == 1) {
        spans.push((number, batch.data_span(first.plus(spans.len() as u32))?));
    }
    let bytes: u32 = spans.iter().map(|(_, span)| span.len).sum();
    let (room, fetched) = batch.stage_from(bytes, |read, room| {
        let mut stripe = Stripe::default();
        for (number, span) in &spans {
            let bytes = &read[span.range()];
            match Chunk::decode_of(bytes, identity, coding, (*number).into()) {
                Ok(chunk) if chunk.key() != key && !removed(Mutant::KeysNotCompared) => {
                    // Parity is possibly left from a much earlier use of the object, in which the object had the same
                    // identity.
                    let proves = !is_oriented || usize::from(*number) < coding.k();
                    return Err(if proves { FetchResult::OtherKey } else { FetchResult::Stale });
                }
                Ok(chunk) => stripe.add(chunk),
                Err(_) => {}
            }
        }
        let needed = stripe.room().ok_or(FetchResult::Stale)?;
        let whole = stripe.restore(&ReedSolomon::new(coding), &mut room[..needed]);
        whole.map(|whole| whole.value().len()).ok_or(FetchResult::Stale)
    });
    Ok(fetched.map_or_else(|other| other, |bytes| FetchResult::Value(room.part(0, bytes as u32))))
}

/// See [`ObjectLocation::read_at`]. Returns a place in a data column, because parity columns possibly lack the object's
/// chunks.
#[cold]
pub(super) fn read_at(
    columns: &Columns,
    at: ObjectLocation<'_>,
    near: MnId,
    is_silent: impl Fn(MnId) -> bool,
) -> PoolPlace {
    let data = at.places().zip(&columns.chunks);
    let data = data.filter(|(_, chunk)| usize::from(**chunk) < columns.coding.k());
    let place = data.map(|(place, _)| place);
    let rank = |place: &PoolPlace| (place.node != near, is_silent(place.node));
    place.min_by_key(rank).expect("a region in a view has data columns")
}

/// See [`ObjectLocation::read_starts`].
pub(super) fn read_starts(
    columns: &Columns,
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    bytes: u64,
) -> ObjectReads {
    let read = |(place, chunk): (PoolPlace, &u8)| {
        let ticket = batch.read(place.node, place.offset, bytes as u32);
        PlaceRead { place, chunk: *chunk, ticket }
    };
    let places = at.places().zip(&columns.chunks).map(read).collect();
    let is_oriented = columns.is_oriented();
    let may_lack_parity = at.may_lack_parity;
    ObjectReads { coding: Some(columns.coding), places, is_oriented, may_lack_parity }
}

/// See [`ObjectReads::judge`].
pub(super) fn judge(
    reads: &ObjectReads,
    coding: Coding,
    batch: &mut VerbBatch,
    identity: Identity,
    holds: impl Fn(&ReplicaContents<'_>) -> bool,
) -> ObjectReadResult {
    let mut found = ObjectReadResult::nothing();
    let mut spans = PerPlace::<(PlaceRead, Span)>::new();
    for read in &reads.places {
        match batch.data_span(read.ticket) {
            Ok(span) => spans.push((*read, span)),
            Err(failure) => found.silent = Some(failure),
        }
    }
    let bytes: u32 = spans.iter().map(|(_, span)| span.len).sum();
    let mut good = PerPlace::<u8>::new();
    // Parity of an EC-oriented object is possibly left from a much earlier use of the object, with the same identity.
    // So parity is used only if it agrees with a good data chunk or, if no data chunk is good, only if the object
    // cannot lack parity.
    let may_be_older =
        |(read, _): &&(PlaceRead, Span)| reads.is_oriented && usize::from(read.chunk) >= coding.k();
    let data = spans.iter().filter(|read| !may_be_older(read));
    let in_order = data.chain(spans.iter().filter(may_be_older));
    let (room, made) = batch.stage_from(bytes, |read, room| {
        let mut stripe = Stripe::default();
        let mut first: Option<Chunk<'_>> = None;
        for (PlaceRead { chunk, .. }, span) in in_order {
            let decoded = Chunk::decode_of(&read[span.range()], identity, coding, (*chunk).into());
            let decoded =
                decoded.ok().filter(|chunk| holds(&ReplicaContents::of_chunk(chunk, coding)));
            let Some(decoded) = decoded else { continue };
            let is_parity = reads.is_oriented && decoded.number() >= coding.k();
            let agrees = first.map_or(!reads.may_lack_parity, |first| decoded.agrees(&first));
            if is_parity && !agrees && !removed(Mutant::OlderParityCounts) {
                continue;
            }
            first.get_or_insert(decoded);
            let key = span.part(HEADER_BYTES as u32, decoded.key().len() as u32);
            found.part.get_or_insert((*span, key));
            good.push(*chunk);
            stripe.add(decoded);
        }
        let needed = stripe.room()?;
        let whole = stripe.restore(&ReedSolomon::new(coding), &mut room[..needed])?;
        let key = whole.key().len();
        let value = whole.value().len();
        let agree: PerPlace<u8> = stripe.agreeing().map(|number| number as u8).collect();
        Some((agree, key as u32, value as u32))
    });
    let Some((agree, key_bytes, value_bytes)) = made else {
        // Too few chunks are good to tell which ones are damaged, so all are noted as damaged. But if the object
        // possibly lacks parity, its missing parity can be the only reason, so only bad data chunks are noted.
        let is_damaged = |read: &PlaceRead| !reads.may_lack_parity || !good.contains(&read.chunk);
        let read = spans.iter().map(|(read, _)| *read);
        found.damaged.extend(read.filter(|read| reads.is_due(read) && is_damaged(read)));
        return found;
    };
    let mut good = PerPlace::new();
    for (read, span) in spans {
        match agree.contains(&read.chunk) {
            true => good.push((read.chunk, span)),
            false if !reads.is_due(&read) => {}
            false => found.damaged.push(read),
        }
    }
    let key = good[0].1.part(HEADER_BYTES as u32, key_bytes);
    found.part = Some((good[0].1, key));
    let of = WholeObjectParts::Chunks(coding, identity, good);
    found.whole = Some(WholeObject { key, value: room.part(0, value_bytes), of });
    found
}

/// Puts into a rebuilt chunk the copy words that the other chunks of this identity contain.
fn take_copy_words<'b>(
    identity: Identity,
    chunk: &mut [u8],
    others: impl Iterator<Item = &'b [u8]> + Clone,
) {
    if removed(Mutant::ChunksWithoutCopyWords) {
        return;
    }
    for turn in (0..Slot::TURNS).step_by(2) {
        for number in 0..MAX_COPIES {
            let named = |other| named_in(other, turn, identity).find(|(of, _)| *of == number);
            if let Some((_, copy)) = others.clone().find_map(named) {
                let at = copy_words_at(turn, chunk.len() as u64) as usize + 8 * number;
                let word = copy_word(identity, number, copy);
                chunk[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
}

/// See [`ObjectReadResult::mend`].
pub(super) fn mend(
    batch: &mut VerbBatch,
    coding: Coding,
    identity: Identity,
    good: &[(u8, Span)],
    damaged: &[PlaceRead],
) -> u64 {
    let bytes = good[0].1.len;
    let made = made_of(batch, coding, identity, good, damaged);
    for (PlaceRead { place, .. }, made) in damaged.iter().zip(made) {
        let span = batch.stage(bytes);
        batch.bytes_mut(span).copy_from_slice(&made);
        batch.write(place.node, place.offset, span);
    }
    damaged.len() as u64 * u64::from(bytes)
}

/// See [`ObjectReadResult::mend_by_copy`].
pub(super) fn mend_by_copy(
    batch: &mut VerbBatch,
    coding: Coding,
    pair: &Pair<'_>,
    turn: u16,
    copies: &Copies,
    damaged: &[PlaceRead],
    bytes: u32,
) {
    let stripe = batch.stage(coding.chunks() as u32 * bytes);
    let mut of_stripe = PerPlace::<&mut [u8]>::new();
    of_stripe.extend(batch.bytes_mut(stripe).chunks_exact_mut(bytes as usize));
    pair.encode_chunks(&ReedSolomon::new(coding), &mut of_stripe);
    of_stripe.iter_mut().for_each(|chunk| copies.encode(chunk, turn, pair.identity));
    drop(of_stripe);
    for PlaceRead { place, chunk, .. } in damaged {
        batch.write(place.node, place.offset, stripe.part(u32::from(*chunk) * bytes, bytes));
    }
}

/// Returns the chunks that replace an object's damaged chunks.
fn made_of(
    batch: &VerbBatch,
    coding: Coding,
    identity: Identity,
    good: &[(u8, Span)],
    damaged: &[PlaceRead],
) -> Vec<Vec<u8>> {
    let code = ReedSolomon::new(coding);
    let mut stripe = Stripe::default();
    for (number, span) in good {
        let chunk = Chunk::decode_of(batch.bytes(*span), identity, coding, (*number).into());
        stripe.add(chunk.expect("it was decoded before"));
    }
    let mut room = vec![0; stripe.room().expect("they agree")];
    let whole = stripe.restore(&code, &mut room).expect("it was restored before");
    let make = |read: &PlaceRead| {
        let mut made = vec![0; good[0].1.len as usize];
        whole.chunk(&code, read.chunk.into(), &mut made);
        // The restored chunk gets its copy words from the undamaged chunks, because a session has possibly just written
        // them.
        take_copy_words(identity, &mut made, good.iter().map(|(_, span)| batch.bytes(*span)));
        made
    };
    damaged.iter().map(make).collect()
}

/// See [`Region::lies_beside`]. Never true, because no single chunk is the whole object.
pub(super) fn lies_beside(_columns: &Columns, _region: &Region, _subtable: &Subtable) -> bool {
    removed(Mutant::StripeGuessed)
}

/// See [`ObjectLocation::may_be_incomplete`].
pub(super) fn may_be_incomplete(_columns: &Columns) -> bool {
    false
}
