//! Small clusters for tests: embedded ones, ones with servers, and a fake master.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod fake;

use std::path::Path;

use fusee_client::{BlockingClient, Client, EmbeddedOptions, FabricKind, Geometry};
use fusee_master::{MasterConfig, MasterServer};
use fusee_memory_node::{MemoryNode, MemoryNodeConfig as NodeConfig};

/// Returns options of a cluster that starts quickly.
pub fn options(fabric: FabricKind) -> EmbeddedOptions {
    let geometry = Geometry {
        region_bytes: 16 << 20,
        block_bytes: 1 << 20,
        max_value_bytes: 512 << 10,
        ..Geometry::default()
    };
    EmbeddedOptions::default()
        .with_fabric(fabric)
        .with_pool_bytes(64 << 20)
        .with_geometry(geometry)
        .with_index_keys(20_000)
}

/// Returns the fabrics that this machine has. Verbs need an RDMA device; if `FUSEE_RDMA_REQUIRED` is 1, a missing
/// device is an error.
pub fn fabrics() -> Vec<FabricKind> {
    let mut fabrics = vec![FabricKind::Shm, FabricKind::Tcp];
    match fusee_fabric::verbs::default_device() {
        Ok(_) => fabrics.push(FabricKind::Verbs),
        Err(error) => {
            // This does not use `println`, because the test harness captures its output.
            let _told = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: not over verbs: {error}\n"),
            );
            let required = std::env::var("FUSEE_RDMA_REQUIRED").is_ok_and(|value| value == "1");
            assert!(!required, "FUSEE_RDMA_REQUIRED is 1: {error}");
        }
    }
    fabrics
}

/// Calls `test` once for each fabric, with a cluster over that fabric.
pub fn on_every_fabric(mut test: impl FnMut(BlockingClient)) {
    for fabric in fabrics() {
        println!("over {fabric}");
        test(Client::embedded(options(fabric)).unwrap().blocking());
    }
}

/// Starts a master that waits for `memory_nodes` memory nodes.
pub fn master(dir: &Path, memory_nodes: u32) -> MasterServer {
    let geometry = Geometry {
        region_bytes: 4 << 20,
        block_bytes: 1 << 20,
        max_value_bytes: 64 << 10,
        ..Geometry::default()
    };
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        data_dir: dir.join("master"),
        memory_nodes,
        index_replicas: 2,
        data_replicas: 2,
        index_keys: 1000,
        geometry,
        // The scrubber is off, because its jobs would use up client ids.
        scrub_bytes_per_s: 0,
        ..MasterConfig::default()
    };
    let master = MasterServer::start(config).unwrap();
    master.form().unwrap();
    master
}

/// Starts a memory node that joins this master.
pub fn node(dir: &Path, master: &MasterServer) -> MemoryNode {
    let config = NodeConfig {
        master: master.addr().unwrap().to_string(),
        shm_dir: Some(dir.to_owned()),
        pool_bytes: 32 << 20,
        ..NodeConfig::default()
    };
    MemoryNode::start(config).unwrap()
}
