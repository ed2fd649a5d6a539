//! `fusee-bench recovery`: how long a killed client blocks others (P §6.5, Table 1).
//!
//! A client process updates keys in a loop and is killed (SIGKILL) in the middle of an update. Then a survivor in this
//! process writes all of the client's keys. The time until the last of these writes has succeeded is the time that an
//! application sees; the master's own figures divide it into parts.
//!
//! At most moments of an update, the update blocks no other session: a slot waits for its writer only between the
//! writer's first CAS on a backup and its CAS on the primary. Therefore the client is stopped (SIGSTOP) again and again
//! for a moment, until a write of the survivor finds a slot blocked; then the client is killed. A round in which no
//! stop finds a blocked slot is counted as one that blocked nothing.

mod report;
mod survivor;
pub mod victim;

use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{BlockingClient, FabricKind};
use fusee_control::master::ClientRecovery;
use fusee_launch::Servers;
use serde::Serialize;

use crate::cluster::ClusterDemand;
use crate::process_cluster::ProcessClusterArgs;
use crate::report::{BenchInvocation, BenchOutputArgs, BenchVerdict, MeasuredSetup};
use crate::tally::OperationTally;
use report::{PAPER, RecoveryBenchReport, RecoveryRound, RecoverySummary};
use survivor::{SurvivorPassResult, SurvivorThread};
use victim::{VictimProcess, VictimTask};

/// Maximum number of updates that a client makes after the requested ones, until it is dead.
const MORE_UPDATES: u64 = 20_000;
/// Maximum number of stops of a client in a round.
const MOST_STOPS: u32 = 50;
/// A pass over all keys is taken for blocked if it takes this many times as long as usual, within the following bounds.
/// The upper bound is below a lease, because a client that is stopped for longer would expire.
const BLOCKED_FACTOR: u32 = 10;
const LEAST_PATIENCE: Duration = Duration::from_millis(20);
const MOST_PATIENCE: Duration = Duration::from_millis(300);
/// A fraction of the time of an update over TCP on loopback; pauses between two stops are multiples of it.
const TCP_STEP: Duration = Duration::from_micros(70);
/// The time limit for the master to recover a client.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// The period of requests to the master.
const RECOVERY_POLL: Duration = Duration::from_millis(1);

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee-bench recovery\n  \
    fusee-bench recovery --fabric tcp --rounds 20 --json\n\n\
    Exit code 1 if a write failed, or a key did not hold what was written.")]
pub struct RecoveryArgs {
    /// Clients to kill, one after the other
    #[arg(long, default_value_t = 10, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Updates that a client makes before it is killed
    #[arg(long, default_value_t = 1000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    updates: u64,

    /// Keys that a client updates, in turn
    #[arg(long, default_value_t = 100, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keys: u64,

    #[command(flatten)]
    #[serde(flatten)]
    cluster: ProcessClusterArgs,

    #[command(flatten)]
    #[serde(skip)]
    output: BenchOutputArgs,
}

impl RecoveryArgs {
    fn demand(&self) -> ClusterDemand {
        let rounds = u64::from(self.rounds);
        let of_the_dead = self.updates + MORE_UPDATES;
        let of_the_survivor = self.keys * u64::from(MOST_STOPS + 1);
        let pairs = self.keys + rounds * (of_the_dead + of_the_survivor);
        ClusterDemand {
            keys: self.keys,
            index_keys: self.keys,
            pairs,
            processes: rounds + 1,
            ..ClusterDemand::default()
        }
    }
}

