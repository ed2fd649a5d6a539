//! Errors of starting fabrics and of attaching to memory nodes.
//!
//! Errors of single verbs are [`VerbError`](fusee_core::verbs::VerbError). The messages of the errors here name the
//! party at fault and say what to do.

use std::io;

use fusee_core::verbs::MnId;
use fusee_core::version::VersionError;

use crate::version::ProtocolMismatch;

/// An error of attaching to a memory node.
#[derive(Debug, thiserror::Error)]
#[error("{node} at {at}: {cause}")]
pub struct AttachError {
    /// The memory node to which the session tried to attach.
    pub node: MnId,
    /// The address that was tried: host and port, or the path of a socket.
    pub at: String,
    /// The reason why the attempt to attach failed.
    pub cause: AttachCause,
}

/// Reasons why a client cannot attach to a memory node.
#[derive(Debug, thiserror::Error)]
pub enum AttachCause {
    /// No process answers at the address, or not in time.
    #[error("unreachable ({0}); is the memory node running, and is this its address?")]
    Unreachable(io::Error),
    /// Another program than a memory node answers.
    #[error(
        "this is no memory node, or one that is too old to say so; check the address, and use the same \
         version on both sides"
    )]
    NotAMemoryNode,
    /// The memory node that answers has another version of the protocol or of the pool layout.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// Another memory node than the expected one answers: the view is older than a restart of the node, or the
    /// address belongs to another cluster.
    #[error("another memory node is there than the view expects; get a new view from the master")]
    WrongIdentity,
    /// The process that answers does not know the memory node's key: it is not the memory node, or the two sides
    /// have different secrets.
    #[error(
        "what answers there does not prove that it is the memory node: it is another process, or the two have \
         different secrets"
    )]
    Unproved,
    /// The process at the socket belongs to a user that is not trusted to run a memory node there.
    #[error(
        "the process at this socket is of user {uid}: neither root, nor the user of this process, nor the only one \
         that may make files there; end it, or name another --shm-dir to the memory node"
    )]
    StrangerAtSocket {
        /// The id of the user.
        uid: u32,
    },
    /// One side uses TLS and the other does not, or a certificate was rejected.
    #[error("{0}")]
    Tls(String),
    /// The node has fenced this client.
    #[error("this client has been fenced; join again to get a new client id")]
    Fenced,
    /// The node has no room for another session: in total, or of this address or process.
    #[error(
        "the memory node has no room for another session of this machine or process, or at all; end \
         sessions that are not needed"
    )]
    Full,
    /// The node does not offer the fabric over which the client attaches.
    #[error("the memory node does not offer this fabric; use another one")]
    NotOffered,
    /// The node does not accept this process as a client, because the node has no permission to kill the process and so
    /// could not fence it.
    #[error(
        "the memory node may not kill this process, and so could not fence it; run both under \
         one user and in one process namespace, or use tcp"
    )]
    NotFenceable,
    /// This machine cannot use RDMA.
    #[error("{0}")]
    Rdma(#[from] RdmaError),
    /// The node's NIC cannot connect to this session's NIC.
    #[error(
        "the memory node cannot connect its network card to this one; both must be in \
         one InfiniBand or RoCE v2 network, and the card must have room for another queue pair (its \
         log says more)"
    )]
    NotConnectable,
    /// The session was opened by the parent of this process, before a fork.
    #[error("the session belongs to the parent of this process; open one in this process")]
    Forked,
    /// The operating system reports an error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<ProtocolMismatch> for AttachCause {
    fn from(foreign: ProtocolMismatch) -> AttachCause {
        match foreign {
            ProtocolMismatch::Stranger => AttachCause::NotAMemoryNode,
            ProtocolMismatch::Version(error) => AttachCause::Version(error),
        }
    }
}

/// Errors of starting a memory node's servers.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process listens at the address.
    #[error("{at} is in use; stop the process that listens there, or choose another address")]
    AddressInUse {
        /// Host and port, or the path of a socket.
        at: String,
    },
    /// The socket's path leads to a file that is no socket.
    #[error("{at} exists and is no socket; remove it, or choose another path")]
    NotASocket {
        /// The path of the file.
        at: String,
    },
    /// This process already serves a node with this identity.
    #[error("identity {identity:016x} is already served by this process; identities are random")]
    IdentityInUse {
        /// The identity of the node.
        identity: u64,
    },
    /// This machine cannot use RDMA.
    #[error("cannot serve verbs: {0}")]
    Rdma(#[from] RdmaError),
    /// The NIC's atomics and the processor's are not atomic with each other, so verbs cannot be combined with
    /// another fabric.
    #[error(
        "{device} does CAS and FAA that are atomic among its own only, not with those of the \
         processor: over verbs and over another fabric they would undo each other. Serve verbs alone"
    )]
    AtomicsNotShared {
        /// The name of the device.
        device: String,
    },
    /// The operating system reports an error.
    #[error("cannot serve at {at}: {source}")]
    Io {
        /// Host and port, or the path of a socket.
        at: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Errors of the RDMA library and devices of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmaError {
    /// libibverbs is missing or too old.
    #[error(
        "libibverbs cannot be used: {cause}; install it (Debian, Ubuntu: `apt install libibverbs1 \
         ibverbs-providers`; Fedora, RHEL: `dnf install libibverbs`), or use another fabric"
    )]
    NoLibrary {
        /// The message of the dynamic linker.
        cause: String,
    },
    /// The machine has no RDMA device.
    #[error(
        "this machine has no RDMA device; load its driver, or make one in software on an Ethernet \
         interface (`modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`), or use another \
         fabric"
    )]
    NoDevice,
    /// An environment variable asks for a device or port that does not exist.
    #[error("there is no RDMA device {wanted}; there are {there}")]
    NoSuchDevice {
        /// The device or port that the environment asks for.
        wanted: String,
        /// The devices and ports of this machine.
        there: String,
    },
    /// An environment variable cannot be parsed.
    #[error("{variable} is {value:?}; write DEVICE, DEVICE:PORT or DEVICE:PORT:GID")]
    BadChoice {
        /// The name of the variable.
        variable: &'static str,
        /// The value of the variable.
        value: String,
    },
    /// The devices have no active port.
    #[error("no port of {devices} is active; check cable, link and subnet manager (`ibv_devinfo`)")]
    NoPort {
        /// The names of the devices, separated by commas.
        devices: String,
    },
    /// No active port has a usable address (GID).
    #[error(
        "no port of {devices} has a usable address; give its interface an IP address (RoCE v2), or \
         choose one with FUSEE_RDMA_DEVICE"
    )]
    NoGid {
        /// The names of the devices, separated by commas.
        devices: String,
    },
    /// The device has no CAS and FAA.
    #[error("{device} has no atomic operations; use another device or fabric")]
    NoAtomics {
        /// The name of the device.
        device: String,
    },
    /// The device cannot register memory.
    #[error(
        "{device} cannot register {bytes} bytes: {cause}; a process may lock only so much memory, \
         raise that (`ulimit -l unlimited`, or LimitMEMLOCK=infinity)"
    )]
    Register {
        /// The name of the device.
        device: String,
        /// The length in bytes of the memory that was to be registered.
        bytes: u64,
        /// The error of the operating system.
        cause: String,
    },
    /// Another call of the RDMA library failed.
    #[error("{device}: cannot {what}: {cause}")]
    Call {
        /// The name of the device.
        device: String,
        /// The action of the RDMA library that failed.
        what: &'static str,
        /// The error of the operating system.
        cause: String,
    },
}
