//! What a client and an embedded cluster can be told.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use fusee_core::view::Geometry;
use fusee_fabric::FabricKind;

/// Which fabric a client uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FabricChoice {
    /// Shared memory if every memory node lends it on this host; else verbs if every memory node serves
    /// them and this host has an RDMA device; else TCP.
    #[default]
    Auto,
    /// This one.
    Only(FabricKind),
}

impl FromStr for FabricChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<FabricChoice, String> {
        match name {
            "auto" => Ok(FabricChoice::Auto),
            _ => FabricKind::from_str(name)
                .map(FabricChoice::Only)
                .map_err(|_| format!("no fabric is called {name:?}: use auto, shm, tcp or verbs")),
        }
    }
}

impl fmt::Display for FabricChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricChoice::Auto => f.write_str("auto"),
            FabricChoice::Only(kind) => kind.fmt(f),
        }
    }
}

/// Options of a client.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which fabric to use.
    pub fabric: FabricChoice,
    /// Keys whose place a session remembers; 0 turns the index cache off.
    pub cache_entries: usize,
    /// A key whose cached place was wrong in more than this share of its accesses is looked up
    /// in the index instead (P §4.6). 0..=1; 1 never bypasses the cache.
    ///
    /// A wrong guess costs the bytes of an object and no round trip, a right one saves a round trip: lower
    /// it if pairs are large and bandwidth is short. `docs/results` has what `fusee bench cache` measured.
    pub cache_threshold: f64,
    /// How long an operation waits for others, at least, before it gives up: for the winner of a
    /// conflict, or for a memory node's answer to ALLOC.
    pub op_timeout: Duration,
    /// How long to wait for a cluster that is still forming, and for each of its members.
    pub connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fabric: FabricChoice::Auto,
            cache_entries: 100_000,
            cache_threshold: 0.5,
            op_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// Options of a cluster inside the calling process.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Memory nodes; at least as many as the replicas.
    pub memory_nodes: u16,
    /// Replicas of the index, 1..=5.
    pub index_replicas: u8,
    /// Replicas of keys and values, 1..=5.
    pub data_replicas: u8,
    /// How sessions reach the memory nodes. TCP goes through loopback ports, verbs through the RDMA device of
    /// this machine.
    pub fabric: FabricKind,
    /// Memory that each node lends, in bytes. It is taken from the system as it is used.
    pub pool_bytes: u64,
    /// Sizes of regions, blocks and index buckets, and the limits of keys and values.
    pub geometry: Geometry,
    /// For how many keys to build the index.
    pub index_keys: u64,
    /// Whether to try for huge pages.
    pub huge_pages: bool,
    /// Options of the client.
    pub client: Options,
}

impl Default for EmbeddedOptions {
    fn default() -> EmbeddedOptions {
        EmbeddedOptions {
            memory_nodes: 3,
            index_replicas: 3,
            data_replicas: 2,
            fabric: FabricKind::Shm,
            pool_bytes: 1 << 30,
            geometry: Geometry {
                region_bytes: 128 << 20,
                block_bytes: 4 << 20,
                ..Geometry::default()
            },
            index_keys: 1_000_000,
            huge_pages: false,
            client: Options::default(),
        }
    }
}
