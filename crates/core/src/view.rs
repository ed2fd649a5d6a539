//! The view: the numbered, complete list of the places of all replicas.
//!
//! A view contains the members, the regions, the index subtables and the directory that leads to the subtables. Regions
//! and subtables name the memory nodes of their replicas. The master makes views; sessions check and follow them. No
//! place is computed from a hash at run time: placement is explicit, so it survives failures and moves of replicas.

pub mod change;
mod check;
mod geometry;
mod place;
mod stage;
mod steps;
mod subtable;
pub mod update;

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use change::ViewChange;
pub use geometry::{
    BUCKETS_PER_GROUP, FRAME_ALIGN_BYTES, Geometry, MAX_DEPTH, TABLE_ENTRY_BYTES, UNEVEN_BITS,
    ViewError,
};
pub use place::{MAX_REPLICAS, PoolPlace};
pub use subtable::Subtable;

use crate::data::{BlockLocation, ObjectLocation, Redundancy, Region};
use crate::layout::{Address, Slot, UNIT_BYTES};
use crate::race::HashKey;
use crate::verbs::{ClusterId, MnId};

/// A memory node, with the addresses at which it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node's name in the cluster.
    pub node: MnId,
    /// A random number that names one run of the memory node; a node that restarts without its memory draws another
    /// one.
    pub identity: u64,
    /// Host and port of the node's control service.
    pub control: String,
    /// Host and port of the node's software NIC, if it has one.
    pub tcp: Option<String>,
    /// Unix socket at which the node hands out its memory to processes on its machine, if it does so.
    pub shm: Option<String>,
    /// Host and port at which the node hands out queue pairs of its network card, if it has one.
    pub verbs: Option<String>,
    /// Bytes that the node lends, without the header of its pool.
    pub pool_bytes: u64,
}

/// The numbered, complete list of the places of all replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The view's number; each view has the number of the view before it plus 1.
    pub number: u64,
    /// The cluster's id, drawn at random when the cluster was formed.
    pub cluster: ClusterId,
    /// The secret by which the cluster hashes keys, drawn at random when the cluster was formed.
    pub hash_key: HashKey,
    /// The sizes that all processes of the cluster use.
    pub geometry: Geometry,
    /// The memory nodes.
    pub members: Vec<Member>,
    /// The regions of the global memory, at the index that is the region's number.
    pub regions: Vec<Region>,
    /// 2^depth subtable numbers, indexed by the top bits of a key's hash.
    pub directory: Vec<u32>,
    /// The subtables, at the index that is the subtable's number.
    pub subtables: Vec<Subtable>,
    /// The view change under way, if there is one.
    pub change: Option<ViewChange>,
}

/// The name of a slot: a subtable, and the number of the slot in the subtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRef {
    /// The number of the subtable.
    pub subtable: u32,
    /// The number of the slot in its subtable, from 0.
    pub slot: u32,
}

