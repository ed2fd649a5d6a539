//! Tests of hazards that only TCP has: bytes from strangers, peers that stall, ports that are in use.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fusee_core::verbs::{ClientId, Fabric, MAX_VERB_BYTES, MnId, VerbBatch, VerbError};
use fusee_fabric::driver::DriverOptions;
use fusee_fabric::tcp::frame::{
    self, HEADER_BYTES, HELLO_BYTES, MAX_BODY_BYTES, ReplyKind, TcpHello, TcpHelloStatus, TcpReply,
    TcpRequest, TcpWelcome, WireOp, WireVerb,
};
use fusee_fabric::tcp::{DEFAULT_SPIN, TcpFabric, TcpNode};
use fusee_fabric::{AnyFabric, AttachCause, FabricKind, Pool, PoolOptions, ServeError, attach_all};
use futures_util::future::join;
use proptest::prelude::*;
use support::wire::{TCP, dial, greet, hear_hello, key};
use support::{START, Served, block_on, loopback, member, node};

const MN: MnId = MnId(0);
const WAIT: Duration = Duration::from_secs(10);

fn request(id: u64, verbs: &[WireVerb<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    verbs.iter().for_each(|v| frame::encode_verb(*v, |bytes| body.extend_from_slice(bytes)));
    let mut bytes = frame::request_header(body.len(), verbs.len() as u32, id).to_vec();
    bytes.extend_from_slice(&body);
    bytes
}

/// Returns whether the node closes the connection without sending anything.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => rest.is_empty(),
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Returns the first word behind the header, read through a session opened for that.
fn probe(served: &Served) -> u64 {
    let fabric = attach_all(FabricKind::Tcp, ClientId(999), &[member(MN, served)]).unwrap();
    let mut batch = VerbBatch::new();
    let ticket = batch.faa(MN, START, 0);
    block_on(&fabric, fabric.execute(batch)).found(ticket).unwrap()
}

/// If a verb of a frame is bad, a well-formed verb before it must not execute either.
// Promise SEC-5: A misbehaving client loses its connection; the node lives on.
#[test]
fn a_bad_frame_ends_its_connection_executes_nothing_and_leaves_the_node_alive() {
    let served = node(START + 4096, None);
    let good = WireVerb { offset: START, op: WireOp::Faa { add: 1 } };
    let verb = |offset, op| request(1, &[good, WireVerb { offset, op }]);
    let patched = |at: usize, byte: u8| {
        let mut bytes = verb(0, WireOp::Read(8));
        bytes[at] = byte;
        bytes
    };
    let second = HEADER_BYTES + 24;
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("out of bounds", verb(START + 4090, WireOp::Read(8))),
        ("overflow", verb(u64::MAX - 3, WireOp::Write(&[1; 8]))),
        ("in the header", verb(0, WireOp::Write(&[1; 8]))),
        ("in the header", verb(16, WireOp::Faa { add: 1 })),
        ("misaligned", verb(START + 4, WireOp::Cas { expected: 0, swap: 1 })),
        ("misaligned", verb(START + 1, WireOp::Faa { add: 1 })),
        ("too long", verb(0, WireOp::Read(MAX_VERB_BYTES + 1))),
        ("reply too long", {
            let read = WireVerb { offset: START, op: WireOp::Read(MAX_VERB_BYTES) };
            request(1, &[good, read, read])
        }),
        ("opcode", patched(second, 9)),
        ("reserved", patched(second + 1, 1)),
        ("length of an atomic", patched(HEADER_BYTES + 4, 16)),
        ("no verbs", patched(4, 0)),
        ("fewer verbs than bytes", patched(4, 1)),
        ("more verbs than bytes", patched(4, 3)),
        ("too many verbs", patched(6, 1)),
        ("huge body", patched(3, 0xff)),
        ("odd body", patched(0, 41)),
    ];
    for (what, bytes) in bad {
        let mut stream = greet(&served, 1);
        stream.write_all(&bytes).unwrap();
        assert!(is_closed(stream), "{what}");
        assert_eq!(probe(&served), 0, "{what}: a verb in front has executed");
    }
}

