//! The file of the cluster's secret, or of a key that is derived from the secret. All commands have one flag for it.
//!
//! The flag is stored once, when the program starts. Without it connections are not authenticated.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fusee_auth::Keyring;
use fusee_control::rpc::Runtime;

use crate::failure::Failure;
use crate::tls;

static FILE: OnceLock<PathBuf> = OnceLock::new();

/// The environment variable that replaces the flag `--secret`.
pub const VARIABLE: &str = "FUSEE_SECRET";

/// Stores the path that the flag `--secret` gives.
pub fn set(file: PathBuf) {
    FILE.get_or_init(|| file);
}

/// Returns the path that the flag `--secret` gives.
pub fn file() -> Option<&'static Path> {
    FILE.get().map(PathBuf::as_path)
}

/// Returns the keys of a tool, from the flag's file. The file is read only once, because it can be a pipe.
pub fn keys() -> Result<Option<Keyring>, Failure> {
    static KEYS: OnceLock<Option<Keyring>> = OnceLock::new();
    if let Some(known) = KEYS.get() {
        return Ok(known.clone());
    }
    let keys = file().map(Keyring::of_client).transpose();
    let keys = keys.map_err(|error| Failure::usage(error.to_string()))?;
    Ok(KEYS.get_or_init(|| keys).clone())
}

/// Returns the keys of a server, which needs the secret itself. `configured` is the file that the server's settings
/// name; the flag has precedence.
pub fn of_server(configured: Option<&Path>) -> Result<Option<Keyring>, Failure> {
    let keys = file().or(configured).map(Keyring::of_server).transpose();
    keys.map_err(|error| Failure::usage(error.to_string()))
}

/// Returns the keys of a process that connects as a tool does. The file is the flag's, or else `configured`. It can
/// contain the secret or one derived key.
pub fn keys_of_tool(configured: Option<&Path>) -> Result<Option<Keyring>, Failure> {
    let keys = file().or(configured).map(Keyring::of_client).transpose();
    keys.map_err(|error| Failure::usage(error.to_string()))
}

/// Returns a runtime whose connections use the keys of the flag's file, and TLS if flags ask for it.
pub fn runtime(name: &str) -> Result<Runtime, Failure> {
    let runtime = Runtime::with_keys(name, keys()?)
        .map_err(|error| Failure::operation(format!("cannot start a thread: {error}")))?;
    Ok(runtime.with_tls(tls::of_client()?))
}

/// Returns environment variables for child processes, which give them the same secret and TLS files.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    let secret = file().map(|file| (VARIABLE, file.to_owned()));
    secret.into_iter().chain(tls::environment()).collect()
}
