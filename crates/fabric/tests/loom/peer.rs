//! A client process, as far as the models need one: it hears that it is fenced. That a silent one is killed is no
//! matter of interleavings: the models have none.

use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering};

/// A client process.
#[derive(Debug)]
pub(crate) struct Peer {
    told: AtomicBool,
}

impl Peer {
    pub(crate) fn new() -> Peer {
        Peer { told: AtomicBool::new(false) }
    }

    pub(crate) fn tell_fenced(&self) {
        self.told.store(true, Ordering::Release);
    }

    /// The process's side.
    pub(crate) fn wait_told(&self) {
        while !self.told.load(Ordering::Acquire) {
            loom::thread::yield_now();
        }
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
