//! Chunks: the parts of an erasure-coded pair, one on each of its nodes.
//!
//! A chunk is an object like any other, with the pair's key and the identity that the slot shows. Its value is a part
//! of the pair's value, or parity:
//!
//! ```text
//! value:         | value len 4 | value crc 4 | number 1 | k 1 | m 1 | 0 5 | payload |
//! from the end   40       8     1
//!                | copies | 0 7 | used 1 bit, 0 7 bits |
//! ```
//!
//! So an operation that looks for a key reads a chunk like any object. The pair's value is cut into `k` payloads of one
//! length, a multiple of 16 bytes; the last payloads are padded with zeros. Parity is computed over the payloads alone.
//! The *copies* field has room for the copy words of copies that are made later, so no checksum covers it. It contains
//! zeros at first.
//!
//! The region decides which code a pair has, and which chunk lies on which place. The bytes of a chunk never decide it,
//! because damaged memory can show anything. Chunks are valid only together: their identity shows that one write made
//! them, each contains the key, the length and the CRC-32C of the whole value, and the restored value has to match that
//! checksum.
//!
//! A *copy word* contains the address of a copy of an EC-oriented pair, for one of the turns in which there are copies.
//! The word's check also covers the identity of the chunk and the number of the copy. So neither damage, nor remains of
//! an earlier object, nor the word of another copy is taken for an address:
//!
//! ```text
//! | address, 64 B units 38 | generation 9 | present 1 | check 16 |
//! ```

use arrayvec::ArrayVec;

use super::bytes::{crc32c, put_u32, u32_at};
use super::object::enclose;
use super::{HEADER_BYTES, Identity, Object, ObjectError, Opcode, Pair, SizeClass, Slot};
use crate::erasure::{Coding, ErasureCode, MAX_CHUNKS};

/// Bytes of a chunk's value before its payload.
const PART_BYTES: usize = 16;
const VALUE_CRC: usize = 4;
const NUMBER: usize = 8;
const CODING: usize = 9;
/// Bytes at the end of a chunk, behind its payload: the copies field, and the last word.
const TAIL_BYTES: u64 = 40;
/// The largest number of copies that an object has at one turn.
pub(crate) const MAX_COPIES: usize = 2;
/// Bytes of all copy words for one turn of an object.
const COPY_BYTES: u64 = 8 * MAX_COPIES as u64;
/// The bit that is set in a copy word that names a copy.
const PRESENT: u64 = 1 << 16;
/// The length of a payload is a multiple of this number of bytes.
const PAYLOAD_ALIGN: usize = 16;

impl Coding {
    /// Returns the length of the payload of each chunk, for a value of this length.
    pub fn payload_bytes(self, value_bytes: usize) -> usize {
        value_bytes.div_ceil(self.k()).next_multiple_of(PAYLOAD_ALIGN)
    }

    /// The size class of each chunk of a pair of these lengths; `None` over [`SizeClass::MAX`].
    pub fn class(self, key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        let value = PART_BYTES as u64 + self.payload_bytes(value_bytes) as u64;
        SizeClass::fitting(chunk_bytes(key_bytes as u64, value))
    }
}

/// Returns the length of a chunk, before it is rounded up to a class. `value_bytes` is the length of the chunk object's
/// value.
fn chunk_bytes(key_bytes: u64, value_bytes: u64) -> u64 {
    HEADER_BYTES + key_bytes + value_bytes + TAIL_BYTES
}

/// Returns the offset of a turn's first copy word in a chunk of this length. The turn's other copy words follow.
pub(crate) fn copy_words_at(turn: u16, chunk_bytes: u64) -> u64 {
    chunk_bytes - TAIL_BYTES + u64::from(turn / 2 % (Slot::TURNS / 2)) * COPY_BYTES
}

/// Returns copy word `number` of an object, which names `copy`.
pub(crate) fn copy_word(object: Identity, number: usize, copy: Identity) -> u64 {
    let word = copy.word() << 17 | PRESENT;
    word | u64::from(copy_check(object, number, word))
}

