//! Why a client cannot join or start a cluster.

use fusee_control::rpc::RpcError;
use fusee_core::view::ViewError;
use fusee_fabric::{AttachError, FabricKind};

/// Why a client cannot join or start a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The master cannot be asked.
    #[error("the master cannot be reached: {0}")]
    Master(RpcError),
    /// The master leads no cluster, or another one than this client belongs to. An
    /// [`RpcError::WrongCluster`].
    #[error("{0}")]
    WrongCluster(RpcError),
    /// The cluster waits for more memory nodes.
    #[error(
        "the cluster is not ready: {joined} of {expected} memory nodes have joined; start the \
         others, or look at the master's log"
    )]
    NotReady {
        /// Those that have joined.
        joined: u32,
        /// Those that the master waits for.
        expected: u32,
    },
    /// The master said no.
    #[error("the master refuses: {0}")]
    Refused(String),
    /// The master's answer makes no sense.
    #[error("the master sent what it should not have: {0}")]
    Protocol(&'static str),
    /// The master's view breaks a rule.
    #[error("the master sent an {0}")]
    View(#[from] ViewError),
    /// The master leads the cluster by an older view than this process has seen, or by another one of that number: it
    /// has forgotten what this process has read and written.
    #[error(
        "the master leads this cluster by view {found}, and this process has seen view {seen}, of which that one knows \
         nothing: the master was started on an old copy of its store, or over an empty one, where the cluster was \
         formed once more. Start it on its newest store; to go on with what is there, start this program again"
    )]
    Forgotten {
        /// The newest view that this process has seen.
        seen: u64,
        /// The master's.
        found: u64,
    },
    /// A memory node cannot be attached to.
    #[error("cannot attach to memory node {0}")]
    Attach(#[from] AttachError),
    /// A callback of an async call asked, which every other async call of its client waits for.
    #[error(
        "a callback of an async call may not use a client: all other async calls wait for it; use the client after the \
         call that the callback belongs to"
    )]
    WithinCallback,
    /// The client was opened by the parent of this process, which a fork has made.
    #[error(
        "this process is a child of the one that opened the client; open one here, after the fork"
    )]
    Forked,
    /// The options want a work table, and the fabric is shared memory.
    #[error(
        "a work table is not for shared memory, where a round trip costs no more than a look into the table: turn \
         it off, or choose another fabric (Options::with_fabric)"
    )]
    WorkTableOverShm,
    /// The options want a switch, and another fabric than it is for.
    #[error("the switch is for {0}: choose that fabric, or none (Options::with_fabric)")]
    SwitchOfAnotherFabric(FabricKind),
    /// The embedded cluster did not start.
    #[cfg(feature = "embedded")]
    #[error("the embedded cluster did not start: {0}")]
    Embedded(String),
    /// The operating system refuses.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl From<RpcError> for ConnectError {
    fn from(error: RpcError) -> ConnectError {
        match error {
            RpcError::WrongCluster { .. } => ConnectError::WrongCluster(error),
            error => ConnectError::Master(error),
        }
    }
}
