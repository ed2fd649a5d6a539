//! Memory nodes that did not answer this session: objects are read from other replicas.
//!
//! All replicas of an object are equal, so a READ of an object need not wait until the view has changed, nor does it
//! need a master. A slot is only read from its primary: the operation waits for that ([`StoreOp::read_without`]), or if
//! there is no master either, reads the slot from the backups ([`StoreOp::wait_for_backups`]).
//!
//! A node is silent from a verb that it did not answer until one that it did. It is asked less, not never: slots
//! whose primary lies there are still read there, and so are objects that have no other replica.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use crate::error::Error;
use crate::host::Host;
use crate::race::{Buckets, Key};
use crate::store::StoreOp;
use crate::verbs::{Fabric, MnId, VerbBatch, VerbError};

/// The memory nodes that did not answer the session's latest verb to them.
#[derive(Debug, Default)]
pub(in crate::store) struct SilentNodes {
    /// Whether there are any. Usually not: this is checked for every object that is read.
    any: Cell<bool>,
    nodes: RefCell<Vec<MnId>>,
    /// The number of times that a node has become silent.
    times: Cell<u64>,
}

impl SilentNodes {
    /// Whether any node is silent.
    #[inline]
    pub fn any(&self) -> bool {
        self.any.get()
    }

    /// Whether a node is silent.
    #[inline]
    pub fn has(&self, node: MnId) -> bool {
        self.any.get() && self.nodes.borrow().contains(&node)
    }

    /// Returns the number of times that a node has become silent.
    pub fn times(&self) -> u64 {
        self.times.get()
    }

    /// Notes which nodes answered, and which did not.
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

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Goes on after a READ for this key had no answer from a node. Returns if the next attempt reads elsewhere,
    /// because a node has become silent since [`SilentNodes::times`] was `times`; else waits until the node is not a
    /// member of the view any more.
    pub(in crate::store) async fn read_elsewhere(
        &mut self,
        key: Key<'_>,
        node: MnId,
        times: u64,
        error: Error,
    ) -> Result<(), Error> {
        let subtable = Buckets::of(key, &self.view).subtable;
        let primary = self.view.subtables[subtable as usize].primary().node;
        let is_in_doubt = self.pin.traces.is_in_doubt();
        let is_calm = self.view.change.is_none() && !is_in_doubt;
        if primary == node && is_calm && !self.beside {
            return self.wait_for_backups(key, node, error).await;
        }
        let shows_slots = primary == node || self.view.is_without_primary(subtable);
        if shows_slots || is_in_doubt || self.store.silent.times() == times {
            return self.read_without(node, error).await;
        }
        self.pin.traces.forgive_reads();
        self.store.host.report_unreachable(node);
        Ok(())
    }
}
