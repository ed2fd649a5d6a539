//! `fusee-bench failover`: checks that nothing is lost when memory nodes are killed under load.
//!
//! The benchmark starts a cluster of processes, and sessions in this process read and write pairs of one redundancy.
//! After some seconds memory nodes are killed by SIGKILL, one after the other or several at once, and the load goes on.
//! Every operation is recorded: the history of every key must be linearizable, and at the end every key must have a
//! value that the writes allow. Errors are reported but do not fail a run: a write is allowed to end with an unknown
//! outcome, but no answer is allowed to be wrong.
//!
//! The cluster has as many replicas of index and data as the losses demand, because coded pairs survive only if the
//! cluster as a whole goes on ([`plan`]).

mod load;
mod pauses;
mod plan;
mod report;
mod watch;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use clap::builder::ArgPredicate;
use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{BlockingClient, MnId, Redundancy};
use fusee_launch::Servers;
use fusee_linearizability::{HistoryAnswer, HistoryCall};
use serde::Serialize;

use crate::check::check;
use crate::clock::{BenchClock, monotonic_ns};
use crate::cluster::ClusterDemand;
use crate::driver::{self, ReadBackResult};
use crate::process_cluster::ProcessClusterArgs;
use crate::record::{PackedOperation, RecordScope, RecordedEnd, RecordedOperation};
use crate::redundant::{RedundantClient, by_name};
use crate::report::{BenchInvocation, BenchOutputArgs, ErrorCounts, MeasuredSetup, attempt};
use crate::store::{BenchSession, BenchStore};
use crate::tally::OperationTally;
use crate::verify::WriteLog;
use crate::worker::{Worker, WorkerContext};
use fusee_workload::{Distribution, KeyChooser};
use load::{FailoverLoad, FailoverTrace};
use pauses::Pauses;
use report::{FailoverLoss, FailoverPeriod, FailoverReport, FailoverStageTimes};
use watch::FailoverMonitor;

/// The default pair size for redundancies other than plain replication: a value of 16 KiB and its key.
const CODED_PAIR_BYTES: &str = "16400";
/// The skew of YCSB's key distribution.
const THETA: f64 = 0.99;
/// The time limit for the restoration of missing replicas and columns.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit for spare nodes to join.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between checks for something that takes long.
const POLL: Duration = Duration::from_millis(5);

/// The arguments.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[command(mut_arg("pair_bytes", |pair_bytes| {
    pair_bytes
        .default_value_ifs([
            ("redundancy", ArgPredicate::Equals("replicated".into()), Some("1024")),
            ("redundancy", ArgPredicate::IsPresent, Some(CODED_PAIR_BYTES)),
        ])
        .help("Bytes of key and value together; keys have 16 [unless replicated: 16400]")
}))]
#[command(after_help = "Examples:\n  \
    fusee-bench failover --spare\n  \
    fusee-bench failover --fabric tcp --victim mn0 --json\n  \
    fusee-bench failover --redundancy ec:4+2 --spare             two nodes, one after the other\n  \
    fusee-bench failover --redundancy ec:4+2 --at-once 2         both at once\n\n\
    The cluster has as many memory nodes, and replicas of index and data, as the losses take.\n\n\
    Exit code 1 if a write was lost, a read was wrong, the history is not linearizable, reads\n\
    stopped, the view did not become stable again, or redundancy did not come back with --spare.")]
pub struct FailoverArgs {
    /// The memory node to kill, of several the first: mn0 is the first of all
    #[arg(long, default_value = "mn1", value_name = "NODE")]
    #[serde(skip)]
    victim: String,

    /// Memory nodes to kill [default: 1, and of coded pairs as many as they survive]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    losses: Option<u16>,

    /// Kill this many memory nodes at once, then as many again
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=99))]
    at_once: u16,

    /// Start as many more memory nodes, which take the places of the lost ones
    #[arg(long)]
    spare: bool,

    /// Redundancy of the pairs, as with `fusee put`: like ec:4+2
    #[arg(long, default_value_t, value_name = "REDUNDANCY")]
    #[serde(serialize_with = "by_name")]
    redundancy: Redundancy,

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

    /// Seconds before the first kill
    #[arg(long, default_value_t = 3.0, value_name = "S")]
    #[serde(rename = "before_s")]
    before: f64,

    /// Seconds that the load goes on after each kill, at least
    #[arg(long, default_value_t = 5.0, value_name = "S")]
    #[serde(rename = "after_s")]
    after: f64,

    #[command(flatten)]
    #[serde(flatten)]
    cluster: ProcessClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

