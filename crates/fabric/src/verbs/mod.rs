//! Verbs over RDMA: the memory node's NIC executes them, without the processor.
//!
//! A session has one queue pair (of the kind "reliable connection") for each memory node. It learns the place
//! of the node's queue pair and of the pool over a TCP connection, which stays open as the session's lease
//! (`wire`). From then on the NICs need no help: [`VerbsNode`] only waits for leases to end and for fences.
//!
//! The library for NICs is loaded at run time (`ffi`). `ports` selects the NIC and its address. `device` and
//! `requester` wrap the objects of the library; together with `ffi` they hold all `unsafe` code of this
//! fabric. `link` cuts verbs into requests of the NIC and keeps their order; [`VerbsFabric`] is the session's
//! side. `switch` may be on the wire between both. Operators find instructions in `docs/rdma.md`.

#[allow(unsafe_code)]
mod device;
#[cfg(test)]
mod nic_tests;
// Calls into a C library.
#[allow(unsafe_code)]
mod ffi;
mod link;
mod node;
mod ports;
#[allow(unsafe_code)]
mod requester;
pub(crate) mod switch;
pub(crate) mod wire;

pub use device::{RdmaDevice, default_device};
pub(crate) use link::VerbsLink;
pub use node::VerbsNode;
pub use ports::DEVICE_VARIABLE;
pub use requester::NicCounts;
pub use switch::WireSwitch;
#[doc(hidden)]
pub use switch::{Tamper, TamperStage};

/// A session's connections to memory nodes.
///
/// A batch is handed to the NICs when its future is first polled, with one doorbell for each of its memory
/// nodes. A node is lost when the NIC has repeated a verb in vain (`device` says how often), when its NIC
/// refuses a verb, when the connection of the hello ends, or when a verb gets no completion for
/// [`DriverOptions::silence`](crate::driver::DriverOptions::silence), because a NIC or its driver hangs. All verbs in
/// flight to the node then fail, and the queue pair is destroyed, so that none of them executes later. No
/// more verbs are posted there.
pub type VerbsFabric = crate::driver::Driver<VerbsLink>;

impl VerbsFabric {
    /// Returns the counts of the work handed to NICs so far.
    pub fn counts(&self) -> NicCounts {
        self.link_counts()
    }
}
