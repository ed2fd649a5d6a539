//! The steps by which a session over `tcp` or `verbs` reaches a memory node: TCP connection, challenge, hello, answer.
//!
//! The contents of the messages differ between fabrics. Any process can be at the other end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use fusee_auth::Proof;
use fusee_tls::MaybeTlsStream;
use mio::{Events, Interest, Poll, Token};

use fusee_core::version::ConnectionEnd;

use crate::challenge::ClientChallenge;
use crate::driver::LinkTarget;
use crate::error::AttachCause;
use crate::version::Protocol;

/// A function that returns whether the caller still wants to attach.
pub(crate) type ContinueFn<'a> = &'a dyn Fn() -> bool;

/// The time between two calls of `ContinueFn` while a connection or an answer is awaited.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Returns the error for a memory node that accepts a connection and does not answer.
pub(crate) fn silent_node_error() -> AttachCause {
    let what = "it takes connections, but does not answer";
    AttachCause::Unreachable(io::Error::new(io::ErrorKind::TimedOut, what))
}

/// Connects to host and port, within `wait` for each address of the host. Gives up when `goes_on` returns false.
/// Sets `wait` as the limit of later reads and writes on the stream, too.
pub(crate) fn connect(
    address: &str,
    wait: Duration,
    goes_on: ContinueFn<'_>,
) -> Result<TcpStream, AttachCause> {
    let stream = connect_any(address, wait, goes_on).map_err(AttachCause::Unreachable)?;
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(wait))?;
    Ok(stream)
}

fn connect_any(address: &str, wait: Duration, goes_on: ContinueFn<'_>) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    for address in addresses {
        match connect_one(address, wait, goes_on) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects without blocking, so that the attempt ends soon after `goes_on` returns false.
fn connect_one(
    address: SocketAddr,
    wait: Duration,
    goes_on: ContinueFn<'_>,
) -> io::Result<TcpStream> {
    let mut stream = mio::net::TcpStream::connect(address)?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut stream, Token(0), Interest::WRITABLE)?;
    let mut events = Events::with_capacity(1);
    let deadline = Instant::now() + wait;
    loop {
        match poll.poll(&mut events, Some(LOOK.min(wait))) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        if !events.is_empty() {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            match stream.peer_addr() {
                Ok(_) => {
                    poll.registry().deregister(&mut stream)?;
                    return Ok(stream.into());
                }
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
        if Instant::now() >= deadline || !goes_on() {
            let what = "it takes no connections";
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
    }
}

/// Sends the call to the node and checks the node's proof. Returns the client's proof for this hello.
pub(crate) fn verify_node(
    stream: &mut MaybeTlsStream<TcpStream>,
    protocol: &'static Protocol,
    to: &LinkTarget<'_>,
    hello: &[u8],
) -> Result<Proof, AttachCause> {
    let call = ClientChallenge::new(protocol, &to.key)?;
    let answer = exchange(stream, call.bytes(), protocol, to.wait, to.goes_on)?;
    call.check_answer(&answer, hello)
}

/// Sends a message and receives an answer of `N` bytes and this protocol. Gives up after `wait`, or when `goes_on`
/// returns false. `wait` limits the whole answer, also from a peer that sends single bytes, and includes the
/// handshake of TLS, if TLS is used.
pub(crate) fn exchange<const N: usize>(
    stream: &mut MaybeTlsStream<TcpStream>,
    hello: &[u8],
    protocol: &Protocol,
    wait: Duration,
    goes_on: ContinueFn<'_>,
) -> Result<[u8; N], AttachCause> {
    stream.write_all(hello).map_err(failed)?;
    stream.socket().set_read_timeout(Some(LOOK.min(wait)))?;
    let deadline = Instant::now() + wait;
    let mut bytes = [0; N];
    let mut got = 0;
    while got < bytes.len() {
        if Instant::now() >= deadline || !goes_on() {
            return Err(if got == 0 { silent_node_error() } else { AttachCause::NotAMemoryNode });
        }
        match stream.read(&mut bytes[got..]) {
            // The peer is a node that shuts down, or another service that accepts the hello and hangs up.
            Ok(0) => return Err(AttachCause::NotAMemoryNode),
            Ok(n) => got += n,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut => {}
                io::ErrorKind::ConnectionReset => return Err(AttachCause::NotAMemoryNode),
                _ => return Err(failed(error)),
            },
        }
        protocol.check(ConnectionEnd::Client, &bytes[..got])?;
    }
    Ok(bytes)
}

fn failed(error: io::Error) -> AttachCause {
    match fusee_tls::failure(&error) {
        Some(what) => AttachCause::Tls(what),
        None => AttachCause::Unreachable(error),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use super::*;
    use crate::sys;

    const HOUR: Duration = Duration::from_secs(3600);

    // Promise FAB-13: A node that was given up delays no connection attempt.
    #[test]
    fn who_has_given_a_node_up_does_not_wait_until_it_takes_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sys::set_backlog(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        // Opens connections until the listener's queue is full.
        let looks = Cell::new(0);
        let mut taken = Vec::new();
        let error = loop {
            looks.set(0);
            let goes_on = || {
                looks.set(looks.get() + 1);
                looks.get() < 20
            };
            match connect(&address, HOUR, &goes_on) {
                Ok(stream) => taken.push(stream),
                Err(error) => break error,
            }
            assert!(taken.len() < 10, "the listener takes everybody");
        };
        assert_eq!(looks.get(), 20);
        assert!(
            matches!(&error, AttachCause::Unreachable(why) if why.kind() == io::ErrorKind::TimedOut)
        );
    }

    #[test]
    fn nobody_there_is_known_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        connect(&address, HOUR, &|| true).unwrap();
        drop(listener);
        let error = connect(&address, HOUR, &|| true).unwrap_err();
        assert!(
            matches!(&error, AttachCause::Unreachable(why) if why.kind() == io::ErrorKind::ConnectionRefused),
            "{error}"
        );
    }
}
