//! Blocks and regions: where objects lie.
//!
//! ```text
//! block header  | magic 4 | class 1 | zeros 3 | owner 4 | first object 4 | sequence 8 | zeros 36 | crc 4 |
//! ```
//!
//! A block belongs to one client and holds objects of one size class. Its header tells recovery
//! which client allocates from it, from which object on, and in which order among the client's
//! blocks of that class (P §4.5 stores list heads apart; the header of the block with the
//! smallest sequence is that head). The free bitmap has one bit per object (P §4.4).

use super::bytes::{put_u32, put_u64, u32_at, u64_at};
use super::{SizeClass, UNIT_BYTES};
use crate::verbs::ClientId;

/// Bytes of a block header.
pub const BLOCK_HEADER_BYTES: u64 = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"FBLK");
const CRC: usize = 60;

/// The first 64 bytes of a block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The class of all its objects.
    pub class: SizeClass,
    /// The client that allocates from it.
    pub owner: ClientId,
    /// The first object that this owner allocates; earlier ones are a previous owner's.
    pub first: u32,
    /// The position among the owner's blocks of this class, from 0.
    pub sequence: u64,
}

impl BlockHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; BLOCK_HEADER_BYTES as usize] {
        let mut bytes = [0; BLOCK_HEADER_BYTES as usize];
        put_u32(&mut bytes, 0, MAGIC);
        bytes[4] = self.class.code();
        put_u32(&mut bytes, 8, self.owner.0);
        put_u32(&mut bytes, 12, self.first);
        put_u64(&mut bytes, 16, self.sequence);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..CRC]);
        put_u32(&mut bytes, CRC, crc as u32);
        bytes
    }

    /// Reads a header; `None` if the bytes are none.
    pub fn decode(bytes: &[u8; BLOCK_HEADER_BYTES as usize]) -> Option<BlockHeader> {
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..CRC]);
        if u32_at(bytes, 0) != MAGIC || u32_at(bytes, CRC) != crc as u32 {
            return None;
        }
        Some(BlockHeader {
            class: SizeClass::from_code(bytes[4])?,
            owner: ClientId(u32_at(bytes, 8)),
            first: u32_at(bytes, 12),
            sequence: u64_at(bytes, 16),
        })
    }
}

/// How a block of one size class is cut into objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Number of objects.
    pub objects: u32,
    /// Offset of object 0 in the block, in bytes.
    pub first_offset: u64,
    /// Size of each, in bytes.
    pub object_bytes: u64,
}

impl BlockShape {
    /// The shape of a block of `block_bytes`; `None` if not one object fits.
    pub fn new(block_bytes: u64, class: SizeClass) -> Option<BlockShape> {
        let object_bytes = class.bytes();
        let first_offset = |objects: u64| {
            BLOCK_HEADER_BYTES + objects.div_ceil(64).next_multiple_of(8) * (UNIT_BYTES / 8)
        };
        let mut objects = block_bytes.saturating_sub(first_offset(1)) / object_bytes;
        while objects > 0 && first_offset(objects) + objects * object_bytes > block_bytes {
            objects -= 1;
        }
        (objects > 0).then(|| BlockShape {
            objects: u32::try_from(objects).expect("a block has fewer than 2^32 objects"),
            first_offset: first_offset(objects),
            object_bytes,
        })
    }

    /// Offset of an object in the block, in bytes.
    pub fn offset(&self, object: u32) -> u64 {
        assert!(object < self.objects, "no such object in the block");
        self.first_offset + u64::from(object) * self.object_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_damage_is_noticed() {
        let class = SizeClass::from_code(18).unwrap();
        let header = BlockHeader { class, owner: ClientId(7), first: 3, sequence: 1 << 40 };
        let mut bytes = header.encode();
        assert_eq!(BlockHeader::decode(&bytes), Some(header));
        bytes[16] ^= 1;
        assert_eq!(BlockHeader::decode(&bytes), None);
        assert_eq!(BlockHeader::decode(&[0; 64]), None);
    }

    #[test]
    fn objects_and_bitmap_fit_without_overlap() {
        for block_bytes in [4096, 1 << 16, 1 << 20, 16 << 20] {
            for code in 1..=128 {
                let class = SizeClass::from_code(code).unwrap();
                let Some(shape) = BlockShape::new(block_bytes, class) else {
                    assert!(class.bytes() + 128 > block_bytes);
                    continue;
                };
                let bitmap = u64::from(shape.objects).div_ceil(8);
                assert!(BLOCK_HEADER_BYTES + bitmap <= shape.first_offset);
                assert!(shape.first_offset.is_multiple_of(64));
                assert!(shape.offset(shape.objects - 1) + shape.object_bytes <= block_bytes);
            }
        }
        let class = SizeClass::fitting(1 << 20).unwrap();
        assert_eq!(BlockShape::new(16 << 20, class).unwrap().objects, 15);
    }
}
