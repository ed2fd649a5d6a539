//! What an operation may answer instead of its result.

use crate::data::RedundancyError;
use crate::verbs::{MnId, VerbError};

/// What is known about a write that did not finish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No other client can ever see it.
    NotApplied,
    /// It may have taken effect, or may take effect later.
    Unknown,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// UPDATE or DELETE of a key that does not exist.
    #[error("key not found")]
    NotFound,
    /// INSERT of a key that exists.
    #[error("key already exists")]
    AlreadyExists,
    /// Keys have at least one byte.
    #[error("the key is empty; keys have at least 1 byte")]
    KeyEmpty,
    /// Another write of the key, or a transition of its redundancy, is under way in this process, and its work table
    /// is relaxed.
    #[error(
        "another write of the key is under way in this process; try again (the work table is relaxed)"
    )]
    WriteUnderWay,
    /// The key is over the cluster's limit.
    #[error("the key has {bytes} bytes, the cluster's maximum is {max_bytes}")]
    KeyTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The value is over the cluster's limit.
    #[error("the value has {bytes} bytes, the cluster's maximum is {max_bytes}")]
    ValueTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The pair cannot survive failures in the way that was asked for.
    #[error("{0}")]
    Redundancy(RedundancyError),
    /// No memory node has a free block for an object of this size.
    #[error(
        "out of memory: no memory node has a free block, and too few have room for a region; start another memory \
         node, or delete what is not needed (`fusee status` says what each has left)"
    )]
    OutOfMemory,
    /// No memory node has a free block, and the cluster adds none, since it lacks replicas.
    #[error("out of memory: no memory node has a free block, and none is added: {reason}")]
    Degraded {
        /// What is missing, and what to do.
        reason: alloc::string::String,
    },
    /// Both buckets of the key are full, and the index cannot grow.
    #[error("index full: no memory node has room for a larger one; start another memory node")]
    IndexFull,
    /// Both buckets of the key are full of keys whose hashes are like its own, so that a larger index would not
    /// separate them. Such keys come by chance once in a universe, and on purpose only from somebody who knows by
    /// which secret the cluster hashes.
    #[error(
        "the key does not fit: the keys in all slots where it may be hash like it, and a larger index would not \
         separate them; use another key (keys were chosen by somebody who knows the cluster's hash key: export, and \
         import into a new cluster)"
    )]
    KeysHashAlike,
    /// A memory node did not answer.
    #[error("{node} failed: {error} (write outcome: {outcome:?})")]
    Unreachable {
        /// Which.
        node: MnId,
        /// How.
        error: VerbError,
        /// What that means for the write; reads are always `NotApplied`.
        outcome: Outcome,
    },
    /// The host told the operation to stop waiting: for the winner of a conflict, or for a block.
    #[error(
        "gave up after waiting too long for {waiting_for} (write outcome: {outcome:?}); try again when \
         `fusee status` shows no change and no session that has expired"
    )]
    GaveUp {
        /// For what it waited.
        waiting_for: &'static str,
        /// What is known about the write.
        outcome: Outcome,
    },
    /// Memory holds what no correct client writes.
    #[error("corrupt memory: {what}")]
    Corrupt {
        /// What was seen.
        what: &'static str,
    },
    /// A slot changed while only this client could change it: it has been fenced or the
    /// protocol is broken.
    #[error("interrupted: {what}; the write's outcome is unknown")]
    Interrupted {
        /// What was seen.
        what: &'static str,
    },
    /// The session is fenced: the cluster took it for dead, or could not wait for it.
    #[error("the cluster has fenced this session; open a new one (write outcome: {outcome:?})")]
    Expelled {
        /// What is known about the write.
        outcome: Outcome,
    },
    /// A callback of a running call asked, beside other operations that its thread cannot go on with before the
    /// callback has returned: the call could wait for them for ever.
    #[error(
        "a callback may not use the client here, where other operations wait for it to return; use the client after \
         the call that the callback belongs to"
    )]
    WithinCallback,
    /// The session or client was made by the parent of this process, which a fork has made: the store knows the
    /// parent only.
    #[error(
        "this process is a child of the one that opened the client; open one here, after the fork (write outcome: \
         {outcome:?})"
    )]
    Forked {
        /// What is known about the write: that of a write which was under way when the process was forked goes on
        /// in the parent.
        outcome: Outcome,
    },
    /// The thread that asked has no session with the cluster and could not get one.
    #[error("no session with the cluster: {reason}")]
    NoSession {
        /// Why.
        reason: alloc::string::String,
    },
    /// The memory node or master refused or could not be asked for a block.
    #[error("no block could be allocated: {reason}")]
    Allocation {
        /// Why.
        reason: alloc::string::String,
    },
}

impl Error {
    /// What is known about the write that failed.
    pub fn outcome(&self) -> Outcome {
        match self {
            Error::Unreachable { outcome, .. }
            | Error::GaveUp { outcome, .. }
            | Error::Expelled { outcome }
            | Error::Forked { outcome } => *outcome,
            Error::Interrupted { .. } => Outcome::Unknown,
            _ => Outcome::NotApplied,
        }
    }
}
