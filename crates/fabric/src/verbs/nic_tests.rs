//! Tests of the memory node's NIC alone: the NIC refuses forbidden verbs, and sessions notice its end. The tests
//! bypass the session's own checks, as a malicious client would.
//!
//! They need an RDMA device. Without one they only print that they are skipped, or fail if `FUSEE_RDMA_REQUIRED` is
//! 1.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fusee_auth::NodeKey;
use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::{ClientId, Fabric, MnId, Span, VerbBatch, VerbError, VerbOp};

use super::VerbsFabric;
use super::device::{self, Device, RegisteredMemory, Responder};
use super::ports::SelectedPort;
use super::requester::{NicCompletion, NicRequest, Requester};
use super::wire::{HELLO_BYTES, PROTOCOL, VerbsHello, VerbsHelloStatus, VerbsWelcome};
use crate::challenge::{CALL_BYTES, NodeChallenge, PROOF_BYTES};
use crate::driver::DriverOptions;
use crate::pool::{Pool, PoolOptions, VerbOrder};

const POOL_BYTES: u64 = 64 << 10;
/// The offset of the first byte behind the header.
const START: u64 = POOL_HEADER_BYTES;
const READ: VerbOp = VerbOp::Read { buf: Span { start: 0, len: 8 }, steered: false };
const WRITE: VerbOp = VerbOp::Write { buf: Span { start: 0, len: 8 } };
const FAA: VerbOp = VerbOp::Faa { add: 1, found: 0 };

fn card() -> Option<(Arc<Device>, SelectedPort)> {
    match device::choose(None) {
        Ok(found) => Some(found),
        Err(error) => {
            // Written to stderr directly, because the test harness captures the output of `println`.
            let _told = Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: nothing of cards is tested: {error}\n"),
            );
            let required = std::env::var("FUSEE_RDMA_REQUIRED").is_ok_and(|value| value == "1");
            assert!(!required, "FUSEE_RDMA_REQUIRED is 1: {error}");
            None
        }
    }
}

/// The end of the connection that refuses a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusingEnd {
    /// The session's NIC, which refuses the verb at the doorbell.
    Here,
    /// The memory node's NIC, which refuses the verb or does not answer.
    There,
}

/// A pool, and a requester that is connected to it.
struct NicTestRig {
    requester: Requester,
    responder: Option<Responder>,
    pool: Pool,
    registered: RegisteredMemory,
    _header: RegisteredMemory,
}

impl NicTestRig {
    fn new(card: &(Arc<Device>, SelectedPort)) -> NicTestRig {
        NicTestRig::with_key(card, None)
    }

    /// Connects with `key` as the pool's RDMA key, if it is given.
    fn with_key((device, port): &(Arc<Device>, SelectedPort), key: Option<u32>) -> NicTestRig {
        let pool = Pool::new(PoolOptions { bytes: POOL_BYTES, huge_pages: false }).unwrap();
        let registered = RegisteredMemory::pool(device, &pool).unwrap();
        let mut requester = Requester::new(device, port).unwrap();
        let responder = Responder::new(device, port, &requester.address()).unwrap();
        let header = RegisteredMemory::header(device, &pool).unwrap();
        let key = key.unwrap_or(registered.remote_key());
        let welcome = VerbsWelcome {
            key,
            header_key: header.remote_key(),
            base: header.base(),
            address: responder.address(),
            ..VerbsWelcome::refusal(1, VerbsHelloStatus::Welcome)
        };
        requester.connect(&welcome).unwrap();
        NicTestRig { requester, responder: Some(responder), pool, registered, _header: header }
    }

    /// Posts a verb and waits for its outcome.
    fn post(&mut self, op: VerbOp, offset: u64) -> Result<(), RefusingEnd> {
        self.requester.add(&NicRequest { id: 7, op, len: 8, place: 0, offset });
        self.requester.ring().map_err(|_| RefusingEnd::Here)?;
        let started = Instant::now();
        let mut completion: Option<NicCompletion> = None;
        while completion.is_none() {
            self.requester.poll(|_, found| completion = Some(found)).unwrap();
            assert!(started.elapsed() < Duration::from_secs(20), "nothing comes of it");
            std::thread::yield_now();
        }
        completion.unwrap().failure.map_or(Ok(()), |_| Err(RefusingEnd::There))
    }

