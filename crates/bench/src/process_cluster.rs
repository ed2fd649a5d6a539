//! A cluster of several processes, for benchmarks that kill some of them.

use clap::Args;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::ByteSize;
use fusee_client::{FabricChoice, Options};
use fusee_launch::Servers;
use serde::Serialize;

use super::args::{ClusterArgs, LoadArgs, MIN_PAIR_BYTES};
use super::cluster::{self, ClusterDemand, MeasuredCluster};

/// The cluster, and the pairs to put into it. Reports describe the started cluster instead of the fields that are not
/// serialized.
#[derive(Args, Clone, Debug, Serialize)]
pub struct ProcessClusterArgs {
    /// shm, tcp, verbs, or auto, which means shm
    #[arg(long, default_value = "auto")]
    #[serde(skip)]
    pub fabric: FabricChoice,

    /// Memory nodes, each a process [default: 3, or as many as the redundancy takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    #[serde(skip)]
    pub memory_nodes: Option<u16>,

    /// Replicas of the index, 1 to 5 [default: 3, or as many as there are memory nodes]
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    pub index_replicas: Option<u8>,

    /// Replicas of keys and values, 1 to 5 [default: 2, or as many as there are memory nodes]
    #[arg(long, value_name = "N")]
    #[serde(skip)]
    pub data_replicas: Option<u8>,

    /// Memory of each node, like 1GiB [default: as much as the benchmark may need]
    #[arg(long, value_name = "BYTES")]
    #[serde(skip)]
    pub pool: Option<ByteSize>,

    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    pub pair_bytes: usize,

    /// Start of all random sequences
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

impl ProcessClusterArgs {
    /// Returns the number of memory nodes.
    pub fn memory_nodes(&self) -> u16 {
        self.memory_nodes.unwrap_or(3)
    }

    /// Returns the arguments of the cluster in the form that other benchmarks use.
    pub fn cluster(&self) -> ClusterArgs {
        ClusterArgs {
            master: None,
            fabric: self.fabric,
            switch: None,
            memory_nodes: self.memory_nodes(),
            index_replicas: self.index_replicas,
            data_replicas: self.data_replicas,
            pool: self.pool,
        }
    }

    /// Starts the cluster for a load of `threads` threads. `demand.processes` must be at least 1, so that the cluster
    /// consists of processes.
    pub fn open(
        &self,
        demand: ClusterDemand,
        threads: u16,
        available: Option<u64>,
    ) -> Result<(MeasuredCluster, Servers), Failure> {
        let load = load(self.pair_bytes, threads, self.seed)?;
        let mut target = cluster::open(demand, &load, &self.cluster(), available)?;
        let servers = target.servers.take();
        let servers = servers.ok_or_else(|| Failure::operation("no servers were started"))?;
        Ok((target, servers))
    }

    /// Returns the length of a value in bytes.
    pub fn value_bytes(&self) -> usize {
        self.pair_bytes.saturating_sub(MIN_PAIR_BYTES) + super::value::HEADER_BYTES
    }
}

/// Returns a load of this number of threads, each with one operation at a time.
pub fn load(pair_bytes: usize, threads: u16, seed: u64) -> Result<LoadArgs, Failure> {
    let options = Options::default();
    let load = LoadArgs {
        pair_bytes,
        threads,
        coroutines: 1,
        seed,
        cache_entries: options.cache_entries,
        cache_per_session: options.cache_per_session,
        cache_threshold: options.cache_threshold,
        work_table: options.work_table,
    };
    load.check()?;
    Ok(load)
}