#[test]
fn a_frame_that_is_cut_off_executes_nothing() {
    let served = node(START + 4096, None);
    let bytes = request(1, &[WireVerb { offset: START, op: WireOp::Faa { add: 1 } }; 3]);
    for len in [1, HEADER_BYTES, HEADER_BYTES + 24, bytes.len() - 1] {
        let mut stream = greet(&served, 1);
        stream.write_all(&bytes[..len]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(is_closed(stream));
    }
    assert_eq!(probe(&served), 0);
}

#[test]
fn strangers_are_sent_away() {
    let served = node(START + 4096, None);
    let mut http = dial(&served);
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(is_closed(http));
    assert_eq!(served.fabrics.attached_clients(), 0);
    probe(&served);
}

#[test]
fn who_does_not_say_hello_is_sent_away_and_holds_up_nobody() {
    let served = node(START + 4096, None);
    // One of five attempts must be quick. Others can be slow because the machine stands still meanwhile.
    let is_held_up = || {
        let silent = dial(&served);
        let mut slow = dial(&served);
        slow.write_all(&frame::MAGIC).unwrap();
        let started = Instant::now();
        probe(&served);
        let took = started.elapsed();
        assert!(is_closed(silent) && is_closed(slow));
        took >= Duration::from_secs(1)
    };
    assert!((0..5).any(|_| !is_held_up()), "silent clients hold others up");
}

/// A client that posts READs and does not fetch the replies must not fill the node's memory. When it fetches the
/// replies after all, it gets all of them.
#[test]
fn a_client_that_does_not_fetch_its_replies_slows_down_itself_only() {
    const LEN: u32 = 1 << 20;
    const READS: u64 = 256;
    let served = node(2 << 20, None);
    let mut stream = greet(&served, 1);
    let mut writer = stream.try_clone().unwrap();
    let posting = std::thread::spawn(move || {
        for id in 0..READS {
            let read = WireVerb { offset: START, op: WireOp::Read(LEN) };
            let count = WireVerb { offset: START, op: WireOp::Faa { add: 1 } };
            writer.write_all(&request(id, &[count, read])).unwrap();
        }
    });
    let mut before = 0;
    let started = Instant::now();
    // The loop waits until the node has stopped executing READs.
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = probe(&served);
        if now == before && now > 0 {
            break;
        }
        assert!(started.elapsed() < WAIT);
        before = now;
    }
    assert!(before < 32, "the node has executed {before} MiB of READs that nobody fetches");
    let mut bytes = vec![0; HEADER_BYTES + 8 + LEN as usize];
    for id in 0..READS {
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(TcpReply::decode(&bytes).unwrap().unwrap().id, id);
    }
    posting.join().unwrap();
    assert_eq!(probe(&served), READS);
}

#[test]
fn a_port_in_use_is_named() {
    let served = node(START + 4096, None);
    let pool = Pool::new(PoolOptions { bytes: 2 * START, huge_pages: false }).unwrap();
    let addr = served.fabrics.tcp_addr().unwrap();
    let error = TcpNode::start(pool, key(1), addr, DEFAULT_SPIN).unwrap_err();
    assert!(matches!(&error, ServeError::AddressInUse { at } if *at == addr.to_string()));
}

#[test]
fn a_node_that_is_dropped_frees_its_port() {
    let served = node(START + 4096, None);
    let addr = served.fabrics.tcp_addr().unwrap();
    probe(&served);
    drop(served);
    let pool = Pool::new(PoolOptions { bytes: 2 * START, huge_pages: false }).unwrap();
    TcpNode::start(pool, key(1), addr, DEFAULT_SPIN).unwrap();
}

