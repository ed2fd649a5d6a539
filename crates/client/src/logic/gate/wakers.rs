//! The wakers of the tasks and operations that wait at a gate.

use std::future::poll_fn;
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Poll, Waker};

use futures_util::task::AtomicWaker;

use crate::sync::Mutex;

/// Wakers of the session's thread, of its operations, and of the keeper.
#[derive(Debug)]
pub(super) struct Wakers {
    /// The waker of the session's thread, which possibly waits for a memory node that has left the view.
    thread: Mutex<Option<Waker>>,
    /// The wakers of operations that wait for a newer view or a fence.
    waiting: Mutex<Vec<Waker>>,
    /// The waker of the keeper.
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

    /// Waits until `is_there` returns true. The code that makes it true calls [`Wakers::wake`] afterwards.
    pub async fn wait_for_news(&self, is_there: impl Fn() -> bool) {
        poll_fn(|context| {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
            }
            // The condition is checked only after the waker was registered, so every later change finds the waker.
            if is_there() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Wakes the session, on behalf of the keeper, after an event for which [`Wakers::wait_for_news`] waits.
    pub fn wake(&self) {
        if let Some(waker) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).for_each(Waker::wake);
    }

    /// Wakes the keeper, on behalf of the session.
    pub fn wake_keeper(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.wake();
        }
    }
}
