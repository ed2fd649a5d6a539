//! TLS for connections: it keeps third parties from reading or changing the bytes of a connection.
//!
//! A [`TlsSettings`] holds the TLS settings of a process: the certificates of the authorities that the process
//! trusts and, if it is a server, its own certificate and key. A process with such settings uses TLS on all
//! connections that it opens and, as a server, on all that it accepts; no port serves both TLS and plain
//! connections. Only TLS 1.3 is used, without resumption, because connections live long, so that faster
//! reconnecting is not worth the state.
//!
//! TLS proves to the client that it has reached a server with the expected name. TLS grants no permissions; the keys of
//! the cluster's secret do (`fusee-auth`). On control connections, the proofs of the secret's keys also cover the TLS
//! connection that they are sent over.
//!
//! Files are read again when they change ([`LOOK`]), so certificates can be renewed without a restart. If the new
//! files have errors, these are logged, and the old certificates stay in use.
//!
//! [`MaybeTlsStream`] is a socket with or without TLS, for code that reads and writes sockets by itself. Without
//! the feature `rustls`, no settings can be made, so all streams are plain.

mod files;
#[cfg(feature = "rustls")]
mod layer;
#[cfg(not(feature = "rustls"))]
#[path = "without.rs"]
mod layer;
mod stream;
#[cfg(all(test, feature = "rustls"))]
mod testing;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use files::ReloadedValue;
pub use layer::TlsSettings;
#[cfg(feature = "rustls")]
pub use layer::server_name;
pub use stream::MaybeTlsStream;

/// The least time between two checks of the files for changes. Files are checked only when a connection needs them.
pub const LOOK: Duration = Duration::from_secs(1);
/// The first byte of a TLS connection: the type of the record with the first handshake message. No connection
/// without TLS begins with this byte.
pub const FIRST_BYTE: u8 = 0x16;

/// Errors of TLS settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the read.
        #[source]
        error: io::Error,
    },
    /// The key file cannot be read, or other users have access to it.
    #[error("{0}")]
    Key(#[from] fusee_auth::KeyError),
    /// The file lacks the content that is needed.
    #[error("{} holds no {wanted} in PEM (`-----BEGIN ...`){}", path.display(), because(cause))]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The content that the file should have.
        wanted: &'static str,
        /// The reason why the file's content cannot be used, if it is known.
        cause: Option<String>,
    },
    /// The certificate cannot be used with the key.
    #[error("{} cannot be used with {}: {cause}", cert.display(), key.display())]
    Pair {
        /// The path of the certificate file.
        cert: PathBuf,
        /// The path of the key file.
        key: PathBuf,
        /// The reason why the certificate cannot be used with the key.
        cause: String,
    },
    /// The dialled host is neither a name nor an address, so no certificate can be for it.
    #[error("`{host}` is no name and no address that a certificate could be for")]
    Name {
        /// The host that was dialled.
        host: String,
    },
    /// The program was built without TLS.
    #[error("this program was built without TLS; build it with the feature `tls`")]
    NotBuilt,
}

fn because(cause: &Option<String>) -> String {
    cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default()
}

/// Returns the cause of a TLS failure, in words that tell the user how to fix it; `None` if the error is no TLS
/// failure.
pub fn failure(error: &io::Error) -> Option<String> {
    layer::failure(error)
}

/// The error message of a client with TLS about a server without TLS.
pub const NO_TLS: &str =
    "it speaks no TLS, and this process is told to (--tls-ca, or FUSEE_TLS_CA)";
/// The error message of a client without TLS about a server with TLS.
pub const WANTS_TLS: &str =
    "it speaks TLS only; name its authority's certificate with --tls-ca, or FUSEE_TLS_CA";
/// The log message of a server without a certificate about a client with TLS.
pub const SPEAKS_TLS: &str =
    "it speaks TLS, and this server has no certificate (--tls-cert, --tls-key)";
/// The log message of a server with a certificate about a client without TLS.
pub const SPEAKS_NONE: &str = "it speaks no TLS, and this server does";
