//! A socket that is used with or without TLS.

use std::io::{self, Read, Write};

use crate::layer::TlsLayer;

/// A socket with or without TLS. Without TLS, a call costs one branch more than on the socket.
///
/// Reads and writes block, or fail with `WouldBlock`, exactly if the socket does. As with a socket, a read that
/// does not fill the buffer has left nothing behind, neither in the socket nor in this type. So code that waits for
/// events of the socket need not ask for decrypted data. Written data, however, can wait in this type (see
/// [`MaybeTlsStream::has_unsent`]).
#[derive(Debug)]
pub struct MaybeTlsStream<S> {
    socket: S,
    pub(crate) layer: Option<Box<TlsLayer>>,
}

impl<S> MaybeTlsStream<S> {
    /// Makes a stream without TLS.
    pub fn plain(socket: S) -> MaybeTlsStream<S> {
        MaybeTlsStream { socket, layer: None }
    }

    #[cfg(feature = "rustls")]
    pub(crate) fn with(socket: S, layer: TlsLayer) -> MaybeTlsStream<S> {
        MaybeTlsStream { socket, layer: Some(Box::new(layer)) }
    }

    /// Returns the socket, to use its options and events.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Returns the socket, to register it for events.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Returns the same connection over another type of socket.
    pub fn map<T>(self, into: impl FnOnce(S) -> T) -> MaybeTlsStream<T> {
        MaybeTlsStream { socket: into(self.socket), layer: self.layer }
    }

    /// Returns the socket alone. The connection must have ended, or must be without TLS.
    pub fn into_socket(self) -> S {
        self.socket
    }

    /// Returns whether the stream uses TLS.
    pub fn is_tls(&self) -> bool {
        self.layer.is_some()
    }

    /// Returns whether written data waits in this type until the socket accepts it. If so, call [`Write::flush`]
    /// when the socket is writable.
    pub fn has_unsent(&self) -> bool {
        self.layer.as_ref().is_some_and(|layer| layer.has_unsent())
    }
}

impl<S: Read + Write> Read for MaybeTlsStream<S> {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.layer {
            None => self.socket.read(buf),
            Some(layer) => layer.read(&mut self.socket, buf),
        }
    }
}

impl<S: Read + Write> Write for MaybeTlsStream<S> {
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
