//! Tests of verbs alone: doorbells and completions, verbs that are held back, sleep, leases, hellos, and the
//! fabrics that a node can combine.
//!
//! They need an RDMA device, of which `tests/rdma/run` provides two. Without one they only print that they are
//! skipped, or fail if `FUSEE_RDMA_REQUIRED` is 1.

// Promise FAB-9

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fusee_core::layout::LAYOUT_VERSION;
use fusee_core::verbs::{ClientId, Fabric, MAX_BATCH_VERBS, MnId, VerbBatch, VerbError};
use fusee_fabric::driver::DriverOptions;
use fusee_fabric::verbs::{NicCounts, VerbsFabric};
use fusee_fabric::{
    AnyFabric, AttachCause, FabricKind, NodeFabrics, NodeFabricsOptions, RdmaError, ServeError,
    attach_all,
};
use support::wire::{ANSWER_BYTES, VERBS, call, key, rest, say_hello};
use support::{
    START, Scratch, Served, block_on, loopback, member, options, rdma_device, verbs_node,
};

const NODES: [MnId; 2] = [MnId(0), MnId(1)];
const POOL_BYTES: u64 = 2 << 20;

fn nodes() -> Option<[Served; 2]> {
    rdma_device().map(|_| NODES.map(|_| verbs_node(POOL_BYTES)))
}

/// Opens a session with both nodes. The session spins for completions for this time before it sleeps.
fn session(nodes: &[Served; 2], client: u32, spin: Duration) -> AnyFabric {
    let options = DriverOptions { spin, ..DriverOptions::default() };
    let fabric = VerbsFabric::new(ClientId(client), options).unwrap();
    for (name, served) in NODES.into_iter().zip(nodes) {
        fabric
            .attach(name, served.identity, &served.fabrics.verbs_addr().unwrap().to_string())
            .unwrap();
    }
    AnyFabric::Verbs(fabric)
}

fn counts(fabric: &AnyFabric) -> NicCounts {
    let AnyFabric::Verbs(verbs) = fabric else { panic!("not verbs") };
    verbs.counts()
}

/// Runs a batch. Returns the counts of the NIC's work for it.
fn cost(fabric: &AnyFabric, batch: VerbBatch) -> NicCounts {
    let before = counts(fabric);
    block_on(fabric, fabric.execute(batch)).check().unwrap();
    let after = counts(fabric);
    NicCounts {
        posts: after.posts - before.posts,
        verbs: after.verbs - before.verbs,
        signals: after.signals - before.signals,
        completions: after.completions - before.completions,
        waits: after.waits - before.waits,
        inline: after.inline - before.inline,
    }
}

/// A phase costs one doorbell, one signal and one completion for each queue pair.
#[test]
fn a_batch_is_one_doorbell_and_one_completion_for_each_node() {
    let Some(nodes) = nodes() else { return };
    let fabric = session(&nodes, 1, Duration::from_micros(50));
    let once = |nodes: u64, verbs: u64| NicCounts {
        posts: nodes,
        verbs,
        signals: nodes,
        completions: nodes,
        ..NicCounts::default()
    };
    // The phase of a SEARCH with a hint: READs of the slot and of its object.
    let mut batch = VerbBatch::new();
    batch.read(NODES[0], START + 64, 8);
    batch.read(NODES[0], START + 4096, 1024);
    assert_eq!(cost(&fabric, batch), once(1, 2));
    // The phases of an UPDATE: WRITEs of its object to two nodes with READs of slot and old object from one of
    // them; then the CASes.
    let mut batch = VerbBatch::new();
    let object = batch.stage(1024);
    for node in NODES {
        batch.write(node, START + 8192, object);
    }
    batch.read(NODES[0], START + 64, 8);
    batch.read(NODES[0], START + 4096, 128);
    assert_eq!(cost(&fabric, batch), once(2, 4));
    let mut batch = VerbBatch::new();
    for node in NODES {
        batch.cas(node, START + 64, 0, 0);
    }
    assert_eq!(cost(&fabric, batch), once(2, 2));
    // In a batch with the largest number of verbs, one in 128 is signalled.
    let mut batch = VerbBatch::new();
    for at in 0..MAX_BATCH_VERBS as u64 / 2 {
        for node in NODES {
            batch.read(node, START + at * 8, 8);
        }
    }
    let verbs = MAX_BATCH_VERBS as u64;
    let told = verbs / 128;
    let full = NicCounts { signals: told, completions: told, ..once(2, verbs) };
    assert_eq!(cost(&fabric, batch), full);
    // A READ of no bytes causes no work for the NIC.
    let mut batch = VerbBatch::new();
    batch.read(NODES[0], START + 64, 0);
    assert_eq!(cost(&fabric, batch), NicCounts::default());
}

