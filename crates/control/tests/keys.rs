//! A peer with a key is allowed to make the requests of its kind. A peer without a key is told that it needs one.

// Promise SEC-10: With a secret, each key opens only its own; strangers get nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use fusee_auth::{Keyring, PeerKind, Secret};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{
    Caller, MasterClient, MasterService, NodeClient, NodeService, RpcError, Runtime, Server,
    Stamped, bind, parsers, serve,
};
use fusee_core::verbs::{ClientId, ClusterId};

fn runtime(keys: Option<Keyring>) -> Runtime {
    Runtime::with_keys("test-keys", keys).unwrap()
}

/// Starts a memory node that accepts every request. Returns the server and its address.
fn node(runtime: &Runtime) -> (Server, String) {
    let handler = |_: Caller, _| async { NodeReply::Done };
    let server = serve::<NodeService, _, _>(runtime, bind("127.0.0.1:0").unwrap(), handler);
    let server = server.unwrap();
    let addr = server.addr().unwrap().to_string();
    (server, addr)
}

fn asks(addr: &str, keys: Option<Keyring>, request: NodeRequest) -> Result<NodeReply, RpcError> {
    let runtime = runtime(keys);
    NodeClient::new(&runtime, addr).call_blocking(request)
}

fn fence() -> NodeRequest {
    NodeRequest::Fence { clients: vec![ClientId(1)] }
}

#[track_caller]
fn is_refused(answer: Result<NodeReply, RpcError>, says: &str) {
    match answer {
        Err(error @ RpcError::Keys { .. }) => {
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.may_take_effect());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_kind_of_peer_may_ask_for_its_own() {
    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(PeerKind::Server)));
    let (_server, addr) = node(&serving);
    let keys = |who| Some(secret.keys(who));
    for who in PeerKind::ALL {
        assert_eq!(asks(&addr, keys(who), NodeRequest::Usage), Ok(NodeReply::Done), "{who}");
    }
    assert_eq!(asks(&addr, keys(PeerKind::Server), fence()), Ok(NodeReply::Done));
    is_refused(asks(&addr, keys(PeerKind::Client), fence()), "`server`");
    is_refused(asks(&addr, keys(PeerKind::Admin), fence()), "`server`");

    let handler = |caller: Caller, _| async move {
        assert!(caller.who.is_some());
        MasterReply::Done
    };
    let listener = bind("127.0.0.1:0").unwrap();
    let master = serve::<MasterService, _, _>(&serving, listener, handler).unwrap();
    let addr = master.addr().unwrap().to_string();
    let form = MasterRequest::Form { cluster: ClusterId::from_word(1).unwrap() };
    for (who, may) in
        [(PeerKind::Client, false), (PeerKind::Server, false), (PeerKind::Admin, true)]
    {
        let runtime = runtime(keys(who));
        let answer = MasterClient::new(&runtime, &addr[..]).call_blocking(form.clone());
        assert_eq!(answer.is_ok(), may, "{who}: {answer:?}");
        assert!(may || matches!(answer, Err(RpcError::Keys { .. })), "{who}");
    }
}

#[test]
fn strangers_and_other_clusters_are_told() {
    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(PeerKind::Server)));
    let (_server, addr) = node(&serving);
    is_refused(asks(&addr, None, NodeRequest::Usage), "--secret");
    let other = Secret::random().unwrap().keys(PeerKind::Admin);
    is_refused(asks(&addr, Some(other), NodeRequest::Usage), "another secret");
    assert_eq!(
        asks(&addr, Some(secret.keys(PeerKind::Client)), NodeRequest::Usage),
        Ok(NodeReply::Done)
    );
}

#[test]
fn who_has_a_key_believes_nobody_without() {
    let without = runtime(None);
    let (_server, addr) = node(&without);
    assert_eq!(asks(&addr, None, fence()), Ok(NodeReply::Done), "nobody has to say who it is");
    let keys = Secret::random().unwrap().keys(PeerKind::Client);
    is_refused(asks(&addr, Some(keys), NodeRequest::Usage), "no secret");
}

/// Starts a memory node that counts its requests. Returns the server, a connection to it, and the count.
fn counting_node(runtime: &Runtime) -> (Server, TcpStream, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let handler = move |_: Caller, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async { NodeReply::Done }
    };
    let server = serve::<NodeService, _, _>(runtime, bind("127.0.0.1:0").unwrap(), handler);
    let server = server.unwrap();
    let stream = TcpStream::connect(server.addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (server, stream, asked)
}

/// Returns the frame of a request for a connection without codes.
fn bare_frame(request: NodeRequest) -> Vec<u8> {
    // The first bytes are: the kind (a call), its id, and its deadline in milliseconds.
    let call = [&[0, 0, 100][..], &parsers::written(&Stamped { cluster: None, request })].concat();
    [&(call.len() as u32).to_be_bytes()[..], &call].concat()
}

/// Forwards a message of this many bytes, and returns it.
fn pass_on(from: &mut TcpStream, to: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes];
    from.read_exact(&mut message).unwrap();
    to.write_all(&message).unwrap();
    message
}

