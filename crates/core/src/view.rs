//! The view: the numbered, complete picture of where things are.
//!
//! Members, regions, index subtables and the directory that leads to them, each with the memory
//! nodes that hold it. The master makes views; sessions check and follow them. Nothing here is
//! computed from a hash at run time: placement is explicit, so it survives failures and moves.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::change::{Change, LeavingFrom};
use crate::layout::{
    Address, BLOCK_HEADER_BYTES, BlockShape, Object, SizeClass, UNIT_BYTES, VACATED_BYTES,
    bitmap_bytes, first_extent,
};
use crate::verbs::{ClusterId, MnId};

/// The largest replication factor, of index and of data (P Fig. 18 goes to 5).
pub const MAX_REPLICAS: usize = 5;
/// The directory has up to two to this power of entries.
pub const MAX_DEPTH: u32 = 24;
/// Buckets of a group: main, shared overflow, main (RACE hashing).
pub const BUCKETS_PER_GROUP: u64 = 3;
/// Entries of a block allocation table are client ids.
pub const TABLE_ENTRY_BYTES: u64 = 4;
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
            max_value_bytes: 1 << 20,
        }
    }
}

impl Geometry {
    /// Checks the relations between the sizes.
    pub fn check(&self) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        if !self.region_bytes.is_power_of_two() || self.region_bytes > 1 << 40 {
            return fail("region_bytes must be a power of two of at most 1 TiB");
        }
        if !self.block_bytes.is_power_of_two() || self.block_bytes < 4096 {
            return fail("block_bytes must be a power of two of at least 4096");
        }
        if self.block_bytes > 16 << 20 {
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
        match self.largest_class().and_then(|class| BlockShape::new(self.block_bytes, class)) {
            Some(_) if self.max_key_bytes > 0 => Ok(()),
            Some(_) => fail("max_key_bytes must be at least 1"),
            None => fail("an object of the largest key and value must fit in a block"),
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

/// How the objects of a region survive failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Scheme {
    /// Every byte stands on each of the region's places.
    Replicated,
}

/// A byte of a memory node's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The memory node.
    pub node: MnId,
    /// Offset in its pool, in bytes.
    pub offset: u64,
}

/// A region of the global memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// How it is made redundant.
    pub scheme: Scheme,
    /// Where it starts on each of its memory nodes. The first is the primary, which allocates
    /// its blocks and holds the free bitmaps that count.
    pub places: Vec<Place>,
    /// The number of the view since which the first place is the first: with another one came other
    /// free bitmaps, all zeros.
    pub led_since: u64,
}

/// A subtable of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtable {
    /// Directory bits that lead here.
    pub local_depth: u8,
    /// Where it starts on each of its memory nodes. The first is the primary, the others are the
    /// backups, in the order in which INSERT uses them.
    pub places: Vec<Place>,
}

/// How to reach a memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name in this cluster.
    pub node: MnId,
    /// Random; a memory node that lost its memory has another one.
    pub identity: u64,
    /// Host and port of its control service.
    pub control: String,
    /// Host and port of its software NIC, if it has one.
    pub tcp: Option<String>,
    /// Unix socket at which it hands out its memory to processes of its host, if it does.
    pub shm: Option<String>,
    /// Host and port at which it hands out queue pairs of its network card, if it has one.
    pub verbs: Option<String>,
    /// Bytes that it lends, behind the header of its pool.
    pub pool_bytes: u64,
}

/// The numbered, complete picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Grows with every change.
    pub number: u64,
    /// Drawn at random when the cluster was formed.
    pub cluster: ClusterId,
    /// Sizes.
    pub geometry: Geometry,
    /// Memory nodes.
    pub members: Vec<Member>,
    /// Regions by number.
    pub regions: Vec<Region>,
    /// 2^depth subtable numbers, indexed by the top bits of a key's hash.
    pub directory: Vec<u32>,
    /// Subtables by number.
    pub subtables: Vec<Subtable>,
    /// The change that is under way, if one is.
    pub change: Option<Change>,
}

/// What is wrong with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid view: {what}")]
pub struct ViewError {
    /// The broken rule.
    pub what: &'static str,
}

/// Names a slot: a subtable and the slot's number in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRef {
    /// Subtable number.
    pub subtable: u32,
    /// Slot number, from 0.
    pub slot: u32,
}

