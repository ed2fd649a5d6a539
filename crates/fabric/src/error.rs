//! What can go wrong when fabrics start and when clients attach to them.
//!
//! What goes wrong with a single verb is [`VerbError`](fusee_core::verbs::VerbError). The errors
//! here name the party that erred, and say what to do about it.

use std::io;

use fusee_core::verbs::MnId;

/// Why a client cannot attach to a memory node.
#[derive(Debug, thiserror::Error)]
#[error("{node} at {at}: {cause}")]
pub struct AttachError {
    /// The memory node.
    pub node: MnId,
    /// Where it should be: host and port, or the path of a socket.
    pub at: String,
    /// What is wrong there.
    pub cause: AttachCause,
}

/// What is wrong with a memory node to attach to.
#[derive(Debug, thiserror::Error)]
pub enum AttachCause {
    /// Nobody answers at the address, or not in time.
    #[error("unreachable ({0}); is the memory node running, and is this its address?")]
    Unreachable(io::Error),
    /// Somebody else answers.
    #[error(
        "this is no memory node, or one of another version; check the address and use the same \
         version on both sides"
    )]
    NotAMemoryNode,
    /// A memory node answers, but another one: the view is older than a restart, or the address
    /// belongs to another cluster.
    #[error(
        "another memory node is there: it is {found:016x}, the view expects {expected:016x}; get \
         a new view from the master"
    )]
    WrongIdentity {
        /// The identity in the view.
        expected: u64,
        /// The identity of the node that answers.
        found: u64,
    },
    /// The node has fenced this client.
    #[error("this client has been fenced; join again to get a new client id")]
    Fenced,
    /// The node does not offer this fabric.
    #[error("the memory node does not offer this fabric; use another one")]
    NotOffered,
    /// The node could not fence this process if it had to, so it does not let it in.
    #[error(
        "the memory node may not kill this process, and so could not fence it; run both under \
         one user and in one process namespace, or use tcp"
    )]
    NotFenceable,
    /// The operating system refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Why a memory node's fabrics cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process listens at the address.
    #[error("{at} is in use; stop the process that listens there, or choose another address")]
    AddressInUse {
        /// Host and port, or the path of a socket.
        at: String,
    },
    /// There is a file at the socket's path that is no socket.
    #[error("{at} exists and is no socket; remove it, or choose another path")]
    NotASocket {
        /// The path.
        at: String,
    },
    /// This process already serves a node of this identity.
    #[error("identity {identity:016x} is already served by this process; identities are random")]
    IdentityInUse {
        /// The identity.
        identity: u64,
    },
    /// The operating system refuses.
    #[error("cannot serve at {at}: {source}")]
    Io {
        /// Host and port, or the path of a socket.
        at: String,
        /// Why.
        source: io::Error,
    },
}