/// Returns the copy that copy word `number` of an object names; `None` if the word names no copy.
pub fn copy_of(object: Identity, number: usize, word: u64) -> Option<Identity> {
    let is_good = word & PRESENT != 0 && copy_check(object, number, word) == word as u16;
    is_good.then(|| Identity::from_word(word >> 17))
}

fn copy_check(object: Identity, number: usize, word: u64) -> u16 {
    let mut checked = [0; 16];
    checked[..8].copy_from_slice(&(word >> 16).to_le_bytes());
    checked[7] = number as u8;
    checked[8..].copy_from_slice(&object.word().to_le_bytes());
    crc32c(&checked) as u16
}

impl Pair<'_> {
    /// Fills all chunks, or the data chunks alone. Each slice has the length of [`Coding::class`].
    ///
    /// # Panics
    /// If the pair does not fit, or `chunks` contains neither all chunks of the code nor exactly its data chunks.
    pub fn encode_chunks(&self, code: &impl ErasureCode, chunks: &mut [&mut [u8]]) {
        let Pair { key, value, identity, opcode } = *self;
        let coding = code.coding();
        assert!([coding.k(), coding.chunks()].contains(&chunks.len()), "all of the chunks");
        let payload_bytes = coding.payload_bytes(value.len());
        let part_at = HEADER_BYTES as usize + key.len();
        let at = part_at + PART_BYTES;
        let needed = chunk_bytes(key.len() as u64, (PART_BYTES + payload_bytes) as u64);
        assert!(chunks.iter().all(|chunk| chunk.len() as u64 >= needed), "the pair fits");
        let payload = at..at + payload_bytes;
        let (data, parity) = chunks.split_at_mut(coding.k());
        let mut rest = value;
        for chunk in data.iter_mut() {
            let (part, behind) = rest.split_at(rest.len().min(payload_bytes));
            let (filled, zeros) = chunk[payload.clone()].split_at_mut(part.len());
            filled.copy_from_slice(part);
            zeros.fill(0);
            rest = behind;
        }
        if !parity.is_empty() {
            let data = data.iter().map(|chunk| &chunk[payload.clone()]);
            let data: ArrayVec<&[u8], MAX_CHUNKS> = data.collect();
            let parity = parity.iter_mut().map(|chunk| &mut chunk[payload.clone()]);
            let mut parity: ArrayVec<&mut [u8], MAX_CHUNKS> = parity.collect();
            code.encode(&data, &mut parity);
        }
        let part =
            StripeHeader { value_bytes: value.len() as u32, value_crc: crc32c(value), coding };
        for (number, chunk) in chunks.iter_mut().enumerate() {
            part.encode(number, &mut chunk[part_at..at]);
            enclose(chunk, key, PART_BYTES + payload_bytes, identity, opcode);
        }
    }
}

/// The header of a chunk's value: what all chunks of a pair contain about the pair's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StripeHeader {
    value_bytes: u32,
    value_crc: u32,
    coding: Coding,
}

impl StripeHeader {
    fn encode(self, number: usize, bytes: &mut [u8]) {
        let (k, m) = self.coding.into();
        bytes.fill(0);
        put_u32(bytes, 0, self.value_bytes);
        put_u32(bytes, VALUE_CRC, self.value_crc);
        bytes[NUMBER..CODING + 2].copy_from_slice(&[number as u8, k, m]);
    }

    /// Returns the header and the number of the chunk; `None` if the bytes are no chunk's value, or the payload has
    /// another length than the header demands.
    fn decode(value: &[u8]) -> Option<(StripeHeader, usize)> {
        let payload_bytes = value.len().checked_sub(PART_BYTES)?;
        let coding = Coding::new(value[CODING], value[CODING + 1]).ok()?;
        let value_bytes = u32_at(value, 0);
        let fits = coding.payload_bytes(value_bytes as usize) == payload_bytes;
        let part = StripeHeader { value_bytes, value_crc: u32_at(value, VALUE_CRC), coding };
        fits.then_some((part, value[NUMBER].into()))
    }
}

/// A complete chunk, as read from a memory node.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    object: Object<'a>,
    /// The length of the chunk, in bytes.
    bytes: usize,
    opcode: Opcode,
    part: StripeHeader,
    number: usize,
}

