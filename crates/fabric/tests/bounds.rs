//! Tests of the bounds on the resources of a memory node that strangers and broken clients can hold. The node
//! serves others meanwhile.
//!
//! The memory that strangers cost is measured on whole processes, in `crates/fusee/tests/strangers.rs`.

// Promise SEC-4: Strangers hold a bounded part of fabric servers.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use fusee_core::verbs::{ClientId, Fabric, MAX_VERB_BYTES, MnId, VerbBatch, VerbError};
use fusee_fabric::tcp::frame::{self, HEADER_BYTES, VERB_BYTES, WireOp, WireVerb};
use fusee_fabric::{
    AnyFabric, AttachCause, FabricKind, NodeFabrics, NodeFabricsOptions, NodeLimits, attach_all,
};
use support::wire::{SHM, dial, greet, key, rest, say_hello, shm_hello};
use support::{START, Scratch, Served, block_on, loopback, member, options};

const MN: MnId = MnId(0);
/// A limit that no step of these tests reaches, even on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);
const POOL_BYTES: u64 = 32 << 20;

fn node(limits: NodeLimits, shm: Option<&Scratch>) -> Served {
    let shm = shm.map(Scratch::socket);
    let options = NodeFabricsOptions { tcp: Some(loopback()), shm, ..options(POOL_BYTES) };
    let identity = options.identity;
    Served { fabrics: NodeFabrics::start_limited(options, limits).unwrap(), identity }
}

