//! A whole cluster inside the calling process: memory nodes, a master, and nothing left behind.
//!
//! The same code as in real processes, but control messages go through channels: no control port
//! is opened, no file is written. Over shared memory the sessions use the pools' mappings
//! directly; over TCP each memory node's software NIC listens on a free port of 127.0.0.1; over verbs
//! all share the machine's RDMA device.

use std::collections::HashMap;

use fusee_control::master::MasterReply;
use fusee_control::rpc::{MasterClient, NodeClient, Runtime};
use fusee_core::verbs::MnId;
use fusee_master::settings::{DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S, Lease};
use fusee_master::{MasterServer, Settings};
use fusee_memory_node::MemoryNode;

use crate::error::ConnectError;
use crate::options::EmbeddedOptions;
use crate::shared::wait;

/// A running embedded cluster. Dropping it ends it.
pub(crate) struct Cluster {
    // In the order in which they end.
    master: MasterServer,
    nodes: HashMap<MnId, MemoryNode>,
}

impl Cluster {
    /// Starts memory nodes and master, and lets them join. The master forms the cluster next.
    pub fn start(runtime: &Runtime, options: &EmbeddedOptions) -> Result<Cluster, ConnectError> {
        let settings = Settings {
            memory_nodes: options.memory_nodes.into(),
            index_replicas: options.index_replicas,
            data_replicas: options.data_replicas,
            index_keys: options.index_keys,
            geometry: options.geometry,
            lease: Lease::default(),
            move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
            scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
        };
        let failed = |error: &dyn std::fmt::Display| ConnectError::Embedded(error.to_string());
        settings.check().map_err(|error| failed(&error))?;
        let mut started = Vec::new();
        for i in 0..options.memory_nodes {
            let (name, bytes) = (format!("embedded-{i}"), options.pool_bytes);
            let (huge_pages, fabric) = (options.huge_pages, options.fabric);
            let node = MemoryNode::start_local(runtime, &name, bytes, huge_pages, fabric);
            started.push(node.map_err(|error| failed(&error))?);
        }
        let clients = started.iter().map(MemoryNode::client).collect();
        let master = MasterServer::start_local(runtime, settings, clients)
            .map_err(|error| failed(&error))?;
        let mut nodes = HashMap::new();
        for node in started {
            let (client, request) = (master.client(), node.join_request());
            match wait(runtime, async move { client.call(request).await })? {
                MasterReply::Joined { node: name } => drop(nodes.insert(name, node)),
                MasterReply::Refused { reason } => return Err(ConnectError::Embedded(reason)),
                _ => return Err(ConnectError::Protocol("another answer than to Join")),
            }
        }
        Ok(Cluster { master, nodes })
    }

    pub fn master(&self) -> MasterClient {
        self.master.client()
    }

    pub fn nodes(&self) -> HashMap<MnId, NodeClient> {
        self.nodes.iter().map(|(name, node)| (*name, node.client())).collect()
    }
}
