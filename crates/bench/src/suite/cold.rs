//! `fusee-bench cold`: the time before the first answer.
//!
//! In every round a client joins the cluster as if its program had just been started, with connections, threads and a
//! session of its own. It reads a key, writes the key twice, and leaves. Then a client that stays through all rounds
//! opens another session, which writes a key and ends. At last the program `fusee` runs twice, to read and to write a
//! key. As each round has all steps, a machine that is busy for a while slows all of them alike.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use fusee_cli::failure::Failure;
use fusee_cli::quantity::ByteSize;
use fusee_cli::{connect, interrupt, secret};
use fusee_client::{BlockingClient, FabricChoice, FabricKind, Options, WriteError};
use fusee_launch::{LaunchPlan, ServerProgram, Servers};
use fusee_master::settings::{
    DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
};
use serde::Serialize;

use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport, MeasuredSetup};
use crate::spread::Spread;

const KEY: &str = "a key of a cold start";

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench cold\n  \
    fusee-bench cold --fabric tcp --rounds 200 --json\n\n\
Exit codes: 0 done; 2 wrong usage; 3 the cluster cannot be reached; 130 interrupted.")]
pub struct ColdArgs {
    /// Measure the cluster of the master at this address (several: with commas); without it, a cluster of three
    /// memory nodes is started, and ends with the benchmark
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,

    /// Only over this fabric, one of shm, tcp and verbs [default: shm and tcp, in turn]
    #[arg(long)]
    #[serde(skip)]
    fabric: Option<FabricKind>,

    /// Length of a value
    #[arg(long, default_value_t = ByteSize(1 << 10), value_name = "BYTES")]
    value_bytes: ByteSize,

    /// Rounds
    #[arg(long, default_value_t = 50, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// The steps that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum ColdStep {
    Join,
    FirstGet,
    FirstPut,
    SecondPut,
    Leave,
    OpenSession,
    PutInSession,
    EndSession,
    ProgramGet,
    ProgramPut,
}

impl ColdStep {
    fn name(self) -> &'static str {
        match self {
            ColdStep::Join => "a client joins",
            ColdStep::FirstGet => "  its first get",
            ColdStep::FirstPut => "  its first put",
            ColdStep::SecondPut => "  its second put",
            ColdStep::Leave => "  it leaves",
            ColdStep::OpenSession => "another session opens",
            ColdStep::PutInSession => "  its first put",
            ColdStep::EndSession => "  it ends",
            ColdStep::ProgramGet => "`fusee get`, all of it",
            ColdStep::ProgramPut => "`fusee put`, all of it",
        }
    }
}

#[derive(Debug, Serialize)]
struct ColdReport {
    rows: Vec<ColdRow>,
}

/// The times of one step over one fabric, in microseconds.
#[derive(Debug, Serialize)]
struct ColdRow {
    fabric: String,
    step: ColdStep,
    us: Spread,
    /// The 90th percentile.
    p90_us: f64,
}

/// The times of all steps over one fabric, in microseconds.
#[derive(Default)]
struct ColdStepTimes(Vec<(ColdStep, f64)>);

impl ColdStepTimes {
    fn of<R>(&mut self, step: ColdStep, f: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let done = f();
        self.0.push((step, begun.elapsed().as_nanos() as f64 / 1_000.0));
        done
    }

    fn rows(self, fabric: FabricKind) -> Vec<ColdRow> {
        let mut steps: Vec<ColdStep> = self.0.iter().map(|(step, _)| *step).collect();
        steps.sort_unstable();
        steps.dedup();
        let row = |step: ColdStep| {
            let of_step = self.0.iter().filter(|(of, _)| *of == step);
            let mut times: Vec<f64> = of_step.map(|(_, time)| *time).collect();
            times.sort_by(f64::total_cmp);
            let p90_us = times[(times.len() * 9 / 10).min(times.len() - 1)];
            Some(ColdRow { fabric: fabric.to_string(), step, us: Spread::of(times)?, p90_us })
        };
        steps.into_iter().filter_map(row).collect()
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &ColdArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("cold", &args.output);
    interrupt::watch()?;
    let fusee = ServerProgram::beside()?;
    let fabrics = args.fabric.map_or(vec![FabricKind::Shm, FabricKind::Tcp], |only| vec![only]);
    let (servers, master) = match &args.master {
        Some(master) => (None, master.clone()),
        None => {
            let servers = start(fabrics.clone())?;
            let master = servers.master().to_string();
            (Some(servers), master)
        }
    };
    let options = |fabric| Options::default().with_fabric(FabricChoice::Only(fabric));
    let value = vec![b'v'; args.value_bytes.0 as usize];
    let stays: Result<Vec<BlockingClient>, Failure> =
        fabrics.iter().map(|fabric| connect::join(&master, options(*fabric))).collect();
    let stays = stays?;
    let setup = MeasuredSetup::of(&stays[0], servers.is_some(), false);
    stays[0].put(KEY.as_bytes(), &value)?;
    let mut times: Vec<ColdStepTimes> = fabrics.iter().map(|_| ColdStepTimes::default()).collect();
    'rounds: for _ in 0..args.rounds {
        for ((fabric, client), times) in fabrics.iter().zip(&stays).zip(&mut times) {
            join_and_leave(&master, options(*fabric), &value, times)?;
            session(client, &value, times)?;
            program(fusee.path(), &master, *fabric, &value, times)?;
            if interrupt::is_requested() {
                break 'rounds;
            }
        }
    }
    stays[0].delete(KEY.as_bytes())?;
    drop((stays, servers));
    let rows = fabrics.into_iter().zip(times).flat_map(|(fabric, times)| times.rows(fabric));
    shell.print_results(args, Some(setup), ColdReport { rows: rows.collect() }, None)
}

