//! TLS: who reads and writes what goes over a connection, beside its two ends: nobody.
//!
//! A [`Tls`] is what a process has for that: the certificates of the authorities that it believes, and if it is a
//! server its own certificate and key. A process that has one speaks TLS over everything that it dials, and over
//! everything that it answers if it is a server; nobody speaks both ways at one port. TLS 1.3 alone, without
//! resumption: connections stay, so what a later one would save is not worth the state.
//!
//! TLS tells the client that it has reached a server of that name. Who may ask for what is the business of the
//! cluster's secret (`fusee-auth`), whose proofs take in the connection that they go over.
//!
//! Files are read again when they change ([`LOOK`]), so that certificates are renewed without a restart. What is wrong
//! with new ones is told in the log, and the old ones stay in use.
//!
//! [`Stream`] is a socket with or without TLS, for whoever reads and writes by itself. Without the feature `rustls` no
//! file can be read, so all streams are plain.

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

pub use files::Watched;
pub use layer::Tls;
#[cfg(feature = "rustls")]
pub use layer::server_name;
pub use stream::Stream;

/// Files that may have changed are looked at when what they make is used, and no more often than this.
pub const LOOK: Duration = Duration::from_secs(1);
/// What a connection over TLS begins with: the kind of the record with the first message of a handshake. No other
/// hello of FUSEE begins so.
pub const FIRST_BYTE: u8 = 0x16;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The file of the key cannot be read, or others may read it.
    #[error("{0}")]
    Key(#[from] fusee_auth::KeyError),
    /// The file holds something else.
    #[error("{} holds no {wanted} in PEM (`-----BEGIN ...`){}", path.display(), because(cause))]
    Content {
        /// Which.
        path: PathBuf,
        /// What should be there.
        wanted: &'static str,
        /// What is wrong, if that is known.
        cause: Option<String>,
    },
    /// Certificate and key, or what is in them, cannot be used.
    #[error("{} cannot be used with {}: {cause}", cert.display(), key.display())]
    Pair {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// What is dialled has no name that a certificate could have.
    #[error("`{host}` is no name and no address that a certificate could be for")]
    Name {
        /// What.
        host: String,
    },
    /// The program cannot do it.
    #[error("this program was built without TLS; build it with the feature `tls`")]
    NotBuilt,
}

fn because(cause: &Option<String>) -> String {
    cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default()
}

/// If this is a failure of TLS: what went wrong, in words that say what to do about it.
pub fn failure(error: &io::Error) -> Option<String> {
    layer::failure(error)
}

/// A client that speaks TLS reaches a server that does not.
pub const NO_TLS: &str =
    "it speaks no TLS, and this process is told to (--tls-ca, or FUSEE_TLS_CA)";
/// A client that does not reaches a server that speaks TLS.
pub const WANTS_TLS: &str =
    "it speaks TLS only; name its authority's certificate with --tls-ca, or FUSEE_TLS_CA";
/// For the log of a server without a certificate.
pub const SPEAKS_TLS: &str =
    "it speaks TLS, and this server has no certificate (--tls-cert, --tls-key)";
/// For the log of a server with one.
pub const SPEAKS_NONE: &str = "it speaks no TLS, and this server does";
