//! A socket with or without TLS.

use std::io::{self, Read, Write};

use crate::layer::TlsLayer;

/// A socket with or without TLS. Without TLS it costs one branch.
///
/// Reads and writes block, or would block, exactly if the socket does. As with a socket, a read that returns less
/// than the buffer has room for has left nothing behind, neither in the socket nor in this type. So code that waits
/// for events of the socket need not ask for decrypted data. Written data may wait in this type, however: see
/// [`MaybeTlsStream::has_unsent`].
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

    /// Returns the socket, for its options and events.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// Returns the socket, to register it.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Returns the same connection over another type of socket.
    pub fn map<T>(self, into: impl FnOnce(S) -> T) -> MaybeTlsStream<T> {
        MaybeTlsStream { socket: into(self.socket), layer: self.layer }
    }

    /// Returns the socket alone. The connection must have ended, or have no TLS.
    pub fn into_socket(self) -> S {
        self.socket
    }

    /// Whether the stream uses TLS.
    pub fn is_tls(&self) -> bool {
        self.layer.is_some()
    }

    /// Whether written data waits in this type until the socket can take it. Then call [`Write::flush`].
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
