//! Raw connections: the tests write the bytes of messages themselves, in the formats of `docs/fabric.md`.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fusee_auth::{AuthTranscript, NodeKey, Side};
use fusee_core::layout::LAYOUT_VERSION;
use fusee_core::verbs::ClientId;
use fusee_fabric::tcp::frame::{TcpHello, TcpHelloStatus, TcpWelcome, WELCOME_BYTES};

use super::Served;

/// A limit that no answer reaches, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The magics with which messages of the fabrics begin.
pub const TCP: &[u8; 8] = b"FUSEtcp3";
pub const SHM: &[u8; 8] = b"FUSEsm03";
pub const VERBS: &[u8; 8] = b"FUSErd04";

pub const CALL_BYTES: usize = 48;
pub const ANSWER_BYTES: usize = 76;

/// Returns the key of the node with this identity in a cluster without a secret.
pub fn key(identity: u64) -> NodeKey {
    NodeKey::new(None, identity)
}

/// Returns a call to the node with this key, with this nonce.
pub fn call(magic: &[u8; 8], key: &NodeKey, nonce: [u8; 32]) -> [u8; CALL_BYTES] {
    [&magic[..], &key.name().to_le_bytes(), &nonce].concat().try_into().unwrap()
}

fn said<'a>(
    magic: &'static [u8; 8],
    about: &'a [u8],
    asker: &'a [u8; 32],
    answerer: &'a [u8; 32],
) -> AuthTranscript<'a> {
    let kind = std::str::from_utf8(magic).unwrap().trim_end_matches(|c: char| c.is_ascii_digit());
    AuthTranscript { kind, about, asker, answerer }
}

/// Sends the call. Returns as much of the answer as came.
pub fn ask(stream: &mut (impl Read + Write), call: &[u8]) -> Vec<u8> {
    stream.write_all(call).unwrap();
    let mut answer = Vec::new();
    let _reset_at_most = stream.take(ANSWER_BYTES as u64).read_to_end(&mut answer);
    answer
}

/// Asserts that the answer to a call has the node's proof. Returns the client's proof for its hello.
pub fn proof(
    magic: &'static [u8; 8],
    key: &NodeKey,
    call: &[u8; CALL_BYTES],
    answer: &[u8],
    hello: &[u8],
) -> [u8; 32] {
    assert_eq!((answer.len(), &answer[..12]), (ANSWER_BYTES, &[&magic[..], &[0; 4]].concat()[..]));
    let asker = call.last_chunk().unwrap();
    let answerer = answer[12..].first_chunk().unwrap();
    let theirs = answer.last_chunk().unwrap();
    assert!(key.proves(Side::Answerer, &said(magic, call, asker, answerer), theirs));
    key.proof(Side::Asker, &said(magic, &[&call[..], hello].concat(), asker, answerer))
}

/// Does the client's part of a handshake, from the call to the hello.
pub fn say_hello(
    stream: &mut (impl Read + Write),
    magic: &'static [u8; 8],
    key: &NodeKey,
    hello: &[u8],
) {
    let call = call(magic, key, rand(hello));
    let answer = ask(stream, &call);
    let proof = proof(magic, key, &call, &answer, hello);
    // If the write fails, the node has refused, which the caller sees in its answer.
    let _ = stream.write_all(&[&proof[..], hello].concat());
}

/// Returns a nonce that depends on these bytes.
fn rand(of: &[u8]) -> [u8; 32] {
    let mut nonce = [0x5a; 32];
    nonce[..of.len().min(32)].copy_from_slice(&of[..of.len().min(32)]);
    nonce
}

/// Does the node's part of a handshake: answers a client's call and checks the client's proof. Returns the client's
/// hello, which has `bytes` bytes.
pub fn hear_hello(
    stream: &mut (impl Read + Write),
    magic: &'static [u8; 8],
    key: &NodeKey,
    bytes: usize,
) -> Vec<u8> {
    let mut call = [0; CALL_BYTES];
    stream.read_exact(&mut call).unwrap();
    assert_eq!(call[..16], [&magic[..], &key.name().to_le_bytes()].concat());
    let asker = call.last_chunk().unwrap();
    let answerer = [7; 32];
    let own = key.proof(Side::Answerer, &said(magic, &call, asker, &answerer));
    stream.write_all(&[&magic[..], &[0; 4], &answerer, &own].concat()).unwrap();
    let mut theirs = [0; 32];
    let mut hello = vec![0; bytes];
    stream.read_exact(&mut theirs).unwrap();
    stream.read_exact(&mut hello).unwrap();
    let about = [&call[..], &hello].concat();
    assert!(key.proves(Side::Asker, &said(magic, &about, asker, &answerer), &theirs));
    hello
}

/// Returns a hello over shared memory.
pub fn shm_hello(client: u32) -> Vec<u8> {
    [&SHM[..], &client.to_le_bytes(), &LAYOUT_VERSION.to_le_bytes()].concat()
}

/// Reads all that is left until the end of the connection. A reset ends it, too.
pub fn rest(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error),
        _ => Ok(bytes),
    }
}

/// Opens a connection without sending anything.
pub fn dial(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.fabrics.tcp_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Opens a connection as this client, and does the handshake up to the welcome.
pub fn greet(served: &Served, client: u32) -> TcpStream {
    let mut stream = dial(served);
    let hello = TcpHello { client: ClientId(client) }.encode();
    say_hello(&mut stream, TCP, &key(served.identity), &hello);
    let mut bytes = [0; WELCOME_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(TcpWelcome::decode(&bytes).unwrap().status, TcpHelloStatus::Welcome);
    stream
}
