//! `fusee-bench limit`: the time of operations compared with the time of their raw verbs.
//!
//! In every round each measured operation runs a number of times, on random keys, one after the other. Ratios are of
//! the same round, so that a machine that is busy for a while slows both sides. The next key depends on the data of the
//! last READ, because otherwise the processor would overlap successive operations, and the more so the shorter they
//! are.

use std::hint::black_box;
use std::time::Instant;

use fusee_cli::failure::Failure;
use serde::Serialize;

use crate::loaded_cluster::{
    DependencyChain, LoadedCluster, LoadedClusterArgs, last_byte, numbers,
};
use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport};
use crate::samples::RoundSamples;
use crate::spread::Spread;
use crate::verbs::RawCluster;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench limit\n  \
    fusee-bench limit --pair-bytes 64 --json")]
pub struct LimitArgs {
    #[command(flatten)]
    #[serde(flatten)]
    size: LoadedClusterArgs,

    /// Rounds
    #[arg(long, default_value_t = 15, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Operations of each kind in a round
    #[arg(long, default_value_t = 50_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

#[derive(Debug, Serialize)]
struct LimitReport {
    /// Nanoseconds of one copy, one sequence of raw verbs, or one operation.
    memcpy_ns: Spread,
    raw_get_ns: Spread,
    get_ns: Spread,
    raw_update_ns: Spread,
    update_ns: Spread,
    /// The time of an operation divided by the time of its raw verbs in the same round.
    get_over_raw: Spread,
    update_over_raw: Spread,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &LimitArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("limit", &args.output);
    let size = args.size;
    let mut raw = RawCluster::new(&size)?;
    let loaded = LoadedCluster::new(&size)?;
    let mut copies = PlainCopies::new(&size);
    loaded.gets(&(0..size.keys).collect::<Vec<u32>>())?;
    let mut all: [RoundSamples; 5] = Default::default();
    for round in 0..args.rounds {
        let numbers = numbers(size.keys, args.operations, u64::from(round));
        let [memcpy, raw_get, get, raw_update, update] = &mut all;
        time(memcpy, &numbers, |numbers| {
            let mut chain = DependencyChain::default();
            while let Some(number) = numbers.get(chain.at) {
                chain.next(copies.copy(*number));
            }
            Ok(())
        })?;
        let pairs = raw.pairs(&numbers);
        time(raw_get, &pairs, |pairs| {
            let mut chain = DependencyChain::default();
            while let Some(pair) = pairs.get(chain.at) {
                chain.next(raw.get(pair)?);
            }
            Ok(())
        })?;
        time(get, &numbers, |numbers| loaded.gets(numbers))?;
        time(raw_update, &pairs, |pairs| pairs.iter().try_for_each(|pair| raw.update(pair)))?;
        time(update, &numbers, |numbers| loaded.updates(numbers))?;
    }
    raw.verify()?;
    let [memcpy, raw_get, get, raw_update, update] = all;
    let found = LimitReport {
        get_over_raw: get.over(&raw_get).spread(),
        update_over_raw: update.over(&raw_update).spread(),
        memcpy_ns: memcpy.spread(),
        raw_get_ns: raw_get.spread(),
        get_ns: get.spread(),
        raw_update_ns: raw_update.spread(),
        update_ns: update.spread(),
    };
    shell.print_results(args, None, found, None)
}

fn time<T>(
    series: &mut RoundSamples,
    items: &[T],
    work: impl FnOnce(&[T]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let start = Instant::now();
    work(items)?;
    series.push(start.elapsed().as_nanos() as f64 / items.len() as f64);
    Ok(())
}

/// Plain copies of as many bytes as a pair has, from a buffer with room for all pairs.
struct PlainCopies {
    from: Vec<u8>,
    into: Vec<u8>,
}

impl PlainCopies {
    fn new(size: &LoadedClusterArgs) -> PlainCopies {
        let bytes = size.pair_bytes as usize;
        PlainCopies { from: vec![1; size.keys as usize * bytes], into: vec![0; bytes] }
    }

    fn copy(&mut self, number: u32) -> u8 {
        let bytes = self.into.len();
        self.into.copy_from_slice(&self.from[number as usize * bytes..][..bytes]);
        last_byte(black_box(&self.into))
    }
}

impl BenchFindings for LimitReport {
    type Settings = LimitArgs;

    fn title(report: &BenchReport<'_, LimitReport>) -> String {
        let LimitArgs { size, rounds, operations, .. } = report.settings;
        let LoadedClusterArgs { keys, pair_bytes, index_replicas, data_replicas, .. } = size;
        format!(
            "{keys} pairs of {pair_bytes} bytes, {index_replicas} index and {data_replicas} data \
             replicas, shm, one session; {rounds} rounds of {operations} operations: medians (spread)"
        )
    }

    fn rows(report: &BenchReport<'_, LimitReport>) -> String {
        let found = &report.findings;
        let mut text = String::from("\n");
        let rows = [
            ("memcpy", &found.memcpy_ns, "ns"),
            ("raw verbs of a get", &found.raw_get_ns, "ns"),
            ("get", &found.get_ns, "ns"),
            ("raw verbs of an update", &found.raw_update_ns, "ns"),
            ("update", &found.update_ns, "ns"),
            ("get over raw", &found.get_over_raw, "x"),
            ("update over raw", &found.update_over_raw, "x"),
        ];
        for (name, Spread { median, least, most }, unit) in rows {
            let digits = if unit == "x" { 2 } else { 0 };
            text += &format!(
                "{name:<24} {median:>7.digits$} {unit:<3} ({least:.digits$} - {most:.digits$})\n"
            );
        }
        text
    }
}
