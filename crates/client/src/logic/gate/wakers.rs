//! The wakers of whatever sleeps at a gate.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use futures_util::task::AtomicWaker;

use crate::sync::Mutex;

/// Wakers of the session's thread, its operations, and the keeper.
#[derive(Debug)]
pub(super) struct Wakers {
    /// Wakes the session's thread, which may wait for a memory node that has left the view.
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

    /// Waits until there is news. The bringer of news calls [`Wakers::wake`] after it.
    pub async fn wait_for_news(&self, is_there: impl Fn() -> bool) {
        poll_fn(|context| {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
            }
            // Checked only now: news that comes from here on finds the waker.
            if is_there() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Wakes the session, for the keeper: there is news.
    pub fn wake(&self) {
        if let Some(waker) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).for_each(Waker::wake);
    }

    /// Wakes the keeper, for the session.
    pub fn wake_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.wake();
        }
    }
}
