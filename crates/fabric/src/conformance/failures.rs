//! Guarantees 4 and 5: what happens when nodes fail, and when clients are fenced.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusee_core::ended_clients::LiveClients;
use fusee_core::verbs::{ClientId, MnId, VerbBatch, VerbError, VerbOp};

use super::{NODES, PATIENCE, Rig, RigSession, START};
use crate::error::AttachCause;

/// The time within which a session has to notice that a node has failed.
const NOTICE: Duration = Duration::from_secs(5);

/// A verb to a node that the session is not attached to fails; the other verbs of the batch complete.
pub(super) fn unknown_nodes_are_unreachable<R: Rig>(rig: &R) {
    let session = RigSession::new(rig, 1);
    let mut batch = VerbBatch::new();
    let before = batch.faa(NODES[0], START, 1);
    let unknown = batch.faa(MnId(99), START, 1);
    let after = batch.faa(NODES[1], START, 1);
    let batch = session.run(batch);
    assert_eq!((batch.found(before), batch.found(after)), (Ok(0), Ok(0)));
    assert_eq!(batch.found(unknown).unwrap_err().error, VerbError::Unreachable);
}

/// One of two nodes fails under load. Verbs to the failed node fail, within a bounded time and for ever. Verbs to
/// the other node complete, each exactly once.
pub(super) fn a_node_fails<R: Rig>(rig: &R) {
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            let session = RigSession::new(rig, 1);
            let mut failed_at = None;
            let mut done = 0;
            let started = Instant::now();
            while failed_at.is_none_or(|at: u64| done < at + 100) {
                let mut batch = VerbBatch::new();
                let good = batch.faa(NODES[0], START, 1);
                let bad = batch.faa(NODES[1], START, 1);
                let batch = session.run(batch);
                assert_eq!(batch.found(good), Ok(done));
                done += 1;
                match batch.found(bad) {
                    Ok(found) => {
                        assert!(failed_at.is_none(), "the failed node is back");
                        assert_eq!(found, done - 1);
                    }
                    Err(failure) => {
                        assert_eq!(failure.error, VerbError::Unreachable);
                        failed_at.get_or_insert(done);
                    }
                }
                rounds.store(done, Ordering::Release);
                assert!(started.elapsed() < PATIENCE, "the failure is never noticed");
            }
        });
        wait_for(|| rounds.load(Ordering::Acquire) >= 50);
        rig.kill(NODES[1]);
        let killed = Instant::now();
        hammer.join().expect("no panic");
        assert!(killed.elapsed() < NOTICE, "the failure was noticed late");
    });
    // A new attempt to attach to the failed node fails too, within a bounded time.
    let started = Instant::now();
    let error = rig.attach(ClientId(2)).err().expect("a dead node refuses");
    assert_eq!(error.node, NODES[1]);
    assert!(started.elapsed() < NOTICE);
}

/// Before the fence all verbs of the client succeed. After the fence none succeeds: no verb in flight, no new verb,
/// and no verb of a new session. Other clients and other nodes are not affected.
pub(super) fn a_fenced_client_is_out<R: Rig>(rig: &R) {
    let fenced = RigSession::new(rig, 1);
    let other = RigSession::new(rig, 2);
    let both = |session: &RigSession<'_, R>| {
        let mut batch = VerbBatch::new();
        batch.faa(NODES[0], START, 1);
        batch.faa(NODES[1], START, 1);
        session.run(batch)
    };
    both(&fenced).check().unwrap();
    both(&other).check().unwrap();
    rig.fence(NODES[0], ClientId(1));
    let batch = both(&fenced);
    assert_fenced(batch.verbs()[0].result);
    assert_eq!(batch.verbs()[1].result, Ok(()));
    let batch = both(&other);
    batch.check().unwrap();
    assert_eq!(batch.verbs()[0].op, VerbOp::Faa { add: 1, found: 2 });
    assert_eq!(batch.verbs()[1].op, VerbOp::Faa { add: 1, found: 3 });
    assert_client_fenced(rig, ClientId(1));
    // A master's list of living clients fences all other clients with smaller ids than its bound.
    if rig.learn(NODES[0], &LiveClients::of([ClientId(2)], ClientId(5))) {
        both(&other).check().unwrap();
        [1, 3, 4].into_iter().for_each(|client| assert_client_fenced(rig, ClientId(client)));
        both(&RigSession::new(rig, 5)).check().unwrap();
    }
}

