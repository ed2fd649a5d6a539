//! The RPC edge: the one place where an RPC library (tarpc) and an async runtime (tokio) appear.
//!
//! A service is a pair of message types and a [`Role`]; there are two, [`NodeService`] and
//! [`MasterService`]. [`serve`] answers one on a TCP port, [`serve_local`] inside the process
//! without any port, and the client of either is the same [`RpcClient`], so an embedded cluster
//! and a real one differ in one line.
//!
//! * Every connection starts with a hello (module `hello`), so that a wrong port or a master in place of
//!   a memory node is named as such, and that both ends prove to have the cluster's secret, or a key of
//!   it, if they have one. The keys are those of the [`Runtime`]. Whose a request is, [`Service::needs`]
//!   says.
//! * Before it comes the handshake of TLS, if the runtime has certificates (module `wire`).
//! * Then come frames: length (4 bytes, big-endian), then one message in postcard encoding, then a code
//!   (16 bytes) if keys were proved. A frame is at most [`MAX_FRAME_BYTES`]; whatever cannot be decoded
//!   closes its connection, and nothing else, with a line in the log.
//! * With every request comes the cluster that the asker belongs to ([`Stamped`]), so that nobody obeys
//!   a stranger who has taken over the address of somebody else.
//! * A call has a deadline. When it passes, the call may still take effect: the messages are made
//!   so that this does no harm. For the same reason nothing is retried behind the caller's back.
//!   The client of the master, of which there may be several, repeats what cannot have had an
//!   effect: see [`MasterClient`].
//! * A handler that was started runs to its end, also when its caller is gone.
//! * What strangers and broken peers hold of a server is bounded (module `guests`, [`Limits`]).
//!
//! Clients may be used from any executor: connections live on the [`Runtime`] they were made
//! with, which has to outlive them.

mod client;
mod codec;
mod frames;
mod guests;
mod hello;
mod masters;
#[doc(hidden)]
pub mod parsers;
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

use fusee_auth::Who;
use fusee_core::verbs::ClusterId;
use fusee_core::version::VersionError;

use crate::master::{MasterReply, MasterRequest};
use crate::node::{NodeReply, NodeRequest};

/// The longest frame, in bytes. Longer views come in [pieces](crate::pieces).
pub const MAX_FRAME_BYTES: usize = 16 << 20;
/// A client does not use a connection again over which nothing went for so long: the server may be about
/// to close it ([`Limits::idle`]).
pub const REUSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests of one connection that are answered at a time; further ones wait in its socket.
pub const MAX_REQUESTS_PER_CONNECTION: usize = 64;
/// How long either side waits for the other's hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// The deadline of a call, unless [`RpcClient::with_deadline`] sets another.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(5);
/// The longest deadline that a server honours.
pub const MAX_DEADLINE: Duration = Duration::from_secs(600);

/// A pair of message types, and who answers.
pub trait Service: Send + Sync + 'static {
    /// What is asked.
    type Request: tarpc::RequestName + Serialize + DeserializeOwned + Send + 'static;
    /// What is answered.
    type Reply: Serialize + DeserializeOwned + Send + 'static;
    /// Who answers.
    const ROLE: Role;

    /// Whose request it is, where peers have to prove who they are.
    fn needs(request: &Self::Request) -> Who;
}

/// What memory nodes answer.
#[derive(Clone, Copy, Debug)]
pub enum NodeService {}

impl Service for NodeService {
    type Request = NodeRequest;
    type Reply = NodeReply;
    const ROLE: Role = Role::MemoryNode;

    fn needs(request: &NodeRequest) -> Who {
        use NodeRequest::*;
        match request {
            Describe | Usage | Alloc { .. } | SetOwner { .. } | InTurn { .. } | Bar { .. } => {
                Who::Client
            }
            Format { .. }
            | Reserve { .. }
            | OfJob { .. }
            | BlocksOf { .. }
            | OwnersOf { .. }
            | Fence { .. }
            | Living { .. }
            | StandAt { .. }
            | Unbar { .. } => Who::Server,
        }
    }
}

/// What the master answers.
#[derive(Clone, Copy, Debug)]
pub enum MasterService {}

impl Service for MasterService {
    type Request = MasterRequest;
    type Reply = MasterReply;
    const ROLE: Role = Role::Master;

    fn needs(request: &MasterRequest) -> Who {
        use MasterRequest::*;
        match request {
            Form { .. } | Destroy { .. } | Drain { .. } => Who::Admin,
            Join { .. } | Alive { .. } => Who::Server,
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
            | Events { .. } => Who::Client,
        }
    }
}

/// Calls a memory node.
pub type NodeClient = RpcClient<NodeService>;

