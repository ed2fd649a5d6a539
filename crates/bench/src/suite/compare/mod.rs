//! `fusee-bench compare`: FUSEE's operations compared with their raw verbs, with other stores and with other
//! transports, by time, by instructions or by samples.
//!
//! In every round each subject does the same work, in turn, and the order changes with every round. Ratios are of the
//! same round, so that a machine that is busy for a while slows all subjects alike.
//!
//! * *Operations* ([`operations`]) run one at a time, gets and updates on random keys, and so do their raw verbs.
//! * *Verbs* ([`transports`]) run one at a time on the same memory, which therefore is in the processor's cache.
//! * *Workloads* ([`stores`]) are sequences of reads and updates on Zipfian keys, with several requests in flight or
//!   threads, if asked for. Next to the time of an operation the report has the processor time of the server, because
//!   memory nodes are meant to be weak machines.
//!
//! Instructions and samples ([`work`]) tell the parts of the program in which an operation of FUSEE spends them.

mod operations;
mod parts;
mod perf;
mod report;
mod rounds;
mod stores;
mod task;
mod transports;
pub mod work;

use clap::ValueEnum;
use fusee_cli::failure::Failure;
use fusee_cli::stderr;
use fusee_workload::KEY_BYTES;
use serde::Serialize;

use crate::loaded_cluster::{LoadedClusterArgs, NODES};
use crate::report::{BenchInvocation, BenchOutputArgs};
use crate::size_distribution::SizeDistribution;
use crate::temporary::{self, InstallableProgram};
use report::CompareReport;
use rounds::{Contestant, LoadShape, StartedSubject};
use stores::{PeerSettings, PeerValues};
use task::{CompareSubject, CompareTask, TaskFamily};
use work::ObservedFusee;

/// Maximum length of a value, the same as for --pair-bytes.
const MAX_VALUE_BYTES: u32 = 65_536;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Tasks: get, update, insert, delete: FUSEE, its raw verbs, a copy; \
    read:BYTES, write:BYTES, cas, faa:\nverbs, UCX, libfabric; a, b, c, upd0 to upd100: YCSB on \
    FUSEE, LMDB, memcached, Redis.\n\nExamples:\n  \
    fusee-bench compare --tasks get,update --subjects memcpy,raw-shm,fusee-shm\n  \
    fusee-bench compare --measure instructions --rounds 3\n  \
    fusee-bench compare --measure samples --subjects fusee-tcp --operations 50000\n  \
    fusee-bench compare --tasks read:8,read:1024,write:8,write:1024,cas,faa\n  \
    fusee-bench compare --tasks a,b,c --depths 1,16\n  \
    fusee-bench compare --tasks upd5,upd50 --values log-uniform:100-10240 --threads 1,2 --json")]
pub struct CompareArgs {
    /// Quantity that is measured of an operation
    #[arg(long, value_enum, default_value = "time")]
    measure: CompareMeasure,

    /// Work that all subjects do in turn, see below
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "get,update,insert,delete",
        value_name = "TASK,TASK"
    )]
    #[serde(skip)]
    tasks: Vec<CompareTask>,

    /// Subjects [default: for time all that are installed, otherwise fusee-shm]
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    subjects: Vec<CompareSubject>,

    #[command(flatten)]
    #[serde(flatten)]
    size: LoadedClusterArgs,

    /// Lengths of values in workloads, instead of --pair-bytes, as for `fusee-bench sizes`: each key has one of
    /// 256 that are drawn, which updates leave as it is
    #[arg(long, value_name = "SIZES", conflicts_with = "pair_bytes")]
    #[serde(skip)]
    values: Option<SizeDistribution>,

    /// Requests in flight in each thread, in workloads
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    depths: Vec<u16>,

    /// Client threads, in workloads
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,N",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Vec<u16>,

    /// Memory nodes of FUSEE in workloads: at least as many as replicas
    #[arg(long, default_value_t = NODES, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=16))]
    memory_nodes: u16,

    /// Connections of each client thread to memcached and to Redis, which share what is in flight. FUSEE has
    /// one to each of its memory nodes
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=16))]
    connections: u16,

    /// Rounds; 1, if not time is measured
    #[arg(long, default_value_t = 9, value_name = "N",
          default_value_ifs = [("measure", "instructions", "1"), ("measure", "samples", "1")],
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Operations of a round; 2000 for instructions, 500000 for samples. Inserts and deletes are at most as many as
    /// there are pairs
    #[arg(long, default_value_t = 20_000, value_name = "N",
          default_value_ifs = [("measure", "instructions", "2000"), ("measure", "samples", "500000")],
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// The quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum CompareMeasure {
    /// Nanoseconds
    Time,
    /// Instructions by part of the program, counted by valgrind
    Instructions,
    /// Nanoseconds by part of the program, sampled by perf
    Samples,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &CompareArgs) -> Result<(), Failure> {
    temporary::end_with_signals()?;
    let shell = BenchInvocation::begin("compare", &args.output);
    let settings = store_settings(args)?;
    let (subjects, absent) = select_subjects(args)?;
    let mut tables = Vec::new();
    for family in TaskFamily::ALL {
        let tasks = || args.tasks.iter().copied().filter(move |task| task.family() == family);
        let can_do_any = |subject: &CompareSubject| tasks().any(|task| subject.can_do(task));
        let mut contestants = Vec::new();
        for subject in subjects.iter().copied().filter(can_do_any) {
            stderr::tell(&format!("loading {}", subject.name()));
            contestants
                .push(Contestant { subject, started: start(args, &settings, subject, family)? });
        }
        for task in tasks() {
            for load in loads(args, family) {
                tables.push(rounds::measure(args, task, load, &mut contestants)?);
            }
        }
        for contestant in &contestants {
            contestant.started.verify()?;
        }
    }
    let unit = match args.measure {
        CompareMeasure::Instructions => "instructions",
        CompareMeasure::Time | CompareMeasure::Samples => "ns",
    };
    let values = args.values.map(|sizes| sizes.to_string());
    shell.print_results(args, None, CompareReport { unit, values, absent, tables }, None)
}

