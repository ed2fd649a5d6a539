//! Sizes that all of a cluster agrees on, and what follows from them.

use serde::{Deserialize, Serialize};

use crate::layout::{
    Address, BLOCK_HEADER_BYTES, BlockShape, Object, SizeClass, UNIT_BYTES, bitmap_bytes,
};

/// The directory has up to two to this power of entries.
pub const MAX_DEPTH: u32 = 24;
/// Buckets of a group: main, shared overflow, main (RACE hashing).
pub const BUCKETS_PER_GROUP: u64 = 3;
/// Entries of a block allocation table are client ids.
pub const TABLE_ENTRY_BYTES: u64 = 4;
/// The largest block.
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// Blocks start at a multiple of this behind the table.
pub const TABLE_ALIGN_BYTES: u64 = 4096;

/// Sizes that all of a cluster agrees on. Small ones make the rare cases common in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// A power of two. 2 GiB in the paper.
    pub region_bytes: u64,
    /// A power of two. 16 MiB in the paper.
    pub block_bytes: u64,
    /// 1..=8; 8 slots make a bucket one cache line.
    pub slots_per_bucket: u8,
    /// A power of two, at least 2, so that a key's two buckets lie in different groups.
    pub groups_per_subtable: u32,
    /// The longest key, in bytes.
    pub max_key_bytes: u32,
    /// The longest value, in bytes.
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
    /// Regions and blocks of these sizes, and the limits of [`Geometry::default`]; or half of its longest value, or
    /// a quarter and so on, if a block does not hold an object of that. Any sizes may be given: `check` tells whether
    /// they are possible.
    pub fn with_blocks(region_bytes: u64, block_bytes: u64) -> Geometry {
        let mut geometry = Geometry { region_bytes, block_bytes, ..Geometry::default() };
        let is_possible = block_bytes <= MAX_BLOCK_BYTES;
        while is_possible && geometry.max_value_bytes > 1 && !geometry.holds_largest() {
            geometry.max_value_bytes /= 2;
        }
        geometry
    }

    /// Whether a block holds an object of the largest key and value.
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
    #[inline]
    pub fn largest_class(&self) -> Option<SizeClass> {
        Object::class(self.max_key_bytes as usize, self.max_value_bytes as usize)
    }

    /// Bytes of a region before its first block: the block allocation table.
    #[inline]
    pub fn table_bytes(&self) -> u64 {
        ((self.region_bytes >> self.block_bytes.trailing_zeros()) * TABLE_ENTRY_BYTES)
            .next_multiple_of(TABLE_ALIGN_BYTES)
    }

    /// Blocks of a region.
    pub fn blocks_per_region(&self) -> u32 {
        (self.region_bytes.saturating_sub(self.table_bytes()) / self.block_bytes) as u32
    }

    /// The offset of a block in its region.
    pub fn block_offset(&self, block: u32) -> u64 {
        self.table_bytes() + u64::from(block) * self.block_bytes
    }

    /// The global address of a block.
    pub fn block_address(&self, region: u32, block: u32) -> Address {
        Address::new(u64::from(region) * self.region_bytes + self.block_offset(block))
    }

    /// Region and number of the block that starts at an address; `None` if none does.
    pub fn block_at(&self, address: Address) -> Option<(u32, u32)> {
        let region = u32::try_from(address.bytes() / self.region_bytes).ok()?;
        let offset = (address.bytes() % self.region_bytes).checked_sub(self.table_bytes())?;
        let block = u32::try_from(offset / self.block_bytes).ok()?;
        let valid = offset.is_multiple_of(self.block_bytes) && block < self.blocks_per_region();
        valid.then_some((region, block))
    }

    /// The block that an address lies in, and the offset there; `None` outside of the blocks.
    pub fn block_of(&self, address: Address) -> Option<(Address, u64)> {
        let in_region = address.bytes() % self.region_bytes;
        let in_blocks = in_region.checked_sub(self.table_bytes())?;
        let offset = in_blocks % self.block_bytes;
        let known = in_blocks / self.block_bytes < u64::from(self.blocks_per_region());
        known.then(|| (Address::new(address.bytes() - offset), offset))
    }

    /// The free bit of the object at an address: of which block, in which word of its bitmap, and
    /// the word with that bit alone. `None` if no object can be there.
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

    /// Slots of a subtable.
    pub fn subtable_slots(&self) -> u64 {
        u64::from(self.groups_per_subtable) * BUCKETS_PER_GROUP * u64::from(self.slots_per_bucket)
    }

    /// Bytes of a subtable.
    pub fn subtable_bytes(&self) -> u64 {
        self.subtable_slots() * 8
    }
}

/// What is wrong with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid view: {what}")]
pub struct ViewError {
    /// The broken rule.
    pub what: &'static str,
}
