//! TLS by rustls: the TLS settings of a process, and the TLS state of a [`MaybeTlsStream`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection, Error,
    InvalidMessage, RootCertStore, ServerConfig, ServerConnection,
};

use crate::files::ReloadedValue;
use crate::{MaybeTlsStream, NO_TLS, TlsError};

/// The largest number of bytes that are read of a file with certificates or a key.
const MOST_FILE_BYTES: u64 = 1 << 20;
/// The gap between plain text and ciphertext in [`TlsLayer::read_much`], in bytes: somewhat more than the longest
/// record on the wire. If an earlier read has received a part of a record, the plain text of the next read can be
/// longer than the bytes received, by at most one record.
const RECORD_BYTES: usize = 18 << 10;

/// The TLS settings of a process. Clones share their state.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    client: Arc<ReloadedValue<ClientConfig, TlsError>>,
    server: Option<Arc<ReloadedValue<ServerConfig, TlsError>>>,
}

impl PartialEq for TlsSettings {
    fn eq(&self, other: &TlsSettings) -> bool {
        let server = |tls: &TlsSettings| tls.server.as_ref().map(Arc::as_ptr);
        Arc::ptr_eq(&self.client, &other.client) && server(self) == server(other)
    }
}

impl Eq for TlsSettings {}

impl TlsSettings {
    /// Makes the settings of a process that only opens connections. `ca` is the file with the certificates of
    /// trusted authorities.
    pub fn of_client(ca: &Path) -> Result<TlsSettings, TlsError> {
        let client =
            ReloadedValue::new(vec![ca.into()], |files| client_config_trusting(&files[0]))?;
        Ok(TlsSettings { client: Arc::new(client), server: None })
    }

    /// Makes the settings of a server, which accepts and opens connections. `cert` is the file with the server's
    /// certificate and the intermediate certificates up to the authority's, `key` the file with the server's
    /// private key.
    pub fn of_server(ca: &Path, cert: &Path, key: &Path) -> Result<TlsSettings, TlsError> {
        let files = vec![cert.into(), key.into()];
        let server = ReloadedValue::new(files, |files| server_config_with(&files[0], &files[1]))?;
        Ok(TlsSettings { server: Some(Arc::new(server)), ..TlsSettings::of_client(ca)? })
    }

    /// Returns whether the process has a certificate, and so accepts connections with TLS.
    pub fn has_certificate(&self) -> bool {
        self.server.is_some()
    }

    /// Turns a socket into a TLS connection to this host and port. The server's certificate must be for that host.
    /// The handshake happens during the first reads and writes.
    pub fn dial<S>(&self, addr: &str, socket: S) -> Result<MaybeTlsStream<S>, TlsError> {
        let connection = ClientConnection::new(self.client_config(), server_name(addr)?);
        let connection = connection.map_err(|_| TlsError::Name { host: addr.into() })?;
        Ok(MaybeTlsStream::with(socket, TlsLayer::new(connection.into())))
    }

    /// Continues an accepted connection with TLS. `come` are the bytes that were read already, which have shown
    /// that the client uses TLS. Returns false if this process has no certificate.
    pub fn answer<S: Read + Write>(
        &self,
        stream: &mut MaybeTlsStream<S>,
        come: &[u8],
    ) -> io::Result<bool> {
        let Some(config) = self.server_config() else { return Ok(false) };
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let mut layer = TlsLayer::new(connection.into());
        let mut left = come;
        while !left.is_empty() {
            layer.take(&mut left, stream.socket_mut())?;
        }
        stream.layer = Some(Box::new(layer));
        Ok(true)
    }

    /// Returns the rustls settings for connections that other code opens.
    pub fn client_config(&self) -> Arc<ClientConfig> {
        self.client.current()
    }

    /// Returns the rustls settings for connections that other code accepts; `None` if this process has no
    /// certificate.
    pub fn server_config(&self) -> Option<Arc<ServerConfig>> {
        self.server.as_ref().map(|server| server.current())
    }
}

/// Returns the host of `host:port` in the form that certificates use.
pub fn server_name(addr: &str) -> Result<ServerName<'static>, TlsError> {
    let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name { host: host.into() })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |error| TlsError::File { path: path.into(), error };
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MOST_FILE_BYTES).read_to_end(&mut text).map_err(failed)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let wanted = "certificate";
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(TlsError::Content { path: path.into(), wanted, cause: None }),
        Err(error) => {
            let cause = Some(error.to_string());
            Err(TlsError::Content { path: path.into(), wanted, cause })
        }
    }
}

/// Returns the settings of a client that trusts the authorities in a file.
fn client_config_trusting(ca: &Path) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| TlsError::Content {
            path: ca.into(),
            wanted: "certificate of an authority",
            cause: Some(error.to_string()),
        })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.expect("ring has TLS 1.3");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Returns the settings of a server with a certificate and its key.
