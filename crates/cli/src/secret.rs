//! The file of the cluster's secret, or of a key of it, which one flag of the program names for all of its commands.
//!
//! What the flag says is set once, at the beginning. Without it nobody has to prove anything.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fusee_auth::Keys;
use fusee_control::rpc::Runtime;

use crate::failure::Failure;
use crate::tls;

static FILE: OnceLock<PathBuf> = OnceLock::new();

/// The environment variable that says the same as the flag.
pub const VARIABLE: &str = "FUSEE_SECRET";

/// The flag names this file.
pub fn set(file: PathBuf) {
    FILE.get_or_init(|| file);
}

/// The file that the flag names.
pub fn file() -> Option<&'static Path> {
    FILE.get().map(PathBuf::as_path)
}

/// The keys of a tool: what its file has. It is read once: it may be a pipe.
pub fn keys() -> Result<Option<Keys>, Failure> {
    static KEYS: OnceLock<Option<Keys>> = OnceLock::new();
    if let Some(known) = KEYS.get() {
        return Ok(known.clone());
    }
    let keys = file().map(Keys::of_client).transpose();
    let keys = keys.map_err(|error| Failure::usage(error.to_string()))?;
    Ok(KEYS.get_or_init(|| keys).clone())
}

/// The keys of a server, which needs the secret itself. `configured`: what its configuration says; the flag beats it.
pub fn of_server(configured: Option<&Path>) -> Result<Option<Keys>, Failure> {
    let keys = file().or(configured).map(Keys::of_server).transpose();
    keys.map_err(|error| Failure::usage(error.to_string()))
}

/// The keys of what connects as a tool does, if this file is named or the flag names one: as much as the file has.
pub fn tool(configured: Option<&Path>) -> Result<Option<Keys>, Failure> {
    let keys = file().or(configured).map(Keys::of_client).transpose();
    keys.map_err(|error| Failure::usage(error.to_string()))
}

/// A runtime whose connections prove what the flag says, over TLS if flags say so.
pub fn runtime(name: &str) -> Result<Runtime, Failure> {
    let runtime = Runtime::with_keys(name, keys()?)
        .map_err(|error| Failure::operation(format!("cannot start a thread: {error}")))?;
    Ok(runtime.with_tls(tls::of_client()?))
}

/// What makes a process that is started by this one prove the same, and speak TLS as this one does.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    let secret = file().map(|file| (VARIABLE, file.to_owned()));
    secret.into_iter().chain(tls::environment()).collect()
}
