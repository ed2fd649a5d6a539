//! `fusee-bench peers`: FUSEE compared with the stores that a user might choose instead.
//!
//! Every round is one sequence of operations on Zipfian keys: YCSB A (half of them are updates), B (one in twenty) or C
//! (none). Each peer executes the sequence, in one thread or divided among several threads. The order of the peers
//! changes with every round. Ratios are of the same round, so that a machine that is busy for a while slows all peers
//! alike.
//!
//! Memcached and Redis run in processes of their own, started here, without persistence. LMDB runs in this process, on
//! files that it never syncs. FUSEE keeps three replicas of the index and two of the data; the other stores keep one
//! copy.
//!
//! Next to the time of an operation the report has the processor time of the server, because memory nodes are meant to
//! be weak machines. FUSEE over shared memory and LMDB have no server.

mod cpu;
mod error;
mod fusee_peer;
mod lmdb;
mod server;
mod values;
mod wire;
mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fusee_cli::failure::Failure;
use fusee_cli::quantity::count_with_noun;
use fusee_cli::stderr;
use fusee_client::FabricKind;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Serialize;

use crate::loaded_cluster::{LoadedClusterArgs, NODES};
use crate::report::{BenchFindings, BenchInvocation, BenchOutputArgs, BenchReport};
use crate::samples::RoundSamples;
use crate::spread::Spread;
use crate::store::{BenchStore, PipelinedRequest, PipelinedSession};
use crate::suite::sizes::SizeDistribution;
use crate::temporary::{self, is_installed};
use cpu::{ProcessThread, time_ns};
use fusee_peer::FuseePeer;
use fusee_workload::{Distribution, KEY_BYTES, KeyChooser, YcsbWorkload, key_bytes};
use lmdb::Lmdb;
use server::{Memcached, Redis};
pub use values::PeerValues;
use workers::PeerWorkerPool;

/// Maximum length of a value, the same as for --pair-bytes.
const MAX_VALUE_BYTES: u32 = 65_536;
/// The skew of YCSB.
const THETA: f64 = 0.99;
/// The seed that decides which keys are popular. It is the same in every round.
const POPULAR: u64 = 1;

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(
    after_help = "Who takes part: fusee-shm, fusee-tcp, lmdb; memcached-unix, memcached-tcp, \
    redis-unix, redis-tcp, if memcached and redis-server are installed.\n\nExamples:\n  \
    fusee-bench peers\n  \
    fusee-bench peers --pair-bytes 64 --workloads c --depths 1 --threads 1,2\n  \
    fusee-bench peers --only fusee-tcp,memcached-tcp,redis-tcp --connections 3\n  \
    fusee-bench peers --values log-uniform:100-10240 --keys 20000 --workloads upd5,upd50\n  \
    fusee-bench peers --only fusee-tcp,memcached-tcp --json"
)]
pub struct PeersArgs {
    #[command(flatten)]
    #[serde(flatten)]
    size: LoadedClusterArgs,

    /// Lengths of values instead of --pair-bytes, as for `fusee-bench sizes`: each key has one of 256 that are
    /// drawn, which updates leave as it is
    #[arg(long, value_name = "SIZES", conflicts_with = "pair_bytes")]
    #[serde(skip)]
    values: Option<SizeDistribution>,

    /// YCSB workloads, and upd0 to upd100: with that percentage of updates
    #[arg(long, value_delimiter = ',', default_value = "a,b,c", value_name = "A,B,C")]
    #[serde(skip)]
    workloads: Vec<YcsbWorkload>,

    /// Requests in flight
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_name = "N,N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    #[serde(skip)]
    depths: Vec<u16>,

    /// Client threads, the same number for all
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,N",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    #[serde(skip)]
    threads: Vec<u16>,

    /// Memory nodes of FUSEE: at least as many as replicas
    #[arg(long, default_value_t = NODES, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=16))]
    memory_nodes: u16,

    /// Connections of each client thread to memcached and to Redis, which share what is in flight. FUSEE has
    /// one to each of its memory nodes
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=16))]
    connections: u16,

    /// Rounds
    #[arg(long, default_value_t = 9, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Operations of a round
    #[arg(long, default_value_t = 20_000, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,

    /// Stores that take part [default: all that are installed]
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    #[serde(skip)]
    only: Vec<String>,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

/// A store that takes part. Once a value of this type exists, all pairs have been put, and every session that it opens
/// knows where all pairs are.
pub trait PeerStore: BenchStore<Session: PipelinedSession> + Send + 'static {
    /// Returns the threads of the store's server; none if it has no server.
    fn server_threads(&self) -> Result<Vec<ProcessThread>, Failure>;
}

/// The settings with which peers are started.
#[derive(Clone, Copy)]
struct PeerSettings {
    size: LoadedClusterArgs,
    values: SizeDistribution,
    memory_nodes: u16,
    /// Connections of each client thread to a peer with one server.
    connections: u16,
}

impl PeerSettings {
    fn values(&self) -> PeerValues {
        PeerValues::new(self.values)
    }

