//! Chunks: what stands of an erasure-coded pair on each of its nodes.
//!
//! A chunk is an object like any other, with the pair's key and the identity that the slot shows. Its
//! value is a part of the pair's, or parity:
//!
//! ```text
//! value:         | value len 4 | value crc 4 | number 1 | k 1 | m 1 | 0 5 | payload |
//! from the end   40       8     1
//!                | copies | 0 7 | used 1 bit, 0 7 bits |
//! ```
//!
//! So whoever looks for a key reads one chunk as it reads an object. The pair's value is cut into `k`
//! payloads of one length, a multiple of 16 bytes; the last ones are filled up with zeros. Parity is
//! computed over the payloads alone. *Copies* are for the addresses of copies of the pair that are
//! written later, so no checksum covers them; they hold zeros.
//!
//! Chunks count only together: with one identity, key and length, and the CRC-32C of the whole value in
//! each of them, which what comes out must have. A mixture of two values has no chance then.

use arrayvec::ArrayVec;

use super::bytes::{crc32c, put_u32, u32_at};
use super::object::enclose;
use super::{HEADER_BYTES, Identity, OVERHEAD_BYTES, Object, ObjectError, Opcode, Pair, SizeClass};
use crate::code::{Code, Coding, MAX_CHUNKS};

/// Bytes of a chunk's value before its payload.
const PART_BYTES: usize = 16;
const VALUE_CRC: usize = 4;
const NUMBER: usize = 8;
const CODING: usize = 9;
/// Bytes at the end of a chunk, behind its payload: copies, and the last word.
const TAIL_BYTES: u64 = 40;
/// Payloads have a multiple of so many bytes.
const PAYLOAD_ALIGN: usize = 16;

impl Coding {
    /// Bytes of each chunk's payload, for a value of so many bytes.
    pub fn payload_bytes(self, value_bytes: usize) -> usize {
        value_bytes.div_ceil(self.k()).next_multiple_of(PAYLOAD_ALIGN)
    }

    /// The size class of each chunk of a pair of these lengths; `None` over 15 MiB.
    pub fn class(self, key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        let value = PART_BYTES + self.payload_bytes(value_bytes);
        SizeClass::fitting(OVERHEAD_BYTES - 1 + (key_bytes + value) as u64 + TAIL_BYTES)
    }
}

impl Pair<'_> {
    /// Fills all chunks, each as long as the class of [`Coding::class`].
    ///
    /// # Panics
    /// If the pair does not fit, or there are not as many as the code has.
    pub fn encode_chunks(&self, code: &impl Code, chunks: &mut [&mut [u8]]) {
        let Pair { key, value, identity, opcode } = *self;
        let coding = code.coding();
        assert_eq!(chunks.len(), coding.chunks());
        let payload_bytes = coding.payload_bytes(value.len());
        let part_at = HEADER_BYTES as usize + key.len();
        let at = part_at + PART_BYTES;
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
        {
            let data = data.iter().map(|chunk| &chunk[payload.clone()]);
            let data: ArrayVec<&[u8], MAX_CHUNKS> = data.collect();
            let parity = parity.iter_mut().map(|chunk| &mut chunk[payload.clone()]);
            let mut parity: ArrayVec<&mut [u8], MAX_CHUNKS> = parity.collect();
            code.encode(&data, &mut parity);
        }
        let part = Part { value_bytes: value.len() as u32, value_crc: crc32c(value), coding };
        for (number, chunk) in chunks.iter_mut().enumerate() {
            part.encode(number, &mut chunk[part_at..at]);
            enclose(chunk, key, PART_BYTES + payload_bytes, identity, opcode);
        }
    }
}

/// What all chunks of a pair tell of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    value_bytes: u32,
    value_crc: u32,
    coding: Coding,
}

impl Part {
    fn encode(self, number: usize, bytes: &mut [u8]) {
        let (k, m) = self.coding.into();
        bytes.fill(0);
        put_u32(bytes, 0, self.value_bytes);
        put_u32(bytes, VALUE_CRC, self.value_crc);
        bytes[NUMBER..CODING + 2].copy_from_slice(&[number as u8, k, m]);
    }

    /// With the number; `None` if it is none of ours, or the payload has another length.
    fn decode(value: &[u8]) -> Option<(Part, usize)> {
        let payload_bytes = value.len().checked_sub(PART_BYTES)?;
        let coding = Coding::new(value[CODING], value[CODING + 1]).ok()?;
        let value_bytes = u32_at(value, 0);
        let number = usize::from(value[NUMBER]);
        let fits = coding.payload_bytes(value_bytes as usize) == payload_bytes;
        let part = Part { value_bytes, value_crc: u32_at(value, VALUE_CRC), coding };
        (fits && number < coding.chunks()).then_some((part, number))
    }
}

