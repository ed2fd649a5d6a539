//! Instructions and samples of FUSEE's operations.
//!
//! The program runs itself (`fusee-bench work`) under valgrind's callgrind or under perf, with a cluster in that
//! process. Callgrind counts only the instructions inside [`measured`]. Their count does not depend on other work of
//! the machine, except that heartbeats can be late. It depends on the compiler, on the processor (as far as valgrind
//! knows its instructions), and by a few per cent on the layout of the memory. The source file of an instruction tells
//! to which part of the program it belongs ([`parts`]). perf samples at which instructions the thread of the same work
//! is ([`perf`]). If a part takes a larger share of the time than of the instructions, it waits for memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use fusee_client::FabricKind;

use super::CompareMeasure;
use super::parts::{self, ProgramPart};
use super::perf;
use super::rounds::{CompareRound, CompareSample, StartedSubject};
use super::task::{CompareSubject, CompareTask, MeasuredOperation};
use crate::loaded_cluster::{LoadedCluster, LoadedClusterArgs, numbers};
use crate::temporary::{InstallableProgram, TemporaryHandle};

const VALGRIND: InstallableProgram = InstallableProgram { name: "valgrind", package: "valgrind" };
const PERF: InstallableProgram = InstallableProgram { name: "perf", package: "linux-perf" };

/// The work to do under valgrind, or perf.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: started by `fusee-bench compare --measure instructions`")]
pub struct WorkArgs {
    #[command(flatten)]
    size: LoadedClusterArgs,

    #[arg(long, value_enum, default_value = "instructions")]
    measure: CompareMeasure,

    #[arg(long, default_value = "shm")]
    fabric: FabricKind,

    /// The directory of the pipes to perf
    #[arg(long)]
    perf: Option<PathBuf>,

    #[arg(long)]
    kind: MeasuredOperation,

    #[arg(long)]
    operations: u32,
}

/// Returns the program that a measure needs.
pub fn program(measure: CompareMeasure) -> Option<InstallableProgram> {
    match measure {
        CompareMeasure::Time => None,
        CompareMeasure::Instructions => Some(VALGRIND),
        CompareMeasure::Samples => Some(PERF),
    }
}

/// FUSEE under valgrind or perf, started anew for each round.
pub struct ObservedFusee {
    measure: CompareMeasure,
    size: LoadedClusterArgs,
    fabric: FabricKind,
}

impl ObservedFusee {
    pub fn new(
        measure: CompareMeasure,
        size: LoadedClusterArgs,
        subject: CompareSubject,
    ) -> ObservedFusee {
        ObservedFusee { measure, size, fabric: subject.fabric().expect("it is FUSEE") }
    }

    /// Appends the command line of the work.
    fn add_work(&self, command: &mut Command, kind: MeasuredOperation, keys: u32, operations: u32) {
        let LoadedClusterArgs { pair_bytes, index_replicas, data_replicas, huge_pages, .. } =
            self.size;
        let measure = self.measure.to_possible_value().expect("none is skipped");
        command.args(["work", "--measure", measure.get_name(), "--kind", &kind.to_string()]);
        command.args(["--fabric", &self.fabric.to_string()]);
        for (option, value) in [
            ("--keys", keys),
            ("--pair-bytes", pair_bytes),
            ("--index-replicas", index_replicas.into()),
            ("--data-replicas", data_replicas.into()),
            ("--operations", operations),
        ] {
            command.args([option, &value.to_string()]);
        }
        if huge_pages {
            command.arg("--huge-pages");
        }
    }

