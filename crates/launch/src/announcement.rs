//! Announcements: the line of JSON that a server writes to standard output after it has opened its ports.
//!
//! `fusee master`, `fusee memory-node` and `fusee switch` write this line with `--announce`, for the process that
//! started them.

use std::net::SocketAddr;

use fusee_cli::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The announcement of a master.
#[derive(Debug, Deserialize, Serialize)]
pub struct MasterAnnouncement {
    /// Host and port at which the master listens.
    pub control: String,
    /// The address of the master's status page; `None` without `--http`.
    pub http: Option<SocketAddr>,
}

/// The announcement of a memory node.
#[derive(Debug, Deserialize, Serialize)]
pub struct NodeAnnouncement {
    /// Host and port of the node's control service.
    pub control: String,
    /// Host and port of the node's software NIC; `None` if TCP is not served.
    pub tcp: Option<String>,
    /// Path of the node's socket for shared memory; `None` if shared memory is not served.
    pub shm: Option<String>,
    /// Host and port at which the node hands out queue pairs; `None` if verbs are not served.
    pub verbs: Option<String>,
    /// The address of the node's metrics; `None` without `--http`.
    pub http: Option<SocketAddr>,
}

/// The announcement of a switch.
#[derive(Debug, Deserialize, Serialize)]
pub struct SwitchAnnouncement {
    /// Host and port at which the switch listens, or `wire` for a switch between two interfaces.
    pub switch: String,
}

/// Parses an announcement.
pub fn parse<A: DeserializeOwned>(line: &str) -> Result<A, Failure> {
    serde_json::from_str(line).map_err(|error| {
        Failure::operation(format!("a server announced what cannot be understood: {error}"))
    })
}
