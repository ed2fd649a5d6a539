//! `fusee-bench cache`: the effect of the threshold of the adaptive index cache (P Fig. 16).
//!
//! The index cache of a session gives hints: where a key was last seen. With a right hint one round trip reads the
//! object. If another session has written the key since then, the hint is wrong, and an object is read for nothing.
//! Without a hint the key's buckets are read first, and its object after them. Thus a hint trades bytes for round
//! trips. The *threshold* is the share of wrong hints up to which a key's hints are used: with 0 one wrong hint makes
//! the key bypass the cache, with 1 no key bypasses it.
//!
//! Over shared memory a round trip costs little, so the report counts phases, bytes and wrong hints per operation. Runs
//! with different settings take turns, so that a disturbance of the machine affects all settings alike. The report has
//! the medians of all rounds. Every value that is read is checked, and at the end every key is read back.

mod report;

use std::fmt;
use std::str::FromStr;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{FabricChoice, FabricKind, Options};
use serde::{Serialize, Serializer};

use crate::args::{ClusterArgs, LoadArgs};
use crate::cluster::{self, ClusterDemand};
use crate::driver::{self, DriverOutcome, PhaseObserver, WorkerLayout};
use crate::message::RunSpec;
use crate::progress::bar;
use crate::redundant::by_name;
use crate::report::{BenchInvocation, BenchPlotArgs, BenchVerdict, MeasuredSetup, attempt};
use crate::tally::OperationTally;
use crate::worker::WorkerContext;
use fusee_workload::{Distribution, WorkloadShare, YcsbWorkload};
use report::{CacheReport, CacheRunResult};

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench cache --plot cache.svg\n  \
    fusee-bench cache --workloads upd100 --thresholds 0,0.5,1,off --fabrics tcp --rounds 5 --json\n\n\
    Exit code 1 if an operation failed, or a key does not hold what was acknowledged.")]
pub struct CacheArgs {
    /// Shares of wrong hints above which a key bypasses the cache, 0 to 1, or off: no cache
    #[arg(long, value_delimiter = ',', value_name = "RATIO",
          default_values = ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9",
                            "1", "off"])]
    #[serde(skip)]
    thresholds: Vec<CacheThreshold>,

    /// YCSB workloads: a, b, c, or upd0..upd100
    #[arg(long, value_delimiter = ',', value_name = "W", default_values = ["a", "b"])]
    #[serde(skip)]
    workloads: Vec<YcsbWorkload>,

    /// shm, tcp, or both
    #[arg(long, value_delimiter = ',', value_name = "F", default_values = ["shm", "tcp"])]
    #[serde(skip)]
    fabrics: Vec<FabricKind>,

    /// Runs of each setting
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// Keys
    #[arg(long, default_value_t = 10_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,

    /// Operations of a run
    #[arg(long, default_value_t = 200_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    operations: u64,

    /// Skew of the requests, from 0 (none) to below 1
    #[arg(long, default_value_t = 0.99)]
    theta: f64,

    /// Threads, each with a session and a cache of its own
    #[arg(long, default_value_t = 8, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,

    /// Clients of a thread, which share its session and wait at the same time
    #[arg(long, default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    coroutines: u16,

    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    pair_bytes: usize,

    /// Keys whose place each session remembers
    #[arg(long, value_name = "N", default_value_t = Options::default().cache_entries,
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    cache_entries: usize,

    /// Start of all random sequences; the same seed asks for the same keys
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    #[serde(skip)]
    drawing: BenchPlotArgs,
}

/// The condition under which a key bypasses the index cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CacheThreshold {
    /// There is no index cache.
    Off,
    /// A key with more than this share of wrong hints bypasses the cache.
    Above(f64),
}

impl CacheThreshold {
    /// Returns the threshold as a number, if there is a cache.
    pub fn ratio(self) -> Option<f64> {
        match self {
            CacheThreshold::Off => None,
            CacheThreshold::Above(ratio) => Some(ratio),
        }
    }
}

impl FromStr for CacheThreshold {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheThreshold, String> {
        let ratio = || text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        match text {
            "off" => Ok(CacheThreshold::Off),
            _ => ratio().map(CacheThreshold::Above).ok_or("neither off nor from 0 to 1".into()),
        }
    }
}

impl fmt::Display for CacheThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheThreshold::Off => f.write_str("off"),
            CacheThreshold::Above(ratio) => ratio.fmt(f),
        }
    }
}

impl Serialize for CacheThreshold {
    /// Serializes the ratio; `null` means no cache.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.ratio().serialize(serializer)
    }
}

/// The setting of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheSetting {
    #[serde(serialize_with = "by_name")]
    pub fabric: FabricKind,
    pub workload: YcsbWorkload,
    pub threshold: CacheThreshold,
}

impl CacheArgs {
    fn check(&self) -> Result<(), Failure> {
        if !(0.0..1.0).contains(&self.theta) {
            return Err(Failure::usage("--theta must be at least 0 and below 1"));
        }
        for workload in &self.workloads {
            if workload.inserts_percent() + workload.deletes_percent() > 0 {
                return Err(Failure::usage(format!(
                    "--workloads has {workload}; this benchmark only reads and updates"
                )));
            }
        }
        Ok(())
    }