/// Long verbs are sent in pieces, between which the node serves other sessions. The verbs of one session keep their
/// order all the same.
#[test]
fn long_verbs_are_executed_in_order_with_the_others() {
    let served = node(START + 2 * u64::from(MAX_VERB_BYTES), None);
    let fabric = attach_all(FabricKind::Tcp, ClientId(1), &[member(MN, &served)]).unwrap();
    let data_at = START + 64;
    let count_at = START;
    for (round, len) in
        [128 << 10, (128 << 10) + 8, 300_000, MAX_VERB_BYTES].into_iter().enumerate()
    {
        let mut batch = VerbBatch::new();
        let long = batch.stage(len);
        for (number, word) in batch.bytes_mut(long).as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (number as u64 ^ (round as u64) << 32).to_le_bytes();
        }
        let sent = batch.bytes(long).to_vec();
        batch.write(MN, data_at, long);
        let counted = batch.faa(MN, count_at, 1);
        // The READ behind the WRITE must see the WRITE's last word.
        let last = batch.read(MN, data_at + u64::from(len) - 8, 8);
        let all = batch.read(MN, data_at, len);
        let count = batch.read(MN, count_at, 8);
        let batch = block_on(&fabric, fabric.execute(batch));
        batch.check().unwrap();
        assert_eq!(batch.found(counted).unwrap(), round as u64);
        assert_eq!(batch.data(last).unwrap(), &sent[sent.len() - 8..]);
        assert!(batch.data(all).unwrap() == sent, "{len} bytes");
        assert_eq!(batch.data(count).unwrap(), (round as u64 + 1).to_le_bytes());
    }
}

/// If a node stops in the middle of a long verb, the verb fails.
#[test]
fn no_frame_of_a_session_carries_much_of_a_long_verb() {
    const LEN: u32 = 1 << 20;
    let (frames, seen) = std::sync::mpsc::channel();
    let node = peer(move |mut stream| {
        hear_hello(&mut stream, TCP, &key(1), HELLO_BYTES);
        let welcome =
            TcpWelcome { pool_bytes: START + u64::from(LEN), status: TcpHelloStatus::Welcome };
        stream.write_all(&welcome.encode()).unwrap();
        let mut next = START;
        while next < START + u64::from(LEN) {
            let mut bytes = vec![0; HEADER_BYTES];
            stream.read_exact(&mut bytes).unwrap();
            bytes.resize(frame::frame_bytes(&bytes), 0);
            stream.read_exact(&mut bytes[HEADER_BYTES..]).unwrap();
            let request = TcpRequest::decode(&bytes).unwrap().unwrap();
            let verb = request.verbs().next().unwrap();
            let WireOp::Write(data) = verb.op else { panic!("{:?}", verb.op) };
            assert_eq!(verb.offset, next);
            next += data.len() as u64;
            frames.send(bytes.len()).unwrap();
            if next == START + u64::from(LEN) {
                // The node has answered all pieces except the last one.
                return;
            }
            stream.write_all(&frame::reply_header(0, ReplyKind::Results, request.id)).unwrap();
        }
    });
    let fabric = quick();
    fabric.attach(MN, 1, &node).unwrap();
    let fabric = AnyFabric::Tcp(fabric);
    let mut batch = VerbBatch::new();
    let long = batch.stage(LEN);
    batch.write(MN, START, long);
    let batch = block_on(&fabric, fabric.execute(batch));
    assert_eq!(batch.verbs()[0].result, Err(VerbError::Unreachable));
    let frames: Vec<usize> = seen.try_iter().collect();
    assert!(
        frames.len() >= 8 && frames.iter().all(|bytes| *bytes <= (128 << 10) + 64),
        "{frames:?}"
    );
}

#[test]
fn sessions_are_counted_until_they_leave() {
    let served = node(START + 4096, None);
    let fabric = attach_all(FabricKind::Tcp, ClientId(1), &[member(MN, &served)]).unwrap();
    assert_eq!(served.fabrics.attached_clients(), 1);
    drop(fabric);
    let started = Instant::now();
    while served.fabrics.attached_clients() > 0 {
        assert!(started.elapsed() < WAIT);
        std::thread::yield_now();
    }
}

