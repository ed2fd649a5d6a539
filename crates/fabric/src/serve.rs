//! The memory node's side of all fabrics in one value.
//!
//! [`NodeFabrics::start`] lends a pool over shared memory, TCP, or both. Sessions in the memory
//! node's own process can always attach, whether a socket is asked for or not. Fencing goes to
//! all fabrics, and is over when it is over on each of them. Dropping the value ends all
//! sessions: their verbs fail as unreachable.
//!
//! Verbs are for themselves, unless the network card's atomics and the processor's see each other, which
//! few cards promise: a CAS by the card and one by the processor on the same word could both succeed. So a
//! node that serves verbs by another card serves nothing else, not even sessions of its own process. It
//! writes to the pool itself, but never to a word that a session changes at that time: to the block
//! tables, which sessions only READ, and zeros to what is not reserved.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fusee_auth::{Keys, NodeKey};
use fusee_core::over::Living;
use fusee_core::verbs::ClientId;
use fusee_tls::Tls;

use crate::any::FabricKind;
use crate::doors::NodeLimits;
use crate::error::ServeError;
use crate::pool::Pool;
use crate::shm::{Hub, ShmServer};
use crate::tcp::{TcpNode, Traffic};
use crate::verbs::VerbsNode;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct NodeFabricsOptions {
    /// The memory to lend.
    pub pool: Pool,
    /// Random; tells this node from every other, and from itself before a restart.
    pub identity: u64,
    /// Where the software NIC listens; port 0 takes a free one.
    pub tcp: Option<SocketAddr>,
    /// How long the software NIC looks for requests before it sleeps; zero: not at all.
    pub spin: Duration,
    /// Path of the socket that hands out the memory to processes of this host.
    pub shm: Option<PathBuf>,
    /// Where the network card's queue pairs are handed out; port 0 takes a free one.
    pub verbs: Option<SocketAddr>,
    /// Whether switches on the wire may steer READs over verbs: the pool is registered a second time, under the key of
    /// these.
    pub steered: bool,
    /// Over TCP whoever connects has to speak TLS, if this has a certificate.
    pub tls: Option<Tls>,
    /// Of the cluster's secret, if it has one: clients prove them, and so does the node.
    pub keys: Option<Keys>,
}

/// The running fabrics of one memory node.
#[derive(Debug)]
pub struct NodeFabrics {
    // In the order in which they are to end: no new sessions first.
    shm: Option<ShmServer>,
    tcp: Option<TcpNode>,
    verbs: Option<VerbsNode>,
    /// `None` where the processor must not execute verbs.
    hub: Option<Arc<Hub>>,
    pool: Pool,
}

impl NodeFabrics {
    /// Starts the servers.
    pub fn start(options: NodeFabricsOptions) -> Result<NodeFabrics, ServeError> {
        NodeFabrics::start_limited(options, NodeLimits::default())
    }

    /// As [`NodeFabrics::start`], with other limits, on each of the fabrics.
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
        let hub = Hub::start(pool.clone(), identity)?;
        let own = (pool.clone(), key.clone());
        let start = |at| TcpNode::start_limited(own, at, spin, tls, limits);
        let tcp = tcp.map(start).transpose()?;
        let start = |path: PathBuf| ShmServer::start((hub.clone(), key), &path, limits);
        let shm = shm.map(start).transpose()?;
        Ok(NodeFabrics { shm, tcp, verbs, hub: Some(hub), pool })
    }

    /// Where the software NIC listens, with the actual port.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(TcpNode::addr)
    }

    /// Where the network card's queue pairs are handed out, with the actual port.
    pub fn verbs_addr(&self) -> Option<SocketAddr> {
        self.verbs.as_ref().map(VerbsNode::addr)
    }

    /// The socket that hands out the memory.
    pub fn shm_path(&self) -> Option<PathBuf> {
        self.shm.as_ref().map(|shm| shm.path().to_owned())
    }

    /// Whether a socket was asked for and is not there any more.
    pub fn is_socket_gone(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| !shm.is_there())
    }

    /// The software NIC, if there is one, looks for requests for so long before it sleeps, from now on.
    pub fn set_spin(&self, spin: Duration) {
        if let Some(tcp) = &self.tcp {
            tcp.set_spin(spin);
        }
    }

    /// Fences clients for ever. When this returns, no verb of them executes here any more.
    ///
    /// A client process that has mapped the pool is asked to shut the session's gate, and killed if it does not within
    /// a second; see [`shm`](crate::shm) for why. All processes have the same second.
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

    /// Learns who lives among the first clients: the others of these are not served any more, and not remembered one
    /// by one.
    pub fn learn(&self, living: &Living) {
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

    /// The number of sessions attached, over all fabrics.
    pub fn attached_clients(&self) -> u64 {
        [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs]
            .map(|kind| self.attached_over(kind))
            .iter()
            .sum()
    }

    /// The number of sessions attached over this fabric.
    pub fn attached_over(&self, kind: FabricKind) -> u64 {
        match kind {
            FabricKind::Shm => self.hub.as_ref().map_or(0, |hub| hub.sessions()),
            FabricKind::Tcp => self.tcp.as_ref().map_or(0, TcpNode::sessions),
            FabricKind::Verbs => self.verbs.as_ref().map_or(0, VerbsNode::sessions),
        }
    }

    /// What went over TCP so far. What goes over the other fabrics passes the memory node by.
    pub fn tcp_traffic(&self) -> Traffic {
        self.tcp.as_ref().map(TcpNode::traffic).unwrap_or_default()
    }

    /// The memory lent.
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