    /// Starts the client threads of a peer.
    fn crew<P: PeerStore>(
        &self,
        peer: Result<P, Failure>,
        threads: u16,
    ) -> Result<PeerWorkerPool, Failure> {
        PeerWorkerPool::new(peer?, self.values(), threads.into())
    }
}

/// Starts a peer with this number of client threads.
type StartPeer = fn(&PeerSettings, u16) -> Result<PeerWorkerPool, Failure>;

/// All peers, each with the program that has to be installed, if it needs one.
const ALL: [(&str, Option<&str>, StartPeer); 7] = [
    ("fusee-shm", None, |way, n| way.crew(FuseePeer::new(way, FabricKind::Shm), n)),
    ("fusee-tcp", None, |way, n| way.crew(FuseePeer::new(way, FabricKind::Tcp), n)),
    ("lmdb", None, |way, n| way.crew(Lmdb::new(way), n)),
    ("memcached-unix", Some(MEMCACHED), |way, n| way.crew(Memcached::unix(way)?.load(way), n)),
    ("memcached-tcp", Some(MEMCACHED), |way, n| way.crew(Memcached::tcp(way)?.load(way), n)),
    ("redis-unix", Some(REDIS), |way, n| way.crew(Redis::unix(way)?.load(way), n)),
    ("redis-tcp", Some(REDIS), |way, n| way.crew(Redis::tcp(way)?.load(way), n)),
];

const MEMCACHED: &str = "memcached";
const REDIS: &str = "redis-server";

#[derive(Debug, Serialize)]
struct PeersReport {
    /// The distribution of the values' lengths, if they differ.
    values: Option<String>,
    absent: Vec<String>,
    runs: Vec<PeersRun>,
}

/// The results of one workload with one number of threads, and one number of requests in flight in each thread.
#[derive(Debug, Serialize)]
struct PeersRun {
    workload: String,
    depth: u16,
    threads: u16,
    /// By peer: the time of the run divided by the operations of all threads, in nanoseconds.
    ns: BTreeMap<String, Spread>,
    /// By peer with a server: processor time of the server's threads per operation, in nanoseconds.
    server_cpu_ns: BTreeMap<String, Spread>,
    /// By FUSEE peer: the times of the other peers, divided by the time of the FUSEE peer in the same round.
    times_of: BTreeMap<String, BTreeMap<String, Spread>>,
}

/// Runs the benchmark and prints its report.
pub fn run(args: &PeersArgs) -> Result<(), Failure> {
    temporary::end_with_signals()?;
    let shell = BenchInvocation::begin("peers", &args.output);
    let mut size = args.size;
    let connections = args.connections;
    let alike = SizeDistribution::Fixed(size.pair_bytes - KEY_BYTES as u32);
    let values = args.values.unwrap_or(alike);
    let all = PeerValues::new(values);
    if all.longest_bytes() > MAX_VALUE_BYTES {
        return Err(Failure::usage(format!("--values: at most {MAX_VALUE_BYTES} bytes each")));
    }
    size.pair_bytes = KEY_BYTES as u32 + all.mean_bytes();
    let way = PeerSettings { size, values, memory_nodes: args.memory_nodes, connections };
    if let Some(unknown) = args.only.iter().find(|n| !ALL.iter().any(|(name, ..)| name == n)) {
        return Err(Failure::usage(format!("there is no {unknown:?} to take part; see --help")));
    }
    let mut peers = Vec::new();
    let mut absent = Vec::new();
    for (name, program, start) in ALL {
        let is_wanted = args.only.is_empty() || args.only.iter().any(|only| only == name);
        match program {
            _ if !is_wanted => {}
            Some(program) if !is_installed(program) => absent.push(name.to_owned()),
            _ => {
                stderr::tell(&format!("loading {name}"));
                let most = args.threads.iter().copied().max().unwrap_or(1);
                peers.push((name, start(&way, most)?));
            }
        }
    }
    if !absent.is_empty() {
        stderr::tell(&format!("not installed: {}", absent.join(", ")));
    }
    let mut runs = Vec::new();
    for workload in &args.workloads {
        for threads in &args.threads {
            for depth in &args.depths {
                runs.push(measure_workload(args, &peers, *workload, *threads, *depth)?);
            }
        }
    }
    let values = args.values.map(|sizes| sizes.to_string());
    shell.print_results(args, None, PeersReport { values, absent, runs }, None)
}

