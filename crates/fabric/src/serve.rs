//! A memory node's servers for all fabrics, as one value.
//!
//! [`NodeFabrics::start`] lends a pool over any of the fabrics. Sessions in the memory node's own process can
//! attach without a socket. A fence goes to all fabrics, and is complete when each of them has completed it.
//! Dropping the value ends all sessions: their verbs fail as unreachable.
//!
//! A node can combine verbs with other fabrics only if the NIC's atomics and the processor's are atomic with each
//! other. Few NICs promise that. Without the promise, a CAS by the NIC and one by the processor on the same word
//! could both succeed. So a node with such a NIC serves nothing else, not even sessions of its own process. The
//! node's processor still writes to the pool, but never to a word that a session is allowed to change at that time:
//! it writes block tables, which sessions only READ, and zeros to memory that is not reserved.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fusee_auth::{Keyring, NodeKey};
use fusee_core::ended_clients::LiveClients;
use fusee_core::verbs::ClientId;
use fusee_tls::TlsSettings;

use crate::any_fabric::FabricKind;
use crate::error::ServeError;
use crate::limits::NodeLimits;
use crate::pool::Pool;
use crate::shm::{ShmLocalNode, ShmServer};
use crate::tcp::{TcpNode, TcpTraffic};
use crate::verbs::VerbsNode;

/// The pool, the fabrics that serve it, and their addresses.
#[derive(Clone, Debug)]
pub struct NodeFabricsOptions {
    /// The pool to lend.
    pub pool: Pool,
    /// The node's identity: a random number that differs for every node, and for every start of a node.
    pub identity: u64,
    /// The address of the software NIC; port 0: any free port. `None`: no TCP.
    pub tcp: Option<SocketAddr>,
    /// The time for which the software NIC spins for requests before it sleeps; zero: not at all.
    pub spin: Duration,
    /// The path of the socket that hands out the pool's memory to processes of this host; `None` for no socket.
    pub shm: Option<PathBuf>,
    /// The address at which sessions get queue pairs of the NIC; port 0: any free port. `None`: no verbs.
    pub verbs: Option<SocketAddr>,
    /// Whether switches on the wire are allowed to steer READs over verbs. The pool is then registered a second
    /// time, with the RDMA key for steered READs.
    pub steered: bool,
    /// The settings for TLS. If they contain a certificate, connections over TCP must use TLS.
    pub tls: Option<TlsSettings>,
    /// The node's keys, if the cluster has a secret. The key that clients and the node prove to each other is derived
    /// from the client's key among them.
    pub keys: Option<Keyring>,
}

/// The running fabrics of one memory node.
#[derive(Debug)]
pub struct NodeFabrics {
    // The fields are in the order in which the servers end; the sources of new sessions end first.
    shm: Option<ShmServer>,
    tcp: Option<TcpNode>,
    verbs: Option<VerbsNode>,
    /// The sessions that map the pool. `None` if the processor must not execute verbs.
    hub: Option<Arc<ShmLocalNode>>,
    pool: Pool,
}

impl NodeFabrics {
    /// Starts the servers.
    pub fn start(options: NodeFabricsOptions) -> Result<NodeFabrics, ServeError> {
        NodeFabrics::start_limited(options, NodeLimits::default())
    }