/// Small WRITEs are posted inline. A WRITE that starts within a word is cut at the end of that word.
#[test]
fn small_writes_are_inline_and_words_are_not_cut() {
    let Some(nodes) = nodes() else { return };
    let fabric = session(&nodes, 1, Duration::from_micros(50));
    let mut batch = VerbBatch::new();
    let small = batch.stage(64);
    let large = batch.stage(4096);
    batch.write(NODES[0], START + 64, small);
    batch.write(NODES[0], START + 4096, large);
    let cost_aligned = cost(&fabric, batch);
    assert_eq!((cost_aligned.verbs, cost_aligned.inline, cost_aligned.posts), (2, 1, 1));
    let mut batch = VerbBatch::new();
    let large = batch.stage(4096);
    batch.write(NODES[0], START + 4099, large);
    let cost = cost(&fabric, batch);
    assert_eq!((cost.verbs, cost.inline, cost.posts, cost.signals), (2, 1, 1, 1));
}

/// Only verbs that a NIC could execute too early are held back. Each such wait costs one more doorbell.
// Promise FAB-15: Over verbs, only verbs that could overtake wait; ended nodes are noticed.
#[test]
fn what_could_pass_an_earlier_verb_waits_for_it() {
    let Some(nodes) = nodes() else { return };
    let fabric = session(&nodes, 1, Duration::from_micros(50));
    let waits = |post: fn(&mut VerbBatch)| {
        let mut batch = VerbBatch::new();
        post(&mut batch);
        let cost = cost(&fabric, batch);
        assert_eq!(cost.posts, 1 + cost.waits);
        cost.waits
    };
    const MN: MnId = NODES[0];
    assert_eq!(
        waits(|b| {
            b.faa(MN, START, 0);
            b.read(MN, START, 8);
            b.read(MN, START + 8, 8);
        }),
        0
    );
    assert_eq!(
        waits(|b| {
            b.read(MN, START, 8);
            b.faa(MN, START, 0);
            b.faa(MN, START + 8, 0);
        }),
        1
    );
    assert_eq!(
        waits(|b| {
            let word = b.stage(8);
            b.faa(MN, START, 0);
            b.read(MN, START, 8);
            b.write(MN, START + 64, word);
            b.write(MN, START + 64, word);
            b.cas(MN, START + 64, 0, 0);
        }),
        1
    );
    assert_eq!(
        waits(|b| {
            let word = b.stage(8);
            b.write(MN, START + 64, word);
            b.cas(MN, START + 64, 1, 1);
            b.read(MN, START + 64, 8);
        }),
        0
    );
    assert_eq!(
        waits(|b| {
            let word = b.stage(8);
            for _ in 0..3 {
                b.read(MN, START + 64, 8);
                b.write(MN, START + 64, word);
                b.write(MN, START + 64, word);
            }
        }),
        3
    );
}

/// Each completion wakes a session that sleeps without spinning.
#[test]
fn completions_wake_a_session_that_sleeps() {
    let Some(nodes) = nodes() else { return };
    let fabric = session(&nodes, 1, Duration::ZERO);
    for round in 0..500 {
        let mut batch = VerbBatch::new();
        let tickets = NODES.map(|node| batch.faa(node, START, 1));
        let batch = block_on(&fabric, fabric.execute(batch));
        assert_eq!(tickets.map(|ticket| batch.found(ticket).unwrap()), [round; 2]);
    }
}