/// A complete chunk, as read from a memory node.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    object: Object<'a>,
    opcode: Opcode,
    part: Part,
    number: usize,
}

impl<'a> Chunk<'a> {
    /// Checks what [`Object::decode_of`] does, and that it is a chunk.
    pub fn decode_of(bytes: &'a [u8], identity: Identity) -> Result<Chunk<'a>, ObjectError> {
        let object = Object::decode_of(bytes, identity)?;
        let opcode = object.opcode().ok_or(ObjectError::Incomplete)?;
        let (part, number) = Part::decode(object.value()).ok_or(ObjectError::Incomplete)?;
        Ok(Chunk { object, opcode, part, number })
    }

    /// The pair's key.
    pub fn key(&self) -> &'a [u8] {
        self.object.key()
    }

    /// Which chunk it is.
    pub fn number(&self) -> usize {
        self.number
    }

    /// How the pair is coded.
    pub fn coding(&self) -> Coding {
        self.part.coding
    }

    /// How long the pair's value is.
    pub fn value_bytes(&self) -> usize {
        self.part.value_bytes as usize
    }

    fn payload(&self) -> &'a [u8] {
        &self.object.value()[PART_BYTES..]
    }

    fn agrees(&self, other: &Chunk<'_>) -> bool {
        let of = |chunk: &Chunk<'_>| (chunk.part, chunk.object.identity(), chunk.opcode);
        of(self) == of(other) && self.key() == other.key()
    }
}

/// Chunks of one pair.
#[derive(Clone, Debug, Default)]
pub struct Stripe<'a> {
    /// At most one of each number; all agree.
    chunks: ArrayVec<Chunk<'a>, MAX_CHUNKS>,
}

impl<'a> Stripe<'a> {
    /// Adds one. False if it does not agree with those that are there, or is there already.
    pub fn add(&mut self, chunk: Chunk<'a>) -> bool {
        let known = |other: &Chunk<'_>| other.number == chunk.number || !other.agrees(&chunk);
        let is_new = !self.chunks.iter().any(known);
        if is_new {
            self.chunks.push(chunk);
        }
        is_new
    }

    /// How many bytes [`Stripe::value`] needs; `None` as long as it has too few chunks.
    pub fn room(&self) -> Option<usize> {
        let first = self.chunks.first()?;
        let k = first.coding().k();
        (self.chunks.len() >= k).then(|| k * first.payload().len())
    }

    /// Puts the pair's value at the start of `room`. How long it is; `None` if what comes out is not what
    /// was written.
    ///
    /// # Panics
    /// If it has too few chunks, the room is not as long as [`Stripe::room`] says, or it is another code.
    pub fn value(&self, code: &impl Code, room: &mut [u8]) -> Option<usize> {
        assert_eq!(self.room(), Some(room.len()), "chunks, and room for them");
        let Chunk { part, .. } = self.chunks[0];
        assert_eq!(part.coding, code.coding());
        let payload_bytes = room.len() / part.coding.k();
        self.payloads(code, room.chunks_exact_mut(payload_bytes.max(1)).enumerate());
        let value = &room[..part.value_bytes as usize];
        (crc32c(value) == part.value_crc).then_some(value.len())
    }

    /// Fills the payloads of these numbers.
    fn payloads<'p>(
        &self,
        code: &impl Code,
        wanted: impl IntoIterator<Item = (usize, &'p mut [u8])>,
    ) {
        let mut missing = ArrayVec::<(usize, &mut [u8]), MAX_CHUNKS>::new();
        for (number, payload) in wanted {
            match self.chunks.iter().find(|chunk| chunk.number == number) {
                Some(chunk) => payload.copy_from_slice(chunk.payload()),
                None => missing.push((number, payload)),
            }
        }
        if !missing.is_empty() {
            let there: ArrayVec<(usize, &[u8]), MAX_CHUNKS> =
                self.chunks.iter().map(|chunk| (chunk.number, chunk.payload())).collect();
            assert!(code.restore(&there, &mut missing), "there are enough");
        }
    }

    /// Makes a chunk of the pair, as [`Pair::encode_chunks`] does. `bytes` is as long as the others.
    ///
    /// # Panics
    /// If it has too few chunks, the length differs, or it is another code.
    pub fn chunk(&self, code: &impl Code, number: usize, bytes: &mut [u8]) {
        let Chunk { object, opcode, part, .. } = self.chunks[0];
        assert_eq!(part.coding, code.coding());
        let part_at = object.value_offset();
        let at = part_at + PART_BYTES;
        let payload_bytes = object.value().len() - PART_BYTES;
        self.payloads(code, [(number, &mut bytes[at..at + payload_bytes])]);
        part.encode(number, &mut bytes[part_at..at]);
        enclose(bytes, object.key(), PART_BYTES + payload_bytes, object.identity(), opcode);
    }
}

#[cfg(test)]
mod tests;
