//! Verbs over shared memory: the client maps the pool, and a verb is a few instructions.
//!
//! A client process connects to the memory node's Unix socket, names the node and the client, and
//! receives the pool's memfd. The connection stays open for the life of the session. Sessions in the
//! memory node's own process find the pool in a registry instead.
//!
//! # Fencing
//!
//! Memory that a process has mapped cannot be taken away from it. So fencing a client means to *prove
//! that the code which executes its verbs has ended*:
//!
//! - Every session passes a gate, which its own process can shut: once it is shut and no thread is
//!   inside, none of the session's verbs executes (the module `gate` has the argument).
//! - A session in another process is fenced over its connection. The monitor thread of that process
//!   shuts the gate, waits until the session is outside, and says goodbye. The fence waits for that
//!   goodbye. The process lives on, and the session's verbs fail as fenced.
//! - A process that does not say goodbye in time (it is stopped, or starved) is killed, and the fence
//!   waits until its pidfd shows that all its threads have exited. A pidfd names the process itself,
//!   not a number that may be used again. So a process that the node may not kill cannot attach. All
//!   its sessions and its other work end with the process: a process that must survive should not
//!   attach to the nodes of other processes over shared memory.
//! - A session that ends by itself also says goodbye, once it cannot execute verbs any more. If a
//!   connection closes without goodbye, the session counts as attached until its process has exited.
//! - In the memory node's own process the fence shuts the gate itself.
//!
//! # Loss of the memory node
//!
//! The memory outlives its node while any process maps it, so verbs do not fail by themselves. In each
//! client process a monitor thread watches the connections, and shuts the gate of a session whose node
//! has ended: its verbs fail as unreachable from then on.

mod client;
mod gate;
mod local_node;
mod monitor;
mod peer;
mod server;
mod sessions;
mod socket_file;
pub(crate) mod wire;

pub(crate) use client::ShmBatchFuture;
pub use client::ShmFabric;
pub(crate) use client::check_socket_access;
pub(crate) use local_node::ShmLocalNode;
pub(crate) use server::ShmServer;
