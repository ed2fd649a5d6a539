//! pDPM-Direct is linearizable without crashes, and takes the phases that its paper states.

use crate::support::{DelayedRpc, HistoryLoad, QuietRack, VALUE_BYTES, findings, key, value};
use fusee_baselines::pdpm::{PdpmClient, PdpmDirectory, PdpmShape};
use fusee_baselines::{BaselineError, BaselineSession, InProcessRpc};
use fusee_core::verbs::{Fabric, POOL_HEADER_BYTES, VerbBatch};
use fusee_sim::{Executor, SimFabric};

fn shape(replicas: usize, keys: u64) -> PdpmShape {
    PdpmShape { memory_nodes: 3, replicas, value_bytes: VALUE_BYTES as u32, keys }
}

fn attack(keys: u64, inserts: bool, deletes: bool) {
    for replicas in 1..=2 {
        let shape = shape(replicas, keys);
        let load = HistoryLoad {
            memory_nodes: 3,
            pool_bytes: shape.pool_bytes(),
            clients: 4,
            coroutines: 2,
            operations: 60,
            keys,
            inserts,
            deletes,
        };
        for seed in 0..40 {
            let directory = InProcessRpc::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED));
            let findings = findings(seed, load, |fabric, nodes| {
                PdpmClient::new(fabric, DelayedRpc::new(seed, &directory), nodes, shape)
            });
            assert!(findings.is_clean(), "seed {seed}: {findings:?}");
            assert!(findings.overlapping > 100, "{findings:?}");
        }
    }
}

#[test]
fn one_place_is_linearizable() {
    attack(1, false, false);
}

#[test]
fn keys_come_and_go() {
    attack(2, true, true);
    attack(10, true, true);
}

type InProcessPdpm = PdpmClient<SimFabric, InProcessRpc<PdpmDirectory>>;

fn session(
    quiet: &QuietRack,
    directory: &InProcessRpc<PdpmDirectory>,
    shape: PdpmShape,
) -> InProcessPdpm {
    PdpmClient::new(quiet.fabric(), directory.clone(), quiet.rack.nodes(), shape)
}

/// Returns the result and the phases of an operation that must succeed.
fn took<T>(quiet: &QuietRack, task: impl Future<Output = Result<T, BaselineError>>) -> (T, f64) {
    let (result, phases) = quiet.phases(task);
    (result.expect("nothing fails"), phases)
}

#[test]
fn operations_take_the_phases_that_the_paper_says() {
    for replicas in 1..=3 {
        let shape = shape(replicas, 4);
        let quiet = QuietRack::new(3, shape.pool_bytes());
        let directory = InProcessRpc::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED));
        let first = session(&quiet, &directory, shape);
        let second = session(&quiet, &directory, shape);
        // Requests to the directory take no time here.
        assert_eq!(took(&quiet, first.search(&key(1))), (None, 0.0));
        assert_eq!(took(&quiet, first.insert(&key(1), &value(1))), (true, 4.0));
        // An INSERT of an existing key takes two phases: one takes the lock, the other releases it.
        assert_eq!(took(&quiet, first.insert(&key(1), &value(2))), (false, 2.0));
        assert_eq!(took(&quiet, second.search(&key(1))), (Some(value(1)), 1.0));
        assert_eq!(took(&quiet, second.update(&key(1), &value(3))), (true, 4.0));
        assert_eq!(took(&quiet, first.search(&key(1))), (Some(value(3)), 1.0));
        assert_eq!(took(&quiet, first.delete(&key(1))), (true, 4.0));
        assert_eq!(took(&quiet, second.search(&key(1))), (None, 1.0));
        assert_eq!(took(&quiet, second.update(&key(1), &value(4))), (false, 2.0));
        assert_eq!(took(&quiet, second.insert(&key(1), &value(5))), (true, 4.0));
        assert_eq!(took(&quiet, first.search(&key(1))), (Some(value(5)), 1.0));
        assert_eq!((first.spins(), second.spins()), (0, 0));
    }
}

#[test]
fn writers_spin_without_a_pause() {
    let shape = shape(2, 1);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let directory = InProcessRpc::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED));
    let first = session(&quiet, &directory, shape);
    let second = session(&quiet, &directory, shape);
    took(&quiet, first.insert(&key(1), &value(1)));
    took(&quiet, second.search(&key(1)));
    let sim = quiet.rack.sim();
    let mut executor = Executor::new(sim);
    for session in [&first, &second] {
        executor.spawn(sim.process("client"), async move {
            assert!(session.update(&key(1), &value(2)).await.unwrap());
        });
    }
    executor.run(1_000, || ());
    drop(executor);
    // The first writer holds the lock for three phases, of which the last releases it. In each of them the second
    // writer spins.
    assert_eq!(first.spins() + second.spins(), 3);
}

/// The offset of the first key's place on its first node.
const LOCK: u64 = POOL_HEADER_BYTES;

/// WRITEs one word without the lock, as an unfinished write does.
async fn scribble(fabric: &SimFabric, node: fusee_core::verbs::MnId, offset: u64, word: u64) {
    let mut batch = VerbBatch::new();
    let span = batch.stage(8);
    batch.bytes_mut(span).copy_from_slice(&word.to_le_bytes());
    batch.write(node, offset, span);
    fabric.execute(batch).await.check().unwrap();
}

#[test]
fn a_search_waits_for_the_lock_and_the_sum() {
    let shape = shape(1, 1);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let directory = InProcessRpc::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED));
    let session = session(&quiet, &directory, shape);
    took(&quiet, session.insert(&key(1), &value(7)));
    let fabric = quiet.fabric();
    let node = quiet.rack.nodes()[0];
    // The test makes first the lock wrong, then a word of the value.
    for (offset, wrong, right) in [(LOCK, 1, 0), (LOCK + 16 + 8, 8, 7)] {
        quiet.phases(scribble(&fabric, node, offset, wrong));
        let before = session.spins();
        let sim = quiet.rack.sim();
        let mut executor = Executor::new(sim);
        executor.spawn(sim.process("reader"), async {
            assert_eq!(session.search(&key(1)).await, Ok(Some(value(7))));
        });
        executor.spawn(sim.process("writer"), async {
            sim.sleep(5 * crate::support::PHASE_NS).await;
            scribble(&fabric, node, offset, right).await;
        });
        executor.run(1_000, || ());
        drop(executor);
        assert_eq!(session.spins() - before, 5);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let shape = shape(1, 1);
    let quiet = QuietRack::new(3, shape.pool_bytes());
    let directory = InProcessRpc::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED));
    let session = session(&quiet, &directory, shape);
    let refused = |length| Err(BaselineError::Length(length));
    assert_eq!(quiet.phases(session.insert(b"short", &value(1))).0, refused("key"));
    assert_eq!(quiet.phases(session.insert(&key(1), b"short")).0, refused("value"));
    assert_eq!(quiet.phases(session.update(&key(1), b"short")).0, refused("value"));
    took(&quiet, session.insert(&key(1), &value(1)));
    assert_eq!(quiet.phases(session.insert(&key(2), &value(1))).0, Err(BaselineError::Full));
}
