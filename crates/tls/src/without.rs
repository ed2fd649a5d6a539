//! A program without TLS: there is none, so nothing is done with it.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::path::Path;

use super::{Stream, TlsError};

/// What a process has for TLS: in this build nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls(Infallible);

impl Tls {
    /// For who only connects. `ca`: the file of the certificates of the authorities that it believes.
    pub fn of_client(_ca: &Path) -> Result<Tls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// For a server, which is a client of others, too. `cert`: the file of its certificate, and of those between that
    /// and the authority's; `key`: that of its key.
    pub fn of_server(_ca: &Path, _cert: &Path, _key: &Path) -> Result<Tls, TlsError> {
        Err(TlsError::NotBuilt)
    }

    /// Whether it has a certificate, and so answers with TLS.
    pub fn answers(&self) -> bool {
        match self.0 {}
    }

    /// A connection to this host and port, whose certificate has to be for that host. The handshake goes with what is
    /// read and written.
    pub fn dial<S>(&self, _addr: &str, _socket: S) -> Result<Stream<S>, TlsError> {
        match self.0 {}
    }

    /// A connection from somebody who speaks TLS, from now on: `come` is what was read of it. False: there is no
    /// certificate.
    pub fn answer<S: Read + Write>(
        &self,
        _stream: &mut Stream<S>,
        _come: &[u8],
    ) -> io::Result<bool> {
        match self.0 {}
    }
}

/// Between a socket and who reads and writes.
#[derive(Debug)]
pub(crate) struct Layer(Infallible);

impl Layer {
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
