//! Between a session and the keeper of its process: the newest view one way, what the session's
//! operations act by the other way.
//!
//! The keeper talks to the master for all sessions of a process, on a
//! thread of its own, so that a session is known to be there also while its thread does nothing or
//! is elsewhere. An idle session thus acknowledges views without waking up.
//!
//! The order is Dekker's: a session first tells by which view it acts and then looks for a newer
//! one; the keeper first puts the new view here and then looks what the session acts by. All four
//! are sequentially consistent, so at least one sees the other: either the operation begins by the
//! new view, or the keeper sees that it acts by the old one and does not acknowledge yet.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use fusee_control::master::Pulse;
use fusee_core::change::Stage;
use fusee_core::host::Acting;
use fusee_core::verbs::ClientId;
use fusee_core::view::View;

/// Nothing acts.
const IDLE: u64 = u64::MAX;

/// What a session and its keeper share.
#[derive(Debug)]
pub struct Gate {
    client: ClientId,
    view: Mutex<Arc<View>>,
    /// The number of `view`.
    number: AtomicU64,
    /// The oldest view that an operation acts by, or `IDLE`.
    oldest: AtomicU64,
    stopped: AtomicUsize,
    expelled: AtomicBool,
    /// Wakes the session's thread, which may wait for a memory node that is not there any more.
    waker: Mutex<Option<Waker>>,
}

impl Gate {
    /// The gate of a session that was opened with this view.
    pub fn new(client: ClientId, view: Arc<View>) -> Gate {
        Gate {
            client,
            number: AtomicU64::new(view.number),
            view: Mutex::new(view),
            oldest: AtomicU64::new(IDLE),
            stopped: AtomicUsize::new(0),
            expelled: AtomicBool::new(false),
            waker: Mutex::new(None),
        }
    }

    /// The session.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// From the session: how to wake its thread.
    pub fn set_waker(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// From the session: what its operations act by.
    pub fn tell(&self, acting: Acting) {
        self.stopped.store(acting.stopped, SeqCst);
        self.oldest.store(acting.oldest.unwrap_or(IDLE), SeqCst);
    }

    /// To the session: the newest view, if it is newer.
    pub fn newer_view(&self, than: u64) -> Option<Arc<View>> {
        (self.number.load(SeqCst) > than).then(|| self.view())
    }

    /// The newest view.
    pub fn view(&self) -> Arc<View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// To the session: it is shut out, and must begin nothing any more.
    pub fn is_expelled(&self) -> bool {
        self.expelled.load(SeqCst)
    }

    /// From the keeper: a view has come.
    pub fn publish(&self, view: &Arc<View>) {
        {
            let mut newest = self.view.lock().unwrap_or_else(PoisonError::into_inner);
            if newest.number >= view.number {
                return;
            }
            *newest = view.clone();
            self.number.store(view.number, SeqCst);
        }
        self.wake();
    }

    /// From the keeper: the master has shut the session out.
    pub fn expel(&self) {
        self.expelled.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
    }

    /// To the keeper: what to tell the master.
    pub fn pulse(&self) -> Pulse {
        // The number first: an operation that begins afterwards begins by this view or a newer one.
        let number = self.number.load(SeqCst);
        let acts_by = self.oldest.load(SeqCst).min(number);
        Pulse { client: self.client, acts_by, has_stopped: self.stopped.load(SeqCst) > 0 }
    }

    /// Whether a session that says this has done all that a view asks of it.
    pub fn acknowledged(pulse: &Pulse, view: &View) -> bool {
        let looks = view.change.as_ref().is_some_and(|change| change.stage == Stage::Switched);
        pulse.acts_by >= view.number && !(looks && pulse.has_stopped)
    }

    /// To the keeper: whether the session has done all that the newest view asks of it.
    pub fn acknowledges(&self) -> bool {
        Gate::acknowledged(&self.pulse(), &self.view())
    }
}
