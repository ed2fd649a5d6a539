//! The RPC layer: the only module that uses sockets and an async runtime (tokio).
//!
//! A service is a pair of message types and a [`Role`]. There are two services, [`NodeService`] and [`MasterService`].
//! [`serve`] offers a service on a TCP port, and [`serve_local`] inside the process without a port. [`RpcClient`] is
//! the client of both, so the code of an embedded cluster differs from that of a real one in one line.
//!
//! * Every connection starts with a hello (module `hello`), which detects a wrong port, or a master in place of a
//!   memory node. In the hello, both ends prove that they have the cluster's secret or a key derived from it, if they
//!   have one. The keys are those of the [`Runtime`]. [`Service::required_peer`] tells which key a request needs.
//! * If the runtime has certificates, the TLS handshake comes before the hello (module `wire`).
//! * Frames follow: length (4 bytes, big-endian), one message in postcard encoding, and a code (16 bytes) if keys were
//!   proved. A frame has at most [`MAX_FRAME_BYTES`]. Bytes that cannot be decoded close their connection, with a line
//!   in the log, and have no other effect.
//! * Every request is stamped with the cluster of its sender ([`Stamped`]), so that no process obeys a process of
//!   another cluster at an address that its own cluster used before.
//! * A call has a deadline. After the deadline the request can still take effect: the messages are designed so that
//!   this does no harm. For the same reason no request is repeated without the caller's knowledge. The client of the
//!   master, of which there can be several, repeats only requests that cannot have had an effect: see [`MasterClient`].
//! * A handler that was started runs to its end, even if its caller has given up.
//! * The resources that unauthenticated and broken peers can take from a server are bounded (module `connections`,
//!   [`Limits`]).
//!
//! Clients can be used under any executor. Their connections live on the [`Runtime`] that they were made with, which
//! must outlive them.

mod calls;
mod client;
mod codec;
mod connections;
mod frames;
mod hello;
mod masters;
#[doc(hidden)]
pub mod parsers;
mod requests;
mod runtime;
mod server;
mod stamp;
mod times;
mod wire;

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use client::RpcClient;
pub use connections::Limits;
pub use hello::{CONTROL, Role};
pub use masters::MasterClient;
pub use runtime::Runtime;
pub use server::{Server, bind, serve, serve_connections, serve_limited, serve_local};
pub use stamp::{Caller, Stamped};
pub use times::{BOUNDS_US, RequestTimes, Times};

use fusee_auth::PeerKind;
use fusee_core::verbs::ClusterId;
use fusee_core::version::VersionError;

use crate::master::{MasterReply, MasterRequest};
use crate::node::{NodeReply, NodeRequest};

/// The longest frame, in bytes. Longer views come in [pieces](crate::view_pieces).
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// The idle time after which a client does not reuse a connection, because the server is possibly about to close it
/// ([`Limits::idle`]).
pub const REUSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of requests of one connection that are handled at a time. Further requests wait in the socket.
pub const MAX_REQUESTS_PER_CONNECTION: usize = 64;
/// The time for which either end waits for the other's hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// The deadline of a call, unless [`RpcClient::with_deadline`] sets another one.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);
/// The longest deadline that a server observes.
pub const MAX_DEADLINE: Duration = Duration::from_secs(600);

/// A pair of message types, and the role of the server that answers them.
pub trait Service: Send + Sync + 'static {
    /// The type of requests.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// The type of replies.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// The role of the server.
    const ROLE: Role;

    /// Returns the kind of peer that is allowed to make a request, if peers have to prove their kind.
    fn required_peer(request: &Self::Request) -> PeerKind;

    /// Returns the name of a request.
    fn name(request: &Self::Request) -> &'static str;
}

/// The service of memory nodes.
#[derive(Clone, Copy, Debug)]
pub enum NodeService {}

impl Service for NodeService {
    type Request = NodeRequest;
    type Reply = NodeReply;
    const ROLE: Role = Role::MemoryNode;

    fn required_peer(request: &NodeRequest) -> PeerKind {
        use NodeRequest::*;
        match request {
            Describe
            | Usage
            | Alloc { .. }
            | SetOwner { .. }
            | InTurn { .. }
            | Bar { .. }
            | LogArea { .. } => PeerKind::Client,
            Format { .. }
            | Reserve { .. }
            | OfJob { .. }
            | BlocksOf { .. }
            | OwnersOf { .. }
            | LogAreasOf { .. }
            | Fence { .. }
            | Living { .. }
            | StandAt { .. }
            | Unbar { .. } => PeerKind::Server,
        }
    }

    fn name(request: &NodeRequest) -> &'static str {
        use NodeRequest::*;
        match request {
            Describe => "Describe",
            Format { .. } => "Format",
            Reserve { .. } => "Reserve",
            Alloc { .. } => "Alloc",
            SetOwner { .. } => "SetOwner",
            OwnersOf { .. } => "OwnersOf",
            InTurn { .. } => "InTurn",
            OfJob { .. } => "OfJob",
            BlocksOf { .. } => "BlocksOf",
            Fence { .. } => "Fence",
            Living { .. } => "Living",
            Usage => "Usage",
            StandAt { .. } => "StandAt",
            Bar { .. } => "Bar",
            Unbar { .. } => "Unbar",
            LogArea { .. } => "LogArea",
            LogAreasOf { .. } => "LogAreasOf",
        }
    }
}

/// The service of the master.
#[derive(Clone, Copy, Debug)]
pub enum MasterService {}

impl Service for MasterService {
    type Request = MasterRequest;
    type Reply = MasterReply;
    const ROLE: Role = Role::Master;

