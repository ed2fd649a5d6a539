//! Tests of sessions and memory nodes of different versions: each side learns which side is too old.
//!
//! The hellos here are bytes of earlier versions and of possible later ones. The meaning of a hello's first bytes
//! never changes.

// Promise API-23

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use fusee_core::layout::LAYOUT_VERSION;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::version::{ConnectionEnd, VersionError};
use fusee_core::view::Member;
use fusee_fabric::{AttachCause, FabricKind, attach_all};
use support::wire::{CALL_BYTES, SHM, TCP, dial, hear_hello, key, rest, say_hello};
use support::{START, Scratch, member, node};

const MN: MnId = MnId(0);
const WAIT: Duration = Duration::from_secs(30);

/// Sends these bytes to a node. Returns the node's answer, up to the end of the connection.
fn said(mut stream: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset ends the connection, too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn a_node_tells_sessions_of_other_versions_which_one_it_is() {
    let scratch = Scratch::new();
    let served = node(2 * START, Some(scratch.socket()));
    let path = served.fabrics.shm_path().unwrap();
    let socket = || {
        let socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(WAIT)).unwrap();
        socket
    };
    // A hello of earlier versions, which began with the node's identity.
    let old = |magic: &[u8; 8]| {
        [&magic[..], &served.identity.to_le_bytes(), &[1, 0, 0, 0], &[0; 4]].concat()
    };
    let refusal = |magic: &[u8; 8]| [&magic[..], &[2, 0, 0, 0], &[0; 64]].concat();
    // The first bytes that later versions could send.
    let others = [&b"FUSEtcp4"[..], b"FUSEtcp9 and more"].map(<[u8]>::to_vec);
    for hello in [old(b"FUSEtcp1"), old(b"FUSEtcp2")].into_iter().chain(others) {
        assert_eq!(said(dial(&served), &hello), refusal(TCP));
    }
    let others = [&b"FUSEsm04"[..], b"FUSEsm99"].map(<[u8]>::to_vec);
    for hello in [old(b"FUSEsm01"), old(b"FUSEsm02")].into_iter().chain(others) {
        assert_eq!(said(socket(), &hello), refusal(SHM));
    }
    // Hellos with the current protocol and another layout of pools.
    for layout in [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1] {
        let hello = |magic: &[u8; 8]| [&magic[..], &[1, 0, 0, 0], &layout.to_le_bytes()].concat();
        let mut tcp = dial(&served);
        let mut shm = socket();
        say_hello(&mut tcp, TCP, &key(served.identity), &hello(TCP));
        say_hello(&mut shm, SHM, &key(served.identity), &hello(SHM));
        for (welcome, status) in [(rest(&mut tcp).unwrap(), 3), (rest(&mut shm).unwrap(), 4)] {
            assert_eq!(welcome[20..], LAYOUT_VERSION.to_le_bytes());
            assert_eq!((&welcome[8..16], welcome[16]), (&[0; 8][..], status));
        }
    }
    // Peers that do not use the protocol get no answer.
    for hello in [&b"FUSEtcpx"[..], b"FUSExyz2", b"GET / HTTP/1.1"] {
        assert_eq!((said(dial(&served), hello), said(socket(), hello)), (vec![], vec![]));
    }
    assert_eq!(served.fabrics.attached_clients(), 0);
}

/// Returns a session's errors at nodes with these answers, which come at once or, if `proves`, behind a valid
/// proof.
fn answered(tcp: &[u8], shm: &[u8], proves: bool) -> [AttachCause; 2] {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = scratch.socket();
    let address = listener.local_addr().unwrap().to_string();
    let sockets = UnixListener::bind(&path).unwrap();
    let tcp = tcp.to_vec();
    let shm = shm.to_vec();
    let over_tcp = std::thread::spawn(move || {
        greet(listener.accept().unwrap().0, proves.then_some(TCP), &tcp);
    });
    let over_shm = std::thread::spawn(move || {
        greet(sockets.accept().unwrap().0, proves.then_some(SHM), &shm);
    });
    let served = node(2 * START, None);
    let other = Member {
        identity: 1,
        tcp: Some(address),
        shm: Some(path.to_str().unwrap().to_owned()),
        ..member(MN, &served)
    };
    let causes = [FabricKind::Tcp, FabricKind::Shm]
        .map(|kind| attach_all(kind, ClientId(1), std::slice::from_ref(&other)).unwrap_err().cause);
    over_tcp.join().unwrap();
    over_shm.join().unwrap();
    std::fs::remove_file(path).unwrap();
    causes
}

fn greet(mut stream: impl Read + Write, proves: Option<&'static [u8; 8]>, welcome: &[u8]) {
    match proves {
        Some(magic) => drop(hear_hello(&mut stream, magic, &key(1), 16)),
        None => stream.read_exact(&mut [0; CALL_BYTES]).unwrap(),
    }
    stream.write_all(welcome).unwrap();
}

#[test]
fn a_session_tells_nodes_of_other_versions_apart() {
    let welcome =
        |magic: &[u8; 8], layout: u32| [&magic[..], &[0; 12], &layout.to_le_bytes()].concat();
    let own = ConnectionEnd::Client;
    let tcp = |theirs| VersionError { what: "the TCP protocol", own, current: 3, theirs };
    let shm = |theirs| VersionError { what: "the shared-memory protocol", own, current: 3, theirs };
    let current = LAYOUT_VERSION;
    let layout = |theirs| VersionError { what: "the layout of pools", own, current, theirs };
    for (answers, proves, expected) in [
        // The first case has answers of the previous version, the second case the beginnings of answers of later
        // versions.
        ([welcome(b"FUSEtcp2", 0), welcome(b"FUSEsm02", 0)], false, [tcp(2), shm(2)]),
        ([b"FUSEtcp7".to_vec(), b"FUSEsm31".to_vec()], false, [tcp(7), shm(31)]),
        ([TCP, SHM].map(|magic| welcome(magic, current + 1)), true, [layout(current + 1); 2]),
        ([TCP, SHM].map(|magic| welcome(magic, current - 1)), true, [layout(current - 1); 2]),
    ] {
        let causes = answered(&answers[0], &answers[1], proves);
        for (cause, expected) in causes.iter().zip(expected) {
            assert!(matches!(cause, AttachCause::Version(found) if *found == expected), "{cause}");
        }
    }
    assert_eq!(
        tcp(1).to_string(),
        "this client speaks the TCP protocol 3, the server 1: upgrade the server"
    );
}

/// A switch tells a session of another version its own version, as a node does.
#[test]
fn a_switch_tells_sessions_of_other_versions_which_one_it_is() {
    use fusee_fabric::tcp::TcpSwitch;
    use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};
    let ours = Box::new(FuseeSwitch::new(FuseeSwitchOptions { slots: 4, rounds: 0 }));
    let switch =
        TcpSwitch::start("127.0.0.1:0".parse().unwrap(), ours, Box::new(|_| None)).unwrap();
    for hello in [&b"FUSEtcp2"[..], b"FUSEtcp4"] {
        let stream = TcpStream::connect(switch.addr()).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        assert_eq!(said(stream, hello)[..8], *TCP);
    }
}
