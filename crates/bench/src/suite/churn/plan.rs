//! The cluster of `fusee-bench churn`, and the number of pairs that fit.
//!
//! Pools are small here, so that they are full soon, and regions and blocks are small in proportion, because each
//! session holds one block per size class that other sessions cannot use. Blocks stay large enough for the largest
//! value.
//!
//! The *data memory* is the part of all pools that regions can take, divided by the number of replicas. All figures of
//! this benchmark are for one replica, just as keys and values are counted once.

use fusee_cli::connect;
use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_cli::quantity::ByteSize;
use fusee_client::{BlockingClient, FabricChoice, FabricKind, Geometry, Options};
use fusee_control::node::extent_align_bytes;
use fusee_core::layout::{BlockShape, Object, SizeClass};
use fusee_launch::{LaunchPlan, Servers};
use fusee_master::settings::{
    ClusterSettings, DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
    LeaseSettings,
};

use crate::cluster::check_memory;
use crate::process_cluster::ProcessClusterArgs;
use fusee_workload::KEY_BYTES;

/// Approximate number of regions of a pool.
const REGIONS_PER_POOL: u64 = 8;
/// Approximate number of blocks of a region, if blocks of that size are possible.
const BLOCKS_PER_REGION: u64 = 32;
/// The smallest block that holds the largest value.
const LEAST_BLOCK_BYTES: u64 = 2 << 20;
/// Sizes of the largest block and of the largest region, the same as in other clusters that benchmarks start.
const MOST_BLOCK_BYTES: u64 = 4 << 20;
const MOST_REGION_BYTES: u64 = 128 << 20;
/// The smallest region. If a region had fewer blocks, memory nodes would keep no block back for DELETEs.
const LEAST_REGION_BYTES: u64 = 16 * LEAST_BLOCK_BYTES;
/// The smallest pool.
const LEAST_POOL_BYTES: u64 = 2 * LEAST_REGION_BYTES;

/// Sizes of the cluster, and of the pairs in it.
#[derive(Clone, Debug)]
pub struct ChurnClusterSizes {
    pub geometry: Geometry,
    /// Bytes of the pool of each node.
    pub pool_bytes: u64,
    /// Bytes of the blocks in all regions for which there is room, counted once for all replicas.
    pub data_bytes: u64,
    /// Number of pairs in a block.
    pub pairs_per_block: u64,
    /// Bytes of a pair: key, value, overhead, and the rest of the size class.
    pub object_bytes: u64,
    index_keys: u64,
}

impl ChurnClusterSizes {
    /// Computes the sizes for a cluster.
    pub fn new(cluster: &ProcessClusterArgs) -> Result<ChurnClusterSizes, Failure> {
        // The command line has a default, so the argument is always there.
        let pool_bytes = cluster.pool.map_or(LEAST_POOL_BYTES, |ByteSize(bytes)| bytes);
        if pool_bytes < LEAST_POOL_BYTES {
            return Err(Failure::usage(format!(
                "--pool is {}; this benchmark needs at least {} on each memory node",
                ByteSize(pool_bytes),
                ByteSize(LEAST_POOL_BYTES)
            )));
        }
        let geometry = geometry(pool_bytes);
        let class = class(cluster.pair_bytes, &geometry)?;
        let shape = BlockShape::new(geometry.block_bytes, class);
        let pairs_per_block = shape.map_or(0, |shape| u64::from(shape.objects));
        let mut sizes = ChurnClusterSizes {
            geometry,
            pool_bytes,
            data_bytes: 0,
            pairs_per_block,
            object_bytes: class.bytes(),
            index_keys: 0,
        };
        let nodes = u64::from(cluster.memory_nodes());
        let replicas = cluster.cluster();
        let data_replicas = u64::from(replicas.data_replicas());
        // The index is created for as many keys as pairs would fit if there were no index.
        sizes.index_keys = pool_bytes * nodes / data_replicas / sizes.object_bytes;
        let settings = sizes.settings(cluster);
        settings
            .check()
            .map_err(|error| Failure::usage(flags::with_flag_names(&error.to_string())))?;
        let padded = |bytes: u64| bytes.next_multiple_of(extent_align_bytes(bytes));
        let subtables = settings.subtables() * u64::from(replicas.index_replicas());
        let index_bytes = subtables.div_ceil(nodes) * padded(geometry.subtable_bytes());
        let regions = pool_bytes.saturating_sub(index_bytes) / geometry.region_bytes;
        let regions = regions * nodes / data_replicas;
        let frames = u64::from(geometry.frames_per_region());
        sizes.data_bytes = regions * frames * geometry.frame_bytes();
        Ok(sizes)
    }

