//! The layout of slots and objects, which follows from the parameters and never changes.
//!
//! ```text
//! pool     | header | replicas of subtables ... | replicas of regions ... |
//! subtable | group | group | ...      group: main bucket 0 | overflow bucket | main bucket 1, of 8 slots each
//! region   | block | block | ...      block: free bitmap, a bit for 64 bytes | objects
//! ```
//!
//! Replica `j` of subtable or region `n` is on node `n + j`, modulo the number of nodes. Each of a key's two combined
//! buckets is a main bucket with its neighbouring overflow bucket, so one READ fetches it (RACE hashing, P §4.2).

use fusee_core::race::Key;
use fusee_core::verbs::{MnId, POOL_HEADER_BYTES};

use super::object::UNIT_BYTES;
use super::parameters::{self, PublishedConfigError, PublishedParameters};

const BUCKET_SLOTS: u32 = 8;
const GROUP_SLOTS: u32 = 3 * BUCKET_SLOTS;
/// Number of slots of a combined bucket.
pub(super) const COMBINED_SLOTS: u32 = 2 * BUCKET_SLOTS;
/// Length of a combined bucket in bytes.
pub(super) const COMBINED_BYTES: u32 = COMBINED_SLOTS * 8;

/// The layout of a store, shared by all of its clients.
#[derive(Clone, Debug)]
pub struct PublishedLayout {
    nodes: Vec<MnId>,
    parameters: PublishedParameters,
    groups: u32,
    subtable_bytes: u64,
    /// Offset of the regions in each pool.
    data: u64,
}

/// The memory node and the pool offset of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublishedPlace {
    pub node: MnId,
    pub offset: u64,
}

/// A combined bucket: its first slot, and the half (0 or 1) that is its main bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublishedBucket {
    pub first: u32,
    pub main_half: usize,
}

fn groups(parameters: &PublishedParameters) -> u32 {
    let slots = 2 * parameters.keys;
    // All subtables have the same number of groups. A key needs two groups.
    let groups = slots.div_ceil(u64::from(GROUP_SLOTS)).max(2);
    groups.next_multiple_of(parameters.subtables as u64) as u32
}

fn subtable_bytes(parameters: &PublishedParameters) -> u64 {
    u64::from(groups(parameters)) / parameters.subtables as u64 * u64::from(GROUP_SLOTS) * 8
}

/// Returns the offset of the regions in each pool. Before that offset every pool has room for the largest number of
/// subtable replicas that a node has.
fn data(parameters: &PublishedParameters, nodes: usize) -> u64 {
    let rows = parameters.subtables.div_ceil(nodes) * parameters.index_replicas;
    (POOL_HEADER_BYTES + rows as u64 * subtable_bytes(parameters)).next_multiple_of(4096)
}

impl PublishedLayout {
    /// Returns the layout of a store on these nodes.
    pub fn new(
        nodes: &[MnId],
        parameters: PublishedParameters,
    ) -> Result<PublishedLayout, PublishedConfigError> {
        parameters::check(&parameters, nodes.len())?;
        Ok(PublishedLayout {
            nodes: nodes.to_vec(),
            groups: groups(&parameters),
            subtable_bytes: subtable_bytes(&parameters),
            data: data(&parameters, nodes.len()),
            parameters,
        })
    }

    pub(super) fn pool_bytes(parameters: &PublishedParameters, nodes: usize) -> u64 {
        let rows = parameters.regions.div_ceil(nodes as u64) * parameters.data_replicas as u64;
        data(parameters, nodes) + rows * parameters.region_bytes
    }

    /// Returns the bytes of a block's free bitmap.
    pub(super) fn bitmap_bytes(block_bytes: u64) -> u64 {
        (block_bytes / UNIT_BYTES / 8).next_multiple_of(UNIT_BYTES)
    }

    /// Returns the parameters of the store.
    pub fn parameters(&self) -> &PublishedParameters {
        &self.parameters
    }

    /// Returns the ids of the memory nodes, in the order of the layout.
    pub fn nodes(&self) -> &[MnId] {
        &self.nodes
    }