/// The memory node's counts equal the traffic on the wire.
// Promise FAB-26: A memory node counts its requests and bytes over TCP.
#[test]
fn requests_and_their_bytes_are_counted() {
    let served = node(START + 4096, None);
    let fabric = attach_all(FabricKind::Tcp, ClientId(1), &[member(MN, &served)]).unwrap();
    let traffic = || served.fabrics.tcp_traffic();
    assert_eq!((traffic().requests, traffic().bytes), (0, 0));
    for len in [64, 1_024] {
        let before = traffic();
        let mut batch = VerbBatch::new();
        batch.read(MN, START, len);
        let batch = block_on(&fabric, fabric.execute(batch));
        assert_eq!(batch.verbs()[0].result, Ok(()));
        let after = traffic();
        assert_eq!(after.requests, before.requests + 1);
        let bytes = after.bytes - before.bytes - u64::from(len);
        assert!((2 * HEADER_BYTES as u64..100).contains(&bytes), "{bytes} beside {len}");
    }
}

fn quick() -> TcpFabric {
    quick_and_spinning(DEFAULT_SPIN)
}

fn quick_and_spinning(spin: Duration) -> TcpFabric {
    let soon = Duration::from_millis(300);
    TcpFabric::new(ClientId(1), DriverOptions { connect: soon, silence: soon, spin }).unwrap()
}

#[test]
fn who_cannot_be_attached_to_is_told_apart() {
    let served = node(START + 4096, None);
    let addr = served.fabrics.tcp_addr().unwrap().to_string();
    let error = quick().attach(MN, served.identity + 1, &addr).unwrap_err();
    assert!(matches!(error.cause, AttachCause::WrongIdentity), "{error}");
    assert!(error.to_string().contains(&addr), "{error}");
    let identity = served.identity;
    drop(served);
    let error = quick().attach(MN, identity, &addr).unwrap_err();
    assert!(matches!(error.cause, AttachCause::Unreachable(_)), "{error}");
}

/// Starts a peer that calls `act` with each connection. Returns the peer's address.
fn peer(act: impl Fn(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind(loopback()).unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || listener.incoming().flatten().for_each(act));
    addr
}

#[test]
fn other_services_are_no_memory_nodes() {
    let talks = peer(|mut stream| drop(stream.write_all(b"220 smtp.example.org ESMTP\r\n")));
    let hangs_up = peer(drop);
    for addr in [talks, hangs_up] {
        let error = quick().attach(MN, 1, &addr).unwrap_err();
        assert!(matches!(error.cause, AttachCause::NotAMemoryNode), "{error}");
    }
    let silent = peer(std::mem::forget);
    let started = Instant::now();
    let error = quick().attach(MN, 1, &silent).unwrap_err();
    assert!(matches!(error.cause, AttachCause::Unreachable(_)), "{error}");
    assert!(started.elapsed() < 3 * WAIT);
}

/// Starts a peer that sends a welcome, and then `reply` as the answer to the first request.
fn impostor(reply: Vec<u8>) -> String {
    peer(move |mut stream| {
        hear_hello(&mut stream, TCP, &key(1), HELLO_BYTES);
        let welcome = TcpWelcome { pool_bytes: START + 4096, status: TcpHelloStatus::Welcome };
        stream.write_all(&welcome.encode()).unwrap();
        let _request = stream.read(&mut [0; 1024]).unwrap();
        stream.write_all(&reply).unwrap();
        std::mem::forget(stream);
    })
}

#[test]
fn garbage_and_silence_fail_the_verbs_in_flight_and_all_later_ones() {
    let header = |len, id| frame::reply_header(len, ReplyKind::Results, id).to_vec();
    let replies = [
        (vec![0xff; 64], VerbError::Unreachable),
        (header(0, 0), VerbError::Unreachable),
        ([header(16, 0), vec![0; 16]].concat(), VerbError::Unreachable),
        ([header(8, 7), vec![0; 8]].concat(), VerbError::Unreachable),
        (vec![], VerbError::Unreachable),
        (frame::reply_header(0, ReplyKind::Fenced, 0).to_vec(), VerbError::Fenced),
    ];
    for (reply, expected) in replies {
        let what = format!("{:?}", &reply[..reply.len().min(16)]);
        let fabric = quick();
        fabric.attach(MN, 1, &impostor(reply)).unwrap();
        let fabric = AnyFabric::Tcp(fabric);
        for _ in 0..2 {
            let mut batch = VerbBatch::new();
            batch.faa(MN, START, 1);
            let started = Instant::now();
            let batch = block_on(&fabric, fabric.execute(batch));
            assert_eq!(batch.verbs()[0].result, Err(expected), "{what}");
            assert!(started.elapsed() < 3 * WAIT, "{what}");
        }
    }
}

