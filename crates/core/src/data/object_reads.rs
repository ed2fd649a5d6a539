//! Results of READs of objects: the value, the key, or the damaged parts.

use super::PerPlace;
use crate::erasure::{Coding, MAX_CHUNKS};
use crate::layout::{Chunk, HEADER_BYTES, Identity, KeyInPrefix, Object, Opcode, SizeClass, Slot};
use crate::mutant::{Mutant, removed};
use crate::verbs::{FailedVerb, Span, Ticket, VerbBatch};
use crate::view::PoolPlace;

/// READs that were posted for the value of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    /// The first READ of the fetch; the fetch's other READs were posted right behind the first.
    pub(super) first: Ticket,
    /// The chunks that the READs fetch, if the object consists of chunks.
    pub(super) chunks: Option<ChunkReads>,
}

/// The chunks that READs fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkReads {
    pub coding: Coding,
    /// A bit for each chunk, bit *i* for chunk *i*. The chunks are read in the order of their numbers.
    pub numbers: u16,
    /// Whether the object is EC-oriented, so that slot words lead to it at several turns.
    pub is_oriented: bool,
    /// Whether the object possibly lacks its parity, so that parity alone proves nothing.
    pub may_lack_parity: bool,
}
const _: () = assert!(MAX_CHUNKS <= 16);

/// The result of a fetch, for an operation that looks for a key.
pub(crate) enum FetchResult {
    /// The object contains the requested key. The span is that of the value.
    Value(Span),
    OtherKey,
    /// The READs do not show the whole object that the slot word leads to: the object is reused, being written, or
    /// damaged.
    Stale,
}

impl Fetch {
    /// Returns the fetch that consists of one READ of the whole object.
    #[inline]
    pub fn whole(read: Ticket) -> Fetch {
        Fetch { first: read, chunks: None }
    }

    /// Returns a fetch of these chunks, whose first READ is `first`.
    pub(super) fn chunks(first: Ticket, chunks: ChunkReads) -> Fetch {
        Fetch { first, chunks: Some(chunks) }
    }
}

/// The contents of a replica or chunk that is whole.
pub(crate) struct ReplicaContents<'b> {
    pub key: &'b [u8],
    pub opcode: Option<Opcode>,
    /// The size class of an object with this key and value.
    pub class: Option<SizeClass>,
}

impl<'b> ReplicaContents<'b> {
    pub(super) fn of_replica(object: &Object<'b>) -> ReplicaContents<'b> {
        let key = object.key();
        let opcode = object.opcode();
        ReplicaContents { key, opcode, class: Object::class(key.len(), object.value().len()) }
    }

    pub(super) fn of_chunk(chunk: &Chunk<'b>, coding: Coding) -> ReplicaContents<'b> {
        let key = chunk.key();
        let opcode = Some(chunk.opcode());
        ReplicaContents { key, opcode, class: coding.class(key.len(), chunk.value_bytes()) }
    }
}

/// The key of an object, as its READs show it.
pub(crate) enum KeyReadResult<'b> {
    /// The object's key, if the READs have reached the object that the slot word leads to.
    Key(&'b [u8]),
    /// The key is longer than what was read; this number of bytes has to be read.
    Longer(u64),
    /// The READs do not agree, or none of them shows the object that the slot word leads to.
    Nothing,
}

/// A READ of one place of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceRead {
    pub place: PoolPlace,
    /// The number of the chunk at the place; 0 for a replica.
    pub chunk: u8,
    pub ticket: Ticket,
}

/// The READs of an object, or of its start, from all of its places.
#[derive(Debug)]
pub(crate) struct ObjectReads {
    pub(super) coding: Option<Coding>,
    pub(super) places: PerPlace<PlaceRead>,
    /// Whether the object is EC-oriented, so that slot words lead to it at several turns.
    pub(super) is_oriented: bool,
    /// Whether the object possibly lacks its parity.
    pub(super) may_lack_parity: bool,
}

impl ObjectReads {
    /// Returns the identity that the object's header has to show if this slot word leads to the object.
    pub fn identity_of(&self, word: Slot) -> Identity {
        if self.is_oriented { word.object_identity().first_turn() } else { word.object_identity() }
    }

    /// Whether the place of this READ has to contain its replica or chunk of the object. A parity chunk that the object
    /// is allowed to lack need not be there.
    pub(super) fn is_due(&self, read: &PlaceRead) -> bool {
        let is_parity = self.coding.is_some_and(|coding| usize::from(read.chunk) >= coding.k());
        !(is_parity && self.may_lack_parity)
    }

    /// Returns the key of the object to which a slot word leads. If `is_all`, whole replicas or chunks were read, and
    /// any undamaged one decides; otherwise their starts have to show the same key at all places.
    pub fn key<'b>(
        &self,
        batch: &'b VerbBatch,
        word: Slot,
        is_all: bool,
    ) -> Result<KeyReadResult<'b>, FailedVerb> {
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
            return Ok(
                object.map_or(KeyReadResult::Nothing, |object| KeyReadResult::Key(object.key()))
            );
        }
        let mut starts = shown.iter().map(|r| Object::prefix_key(r, identity).ok());
        let Some(Some(start)) = starts.next() else { return Ok(KeyReadResult::Nothing) };
        Ok(match start {
            _ if starts.any(|other| other != Some(start)) => KeyReadResult::Nothing,
            KeyInPrefix::Whole(key) => KeyReadResult::Key(key),
            KeyInPrefix::CutOff { key_bytes } => KeyReadResult::Longer(HEADER_BYTES + key_bytes),
        })
    }
}

/// The result of the READs of an object from all its places.
#[derive(Debug)]
pub(crate) struct ObjectReadResult {
    /// The whole object, if enough of its replicas or chunks are undamaged.
    pub whole: Option<WholeObject>,
    /// The bytes of an undamaged replica or chunk, if there is one, and the bytes of the pair's key in it.
    pub part: Option<(Span, Span)>,
    /// The places where the object is damaged, and what was read there.
    pub(super) damaged: PerPlace<PlaceRead>,
    /// The failure of a place that did not answer, if there is one.
    pub silent: Option<FailedVerb>,
}

/// An object that was read whole.
#[derive(Debug)]
pub(crate) struct WholeObject {
    /// The bytes of the object's key.
    pub key: Span,
    /// The bytes of the object's value.
    pub value: Span,
    pub(super) of: WholeObjectParts,
}

/// The undamaged parts of an object that was read.
#[derive(Debug)]
pub(super) enum WholeObjectParts {
    /// A whole replica.
    Replica(Span),
    /// Chunks that agree with each other, each with its number.
    Chunks(Coding, Identity, PerPlace<(u8, Span)>),
}

impl ObjectReadResult {
    pub(super) fn nothing() -> ObjectReadResult {
        ObjectReadResult { whole: None, part: None, damaged: PerPlace::new(), silent: None }
    }

    /// Returns the result of the READs, or the failure of a place that did not answer.
    pub fn answered(self) -> Result<ObjectReadResult, FailedVerb> {
        self.silent.map_or(Ok(self), Err)
    }

    /// Returns the number of places where the object is damaged.
    pub fn damaged(&self) -> usize {
        self.damaged.len()
    }
}
