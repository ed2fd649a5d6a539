//! The layout of blocks.
//!
//! ```text
//! block         | header 64 | objects of one size class |
//! block header  | magic 4 | class 1 | state 1 | base 2 | owner 4 | first 4 |
//!               | not before 8 | fresh 4 | zeros 32 | crc 4 |
//! base          | generation 9 bits | zeros 6 bits | wrapped 1 bit |
//! ```
//!
//! A block belongs to one session and contains objects of one size class. Its header tells recovery the owner, and
//! whether the owner possibly has unfinished writes in the block. Recovery walks a block *in use* from `first` on, the
//! first object that possibly belongs to such a write, and does not walk a *sealed* block. Headers of both kinds tell
//! from which object on no object was ever allocated. The *base* is the generation of an object's first life
//! (allocation), unless the object's own header shows a later generation.
//!
//! The free bitmap of the block's objects (P §4.4) is a part of the region's free bitmap
//! ([`Geometry`](crate::view::Geometry)).

use super::bytes::{crc32c, put_u32, put_u64, u32_at, u64_at};
use super::{SizeClass, Slot, UNIT_BYTES};
use crate::verbs::ClientId;

/// Bytes of a block header.
pub const BLOCK_HEADER_BYTES: u64 = 64;
const MAGIC: u32 = u32::from_le_bytes(*b"FBLK");
const CRC: usize = 60;

const IN_USE: u8 = 1;
const SEALED: u8 = 2;

/// The first 64 bytes of a block that has an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The size class of the block's objects.
    pub class: SizeClass,
    /// The session that allocates from the block.
    pub owner: ClientId,
    /// The first object that the owner has possibly allocated since it took the block into use. Equal to `fresh` in a
    /// sealed block.
    pub first: u32,
    /// The first object that had never been allocated when the block was taken into use or, if the block is sealed,
    /// when it was sealed. All objects behind it had never been allocated, either.
    pub fresh: u32,
    /// Whether no write of the owner with an object in this block is running. No such write begins before another
    /// header says that the block is in use.
    pub sealed: bool,
    /// The start of the generations of the block's objects, from which their generations are counted.
    pub base: GenerationBase,
}

/// The start of the generations of a block's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationBase {
    /// The generation of an object's first life, unless the object's header shows a later generation.
    pub generation: u16,
    /// Whether objects have possibly had more lives than their headers tell.
    pub is_wrapped: bool,
    /// The epoch before which the block must not be used, because it was emptied without a base; 0 if the block need
    /// not wait.
    pub not_before: u64,
}

impl GenerationBase {
    const WRAPPED: u16 = 1 << 15;

    /// Combines the bases in the headers of two replicas, which can differ if a session died while it wrote the
    /// headers.
    pub fn newest(self, other: GenerationBase) -> GenerationBase {
        let ahead = (other.generation + Slot::GENERATIONS - self.generation) % Slot::GENERATIONS;
        let is_newer = ahead < Slot::GENERATIONS / 2;
        GenerationBase {
            generation: if is_newer { other.generation } else { self.generation },
            is_wrapped: self.is_wrapped || other.is_wrapped,
            not_before: self.not_before.max(other.not_before),
        }
    }

    fn encode(self) -> [u8; 2] {
        let wrapped = if self.is_wrapped { GenerationBase::WRAPPED } else { 0 };
        (self.generation | wrapped).to_le_bytes()
    }

    fn decode(bytes: [u8; 2], not_before: u64) -> Option<GenerationBase> {
        let word = u16::from_le_bytes(bytes);
        let generation = word & !GenerationBase::WRAPPED;
        let is_wrapped = word & GenerationBase::WRAPPED != 0;
        let base = GenerationBase { generation, is_wrapped, not_before };
        (generation < Slot::GENERATIONS).then_some(base)
    }
}

impl BlockHeader {
    /// Returns the header as bytes.
    pub fn encode(&self) -> [u8; BLOCK_HEADER_BYTES as usize] {
        let mut bytes = [0; BLOCK_HEADER_BYTES as usize];
        put_u32(&mut bytes, 0, MAGIC);
        bytes[4] = self.class.code();
        bytes[5] = if self.sealed { SEALED } else { IN_USE };
        bytes[6..8].copy_from_slice(&self.base.encode());
        put_u32(&mut bytes, 8, self.owner.0);
        put_u32(&mut bytes, 12, self.first);
        put_u64(&mut bytes, 16, self.base.not_before);
        put_u32(&mut bytes, 24, self.fresh);
        let crc = crc32c(&bytes[..CRC]);
        put_u32(&mut bytes, CRC, crc);
        bytes
    }

