//! Tests of shared memory alone: socket files, the registry of this process's nodes, strangers at the socket.
//! Sessions across processes are in the conformance test.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch, VerbError};
use fusee_fabric::tcp::DEFAULT_SPIN;
use fusee_fabric::{
    AttachCause, FabricKind, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions, ServeError,
    attach_all,
};
use support::wire::{SHM, key, rest, say_hello, shm_hello};
use support::{START, Scratch, block_on, member, node, unique};

const MN: MnId = MnId(0);

fn options(identity: u64, shm: Option<std::path::PathBuf>) -> NodeFabricsOptions {
    let pool = Pool::new(PoolOptions { bytes: 2 * START, huge_pages: false }).unwrap();
    NodeFabricsOptions {
        pool,
        identity,
        tcp: None,
        spin: DEFAULT_SPIN,
        shm,
        verbs: None,
        steered: false,
        tls: None,
        keys: None,
    }
}

#[test]
fn the_socket_file_goes_with_the_node() {
    let scratch = Scratch::new();
    let served = node(2 * START, Some(scratch.socket()));
    assert!(served.fabrics.shm_path().unwrap().exists());
    drop(served);
    scratch.assert_empty();
}

#[test]
fn a_socket_with_somebody_behind_it_is_in_use() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let _first = node(2 * START, Some(path.clone()));
    let error = NodeFabrics::start(options(unique(), Some(path.clone()))).unwrap_err();
    assert!(matches!(&error, ServeError::AddressInUse { at } if *at == path.to_str().unwrap()));
    assert!(path.exists(), "the loser has removed the winner's socket");
}

