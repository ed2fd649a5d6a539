//! Runs with full pools, in virtual time, with the real logic of clients, memory nodes and master.
//!
//! *Refill*: each client deletes the pairs of the previous client, fills the pool until there is no more memory, and
//! dies then. The same number of pairs must fit each time.
//!
//! *Empty*: several clients have filled the pool. They delete everything, without a refusal, and as many pairs fit
//! again.
//!
//! *Lengths*: the pool is filled with values of one length after the other, which are deleted in between. All memory
//! serves each length.
//!
//! *Sparse*: most pairs are deleted, but hardly a block is empty. The memory serves other lengths.
//!
//! *Small blocks*: many sessions have left small blocks. A session merges them.
//!
//! *Sessions*: many sessions have a short pair each. Later, one session uses all memory.
//!
//! *Refuse*: several clients fill the pool. A client whose write is refused must learn of this soon.
//!
//! *Swap*: two clients need each other's memory at one time.
//!
//! *Update*: several clients update existing pairs, with little free memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use fusee_client::logic::{Keeper, LogicOptions};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_core::error::Error;
use fusee_core::layout::Object;
use fusee_core::view::Geometry;
use fusee_sim::{
    ClusterOptions, Executor, Nanos, NetworkOptions, ProcessId, Sim, SimCluster, SimSession,
};

const LEASE: Duration = Duration::from_millis(100);
/// Number of pairs that fit in a block.
const PER_BLOCK: u64 = 7;
const VALUE: usize = 8000;
const SESSION: LogicOptions = LogicOptions {
    cache_entries: 1000,
    cache_threshold: 0.5,
    op_timeout: Duration::from_secs(5),
    spins: false,
    redundancy: None,
};

/// Makes a cluster with regions of 15 blocks, in which the reuse of memory is not checked.
fn cluster(sim: &Sim, regions: u64) -> SimCluster {
    let cluster = watched_cluster(sim, regions);
    cluster.checks().stop_watching();
    cluster
}

fn watched_cluster(sim: &Sim, regions: u64) -> SimCluster {
    let options = ClusterOptions {
        memory_nodes: 2,
        index_replicas: 2,
        data_replicas: 2,
        index_keys: 500,
        geometry: Geometry {
            region_bytes: 1 << 20,
            block_bytes: 1 << 16,
            slots_per_bucket: 7,
            groups_per_subtable: 16,
            max_key_bytes: 64,
            max_value_bytes: 8192,
        },
        pool_bytes: (regions << 20) + (1 << 19),
        session: SESSION,
        lease_ms: Some(LEASE.as_millis() as u64),
        grace_ms: 10,
        ..ClusterOptions::default()
    };
    let network = NetworkOptions { delays: false, tearing: false, ..NetworkOptions::default() };
    SimCluster::with_network(sim, &options, network)
}

async fn open(cluster: &SimCluster, process: ProcessId, keeper: &Keeper) -> Rc<SimSession> {
    let session = Rc::new(cluster.open(process, SESSION).await.expect("the master opens sessions"));
    keeper.open(session.gate().clone());
    session
}

/// Inserts pairs until the pool is full. Returns the number of pairs that fit.
async fn fill(session: &SimSession, first: u64) -> u64 {
    fill_with(session, first, VALUE).await
}