    fn load(&self, threshold: CacheThreshold) -> LoadArgs {
        LoadArgs {
            pair_bytes: self.pair_bytes,
            threads: self.threads,
            coroutines: self.coroutines,
            seed: self.seed,
            cache_entries: threshold.ratio().map_or(0, |_| self.cache_entries),
            // Each session has its own cache, as if it were a process: the writes of one session make the hints of
            // other sessions wrong.
            cache_per_session: true,
            cache_threshold: threshold.ratio().unwrap_or_default(),
            work_table: fusee_client::WorkTable::Off,
        }
    }

    /// Returns the names of the fabrics.
    fn fabrics(&self) -> String {
        let names: Vec<String> = self.fabrics.iter().map(ToString::to_string).collect();
        names.join(" and ")
    }

    fn settings(&self) -> Vec<CacheSetting> {
        let mut settings = Vec::new();
        for &fabric in &self.fabrics {
            for &workload in &self.workloads {
                let all = self.thresholds.iter();
                settings.extend(all.map(|&threshold| CacheSetting { fabric, workload, threshold }));
            }
        }
        settings
    }

    /// Returns the memory that all updates take if no memory is reused, because this benchmark does not measure
    /// reclamation.
    fn demand(&self, workload: YcsbWorkload) -> ClusterDemand {
        let updates = self.operations as f64 * workload.updates_percent() as f64 / 100.0;
        let pairs = self.keys + (updates + 3.0 * updates.sqrt()).ceil() as u64;
        ClusterDemand { keys: self.keys, index_keys: self.keys, pairs, ..ClusterDemand::default() }
    }

    fn run_of(&self, workload: YcsbWorkload) -> RunSpec {
        RunSpec {
            workload,
            keys: self.keys,
            distribution: Distribution::Zipfian,
            theta: self.theta,
            seed: self.seed,
            operations: self.operations,
            seconds: None,
            files: None,
            own_keys: false,
            workers: u64::from(self.threads) * u64::from(self.coroutines),
        }
    }
}

/// Shows no progress bars, because the bars of many short runs would only flicker.
struct NoProgressBar;

impl PhaseObserver for NoProgressBar {
    fn shows_progress(&self) -> bool {
        false
    }
}

/// The sums over all runs, in addition to the measurements of each run.
#[derive(Default)]
struct CacheTotals {
    tally: OperationTally,
    verified_keys: u64,
    problems: Vec<String>,
    setup: Option<MeasuredSetup>,
}

/// Makes one run on a cluster of its own; returns `None` if the run was interrupted.
fn measure(
    args: &CacheArgs,
    setting: CacheSetting,
    available: Option<u64>,
    total: &mut CacheTotals,
) -> Result<Option<CacheRunResult>, Failure> {
    let load = args.load(setting.threshold);
    load.check()?;
    let cluster = ClusterArgs {
        master: None,
        fabric: FabricChoice::Only(setting.fabric),
        switch: None,
        memory_nodes: 3,
        index_replicas: None,
        data_replicas: None,
        pool: None,
    };
    let target = cluster::open(args.demand(setting.workload), &load, &cluster, available)?;
    let board = WorkerContext::new(args.pair_bytes, args.seed);
    let crew = WorkerLayout {
        threads: args.threads.into(),
        coroutines: args.coroutines.into(),
        first_thread: 0,
    };
    let phases = args.run_of(setting.workload).phases(WorkloadShare::WHOLE, None);
    let outcome = driver::run(&target.client, &board, crew, &phases, &mut NoProgressBar)?;
    let DriverOutcome { results, logs, .. } = outcome;
    let was_interrupted = interrupt::is_requested();
    let verified = attempt(&mut total.problems, driver::verify(&target.client, &board, logs));
    total.tally.merge_failures(&verified.tally);
    total.verified_keys += verified.keys;
    for result in &results {
        total.tally.merge_failures(&result.tally);
    }
    total.setup = Some(MeasuredSetup { fabric: args.fabrics(), ..target.describe(&cluster) });
    let [_, run] = &results[..] else { unreachable!("two phases give two results") };
    Ok((!was_interrupted).then(|| CacheRunResult::new(setting, run)))
}

/// Runs the benchmark and prints its report.
pub fn run(args: &CacheArgs) -> Result<(), Failure> {
    args.check()?;
    let shell = BenchInvocation::begin_drawing("cache", &args.drawing)?;
    interrupt::watch()?;
    let settings = args.settings();
    let mut total = CacheTotals::default();
    let mut runs: Vec<Vec<CacheRunResult>> = settings.iter().map(|_| Vec::new()).collect();
    let bar = bar("cache", u64::from(args.rounds) * settings.len() as u64, true);
    for _ in 0..args.rounds {
        for (setting, runs) in settings.iter().zip(&mut runs) {
            if interrupt::is_requested() || total.tally.error_count() > 0 {
                break;
            }
            let CacheSetting { fabric, workload, threshold } = *setting;
            bar.set_message(format!("{fabric}, {workload}, threshold {threshold}"));
            bar.tick();
            runs.extend(measure(args, *setting, shell.available(), &mut total)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = runs.iter().filter_map(|runs| report::median(runs)).collect();
    let verdict = BenchVerdict::new(&total.tally, total.verified_keys, total.problems);
    shell.print_results(args, total.setup, CacheReport { results }, Some(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_understood_and_others_refused() {
        for text in ["0", "0.25", "1", "off"] {
            assert_eq!(text.parse::<CacheThreshold>().unwrap().to_string(), text);
        }
        for text in ["", "on", "-0.1", "1.1", "NaN", "inf"] {
            assert!(text.parse::<CacheThreshold>().unwrap_err().contains("from 0 to 1"), "{text}");
        }
    }
}
