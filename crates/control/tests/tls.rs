//! Control connections over TLS: if only one end speaks TLS, both ends learn it; certificates can be replaced; and
//! proofs are valid only for their own connection.

// Promise SEC-12

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fusee_auth::{Keyring, PeerKind, Secret};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{
    Caller, Limits, NodeClient, NodeService, RpcError, Runtime, Server, bind, serve_limited,
};
use fusee_tls::{MaybeTlsStream, TlsSettings};

#[path = "../../tls/src/testing.rs"]
mod testing;
use testing::Certificates;

fn as_server(files: &Certificates) -> Option<TlsSettings> {
    Some(
        TlsSettings::of_server(&files.path("ca"), &files.path("cert"), &files.path("key")).unwrap(),
    )
}

fn as_client(files: &Certificates) -> Option<TlsSettings> {
    Some(TlsSettings::of_client(&files.path("ca")).unwrap())
}

fn runtime(keys: Option<Keyring>, tls: Option<TlsSettings>) -> Runtime {
    Runtime::with_keys("test-tls", keys).unwrap().with_tls(tls)
}

/// Starts a memory node that accepts every request. Returns the server, its address, and the count of requests.
fn node(runtime: &Runtime) -> (Server, String, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let handler = move |_: Caller, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async { NodeReply::Done }
    };
    let limits = Limits { first_request: Duration::from_secs(1), ..Limits::default() };
    let listener = bind("127.0.0.1:0").unwrap();
    let server =
        serve_limited::<NodeService, _, _, _>(runtime, listener, handler, |_| (), limits).unwrap();
    let addr = server.addr().unwrap().to_string();
    (server, addr, asked)
}

fn asks(
    addr: &str,
    keys: Option<Keyring>,
    tls: Option<TlsSettings>,
) -> Result<NodeReply, RpcError> {
    let runtime = runtime(keys, tls);
    NodeClient::new(&runtime, addr).call_blocking(NodeRequest::Usage)
}

