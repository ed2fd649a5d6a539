//! A model of a client process. When the process is told of its fence, its monitor does what the model says, before
//! anything else happens at the node. No process of a model is silent and has to be killed, because that is not a
//! matter of interleavings.

use std::fmt;
use std::time::Duration;

/// A client process.
pub(crate) struct Peer {
    monitor: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Peer")
    }
}

impl Peer {
    pub(crate) fn new(monitor: impl Fn() + Send + Sync + 'static) -> Peer {
        Peer { monitor: Box::new(monitor) }
    }

    pub(crate) fn tell_fenced(&self) {
        (self.monitor)();
    }

    pub(crate) fn pid(&self) -> u32 {
        0
    }

    pub(crate) fn kill(&self) -> std::io::Result<()> {
        unreachable!("no process of a model is silent")
    }

    pub(crate) fn ended(&self, _: Duration) -> std::io::Result<bool> {
        unreachable!("no process of a model is killed")
    }
}