/// Another thread can wake a session that has nothing in flight.
#[test]
fn a_waker_wakes_a_session_that_sleeps() {
    let Some(nodes) = nodes() else { return };
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fabric = session(&nodes, 1, Duration::ZERO);
            send.send(fabric.waker()).unwrap();
            let started = Instant::now();
            fabric.turn(None);
            assert!(started.elapsed() < Duration::from_secs(10));
        });
        let waker = receive.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
}

fn wait_for_sessions(served: &Served, sessions: u64) {
    let started = Instant::now();
    while served.fabrics.attached_clients() != sessions {
        assert!(started.elapsed() < Duration::from_secs(5), "not {sessions} sessions");
        std::thread::yield_now();
    }
}

/// A queue pair ends with its session.
#[test]
fn a_session_that_ends_is_forgotten() {
    let Some(nodes) = nodes() else { return };
    for client in 1..20 {
        let fabric = session(&nodes, client, Duration::ZERO);
        wait_for_sessions(&nodes[0], 1);
        if client % 2 == 0 {
            fabric.detach(NODES[0]);
        }
        drop(fabric);
        wait_for_sessions(&nodes[0], 0);
        wait_for_sessions(&nodes[1], 0);
    }
}

/// A session learns that its node has ended by the end of the lease connection, even while it posts nothing.
// Promise FAB-15
#[test]
fn a_node_that_ends_is_noticed() {
    let Some([first, second]) = nodes() else { return };
    let nodes = [first, second];
    let fabric = session(&nodes, 1, Duration::ZERO);
    let [first, second] = nodes;
    drop(first);
    fabric.turn(Some(Duration::from_secs(5)));
    let mut batch = VerbBatch::new();
    let gone = batch.faa(NODES[0], START, 1);
    let there = batch.faa(NODES[1], START, 1);
    let started = Instant::now();
    let batch = block_on(&fabric, fabric.execute(batch));
    assert_eq!(batch.found(gone).unwrap_err().error, VerbError::Unreachable);
    assert_eq!(batch.found(there), Ok(0));
    assert!(started.elapsed() < Duration::from_secs(1));
    drop(second);
}

/// The processor's atomics and those of most NICs are not atomic with each other, so one pool must not be served by
/// both.
#[test]
fn a_pool_is_served_by_cards_or_by_processors() {
    let Some(found) = rdma_device() else { return };
    if !found.is_software {
        // Written to stderr directly, because the test harness captures the output of `println`.
        let _told = Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED: only of software RoCE it is known here that it must be alone\n"),
        );
        return;
    }
    let verbs = Some((found.address.unwrap(), 0).into());
    let scratch = Scratch::new();
    for (tcp, shm) in [(Some(loopback()), None), (None, Some(scratch.socket()))] {
        let both = NodeFabricsOptions { verbs, tcp, shm, ..options(POOL_BYTES) };
        let error = NodeFabrics::start(both).unwrap_err();
        assert!(matches!(error, ServeError::AtomicsNotShared { .. }), "{error}");
        assert!(error.to_string().contains(&found.device), "{error}");
    }
    scratch.assert_empty();
    // Not even for a session of the node's own process is the processor allowed to execute verbs.
    let served = verbs_node(POOL_BYTES);
    for kind in [FabricKind::Shm, FabricKind::Tcp] {
        let error = attach_all(kind, ClientId(1), &[member(NODES[0], &served)]).unwrap_err();
        assert!(matches!(error.cause, AttachCause::NotOffered), "{error}");
    }
}

#[test]
fn a_node_without_verbs_says_so() {
    let served = support::node(POOL_BYTES, None);
    let error =
        attach_all(FabricKind::Verbs, ClientId(1), &[member(NODES[0], &served)]).unwrap_err();
    assert!(matches!(error.cause, AttachCause::NotOffered), "{error}");
}