    /// Starts the servers like [`NodeFabrics::start`], with these limits for each fabric.
    pub fn start_limited(
        options: NodeFabricsOptions,
        limits: NodeLimits,
    ) -> Result<NodeFabrics, ServeError> {
        let NodeFabricsOptions { pool, identity, tcp, spin, shm, verbs, steered, tls, keys } =
            options;
        let key = NodeKey::new(keys.as_ref(), identity);
        let start = |at| VerbsNode::start_limited(&pool, key.clone(), at, steered, limits);
        let verbs = verbs.map(start).transpose()?;
        let alone = verbs.as_ref().map(VerbsNode::device).filter(|(_, shares)| !shares);
        if let Some((device, _)) = alone {
            if tcp.is_some() || shm.is_some() {
                return Err(ServeError::AtomicsNotShared { device: device.to_owned() });
            }
            return Ok(NodeFabrics { shm: None, tcp: None, verbs, hub: None, pool });
        }
        let hub = ShmLocalNode::start(pool.clone(), identity)?;
        let start = |at| TcpNode::start_limited(pool.clone(), key.clone(), at, spin, tls, limits);
        let tcp = tcp.map(start).transpose()?;
        let start = |path: PathBuf| ShmServer::start(hub.clone(), key, &path, limits);
        let shm = shm.map(start).transpose()?;
        Ok(NodeFabrics { shm, tcp, verbs, hub: Some(hub), pool })
    }

    /// Returns the address of the software NIC with the actual port; `None` without TCP.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(TcpNode::addr)
    }

    /// Returns the address at which sessions get queue pairs, with the actual port; `None` without verbs.
    pub fn verbs_addr(&self) -> Option<SocketAddr> {
        self.verbs.as_ref().map(VerbsNode::addr)
    }

    /// Returns the path of the socket that hands out the pool's memory to processes of this host; `None` if the node
    /// has no socket.
    pub fn shm_path(&self) -> Option<PathBuf> {
        self.shm.as_ref().map(|shm| shm.path().to_owned())
    }

    /// Returns whether the node has a socket that is no longer at its path.
    pub fn is_socket_gone(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| !shm.is_there())
    }

    /// Sets the time for which the software NIC, if the node has one, spins for requests before it sleeps.
    pub fn set_spin(&self, spin: Duration) {
        if let Some(tcp) = &self.tcp {
            tcp.set_spin(spin);
        }
    }

    /// Fences clients for ever. When this returns, no verb of these clients executes here any more.
    ///
    /// A client process that has mapped the pool is asked to shut the session's gate, and killed if it does not do
    /// so within a second (see [`shm`](crate::shm) for the reason). All processes share that second.
    pub fn fence(&self, clients: &[ClientId]) {
        for client in clients {
            if let Some(tcp) = &self.tcp {
                tcp.fence(*client);
            }
            if let Some(verbs) = &self.verbs {
                verbs.fence(*client);
            }
        }
        if let Some(hub) = &self.hub {
            hub.fence(clients);
        }
    }

    /// Records which clients with ids below a bound are alive. The servers refuse all other clients below the bound,
    /// and need not remember these one by one.
    pub fn learn(&self, living: &LiveClients) {
        if let Some(tcp) = &self.tcp {
            tcp.learn(living);
        }
        if let Some(verbs) = &self.verbs {
            verbs.learn(living);
        }
        if let Some(hub) = &self.hub {
            hub.learn(living);
        }
    }

    /// Returns the number of attached sessions, over all fabrics.
    pub fn attached_clients(&self) -> u64 {
        [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs]
            .map(|kind| self.attached_over(kind))
            .iter()
            .sum()
    }

    /// Returns the number of attached sessions over this fabric.
    pub fn attached_over(&self, kind: FabricKind) -> u64 {
        match kind {
            FabricKind::Shm => self.hub.as_ref().map_or(0, |hub| hub.sessions()),
            FabricKind::Tcp => self.tcp.as_ref().map_or(0, TcpNode::sessions),
            FabricKind::Verbs => self.verbs.as_ref().map_or(0, VerbsNode::sessions),
        }
    }

    /// Returns the traffic over TCP so far. The memory node does not see the traffic of other fabrics.
    pub fn tcp_traffic(&self) -> TcpTraffic {
        self.tcp.as_ref().map(TcpNode::traffic).unwrap_or_default()
    }

    /// Returns the pool that the node lends.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Drop for NodeFabrics {
    fn drop(&mut self) {
        self.shm = None;
        self.tcp = None;
        self.verbs = None;
        if let Some(hub) = &self.hub {
            hub.close();
        }
    }
}
