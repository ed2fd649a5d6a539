//! Views and epochs, and the local epochs in which the session's operations are pinned.
//!
//! Each new view and each new epoch begins a new *local epoch*, whose number the session and the keeper know. The order
//! of their steps is that of Dekker's algorithm. The session first publishes the local epoch in which it is pinned, and
//! then checks whether that is still the newest. The keeper first publishes the new local epoch, and then reads what
//! the session has published. Between its two steps each side passes a [`barrier`], so at least one side sees the
//! other's first step: either the operation begins in the new local epoch, or the keeper sees that the operation is
//! pinned in the old one. The keeper's barrier bears the cost for both sides. The keeper passes that barrier once for
//! every local epoch, because an operation that begins after it has seen that local epoch.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use fusee_core::host::PinnedOperations;
use fusee_core::view::View;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, barrier};

/// The value of `oldest` if no operation is pinned.
const IDLE: u64 = u64::MAX;

/// The newest view and epoch, set by the keeper; and the local epochs in which operations are pinned, set by the
/// session.
#[derive(Debug)]
pub(super) struct GateEpochs {
    newest: Mutex<KnownLocalEpochs>,
    /// The number of the newest view that the keeper has published.
    number: AtomicU64,
    /// The newest epoch that the keeper has published.
    epoch: AtomicU64,
    local_epoch: AtomicU64,
    /// The local epoch for which the keeper last passed its barrier: operations that begin from now on see this local
    /// epoch, and the keeper sees the local epochs of all other operations. Used by the keeper alone.
    seen_by_all: AtomicU64,
    /// The local epoch in which the oldest running operation is pinned, or `IDLE`.
    oldest: AtomicU64,
    suspended: AtomicUsize,
}

/// The view and epoch of the newest local epoch, and the numbers of the views and epochs of earlier local epochs.
#[derive(Debug)]
pub(super) struct KnownLocalEpochs {
    pub view: Arc<View>,
    pub epoch: u64,
    /// The local epochs in which operations can still be pinned, the newest last.
    local_epochs: VecDeque<LocalEpoch>,
}

/// A local epoch, and the numbers of its view and epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalEpoch {
    number: u64,
    pub view: u64,
    pub epoch: u64,
}

/// The local epochs in which operations are pinned, as the keeper sees them at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct PinnedLocalEpochs {
    /// A local epoch before which no running operation is pinned, and none that begins from now on.
    pub local_epoch: u64,
    /// Whether no operation of the session runs.
    pub is_idle: bool,
}

impl KnownLocalEpochs {
    /// Returns a local epoch with its view and epoch. For a forgotten local epoch, returns the oldest known one: no
    /// operation is pinned in a forgotten local epoch, except for an operation that is about to find that its local
    /// epoch is not the newest any more.
    pub fn at(&self, local_epoch: u64) -> LocalEpoch {
        let known = self.local_epochs.iter().rev().find(|known| known.number <= local_epoch);
        *known.unwrap_or(&self.local_epochs[0])
    }

    /// Forgets all local epochs before this one.
    pub fn forget_before(&mut self, local_epoch: u64) {
        while self.local_epochs.len() > 1 && self.local_epochs[1].number <= local_epoch {
            self.local_epochs.pop_front();
        }
    }
}

impl GateEpochs {
    pub fn new(view: Arc<View>, epoch: u64) -> GateEpochs {
        let first = LocalEpoch { number: 0, view: view.number, epoch };
        GateEpochs {
            number: AtomicU64::new(view.number),
            epoch: AtomicU64::new(epoch),
            newest: Mutex::new(KnownLocalEpochs {
                view,
                epoch,
                local_epochs: VecDeque::from([first]),
            }),
            local_epoch: AtomicU64::new(0),
            seen_by_all: AtomicU64::new(0),
            oldest: AtomicU64::new(IDLE),
            suspended: AtomicUsize::new(0),
        }
    }

    pub fn newest(&self) -> MutexGuard<'_, KnownLocalEpochs> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes, on behalf of the session, the local epochs in which its operations are pinned.
    #[inline]
    pub fn publish(&self, pinned: PinnedOperations) {
        if self.suspended.load(Relaxed) != pinned.suspended {
            self.suspended.store(pinned.suspended, Release);
        }
        // Release ordering: a thread that sees the end of operations also sees their effects, and everything that they
        // published before.
        self.oldest.store(pinned.oldest.unwrap_or(IDLE), Release);
        barrier::light();
    }

    /// Returns the newest local epoch, to the session.
    #[inline]
    pub fn local_epoch(&self) -> u64 {
        self.local_epoch.load(SeqCst)
    }

    /// Returns whether a view with a number greater than `than` has been published.
    #[inline]
    pub fn has_newer(&self, than: u64) -> bool {
        self.number.load(SeqCst) > than
    }

    /// Returns the newest epoch that has been published.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Publishes a view, on behalf of the keeper. Returns whether the view is newer than the one published before.
    pub fn publish_view(&self, view: &Arc<View>) -> bool {
        let mut newest = self.newest();
        if newest.view.number >= view.number {
            return false;
        }
        newest.view = view.clone();
        self.number.store(view.number, SeqCst);
        self.next(&mut newest);
        true
    }

    /// Publishes an epoch, on behalf of the keeper.
    pub fn publish_epoch(&self, epoch: u64) {
        let mut newest = self.newest();
        if newest.epoch < epoch {
            newest.epoch = epoch;
            self.epoch.store(epoch, SeqCst);
            self.next(&mut newest);
        }
    }

    /// Begins the next local epoch. Its number is stored last, so a session that loads this number also finds the view
    /// and the epoch.
    fn next(&self, newest: &mut KnownLocalEpochs) {
        let number = self.local_epoch.load(SeqCst) + 1;
        let local_epoch = LocalEpoch { number, view: newest.view.number, epoch: newest.epoch };
        newest.local_epochs.push_back(local_epoch);
        self.local_epoch.store(number, SeqCst);
    }

    /// Returns, to the keeper, the local epochs in which operations are pinned.
    pub fn since(&self) -> PinnedLocalEpochs {
        // The local epoch is loaded first, so that an operation that begins afterwards is pinned in this local epoch or
        // a newer one.
        let local_epoch = self.local_epoch.load(SeqCst);
        if self.seen_by_all.load(Acquire) != local_epoch {
            barrier::heavy();
            self.seen_by_all.store(local_epoch, Release);
        }
        let oldest = self.oldest.load(Acquire);
        PinnedLocalEpochs { local_epoch: oldest.min(local_epoch), is_idle: oldest == IDLE }
    }

    /// Returns, to the keeper, whether the session has suspended writes whose result it has not found out yet.
    pub fn has_suspended(&self) -> bool {
        self.suspended.load(Relaxed) > 0
    }
}
