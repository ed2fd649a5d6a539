//! The schedule: tasks polled in an order drawn from the seed.
//!
//! Every task is always ready; a poll lets it take one small step. That is the whole trick: no
//! wakers, no time, and every interleaving of steps has a seed.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The one source of randomness of a run.
#[derive(Clone)]
pub struct Rng(Rc<RefCell<StdRng>>);

impl Rng {
    /// Starts a run.
    pub fn new(seed: u64) -> Rng {
        Rng(Rc::new(RefCell::new(StdRng::seed_from_u64(seed))))
    }

    /// A number below `n`, which is at least 1.
    pub fn below(&self, n: usize) -> usize {
        self.0.borrow_mut().random_range(0..n)
    }
}

type Task<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

/// Runs tasks, one step at a time.
pub struct Executor<'t> {
    rng: Rng,
    tasks: Vec<Task<'t>>,
}

impl<'t> Executor<'t> {
    /// An executor without tasks.
    pub fn new(rng: &Rng) -> Executor<'t> {
        Executor { rng: rng.clone(), tasks: Vec::new() }
    }

    /// Adds a task.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + 't) {
        self.tasks.push(Box::pin(task));
    }

    /// Runs until every task has ended, calling `check` after every step. Returns the number of
    /// steps.
    ///
    /// # Panics
    /// After `max_steps` steps: the tasks are stuck or starve each other.
    pub fn run(mut self, max_steps: u64, mut check: impl FnMut()) -> u64 {
        let mut context = Context::from_waker(Waker::noop());
        let mut steps = 0;
        while !self.tasks.is_empty() {
            assert!(steps < max_steps, "{} tasks still run", self.tasks.len());
            steps += 1;
            let i = self.rng.below(self.tasks.len());
            if self.tasks[i].as_mut().poll(&mut context) == Poll::Ready(()) {
                drop(self.tasks.swap_remove(i));
            }
            check();
        }
        steps
    }

    /// Runs `steps` steps, then drops a task: its client crashes there.
    pub fn crash_one_after(&mut self, steps: u64) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..steps {
            if self.tasks.is_empty() {
                return;
            }
            let i = self.rng.below(self.tasks.len());
            if self.tasks[i].as_mut().poll(&mut context) == Poll::Ready(()) {
                drop(self.tasks.swap_remove(i));
            }
        }
        if !self.tasks.is_empty() {
            let i = self.rng.below(self.tasks.len());
            drop(self.tasks.swap_remove(i));
        }
    }
}
