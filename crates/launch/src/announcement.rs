//! What a server says on standard output once its ports are open: one line of JSON.
//!
//! `fusee master`, `fusee memory-node` and `fusee switch` write it when they are told to (`--announce`);
//! whoever started them reads it.

use std::net::SocketAddr;

use fusee_cli::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a master announces.
#[derive(Debug, Deserialize, Serialize)]
pub struct Master {
    /// Host and port that it listens at.
    pub control: String,
    /// Where it serves its page.
    pub http: Option<SocketAddr>,
}

/// What a memory node announces.
#[derive(Debug, Deserialize, Serialize)]
pub struct MemoryNode {
    /// Host and port of its control service.
    pub control: String,
    /// Host and port of its software NIC.
    pub tcp: Option<String>,
    /// Path of its socket.
    pub shm: Option<String>,
    /// Host and port at which it hands out queue pairs.
    pub verbs: Option<String>,
    /// Where it serves its metrics.
    pub http: Option<SocketAddr>,
}

/// What a switch announces.
#[derive(Debug, Deserialize, Serialize)]
pub struct Switch {
    /// Host and port that it listens at; `wire` between two interfaces.
    pub switch: String,
}

/// Understands an announcement.
pub fn parse<A: DeserializeOwned>(line: &str) -> Result<A, Failure> {
    serde_json::from_str(line).map_err(|error| {
        Failure::operation(format!("a server announced what cannot be understood: {error}"))
    })
}