/// Starts a peer that sends a welcome and then nothing more.
fn mute() -> String {
    peer(|mut stream| {
        hear_hello(&mut stream, TCP, &key(1), HELLO_BYTES);
        let welcome = TcpWelcome { pool_bytes: START + 4096, status: TcpHelloStatus::Welcome };
        stream.write_all(&welcome.encode()).unwrap();
        std::mem::forget(stream);
    })
}

/// The silence of one node is noticed even if the session never sleeps, because another node answers all the time.
// Promise FAB-5: A silent node is noticed beside one that answers.
#[test]
fn a_node_may_not_be_silent_because_another_one_is_quick() {
    const SILENT: MnId = MnId(1);
    let served = node(START + 4096, None);
    let fabric = quick_and_spinning(WAIT);
    fabric.attach(SILENT, 1, &mute()).unwrap();
    let addr = served.fabrics.tcp_addr().unwrap().to_string();
    fabric.attach(MN, served.identity, &addr).unwrap();
    let fabric = AnyFabric::Tcp(fabric);
    let post = |node| {
        let mut batch = VerbBatch::new();
        batch.faa(node, START, 1);
        fabric.execute(batch)
    };
    let started = Instant::now();
    let mut silent = pin!(post(SILENT));
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(batch) = silent.as_mut().poll(&mut context) {
            assert_eq!(batch.verbs()[0].result, Err(VerbError::Unreachable));
            return;
        }
        assert_eq!(block_on(&fabric, post(MN)).verbs()[0].result, Ok(()));
        assert!(started.elapsed() < WAIT);
    }
}

/// While a session goes on, memory nodes come and go. The session keeps nothing of nodes that it has left.
// Promise FAB-23: A session keeps nothing of memory nodes that left.
#[test]
fn nodes_that_left_leave_nothing_behind() {
    let served = node(START + 4096, None);
    let fabric = attach_all(FabricKind::Tcp, ClientId(1), &[member(MN, &served)]).unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = None;
    for name in 1..40 {
        let next = node(START + 4096, None);
        let name = MnId(name);
        fabric.attach(&member(name, &next)).unwrap();
        let mut batch = VerbBatch::new();
        batch.faa(MN, START, 1);
        batch.faa(name, START, 1);
        block_on(&fabric, fabric.execute(batch)).check().unwrap();
        // Nodes with even numbers are lost without notice, the others are drained.
        let is_lost = name.0.is_multiple_of(2);
        if !is_lost {
            fabric.detach(name);
        }
        drop(next);
        let mut batch = VerbBatch::new();
        batch.faa(MN, START, 1);
        batch.faa(name, START, 1);
        let batch = block_on(&fabric, fabric.execute(batch));
        let results = batch.verbs().iter().map(|verb| verb.result).collect::<Vec<_>>();
        assert_eq!(results, [Ok(()), Err(VerbError::Unreachable)]);
        fabric.detach(name);
        let AnyFabric::Tcp(tcp) = &fabric else { panic!("not TCP") };
        assert_eq!(tcp.remembered(), 1, "only the node that is there");
        let now = descriptors();
        let first = *before.get_or_insert(now);
        // The limit allows for other tests of this process, which open and close descriptors.
        assert!(now < first + 30, "{now} descriptors, {first} at first");
    }
    assert_eq!(probe(&served), 78);
}

