//! The pins of a session's operations: the view and the epoch in which each one runs.
//!
//! An operation is *pinned* from the moment at which it may post verbs until it will post none any more, and none
//! that it has posted can still execute. A local epoch stands for a view and an epoch; every operation begins in the
//! newest one. The session publishes the oldest local epoch that counts (`Epochs::publish`). View changes wait for it
//! ([`change`](crate::view::change)), and so does the reuse of freed objects
//! ([`reclaim`](crate::store::memory::reclaim)). So an operation
//!
//! * begins at the newest local epoch: it publishes that first, and looks for a newer one afterwards;
//! * is not pinned while it waits to begin, e.g. for the end of a change;
//! * stays pinned for ever if it was dropped or failed after its first CAS, or before a WRITE was answered. Its verbs
//!   may still be on their way, so this session has to be fenced before the view changes, and before another session
//!   has its blocks.

use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::traces::OperationTraces;
use crate::host::{Host, PinnedOperations};
use crate::mutant::{Mutant, guard};
use crate::store::memory::MemoryHold;
use crate::store::{HintTrust, Store, StoreOp};
use crate::verbs::Fabric;
use crate::view::View;

/// A view that the operations of a session share, with a reference count that only this session touches.
pub(in crate::store) type ViewRef = Rc<Arc<View>>;

/// The number of pinned operations of a session in each local epoch.
#[derive(Debug, Default)]
pub(in crate::store) struct LocalEpochs {
    /// Local epochs with the number of their operations; the oldest first. Seldom more than one entry.
    pinned: RefCell<Vec<(u64, usize)>>,
    suspended: Cell<usize>,
    /// Whether an operation stays pinned for ever, since it was left half-way.
    half_way: Cell<bool>,
}

impl LocalEpochs {
    fn oldest(&self) -> Option<u64> {
        self.pinned.borrow().first().map(|(local_epoch, _)| *local_epoch)
    }

    /// Whether anything is pinned or suspended.
    pub(in crate::store) fn has_pinned_or_suspended(&self) -> bool {
        self.oldest().is_some() || self.suspended.get() > 0
    }

    /// Returns whether an operation was left half-way.
    pub(in crate::store) fn has_half_way(&self) -> bool {
        self.half_way.get()
    }

    /// Adds an operation. Returns whether the oldest local epoch changed.
    fn begin(&self, local_epoch: u64) -> bool {
        let mut pinned = self.pinned.borrow_mut();
        match pinned.last_mut() {
            Some((newest, count)) if *newest == local_epoch => {
                *count += 1;
                false
            }
            // Local epochs never go back, and operations begin at the newest.
            _ => {
                pinned.push((local_epoch, 1));
                pinned.len() == 1
            }
        }
    }

    /// Removes an operation. Returns whether the oldest local epoch changed.
    #[inline]
    fn end(&self, local_epoch: u64) -> bool {
        let mut pinned = self.pinned.borrow_mut();
        let at = pinned.iter().position(|(m, _)| *m == local_epoch).expect("it has begun");
        pinned[at].1 -= 1;
        if pinned[at].1 > 0 {
            return false;
        }
        if pinned.len() == 1 {
            pinned.clear();
        } else {
            pinned.remove(at);
        }
        at == 0
    }
}

/// Returns whether all regions are replicated.
pub(in crate::store) fn has_one_redundancy(view: &View) -> bool {
    view.regions.iter().all(|region| region.redundancy().is_replicated())
}

impl<F: Fabric, H: Host> Store<F, H> {
    fn publish(&self) {
        let oldest = self.local_epochs.oldest();
        let suspended = self.local_epochs.suspended.get();
        self.host.publish(PinnedOperations { oldest, suspended });
    }

    /// Returns the newest view that has come.
    #[inline]
    pub(in crate::store) fn newest_view(&self) -> ViewRef {
        self.follow_view();
        self.view.borrow().clone()
    }

    /// Takes the newest view that has come.
    pub(super) fn follow_view(&self) {
        let known = self.view.borrow().number;
        if let Some(newer) = self.host.newer_view(known) {
            self.follow(newer);
        }
    }

    /// In a function of its own, so that operations that find no newer view do not pay for it.
    #[cold]
    fn follow(&self, newer: Arc<View>) {
        if newer.regions.iter().any(|region| !region.is_there()) {
            self.memory.forget_lost_blocks(&newer);
        }
        self.has_one_redundancy.set(has_one_redundancy(&newer));
        *self.view.borrow_mut() = Rc::new(newer);
    }

    /// Pins an operation in the newest local epoch, and returns that with its view, or a newer view.
    pub(in crate::store) fn begin(&self) -> (ViewRef, u64) {
        loop {
            let local_epoch = self.host.local_epoch();
            let view = self.newest_view();
            let told = self.local_epochs.begin(local_epoch);
            if told {
                self.publish();
            }
            self.host.note_pinned(local_epoch);
            // The local epoch was published before this look. So either a newer local epoch is seen here, or its
            // maker sees that this operation is pinned in an older one.
            if self.host.local_epoch() == local_epoch {
                return (view, local_epoch);
            }
            self.end(local_epoch);
        }
    }

    /// Returns the epoch for operations to remember; 0 if the fabric is immediate, where they remember none.
    fn epoch(&self) -> u64 {
        if self.fabric.is_immediate() { 0 } else { self.host.epoch() }
    }

