//! `fusee-bench raw`: the verbs of FUSEE's fabrics compared with the transports of other projects, without a key-value
//! store around them.
//!
//! Verbs run one at a time on the same memory, which therefore is in the processor's cache. In every round all
//! transports take their turn, and ratios are of the same round.
//!
//! * *UCX over POSIX shared memory* is `ucx_perftest` on the transport itself (UCT), in a mode in which the program
//!   talks to itself (`-l`): one process maps the memory and accesses it directly, as FUSEE's shared memory does. `get`
//!   with buffered copy corresponds to READ; `put_bw` with short messages, each of which ends before the next one
//!   begins, corresponds to WRITE; `cswap` and `fadd` correspond to CAS and FAA. (`put_lat` measures something else:
//!   two processes that wait for each other's bytes.)
//! * *libfabric over TCP* is `fi_pingpong` on connected endpoints. It sends messages of n bytes to and fro between two
//!   processes, and prints half of the round trip. A READ of n bytes is a small message and an answer of n bytes, a
//!   WRITE is a long message and a small answer: each is compared with one way of [`SMALL`] bytes plus one way of n
//!   bytes.

mod installed;

use std::collections::BTreeMap;
use std::time::Instant;

use fusee_cli::failure::Failure;
use fusee_cli::stderr;
use fusee_client::FabricKind;
use serde::Serialize;

use crate::loaded_cluster::LoadedClusterArgs;
use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport};
use crate::samples::RoundSamples;
use crate::spread::Spread;
use crate::temporary::{self, is_installed};
use crate::verbs::{RawCluster, RawVerb};
use installed::{fi_pingpong, ucx};

/// Bytes of a message without data: a request, or an answer.
const SMALL: u32 = 32;
/// Bytes of an atomic operation.
const WORD_BYTES: u32 = 8;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Who takes part: shm, tcp; ucx-posix, if ucx_perftest is installed; \
    libfabric-tcp, if\nfi_pingpong is. (It listens on all addresses while it runs.)\n\nExamples:\n  \
    fusee-bench raw\n  \
    fusee-bench raw --only shm,ucx-posix --bytes 64,1024 --json")]
pub struct RawArgs {
    /// Bytes of a READ, a WRITE or a message
    #[arg(long, value_delimiter = ',', default_value = "8,64,1024,4096,16384,65536",
          value_name = "N,N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    bytes: Vec<u32>,

    /// Rounds
    #[arg(long, default_value_t = 9, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Operations of a round over shared memory
    #[arg(long, default_value_t = 200_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    /// Round trips of a round over TCP
    #[arg(long, default_value_t = 3000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    trips: u32,

    /// Transports that take part [default: all that are installed]
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    #[serde(skip)]
    only: Vec<RawTransport>,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RawTransport {
    Shm,
    UcxPosix,
    Tcp,
    LibfabricTcp,
}

impl RawTransport {
    const ALL: [RawTransport; 4] =
        [RawTransport::Shm, RawTransport::UcxPosix, RawTransport::Tcp, RawTransport::LibfabricTcp];

    fn name(self) -> &'static str {
        ["shm", "ucx-posix", "tcp", "libfabric-tcp"][self as usize]
    }

    /// Returns the program that the transport needs, and the package that contains it.
    fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            RawTransport::Shm | RawTransport::Tcp => None,
            RawTransport::UcxPosix => Some(("ucx_perftest", "ucx-utils")),
            RawTransport::LibfabricTcp => Some(("fi_pingpong", "libfabric-bin")),
        }
    }

    fn is_over_tcp(self) -> bool {
        matches!(self, RawTransport::Tcp | RawTransport::LibfabricTcp)
    }

    /// Returns the verbs that the transport can execute with these numbers of bytes.
    fn verbs(self, bytes: &[u32]) -> Vec<RawVerb> {
        match self {
            // libfabric's verbs are messages one way.
            RawTransport::LibfabricTcp => {
                let mut all: Vec<u32> = bytes.iter().copied().chain([SMALL]).collect();
                all.sort_unstable();
                all.dedup();
                all.into_iter().map(RawVerb::Write).collect()
            }
            _ => {
                let reads = bytes.iter().map(|bytes| RawVerb::Read(*bytes));
                let writes = bytes.iter().map(|bytes| RawVerb::Write(*bytes));
                reads.chain(writes).chain([RawVerb::Cas, RawVerb::Faa]).collect()
            }
        }
    }
}

