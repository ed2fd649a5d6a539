//! The replicated scheme: every byte of an object stands on each place of its region.
//!
//! An object is *whole* on a place if its CRC is good there; any whole replica is as good as another. The
//! object is *complete* when it is whole on all places.

mod copy;

use super::found::{Fetch, Fetched, Found, Parts, Read, Reads, Shown, Whole};
use super::{ObjectAt, Region};
use crate::layout::{HEADER_BYTES, Identity, Object, Pair, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Batch, FailedVerb, MnId, Span, Ticket};
use crate::view::{MAX_REPLICAS, Place, Subtable, ViewError};

pub(super) use copy::copy_to;

/// See [`Region::survives`].
pub(super) fn survives(region: &Region, is_lost: impl Fn(MnId) -> bool) -> bool {
    region.places.iter().any(|place| !is_lost(place.node))
}

/// See [`Region::check`].
pub(super) fn check(region: &Region) -> Result<(), ViewError> {
    match region.places.len() {
        1..=MAX_REPLICAS => Ok(()),
        _ => Err(ViewError { what: "there must be 1..=5 replicas" }),
    }
}

/// See [`ObjectAt::write`].
#[inline]
pub(super) fn write(at: ObjectAt<'_>, batch: &mut Batch, pair: &Pair<'_>) {
    let object = batch.stage(at.bytes as u32);
    pair.encode(batch.bytes_mut(object));
    write_staged(at, batch, object);
}

/// See [`ObjectAt::write_around`].
pub(super) fn write_around(
    at: ObjectAt<'_>,
    batch: &mut Batch,
    pair: &Pair<'_>,
    object: Span,
    value_bytes: usize,
) {
    pair.enclose(batch.bytes_mut(object), value_bytes);
    write_staged(at, batch, object);
}

#[inline]
fn write_staged(at: ObjectAt<'_>, batch: &mut Batch, object: Span) {
    for place in at.places() {
        batch.write(place.node, place.offset, object);
        if removed(Mutant::ObjectOnOneReplica) {
            break;
        }
    }
}

/// See [`ObjectAt::fetch`].
#[inline]
pub(super) fn fetch(
    at: ObjectAt<'_>,
    batch: &mut Batch,
    first: Place,
    _is_silent: impl Fn(MnId) -> bool,
) -> Fetch {
    Fetch::whole(batch.read(first.node, first.offset, at.bytes as u32))
}

/// See [`ObjectAt::fetch_verbs`].
#[inline]
pub(super) fn fetch_verbs() -> usize {
    1
}

/// See [`ObjectAt::read_starts`].
pub(super) fn read_starts(at: ObjectAt<'_>, batch: &mut Batch, bytes: u64) -> Reads {
    let read = |place: Place| {
        let ticket = batch.read(place.node, place.offset, bytes as u32);
        Read { place, chunk: 0, ticket }
    };
    let places = at.places().map(read).collect();
    Reads { coding: None, places, is_oriented: false, may_lack_parity: false }
}

/// See [`Region::lies_beside`].
pub(super) fn lies_beside(region: &Region, subtable: &Subtable) -> bool {
    let has = |places: &[Place], node| places.iter().any(|place| place.node == node);
    let mut beside = 0;
    for place in region.places() {
        if !subtable.lies_on(place.node) {
            return false;
        }
        beside += usize::from(has(subtable.backups(), place.node));
    }
    beside == subtable.backups().len()
}

/// See [`ObjectAt::may_be_incomplete`]: an object of a speculative write may be.
pub(super) fn may_be_incomplete() -> bool {
    true
}

/// See [`Fetch::of_key`].
#[inline]
pub(super) fn fetched(
    batch: &Batch,
    read: Ticket,
    word: Slot,
    key: &[u8],
) -> Result<Fetched, FailedVerb> {
    let span = batch.data_span(read)?;
    Ok(match Object::decode_of(batch.bytes(span), word.leads_to()) {
        Ok(object) if object.key() == key || removed(Mutant::KeysNotCompared) => {
            let from = object.value_offset() as u32;
            Fetched::Value(span.part(from, object.value().len() as u32))
        }
        Ok(_) => Fetched::OtherKey,
        Err(_) => Fetched::Stale,
    })
}

/// See [`Reads::judge`].
pub(super) fn judge(
    reads: &Reads,
    batch: &Batch,
    identity: Identity,
    holds: impl Fn(&Shown<'_>) -> bool,
) -> Found {
    let mut found = Found::nothing();
    for read in &reads.places {
        let span = match batch.data_span(read.ticket) {
            Ok(span) => span,
            Err(failure) => {
                found.silent = Some(failure);
                continue;
            }
        };
        let object = Object::decode_of(batch.bytes(span), identity).ok();
        match object.filter(|object| holds(&Shown::of_replica(object))) {
            Some(object) if found.whole.is_none() => {
                let key_bytes = object.key().len();
                let at = object.value_offset();
                let value = span.part(at as u32, object.value().len() as u32);
                let key = span.part(HEADER_BYTES as u32, key_bytes as u32);
                found.part = Some((span, key));
                found.whole = Some(Whole { key, value, of: Parts::Replica(span) });
            }
            Some(_) => {}
            None => found.damaged.push(*read),
        }
    }
    found
}

/// See [`Found::mend`].
pub(super) fn mend(batch: &mut Batch, whole: Span, damaged: &[Read]) -> u64 {
    for Read { place, .. } in damaged {
        batch.write(place.node, place.offset, whole);
    }
    damaged.len() as u64 * u64::from(whole.len)
}