    fn place(&self, number: u64, replica: usize, replicas: usize) -> (MnId, u64) {
        let nodes = self.nodes.len() as u64;
        let node = self.nodes[((number + replica as u64) % nodes) as usize];
        (node, number / nodes * replicas as u64 + replica as u64)
    }

    /// Returns the place of a replica of a slot. Replica 0 is the primary.
    pub(super) fn slot(&self, slot: u32, replica: usize) -> PublishedPlace {
        let group = slot / GROUP_SLOTS;
        let within = slot % GROUP_SLOTS;
        let subtables = self.parameters.subtables as u32;
        let subtable = group % subtables;
        let group = group / subtables;
        let (node, row) = self.place(u64::from(subtable), replica, self.parameters.index_replicas);
        let within = (u64::from(group) * u64::from(GROUP_SLOTS) + u64::from(within)) * 8;
        PublishedPlace { node, offset: POOL_HEADER_BYTES + row * self.subtable_bytes + within }
    }

    /// Returns the place of a replica of an address. Replica 0 is the primary.
    pub(super) fn data(&self, address: u64, replica: usize) -> PublishedPlace {
        let region_bytes = self.parameters.region_bytes;
        let region = address / region_bytes;
        let within = address % region_bytes;
        let (node, row) = self.place(region, replica, self.parameters.data_replicas);
        PublishedPlace { node, offset: self.data + row * region_bytes + within }
    }

    /// Returns the number of the node that has the primary of an address.
    pub(super) fn primary_of(&self, address: u64) -> usize {
        (address / self.parameters.region_bytes % self.nodes.len() as u64) as usize
    }

    /// Returns the two combined buckets of a key, which do not overlap.
    pub(super) fn buckets(&self, key: &Key<'_>) -> [PublishedBucket; 2] {
        let hash = key.hash();
        let halves = [hash as u32, (hash >> 32) as u32];
        let mut numbers =
            halves.map(|half| ((u64::from(half) * u64::from(self.groups)) >> 32) as u32);
        if numbers[0] == numbers[1] {
            numbers[1] = (numbers[1] + 1) % self.groups;
        }
        [0, 1].map(|i| {
            let side = halves[i] & 1;
            PublishedBucket {
                first: numbers[i] * GROUP_SLOTS + side * BUCKET_SLOTS,
                main_half: side as usize,
            }
        })
    }

    /// Returns the addresses of the objects of a block.
    pub(super) fn objects(&self, block: u64, units: u8) -> impl Iterator<Item = u64> + use<> {
        let bytes = u64::from(units) * UNIT_BYTES;
        let first = block + PublishedLayout::bitmap_bytes(self.parameters.block_bytes);
        let count = (block + self.parameters.block_bytes - first) / bytes;
        (0..count).map(move |i| first + i * bytes)
    }

    /// Returns the place of the free bitmap's word that has an object's bit, on the primary, and the number of the bit
    /// in that word.
    pub(super) fn free_bit(&self, address: u64) -> (PublishedPlace, u32) {
        let block = address - address % self.parameters.block_bytes;
        let unit = (address - block) / UNIT_BYTES;
        (self.data(block + unit / 64 * 8, 0), (unit % 64) as u32)
    }

    /// Returns the number of blocks of a region.
    pub(super) fn blocks_per_region(&self) -> u64 {
        self.parameters.region_bytes / self.parameters.block_bytes
    }
}

/// Returns the slot for a new key: in the combined bucket with more free slots, and there in the main bucket if
/// possible.
pub(super) fn free_slot(
    buckets: &[PublishedBucket; 2],
    words: &[[u64; COMBINED_SLOTS as usize]; 2],
) -> Option<u32> {
    let free = |c: usize| words[c].iter().filter(|word| **word == 0).count();
    let order = if free(1) > free(0) { [1, 0] } else { [0, 1] };
    order.into_iter().find_map(|c| {
        let main = buckets[c].main_half;
        [main, 1 - main].into_iter().find_map(|half| {
            let from = half * BUCKET_SLOTS as usize;
            let found =
                words[c][from..][..BUCKET_SLOTS as usize].iter().position(|word| *word == 0)?;
            Some(buckets[c].first + (from + found) as u32)
        })
    })
}
