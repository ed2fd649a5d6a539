//! `fusee-bench capacity`: the number of pairs that fit into the pools, by redundancy.
//!
//! Each redundancy has a cluster of its own inside this process, because memory of one redundancy is never given to
//! another. The cluster is filled until it refuses further pairs. Then all pairs are read back and checked.
//!
//! The report also says what takes the memory that holds no pairs. A cluster is formed with a replicated region for
//! each node ([`fusee_master`]'s plan), which coded pairs cannot use; if a pool has few regions, this is a large part
//! of it. In each region the block table takes the room of one block. Objects are rounded up to their size class, and
//! blocks hold only whole objects. With the defaults, 7 values of 1 MiB fit into a block of 8 MiB, or 28 chunks of 288
//! KiB of such values. Regions are small by default, so that the replicated ones take little.

use std::fmt::Write as _;

use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_cli::interrupt;
use fusee_cli::quantity::ByteSize;
use fusee_client::{
    BlockingClient, Client, EmbeddedOptions, FabricChoice, FabricKind, Geometry, Options,
    Redundancy, View,
};
use fusee_core::layout::BlockShape;
use serde::Serialize;

use super::churn::model::ChurnModel;
use super::churn::workers::{ChurnKeys, ChurnLoad, ChurnTask, ChurnWorkerPool};
use crate::cluster::check_memory;
use crate::progress::bar;
use crate::redundant::by_name;
use crate::report::{
    BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport, BenchVerdict, MeasuredSetup,
};
use crate::tally::OperationTally;
use crate::value::HEADER_BYTES;
use fusee_workload::KEY_BYTES;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench capacity\n  \
    fusee-bench capacity --redundancy replicated,ec:2+1,ec:4+1 --data-replicas 2 --json\n  \
    fusee-bench capacity --value-bytes 64KiB --pool 512MiB\n\n\
    Exit code 1 if an operation failed for another reason than want of memory, a pair cannot be\n\
    read back, or none fits.")]
pub struct CapacityArgs {
    /// Redundancies, as with `fusee put`; the others are compared with the first
    #[arg(long, value_delimiter = ',', value_name = "REDUNDANCY",
          default_values = ["replicated", "ec:4+2"])]
    #[serde(skip)]
    redundancy: Vec<Redundancy>,

    /// Bytes of a value, like 64KiB
    #[arg(long, default_value = "1MiB", value_name = "BYTES")]
    value_bytes: ByteSize,

    /// Sessions that fill the pools, each a thread
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    sessions: u16,

    /// shm, tcp, verbs, or auto, which means shm
    #[arg(long, default_value = "auto")]
    #[serde(skip)]
    fabric: FabricChoice,

    /// Memory nodes
    #[arg(long, default_value_t = 6, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=100))]
    #[serde(skip)]
    memory_nodes: u16,

    /// Replicas of the index, 1 to 5
    #[arg(long, default_value_t = 3, value_name = "N")]
    #[serde(skip)]
    index_replicas: u8,

    /// Replicas of replicated pairs, 1 to 5
    #[arg(long, default_value_t = 3, value_name = "N")]
    #[serde(skip)]
    data_replicas: u8,

    /// Memory of each node
    #[arg(long, default_value = "1.5GiB", value_name = "BYTES")]
    #[serde(rename = "pool_bytes_per_node")]
    pool: ByteSize,

    /// Bytes of a region on each of its memory nodes
    #[arg(long, default_value = "16MiB", value_name = "BYTES")]
    region_bytes: ByteSize,

    /// Bytes of a block
    #[arg(long, default_value = "8MiB", value_name = "BYTES")]
    #[serde(rename = "block_size_bytes")]
    block_bytes: ByteSize,

    /// Start of all random sequences
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

impl CapacityArgs {
    fn check(&self) -> Result<(), Failure> {
        let value_bytes = self.value_bytes();
        if value_bytes < HEADER_BYTES {
            return Err(Failure::usage(format!(
                "--value-bytes is {value_bytes}; values that can be verified have at least \
                 {HEADER_BYTES}"
            )));
        }
        let geometry = self.geometry();
        let refused = |error: &dyn std::fmt::Display| {
            Failure::usage(flags::with_flag_names(&error.to_string()))
        };
        geometry.check().map_err(|error| refused(&error))?;
        for redundancy in &self.redundancy {
            redundancy.check(KEY_BYTES, value_bytes).map_err(|error| {
                Failure::usage(format!("--value-bytes is {}: {error}", self.value_bytes))
            })?;
            let places = redundancy.places(self.data_replicas.into());
            if places > self.memory_nodes.into() {
                return Err(Failure::usage(format!(
                    "--memory-nodes is {}; pairs that are {redundancy} take {places}",
                    self.memory_nodes
                )));
            }
        }
        if value_bytes > geometry.max_value_bytes as usize {
            return Err(Failure::usage(format!(
                "--value-bytes is {}; with --block-bytes {} values have at most {}",
                self.value_bytes,
                self.block_bytes,
                ByteSize(geometry.max_value_bytes.into())
            )));
        }
        Ok(())
    }

