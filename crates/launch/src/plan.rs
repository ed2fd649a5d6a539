//! The description of a cluster to start, and the command lines of its servers.

use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_client::{FabricKind, Geometry, Policy};
use fusee_master::ClusterSettings;
use fusee_master::settings::LeaseSettings;

use crate::directory::ClusterDirectory;

/// The description of a cluster to start.
#[derive(Clone, Debug)]
pub struct LaunchPlan {
    /// Number of memory nodes.
    pub memory_nodes: u16,
    /// Number of replicas of the index.
    pub index_replicas: u8,
    /// Number of replicas of keys and values.
    pub data_replicas: u8,
    /// Memory that each node lends, in bytes.
    pub pool_bytes: u64,
    /// Whether the nodes take memory from the system as soon as they lend it.
    pub populate: bool,
    /// Number of keys for which the index is sized.
    pub index_keys: u64,
    /// Port of the master on 127.0.0.1; 0 selects a free port.
    pub port: u16,
    /// Milliseconds of silence after which the master regards a process as dead.
    pub lease_ms: u64,
    /// Rate limit of moves between memory nodes, in bytes per second.
    pub move_bytes_per_s: u64,
    /// Rate limit of the search for damage, in bytes per second.
    pub scrub_bytes_per_s: u64,
    /// Fabrics that the memory nodes serve.
    pub fabrics: Vec<FabricKind>,
    /// Size of a region, in bytes.
    pub region_bytes: u64,
    /// Size of a block, in bytes.
    pub block_bytes: u64,
    /// Further command-line arguments of the master.
    pub more: Vec<String>,
}

impl LaunchPlan {
    /// Refuses a plan that the master would refuse.
    pub fn check(&self) -> Result<(), Failure> {
        let settings = ClusterSettings {
            memory_nodes: self.memory_nodes.into(),
            index_replicas: self.index_replicas,
            data_replicas: self.data_replicas,
            index_keys: self.index_keys,
            geometry: Geometry::with_blocks(self.region_bytes, self.block_bytes),
            lease: LeaseSettings { lease_ms: self.lease_ms, ..LeaseSettings::default() },
            move_bytes_per_s: self.move_bytes_per_s,
            scrub_bytes_per_s: self.scrub_bytes_per_s,
            redundancy: Policy::default(),
        };
        settings.check().map_err(|error| Failure::usage(flags::with_flag_names(&error.to_string())))
    }

    /// Returns the command line of the master.
    pub(crate) fn master_arguments(&self, directory: &ClusterDirectory) -> Vec<String> {
        let data_dir = directory.path().join("master");
        let mut arguments = vec![
            "master".into(),
            format!("--listen=127.0.0.1:{}", self.port),
            format!("--data-dir={}", data_dir.display()),
            format!("--memory-nodes={}", self.memory_nodes),
            format!("--index-replicas={}", self.index_replicas),
            format!("--data-replicas={}", self.data_replicas),
            format!("--index-keys={}", self.index_keys),
            format!("--lease={}", self.lease_ms),
            format!("--move-bytes-per-s={}", self.move_bytes_per_s),
            format!("--scrub-bytes-per-s={}", self.scrub_bytes_per_s),
            format!("--region-bytes={}", self.region_bytes),
            format!("--block-bytes={}", self.block_bytes),
        ];
        arguments.extend_from_slice(&self.more);
        arguments
    }

    /// Returns the command line of a memory node.
    pub(crate) fn node_arguments(&self, directory: &ClusterDirectory, master: &str) -> Vec<String> {
        let fabrics = self.fabrics.iter().map(ToString::to_string);
        vec![
            "memory-node".into(),
            format!("--master={master}"),
            format!("--pool={}", self.pool_bytes),
            format!("--populate={}", self.populate),
            // The pools together are compared with the memory by the starter of the servers, if at all.
            "--overcommit".into(),
            format!("--serve={}", fabrics.collect::<Vec<_>>().join(",")),
            format!("--shm-dir={}", directory.path().display()),
        ]
    }
}
