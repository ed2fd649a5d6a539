//! The layout of every byte that memory nodes hold and that more than one process reads.
//!
//! ```text
//! slot     8 B   | fingerprint 8 | moved 1 | size class 7 | address 38 | generation 9 | tentative 1 |
//!                or, if it is free, | kind 2 | number 6 | 0 | size class 0 | number 47 | 0 |
//! object   64 B aligned, as long as its size class
//!                | header 32 | key | value | zeros | log entry 1 |
//! chunk    an object whose value is | of which value 16 | a part of it, or parity |
//! block    | header 64 | objects of one size class |
//! region   | block allocation table, 8 B a frame | free bitmap, 1 bit for 64 B | blocks |
//! pool     | header 4 KiB | log areas | extents: regions and subtables |
//! log area | 16 records of DELETEs, 24 B each |
//! ```
//!
//! All integers are little-endian, and are converted explicitly. Lengths are in bytes unless the name says otherwise.
//! Addresses are in bytes, except in slots, where they are in units of 64 bytes.

// Promise SEC-6: Layouts: fields come back, damage is noticed, offsets hold.

mod block;
mod bytes;
mod chunk;
mod log;
mod object;
mod pool;
mod size_class;
mod slot;
mod table;

pub use block::{BLOCK_HEADER_BYTES, BlockHeader, BlockShape, GenerationBase, bitmap_bytes};
pub use bytes::crc32c;
pub use chunk::{Chunk, RestoredPair, Stripe, copy_of};
pub(crate) use chunk::{MAX_COPIES, copy_word, copy_words_at};
pub use log::{
    LOG_AREA_BYTES, LOG_RECORDS, LogRecord, MAX_LOG_AREAS, log_area_offset, log_areas,
    log_record_offset,
};
pub use object::{
    Fill, HEADER_BYTES, KeyInPrefix, LOG_ENTRY_BYTES, OVERHEAD_BYTES, Object, ObjectError, Opcode,
    Pair, Value, object_bytes, value_in,
};
pub use pool::{
    BARS_BYTES, HeaderWord, LAYOUT_VERSION, LAYOUT_WORD, LAYOUTS, MAX_BARRED_VIEW, MAX_BARS,
    POOL_HEADER_BYTES, PoolHeader, bar_word, first_extent, has_bar,
};
pub use size_class::SizeClass;
pub use slot::{Identity, Slot, WriterIdentity};
pub use table::TableEntry;

use core::fmt;

/// The unit of object addresses and sizes, and the alignment of every object.
pub const UNIT_BYTES: u64 = 64;

/// Bits of a global address, which therefore covers 16 TiB.
pub const ADDRESS_BITS: u32 = 44;
/// Bytes of the address space, and so the limit on all regions together.
pub const ADDRESS_SPACE_BYTES: u64 = 1 << ADDRESS_BITS;

/// A global address: 44 bits, `region * region_bytes + offset`, a multiple of 64.
///
/// Address 0 is the start of region 0's block allocation table, where no object lies; it stands for "none".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u64);

impl Address {
    /// The address that no object has, and that stands for none.
    pub const NONE: Address = Address(0);

    /// The address of byte `bytes` of the global memory.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 64, or does not fit in 44 bits.
    pub fn new(bytes: u64) -> Address {
        assert!(bytes.is_multiple_of(UNIT_BYTES), "objects are 64-byte aligned");
        assert!(bytes >> ADDRESS_BITS == 0, "a global address has 44 bits");
        Address(bytes)
    }

    /// The address in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// The address in units of 64 bytes, which has 38 bits.
    pub fn units(self) -> u64 {
        self.0 / UNIT_BYTES
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
