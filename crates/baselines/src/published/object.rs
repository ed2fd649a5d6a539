//! The bytes of a slot word and of an object.
//!
//! ```text
//! word     fingerprint 8 bits | length 8, in units of 64 bytes | address 48         0: a free slot
//! object   CRC 4 bytes | value length 4 | key 16 | value | zeros | log entry 22
//! log      next 6 bytes | previous 6 | old value 8 | CRC of the old value 1 | opcode 7 bits, used 1 bit
//! ```
//!
//! The CRC of an object covers the bytes from the value length to the end of the value. It does not cover the log
//! entry, which the last writer changes later (P §4.5).

use std::ops::Range;

use fusee_core::layout::crc32c;

/// Unit of objects' addresses and lengths, in bytes.
pub(super) const UNIT_BYTES: u64 = 64;
/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 16;
const KEY: usize = 8;
const VALUE: usize = KEY + KEY_BYTES;
const LOG_BYTES: usize = 22;
/// Distance in bytes from the start of the old value to the end of the object.
const OLD_VALUE: usize = 10;
/// Length of the old value with its CRC, in bytes.
pub(super) const COMMIT_BYTES: u32 = 9;

/// The kind of an operation, for its log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishedOpcode {
    Insert = 1,
    Update = 2,
    Delete = 3,
}

/// Returns the length of an object, in units.
pub(super) fn units_for(value_bytes: usize) -> u64 {
    ((VALUE + value_bytes + LOG_BYTES) as u64).div_ceil(UNIT_BYTES)
}

/// A slot word of FUSEE as published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublishedSlotWord(pub u64);

impl PublishedSlotWord {
    pub fn new(fingerprint: u8, units: u8, address: u64) -> PublishedSlotWord {
        PublishedSlotWord(u64::from(fingerprint) << 56 | u64::from(units) << 48 | address)
    }

    pub fn is_free(self) -> bool {
        self.0 == 0
    }

    pub fn fingerprint(self) -> u8 {
        (self.0 >> 56) as u8
    }

    pub fn object(self) -> PublishedObject {
        let units = (self.0 >> 48) as u8;
        PublishedObject { address: self.0 & ((1 << 48) - 1), units }
    }

    /// Returns whether the object of this word can have a key with this fingerprint.
    pub fn may_be(self, fingerprint: u8) -> bool {
        !self.is_free() && self.fingerprint() == fingerprint
    }
}

/// The address and length of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublishedObject {
    pub address: u64,
    pub units: u8,
}

impl PublishedObject {
    pub fn bytes(self) -> u32 {
        u32::from(self.units) * UNIT_BYTES as u32
    }

    /// Returns the address of the old value in the object's log entry.
    pub fn old_value(self) -> u64 {
        self.address + u64::from(self.bytes()) - OLD_VALUE as u64
    }

    /// Returns the address of the byte with the used bit.
    pub fn used(self) -> u64 {
        self.address + u64::from(self.bytes()) - 1
    }
}

/// The part of an object's log entry that is written with the object.
#[derive(Clone, Copy, Debug)]
pub(super) struct PublishedLogEntry {
    pub next: u64,
    pub previous: u64,
    pub opcode: PublishedOpcode,
}

/// Writes an object into these bytes.
pub(super) fn fill(bytes: &mut [u8], key: &[u8], value: &[u8], log: PublishedLogEntry) {
    let end = VALUE + value.len();
    bytes[4..KEY].copy_from_slice(&(value.len() as u32).to_le_bytes());
    bytes[KEY..VALUE].copy_from_slice(key);
    bytes[VALUE..end].copy_from_slice(value);
    let crc = crc32c(&bytes[4..end]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes[end..].fill(0);
    let entry = bytes.len() - LOG_BYTES;
    bytes[entry..entry + 6].copy_from_slice(&log.next.to_le_bytes()[..6]);
    bytes[entry + 6..entry + 12].copy_from_slice(&log.previous.to_le_bytes()[..6]);
    *bytes.last_mut().expect("an object has bytes") = (log.opcode as u8) << 1 | 1;
}

/// Returns the bytes that commit a log entry: the old value with its CRC.
pub(super) fn commit(old: u64) -> [u8; COMMIT_BYTES as usize] {
    let mut bytes = [0; COMMIT_BYTES as usize];
    bytes[..8].copy_from_slice(&old.to_le_bytes());
    bytes[8] = crc32c(&bytes[..8]) as u8;
    bytes
}

/// The result of reading an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PublishedReadResult<At> {
    /// The object has the wanted key. The field locates the value.
    Of(At),
    /// The object has another key.
    Another,
    /// The object is incomplete, because it is being written for another use.
    Torn,
}

/// Finds the value in an object, after a check of the key and the CRC (P §4.4).
pub(super) fn look(bytes: &[u8], key: &[u8]) -> PublishedReadResult<Range<usize>> {
    let word = |at: usize| {
        bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
    };
    let (Some(crc), Some(length)) = (word(0), word(4)) else { return PublishedReadResult::Torn };
    let end = VALUE + length as usize;
    match bytes.get(4..end) {
        Some(whole) if crc32c(whole) == crc => {}
        _ => return PublishedReadResult::Torn,
    }
    if &bytes[KEY..VALUE] == key {
        PublishedReadResult::Of(VALUE..end)
    } else {
        PublishedReadResult::Another
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_tells_its_pair_and_whether_it_is_whole() {
        let mut bytes = [7; 128];
        let log = PublishedLogEntry { next: 1, previous: 2, opcode: PublishedOpcode::Update };
        fill(&mut bytes, b"sixteen bytes :)", b"value", log);
        assert_eq!(look(&bytes, b"sixteen bytes :)"), PublishedReadResult::Of(24..29));
        assert_eq!(look(&bytes, b"another one's :("), PublishedReadResult::Another);
        assert_eq!(bytes[127], 5);
        // A change of the old value in the log entry does not matter. A change of the value does.
        let old = PublishedObject { address: 0, units: 2 }.old_value() as usize;
        bytes[old..old + 9].copy_from_slice(&commit(77));
        assert_eq!(look(&bytes, b"sixteen bytes :)"), PublishedReadResult::Of(24..29));
        bytes[25] ^= 1;
        assert_eq!(look(&bytes, b"sixteen bytes :)"), PublishedReadResult::Torn);
        bytes[4..8].fill(255);
        assert_eq!(look(&bytes, b"sixteen bytes :)"), PublishedReadResult::Torn);
    }

    #[test]
    fn words_tell_what_they_were_made_of() {
        let word = PublishedSlotWord::new(200, 17, 0x1234_5678_9abc);
        assert_eq!(word.fingerprint(), 200);
        assert_eq!(word.object(), PublishedObject { address: 0x1234_5678_9abc, units: 17 });
        assert!(word.may_be(200) && !word.may_be(201) && !PublishedSlotWord(0).may_be(0));
    }
}