impl<'a> Chunk<'a> {
    /// Makes the checks of [`Object::decode_of`], and checks that the object is chunk `number` of this code.
    pub fn decode_of(
        bytes: &'a [u8],
        identity: Identity,
        coding: Coding,
        number: usize,
    ) -> Result<Chunk<'a>, ObjectError> {
        Chunk::of_object(Object::decode_of(bytes, identity)?, bytes, coding, number)
    }

    /// Makes the checks of [`Chunk::decode_of`], but accepts any identity.
    pub fn decode(
        bytes: &'a [u8],
        coding: Coding,
        number: usize,
    ) -> Result<Chunk<'a>, ObjectError> {
        Chunk::of_object(Object::decode(bytes)?, bytes, coding, number)
    }

    fn of_object(
        object: Object<'a>,
        bytes: &'a [u8],
        coding: Coding,
        number: usize,
    ) -> Result<Chunk<'a>, ObjectError> {
        let chunk = Chunk::of(object, bytes.len())
            .filter(|c| (c.part.coding, c.number) == (coding, number));
        chunk.ok_or(ObjectError::OtherChunk)
    }

    fn of(object: Object<'a>, bytes: usize) -> Option<Chunk<'a>> {
        let (part, number) = StripeHeader::decode(object.value())?;
        let opcode = object.opcode()?;
        let needed = chunk_bytes(object.key().len() as u64, object.value().len() as u64);
        let has_room = bytes as u64 >= needed;
        has_room.then_some(Chunk { object, bytes, opcode, part, number })
    }

    /// The pair's key.
    pub fn key(&self) -> &'a [u8] {
        self.object.key()
    }

    /// The identity of the pair.
    pub fn identity(&self) -> Identity {
        self.object.identity()
    }

    /// Returns the operation that wrote the pair.
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Returns the number of the chunk.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the length of the value of the pair to which a chunk belongs. The caller has checked the chunk before.
    pub(crate) fn value_bytes_in(bytes: &[u8]) -> Option<usize> {
        let (part, _) = StripeHeader::decode(Object::decode(bytes).ok()?.value())?;
        Some(part.value_bytes as usize)
    }

    /// Returns the length of the pair's value.
    pub fn value_bytes(&self) -> usize {
        self.part.value_bytes as usize
    }

    /// Whether `value` is the pair's value, by length and checksum.
    pub fn has_value(&self, value: &[u8]) -> bool {
        value.len() == self.value_bytes() && crc32c(value) == self.part.value_crc
    }

    fn payload(&self) -> &'a [u8] {
        &self.object.value()[PART_BYTES..]
    }

    /// Whether this chunk and `other` belong to one pair and were written by the same write.
    pub(crate) fn agrees(&self, other: &Chunk<'_>) -> bool {
        let of =
            |chunk: &Chunk<'_>| (chunk.part, chunk.object.identity(), chunk.opcode, chunk.bytes);
        of(self) == of(other) && self.key() == other.key()
    }
}

/// Chunks that were read for one pair, at most one chunk of each number.
#[derive(Clone, Debug, Default)]
pub struct Stripe<'a> {
    /// The chunks, at most one of each number.
    chunks: ArrayVec<Chunk<'a>, MAX_CHUNKS>,
}

impl<'a> Stripe<'a> {
    /// Adds a chunk, unless the stripe has a chunk of its number already.
    pub fn add(&mut self, chunk: Chunk<'a>) {
        if !self.chunks.iter().any(|other| other.number == chunk.number) {
            self.chunks.push(chunk);
        }
    }

