//! The memory of killed clients: if a full pool is emptied, as many pairs as before fit again.
//!
//! A client process fills the pool until it gets no more memory, continues with updates, and is killed. Another client
//! deletes everything that the first one has inserted, and leaves. This is repeated. In the last round at least 99 % as
//! many pairs have to fit as in the first round.
//!
//! ```text
//! cargo test --release -p fusee --test failures -- --ignored --exact --nocapture \
//!     refill::fill_and_kill_fifty_times
//! ```

// Promise MEM-20

use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fusee_client::{BlockingClient, Client, FabricChoice, Options, WriteError};
use serde::{Deserialize, Serialize};

use super::cluster::{ClusterShape, FaultyCluster, LONG_LEASE_MS};

/// The environment variable that makes this binary the client that fills the pool.
const ROLE: &str = "FUSEE_TEST_FILLER";
/// Length of a value: a little less than a quarter of the smallest block.
const VALUE_BYTES: usize = 60_000;
/// Number of sessions of the client that fills the pool.
const THREADS: usize = 2;
/// Number of consecutive refusals after which a session regards the pool as full. A single refusal is possibly
/// temporary, because another session holds the last blocks.
const REFUSALS: u32 = 3;
/// Pause after a refusal. On a busy machine the blocks that ended sessions have left reach the next session late.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of an operation. It is so long that even on a busy machine an operation fails for lack of memory, and not
/// because of the timeout.
const OP_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Deserialize, Serialize)]
struct FillTask {
    master: String,
    fabric: String,
}

/// A client process that has filled the pool. Dropping the value kills the process.
struct Filler {
    child: Child,
    /// Number of keys that the client tried to insert, counted from key 0. `fit` is the number of keys that it
    /// inserted.
    tried: u64,
    fit: u64,
}

impl Filler {
    fn run(cluster: &FaultyCluster, fabric: &str) -> Filler {
        let task = FillTask { master: cluster.address().into(), fabric: fabric.into() };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "refill::is_a_filler", "--ignored", "--nocapture"]);
        command.env(ROLE, serde_json::to_string(&task).unwrap());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut filler = Filler { child: command.spawn().unwrap(), tried: 0, fit: 0 };
        let lines = BufReader::new(filler.child.stdout.take().unwrap()).lines();
        let said = lines.map_while(Result::ok).find_map(|line| {
            let (fit, tried) = line.strip_prefix("filled ")?.split_once(" of ")?;
            Some((fit.parse().ok()?, tried.parse().ok()?))
        });
        (filler.fit, filler.tried) = said.expect("it says how many pairs fit");
        filler
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // The signal is SIGKILL. An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This is no test, but the process that [`Filler::run`] starts.
#[test]
#[ignore = "the client process of the other tests"]
fn is_a_filler() {
    let Ok(task) = std::env::var(ROLE) else { return };
    let task: FillTask = serde_json::from_str(&task).unwrap();
    let client = join(&task.master, &task.fabric);
    let tried = AtomicU64::new(0);
    let fit = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let fill = || {
            let mut own = Vec::new();
            let mut refused = 0;
            while refused < REFUSALS {
                let key = tried.fetch_add(1, Ordering::Relaxed);
                match client.insert(&name(key), &value(key)) {
                    Ok(()) => {
                        own.push(key);
                        refused = 0;
                    }
                    Err(WriteError::OutOfMemory) => {
                        refused += 1;
                        thread::sleep(REFUSAL_PAUSE);
                    }
                    Err(error) => panic!("pair {key}: {error}"),
                }
            }
            fit.fetch_add(own.len() as u64, Ordering::Relaxed);
            own
        };
        let filled: Vec<_> = (0..THREADS).map(|_| scope.spawn(fill)).collect();
        let filled: Vec<_> = filled.into_iter().map(|thread| thread.join().unwrap()).collect();
        let client = &client;
        let stop = &stop;
        for own in filled {
            // Most of these updates fail, so that the client is looking for memory when it is killed.
            scope.spawn(move || {
                for key in own.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let _refused = client.update(&name(*key), &value(*key));
                }
            });
        }
        let fit = fit.load(Ordering::Relaxed);
        let tried = tried.load(Ordering::Relaxed);
        println!("\nfilled {fit} of {tried}");
        std::io::stdout().flush().unwrap();
        // The read returns when the test has ended; usually the process is killed before.
        let _ = stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
}

fn join(master: &str, fabric: &str) -> BlockingClient {
    let options = Options::default().with_fabric(fabric.parse::<FabricChoice>().unwrap());
    Client::connect_with(master, options.with_op_timeout(OP_TIMEOUT)).unwrap().blocking()
}

fn name(key: u64) -> Vec<u8> {
    format!("fill-{key:06}").into_bytes()
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; VALUE_BYTES]
}

/// Returns, for each round, the number of pairs that fit into the pool.
fn fits(fabric: &'static str, pool: &'static str, block: &'static str, rounds: u32) -> Vec<u64> {
    let lease_ms = LONG_LEASE_MS;
    let cluster = FaultyCluster::of(ClusterShape {
        fabric,
        pool,
        block,
        lease_ms,
        ..ClusterShape::default()
    });
    let is_quiet =
        |status: &fusee_client::Status| status.open_sessions + status.expired_sessions == 0;
    let mut fits = Vec::new();
    for round in 1..=rounds {
        let filler = Filler::run(&cluster, fabric);
        let fit = filler.fit;
        let tried = filler.tried;
        drop(filler);
        cluster.until("the dead client is recovered", is_quiet);
        let client = join(cluster.address(), fabric);
        let deleted = (0..tried).filter(|key| match client.delete(&name(*key)) {
            Ok(()) => true,
            Err(WriteError::NotFound) => false,
            Err(error) => panic!("round {round}: pair {key} cannot be deleted: {error}"),
        });
        assert_eq!(deleted.count() as u64, fit, "round {round}: pairs that were acknowledged");
        drop(client);
        cluster.until("all sessions have ended", is_quiet);
        println!("round {round}: {fit} pairs fitted");
        fits.push(fit);
    }
    let survey = join(cluster.address(), fabric).admin().survey_memory().expect("nodes answer");
    for class in &survey.classes {
        println!(
            "objects of {} bytes: {} blocks, {} of {} objects marked",
            class.object_bytes, class.blocks, class.marked, class.objects
        );
    }
    fits
}

#[track_caller]
fn holds(fits: &[u64]) {
    let first = fits[0];
    let last = fits[fits.len() - 1];
    println!("{first} pairs in the first round, {last} in the last: {fits:?}");
    assert!(last * 100 >= first * 99, "{fits:?}");
}

#[test]
fn what_fitted_fits_again_when_the_client_was_killed() {
    holds(&fits("shm", "64MiB", "256KiB", 4));
}

/// Takes minutes: 50 rounds in a pool of 256 MiB with blocks of 1 MiB.
#[test]
#[ignore = "takes long; prints how many pairs fit"]
fn fill_and_kill_fifty_times() {
    holds(&fits("shm", "256MiB", "1MiB", 50));
}