fn server_config_with(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = certificates(cert)?;
    let text = fusee_auth::read_private(key, MOST_FILE_BYTES)?;
    let secret = PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| TlsError::Content {
        path: key.into(),
        wanted: "private key",
        cause: None,
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
    let builder = builder.expect("ring has TLS 1.3").with_no_client_auth();
    let mut config = builder.with_single_cert(chain, secret).map_err(|error| TlsError::Pair {
        cert: cert.into(),
        key: key.into(),
        cause: error.to_string(),
    })?;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

/// The TLS state of a [`MaybeTlsStream`].
#[derive(Debug)]
pub(crate) struct TlsLayer {
    connection: Connection,
    /// Whether the other end has ended its side of the connection.
    is_over: bool,
}

impl TlsLayer {
    fn new(connection: Connection) -> TlsLayer {
        TlsLayer { connection, is_over: false }
    }

    /// Passes some of the received bytes to TLS, and removes them from `received`.
    fn take(&mut self, received: &mut &[u8], socket: &mut impl Write) -> io::Result<()> {
        self.connection.read_tls(received)?;
        self.process_received(socket)?;
        if self.is_over {
            // Bytes behind the end of the connection are discarded.
            *received = &[];
        }
        Ok(())
    }

    /// Decrypts the bytes passed to TLS so far, and sends the protocol's answers.
    fn process_received(&mut self, socket: &mut impl Write) -> io::Result<()> {
        let digested = self.connection.process_new_packets();
        // The answers are also sent after an error, because they tell the other end the error.
        let sent = self.flush(socket);
        let state = digested.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.is_over |= state.peer_has_closed();
        match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves plain text out of the connection into `buf`. Returns the number of bytes moved.
    fn move_to(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut moved = 0;
        while moved < buf.len() {
            match self.connection.reader().read(&mut buf[moved..]) {
                Ok(0) => break,
                Ok(n) => moved += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// Reads into `buf`, as [`MaybeTlsStream`] promises.
    pub(crate) fn read(
        &mut self,
        socket: &mut (impl Read + Write),
        buf: &mut [u8],
    ) -> io::Result<usize> {
        let mut at = self.move_to(buf)?;
        while at < buf.len() && !self.is_over {
            let step = if buf.len() - at >= 2 * RECORD_BYTES {
                self.read_much(socket, buf, &mut at)
            } else {
                self.read_little(socket, buf, &mut at)
            };
            match step {
                // The socket has no more bytes for now.
                Ok(true) if at > 0 => break,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The data decrypted so far is returned first; the socket fails again at the next read. A TLS error
                // is returned at once instead, because the next read would possibly only block. The connection ends
                // with a TLS error anyway.
                Err(error) if at > 0 && error.kind() != io::ErrorKind::InvalidData => break,
                Err(error) => return Err(error),
            }
        }
        Ok(at)
    }

    /// Reads ciphertext into `buf` and decrypts it to the front of `buf`, so that no other memory is needed. A gap
    /// of one record lies between plain text and ciphertext: if the first record had arrived in part before, its
    /// plain text must not overwrite ciphertext that is still to be decrypted. Returns whether the socket is empty.
    fn read_much(
        &mut self,
        socket: &mut (impl Read + Write),
        buf: &mut [u8],
        at: &mut usize,
    ) -> io::Result<bool> {
        let mut next = *at + RECORD_BYTES;
        let received = socket.read(&mut buf[next..])?;
        self.is_over = received == 0;
        let end = next + received;
        while next < end {
            let mut left = &buf[next..end];
            self.take(&mut left, socket)?;
            next = end - left.len();
            *at += self.move_to(&mut buf[*at..next])?;
        }
        Ok(end < buf.len())
    }

    /// Reads a few KiB into the connection, which keeps the plain text that does not fit in `buf`. Returns whether
    /// the socket is empty.
    fn read_little(
        &mut self,
        socket: &mut (impl Read + Write),
        buf: &mut [u8],
        at: &mut usize,
    ) -> io::Result<bool> {
        let mut looked = TlsReadProbe { socket, is_empty: false };
        self.is_over = self.connection.read_tls(&mut looked)? == 0;
        let is_empty = looked.is_empty;
        self.process_received(socket)?;
        *at += self.move_to(&mut buf[*at..])?;
        Ok(is_empty)
    }

    pub(crate) fn write(&mut self, socket: &mut impl Write, buf: &[u8]) -> io::Result<usize> {
        self.flush(socket)?;
        let taken = self.connection.writer().write(buf)?;
        match self.flush(socket) {
            // The connection has already accepted the data, and the next flush sends it.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }
}

/// A socket that records whether the last read has emptied it.
struct TlsReadProbe<'a, S> {
    socket: &'a mut S,
    is_empty: bool,
}

impl<S: Read> Read for TlsReadProbe<'_, S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.socket.read(buf)?;
        self.is_empty = read < buf.len();
        Ok(read)
    }
}

pub(crate) fn failure(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(match error {
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => NO_TLS.into(),
        // Two authorities can have the same name, so a bad signature can mean an unknown authority.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate is of an authority that this process does not believe; see --tls-ca"
            .into(),
        Error::InvalidCertificate(error) => format!("its certificate is not good: {error}"),
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        ) => "it does not believe this server's certificate".into(),
        other => format!("TLS fails: {other}"),
    })
}

#[cfg(test)]
mod tests;
