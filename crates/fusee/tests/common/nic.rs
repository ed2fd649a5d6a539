//! A session's hello to a software NIC, byte by byte, as `docs/fabric.md` describes it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fusee_auth::{AuthTranscript, NodeKey, Side};

const MAGIC: &[u8; 8] = b"FUSEtcp3";
pub const ANSWER_BYTES: usize = 76;

/// Calls the node with this name. Returns the connection, the bytes of the call, and the answer.
pub fn call(tcp: &str, name: u64) -> (TcpStream, [u8; 48], Vec<u8>) {
    let mut stream = TcpStream::connect(tcp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let call = [&MAGIC[..], &name.to_le_bytes(), &[3; 32]].concat();
    stream.write_all(&call).unwrap();
    let mut answer = Vec::new();
    let _reset_at_most = (&stream).take(ANSWER_BYTES as u64).read_to_end(&mut answer);
    (stream, call.try_into().unwrap(), answer)
}

/// Attaches a session of this client to the node with this key.
pub fn attach(tcp: &str, key: &NodeKey, client: u32) -> TcpStream {
    let (mut stream, call, answer) = call(tcp, key.name());
    let hello = [&MAGIC[..], &client.to_le_bytes(), &5u32.to_le_bytes()].concat();
    let about = [&call[..], &hello].concat();
    let asker = call.last_chunk().unwrap();
    let answerer = answer[12..].first_chunk().unwrap();
    let said = AuthTranscript { kind: "FUSEtcp", about: &about, asker, answerer };
    let proof = key.proof(Side::Asker, &said);
    stream.write_all(&[&proof[..], &hello].concat()).unwrap();
    let mut welcome = [0; 24];
    stream.read_exact(&mut welcome).unwrap();
    assert_eq!(welcome[16], 0, "it is welcome");
    stream
}
