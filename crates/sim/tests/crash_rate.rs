//! Measures the throughput that remains when clients crash all the time.
//!
//! The measurement takes virtual time, on hardware like that of the paper. Surviving clients lose time when they wait
//! for slots that dead clients hold until these are recovered; faster survivors come to such slots more often. On a
//! real host, processors that the clients share would hide this loss.

// Promise REC-8: 500 crashes a second leave others nine tenths of their throughput.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::view::Geometry;
use fusee_sim::{
    ClusterOptions, Executor, Nanos, NetworkOptions, ProcessId, Rng, Sim, SimCluster, SimSession,
    Testbed,
};

/// Number of keys: a fifth of the paper's (P §6.1).
const KEYS: u64 = 20_000;
const SURVIVORS: u64 = 4;
const CRASHES_PER_S: u64 = 500;
/// Number of runs, each with a seed of its own.
const SEEDS: u64 = 4;
/// Lifetime of a client that is to crash, in nanoseconds.
const LIFE_NS: Nanos = 10_000_000;
const WARM_UP_NS: Nanos = 40_000_000;
const MEASURED_NS: Nanos = 200_000_000;

#[derive(Debug)]
struct CrashRate {
    /// Number of operations of the surviving clients.
    operations: u64,
    crashes: u64,
    recoveries: u64,
}

const SESSION: LogicOptions = LogicOptions {
    cache_entries: KEYS as usize,
    cache_threshold: 0.5,
    op_timeout: Duration::from_secs(5),
    spins: false,
    redundancy: None,
};

fn cluster(sim: &Sim) -> SimCluster {
    let options = ClusterOptions {
        index_keys: KEYS,
        geometry: Geometry {
            region_bytes: 1 << 24,
            block_bytes: 1 << 15,
            slots_per_bucket: 7,
            groups_per_subtable: 64,
            ..ClusterOptions::default().geometry
        },
        pool_bytes: 5 << 26,
        session: SESSION,
        // Sessions do not renew leases here, so leases are long enough that no silent session expires.
        lease_ms: Some(1_000_000),
        grace_ms: 10,
        ..ClusterOptions::default()
    };
    let network =
        NetworkOptions { testbed: Some(Testbed::CONNECTX_3), ..NetworkOptions::default() };
    let cluster = SimCluster::with_network(sim, &options, network);
    cluster.checks().stop_watching();
    let loader = cluster.client();
    cluster.block_on(loader.process, async {
        for key in 0..KEYS {
            loader.session.insert(&key.to_le_bytes(), &[1; 100]).await.unwrap();
        }
    });
    cluster
}

/// Runs the surviving clients while other clients crash at this rate.
fn measure(seed: u64, crashes_per_s: u64) -> CrashRate {
    let sim = Sim::new(seed);
    let cluster = cluster(&sim);
    let counted_from = sim.now() + WARM_UP_NS;
    let run = CrashRateRun {
        cluster: &cluster,
        counted_from,
        end: counted_from + MEASURED_NS,
        operations: Cell::new(0),
        crashes: Cell::new(0),
        births: RefCell::default(),
    };
    let mut executor = Executor::new(&sim);
    for number in 0..SURVIVORS {
        let process = cluster.client_process();
        executor.spawn(process, run.survivor(process, number));
    }
    if let Some(every) = 1_000_000_000u64.checked_div(crashes_per_s) {
        executor.spawn(sim.process("fate"), run.fate(every));
    }
    while executor.is_running() {
        for process in run.births.take() {
            executor.spawn(process, run.doomed(process));
        }
        assert!(executor.step(), "everything waits for ever");
    }
    drop(executor);
    let Some(MasterReply::Status(status)) = cluster.peek_master(MasterRequest::Status) else {
        panic!("the master tells its status");
    };
    let operations = run.operations.get();
    let crashes = run.crashes.get();
    CrashRate { operations, crashes, recoveries: status.recoveries }
}

