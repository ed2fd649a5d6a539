//! A socket with or without TLS.

use std::io::{self, Read, Write};

use crate::layer::Layer;

/// A socket, and TLS over it or none. Plain, it costs a branch.
///
/// It reads and writes as the socket does: where that would block, so does this, and as from a socket a read that comes
/// back with less than there was room for has left nothing behind, neither in the socket nor in here. So whoever waits
/// for the socket's events need not know of what is decrypted already. What is written and not sent is another matter:
/// see [`Stream::has_unsent`].
#[derive(Debug)]
pub struct Stream<S> {
    socket: S,
    pub(crate) layer: Option<Box<Layer>>,
}

impl<S> Stream<S> {
    /// Without TLS.
    pub fn plain(socket: S) -> Stream<S> {
        Stream { socket, layer: None }
    }

    #[cfg(feature = "rustls")]
    pub(crate) fn with(socket: S, layer: Layer) -> Stream<S> {
        Stream { socket, layer: Some(Box::new(layer)) }
    }

    /// The socket, for its options and events.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// The same, to register it.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// The same connection over another kind of socket.
    pub fn map<T>(self, into: impl FnOnce(S) -> T) -> Stream<T> {
        Stream { socket: into(self.socket), layer: self.layer }
    }

    /// The socket alone, of a connection that has ended or has no TLS.
    pub fn into_socket(self) -> S {
        self.socket
    }

    /// Whether it has TLS.
    pub fn is_tls(&self) -> bool {
        self.layer.is_some()
    }

    /// Whether something that was written waits in here for the socket to take it: [`Write::flush`] when it can.
    pub fn has_unsent(&self) -> bool {
        self.layer.as_ref().is_some_and(|layer| layer.has_unsent())
    }
}

impl<S: Read + Write> Read for Stream<S> {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.layer {
            None => self.socket.read(buf),
            Some(layer) => layer.read(&mut self.socket, buf),
        }
    }
}

impl<S: Read + Write> Write for Stream<S> {
    #[inline]
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.layer {
            None => self.socket.write(buf),
            Some(layer) => layer.write(&mut self.socket, buf),
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.layer {
            None => self.socket.flush(),
            Some(layer) => layer.flush(&mut self.socket),
        }
    }
}
