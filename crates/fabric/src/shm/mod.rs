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
//! - Another process is killed, and the fence waits until its pidfd shows that all its threads
//!   have exited. A pidfd names the process itself, not a number that may be used again. A
//!   stopped process dies of this too, and one that the node may not kill is not let in. All
//!   sessions of the process go with it, and whatever else it does: a process that must survive,
//!   such as a memory node, should not attach to the nodes of other processes by shared memory.
//! - A session says goodbye before it closes its connection, once it cannot execute verbs any
//!   more. A connection that closes without it leaves the process a suspect until it has exited.
//! - In the memory node's own process, killing is no option, but the scheduler and the memory
//!   model are shared, and the code is trusted: sessions pass a gate.
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
mod server;
mod sessions;
mod socket_file;
pub(crate) mod wire;

pub(crate) use client::ShmExecute;
pub use client::ShmFabric;
pub(crate) use hub::Hub;
pub(crate) use server::ShmServer;
