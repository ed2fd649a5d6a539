//! The RPC edge: the only module that uses sockets and an async runtime (tokio).
//!
//! A service is a pair of message types and a [`Role`]; there are two, [`NodeService`] and [`MasterService`].
//! [`serve`] answers one on a TCP port, [`serve_local`] inside the process without a port. [`RpcClient`] is the
//! client of either, so an embedded cluster and a real one differ in one line.
//!
//! * Every connection starts with a hello (module `hello`). It detects a wrong port, or a master in place of a
//!   memory node, and both ends prove that they have the cluster's secret or a key of it, if they have one. The
//!   keys are those of the [`Runtime`]. [`Service::needs`] tells which key a request needs.
//! * If the runtime has certificates, the TLS handshake comes before the hello (module `wire`).
//! * Frames follow: length (4 bytes, big-endian), one message in postcard encoding, and a code (16 bytes) if
//!   keys were proved. A frame is at most [`MAX_FRAME_BYTES`]. Bytes that cannot be decoded close their
//!   connection, with a line in the log, and have no other effect.
//! * Every request is stamped with the cluster of the asker ([`Stamped`]), so that no process obeys a stranger
//!   that has taken over the address of another one.
//! * A call has a deadline. After that it may still take effect: the messages are designed so that this does no
//!   harm. For the same reason nothing is retried behind the caller's back. The client of the master, of which
//!   there may be several, repeats only requests that cannot have had an effect: see [`MasterClient`].
//! * A handler that was started runs to its end, even if its caller is gone.
//! * The resources that strangers and broken peers hold on a server are bounded (module `guests`, [`Limits`]).
//!
//! Clients may be used from any executor. Their connections live on the [`Runtime`] that they were made with,
//! which must outlive them.

mod calls;
mod client;
mod codec;
mod frames;
mod guests;
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
pub use guests::Limits;
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
/// A client does not reuse a connection that has been idle for this long: the server may be about to close it
/// ([`Limits::idle`]).
pub const REUSE_TIMEOUT: Duration = Duration::from_secs(20);
/// The most requests of one connection that are handled at a time. Further ones wait in its socket.
pub const MAX_REQUESTS_PER_CONNECTION: usize = 64;
/// The time that either side waits for the other's hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// The deadline of a call, unless [`RpcClient::with_deadline`] sets another.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);
/// The longest deadline that a server honours.
pub const MAX_DEADLINE: Duration = Duration::from_secs(600);

/// A pair of message types, and the role of the server that answers.
pub trait Service: Send + Sync + 'static {
    /// The type of requests.
    type Request: Serialize + DeserializeOwned + Send + 'static;
    /// The type of replies.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// The role of the server.
    const ROLE: Role;

    /// Returns the kind of peer that may make a request, if peers have to prove their kind.
    fn needs(request: &Self::Request) -> PeerKind;

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

    fn needs(request: &NodeRequest) -> PeerKind {
        use NodeRequest::*;
        match request {
            Describe | Usage | Alloc { .. } | SetOwner { .. } | InTurn { .. } | Bar { .. } => {
                PeerKind::Client
            }
            Format { .. }
            | Reserve { .. }
            | OfJob { .. }
            | BlocksOf { .. }
            | OwnersOf { .. }
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

    fn needs(request: &MasterRequest) -> PeerKind {
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
            | Events { .. } => PeerKind::Client,
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
        }
    }
}

/// The client of a memory node.
pub type NodeClient = RpcClient<NodeService>;

/// Errors of calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// No process listens there, or the address cannot be reached. The request did not take effect.
    #[error("{addr} is unreachable: {cause}")]
    Unreachable {
        /// The address of the call.
        addr: String,
        /// The error of the operating system.
        cause: String,
    },
    /// Another service listens there. The request did not take effect.
    #[error("expected {expected} at {addr}, found {found}; check the address")]
    WrongService {
        /// The address of the call.
        addr: String,
        /// The role that should have answered.
        expected: Role,
        /// A description of the service that answered.
        found: String,
    },
    /// The service there speaks another version. The request did not take effect.
    #[error("{addr}: {error}")]
    Version {
        /// The address of the call.
        addr: String,
        /// The two versions, which tell the side that is too old.
        error: VersionError,
    },
    /// No answer before the deadline. The request may still take effect.
    #[error("{addr} did not answer in time")]
    TimedOut {
        /// The address of the call.
        addr: String,
    },
    /// The connection broke. The request may have taken effect.
    #[error("{addr} closed the connection")]
    Closed {
        /// The address of the call.
        addr: String,
    },
    /// All masters that can be reached stand by. The request did not take effect.
    #[error(
        "no master of {addr} leads now; another try may find one, else see whether the masters \
         reach their store"
    )]
    NoLeader {
        /// The addresses of the call.
        addr: String,
    },
    /// The master there leads another cluster, or none. The request did not take effect.
    #[error("{}", wrong_cluster(addr, *own, *found))]
    WrongCluster {
        /// The address of the call.
        addr: String,
        /// The cluster of the asker; `None` if it belongs to none yet.
        own: Option<ClusterId>,
        /// The cluster of the master.
        found: Option<ClusterId>,
    },
    /// One side lacks the keys that the other one demands. The request did not take effect.
    #[error("{addr}: {what}")]
    Keys {
        /// The address of the call.
        addr: String,
        /// The keys, and advice.
        what: String,
    },
    /// Only one side speaks TLS, or the certificate is not good. The request did not take effect.
    #[error("{addr}: {what}")]
    Tls {
        /// The address of the call.
        addr: String,
        /// The reason, and advice.
        what: String,
    },
    /// The two sides do not understand each other, or the handler failed.
    #[error("{addr}: {what}")]
    Protocol {
        /// The address of the call.
        addr: String,
        /// The reason.
        what: String,
    },
}

impl RpcError {
    /// Whether the request may have had an effect, or may still have one.
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
    /// Another process has the port.
    #[error("{addr} is in use by another process; stop it, or listen at another port")]
    PortInUse {
        /// The address asked for.
        addr: String,
    },
    /// The process cannot listen at the address.
    #[error("cannot listen at {addr}: {cause}; give an address of this machine as host:port")]
    Address {
        /// The address asked for.
        addr: String,
        /// The error of the operating system.
        cause: String,
    },
}
