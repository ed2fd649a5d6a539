//! Small embedded clusters, and a master that does what a test says.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod fake;

use fusee_client::{Client, EmbeddedOptions, FabricKind, Geometry};

/// Options of a cluster that is quick to start.
pub fn options(fabric: FabricKind) -> EmbeddedOptions {
    EmbeddedOptions {
        fabric,
        pool_bytes: 64 << 20,
        geometry: Geometry {
            region_bytes: 16 << 20,
            block_bytes: 1 << 20,
            max_value_bytes: 512 << 10,
            ..Geometry::default()
        },
        index_keys: 20_000,
        ..EmbeddedOptions::default()
    }
}

/// Calls `test` with a cluster per fabric.
pub fn on_both_fabrics(mut test: impl FnMut(Client)) {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
        test(Client::embedded(options(fabric)).unwrap());
    }
}
