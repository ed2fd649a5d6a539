//! The command line of the YCSB benchmark.

use std::path::PathBuf;
use std::time::Duration;

use fusee_cli::failure::Failure;
use fusee_workload::{Distribution, MAX_KEYS, YcsbWorkload};
use serde::Serialize;

use crate::args::{ClusterArgs, LoadArgs};
use crate::record::{self, RecordScope};
use crate::rendezvous::MAX_DRIVERS;
use crate::report::BenchOutputArgs;

/// Default for the maximum number of recorded operations.
const DEFAULT_CHECK_OPS: u64 = 2_000_000;
/// Default skew of the requests.
const DEFAULT_THETA: f64 = 0.99;

/// The arguments.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench ycsb --workload a\n  \
    fusee-bench ycsb --workload upd100 --fabric tcp --seconds 5 --json\n  \
    fusee-bench ycsb --workload c --master 127.0.0.1:7400 --threads 2\n  \
    fusee-bench ycsb --workload churn --keys 4 --check --processes 2\n  \
    fusee-bench ycsb --load-file workloada.load --trans-file workloada.trans\n  \
    fusee-bench ycsb --master mem0:7400 --join 3       # once on each of three hosts\n\n\
    Exit code 1 if an operation failed, a value was not what it must be, or the history is not\n\
    linearizable.")]
pub struct YcsbArgs {
    /// a (50 % updates), b (5 %), c (none), d (5 % inserts, reads of the latest), upd0 to upd100
    /// (that percentage of updates), or churn (20 % updates, 25 % inserts and 25 % deletes of the
    /// same keys)
    #[arg(long, default_value = "a", value_name = "NAME")]
    #[serde(skip)]
    pub workload: YcsbWorkload,

    /// Load the keys of this file, in the form that YCSB prints: lines like
    /// `INSERT usertable user1`
    #[arg(long, value_name = "FILE", requires = "trans_file",
          conflicts_with_all = ["workload", "keys", "distribution", "theta"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_file: Option<PathBuf>,

    /// Run the operations of this file: lines like `READ usertable user1`. Line i is done by
    /// client i modulo the number of clients; once all, or as often as --operations or --seconds
    /// take
    #[arg(long, value_name = "FILE", requires = "load_file")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trans_file: Option<PathBuf>,

    /// Keys to load
    #[arg(long, default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=MAX_KEYS / 2))]
    pub keys: u64,

    /// Operations of the run phase [default: 1000000, or those of --trans-file; no limit with
    /// --seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,

    /// End the run phase after so many seconds
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,

    /// Distribution of the requests [default: zipfian, and latest for workload d]
    #[arg(long)]
    pub distribution: Option<Distribution>,

    /// Skew of zipfian and latest, from 0 (none) to below 1 [default: 0.99]
    #[arg(long)]
    pub theta: Option<f64>,

    /// Leave the keys in the cluster of --master
    #[arg(long, requires = "master")]
    #[serde(skip)]
    pub keep: bool,

    /// Client processes, which share the threads
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub processes: u16,

    /// Run together with other drivers, so many with this one, each started with the same options
    /// on any host; they meet in the store. --operations and --keys are of all together,
    /// --threads are each driver's
    #[arg(long, value_name = "N", requires = "master", conflicts_with = "processes",
          value_parser = clap::value_parser!(u16).range(2..=i64::from(MAX_DRIVERS)))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<u16>,

    /// The name under which the drivers meet: runs of other names on the same cluster must not overlap
    #[arg(long, value_name = "NAME", default_value = "ycsb", requires = "join")]
    #[serde(skip)]
    pub join_name: String,

    /// Wait so many seconds for the other drivers
    #[arg(long, value_name = "S", default_value_t = 60.0, requires = "join")]
    #[serde(skip)]
    pub join_timeout: f64,