/// Runs the benchmark and prints its report.
pub fn run(args: &RecoveryArgs) -> Result<(), Failure> {
    let shell = BenchInvocation::begin("recovery", &args.output);
    interrupt::watch()?;
    let (target, servers) = args.cluster.open(args.demand(), 1, shell.available())?;
    let client = &target.client;
    let writer = SurvivorThread::start(client.clone(), args.keys, args.cluster.value_bytes());
    let mut tally = OperationTally::default();
    let mut note = |done: &SurvivorPassResult| tally.merge_failures(&done.tally);
    note(&writer.load()?);
    // The first pass fills the index cache.
    let mut undisturbed = Duration::ZERO;
    for _ in 0..2 {
        let start = Instant::now();
        writer.begin();
        note(&writer.finish()?);
        undisturbed = start.elapsed();
    }
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        if interrupt::is_requested() {
            break;
        }
        let deaths =
            RecoveryRoundRunner { args, client, servers: &servers, writer: &writer, undisturbed };
        let (round, done) = deaths.run_round(number.into())?;
        done.iter().for_each(&mut note);
        rounds.push(round);
    }
    drop(writer);
    let verdict = BenchVerdict::new(&tally, args.keys * rounds.len() as u64, Vec::new());
    let found = RecoveryBenchReport {
        undisturbed_ms: ms(undisturbed),
        summary: RecoverySummary::new(&rounds),
        paper: PAPER,
        rounds,
    };
    shell.print_results(args, Some(MeasuredSetup::of(client, true, false)), found, Some(verdict))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The state of all rounds.
struct RecoveryRoundRunner<'a> {
    args: &'a RecoveryArgs,
    client: &'a BlockingClient,
    servers: &'a Servers,
    writer: &'a SurvivorThread,
    undisturbed: Duration,
}

impl RecoveryRoundRunner<'_> {
    /// Lets a client work, kills it, and waits until the dead client blocks nothing.
    fn run_round(&self, number: u64) -> Result<(RecoveryRound, Vec<SurvivorPassResult>), Failure> {
        let mut victim = VictimProcess::start(&VictimTask {
            master: self.servers.master().to_string(),
            fabric: self.client.fabric().to_string(),
            keys: self.args.keys,
            updates: self.args.updates,
            value_bytes: self.args.cluster.value_bytes(),
            writer: number,
        })?;
        let name = victim.wait_until_ready()?;
        let (stops, blocked, mut all) = self.stop_half_way(&victim)?;
        let killed = Instant::now();
        victim.kill()?;
        if !blocked {
            self.writer.begin();
        }
        let done = self.writer.finish()?;
        let last = done.last.unwrap_or(killed);
        let (recovery, recovered) = self.wait_for_recovery(&name, killed)?;
        all.push(done);
        all.push(self.writer.check(number)?);
        let round = RecoveryRound {
            writable_ms: ms(last.saturating_duration_since(killed)),
            recovered_ms: ms(recovered),
            stops,
            // On a slow machine a pass can be late without being blocked. Therefore the recovery must also have ended a
            // write.
            blocked: blocked && recovery.committed + recovery.withdrawn > 0,
            recovery: (&recovery).into(),
        };
        Ok((round, all))
    }

    /// Stops the client in the middle of an update. Returns the number of stops, whether a pass over the client's keys
    /// is blocked (and still runs), and the results of the passes that were not blocked.
    fn stop_half_way(
        &self,
        victim: &VictimProcess,
    ) -> Result<(u32, bool, Vec<SurvivorPassResult>), Failure> {
        let patience = (self.undisturbed * BLOCKED_FACTOR).clamp(LEAST_PATIENCE, MOST_PATIENCE);
        let mut passes = Vec::new();
        for stops in 1..=MOST_STOPS {
            victim.stop()?;
            self.writer.begin();
            match self.writer.finish_within(patience)? {
                None => return Ok((stops, true, passes)),
                Some(done) => passes.push(done),
            }
            victim.go_on()?;
            // Over a network the client has to get through some round trips before the next stop. The time varies from
            // stop to stop.
            if self.client.fabric() != FabricKind::Shm {
                sleep(TCP_STEP * (stops % 8));
            }
        }
        Ok((MOST_STOPS, false, passes))
    }

    /// Waits until the master has recovered a client.
    fn wait_for_recovery(
        &self,
        name: &str,
        killed: Instant,
    ) -> Result<(ClientRecovery, Duration), Failure> {
        while killed.elapsed() < RECOVERY_TIMEOUT {
            let status = self.client.admin().status()?;
            let recoveries = status.last_recoveries.iter();
            let mut found = recoveries.filter(|recovery| recovery.client.to_string() == name);
            if let Some(recovery) = found.next_back() {
                return Ok((*recovery, killed.elapsed()));
            }
            sleep(RECOVERY_POLL);
        }
        Err(Failure::operation(format!("{name} was not recovered within {RECOVERY_TIMEOUT:?}")))
    }
}
