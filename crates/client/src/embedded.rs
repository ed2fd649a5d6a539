//! Whole clusters inside the calling process: memory nodes and a master, without files.
//!
//! Memory nodes and master run the same code as in processes of their own, but control messages pass through channels:
//! no control port is opened, and no file is written. Over shared memory the sessions use the pools' mappings directly;
//! over TCP each memory node's software NIC listens on a free port of 127.0.0.1; over verbs all nodes share the
//! machine's RDMA device.

use std::collections::HashMap;
use std::sync::Arc;

use fusee_control::master::MasterReply;
use fusee_control::rpc::{MasterClient, NodeClient, Runtime};
use fusee_core::data::Policy;
use fusee_core::verbs::MnId;
use fusee_core::view::Geometry;
use fusee_fabric::FabricKind;
use fusee_master::settings::{DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S, LeaseSettings};
use fusee_master::{ClusterSettings, MasterServer};
use fusee_memory_node::MemoryNode;

use crate::client::Client;
use crate::context::wait;
use crate::error::ConnectError;
use crate::options::{FabricChoice, Options};

/// Options of a cluster inside the calling process.
///
/// ```
/// use fusee_client::EmbeddedOptions;
///
/// let options = EmbeddedOptions::default().with_memory_nodes(5).with_data_replicas(3);
/// assert_eq!(options.pool_bytes, 1 << 30);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbeddedOptions {
    /// Number of memory nodes; at least the number of replicas. Default: 3.
    pub memory_nodes: u16,
    /// Replicas of the index, 1..=5. Default: 3.
    pub index_replicas: u8,
    /// Replicas of keys and values, 1..=5. Default: 2.
    pub data_replicas: u8,
    /// Fabric between sessions and memory nodes; overrides that of the client's options. TCP goes through loopback
    /// ports, verbs through the RDMA device of this machine. Default: shared memory.
    pub fabric: FabricKind,
    /// Memory that each node lends, in bytes. The operating system provides memory when it is first used. Default: 1
    /// GiB.
    pub pool_bytes: u64,
    /// Sizes of regions, blocks and index buckets, and the limits of keys and values. Default: regions of 128 MiB and
    /// blocks of 4 MiB, which allow values of up to 2 MiB; all else as in [`Geometry::default`].
    pub geometry: Geometry,
    /// Number of keys for which the index is sized at the start. Default: 1,000,000.
    pub index_keys: u64,
    /// Whether to try to use huge pages. Default: no.
    pub huge_pages: bool,
    /// Rules for the redundancy of values, and for its automatic changes. Default: all values are
    /// replicated.
    pub policy: Policy,
    /// Options of the client. [`EmbeddedOptions::fabric`] replaces the fabric in them.
    pub client: Options,
}

impl EmbeddedOptions {
    /// Sets [`EmbeddedOptions::policy`].
    pub fn with_policy(self, policy: Policy) -> EmbeddedOptions {
        EmbeddedOptions { policy, ..self }
    }

    /// Sets [`EmbeddedOptions::memory_nodes`].
    pub fn with_memory_nodes(self, memory_nodes: u16) -> EmbeddedOptions {
        EmbeddedOptions { memory_nodes, ..self }
    }

    /// Sets [`EmbeddedOptions::index_replicas`], 1..=5.
    pub fn with_index_replicas(self, index_replicas: u8) -> EmbeddedOptions {
        EmbeddedOptions { index_replicas, ..self }
    }

    /// Sets [`EmbeddedOptions::data_replicas`], 1..=5.
    pub fn with_data_replicas(self, data_replicas: u8) -> EmbeddedOptions {
        EmbeddedOptions { data_replicas, ..self }
    }

    /// Sets [`EmbeddedOptions::fabric`].
    pub fn with_fabric(self, fabric: FabricKind) -> EmbeddedOptions {
        EmbeddedOptions { fabric, ..self }
    }

    /// Sets [`EmbeddedOptions::pool_bytes`].
    pub fn with_pool_bytes(self, pool_bytes: u64) -> EmbeddedOptions {
        EmbeddedOptions { pool_bytes, ..self }
    }

