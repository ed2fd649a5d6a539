//! Verbs over RDMA: the network card of the memory node executes them, and its processor does nothing.
//!
//! A session has one queue pair (kind "reliable connection") per memory node. It learns where the node's is,
//! and where the pool lies, over a connection that stays open as the session's lease (`wire`). From then
//! on the cards are among themselves: [`VerbsNode`] only waits for leases to end and for fences.
//!
//! The library for the cards is found when the program runs (`ffi`). Which card and which of its addresses
//! to use, `ports` decides. `device` and `requester` wrap what the library makes; with `ffi` they have all
//! `unsafe` of this fabric. `link` cuts verbs for the card and keeps their order; [`VerbsFabric`] is the
//! session's side. `docs/rdma.md` is for who runs it.

#[cfg(test)]
mod card_tests;
mod client;
#[allow(unsafe_code)]
mod device;
// Calls into a library of C.
#[allow(unsafe_code)]
mod ffi;
mod link;
mod node;
mod ports;
#[allow(unsafe_code)]
mod requester;
pub(crate) mod wire;

pub use client::{VerbsFabric, VerbsOptions};
pub use device::{Found, default_device};
pub use node::VerbsNode;
pub use ports::DEVICE_VARIABLE;
pub use requester::CardCounts;
