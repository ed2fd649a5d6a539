//! Sizes that all processes of a cluster agree on, and sizes computed from them.

use serde::{Deserialize, Serialize};

use crate::layout::{
    Address, BlockShape, Object, SizeClass, UNIT_BYTES, bitmap_bytes, object_bytes,
};

/// The largest number of directory bits.
pub const MAX_DEPTH: u32 = 24;
/// The number of bits by which a subtable is allowed to be deeper than it would be if all subtables had one depth.
pub const UNEVEN_BITS: u32 = 6;
/// Buckets of a group: a main bucket, the overflow bucket that both main ones share, a main bucket (RACE hashing).
pub const BUCKETS_PER_GROUP: u64 = 3;
/// Bytes of an entry of the block allocation table ([`TableEntry`](crate::layout::TableEntry)).
pub const TABLE_ENTRY_BYTES: u64 = 8;
/// The largest allowed size of the largest blocks, in bytes.
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// The smallest size of a frame, in bytes. A word of the free bitmap stands for as many bytes, so it belongs to one
/// block.
pub const FRAME_ALIGN_BYTES: u64 = 4096;
const _: () = assert!(FRAME_ALIGN_BYTES == UNIT_BYTES * 64);
/// The largest number of frames in a region. So a region's block table fits into one message.
const MAX_FRAMES: u64 = 1 << 20;
/// The number of frames of the largest blocks, unless frames would be smaller than [`FRAME_ALIGN_BYTES`].
const MOST_FRAMES: u64 = 256;

