//! Tests of strangers and broken clients at a switch: each loses its own connection, and other connections go on.

// Promise FAB-24: A steered READ is one request, whatever its length, number or address.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fusee_core::layout::{Address, Identity, Opcode, Pair, SizeClass, Slot};
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch};
use fusee_core::view::Member;
use fusee_fabric::tcp::TcpSwitch;
use fusee_fabric::tcp::frame::{
    MAX_BODY_BYTES, TcpHello, TcpHelloStatus, TcpWelcome, WELCOME_BYTES,
};
use fusee_fabric::{SwitchLocation, attach_all_through};
use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};
use support::wire::{ANSWER_BYTES, TCP, ask, call, key, say_hello};
use support::{block_on, member, node};

const MN: MnId = MnId(0);
const BYTES: u64 = 1 << 20;

/// Reads all that is left until the other side closes the connection.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("it does not close: {error}"),
    }
}

/// Starts a switch in the path to the memory node. The switch has room for a few slots.
fn start(at: &Member) -> TcpSwitch {
    let name = key(at.identity).name();
    let known = (MN, at.tcp.clone().unwrap());
    let find = Box::new(move |asked| (asked == name).then(|| known.clone()));
    let ours = Box::new(FuseeSwitch::new(FuseeSwitchOptions { slots: 4, rounds: 0 }));
    TcpSwitch::start("127.0.0.1:0".parse().unwrap(), ours, find).unwrap()
}

/// A long READ that can be steered is sent whole, because the switch would decide about pieces one by one.
#[test]
fn a_long_read_that_may_be_steered_is_asked_for_as_a_whole() {
    const SLOT: u64 = 8192;
    const OBJECT: u64 = 512 << 10;
    const PIECE: u32 = 128 << 10;
    let served = node(BYTES, None);
    let at = member(MN, &served);
    let switch = start(&at);
    let through = SwitchLocation::Address(switch.addr().to_string());
    let fabric = attach_all_through(&through, ClientId(1), &[at]).unwrap();
    let read = |offset: u64, bytes: u32, is_steered: bool| {
        let mut batch = VerbBatch::new();
        let ticket = if is_steered {
            batch.steered(MN, offset, bytes)
        } else {
            batch.read(MN, offset, bytes)
        };
        let batch = block_on(&fabric, fabric.execute(batch));
        batch.data(ticket).unwrap().to_vec()
    };
    // The switch learns that READs of this slot can be steered, and the address to which the slot leads.
    read(SLOT, 64, true);
    let address = Address::new(64);
    let class = SizeClass::fitting(PIECE.into()).unwrap();
    let identity = Identity::new(address, 3);
    let value: Vec<u8> = (0..PIECE - 64).map(|at| (at / 7) as u8).collect();
    let mut object = vec![0; PIECE as usize];
    Pair { key: b"key", value: &value, identity, opcode: Opcode::Update }.encode(&mut object);
    let mut batch = VerbBatch::new();
    let span = batch.stage(PIECE);
    batch.bytes_mut(span).copy_from_slice(&object);
    batch.write(MN, OBJECT, span);
    batch.cas(MN, SLOT, 0, Slot::new(7, class, address, 3).0);
    block_on(&fabric, fabric.execute(batch));
    for bytes in [PIECE, PIECE + 64, 3 * PIECE - 64] {
        // The switch does not steer a READ that is longer than the object that it has seen.
        let (goes_to, steered) = if bytes == PIECE { (OBJECT, 1) } else { (SLOT, 0) };
        let before = switch.counts();
        let brought = read(SLOT, bytes, true);
        let counts = switch.counts();
        let asked = (counts.asked - before.asked, counts.steered - before.steered);
        assert_eq!(asked, (1, steered), "{bytes} bytes");
        assert!(brought == read(goes_to, bytes, false), "{bytes} bytes");
    }
}

// Promise SEC-9: A switch cuts off only the connection that misbehaves.
#[test]
fn who_sends_what_no_client_sends_is_sent_away() {
    let served = node(BYTES, None);
    let at = member(MN, &served);
    let own = key(at.identity);
    let switch = start(&at);
    let address = switch.addr().to_string();
    let fabric =
        attach_all_through(&SwitchLocation::Address(address.clone()), ClientId(1), &[at]).unwrap();
    let lives = || {
        let mut batch = VerbBatch::new();
        let read = batch.read(MN, 8192, 8);
        block_on(&fabric, fabric.execute(batch)).data(read).unwrap();
    };
    lives();

    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: me\r\n\r\n").unwrap();
    assert_eq!(rest(&mut stranger), b"");

    let mut other = TcpStream::connect(&address).unwrap();
    let answer = ask(&mut other, &call(TCP, &key(served.identity ^ 1), [1; 32]));
    assert_eq!((answer.len(), answer[8]), (ANSWER_BYTES, 1), "it knows no such node");
    assert_eq!(rest(&mut other), b"");

    let mut long = (MAX_BODY_BYTES as u32 + 8).to_le_bytes().to_vec();
    long.extend([0; 12]);
    let mut no_verbs = 16u32.to_le_bytes().to_vec();
    no_verbs.extend([0xff; 28]);
    let mut half = 4096u32.to_le_bytes().to_vec();
    half.extend([1; 40]);
    for (client, bytes) in [(3, long), (4, no_verbs), (5, half)] {
        let mut broken = TcpStream::connect(&address).unwrap();
        say_hello(&mut broken, TCP, &own, &TcpHello { client: ClientId(client) }.encode());
        let mut welcome = [0; WELCOME_BYTES];
        broken.read_exact(&mut welcome).unwrap();
        assert_eq!(TcpWelcome::decode(&welcome).unwrap().status, TcpHelloStatus::Welcome);
        broken.write_all(&bytes).unwrap();
        broken.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(rest(&mut broken), b"", "client {client}");
    }
    lives();
    let begun = std::time::Instant::now();
    while switch.connections() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(30), "connections stay");
        std::thread::sleep(Duration::from_millis(5));
    }
}
