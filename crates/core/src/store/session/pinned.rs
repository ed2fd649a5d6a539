//! The pins of a session's operations: the view and the epoch in which each one runs.
//!
//! An operation is *pinned* from before it posts its first verb until it posts no more verbs and none of its verbs can
//! still execute. It is pinned in a *local epoch*, which stands for a view and an epoch. The session publishes the
//! oldest local epoch in which an operation is pinned (`Epochs::publish`). View changes
//! ([`change`](crate::view::change)), and the reuse of freed objects ([`reclaim`](crate::store::memory::reclaim)), wait
//! until no operation is pinned in a local epoch that is too old. So an operation
//!
//! * begins in the newest local epoch: it publishes that one first, and checks afterwards whether there is a newer one;
//! * is not pinned while it waits to begin, for example for the end of a change;
//! * stays pinned forever if it was dropped or failed after its first CAS, or before a WRITE was answered. Its verbs
//!   can still execute, so this session has to be fenced before the view changes, and before another session gets its
//!   blocks.

use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::followed_view::ViewRef;
use super::traces::OperationTraces;
use crate::host::{Host, PinnedOperations};
use crate::layout::Slot;
use crate::mutant::{Mutant, guard};
use crate::store::memory::MemoryHold;
use crate::store::{HintTrust, Store};
use crate::verbs::Fabric;

/// The number of pinned operations of a session in each local epoch.
#[derive(Debug, Default)]
pub(in crate::store) struct LocalEpochs {
    /// Local epochs with the number of operations pinned in each, the oldest first. Seldom more than one entry.
    pinned: RefCell<Vec<(u64, usize)>>,
    suspended: Cell<usize>,
    /// Whether an operation was left half-way, and so stays pinned forever.
    half_way: Cell<bool>,
}

impl LocalEpochs {
    fn oldest(&self) -> Option<u64> {
        self.pinned.borrow().first().map(|(local_epoch, _)| *local_epoch)
    }

    /// Returns whether any operation of the session is pinned or suspended.
    pub(in crate::store) fn has_pinned_or_suspended(&self) -> bool {
        self.oldest().is_some() || self.suspended.get() > 0
    }

    /// Returns whether an operation of the session was left half-way.
    pub(in crate::store) fn has_half_way(&self) -> bool {
        self.half_way.get()
    }

    fn publish(&self, host: &impl Host) {
        let oldest = self.oldest();
        let suspended = self.suspended.get();
        host.publish(PinnedOperations { oldest, suspended });
    }

    /// Pins an operation in the newest local epoch. Returns the view of this local epoch, or a newer view, and the
    /// local epoch.
    pub(in crate::store) fn begin(
        &self,
        host: &impl Host,
        newest_view: impl Fn() -> ViewRef,
    ) -> (ViewRef, u64) {
        loop {
            let local_epoch = host.local_epoch();
            let view = newest_view();
            let told = self.add(local_epoch);
            if told {
                self.publish(host);
            }
            host.note_pinned(local_epoch);
            // The local epoch was published before this comparison. So if a newer local epoch begins, either this
            // comparison sees it, or the thread that begins it sees that this operation is pinned in an older one.
            if host.local_epoch() == local_epoch {
                return (view, local_epoch);
            }
            self.end(host, local_epoch);
        }
    }

    /// Unpins an operation that was pinned in this local epoch.
    pub(in crate::store) fn end(&self, host: &impl Host, local_epoch: u64) {
        host.note_unpinned(local_epoch);
        if self.remove(local_epoch) {
            self.publish(host);
        }
    }

    /// Adds an operation that is pinned in this local epoch. Returns whether the oldest local epoch has changed.
    fn add(&self, local_epoch: u64) -> bool {
        let mut pinned = self.pinned.borrow_mut();
        match pinned.last_mut() {
            Some((newest, count)) if *newest == local_epoch => {
                *count += 1;
                false
            }
            // Local epochs only grow, and operations begin in the newest one.
            _ => {
                pinned.push((local_epoch, 1));
                pinned.len() == 1
            }
        }
    }

