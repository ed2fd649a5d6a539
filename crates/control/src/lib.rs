//! The control plane: what clients, memory nodes and the master say to each other beside verbs.
//!
//! [`node`] and [`master`] hold the messages, plain data without sockets or clocks, which the
//! logic of both processes takes and gives and which the simulator carries itself. [`rpc`] is the
//! one place where an RPC library and an async runtime appear.
//!
//! Nothing here is on the path of a get or a put: clients come by to join, to leave and to
//! allocate a block.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod counted;
pub mod events;
pub mod master;
pub mod node;
pub mod pieces;
pub mod rpc;

pub use self::counted::counted;