/// Without a device, node and session both say what is missing.
// Promise FAB-11: Without libibverbs or a device, all else works.
#[test]
fn a_machine_without_a_device_says_what_is_missing() {
    if rdma_device().is_some() {
        return;
    }
    let verbs = Some(loopback());
    let error =
        NodeFabrics::start(NodeFabricsOptions { verbs, ..options(POOL_BYTES) }).unwrap_err();
    let ServeError::Rdma(missing) = error else { panic!("{error}") };
    assert!(matches!(missing, RdmaError::NoLibrary { .. } | RdmaError::NoDevice), "{missing}");
    // The session notices the missing device after a listener has accepted its connection, so any listener is
    // enough.
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let mut at = member(NODES[0], &support::node(POOL_BYTES, None));
    at.verbs = Some(listener.local_addr().unwrap().to_string());
    let error = attach_all(FabricKind::Verbs, ClientId(1), &[at]).unwrap_err();
    assert!(matches!(&error.cause, AttachCause::Rdma(cause) if *cause == missing), "{error}");
}

/// Sends bytes to a node. Returns the node's answer, up to the end of the connection.
fn say(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(served.fabrics.verbs_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(bytes).unwrap();
    rest(&mut stream).unwrap()
}

/// Sends a hello behind a valid proof, and then `more`, to a node. Returns the node's answer, up to the end of the
/// connection.
fn say_proved(served: &Served, hello: &[u8], more: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(served.fabrics.verbs_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    say_hello(&mut stream, VERBS, &key(served.identity), hello);
    let _ = stream.write_all(more);
    rest(&mut stream).unwrap()
}

/// Returns a hello in the format of `docs/fabric.md`.
fn hello(identity: u64, client: u32, mtu: u8) -> Vec<u8> {
    let mut bytes = VERBS.to_vec();
    bytes.extend(key(identity).name().to_le_bytes());
    bytes.extend(client.to_le_bytes());
    bytes.extend(LAYOUT_VERSION.to_le_bytes());
    bytes.extend([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, mtu, 1]);
    bytes.extend([0; 16]);
    bytes
}

/// A connection that does not begin with a call and a hello is closed, and other sessions are not affected.
#[test]
fn strangers_are_sent_away() {
    let Some(nodes) = nodes() else { return };
    let fabric = session(&nodes, 1, Duration::ZERO);
    let identity = nodes[0].identity;
    let no_answer: [&[u8]; 4] =
        [b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\n\r\n", &[0; 48], &[0xff; 400], &[]];
    for bytes in no_answer {
        assert_eq!(say(&nodes[0], bytes), [], "{bytes:?}");
    }
    // The first hello has the client id that cannot be fenced, the second an MTU that no NIC has.
    assert_eq!(say_proved(&nodes[0], &hello(identity, 0, 3), &[]), []);
    assert_eq!(say_proved(&nodes[0], &hello(identity, 2, 9), &[]), []);
    let status = |answer: Vec<u8>| (answer.len(), answer.get(24).copied());
    let answer = say(&nodes[0], &call(VERBS, &key(identity ^ 1), [1; 32]));
    assert_eq!((answer.len(), answer[8]), (ANSWER_BYTES, 1), "a call for another node");
    nodes[0].fabrics.fence(&[ClientId(3)]);
    assert_eq!(status(say_proved(&nodes[0], &hello(identity, 3, 3), &[])), (80, Some(1)));
    // The NIC refuses an address that leads nowhere (status 2), or makes a queue pair for it that is never used (status
    // 0). In the second case, the node closes the connection because of the byte that the client sends behind its
    // hello.
    let (bytes, answered) = status(say_proved(&nodes[0], &hello(identity, 4, 3), &[0]));
    assert!(bytes == 80 && (answered == Some(0) || answered == Some(2)), "{bytes} {answered:?}");
    wait_for_sessions(&nodes[0], 1);
    let mut batch = VerbBatch::new();
    batch.faa(NODES[0], START, 1);
    block_on(&fabric, fabric.execute(batch)).check().unwrap();
}
