//! Clover is linearizable without crashes, takes the phases that its paper states, and reuses memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::support::{
    DelayedRpc, HistoryLoad, PHASE_NS, QuietRack, VALUE_BYTES, findings, key, value,
};
use fusee_baselines::clover::{
    CloverClient, CloverCosts, CloverCounts, CloverShape, MetadataServer,
};
use fusee_baselines::{BaselineError, BaselineServer, BaselineSession, InProcessRpc, Rpc};
use fusee_core::verbs::{Fabric, POOL_HEADER_BYTES, VerbBatch, VerbOp};
use fusee_sim::{Executor, Rng, Sim, SimFabric};

fn shape(replicas: usize, keys: u64, spare: u64) -> CloverShape {
    CloverShape { memory_nodes: 3, replicas, value_bytes: VALUE_BYTES as u32, keys, spare }
}

/// Runs random histories, asserts that all are linearizable, and returns the sum of the counts and the number of
/// reuses.
fn attack(load: HistoryLoad, shape: CloverShape, seeds: u64) -> (CloverCounts, u64) {
    let load = HistoryLoad { pool_bytes: shape.pool_bytes(), ..load };
    let mut all = CloverCounts::default();
    let mut reused = 0;
    for seed in 0..seeds {
        let server = Rc::new(RefCell::new(MetadataServer::new(shape, CloverCosts::FITTED)));
        let near = InProcessRpc::from(server.clone());
        let counts = Rc::new(RefCell::new(Vec::new()));
        let findings = findings(seed, load, |fabric, nodes| {
            let session = CloverClient::new(fabric, DelayedRpc::new(seed, &near), nodes, shape);
            CountingSession::new(session, &counts)
        });
        assert!(findings.is_clean(), "seed {seed}: {findings:?}");
        assert!(findings.overlapping > 100, "{findings:?}");
        for counts in counts.take() {
            all.hops += counts.hops;
            all.lost += counts.lost;
            all.queries += counts.queries;
        }
        reused += server.borrow().reused();
    }
    (all, reused)
}

/// A session that adds its counts to a list when it is dropped.
struct CountingSession<R: Rpc<MetadataServer>> {
    session: CloverClient<SimFabric, R>,
    counts: Rc<RefCell<Vec<CloverCounts>>>,
}

impl<R: Rpc<MetadataServer>> CountingSession<R> {
    fn new(
        session: CloverClient<SimFabric, R>,
        counts: &Rc<RefCell<Vec<CloverCounts>>>,
    ) -> CountingSession<R> {
        CountingSession { session, counts: counts.clone() }
    }
}

impl<R: Rpc<MetadataServer>> Drop for CountingSession<R> {
    fn drop(&mut self) {
        self.counts.borrow_mut().push(self.session.counts());
    }
}

