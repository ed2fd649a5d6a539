//! `fusee bench recovery`: how long a killed client blocks others (P §6.5, Table 1).
//!
//! A client process updates keys in a loop and is killed (SIGKILL) in the middle of an update. Then
//! a survivor in this process writes all of its keys; the time until the last of these writes has
//! succeeded is the time that an application sees. The master's own figures divide it into parts.
//!
//! Most moments of an update block no other session: a slot waits for its writer only between the
//! first CAS on a backup and the one on the primary. So the client is stopped (SIGSTOP) again and
//! again, for a moment, until a write of the survivor finds a slot blocked; there it is killed. A
//! round without such a moment is counted as one that blocked nothing.

pub mod doomed;
mod report;
mod writer;

use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_cli::failure::Failure;
use fusee_cli::interrupt;
use fusee_client::{Client, FabricKind};
use fusee_control::master::Recovery;
use fusee_launch::Servers;
use serde::Serialize;

use crate::cluster::Demand;
use crate::own::OwnCluster;
use crate::report::{Output, Setup, Shell, Verdict};
use crate::tally::Tally;
use doomed::{Doomed, Task};
use report::{Found, PAPER, Round, Summary};
use writer::{Done, Writer};

/// Updates beyond the requested ones that a client may make before it is dead.
const MORE_UPDATES: u64 = 20_000;
/// Maximum number of stops of a client in a round.
const MOST_STOPS: u32 = 50;
/// A pass over all keys is taken for blocked when it takes this many times as long as usual, within
/// these bounds. A client that is stopped for longer than a lease would expire.
const BLOCKED_FACTOR: u32 = 10;
const LEAST_PATIENCE: Duration = Duration::from_millis(20);
const MOST_PATIENCE: Duration = Duration::from_millis(300);
/// A fraction of the time of an update over TCP on loopback.
const TCP_STEP: Duration = Duration::from_micros(70);
/// The time limit for the master to recover a client.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
/// The period of requests to the master.
const RECOVERY_POLL: Duration = Duration::from_millis(1);

/// The arguments.
#[derive(clap::Args, Debug, Serialize)]
#[command(after_help = "Examples:\n  \
    fusee bench recovery\n  \
    fusee bench recovery --fabric tcp --rounds 20 --json\n\n\
    Exit code 1 if a write failed, or a key did not hold what was written.")]
pub struct Args {
    /// Clients to kill, one after the other
    #[arg(long, default_value_t = 10, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Updates that a client makes before it is killed
    #[arg(long, default_value_t = 1000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    updates: u64,

    /// Keys that it updates, in turn
    #[arg(long, default_value_t = 100, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keys: u64,

    #[command(flatten)]
    #[serde(flatten)]
    cluster: OwnCluster,

    #[command(flatten)]
    #[serde(skip)]
    output: Output,
}

impl Args {
    fn demand(&self) -> Demand {
        let rounds = u64::from(self.rounds);
        let of_the_dead = self.updates + MORE_UPDATES;
        let of_the_survivor = self.keys * u64::from(MOST_STOPS + 1);
        let pairs = self.keys + rounds * (of_the_dead + of_the_survivor);
        Demand {
            keys: self.keys,
            index_keys: self.keys,
            pairs,
            processes: rounds + 1,
            ..Demand::default()
        }
    }
}

/// Measures it and prints a report.
pub fn run(args: &Args) -> Result<(), Failure> {
    let shell = Shell::begin("recovery", &args.output);
    interrupt::watch()?;
    let (target, servers) = args.cluster.open(args.demand(), 1, shell.available())?;
    let client = &target.client;
    let writer = Writer::start(client.clone(), args.keys, args.cluster.value_bytes());
    let mut tally = Tally::default();
    let mut note = |done: &Done| tally.merge_failures(&done.tally);
    note(&writer.load()?);
    // The first pass fills the cache.
    let mut undisturbed = Duration::ZERO;
    for _ in 0..2 {
        let start = Instant::now();
        writer.begin();
        note(&writer.finish()?);
        undisturbed = start.elapsed();
    }
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        if interrupt::requested() {
            break;
        }
        let deaths = Deaths { args, client, servers: &servers, writer: &writer, undisturbed };
        let (round, done) = deaths.one(number.into())?;
        done.iter().for_each(&mut note);
        rounds.push(round);
    }
    drop(writer);
    let verdict = Verdict::new(&tally, args.keys * rounds.len() as u64, Vec::new());
    let found = Found {
        undisturbed_ms: ms(undisturbed),
        summary: Summary::new(&rounds),
        paper: PAPER,
        rounds,
    };
    shell.tell(args, Some(Setup::of(client, true, false)), found, Some(verdict))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The state of all rounds.
struct Deaths<'a> {
    args: &'a Args,
    client: &'a Client,
    servers: &'a Servers,
    writer: &'a Writer,
    undisturbed: Duration,
}

impl Deaths<'_> {
    /// Lets a client work, kills it, and waits until it blocks nothing.
    fn one(&self, number: u64) -> Result<(Round, Vec<Done>), Failure> {
        let mut doomed = Doomed::start(&Task {
            master: self.servers.master().to_string(),
            fabric: self.client.fabric().to_string(),
            keys: self.args.keys,
            updates: self.args.updates,
            value_bytes: self.args.cluster.value_bytes(),
            writer: number,
        })?;
        let name = doomed.ready()?;
        let (stops, blocked, mut all) = self.stop_half_way(&doomed)?;
        let killed = Instant::now();
        doomed.kill()?;
        if !blocked {
            self.writer.begin();
        }
        let done = self.writer.finish()?;
        let last = done.last.unwrap_or(killed);
        let (recovery, recovered) = self.recovered(&name, killed)?;
        all.push(done);
        all.push(self.writer.check(number)?);
        let round = Round {
            writable_ms: ms(last.saturating_duration_since(killed)),
            recovered_ms: ms(recovered),
            stops,
            // On a slow machine a pass can be late without being blocked.
            blocked: blocked && recovery.committed + recovery.withdrawn > 0,
            recovery: (&recovery).into(),
        };
        Ok((round, all))
    }

    /// Stops the client in the middle of an update. Returns the number of stops, whether a pass
    /// over its keys is blocked (and under way), and the results of the passes that were not.
    fn stop_half_way(&self, doomed: &Doomed) -> Result<(u32, bool, Vec<Done>), Failure> {
        let patience = (self.undisturbed * BLOCKED_FACTOR).clamp(LEAST_PATIENCE, MOST_PATIENCE);
        let mut passes = Vec::new();
        for stops in 1..=MOST_STOPS {
            doomed.stop()?;
            self.writer.begin();
            match self.writer.within(patience)? {
                None => return Ok((stops, true, passes)),
                Some(done) => passes.push(done),
            }
            doomed.go_on()?;
            // Over a network the client must get through some round trips; the time differs at each
            // stop.
            if self.client.fabric() != FabricKind::Shm {
                sleep(TCP_STEP * (stops % 8));
            }
        }
        Ok((MOST_STOPS, false, passes))
    }

    /// Waits until the master has recovered a client.
    fn recovered(&self, name: &str, killed: Instant) -> Result<(Recovery, Duration), Failure> {
        while killed.elapsed() < RECOVERY_TIMEOUT {
            let status = self.client.status()?;
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