impl View {
    /// Returns the member with this name.
    pub fn member(&self, node: MnId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == node)
    }

    /// The number of directory bits.
    pub fn depth(&self) -> u32 {
        self.directory.len().trailing_zeros()
    }

    /// Returns the largest depth that a subtable is allowed to have: the number of directory bits that would do if all
    /// subtables had one depth, and [`UNEVEN_BITS`] more. Thus the directory's length is at most a fixed multiple of
    /// the number of subtables, whatever the keys are.
    pub fn deepest(&self) -> u32 {
        (self.subtables.len().max(1).ilog2() + UNEVEN_BITS).min(MAX_DEPTH)
    }

    /// The region of an address, and the address's offset in it; `None` if no region contains the address.
    #[inline]
    pub fn region_of(&self, address: Address) -> Option<(&Region, u64)> {
        // The size is a power of two, so a shift does; a division would take as long as a load from the processor's
        // cache.
        let region_bytes = self.geometry.region_bytes;
        let region = usize::try_from(address.bytes() >> region_bytes.trailing_zeros()).ok()?;
        Some((self.regions.get(region)?, address.bytes() & (region_bytes - 1)))
    }

    /// The places of an object of `bytes` bytes at an address; `None` if no such object can be there.
    #[inline]
    pub fn object(&self, address: Address, bytes: u64) -> Option<ObjectLocation<'_>> {
        let (region, offset) = self.region_of(address)?;
        let inside =
            offset >= self.geometry.head_bytes() && offset + bytes <= self.geometry.region_bytes;
        (inside && region.is_there()).then(|| region.object(address, offset, bytes))
    }

    /// Whether an object at this address lies on the nodes of all backups of a subtable, and on no node without a
    /// replica of the subtable.
    pub(crate) fn lies_beside(&self, address: Address, subtable: u32) -> bool {
        let region = self.region_of(address).map(|(region, _)| region);
        let subtable = self.subtables.get(subtable as usize);
        region.zip(subtable).is_some_and(|(region, subtable)| region.lies_beside(subtable))
    }

    /// Returns the places of the object that a slot word refers to; `None` if no client of this cluster wrote such an
    /// object.
    pub fn object_of(&self, word: Slot) -> Option<ObjectLocation<'_>> {
        let class = word.class().filter(|class| self.geometry.has_class(*class))?;
        Some(self.object(word.address(), class.bytes())?.of_word(word))
    }

    /// The redundancy of the pair that a slot word leads to.
    pub fn redundancy_of(&self, word: Slot) -> Option<Redundancy> {
        Some(self.object_of(word)?.redundancy_of(word))
    }

    /// Returns the objects of those of the slot words that refer to one.
    pub(crate) fn objects_of<'v>(
        &'v self,
        words: &'v [Slot],
    ) -> impl Iterator<Item = (Slot, ObjectLocation<'v>)> {
        words.iter().filter_map(|word| Some((*word, self.object_of(*word)?)))
    }

    /// Returns the block that starts at an address; `None` if no region contains the address, or the region is gone.
    #[inline]
    pub fn block(&self, address: Address) -> Option<BlockLocation<'_>> {
        let (region, offset) = self.region_of(address)?;
        region.is_there().then(|| region.block(offset))
    }

    /// Returns where the free bit of the object at an address is: the place of the bitmap word, and a mask with the
    /// bit. `None` if no object can be at the address.
    pub fn free_bit(&self, object: Address) -> Option<(PoolPlace, u64)> {
        Some((self.bitmap(object)?, 1 << (object.bytes() / UNIT_BYTES % 64)))
    }

    /// Returns the place of the word of the valid free bitmap that has the bit of this address. The words for the
    /// following [`FRAME_ALIGN_BYTES`] each come behind it. `None` if no block can be at the address.
    #[inline]
    pub fn bitmap(&self, address: Address) -> Option<PoolPlace> {
        let (region, offset) = self.region_of(address)?;
        let inside = offset >= self.geometry.head_bytes() && region.is_there();
        inside.then(|| region.primary().plus(self.geometry.bitmap_offset(address)))
    }

    /// Whether the view has this slot.
    pub fn has_slot(&self, slot: SlotRef) -> bool {
        (slot.subtable as usize) < self.subtables.len()
            && u64::from(slot.slot) < self.geometry.subtable_slots()
    }

    /// Returns the place of a slot on each replica of its subtable, the primary first.
    ///
    /// # Panics
    /// If the view has no such slot.
    #[inline]
    pub fn slot_places(&self, slot: SlotRef) -> impl ExactSizeIterator<Item = PoolPlace> + '_ {
        let offset = self.geometry.slot_offset(slot.slot);
        let replicas = self.subtables[slot.subtable as usize].replicas();
        replicas.iter().map(move |replica| replica.plus(offset))
    }

    /// Returns the place of a slot on the primary.
    ///
    /// # Panics
    /// If the view has no such slot.
    #[inline]
    pub fn slot_on_primary(&self, slot: SlotRef) -> PoolPlace {
        let offset = self.geometry.slot_offset(slot.slot);
        self.subtables[slot.subtable as usize].primary().plus(offset)
    }

    /// Returns the place of a slot on each backup, in order.
    ///
    /// # Panics
    /// If the view has no such slot.
    #[inline]
    pub fn slot_on_backups(&self, slot: SlotRef) -> impl ExactSizeIterator<Item = PoolPlace> + '_ {
        let offset = self.geometry.slot_offset(slot.slot);
        let backups = self.subtables[slot.subtable as usize].backups();
        backups.iter().map(move |replica| replica.plus(offset))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_default_geometry_is_the_papers_and_holds_together() {
        let geometry = Geometry::default();
        geometry.check().unwrap();
        assert_eq!(geometry.frames_per_region(), 32700);
        assert_eq!(geometry.frame_at(geometry.frame_address(3, 126)), Some((3, 126)));
        assert_eq!(geometry.frame_at(Address::new(64)), None);
        assert_eq!(geometry.frame_at(Address::new(geometry.head_bytes() + 64)), None);
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
        let places = |offset| Vec::from([0, 1].map(|n| PoolPlace { node: MnId(n), offset }));
        View {
            number: 1,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry,
            members: Vec::from([member(0), member(1)]),
            regions: Vec::from([1 << 20, 2 << 20].map(|at| Region::replicated(places(at), 1))),
            directory: Vec::from([0, 1]),
            subtables: Vec::from([0, 1 << 16].map(|at| Subtable::new(1, places(at)))),
            change: None,
        }
    }

    /// A view that breaks a rule is refused, because operations rely on all rules, and a view can come from another
    /// process.
    // Promise CHG-18: A view from another process is checked.
    #[test]
    fn bad_views_are_refused() {
        small().check().unwrap();
        let bad = |what: &str, change: &dyn Fn(&mut View)| {
            let mut view = small();
            change(&mut view);
            let error = view.check().unwrap_err();
            assert!(error.what.contains(what), "{what}: {error}");
        };
        bad("2^n entries", &|v| v.directory.clear());
        bad("2^n entries", &|v| v.directory.push(0));
        bad("unknown subtable", &|v| v.directory[1] = 2);
        bad("deeper", &|v| v.subtables[0].local_depth = 2);
        let at = |node, offset| PoolPlace { node: MnId(node), offset };
        let region = |v: &mut View, n: usize, at: &[PoolPlace]| {
            v.regions[n] = Region::replicated(at.to_vec(), 1);
        };
        let subtable = |v: &mut View, n: usize, at: &[PoolPlace]| {
            v.subtables[n] = Subtable::new(1, at.to_vec());
        };
        bad("1..=5 replicas", &|v| region(v, 0, &[]));
        bad("1..=5 replicas", &|v| subtable(v, 1, &[]));
        bad("unknown memory node", &|v| region(v, 0, &[at(7, 1 << 20)]));
        bad("exceeds", &|v| region(v, 1, &[at(0, (6 << 20) - 64)]));
        bad("exceeds", &|v| region(v, 1, &[at(0, u64::MAX - 63)]));
        bad("misaligned", &|v| subtable(v, 0, &[at(0, 8)]));
        bad("on one memory node", &|v| region(v, 0, &[at(0, 1 << 20), at(0, 3 << 20)]));
        bad("one name", &|v| v.members.push(v.members[0].clone()));
        bad("overlap", &|v| region(v, 1, &[at(0, (1 << 20) + 64)]));
        bad("overlap", &|v| subtable(v, 0, &[at(0, 2 << 20)]));
        bad("44-bit", &|v| {
            v.geometry.region_bytes = 1 << 36;
            v.geometry.block_bytes = 16 << 20;
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

    #[test]
    fn the_longest_value_fits_into_a_block() {
        const MIB: u64 = 1 << 20;
        for (block_bytes, longest) in [(16 * MIB, 4 * MIB), (8 * MIB, 4 * MIB), (4 * MIB, 2 * MIB)]
        {
            let geometry = Geometry::with_blocks(128 * MIB, block_bytes);
            assert_eq!(u64::from(geometry.max_value_bytes), longest);
            geometry.check().unwrap();
        }
        let tiny = Geometry::with_blocks(MIB, 64 << 10);
        assert!(tiny.check().is_err(), "the longest key does not fit");
        for block_bytes in [0, 1, 32 * MIB, u64::MAX] {
            assert!(Geometry::with_blocks(MIB, block_bytes).check().is_err());
        }
    }
}