    fn value_bytes(&self) -> usize {
        usize::try_from(self.value_bytes.0).unwrap_or(usize::MAX)
    }

    fn geometry(&self) -> Geometry {
        Geometry::with_blocks(self.region_bytes.0, self.block_bytes.0)
    }

    /// Returns the bytes that all nodes lend together.
    fn lent_bytes(&self) -> u64 {
        self.pool.0.saturating_mul(self.memory_nodes.into())
    }

    /// Returns an upper bound of the number of pairs that fit.
    fn most_pairs(&self) -> u64 {
        self.lent_bytes() / (self.value_bytes.0 + KEY_BYTES as u64) + 1
    }

    fn open(&self) -> Result<BlockingClient, Failure> {
        let fabric = match self.fabric {
            FabricChoice::Auto => FabricKind::Shm,
            FabricChoice::Only(kind) => kind,
        };
        let embedded = EmbeddedOptions::default()
            .with_memory_nodes(self.memory_nodes)
            .with_index_replicas(self.index_replicas)
            .with_data_replicas(self.data_replicas)
            .with_fabric(fabric)
            .with_pool_bytes(self.pool.0)
            .with_geometry(self.geometry())
            .with_index_keys(self.most_pairs())
            .with_client(Options::default());
        Client::embedded(embedded)
            .map(|client| client.blocking())
            .map_err(|error| Failure::usage(flags::with_flag_names(&error.to_string())))
    }

    fn load(&self, redundancy: Redundancy) -> ChurnLoad {
        let value_bytes = self.value_bytes();
        ChurnLoad { sessions: self.sessions, value_bytes, seed: self.seed, redundancy }
    }
}

/// The contents of a full cluster.
#[derive(Debug, Serialize)]
struct FullCluster {
    #[serde(serialize_with = "by_name")]
    redundancy: Redundancy,
    pairs: u64,
    /// Number of pairs, divided by the number for the first redundancy.
    ratio: f64,
    /// Bytes that all nodes lend together, divided by the number of pairs.
    lent_bytes_per_pair: f64,
    /// Bytes of a pair's objects on all places, rounded up to the size class.
    object_bytes: u64,
    /// Bytes of a pair on all places, with its part of the unused ends of blocks.
    block_bytes: f64,
    /// Bytes on all places: in regions of this redundancy, then in other regions, then in no region.
    region_bytes: u64,
    other_region_bytes: u64,
    rest_bytes: u64,
    fill_s: f64,
}

impl FullCluster {
    fn new(args: &CapacityArgs, redundancy: Redundancy, view: &View, pairs: u64) -> FullCluster {
        let region_bytes = |counts: &dyn Fn(Redundancy) -> bool| {
            let regions = view.regions.iter().filter(|region| counts(region.redundancy()));
            regions.map(|region| region.places().len() as u64).sum::<u64>() * args.region_bytes.0
        };
        let own = region_bytes(&|r| r == redundancy);
        let other = region_bytes(&|r| r != redundancy);
        let places = redundancy.places(args.data_replicas.into()) as u64;
        let class = redundancy.class(KEY_BYTES, args.value_bytes());
        let shape = class.and_then(|class| BlockShape::new(args.block_bytes.0, class));
        let objects = shape.map_or(f64::NAN, |shape| shape.objects.into());
        FullCluster {
            redundancy,
            pairs,
            ratio: 1.0,
            lent_bytes_per_pair: args.lent_bytes() as f64 / pairs.max(1) as f64,
            object_bytes: class.map_or(0, |class| class.bytes()) * places,
            block_bytes: args.block_bytes.0 as f64 / objects * places as f64,
            region_bytes: own,
            other_region_bytes: other,
            rest_bytes: args.lent_bytes().saturating_sub(own + other),
            fill_s: 0.0,
        }
    }
}

/// The results.
#[derive(Debug, Serialize)]
struct CapacityReport {
    lent_bytes: u64,
    full: Vec<FullCluster>,
}

