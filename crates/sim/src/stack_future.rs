//! Futures on stacks of their own. A function that is not `async` can leave such a stack and continue there later.
//!
//! `search_now` is such a function: other processes have to run between its two verbs
//! ([`immediate`](crate::immediate)), but it has no await point there.
//!
//! A [`StackFuture`] is an ordinary future for its caller. When the code on its stack calls [`interrupt`], the poll
//! ends; the next poll continues behind that call. If a [`StackFuture`] is dropped half-way, its stack is unwound, so
//! that all values of a dead client are dropped.
//!
//! The `generator` crate switches the stacks, as it does for Loom's threads.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread;

use generator::{Generator, Gn, co_yield_with};

/// Stack size in words of 8 bytes. Only the used part of a stack takes memory.
const STACK_WORDS: usize = 1 << 17;

/// Reasons why a stack is left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StackExit {
    /// The future on the stack waits for its waker.
    Waiting,
    /// Other processes run before the code on the stack continues.
    Interrupted,
    Done,
}

/// The panic payload that unwinds the stack of a dropped future.
struct KillPayload;

/// State shared by a stack and its caller.
struct StackState {
    waker: RefCell<Waker>,
    is_killed: Cell<bool>,
    batches: Cell<u64>,
}

/// The code that a new stack executes.
type StackJob = Box<dyn FnOnce()>;

thread_local! {
    /// The code of the stack that is about to be entered for the first time.
    static JOB: RefCell<Option<StackJob>> = const { RefCell::new(None) };
    /// The state of the running stack.
    static RUNNING: RefCell<Option<Rc<StackState>>> = const { RefCell::new(None) };
}

/// A future that is polled on a stack of its own.
pub(crate) struct StackFuture<T> {
    stack: Generator<'static, (), StackExit>,
    job: Option<StackJob>,
    is_done: bool,
    shared: Rc<StackState>,
    result: Rc<Cell<Option<thread::Result<T>>>>,
}

impl<T: 'static> StackFuture<T> {
    pub fn new(future: impl Future<Output = T> + 'static) -> StackFuture<T> {
        let shared = Rc::new(StackState {
            waker: RefCell::new(Waker::noop().clone()),
            is_killed: Cell::new(false),
            batches: Cell::new(0),
        });
        let result = Rc::new(Cell::new(None));
        let of_job = shared.clone();
        let result_of_job = result.clone();
        let job = move || {
            let run = AssertUnwindSafe(|| drive(future, &of_job));
            result_of_job.set(Some(catch_unwind(run)));
        };
        // The job comes through `JOB`, because the generator's closure must be `Send`, which the job is not. The job
        // never leaves its thread.
        let mut stack = Gn::new_opt(STACK_WORDS, || {
            let job = JOB.take().expect("it was put there");
            job();
            StackExit::Done
        });
        // Any pointer but null makes the generator a coroutine that can be left from any function.
        stack.set_local_data(NonNull::dangling().as_ptr());
        StackFuture { stack, job: Some(Box::new(job)), is_done: false, shared, result }
    }

    /// Returns the number of batches executed on the stack.
    pub fn batches(&self) -> u64 {
        self.shared.batches.get()
    }
}

impl<T> StackFuture<T> {
    /// Runs the code on the stack until it leaves the stack, and returns why it does.
    fn enter(&mut self) -> StackExit {
        if let Some(job) = self.job.take() {
            JOB.set(Some(job));
        }
        let outer = RUNNING.replace(Some(self.shared.clone()));
        let left = self.stack.resume().expect("it has not ended");
        RUNNING.set(outer);
        self.is_done = left == StackExit::Done;
        left
    }
}

fn drive<T>(future: impl Future<Output = T>, shared: &StackState) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        let waker = shared.waker.borrow().clone();
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => leave(StackExit::Waiting),
        }
    }
}

