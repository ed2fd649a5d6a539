//! How a session reaches a memory node over TCP: to connect, to say hello, to wait for the answer.
//!
//! What is said differs between fabrics; that a peer may be anybody does not.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::error::AttachCause;

/// Whether whoever attaches still wants to.
pub(crate) type GoesOn<'a> = &'a dyn Fn() -> bool;

/// How often whoever waits for a welcome asks itself whether it still wants to.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Why a memory node that takes a hello and says nothing is not attached to.
pub(crate) fn silent() -> AttachCause {
    let what = "it takes connections, but does not answer";
    AttachCause::Unreachable(io::Error::new(io::ErrorKind::TimedOut, what))
}

/// Connects to host and port, within `wait` for each of the addresses that the host has. Whoever reads or
/// writes waits no longer than that, either.
pub(crate) fn connect(address: &str, wait: Duration) -> Result<TcpStream, AttachCause> {
    let stream = connect_any(address, wait).map_err(AttachCause::Unreachable)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(wait))?;
    Ok(stream)
}

fn connect_any(address: &str, wait: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    for address in addresses {
        match TcpStream::connect_timeout(&address, wait) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Says hello, and receives an answer of this length that begins with this magic, within `wait` and as long
/// as `goes_on`: a peer that feeds it byte by byte has no more time than any other.
pub(crate) fn exchange<const N: usize>(
    stream: &mut TcpStream,
    hello: &[u8],
    magic: [u8; 8],
    wait: Duration,
    goes_on: GoesOn<'_>,
) -> Result<[u8; N], AttachCause> {
    stream.write_all(hello).map_err(AttachCause::Unreachable)?;
    stream.set_read_timeout(Some(LOOK.min(wait)))?;
    let deadline = Instant::now() + wait;
    let (mut bytes, mut got) = ([0; N], 0);
    while got < bytes.len() {
        if Instant::now() >= deadline || !goes_on() {
            return Err(if got == 0 { silent() } else { AttachCause::NotAMemoryNode });
        }
        match stream.read(&mut bytes[got..]) {
            // A node that shuts down or another service: it takes the hello and hangs up.
            Ok(0) => return Err(AttachCause::NotAMemoryNode),
            Ok(n) => got += n,
            Err(error) => match error.kind() {
                // Nothing yet.
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut => {}
                io::ErrorKind::ConnectionReset => return Err(AttachCause::NotAMemoryNode),
                _ => return Err(AttachCause::Unreachable(error)),
            },
        }
        let seen = got.min(magic.len());
        if bytes[..seen] != magic[..seen] {
            return Err(AttachCause::NotAMemoryNode);
        }
    }
    Ok(bytes)
}