/// Time in which the session did not look does not count as a node's silence, because this process was possibly
/// stopped, and the node with it.
#[test]
fn a_session_that_was_stopped_gives_its_nodes_time() {
    let fabric = quick();
    fabric.attach(MN, 1, &mute()).unwrap();
    let mut batch = VerbBatch::new();
    batch.faa(MN, START, 1);
    let mut context = Context::from_waker(Waker::noop());
    let mut executing = pin!(fabric.execute(batch));
    assert!(executing.as_mut().poll(&mut context).is_pending());
    fabric.turn(Some(Duration::from_millis(10)));
    std::thread::sleep(Duration::from_millis(700));
    let goes_on = Instant::now();
    let batch = loop {
        fabric.turn(Some(Duration::from_millis(10)));
        if let Poll::Ready(batch) = executing.as_mut().poll(&mut context) {
            break batch;
        }
    };
    assert!(goes_on.elapsed() >= Duration::from_millis(250), "{:?}", goes_on.elapsed());
    assert!(goes_on.elapsed() < WAIT);
    assert_eq!(batch.verbs()[0].result, Err(VerbError::Unreachable));
}

/// Two batches wait for a silent node, and a third batch was dropped before. Leaving the node ends the verbs to it,
/// and no others. The node's successor, which has the same number, is not affected.
#[test]
fn leaving_a_node_ends_what_is_in_flight_to_it() {
    const SILENT: MnId = MnId(1);
    let served = node(START + 4096, None);
    let next = node(START + 4096, None);
    for in_turn in [false, true] {
        let fabric = attach_all(FabricKind::Tcp, ClientId(1), &[member(MN, &served)]).unwrap();
        let AnyFabric::Tcp(tcp) = &fabric else { panic!("not TCP") };
        tcp.attach(SILENT, 1, &mute()).unwrap();
        let batch = || {
            let mut batch = VerbBatch::new();
            batch.faa(MN, START, 1);
            batch.faa(SILENT, START, 1);
            batch
        };
        let mut context = Context::from_waker(Waker::noop());
        let mut dropped = Box::pin(fabric.execute(batch()));
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        drop(dropped);
        let both = join(fabric.execute(batch()), fabric.execute(batch()));
        let mut both = pin!(both);
        assert!(both.as_mut().poll(&mut context).is_pending());
        if in_turn {
            fabric.turn(Some(Duration::from_millis(50)));
            assert!(both.as_mut().poll(&mut context).is_pending());
        }
        fabric.detach(SILENT);
        let started = Instant::now();
        let (one, other) = block_on(&fabric, both);
        assert!(started.elapsed() < Duration::from_secs(1), "as soon as the node is left");
        for batch in [one, other] {
            let results = batch.verbs().iter().map(|v| v.result).collect::<Vec<_>>();
            assert_eq!(results, [Ok(()), Err(VerbError::Unreachable)]);
        }
        let late = block_on(&fabric, fabric.execute(batch()));
        assert_eq!(late.verbs()[1].result, Err(VerbError::Unreachable));
        let another = member(SILENT, &next);
        fabric.attach(&another).unwrap();
        block_on(&fabric, fabric.execute(batch())).check().unwrap();
        fabric.leave(WAIT);
        let left = block_on(&fabric, fabric.execute(batch()));
        assert!(left.verbs().iter().all(|v| v.result == Err(VerbError::Unreachable)));
    }
    // Of the five batches in each of two rounds, one was dropped, before or after it was sent.
    assert!((8..=10).contains(&probe(&served)));
    assert_eq!(probe(&next), 2);
}

#[test]
fn a_session_is_woken_from_another_thread() {
    let served = node(4096, Some(std::env::temp_dir().join(format!("{:x}", support::unique()))));
    for kind in [FabricKind::Tcp, FabricKind::Shm] {
        let fabric = attach_all(kind, ClientId(1), &[member(MN, &served)]).unwrap();
        // A wake-up before the turn keeps the turn from sleeping.
        fabric.waker().wake();
        let started = Instant::now();
        fabric.turn(Some(WAIT));
        assert!(started.elapsed() < WAIT / 2, "{kind}");
        // That wake-up is used up, so the next turn sleeps until its time is over.
        let started = Instant::now();
        while started.elapsed() < Duration::from_millis(50) {
            fabric.turn(Some(Duration::from_millis(50)));
        }
        // A wake-up during the turn ends the turn.
        let waker = fabric.waker();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            waker.wake();
        });
        let started = Instant::now();
        fabric.turn(Some(WAIT));
        assert!(started.elapsed() < WAIT / 2, "{kind}");
        other.join().unwrap();
    }
}

