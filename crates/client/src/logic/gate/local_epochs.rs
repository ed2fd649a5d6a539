//! Views, epochs, and in which of them the session's operations are pinned.
//!
//! A view or an epoch that comes makes a new *local epoch*: a number that both sides know. The order is
//! Dekker's: a session first tells in which local epoch it is pinned and then looks whether that is still
//! the newest; the keeper first makes the new local epoch and then looks what the session tells. Between the
//! two, each passes a [`barrier`], so at least one sees the other: either the operation begins at the
//! new local epoch, or the keeper sees that it is pinned in the old one. The keeper's side pays for both, once
//! for every local epoch: an operation that has begun since then has seen it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use fusee_core::host::Pinned;
use fusee_core::view::View;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, barrier};

/// Nothing is pinned.
const IDLE: u64 = u64::MAX;

/// The newest view and epoch one way, in what operations are pinned the other way.
#[derive(Debug)]
pub(super) struct LocalEpochs {
    newest: Mutex<Newest>,
    /// The number of the newest view.
    number: AtomicU64,
    /// The newest epoch.
    epoch: AtomicU64,
    local_epoch: AtomicU64,
    /// From the keeper to itself: operations that begin do so at this local epoch or a newer one; of all
    /// others it sees when they began.
    seen_by_all: AtomicU64,
    /// The local epoch in which the oldest operation is pinned, or `IDLE`.
    oldest: AtomicU64,
    suspended: AtomicUsize,
}

/// What the newest local epoch stands for, and earlier ones.
#[derive(Debug)]
pub(super) struct Newest {
    pub view: Arc<View>,
    pub epoch: u64,
    /// What the local epochs stand for that somebody may still be pinned in, the newest last.
    local_epochs: VecDeque<LocalEpoch>,
}

/// What a local epoch stands for: the numbers of its view and epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalEpoch {
    number: u64,
    pub view: u64,
    pub epoch: u64,
}

/// In what operations are pinned, as the keeper sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// All that run, and all that begin from now on, are pinned in this local epoch or a later one.
    pub local_epoch: u64,
    /// Whether none runs.
    pub is_idle: bool,
}

impl Newest {
    /// What a local epoch stands for. Where it is forgotten already nobody is pinned in it, but somebody
    /// may be about to find that it is over.
    pub fn at(&self, local_epoch: u64) -> LocalEpoch {
        let known = self.local_epochs.iter().rev().find(|known| known.number <= local_epoch);
        *known.unwrap_or(&self.local_epochs[0])
    }

    /// Forgets what local epochs stand for that are before this one.
    pub fn forget_before(&mut self, local_epoch: u64) {
        while self.local_epochs.len() > 1 && self.local_epochs[1].number <= local_epoch {
            self.local_epochs.pop_front();
        }
    }
}

impl LocalEpochs {
    pub fn new(view: Arc<View>, epoch: u64) -> LocalEpochs {
        let first = LocalEpoch { number: 0, view: view.number, epoch };
        LocalEpochs {
            number: AtomicU64::new(view.number),
            epoch: AtomicU64::new(epoch),
            newest: Mutex::new(Newest { view, epoch, local_epochs: VecDeque::from([first]) }),
            local_epoch: AtomicU64::new(0),
            seen_by_all: AtomicU64::new(0),
            oldest: AtomicU64::new(IDLE),
            suspended: AtomicUsize::new(0),
        }
    }

    pub fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the session: in what its operations are pinned.
    #[inline]
    pub fn publish(&self, pinned: Pinned) {
        if self.suspended.load(Relaxed) != pinned.suspended {
            self.suspended.store(pinned.suspended, Release);
        }
        // Release: who sees that operations have ended sees what they left, and what they told before.
        self.oldest.store(pinned.oldest.unwrap_or(IDLE), Release);
        barrier::light();
    }

    /// To the session: the newest local epoch.
    #[inline]
    pub fn local_epoch(&self) -> u64 {
        self.local_epoch.load(SeqCst)
    }

    /// Whether there is a newer view than the one of this number.
    #[inline]
    pub fn has_newer(&self, than: u64) -> bool {
        self.number.load(SeqCst) > than
    }

    /// The newest epoch.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// From the keeper: a view has come. Whether it is news.
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

    /// From the keeper: an epoch has come.
    pub fn publish_epoch(&self, epoch: u64) {
        let mut newest = self.newest();
        if newest.epoch < epoch {
            newest.epoch = epoch;
            self.epoch.store(epoch, SeqCst);
            self.next(&mut newest);
        }
    }

    /// Last: who finds the new local epoch finds the view that came with it.
    fn next(&self, newest: &mut Newest) {
        let number = self.local_epoch.load(SeqCst) + 1;
        let local_epoch = LocalEpoch { number, view: newest.view.number, epoch: newest.epoch };
        newest.local_epochs.push_back(local_epoch);
        self.local_epoch.store(number, SeqCst);
    }

    /// To the keeper: in what operations are pinned.
    pub fn since(&self) -> Since {
        // The local epoch first: an operation that begins afterwards begins at this one or a newer one.
        let local_epoch = self.local_epoch.load(SeqCst);
        if self.seen_by_all.load(Acquire) != local_epoch {
            barrier::heavy();
            self.seen_by_all.store(local_epoch, Release);
        }
        let oldest = self.oldest.load(Acquire);
        Since { local_epoch: oldest.min(local_epoch), is_idle: oldest == IDLE }
    }

    /// To the keeper: whether operations were suspended and have not found out what became of them.
    pub fn has_suspended(&self) -> bool {
        self.suspended.load(Relaxed) > 0
    }
}
