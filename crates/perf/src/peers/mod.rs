//! `fusee-perf peers`: beside what a user would pick instead.
//!
//! Every round is one sequence of operations, which each contestant executes, one after the other, from
//! one thread or from several, each a part of it: YCSB A (half of them updates), B (one in twenty) or C
//! (none), on Zipfian keys. The order changes with every round. Ratios are of the same round, so that a
//! machine that is busy for a while slows all.
//!
//! Memcached and Redis run in processes of their own, started here, without persistence. LMDB runs in this
//! process, on files that it never syncs. FUSEE keeps three replicas of the index and two of the data;
//! the others keep one copy.
//!
//! Beside the time of an operation stands what the server's processors did for it: memory nodes are meant
//! to be weak machines. Over shared memory, and in LMDB, there is no server.

mod cpu;
mod crew;
mod lmdb;
mod own;
mod server;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use fusee_client::FabricKind;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use serde::Serialize;

use crate::Failure;
use crate::load::{KEY_BYTES, NODES, Size};
use crate::processes::is_installed;
use crate::series::{Series, Spread};
use cpu::{Task, time_ns};
use crew::Crew;
use lmdb::Lmdb;
use own::Own;
use server::{Memcached, Redis};

/// How keys are distributed, as in YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// How to run it.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Who takes part: fusee-shm, fusee-tcp, lmdb; memcached-unix, memcached-tcp, \
    redis-unix, redis-tcp, if memcached and redis-server are installed.\n\nExamples:\n  \
    fusee-perf peers\n  \
    fusee-perf peers --pair-bytes 64 --workloads c --depths 1 --threads 1,2\n  \
    fusee-perf peers --only fusee-tcp,memcached-tcp,redis-tcp --connections 3\n  \
    fusee-perf peers --only fusee-tcp,memcached-tcp --json"
)]
pub struct Args {
    #[command(flatten)]
    size: Size,

    /// YCSB workloads
    #[arg(long, value_delimiter = ',', default_value = "a,b,c", value_name = "A,B,C")]
    workloads: Vec<Workload>,

    /// Requests in flight
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_name = "N,N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    depths: Vec<u16>,

    /// Client threads, the same number for everybody
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,N",
          value_parser = clap::value_parser!(u16).range(1..=64))]
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

    /// Who takes part [default: all that are installed]
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    only: Vec<String>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    A,
    B,
    C,
}

impl Workload {
    fn name(self) -> &'static str {
        ["A", "B", "C"][self as usize]
    }

    fn update_share(self) -> f64 {
        [0.5, 0.05, 0.0][self as usize]
    }
}

/// A key that all of them take: text without spaces.
type Key = [u8; KEY_BYTES];

fn key(number: u32) -> Key {
    let mut key = *b"key-000000000000";
    let mut left = number;
    for digit in key.iter_mut().rev() {
        if left == 0 {
            break;
        }
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Get(Key),
    Update(Key),
}

/// Whoever takes part. All pairs have been put when it is made.
trait Contestant: Send + Sync {
    /// A way into it for the thread that calls this, which knows where everything is.
    fn client(&self) -> Result<Box<dyn Client>, Failure>;

    /// The threads of its server.
    fn server(&self) -> Result<Vec<Task>, Failure>;
}

/// A thread's way into it.
trait Client {
    /// Executes the requests with so many in flight.
    fn run(&mut self, requests: &[Request], depth: usize) -> Result<(), Failure>;
}

/// How everybody is started.
#[derive(Clone, Copy)]
struct Way {
    size: Size,
    memory_nodes: u16,
    /// Of each client thread to those who have one server.
    connections: u16,
}

type Start = fn(&Way) -> Result<Arc<dyn Contestant>, Failure>;

/// Everybody, with the program that has to be installed.
const ALL: [(&str, Option<&str>, Start); 7] = [
    ("fusee-shm", None, |way| Ok(Arc::new(Own::new(way, FabricKind::Shm)?))),
    ("fusee-tcp", None, |way| Ok(Arc::new(Own::new(way, FabricKind::Tcp)?))),
    ("lmdb", None, |way| Ok(Arc::new(Lmdb::new(&way.size)?))),
    ("memcached-unix", Some("memcached"), |way| Ok(Arc::new(Memcached::unix(way)?))),
    ("memcached-tcp", Some("memcached"), |way| Ok(Arc::new(Memcached::tcp(way)?))),
    ("redis-unix", Some("redis-server"), |way| Ok(Arc::new(Redis::unix(way)?))),
    ("redis-tcp", Some("redis-server"), |way| Ok(Arc::new(Redis::tcp(way)?))),
];

#[derive(Debug, Serialize)]
struct Report {
    keys: u32,
    pair_bytes: u32,
    index_replicas: u8,
    data_replicas: u8,
    memory_nodes: u16,
    connections: u16,
    rounds: u32,
    operations: u32,
    absent: Vec<String>,
    runs: Vec<Run>,
}

/// One workload with so many requests in flight in each of so many threads.
#[derive(Debug, Serialize)]
struct Run {
    workload: &'static str,
    depth: u16,
    threads: u16,
    /// Nanoseconds from one operation to the next, of all threads together.
    ns: BTreeMap<String, Spread>,
    /// Nanoseconds that the server's threads were on a processor, by operation; of those that have one.
    server_cpu_ns: BTreeMap<String, Spread>,
    /// How many times as long the others take as a contestant of ours, in the same round.
    times_of: BTreeMap<String, BTreeMap<String, Spread>>,
}

/// Runs it and prints a report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (size, connections) = (args.size, args.connections);
    let way = Way { size, memory_nodes: args.memory_nodes, connections };
    if let Some(unknown) = args.only.iter().find(|n| !ALL.iter().any(|(name, ..)| name == n)) {
        return Err(Failure::NoContestant(unknown.clone()));
    }
    let (mut contestants, mut absent) = (Vec::new(), Vec::new());
    for (name, program, start) in ALL {
        let is_wanted = args.only.is_empty() || args.only.iter().any(|only| only == name);
        match program {
            _ if !is_wanted => {}
            Some(program) if !is_installed(program) => absent.push(name.to_owned()),
            _ => {
                eprintln!("loading {name}");
                let most = args.threads.iter().copied().max().unwrap_or(1);
                contestants.push((name, Crew::new(start(&way)?, most.into())?));
            }
        }
    }
    if !absent.is_empty() {
        eprintln!("not installed: {}", absent.join(", "));
    }
    let mut runs = Vec::new();
    for workload in &args.workloads {
        for threads in &args.threads {
            for depth in &args.depths {
                runs.push(compete(args, &contestants, *workload, *threads, *depth)?);
            }
        }
    }
    let report = Report {
        keys: size.keys,
        pair_bytes: size.pair_bytes,
        index_replicas: size.index_replicas,
        data_replicas: size.data_replicas,
        memory_nodes: args.memory_nodes,
        connections,
        rounds: args.rounds,
        operations: args.operations,
        absent,
        runs,
    };
    match args.json {
        true => println!("{}", serde_json::to_string(&report).expect("a report has a form")),
        false => print!("{}", tables(&report)),
    }
    Ok(())
}