fn any_verb() -> impl Strategy<Value = (u64, u8, u64, Vec<u8>)> {
    let offset = prop_oneof![0..10_000u64, any::<u64>()];
    (offset, 0..5u8, any::<u64>(), prop::collection::vec(any::<u8>(), 0..64))
}

fn wire((offset, kind, number, data): &(u64, u8, u64, Vec<u8>)) -> WireVerb<'_> {
    let op = match kind {
        0 => WireOp::Read(*number as u32 % 256),
        1 => WireOp::Write(data),
        2 => WireOp::Cas { expected: *number, swap: !*number },
        3 => WireOp::Steered(*number as u32 % 256),
        _ => WireOp::Faa { add: *number },
    };
    WireVerb { offset: *offset, op }
}

proptest! {
    #[test]
    fn requests_survive_the_wire(
        id: u64,
        verbs in prop::collection::vec(any_verb(), 1..20),
        behind in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let verbs: Vec<WireVerb<'_>> = verbs.iter().map(wire).collect();
        let mut bytes = request(id, &verbs);
        let len = bytes.len();
        for cut in [0, 1, len / 2, len - 1] {
            prop_assert_eq!(TcpRequest::decode(&bytes[..cut]), Ok(None));
        }
        bytes.extend_from_slice(&behind);
        let decoded = TcpRequest::decode(&bytes).unwrap().unwrap();
        prop_assert_eq!((decoded.id, decoded.frame_bytes), (id, len));
        prop_assert_eq!(decoded.verbs().collect::<Vec<_>>(), verbs);
    }

    #[test]
    fn decoders_take_any_bytes(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        plausible: bool,
    ) {
        if plausible && bytes.len() >= HEADER_BYTES {
            let body = (bytes.len() - HEADER_BYTES) / 8 * 8;
            let verbs = u32::from(bytes[4] % 8);
            bytes[..HEADER_BYTES].copy_from_slice(&frame::request_header(body, verbs, 1));
        }
        if let Ok(Some(request)) = TcpRequest::decode(&bytes) {
            prop_assert!(request.frame_bytes <= bytes.len());
            prop_assert!(request.reply_bytes <= MAX_BODY_BYTES);
            prop_assert!(request.verbs().count() >= 1);
        }
        if let Ok(Some(reply)) = TcpReply::decode(&bytes) {
            prop_assert!(reply.frame_bytes <= bytes.len());
        }
        if let Ok(Some(hello)) = TcpHello::decode(&bytes) {
            prop_assert_eq!(&hello.encode()[..], &bytes[..HELLO_BYTES]);
        }
    }
}

/// A node survives frames with random verbs and random damage.
// Promise FAB-6: Any bytes are a frame or an error; the node survives.
#[test]
fn a_live_node_survives_damaged_frames() {
    let served = node(START + 4096, None);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let strategy = (
        prop::collection::vec(any_verb(), 1..6),
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        any::<prop::sample::Index>(),
        any::<bool>(),
    );
    let thrown = runner.run(&strategy, |(verbs, damage, cut, whole)| {
        let verbs: Vec<WireVerb<'_>> = verbs.iter().map(wire).collect();
        let mut bytes = request(1, &verbs);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        let len = if whole { bytes.len() } else { cut.index(bytes.len()) };
        let mut stream = greet(&served, 1);
        // The node can hang up at any point. The probe below shows that the node still runs.
        let _ = stream.write_all(&bytes[..len]);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        Ok(())
    });
    thrown.unwrap();
    probe(&served);
}
