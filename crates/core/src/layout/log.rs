//! The log areas of a pool: the records of running DELETEs.
//!
//! ```text
//! log areas | area 0, 384 B | area 1 | ... up to the first extent |        from the end of the pool's header on
//! log area  | 16 records, 24 B each |
//! record    | hash of the key 8 | number 8 | zeros 4 | crc 4 |
//! ```
//!
//! A DELETE has no object, so its log entry lies here. It writes the record beside each backup of its slot, before its
//! CAS reaches that backup: a memory node that shows the DELETE's number has the record, too. Recovery of a dead
//! session reads its areas, and finds by the hash the slots that possibly show the number.
//!
//! A memory node lends a session one to [`MAX_LOG_AREAS`] areas, as long as the session lives, and zeroes the area
//! before it lends it again. A session writes a record over an older one whose DELETE has ended.

use super::bytes::{crc32c, put_u32, put_u64, u32_at, u64_at};
use super::{POOL_HEADER_BYTES, Slot, first_extent};

/// The number of records of a log area.
pub const LOG_RECORDS: usize = 16;
/// The largest number of log areas that a session can have on a memory node. It gets further ones only if it runs more
/// DELETEs at once than its areas have records.
pub const MAX_LOG_AREAS: usize = 4;
const RECORD_BYTES: usize = 24;
/// Bytes of a log area.
pub const LOG_AREA_BYTES: u64 = (LOG_RECORDS * RECORD_BYTES) as u64;

const NUMBER: usize = 8;
const ZEROS: usize = 16;
const CRC: usize = 20;
const _: () = assert!(CRC + 4 == RECORD_BYTES && POOL_HEADER_BYTES.is_multiple_of(8));

/// Returns the number of log areas in a pool that lends this number of bytes.
pub const fn log_areas(lent_bytes: u64) -> u32 {
    ((first_extent(lent_bytes) - POOL_HEADER_BYTES) / LOG_AREA_BYTES) as u32
}

/// Returns the offset of a log area in its pool, in bytes.
pub const fn log_area_offset(area: u32) -> u64 {
    POOL_HEADER_BYTES + area as u64 * LOG_AREA_BYTES
}

/// Returns the offset of a record in its log area, in bytes.
pub const fn log_record_offset(record: usize) -> u64 {
    (record * RECORD_BYTES) as u64
}

/// The record of a DELETE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// The hash of the DELETE's key.
    pub hash: u64,
    /// The number that the DELETE puts into the key's slot.
    pub number: Slot,
}

impl LogRecord {
    /// Bytes of a record.
    pub const BYTES: usize = RECORD_BYTES;

    /// Returns the record as bytes.
    pub fn encode(&self) -> [u8; LogRecord::BYTES] {
        let mut bytes = [0; LogRecord::BYTES];
        put_u64(&mut bytes, 0, self.hash);
        put_u64(&mut bytes, NUMBER, self.number.0);
        let crc = crc32c(&bytes[..CRC]);
        put_u32(&mut bytes, CRC, crc);
        bytes
    }

    /// Reads a record; `None` if the bytes are not one that a DELETE has written whole.
    pub fn decode(bytes: &[u8; LogRecord::BYTES]) -> Option<LogRecord> {
        let record = LogRecord { hash: u64_at(bytes, 0), number: Slot(u64_at(bytes, NUMBER)) };
        let is_good = u32_at(bytes, ZEROS) == 0 && u32_at(bytes, CRC) == crc32c(&bytes[..CRC]);
        (is_good && record.number.numbered_by().is_some()).then_some(record)
    }

    /// Returns the good records in a log area, or in a part of one that begins with a record.
    pub fn all_in(area: &[u8]) -> impl Iterator<Item = LogRecord> {
        area.as_chunks().0.iter().filter_map(LogRecord::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::ClientId;

    #[test]
    fn records_come_back_and_damage_is_noticed() {
        let record = LogRecord { hash: u64::MAX - 7, number: Slot::number(ClientId(7), 9) };
        let mut bytes = record.encode();
        assert_eq!(LogRecord::decode(&bytes), Some(record));
        for bit in 0..LogRecord::BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LogRecord::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(LogRecord::decode(&[0; LogRecord::BYTES]), None, "a place never used");
        for number in [Slot(0), Slot::vacated(3)] {
            let other = LogRecord { number, ..record };
            assert_eq!(LogRecord::decode(&other.encode()), None, "the number of nobody");
        }
    }

    #[test]
    fn areas_lie_between_the_header_and_the_first_extent() {
        for lent in [0, 4096, (2 << 20) - 1, 2 << 20, u64::MAX] {
            let areas = log_areas(lent);
            assert!(
                log_area_offset(0) >= POOL_HEADER_BYTES && log_area_offset(0).is_multiple_of(8)
            );
            assert!(log_area_offset(areas) <= first_extent(lent));
        }
        assert_eq!([4096, 2 << 20].map(log_areas), [160, 5450]);
        assert_eq!(log_record_offset(LOG_RECORDS), LOG_AREA_BYTES);
    }
}
