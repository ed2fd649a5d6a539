//! The replicated scheme: every byte of an object stands on each place of its region.
//!
//! An object is *whole* on a place if its CRC is good there; any whole one is as good as another. It is
//! *complete* when it is whole on all places.

mod copy;

use super::{ObjectAt, PerPlace, Region};
use crate::layout::{HEADER_BYTES, Object, Slot, UNIT_BYTES};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Batch, FailedVerb, MnId, Span, Ticket};
use crate::view::{MAX_REPLICAS, Place, Subtable};

pub(super) use copy::copy_to;

/// See [`Region::survives`].
pub(super) fn survives(region: &Region, is_lost: impl Fn(MnId) -> bool) -> bool {
    region.places.iter().any(|place| !is_lost(place.node))
}

/// See [`ObjectAt::write`].
#[inline]
pub(super) fn write(at: ObjectAt<'_>, batch: &mut Batch, object: Span) {
    let replicas = if removed(Mutant::ObjectOnOneReplica) { 1 } else { MAX_REPLICAS };
    for place in at.places().take(replicas) {
        batch.write(place.node, place.offset, object);
    }
}

/// See [`ObjectAt::read_at`].
#[inline]
pub(super) fn read_at(at: ObjectAt<'_>, near: MnId, is_silent: impl Fn(MnId) -> bool) -> Place {
    let mut places = at.places();
    let any = (at.address.bytes() / UNIT_BYTES) as u32 % places.len() as u32;
    let mut chosen = None;
    for i in 0.. {
        let Some(place) = places.next() else { break };
        if place.node == near {
            return place;
        }
        if i == any {
            chosen = Some(place);
        }
    }
    let chosen = chosen.expect("a region has at least one place");
    if is_silent(chosen.node) {
        return at.places().find(|place| !is_silent(place.node)).unwrap_or(chosen);
    }
    chosen
}

/// See [`ObjectAt::read_starts`].
pub(super) fn read_starts(at: ObjectAt<'_>, batch: &mut Batch, bytes: u64) -> Reads {
    let read = |place: Place| (place, batch.read(place.node, place.offset, bytes as u32));
    Reads { replicas: at.places().map(read).collect() }
}

/// See [`ObjectAt::lies_beside`].
pub(super) fn lies_beside(at: ObjectAt<'_>, subtable: &Subtable) -> bool {
    let has = |places: &[Place], node| places.iter().any(|place| place.node == node);
    let mut beside = 0;
    for place in at.places() {
        if !subtable.lies_on(place.node) {
            return false;
        }
        beside += usize::from(has(subtable.backups(), place.node));
    }
    beside == subtable.backups().len()
}

/// What READs show of an object's key.
pub(crate) enum ShownKey<'b> {
    /// It is this one, if the READs were of the word's object.
    Key(&'b [u8]),
    /// So many bytes have to be read to see it.
    Longer(u64),
    /// They do not agree, or none of them is what the word says.
    Nothing,
}

/// READs of an object, or of its start, from all of its replicas.
#[derive(Debug)]
pub(crate) struct Reads {
    replicas: PerPlace<(Place, Ticket)>,
}

impl Reads {
    /// The key of the object of a word: of any replica that is good if all of the object was read; else
    /// the one that all starts show.
    pub fn key<'b>(
        &self,
        batch: &'b Batch,
        word: Slot,
        is_all: bool,
    ) -> Result<ShownKey<'b>, FailedVerb> {
        let mut shown = PerPlace::<&[u8]>::new();
        for (_, ticket) in &self.replicas {
            shown.push(batch.data(*ticket)?);
        }
        let trusts_one = removed(Mutant::SplitTrustsOneReplica);
        if trusts_one {
            shown.truncate(1);
        }
        if is_all && !trusts_one {
            let mut good = shown.iter().map(|r| Object::decode_of(r, word.leads_to()));
            let object = good.find_map(Result::ok);
            return Ok(object.map_or(ShownKey::Nothing, |object| ShownKey::Key(object.key())));
        }
        let mut starts = shown.iter().map(|r| Object::prefix_key(r, word.leads_to()).ok());
        let Some(Some(start)) = starts.next() else { return Ok(ShownKey::Nothing) };
        Ok(match start {
            _ if starts.any(|other| other != Some(start)) => ShownKey::Nothing,
            Ok(key) => ShownKey::Key(key),
            Err(key_bytes) => ShownKey::Longer(HEADER_BYTES + key_bytes),
        })
    }

    /// Says what is whole of the object, and what is not.
    pub fn judge(&self, batch: &Batch, is_whole: impl Fn(&[u8]) -> bool) -> Found {
        let mut found = Found { whole: None, damaged: PerPlace::new(), silent: None };
        for (place, ticket) in &self.replicas {
            match batch.data_span(*ticket) {
                Ok(span) if is_whole(batch.bytes(span)) => found.whole = found.whole.or(Some(span)),
                Ok(_) => found.damaged.push(*place),
                Err(failure) => found.silent = Some(failure),
            }
        }
        found
    }
}

/// What READs have shown of an object.
#[derive(Debug)]
pub(crate) struct Found {
    /// The whole object.
    pub whole: Option<Span>,
    /// Where it is not what it should be.
    damaged: PerPlace<Place>,
    /// Somebody who did not answer.
    pub silent: Option<FailedVerb>,
}

impl Found {
    /// The same, if all have answered.
    pub fn answered(self) -> Result<Found, FailedVerb> {
        self.silent.map_or(Ok(self), Err)
    }

    /// On how many places it is not what it should be.
    pub fn damaged(&self) -> usize {
        self.damaged.len()
    }

    /// Posts WRITEs of the whole object to where it is not what it should be; nothing if it is whole
    /// nowhere. Returns how many bytes.
    pub fn mend(&self, batch: &mut Batch) -> u64 {
        let Some(whole) = self.whole else { return 0 };
        for place in &self.damaged {
            batch.write(place.node, place.offset, whole);
        }
        self.damaged.len() as u64 * u64::from(whole.len)
    }
}
