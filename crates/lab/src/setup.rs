//! A cluster of ours on modelled hardware, and what its clients do.

use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, Nanos, Testbed};
use fusee_workload::{KEY_BYTES, Workload};
use serde::Serialize;

/// What is measured: hardware, cluster and load. The defaults are the paper's (P §6.1 to §6.3).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// The hardware, by name.
    pub testbed: &'static str,
    /// Machines that lend memory.
    pub memory_nodes: u16,
    /// Machines that clients run on.
    pub machines: usize,
    /// Clients, spread over the machines.
    pub clients: usize,
    /// Operations that a client has under way at once.
    pub coroutines: usize,
    /// Replicas of the index.
    pub index_replicas: u8,
    /// Replicas of pairs.
    pub data_replicas: u8,
    /// Keys that are there from the beginning.
    pub keys: u64,
    /// Bytes of a key and its value.
    pub pair_bytes: usize,
    /// Which operations.
    #[serde(serialize_with = "in_words")]
    pub workload: Workload,
    /// How skewed the keys are.
    pub theta: f64,
    /// Operations of all clients together that are counted.
    pub operations: u64,
    /// Whether clients remember where keys are.
    pub cached: bool,
    /// See [`fusee_client::Options::cache_threshold`].
    pub cache_threshold: f64,
    /// Of what is drawn: keys and kinds of operations.
    pub seed: u64,
}

fn in_words<S: serde::Serializer>(workload: &Workload, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(workload)
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            testbed: Testbed::CONNECTX_3.name,
            memory_nodes: 2,
            machines: 16,
            clients: 128,
            coroutines: 8,
            index_replicas: 1,
            data_replicas: 2,
            keys: 100_000,
            pair_bytes: 1024,
            workload: Workload::C,
            theta: 0.99,
            operations: 200_000,
            cached: true,
            cache_threshold: 0.5,
            seed: 1,
        }
    }
}

/// Nobody waits for so long.
const LONG: Duration = Duration::from_secs(100);
const BLOCK_BYTES: u64 = 1 << 18;
const REGION_BYTES: u64 = 1 << 25;

impl Setup {
    /// The hardware.
    ///
    /// # Panics
    /// If it has no such name.
    pub fn hardware(&self) -> Testbed {
        Testbed::named(self.testbed).expect("a testbed's name")
    }

    /// Bytes of a value.
    pub fn value_bytes(&self) -> usize {
        self.pair_bytes - KEY_BYTES
    }

    /// How sessions work.
    pub(crate) fn session(&self) -> LogicOptions {
        LogicOptions {
            // New keys come to those that were there.
            cache_entries: if self.cached { 2 * self.keys as usize } else { 0 },
            cache_threshold: self.cache_threshold,
            op_timeout: LONG,
            spins: false,
            redundancy: None,
        }
    }

    /// The cluster: with room for all pairs, and for blocks of every client.
    pub(crate) fn cluster(&self) -> ClusterOptions {
        let pairs = 2 * self.keys * self.pair_bytes as u64;
        let blocks = 8 * self.clients as u64 * BLOCK_BYTES;
        let bytes = (pairs + blocks) * u64::from(self.data_replicas);
        let pool = bytes / u64::from(self.memory_nodes) + 16 * REGION_BYTES;
        ClusterOptions {
            memory_nodes: self.memory_nodes,
            index_replicas: self.index_replicas,
            data_replicas: self.data_replicas,
            index_keys: 2 * self.keys,
            geometry: Geometry {
                region_bytes: REGION_BYTES,
                block_bytes: BLOCK_BYTES,
                slots_per_bucket: 7,
                groups_per_subtable: 64,
                max_key_bytes: 64,
                max_value_bytes: self.pair_bytes.max(1024) as u32,
            },
            pool_bytes: pool,
            session: self.session(),
            lease_ms: Some(1_000),
            ..ClusterOptions::default()
        }
    }
}

/// What came of it. Everything is in virtual time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Operations that were counted.
    pub operations: u64,
    /// How long they took.
    pub virtual_ns: Nanos,
    /// Operations a second.
    pub ops_per_s: f64,
    /// By kind, in order of the names.
    pub latencies: Vec<Latency>,
    /// Hints of the index cache that were wrong, per operation.
    pub wrong_hints: f64,
    /// The part of the hardware that was busiest, and for how much of the time.
    pub busiest: Use,
    /// For each kind of machine and part the busiest of these.
    pub uses: Vec<Use>,
    /// Events of the simulation.
    pub events: u64,
}

/// Of one kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Which.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
    /// The median.
    pub p50_ns: Nanos,
    /// One of a hundred takes longer.
    pub p99_ns: Nanos,
}

/// How much a part of the hardware was used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Use {
    /// Whose.
    pub machine: String,
    /// Which part.
    pub part: &'static str,
    /// Of 1.
    pub share: f64,
}
