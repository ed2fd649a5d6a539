//! `fusee bench failover`: a memory node is killed under load, and nothing may be lost.
//!
//! An own cluster of processes; sessions in this process read and write. After some seconds one
//! memory node gets SIGKILL, and the load goes on. Every operation is recorded: the history of
//! every key must be linearizable, and in the end every key must hold what was acknowledged.
//! Errors are told but do not fail a run: a write whose outcome is unknown is allowed, a wrong
//! answer is not.

mod gaps;
mod load;
mod report;
mod watch;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{Client, MnId};
use fusee_launch::Servers;
use fusee_linearizability::{Answer, Call};
use serde::Serialize;

use crate::check::check;
use crate::clock::{Clock, monotonic_ns};
use crate::cluster::Demand;
use crate::driver::{self, Verified};
use crate::own::OwnCluster;
use crate::record::{End, Entry, Keep, Packed};
use crate::report::{Errors, Output, Setup, Shell, attempt};
use crate::tally::Tally;
use crate::verify::Log;
use crate::worker::{Board, Worker};
use crate::zipf::{Chooser, Distribution};
use gaps::Pauses;
use load::{Load, Trace};
use report::{Found, Stages};
use watch::Watch;

/// The skew of YCSB.
const THETA: f64 = 0.99;
/// How long missing replicas may take to come.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a spare may take to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to look at what takes long.
const POLL: Duration = Duration::from_millis(5);

/// How to run it.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee bench failover --spare\n  \
    fusee bench failover --fabric tcp --victim mn0 --json\n\n\
    Exit code 1 if a write was lost, a read was wrong, the history is not linearizable, or the\n\
    view did not become stable again.")]
pub struct Args {
    /// The memory node to kill: mn0 is the first
    #[arg(long, default_value = "mn1", value_name = "NODE")]
    #[serde(skip)]
    victim: String,

    /// Start one more memory node, which takes the place of the lost one
    #[arg(long)]
    spare: bool,

    /// Keys
    #[arg(long, default_value_t = 1000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    keys: u64,

    /// Threads, each with a session of its own
    #[arg(long, default_value_t = 4, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,

    /// Operations a second of all sessions together
    #[arg(long, default_value_t = 20_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,

    /// Seconds before the kill
    #[arg(long, default_value_t = 3.0, value_name = "S")]
    #[serde(rename = "before_s")]
    before: f64,

    /// Seconds that the load goes on after it
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    #[serde(rename = "after_s")]
    after: f64,

    #[command(flatten)]
    #[serde(flatten)]
    cluster: OwnCluster,

    #[command(flatten)]
    #[serde(skip)]
    output: Output,
}

impl Args {
    fn check(&self) -> Result<(), Failure> {
        for (name, seconds) in [("before", self.before), ("after", self.after)] {
            if !(seconds > 0.0 && seconds < 1e6) {
                return Err(Failure::usage(format!("--{name} must be more than 0")));
            }
        }
        Ok(())
    }

    /// The node to kill.
    fn victim(&self, client: &Client) -> Result<MnId, Failure> {
        let view = client.view();
        let mut nodes = view.members.iter().map(|member| member.node);
        nodes.find(|node| node.to_string() == self.victim).ok_or_else(|| {
            let all: Vec<String> = view.members.iter().map(|m| m.node.to_string()).collect();
            Failure::usage(format!(
                "--victim is {}; the cluster has {}",
                self.victim,
                all.join(", ")
            ))
        })
    }

    fn demand(&self) -> Demand {
        let operations = (self.rate as f64 * (self.before + self.after)).ceil() as u64;
        // Half of them, and three standard deviations more.
        let updates = operations / 2 + (3.0 * (operations as f64).sqrt()) as u64;
        // Every session may be followed by another one.
        let processes = u64::from(self.threads) + 1;
        Demand {
            keys: self.keys,
            index_keys: self.keys,
            pairs: self.keys + updates,
            deletes: 0,
            processes,
        }
    }
}

/// Runs it and prints a report.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let shell = Shell::begin("failover", &args.output);
    interrupt::watch()?;
    let available = shell.available();
    let (target, mut servers) = args.cluster.open(args.demand(), args.threads, available)?;
    let client = &target.client;
    let victim = args.victim(client)?;
    // Before it loses a memory node.
    let setup = Setup::of(client, true, false);
    if args.spare {
        servers.add_memory_node()?;
        wait_for_members(client, usize::from(args.cluster.memory_nodes) + 1)?;
    }
    let mut board = Board::new(args.cluster.pair_bytes, args.cluster.seed);
    board.clock = Clock::shared(monotonic_ns());
    board.keep = Keep::All;
    let loaded = load_keys(client, &board, args.keys)?;
    let disturbed = disturb(args, client, &board, victim, &mut servers)?;
    let found = judge(args, client, &board, loaded, disturbed);
    shell.tell(args, Some(setup), found, None)
}

fn wait_for_members(client: &Client, count: usize) -> Result<(), Failure> {
    let start = Instant::now();
    while client.status()?.members.len() < count {
        if start.elapsed() > JOIN_TIMEOUT {
            return Err(Failure::operation("the spare memory node did not join in time"));
        }
        sleep(POLL);
    }
    Ok(())
}

/// Inserts the keys, as writer 0.
fn load_keys(client: &Client, board: &Board, keys: u64) -> Result<Trace, Failure> {
    let session = client.session()?;
    let tally = RefCell::new(Tally::default());
    let mut worker = Worker::new(board, &session, &tally, 0, false);
    for _ in 0..keys {
        session.block_on(worker.insert_new(board.frontier.claim()));
    }
    let writers = vec![worker.into_log()];
    Ok(Trace { writers, tally: tally.into_inner() })
}

