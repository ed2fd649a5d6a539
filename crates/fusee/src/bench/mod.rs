//! Benchmarks that check what they measure.
//!
//! [`ycsb`] runs the YCSB workloads (P §6.3), [`micro`] the microbenchmark of P §6.2, both on a
//! cluster inside the process or on an existing one. Every value that is written names its write,
//! every value that is read is checked, and in the end all keys are read back and compared with
//! what was acknowledged; a run with a single error or mismatch fails.
//!
//! Reading order: [`workload`] and [`zipf`] (what is asked), [`value`] and [`verify`] (how it is
//! checked), [`worker`], [`phase`] and [`driver`] (how it is done), [`cluster`] (on what),
//! [`tally`] and [`report`] (what comes out).

mod args;
mod clock;
mod cluster;
mod driver;
mod machine;
pub mod micro;
mod phase;
mod progress;
mod report;
mod tally;
mod value;
mod verify;
mod worker;
mod workload;
pub mod ycsb;
mod zipf;

use clap::Subcommand;
use fusee_client::Client;

use crate::failure::Failure;
use args::ClusterArgs;
use report::{ClusterReport, Verdict};

/// A benchmark.
#[derive(Subcommand, Debug)]
pub enum Benchmark {
    /// Run a YCSB workload: load keys, then read and write them
    Ycsb(ycsb::Args),
    /// Measure INSERT, UPDATE, SEARCH and DELETE one by one: latency, then throughput
    Micro(micro::Args),
}

impl Benchmark {
    /// Runs it.
    pub fn run(self) -> Result<(), Failure> {
        match self {
            Benchmark::Ycsb(args) => ycsb::run(&args),
            Benchmark::Micro(args) => micro::run(&args),
        }
    }
}

/// Describes the cluster that was measured.
fn describe(client: &Client, args: &ClusterArgs) -> ClusterReport {
    let view = client.view();
    ClusterReport {
        embedded: args.master.is_none(),
        memory_nodes: view.members.len(),
        index_replicas: view.subtables.first().map_or(0, |s| s.places.len()),
        data_replicas: view.regions.first().map_or(0, |r| r.places.len()),
        pool_bytes: view.members.iter().map(|m| m.pool_bytes).sum(),
    }
}

/// Fails if anything went wrong.
fn judge(verdict: &Verdict) -> Result<(), Failure> {
    if verdict.is_clean() {
        return Ok(());
    }
    Err(Failure::operation(format!(
        "the benchmark failed: {} errors, {} mismatches",
        verdict.errors.total, verdict.mismatches
    )))
}

/// Prints one JSON object on standard output.
fn print_json(report: &impl serde::Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| Failure::operation(format!("cannot write the report: {error}")))?;
    crate::output::line(&json)
}
