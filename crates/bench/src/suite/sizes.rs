//! `fusee-bench sizes`: the bytes of the pools that pairs of certain sizes take.
//!
//! Sizes are drawn, and no cluster runs, because the layouts decide the result. An *object* is as long as the size
//! class of the pair with its header and log entry. A *block* holds objects of one class, and loses its header, its
//! bitmap, and a rest at its end. The bytes of blocks are those of full blocks, on all places of a redundancy. A pair
//! that is too short for the redundancy is replicated. In addition, a session holds one block for every class and
//! redundancy that it writes, full or not; the result does not include this.

use std::fmt::Write as _;

use fusee_cli::failure::Failure;
use fusee_cli::quantity::{ByteSize, count_with_noun};
use fusee_client::Redundancy;
use fusee_core::layout::BlockShape;
use fusee_master::MasterConfig;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::redundant::by_name;
use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport};
use crate::size_distribution::SizeDistribution;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench sizes --values fixed:100,log-uniform:1-65536 --json\n  \
    fusee-bench sizes --redundancy replicated,ec:4+2 --data-replicas 3 --values fixed:1048576")]
pub struct SizesArgs {
    /// Sizes of values: fixed:BYTES, uniform:LEAST-MOST, log-uniform:LEAST-MOST (every octave as
    /// often as any other)
    #[arg(long, value_delimiter = ',', value_name = "SIZES",
          default_values = ["fixed:48", "fixed:1008", "uniform:1024-4096",
                            "log-uniform:1-1048576"])]
    #[serde(skip)]
    values: Vec<SizeDistribution>,

    /// Redundancies, as with `fusee put`, like replicated,ec:4+2
    #[arg(long, value_delimiter = ',', value_name = "REDUNDANCY", default_values = ["replicated"])]
    #[serde(skip)]
    redundancy: Vec<Redundancy>,

    /// Replicas of replicated pairs
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u8).range(1..=5))]
    data_replicas: u8,

    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    key_bytes: u32,

    /// Size of a block
    #[arg(long, default_value_t = ByteSize(MasterConfig::default().geometry.block_bytes),
          value_name = "BYTES")]
    #[serde(rename = "block_size_bytes")]
    block_bytes: ByteSize,

    /// Pairs to draw for each
    #[arg(long, default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pairs: u64,

    /// Start of all random sequences
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// The memory that pairs of one distribution take.
#[derive(Debug, Serialize)]
struct SizesRow {
    values: String,
    #[serde(serialize_with = "by_name")]
    redundancy: Redundancy,
    /// Number of pairs with this redundancy; the other pairs are replicated.
    pairs_of_it: u64,
    /// Bytes of keys and values.
    user_bytes: u64,
    object_bytes: u64,
    block_bytes: f64,
    object_per_user: f64,
    block_per_object: f64,
    block_per_user: f64,
    /// Number of size classes that occurred. A session has one open block for each of them.
    classes: usize,
}

/// The results.
#[derive(Debug, Serialize)]
struct SizesReport {
    distributions: Vec<SizesRow>,
}

/// Draws the sizes and prints the report.
pub fn run(args: &SizesArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("sizes", &args.output);
    let of_each = |sizes: &SizeDistribution| {
        let sizes = *sizes;
        args.redundancy.iter().map(move |redundancy| row(args, sizes, *redundancy))
    };
    let rows = args.values.iter().flat_map(of_each);
    let distributions = rows.collect::<Result<_, _>>()?;
    shell.print_results(args, None, SizesReport { distributions }, None)
}

