//! Verbs over shared memory: the client maps the pool, and a verb is a few instructions.
//!
//! A client process connects to the memory node's Unix socket, says which node it expects and
//! which client it is, and gets the pool's memfd. The connection stays open for the life of the
//! session. Sessions in the memory node's own process find the pool in a registry instead.
//!
//! # Fencing
//!
//! Memory that a process has mapped cannot be taken away from it. So fencing a client means to
//! *prove that the code which executes its verbs has ended*:
//!
//! - Every session passes a gate, which its own process can shut: after that, and when nobody is
//!   inside, none of its verbs executes (the module `gate` has the argument).
//! - Another process is told over the session's connection. Its monitor thread shuts the gate, waits
//!   until the session is outside, and says goodbye; the process lives on, and the session's
//!   verbs fail as fenced. The fence waits for that goodbye.
//! - A process that does not say it in time (it is stopped, or starved) is killed, and the fence waits
//!   until its pidfd shows that all its threads have exited. A pidfd names the process itself, not a
//!   number that may be used again. A process that the node may not kill is not let in. All sessions
//!   of the process go with it, and whatever else it does: a process that must survive should not
//!   attach to the nodes of other processes by shared memory.
//! - A session says goodbye also when it ends by itself, once it cannot execute verbs any
//!   more. A connection that closes without it leaves the process a suspect until it has exited.
//! - In the memory node's own process the fence shuts the gate itself.
//!
//! # Loss of the memory node
//!
//! The memory outlives its node as long as somebody maps it, so nothing fails by itself. A
//! monitor thread per client process watches the connections, and closes the gate of a session
//! whose node has gone: its verbs fail as unreachable from then on.

mod client;
mod gate;
mod hub;
mod monitor;
mod peer;
mod server;
mod sessions;
mod socket_file;
pub(crate) mod wire;

pub(crate) use client::ShmExecute;
pub use client::ShmFabric;
pub(crate) use client::knock;
pub(crate) use hub::Hub;
pub(crate) use server::ShmServer;
