//! Who sleeps, and how to wake them.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use futures_util::task::AtomicWaker;

use crate::sync::Mutex;

/// The session's thread, its operations, and the keeper.
#[derive(Debug)]
pub(super) struct Wakers {
    /// Wakes the session's thread, which may wait for a memory node that is not there any more.
    thread: Mutex<Option<Waker>>,
    /// Wakes operations that wait for news.
    waiting: Mutex<Vec<Waker>>,
    /// Wakes the keeper.
    keeper: OnceLock<Arc<AtomicWaker>>,
}

impl Wakers {
    pub fn new() -> Wakers {
        Wakers { thread: Mutex::new(None), waiting: Mutex::default(), keeper: OnceLock::new() }
    }

    pub fn set_thread(&self, waker: Waker) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    pub fn set_keeper(&self, keeper: Arc<AtomicWaker>) {
        let _set_once = self.keeper.set(keeper);
    }

    /// Waits until there is news. Whoever brings it calls [`Wakers::wake`] after that.
    pub async fn news(&self, is_there: impl Fn() -> bool) {
        poll_fn(|context| {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
            }
            // Only now: what comes from here on finds the waker.
            if is_there() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// From the keeper: there is news for the session.
    pub fn wake(&self) {
        if let Some(waker) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).for_each(Waker::wake);
    }

    /// From the session: the keeper has something to do.
    pub fn wake_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.wake();
        }
    }
}
