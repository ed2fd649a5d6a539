//! Objects: a key-value pair with its header and the embedded log entry (P §4.5).
//!
//! ```text
//! offset         0       4           8             12         13    16           24     32
//!                | crc 4 | key len 4 | value len 4 | opcode 1 | 0 3 | identity 8 | room 8 | key | value | zeros ...
//! from the end   1
//!                | used 1 bit, 0 7 bits |
//! ```
//!
//! The checksum (CRC-32C) covers the rest of the header, the key and the value. It reveals a WRITE that is not
//! finished, and a reuse of the object during the READ. The identity (address and generation) has to equal that of the
//! slot word which led to the object. It is one aligned word, so no fabric tears it. *Room* is reserved for a version
//! and a deadline; it contains zeros.
//!
//! The used bit is the top bit of the object's last byte, and a WRITE lands its last word last. So an object whose used
//! bit is set is complete, unless the bit is left from an earlier object. That is why the opcode, which the paper keeps
//! beside the used bit, lies where the CRC covers it: recovery must not learn a wrong opcode from a half-written
//! replica.
//!
//! The log entry lacks the pointers of the paper's log entry: recovery walks the blocks in use by position, so objects
//! need no links. It also lacks the old value, because recovery looks at the slots, which tell more. An object is
//! written once, and never changed.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::bytes::{crc32c, put_u32, put_u64, u32_at, u64_at};
use super::{Identity, SizeClass, Slot};

/// Bytes of an object's header, before the key.
pub const HEADER_BYTES: u64 = 32;
const OPCODE: usize = 12;
const IDENTITY: usize = 16;
const ROOM: usize = 24;
const _: () = assert!(IDENTITY.is_multiple_of(8) && ROOM + 8 == HEADER_BYTES as usize);

/// Bytes of the log entry behind the value: the paper's (P §4.5, Fig. 8a) without its pointers, old value and opcode.
pub const LOG_ENTRY_BYTES: u64 = 1;
/// Bytes of an object in addition to its key and value.
pub const OVERHEAD_BYTES: u64 = HEADER_BYTES + LOG_ENTRY_BYTES;

const USED: u8 = 0x80;

/// The operation of a write. The header of an object contains the operation that wrote the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Adds a key that must not exist.
    Insert = 1,
    /// Replaces the value of a key that must exist.
    Update = 2,
    /// Removes a key. No object is written for it.
    Delete = 3,
    /// Adds a key, or replaces its value.
    Upsert = 4,
    /// Writes an unchanged value again, with another redundancy.
    Move = 5,
    /// Writes a copy of an EC-oriented pair. No slot word leads to the copy.
    Copy = 6,
}

impl Opcode {
    /// Returns the word that this operation puts into a slot: a Move sets the moved bit of `word`.
    pub fn puts(self, word: Slot) -> Slot {
        if self == Opcode::Move { word.moved() } else { word }
    }

    fn from_byte(byte: u8) -> Option<Opcode> {
        use Opcode::*;
        [Insert, Update, Upsert, Move, Copy].into_iter().find(|o| *o as u8 == byte)
    }
}

/// The bytes that an object needs for a key and a value of these lengths, before rounding up to a class.
pub fn object_bytes(key_bytes: u64, value_bytes: u64) -> u64 {
    OVERHEAD_BYTES + key_bytes + value_bytes
}

/// The contents of an object.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The key of the pair.
    pub key: &'a [u8],
    /// The value of the pair.
    pub value: &'a [u8],
    /// The identity that slot words will show.
    pub identity: Identity,
    /// The operation that writes the pair.
    pub opcode: Opcode,
}

impl Pair<'_> {
    /// Writes the object into `bytes`, which is as long as the object's size class.
    ///
    /// # Panics
    /// If the pair does not fit.
    pub fn encode(&self, bytes: &mut [u8]) {
        let Pair { key, value, identity, opcode } = *self;
        assert!(object_bytes(key.len() as u64, value.len() as u64) <= bytes.len() as u64);
        bytes[HEADER_BYTES as usize + key.len()..][..value.len()].copy_from_slice(value);
        enclose(bytes, key, value.len(), identity, opcode);
    }

    /// Makes the object like [`Pair::encode`], but around a value of `value_bytes` bytes that `bytes` contains [in
    /// place](value_in) already, and that is used instead of the pair's value.
    ///
    /// # Panics
    /// If the pair does not fit.
    pub fn enclose(&self, bytes: &mut [u8], value_bytes: usize) {
        let Pair { key, identity, opcode, .. } = *self;
        assert!(object_bytes(key.len() as u64, value_bytes as u64) <= bytes.len() as u64);
        enclose(bytes, key, value_bytes, identity, opcode);
    }
}

