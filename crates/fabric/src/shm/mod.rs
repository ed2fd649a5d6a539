//! Verbs over shared memory: the client maps the pool, and a verb is a few instructions.
//!
//! A client process connects to the memory node's Unix socket, names the node and the client, and receives the
//! pool's memfd. The connection stays open as long as the session. Sessions in the memory node's own process find
//! the pool in a registry instead.
//!
//! # Fencing
//!
//! Memory that a process has mapped cannot be taken away from the process. So fencing a client means to *prove that
//! the code which executes the client's verbs has ended*:
//!
//! - Every session passes a gate, which its own process can shut. Once the gate is shut and no thread is inside,
//!   none of the session's verbs executes (the module `gate` has the argument).
//! - A session in another process is fenced over its connection. The monitor thread of that process shuts the gate,
//!   waits until the session is outside, and says goodbye. The fence waits for that goodbye. The process goes on,
//!   and the session's verbs fail as fenced.
//! - A process that does not say goodbye in time (because it is stopped or starved) is killed, and the fence waits
//!   until the process's pidfd shows that all its threads have exited. A pidfd stands for the process itself,
//!   unlike a process number, which can be used again. A process that the node has no permission to kill cannot
//!   attach. All sessions and all other work of a killed process end, so a process that must survive should not
//!   attach to nodes of other processes over shared memory.
//! - A session that ends by itself also says goodbye, as soon as it cannot execute verbs any more. If a connection
//!   closes without goodbye, the session counts as attached until its process has exited.
//! - A session in the memory node's own process is fenced directly: the fence shuts the gate.
//!
//! # Loss of the memory node
//!
//! The memory outlives its node as long as any process maps it, so verbs do not fail by themselves. In each client
//! process a monitor thread watches the connections, and shuts the gate of a session whose node has ended. From
//! then on the session's verbs fail as unreachable.

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