/// Sums over all clusters.
#[derive(Default)]
struct CapacityTotals {
    tally: OperationTally,
    read_back: u64,
    problems: Vec<String>,
    setup: Option<MeasuredSetup>,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &CapacityArgs) -> Result<(), Failure> {
    args.check()?;
    let shell = BenchInvocation::begin("capacity", &args.output);
    check_memory(args.lent_bytes(), "--pool or --memory-nodes", shell.available())?;
    interrupt::watch()?;
    let mut sum = CapacityTotals::default();
    let mut full: Vec<FullCluster> = Vec::new();
    for redundancy in &args.redundancy {
        let filled = fill(args, *redundancy, &mut sum)?;
        if interrupt::is_requested() {
            break;
        }
        full.push(filled);
    }
    let first = full.first().map_or(1, |first| first.pairs.max(1)) as f64;
    full.iter_mut().for_each(|full| full.ratio = full.pairs as f64 / first);
    let found = CapacityReport { lent_bytes: args.lent_bytes(), full };
    let verdict = BenchVerdict::new(&sum.tally, sum.read_back, sum.problems);
    shell.print_results(args, sum.setup, found, Some(verdict))
}

/// Fills a cluster, and reads all its pairs back.
fn fill(
    args: &CapacityArgs,
    redundancy: Redundancy,
    sum: &mut CapacityTotals,
) -> Result<FullCluster, Failure> {
    let client = args.open()?;
    sum.setup = Some(MeasuredSetup::of(&client, false, true));
    let model = ChurnModel::new(args.most_pairs());
    let bar = bar("filling", args.most_pairs(), true);
    bar.set_message(redundancy.to_string());
    let keys = ChurnKeys::below(model.len());
    let load = args.load(redundancy);
    let filled = ChurnWorkerPool::run(&client, &model, load, |crew| {
        crew.run_task(ChurnTask::Fill(1), keys, |taken| bar.set_position(taken))
    })?;
    bar.finish_and_clear();
    let present: Vec<u64> = (0..filled.taken).filter(|key| model.is_present(*key)).collect();
    let pairs = present.len() as u64;
    let keys = ChurnKeys::listed(present);
    // New sessions with empty caches read the pairs.
    let checked = ChurnWorkerPool::run(&client, &model, load, |crew| {
        crew.run_task(ChurnTask::Check, keys, |_| {})
    })?;
    for done in [&filled, &checked] {
        sum.tally.merge_failures(&done.tally);
    }
    sum.read_back += checked.tally.operations();
    if filled.refused == 0 && !interrupt::is_requested() {
        sum.problems.push(format!("the cluster with {redundancy} pairs did not become full"));
    }
    if pairs == 0 {
        sum.problems.push(format!("no {redundancy} pair fits; raise --pool"));
    }
    let fill_s = filled.duration.as_secs_f64();
    Ok(FullCluster { fill_s, ..FullCluster::new(args, redundancy, &client.view(), pairs) })
}

impl BenchFindings for CapacityReport {
    type Settings = CapacityArgs;

    fn title(report: &BenchReport<'_, CapacityReport>) -> String {
        let CapacityArgs { value_bytes, memory_nodes, pool, region_bytes, block_bytes, .. } =
            report.settings;
        format!(
            "values of {value_bytes} in pools of {pool} on {memory_nodes} memory nodes, filled until \
             they refuse{};\nregions of {region_bytes}, blocks of {block_bytes}",
            report.ended_early()
        )
    }

    fn rows(report: &BenchReport<'_, CapacityReport>) -> String {
        let mut text = format!(
            "\n{:<14} {:>8} {:>7} {:>11} {:>12} {:>12} {:>12} {:>12} {:>12}\n",
            "redundancy",
            "pairs",
            "x",
            "lent / pair",
            "object",
            "in blocks",
            "regions",
            "of others",
            "rest"
        );
        for full in &report.findings.full {
            let _ = writeln!(
                text,
                "{:<14} {:>8} {:>7.3} {:>11} {:>12} {:>12} {:>12} {:>12} {:>12}",
                full.redundancy.to_string(),
                full.pairs,
                full.ratio,
                ByteSize(full.lent_bytes_per_pair as u64).to_string(),
                ByteSize(full.object_bytes).to_string(),
                ByteSize(full.block_bytes as u64).to_string(),
                ByteSize(full.region_bytes).to_string(),
                ByteSize(full.other_region_bytes).to_string(),
                ByteSize(full.rest_bytes).to_string()
            );
        }
        text.push_str(
            "\nobject and in blocks: what a pair takes by its layout, on all memory nodes; regions: \
             of this\nredundancy, of others (a cluster is formed with replicated ones), and what is in \
             none\n",
        );
        text
    }
}
