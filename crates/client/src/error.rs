//! Errors of the library: one type for each family of calls (joining, reading, writing, scanning, surveying), and
//! [`Error`], into which all of them convert.
//!
//! [`WriteError`] is the error type of `fusee_core`'s store, because a write can fail in every way that the store
//! knows. [`ReadError`] and [`ScanError`] have only those variants with which a read or a scan can fail.

use fusee_control::rpc::RpcError;
pub use fusee_core::Error as WriteError;
use fusee_core::FailedWriteOutcome;
use fusee_core::verbs::{MnId, VerbError};
use fusee_core::view::ViewError;
use fusee_fabric::{AttachError, FabricKind};

use crate::survey::SurveyError;

/// Errors of joining or starting a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The master did not answer.
    #[error("the master cannot be reached: {0}")]
    Master(RpcError),
    /// The master leads no cluster, or another cluster than the one that this client belongs to. Contains an
    /// [`RpcError::WrongCluster`].
    #[error("{0}")]
    WrongCluster(RpcError),
    /// The cluster has not formed yet, because it waits for more memory nodes.
    #[error(
        "the cluster is not ready: {joined} of {expected} memory nodes have joined; start the \
         others, or look at the master's log"
    )]
    NotReady {
        /// Number of memory nodes that have joined.
        joined: u32,
        /// Number of memory nodes that the cluster needs to form.
        expected: u32,
    },
    /// The master refuses the request.
    #[error("the master refuses: {0}")]
    Refused(String),
    /// The master's answer does not fit the request, or its content is invalid.
    #[error("the master sent what it should not have: {0}")]
    Protocol(&'static str),
    /// The master's view is invalid.
    #[error("the master sent an {0}")]
    View(#[from] ViewError),
    /// The master's view is older than one that this process has seen, or differs from a seen view of the same number.
    /// So the master has lost a part of the cluster's history that this process depends on.
    #[error(
        "the master leads this cluster by view {found}, and this process has seen view {seen}, of which that one knows \
         nothing: the master was started on an old copy of its store, or over an empty one, where the cluster was \
         formed once more. Start it on its newest store; to go on with what is there, start this program again"
    )]
    Forgotten {
        /// The number of the newest view that this process has seen of the cluster.
        seen: u64,
        /// The number of the master's view.
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
    /// The options ask for a work table, but the fabric is shared memory.
    #[error(
        "a work table is not for shared memory, where a round trip costs no more than a look into the table: turn \
         it off, or choose another fabric (Options::with_fabric)"
    )]
    WorkTableOverShm,
    /// The options name a switch that works only on this fabric, but the client uses another fabric.
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

/// Errors of reads: [`Client::get`](crate::Client::get) and its like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The key is empty.
    #[error("the key is empty; keys have at least 1 byte")]
    KeyEmpty,
    /// The key is longer than the cluster allows.
    #[error("the key has {bytes} bytes, the cluster's maximum is {max_bytes}")]
    KeyTooLarge {
        /// The length of the key, in bytes.
        bytes: usize,
        /// The cluster's limit for the length of a key, in bytes.
        max_bytes: usize,
    },
    /// A memory node did not answer.
    #[error("{node} failed: {error}")]
    Unreachable {
        /// The memory node that did not answer.
        node: MnId,
        /// The error of the verb that the node did not answer.
        error: VerbError,
    },
    /// The read gave up, because its waits reached the op timeout.
    #[error(
        "gave up after waiting too long for {waiting_for}; try again when `fusee status` shows no change and no \
         session that has expired"
    )]
    GaveUp {
        /// The event that the read waited for.
        waiting_for: &'static str,
    },
    /// Memory holds bytes that no correct client writes.
    #[error("corrupt memory: {what}")]
    Corrupt {
        /// A description of the damage.
        what: &'static str,
    },
    /// The session is fenced, because the cluster took it for dead or could not wait for it.
    #[error("the cluster has fenced this session; open a new one")]
    Expelled,
    /// The call came from a callback, and other operations wait until that callback returns; see
    /// [`WriteError::WithinCallback`].
    #[error(
        "a callback may not use the client here, where other operations wait for it to return; use the client after \
         the call that the callback belongs to"
    )]
    WithinCallback,
    /// The client was opened by the parent of this forked process.
    #[error(
        "this process is a child of the one that opened the client; open one here, after the fork"
    )]
    Forked,
    /// The calling thread has no session with the cluster and could not get one.
    #[error("no session with the cluster: {reason}")]
    NoSession {
        /// The text of the error because of which no session could be opened.
        reason: String,
    },
}