#[derive(Debug, Serialize)]
struct RawReport {
    absent: Vec<&'static str>,
    runs: Vec<RawComparison>,
}

/// A verb of FUSEE and its counterpart.
#[derive(Debug, Serialize)]
struct RawComparison {
    transport: &'static str,
    verb: &'static str,
    bytes: u32,
    /// Nanoseconds.
    ns: Spread,
    /// The name of the counterpart.
    beside: Option<&'static str>,
    beside_ns: Option<Spread>,
    /// The time of FUSEE's verb divided by the counterpart's, in the same round.
    times: Option<Spread>,
}

type RawSamples = BTreeMap<(RawTransport, RawVerb), RoundSamples>;

/// Runs the benchmark and prints its report.
pub fn run(args: &RawArgs) -> Result<(), Failure> {
    temporary::end_with_signals()?;
    let shell = BenchInvocation::begin("raw", &args.output);
    let (transports, absent) = select_transports(args)?;
    let largest = args.bytes.iter().copied().max().unwrap_or(WORD_BYTES);
    let mut own = RawFabrics::new(&transports, largest)?;
    let mut all = RawSamples::new();
    for round in 0..args.rounds {
        stderr::tell(&format!("round {} of {}", round + 1, args.rounds));
        for i in 0..transports.len() {
            let transport = transports[(i + round as usize) % transports.len()];
            for verb in transport.verbs(&args.bytes) {
                let ns = measure(args, &mut own, transport, verb)?;
                all.entry((transport, verb)).or_default().push(ns);
            }
        }
    }
    shell.print_results(args, None, RawReport { absent, runs: compare_verbs(&all) }, None)
}

/// Returns the transports that take part, and the names of those that cannot.
fn select_transports(args: &RawArgs) -> Result<(Vec<RawTransport>, Vec<&'static str>), Failure> {
    let mut transports = Vec::new();
    let mut absent = Vec::new();
    for transport in RawTransport::ALL {
        let is_asked_for = args.only.contains(&transport);
        let missing = transport.program().filter(|(program, _)| !is_installed(program));
        match missing {
            _ if !is_asked_for && !args.only.is_empty() => {}
            None => transports.push(transport),
            Some((program, package)) => {
                let failure = Failure::operation(format!(
                    "{program} is not installed (Debian: apt-get install {package})"
                ));
                if is_asked_for {
                    return Err(failure);
                }
                stderr::tell(&format!("without {}: {failure}", transport.name()));
                absent.push(transport.name());
            }
        }
    }
    Ok((transports, absent))
}

/// The clusters for FUSEE's fabrics.
#[derive(Default)]
struct RawFabrics {
    shm: Option<RawCluster>,
    tcp: Option<RawCluster>,
}

impl RawFabrics {
    fn new(transports: &[RawTransport], largest: u32) -> Result<RawFabrics, Failure> {
        // A cluster with one object of the largest length.
        let pair_bytes = largest.max(1024);
        let size = LoadedClusterArgs {
            keys: 1,
            pair_bytes,
            index_replicas: 3,
            data_replicas: 2,
            huge_pages: false,
        };
        let open = |transport, kind| {
            let is_wanted = transports.contains(&transport);
            is_wanted.then(|| RawCluster::over(&size, kind)).transpose()
        };
        Ok(RawFabrics {
            shm: open(RawTransport::Shm, FabricKind::Shm)?,
            tcp: open(RawTransport::Tcp, FabricKind::Tcp)?,
        })
    }
}