impl FailoverArgs {
    /// Returns the nodes to kill, in this order.
    fn victims(&self, client: &BlockingClient) -> Result<Vec<MnId>, Failure> {
        let mut nodes: Vec<MnId> = client.view().members.iter().map(|m| m.node).collect();
        nodes.sort_unstable();
        let first = nodes.iter().position(|node| node.to_string() == self.victim);
        let Some(first) = first else {
            let all: Vec<String> = nodes.iter().map(MnId::to_string).collect();
            return Err(Failure::usage(format!(
                "--victim is {}; the cluster has {}",
                self.victim,
                all.join(", ")
            )));
        };
        nodes.rotate_left(first);
        nodes.truncate(self.losses().into());
        Ok(nodes)
    }

    fn demand(&self) -> ClusterDemand {
        let kills = f64::from(self.losses().div_ceil(self.at_once));
        let operations = (self.rate as f64 * (self.before + self.after * kills)).ceil() as u64;
        // Half of the operations are updates; three standard deviations are added.
        let updates = operations / 2 + (3.0 * (operations as f64).sqrt()) as u64;
        // Every session is possibly replaced by another one.
        let processes = u64::from(self.threads) + 1;
        ClusterDemand {
            keys: self.keys,
            index_keys: self.keys,
            pairs: self.keys + updates,
            redundancy: self.redundancy,
            processes,
        }
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &FailoverArgs) -> Result<(), Failure> {
    let args = &args.planned()?;
    let shell = BenchInvocation::begin("failover", &args.output);
    interrupt::watch()?;
    let available = shell.available();
    let (target, mut servers) = args.cluster.open(args.demand(), args.threads, available)?;
    let client = &target.client;
    let victims = args.victims(client)?;
    // The cluster is described before it loses memory nodes.
    let setup = MeasuredSetup::of(client, true, false);
    let store = RedundantClient { client, redundancy: args.redundancy };
    let mut board = WorkerContext::new(args.cluster.pair_bytes, args.cluster.seed);
    board.clock = BenchClock::shared(monotonic_ns());
    board.keep = RecordScope::All;
    // The keys are loaded before spare nodes are started. Otherwise the spares would hold a share of the keys, and the
    // victims would hold fewer keys.
    let loaded = load_keys(store, &board, args.keys)?;
    if args.spare {
        victims.iter().try_for_each(|_| servers.add_memory_node())?;
        wait_for_members(client, usize::from(args.cluster.memory_nodes()) + victims.len())?;
    }
    let disturbed = run_with_kills(args, store, &board, &victims, &mut servers)?;
    let found = verify_run(args, client, &board, loaded, disturbed);
    shell.print_results(args, Some(setup), found, None)
}

fn wait_for_members(client: &BlockingClient, count: usize) -> Result<(), Failure> {
    let start = Instant::now();
    while client.admin().status()?.members.len() < count {
        if start.elapsed() > JOIN_TIMEOUT {
            return Err(Failure::operation("the spare memory nodes did not join in time"));
        }
        sleep(POLL);
    }
    Ok(())
}

/// Inserts the keys, as writer 0.
fn load_keys(
    store: RedundantClient<'_>,
    board: &WorkerContext,
    keys: u64,
) -> Result<FailoverTrace, Failure> {
    let session = store.open()?;
    let tally = RefCell::new(OperationTally::default());
    let mut worker = Worker::new(board, &session, &tally, 0, false);
    for _ in 0..keys {
        session.block_on(worker.insert_new(board.frontier.claim()));
    }
    let writers = vec![worker.into_log()];
    Ok(FailoverTrace { writers, tally: tally.into_inner() })
}

/// Memory nodes that were killed at the same time.
struct FailoverKill<'a> {
    nodes: Vec<MnId>,
    at: u64,
    watch: FailoverMonitor<'a>,
}

/// The observations of a run. Times are nanoseconds of the clock in [`WorkerContext`].
struct FailoverRun<'a> {
    /// The operations, by thread.
    traces: Vec<FailoverTrace>,
    begun: u64,
    /// The kills, in their order.
    kills: Vec<FailoverKill<'a>>,
    ended: u64,
}

