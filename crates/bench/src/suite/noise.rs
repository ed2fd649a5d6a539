//! `fusee-bench noise`: latencies of short gets while another session moves long values.
//!
//! In every round one session reads short values, one after the other: first alone, then while another session reads a
//! long value all the time, then while the other session writes the long value. As every round has all three parts, a
//! machine that is busy for a while slows all of them alike. The other session has a thread of its own; on a machine
//! with few processors this thread also takes processor time from the memory nodes.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::quantity::ByteSize;
use fusee_cli::{connect, interrupt};
use fusee_client::{BlockingClient, FabricChoice, FabricKind, Geometry, Options, WriteError};
use fusee_launch::{LaunchPlan, Servers};
use fusee_master::settings::{
    DEFAULT_LEASE_MS, DEFAULT_MOVE_BYTES_PER_S, DEFAULT_SCRUB_BYTES_PER_S,
};
use serde::Serialize;

use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport, MeasuredSetup};
use crate::tally::empty_latencies;

/// Number of short values.
const KEYS: u32 = 1_000;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench noise\n  \
    fusee-bench noise --fabric shm --long-bytes 1MiB --rounds 5 --json\n\n\
Exit codes: 0 done; 2 wrong usage; 3 the cluster cannot be reached; 130 interrupted.")]
pub struct NoiseArgs {
    /// Measure the cluster of the master at this address (several: with commas), which must allow such values;
    /// without it, a cluster of three memory nodes is started, and ends with the benchmark
    #[arg(long, value_name = "HOST:PORT")]
    master: Option<String>,

    /// tcp, shm or verbs
    #[arg(long, default_value = "tcp")]
    #[serde(skip)]
    fabric: FabricKind,

    /// Length of a short value
    #[arg(long, default_value_t = ByteSize(1 << 10), value_name = "BYTES")]
    value_bytes: ByteSize,

    /// Length of a long value
    #[arg(long, default_value_t = ByteSize(10_000_000), value_name = "BYTES")]
    long_bytes: ByteSize,

    /// Rounds
    #[arg(long, default_value_t = 5, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,

    /// Seconds of each of the three parts of a round
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    seconds: f64,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// The load of the other session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum NoiseLoad {
    Nothing,
    Gets,
    Puts,
}

impl NoiseLoad {
    const ALL: [NoiseLoad; 3] = [NoiseLoad::Nothing, NoiseLoad::Gets, NoiseLoad::Puts];

    fn name(self) -> &'static str {
        match self {
            NoiseLoad::Nothing => "nothing",
            NoiseLoad::Gets => "gets of long values",
            NoiseLoad::Puts => "puts of long values",
        }
    }

    /// Runs the load until `stop` is set; returns the number of operations.
    fn run_until_stopped(
        self,
        client: &BlockingClient,
        value: &[u8],
        stop: &AtomicBool,
    ) -> Result<u64, WriteError> {
        let session = client.session()?;
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            match self {
                NoiseLoad::Nothing => return Ok(0),
                NoiseLoad::Gets => {
                    let get = session.get_with(LONG, |value| value.map(<[u8]>::len));
                    assert_eq!(session.block_on(get)?, Some(value.len()), "it is there");
                }
                NoiseLoad::Puts => session.block_on(session.put(LONG, value))?,
            }
            done += 1;
        }
        Ok(done)
    }
}

/// The key of the long value.
const LONG: &[u8] = b"a long value";

#[derive(Debug, Serialize)]
struct NoiseReport {
    rows: Vec<NoiseRow>,
}

