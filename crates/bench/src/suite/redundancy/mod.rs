//! `fusee-bench redundancy`: the costs of pairs with different redundancies, and of changing the redundancy of a pair
//! (ElasticMem, experiments 1 and 2).
//!
//! For each *set* of redundancies and each length of values there is a cluster inside this process, over TCP by
//! default, so that the lengths matter. One session reads, writes and changes the redundancy, one operation at a time
//! ([`measure`]). The report has the bytes of the session's verbs next to ElasticMem's Table 1 ([`set`]). A transition
//! here is a Move: it reads the value and writes it anew.

mod measure;
mod report;
mod set;

use fusee_cli::failure::Failure;
use fusee_cli::flags;
use fusee_cli::interrupt;
use fusee_cli::quantity::ByteSize;
use fusee_client::{BlockingClient, Client, EmbeddedOptions, FabricKind, Geometry};
use serde::Serialize;

use crate::progress::bar;
use crate::report::{BenchInvocation, BenchPlotArgs, BenchVerdict, MeasuredSetup};
use crate::tally::OperationTally;
use crate::value::HEADER_BYTES;
use fusee_workload::KEY_BYTES;
use measure::{RedundancyBench, RedundancyMeasurements, WorkAmount};
use report::{RedundancyReport, ValueLengthReport};
use set::RedundancySet;

/// Default number of memory nodes, as on ElasticMem's test bed.
const NODES: usize = 6;
/// Bytes of a block, as in a cluster of `fusee master`. A Move that has to wait for a block reads the value again, so
/// the result depends on the number of values in a block.
const BLOCK_BYTES: u64 = 16 << 20;
/// Bytes of a region. Regions are small, because there are few pairs.
const REGION_BYTES: u64 = 64 << 20;
/// Number of keys for which the index is created; there are few.
const INDEX_KEYS: u64 = 1000;

/// The arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    fusee-bench redundancy --quick\n  \
    fusee-bench redundancy --plot redundancy.svg --json\n  \
    fusee-bench redundancy --set 2:replicated,ec:2+1,ec:4+1 --value-bytes 64KiB,1MiB --fabric shm\n\n\
    Exit code 1 if an operation failed, a value was not what was written last, or a pair does not\n\
    have the redundancy that it was given.")]
pub struct RedundancyArgs {
    /// Replicas of the data, and redundancies to compare on such a cluster; may be given several times
    #[arg(long = "set", value_name = "R:REDUNDANCY,...",
          default_values = ["3:replicated,eor:3:4+2,ec:4+2", "2:replicated,eor:2:4+1,ec:4+1",
                            "2:replicated,eor:2:5+1,ec:5+1"])]
    sets: Vec<RedundancySet>,

    /// Lengths of values [default: 1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB]
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    value_bytes: Vec<ByteSize>,

    /// Turns of each redundancy [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: Option<u32>,

    /// Operations of each kind in a turn [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    operations: Option<u64>,

    /// Fewer lengths, rounds and operations, where they are not given: less than a minute
    #[arg(long)]
    quick: bool,

    /// shm, tcp or verbs
    #[arg(long, default_value = "tcp", value_name = "FABRIC")]
    fabric: FabricKind,

    /// Memory nodes [default: 6, or as many as a set takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    memory_nodes: Option<u16>,

    /// Memory of each node
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    pool: ByteSize,

    #[command(flatten)]
    drawing: BenchPlotArgs,
}

/// The settings of the run.
#[derive(Clone, Debug, Serialize)]
pub struct RedundancyRunSettings {
    sets: Vec<String>,
    value_bytes: Vec<u64>,
    rounds: u32,
    operations: u64,
    pool_bytes_per_node: u64,
}

impl RedundancyArgs {
    fn settings(&self) -> RedundancyRunSettings {
        let given = |value_bytes: &[ByteSize]| value_bytes.iter().map(|bytes| bytes.0).collect();
        let value_bytes = match (self.value_bytes.is_empty(), self.quick) {
            (false, _) => given(&self.value_bytes),
            (true, true) => vec![1 << 10, 64 << 10, 1 << 20],
            (true, false) => (5..=11).map(|power| 1 << (2 * power)).collect(),
        };
        RedundancyRunSettings {
            sets: self.sets.iter().map(RedundancySet::to_string).collect(),
            value_bytes,
            rounds: self.rounds.unwrap_or(if self.quick { 3 } else { 5 }),
            operations: self.operations.unwrap_or(if self.quick { 8 } else { 16 }),
            pool_bytes_per_node: self.pool.0,
        }
    }

    fn nodes(&self, set: &RedundancySet) -> u16 {
        let fitting = NODES.max(set.places()) as u16;
        self.memory_nodes.unwrap_or(fitting)
    }