    /// Sets [`EmbeddedOptions::geometry`].
    pub fn with_geometry(self, geometry: Geometry) -> EmbeddedOptions {
        EmbeddedOptions { geometry, ..self }
    }

    /// Sets [`EmbeddedOptions::index_keys`].
    pub fn with_index_keys(self, index_keys: u64) -> EmbeddedOptions {
        EmbeddedOptions { index_keys, ..self }
    }

    /// Sets [`EmbeddedOptions::huge_pages`].
    pub fn with_huge_pages(self, huge_pages: bool) -> EmbeddedOptions {
        EmbeddedOptions { huge_pages, ..self }
    }

    /// Sets [`EmbeddedOptions::client`].
    pub fn with_client(self, client: Options) -> EmbeddedOptions {
        EmbeddedOptions { client, ..self }
    }
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            memory_nodes: 3,
            index_replicas: 3,
            data_replicas: 2,
            fabric: FabricKind::Shm,
            pool_bytes: 1 << 30,
            geometry: Geometry::with_blocks(128 << 20, 4 << 20),
            index_keys: 1_000_000,
            huge_pages: false,
            policy: Policy::default(),
            client: Options::default(),
        }
    }
}

impl Client {
    /// Starts a whole cluster inside this process, for tests and single-process use. The drop of
    /// the client's last clone ends the cluster, and its contents are lost. Needs the feature
    /// `embedded`.
    pub fn embedded(options: EmbeddedOptions) -> Result<Client, ConnectError> {
        let runtime = Runtime::start("fusee-control")?;
        let cluster = EmbeddedCluster::start(&runtime, &options)?;
        let client_options =
            Options { fabric: FabricChoice::Only(options.fabric), ..options.client };
        let master = cluster.master();
        let nodes = cluster.nodes();
        Client::join(runtime, master, client_options, nodes, Some(Arc::new(cluster)))
    }
}

/// A running embedded cluster. Its drop ends the cluster.
struct EmbeddedCluster {
    // The fields are declared in the order in which they are dropped: the master ends first.
    master: MasterServer,
    nodes: HashMap<MnId, MemoryNode>,
}

impl EmbeddedCluster {
    /// Starts memory nodes and a master, and lets the nodes join. Does not wait until the master has formed the
    /// cluster.
    fn start(
        runtime: &Runtime,
        options: &EmbeddedOptions,
    ) -> Result<EmbeddedCluster, ConnectError> {
        let settings = ClusterSettings {
            memory_nodes: options.memory_nodes.into(),
            index_replicas: options.index_replicas,
            data_replicas: options.data_replicas,
            index_keys: options.index_keys,
            geometry: options.geometry,
            lease: LeaseSettings::default(),
            move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
            scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
            redundancy: options.policy,
        };
        let failed = |error: &dyn std::fmt::Display| ConnectError::Embedded(error.to_string());
        settings.check().map_err(|error| failed(&error))?;
        let mut started = Vec::new();
        for i in 0..options.memory_nodes {
            let name = format!("embedded-{i}");
            let bytes = options.pool_bytes;
            let huge_pages = options.huge_pages;
            let fabric = options.fabric;
            let node = MemoryNode::start_local(runtime, &name, bytes, huge_pages, fabric);
            started.push(node.map_err(|error| failed(&error))?);
        }
        let clients = started.iter().map(MemoryNode::client).collect();
        let master = MasterServer::start_local(runtime, settings, clients)
            .map_err(|error| failed(&error))?;
        let mut nodes = HashMap::new();
        for node in started {
            let client = master.client();
            let request = node.join_request();
            match wait(runtime, async move { client.call(request).await })? {
                MasterReply::Joined { node: name } => drop(nodes.insert(name, node)),
                MasterReply::Refused { reason } => return Err(ConnectError::Embedded(reason)),
                _ => return Err(ConnectError::Protocol("another answer than to Join")),
            }
        }
        Ok(EmbeddedCluster { master, nodes })
    }

    fn master(&self) -> MasterClient {
        self.master.client()
    }

    fn nodes(&self) -> HashMap<MnId, NodeClient> {
        self.nodes.iter().map(|(name, node)| (*name, node.client())).collect()
    }
}