struct CrashRateRun<'c> {
    cluster: &'c SimCluster,
    counted_from: Nanos,
    end: Nanos,
    operations: Cell<u64>,
    crashes: Cell<u64>,
    /// Client processes that are to be started.
    births: RefCell<Vec<ProcessId>>,
}

impl CrashRateRun<'_> {
    fn goes_on(&self) -> bool {
        self.cluster.sim().now() < self.end
    }

    async fn survivor(&self, process: ProcessId, number: u64) {
        let session = self.cluster.open(process, SESSION).await.unwrap();
        let rng = Rng::named(number, "survivor");
        while self.goes_on() {
            operate(self.cluster, &session, &rng).await;
            if self.cluster.sim().now() > self.counted_from {
                self.operations.set(self.operations.get() + 1);
            }
        }
    }

    /// Starts clients, and crashes each client at the end of its lifetime, at whatever point of an operation it is
    /// then.
    async fn fate(&self, every: Nanos) {
        let sim = self.cluster.sim();
        let mut number = 0;
        while self.goes_on() {
            let process = self.cluster.client_process();
            self.births.borrow_mut().push(process);
            // Lifetimes differ, so that clients crash at different points of an operation.
            let life = LIFE_NS + number * 7_919 % 100_000;
            let end = sim.clone();
            sim.after(life, move || end.crash(process));
            if sim.now() + life > self.counted_from && sim.now() + life < self.end {
                self.crashes.set(self.crashes.get() + 1);
            }
            number += 1;
            sim.sleep(every).await;
        }
    }

    async fn doomed(&self, process: ProcessId) {
        let session = self.cluster.open(process, SESSION).await.unwrap();
        let rng = Rng::named(u64::from(session.id().0), "doomed");
        while self.goes_on() {
            operate(self.cluster, &session, &rng).await;
        }
    }
}

/// Runs one operation of YCSB-A, with uniformly drawn keys.
async fn operate(cluster: &SimCluster, session: &SimSession, rng: &Rng) {
    cluster.network().hardware().work(session.id()).await;
    let key = rng.below_u64(KEYS).to_le_bytes();
    if rng.one_in(2) {
        session.update(&key, &[2; 100]).await.unwrap();
    } else {
        assert!(session.get(&key).await.unwrap().is_some());
    }
}

/// Returns the sums of several runs. A client dies at a random point of an operation, so the results of single runs
/// with 100 crashes differ by some hundredths.
fn measure_all(crashes_per_s: u64) -> CrashRate {
    let runs = std::thread::scope(|scope| {
        let run = |seed| scope.spawn(move || measure(seed, crashes_per_s));
        let runs: Vec<_> = (1..=SEEDS).map(run).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect::<Vec<_>>()
    });
    let sum = |of: fn(&CrashRate) -> u64| runs.iter().map(of).sum();
    CrashRate {
        operations: sum(|run| run.operations),
        crashes: sum(|run| run.crashes),
        recoveries: sum(|run| run.recoveries),
    }
}

#[test]
fn others_keep_nine_tenths_beside_500_crashes_a_second() {
    let calm = measure_all(0);
    let crashing = measure_all(CRASHES_PER_S);
    let kept = crashing.operations as f64 / calm.operations as f64;
    println!(
        "{} crashes in {} ms of virtual time, {} recoveries since the beginning: others did {} \
         operations, {kept:.3} of {}",
        crashing.crashes,
        SEEDS * MEASURED_NS / 1_000_000,
        crashing.recoveries,
        crashing.operations,
        calm.operations
    );
    assert!(crashing.crashes >= SEEDS * CRASHES_PER_S * MEASURED_NS / 1_000_000_000 * 9 / 10);
    assert!(crashing.recoveries >= crashing.crashes * 9 / 10, "{crashing:?}");
    assert!(kept >= 0.9, "{crashing:?}, {calm:?}");
}