    /// Removes an operation that was pinned in this local epoch. Returns whether the oldest local epoch has changed.
    #[inline]
    fn remove(&self, local_epoch: u64) -> bool {
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

/// Returns the epoch for a session's hints; 0 on a fabric that executes batches without waiting, where hints contain no
/// epoch.
fn epoch_of_hints<F: Fabric, H: Host>(store: &Store<F, H>) -> u64 {
    if store.fabric.is_immediate() { 0 } else { store.host.epoch() }
}

/// The pin of an operation, with the doubts that the operation leaves behind.
pub(in crate::store) struct OperationPin<'s, F: Fabric, H: Host> {
    store: &'s Store<F, H>,
    /// The local epoch in which the operation is pinned; `None` if it is not pinned.
    local_epoch: Option<u64>,
    /// The newest epoch that the session knew when the operation was pinned; 0 on a fabric that executes batches
    /// without waiting.
    epoch: u64,
    /// The doubts about verbs of the operation that were not answered.
    pub traces: OperationTraces,
    /// Whether the present attempt has an object whose use has not ended.
    has_object: bool,
    /// Whether the operation was suspended, and the result of its write is not known yet.
    suspended: bool,
    /// The hold of a suspended write on the memory whose word it has possibly replaced.
    held: Option<MemoryHold>,
}

impl<'s, F: Fabric, H: Host> OperationPin<'s, F, H> {
    /// Pins an operation that begins.
    #[inline]
    pub fn new(store: &'s Store<F, H>) -> (OperationPin<'s, F, H>, ViewRef) {
        let (view, local_epoch) = store.local_epochs.begin(&store.host, || store.newest_view());
        let local_epoch = Some(local_epoch);
        let epoch = epoch_of_hints(store);
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

    /// Returns the local epoch in which the operation is pinned; `None` if it is not pinned.
    pub fn since(&self) -> Option<u64> {
        self.local_epoch
    }

    /// Returns the newest epoch that the session knew when the operation was pinned, if it is.
    pub fn epoch(&self) -> Option<u64> {
        self.local_epoch.map(|_| self.epoch)
    }

    /// Unpins the operation. Until it is pinned again it posts no verbs, and none of its earlier verbs can execute any
    /// more.
    pub fn pause(&mut self) {
        if let Some(local_epoch) = self.local_epoch.take() {
            self.store.local_epochs.end(&self.store.host, local_epoch);
        }
    }

    /// Pins the operation again, in the newest view, and returns this view.
    pub fn resume(&mut self) -> ViewRef {
        let before = self.local_epoch.take();
        let store = self.store;
        let (view, local_epoch) = store.local_epochs.begin(&store.host, || store.newest_view());
        (self.local_epoch, self.epoch) = (Some(local_epoch), epoch_of_hints(store));
        if let Some(before) = before {
            store.local_epochs.end(&store.host, before);
        }
        view
    }

    /// Unpins the operation until its write is resolved. If the write has possibly `replaced` a word, it holds the
    /// memory that this word protected; the hold is published before the operation is unpinned.
    pub fn suspend(&mut self, replaced: bool) {
        if let Some(since) = self.local_epoch.filter(|_| replaced && self.held.is_none()) {
            self.held = Some(self.store.memory.freed.hold(&self.store.host, since));
        }
        if guard(Mutant::SuspendedIsForgotten, !self.suspended) {
            self.suspended = true;
            let suspended = &self.store.local_epochs.suspended;
            suspended.set(suspended.get() + 1);
        }
        if let Some(local_epoch) = self.local_epoch.take() {
            self.store.host.note_unpinned(local_epoch);
            self.store.local_epochs.remove(local_epoch);
        }
        self.store.local_epochs.publish(&self.store.host);
    }

    /// Returns whether the operation must not free the memory that it holds, because this memory was left to a
    /// comparison while the operation was suspended.
    fn has_lost_hold(&self) -> bool {
        self.held.as_ref().is_some_and(|hold| self.store.memory.freed.is_lost(hold))
    }

    /// Notes that the present attempt has an object, until [`OperationPin::end_object`].
    pub fn begin_object(&mut self) {
        self.has_object = true;
    }

    /// Notes that the use of the present attempt's object has ended.
    #[inline]
    pub fn end_object(&mut self) {
        self.has_object = false;
    }

    /// Ends the hold, if there is one, after the memory was freed or left alone.
    pub fn end_hold(&mut self) {
        if let Some(hold) = self.held.take() {
            self.store.memory.freed.end_hold(&self.store.host, &hold);
        }
    }

    /// Returns the trust in a hint that contains a word that the operation has just seen
    /// ([`Hint::seen`](crate::store::Hint::seen)).
    pub fn seen(&self) -> HintTrust {
        let since = self.epoch().filter(|_| !self.store.fabric.is_immediate());
        since.map_or(HintTrust::Unverified, HintTrust::FreshSince)
    }

    /// Frees the memory that a replaced word has protected: its object, and the object's copies if there are any.
    #[inline]
    pub fn free(&mut self, word: Slot) {
        if self.has_lost_hold() {
            return self.store.counters.add_left_to_comparison(1);
        }
        if let (Some(_), Some(since)) = (word.object(), self.since()) {
            self.store.memory.freed.free(&self.store.host, word, since);
        }
    }

    /// Frees the writer's own object after a lost round, unless the word `now`, which the slot shows, has this object's
    /// identity. The copies of the own word are freed separately ([`copies`](crate::store::write::copies)).
    pub fn free_lost(&mut self, own: Slot, now: Slot) {
        if now.identity() != own.identity() {
            self.free(own.withdrawn());
        }
    }

    /// Notes, at the end of an operation, that WRITEs to nodes that the newest view has lost cannot execute any more.
    #[inline]
    pub fn forget_lost(&mut self) {
        if self.traces.is_on_its_way() {
            let newest = self.store.newest_view();
            self.traces.follow(&newest);
        }
    }

    /// Notes that the result of the operation's suspended write is known.
    pub fn resolved(&mut self) {
        if core::mem::take(&mut self.suspended) {
            let suspended = &self.store.local_epochs.suspended;
            suspended.set(suspended.get() - 1);
            self.store.local_epochs.publish(&self.store.host);
        }
        self.traces.clear_posted();
    }
}

impl<F: Fabric, H: Host> Drop for OperationPin<'_, F, H> {
    fn drop(&mut self) {
        // An operation whose attempt still uses an object stays pinned, so that no memory that the operation knows is
        // reused.
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