/// Runs all rounds of one workload.
fn measure_workload(
    args: &PeersArgs,
    peers: &[(&str, PeerWorkerPool)],
    workload: YcsbWorkload,
    threads: u16,
    depth: u16,
) -> Result<PeersRun, Failure> {
    stderr::tell(&format!("YCSB {}, {threads} threads, {depth} in flight", name_of(workload)));
    let servers = peers.iter().map(|(_, crew)| crew.server_threads());
    let servers: Vec<Vec<ProcessThread>> = servers.collect::<Result<_, _>>()?;
    let keys = args.size.keys.into();
    let chooser = KeyChooser::new(Distribution::Zipfian, keys, THETA, POPULAR);
    let mut series = vec![(RoundSamples::default(), RoundSamples::default()); peers.len()];
    for round in 0..args.rounds {
        let requests = Arc::new(requests(args, workload, &chooser, u64::from(round)));
        for i in 0..peers.len() {
            let i = (i + round as usize) % peers.len();
            let (times, server_times) = &mut series[i];
            let busy_before = time_ns(&servers[i])?;
            let start = Instant::now();
            peers[i].1.run(&requests, threads.into(), depth.into())?;
            let time = start.elapsed().as_nanos() as f64;
            let busy = time_ns(&servers[i])? - busy_before;
            times.push(time / f64::from(args.operations));
            server_times.push(busy as f64 / f64::from(args.operations));
        }
    }
    let all = || peers.iter().map(|(name, _)| (*name).to_owned()).zip(&series);
    let served = all().zip(&servers).filter(|(_, server)| !server.is_empty());
    Ok(PeersRun {
        workload: name_of(workload),
        depth,
        threads,
        ns: all().map(|(name, (times, _))| (name, times.spread())).collect(),
        server_cpu_ns: served.map(|((name, (_, busy)), _)| (name, busy.spread())).collect(),
        times_of: time_ratios(&all().map(|(n, (times, _))| (n, times.clone())).collect::<Vec<_>>()),
    })
}

fn time_ratios(all: &[(String, RoundSamples)]) -> BTreeMap<String, BTreeMap<String, Spread>> {
    let ours = all.iter().filter(|(name, _)| name.starts_with("fusee"));
    let times = |own: &RoundSamples, name: &str| {
        let others = all.iter().filter(|(other, _)| other != name);
        others.map(|(other, series)| (other.clone(), series.over(own).spread())).collect()
    };
    ours.map(|(name, own)| (name.clone(), times(own, name))).collect()
}

/// Returns the name of a workload in reports.
fn name_of(workload: YcsbWorkload) -> String {
    workload.to_string().to_uppercase()
}

/// Returns the requests of a round, which are the same for all peers.
fn requests(
    args: &PeersArgs,
    workload: YcsbWorkload,
    chooser: &KeyChooser,
    round: u64,
) -> Vec<PipelinedRequest> {
    let mut rng = SmallRng::seed_from_u64(round);
    let mut chooser = chooser.clone();
    let request = |_| {
        let key = key_bytes(chooser.next(&mut rng, args.size.keys.into()));
        match workload.draw(&mut rng) {
            fusee_workload::WorkloadOperation::Update => PipelinedRequest::Update(key),
            _ => PipelinedRequest::Get(key),
        }
    };
    (0..args.operations).map(request).collect()
}

impl BenchFindings for PeersReport {
    type Settings = PeersArgs;

    fn title(report: &BenchReport<'_, PeersReport>) -> String {
        let PeersArgs { size, memory_nodes, connections, rounds, operations, .. } = report.settings;
        let LoadedClusterArgs { keys, pair_bytes, index_replicas, data_replicas, .. } = size;
        let pairs = match &report.findings.values {
            Some(values) => format!("{keys} pairs with values of {values} bytes"),
            None => format!("{keys} pairs of {pair_bytes} bytes"),
        };
        format!(
            "{pairs}, FUSEE with {index_replicas} index and \
             {data_replicas} data replicas on {memory_nodes} memory nodes, others by {connections} \
             connections of each thread; {rounds} rounds of {operations} operations: medians (spread)"
        )
    }

    fn rows(report: &BenchReport<'_, PeersReport>) -> String {
        report.findings.runs.iter().map(PeersRun::table).collect()
    }
}

impl PeersRun {
    fn table(&self) -> String {
        let PeersRun { workload, depth, threads, ns, server_cpu_ns, times_of } = self;
        let mut text = format!(
            "\nYCSB {workload}, {}, {depth} in flight\n",
            count_with_noun(*threads, "thread")
        );
        let names: Vec<&String> = times_of.keys().collect();
        text += &format!("{:<16} {:>9} {:>25}", "", "ns", "server's processor, ns");
        names.iter().for_each(|name| text += &format!("{:>28}", format!("x {name}")));
        text += "\n";
        for (name, spread) in ns {
            text += &format!("{name:<16} {:>9.0}", spread.median);
            let busy = server_cpu_ns.get(name).map(|Spread { median, least, most }| {
                format!("{median:.0} ({least:.0} - {most:.0})")
            });
            text += &format!("{:>26}", busy.unwrap_or_else(|| "-".into()));
            for own in &names {
                let times = times_of[*own].get(name).map(|Spread { median, least, most }| {
                    format!("{median:.2} ({least:.2} - {most:.2})")
                });
                text += &format!("{:>28}", times.unwrap_or_default());
            }
            text += "\n";
        }
        text
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns the size of a cluster with few small pairs.
    pub fn small() -> LoadedClusterArgs {
        LoadedClusterArgs {
            keys: 1000,
            pair_bytes: 64,
            index_replicas: 3,
            data_replicas: 2,
            huge_pages: false,
        }
    }
}
