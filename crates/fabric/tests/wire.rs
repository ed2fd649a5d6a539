//! Tests of a switch on the wire between NICs: the READs that it steers, and the fate of damaged packets.
//!
//! They need RDMA devices at both ends of a wire that only the switch under test closes, as `tests/rdma/run --switch`
//! provides them. Without these devices they only print that they are skipped.

// Promise FAB-18

mod support;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fusee_core::layout::{Address, Identity, Opcode, Pair, SizeClass, Slot};
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch, VerbError};
use fusee_fabric::verbs::{Tamper, TamperStage, WireSwitch};
use fusee_fabric::{AnyFabric, SwitchLocation, attach_all_through};
use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};
use futures_util::future::join_all;
use support::{START, Served, Wire, block_on, member};

const MN: MnId = MnId(0);
const BYTES: u64 = 1 << 20;
const SLOT: u64 = START + 64;
const OBJECT_BYTES: usize = 64;
/// The start of a NIC's packet in a frame: the bytes of Ethernet, IPv4 and UDP are before it.
const BTH: usize = 14 + 20 + 8;
const READ_REQUEST: u8 = 0x0c;

fn switch(wire: &Wire, tamper: Box<Tamper>) -> WireSwitch {
    let switch = Box::new(FuseeSwitch::new(FuseeSwitchOptions { slots: 10, rounds: 0 }));
    WireSwitch::start_tampering(wire.interfaces(), switch, tamper).unwrap()
}

fn session(served: &Served, client: u32) -> AnyFabric {
    attach_all_through(&SwitchLocation::Wire, ClientId(client), &[member(MN, served)]).unwrap()
}

/// Returns an object, and the slot word that leads to it.
fn object(number: u64) -> ([u8; OBJECT_BYTES], Slot) {
    let address = Address::new(number * 64);
    let generation = 3;
    let identity = Identity::new(address, generation);
    let pair = Pair { key: b"key", value: b"value", identity, opcode: Opcode::Update };
    let mut bytes = [0; OBJECT_BYTES];
    pair.encode(&mut bytes);
    (bytes, Slot::new(7, SizeClass::fitting(OBJECT_BYTES as u64).unwrap(), address, generation))
}

/// WRITEs an object, then CASes the slot to a word that leads to it.
fn put(fabric: &AnyFabric, number: u64, at: u64, expected: Slot) {
    let (bytes, word) = object(number);
    let mut batch = VerbBatch::new();
    let staged = batch.stage(OBJECT_BYTES as u32);
    batch.bytes_mut(staged).copy_from_slice(&bytes);
    batch.write(MN, at, staged);
    block_on(fabric, fabric.execute(batch)).check().unwrap();
    let mut batch = VerbBatch::new();
    batch.cas(MN, SLOT, expected.0, word.0);
    block_on(fabric, fabric.execute(batch)).check().unwrap();
}

/// Executes a READ of the slot that can be steered. Returns the bytes that it fetched.
fn ask(fabric: &AnyFabric) -> Vec<u8> {
    let mut batch = VerbBatch::new();
    batch.read(MN, SLOT, 8);
    let steered = batch.steered(MN, SLOT, OBJECT_BYTES as u32);
    let batch = block_on(fabric, fabric.execute(batch));
    batch.data(steered).unwrap().to_vec()
}

#[test]
fn a_read_is_steered_to_where_the_slot_leads() {
    let Some(wire) = Wire::of_this_machine() else { return };
    let switch = switch(&wire, Box::new(|_, _| ()));
    let served = wire.node(BYTES);
    let [reader, writer] = [1, 2].map(|client| session(&served, client));
    assert_eq!(switch.connections(), 2);
    assert_eq!(ask(&reader)[..8], [0; 8], "bytes of the index");
    put(&writer, 1, START + 4096, Slot(0));
    assert_eq!(ask(&reader), object(1).0);
    put(&writer, 2, START + 8192, object(1).1);
    assert_eq!(ask(&reader), object(2).0);
    switch.forget();
    assert_eq!(ask(&reader)[..8], object(2).1.0.to_le_bytes(), "bytes of the index");
    let counts = switch.counts();
    assert_eq!((counts.asked, counts.steered, counts.forgot), (4, 2, 1));
    drop((reader, writer));
    let started = Instant::now();
    while switch.connections() > 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "it does not see that they have gone");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether a frame is a READ that can be steered, as long as `first_read` is not zero.
fn is_steerable(frame: &[u8], first_read: &AtomicU32) -> bool {
    // The READ that can be steered is as long as the object; the other READ of the batch is for 8 bytes.
    frame.len() > BTH + 28
        && frame[BTH] == READ_REQUEST
        && frame[BTH + 24..BTH + 28] == (OBJECT_BYTES as u32).to_be_bytes()
        && first_read.load(Ordering::Relaxed) > 0
}