/// Sizes that all processes of a cluster agree on. Tests use small sizes, which make rare cases common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Bytes of a region, a power of two. 2 GiB in the paper.
    pub region_bytes: u64,
    /// Bytes of the largest blocks, a power of two. All blocks of the paper have 16 MiB.
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
        if self.block_bytes > self.region_bytes || !self.is_block(0, self.max_order()) {
            return fail("a region must hold at least one block beside its block table");
        }
        if self.region_bytes / self.frame_bytes() > MAX_FRAMES {
            return fail("a region must have at most 2^20 frames: raise block_bytes");
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

    /// Bytes of a frame. A region is divided into frames, and a block has 2^order adjacent frames, from one whose
    /// number is a multiple of 2^order.
    #[inline]
    pub fn frame_bytes(&self) -> u64 {
        (self.block_bytes / MOST_FRAMES).max(FRAME_ALIGN_BYTES)
    }

    /// The order of the largest blocks.
    #[inline]
    pub fn max_order(&self) -> u8 {
        (self.block_bytes / self.frame_bytes()).trailing_zeros() as u8
    }

    /// Bytes of a block of this order, which is at most [`Geometry::max_order`].
    #[inline]
    pub fn order_bytes(&self, order: u8) -> u64 {
        self.frame_bytes() << order.min(self.max_order())
    }

    /// Returns the order of the smallest blocks that have at least this number of bytes, or of the largest blocks.
    pub fn order_fitting(&self, bytes: u64) -> u8 {
        let frames = bytes.div_ceil(self.frame_bytes()).max(1).next_power_of_two();
        (frames.trailing_zeros() as u8).min(self.max_order())
    }

    /// Returns the order of blocks that have this number of bytes; `None` if no block does.
    pub fn order_of(&self, bytes: u64) -> Option<u8> {
        let order = self.order_fitting(bytes);
        (self.order_bytes(order) == bytes).then_some(order)
    }

    /// Bytes of the block allocation table, at the start of a region, up to the region's free bitmap.
    #[inline]
    pub fn table_bytes(&self) -> u64 {
        ((self.region_bytes >> self.frame_bytes().trailing_zeros()) * TABLE_ENTRY_BYTES)
            .next_multiple_of(UNIT_BYTES)
    }

    /// Bytes at the start of a region, before its first block: the block allocation table and the free bitmap.
    #[inline]
    pub fn head_bytes(&self) -> u64 {
        (self.table_bytes() + bitmap_bytes(self.region_bytes)).next_multiple_of(FRAME_ALIGN_BYTES)
    }

    /// The number of frames in a region.
    pub fn frames_per_region(&self) -> u32 {
        (self.region_bytes.saturating_sub(self.head_bytes()) / self.frame_bytes()) as u32
    }

    /// The offset of the frame with this number in its region, in bytes.
    #[inline]
    pub fn frame_offset(&self, frame: u32) -> u64 {
        self.head_bytes() + u64::from(frame) * self.frame_bytes()
    }

    /// The global address of a frame.
    pub fn frame_address(&self, region: u32, frame: u32) -> Address {
        Address::new(u64::from(region) * self.region_bytes + self.frame_offset(frame))
    }

    /// The region and the number of the frame that starts at an address; `None` if no frame starts there.
    pub fn frame_at(&self, address: Address) -> Option<(u32, u32)> {
        let (region, frame) = self.frame_of(address)?;
        (self.frame_address(region, frame) == address).then_some((region, frame))
    }

    /// The region and the number of the frame that contains an address; `None` outside of all frames.
    pub fn frame_of(&self, address: Address) -> Option<(u32, u32)> {
        let region = u32::try_from(address.bytes() / self.region_bytes).ok()?;
        let offset = (address.bytes() % self.region_bytes).checked_sub(self.head_bytes())?;
        let frame = u32::try_from(offset / self.frame_bytes()).ok()?;
        (frame < self.frames_per_region()).then_some((region, frame))
    }

    /// Whether a block of this order can begin at this frame of a region.
    pub fn is_block(&self, frame: u32, order: u8) -> bool {
        order <= self.max_order()
            && frame.is_multiple_of(1 << order)
            && frame.checked_add(1 << order).is_some_and(|end| end <= self.frames_per_region())
    }

    /// Returns the largest blocks into which a region is divided at first: their first frames and orders, in order.
    pub fn first_blocks(&self) -> impl Iterator<Item = (u32, u8)> + use<> {
        let geometry = *self;
        let mut frame = 0;
        core::iter::from_fn(move || {
            let order =
                (0..=geometry.max_order()).rfind(|order| geometry.is_block(frame, *order))?;
            let first = frame;
            frame += 1 << order;
            Some((first, order))
        })
    }

    /// Returns the offset, in its region, of the word of the free bitmap that has the bit of this address.
    #[inline]
    pub fn bitmap_offset(&self, address: Address) -> u64 {
        let in_region = address.bytes() & (self.region_bytes - 1);
        self.table_bytes() + in_region / FRAME_ALIGN_BYTES * 8
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
    fn every_address_of_a_region_is_in_its_frame_or_in_none() {
        let geometry = geometry();
        assert_eq!((geometry.frame_bytes(), geometry.max_order()), (4096, 1));
        for region in 0..2 {
            let start = u64::from(region) * geometry.region_bytes;
            for at in (0..geometry.region_bytes).step_by(UNIT_BYTES as usize) {
                let frame = at.checked_sub(geometry.head_bytes()).map(|at| (at / 4096) as u32);
                let frame = frame.filter(|frame| *frame < geometry.frames_per_region());
                let found = geometry.frame_of(Address::new(start + at));
                assert_eq!(found, frame.map(|frame| (region, frame)), "{at}");
            }
        }
    }

    #[test]
    fn the_first_blocks_cover_a_region() {
        for (region_bytes, block_bytes) in
            [(1 << 16, 1 << 13), (1 << 20, 1 << 16), (1 << 28, 1 << 24)]
        {
            let geometry = Geometry { region_bytes, block_bytes, ..geometry() };
            let mut end = 0;
            for (frame, order) in geometry.first_blocks() {
                assert!(frame == end && geometry.is_block(frame, order));
                end += 1 << order;
            }
            assert_eq!(end, geometry.frames_per_region());
            let most = geometry.first_blocks().filter(|(_, order)| *order == geometry.max_order());
            assert_eq!(most.count() as u64, region_bytes / block_bytes - 1);
        }
        let geometry = Geometry::default();
        assert_eq!((geometry.frame_bytes(), geometry.max_order()), (64 << 10, 8));
        assert_eq!(geometry.order_fitting(0), 0);
        assert_eq!(geometry.order_fitting((64 << 10) + 1), 1);
        assert_eq!(geometry.order_fitting(u64::MAX / 2), 8);
        assert_eq!(
            [64 << 10, 96 << 10, 16 << 20].map(|n| geometry.order_of(n)),
            [Some(0), None, Some(8)]
        );
    }
}