/// Returns whether the other end of a connection closes it without sending anything.
fn is_closed(mut stream: TcpStream) -> bool {
    let mut said = Vec::new();
    let ended = stream.read_to_end(&mut said);
    let is_reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    said.is_empty() && ended.err().is_none_or(is_reset)
}

/// Lets a process with these keys call a memory node at an address of this test. Returns the thread that waits for the
/// answer, and the test's end of the connection.
fn a_call_by(keys: Keyring) -> (JoinHandle<Result<NodeReply, RpcError>>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dials = runtime(Some(keys));
    let dialler = NodeClient::new(&dials, listener.local_addr().unwrap().to_string());
    let calling = std::thread::spawn(move || {
        let answer = dialler.call_blocking(NodeRequest::Usage);
        // The runtime is dropped only here, because its end would end the call.
        drop(dials);
        answer
    });
    let (client, _) = listener.accept().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    (calling, client)
}

/// Forwards the handshake between a client with the keys of this secret and the server, and returns its messages.
fn recorded(secret: &Secret, server: &mut TcpStream) -> [Vec<u8>; 3] {
    let (calling, mut client) = a_call_by(secret.keys(PeerKind::Server));
    let hello = pass_on(&mut client, server, HELLO_BYTES);
    let welcome = pass_on(server, &mut client, WELCOME_BYTES);
    let proof = pass_on(&mut client, server, PROOF_BYTES);
    assert_eq!(pass_on(server, &mut client, 1), [1], "the server has taken the proof");
    drop(client);
    assert!(calling.join().unwrap().is_err());
    [hello, welcome, proof]
}

#[test]
fn a_recorded_handshake_is_of_no_use_and_nonces_differ() {
    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(PeerKind::Server)));
    let (server, mut first, asked) = counting_node(&serving);
    let [hello, welcome, proof] = recorded(&secret, &mut first);
    let dial = || {
        let stream = TcpStream::connect(server.addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    // A replay to the server: it answers the same hello with another nonce, and rejects the old proof.
    let mut again = dial();
    again.write_all(&hello).unwrap();
    let mut second = vec![0; WELCOME_BYTES];
    again.read_exact(&mut second).unwrap();
    let nonce = 8..40;
    let of_server = 40..72;
    assert_eq!(second[..8], welcome[..8]);
    assert_ne!(second[nonce.clone()], welcome[nonce], "the nonces of a server differ");
    assert_ne!(second[of_server.clone()], welcome[of_server]);
    again.write_all(&proof).unwrap();
    assert!(is_closed(again));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    // Two hellos of one client have different nonces, too.
    let [other, _, _] = recorded(&secret, &mut dial());
    assert_eq!(other[..8], hello[..8]);
    assert_ne!(other[8..], hello[8..], "the nonces of a client differ");

    // A replay to a client: an answer to another hello proves nothing, so the client sends nothing more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let replaying = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        client.write_all(&welcome).unwrap();
        let mut said = Vec::new();
        let _reset_at_most = client.read_to_end(&mut said);
        said
    });
    let answer = asks(&addr, Some(secret.keys(PeerKind::Server)), NodeRequest::Usage);
    is_refused(answer, "another secret");
    assert_eq!(replaying.join().unwrap(), b"");
}

const HELLO_BYTES: usize = 8 + 32;
const WELCOME_BYTES: usize = 8 + 32 + 32;
const PROOF_BYTES: usize = 32;

// Promise SEC-11: A relayed proof is useless, with and without TLS.
#[test]
fn who_passes_proofs_on_has_no_connection_of_its_own() {
    // As a cross-check the attack is first made without keys: then the attacker's request has an effect, because the
    // server demands no proof.
    let without = runtime(None);
    let (open, mut stream, asked) = counting_node(&without);
    stream.write_all(b"FUSEE\x0d\x01\0").unwrap();
    stream.write_all(&[0; 32]).unwrap();
    stream.read_exact(&mut [0; WELCOME_BYTES]).unwrap();
    stream.write_all(&bare_frame(fence())).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 1, "an answer");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    drop(open);

    let secret = Secret::random().unwrap();
    let serving = runtime(Some(secret.keys(PeerKind::Server)));
    let (_server, mut server, asked) = counting_node(&serving);
    // A server, which has all rights, connects to the attacker, which has taken over an address.
    let (calling, mut client) = a_call_by(secret.keys(PeerKind::Server));
    pass_on(&mut client, &mut server, HELLO_BYTES);
    pass_on(&mut server, &mut client, WELCOME_BYTES);
    pass_on(&mut client, &mut server, PROOF_BYTES);
    assert_eq!(pass_on(&mut server, &mut client, 1), [1], "the server has taken the proof");
    // The attacker can use neither connection: each end refuses a frame of the attacker, with a code or without.
    let fence = bare_frame(fence());
    server.write_all(&[&fence[..], &[0; 16], &fence].concat()).unwrap();
    assert!(is_closed(server));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let done = parsers::written(&(0u64, Ok::<_, ()>(NodeReply::Done)));
    client.read_exact(&mut [0; 4]).unwrap();
    client.write_all(&[&(done.len() as u32).to_be_bytes()[..], &done, &[0; 16]].concat()).unwrap();
    let answer = calling.join().unwrap();
    assert!(matches!(answer, Err(RpcError::Closed { .. })), "{answer:?}");
}
