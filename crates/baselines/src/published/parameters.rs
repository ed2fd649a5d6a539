//! The parameters of a store, which also select its variant.

use super::layout::PublishedLayout;
use super::object::{KEY_BYTES, UNIT_BYTES, units_for};

/// The protocol that gives all replicas of a slot the same word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotWriteProtocol {
    /// SNAPSHOT: CAS all backups at once, then commit the last writer's log entry, then CAS the primary (P §4.3).
    Snapshot,
    /// FUSEE-CR: CAS one replica after the other, the primary last (P §6.1).
    OneByOne,
}

/// The kinds of processes that allocate objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectAllocation {
    /// Clients: they cut objects from blocks that memory nodes give (P §4.4).
    TwoLevel,
    /// Memory nodes: a client requests every object (P §6.3, Figure 17).
    ByNodes,
}

/// The parameters of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedParameters {
    /// Number of replicas of the index.
    pub index_replicas: usize,
    /// Number of replicas of each pair.
    pub data_replicas: usize,
    /// Number of keys that fill half of the index's slots.
    pub keys: u64,
    /// The longest value, in bytes.
    pub value_bytes: u32,
    /// Number of subtables of the index. Subtable `i` has its primary on node `i`, modulo the number of nodes, and its
    /// backups on the nodes that follow. With one subtable, the primary of every slot is on the first node.
    pub subtables: usize,
    /// Number of regions. Region `i` has its primary on node `i`, modulo the number of nodes.
    pub regions: u64,
    /// Bytes of a region; 2 GiB in the paper.
    pub region_bytes: u64,
    /// Bytes of a block, with its free bitmap; 16 MiB in the paper.
    pub block_bytes: u64,
    /// Largest fraction of wrong hints among the accesses to a key. Above it, clients look the key up without the index
    /// cache (P §4.6). `None` means that there is no cache, which is FUSEE-NC.
    pub cache_threshold: Option<f64>,
    /// The protocol that writes the replicas of a slot.
    pub writes: SlotWriteProtocol,
    /// The kind of processes that allocate objects.
    pub allocation: ObjectAllocation,
    /// Number of pending chores (steps of memory management) at which a client posts them.
    pub frees_at_once: usize,
    /// Number of attempts after which a waiting operation gives up.
    pub patience: u32,
}

impl PublishedParameters {
    /// Returns the parameters of FUSEE as it was published. The cache threshold is that of the code published with
    /// the paper.
    pub fn published(
        index_replicas: usize,
        data_replicas: usize,
        keys: u64,
        value_bytes: u32,
    ) -> PublishedParameters {
        PublishedParameters {
            index_replicas,
            data_replicas,
            keys,
            value_bytes,
            subtables: 1,
            regions: 1,
            region_bytes: 2 << 30,
            block_bytes: 16 << 20,
            cache_threshold: Some(0.1),
            writes: SlotWriteProtocol::Snapshot,
            allocation: ObjectAllocation::TwoLevel,
            frees_at_once: 16,
            patience: 100_000,
        }
    }

    /// Changes the parameters to FUSEE-CR.
    pub fn one_by_one(self) -> PublishedParameters {
        PublishedParameters { writes: SlotWriteProtocol::OneByOne, ..self }
    }

    /// Changes the parameters to FUSEE-NC.
    pub fn without_cache(self) -> PublishedParameters {
        PublishedParameters { cache_threshold: None, ..self }
    }

    /// Lets memory nodes allocate every object.
    pub fn allocated_by_nodes(self) -> PublishedParameters {
        PublishedParameters { allocation: ObjectAllocation::ByNodes, ..self }
    }

    /// Changes the lengths of blocks and regions, in bytes.
    pub fn with_blocks(self, block_bytes: u64, region_bytes: u64) -> PublishedParameters {
        PublishedParameters { block_bytes, region_bytes, ..self }
    }