/// A NIC drops a packet whose checksum is wrong, and the sender repeats it. That holds for steered READs, too,
/// whether a packet was damaged before the switch, or the switch left the old checksum.
#[test]
fn a_packet_that_is_damaged_does_not_pass_for_a_good_one() {
    let Some(wire) = Wire::of_this_machine() else { return };
    const TIMES: u32 = 2;
    for damaged in [TamperStage::Came, TamperStage::Goes] {
        let left = Arc::new(AtomicU32::new(0));
        let theirs = left.clone();
        let mut checksum = None;
        let tamper = move |frame: &mut [u8], stage: TamperStage| {
            if !is_steerable(frame, &theirs) {
                return;
            }
            match (damaged, stage) {
                // The test damages a reserved bit, which the switch does not read.
                (TamperStage::Came, TamperStage::Came) => {
                    frame[BTH + 8] ^= 1;
                    theirs.fetch_sub(1, Ordering::Relaxed);
                }
                (TamperStage::Goes, TamperStage::Came) => {
                    checksum = frame.last_chunk::<4>().copied()
                }
                (TamperStage::Goes, TamperStage::Goes) => {
                    let stale = checksum.take().expect("it has come");
                    assert_ne!(frame.last_chunk(), Some(&stale), "it was steered");
                    let at = frame.len() - 4;
                    frame[at..].copy_from_slice(&stale);
                    theirs.fetch_sub(1, Ordering::Relaxed);
                }
                (TamperStage::Came, TamperStage::Goes) => {}
            }
        };
        let switch = switch(&wire, Box::new(tamper));
        let served = wire.node(BYTES);
        let fabric = session(&served, 1);
        ask(&fabric);
        put(&fabric, 1, START + 4096, Slot(0));
        left.store(TIMES, Ordering::Relaxed);
        // The NIC repeats the READ until one is not damaged.
        assert_eq!(ask(&fabric), object(1).0, "{damaged:?}");
        assert_eq!(left.load(Ordering::Relaxed), 0, "{damaged:?}: a damaged packet was taken");
        assert_eq!(switch.counts().steered, 1, "what is sent again goes where it went");
    }
}

/// When the switch ends, the wire is cut, and the session fails. With the next switch, a new session works.
#[test]
fn without_the_switch_a_session_fails_and_with_the_next_one_it_works() {
    let Some(wire) = Wire::of_this_machine() else { return };
    let first = switch(&wire, Box::new(|_, _| ()));
    let served = wire.node(BYTES);
    let fabric = session(&served, 1);
    put(&fabric, 1, START + 4096, Slot(0));
    drop(first);
    fabric.set_silence(Duration::from_millis(500));
    let mut batch = VerbBatch::new();
    let read = batch.read(MN, SLOT, 8);
    let failed = block_on(&fabric, fabric.execute(batch));
    assert_eq!(failed.data(read).unwrap_err().error, VerbError::Unreachable);
    let _next = switch(&wire, Box::new(|_, _| ()));
    let fabric = session(&served, 2);
    assert_eq!(ask(&fabric)[..8], object(1).1.0.to_le_bytes());
}

/// If packets are lost, Linux' software RoCE sometimes completes verbs without their results. Sessions then report
/// the node as unreachable, and never report a result that a verb has not found.
// Promise FAB-21: Over software RoCE, no verb without a result counts as done.
#[test]
fn where_packets_are_lost_no_verb_says_what_it_has_not_found() {
    let Some(wire) = Wire::of_this_machine() else { return };
    const WORDS: u64 = 8;
    let mut random = 1u64;
    let tamper = move |frame: &mut [u8], stage: TamperStage| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // One in fifty packets of NICs is damaged.
        let is_roce = frame.len() > BTH + 16 && frame[36..38] == 4791u16.to_be_bytes();
        if is_roce && stage == TamperStage::Came && (random >> 33).is_multiple_of(50) {
            frame[BTH + 8] ^= 1;
        }
    };
    let _switch = switch(&wire, Box::new(tamper));
    let served = wire.node(BYTES);
    let started = Instant::now();
    let mut client = 1;
    let done = Cell::new(0);
    let mut lost = 0;
    // The values that each word can have: a CAS without an answer was possibly executed.
    let words = RefCell::new([[0u64; 2]; WORDS as usize]);
    while started.elapsed() < Duration::from_secs(10) {
        let fabric = session(&served, client);
        client += 1;
        let one = async |at: u64| {
            for _ in 0..50 {
                let [word, perhaps] = words.borrow()[at as usize];
                let place = START + 4096 + at * 64;
                let mut batch = VerbBatch::new();
                let bytes = batch.stage(64);
                batch.write(MN, place + 32_768, bytes);
                let cas = batch.cas(MN, place, word, word + 1);
                let batch = fabric.execute(batch).await;
                let Ok(found) = batch.found(cas) else {
                    words.borrow_mut()[at as usize] = [word, word + 1];
                    return 1;
                };
                assert!(found == word || found == perhaps, "found {found} in place of {word}");
                let next = if found == word { word + 1 } else { perhaps };
                words.borrow_mut()[at as usize] = [next, next];
                done.set(done.get() + 1);
            }
            0
        };
        let all = block_on(&fabric, join_all((0..WORDS).map(one)));
        lost += all.into_iter().sum::<u32>();
    }
    println!("{} CASes were answered, {lost} were not", done.get());
    assert!(done.get() > 50 && lost > 0);
}
