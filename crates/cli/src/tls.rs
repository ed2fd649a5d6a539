//! The files of TLS, which flags of the program name for all of its commands.
//!
//! What the flags say is set once, at the beginning. Without them connections are plain.

use std::path::PathBuf;
use std::sync::OnceLock;

use fusee_tls::{Tls, TlsError};

use crate::failure::Failure;

/// The environment variables that say the same as the flags.
pub const CA: &str = "FUSEE_TLS_CA";
/// See [`Files::cert`].
pub const CERT: &str = "FUSEE_TLS_CERT";
/// See [`Files::key`].
pub const KEY: &str = "FUSEE_TLS_KEY";

/// What may be named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Certificates of the authorities that this process believes: all that it dials has TLS.
    pub ca: Option<PathBuf>,
    /// The certificate of a server: all that it answers has TLS.
    pub cert: Option<PathBuf>,
    /// The key of that.
    pub key: Option<PathBuf>,
}

static FILES: OnceLock<Files> = OnceLock::new();

/// The flags name these.
pub fn set(files: Files) {
    FILES.get_or_init(|| files);
}

/// The files that the flags name.
fn files() -> Files {
    FILES.get().cloned().unwrap_or_default()
}

/// What makes a process that is started by this one speak TLS as this one does.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    let Files { ca, cert, key } = files();
    let all = [(CA, ca), (CERT, cert), (KEY, key)];
    all.into_iter().filter_map(|(name, file)| Some((name, file?))).collect()
}

/// The certificates of a tool. They are read once: whoever looks again and again gets the same.
pub fn of_client() -> Result<Option<Tls>, Failure> {
    static TLS: OnceLock<Option<Tls>> = OnceLock::new();
    if let Some(known) = TLS.get() {
        return Ok(known.clone());
    }
    let tls = files().ca.as_deref().map(Tls::of_client).transpose().map_err(wrong)?;
    Ok(TLS.get_or_init(|| tls).clone())
}

/// The certificates of a server, which dials others, too: of these files, in the order of [`Files`]. Flags beat them.
pub fn of_server(configured: [Option<PathBuf>; 3]) -> Result<Option<Tls>, Failure> {
    let (flags, [ca, cert, key]) = (files(), configured);
    let [ca, cert, key] = [flags.ca.or(ca), flags.cert.or(cert), flags.key.or(key)];
    match [ca.as_deref(), cert.as_deref(), key.as_deref()] {
        [None, None, None] => Ok(None),
        [Some(ca), Some(cert), Some(key)] => Tls::of_server(ca, cert, key).map(Some).map_err(wrong),
        _ => Err(Failure::usage(
            "a server needs all of --tls-ca, --tls-cert and --tls-key, or none: servers dial each other, and in a \
             cluster all of them speak TLS or none does",
        )),
    }
}

fn wrong(error: TlsError) -> Failure {
    Failure::usage(error.to_string())
}
