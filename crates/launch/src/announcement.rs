//! Announcements: the line of JSON that a server writes to standard output once its ports are open.
//!
//! `fusee master`, `fusee memory-node` and `fusee switch` write it if they are told to
//! (`--announce`), for the process that started them.

use std::net::SocketAddr;

use fusee_cli::failure::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The announcement of a master.
#[derive(Debug, Deserialize, Serialize)]
pub struct MasterAnnouncement {
    /// Host and port that it listens at.
    pub control: String,
    /// The address of its page.
    pub http: Option<SocketAddr>,
}

/// The announcement of a memory node.
#[derive(Debug, Deserialize, Serialize)]
pub struct NodeAnnouncement {
    /// Host and port of its control service.
    pub control: String,
    /// Host and port of its software NIC.
    pub tcp: Option<String>,
    /// Path of its socket.
    pub shm: Option<String>,
    /// Host and port at which it hands out queue pairs.
    pub verbs: Option<String>,
    /// The address of its metrics.
    pub http: Option<SocketAddr>,
}

/// The announcement of a switch.
#[derive(Debug, Deserialize, Serialize)]
pub struct SwitchAnnouncement {
    /// Host and port that it listens at; `wire` between two interfaces.
    pub switch: String,
}

/// Parses an announcement.
pub fn parse<A: DeserializeOwned>(line: &str) -> Result<A, Failure> {
    serde_json::from_str(line).map_err(|error| {
        Failure::operation(format!("a server announced what cannot be understood: {error}"))
    })
}