#[track_caller]
fn is_refused(answer: Result<NodeReply, RpcError>, says: &str) {
    match answer {
        Err(error @ RpcError::Tls { .. }) => {
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.may_take_effect());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_speaks_the_other_way_is_told() {
    let files = Certificates::new();
    let others = Certificates::new();
    let secret = Secret::random().unwrap();
    for with_keys in [false, true] {
        let keys = |who| with_keys.then(|| secret.keys(who));
        let serving = runtime(keys(PeerKind::Server), as_server(&files));
        let (_server, addr, asked) = node(&serving);
        assert_eq!(asks(&addr, keys(PeerKind::Client), as_client(&files)), Ok(NodeReply::Done));
        assert_eq!(asks(&addr, keys(PeerKind::Server), as_server(&files)), Ok(NodeReply::Done));
        is_refused(asks(&addr, keys(PeerKind::Client), None), "--tls-ca");
        is_refused(asks(&addr, keys(PeerKind::Client), as_client(&others)), "does not believe");
        let plain = runtime(keys(PeerKind::Server), None);
        let (_plain, plain_addr, _) = node(&plain);
        is_refused(asks(&plain_addr, keys(PeerKind::Client), as_client(&files)), "speaks no TLS");
        assert_eq!(asks(&plain_addr, keys(PeerKind::Client), None), Ok(NodeReply::Done));
        // A server that has only the certificates of a client answers without TLS.
        let half = runtime(keys(PeerKind::Server), as_client(&files));
        let (_half, half_addr, _) = node(&half);
        assert_eq!(asks(&half_addr, keys(PeerKind::Client), None), Ok(NodeReply::Done));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
    // Keys are demanded over TLS, too.
    let serving = runtime(Some(secret.keys(PeerKind::Server)), as_server(&files));
    let (_server, addr, _) = node(&serving);
    let answer = asks(&addr, None, as_client(&files));
    assert!(matches!(answer, Err(RpcError::Keys { .. })), "{answer:?}");
}

#[test]
fn long_messages_pass() {
    let files = Certificates::new();
    let serving = runtime(None, as_server(&files));
    let (_server, addr, _) = node(&serving);
    let runtime = runtime(None, as_client(&files));
    let client = NodeClient::new(&runtime, addr);
    let clients = (0..1 << 20).map(fusee_core::verbs::ClientId).collect();
    assert_eq!(client.call_blocking(NodeRequest::Fence { clients }), Ok(NodeReply::Done));
}

#[test]
fn certificates_change_without_a_restart() {
    let files = Certificates::new();
    let first = as_client(&files);
    let serving = runtime(None, as_server(&files));
    let (_server, addr, _) = node(&serving);
    let old = runtime(None, first.clone());
    let client = NodeClient::new(&old, addr.clone());
    assert_eq!(client.call_blocking(NodeRequest::Usage), Ok(NodeReply::Done));
    files.put("cert", "garbage");
    std::thread::sleep(fusee_tls::LOOK);
    let before = Certificates::new();
    std::fs::copy(files.path("ca"), before.path("ca")).unwrap();
    assert_eq!(asks(&addr, None, as_client(&before)), Ok(NodeReply::Done), "the old one stays");
    files.renew();
    std::thread::sleep(fusee_tls::LOOK);
    is_refused(asks(&addr, None, as_client(&before)), "does not believe");
    assert_eq!(asks(&addr, None, as_client(&files)), Ok(NodeReply::Done));
    // Open connections stay open, and their clients trust the new authority when they connect again.
    assert_eq!(client.call_blocking(NodeRequest::Usage), Ok(NodeReply::Done));
    assert_eq!(asks(&addr, None, first), Ok(NodeReply::Done));
}

/// Forwards a message of this many bytes.
fn pass_on(from: &mut MaybeTlsStream<TcpStream>, to: &mut MaybeTlsStream<TcpStream>, bytes: usize) {
    let mut message = vec![0; bytes];
    from.read_exact(&mut message).unwrap();
    to.write_all(&message).unwrap();
}

// Promise SEC-11
#[test]
fn a_proof_is_good_for_the_tls_connection_that_it_was_made_over() {
    let files = Certificates::new();
    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(PeerKind::Server)), as_server(&files));
    let (_server, addr, asked) = node(&serving);
    // The attacker has a certificate of the authority, but no key.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    let keys = Some(secret.keys(PeerKind::Server));
    let tls = as_client(&files);
    let calling = std::thread::spawn(move || asks(&between, keys, tls));
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut client = MaybeTlsStream::plain(stream);
    assert!(as_server(&files).unwrap().answer(&mut client, &[]).unwrap());
    let stream = TcpStream::connect(&addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut server = as_client(&files).unwrap().dial(&addr, stream).unwrap();
    pass_on(&mut client, &mut server, 8 + 32);
    pass_on(&mut server, &mut client, 8 + 32 + 32);
    match calling.join().unwrap() {
        Err(RpcError::Keys { what, .. }) => assert!(what.contains("another secret"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn strangers_are_cut_off_and_random_bytes_do_no_harm() {
    let files = Certificates::new();
    let serving = runtime(None, as_server(&files));
    let (_server, addr, asked) = node(&serving);
    let connect = || {
        let stream = TcpStream::connect(&addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    // This connection sends the start of a handshake, and nothing more.
    let mut stalls = connect();
    stalls.write_all(&[fusee_tls::FIRST_BYTE, 3, 1, 2, 0, 1]).unwrap();
    let begun = std::time::Instant::now();
    let mut said = Vec::new();
    let _reset_at_most = stalls.read_to_end(&mut said);
    assert!(begun.elapsed() < Duration::from_secs(5));
    let mut seed = 7u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    };
    for round in 0..60 {
        let mut bytes: Vec<u8> = (0..usize::from(random()) * 8).map(|_| random()).collect();
        let mut stream = if round % 2 == 0 {
            // These random bytes follow a complete handshake, and in half of the cases a valid hello.
            if round % 4 == 0 {
                bytes.splice(..0, *b"FUSEE\x0d\x01\0");
            }
            as_client(&files).unwrap().dial(&addr, connect()).unwrap()
        } else {
            bytes.insert(0, fusee_tls::FIRST_BYTE);
            MaybeTlsStream::plain(connect())
        };
        let _closed_early = stream.write_all(&bytes);
        if round % 3 == 0 {
            let _ = stream.read(&mut [0; 100]);
        }
    }
    assert_eq!(asks(&addr, None, as_client(&files)), Ok(NodeReply::Done));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
