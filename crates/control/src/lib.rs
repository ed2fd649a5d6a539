//! The control plane: the messages between clients, memory nodes and the master, besides verbs.
//!
//! [`node`] and [`master`] define the messages as plain data without sockets or clocks. The logic
//! of these processes takes and returns them, and the simulator carries them itself. Only [`rpc`]
//! uses sockets and an async runtime.
//!
//! Control messages are no part of a get or a put. Clients use them to join, to leave, and to get
//! blocks, for which a put may have to wait.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod events;
pub mod master;
pub mod node;
mod plural;
pub mod rpc;
pub mod view_pieces;

pub use self::plural::count_with_noun;
