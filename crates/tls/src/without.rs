//! The types of the module `layer` in a build without TLS. They have no values.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::path::Path;

use super::{MaybeTlsStream, TlsError};

/// The TLS settings of a process. A build without TLS cannot make any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings(Infallible);

impl TlsSettings {
    /// Makes the settings of a process that only opens connections. `ca` is the file with the certificates of
    /// trusted authorities.
    pub fn of_client(_ca: &Path) -> Result<TlsSettings, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// Makes the settings of a server, which accepts and opens connections. `cert` is the file with the server's
    /// certificate and the intermediate certificates up to the authority's, `key` the file with the server's
    /// private key.
    pub fn of_server(_ca: &Path, _cert: &Path, _key: &Path) -> Result<TlsSettings, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// Returns whether the process has a certificate, and so accepts connections with TLS.
    pub fn has_certificate(&self) -> bool {
        match self.0 {}
    }

    /// Turns a socket into a TLS connection to this host and port. The server's certificate must be for that host.
    /// The handshake happens during the first reads and writes.
    pub fn dial<S>(&self, _addr: &str, _socket: S) -> Result<MaybeTlsStream<S>, TlsError> {
        match self.0 {}
    }

    /// Continues an accepted connection with TLS. `come` are the bytes that were read already, which have shown
    /// that the client uses TLS. Returns false if this process has no certificate.
    pub fn answer<S: Read + Write>(
        &self,
        _stream: &mut MaybeTlsStream<S>,
        _come: &[u8],
    ) -> io::Result<bool> {
        match self.0 {}
    }
}

/// The TLS state of a [`MaybeTlsStream`].
#[derive(Debug)]
pub(crate) struct TlsLayer(Infallible);

impl TlsLayer {
    pub(crate) fn read(&mut self, _: impl Read + Write, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn write(&mut self, _: impl Write, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    pub(crate) fn flush(&mut self, _: impl Write) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn has_unsent(&self) -> bool {
        match self.0 {}
    }
}

pub(crate) fn failure(_: &io::Error) -> Option<String> {
    None
}