fn leave(why: StackExit) {
    co_yield_with(why);
    let is_killed =
        RUNNING.with_borrow(|running| running.as_ref().is_some_and(|r| r.is_killed.get()));
    if is_killed {
        let killed: Box<dyn Any + Send> = Box::new(KillPayload);
        resume_unwind(killed);
    }
}

/// Counts a batch. Returns whether [`interrupt`] is allowed during the batch. It is allowed only on the stack of a
/// [`StackFuture`].
pub(crate) fn begin_batch() -> bool {
    RUNNING.with_borrow(|running| {
        let Some(running) = running else { return false };
        running.batches.set(running.batches.get() + 1);
        true
    })
}

/// Leaves the stack of the running [`StackFuture`]. Returns when the future is polled again.
pub(crate) fn interrupt() {
    leave(StackExit::Interrupted);
}

impl<T: 'static> Future for StackFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.shared.waker.borrow_mut().clone_from(context.waker());
        match self.enter() {
            StackExit::Waiting => Poll::Pending,
            StackExit::Interrupted => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            StackExit::Done => match self.result.take().expect("it has ended") {
                Ok(value) => Poll::Ready(value),
                Err(panic) => resume_unwind(panic),
            },
        }
    }
}

impl<T> Drop for StackFuture<T> {
    fn drop(&mut self) {
        if self.job.is_some() || self.is_done {
            return;
        }
        self.shared.is_killed.set(true);
        let left = self.enter();
        debug_assert!(left == StackExit::Done, "nothing on it goes on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dropped(Rc<Cell<u32>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    fn poll<T: 'static>(task: &mut StackFuture<T>) -> Poll<T> {
        Pin::new(task).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_stack_is_left_from_within_a_function() {
        let steps = Rc::new(Cell::new(0));
        let of_task = steps.clone();
        let count = move || {
            for _ in 0..3 {
                of_task.set(of_task.get() + 1);
                assert!(begin_batch());
                interrupt();
            }
        };
        let mut task = StackFuture::new(async move {
            count();
            7
        });
        let polls: Vec<bool> = (0..3).map(|_| poll(&mut task).is_pending()).collect();
        assert_eq!((polls, steps.get(), task.batches()), (vec![true; 3], 3, 3));
        assert_eq!(poll(&mut task), Poll::Ready(7));
        assert!(!begin_batch(), "here nothing can be left");
    }

    #[test]
    fn two_stacks_take_turns() {
        let said = Rc::new(RefCell::new(String::new()));
        let task = |name| {
            let said = said.clone();
            StackFuture::new(async move {
                for _ in 0..3 {
                    said.borrow_mut().push(name);
                    interrupt();
                }
            })
        };
        let mut a = task('a');
        let mut b = task('b');
        for _ in 0..4 {
            let _ = (poll(&mut a), poll(&mut b));
        }
        assert_eq!(*said.borrow(), "ababab");
    }

    #[test]
    fn what_is_dropped_half_way_is_unwound() {
        let drops = Rc::new(Cell::new(0));
        let task = || {
            let local = Dropped(drops.clone());
            StackFuture::new(async move {
                let _local = local;
                interrupt();
                unreachable!("it is not polled again");
            })
        };
        drop(task());
        assert_eq!(drops.get(), 1, "one that never began");
        let mut begun = task();
        assert!(poll(&mut begun).is_pending());
        drop(begun);
        assert_eq!(drops.get(), 2);
        // A failing test drops a future in this way, during its own unwinding.
        let unwinding = catch_unwind(AssertUnwindSafe(|| {
            let mut begun = task();
            assert!(poll(&mut begun).is_pending());
            resume_unwind(Box::new(()));
        }));
        assert!(unwinding.is_err());
        assert_eq!(drops.get(), 3);
    }

    #[test]
    fn a_panic_comes_out_where_it_is_polled() {
        let mut task = StackFuture::new(async {
            interrupt();
            resume_unwind(Box::new("words"));
        });
        assert!(poll(&mut task).is_pending());
        let panic = catch_unwind(AssertUnwindSafe(|| poll(&mut task))).expect_err("it panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"words"));
    }
}