fn join_and_leave(
    master: &str,
    options: Options,
    value: &[u8],
    times: &mut ColdStepTimes,
) -> Result<(), Failure> {
    let key = KEY.as_bytes();
    let client = times.of(ColdStep::Join, || connect::join(master, options))?;
    let found = times.of(ColdStep::FirstGet, || client.get(key))?;
    assert_eq!(found.as_deref(), Some(value), "it is there");
    times.of(ColdStep::FirstPut, || client.put(key, value))?;
    times.of(ColdStep::SecondPut, || client.put(key, value))?;
    times.of(ColdStep::Leave, || drop(client));
    Ok(())
}

fn session(
    client: &BlockingClient,
    value: &[u8],
    times: &mut ColdStepTimes,
) -> Result<(), WriteError> {
    let session = times.of(ColdStep::OpenSession, || client.session())?;
    times.of(ColdStep::PutInSession, || session.block_on(session.put(KEY.as_bytes(), value)))?;
    times.of(ColdStep::EndSession, || drop(session));
    Ok(())
}

/// Runs the program `fusee`, as a shell script would.
fn program(
    fusee: &Path,
    master: &str,
    fabric: FabricKind,
    value: &[u8],
    times: &mut ColdStepTimes,
) -> Result<(), Failure> {
    let value = str::from_utf8(value).expect("it is made of letters");
    for (step, command) in
        [(ColdStep::ProgramGet, &["get", KEY][..]), (ColdStep::ProgramPut, &["put", KEY, value])]
    {
        let mut program = Command::new(fusee);
        program.args(command).args(["--master", master, "--fabric", &fabric.to_string()]);
        program.stdin(Stdio::null()).stdout(Stdio::null());
        program.envs(secret::environment());
        let ended = times.of(step, || program.status());
        let ended = ended.map_err(cannot_run)?;
        if !ended.success() {
            return Err(Failure::operation(format!("fusee {}: {ended}", command[0])));
        }
    }
    Ok(())
}

fn cannot_run(error: io::Error) -> Failure {
    Failure::operation(format!("cannot run fusee: {error}"))
}

fn start(fabrics: Vec<FabricKind>) -> Result<Servers, Failure> {
    Servers::start(&LaunchPlan {
        memory_nodes: 3,
        index_replicas: 3,
        data_replicas: 2,
        pool_bytes: 1 << 30,
        populate: false,
        index_keys: 10_000,
        port: 0,
        lease_ms: DEFAULT_LEASE_MS,
        move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
        scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
        fabrics,
        region_bytes: 128 << 20,
        block_bytes: 4 << 20,
        more: Vec::new(),
    })
}

impl BenchFindings for ColdReport {
    type Settings = ColdArgs;

    fn title(report: &BenchReport<'_, ColdReport>) -> String {
        let ColdArgs { value_bytes, rounds, .. } = report.settings;
        format!("Cold starts, values of {value_bytes}, {rounds} rounds{}", report.ended_early())
    }

    fn rows(report: &BenchReport<'_, ColdReport>) -> String {
        let mut text = format!(
            "\n{:<7} {:<25} {:>10} {:>8} {:>8} {:>11}\n",
            "fabric", "step", "median us", "least", "p90", "longest us"
        );
        for ColdRow { fabric, step, us, p90_us } in &report.findings.rows {
            let name = step.name();
            let _ = writeln!(
                text,
                "{fabric:<7} {name:<25} {:>10.0} {:>8.0} {:>8.0} {:>11.0}",
                us.median, us.least, p90_us, us.most
            );
        }
        text
    }
}