/// A run. Times are nanoseconds of the board's clock.
struct Disturbed<'a> {
    /// By thread.
    traces: Vec<Trace>,
    begun: u64,
    killed: u64,
    ended: u64,
    watch: Watch<'a>,
}

/// Runs the load, kills the node, and watches.
fn disturb<'a>(
    args: &Args,
    client: &'a Client,
    board: &Board,
    victim: MnId,
    servers: &mut Servers,
) -> Result<Disturbed<'a>, Failure> {
    let load = Load {
        client,
        board,
        chooser: &Chooser::new(Distribution::Zipfian, args.keys, THETA, args.cluster.seed),
        keys: args.keys,
        interval: Duration::from_secs_f64(f64::from(args.threads) / args.rate as f64),
        writers: AtomicU64::new(1),
        over: AtomicBool::new(false),
    };
    let mut disturbed = scope(|scope| {
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(|| load.thread())).collect();
        load.wait_for_sessions(args.threads.into());
        let steered = steer(args, client, board, victim, servers);
        load.over.store(true, Ordering::Relaxed);
        let traces = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let traces = traces.collect();
        steered.map(|disturbed| Disturbed { traces, ..disturbed })
    })?;
    let watch = &mut disturbed.watch;
    while watch.stable.is_some() && !watch.is_over() && watch.elapsed() < WHOLE_TIMEOUT {
        if interrupt::requested() {
            break;
        }
        watch.ask()?;
        sleep(POLL);
    }
    Ok(disturbed)
}

/// What happens beside the threads.
fn steer<'a>(
    args: &Args,
    client: &'a Client,
    board: &Board,
    victim: MnId,
    servers: &mut Servers,
) -> Result<Disturbed<'a>, Failure> {
    let (begun, start) = (board.clock.now(), Instant::now());
    while start.elapsed() < Duration::from_secs_f64(args.before) && !interrupt::requested() {
        sleep(POLL);
    }
    let mut watch = Watch::start(client, victim);
    let killed = board.clock.now();
    servers.kill(&victim.to_string())?;
    while watch.elapsed() < Duration::from_secs_f64(args.after) && !interrupt::requested() {
        watch.look()?;
    }
    Ok(Disturbed { traces: Vec::new(), begun, killed, ended: board.clock.now(), watch })
}

/// How many operations were answered from one moment to another.
fn answered(traces: &[Trace], from: u64, to: u64) -> u64 {
    let entries = traces.iter().flat_map(|trace| &trace.writers).flat_map(|(.., kept)| kept);
    let ends = entries.map(|packed| Entry::from(*packed).end);
    let within = ends.filter(|end| matches!(end, End::Answered(at, _) if (from..to).contains(at)));
    within.count() as u64
}

/// Reads everything back, and checks the history.
fn judge(
    args: &Args,
    client: &Client,
    board: &Board,
    loaded: Trace,
    disturbed: Disturbed<'_>,
) -> Found {
    let Disturbed { traces, begun, killed, ended, watch } = disturbed;
    let operations_before = answered(&traces, begun, killed);
    let operations_after = answered(&traces, killed, ended);
    let pauses_before = Pauses::between(&traces, begun, killed);
    let pauses_after = Pauses::between(&traces, killed, ended);
    let sessions = traces.iter().map(|trace| trace.writers.len() as u64).sum::<u64>();
    let mut tally = loaded.tally.clone();
    traces.iter().for_each(|trace| tally.merge_failures(&trace.tally));
    let (logs, mut entries) = put_together([loaded].into_iter().chain(traces));
    let is_done = |packed: &&Packed| {
        let Entry { call, end, .. } = (**packed).into();
        call != Call::Search && matches!(end, End::Answered(_, Answer::Done))
    };
    let acknowledged_writes = entries.iter().filter(is_done).count() as u64;
    let mut problems = Vec::new();
    let verified: Verified = attempt(&mut problems, driver::verify(client, board, logs));
    entries.extend(verified.entries);
    if verified.keys < args.keys {
        problems.push(format!("{} of {} keys were read back", verified.keys, args.keys));
    }
    if watch.stable.is_none() {
        problems.push("the view did not become stable again".into());
    }
    let check = check(&entries);
    let wrong_reads = tally.mismatch_count();
    tally.merge_failures(&verified.tally);
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    Found {
        victim: args.victim.clone(),
        pauses_before,
        pauses_after,
        stable_ms: watch.stable.map(ms),
        stages: watch.change.as_ref().map(|change| Stages {
            subtables: change.subtables,
            frozen_ms: change.frozen_ms,
            transforming_ms: change.transforming_ms,
            switched_ms: change.switched_ms,
        }),
        whole_ms: watch.whole.map(ms),
        missing_replicas: watch.missing,
        operations_before,
        operations_after,
        sessions_again: sessions.saturating_sub(args.threads.into()),
        errors: Errors { total: tally.error_count(), by_kind: tally.errors.clone() },
        acknowledged_writes,
        lost_writes: verified.tally.mismatch_count(),
        wrong_reads,
        verified_keys: verified.keys,
        linearizable: check.is_clean(),
        check,
        problems,
        examples: tally.examples.clone(),
    }
}

/// The logs by writer, and all that was done.
fn put_together(traces: impl Iterator<Item = Trace>) -> (Vec<Log>, Vec<Packed>) {
    let mut writers: Vec<_> = traces.flat_map(|trace| trace.writers).collect();
    writers.sort_by_key(|(writer, ..)| *writer);
    let (mut logs, mut entries) = (Vec::new(), Vec::new());
    for (_, log, mut kept) in writers {
        logs.push(log);
        entries.append(&mut kept);
    }
    (logs, entries)
}