    /// Unpins an operation that was pinned in this local epoch.
    pub(in crate::store) fn end(&self, local_epoch: u64) {
        self.host.note_unpinned(local_epoch);
        if self.local_epochs.end(local_epoch) {
            self.publish();
        }
    }
}

/// The pin of an operation, with the traces that the operation has left.
pub(in crate::store) struct OperationPin<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    /// The local epoch in which it is pinned, if it is.
    local_epoch: Option<u64>,
    /// The newest epoch that the session knew then; 0 if the fabric is immediate.
    epoch: u64,
    /// The traces that the operation has left.
    pub traces: OperationTraces,
    /// Whether the attempt has an object that is neither ended nor given back.
    has_object: bool,
    /// Whether the operation was suspended, and its write is not resolved yet.
    suspended: bool,
    /// The hold on the memory that it frees then, if it had posted its commit.
    held: Option<MemoryHold>,
}

impl<'s, F: Fabric, H: Host> OperationPin<'s, F, H> {
    /// Pins an operation that begins.
    pub fn new(store: &'s Store<F, H>) -> (OperationPin<'s, F, H>, ViewRef) {
        let (view, local_epoch) = store.begin();
        let local_epoch = Some(local_epoch);
        let epoch = store.epoch();
        let traces = OperationTraces::default();
        let has_object = false;
        let suspended = false;
        let held = None;
        (OperationPin { store, local_epoch, epoch, traces, has_object, suspended, held }, view)
    }

    /// Returns whether the operation is pinned.
    pub fn is_pinned(&self) -> bool {
        self.local_epoch.is_some()
    }

    /// Returns the local epoch in which the operation is pinned, if it is.
    pub fn since(&self) -> Option<u64> {
        self.local_epoch
    }

    /// Returns the newest epoch that the session knew when the operation was pinned, if it is.
    pub fn epoch(&self) -> Option<u64> {
        self.local_epoch.map(|_| self.epoch)
    }

    /// Unpins the operation: until it is pinned again it posts nothing, and nothing of it is on its way.
    pub fn pause(&mut self) {
        if let Some(local_epoch) = self.local_epoch.take() {
            self.store.end(local_epoch);
        }
    }

    /// Pins the operation by the newest view.
    pub fn resume(&mut self) -> ViewRef {
        let before = self.local_epoch.take();
        let (view, local_epoch) = self.store.begin();
        (self.local_epoch, self.epoch) = (Some(local_epoch), self.store.epoch());
        if let Some(before) = before {
            self.store.end(before);
        }
        view
    }

    /// Unpins the operation while its write is yet to be resolved. If the write may have `replaced` a word, it holds
    /// the memory that the word kept: this is published before the operation is unpinned.
    pub fn suspend(&mut self, replaced: bool) {
        if let Some(since) = self.local_epoch.filter(|_| replaced && self.held.is_none()) {
            self.held = Some(self.store.hold(since));
        }
        if guard(Mutant::SuspendedIsForgotten, !self.suspended) {
            self.suspended = true;
            let suspended = &self.store.local_epochs.suspended;
            suspended.set(suspended.get() + 1);
        }
        if let Some(local_epoch) = self.local_epoch.take() {
            self.store.host.note_unpinned(local_epoch);
            self.store.local_epochs.end(local_epoch);
        }
        self.store.publish();
    }

    /// Returns whether the operation must not free the memory that it holds: while it was suspended that was left to
    /// a comparison.
    pub fn has_lost_hold(&self) -> bool {
        self.held.as_ref().is_some_and(|hold| self.store.is_lost(hold))
    }

    /// Notes that the attempt has an object, until [`OperationPin::end_object`].
    pub fn begin_object(&mut self) {
        self.has_object = true;
    }

    /// Notes that the attempt's object is ended, or given back.
    #[inline]
    pub fn end_object(&mut self) {
        self.has_object = false;
    }

    /// Ends the hold: the memory is freed, or left alone.
    pub fn end_hold(&mut self) {
        if let Some(hold) = self.held.take() {
            self.store.end_hold(&hold);
        }
    }

    /// Notes that the write is resolved.
    pub fn resolved(&mut self) {
        if core::mem::take(&mut self.suspended) {
            let suspended = &self.store.local_epochs.suspended;
            suspended.set(suspended.get() - 1);
            self.store.publish();
        }
        self.traces.clear_posted();
    }
}

impl<F: Fabric, H: Host> Drop for OperationPin<'_, F, H> {
    fn drop(&mut self) {
        // The operation stays pinned then, so that no memory that it knows of is reused.
        let keeps_object = guard(Mutant::DroppedAttemptsKeepObjects, self.has_object);
        if self.traces.is_in_doubt() || keeps_object {
            self.store.local_epochs.half_way.set(true);
            return;
        }
        self.end_hold();
        self.resolved();
        self.pause();
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Returns the epoch to remember with words that this operation sees now: see [`Hint::seen`].
    pub(in crate::store) fn seen(&self) -> HintTrust {
        let since = self.pin.epoch().filter(|_| !self.store.fabric.is_immediate());
        since.map_or(HintTrust::Unverified, HintTrust::FreshSince)
    }
}