async fn fill_with(session: &SimSession, first: u64, bytes: usize) -> u64 {
    let mut key = first;
    loop {
        match session.insert(&key.to_be_bytes(), &vec![key as u8; bytes]).await {
            Ok(_) => key += 1,
            Err(Error::OutOfMemory) => return key - first,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn delete(session: &SimSession, key: u64) {
    let deleted = session.delete(&key.to_be_bytes()).await;
    deleted.unwrap_or_else(|error| panic!("pair {key} cannot be deleted: {error}"));
}

/// Waits until all sessions have ended, and all dead sessions are recovered.
async fn put_right(cluster: &SimCluster) {
    let begun = cluster.sim().now();
    loop {
        if let Some(MasterReply::Status(status)) = cluster.peek_master(MasterRequest::Status)
            && status.open_sessions + status.expired_sessions == 0
        {
            return;
        }
        let waited = cluster.sim().now() - begun;
        assert!(waited < 10_000_000_000, "the dead client is not recovered");
        cluster.sim().sleep(1_000_000).await;
    }
}

/// Runs one client after the other, each of which deletes the pairs of the client before and then fills the pool.
/// Returns the number of pairs that fit each time. `first_key` returns the first key of the client with this number.
pub fn fits(seed: u64, regions: u64, rounds: u64, first_key: fn(u64) -> u64) -> Vec<u64> {
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, regions);
    let fits = RefCell::new(Vec::new());
    let mut executor = Executor::new(&sim);
    for round in 0..rounds {
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, LEASE);
        let before = fits.borrow().last().copied().unwrap_or(0);
        let filled = &fits;
        let cluster = &cluster;
        let sim = &sim;
        executor.spawn(process, async move {
            let session = open(cluster, process, &keeper).await;
            for key in 0..before {
                delete(&session, first_key(round - 1) + key).await;
            }
            let fit = fill(&session, first_key(round)).await;
            filled.borrow_mut().push(fit);
            sim.crash(process);
            // The process is crashed, so the task never continues behind this line.
            sim.sleep(1).await;
        });
        executor.run(100_000_000, || ());
        executor.spawn(sim.process("observer"), put_right(cluster));
        executor.run(10_000_000, || ());
    }
    drop(executor);
    fits.into_inner()
}

/// Clients are killed in full pools. Later clients lose no memory.
pub fn refill(seed: u64) {
    for first_key in [|_| 0, |round| round << 32] {
        let fits = fits(seed, 4, 12, first_key);
        let least = *fits.iter().min().expect("there are rounds");
        assert!(least >= fits[0], "pairs that fit: {fits:?}");
    }
}

/// Runs a task of one process in a cluster with one region, in which the reuse of memory is checked.
fn in_one_process(seed: u64, task: impl AsyncFnOnce(&SimCluster, ProcessId, &Keeper)) {
    let sim = Sim::new(seed);
    let cluster = watched_cluster(&sim, 1);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let mut executor = Executor::new(&sim);
    let shared = &cluster;
    executor.spawn(process, async move { task(shared, process, &keeper).await });
    executor.run(100_000_000, || ());
}

/// A session fills a pool with values of one length, deletes all of them, and ends. The next session fills the pool
/// with values of another length, which take at least 70 % of the memory; the longest ones need half of a small block.
pub fn lengths(seed: u64) {
    const LENGTHS: [usize; 7] = [8000, 3000, 8000, 1500, 3000, 8000, 2000];
    in_one_process(seed, async |cluster, process, keeper| {
        for bytes in LENGTHS {
            let session = open(cluster, process, keeper).await;
            let fit = fill_with(&session, 0, bytes).await;
            let class = Object::class(8, bytes).expect("there is such a class").bytes();
            let region = cluster.view().geometry.region_bytes;
            assert!(fit * class * 100 >= region * 70, "{fit} values of {bytes} bytes fit");
            for key in 0..fit {
                delete(&session, key).await;
            }
            end(cluster, keeper, &session).await;
        }
    });
}

/// Many sessions write a few short values each and leave, so that the pool is divided into small blocks with different
/// bases. Then a session needs large blocks.
pub fn small_blocks(seed: u64) {
    const OTHERS: usize = 60;
    in_one_process(seed, async |cluster, process, keeper| {
        let mut others = Vec::new();
        for lives in (1..=5).cycle().take(OTHERS) {
            let other = open(cluster, process, keeper).await;
            for _ in 0..lives {
                other.insert(b"short", b"").await.expect("there is room");
                other.delete(b"short").await.expect("it is there");
            }
            others.push(other);
        }
        for other in others {
            end(cluster, keeper, &other).await;
        }
        let session = open(cluster, process, keeper).await;
        let fit = fill(&session, 0).await;
        assert!(fit >= 13 * PER_BLOCK, "{fit} pairs fit");
    });
}

/// Many sessions are open at the same time, each with a short pair. When all but one have ended, that one fills the
/// pool.
pub fn sessions(seed: u64) {
    const SESSIONS: u64 = 200;
    in_one_process(seed, async |cluster, process, keeper| {
        let mut others = Vec::new();
        for key in 0..SESSIONS {
            let session = open(cluster, process, keeper).await;
            let put = session.insert(&key.to_be_bytes(), &[7; 10]).await;
            put.unwrap_or_else(|error| panic!("session {key} finds no room: {error}"));
            others.push(session);
        }
        let last = others.pop().expect("there are several");
        for (key, other) in (0..).zip(others) {
            delete(&other, key).await;
            end(cluster, keeper, &other).await;
        }
        let region = cluster.view().geometry.region_bytes;
        let fit = fill_with(&last, SESSIONS, 3000).await;
        assert!(fit * 3000 * 100 >= region * 70, "{fit} pairs fit");
    });
}

/// A pool is full of values of one length. Nine of ten are deleted, so that hardly a block is empty. Then nearly all of
/// the memory takes values of other lengths, written by the session that has filled the pool, or by another one.
pub fn sparse(seed: u64, is_same: bool) {
    // A block has room for 20 values of 3000 bytes.
    const SPARSE: usize = 3000;
    in_one_process(seed, async |cluster, process, keeper| {
        let first = open(cluster, process, keeper).await;
        let fit = fill_with(&first, 0, SPARSE).await;
        for key in (0..fit).filter(|key| key % 10 != 0) {
            delete(&first, key).await;
        }
        let other = if is_same { None } else { Some(open(cluster, process, keeper).await) };
        let session = other.as_ref().unwrap_or(&first);
        // Of 15 blocks, two or three hold what is left. Another session keeps two at most.
        let blocks = if is_same { 12 } else { 10 };
        let large = fill(session, 1 << 32).await;
        assert!(large >= blocks * PER_BLOCK, "{large} values of {VALUE} bytes fit");
        for key in 0..large {
            delete(session, (1 << 32) + key).await;
        }
        let small = fill_with(session, 2 << 32, 300).await;
        assert!(small >= blocks * 160, "{small} values of 300 bytes fit");
        for key in (0..fit).step_by(10) {
            let found = session.store().search(&key.to_be_bytes(), None).await;
            let found = found.expect("it can be read");
            assert_eq!(found.value(), Some(&*vec![key as u8; SPARSE]), "pair {key}");
        }
    });
}

/// Ends a session, which hands its blocks to the master.
async fn end(cluster: &SimCluster, keeper: &Keeper, session: &SimSession) {
    let leaving = session.leave().await.expect("nothing is half-way");
    keeper.close(session.id());
    assert_eq!(cluster.peek_master(leaving.request()), Some(MasterReply::Done));
}

/// Several sessions fill a pool, and one of them deletes everything. Then as many pairs fit again. Returns the time of
/// the slowest DELETE.
pub fn empty(seed: u64) -> Nanos {
    const SESSIONS: u64 = 4;
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, 1);
    let slowest = Cell::new(0);
    let mut executor = Executor::new(&sim);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    let of_all = &slowest;
    let shared = &cluster;
    let time = &sim;
    executor.spawn(process, async move {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(open(shared, process, &keeper).await);
        }
        let mut fit = 0;
        for session in &sessions {
            fit += fill(session, fit).await;
        }
        // In 15 blocks of 64 KiB, one of 32 KiB and one of 16 KiB.
        assert_eq!(fit, 15 * PER_BLOCK + 3 + 1, "pairs that fit");
        for key in 0..fit {
            let begun = time.now();
            delete(&sessions[0], key).await;
            of_all.set(of_all.get().max(time.now() - begun));
        }
        let again = fill(&sessions[0], fit).await;
        assert!(again >= fit, "{again} pairs fit again, of {fit}");
    });
    executor.run(100_000_000, || ());
    drop(executor);
    slowest.get()
}

