//! Tests of TCP with TLS: it keeps all guarantees of a fabric, a client that uses TLS where the node does not, or the
//! reverse, is told so, and no bytes do harm.

// Promise SEC-12: TLS changes no behaviour; peers of the other kind are told.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch};
use fusee_core::view::Member;
use fusee_fabric::conformance::{self, NODES, POOL_BYTES, Rig, START};
use fusee_fabric::{
    AnyFabric, AttachCause, AttachError, AttachOptions, FabricKind, NodeFabrics,
    NodeFabricsOptions, attach_all, attach_all_with,
};
use fusee_tls::{MaybeTlsStream, TlsSettings};
use support::wire::{TCP, call, key};
use support::{block_on, loopback, member, options};

#[path = "../../tls/src/testing.rs"]
mod testing;
use testing::Certificates;

fn as_server(files: &Certificates) -> TlsSettings {
    TlsSettings::of_server(&files.path("ca"), &files.path("cert"), &files.path("key")).unwrap()
}

fn as_client(files: &Certificates) -> TlsSettings {
    TlsSettings::of_client(&files.path("ca")).unwrap()
}

fn node(name: MnId, tls: Option<TlsSettings>) -> (Member, NodeFabrics) {
    let options = NodeFabricsOptions { tcp: Some(loopback()), tls, ..options(POOL_BYTES) };
    let identity = options.identity;
    let served = support::Served { fabrics: NodeFabrics::start(options).unwrap(), identity };
    (member(name, &served), served.fabrics)
}

fn attach(
    tls: Option<&TlsSettings>,
    client: u32,
    members: &[Member],
) -> Result<AnyFabric, AttachError> {
    let way = AttachOptions { tls, ..AttachOptions::plain(FabricKind::Tcp) };
    attach_all_with(way, ClientId(client), members, &|| true)
}

struct TlsRig {
    members: Vec<Member>,
    nodes: Mutex<Vec<Option<NodeFabrics>>>,
    files: Certificates,
}

impl TlsRig {
    fn new() -> TlsRig {
        let files = Certificates::new();
        let nodes = NODES.map(|name| node(name, Some(as_server(&files))));
        let (members, nodes): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let nodes = Mutex::new(nodes.into_iter().map(Some).collect());
        TlsRig { members, nodes, files }
    }
}

impl Rig for TlsRig {
    type Fabric = AnyFabric;

    fn attach(&self, client: ClientId) -> Result<AnyFabric, AttachError> {
        attach(Some(&as_client(&self.files)), client.0, &self.members)
    }

    fn turn(&self, fabric: &AnyFabric) {
        fabric.turn(Some(Duration::from_millis(10)));
    }

    fn fence(&self, node: MnId, client: ClientId) {
        let nodes = self.nodes.lock().unwrap();
        nodes[usize::from(node.0)].as_ref().expect("not killed").fence(&[client]);
    }

    fn kill(&self, node: MnId) {
        self.nodes.lock().unwrap()[usize::from(node.0)] = None;
    }
}

#[test]
fn it_keeps_what_every_fabric_guarantees() {
    for (name, check) in conformance::checks().into_iter().chain(conformance::fencing_checks()) {
        println!("{name}");
        check(&TlsRig::new());
    }
}

#[test]
fn who_speaks_the_other_way_is_told() {
    let files = Certificates::new();
    let others = Certificates::new();
    let (secured, _node) = node(MnId(0), Some(as_server(&files)));
    let (plain, _plain) = node(MnId(0), None);
    let secured = [secured];
    let plain = [plain];
    let refused = |tls: Option<&TlsSettings>, at: &[Member], says: &str| {
        let error = attach(tls, 1, at).unwrap_err();
        assert!(matches!(&error.cause, AttachCause::Tls(what) if what.contains(says)), "{error}");
    };
    refused(None, &secured, "--tls-ca");
    refused(Some(&as_client(&others)), &secured, "does not believe");
    refused(Some(&as_client(&files)), &plain, "speaks no TLS");
    attach(Some(&as_client(&files)), 1, &secured).unwrap();
    attach_all(FabricKind::Tcp, ClientId(1), &plain).unwrap();
    // A node that has TLS settings, but no certificate, answers without TLS.
    let (half, _half) = node(MnId(0), Some(as_client(&files)));
    attach(None, 1, &[half]).unwrap();
}

#[test]
fn certificates_change_and_sessions_go_on() {
    let files = Certificates::new();
    let (at, _node) = node(MnId(0), Some(as_server(&files)));
    let at = [at];
    let old = as_client(&files);
    let session = attach(Some(&old), 1, &at).unwrap();
    let before = Certificates::new();
    std::fs::copy(files.path("ca"), before.path("ca")).unwrap();
    files.renew();
    std::thread::sleep(fusee_tls::LOOK);
    assert!(attach(Some(&as_client(&before)), 2, &at).is_err());
    attach(Some(&as_client(&files)), 3, &at).unwrap();
    attach(Some(&old), 4, &at).unwrap();
    let mut batch = VerbBatch::new();
    let found = batch.faa(MnId(0), START, 1);
    assert_eq!(block_on(&session, session.execute(batch)).found(found), Ok(0));
}

#[test]
fn whatever_comes_the_node_lives_on() {
    let files = Certificates::new();
    let (at, fabrics) = node(MnId(0), Some(as_server(&files)));
    let tcp = at.tcp.clone().unwrap();
    let connect = || {
        let stream = TcpStream::connect(&tcp).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    let mut stalls = connect();
    stalls.write_all(&[fusee_tls::FIRST_BYTE, 3, 1, 2, 0, 1]).unwrap();
    let mut silent = as_client(&files).dial(&tcp, connect()).unwrap();
    silent.flush().unwrap();
    let begun = Instant::now();
    let mut seed = 3u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    };
    for round in 0..90u8 {
        let mut bytes: Vec<u8> = (0..usize::from(random()) * 300).map(|_| random()).collect();
        let mut stream = match round % 3 {
            0 => as_client(&files).dial(&tcp, connect()).unwrap(),
            1 => {
                bytes.splice(..0, call(TCP, &key(at.identity), [round; 32]));
                as_client(&files).dial(&tcp, connect()).unwrap()
            }
            _ => {
                bytes.insert(0, fusee_tls::FIRST_BYTE);
                MaybeTlsStream::plain(connect())
            }
        };
        let _closed_early = stream.write_all(&bytes).and_then(|()| stream.flush());
        if round % 2 == 0 {
            let _ = stream.read(&mut [0; 1000]);
        }
    }
    // A connection that makes no progress in its handshake is closed.
    for stream in [&mut stalls as &mut dyn Read, &mut silent] {
        let mut rest = Vec::new();
        let _reset_at_most = stream.read_to_end(&mut rest);
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let session = attach(Some(&as_client(&files)), 1, &[at]).unwrap();
    let mut batch = VerbBatch::new();
    let found = batch.faa(MnId(0), START, 1);
    assert!(block_on(&session, session.execute(batch)).found(found).is_ok());
    drop(session);
    let begun = Instant::now();
    while fabrics.attached_clients() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "a session stays");
        std::thread::yield_now();
    }
}