fn loads(args: &CompareArgs, family: TaskFamily) -> Vec<LoadShape> {
    if family != TaskFamily::Workloads {
        return vec![LoadShape { threads: 1, depth: 1 }];
    }
    let depths =
        |threads| args.depths.iter().map(move |depth| LoadShape { threads, depth: *depth });
    args.threads.iter().flat_map(|threads| depths(*threads)).collect()
}

/// Returns the subjects that take part, and those that cannot because their program is not installed.
fn select_subjects(
    args: &CompareArgs,
) -> Result<(Vec<CompareSubject>, Vec<CompareSubject>), Failure> {
    let is_time = args.measure == CompareMeasure::Time;
    let is_operation = |task: &CompareTask| task.family() == TaskFamily::Operations;
    let are_fusees = args.subjects.iter().all(|subject| subject.is_fusee());
    let counts_work = are_fusees && args.tasks.iter().all(is_operation);
    if !is_time && !counts_work {
        return Err(Failure::usage(
            "instructions and samples are of get, update, insert and delete of FUSEE only",
        ));
    }
    work::program(args.measure).map_or(Ok(()), InstallableProgram::check)?;
    let mut subjects = Vec::new();
    let mut absent = Vec::new();
    for subject in CompareSubject::value_variants().iter().copied() {
        let is_named = args.subjects.contains(&subject);
        let is_default =
            if is_time { subject.is_default() } else { subject == CompareSubject::FuseeShm };
        let is_wanted = is_named || (args.subjects.is_empty() && is_default);
        if !is_wanted || !args.tasks.iter().any(|task| subject.can_do(*task)) {
            continue;
        }
        match subject.program().map_or(Ok(()), InstallableProgram::check) {
            Ok(()) => subjects.push(subject),
            Err(failure) if is_named => return Err(failure),
            Err(failure) => {
                stderr::tell(&format!("without {}: {failure}", subject.name()));
                absent.push(subject);
            }
        }
    }
    let can_be_done = |task: &&CompareTask| subjects.iter().any(|subject| subject.can_do(**task));
    match args.tasks.iter().find(|task| !can_be_done(task)) {
        Some(task) => Err(Failure::usage(format!("no subject that takes part can do {task}"))),
        None => Ok((subjects, absent)),
    }
}

/// Returns the settings of the stores that execute workloads.
fn store_settings(args: &CompareArgs) -> Result<PeerSettings, Failure> {
    let mut size = args.size;
    let alike = SizeDistribution::Fixed(size.pair_bytes - KEY_BYTES as u32);
    let values = args.values.unwrap_or(alike);
    let all = PeerValues::new(values);
    if all.longest_bytes() > MAX_VALUE_BYTES {
        return Err(Failure::usage(format!("--values: at most {MAX_VALUE_BYTES} bytes each")));
    }
    size.pair_bytes = KEY_BYTES as u32 + all.mean_bytes();
    let CompareArgs { memory_nodes, connections, .. } = *args;
    Ok(PeerSettings { size, values, memory_nodes, connections })
}

/// Starts a subject of the comparison, for the tasks of one family.
fn start(
    args: &CompareArgs,
    settings: &PeerSettings,
    subject: CompareSubject,
    family: TaskFamily,
) -> Result<Box<dyn StartedSubject>, Failure> {
    if args.measure != CompareMeasure::Time {
        return Ok(Box::new(ObservedFusee::new(args.measure, args.size, subject)));
    }
    match family {
        TaskFamily::Operations => operations::start(&args.size, subject),
        TaskFamily::Verbs => transports::start(&args.tasks, subject),
        TaskFamily::Workloads => {
            let most = args.threads.iter().copied().max().unwrap_or(1);
            Ok(Box::new(stores::start(settings, subject, most)?))
        }
    }
}
