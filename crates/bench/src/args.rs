//! Arguments that several benchmarks share.

use std::fmt::Display;

use clap::Args;
use fusee_cli::failure::Failure;
use fusee_cli::quantity::ByteSize;
use fusee_client::{FabricChoice, Options, WorkTable};
use serde::{Serialize, Serializer};

use super::value::HEADER_BYTES;
use fusee_workload::KEY_BYTES;

/// Bytes of the smallest pair, which has a key and the header of a value.
pub const MIN_PAIR_BYTES: usize = KEY_BYTES + HEADER_BYTES;

/// The cluster to measure: an existing one, or one that is made for the purpose.
#[derive(Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Measure the cluster of the master at this address (several: with commas); without it, a
    /// cluster is started inside this process and ends with it (as processes for several client
    /// processes, and for `growth`)
    #[arg(long, value_name = "HOST:PORT")]
    pub master: Option<String>,

    /// shm, tcp, verbs, or auto; without --master, auto means shm
    #[arg(long, default_value = "auto")]
    pub fabric: FabricChoice,

    /// A switch in the path to the memory nodes (`fusee switch`): its address, for the fabric tcp; or `wire`, for the
    /// fabric verbs
    #[arg(long, requires = "master", value_name = "HOST:PORT|wire")]
    pub switch: Option<String>,

    /// Memory nodes of the cluster that is started
    #[arg(long, default_value_t = 3, conflicts_with = "master", value_name = "N")]
    pub memory_nodes: u16,

    /// Replicas of the index in the cluster that is started, 1 to 5 [default: 3, or as many as
    /// there are memory nodes]
    #[arg(long, conflicts_with = "master", value_name = "N")]
    pub index_replicas: Option<u8>,

    /// Replicas of keys and values in the cluster that is started, 1 to 5 [default: 2, or as many
    /// as there are memory nodes]
    #[arg(long, conflicts_with = "master", value_name = "N")]
    pub data_replicas: Option<u8>,

    /// Memory of each node of the cluster that is started, like 1GiB; without it, as much as the
    /// benchmark would need if what is replaced were not used again
    #[arg(long, conflicts_with = "master", value_name = "BYTES")]
    pub pool: Option<ByteSize>,
}

impl ClusterArgs {
    fn at_most_nodes(&self, replicas: u8) -> u8 {
        replicas.min(u8::try_from(self.memory_nodes).unwrap_or(u8::MAX))
    }

    /// Returns the number of replicas of the index.
    pub fn index_replicas(&self) -> u8 {
        self.index_replicas.unwrap_or_else(|| self.at_most_nodes(3))
    }

    /// Returns the number of replicas of keys and values.
    pub fn data_replicas(&self) -> u8 {
        self.data_replicas.unwrap_or_else(|| self.at_most_nodes(2))
    }
}

/// The load to put on the measured cluster.
#[derive(Args, Clone, Debug, Serialize)]
pub struct LoadArgs {
    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    pub pair_bytes: usize,

    /// Threads of all processes together, each with a session of its own
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,

    /// Clients of a thread, which share its session and wait at the same time
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub coroutines: u16,

    /// Start of all random sequences; the same seed asks for the same keys
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Keys whose place each process remembers, over shm each session; 0 turns the index cache off
    #[arg(long, value_name = "N", default_value_t = Options::default().cache_entries)]
    pub cache_entries: usize,

    /// Each session remembers places for itself, as if it were a process
    #[arg(long)]
    pub cache_per_session: bool,

    /// Share of wrong hints above which a key bypasses the index cache, 0 to 1
    #[arg(long, value_name = "RATIO", default_value_t = Options::default().cache_threshold)]
    pub cache_threshold: f64,

    /// Treatment of simultaneous requests of a process for one key: off, strict or relaxed; not over shm
    #[arg(long, value_name = "TABLE", default_value = "off")]
    #[serde(serialize_with = "serialize_display")]
    pub work_table: WorkTable,
}

fn serialize_display<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

impl LoadArgs {
    /// Checks the arguments that clap cannot check.
    pub fn check(&self) -> Result<(), Failure> {
        if self.pair_bytes < MIN_PAIR_BYTES {
            return Err(Failure::usage(format!(
                "--pair-bytes is {}; pairs need at least {MIN_PAIR_BYTES} bytes, for a key and a \
                 value that can be verified",
                self.pair_bytes
            )));
        }
        if !(0.0..=1.0).contains(&self.cache_threshold) {
            return Err(Failure::usage("--cache-threshold must be from 0 to 1"));
        }
        Ok(())
    }
}