    /// Keys that each driver requests: all (shared), or those that it has loaded (own)
    #[arg(
        long,
        value_name = "WHOSE",
        default_value = "shared",
        requires = "join",
        conflicts_with = "load_file"
    )]
    #[serde(skip)]
    pub keys_of: YcsbDriverKeys,

    /// Record every operation, and check in the end that the history of every key is
    /// linearizable. This costs throughput: the figures of such a run are not to be quoted
    #[arg(long)]
    #[serde(skip)]
    pub check: bool,

    /// Operations that are recorded at most, loading included; the run ends there [default: 2000000]
    #[arg(long, requires = "check", value_name = "N")]
    pub check_ops: Option<u64>,

    #[command(flatten)]
    #[serde(flatten)]
    pub load: LoadArgs,

    #[command(flatten)]
    #[serde(skip)]
    pub cluster: ClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    pub output: BenchOutputArgs,
}

/// The keys that a driver requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum YcsbDriverKeys {
    /// Keys that the driver has loaded.
    Own,
    /// Keys that any driver has loaded.
    Shared,
}

impl YcsbArgs {
    /// Checks the arguments that clap cannot check.
    pub fn check(&self) -> Result<(), Failure> {
        self.load.check()?;
        if !(0.0..1.0).contains(&self.theta()) {
            return Err(Failure::usage("--theta must be at least 0 and below 1"));
        }
        if self.processes > self.load.threads {
            return Err(Failure::usage(format!(
                "--processes is {}, but there are only {} --threads to share",
                self.processes, self.load.threads
            )));
        }
        let recorded = self.keep() != RecordScope::Nothing;
        let workers = self.workers();
        if recorded && (self.keys >= record::MAX_KEYS / 2 || workers >= record::MAX_WORKERS) {
            return Err(Failure::usage(format!(
                "--check, --processes and --join take less than {} --keys and {} clients",
                record::MAX_KEYS / 2,
                record::MAX_WORKERS
            )));
        }
        if self.join.is_some() && self.check {
            return Err(Failure::usage(
                "--check cannot be used with --join: it compares the times of operations, and the \
                 clocks of several hosts are not one; check on one host, with --processes",
            ));
        }
        if u64::from(self.drivers()) > self.keys {
            return Err(Failure::usage(format!(
                "--keys is {}; each of the {} drivers loads at least one",
                self.keys,
                self.drivers()
            )));
        }
        if !(self.join_timeout > 0.0 && self.join_timeout < 1e9) {
            return Err(Failure::usage("--join-timeout must be more than 0"));
        }
        match self.seconds {
            Some(seconds) if !(seconds > 0.0 && seconds < 1e9) => {
                Err(Failure::usage("--seconds must be more than 0"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of drivers of the run.
    pub fn drivers(&self) -> u16 {
        self.join.unwrap_or(1)
    }

    /// Returns the time limit for other drivers to join.
    pub fn join_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.join_timeout)
    }

    /// Returns the number of clients of all processes together.
    pub fn workers(&self) -> u64 {
        u64::from(self.drivers()) * u64::from(self.load.threads) * u64::from(self.load.coroutines)
    }

    /// Returns the maximum number of recorded operations.
    pub fn check_ops(&self) -> u64 {
        self.check_ops.unwrap_or(DEFAULT_CHECK_OPS)
    }

    /// Returns the skew of the requests.
    pub fn theta(&self) -> f64 {
        self.theta.unwrap_or(DEFAULT_THETA)
    }

    /// Returns the distribution of the requests.
    pub fn distribution(&self) -> Distribution {
        self.distribution.unwrap_or(self.workload.distribution())
    }

    /// Returns the operations to record. If several processes write, their writes are recorded, because the
    /// verification needs the writes of all.
    pub fn keep(&self) -> RecordScope {
        match (self.check, self.processes.max(self.drivers())) {
            (true, _) => RecordScope::All,
            (false, 1) => RecordScope::Nothing,
            (false, _) => RecordScope::Writes,
        }
    }
}
