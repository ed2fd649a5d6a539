//! Connections to a node's software NIC that are no sessions of this crate: tests write their bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use fusee_core::verbs::ClientId;
use fusee_fabric::tcp::frame::{Hello, Status, WELCOME_BYTES, Welcome};

use super::Served;

/// Longer than an answer takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that has said nothing.
pub fn dial(served: &Served) -> TcpStream {
    let stream = TcpStream::connect(served.fabrics.tcp_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection that has said hello.
pub fn greet(served: &Served, client: u32) -> TcpStream {
    let mut stream = dial(served);
    let hello = Hello { identity: served.identity, client: ClientId(client) };
    stream.write_all(&hello.encode()).unwrap();
    let mut bytes = [0; WELCOME_BYTES];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(Welcome::decode(&bytes).unwrap().status, Status::Welcome);
    stream
}