/// Sends at most a half of a WRITE of 16 MiB, as much of it as the socket accepts.
fn write_half(stream: &mut TcpStream) {
    let body = VERB_BYTES + MAX_VERB_BYTES as usize;
    stream.set_nonblocking(true).unwrap();
    stream.write_all(&frame::request_header(body, 1, 1)).unwrap();
    let data = vec![0; MAX_VERB_BYTES as usize / 2];
    let mut sent = 0;
    while sent < data.len() {
        match stream.write(&data[sent..]) {
            Ok(n) => sent += n,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    stream.set_nonblocking(false).unwrap();
}

fn is_open(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let open = loop {
        match stream.read(&mut bytes) {
            Ok(0) => break false,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    };
    stream.set_nonblocking(false).unwrap();
    open
}

fn session(served: &Served, client: u32) -> AnyFabric {
    attach_all(FabricKind::Tcp, ClientId(client), &[member(MN, served)]).unwrap()
}

/// Executes a WRITE and a READ of `len` bytes.
fn copy(fabric: &AnyFabric, len: usize) -> Result<(), VerbError> {
    let mut batch = VerbBatch::new();
    let data = batch.stage(len as u32);
    batch.bytes_mut(data).fill(7);
    batch.write(MN, START, data);
    let read = batch.read(MN, START, len as u32);
    let batch = block_on(fabric, fabric.execute(batch));
    batch.verbs().iter().try_for_each(|verb| verb.result)?;
    assert!(batch.data(read).unwrap().iter().all(|byte| *byte == 7));
    Ok(())
}

/// Executes a WRITE and a READ of the largest size, each in one frame, so that each takes memory of the node's
/// budget. Sessions of this crate would send such verbs in pieces.
fn copy_in_one(stream: &mut TcpStream) {
    let data = vec![7; MAX_VERB_BYTES as usize];
    let write = WireVerb { offset: START, op: WireOp::Write(&data) };
    let read = WireVerb { offset: START, op: WireOp::Read(MAX_VERB_BYTES) };
    for (verb, body, reply) in [(write, data.len(), 0), (read, 0, data.len())] {
        let mut bytes = frame::request_header(VERB_BYTES + body, 1, 1).to_vec();
        frame::encode_verb(verb, |piece| bytes.extend_from_slice(piece));
        stream.write_all(&bytes).unwrap();
        let mut bytes = vec![0; HEADER_BYTES + reply];
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes[HEADER_BYTES..].iter().all(|byte| *byte == 7));
    }
}

#[test]
fn long_frames_that_do_not_come_whole_go_when_others_need_the_memory() {
    let limits = NodeLimits {
        frame_bytes: 24 << 20,
        patience: Duration::from_millis(300),
        ..NodeLimits::default()
    };
    let served = node(limits, None);
    let honest = session(&served, 100);
    let mut first = greet(&served, 1);
    write_half(&mut first);
    // Other sessions go on meanwhile. A connection with an incomplete frame is not closed while it delays no other
    // connection.
    copy(&honest, 1 << 20).unwrap();
    assert!(is_open(&mut first));
    // The node's budget does not suffice for two long frames, so the stuck connection is closed.
    copy_in_one(&mut greet(&served, 101));
    assert!(!is_open(&mut first));
    let mut half: Vec<TcpStream> = (2..8).map(|client| greet(&served, client)).collect();
    half.iter_mut().for_each(write_half);
    copy(&honest, 1 << 20).unwrap();
    let end = Instant::now() + WAIT;
    while half.iter_mut().any(is_open) {
        // While a connection waits for memory, the connections that hold memory are closed one after the other. The
        // last one delays no other connection, so it stays open.
        if half.iter_mut().filter_map(|stream| is_open(stream).then_some(())).count() == 1 {
            break;
        }
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
    copy(&honest, 1 << 20).unwrap();
}

#[test]
fn replies_that_nobody_fetches_go_when_others_need_the_memory() {
    let limits = NodeLimits {
        frame_bytes: 24 << 20,
        patience: Duration::from_millis(300),
        ..NodeLimits::default()
    };
    let served = node(limits, None);
    let honest = session(&served, 100);
    let mut whole = greet(&served, 101);
    let mut lazy: Vec<TcpStream> = (1..5).map(|client| greet(&served, client)).collect();
    for stream in &mut lazy {
        let mut bytes = frame::request_header(VERB_BYTES, 1, 1).to_vec();
        let read = WireVerb { offset: START, op: WireOp::Read(MAX_VERB_BYTES) };
        frame::encode_verb(read, |piece| bytes.extend_from_slice(piece));
        stream.write_all(&bytes).unwrap();
    }
    copy(&honest, 1 << 20).unwrap();
    // Each connection that does not fetch its reply, except the last one, is closed when another connection needs the
    // memory of that reply.
    let end = Instant::now() + WAIT;
    let mut got = vec![0; lazy.len()];
    while got.iter().filter(|got| **got > 0).count() < 3 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(100));
        copy_in_one(&mut whole);
        for (stream, got) in lazy.iter_mut().zip(&mut got) {
            // A connection that was closed delivers the bytes in the socket's buffers, and then its end.
            if *got == 0 && !is_open(stream) {
                *got = 1;
            }
        }
    }
}

#[test]
fn sessions_are_bounded_for_each_address_and_the_refused_are_told_so() {
    let served = node(NodeLimits { sessions_per_peer: 3, ..NodeLimits::default() }, None);
    let mut sessions: Vec<AnyFabric> = (1..4).map(|client| session(&served, client)).collect();
    let refused = || attach_all(FabricKind::Tcp, ClientId(9), &[member(MN, &served)]).unwrap_err();
    let error = refused();
    assert!(matches!(error.cause, AttachCause::Full), "{error}");
    assert_eq!(served.fabrics.attached_clients(), 3);
    for fabric in &sessions {
        copy(fabric, 8).unwrap();
    }
    drop(sessions.pop());
    let end = Instant::now() + WAIT;
    while served.fabrics.attached_clients() == 3 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(5));
    }
    copy(&session(&served, 10), 8).unwrap();
}

#[test]
fn silent_connections_make_room_for_who_says_hello() {
    let scratch = Scratch::new();
    let served = node(NodeLimits { newcomers: 20, ..NodeLimits::default() }, Some(&scratch));
    let silent: Vec<TcpStream> = (0..100).map(|_| dial(&served)).collect();
    copy(&session(&served, 1), 8).unwrap();
    drop(silent);
    let path = served.fabrics.shm_path().unwrap();
    let silent: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    say_hello(&mut socket, SHM, &key(served.identity), &shm_hello(1));
    // This status refuses a client in the node's own process. So the node has read the hello.
    assert_eq!(rest(&mut socket).unwrap()[16..20], [2, 0, 0, 0]);
    drop(silent);
}
