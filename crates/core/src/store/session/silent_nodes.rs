//! The memory nodes that did not answer this session; objects are read from other nodes instead.
//!
//! All replicas of an object are equal, so a READ of an object need not wait until the view has changed, nor does it
//! need a master. A slot is only read from its primary: the operation waits for another primary
//! (`StoreOp::read_without`), or, if there is no master either, reads the slot from the backups
//! ([`read`](crate::store::read)).
//!
//! A node is silent from the first verb that it does not answer until the next verb that it answers. The session posts
//! fewer verbs to a silent node, but still some: it READs slots whose primary is there, and objects that have no other
//! replica.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use crate::verbs::{MnId, VerbBatch, VerbError};

/// The memory nodes that did not answer the session's latest verb to them.
#[derive(Debug, Default)]
pub(in crate::store) struct SilentNodes {
    /// Whether any node is silent. Every read of an object checks this first, because it is usually false.
    any: Cell<bool>,
    nodes: RefCell<Vec<MnId>>,
    /// The number of times that any node has become silent.
    times: Cell<u64>,
}

impl SilentNodes {
    /// Whether any node is silent: it did not answer the session's latest verb to it.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.get()
    }

    /// Whether a node is silent: it did not answer the session's latest verb to it.
    #[inline]
    pub fn has(&self, node: MnId) -> bool {
        self.any.get() && self.nodes.borrow().contains(&node)
    }

    /// Returns the number of times that any node has become silent.
    pub fn times(&self) -> u64 {
        self.times.get()
    }

    /// Notes which nodes answered the verbs of a batch, and which did not.
    #[cold]
    pub fn note(&self, batch: &VerbBatch) {
        let mut nodes = self.nodes.borrow_mut();
        for verb in batch.verbs() {
            let at = nodes.iter().position(|node| *node == verb.node);
            match (verb.result, at) {
                (Err(VerbError::Unreachable), None) => {
                    nodes.push(verb.node);
                    self.times.set(self.times.get() + 1);
                }
                (Ok(()), Some(at)) => drop(nodes.swap_remove(at)),
                _ => {}
            }
        }
        self.any.set(!nodes.is_empty());
    }
}