    fn required_peer(request: &MasterRequest) -> PeerKind {
        use MasterRequest::*;
        match request {
            Form { .. } | Destroy { .. } | Drain { .. } => PeerKind::Admin,
            Join { .. } | Alive { .. } => PeerKind::Server,
            Open
            | TakeOrphan { .. }
            | HandOn { .. }
            | Close { .. }
            | Heartbeat { .. }
            | Abandon { .. }
            | Unreachable { .. }
            | Split { .. }
            | MoreRoom { .. }
            | GetView { .. }
            | ViewPiece { .. }
            | Status
            | Owners
            | Events { .. }
            | FurtherClient { .. } => PeerKind::Client,
        }
    }

    fn name(request: &MasterRequest) -> &'static str {
        use MasterRequest::*;
        match request {
            Form { .. } => "Form",
            Destroy { .. } => "Destroy",
            Join { .. } => "Join",
            Open => "Open",
            TakeOrphan { .. } => "TakeOrphan",
            HandOn { .. } => "HandOn",
            Close { .. } => "Close",
            Heartbeat { .. } => "Heartbeat",
            Abandon { .. } => "Abandon",
            Unreachable { .. } => "Unreachable",
            Split { .. } => "Split",
            MoreRoom { .. } => "MoreRoom",
            Drain { .. } => "Drain",
            Alive { .. } => "Alive",
            GetView { .. } => "GetView",
            ViewPiece { .. } => "ViewPiece",
            Status => "Status",
            Owners => "Owners",
            Events { .. } => "Events",
            FurtherClient { .. } => "FurtherClient",
        }
    }
}

/// The client of a memory node.
pub type NodeClient = RpcClient<NodeService>;

/// Errors of calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// No process listens at the address, or the address cannot be reached. The request did not take effect.
    #[error("{addr} is unreachable: {cause}")]
    Unreachable {
        /// The address that the client called.
        addr: String,
        /// A description of the failure, for example an error of the operating system.
        cause: String,
    },
    /// Another service listens at the address. The request did not take effect.
    #[error("expected {expected} at {addr}, found {found}; check the address")]
    WrongService {
        /// The address that the client called.
        addr: String,
        /// The role that should have answered.
        expected: Role,
        /// A description of the service that answered.
        found: String,
    },
    /// The service speaks another version of the control protocol. The request did not take effect.
    #[error("{addr}: {error}")]
    Version {
        /// The address that the client called.
        addr: String,
        /// The versions of both sides, which show the side that is too old.
        error: VersionError,
    },
    /// The answer did not arrive before the deadline. The request possibly took effect, or can still do so.
    #[error("{addr} did not answer in time")]
    TimedOut {
        /// The address that the client called.
        addr: String,
    },
    /// The connection broke. The request possibly took effect.
    #[error("{addr} closed the connection")]
    Closed {
        /// The address that the client called.
        addr: String,
    },
    /// All masters that can be reached stand by: none of them leads. The request did not take effect.
    #[error(
        "no master of {addr} leads now; another try may find one, else see whether the masters \
         reach their store"
    )]
    NoLeader {
        /// The addresses that the client called.
        addr: String,
    },
    /// The master leads another cluster, or none. The request did not take effect.
    #[error("{}", wrong_cluster(addr, *own, *found))]
    WrongCluster {
        /// The address that the client called.
        addr: String,
        /// The cluster of the caller; `None` if it belongs to none yet.
        own: Option<ClusterId>,
        /// The cluster that the master leads; `None` if it leads none.
        found: Option<ClusterId>,
    },
    /// One side lacks the keys that the other side demands. The request did not take effect.
    #[error("{addr}: {what}")]
    Keys {
        /// The address that the client called.
        addr: String,
        /// A text that names the missing keys, and gives advice.
        what: String,
    },
    /// Only one side speaks TLS, or the certificate is not valid. The request did not take effect.
    #[error("{addr}: {what}")]
    Tls {
        /// The address that the client called.
        addr: String,
        /// A text that gives the reason, and advice.
        what: String,
    },
    /// One side sent a message that the other cannot understand, or the handler failed.
    #[error("{addr}: {what}")]
    Protocol {
        /// The address that the client called.
        addr: String,
        /// A description of the failure.
        what: String,
    },
}

impl RpcError {
    /// Returns whether the request possibly took effect, or can still do so.
    pub fn may_take_effect(&self) -> bool {
        !matches!(
            self,
            RpcError::Unreachable { .. }
                | RpcError::WrongService { .. }
                | RpcError::Version { .. }
                | RpcError::NoLeader { .. }
                | RpcError::WrongCluster { .. }
                | RpcError::Keys { .. }
                | RpcError::Tls { .. }
        )
    }
}

fn wrong_cluster(addr: &str, own: Option<ClusterId>, found: Option<ClusterId>) -> String {
    let start = "start the master on the store of its cluster (--data-dir, or --store)";
    match (own, found) {
        (None, None) => format!(
            "the master at {addr} has no cluster; {start}, or form a new one: \
             `fusee form --master {addr}`"
        ),
        (Some(own), None) => {
            format!("the master at {addr} has no cluster, this is of cluster {own}; {start}")
        }
        (_, Some(found)) => {
            let own = own.map_or("no cluster".into(), |own| format!("cluster {own}"));
            format!("the master at {addr} leads cluster {found}, this is of {own}; {start}")
        }
    }
}

/// Errors of listening at an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Another process uses the port.
    #[error("{addr} is in use by another process; stop it, or listen at another port")]
    PortInUse {
        /// The address at which the process tried to listen.
        addr: String,
    },
    /// The process cannot listen at the address.
    #[error("cannot listen at {addr}: {cause}; give an address of this machine as host:port")]
    Address {
        /// The address at which the process tried to listen.
        addr: String,
        /// The error of the operating system.
        cause: String,
    },
}
