//! What can go wrong when fabrics start and when clients attach to them.
//!
//! What goes wrong with a single verb is [`VerbError`](fusee_core::verbs::VerbError). The errors
//! here name the party that erred, and say what to do about it.

use std::io;

use fusee_core::verbs::MnId;
use fusee_core::version::VersionError;

use crate::version::Foreign;

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
        "this is no memory node, or one that is too old to say so; check the address, and use the same \
         version on both sides"
    )]
    NotAMemoryNode,
    /// A memory node of another version answers.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// A memory node answers, but another one: the view is older than a restart, or the address
    /// belongs to another cluster.
    #[error("another memory node is there than the view expects; get a new view from the master")]
    WrongIdentity,
    /// Whatever answers does not know the memory node's key: it is not the node, or has another secret.
    #[error(
        "what answers there does not prove that it is the memory node: it is another process, or the two have \
         different secrets"
    )]
    Unproved,
    /// The process at the socket is of a user that may not stand for a memory node there.
    #[error(
        "the process at this socket is of user {uid}: neither root, nor the user of this process, nor the only one \
         that may make files there; end it, or name another --shm-dir to the memory node"
    )]
    StrangerAtSocket {
        /// The user.
        uid: u32,
    },
    /// One side speaks TLS and the other does not, or the certificate is not good.
    #[error("{0}")]
    Tls(String),
    /// The node has fenced this client.
    #[error("this client has been fenced; join again to get a new client id")]
    Fenced,
    /// The node has as many sessions as it takes, or as it takes of one address or process.
    #[error(
        "the memory node has no room for another session of this machine or process, or at all; end \
         sessions that are not needed"
    )]
    Full,
    /// The node does not offer this fabric.
    #[error("the memory node does not offer this fabric; use another one")]
    NotOffered,
    /// The node could not fence this process if it had to, so it does not let it in.
    #[error(
        "the memory node may not kill this process, and so could not fence it; run both under \
         one user and in one process namespace, or use tcp"
    )]
    NotFenceable,
    /// RDMA cannot be used on this machine.
    #[error("{0}")]
    Rdma(#[from] RdmaError),
    /// The node's network card does not connect to this session's.
    #[error(
        "the memory node cannot connect its network card to this one; both must be in \
         one InfiniBand or RoCE v2 network, and the card must have room for another queue pair (its \
         log says more)"
    )]
    NotConnectable,
    /// The session is the parent's of this process, which a fork has made.
    #[error("the session belongs to the parent of this process; open one in this process")]
    Forked,
    /// The operating system refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Foreign> for AttachCause {
    fn from(foreign: Foreign) -> AttachCause {
        match foreign {
            Foreign::Stranger => AttachCause::NotAMemoryNode,
            Foreign::Version(error) => AttachCause::Version(error),
        }
    }
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
    /// RDMA cannot be used on this machine.
    #[error("cannot serve verbs: {0}")]
    Rdma(#[from] RdmaError),
    /// The network card's atomics and the processor's do not see each other.
    #[error(
        "{device} does CAS and FAA that are atomic among its own only, not with those of the \
         processor: over verbs and over another fabric they would undo each other. Serve verbs alone"
    )]
    AtomicsNotShared {
        /// The device.
        device: String,
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

/// What is wrong with RDMA on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmaError {
    /// libibverbs is not there, or too old.
    #[error(
        "libibverbs cannot be used: {cause}; install it (Debian, Ubuntu: `apt install libibverbs1 \
         ibverbs-providers`; Fedora, RHEL: `dnf install libibverbs`), or use another fabric"
    )]
    NoLibrary {
        /// What the dynamic linker says.
        cause: String,
    },
    /// There is no network card for RDMA.
    #[error(
        "this machine has no RDMA device; load its driver, or make one in software on an Ethernet \
         interface (`modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`), or use another \
         fabric"
    )]
    NoDevice,
    /// The environment asks for a device or port that is not there.
    #[error("there is no RDMA device {wanted}; there are {there}")]
    NoSuchDevice {
        /// What it asks for.
        wanted: String,
        /// Devices and ports.
        there: String,
    },
    /// The environment asks for something unreadable.
    #[error("{variable} is {value:?}; write DEVICE, DEVICE:PORT or DEVICE:PORT:GID")]
    BadChoice {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// No port is up.
    #[error("no port of {devices} is active; check cable, link and subnet manager (`ibv_devinfo`)")]
    NoPort {
        /// The devices.
        devices: String,
    },
    /// No port has an address that could be used.
    #[error(
        "no port of {devices} has a usable address; give its interface an IP address (RoCE v2), or \
         choose one with FUSEE_RDMA_DEVICE"
    )]
    NoGid {
        /// The devices.
        devices: String,
    },
    /// The device cannot do CAS and FAA.
    #[error("{device} has no atomic operations; use another device or fabric")]
    NoAtomics {
        /// The device.
        device: String,
    },
    /// Memory cannot be registered.
    #[error(
        "{device} cannot register {bytes} bytes: {cause}; a process may lock only so much memory, \
         raise that (`ulimit -l unlimited`, or LimitMEMLOCK=infinity)"
    )]
    Register {
        /// The device.
        device: String,
        /// How much.
        bytes: u64,
        /// What the operating system says.
        cause: String,
    },
    /// Another call fails.
    #[error("{device}: cannot {what}: {cause}")]
    Call {
        /// The device.
        device: String,
        /// What was tried.
        what: &'static str,
        /// What the operating system says.
        cause: String,
    },
}
