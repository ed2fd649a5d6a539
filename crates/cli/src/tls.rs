//! The files for TLS. All commands have flags for them.
//!
//! The flags are stored once, when the program starts. Without them connections are not encrypted.

use std::path::PathBuf;
use std::sync::OnceLock;

use fusee_tls::{TlsError, TlsSettings};

use crate::failure::Failure;

/// The environment variable that replaces the flag for [`TlsFiles::ca`].
pub const CA: &str = "FUSEE_TLS_CA";
/// The environment variable that replaces the flag for [`TlsFiles::cert`].
pub const CERT: &str = "FUSEE_TLS_CERT";
/// The environment variable that replaces the flag for [`TlsFiles::key`].
pub const KEY: &str = "FUSEE_TLS_KEY";

/// The TLS files that the command line's flags name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the trusted authorities. If set, all outgoing connections use TLS.
    pub ca: Option<PathBuf>,
    /// The certificate of a server. If set, all incoming connections use TLS.
    pub cert: Option<PathBuf>,
    /// The private key of the server's certificate.
    pub key: Option<PathBuf>,
}

static FILES: OnceLock<TlsFiles> = OnceLock::new();

/// Stores the TLS files that the flags name.
pub fn set(files: TlsFiles) {
    FILES.get_or_init(|| files);
}

/// Returns the TLS files that the flags name.
fn files() -> TlsFiles {
    FILES.get().cloned().unwrap_or_default()
}

/// Returns environment variables for child processes, which give them the same TLS files.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    let TlsFiles { ca, cert, key } = files();
    let all = [(CA, ca), (CERT, cert), (KEY, key)];
    all.into_iter().filter_map(|(name, file)| Some((name, file?))).collect()
}

/// Returns the TLS settings of a tool. The files are read only once, and all callers get the same settings.
pub fn of_client() -> Result<Option<TlsSettings>, Failure> {
    static TLS: OnceLock<Option<TlsSettings>> = OnceLock::new();
    if let Some(known) = TLS.get() {
        return Ok(known.clone());
    }
    let tls = files().ca.as_deref().map(TlsSettings::of_client).transpose().map_err(wrong)?;
    Ok(TLS.get_or_init(|| tls).clone())
}

/// Returns the TLS settings of a server, which also opens connections. A file that no flag names is taken from
/// `configured`, which has the order of [`TlsFiles`]'s fields.
pub fn of_server(configured: [Option<PathBuf>; 3]) -> Result<Option<TlsSettings>, Failure> {
    let (flags, [ca, cert, key]) = (files(), configured);
    let [ca, cert, key] = [flags.ca.or(ca), flags.cert.or(cert), flags.key.or(key)];
    match [ca.as_deref(), cert.as_deref(), key.as_deref()] {
        [None, None, None] => Ok(None),
        [Some(ca), Some(cert), Some(key)] => {
            TlsSettings::of_server(ca, cert, key).map(Some).map_err(wrong)
        }
        _ => Err(Failure::usage(
            "a server needs all of --tls-ca, --tls-cert and --tls-key, or none: servers dial each other, and in a \
             cluster all of them speak TLS or none does",
        )),
    }
}

fn wrong(error: TlsError) -> Failure {
    Failure::usage(error.to_string())
}
