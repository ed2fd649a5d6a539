//! Verbs over TCP: a software NIC in the memory node executes the requests that sessions send.
//!
//! [`frame`] is the wire format: pure functions without I/O. [`TcpNode`] is the node's side, one event loop on one
//! thread. [`TcpFabric`] is the session's side.
//!
//! A connection belongs to one session and carries frames in order both ways, so verbs of one session execute in
//! the order posted, as on a reliable-connected queue pair. Many batches can be in flight. If a node stops
//! answering, closes the connection or sends garbage, the verbs in flight to that node fail, and so do all later
//! ones; verbs to other nodes go on.
//!
//! READs are copied out of the pool word by word, in their turn among the verbs. Handing pool memory to the kernel
//! instead (`writev`) would save a copy. But the kernel cuts at segment boundaries and copies bytes, so words could
//! tear, and a later verb could change the data before they are sent.

mod budget;
mod buffer;
mod connection;
pub mod frame;
mod link;
mod node;
mod switch;

pub use crate::spin::DEFAULT_SPIN;
pub(crate) use link::TcpLink;
pub use node::{TcpNode, TcpTraffic};
pub use switch::{TcpNodeLookup, TcpSwitch};

/// A session's connections to memory nodes over TCP. The batches of many tasks share system calls. A lone batch is
/// sent by the next turn.
pub type TcpFabric = crate::driver::Driver<TcpLink>;
