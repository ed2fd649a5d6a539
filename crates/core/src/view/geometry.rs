//! Sizes that all processes of a cluster agree on, and sizes computed from them.

use serde::{Deserialize, Serialize};

use crate::layout::{
    Address, BLOCK_HEADER_BYTES, BlockShape, Object, SizeClass, UNIT_BYTES, bitmap_bytes,
    object_bytes,
};

/// The largest number of directory bits.
pub const MAX_DEPTH: u32 = 24;
/// The number of bits by which a subtable is allowed to be deeper than it would be if all subtables had one depth.
pub const UNEVEN_BITS: u32 = 6;
/// Buckets of a group: a main bucket, the overflow bucket that both main ones share, a main bucket (RACE hashing).
pub const BUCKETS_PER_GROUP: u64 = 3;
/// Bytes of an entry of the block allocation table: the owner's client id.
pub const TABLE_ENTRY_BYTES: u64 = 4;
/// The largest allowed size of a block, in bytes.
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// Alignment of the first block of a region, behind the block allocation table, in bytes.
pub const TABLE_ALIGN_BYTES: u64 = 4096;

/// Sizes that all processes of a cluster agree on. Tests use small sizes, which make rare cases common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Bytes of a region, a power of two. 2 GiB in the paper.
    pub region_bytes: u64,
    /// Bytes of a block, a power of two. 16 MiB in the paper.
    pub block_bytes: u64,
    /// Slots of a bucket, 1 to 8. With 8 slots a bucket is one cache line.
    pub slots_per_bucket: u8,
    /// Groups of a subtable, a power of two, at least 2, so that a key's two buckets lie in different groups.
    pub groups_per_subtable: u32,
    /// The maximum length of keys, in bytes.
    pub max_key_bytes: u32,
    /// The maximum length of values, in bytes.
    pub max_value_bytes: u32,
}

impl Default for Geometry {
    fn default() -> Geometry {
        Geometry {
            region_bytes: 2 << 30,
            block_bytes: 16 << 20,
            slots_per_bucket: 8,
            groups_per_subtable: 1024,
            max_key_bytes: 64 << 10,
            max_value_bytes: 4 << 20,
        }
    }
}

impl Geometry {
    /// Returns a geometry with regions and blocks of these sizes, and the limits of [`Geometry::default`]. The maximum
    /// length of values is halved until a block has room for an object of the largest pair. This function accepts any
    /// sizes; [`Geometry::check`] tells whether they are possible.
    pub fn with_blocks(region_bytes: u64, block_bytes: u64) -> Geometry {
        let mut geometry = Geometry { region_bytes, block_bytes, ..Geometry::default() };
        let is_possible = block_bytes <= MAX_BLOCK_BYTES;
        while is_possible && geometry.max_value_bytes > 1 && !geometry.holds_largest() {
            geometry.max_value_bytes /= 2;
        }
        geometry
    }

    /// Whether a block has room for an object of the largest key and value.
    fn holds_largest(&self) -> bool {
        let class = self.largest_class();
        class.and_then(|class| BlockShape::new(self.block_bytes, class)).is_some()
    }