/// Several clients fill the pool at one time, and insert further pairs when it is full. Returns the time of the slowest
/// refused INSERT.
pub fn refuse(seed: u64) -> Nanos {
    const SESSIONS: u64 = 4;
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, 1);
    let slowest = Cell::new(0);
    let mut executor = Executor::new(&sim);
    for number in 0..SESSIONS {
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, LEASE);
        let of_all = &slowest;
        let cluster = &cluster;
        let sim = &sim;
        executor.spawn(process, async move {
            let session = open(cluster, process, &keeper).await;
            let first = number << 32;
            let mut key = first + fill(&session, first).await;
            for _ in 0..5 {
                key += 1;
                let begun = sim.now();
                match session.insert(&key.to_be_bytes(), &[0; VALUE]).await {
                    Err(Error::OutOfMemory) => of_all.set(of_all.get().max(sim.now() - begun)),
                    other => assert!(other.is_ok(), "{other:?}"),
                }
            }
            // All sessions stay until each of them has filled the pool.
            sim.sleep(2_000_000_000).await;
        });
    }
    executor.run(100_000_000, || ());
    drop(executor);
    slowest.get()
}

/// Two clients have filled the pool with pairs of two sizes, and have deleted most of them, but no whole block. Then,
/// at one time, each client inserts a pair of the other client's size.
pub fn swap(seed: u64) {
    const SIZES: [usize; 2] = [VALUE, 3000];
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, 1);
    let swapped = Cell::new(0);
    let mut executor = Executor::new(&sim);
    for (number, own) in SIZES.into_iter().enumerate() {
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, LEASE);
        let swapped = &swapped;
        let cluster = &cluster;
        let sim = &sim;
        executor.spawn(process, async move {
            let session = open(cluster, process, &keeper).await;
            let first = (number as u64) << 32;
            let mut end = first;
            while session.insert(&end.to_be_bytes(), &vec![0; own]).await.is_ok() {
                end += 1;
            }
            for key in (first..end).filter(|key| key % 3 != 0) {
                delete(&session, key).await;
            }
            sim.sleep(20_000_000_000 - sim.now()).await;
            let other = vec![0; SIZES[1 - number]];
            let inserted = session.insert(&end.to_be_bytes(), &other).await;
            assert!(inserted.is_ok(), "a pair of {} bytes: {inserted:?}", other.len());
            swapped.set(swapped.get() + 1);
            sim.sleep(10_000_000_000).await;
        });
    }
    executor.run(100_000_000, || ());
    drop(executor);
    assert_eq!(swapped.get(), 2);
}

