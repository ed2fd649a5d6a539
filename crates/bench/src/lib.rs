//! Benchmarks that check what they measure.
//!
//! `ycsb` runs the YCSB workloads (P §6.3) and `micro` the microbenchmark of P §6.2, each on a cluster inside the
//! process or on an existing cluster. Every value names the write that wrote it, and every value that is read is
//! checked. At the end all keys are read back and compared with the acknowledged writes. A run with a single error or
//! mismatch fails.
//!
//! Reading order: `fusee_workload` (the requests), `value` and `verify` (the checks of results), `store` and
//! `redundant` (the stores under test), `worker`, `phase` and `driver` (the load in one process), `message`,
//! `client_process`, `processes` and `gather` (the load in several processes), `rendezvous` (the load on several
//! hosts), `cluster` (the cluster to measure), `record` and `check` (the check that the history is linearizable),
//! `tally`, `series`, `spread` and `report` (the results), and `suite` (the benchmarks themselves). Most benchmarks
//! show what the store does; `compare` compares the cost of its operations with other costs.
//!
//! The clients that a benchmark starts are commands of this same program, `fusee-bench`. The servers that it starts run
//! the program `fusee`, which lies in the same directory. `src/bin/fusee-bench` has the program, and the commands of
//! the simulator.

mod args;
mod check;
mod client_process;
mod clock;
mod cluster;
mod driver;
mod gather;
mod loaded_cluster;
mod message;
mod phase;
mod process_cluster;
mod processes;
mod progress;
mod record;
mod redundant;
mod rendezvous;
mod report;
mod samples;
mod series;
mod size_distribution;
mod spread;
mod store;
mod suite;
mod tally;
mod temporary;
mod value;
mod verbs;
mod verify;
mod worker;

use clap::Subcommand;
use fusee_cli::failure::Failure;
use suite::{
    cache, capacity, churn, cold, compare, correlated, elasticity, failover, growth, micro,
    recovery, redundancy, sizes, sweep, ycsb,
};

/// The benchmarks, which are subcommands of `fusee-bench`.
#[derive(Subcommand, Debug)]
pub enum Benchmark {
    /// Run a YCSB workload: load keys, then read and write them
    Ycsb(ycsb::YcsbArgs),
    /// Measure INSERT, UPDATE, SEARCH and DELETE one by one: latency, then throughput
    Micro(micro::MicroArgs),
    /// Kill client processes in the middle of an update: how long they block others
    Recovery(recovery::RecoveryArgs),
    /// Kill a memory node under load: how long writes pause, and whether anything is lost
    Failover(failover::FailoverArgs),
    /// Insert keys into a small index while others read and write: what its growth costs
    Growth(growth::GrowthArgs),
    /// Let sessions and memory nodes come and go: whether throughput follows
    Elasticity(elasticity::ElasticityArgs),
    /// Fill small pools, update and delete: whether memory comes back
    Churn(churn::ChurnArgs),
    /// Ask for one key several times at once: what a work table saves
    Correlated(correlated::CorrelatedArgs),
    /// Start clients, sessions and programs that read and write one key: what comes before the first answer
    Cold(cold::ColdArgs),
    /// Vary the threshold of the adaptive index cache: round trips, bytes, throughput
    Cache(cache::CacheArgs),
    /// Fill pools until they refuse: how many pairs fit, by redundancy
    Capacity(capacity::CapacityArgs),
    /// Read, write and change pairs by redundancy and length: time, bytes
    Redundancy(redundancy::RedundancyArgs),
    /// Draw sizes of values: what they take of the pools
    Sizes(sizes::SizesArgs),
    /// Throughput against the size of values, sessions, replicas, updates or keys
    Sweep(sweep::SweepArgs),
    /// Cost of an operation beside its raw verbs, other stores and other transports, in turn in one run
    Compare(compare::CompareArgs),
    /// One of the processes of `--processes`; not for people
    #[command(hide = true, after_help = "Example: started by `fusee-bench ycsb --processes 2`")]
    Client,
    /// The work that `compare` runs under valgrind or perf; not for people
    #[command(hide = true)]
    Work(compare::work::WorkArgs),
    /// The client of `recovery` that is killed; not for people
    #[command(hide = true, after_help = "Example: started by `fusee-bench recovery`")]
    Doomed,
}

impl Benchmark {
    /// Runs the benchmark.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Benchmark::Ycsb(args) => ycsb::run(&args),
            Benchmark::Micro(args) => micro::run(&args),
            Benchmark::Recovery(args) => recovery::run(&args),
            Benchmark::Failover(args) => failover::run(&args),
            Benchmark::Growth(args) => growth::run(&args),
            Benchmark::Elasticity(args) => elasticity::run(&args),
            Benchmark::Churn(args) => churn::run(&args),
            Benchmark::Correlated(args) => correlated::run(&args),
            Benchmark::Cold(args) => cold::run(&args),
            Benchmark::Cache(args) => cache::run(&args),
            Benchmark::Capacity(args) => capacity::run(&args),
            Benchmark::Redundancy(args) => redundancy::run(&args),
            Benchmark::Sizes(args) => sizes::run(&args),
            Benchmark::Sweep(args) => sweep::run(&args),
            Benchmark::Compare(args) => compare::run(&args),
            Benchmark::Work(args) => compare::work::work(&args),
            Benchmark::Client => client_process::run(),
            Benchmark::Doomed => recovery::victim::run(),
        }
    }
}