/// All rounds of one workload.
fn compete(
    args: &Args,
    contestants: &[(&str, Crew)],
    workload: Workload,
    threads: u16,
    depth: u16,
) -> Result<Run, Failure> {
    eprintln!("YCSB {}, {threads} threads, {depth} in flight", workload.name());
    let servers = contestants.iter().map(|(_, crew)| crew.contestant.server());
    let servers: Vec<Vec<Task>> = servers.collect::<Result<_, _>>()?;
    let mut series = vec![(Series::default(), Series::default()); contestants.len()];
    for round in 0..args.rounds {
        let requests = Arc::new(requests(args, workload, u64::from(round)));
        for i in 0..contestants.len() {
            let i = (i + round as usize) % contestants.len();
            let (times, server_times) = &mut series[i];
            let busy_before = time_ns(&servers[i])?;
            let start = Instant::now();
            contestants[i].1.run(&requests, threads.into(), depth.into())?;
            let time = start.elapsed().as_nanos() as f64;
            let busy = time_ns(&servers[i])? - busy_before;
            times.push(time / f64::from(args.operations));
            server_times.push(busy as f64 / f64::from(args.operations));
        }
    }
    let all = || contestants.iter().map(|(name, _)| (*name).to_owned()).zip(&series);
    let served = all().zip(&servers).filter(|(_, server)| !server.is_empty());
    Ok(Run {
        workload: workload.name(),
        depth,
        threads,
        ns: all().map(|(name, (times, _))| (name, times.spread())).collect(),
        server_cpu_ns: served.map(|((name, (_, busy)), _)| (name, busy.spread())).collect(),
        times_of: times_of(&all().map(|(n, (times, _))| (n, times.clone())).collect::<Vec<_>>()),
    })
}

fn times_of(all: &[(String, Series)]) -> BTreeMap<String, BTreeMap<String, Spread>> {
    let ours = all.iter().filter(|(name, _)| name.starts_with("fusee"));
    let times = |own: &Series, name: &str| {
        let others = all.iter().filter(|(other, _)| other != name);
        others.map(|(other, series)| (other.clone(), series.over(own).spread())).collect()
    };
    ours.map(|(name, own)| (name.clone(), times(own, name))).collect()
}

/// The requests of a round, the same for everybody.
fn requests(args: &Args, workload: Workload, round: u64) -> Vec<Request> {
    let keys = args.size.keys;
    let mut rng = SmallRng::seed_from_u64(round);
    let zipf = Zipf::new(f64::from(keys), ZIPF_EXPONENT).expect("there are keys");
    let request = |_| {
        let rank = zipf.sample(&mut rng) as u64 - 1;
        // Popular keys do not lie side by side.
        let number = (rank * 2_654_435_761 % u64::from(keys)) as u32;
        match rng.random_bool(workload.update_share()) {
            true => Request::Update(key(number)),
            false => Request::Get(key(number)),
        }
    };
    (0..args.operations).map(request).collect()
}

fn tables(report: &Report) -> String {
    let Report { keys, pair_bytes, index_replicas, data_replicas, rounds, operations, .. } = report;
    let Report { memory_nodes, connections, .. } = report;
    let mut text = format!(
        "{keys} pairs of {pair_bytes} bytes, FUSEE with {index_replicas} index and \
         {data_replicas} data replicas on {memory_nodes} memory nodes, others by {connections} \
         connections of each thread; {rounds} rounds of {operations} operations: medians (spread)\n"
    );
    for Run { workload, depth, threads, ns, server_cpu_ns, times_of } in &report.runs {
        let threads = match threads {
            1 => String::from("1 thread"),
            _ => format!("{threads} threads"),
        };
        text += &format!("\nYCSB {workload}, {threads}, {depth} in flight\n");
        let names: Vec<&String> = times_of.keys().collect();
        text += &format!("{:<16}{:>10}{:>26}", "", "ns", "server's processor, ns");
        names.iter().for_each(|name| text += &format!("{:>28}", format!("x {name}")));
        text += "\n";
        for (name, spread) in ns {
            text += &format!("{name:<16}{:>10.0}", spread.median);
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
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_text() {
        assert_eq!(&key(0), b"key-000000000000");
        assert_eq!(&key(1_234_567_890), b"key-001234567890");
    }
}