    fn check(&self, settings: &RedundancyRunSettings) -> Result<(), Failure> {
        for set in &self.sets {
            let nodes = self.nodes(set);
            let places = set.places();
            if usize::from(nodes) < places {
                return Err(Failure::usage(format!(
                    "--memory-nodes is {nodes}; --set {set} takes {places}"
                )));
            }
        }
        for bytes in &settings.value_bytes {
            let most = u64::from(geometry().max_value_bytes);
            if *bytes < HEADER_BYTES as u64 || *bytes > most {
                return Err(Failure::usage(format!(
                    "--value-bytes has {bytes}; it must be {HEADER_BYTES}..={most}"
                )));
            }
        }
        Ok(())
    }

    fn open(&self, set: &RedundancySet) -> Result<BlockingClient, Failure> {
        let nodes = self.nodes(set);
        let embedded = EmbeddedOptions::default()
            .with_memory_nodes(nodes)
            .with_index_replicas(3.min(nodes as u8))
            .with_data_replicas(set.data_replicas)
            .with_fabric(self.fabric)
            .with_pool_bytes(self.pool.0)
            .with_geometry(geometry())
            .with_index_keys(INDEX_KEYS);
        Client::embedded(embedded)
            .map(|client| client.blocking())
            .map_err(|error| Failure::usage(flags::with_flag_names(&error.to_string())))
    }
}

fn geometry() -> Geometry {
    Geometry::with_blocks(REGION_BYTES, BLOCK_BYTES)
}

/// Sums over all clusters.
#[derive(Default)]
struct RedundancyTotals {
    tally: OperationTally,
    read_back: u64,
    problems: Vec<String>,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &RedundancyArgs) -> Result<(), Failure> {
    let settings = args.settings();
    args.check(&settings)?;
    let shell = BenchInvocation::begin_drawing("redundancy", &args.drawing)?;
    interrupt::watch()?;
    let clusters = args.sets.len() * settings.value_bytes.len();
    let bar = bar("redundancy", clusters as u64 * u64::from(settings.rounds), true);
    let mut sum = RedundancyTotals::default();
    let mut found = RedundancyReport::default();
    for set in &args.sets {
        for bytes in &settings.value_bytes {
            if interrupt::is_requested() || sum.tally.error_count() > 0 {
                break;
            }
            bar.set_message(format!("{set}, {}", ByteSize(*bytes)));
            let (possible, refused) = possible(set, *bytes);
            found.refused.extend(refused);
            let client = args.open(&possible)?;
            let amount =
                WorkAmount { operations: settings.operations, value_bytes: *bytes as usize };
            let measured = measure(&client, &possible, amount, settings.rounds, || bar.inc(1))?;
            sum.tally.merge_failures(&measured.tally);
            sum.read_back += measured.read_back;
            sum.problems.extend(measured.problems.iter().cloned());
            found.sized.extend(ValueLengthReport::new(&possible, *bytes, &measured));
        }
    }
    bar.finish_and_clear();
    let setup = MeasuredSetup { fabric: args.fabric.to_string(), cluster: None };
    let verdict = BenchVerdict::new(&sum.tally, sum.read_back, sum.problems);
    shell.print_results(&settings, Some(setup), found, Some(verdict))
}

/// Returns the redundancies that values of this length can have, and why the other redundancies are impossible.
fn possible(set: &RedundancySet, value_bytes: u64) -> (RedundancySet, Vec<String>) {
    let mut redundancies = Vec::new();
    let mut refused = Vec::new();
    for redundancy in &set.redundancies {
        match redundancy.check(KEY_BYTES, value_bytes as usize) {
            Ok(()) => redundancies.push(*redundancy),
            Err(error) => refused.push(format!("{set}: {error}")),
        }
    }
    (RedundancySet { redundancies, ..*set }, refused)
}

fn measure(
    client: &BlockingClient,
    set: &RedundancySet,
    amount: WorkAmount,
    rounds: u32,
    mut round_done: impl FnMut(),
) -> Result<RedundancyMeasurements, Failure> {
    let mut bench = RedundancyBench::new(client, set, amount)?;
    let turns = bench.turns();
    for round in 0..rounds as usize {
        for turn in 0..turns {
            if interrupt::is_requested() || bench.has_failed() {
                break;
            }
            bench.turn((turn + round) % turns);
        }
        round_done();
    }
    bench.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_cannot_be_coded_is_told() {
        let set: RedundancySet = "2:replicated,ec:4+1,ec:5+1".parse().unwrap();
        let (can, refused) = possible(&set, 1024);
        assert_eq!(can.to_string(), "2:replicated,ec:4+1");
        assert!(refused.len() == 1 && refused[0].contains("EC(5,1)"), "{refused:?}");
        assert_eq!(possible(&set, 1 << 20), (set, Vec::new()));
    }
}