    /// Returns the first chunk that agrees with enough other chunks to restore the value.
    fn first(&self) -> Option<&Chunk<'a>> {
        let agree = |one: &Chunk<'a>| self.chunks.iter().filter(|other| one.agrees(other)).count();
        self.chunks.iter().find(|chunk| agree(chunk) >= chunk.part.coding.k())
    }

    /// Returns the numbers of the chunks that [`Stripe::restore`] uses; no number while too few chunks agree.
    pub fn agreeing(&self) -> impl Iterator<Item = usize> + '_ {
        let agree = self
            .first()
            .into_iter()
            .flat_map(|first| self.chunks.iter().filter(move |chunk| first.agrees(chunk)));
        agree.map(|chunk| chunk.number)
    }

    /// Returns the number of bytes that [`Stripe::restore`] needs; `None` while too few chunks agree.
    pub fn room(&self) -> Option<usize> {
        let first = self.first()?;
        Some(first.part.coding.k() * first.payload().len())
    }

    /// Restores the pair's value, in `room`, which has [`Stripe::room`] bytes. `None` if too few chunks agree, or the
    /// result is not the value that was written.
    ///
    /// # Panics
    /// If `room` has another length, or `code` is not the pair's code.
    pub fn restore<'r>(
        &self,
        code: &impl ErasureCode,
        room: &'r mut [u8],
    ) -> Option<RestoredPair<'r>>
    where
        'a: 'r,
    {
        let first = *self.first()?;
        let Chunk { object, bytes, opcode, part, .. } = first;
        assert_eq!(part.coding, code.coding());
        let payload_bytes = first.payload().len();
        assert_eq!(room.len(), part.coding.k() * payload_bytes, "the room is as long as was said");
        let there = self.chunks.iter().filter(|chunk| first.agrees(chunk));
        let there: ArrayVec<(usize, &[u8]), MAX_CHUNKS> =
            there.map(|chunk| (chunk.number, chunk.payload())).collect();
        {
            let mut missing = ArrayVec::<(usize, &mut [u8]), MAX_CHUNKS>::new();
            for (number, out) in room.chunks_exact_mut(payload_bytes.max(1)).enumerate() {
                match there.iter().find(|(found, _)| *found == number) {
                    Some((_, payload)) => out.copy_from_slice(payload),
                    None => missing.push((number, out)),
                }
            }
            if !missing.is_empty() && !code.restore(&there, &mut missing) {
                return None;
            }
        }
        let (value, zeros) = room.split_at(part.value_bytes as usize);
        let is_good = crc32c(value) == part.value_crc && zeros.iter().all(|byte| *byte == 0);
        is_good.then_some(RestoredPair { object, opcode, part, bytes, payloads: room })
    }
}

/// A pair that was restored from its chunks.
#[derive(Clone, Copy, Debug)]
pub struct RestoredPair<'a> {
    object: Object<'a>,
    opcode: Opcode,
    part: StripeHeader,
    /// The length of each chunk of the pair, in bytes.
    bytes: usize,
    /// The payloads of all data chunks, concatenated.
    payloads: &'a [u8],
}

impl<'a> RestoredPair<'a> {
    /// The pair's key.
    pub fn key(&self) -> &'a [u8] {
        self.object.key()
    }

    /// The pair's value.
    pub fn value(&self) -> &'a [u8] {
        &self.payloads[..self.part.value_bytes as usize]
    }

    /// Makes a chunk, as [`Pair::encode_chunks`] does. `bytes` has the length of the pair's other chunks.
    ///
    /// # Panics
    /// If the length differs, the code has no such chunk, or `code` is not the pair's code.
    pub fn chunk(&self, code: &impl ErasureCode, number: usize, bytes: &mut [u8]) {
        let RestoredPair { object, opcode, part, .. } = *self;
        assert_eq!(part.coding, code.coding());
        assert_eq!(bytes.len(), self.bytes, "chunks have one length");
        let part_at = object.value_offset();
        let at = part_at + PART_BYTES;
        let payload_bytes = self.payloads.len() / part.coding.k();
        let data = self.payloads.chunks_exact(payload_bytes.max(1)).enumerate();
        let data: ArrayVec<(usize, &[u8]), MAX_CHUNKS> = data.collect();
        let payload = &mut bytes[at..at + payload_bytes];
        match data.get(number) {
            Some((_, of)) => payload.copy_from_slice(of),
            None if payload_bytes == 0 => {}
            None => assert!(code.restore(&data, &mut [(number, payload)]), "all data is there"),
        }
        part.encode(number, &mut bytes[part_at..at]);
        enclose(bytes, object.key(), PART_BYTES + payload_bytes, object.identity(), opcode);
    }
}

#[cfg(test)]
mod tests;