/// Returns the place of a value of `value_bytes` bytes in its object.
pub fn value_in(key_bytes: usize, value_bytes: usize) -> Range<usize> {
    let start = HEADER_BYTES as usize + key_bytes;
    start..start + value_bytes
}

/// Writes a value into its final place, which has the value's length and holds zeros before.
pub type Fill<'a> = dyn Fn(&mut [u8]) + 'a;

/// A value that is to be written.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// The bytes of the value.
    Bytes(&'a [u8]),
    /// A value of this length, which the function writes directly into the value's place in the object.
    Filled(usize, &'a Fill<'a>),
}

impl Value<'_> {
    /// Returns the length of the value.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Value::Bytes(bytes) => bytes.len(),
            Value::Filled(bytes, _) => *bytes,
        }
    }

    /// Returns the bytes of the value. A value that a function writes is written to `room` for that.
    pub fn bytes<'v>(&self, room: &'v mut Vec<u8>) -> &'v [u8]
    where
        Self: 'v,
    {
        match *self {
            Value::Bytes(bytes) => bytes,
            Value::Filled(bytes, fill) => {
                *room = vec![0; bytes];
                fill(room);
                room
            }
        }
    }
}

/// Makes an object around a value that lies in `bytes` already, at its place in the object.
pub(super) fn enclose(
    bytes: &mut [u8],
    key: &[u8],
    value_bytes: usize,
    identity: Identity,
    opcode: Opcode,
) {
    let value_at = HEADER_BYTES as usize + key.len();
    let end = value_at + value_bytes;
    put_u32(bytes, 4, key.len() as u32);
    put_u32(bytes, 8, value_bytes as u32);
    put_u32(bytes, OPCODE, u32::from(opcode as u8));
    put_u64(bytes, IDENTITY, identity.word());
    put_u64(bytes, ROOM, 0);
    bytes[HEADER_BYTES as usize..value_at].copy_from_slice(key);
    let crc = crc32c(&bytes[4..end]);
    put_u32(bytes, 0, crc);
    let (last, pad) = bytes[end..].split_last_mut().expect("it fits");
    pad.fill(0);
    *last = USED;
}

/// The reason for which bytes are not the expected object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectError {
    /// The used bit is not set, the lengths do not fit the class, or the CRC differs. This is normal while the object
    /// is being written.
    Incomplete,
    /// The bytes are a complete object of another identity, because the address has been reused.
    OtherIdentity(Identity),
    /// The bytes are a complete object of this identity, but not the chunk that belongs at this place.
    OtherChunk,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Incomplete => f.write_str("incomplete object"),
            ObjectError::OtherChunk => f.write_str("not the chunk that belongs here"),
            ObjectError::OtherIdentity(other) => {
                write!(f, "object of identity {:#x}", other.word())
            }
        }
    }
}

/// The key at the start of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyInPrefix<'a> {
    /// The start of the object contains the whole key.
    Whole(&'a [u8]),
    /// The start of the object ends before the key does.
    CutOff {
        /// The length of the key, in bytes.
        key_bytes: u64,
    },
}

/// A complete object, as read from a memory node.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    bytes: &'a [u8],
    key_bytes: usize,
    value_bytes: usize,
}

