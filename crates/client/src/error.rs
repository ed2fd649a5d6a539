//! Errors of joining or starting a cluster.

use fusee_control::rpc::RpcError;
use fusee_core::view::ViewError;
use fusee_fabric::{AttachError, FabricKind};

/// Errors of joining or starting a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No answer from the master.
    #[error("the master cannot be reached: {0}")]
    Master(RpcError),
    /// The master leads no cluster, or not the one that this client belongs to. An [`RpcError::WrongCluster`].
    #[error("{0}")]
    WrongCluster(RpcError),
    /// The cluster waits for more memory nodes.
    #[error(
        "the cluster is not ready: {joined} of {expected} memory nodes have joined; start the \
         others, or look at the master's log"
    )]
    NotReady {
        /// Memory nodes that have joined.
        joined: u32,
        /// Memory nodes that the cluster needs to form.
        expected: u32,
    },
    /// The master refuses the request.
    #[error("the master refuses: {0}")]
    Refused(String),
    /// The master's answer does not fit the request, or its content is invalid.
    #[error("the master sent what it should not have: {0}")]
    Protocol(&'static str),
    /// The master's view breaks a rule.
    #[error("the master sent an {0}")]
    View(#[from] ViewError),
    /// The master's view is older than one that this process has seen, or differs from one with the same
    /// number: the master has lost a part of the cluster's history that this process depends on.
    #[error(
        "the master leads this cluster by view {found}, and this process has seen view {seen}, of which that one knows \
         nothing: the master was started on an old copy of its store, or over an empty one, where the cluster was \
         formed once more. Start it on its newest store; to go on with what is there, start this program again"
    )]
    Forgotten {
        /// The newest view that this process has seen.
        seen: u64,
        /// The master's view.
        found: u64,
    },
    /// Attaching to a memory node failed.
    #[error("cannot attach to memory node {0}")]
    Attach(#[from] AttachError),
    /// The call came from a callback of an async call, and all other async calls of the client wait for that
    /// callback.
    #[error(
        "a callback of an async call may not use a client: all other async calls wait for it; use the client after the \
         call that the callback belongs to"
    )]
    WithinCallback,
    /// The client was opened by the parent of this forked process.
    #[error(
        "this process is a child of the one that opened the client; open one here, after the fork"
    )]
    Forked,
    /// The options ask for a work table, and the fabric is shared memory.
    #[error(
        "a work table is not for shared memory, where a round trip costs no more than a look into the table: turn \
         it off, or choose another fabric (Options::with_fabric)"
    )]
    WorkTableOverShm,
    /// The options name a switch for another fabric.
    #[error("the switch is for {0}: choose that fabric, or none (Options::with_fabric)")]
    SwitchOfAnotherFabric(FabricKind),
    /// The embedded cluster did not start.
    #[cfg(feature = "embedded")]
    #[error("the embedded cluster did not start: {0}")]
    Embedded(String),
    /// An error of the operating system.
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