fn assert_client_fenced<R: Rig>(rig: &R, client: ClientId) {
    let started = Instant::now();
    loop {
        match rig.attach(client) {
            Err(error) => {
                assert_eq!(error.node, NODES[0]);
                return assert!(matches!(error.cause, AttachCause::Fenced), "{error}");
            }
            // A server applies the list in its own thread, so a session can still open for a moment.
            Ok(_) => assert!(started.elapsed() < NOTICE, "fenced for ever"),
        }
    }
}

/// Waits until another thread has fulfilled a condition. The wait has a limit, because that thread can panic.
fn wait_for(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "the other thread does not get there");
        std::thread::yield_now();
    }
}

/// Asserts that a verb failed. The reason `Fenced` can get lost on the way to the client.
fn assert_fenced(result: Result<(), VerbError>) {
    let out = [Err(VerbError::Fenced), Err(VerbError::Unreachable)];
    assert!(out.contains(&result), "{result:?}");
}

/// Fences clients while they post verbs as fast as they can, many times over.
///
/// Each batch begins with a long READ, so the fence mostly arrives while a batch is half executed. A fence that
/// does not wait for the rest of the batch is noticed. The memory barrier in the fence over shared memory matters
/// for some nanoseconds only, which this check does not hit; the argument for the barrier is in `shm/gate.rs`.
///
/// A fence can make a NIC stop in the middle of a batch. Then the executed verbs are the batch's first ones, and at
/// most one batch of each client is cut.
pub(super) fn fencing_while_it_hammers<R: Rig>(rig: &R) {
    let watcher = RigSession::new(rig, 1000);
    for client in 1..=60u32 {
        let posted = AtomicU64::new(0);
        let after = std::thread::scope(|scope| {
            scope.spawn(|| hammer(rig, client, &posted));
            wait_for(|| posted.load(Ordering::Acquire) > u64::from(client) / 2);
            rig.fence(NODES[0], ClientId(client));
            watcher.read(NODES[0], START, 64)
        });
        assert_eq!(watcher.read(NODES[0], START, 64), after, "a verb after the fence");
        let counts: Vec<u64> = after
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        assert!(counts.is_sorted_by(|a, b| a >= b), "not in the order posted: {counts:?}");
        let cut = counts[0] - counts[7];
        let may_be_cut = if rig.cuts_batches() { u64::from(client) } else { 0 };
        assert!(cut <= may_be_cut, "{cut} batches of {client} clients are halves: {counts:?}");
    }
}

/// Posts batches until one fails.
fn hammer<R: Rig>(rig: &R, client: u32, posted: &AtomicU64) {
    let session = RigSession::new(rig, client);
    loop {
        let mut batch = VerbBatch::new();
        batch.read(NODES[0], START + 4096, 256 << 10);
        for i in 0..8 {
            batch.faa(NODES[0], START + i * 8, 1);
        }
        let batch = session.run(batch);
        posted.fetch_add(1, Ordering::Release);
        if let Some(last) = batch.verbs().last().filter(|verb| verb.result.is_err()) {
            return assert_fenced(last.result);
        }
    }
}

/// A client that was never attached can be fenced, even twice.
pub(super) fn fencing_a_stranger<R: Rig>(rig: &R) {
    for _ in 0..2 {
        rig.fence(NODES[1], ClientId(77));
    }
    let error = rig.attach(ClientId(77)).err().expect("fenced for ever");
    assert!(matches!(error.cause, AttachCause::Fenced), "{error}");
    RigSession::new(rig, 78).word(NODES[1], START);
}