    /// Sets the number of regions, for `objects` objects of the longest value, and partly filled blocks of each client.
    /// Freed objects in the blocks of an idle client are not reused. If one client has loaded the keys of a run,
    /// `objects` must therefore count the keys and the updates of the run.
    pub fn with_room_for(
        self,
        objects: u64,
        clients: u64,
        memory_nodes: usize,
    ) -> PublishedParameters {
        let full = objects.div_ceil(self.objects_per_block().max(1));
        // A client has partly filled blocks of up to three size classes, because a DELETE's object has its own class.
        let blocks = full + 3 * clients + memory_nodes as u64;
        let regions = (blocks * self.block_bytes).div_ceil(self.region_bytes);
        // Each node gets the same number of regions.
        PublishedParameters { regions: regions.next_multiple_of(memory_nodes as u64), ..self }
    }

    /// Returns the size of each node's pool.
    pub fn pool_bytes(&self, memory_nodes: usize) -> u64 {
        PublishedLayout::pool_bytes(self, memory_nodes)
    }

    /// Returns the number of objects of the longest value in a block.
    fn objects_per_block(&self) -> u64 {
        let object = units_for(self.value_bytes as usize) * UNIT_BYTES;
        self.block_bytes.saturating_sub(PublishedLayout::bitmap_bytes(self.block_bytes)) / object
    }

    /// Returns the bytes of the longest pair.
    pub fn pair_bytes(&self) -> usize {
        KEY_BYTES + self.value_bytes as usize
    }
}

/// Errors in the parameters of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishedConfigError {
    /// The number of replicas is 0, exceeds that of nodes, or exceeds 8.
    #[error(
        "{replicas} replicas of {what} on {nodes} memory nodes: take 1 to {nodes}, and no more than 8"
    )]
    Replicas {
        /// The thing that has the replicas, in words: the index or the pairs.
        what: &'static str,
        /// Requested number of replicas.
        replicas: usize,
        /// Number of memory nodes.
        nodes: usize,
    },
    /// The blocks do not fill a region, or a block has no room for an object.
    #[error(
        "blocks of {block_bytes} bytes in regions of {region_bytes}: take a multiple, and room for an object"
    )]
    Blocks {
        /// Bytes of a block.
        block_bytes: u64,
        /// Bytes of a region.
        region_bytes: u64,
    },
    /// A slot word cannot express the length of an object with a value of this many bytes.
    #[error("values of {0} bytes: at most 16,274 have a length that a slot can tell")]
    Value(u32),
    /// Addresses need more than 48 bits, or slot numbers more than 32.
    #[error("the store is larger than slots or addresses can tell: take fewer keys or regions")]
    Size,
}

/// Checks the parameters for this number of nodes.
pub(super) fn check(
    parameters: &PublishedParameters,
    nodes: usize,
) -> Result<(), PublishedConfigError> {
    let both = [("the index", parameters.index_replicas), ("pairs", parameters.data_replicas)];
    for (what, replicas) in both {
        if replicas == 0 || replicas > nodes.min(super::rounds::MOST_REPLICAS) {
            return Err(PublishedConfigError::Replicas { what, replicas, nodes });
        }
    }
    if units_for(parameters.value_bytes as usize) > u64::from(u8::MAX) {
        return Err(PublishedConfigError::Value(parameters.value_bytes));
    }
    let PublishedParameters { block_bytes, region_bytes, .. } = *parameters;
    let is_whole = block_bytes > 0
        && block_bytes.is_multiple_of(4096)
        && region_bytes.is_multiple_of(block_bytes);
    if !is_whole || parameters.objects_per_block() == 0 {
        return Err(PublishedConfigError::Blocks { block_bytes, region_bytes });
    }
    let bytes = u128::from(parameters.regions) * u128::from(region_bytes);
    if bytes >= 1 << 48 || parameters.keys >= 1 << 30 || parameters.subtables == 0 {
        return Err(PublishedConfigError::Size);
    }
    Ok(())
}
