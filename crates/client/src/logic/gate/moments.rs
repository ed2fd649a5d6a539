//! Views, epochs, and since when the session's operations act by them.
//!
//! A view or an epoch that comes makes a new *moment*: a number that both sides know. The order is
//! Dekker's: a session first tells since which moment it acts and then looks whether that is still
//! the newest; the keeper first makes the new moment and then looks what the session tells. Between the
//! two, each passes a [`barrier`], so at least one sees the other: either the operation begins at the
//! new moment, or the keeper sees that it acts since the old one. The keeper's side pays for both, once
//! for every moment: an operation that has begun since then has seen it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, PoisonError};

use fusee_core::host::Acting;
use fusee_core::view::View;

use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, barrier};

/// Nothing acts.
const IDLE: u64 = u64::MAX;

/// The newest view and epoch one way, since when operations act the other way.
#[derive(Debug)]
pub(super) struct Moments {
    newest: Mutex<Newest>,
    /// The number of the newest view.
    number: AtomicU64,
    moment: AtomicU64,
    /// From the keeper to itself: operations that begin do so at this moment or a newer one; of all
    /// others it sees when they began.
    seen_by_all: AtomicU64,
    /// The moment since which the oldest operation acts, or `IDLE`.
    oldest: AtomicU64,
    stopped: AtomicUsize,
}

/// What the newest moment stands for, and earlier ones.
#[derive(Debug)]
pub(super) struct Newest {
    pub view: Arc<View>,
    pub epoch: u64,
    /// What the moments stand for that somebody may still act since, the newest last.
    moments: VecDeque<Moment>,
}

/// What a moment stands for: the numbers of its view and epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    number: u64,
    pub view: u64,
    pub epoch: u64,
}

/// Since when operations act, as the keeper sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Since {
    /// All that run, and all that begin from now on, act since this moment or a later one.
    pub moment: u64,
    /// Whether none runs.
    pub is_idle: bool,
}

impl Newest {
    /// What a moment stands for. Where it is forgotten already nobody acts since then, but somebody
    /// may be about to find that it is over.
    pub fn at(&self, moment: u64) -> Moment {
        let known = self.moments.iter().rev().find(|known| known.number <= moment);
        *known.unwrap_or(&self.moments[0])
    }

    /// Forgets what moments stand for that are before this one.
    pub fn forget_before(&mut self, moment: u64) {
        while self.moments.len() > 1 && self.moments[1].number <= moment {
            self.moments.pop_front();
        }
    }
}

impl Moments {
    pub fn new(view: Arc<View>, epoch: u64) -> Moments {
        let first = Moment { number: 0, view: view.number, epoch };
        Moments {
            number: AtomicU64::new(view.number),
            newest: Mutex::new(Newest { view, epoch, moments: VecDeque::from([first]) }),
            moment: AtomicU64::new(0),
            seen_by_all: AtomicU64::new(0),
            oldest: AtomicU64::new(IDLE),
            stopped: AtomicUsize::new(0),
        }
    }

    pub fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the session: since when its operations act.
    #[inline]
    pub fn tell(&self, acting: Acting) {
        if self.stopped.load(Relaxed) != acting.stopped {
            self.stopped.store(acting.stopped, Release);
        }
        // Release: who sees that operations have ended sees what they left, and what they told before.
        self.oldest.store(acting.oldest.unwrap_or(IDLE), Release);
        barrier::light();
    }

    /// To the session: the newest moment.
    #[inline]
    pub fn moment(&self) -> u64 {
        self.moment.load(SeqCst)
    }

    /// Whether there is a newer view than the one of this number.
    #[inline]
    pub fn has_newer(&self, than: u64) -> bool {
        self.number.load(SeqCst) > than
    }

    /// From the keeper: a view has come. Whether it is news.
    pub fn publish(&self, view: &Arc<View>) -> bool {
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
            self.next(&mut newest);
        }
    }

    /// Last: who finds the new moment finds the view that came with it.
    fn next(&self, newest: &mut Newest) {
        let number = self.moment.load(SeqCst) + 1;
        let moment = Moment { number, view: newest.view.number, epoch: newest.epoch };
        newest.moments.push_back(moment);
        self.moment.store(number, SeqCst);
    }

    /// To the keeper: since when operations act.
    pub fn since(&self) -> Since {
        // The moment first: an operation that begins afterwards begins at this one or a newer one.
        let moment = self.moment.load(SeqCst);
        if self.seen_by_all.load(Acquire) != moment {
            barrier::heavy();
            self.seen_by_all.store(moment, Release);
        }
        let oldest = self.oldest.load(Acquire);
        Since { moment: oldest.min(moment), is_idle: oldest == IDLE }
    }

    /// To the keeper: whether operations were stopped and have not found out what became of them.
    pub fn has_stopped(&self) -> bool {
        self.stopped.load(Relaxed) > 0
    }
}