impl View {
    /// Checks everything that operations rely on: a view may come from another process.
    pub fn check(&self) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        self.geometry.check()?;
        if !self.directory.len().is_power_of_two() || self.directory.len() > 1 << MAX_DEPTH {
            return fail("the directory must have 2^n entries, at most 2^24");
        }
        if self.directory.iter().any(|s| *s as usize >= self.subtables.len()) {
            return fail("the directory names an unknown subtable");
        }
        let bits = u32::try_from(self.regions.len())
            .ok()
            .and_then(|n| u64::from(n).checked_mul(self.geometry.region_bytes));
        if bits.is_none_or(|end| end > VACATED_BYTES) {
            return fail("the regions exceed the 48-bit address space");
        }
        for subtable in &self.subtables {
            self.check_places(&subtable.places, self.geometry.subtable_bytes())?;
        }
        for region in &self.regions {
            self.check_places(&region.places, self.geometry.region_bytes)?;
        }
        if self.subtables.iter().any(|s| u32::from(s.local_depth) > self.depth()) {
            return fail("a subtable is deeper than the directory");
        }
        let mut names: Vec<MnId> = self.members.iter().map(|m| m.node).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return fail("two members have one name");
        }
        self.check_change()?;
        self.check_overlaps()
    }

    /// No byte of a pool may be two things.
    fn check_overlaps(&self) -> Result<(), ViewError> {
        let places = |places: &[Place], bytes: u64| -> Vec<(MnId, u64, u64)> {
            places.iter().map(|p| (p.node, p.offset, p.offset + bytes)).collect()
        };
        let (subtable, region) = (self.geometry.subtable_bytes(), self.geometry.region_bytes);
        let mut extents: Vec<(MnId, u64, u64)> = Vec::new();
        extents.extend(self.subtables.iter().flat_map(|s| places(&s.places, subtable)));
        extents.extend(self.regions.iter().flat_map(|r| places(&r.places, region)));
        if let Some(change) = &self.change {
            let new = change.subtables.iter().flat_map(|s| s.new_places());
            extents.extend(new.flat_map(|place| places(&[place], subtable)));
            extents.extend(
                change.regions.iter().flat_map(|r| r.joining).flat_map(|p| places(&[p], region)),
            );
            for (from, place) in self.leaving() {
                let (held, bytes) = match from {
                    LeavingFrom::Subtable(n) => (&self.subtables[n as usize].places, subtable),
                    LeavingFrom::Region(n) => (&self.regions[n as usize].places, region),
                };
                // One that has left, and is not given back yet.
                if !held.contains(&place) {
                    extents.extend(places(&[place], bytes));
                }
            }
        }
        extents.sort_unstable();
        let overlap = |pair: &[(MnId, u64, u64)]| pair[0].0 == pair[1].0 && pair[0].2 > pair[1].1;
        match extents.windows(2).any(overlap) {
            true => Err(ViewError { what: "two extents of a pool overlap" }),
            false => Ok(()),
        }
    }

    pub(crate) fn check_places(&self, places: &[Place], bytes: u64) -> Result<(), ViewError> {
        let fail = |what| Err(ViewError { what });
        if !(1..=MAX_REPLICAS).contains(&places.len()) {
            return fail("there must be 1..=5 replicas");
        }
        for (i, place) in places.iter().enumerate() {
            let Some(member) = self.member(place.node) else {
                return fail("a replica lies on an unknown memory node");
            };
            let pool_end = first_extent(member.pool_bytes).saturating_add(member.pool_bytes);
            if !place.offset.is_multiple_of(UNIT_BYTES)
                || place.offset.checked_add(bytes).is_none_or(|end| end > pool_end)
            {
                return fail("a replica is misaligned or exceeds its node's pool");
            }
            if places[..i].iter().any(|p| p.node == place.node) {
                return fail("two replicas lie on one memory node");
            }
        }
        Ok(())
    }

    /// The member with this name.
    pub fn member(&self, node: MnId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == node)
    }

    /// The number of directory bits.
    pub fn depth(&self) -> u32 {
        self.directory.len().trailing_zeros()
    }

    /// The region of an address, and the offset in it; `None` if the address is in no region.
    #[inline]
    pub fn region_of(&self, address: Address) -> Option<(&Region, u64)> {
        // A power of two; a division would take as long as a READ from the processor's cache.
        let region_bytes = self.geometry.region_bytes;
        let region = usize::try_from(address.bytes() >> region_bytes.trailing_zeros()).ok()?;
        Some((self.regions.get(region)?, address.bytes() & (region_bytes - 1)))
    }

    /// Where an object of `bytes` bytes lies; `None` if the address does not lead to one.
    #[inline]
    pub fn object_places(
        &self,
        address: Address,
        bytes: u64,
    ) -> Option<impl ExactSizeIterator<Item = Place> + '_> {
        let (region, offset) = self.region_of(address)?;
        let inside =
            offset >= self.geometry.table_bytes() && offset + bytes <= self.geometry.region_bytes;
        let at = move |p: &Place| Place { node: p.node, offset: p.offset + offset };
        inside.then(|| region.places.iter().map(at))
    }

    /// Whether the view has this slot.
    pub fn has_slot(&self, slot: SlotRef) -> bool {
        (slot.subtable as usize) < self.subtables.len()
            && u64::from(slot.slot) < self.geometry.subtable_slots()
    }

    /// Where a slot stands on each replica of its subtable, the primary first.
    ///
    /// # Panics
    /// If the view has no such slot.
    #[inline]
    pub fn slot_places(&self, slot: SlotRef) -> impl ExactSizeIterator<Item = Place> + '_ {
        assert!(u64::from(slot.slot) < self.geometry.subtable_slots(), "no such slot");
        let offset = u64::from(slot.slot) * 8;
        self.subtables[slot.subtable as usize]
            .places
            .iter()
            .map(move |p| Place { node: p.node, offset: p.offset + offset })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_default_geometry_is_the_papers_and_holds_together() {
        let geometry = Geometry::default();
        geometry.check().unwrap();
        assert_eq!(geometry.blocks_per_region(), 127);
        assert_eq!(geometry.block_at(geometry.block_address(3, 126)), Some((3, 126)));
        assert_eq!(geometry.block_at(Address::new(64)), None);
        assert_eq!(geometry.block_at(Address::new(geometry.table_bytes() + 64)), None);
    }

    pub(crate) fn small() -> View {
        let geometry = Geometry {
            region_bytes: 1 << 20,
            block_bytes: 1 << 16,
            groups_per_subtable: 64,
            max_key_bytes: 64,
            max_value_bytes: 1024,
            ..Geometry::default()
        };
        let member = |n| Member {
            node: MnId(n),
            identity: n.into(),
            control: String::new(),
            tcp: None,
            shm: None,
            verbs: None,
            pool_bytes: 4 << 20,
        };
        let places = |offset| Vec::from([0, 1].map(|n| Place { node: MnId(n), offset }));
        View {
            number: 1,
            cluster: ClusterId::from_word(1).unwrap(),
            geometry,
            members: Vec::from([member(0), member(1)]),
            regions: Vec::from([1 << 20, 2 << 20].map(|at| Region {
                scheme: Scheme::Replicated,
                places: places(at),
                led_since: 1,
            })),
            directory: Vec::from([0, 1]),
            subtables: Vec::from(
                [0, 1 << 16].map(|at| Subtable { local_depth: 1, places: places(at) }),
            ),
            change: None,
        }
    }

    /// A view comes from another process: whatever operations rely on is checked.
    #[test]
    fn bad_views_are_refused() {
        small().check().unwrap();
        let bad = |what: &str, change: fn(&mut View)| {
            let mut view = small();
            change(&mut view);
            let error = view.check().unwrap_err();
            assert!(error.what.contains(what), "{what}: {error}");
        };
        bad("2^n entries", |v| v.directory.clear());
        bad("2^n entries", |v| v.directory.push(0));
        bad("unknown subtable", |v| v.directory[1] = 2);
        bad("deeper", |v| v.subtables[0].local_depth = 2);
        bad("1..=5 replicas", |v| v.regions[0].places.clear());
        bad("1..=5 replicas", |v| v.subtables[1].places.clear());
        bad("unknown memory node", |v| v.regions[0].places[0].node = MnId(7));
        bad("exceeds", |v| v.regions[1].places[0].offset = (6 << 20) - 64);
        bad("exceeds", |v| v.regions[1].places[0].offset = u64::MAX - 63);
        bad("misaligned", |v| v.subtables[0].places[0].offset = 8);
        bad("on one memory node", |v| v.regions[0].places[1].node = MnId(0));
        bad("one name", |v| v.members.push(v.members[0].clone()));
        bad("overlap", |v| v.regions[1].places[0].offset = (1 << 20) + 64);
        bad("overlap", |v| v.subtables[0].places[0].offset = 2 << 20);
        bad("48-bit", |v| {
            v.geometry.region_bytes = 1 << 40;
            v.regions = Vec::from_iter((0..257).map(|_| v.regions[0].clone()));
        });
    }

    #[test]
    fn bad_geometries_are_refused() {
        let good = Geometry::default();
        let bad = [
            Geometry { region_bytes: 3 << 20, ..good },
            Geometry { block_bytes: 4 << 30, ..good },
            Geometry { block_bytes: 32 << 20, ..good },
            Geometry { block_bytes: 2 << 30, region_bytes: 2 << 30, ..good },
            Geometry { slots_per_bucket: 9, ..good },
            Geometry { slots_per_bucket: 0, ..good },
            Geometry { groups_per_subtable: 1, ..good },
            Geometry { max_value_bytes: 16 << 20, ..good },
            Geometry { max_key_bytes: 0, ..good },
        ];
        assert!(bad.iter().all(|g| g.check().is_err()));
    }
}
