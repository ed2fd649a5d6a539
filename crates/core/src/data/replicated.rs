//! The replicated scheme: each place of a region has every byte of an object.
//!
//! An object is *whole* on a place if its CRC is good there; readers can use any whole replica. The object is
//! *complete* when it is whole on all places.

mod fill_replica;

use super::object_reads::{
    Fetch, FetchResult, ObjectReadResult, ObjectReads, PlaceRead, ReplicaContents, WholeObject,
    WholeObjectParts,
};
use super::{ObjectLocation, Region};
use crate::layout::{HEADER_BYTES, Identity, Object, Pair, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::{FailedVerb, MnId, Span, Ticket, VerbBatch};
use crate::view::{MAX_REPLICAS, PoolPlace, Subtable, ViewError};

pub(super) use fill_replica::copy_to;

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

/// See [`ObjectLocation::write`].
#[inline]
pub(super) fn write(at: ObjectLocation<'_>, batch: &mut VerbBatch, pair: &Pair<'_>) {
    let object = batch.stage(at.bytes as u32);
    pair.encode(batch.bytes_mut(object));
    write_staged(at, batch, object);
}

/// See [`ObjectLocation::write_around`].
pub(super) fn write_around(
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    pair: &Pair<'_>,
    object: Span,
    value_bytes: usize,
) {
    pair.enclose(batch.bytes_mut(object), value_bytes);
    write_staged(at, batch, object);
}

#[inline]
fn write_staged(at: ObjectLocation<'_>, batch: &mut VerbBatch, object: Span) {
    for place in at.places() {
        batch.write(place.node, place.offset, object);
        if removed(Mutant::ObjectOnOneReplica) {
            break;
        }
    }
}

/// See [`ObjectLocation::fetch`].
#[inline]
pub(super) fn fetch(
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    first: PoolPlace,
    _is_silent: impl Fn(MnId) -> bool,
) -> Fetch {
    Fetch::whole(batch.read(first.node, first.offset, at.bytes as u32))
}

/// See [`ObjectLocation::fetch_verbs`].
#[inline]
pub(super) fn fetch_verbs() -> usize {
    1
}

/// See [`ObjectLocation::read_starts`].
pub(super) fn read_starts(
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    bytes: u64,
) -> ObjectReads {
    let read = |place: PoolPlace| {
        let ticket = batch.read(place.node, place.offset, bytes as u32);
        PlaceRead { place, chunk: 0, ticket }
    };
    let places = at.places().map(read).collect();
    ObjectReads { coding: None, places, is_oriented: false, may_lack_parity: false }
}

/// See [`Region::lies_beside`].
pub(super) fn lies_beside(region: &Region, subtable: &Subtable) -> bool {
    let has = |places: &[PoolPlace], node| places.iter().any(|place| place.node == node);
    let mut beside = 0;
    for place in region.places() {
        if !subtable.lies_on(place.node) {
            return false;
        }
        beside += usize::from(has(subtable.backups(), place.node));
    }
    beside == subtable.backups().len()
}

/// See [`ObjectLocation::may_be_incomplete`]. Always true, because of speculative writes.
pub(super) fn may_be_incomplete() -> bool {
    true
}

/// See [`Fetch::of_key`].
#[inline(always)]
pub(super) fn fetched(
    batch: &VerbBatch,
    read: Ticket,
    word: Slot,
    key: &[u8],
) -> Result<FetchResult, FailedVerb> {
    let span = batch.data_span(read)?;
    Ok(match Object::decode_of(batch.bytes(span), word.object_identity()) {
        Ok(object) if object.key() == key || removed(Mutant::KeysNotCompared) => {
            let from = object.value_offset() as u32;
            FetchResult::Value(span.part(from, object.value().len() as u32))
        }
        Ok(_) => FetchResult::OtherKey,
        Err(_) => FetchResult::Stale,
    })
}

/// See [`ObjectReads::judge`].
pub(super) fn judge(
    reads: &ObjectReads,
    batch: &VerbBatch,
    identity: Identity,
    holds: impl Fn(&ReplicaContents<'_>) -> bool,
) -> ObjectReadResult {
    let mut found = ObjectReadResult::nothing();
    for read in &reads.places {
        let span = match batch.data_span(read.ticket) {
            Ok(span) => span,
            Err(failure) => {
                found.silent = Some(failure);
                continue;
            }
        };
        let object = Object::decode_of(batch.bytes(span), identity).ok();
        match object.filter(|object| holds(&ReplicaContents::of_replica(object))) {
            Some(object) if found.whole.is_none() => {
                let key_bytes = object.key().len();
                let at = object.value_offset();
                let value = span.part(at as u32, object.value().len() as u32);
                let key = span.part(HEADER_BYTES as u32, key_bytes as u32);
                found.part = Some((span, key));
                found.whole = Some(WholeObject { key, value, of: WholeObjectParts::Replica(span) });
            }
            Some(_) => {}
            None => found.damaged.push(*read),
        }
    }
    found
}

/// See [`ObjectReadResult::mend`].
pub(super) fn mend(batch: &mut VerbBatch, whole: Span, damaged: &[PlaceRead]) -> u64 {
    for PlaceRead { place, .. } in damaged {
        batch.write(place.node, place.offset, whole);
    }
    damaged.len() as u64 * u64::from(whole.len)
}