fn row(
    args: &SizesArgs,
    sizes: SizeDistribution,
    redundancy: Redundancy,
) -> Result<SizesRow, Failure> {
    let mut rng = SmallRng::seed_from_u64(args.seed);
    let mut user_bytes = 0;
    let mut object_bytes = 0;
    let mut block_bytes = 0.0;
    let mut pairs_of_it = 0;
    let mut classes = std::collections::BTreeSet::new();
    for _ in 0..args.pairs {
        let value_bytes = sizes.draw(&mut rng);
        let key = args.key_bytes as usize;
        let value = value_bytes as usize;
        let has_it = redundancy.check(key, value).is_ok();
        let given = if has_it { redundancy } else { Redundancy::default() };
        let places = given.places(args.data_replicas.into());
        let class = given.class(key, value);
        let shaped = class.and_then(|class| {
            let shape = BlockShape::new(args.block_bytes.0, class)?;
            Some((class, shape.objects))
        });
        let Some((class, objects)) = shaped else {
            return Err(Failure::usage(format!(
                "a pair of {} and {value_bytes} bytes does not fit into a block of {}",
                args.key_bytes, args.block_bytes
            )));
        };
        user_bytes += u64::from(args.key_bytes) + u64::from(value_bytes);
        object_bytes += class.bytes() * places as u64;
        block_bytes += args.block_bytes.0 as f64 / f64::from(objects) * places as f64;
        pairs_of_it += u64::from(has_it);
        classes.insert((given, class));
    }
    Ok(SizesRow {
        values: sizes.to_string(),
        redundancy,
        pairs_of_it,
        user_bytes,
        object_bytes,
        block_bytes,
        object_per_user: object_bytes as f64 / user_bytes as f64,
        block_per_object: block_bytes / object_bytes as f64,
        block_per_user: block_bytes / user_bytes as f64,
        classes: classes.len(),
    })
}

impl BenchFindings for SizesReport {
    type Settings = SizesArgs;

    fn title(report: &BenchReport<'_, SizesReport>) -> String {
        let SizesArgs { pairs, key_bytes, block_bytes, data_replicas, .. } = report.settings;
        format!(
            "{pairs} pairs each, keys of {key_bytes} bytes, blocks of {block_bytes}, {} where replicated",
            count_with_noun(*data_replicas, "replica")
        )
    }

    fn rows(report: &BenchReport<'_, SizesReport>) -> String {
        let mut text = format!(
            "\n{:<23} {:<12} {:>7} {:>14} {:>15} {:>17} {:>14} {:>8}\n",
            "values",
            "redundancy",
            "have it",
            "user B a pair",
            "objects / user",
            "blocks / objects",
            "blocks / user",
            "classes"
        );
        for row in &report.findings.distributions {
            let _ = writeln!(
                text,
                "{:<23} {:<12} {:>5.0} %{:>15.1} {:>15.3} {:>17.3} {:>14.3} {:>8}",
                row.values,
                row.redundancy.to_string(),
                100.0 * row.pairs_of_it as f64 / report.settings.pairs as f64,
                row.user_bytes as f64 / report.settings.pairs as f64,
                row.object_per_user,
                row.block_per_object,
                row.block_per_user,
                row.classes
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(values: &str, pairs: u64) -> SizesArgs {
        SizesArgs {
            values: vec![values.parse().unwrap()],
            redundancy: Vec::new(),
            data_replicas: 3,
            key_bytes: 16,
            block_bytes: ByteSize(4 << 20),
            pairs,
            seed: 1,
            output: BenchOutputArgs::default(),
        }
    }

    #[test]
    fn what_fixed_sizes_take_is_what_the_layouts_say() {
        // 16 + 48 bytes of a pair and 40 bytes of the object take two units of 64 bytes, on each of three replicas.
        let replicated = Redundancy::default();
        let args = args("fixed:48", 10);
        let row = row(&args, SizeDistribution::Fixed(48), replicated).unwrap();
        assert_eq!((row.user_bytes, row.object_bytes, row.classes), (640, 3 * 1280, 1));
        assert!(row.block_per_object > 1.0 && row.block_per_object < 1.01, "{row:?}");
        assert_eq!(row.block_per_user, row.block_bytes / 640.0);
        let too_large =
            super::row(&args, SizeDistribution::Fixed(8 << 20), replicated).unwrap_err();
        assert!(too_large.to_string().contains("does not fit"), "{too_large}");
    }

    #[test]
    fn coded_pairs_take_half_of_three_replicas_and_short_ones_are_replicated() {
        let args = args("fixed:48", 10);
        let coded: Redundancy = "ec:4+2".parse().unwrap();
        let sizes = SizeDistribution::Fixed(1_000_000);
        let of = |redundancy| row(&args, sizes, redundancy).unwrap().object_bytes as f64;
        // The classes of a pair and of its chunks have 64 bytes more than a power of two.
        let share = of(coded) / of(Redundancy::default());
        assert!((share - 0.5).abs() < 0.001, "{share}");
        let short = row(&args, SizeDistribution::Fixed(48), coded).unwrap();
        assert_eq!((short.pairs_of_it, short.object_bytes), (0, 3 * 1280));
    }
}
