//! `fusee bench cache`: the effect of the threshold of the adaptive index cache (P Fig. 16).
//!
//! The index cache of a session hints at the place of a key, as it was seen last. If another session has written the
//! key since, the hint is wrong, and an object was read for nothing; without a hint the key's buckets are read, and its
//! object after them. So a hint trades bytes for round trips, and the *threshold* is the share of wrong hints up to
//! which a key's hint is used: at 0 one wrong hint bypasses a key, at 1 none does.
//!
//! Over shared memory a round trip costs little, so the report counts phases, bytes and wrong hints per operation. Runs
//! with different settings take turns, so that a disturbance of the machine affects all alike; of several rounds the
//! report has the medians. Every value that is read is checked, and every key is read back.
//! is read back.

mod report;

use std::fmt;
use std::str::FromStr;

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{FabricChoice, FabricKind, Options};
use serde::{Serialize, Serializer};

use crate::args::{ClusterArgs, LoadArgs};
use crate::cluster::{self, Demand};
use crate::driver::{self, Crew, Outcome, Steps};
use crate::message::Run;
use crate::progress::bar;
use crate::redundant::by_name;
use crate::report::{Drawing, Setup, Shell, Verdict, attempt};
use crate::tally::Tally;
use crate::worker::Board;
use fusee_workload::{Distribution, Part, Workload};
use report::{Found, Measured};

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee bench cache --plot cache.svg\n  \
    fusee bench cache --workloads upd100 --thresholds 0,0.5,1,off --fabrics tcp --rounds 5 --json\n\n\
    Exit code 1 if an operation failed, or a key does not hold what was acknowledged.")]
pub struct Args {
    /// Shares of wrong hints above which a key bypasses the cache, 0 to 1, or off: no cache
    #[arg(long, value_delimiter = ',', value_name = "RATIO",
          default_values = ["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9",
                            "1", "off"])]
    #[serde(skip)]
    thresholds: Vec<Threshold>,

    /// YCSB workloads: a, b, c, or upd0..upd100
    #[arg(long, value_delimiter = ',', value_name = "W", default_values = ["a", "b"])]
    #[serde(skip)]
    workloads: Vec<Workload>,

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
    drawing: Drawing,
}

/// The condition for a key to bypass the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// There is no cache.
    Off,
    /// Above this share of wrong hints.
    Above(f64),
}

impl Threshold {
    /// Returns the threshold as a number, if there is a cache.
    pub fn ratio(self) -> Option<f64> {
        match self {
            Threshold::Off => None,
            Threshold::Above(ratio) => Some(ratio),
        }
    }
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Threshold, String> {
        let ratio = || text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        match text {
            "off" => Ok(Threshold::Off),
            _ => ratio().map(Threshold::Above).ok_or("neither off nor from 0 to 1".into()),
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Threshold::Off => f.write_str("off"),
            Threshold::Above(ratio) => ratio.fmt(f),
        }
    }
}

impl Serialize for Threshold {
    /// Serializes the ratio; `null` means no cache.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.ratio().serialize(serializer)
    }
}

/// The setting of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Setting {
    #[serde(serialize_with = "by_name")]
    pub fabric: FabricKind,
    pub workload: Workload,
    pub threshold: Threshold,
}

impl Args {
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

    fn load(&self, threshold: Threshold) -> LoadArgs {
        LoadArgs {
            pair_bytes: self.pair_bytes,
            threads: self.threads,
            coroutines: self.coroutines,
            seed: self.seed,
            cache_entries: threshold.ratio().map_or(0, |_| self.cache_entries),
            // Sessions stand for processes here: they make each other's hints wrong.
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

    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &fabric in &self.fabrics {
            for &workload in &self.workloads {
                let all = self.thresholds.iter();
                settings.extend(all.map(|&threshold| Setting { fabric, workload, threshold }));
            }
        }
        settings
    }

    /// Returns the memory for all updates: how fast memory comes back is not the question here.
    fn demand(&self, workload: Workload) -> Demand {
        let updates = self.operations as f64 * workload.updates_percent() as f64 / 100.0;
        let pairs = self.keys + (updates + 3.0 * updates.sqrt()).ceil() as u64;
        Demand { keys: self.keys, index_keys: self.keys, pairs, ..Demand::default() }
    }

    fn run_of(&self, workload: Workload) -> Run {
        Run {
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

/// No bars: those of single runs would only flicker.
struct Quiet;

impl Steps for Quiet {
    fn shows_progress(&self) -> bool {
        false
    }
}

/// The sums over all runs, beside their measurements.
#[derive(Default)]
struct Total {
    tally: Tally,
    verified_keys: u64,
    problems: Vec<String>,
    setup: Option<Setup>,
}

/// Makes one run on a cluster of its own; `None` if it was interrupted.
fn measure(
    args: &Args,
    setting: Setting,
    available: Option<u64>,
    total: &mut Total,
) -> Result<Option<Measured>, Failure> {
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
    let board = Board::new(args.pair_bytes, args.seed);
    let crew =
        Crew { threads: args.threads.into(), coroutines: args.coroutines.into(), first_thread: 0 };
    let phases = args.run_of(setting.workload).phases(Part::WHOLE, None);
    let outcome = driver::run(&target.client, &board, crew, &phases, &mut Quiet)?;
    let Outcome { results, logs, .. } = outcome;
    let was_interrupted = interrupt::requested();
    let verified = attempt(&mut total.problems, driver::verify(&target.client, &board, logs));
    total.tally.merge_failures(&verified.tally);
    total.verified_keys += verified.keys;
    for result in &results {
        total.tally.merge_failures(&result.tally);
    }
    total.setup = Some(Setup { fabric: args.fabrics(), ..target.describe(&cluster) });
    let [_, run] = &results[..] else { unreachable!("two phases give two results") };
    Ok((!was_interrupted).then(|| Measured::new(setting, run)))
}

/// Runs the benchmark and prints its report.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let shell = Shell::begin_drawing("cache", &args.drawing)?;
    interrupt::watch()?;
    let settings = args.settings();
    let mut total = Total::default();
    let mut runs: Vec<Vec<Measured>> = settings.iter().map(|_| Vec::new()).collect();
    let bar = bar("cache", u64::from(args.rounds) * settings.len() as u64, true);
    for _ in 0..args.rounds {
        for (setting, runs) in settings.iter().zip(&mut runs) {
            if interrupt::requested() || total.tally.error_count() > 0 {
                break;
            }
            let Setting { fabric, workload, threshold } = *setting;
            bar.set_message(format!("{fabric}, {workload}, threshold {threshold}"));
            bar.tick();
            runs.extend(measure(args, *setting, shell.available(), &mut total)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = runs.iter().filter_map(|runs| report::median(runs)).collect();
    let verdict = Verdict::new(&total.tally, total.verified_keys, total.problems);
    shell.tell(args, total.setup, Found { results }, Some(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_understood_and_others_refused() {
        for text in ["0", "0.25", "1", "off"] {
            assert_eq!(text.parse::<Threshold>().unwrap().to_string(), text);
        }
        for text in ["", "on", "-0.1", "1.1", "NaN", "inf"] {
            assert!(text.parse::<Threshold>().unwrap_err().contains("from 0 to 1"), "{text}");
        }
    }
}