impl<R: Rpc<MetadataServer>> BaselineSession for CountingSession<R> {
    async fn search(&self, key: &[u8]) -> Result<Option<Vec<u8>>, BaselineError> {
        self.session.search(key).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        self.session.update(key, value).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        self.session.insert(key, value).await
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, BaselineError> {
        self.session.delete(key).await
    }

    fn learn_from(&self, other: &CountingSession<R>) {
        self.session.learn_from(&other.session);
    }

    async fn background(&self) {
        self.session.background().await;
    }
}

const LOAD: HistoryLoad = HistoryLoad {
    memory_nodes: 3,
    pool_bytes: 0,
    clients: 4,
    coroutines: 2,
    operations: 100,
    keys: 1,
    inserts: false,
    deletes: false,
};

#[test]
fn one_chain_is_linearizable() {
    for replicas in 1..=3 {
        let (counts, _) = attack(LOAD, shape(replicas, 1, 1_000), 30);
        assert!(counts.lost > 100 && counts.hops > 1_000, "{counts:?}");
    }
}

/// The store has only a few more entries than the sessions hold. So entries are reused constantly, while other sessions
/// READ them in their earlier use.
#[test]
fn entries_that_are_used_again_are_not_taken_for_what_they_were() {
    for replicas in 1..=2 {
        let load = HistoryLoad { keys: 4, ..LOAD };
        let spare = 8 * 16 / replicas as u64 + 20;
        let (counts, reused) = attack(load, shape(replicas, 4, spare), 60);
        assert!(reused > 5_000 && counts.queries > 100, "{reused} used again, {counts:?}");
    }
}

#[test]
fn keys_are_inserted_once() {
    let load = HistoryLoad { keys: 20, inserts: true, ..LOAD };
    for replicas in 1..=2 {
        let (counts, _) = attack(load, shape(replicas, 20, 2_000), 30);
        assert!(counts.queries > 100, "{counts:?}");
    }
}

type InProcessClover = CloverClient<SimFabric, InProcessRpc<MetadataServer>>;

fn session(
    quiet: &QuietRack,
    server: &InProcessRpc<MetadataServer>,
    shape: CloverShape,
) -> InProcessClover {
    CloverClient::new(quiet.fabric(), server.clone(), quiet.rack.nodes(), shape)
}

/// Returns the result and the phases of an operation that must succeed.
fn took<T>(quiet: &QuietRack, task: impl Future<Output = Result<T, BaselineError>>) -> (T, f64) {
    let (result, phases) = quiet.phases(task);
    (result.expect("nothing fails"), phases)
}

#[test]
fn operations_take_the_phases_that_the_paper_says() {
    for (replicas, update) in [(1, 2.0), (2, 3.0), (3, 3.0)] {
        let shape = shape(replicas, 10, 1_000);
        let quiet = QuietRack::new(3, shape.pool_bytes());
        let server = InProcessRpc::new(MetadataServer::new(shape, CloverCosts::FITTED));
        let first = session(&quiet, &server, shape);
        let second = session(&quiet, &server, shape);
        // Requests to the metadata server take no time here.
        assert_eq!(took(&quiet, first.insert(&key(1), &value(1))), (true, 1.0));
        assert_eq!(took(&quiet, first.insert(&key(1), &value(2))), (false, 0.0));
        assert_eq!(took(&quiet, second.insert(&key(1), &value(2))), (false, 1.0));
        assert_eq!(took(&quiet, first.update(&key(2), &value(1))), (false, 0.0));
        assert_eq!(took(&quiet, first.search(&key(2))), (None, 0.0));
        assert_eq!(took(&quiet, first.search(&key(1))), (Some(value(1)), 1.0));
        assert_eq!(took(&quiet, second.search(&key(1))), (Some(value(1)), 1.0));
        quiet.let_run(10, first.background());
        for number in 10..13 {
            assert_eq!(took(&quiet, first.update(&key(1), &value(number))), (true, update));
        }
        // The shortcut still names the first entry, so the search takes one phase more for each of the three later
        // entries.
        assert_eq!(took(&quiet, second.search(&key(1))), (Some(value(12)), 4.0));
        assert_eq!(took(&quiet, second.search(&key(1))), (Some(value(12)), 1.0));
        for number in 13..16 {
            assert_eq!(took(&quiet, first.update(&key(1), &value(number))), (true, update));
        }
        quiet.let_run(10, first.background());
        // The background has made the shortcut name the last entry.
        assert_eq!(took(&quiet, second.search(&key(1))), (Some(value(15)), 2.0));
        // The second session's cursor is not the last entry. The session's CAS fails; it walks to the last entry and
        // CASes again.
        assert_eq!(took(&quiet, first.update(&key(1), &value(16))), (true, update));
        let late = took(&quiet, second.update(&key(1), &value(17)));
        assert_eq!(late, (true, update + 3.0));
        // The shortcut names an entry before the cursor. The walk continues at the shortcut, and then over both later
        // entries.
        assert_eq!(took(&quiet, first.search(&key(1))), (Some(value(17)), 4.0));
        assert_eq!(first.counts().queries + second.counts().queries, 3);
    }
}

/// A session whose cursor names a reused entry uses the shortcut. If the shortcut is 0, the session queries the chain.
#[test]
fn a_cursor_that_is_too_old_leads_to_the_shortcut_or_to_a_query() {
    let shape = shape(1, 2, 40);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let server = InProcessRpc::new(MetadataServer::new(shape, CloverCosts::FITTED));
    let [first, second, third] = [(); 3].map(|()| session(&quiet, &server, shape));
    took(&quiet, first.insert(&key(1), &value(0)));
    took(&quiet, first.insert(&key(2), &value(0)));
    second.learn_from(&first);
    third.learn_from(&first);
    for number in 0..200 {
        took(&quiet, first.update(&key(1 + number % 2), &value(number)));
        quiet.let_run(3, first.background());
    }
    assert_eq!(took(&quiet, second.search(&key(1))), (Some(value(198)), 2.0));
    assert_eq!(second.counts(), CloverCounts { hops: 1, ..CloverCounts::default() });
    // The first key's shortcut is the first word behind the pool's header on the first node.
    let mut batch = VerbBatch::new();
    let nothing = batch.stage(8);
    batch.bytes_mut(nothing).fill(0);
    batch.write(quiet.rack.nodes()[0], POOL_HEADER_BYTES, nothing);
    quiet.phases(quiet.fabric().execute(batch)).0.check().unwrap();
    assert_eq!(took(&quiet, third.search(&key(1))), (Some(value(198)), 2.0));
    assert_eq!(third.counts(), CloverCounts { hops: 1, queries: 1, ..CloverCounts::default() });
}

/// A fabric whose first long READ is slow: it READs the first word at once, and the rest when `is_over` is set.
struct SlowReadFabric {
    fabric: SimFabric,
    sim: Sim,
    is_over: Rc<Cell<bool>>,
    /// The bytes that the slow READ has returned.
    got: Rc<RefCell<Vec<u8>>>,
}

impl Fabric for SlowReadFabric {
    async fn execute(&self, mut batch: VerbBatch) -> VerbBatch {
        let first = batch.verbs()[0];
        let VerbOp::Read { buf, .. } = first.op else { return self.fabric.execute(batch).await };
        if buf.len == 8 || self.is_over.get() {
            return self.fabric.execute(batch).await;
        }
        let mut bytes = Vec::new();
        for (at, len) in [(0, 8), (8, buf.len - 8)] {
            let mut part = VerbBatch::new();
            let read = part.read(first.node, first.offset + at, len);
            bytes.extend_from_slice(self.fabric.execute(part).await.data(read).unwrap());
            while !self.is_over.get() {
                self.sim.sleep(PHASE_NS).await;
            }
        }
        batch = self.fabric.execute(batch).await;
        batch.parts_mut().1[buf.range()].copy_from_slice(&bytes);
        *self.got.borrow_mut() = bytes;
        batch
    }
}

/// Without the checksum, this READ would return another key's value, as in the published code.
#[test]
fn a_read_that_takes_too_long_is_noticed() {
    let shape = shape(1, 2, 30);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let server = Rc::new(RefCell::new(MetadataServer::new(shape, CloverCosts::FITTED)));
    let near = InProcessRpc::from(server.clone());
    let writer = session(&quiet, &near, shape);
    let is_over = Rc::new(Cell::new(false));
    let got = Rc::new(RefCell::new(Vec::new()));
    let sim = quiet.rack.sim();
    let fabric = quiet.fabric();
    let sim_too = sim.clone();
    let slow = SlowReadFabric { fabric, sim: sim_too, is_over: is_over.clone(), got: got.clone() };
    let reader = CloverClient::new(slow, near, quiet.rack.nodes(), shape);
    for number in [1, 2] {
        took(&quiet, writer.insert(&key(number), &value(number)));
    }
    let process = sim.process("both");
    let mut executor = Executor::new(sim);
    executor.spawn_background(process, writer.background());
    executor.spawn(process, async {
        assert_eq!(reader.search(&key(1)).await, Ok(Some(value(3))));
    });
    executor.spawn(process, async {
        sim.sleep(PHASE_NS * 2).await;
        writer.update(&key(1), &value(3)).await.unwrap();
        // These updates of the other key reuse all free entries.
        for number in 100..200 {
            writer.update(&key(2), &value(number)).await.unwrap();
        }
        is_over.set(true);
    });
    executor.run(1_000_000, || ());
    drop(executor);
    let got = got.take();
    let found = &got[32..][..VALUE_BYTES];
    assert!((100..200).any(|number| found == value(number)), "the other key's value: {found:?}");
    assert_eq!(got[..8], [0; 8], "nothing follows, and its version is that of the first entry");
    assert_eq!(reader.counts().torn, 1);
}

#[test]
fn memory_does_not_run_out() {
    for replicas in 1..=3 {
        let shape = CloverShape { spare: CloverShape::spare_for(2, 4), ..shape(replicas, 3, 0) };
        let quiet = QuietRack::new(3, shape.pool_bytes());
        let server = Rc::new(RefCell::new(MetadataServer::new(shape, CloverCosts::FITTED)));
        let near = InProcessRpc::from(server.clone());
        let sessions = [session(&quiet, &near, shape), session(&quiet, &near, shape)];
        for number in 0..3 {
            took(&quiet, sessions[0].insert(&key(number), &value(0)));
        }
        let updates = 4_000;
        let sim = quiet.rack.sim();
        let mut executor = Executor::new(sim);
        let rng = Rng::new(7);
        for session in &sessions {
            let process = sim.process("client");
            executor.spawn_background(process, session.background());
            for _ in 0..4 {
                let rng = rng.clone();
                executor.spawn(process, async move {
                    for _ in 0..updates {
                        let number = rng.below_u64(3);
                        assert!(session.update(&key(number), &value(number)).await.unwrap());
                    }
                });
            }
        }
        executor.run(u64::MAX, || ());
        drop(executor);
        let server = server.borrow();
        let all = 3 + shape.spare as usize;
        // Each entry has been used several times. The sessions hold the entries that are not free.
        assert!(server.reused() > 4 * all as u64, "{} of {all}", server.reused());
        assert!(server.reused() > 8 * updates - all as u64, "{}", server.reused());
        assert!(server.free() > all / 2, "{} of {all} are free", server.free());
    }
}

#[test]
fn a_store_that_is_full_says_so() {
    let shape = shape(1, 2, 20);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let server = InProcessRpc::new(MetadataServer::new(shape, CloverCosts::FITTED));
    let first = session(&quiet, &server, shape);
    let second = session(&quiet, &server, shape);
    took(&quiet, first.insert(&key(1), &value(1)));
    took(&quiet, first.insert(&key(2), &value(2)));
    assert_eq!(quiet.phases(first.insert(&key(3), &value(3))).0, Err(BaselineError::Full));
    // The first session holds 16 of the 22 entries.
    for _ in 0..6 {
        took(&quiet, second.update(&key(1), &value(4)));
    }
    let idle = session(&quiet, &server, shape);
    assert_eq!(quiet.phases(idle.update(&key(1), &value(5))).0, Err(BaselineError::Full));
    // Memory is free after the second session's garbage is retired.
    quiet.let_run(10, second.background());
    took(&quiet, idle.update(&key(1), &value(5)));
}

#[test]
fn what_does_not_fit_is_refused() {
    let shape = shape(1, 2, 20);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let server = InProcessRpc::new(MetadataServer::new(shape, CloverCosts::FITTED));
    let session = session(&quiet, &server, shape);
    let refused = |length| Err(BaselineError::Length(length));
    assert_eq!(quiet.phases(session.insert(b"short", &value(1))).0, refused("key"));
    assert_eq!(quiet.phases(session.insert(&key(1), b"short")).0, refused("value"));
    assert_eq!(quiet.phases(session.update(&key(1), b"short")).0, refused("value"));
    assert_eq!(quiet.phases(session.delete(&key(1))).0, Err(BaselineError::Unsupported("DELETE")));
}

#[test]
fn requests_cost_what_they_are_said_to() {
    use fusee_baselines::clover::CloverRequest;
    let server = MetadataServer::new(shape(2, 2, 20), CloverCosts::FITTED);
    assert_eq!(server.service_time(&CloverRequest::Query(1)), Duration::from_nanos(1_500));
    assert_eq!(server.service_time(&CloverRequest::Allocate), Duration::from_micros(2));
    assert_eq!(server.service_time(&CloverRequest::Retire(Vec::new())), Duration::ZERO);
    assert_eq!(server.bytes(&CloverRequest::Query(1)), (24, 32));
}