/// Runs the load, kills the nodes meanwhile, and observes the cluster.
fn run_with_kills<'a>(
    args: &FailoverArgs,
    store: RedundantClient<'a>,
    board: &WorkerContext,
    victims: &[MnId],
    servers: &mut Servers,
) -> Result<FailoverRun<'a>, Failure> {
    let load = FailoverLoad {
        store,
        board,
        chooser: &KeyChooser::new(Distribution::Zipfian, args.keys, THETA, args.cluster.seed),
        keys: args.keys,
        interval: Duration::from_secs_f64(f64::from(args.threads) / args.rate as f64),
        writers: AtomicU64::new(1),
        over: AtomicBool::new(false),
    };
    let mut disturbed = scope(|scope| {
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(|| load.thread())).collect();
        load.wait_for_sessions(args.threads.into());
        let steered = kill_nodes(args, store.client, board, victims, servers);
        load.over.store(true, Ordering::Relaxed);
        let traces = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        let traces = traces.collect();
        steered.map(|disturbed| FailoverRun { traces, ..disturbed })
    })?;
    if let Some(FailoverKill { watch, .. }) = disturbed.kills.last_mut() {
        while watch.stable.is_some() && !watch.is_over() && watch.elapsed() < WHOLE_TIMEOUT {
            if interrupt::is_requested() {
                break;
            }
            watch.poll_master()?;
            sleep(POLL);
        }
    }
    Ok(disturbed)
}

/// Takes the steps of the run while the threads of the load work.
fn kill_nodes<'a>(
    args: &FailoverArgs,
    client: &'a BlockingClient,
    board: &WorkerContext,
    victims: &[MnId],
    servers: &mut Servers,
) -> Result<FailoverRun<'a>, Failure> {
    let begun = board.clock.now();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs_f64(args.before) && !interrupt::is_requested() {
        sleep(POLL);
    }
    let mut kills: Vec<FailoverKill<'_>> = Vec::new();
    for nodes in victims.chunks(args.at_once.into()) {
        if let Some(FailoverKill { watch, .. }) = kills.last_mut() {
            // To survive the next kill, the pairs possibly need the redundancy that the last kill took away, so the
            // redundancy is restored first.
            while !watch.is_over() && watch.elapsed() < WHOLE_TIMEOUT && !interrupt::is_requested()
            {
                watch.look()?;
            }
            if !watch.is_over() || interrupt::is_requested() {
                break;
            }
        }
        let mut watch = FailoverMonitor::start(client, nodes.to_vec());
        let at = board.clock.now();
        nodes.iter().try_for_each(|node| servers.kill(&node.to_string()))?;
        while watch.elapsed() < Duration::from_secs_f64(args.after) && !interrupt::is_requested() {
            watch.look()?;
        }
        kills.push(FailoverKill { nodes: nodes.to_vec(), at, watch });
    }
    Ok(FailoverRun { traces: Vec::new(), begun, kills, ended: board.clock.now() })
}

/// Counts the operations that were answered between two times, of those for which `counts` returns true.
fn answered(traces: &[FailoverTrace], counts: fn(HistoryCall) -> bool, from: u64, to: u64) -> u64 {
    let entries = traces.iter().flat_map(|trace| &trace.writers).flat_map(|(.., kept)| kept);
    let within = |packed: &&PackedOperation| {
        let RecordedOperation { call, end, .. } = (**packed).into();
        counts(call) && matches!(end, RecordedEnd::Answered(at, _) if (from..to).contains(&at))
    };
    entries.filter(within).count() as u64
}

impl FailoverPeriod {
    /// Summarizes the operations of the sessions between two times.
    fn of(traces: &[FailoverTrace], from: u64, to: u64) -> FailoverPeriod {
        FailoverPeriod {
            operations: answered(traces, |_| true, from, to),
            searches: answered(traces, |call| call == HistoryCall::Search, from, to),
            writes: Pauses::of_writes(traces, from, to),
            reads: Pauses::of_reads(traces, from, to),
        }
    }
}

