//! Verbs over RDMA: the memory node's NIC executes them without the node's processor.
//!
//! A session has one queue pair (of the kind "reliable connection") for each memory node. Over a TCP connection it
//! learns the addresses of the node's queue pair and of the pool (`wire`); that connection stays open as the
//! session's lease. After that the NICs need no help: [`VerbsNode`] only waits for leases to end and for fences.
//!
//! The library for NICs is loaded at run time (`ffi`). `ports` selects the NIC and its address. `device` and
//! `requester` wrap the library's objects; together with `ffi` they hold all `unsafe` code of this fabric. `link`
//! cuts verbs into requests to the NIC and keeps their order. [`VerbsFabric`] is the session's side. `switch` can
//! be on the wire between session and node. Operators find instructions in `docs/rdma.md`.

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

/// A session's connections to memory nodes over RDMA.
///
/// A batch is handed to the NICs when its future is first polled, with one doorbell for each of its memory nodes. A
/// session treats a node as lost in four cases: its own NIC has repeated a verb in vain (`device` says how often), the
/// node's NIC refuses a verb, the connection of the hello ends, or a verb gets no completion for
/// [`DriverOptions::silence`](crate::driver::DriverOptions::silence), because a NIC or its driver hangs. Then all verbs
/// in flight to the node fail, and the queue pair is destroyed, so that none of these verbs executes later. No more
/// verbs are posted to the node.
pub type VerbsFabric = crate::driver::Driver<VerbsLink>;

impl VerbsFabric {
    /// Returns the counts of the work that was handed to NICs so far.
    pub fn counts(&self) -> NicCounts {
        self.link_counts()
    }
}