impl<'a> Object<'a> {
    /// Checks the lengths, the used bit and the CRC of an object that was read from a memory node.
    pub fn decode(bytes: &'a [u8]) -> Result<Object<'a>, ObjectError> {
        let total = bytes.len() as u64;
        if total < OVERHEAD_BYTES || bytes[bytes.len() - 1] & USED == 0 {
            return Err(ObjectError::Incomplete);
        }
        let key_bytes = u32_at(bytes, 4);
        let value_bytes = u32_at(bytes, 8);
        if object_bytes(key_bytes.into(), value_bytes.into()) > total {
            return Err(ObjectError::Incomplete);
        }
        let end = HEADER_BYTES as usize + key_bytes as usize + value_bytes as usize;
        if crc32c(&bytes[4..end]) != u32_at(bytes, 0) {
            return Err(ObjectError::Incomplete);
        }
        Ok(Object { bytes, key_bytes: key_bytes as usize, value_bytes: value_bytes as usize })
    }

    /// Makes the checks of [`Object::decode`], and checks the identity.
    pub fn decode_of(bytes: &'a [u8], identity: Identity) -> Result<Object<'a>, ObjectError> {
        let object = Object::decode(bytes)?;
        match object.identity() {
            found if found == identity => Ok(object),
            found => Err(ObjectError::OtherIdentity(found)),
        }
    }

    /// Whether the start of an object, with its header and at least `key.len()` bytes more, shows this key. Does not
    /// check the CRC: the caller has to know that the object is complete.
    pub fn prefix_has_key(
        prefix: &[u8],
        identity: Identity,
        key: &[u8],
    ) -> Result<bool, ObjectError> {
        Object::check_prefix(prefix, identity)?;
        let end = HEADER_BYTES as usize + key.len();
        let same_length = u32_at(prefix, 4) as usize == key.len();
        Ok(same_length && prefix.get(HEADER_BYTES as usize..end) == Some(key))
    }

    /// Returns the key at the start of an object, or the key's length if `prefix` is too short for the key. Does not
    /// check the CRC: the caller has to know that the object is complete.
    pub fn prefix_key(prefix: &[u8], identity: Identity) -> Result<KeyInPrefix<'_>, ObjectError> {
        Object::check_prefix(prefix, identity)?;
        let key_bytes = u32_at(prefix, 4);
        let key =
            prefix.get(HEADER_BYTES as usize..).and_then(|rest| rest.get(..key_bytes as usize));
        Ok(key.map_or(KeyInPrefix::CutOff { key_bytes: key_bytes.into() }, KeyInPrefix::Whole))
    }

    fn check_prefix(prefix: &[u8], identity: Identity) -> Result<(), ObjectError> {
        match Object::header_identity(prefix) {
            Some(found) if found == identity => Ok(()),
            Some(found) => Err(ObjectError::OtherIdentity(found)),
            None => Err(ObjectError::Incomplete),
        }
    }

    /// Returns the identity in a header, whether or not the object is complete; `None` if the bytes are too few.
    pub fn header_identity(header: &[u8]) -> Option<Identity> {
        let has_header = header.len() >= HEADER_BYTES as usize;
        has_header.then(|| Identity::from_word(u64_at(header, IDENTITY)))
    }

    /// Returns the size class that holds a pair of these lengths; `None` over [`SizeClass::MAX`].
    pub fn class(key_bytes: usize, value_bytes: usize) -> Option<SizeClass> {
        SizeClass::fitting(object_bytes(key_bytes as u64, value_bytes as u64))
    }

    /// Returns the key that the object contains.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES as usize..][..self.key_bytes]
    }

    /// Returns the value that the object contains.
    #[inline]
    pub fn value(&self) -> &'a [u8] {
        &self.bytes[self.value_offset()..][..self.value_bytes]
    }

    /// Returns the offset of the value from the start of the object, in bytes.
    #[inline]
    pub fn value_offset(&self) -> usize {
        HEADER_BYTES as usize + self.key_bytes
    }

    /// Returns the identity that the object's header shows.
    pub fn identity(&self) -> Identity {
        Identity::from_word(u64_at(self.bytes, IDENTITY))
    }

    /// Returns the operation that wrote the object; `None` if the header's byte is no opcode.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_byte(self.bytes[OPCODE])
    }
}

#[cfg(test)]
mod tests {
    use super::super::Address;
    use super::*;

    fn identity(generation: u16) -> Identity {
        Identity::new(Address::new(1 << 20), generation)
    }

    fn pair<'a>(key: &'a [u8], value: &'a [u8], generation: u16) -> Pair<'a> {
        Pair { key, value, identity: identity(generation), opcode: Opcode::Upsert }
    }

    #[test]
    fn pairs_of_all_lengths_come_back() {
        for key_len in [1usize, 5, 26, 27, 100, 65_536] {
            for value_len in [0usize, 1, 25, 26, 27, 88, 1000, 70_000] {
                let key = vec![7; key_len];
                let value = vec![9; value_len];
                let class = Object::class(key_len, value_len).unwrap();
                let mut bytes = vec![0xee; class.bytes() as usize];
                pair(&key, &value, 31).encode(&mut bytes);
                let object = Object::decode_of(&bytes, identity(31)).unwrap();
                assert_eq!((object.key(), object.value()), (&key[..], &value[..]));
                assert_eq!(object.opcode(), Some(Opcode::Upsert));
                let used = object_bytes(key_len as u64, value_len as u64);
                assert!(bytes.len() as u64 - used < bytes.len() as u64 / 8 + 64);
                assert_eq!(
                    Object::decode_of(&bytes, identity(30)).unwrap_err(),
                    ObjectError::OtherIdentity(identity(31))
                );
            }
        }
    }

    #[test]
    fn any_flipped_bit_of_the_pair_is_noticed() {
        let mut bytes = vec![0; 128];
        pair(b"key", b"value", 1).encode(&mut bytes);
        for bit in 0..(HEADER_BYTES as usize + 8) * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Object::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        bytes[OPCODE] ^= 1;
        assert!(Object::decode(&bytes).is_err(), "another opcode");
        bytes[OPCODE] ^= 1;
        bytes[127] &= !USED;
        assert_eq!(Object::decode(&bytes).unwrap_err(), ObjectError::Incomplete);
        assert!(Object::decode(&[]).is_err());
        assert!(Object::decode(&[0xff; 64]).is_err());
    }
}