    fn settings(&self, cluster: &ProcessClusterArgs) -> ClusterSettings {
        let replicas = cluster.cluster();
        ClusterSettings {
            memory_nodes: cluster.memory_nodes().into(),
            index_replicas: replicas.index_replicas(),
            data_replicas: replicas.data_replicas(),
            index_keys: self.index_keys,
            geometry: self.geometry,
            lease: LeaseSettings::default(),
            move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
            scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
            redundancy: Default::default(),
        }
    }

    /// Returns the number of pairs that take this share of the data memory.
    pub fn pairs(&self, fill: f64) -> u64 {
        ((self.data_bytes as f64 * fill) as u64 / self.object_bytes).max(1)
    }

    /// Returns an upper bound of the number of pairs that fit.
    pub fn most_pairs(&self) -> u64 {
        self.index_keys
    }

    /// Refuses pools that exceed the machine's available memory, because this benchmark fills them.
    pub fn check_memory(
        &self,
        cluster: &ProcessClusterArgs,
        available: Option<u64>,
    ) -> Result<(), Failure> {
        let pools = self.pool_bytes.saturating_mul(cluster.memory_nodes().into());
        check_memory(pools, "--pool or --memory-nodes", available)
    }

    /// Starts the cluster, and joins it.
    pub fn open(&self, cluster: &ProcessClusterArgs) -> Result<(BlockingClient, Servers), Failure> {
        let replicas = cluster.cluster();
        let fabric = match cluster.fabric {
            FabricChoice::Auto => FabricKind::Shm,
            FabricChoice::Only(kind) => kind,
        };
        let servers = Servers::start(&LaunchPlan {
            memory_nodes: cluster.memory_nodes(),
            index_replicas: replicas.index_replicas(),
            data_replicas: replicas.data_replicas(),
            pool_bytes: self.pool_bytes,
            populate: false,
            index_keys: self.index_keys,
            port: 0,
            lease_ms: DEFAULT_LEASE_MS,
            move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
            scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
            fabrics: vec![fabric],
            region_bytes: self.geometry.region_bytes,
            block_bytes: self.geometry.block_bytes,
            more: Vec::new(),
        })?;
        let options = Options::default().with_fabric(fabric);
        Ok((connect::join(servers.master(), options)?, servers))
    }
}

/// Returns the largest power of two that is not above `bytes`.
fn power_of_two_below(bytes: u64) -> u64 {
    1 << bytes.max(1).ilog2()
}

fn geometry(pool_bytes: u64) -> Geometry {
    let region_bytes = power_of_two_below(pool_bytes / REGIONS_PER_POOL)
        .clamp(LEAST_REGION_BYTES, MOST_REGION_BYTES);
    let block_bytes = (region_bytes / BLOCKS_PER_REGION).clamp(LEAST_BLOCK_BYTES, MOST_BLOCK_BYTES);
    Geometry::with_blocks(region_bytes, block_bytes)
}

fn class(pair_bytes: usize, geometry: &Geometry) -> Result<SizeClass, Failure> {
    let value_bytes = pair_bytes.saturating_sub(KEY_BYTES);
    let fits = value_bytes <= geometry.max_value_bytes as usize;
    Object::class(KEY_BYTES, value_bytes).filter(|_| fits).ok_or_else(|| {
        let most = KEY_BYTES + geometry.max_value_bytes as usize;
        Failure::usage(format!("--pair-bytes is {pair_bytes}; pairs have at most {most} bytes"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_and_blocks_follow_the_pool() {
        for (pool_mib, region_mib, block_mib) in
            [(64, 32, 2), (256, 32, 2), (512, 64, 2), (1 << 10, 128, 4), (1 << 20, 128, 4)]
        {
            let geometry = geometry(pool_mib << 20);
            assert_eq!(geometry.region_bytes, region_mib << 20, "{pool_mib}");
            assert_eq!(geometry.block_bytes, block_mib << 20, "{pool_mib}");
            assert_eq!(geometry.check(), Ok(()));
        }
    }
}
