//! The executor of a session's futures on the calling thread.
//!
//! [`Reactor::block_on`] polls a future. When the future has to wait, the reactor lets the fabric make progress: send
//! what was submitted, receive, and wake futures. Over shared memory verbs never wait, so most operations end in their
//! first poll, and `block_on` costs no more than a function call. The reactor looks at its timers (a heap), at the
//! clock, and for newer views ([`Attachments::follow`]) only when the future has to wait.
//!
//! In a forked child all waits end at once, because the threads and memory nodes that would end them belong to the
//! parent.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fusee_fabric::fork::OriginProcess;
use tokio::task::coop::unconstrained;

use crate::attachments::Attachments;

/// The fabric of a session, and its timers.
pub(crate) struct Reactor {
    attachments: Rc<Attachments>,
    waker: Waker,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    next_timer: Cell<u64>,
    origin: OriginProcess,
}

struct Timer {
    at: Instant,
    /// The serial number of the timer, which orders timers of the same instant.
    number: u64,
    waker: Waker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.number == other.number
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Reactor {
    pub fn new(attachments: Rc<Attachments>) -> Reactor {
        let waker = attachments.fabric().waker();
        let timers = RefCell::default();
        let next_timer = Cell::new(0);
        Reactor { attachments, waker, timers, next_timer, origin: OriginProcess::here() }
    }

    /// Runs the future to its end.
    ///
    /// The calling thread possibly runs a task of tokio. tokio gives each task a budget; once the budget is used up,
    /// all of tokio's futures report that they are not ready, until the task yields. `block_on` does not yield before
    /// its future is ready, but that future can wait for a control message, which arrives by way of tokio. Without
    /// [`unconstrained`] it could wait for ever.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(unconstrained(future));
        let mut context = Context::from_waker(&self.waker);
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            // The future possibly waits for a node that the newest view lacks. A view that arrives after this line
            // wakes the waker, which ends the wait below.
            self.attachments.follow();
            let wait = self.fire_timers();
            self.attachments.fabric().turn(wait);
            self.fire_timers();
        }
    }

    /// Wakes the timers whose time has come, and returns the time until the next timer.
    fn fire_timers(&self) -> Option<Duration> {
        let mut timers = self.timers.borrow_mut();
        if !self.origin.is_here() {
            timers.drain().for_each(|Reverse(timer)| timer.waker.wake());
            return Some(Duration::ZERO);
        }
        timers.peek()?;
        let now = Instant::now();
        while let Some(Reverse(timer)) = timers.peek() {
            if timer.at > now {
                return Some(timer.at - now);
            }
            timers.pop().expect("just seen").0.waker.wake();
        }
        None
    }

    /// Waits for `time`, while other futures run.
    pub async fn sleep(&self, time: Duration) {
        let at = Instant::now() + time;
        let mut known: Option<Waker> = None;
        poll_fn(|context| {
            if Instant::now() >= at || !self.origin.is_here() {
                return Poll::Ready(());
            }
            // A future that also waits for other events can be polled many times before the time is over. One timer
            // suffices for all these polls.
            if known.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                return Poll::Pending;
            }
            known = Some(context.waker().clone());
            let number = self.next_timer.get();
            self.next_timer.set(number + 1);
            let waker = context.waker().clone();
            self.timers.borrow_mut().push(Reverse(Timer { at, number, waker }));
            Poll::Pending
        })
        .await;
    }

    /// Lets the session's other operations, and other threads, run once before the calling operation goes on.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|context| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            context.waker().wake_by_ref();
            std::thread::yield_now();
            Poll::Pending
        })
        .await;
    }
}
