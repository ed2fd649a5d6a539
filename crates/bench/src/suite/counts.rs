//! `fusee bench counts`: instructions of one operation.
//!
//! Runs itself under valgrind's callgrind, which counts only what is done inside [`measured`]. The
//! count does not depend on what else the machine does; it does on the compiler, on the processor
//! (as far as valgrind knows its instructions), and by a few per cent on the memory's layout.

use std::process::Command;

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use serde::Serialize;

use crate::loaded::{Loaded, Size, numbers};
use crate::report::{Findings, Output, Report, Shell};

/// How to run it.
#[derive(clap::Args, Debug, Serialize)]
#[command(
    after_help = "Examples:\n  fusee bench counts\n  fusee bench counts --pair-bytes 64 --json"
)]
pub struct Args {
    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 1024, value_name = "N",
          value_parser = clap::value_parser!(u32).range(16..=65_536))]
    pair_bytes: u32,

    /// Operations that are counted of each kind
    #[arg(long, default_value_t = 2000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    #[command(flatten)]
    #[serde(skip)]
    output: Output,
}

/// What to do under valgrind.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: started by `fusee bench counts`")]
pub struct WorkArgs {
    #[command(flatten)]
    size: Size,

    #[arg(long)]
    kind: Kind,

    #[arg(long)]
    operations: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Get,
    Update,
}

/// Keys in the cluster: few, since loading them is slow there.
const KEYS: u32 = 1000;

/// What came out: instructions of one operation with a right hint in the cache.
#[derive(Debug, Serialize)]
struct Found {
    get_instructions: u64,
    update_instructions: u64,
}

impl Findings for Found {
    type Settings = Args;

    fn title(report: &Report<'_, Found>) -> String {
        let pair_bytes = report.settings.pair_bytes;
        format!("pairs of {pair_bytes} bytes, shm, hints right; instructions of one")
    }

    fn rows(report: &Report<'_, Found>) -> String {
        let Found { get_instructions, update_instructions } = report.findings;
        format!("\nget     {get_instructions:>8}\nupdate  {update_instructions:>8}\n")
    }
}

/// Runs it and prints a report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let shell = Shell::begin("counts", &args.output);
    let found = Found {
        get_instructions: count(args, Kind::Get)?,
        update_instructions: count(args, Kind::Update)?,
    };
    shell.tell(args, None, found, None)
}

fn count(args: &Args, kind: Kind) -> Result<u64, Failure> {
    let kind = kind.to_possible_value().expect("none is skipped");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
        .arg("--toggle-collect=*fusee_bench*counts*measured*")
        .arg(std::env::current_exe()?)
        .args(["bench", "work", "--kind", kind.get_name()])
        .args(["--keys", &KEYS.to_string(), "--pair-bytes", &args.pair_bytes.to_string()])
        .args(["--operations", &args.operations.to_string()])
        .output()
        .map_err(|error| {
            Failure::operation(format!(
                "cannot run valgrind: {error}; install it (Debian: apt-get install valgrind)"
            ))
        })?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    match collected.and_then(|count| count.trim().parse::<u64>().ok()) {
        Some(count) if output.status.success() && count > 0 => {
            Ok(count / u64::from(args.operations))
        }
        _ => Err(Failure::operation(format!("valgrind did not count:\n{text}"))),
    }
}

/// What valgrind runs.
pub fn work(args: &WorkArgs) -> Result<(), Failure> {
    let loaded = Loaded::new(&args.size)?;
    let all: Vec<u32> = (0..args.size.keys).collect();
    loaded.gets(&all)?;
    loaded.updates(&all)?;
    let numbers = numbers(args.size.keys, args.operations, 1);
    measured(&loaded, args.kind, &numbers)
}

/// Its name is what valgrind looks for.
#[inline(never)]
fn measured(loaded: &Loaded, kind: Kind, numbers: &[u32]) -> Result<(), Failure> {
    match kind {
        Kind::Get => loaded.gets(numbers),
        Kind::Update => loaded.updates(numbers),
    }
}
