//! `fusee-perf`: what an operation costs, beside the raw verbs that it consists of.
//!
//! For those who work on FUSEE; nothing of the product needs it. FUSEE runs in this process, as an
//! embedded cluster; what it is compared with may run in others, which end with this one.

mod counts;
mod limit;
mod load;
mod peers;
mod processes;
mod raw;
mod series;
mod transports;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What an operation of FUSEE costs, beside the raw verbs that it consists of
#[derive(Parser, Debug)]
#[command(name = "fusee-perf", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Time of an operation over the time of its raw verbs, in turn in one run
    Limit(limit::Args),
    /// Instructions of an operation, counted by valgrind: the same on a busy machine
    Counts(counts::Args),
    /// Time of an operation beside memcached, Redis and LMDB, in turn in one run
    Peers(peers::Args),
    /// Time of the verbs themselves, beside UCX over shared memory and libfabric over TCP
    Raw(transports::Args),
    /// What `counts` has valgrind run
    #[command(hide = true)]
    Work(counts::WorkArgs),
}

/// Why it could not be measured.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot start the cluster: {0}")]
    Connect(#[from] fusee_client::ConnectError),
    #[error("an operation failed: {0}")]
    Operation(#[from] fusee_client::Error),
    #[error("a raw verb failed: {0}")]
    Verb(String),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("there is no {0:?} to take part; see --help")]
    NoContestant(String),
    #[error("LMDB: {0}")]
    Lmdb(#[from] heed::Error),
    #[error("a thread of a contestant ended")]
    Panicked,
    #[error("{program} is not installed (Debian: apt-get install {package})")]
    NotInstalled { program: &'static str, package: &'static str },
    #[error("{program} failed: {what}")]
    Program { program: &'static str, what: String },
    #[error("cannot run valgrind: {0}; install it (Debian: apt-get install valgrind)")]
    NoValgrind(std::io::Error),
    #[error("valgrind did not count:\n{0}")]
    Uncounted(String),
}

fn main() -> ExitCode {
    let command = Args::parse().command;
    let watched = processes::end_with_signals().map_err(Failure::from);
    let done = watched.and_then(|()| match command {
        Command::Limit(args) => limit::run(&args),
        Command::Counts(args) => counts::run(&args),
        Command::Peers(args) => peers::run(&args),
        Command::Raw(args) => transports::run(&args),
        Command::Work(args) => counts::work(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("fusee-perf: {failure}");
            ExitCode::FAILURE
        }
    }
}