    fn count(&self, kind: MeasuredOperation, operations: u32) -> Result<CompareSample, Failure> {
        // A counted insert or delete takes a key of its own, so the cluster has exactly these keys.
        let keys = match kind {
            MeasuredOperation::Get | MeasuredOperation::Update => self.size.keys,
            MeasuredOperation::Insert | MeasuredOperation::Delete => operations,
        };
        let directory = TemporaryHandle::directory()?;
        let written = directory.path().join("callgrind");
        let mut valgrind = Command::new(VALGRIND.name);
        valgrind
            .args(["--tool=callgrind", "--collect-atstart=no"])
            .arg(format!("--callgrind-out-file={}", written.display()))
            .arg("--toggle-collect=*fusee_bench*compare*measured*")
            .arg(std::env::current_exe()?);
        self.add_work(&mut valgrind, kind, keys, operations);
        let text = VALGRIND.run(&mut valgrind)?.stderr;
        let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
        let count = match collected.and_then(|count| count.trim().parse::<u64>().ok()) {
            Some(count) if count > 0 => count,
            _ => return Err(Failure::operation(format!("valgrind did not count:\n{text}"))),
        };
        let written = std::fs::read(written).unwrap_or_default();
        let counts = parts::parse_callgrind(&String::from_utf8_lossy(&written))
            .map_err(Failure::operation)?;
        let of_one = |count: u64| (count / u64::from(operations)) as f64;
        // callgrind does not see instructions of the kernel.
        let seen =
            ProgramPart::value_variants().iter().filter(|part| **part != ProgramPart::Kernel);
        let parts = seen.map(|part| (*part, of_one(counts.get(part).copied().unwrap_or(0))));
        Ok(CompareSample { value: of_one(count), parts: parts.collect() })
    }

    fn sample(&self, kind: MeasuredOperation, operations: u32) -> Result<CompareSample, Failure> {
        let directory = TemporaryHandle::directory()?;
        let sampled = perf::sample(PERF, directory.path(), |command| {
            self.add_work(command, kind, self.size.keys, operations);
        })?;
        let samples: u64 = sampled.parts.values().sum();
        if samples == 0 {
            return Err(Failure::operation("perf has no sample: do more --operations"));
        }
        let value = sampled.ns / f64::from(operations);
        let ns = |count: u64| value * count as f64 / samples as f64;
        let parts: BTreeMap<ProgramPart, f64> =
            sampled.parts.iter().map(|(part, count)| (*part, ns(*count))).collect();
        Ok(CompareSample { value, parts })
    }
}

impl StartedSubject for ObservedFusee {
    fn run(&mut self, round: &CompareRound) -> Result<CompareSample, Failure> {
        let CompareTask::Operation(kind) = round.task else {
            return Err(Failure::usage("only operations have instructions and samples"));
        };
        match self.measure {
            CompareMeasure::Samples => self.sample(kind, round.operations),
            _ => self.count(kind, round.operations),
        }
    }
}

/// Does the work that valgrind or perf observes.
pub fn work(args: &WorkArgs) -> Result<(), Failure> {
    // If perf is killed, it does not end this process. Therefore the system kills this process when its parent ends.
    let dies = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(dies)
        .map_err(|error| Failure::operation(error.to_string()))?;
    let loaded = LoadedCluster::over(&args.size, args.fabric)?;
    let all: Vec<u32> = (0..args.size.keys).collect();
    loaded.gets(&all)?;
    loaded.updates(&all)?;
    let numbers = match args.kind {
        MeasuredOperation::Get | MeasuredOperation::Update => {
            numbers(args.size.keys, args.operations, 1)
        }
        MeasuredOperation::Insert | MeasuredOperation::Delete => {
            all.iter().take(args.operations as usize).copied().collect()
        }
    };
    if let MeasuredOperation::Insert = args.kind {
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
    kind: MeasuredOperation,
    numbers: &[u32],
) -> Result<(), Failure> {
    match kind {
        MeasuredOperation::Get => loaded.gets(numbers),
        MeasuredOperation::Update => loaded.updates(numbers),
        MeasuredOperation::Insert => loaded.inserts(numbers),
        MeasuredOperation::Delete => loaded.deletes(numbers),
    }
}