    fn word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.pool.read(&mut VerbOrder::default(), offset, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

// Promise FAB-7: A NIC refuses forbidden verbs.
#[test]
fn the_card_refuses_what_is_not_allowed() {
    let Some(card) = card() else { return };
    let mut good = NicTestRig::new(&card);
    assert_eq!(good.post(READ, 16), Ok(()), "the header may be read");
    good.requester.put(0, &7u64.to_le_bytes());
    assert_eq!(good.post(WRITE, POOL_BYTES - 8), Ok(()));
    assert_eq!(good.post(FAA, POOL_BYTES - 8), Ok(()));
    assert_eq!((good.requester.word(0), good.word(POOL_BYTES - 8)), (7, 8));

    let below = 0u64.wrapping_sub(8);
    for (op, offset) in [
        (READ, POOL_BYTES - 7),
        (WRITE, POOL_BYTES - 7),
        (FAA, POOL_BYTES),
        (READ, below),
        (WRITE, below),
        (FAA, below),
        (WRITE, 8),
        (FAA, 8),
        (WRITE, START - 8),
        (READ, START - 4),
        (READ, 1 << 62),
    ] {
        let mut pair = NicTestRig::new(&card);
        assert_eq!(pair.post(op, offset), Err(RefusingEnd::There), "{op:?} at {offset}");
        assert_eq!((pair.word(START), pair.word(8)), (0, 0), "{op:?} at {offset}");
        // The refusal has ended the session's connection.
        pair.post(READ, 0).expect_err("the queue pair is in error");
    }
    // Atomics on unaligned words. Some drivers already refuse these on the session's side.
    for (op, offset) in
        [(FAA, START + 4), (VerbOp::Cas { expected: 0, swap: 1, found: 0 }, START + 12)]
    {
        let mut pair = NicTestRig::new(&card);
        pair.post(op, offset).expect_err("it is not allowed");
        assert_eq!((pair.word(START), pair.word(START + 8)), (0, 0), "{op:?} at {offset}");
    }
}

#[test]
fn a_key_is_needed_and_reaches_its_own_pool_only() {
    let Some(card) = card() else { return };
    let other = NicTestRig::new(&card);
    // The RDMA key of another pool is as useless as an invalid one.
    for key in [0, 1, other.registered.remote_key()] {
        let mut pair = NicTestRig::with_key(&card, Some(key));
        pair.post(READ, START).expect_err("a key of nothing there");
    }
}

/// Guarantee 4: a verb fails within the times that `device` states.
// Promise FAB-8: A silent NIC is given up; NIC and processor see one memory.
#[test]
fn a_card_that_does_not_answer_is_noticed_in_bounded_time() {
    let Some(card) = card() else { return };
    let mut pair = NicTestRig::new(&card);
    pair.post(FAA, START).unwrap();
    pair.responder.take().unwrap().end().unwrap();
    let started = Instant::now();
    pair.post(FAA, START).expect_err("nobody is there");
    let took = started.elapsed();
    assert!(took > Duration::from_millis(100), "given up after {took:?}, so it was not repeated");
    assert!(took < Duration::from_secs(6), "given up after {took:?}");
    assert_eq!(pair.word(START), 1, "a verb after the end of the queue pair");
}

/// The node answers the hello and keeps the TCP connection, but its queue pair was destroyed.
#[test]
fn a_card_that_says_nothing_at_all_is_given_up() {
    let Some((device, port)) = card() else { return };
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap().to_string();
    std::thread::scope(|scope| {
        let node = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut call = [0; CALL_BYTES];
            stream.read_exact(&mut call).unwrap();
            let (answer, challenged) =
                NodeChallenge::new(&PROTOCOL, &NodeKey::new(None, 9), &call).unwrap();
            stream.write_all(&answer).unwrap();
            let mut proof = [0; PROOF_BYTES];
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut proof).unwrap();
            stream.read_exact(&mut hello).unwrap();
            assert!(challenged.is_proved(&proof, &hello));
            let hello = VerbsHello::decode(&hello).unwrap();
            let responder = Responder::new(&device, &port, &hello.address).unwrap();
            let welcome = VerbsWelcome {
                pool_bytes: POOL_BYTES,
                key: 1,
                header_key: 2,
                address: responder.address(),
                ..VerbsWelcome::refusal(hello.node, VerbsHelloStatus::Welcome)
            };
            stream.write_all(&welcome.encode()).unwrap();
            responder.end().unwrap();
            stream
        });
        // This silence is shorter than the time for which NICs repeat a verb.
        let silence = Duration::from_millis(200);
        let options = DriverOptions { silence, ..DriverOptions::default() };
        let fabric = VerbsFabric::new(ClientId(1), options).unwrap();
        fabric.attach(MnId(0), 9, &at).unwrap();
        let _lease = node.join().unwrap();
        let started = Instant::now();
        let mut batch = VerbBatch::new();
        batch.faa(MnId(0), START, 1);
        let mut executing = std::pin::pin!(fabric.execute(batch));
        let waker = fabric.waker();
        let batch = loop {
            match executing.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(batch) => break batch,
                Poll::Pending => fabric.turn(None),
            }
        };
        assert_eq!(batch.verbs()[0].result, Err(VerbError::Unreachable));
        let took = started.elapsed();
        assert!(took >= silence && took < Duration::from_millis(900), "given up after {took:?}");
    });
}

/// A registered pool keeps its pages: the NIC sees what the processor clears, and the processor sees what the NIC
/// writes.
// Promise FAB-8
#[test]
fn card_and_processor_see_one_memory_also_after_it_was_cleared() {
    let Some(card) = card() else { return };
    let mut pair = NicTestRig::new(&card);
    for round in 1..4u64 {
        pair.requester.put(0, &round.to_le_bytes());
        pair.post(WRITE, 8192).unwrap();
        assert_eq!(pair.word(8192), round);
        pair.pool.zero(0, POOL_BYTES);
        pair.requester.put(0, &[1; 8]);
        pair.post(READ, 8192).unwrap();
        assert_eq!(pair.requester.word(0), 0);
        pair.pool.write(&mut VerbOrder::default(), 8192, &[9; 8]).unwrap();
        pair.post(READ, 8192).unwrap();
        assert_eq!(pair.requester.word(0), u64::from_le_bytes([9; 8]));
    }
}