/// Several clients update pairs that take half of a pool, including pairs that another client wrote last. Each client
/// has only a few blocks. Returns the time of the slowest UPDATE.
pub fn update(seed: u64) -> Nanos {
    const SESSIONS: u64 = 4;
    // 1600 pairs would fit, so that much more memory is free than idle clients still hold.
    const PAIRS: u64 = 800;
    const BYTES: usize = 500;
    let sim = Sim::new(seed);
    let cluster = cluster(&sim, 1);
    let slowest = Cell::new(0);
    let at_work = Cell::new(SESSIONS);
    let mut executor = Executor::new(&sim);
    for number in 0..SESSIONS {
        let process = cluster.client_process();
        let keeper = cluster.keeper(process, LEASE);
        let of_all = &slowest;
        let at_work = &at_work;
        let cluster = &cluster;
        let sim = &sim;
        executor.spawn(process, async move {
            let session = open(cluster, process, &keeper).await;
            for key in (number..PAIRS).step_by(SESSIONS as usize) {
                session.insert(&key.to_be_bytes(), &[0; BYTES]).await.expect("there is room");
            }
            for round in 1..=10 {
                for key in ((number + round) % SESSIONS..PAIRS).step_by(SESSIONS as usize) {
                    let begun = sim.now();
                    let updated = session.update(&key.to_be_bytes(), &[round as u8; BYTES]).await;
                    let is_there = matches!(updated, Ok(()) | Err(Error::NotFound));
                    assert!(is_there, "round {round}, pair {key}: {updated:?}");
                    of_all.set(of_all.get().max(sim.now() - begun));
                }
            }
            // The session stays open, so that the other sessions can get the memory that it no longer needs.
            at_work.set(at_work.get() - 1);
            while at_work.get() > 0 {
                sim.sleep(10_000_000).await;
            }
        });
    }
    executor.run(1_000_000_000, || ());
    drop(executor);
    slowest.get()
}
