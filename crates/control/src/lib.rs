//! The control plane: the messages between clients, memory nodes and the master, except for verbs.
//!
//! [`node`] and [`master`] define the messages as plain data, without sockets or clocks. The logic of these processes
//! takes and returns such messages, and the simulator delivers them itself. Only [`rpc`] uses sockets and an async
//! runtime.
//!
//! A get never needs a control message. A put needs one only when it has to wait for a block. Otherwise clients use
//! control messages to join and to leave.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod events;
pub mod master;
pub mod node;
mod plural;
pub mod rpc;
pub mod view_pieces;

pub use self::plural::count_with_noun;
