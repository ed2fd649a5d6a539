//! A loaded cluster with one session, and the operations that comparisons measure on it.

use std::hint::black_box;

use fusee_cli::failure::Failure;
use fusee_client::{BlockingClient, Client, EmbeddedOptions, FabricKind, Options, Session};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use fusee_workload::KEY_BYTES;

/// The size of the cluster and of its pairs.
#[derive(clap::Args, Clone, Copy, Debug, Serialize)]
pub struct LoadedClusterArgs {
    /// Pairs; 1000 for instructions, because loading is slow under valgrind
    #[arg(long, default_value_t = 100_000, value_name = "N",
          default_value_if("measure", "instructions", "1000"),
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub keys: u32,

    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 1024, value_name = "N",
          value_parser = clap::value_parser!(u32).range(16..=65_536))]
    pub pair_bytes: u32,

    /// Replicas of the index
    #[arg(long, default_value_t = 3, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=3))]
    pub index_replicas: u8,

    /// Replicas of keys and values
    #[arg(long, default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=3))]
    pub data_replicas: u8,

    /// Pools in huge pages, of which the system must have enough free (vm.nr_hugepages)
    #[arg(long)]
    pub huge_pages: bool,
}

/// Default number of memory nodes of a cluster.
pub const NODES: u16 = 3;

impl LoadedClusterArgs {
    /// Returns the bytes of each pool: twice what the pairs take, and room for the index and some blocks.
    fn pool_bytes(&self, memory_nodes: u16) -> u64 {
        let pair = u64::from(self.pair_bytes) + 256;
        let data =
            u64::from(self.keys) * pair * u64::from(self.data_replicas) / u64::from(memory_nodes);
        let index = u64::from(self.keys) * 64;
        (2 * data + index).next_multiple_of(256 << 20) + (768 << 20)
    }
}

/// Returns the key with this number. Other benchmarks write the number in decimal digits; here the key must be cheap to
/// make, because the measurement would include the cost of making it.
pub fn key(number: u32) -> [u8; KEY_BYTES] {
    let mut bytes = *b"key-000000000000";
    bytes[8..].copy_from_slice(&u64::from(number).to_le_bytes());
    bytes
}

/// Returns `count` random numbers below a bound. Numbers can repeat.
pub fn numbers(below: u32, count: u32, seed: u64) -> Vec<u32> {
    let mut rng = SmallRng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(0..below)).collect()
}

/// A walk through a list, in which each index depends on a byte that the previous step has read, so that the processor
/// cannot overlap the steps.
pub struct DependencyChain {
    pub at: usize,
    none: usize,
}

impl Default for DependencyChain {
    fn default() -> DependencyChain {
        DependencyChain { at: 0, none: black_box(0) }
    }
}

impl DependencyChain {
    pub fn next(&mut self, brought: u8) {
        self.at += 1 + (usize::from(brought) & self.none);
    }
}

/// Returns the last byte, or 0 if there is none.
pub fn last_byte(bytes: &[u8]) -> u8 {
    bytes.last().copied().unwrap_or(0)
}

/// A cluster that holds all keys, and a session that has all of them in its index cache.
pub struct LoadedCluster {
    pub session: Session,
    pub value: Vec<u8>,
    // Declared last, so that the client is dropped after its session.
    pub client: BlockingClient,
}

impl LoadedCluster {
    /// Starts the cluster over this fabric.
    pub fn over(size: &LoadedClusterArgs, fabric: FabricKind) -> Result<LoadedCluster, Failure> {
        LoadedCluster::with_keys(size, fabric, NODES, key)
    }

    /// Starts the cluster with keys that `key` makes from their numbers.
    pub fn with_keys(
        size: &LoadedClusterArgs,
        fabric: FabricKind,
        memory_nodes: u16,
        key: impl Fn(u32) -> [u8; KEY_BYTES],
    ) -> Result<LoadedCluster, Failure> {
        let options = EmbeddedOptions::default()
            .with_memory_nodes(memory_nodes)
            .with_index_replicas(size.index_replicas)
            .with_data_replicas(size.data_replicas)
            .with_fabric(fabric)
            .with_huge_pages(size.huge_pages)
            .with_pool_bytes(size.pool_bytes(memory_nodes))
            .with_index_keys(u64::from(size.keys))
            .with_client(Options::default().with_cache_entries(2 * size.keys as usize));
        let client = Client::embedded(options)?.blocking();
        let session = client.session()?;
        let value = vec![7; size.pair_bytes as usize - KEY_BYTES];
        session.block_on(async {
            for number in 0..size.keys {
                session.insert(&key(number), &value).await?;
            }
            Ok::<(), Failure>(())
        })?;
        Ok(LoadedCluster { session, value, client })
    }

    /// Reads these keys, one after the other.
    pub fn gets(&self, numbers: &[u32]) -> Result<(), Failure> {
        self.session.block_on(async {
            let mut chain = DependencyChain::default();
            while let Some(number) = numbers.get(chain.at) {
                let found =
                    |value: Option<&[u8]>| value.map(|value| (value.len(), last_byte(value)));
                let found = self.session.get_with(&key(*number), found).await?;
                let (len, last) = found.expect("every key is there");
                assert_eq!(len, self.value.len(), "it is not the value");
                chain.next(last);
            }
            Ok(())
        })
    }

    /// Updates these keys, one after the other.
    pub fn updates(&self, numbers: &[u32]) -> Result<(), Failure> {
        self.session.block_on(async {
            for number in numbers {
                self.session.update(&key(*number), &self.value).await?;
            }
            Ok(())
        })
    }

    /// Inserts these keys, one after the other; none of them exists before.
    pub fn inserts(&self, numbers: &[u32]) -> Result<(), Failure> {
        self.session.block_on(async {
            for number in numbers {
                self.session.insert(&key(*number), &self.value).await?;
            }
            Ok(())
        })
    }

    /// Deletes these keys, one after the other; all of them exist before.
    pub fn deletes(&self, numbers: &[u32]) -> Result<(), Failure> {
        self.session.block_on(async {
            for number in numbers {
                self.session.delete(&key(*number)).await?;
            }
            Ok(())
        })
    }
}