/// Returns the mean nanoseconds of one verb.
fn measure(
    args: &RawArgs,
    own: &mut RawFabrics,
    transport: RawTransport,
    verb: RawVerb,
) -> Result<f64, Failure> {
    let count = if transport.is_over_tcp() { args.trips } else { args.operations };
    let raw = match transport {
        RawTransport::UcxPosix => return ucx(verb, count),
        RawTransport::LibfabricTcp => return fi_pingpong(bytes(verb), count),
        RawTransport::Shm => &mut own.shm,
        RawTransport::Tcp => &mut own.tcp,
    };
    let raw = raw.as_mut().expect("it takes part");
    let warm_up = count / 10;
    (0..warm_up).try_for_each(|_| raw.verb(verb))?;
    let start = Instant::now();
    (0..count).try_for_each(|_| raw.verb(verb))?;
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count))
}

fn bytes(verb: RawVerb) -> u32 {
    match verb {
        RawVerb::Read(bytes) | RawVerb::Write(bytes) => bytes,
        RawVerb::Cas | RawVerb::Faa => WORD_BYTES,
    }
}

/// Returns FUSEE's verbs, each with its counterpart.
fn compare_verbs(all: &RawSamples) -> Vec<RawComparison> {
    let row = |(transport, verb): (RawTransport, RawVerb), series: &RoundSamples| {
        let beside = find_counterpart(all, transport, verb);
        let is_message = transport == RawTransport::LibfabricTcp;
        RawComparison {
            transport: transport.name(),
            verb: match verb {
                RawVerb::Write(_) if is_message => "one way",
                RawVerb::Read(_) => "READ",
                RawVerb::Write(_) => "WRITE",
                RawVerb::Cas => "CAS",
                RawVerb::Faa => "FAA",
            },
            bytes: bytes(verb),
            ns: series.spread(),
            beside: beside.as_ref().map(|(name, _)| *name),
            beside_ns: beside.as_ref().map(|(_, other)| other.spread()),
            times: beside.as_ref().map(|(_, other)| series.over(other).spread()),
        }
    };
    all.iter().map(|(key, series)| row(*key, series)).collect()
}

/// Returns the counterpart of a verb of FUSEE, if the counterpart took part.
fn find_counterpart(
    all: &RawSamples,
    transport: RawTransport,
    verb: RawVerb,
) -> Option<(&'static str, RoundSamples)> {
    match transport {
        RawTransport::Shm => {
            let same = all.get(&(RawTransport::UcxPosix, verb))?;
            Some((RawTransport::UcxPosix.name(), same.clone()))
        }
        RawTransport::Tcp => {
            let way = |bytes| all.get(&(RawTransport::LibfabricTcp, RawVerb::Write(bytes)));
            let large = match verb {
                RawVerb::Read(bytes) | RawVerb::Write(bytes) => bytes,
                RawVerb::Cas | RawVerb::Faa => SMALL,
            };
            Some(("two ways of libfabric-tcp", way(SMALL)?.plus(way(large)?)))
        }
        RawTransport::UcxPosix | RawTransport::LibfabricTcp => None,
    }
}

impl BenchFindings for RawReport {
    type Settings = RawArgs;

    fn title(report: &BenchReport<'_, RawReport>) -> String {
        let RawArgs { rounds, operations, trips, .. } = report.settings;
        format!(
            "one at a time, from the processor's cache; {rounds} rounds of {operations} operations over \
             shared memory and {trips} over TCP: medians (spread), ns"
        )
    }

    fn rows(report: &BenchReport<'_, RawReport>) -> String {
        let mut text = format!(
            "\n{:<14} {:<9} {:>5} {:>25} {:>26} {:>25} {:>21}\n",
            "", "", "bytes", "", "beside", "", "x"
        );
        for run in &report.findings.runs {
            let beside_ns = run.beside_ns.map(|ns| spread(&ns, 0)).unwrap_or_default();
            let times = run.times.map(|times| spread(&times, 2)).unwrap_or_default();
            text += format!(
                "{:<14} {:<9} {:>5} {:>25} {:>26} {beside_ns:>25} {times:>21}",
                run.transport,
                run.verb,
                run.bytes,
                spread(&run.ns, 0),
                run.beside.unwrap_or_default(),
            )
            .trim_end();
            text += "\n";
        }
        text
    }
}

fn spread(Spread { median, least, most }: &Spread, digits: usize) -> String {
    format!("{median:.digits$} ({least:.digits$} - {most:.digits$})")
}
