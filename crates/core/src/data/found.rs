//! What READs of objects show: the value, the key, or what is damaged.

use super::PerPlace;
use crate::code::{Coding, MAX_CHUNKS};
use crate::layout::{Chunk, HEADER_BYTES, Identity, Object, Opcode, SizeClass, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::{Batch, FailedVerb, Span, Ticket};
use crate::view::Place;

/// READs that were posted for the value of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    /// The first of them; the others were posted right behind it.
    pub(super) first: Ticket,
    /// Of which chunks, if there are chunks.
    pub(super) chunks: Option<ChunkReads>,
}

/// Of which chunks they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkReads {
    pub coding: Coding,
    /// Bit *i* stands for chunk *i*. They are read in this order.
    pub numbers: u16,
    /// Whether words lead to them at several turns.
    pub is_oriented: bool,
    /// Whether the object is as it should be without parity: then parity alone proves nothing.
    pub may_lack_parity: bool,
}
const _: () = assert!(MAX_CHUNKS <= 16);

/// What an object that was fetched shows to who looks for a key.
pub(crate) enum Fetched {
    /// The key's value.
    Value(Span),
    OtherKey,
    /// Reused, being written, or damaged.
    Stale,
}

impl Fetch {
    /// One READ of all that there is.
    #[inline]
    pub fn whole(read: Ticket) -> Fetch {
        Fetch { first: read, chunks: None }
    }

    /// READs of these chunks, of which the first is given.
    pub(super) fn chunks(first: Ticket, chunks: ChunkReads) -> Fetch {
        Fetch { first, chunks: Some(chunks) }
    }
}

/// What whole bytes of an object show of it: a replica, or a chunk.
pub(crate) struct Shown<'b> {
    pub key: &'b [u8],
    pub opcode: Option<Opcode>,
    /// The size class that it should have.
    pub class: Option<SizeClass>,
}

impl<'b> Shown<'b> {
    pub(super) fn of_replica(object: &Object<'b>) -> Shown<'b> {
        let key = object.key();
        let opcode = object.opcode();
        Shown { key, opcode, class: Object::class(key.len(), object.value().len()) }
    }

    pub(super) fn of_chunk(chunk: &Chunk<'b>, coding: Coding) -> Shown<'b> {
        let key = chunk.key();
        let opcode = Some(chunk.opcode());
        Shown { key, opcode, class: coding.class(key.len(), chunk.value_bytes()) }
    }
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

/// A READ of what one place has of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub place: Place,
    /// Of a chunk its number, else 0.
    pub chunk: u8,
    pub ticket: Ticket,
}

/// READs of an object, or of its start, from all of its places.
#[derive(Debug)]
pub(crate) struct Reads {
    pub(super) coding: Option<Coding>,
    pub(super) places: PerPlace<Read>,
    /// Whether words lead to it at several turns.
    pub(super) is_oriented: bool,
    /// Whether it is as it should be without parity.
    pub(super) may_lack_parity: bool,
}

impl Reads {
    /// The identity that its header shows, if it is the object of this word.
    pub fn identity_of(&self, word: Slot) -> Identity {
        if self.is_oriented { word.leads_to().first_turn() } else { word.leads_to() }
    }

    /// Whether what was read has to be there.
    pub(super) fn is_due(&self, read: &Read) -> bool {
        let is_parity = self.coding.is_some_and(|coding| usize::from(read.chunk) >= coding.k());
        !(is_parity && self.may_lack_parity)
    }

    /// How long the object of a free word may be, by the headers that were read of it.
    pub fn sizes(&self, batch: &Batch, word: Slot) -> Result<PerPlace<u64>, FailedVerb> {
        let mut sizes = PerPlace::<u64>::new();
        for read in &self.places {
            let class = Object::header_class(batch.data(read.ticket)?, word.leads_to());
            if let Some(bytes) = class.map(SizeClass::bytes).filter(|size| !sizes.contains(size)) {
                sizes.push(bytes);
            }
        }
        Ok(sizes)
    }

    /// The key of the object of a word: of any place that is good if all of the object was read; else
    /// the one that all starts show.
    pub fn key<'b>(
        &self,
        batch: &'b Batch,
        word: Slot,
        is_all: bool,
    ) -> Result<ShownKey<'b>, FailedVerb> {
        let identity = self.identity_of(word);
        let mut shown = PerPlace::<&[u8]>::new();
        for read in self.places.iter().filter(|read| self.is_due(read)) {
            shown.push(batch.data(read.ticket)?);
        }
        let trusts_one = removed(Mutant::SplitTrustsOneReplica);
        if trusts_one {
            shown.truncate(1);
        }
        if is_all && !trusts_one {
            let mut good = shown.iter().map(|r| Object::decode_of(r, identity));
            let object = good.find_map(Result::ok);
            return Ok(object.map_or(ShownKey::Nothing, |object| ShownKey::Key(object.key())));
        }
        let mut starts = shown.iter().map(|r| Object::prefix_key(r, identity).ok());
        let Some(Some(start)) = starts.next() else { return Ok(ShownKey::Nothing) };
        Ok(match start {
            _ if starts.any(|other| other != Some(start)) => ShownKey::Nothing,
            Ok(key) => ShownKey::Key(key),
            Err(key_bytes) => ShownKey::Longer(HEADER_BYTES + key_bytes),
        })
    }
}

/// What READs have shown of an object.
#[derive(Debug)]
pub(crate) struct Found {
    /// The object, if enough of it is good.
    pub whole: Option<Whole>,
    /// A part of it that is good, a replica or a chunk, if there is one; with the pair's key.
    pub part: Option<(Span, Span)>,
    /// Where it is not what it should be.
    pub(super) damaged: PerPlace<Read>,
    /// Somebody who did not answer.
    pub silent: Option<FailedVerb>,
}

/// A whole object.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Its key.
    pub key: Span,
    /// Its value.
    pub value: Span,
    pub(super) of: Parts,
}

/// What was read of it.
#[derive(Debug)]
pub(super) enum Parts {
    /// A replica.
    Replica(Span),
    /// Chunks that agree, with their numbers.
    Chunks(Coding, Identity, PerPlace<(u8, Span)>),
}

impl Found {
    pub(super) fn nothing() -> Found {
        Found { whole: None, part: None, damaged: PerPlace::new(), silent: None }
    }

    /// The same, if all have answered.
    pub fn answered(self) -> Result<Found, FailedVerb> {
        self.silent.map_or(Ok(self), Err)
    }

    /// On how many places it is not what it should be.
    pub fn damaged(&self) -> usize {
        self.damaged.len()
    }
}