impl FailoverLoss {
    fn of(kill: &FailoverKill<'_>, traces: &[FailoverTrace], to: u64) -> FailoverLoss {
        let FailoverKill { nodes, at, watch } = kill;
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        FailoverLoss {
            nodes: nodes.iter().map(MnId::to_string).collect(),
            period: FailoverPeriod::of(traces, *at, to),
            stable_ms: watch.stable.map(ms),
            stages: watch.change.as_ref().map(|change| FailoverStageTimes {
                subtables: change.subtables,
                frozen_ms: change.frozen_ms,
                transforming_ms: change.transforming_ms,
                switched_ms: change.switched_ms,
            }),
            whole_ms: watch.whole.map(ms),
            missing_replicas: watch.missing,
        }
    }

    /// Returns the problems that do not depend on the speed of the machine.
    fn problems(&self, args: &FailoverArgs) -> Vec<String> {
        let nodes = self.nodes.join(" and ");
        let mut problems = Vec::new();
        if self.stable_ms.is_none() {
            problems.push(format!("the view did not become stable again without {nodes}"));
        } else if args.spare && self.whole_ms.is_none() {
            let missing = self.missing_replicas;
            problems.push(format!("{missing} replicas or columns of {nodes} did not come back"));
        }
        // Of a hundred operations, some are reads.
        let expected = args.rate as f64 * args.after;
        if expected >= 100.0 && self.period.searches == 0 {
            problems.push(format!("no read was answered after {nodes} had been killed"));
        }
        problems
    }
}

/// Reads all keys back, and checks the history.
fn verify_run(
    args: &FailoverArgs,
    client: &BlockingClient,
    board: &WorkerContext,
    loaded: FailoverTrace,
    disturbed: FailoverRun<'_>,
) -> FailoverReport {
    let FailoverRun { traces, begun, kills, ended } = disturbed;
    let moments: Vec<u64> = kills.iter().map(|kill| kill.at).chain([ended]).collect();
    let before = FailoverPeriod::of(&traces, begun, moments[0]);
    let losses =
        kills.iter().zip(&moments[1..]).map(|(kill, to)| FailoverLoss::of(kill, &traces, *to));
    let losses: Vec<FailoverLoss> = losses.collect();
    let sessions = traces.iter().map(|trace| trace.writers.len() as u64).sum::<u64>();
    let mut tally = loaded.tally.clone();
    traces.iter().for_each(|trace| tally.merge_failures(&trace.tally));
    let (logs, mut entries) = merge_traces([loaded].into_iter().chain(traces));
    let is_done = |packed: &&PackedOperation| {
        let RecordedOperation { call, end, .. } = (**packed).into();
        call != HistoryCall::Search && matches!(end, RecordedEnd::Answered(_, HistoryAnswer::Done))
    };
    let acknowledged_writes = entries.iter().filter(is_done).count() as u64;
    let mut problems = Vec::new();
    let verified: ReadBackResult = attempt(&mut problems, driver::verify(client, board, logs));
    entries.extend(verified.entries);
    if verified.keys < args.keys {
        problems.push(format!("{} of {} keys were read back", verified.keys, args.keys));
    }
    if !interrupt::is_requested() {
        problems.extend(losses.iter().flat_map(|loss| loss.problems(args)));
        let killed = losses.iter().map(|loss| loss.nodes.len()).sum::<usize>();
        if killed < args.losses().into() {
            problems.push(format!("only {killed} of {} nodes were killed", args.losses()));
        }
    }
    let check = check(&entries);
    let wrong_reads = tally.mismatch_count();
    tally.merge_failures(&verified.tally);
    FailoverReport {
        before,
        losses,
        sessions_again: sessions.saturating_sub(args.threads.into()),
        errors: ErrorCounts { total: tally.error_count(), by_kind: tally.errors.clone() },
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

/// Returns the logs of writes by writer, and all recorded operations.
fn merge_traces(
    traces: impl Iterator<Item = FailoverTrace>,
) -> (Vec<WriteLog>, Vec<PackedOperation>) {
    let mut writers: Vec<_> = traces.flat_map(|trace| trace.writers).collect();
    writers.sort_by_key(|(writer, ..)| *writer);
    let mut logs = Vec::new();
    let mut entries = Vec::new();
    for (_, log, mut kept) in writers {
        logs.push(log);
        entries.append(&mut kept);
    }
    (logs, entries)
}
