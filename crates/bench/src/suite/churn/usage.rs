//! The memory that sessions own: how many bytes of all blocks have an owner, as memory nodes report it (`fusee status`
//! shows these reports too).
//!
//! A block is counted only at the first replica of its region, so figures are for one replica. The nodes are asked at
//! the end of every step, and during updates also every [`LOOK_PERIOD`](super::LOOK_PERIOD); the largest figure is
//! kept.

use std::collections::BTreeMap;

use fusee_client::BlockingClient;
use serde::Serialize;

/// The memory of one memory node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeUse {
    /// Number of replicas of regions on the node.
    pub regions: u64,
    /// Bytes of the blocks in the regions for which this node is the primary.
    pub block_bytes: u64,
    /// Bytes of the blocks with an owner, in the regions for which this node is the primary.
    pub in_use_bytes: u64,
}

/// The memory of all memory nodes, by name of the node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChurnMemoryUse {
    pub nodes: BTreeMap<String, NodeUse>,
    /// Bytes of the blocks with an owner, on all nodes.
    pub in_use_bytes: u64,
}

/// Observes the memory in use, and remembers the largest figure.
pub struct ChurnMemoryMonitor<'a> {
    client: &'a BlockingClient,
    /// The largest memory in use since the last call of [`take_most_bytes`](ChurnMemoryMonitor::take_most_bytes), in
    /// bytes.
    pub most_bytes: u64,
    /// The reason for the first failed request, if any failed.
    pub problem: Option<String>,
}

impl<'a> ChurnMemoryMonitor<'a> {
    pub fn new(client: &'a BlockingClient) -> ChurnMemoryMonitor<'a> {
        ChurnMemoryMonitor { client, most_bytes: 0, problem: None }
    }

    /// Asks all memory nodes for their use of memory.
    pub fn look(&mut self) -> ChurnMemoryUse {
        let mut all = ChurnMemoryUse::default();
        let view = self.client.view();
        for (node, usage) in self.client.admin().usage() {
            let usage = match usage {
                Ok(usage) => usage,
                Err(error) => {
                    self.problem.get_or_insert_with(|| format!("no usage from {node}: {error}"));
                    continue;
                }
            };
            let here = NodeUse {
                regions: view.regions_on(node),
                block_bytes: usage.led_bytes,
                in_use_bytes: usage.led_bytes_owned,
            };
            all.in_use_bytes += here.in_use_bytes;
            all.nodes.insert(node.to_string(), here);
        }
        self.most_bytes = self.most_bytes.max(all.in_use_bytes);
        all
    }

    /// Returns the largest figure since the last call.
    pub fn take_most_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.most_bytes)
    }
}