/// Errors of scans: [`Client::scan`](crate::Client::scan).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// A memory node did not answer.
    #[error("{node} failed: {error}")]
    Unreachable {
        /// The memory node that did not answer.
        node: MnId,
        /// The error of the verb that the node did not answer.
        error: VerbError,
    },
    /// The scan gave up, because its waits reached the op timeout.
    #[error(
        "gave up after waiting too long for {waiting_for}; try again when `fusee status` shows no change and no \
         session that has expired"
    )]
    GaveUp {
        /// The event that the scan waited for.
        waiting_for: &'static str,
    },
    /// Memory holds bytes that no correct client writes.
    #[error("corrupt memory: {what}")]
    Corrupt {
        /// A description of the damage.
        what: &'static str,
    },
    /// The session is fenced, because the cluster took it for dead or could not wait for it.
    #[error("the cluster has fenced this session; open a new one")]
    Expelled,
    /// The call came from a callback, and other operations wait until that callback returns; see
    /// [`WriteError::WithinCallback`].
    #[error(
        "a callback may not use the client here, where other operations wait for it to return; use the client after \
         the call that the callback belongs to"
    )]
    WithinCallback,
    /// The client was opened by the parent of this forked process.
    #[error(
        "this process is a child of the one that opened the client; open one here, after the fork"
    )]
    Forked,
    /// The calling thread has no session with the cluster and could not get one.
    #[error("no session with the cluster: {reason}")]
    NoSession {
        /// The text of the error because of which no session could be opened.
        reason: String,
    },
}

/// Any error of this library: every family converts into it, also by `?`.
///
/// ```no_run
/// use fusee_client::{Client, Error};
///
/// fn rename(master: &str, from: &[u8], to: &[u8]) -> Result<bool, Error> {
///     let store = Client::connect(master)?.blocking();
///     let Some(value) = store.get(from)? else { return Ok(false) };
///     store.insert(to, &value)?;
///     store.delete(from)?;
///     Ok(true)
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of joining a cluster, of opening a session, or of a request to the master.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An error of a read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An error of a write.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An error of a scan.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// An error of a survey.
    #[error(transparent)]
    Survey(#[from] SurveyError),
}

impl Error {
    /// Returns whether the write that failed has possibly taken effect; `NotApplied` if the call was not a write.
    pub fn outcome(&self) -> FailedWriteOutcome {
        match self {
            Error::Write(error) => error.outcome(),
            _ => FailedWriteOutcome::NotApplied,
        }
    }
}

/// Makes the error of an operation whose thread has no session, or has lost its session, and cannot open another one.
impl From<ConnectError> for WriteError {
    fn from(error: ConnectError) -> WriteError {
        match error {
            ConnectError::Forked => WriteError::Forked { outcome: FailedWriteOutcome::NotApplied },
            ConnectError::WithinCallback => WriteError::WithinCallback,
            error => WriteError::NoSession { reason: error.to_string() },
        }
    }
}

/// Used by a write that has to read first, when that read fails. The write was not applied.
impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> WriteError {
        let outcome = FailedWriteOutcome::NotApplied;
        match error {
            ReadError::KeyEmpty => WriteError::KeyEmpty,
            ReadError::KeyTooLarge { bytes, max_bytes } => {
                WriteError::KeyTooLarge { bytes, max_bytes }
            }
            ReadError::Unreachable { node, error } => {
                WriteError::Unreachable { node, error, outcome }
            }
            ReadError::GaveUp { waiting_for } => WriteError::GaveUp { waiting_for, outcome },
            ReadError::Corrupt { what } => WriteError::Corrupt { what },
            ReadError::Expelled => WriteError::Expelled { outcome },
            ReadError::WithinCallback => WriteError::WithinCallback,
            ReadError::Forked => WriteError::Forked { outcome },
            ReadError::NoSession { reason } => WriteError::NoSession { reason },
        }
    }
}

/// Conversion of the store's error, [`WriteError`], into the error type of one family of calls, which has a part of the
/// store's variants.
pub(crate) trait ErrorFamily {
    /// Converts an error of a store operation into an error of this family.
    fn from_store(error: WriteError) -> Self;
}

impl ErrorFamily for WriteError {
    fn from_store(error: WriteError) -> WriteError {
        error
    }
}

impl ErrorFamily for ReadError {
    #[cold]
    fn from_store(error: WriteError) -> ReadError {
        match error {
            WriteError::KeyEmpty => ReadError::KeyEmpty,
            WriteError::KeyTooLarge { bytes, max_bytes } => {
                ReadError::KeyTooLarge { bytes, max_bytes }
            }
            WriteError::Unreachable { node, error, .. } => ReadError::Unreachable { node, error },
            WriteError::GaveUp { waiting_for, .. } => ReadError::GaveUp { waiting_for },
            WriteError::Corrupt { what } => ReadError::Corrupt { what },
            WriteError::Expelled { .. } => ReadError::Expelled,
            WriteError::WithinCallback => ReadError::WithinCallback,
            WriteError::Forked { .. } => ReadError::Forked,
            WriteError::NoSession { reason } => ReadError::NoSession { reason },
            error => unreachable!("a read failed as only a write does: {error}"),
        }
    }
}

impl ErrorFamily for ScanError {
    #[cold]
    fn from_store(error: WriteError) -> ScanError {
        match error {
            WriteError::Unreachable { node, error, .. } => ScanError::Unreachable { node, error },
            WriteError::GaveUp { waiting_for, .. } => ScanError::GaveUp { waiting_for },
            WriteError::Corrupt { what } => ScanError::Corrupt { what },
            WriteError::Expelled { .. } => ScanError::Expelled,
            WriteError::WithinCallback => ScanError::WithinCallback,
            WriteError::Forked { .. } => ScanError::Forked,
            WriteError::NoSession { reason } => ScanError::NoSession { reason },
            error => unreachable!("a scan failed as no scan does: {error}"),
        }
    }
}
