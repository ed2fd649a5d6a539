//! The settings of a memory node.
//!
//! Every field has a default that fits a cluster on one machine with several memory nodes: the system chooses the
//! ports, and the master learns them when the node joins. Across machines, `listen` and `tcp` name an address on
//! the network. `advertise` is the host name by which other processes reach the machine, if it differs. Unknown
//! fields are errors.
//!
//! Sizes are in bytes.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use fusee_auth::Keyring;
use fusee_tls::TlsSettings;
use serde::{Deserialize, Serialize};

use crate::server::NodeStartError;

/// The default port of the master.
pub const DEFAULT_MASTER_PORT: u16 = 7400;

/// Settings of a memory node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryNodeConfig {
    /// The keys derived from the cluster's secret; callers have to prove that they have theirs, too. `None`, the
    /// default: the node accepts every connection.
    #[serde(skip)]
    pub keys: Option<Keyring>,
    /// The TLS settings. With them, all outgoing connections, the control service and the TCP fabric use TLS.
    /// `None`, the default: no TLS.
    #[serde(skip)]
    pub tls: Option<TlsSettings>,
    /// Host and port of the control service; `127.0.0.1:0` by default. Port 0: any free port.
    pub listen: String,
    /// Host and port of the software NIC; any free port of 127.0.0.1 by default. `None`: no TCP.
    pub tcp: Option<String>,
    /// Host and port at which the node hands out queue pairs of the RDMA device. `None`, the default: no RDMA. With
    /// most devices, no other fabric can be combined with RDMA (see `docs/rdma.md`).
    pub verbs: Option<String>,
    /// Whether switches on the wire are allowed to steer READs over RDMA; `false` by default. If so, the pool is
    /// registered with the device twice, and counts twice against the limit of locked memory.
    pub steered: bool,
    /// The directory for the socket that hands the memory to processes of this host; the system's directory for
    /// temporary files by default. `None`: the node has no such socket.
    pub shm_dir: Option<PathBuf>,
    /// The host name or IP address by which other processes reach this node. Needed if the node listens at all
    /// addresses (0.0.0.0). `None`, the default: the hosts of `listen`, `tcp` and `verbs`.
    pub advertise: Option<String>,
    /// Host and port of the master, `127.0.0.1:7400` by default; with several masters, a list
    /// separated by commas.
    pub master: String,
    /// The number of bytes to lend; 4 GiB by default.
    pub pool_bytes: u64,
    /// Whether the node takes the pages of a region or of a part of the index from the system as soon as it lends them;
    /// `true` by default. If not, a page counts as memory of the process that writes to it first.
    pub populate: bool,
    /// Whether to ask the system for huge pages; `false` by default.
    pub huge_pages: bool,
    /// The time for which the software NIC polls for requests before it sleeps; 50 µs by default. Zero: it sleeps
    /// at once, which saves processor time and costs latency.
    pub spin: Duration,
}

impl Default for MemoryNodeConfig {
    fn default() -> MemoryNodeConfig {
        MemoryNodeConfig {
            keys: None,
            tls: None,
            listen: "127.0.0.1:0".into(),
            tcp: Some("127.0.0.1:0".into()),
            verbs: None,
            steered: false,
            shm_dir: Some(std::env::temp_dir()),
            advertise: None,
            master: format!("127.0.0.1:{DEFAULT_MASTER_PORT}"),
            pool_bytes: 4 << 30,
            populate: true,
            huge_pages: false,
            spin: fusee_fabric::tcp::DEFAULT_SPIN,
        }
    }
}

impl MemoryNodeConfig {
    /// Returns the address to advertise for a local address at which the node listens.
    pub(crate) fn advertised(&self, at: SocketAddr) -> Result<String, NodeStartError> {
        match &self.advertise {
            Some(host) if host.contains(':') && !host.starts_with('[') => {
                Ok(format!("[{host}]:{}", at.port()))
            }
            Some(host) => Ok(format!("{host}:{}", at.port())),
            None if at.ip().is_unspecified() => Err(NodeStartError::Advertise { at }),
            None => Ok(at.to_string()),
        }
    }

    /// Returns the software NIC's address, resolved; `None` without TCP.
    pub(crate) fn tcp_addr(&self) -> Result<Option<SocketAddr>, NodeStartError> {
        self.tcp.as_deref().map(resolve).transpose()
    }

    /// Returns the address for queue pairs, resolved; `None` without RDMA.
    pub(crate) fn verbs_addr(&self) -> Result<Option<SocketAddr>, NodeStartError> {
        self.verbs.as_deref().map(resolve).transpose()
    }
}

fn resolve(addr: &str) -> Result<SocketAddr, NodeStartError> {
    let bad = |cause: String| NodeStartError::Address { addr: addr.to_owned(), cause };
    let mut resolved = addr.to_socket_addrs().map_err(|error| bad(error.to_string()))?;
    resolved.next().ok_or_else(|| bad("no such host".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_an_address_that_leads_here() {
        let at: SocketAddr = "0.0.0.0:70".parse().unwrap();
        let config = |advertise: Option<&str>| MemoryNodeConfig {
            advertise: advertise.map(str::to_owned),
            ..MemoryNodeConfig::default()
        };
        assert!(matches!(config(None).advertised(at), Err(NodeStartError::Advertise { .. })));
        assert_eq!(config(Some("mn.example")).advertised(at).unwrap(), "mn.example:70");
        assert_eq!(config(Some("fd00::1")).advertised(at).unwrap(), "[fd00::1]:70");
        let at: SocketAddr = "10.0.0.7:70".parse().unwrap();
        assert_eq!(config(None).advertised(at).unwrap(), "10.0.0.7:70");
    }
}