    /// Checks the relations between the sizes.
    pub fn check(&self) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        if !self.region_bytes.is_power_of_two() || self.region_bytes > 1 << 40 {
            return fail("region_bytes must be a power of two of at most 1 TiB");
        }
        if !self.block_bytes.is_power_of_two() || self.block_bytes < 4096 {
            return fail("block_bytes must be a power of two of at least 4096");
        }
        if self.block_bytes > MAX_BLOCK_BYTES {
            return fail("block_bytes must be at most 16 MiB");
        }
        if self.block_bytes > self.region_bytes || self.blocks_per_region() == 0 {
            return fail("a region must hold at least one block beside its block table");
        }
        if !(1..=8).contains(&self.slots_per_bucket) {
            return fail("slots_per_bucket must be 1..=8");
        }
        if !self.groups_per_subtable.is_power_of_two()
            || !(2..=1 << 20).contains(&self.groups_per_subtable)
        {
            return fail("groups_per_subtable must be a power of two in 2..=1048576");
        }
        match self.holds_largest() {
            true if self.max_key_bytes > 0 => Ok(()),
            true => fail("max_key_bytes must be at least 1"),
            false => fail("an object of the largest key and value must fit in a block"),
        }
    }

    /// The class of the largest object that the limits allow.
    fn largest_class(&self) -> Option<SizeClass> {
        Object::class(self.max_key_bytes as usize, self.max_value_bytes as usize)
    }

    /// Whether the limits allow objects of this class, which is so if the next smaller class is too small for some
    /// object.
    ///
    /// Operations call this for every slot word that they follow; it is cheaper than computing the largest class.
    #[inline]
    pub fn has_class(&self, class: SizeClass) -> bool {
        let largest = object_bytes(self.max_key_bytes.into(), self.max_value_bytes.into());
        class.below_bytes() < largest
    }

    /// Bytes at the start of a region, before its first block, which the block allocation table takes.
    #[inline]
    pub fn table_bytes(&self) -> u64 {
        ((self.region_bytes >> self.block_bytes.trailing_zeros()) * TABLE_ENTRY_BYTES)
            .next_multiple_of(TABLE_ALIGN_BYTES)
    }

    /// The number of blocks in a region.
    pub fn blocks_per_region(&self) -> u32 {
        (self.region_bytes.saturating_sub(self.table_bytes()) / self.block_bytes) as u32
    }

    /// The offset of the block with this number in its region, in bytes.
    pub fn block_offset(&self, block: u32) -> u64 {
        self.table_bytes() + u64::from(block) * self.block_bytes
    }

    /// The global address of a block.
    pub fn block_address(&self, region: u32, block: u32) -> Address {
        Address::new(u64::from(region) * self.region_bytes + self.block_offset(block))
    }

    /// The region and the number of the block that starts at an address; `None` if no block starts there.
    pub fn block_at(&self, address: Address) -> Option<(u32, u32)> {
        let region = u32::try_from(address.bytes() / self.region_bytes).ok()?;
        let offset = (address.bytes() % self.region_bytes).checked_sub(self.table_bytes())?;
        let block = u32::try_from(offset / self.block_bytes).ok()?;
        let valid = offset.is_multiple_of(self.block_bytes) && block < self.blocks_per_region();
        valid.then_some((region, block))
    }

    /// Returns the block that contains an address, and the offset of the address in the block; `None` outside of all
    /// blocks.
    pub fn block_of(&self, address: Address) -> Option<(Address, u64)> {
        // The mask is right because block and region sizes are powers of two.
        let in_region = address.bytes() & (self.region_bytes - 1);
        let offset = in_region.checked_sub(self.table_bytes())? & (self.block_bytes - 1);
        // The bytes of a region behind its last whole block belong to no block.
        let known = in_region - offset + self.block_bytes <= self.region_bytes;
        known.then(|| (Address::new(address.bytes() - offset), offset))
    }

    /// Returns where the free bit of the object at an address is: the block, the number of the bitmap word, and a mask
    /// with the bit. `None` if no object can be at the address.
    pub fn free_bit(&self, object: Address) -> Option<(Address, u32, u64)> {
        let (block, offset) = self.block_of(object)?;
        let is_object = offset >= BLOCK_HEADER_BYTES + bitmap_bytes(self.block_bytes);
        let unit = offset / UNIT_BYTES;
        is_object.then(|| (block, (unit / 64) as u32, 1 << (unit % 64)))
    }

    /// Bytes of a bucket.
    pub fn bucket_bytes(&self) -> u64 {
        u64::from(self.slots_per_bucket) * 8
    }

    /// The number of slots in a subtable.
    pub fn subtable_slots(&self) -> u64 {
        u64::from(self.groups_per_subtable) * BUCKETS_PER_GROUP * u64::from(self.slots_per_bucket)
    }

    /// The offset of a slot in its subtable, in bytes.
    ///
    /// # Panics
    /// If a subtable has no such slot.
    #[inline]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        assert!(u64::from(slot) < self.subtable_slots(), "no such slot");
        u64::from(slot) * 8
    }

    /// Bytes of a subtable.
    pub fn subtable_bytes(&self) -> u64 {
        self.subtable_slots() * 8
    }
}

/// The error that a view breaks a rule for views.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid view: {what}")]
pub struct ViewError {
    /// A description of the broken rule.
    pub what: &'static str,
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            region_bytes: 1 << 16,
            block_bytes: 1 << 13,
            groups_per_subtable: 2,
            slots_per_bucket: 2,
            max_key_bytes: 64,
            max_value_bytes: 1000,
        }
    }

    #[test]
    fn classes_are_those_up_to_the_largest() {
        for max_value_bytes in [0, 1, 500, 1000, 1024, 5000, 1 << 20, 15 << 20] {
            for max_key_bytes in [1, 7, 64, 1000] {
                let geometry = Geometry { max_key_bytes, max_value_bytes, ..geometry() };
                let Some(largest) = geometry.largest_class() else { continue };
                for code in 1..=SizeClass::MAX.code() {
                    let class = SizeClass::from_code(code).unwrap();
                    assert_eq!(
                        geometry.has_class(class),
                        class <= largest,
                        "{geometry:?} {class:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_address_of_a_region_is_in_its_block_or_in_none() {
        let geometry = geometry();
        assert!(geometry.blocks_per_region() > 0);
        for region in 0..2 {
            let start = u64::from(region) * geometry.region_bytes;
            let mut expected = vec![None; geometry.region_bytes as usize];
            for block in 0..geometry.blocks_per_region() {
                let address = geometry.block_address(region, block);
                for offset in 0..geometry.block_bytes {
                    let at = address.bytes() - start + offset;
                    expected[at as usize] = Some((address, offset));
                }
            }
            for at in (0..geometry.region_bytes).step_by(UNIT_BYTES as usize) {
                let address = Address::new(start + at);
                assert_eq!(geometry.block_of(address), expected[at as usize], "{at}");
            }
        }
    }
}
