//! Errors of store operations.

use core::fmt;

use crate::data::RedundancyError;
use crate::verbs::{MnId, VerbError};

/// The fate of a write that did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedWriteOutcome {
    /// The write has not taken effect, and no other client can ever see it.
    NotApplied,
    /// The write possibly took effect, or can still do so.
    Unknown,
}

impl fmt::Display for FailedWriteOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FailedWriteOutcome::NotApplied => "not applied",
            FailedWriteOutcome::Unknown => "unknown",
        })
    }
}

/// The errors of store operations. A write can end with any of them; reads and scans can end with some of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// UPDATE, DELETE or Move of a key that does not exist.
    #[error("key not found")]
    NotFound,
    /// INSERT of a key that exists.
    #[error("key already exists")]
    AlreadyExists,
    /// The key is empty.
    #[error("the key is empty; keys have at least 1 byte")]
    KeyEmpty,
    /// Another write of the key, or a Move of the key's pair to another redundancy, is under way in this process, whose
    /// work table is relaxed.
    #[error(
        "another write of the key is under way in this process; try again (the work table is relaxed)"
    )]
    WriteUnderWay,
    /// The key is over the cluster's limit.
    #[error("the key has {bytes} bytes, the cluster's maximum is {max_bytes}")]
    KeyTooLarge {
        /// The length of the key.
        bytes: usize,
        /// The cluster's limit for the length of a key.
        max_bytes: usize,
    },
    /// The value is over the cluster's limit.
    #[error("the value has {bytes} bytes, the cluster's maximum is {max_bytes}")]
    ValueTooLarge {
        /// The length of the value.
        bytes: usize,
        /// The cluster's limit for the length of a value.
        max_bytes: usize,
    },
    /// The pair cannot have the redundancy that the write or the policy demands.
    #[error("{0}")]
    Redundancy(RedundancyError),
    /// No memory node has a free block for an object of this size.
    #[error(
        "out of memory: no memory node has a free block, and too few have room for a region; start another memory \
         node, or delete what is not needed (`fusee status` says what each has left)"
    )]
    OutOfMemory,
    /// No memory node has a free block, and the master adds no region because the cluster lacks replicas.
    #[error("out of memory: no memory node has a free block, and none is added: {reason}")]
    Degraded {
        /// A text that names the missing replicas, and a remedy.
        reason: alloc::string::String,
    },
    /// Both buckets of the key are full, and the index cannot grow.
    #[error("index full: no memory node has room for a larger one; start another memory node")]
    IndexFull,
    /// Both buckets of the key are full of keys whose hashes are so similar to the key's that a larger index would not
    /// separate them. Chance practically never does this; to do it on purpose takes the cluster's hash key.
    #[error(
        "the key does not fit: the keys in all slots where it may be hash like it, and a larger index would not \
         separate them; use another key (keys were chosen by somebody who knows the cluster's hash key: export, and \
         import into a new cluster)"
    )]
    KeysHashAlike,
    /// A memory node did not answer.
    #[error("{node} failed: {error} (write outcome: {outcome})")]
    Unreachable {
        /// The memory node that did not answer.
        node: MnId,
        /// The error of the verb that the node did not answer.
        error: VerbError,
        /// The fate of the write; always `NotApplied` for reads.
        outcome: FailedWriteOutcome,
    },
    /// The host told the operation to stop waiting, for example for the winner of a conflict or for a block.
    #[error(
        "gave up after waiting too long for {waiting_for} (write outcome: {outcome}); try again when \
         `fusee status` shows no change and no session that has expired"
    )]
    GaveUp {
        /// The event that the operation waited for.
        waiting_for: &'static str,
        /// The fate of the write.
        outcome: FailedWriteOutcome,
    },
    /// Memory holds bytes that no correct client writes.
    #[error("corrupt memory: {what}")]
    Corrupt {
        /// A description of the damage.
        what: &'static str,
    },
    /// A slot changed that only this session was allowed to change: the session has been fenced, or the protocol is
    /// broken.
    #[error("interrupted: {what}; the write's outcome is unknown")]
    Interrupted {
        /// A description of the change that was seen.
        what: &'static str,
    },
    /// The session is fenced: the master took it for dead, or could not wait for it any longer.
    #[error("the cluster has fenced this session; open a new one (write outcome: {outcome})")]
    Expelled {
        /// The fate of the write.
        outcome: FailedWriteOutcome,
    },
    /// A callback of a running call used the client while the callback's thread had other operations, which cannot go
    /// on before the callback returns. Without this error the inner call could wait for them for ever.
    #[error(
        "a callback may not use the client here, where other operations wait for it to return; use the client after \
         the call that the callback belongs to"
    )]
    WithinCallback,
    /// The session or client was opened before a fork, by the parent of this process; the cluster knows only the
    /// parent.
    #[error(
        "this process is a child of the one that opened the client; open one here, after the fork (write outcome: \
         {outcome})"
    )]
    Forked {
        /// The fate of the write. A write that ran at the time of the fork goes on in the parent.
        outcome: FailedWriteOutcome,
    },
    /// The calling thread has no session with the cluster and could not get one.
    #[error("no session with the cluster: {reason}")]
    NoSession {
        /// A text that says why the thread got no session.
        reason: alloc::string::String,
    },
    /// The memory node or master refused a block, or could not be asked for one.
    #[error("no block could be allocated: {reason}")]
    Allocation {
        /// The reason.
        reason: alloc::string::String,
    },
}

impl Error {
    /// Returns the fate of the write that failed.
    pub fn outcome(&self) -> FailedWriteOutcome {
        match self {
            Error::Unreachable { outcome, .. }
            | Error::GaveUp { outcome, .. }
            | Error::Expelled { outcome }
            | Error::Forked { outcome } => *outcome,
            Error::Interrupted { .. } => FailedWriteOutcome::Unknown,
            _ => FailedWriteOutcome::NotApplied,
        }
    }
}
