//! Wakeups between the tasks of a session.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes all tasks that wait.
#[derive(Default)]
pub(crate) struct Signal(RefCell<Vec<Waker>>);

impl Signal {
    /// Waits while `holds` returns true. A task that makes it return false must call [`notify`](Signal::notify).
    pub async fn wait_while(&self, holds: impl Fn() -> bool) {
        poll_fn(|context| {
            if !holds() {
                return Poll::Ready(());
            }
            self.0.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    pub fn notify(&self) {
        self.0.take().into_iter().for_each(Waker::wake);
    }
}