    /// Returns the class in a header, even if the header is a mixture of two writes: the class is in the first word,
    /// and does not change while an object of the block is in use. `None` if the bytes are no header.
    pub fn class_in(bytes: &[u8; BLOCK_HEADER_BYTES as usize]) -> Option<SizeClass> {
        (u32_at(bytes, 0) == MAGIC).then(|| SizeClass::from_code(bytes[4]))?
    }

    /// Reads a header; `None` if the bytes are no header.
    pub fn decode(bytes: &[u8; BLOCK_HEADER_BYTES as usize]) -> Option<BlockHeader> {
        if u32_at(bytes, 0) != MAGIC || u32_at(bytes, CRC) != crc32c(&bytes[..CRC]) {
            return None;
        }
        let sealed = match bytes[5] {
            IN_USE => false,
            SEALED => true,
            _ => return None,
        };
        let owner = ClientId(u32_at(bytes, 8));
        let first = u32_at(bytes, 12);
        let fresh = u32_at(bytes, 24);
        let class = SizeClass::from_code(bytes[4])?;
        let base = GenerationBase::decode([bytes[6], bytes[7]], u64_at(bytes, 16))?;
        Some(BlockHeader { class, owner, first, fresh, sealed, base })
    }
}

/// Bytes of the part of a free bitmap that stands for this number of bytes.
pub const fn bitmap_bytes(bytes: u64) -> u64 {
    bytes / (UNIT_BYTES * 8)
}

/// The division of a block of one size class into objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// The number of objects that a block of the class has.
    pub objects: u32,
    /// The offset of the block's first object, in bytes. The offset is the same for all classes.
    pub first_offset: u64,
    /// Size of each object, in bytes.
    pub object_bytes: u64,
}

impl BlockShape {
    /// The shape of a block of `block_bytes`; `None` if the block has no room for one object.
    pub fn new(block_bytes: u64, class: SizeClass) -> Option<BlockShape> {
        let object_bytes = class.bytes();
        let first_offset = BLOCK_HEADER_BYTES;
        let objects = block_bytes.saturating_sub(first_offset) / object_bytes;
        (objects > 0).then(|| BlockShape {
            objects: u32::try_from(objects).expect("a block has fewer than 2^32 objects"),
            first_offset,
            object_bytes,
        })
    }

    /// Returns the offset of an object in its block, in bytes.
    pub fn offset(&self, object: u32) -> u64 {
        assert!(object < self.objects, "no such object in the block");
        self.first_offset + u64::from(object) * self.object_bytes
    }

    /// The number of the object that starts at an offset; `None` if no object starts there.
    pub fn object_at(&self, offset: u64) -> Option<u32> {
        let from_first = offset.checked_sub(self.first_offset)?;
        let object = u32::try_from(from_first / self.object_bytes).ok()?;
        let starts = from_first.is_multiple_of(self.object_bytes) && object < self.objects;
        starts.then_some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_damage_is_noticed() {
        let class = SizeClass::from_code(18).unwrap();
        for sealed in [false, true] {
            let base = GenerationBase { generation: 511, is_wrapped: sealed, not_before: 1 << 40 };
            let owner = ClientId(7);
            let first = 3;
            let fresh = 5;
            let header = BlockHeader { class, owner, first, fresh, sealed, base };
            let mut bytes = header.encode();
            assert_eq!(BlockHeader::decode(&bytes), Some(header));
            bytes[16] ^= 1;
            assert_eq!(BlockHeader::decode(&bytes), None);
            assert_eq!(BlockHeader::class_in(&bytes), Some(class));
            bytes[4] = 0;
            assert_eq!(BlockHeader::class_in(&bytes), None);
        }
        assert_eq!(BlockHeader::decode(&[0; 64]), None);
        assert_eq!(BlockHeader::class_in(&[0; 64]), None);
    }

    #[test]
    fn objects_and_bitmap_fit_without_overlap() {
        for block_bytes in [4096, 1 << 16, 1 << 20, 16 << 20] {
            for code in 1..=SizeClass::MAX.code() {
                let class = SizeClass::from_code(code).unwrap();
                let Some(shape) = BlockShape::new(block_bytes, class) else {
                    assert!(class.bytes() + BLOCK_HEADER_BYTES > block_bytes);
                    continue;
                };
                assert_eq!(bitmap_bytes(block_bytes) * 8, block_bytes / UNIT_BYTES);
                assert!(shape.first_offset.is_multiple_of(64));
                let last = shape.offset(shape.objects - 1);
                assert!(last + shape.object_bytes <= block_bytes);
                assert_eq!(shape.object_at(last), Some(shape.objects - 1));
                assert_eq!(shape.object_at(last + shape.object_bytes), None);
                assert_eq!(shape.object_at(last + 1), None);
                assert_eq!(shape.object_at(0), None);
            }
        }
        let class = SizeClass::fitting(1 << 20).unwrap();
        assert_eq!(BlockShape::new(16 << 20, class).unwrap().objects, 15);
    }
}
