//! Verbs over RDMA: the network card of the memory node executes them, and its processor does nothing.
//!
//! A session has one queue pair (kind "reliable connection") per memory node. It learns where the node's is,
//! and where the pool lies, over a connection that stays open as the session's lease (`wire`). From then
//! on the cards are among themselves: [`VerbsNode`] only waits for leases to end and for fences.
//!
//! The library for the cards is found when the program runs (`ffi`). Which card and which of its addresses
//! to use, `ports` decides. `device` and `requester` wrap what the library makes; with `ffi` they have all
//! `unsafe` of this fabric. `link` cuts verbs for the card and keeps their order; [`VerbsFabric`] is the
//! session's side. `switch` is what may be on the wire between both. `docs/rdma.md` is for who runs it.

#[cfg(test)]
mod card_tests;
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
pub(crate) mod switch;
pub(crate) mod wire;

pub use device::{Found, default_device};
pub(crate) use link::Link;
pub use node::VerbsNode;
pub use ports::DEVICE_VARIABLE;
pub use requester::CardCounts;
pub use switch::WireSwitch;
#[doc(hidden)]
pub use switch::{Stage, Tamper};

/// A session's connections to memory nodes.
///
/// A batch is handed to the cards when its future is first polled, with one doorbell for each memory node
/// that it is for. A node is lost when a card has repeated a verb in vain (`device` says how often), when it
/// refuses one, when the connection ends over which it said hello, or when nothing at all comes of a verb
/// for [`Options::silence`](crate::driver::Options::silence): a card or its driver that hangs. Whatever is in
/// flight then fails, and the queue pair is destroyed, so that none of it executes later; nothing is posted
/// there again.
pub type VerbsFabric = crate::driver::Driver<Link>;

impl VerbsFabric {
    /// What has been handed to network cards so far.
    pub fn counts(&self) -> CardCounts {
        self.link_counts()
    }
}
