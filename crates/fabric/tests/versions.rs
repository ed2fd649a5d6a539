//! Sessions and memory nodes of other versions: each side learns which one is too old.
//!
//! The hellos here are bytes, of versions that were before and of some that may come: what a program
//! says first is understood for ever.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use fusee_core::layout::LAYOUT_VERSION;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::version::{End, VersionError};
use fusee_core::view::Member;
use fusee_fabric::{AttachCause, FabricKind, attach_all};
use support::wire::dial;
use support::{START, Scratch, member, node};

const MN: MnId = MnId(0);
const WAIT: Duration = Duration::from_secs(30);

/// What a node says to these bytes before it closes the connection.
fn said(mut stream: impl Read + Write, bytes: &[u8]) -> Vec<u8> {
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    // A reset is the end, too.
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
    let old = |magic: &[u8; 8]| {
        [&magic[..], &served.identity.to_le_bytes(), &[1, 0, 0, 0], &[0; 4]].concat()
    };
    // As the version before had it, and the beginnings of what may come.
    for hello in [old(b"FUSEtcp1"), b"FUSEtcp3".to_vec(), b"FUSEtcp9 and more".to_vec()] {
        let welcome = said(dial(&served), &hello);
        assert_eq!((welcome.len(), &welcome[..8]), (32, &b"FUSEtcp2"[..]));
        // No welcome: the node's identity is for those who may come in.
        assert_eq!((&welcome[8..24], welcome[24]), (&[0; 16][..], 4));
    }
    for hello in [old(b"FUSEsm01"), b"FUSEsm03".to_vec(), b"FUSEsm99".to_vec()] {
        let welcome = said(socket(), &hello);
        assert_eq!((welcome.len(), &welcome[..8], welcome[24]), (32, &b"FUSEsm02"[..], 5));
    }
    // The same protocol, and another layout of pools.
    for layout in [LAYOUT_VERSION - 1, LAYOUT_VERSION + 1] {
        let with_layout = |magic| {
            let mut hello = old(magic);
            hello[20..].copy_from_slice(&layout.to_le_bytes());
            hello
        };
        for welcome in [
            said(dial(&served), &with_layout(b"FUSEtcp2")),
            said(socket(), &with_layout(b"FUSEsm02")),
        ] {
            assert_eq!(welcome[28..], LAYOUT_VERSION.to_le_bytes());
            assert!([4, 5].contains(&welcome[24]), "{welcome:?}");
        }
    }
    // Others get nothing.
    for hello in [&b"FUSEtcpx"[..], b"FUSExyz2", b"GET / HTTP/1.1"] {
        assert_eq!((said(dial(&served), hello), said(socket(), hello)), (vec![], vec![]));
    }
    assert_eq!(served.fabrics.attached_clients(), 0);
}

/// What a session says of nodes that answer so.
fn answered(tcp: &[u8], shm: &[u8]) -> [AttachCause; 2] {
    let scratch = Scratch::new();
    let (listener, path) = (TcpListener::bind("127.0.0.1:0").unwrap(), scratch.socket());
    let address = listener.local_addr().unwrap().to_string();
    let sockets = UnixListener::bind(&path).unwrap();
    let (tcp, shm) = (tcp.to_vec(), shm.to_vec());
    let over_tcp = std::thread::spawn(move || greet(listener.accept().unwrap().0, &tcp));
    let over_shm = std::thread::spawn(move || greet(sockets.accept().unwrap().0, &shm));
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

fn greet(mut stream: impl Read + Write, welcome: &[u8]) {
    stream.read_exact(&mut [0; 24]).unwrap();
    stream.write_all(welcome).unwrap();
}

#[test]
fn a_session_tells_nodes_of_other_versions_apart() {
    let welcome = |magic: &[u8; 8], layout: u32| {
        let mut welcome = [0; 32];
        welcome[..8].copy_from_slice(magic);
        welcome[28..].copy_from_slice(&layout.to_le_bytes());
        welcome
    };
    let own = End::Client;
    let tcp = |theirs| VersionError { what: "the TCP protocol", own, current: 2, theirs };
    let shm = |theirs| VersionError { what: "the shared-memory protocol", own, current: 2, theirs };
    let current = LAYOUT_VERSION;
    let layout = |theirs| VersionError { what: "the layout of pools", own, current, theirs };
    for (answers, expected) in [
        // As the version before answers; and the beginning of what may come is enough.
        ([welcome(b"FUSEtcp1", 0).to_vec(), welcome(b"FUSEsm01", 0).to_vec()], [tcp(1), shm(1)]),
        ([b"FUSEtcp7".to_vec(), b"FUSEsm31".to_vec()], [tcp(7), shm(31)]),
        (
            [b"FUSEtcp2", b"FUSEsm02"].map(|magic| welcome(magic, current + 1).to_vec()),
            [layout(current + 1); 2],
        ),
        (
            [b"FUSEtcp2", b"FUSEsm02"].map(|magic| welcome(magic, current - 1).to_vec()),
            [layout(current - 1); 2],
        ),
    ] {
        let causes = answered(&answers[0], &answers[1]);
        for (cause, expected) in causes.iter().zip(expected) {
            assert!(matches!(cause, AttachCause::Version(found) if *found == expected), "{cause}");
        }
    }
    assert_eq!(
        tcp(1).to_string(),
        "this client speaks the TCP protocol 2, the server 1: upgrade the server"
    );
}

/// One that a switch is in front of learns it as well.
#[test]
fn a_switch_tells_sessions_of_other_versions_which_one_it_is() {
    use fusee_fabric::tcp::TcpSwitch;
    use fusee_switch::ours::{Options, Ours};
    let ours = Box::new(Ours::new(Options { slots: 4, rounds: 0 }));
    let switch =
        TcpSwitch::start("127.0.0.1:0".parse().unwrap(), ours, Box::new(|_| None)).unwrap();
    for hello in [&b"FUSEtcp1"[..], b"FUSEtcp3"] {
        let stream = TcpStream::connect(switch.addr()).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        assert_eq!(said(stream, hello)[..8], *b"FUSEtcp2");
    }
}
