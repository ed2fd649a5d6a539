//! `fusee-bench profile`: the parts of the program in which an operation spends its time, by samples.
//!
//! Each kind of operation runs some hundred thousand times in a process of its own, over a cluster in that process, and
//! perf samples the position of its thread ten thousand times per second ([`perf`]). The time of one operation is
//! divided among the parts in proportion to their samples. [`counts`](super) has the instructions of the same work: if
//! a part takes a larger share of the time than of the instructions, it waits for memory.

use fusee_cli::failure::Failure;
use fusee_client::FabricKind;
use serde::Serialize;

use super::parts::ProgramPart;
use super::{CountedOperation, perf};
use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport};
use crate::temporary::TemporaryHandle;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench profile\n  \
    fusee-bench profile --fabric tcp --operations 50000 --json\n\n\
perf must be installed (Debian: linux-perf), and the program must have its line tables, as it is built.")]
pub struct ProfileArgs {
    /// shm, tcp or verbs
    #[arg(long, default_value = "shm")]
    #[serde(skip)]
    fabric: FabricKind,

    /// Pairs
    #[arg(long, default_value_t = 100_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,

    /// Bytes of key and value together; keys have 16
    #[arg(long, default_value_t = 1024, value_name = "N",
          value_parser = clap::value_parser!(u32).range(16..=65_536))]
    pair_bytes: u32,

    /// Operations that are sampled of each kind: of inserts and deletes as many as there are pairs, at most
    #[arg(long, default_value_t = 500_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

#[derive(Debug, Serialize)]
struct ProfileReport {
    kinds: Vec<OperationProfile>,
}

/// The figures of one kind of operation. Gets, updates and deletes have a right hint; inserts have no hint.
#[derive(Debug, Serialize)]
struct OperationProfile {
    kind: CountedOperation,
    operations: u32,
    /// The time of one operation, in nanoseconds.
    ns: f64,
    samples: u64,
    parts: Vec<PartProfile>,
}

#[derive(Debug, Serialize)]
struct PartProfile {
    part: ProgramPart,
    samples: u64,
    ns: f64,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &ProfileArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("profile", &args.output);
    let kinds: Result<Vec<OperationProfile>, Failure> =
        CountedOperation::ALL.into_iter().map(|kind| profile(args, kind)).collect();
    shell.print_results(args, None, ProfileReport { kinds: kinds? }, None)
}

fn profile(args: &ProfileArgs, kind: CountedOperation) -> Result<OperationProfile, Failure> {
    let operations = match kind {
        CountedOperation::Get | CountedOperation::Update => args.operations,
        CountedOperation::Insert | CountedOperation::Delete => args.operations.min(args.keys),
    };
    let directory = TemporaryHandle::directory().map_err(|e| Failure::operation(e.to_string()))?;
    let sampled = perf::sample(directory.path(), |command| {
        let numbers = [args.keys, args.pair_bytes, operations].map(|number| number.to_string());
        let [keys, pair_bytes, operations] = &numbers;
        command.args(["--kind", &kind.name(), "--fabric", &args.fabric.to_string()]);
        command.args(["--keys", keys, "--pair-bytes", pair_bytes, "--operations", operations]);
    })?;
    let samples: u64 = sampled.parts.values().sum();
    if samples == 0 {
        return Err(Failure::operation("perf has no sample: do more --operations"));
    }
    let ns = sampled.ns / f64::from(operations);
    let of_part = |part: ProgramPart| {
        let of_part = sampled.parts.get(&part).copied()?;
        Some(PartProfile { part, samples: of_part, ns: ns * of_part as f64 / samples as f64 })
    };
    let parts = ProgramPart::ALL.into_iter().filter_map(of_part).collect();
    Ok(OperationProfile { kind, operations, ns, samples, parts })
}

impl BenchFindings for ProfileReport {
    type Settings = ProfileArgs;

    fn title(report: &BenchReport<'_, ProfileReport>) -> String {
        let ProfileArgs { fabric, keys, pair_bytes, .. } = report.settings;
        format!("{keys} pairs of {pair_bytes} bytes, {fabric}, hints right; ns of one, by samples")
    }

    fn rows(report: &BenchReport<'_, ProfileReport>) -> String {
        let kinds = &report.findings.kinds;
        let row = |name: &str, of: &dyn Fn(&OperationProfile) -> String| {
            let cells: String = kinds.iter().map(|kind| format!(" {:>11}", of(kind))).collect();
            format!("{name:<12}{cells}\n")
        };
        let mut text = format!("\n{}", row("", &|kind| kind.kind.name()));
        for part in ProgramPart::ALL {
            let of = |kind: &OperationProfile| {
                kind.parts.iter().find(|of| of.part == part).map(|of| of.ns)
            };
            if kinds.iter().any(|kind| of(kind).is_some()) {
                text +=
                    &row(part.name(), &|kind| of(kind).map_or("-".into(), |ns| format!("{ns:.0}")));
            }
        }
        text += &row("all", &|kind| format!("{:.0}", kind.ns));
        text + &row("samples", &|kind| kind.samples.to_string())
    }
}
