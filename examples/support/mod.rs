//! The cluster that an example uses.

use fusee_client::{BlockingClient, Client, ConnectError, EmbeddedOptions};

/// Joins the cluster of the master that the environment variable FUSEE_MASTER names (`fusee up` prints its
/// address), or starts a cluster inside this process.
pub fn client() -> Result<Client, ConnectError> {
    match std::env::var("FUSEE_MASTER") {
        Ok(master) => Client::connect(&master),
        Err(_) => Client::embedded(EmbeddedOptions::default()),
    }
}

/// Like [`client`], but returns the client with blocking calls.
#[allow(dead_code, reason = "some examples are async")]
pub fn store() -> Result<BlockingClient, ConnectError> {
    Ok(client()?.blocking())
}
