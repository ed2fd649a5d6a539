//! Clients that die: all tasks of a session stop together after a number of steps. Also futures that are cut off or
//! held up, to steer a schedule.
//!
//! A dropped future executes no more verbs, as if the client were fenced at all memory nodes. So once all futures of a
//! client are dropped ([`ClientLife::ended`]), the client counts as fenced.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The lifetime of a client, which ends when the client crashes.
pub struct ClientLife<'c> {
    /// Remaining steps until the crash; `None`: the client does not crash.
    steps: Cell<Option<u64>>,
    /// Returns whether a step that is taken now shortens the lifetime.
    counts: Box<dyn Fn() -> bool + 'c>,
    /// Number of the client's tasks whose futures exist.
    running: Cell<usize>,
    crashed: Cell<bool>,
}

impl<'c> ClientLife<'c> {
    /// Makes the life of a client that crashes before the step that follows `steps` counted steps. A step is counted if
    /// `counts` returns true at it. With `None`, the client never crashes.
    pub fn new(steps: Option<u64>, counts: impl Fn() -> bool + 'c) -> ClientLife<'c> {
        ClientLife {
            steps: Cell::new(steps),
            counts: Box::new(counts),
            running: Cell::new(0),
            crashed: Cell::new(false),
        }
    }

    /// Wraps a task of this client. The wrapper ends when `task` does, or drops `task` when the client crashes.
    pub fn task<'t>(&'t self, task: impl Future<Output = ()> + 't) -> impl Future<Output = ()> {
        self.running.set(self.running.get() + 1);
        let mut task: Option<Pin<Box<dyn Future<Output = ()> + 't>>> = Some(Box::pin(task));
        poll_fn(move |context| {
            if !self.step() {
                task = None;
            }
            let ended = task.as_mut().is_none_or(|t| t.as_mut().poll(context).is_ready());
            if ended {
                task = None;
                self.running.set(self.running.get() - 1);
                return Poll::Ready(());
            }
            Poll::Pending
        })
    }

    /// Takes a step. Returns whether the client is still alive.
    fn step(&self) -> bool {
        match self.steps.get() {
            Some(left) if !self.crashed.get() && (self.counts)() => {
                self.steps.set(Some(left.saturating_sub(1)));
                self.crashed.set(left == 0);
            }
            _ => {}
        }
        !self.crashed.get()
    }

    /// Returns whether the client has crashed. A client crashes only while one of its tasks runs.
    pub fn crashed(&self) -> bool {
        self.crashed.get()
    }

    /// Waits until no future of this client exists.
    pub async fn ended(&self) {
        poll_fn(|context| match self.running.get() {
            0 => Poll::Ready(()),
            _ => again(context),
        })
        .await;
    }
}

/// Lets other tasks run for some steps.
pub async fn idle(steps: usize) {
    let mut left = steps;
    poll_fn(|context| match left {
        0 => Poll::Ready(()),
        _ => {
            left -= 1;
            again(context)
        }
    })
    .await;
}

fn again(context: &Context<'_>) -> Poll<()> {
    context.waker().wake_by_ref();
    Poll::Pending
}

/// Runs a future for at most this many steps. Drops the future and returns `None` if it has not ended by then.
pub async fn cut_off<T>(steps: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = steps;
    poll_fn(|context| match (left, future.as_mut().poll(context)) {
        (_, Poll::Ready(result)) => Poll::Ready(Some(result)),
        (0, Poll::Pending) => Poll::Ready(None),
        (_, Poll::Pending) => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// A gate that stops a future after some steps, until the gate is opened.
#[derive(Default)]
pub struct StepGate {
    held: Cell<bool>,
    open: Cell<bool>,
}

impl StepGate {
    /// Runs a future, which stops after `steps` steps until the gate is opened.
    pub async fn hold<T>(&self, steps: u64, future: impl Future<Output = T>) -> T {
        let mut future = Box::pin(future);
        let mut left = steps;
        let result = poll_fn(|context| {
            if left > 0 || self.open.get() {
                left = left.saturating_sub(1);
                return future.as_mut().poll(context);
            }
            self.held.set(true);
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        self.held.set(true);
        result
    }

    /// Waits until the future has stopped or ended.
    pub async fn held(&self) {
        poll_fn(|context| if self.held.get() { Poll::Ready(()) } else { again(context) }).await;
    }

    /// Waits until the future has stopped or ended, for at most this many steps.
    pub async fn held_within(&self, steps: usize) {
        for _ in 0..steps {
            if self.held.get() {
                return;
            }
            idle(1).await;
        }
    }

    /// Opens the gate, so that the future continues.
    pub fn open(&self) {
        self.open.set(true);
    }

    /// Returns whether the gate is open.
    pub fn is_open(&self) -> bool {
        self.open.get()
    }
}
