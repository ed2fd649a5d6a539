//! `fusee-bench counts`: instructions of one operation.
//!
//! The program runs itself under valgrind's callgrind, which counts only the instructions inside [`measured`]. The
//! count does not depend on other work of the machine. It depends on the compiler, on the processor (as far as valgrind
//! knows its instructions), and by a few per cent on the layout of the memory. The source file of an instruction tells
//! to which part of the program it belongs ([`parts`]). [`profile`] samples the same work by time instead of
//! instructions.

mod parts;
mod perf;
pub mod profile;

use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use fusee_client::FabricKind;
use serde::Serialize;

use crate::loaded_cluster::{LoadedCluster, LoadedClusterArgs, numbers};
use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport};
use crate::temporary::TemporaryHandle;
use parts::{ProgramPart, ProgramPartCounts};

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(
    after_help = "Examples:\n  fusee-bench counts\n  fusee-bench counts --pair-bytes 64 --json"
)]
pub struct CountsArgs {
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
    output: BenchOutputArgs,
}

/// The work to do under valgrind, or perf.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: started by `fusee-bench counts` and `fusee-bench profile`")]
pub struct WorkArgs {
    #[command(flatten)]
    size: LoadedClusterArgs,

    #[arg(long, default_value = "shm")]
    fabric: FabricKind,

    /// The directory of the pipes to perf
    #[arg(long)]
    perf: Option<PathBuf>,

    #[arg(long)]
    kind: CountedOperation,

    #[arg(long)]
    operations: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum CountedOperation {
    Get,
    Update,
    Insert,
    Delete,
}

impl CountedOperation {
    const ALL: [CountedOperation; 4] = [
        CountedOperation::Get,
        CountedOperation::Update,
        CountedOperation::Insert,
        CountedOperation::Delete,
    ];

    fn name(self) -> String {
        self.to_possible_value().expect("none is skipped").get_name().to_string()
    }
}

/// Number of keys in the cluster. It is small, because loading keys is slow under valgrind.
const KEYS: u32 = 1000;

/// The results: instructions of one operation. Gets, updates and deletes have a right hint in the cache; inserts have
/// no hint.
#[derive(Debug, Serialize)]
struct CountsReport {
    get_instructions: u64,
    update_instructions: u64,
    insert_instructions: u64,
    delete_instructions: u64,
    /// Instructions of one operation, by part of the program.
    parts: Vec<PartInstructions>,
}

#[derive(Debug, Serialize)]
struct PartInstructions {
    part: ProgramPart,
    get: u64,
    update: u64,
    insert: u64,
    delete: u64,
}

impl BenchFindings for CountsReport {
    type Settings = CountsArgs;

    fn title(report: &BenchReport<'_, CountsReport>) -> String {
        let pair_bytes = report.settings.pair_bytes;
        format!("pairs of {pair_bytes} bytes, shm, hints right; instructions of one")
    }

    fn rows(report: &BenchReport<'_, CountsReport>) -> String {
        let found = &report.findings;
        let row = |name: &str, counts: [u64; 4]| {
            let [get, update, insert, delete] = counts;
            format!("{name:<12} {get:>8} {update:>8} {insert:>8} {delete:>8}\n")
        };
        let parts = found.parts.iter();
        let parts: String =
            parts.map(|p| row(p.part.name(), [p.get, p.update, p.insert, p.delete])).collect();
        let all = [
            found.get_instructions,
            found.update_instructions,
            found.insert_instructions,
            found.delete_instructions,
        ];
        let title =
            format!("{:<12} {:>8} {:>8} {:>8} {:>8}", "", "get", "update", "insert", "delete");
        format!("\n{title}\n{parts}{}", row("all", all))
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &CountsArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("counts", &args.output);
    let [get, update, insert, delete] = CountedOperation::ALL.map(|kind| count(args, kind));
    let [get, update, insert, delete] = [get?, update?, insert?, delete?];
    let of_one = |(_, parts): &(u64, ProgramPartCounts), part| {
        parts.get(&part).copied().unwrap_or(0) / u64::from(args.operations)
    };
    let of_part = |part| PartInstructions {
        part,
        get: of_one(&get, part),
        update: of_one(&update, part),
        insert: of_one(&insert, part),
        delete: of_one(&delete, part),
    };
    let found = CountsReport {
        get_instructions: get.0,
        update_instructions: update.0,
        insert_instructions: insert.0,
        delete_instructions: delete.0,
        // callgrind does not see instructions of the kernel.
        parts: ProgramPart::ALL
            .into_iter()
            .filter(|part| *part != ProgramPart::Kernel)
            .map(of_part)
            .collect(),
    };
    shell.print_results(args, None, found, None)
}

/// Returns the instructions of one operation, and the instructions of all counted operations by part.
fn count(args: &CountsArgs, kind: CountedOperation) -> Result<(u64, ProgramPartCounts), Failure> {
    // A counted insert or delete takes a key of its own, so the cluster has a key for each of them.
    let keys = match kind {
        CountedOperation::Get | CountedOperation::Update => KEYS,
        CountedOperation::Insert | CountedOperation::Delete => args.operations,
    };
    let directory = TemporaryHandle::directory().map_err(|e| Failure::operation(e.to_string()))?;
    let written = directory.path().join("callgrind");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", written.display()))
        .arg("--toggle-collect=*fusee_bench*counts*measured*")
        .arg(std::env::current_exe()?)
        .args(["work", "--kind", &kind.name()])
        .args(["--keys", &keys.to_string(), "--pair-bytes", &args.pair_bytes.to_string()])
        .args(["--operations", &args.operations.to_string()])
        .output()
        .map_err(|error| {
            Failure::operation(format!(
                "cannot run valgrind: {error}; install it (Debian: apt-get install valgrind)"
            ))
        })?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    let count = match collected.and_then(|count| count.trim().parse::<u64>().ok()) {
        Some(count) if output.status.success() && count > 0 => count,
        _ => return Err(Failure::operation(format!("valgrind did not count:\n{text}"))),
    };
    let written = std::fs::read(written).unwrap_or_default();
    let parts =
        parts::parse_callgrind(&String::from_utf8_lossy(&written)).map_err(Failure::operation)?;
    Ok((count / u64::from(args.operations), parts))
}

/// Does the work that valgrind or perf observes.
pub fn work(args: &WorkArgs) -> Result<(), Failure> {
    let loaded = LoadedCluster::over(&args.size, args.fabric)?;
    let all: Vec<u32> = (0..args.size.keys).collect();
    loaded.gets(&all)?;
    loaded.updates(&all)?;
    let numbers = match args.kind {
        CountedOperation::Get | CountedOperation::Update => {
            numbers(args.size.keys, args.operations, 1)
        }
        CountedOperation::Insert | CountedOperation::Delete => {
            all.iter().take(args.operations as usize).copied().collect()
        }
    };
    if let CountedOperation::Insert = args.kind {
        loaded.deletes(&numbers)?;
    }
    match &args.perf {
        None => measured(&loaded, args.kind, &numbers),
        Some(directory) => perf::work(directory, || measured(&loaded, args.kind, &numbers)),
    }
}

/// Does the counted work. Valgrind finds this function by its name.
#[inline(never)]
fn measured(
    loaded: &LoadedCluster,
    kind: CountedOperation,
    numbers: &[u32],
) -> Result<(), Failure> {
    match kind {
        CountedOperation::Get => loaded.gets(numbers),
        CountedOperation::Update => loaded.updates(numbers),
        CountedOperation::Insert => loaded.inserts(numbers),
        CountedOperation::Delete => loaded.deletes(numbers),
    }
}