#[test]
fn a_socket_with_nobody_behind_it_is_replaced() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let served = node(2 * START, Some(path));
    assert_eq!(served.fabrics.attached_clients(), 0);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    fs::write(&path, "precious").unwrap();
    let error = NodeFabrics::start(options(unique(), Some(path.clone()))).unwrap_err();
    assert!(matches!(error, ServeError::NotASocket { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_socket_put_in_the_place_of_ours_stays() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let served = node(2 * START, Some(path.clone()));
    // The other socket is made before the old one is removed, so that the other socket cannot get the inode of the old
    // one.
    let other = scratch.socket();
    let _listener = UnixListener::bind(&other).unwrap();
    fs::rename(&other, &path).unwrap();
    drop(served);
    assert!(path.exists());
}

/// When a cleaner of temporary files has removed the socket file, the node makes it again, so that new sessions
/// find the node.
// Promise FAB-25: A removed socket file comes back; clients without it say so.
#[test]
fn a_socket_file_that_goes_is_made_again() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let served = node(2 * START, Some(path.clone()));
    for other in [None, Some("precious")] {
        fs::remove_file(&path).unwrap();
        if let Some(other) = other {
            fs::write(&path, other).unwrap();
        }
        let started = Instant::now();
        let is_heard = || {
            let Ok(mut socket) = UnixStream::connect(&path) else { return false };
            say_hello(&mut socket, SHM, &key(served.identity), &shm_hello(1));
            rest(&mut socket).unwrap().len() == 24
        };
        let mut was_gone = false;
        while !is_heard() {
            was_gone |= served.fabrics.is_socket_gone();
            if was_gone && other.is_some() && path.exists() {
                // The node leaves the other file alone as long as it exists.
                assert_eq!(fs::read(&path).unwrap(), b"precious");
                fs::remove_file(&path).unwrap();
            }
            assert!(started.elapsed() < Duration::from_secs(30), "it does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!served.fabrics.is_socket_gone());
        assert_eq!(was_gone, other.is_some(), "what is told while it cannot be made");
    }
    drop(served);
    scratch.assert_empty();
}

#[test]
fn an_identity_serves_once() {
    let identity = unique();
    let first = NodeFabrics::start(options(identity, None)).unwrap();
    let error = NodeFabrics::start(options(identity, None)).unwrap_err();
    assert!(matches!(error, ServeError::IdentityInUse { .. }), "{error}");
    drop(first);
    NodeFabrics::start(options(identity, None)).unwrap();
}

/// A session with a node of this process needs no socket. When the node has ended, the session's verbs fail.
#[test]
fn sessions_of_this_process_attach_by_identity_and_end_with_the_node() {
    let served = node(2 * START, None);
    let at = [member(MN, &served)];
    let fabric = attach_all(FabricKind::Shm, ClientId(1), &at).unwrap();
    assert_eq!(served.fabrics.attached_clients(), 1);
    let add = || {
        let mut batch = VerbBatch::new();
        batch.faa(MN, START, 1);
        block_on(&fabric, fabric.execute(batch)).verbs()[0].result
    };
    assert_eq!(add(), Ok(()));
    drop(served);
    assert_eq!(add(), Err(VerbError::Unreachable));
    let error = attach_all(FabricKind::Shm, ClientId(1), &at).unwrap_err();
    assert!(matches!(error.cause, AttachCause::NotOffered), "{error}");
}

#[test]
fn a_session_that_is_dropped_is_forgotten() {
    let served = node(2 * START, None);
    let fabric = attach_all(FabricKind::Shm, ClientId(1), &[member(MN, &served)]).unwrap();
    fabric.detach(MN);
    assert_eq!(served.fabrics.attached_clients(), 0);
    let again = attach_all(FabricKind::Shm, ClientId(1), &[member(MN, &served)]).unwrap();
    assert_eq!(served.fabrics.attached_clients(), 1);
    drop(again);
    assert_eq!(served.fabrics.attached_clients(), 0);
}

#[test]
fn another_node_at_the_path_is_told_apart() {
    let scratch = Scratch::new();
    let served = node(2 * START, Some(scratch.socket()));
    let mut at = member(MN, &served);
    at.identity += 1 << 20;
    let error = attach_all(FabricKind::Shm, ClientId(1), &[at.clone()]).unwrap_err();
    assert!(matches!(error.cause, AttachCause::WrongIdentity), "{error}");
    assert!(error.to_string().contains(at.shm.as_deref().unwrap()), "{error}");
    drop(served);
    let error = attach_all(FabricKind::Shm, ClientId(1), &[at]).unwrap_err();
    assert!(matches!(error.cause, AttachCause::Unreachable(_)), "{error}");
}

/// A client that sends nothing, or garbage, loses its connection and delays no other client.
#[test]
fn strangers_at_the_socket_are_sent_away() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let served = node(2 * START, Some(path.clone()));
    // One of five attempts must be quick. Others can be slow because the machine stands still meanwhile.
    let is_held_up = || {
        let started = Instant::now();
        let mut silent = UnixStream::connect(&path).unwrap();
        let mut noisy = UnixStream::connect(&path).unwrap();
        noisy.write_all(&[b'x'; 48]).unwrap();
        let mut rest = Vec::new();
        noisy.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        noisy.read_to_end(&mut rest).unwrap();
        let took = started.elapsed();
        silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        silent.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        took >= Duration::from_secs(1)
    };
    assert!((0..5).any(|_| !is_held_up()), "a silent client holds others up");
    assert_eq!(served.fabrics.attached_clients(), 0);
}

/// A node's own process must attach by the registry, because a fence over the socket could kill it together with its
/// node.
#[test]
fn the_nodes_own_process_is_refused_at_the_socket() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let served = node(2 * START, Some(path.clone()));
    let mut socket = UnixStream::connect(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    say_hello(&mut socket, SHM, &key(served.identity), &shm_hello(1));
    let welcome = rest(&mut socket).unwrap();
    assert_eq!((welcome.len(), &welcome[16..20]), (24, &[2, 0, 0, 0][..]));
    assert_eq!(served.fabrics.attached_clients(), 0);
}