/// The gets of short values beside one load, in all rounds.
#[derive(Debug, Serialize)]
struct NoiseRow {
    beside: NoiseLoad,
    gets: u64,
    median_us: f64,
    p99_us: f64,
    p999_us: f64,
    longest_us: f64,
    /// Bytes of long values per second.
    long_bytes_per_s: f64,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &NoiseArgs) -> Result<(), Failure> {
    if !(args.seconds > 0.0 && args.seconds < 1e6) {
        return Err(Failure::usage("--seconds must be more than 0"));
    }
    let shell = BenchInvocation::begin("noise", &args.output);
    interrupt::watch()?;
    let (servers, master) = match &args.master {
        Some(master) => (None, master.clone()),
        None => {
            let servers = start(args)?;
            let master = servers.master().to_string();
            (Some(servers), master)
        }
    };
    let client =
        connect::join(&master, Options::default().with_fabric(FabricChoice::Only(args.fabric)))?;
    let setup = MeasuredSetup::of(&client, servers.is_some(), false);
    let long = vec![7; args.long_bytes.0 as usize];
    let session = client.session()?;
    session.block_on(session.put(LONG, &long))?;
    let short = vec![9; args.value_bytes.0 as usize];
    for number in 0..KEYS {
        session.block_on(session.put(&key(number), &short))?;
    }
    let mut measured = NoiseLoad::ALL.map(|_| (empty_latencies(), 0, Duration::ZERO));
    'rounds: for _ in 0..args.rounds {
        for (noise, (latencies, long_values, time)) in NoiseLoad::ALL.into_iter().zip(&mut measured)
        {
            let begun = Instant::now();
            *long_values += measure_beside(&client, noise, &long, || {
                let read = |number: u32| {
                    let key = key(number);
                    let get = session.get_with(&key, |value| value.map(<[u8]>::len));
                    let since = Instant::now();
                    assert_eq!(session.block_on(get)?, Some(short.len()), "it is there");
                    latencies.saturating_record(since.elapsed().as_nanos() as u64);
                    Ok(())
                };
                reads(args.seconds, read)
            })?;
            *time += begun.elapsed();
            if interrupt::is_requested() {
                break 'rounds;
            }
        }
    }
    let rows = NoiseLoad::ALL.into_iter().zip(&measured);
    let rows = rows.map(|(beside, (latencies, long_values, time))| {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
        NoiseRow {
            beside,
            gets: latencies.len(),
            median_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            longest_us: us(1.0),
            long_bytes_per_s: (*long_values * long.len() as u64) as f64
                / time.as_secs_f64().max(1e-9),
        }
    });
    let found = NoiseReport { rows: rows.collect() };
    session.block_on(session.delete(LONG))?;
    for number in 0..KEYS {
        session.block_on(session.delete(&key(number)))?;
    }
    drop((session, client, servers));
    shell.print_results(args, Some(setup), found, None)
}

fn key(number: u32) -> Vec<u8> {
    format!("a short value {number}").into_bytes()
}

/// Reads values one after the other for this number of seconds.
fn reads(
    seconds: f64,
    mut read: impl FnMut(u32) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut number = 0;
    while Instant::now() < end && !interrupt::is_requested() {
        read(number % KEYS)?;
        number += 1;
    }
    Ok(())
}

/// Runs `measure` beside a load; returns how many long values the load has moved meanwhile.
fn measure_beside(
    client: &BlockingClient,
    noise: NoiseLoad,
    long: &[u8],
    measure: impl FnOnce() -> Result<(), WriteError>,
) -> Result<u64, Failure> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let making = scope.spawn(|| noise.run_until_stopped(client, long, &stop));
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        let made = making.join().expect("it does not panic");
        measured?;
        Ok(made?)
    })
}

/// Starts a cluster whose blocks have room for the long values.
fn start(args: &NoiseArgs) -> Result<Servers, Failure> {
    let Geometry { region_bytes, block_bytes, max_value_bytes, .. } = Geometry::default();
    let most = args.long_bytes.0.max(args.value_bytes.0).max(max_value_bytes.into());
    Servers::start(&LaunchPlan {
        memory_nodes: 3,
        index_replicas: 3,
        data_replicas: 2,
        pool_bytes: 4 * region_bytes,
        index_keys: 10_000,
        port: 0,
        lease_ms: DEFAULT_LEASE_MS,
        move_bytes_per_s: DEFAULT_MOVE_BYTES_PER_S,
        scrub_bytes_per_s: DEFAULT_SCRUB_BYTES_PER_S,
        fabrics: vec![args.fabric],
        region_bytes,
        block_bytes,
        more: vec!["--max-value-bytes".into(), most.to_string()],
    })
}

impl BenchFindings for NoiseReport {
    type Settings = NoiseArgs;

    fn title(report: &BenchReport<'_, NoiseReport>) -> String {
        let NoiseArgs { value_bytes, long_bytes, rounds, fabric, .. } = report.settings;
        format!(
            "Gets of {value_bytes} beside values of {long_bytes}, over {fabric}, {rounds} rounds{}",
            report.ended_early()
        )
    }

    fn rows(report: &BenchReport<'_, NoiseReport>) -> String {
        let mut text = format!(
            "\n{:<21} {:>8} {:>10} {:>8} {:>10} {:>11} {:>15}\n",
            "beside", "gets", "median us", "p99 us", "p99.9 us", "longest us", "long MB per s"
        );
        for row in &report.findings.rows {
            let _ = writeln!(
                text,
                "{:<21} {:>8} {:>10.1} {:>8.0} {:>10.0} {:>11.0} {:>15.0}",
                row.beside.name(),
                row.gets,
                row.median_us,
                row.p99_us,
                row.p999_us,
                row.longest_us,
                row.long_bytes_per_s / 1e6
            );
        }
        text
    }
}