impl tarpc::RequestName for NodeRequest {
    fn name(&self) -> &str {
        match self {
            NodeRequest::Describe => "Describe",
            NodeRequest::Format { .. } => "Format",
            NodeRequest::Reserve { .. } => "Reserve",
            NodeRequest::Alloc { .. } => "Alloc",
            NodeRequest::SetOwner { .. } => "SetOwner",
            NodeRequest::OwnersOf { .. } => "OwnersOf",
            NodeRequest::InTurn { .. } => "InTurn",
            NodeRequest::OfJob { .. } => "OfJob",
            NodeRequest::BlocksOf { .. } => "BlocksOf",
            NodeRequest::Fence { .. } => "Fence",
            NodeRequest::Living { .. } => "Living",
            NodeRequest::Usage => "Usage",
            NodeRequest::StandAt { .. } => "StandAt",
            NodeRequest::Bar { .. } => "Bar",
            NodeRequest::Unbar { .. } => "Unbar",
        }
    }
}

impl tarpc::RequestName for MasterRequest {
    fn name(&self) -> &str {
        match self {
            MasterRequest::Form { .. } => "Form",
            MasterRequest::Destroy { .. } => "Destroy",
            MasterRequest::Join { .. } => "Join",
            MasterRequest::Open => "Open",
            MasterRequest::TakeOrphan { .. } => "TakeOrphan",
            MasterRequest::HandOn { .. } => "HandOn",
            MasterRequest::Close { .. } => "Close",
            MasterRequest::Heartbeat { .. } => "Heartbeat",
            MasterRequest::Abandon { .. } => "Abandon",
            MasterRequest::Unreachable { .. } => "Unreachable",
            MasterRequest::Split { .. } => "Split",
            MasterRequest::MoreRoom { .. } => "MoreRoom",
            MasterRequest::Drain { .. } => "Drain",
            MasterRequest::Alive { .. } => "Alive",
            MasterRequest::GetView { .. } => "GetView",
            MasterRequest::ViewPiece { .. } => "ViewPiece",
            MasterRequest::Status => "Status",
            MasterRequest::Owners => "Owners",
            MasterRequest::Events { .. } => "Events",
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// Nothing listens there, or no way leads there. The request did not take effect.
    #[error("{addr} is unreachable: {cause}")]
    Unreachable {
        /// Whom the call was for.
        addr: String,
        /// What the operating system says.
        cause: String,
    },
    /// Something else listens there. The request did not take effect.
    #[error("expected {expected} at {addr}, found {found}; check the address")]
    WrongService {
        /// Whom the call was for.
        addr: String,
        /// Who should have answered.
        expected: Role,
        /// What answered.
        found: String,
    },
    /// What listens there speaks another version. The request did not take effect.
    #[error("{addr}: {error}")]
    Version {
        /// Whom the call was for.
        addr: String,
        /// Which of both is too old.
        error: VersionError,
    },
    /// No answer before the deadline. The request may still take effect.
    #[error("{addr} did not answer in time")]
    TimedOut {
        /// Whom the call was for.
        addr: String,
    },
    /// The connection broke. The request may have taken effect.
    #[error("{addr} closed the connection")]
    Closed {
        /// Whom the call was for.
        addr: String,
    },
    /// All masters that can be reached stand by. The request did not take effect.
    #[error(
        "no master of {addr} leads now; another try may find one, else see whether the masters \
         reach their store"
    )]
    NoLeader {
        /// Whom the call was for.
        addr: String,
    },
    /// The master there leads another cluster, or none. The request did not take effect.
    #[error("{}", wrong_cluster(addr, *own, *found))]
    WrongCluster {
        /// Whom the call was for.
        addr: String,
        /// The cluster of the asker; `None` if it belongs to none yet.
        own: Option<ClusterId>,
        /// The cluster of the master.
        found: Option<ClusterId>,
    },
    /// One side has not the keys that the other one wants. The request did not take effect.
    #[error("{addr}: {what}")]
    Keys {
        /// Whom the call was for.
        addr: String,
        /// Which, and what to do.
        what: String,
    },
    /// One side speaks TLS and the other does not, or the certificate is not good. The request did not take effect.
    #[error("{addr}: {what}")]
    Tls {
        /// Whom the call was for.
        addr: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// The two sides do not understand each other, or the handler failed.
    #[error("{addr}: {what}")]
    Protocol {
        /// Whom the call was for.
        addr: String,
        /// What went wrong.
        what: String,
    },
}

impl RpcError {
    /// Whether the request can have had an effect, or may still have one.
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

/// Why a service cannot listen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Another process has the port.
    #[error("{addr} is in use by another process; stop it, or listen at another port")]
    PortInUse {
        /// The address asked for.
        addr: String,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {addr}: {cause}; give an address of this machine as host:port")]
    Address {
        /// The address asked for.
        addr: String,
        /// What the operating system says.
        cause: String,
    },
}
