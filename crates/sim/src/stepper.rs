//! A schedule without time, which polls tasks in an order drawn from the seed.
//!
//! Every task is always ready, and each poll lets it take one small step. There are no wakers and there is no time:
//! every interleaving of steps follows from some seed, and tests can steer a history by counting steps. The cluster
//! must be [stepwise](crate::NetworkOptions::stepwise).
//!
//! Some conflicts need one client to do a lot while another client does nothing. These conflicts are very rare if every
//! task is equally likely to take the next step. So most runs have a *favourite*, a task that takes most of the steps
//! until another task replaces it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::rng::Rng;

type StepperTask<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

/// A schedule that runs tasks one step at a time.
pub struct Stepper<'t> {
    rng: Rng,
    /// Each task with its number, which is the number of tasks spawned before it.
    tasks: Vec<(usize, StepperTask<'t>)>,
    spawned: usize,
    favourite: usize,
    /// Mean number of steps for which a task stays the favourite; 0: there is no favourite.
    favourite_steps: usize,
}

impl<'t> Stepper<'t> {
    /// Makes a stepper without tasks.
    pub fn new(rng: &Rng) -> Stepper<'t> {
        Stepper {
            rng: rng.clone(),
            tasks: Vec::new(),
            spawned: 0,
            favourite: 0,
            favourite_steps: rng.pick(&[0, 12, 60]),
        }
    }

    /// Adds a task.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + 't) {
        self.tasks.push((self.spawned, Box::pin(task)));
        self.spawned += 1;
    }

    /// Runs until every task has ended. Calls `check` after every step. Returns the number of steps.
    ///
    /// # Panics
    /// If tasks still run after `max_steps` steps.
    pub fn run(mut self, max_steps: u64, mut check: impl FnMut()) -> u64 {
        let mut steps = 0;
        while !self.tasks.is_empty() {
            assert!(steps < max_steps, "{} tasks still run", self.tasks.len());
            steps += 1;
            self.step();
            check();
        }
        steps
    }

    /// Runs for at most `steps` steps, and calls `check` after each. Then drops the remaining tasks, as if all their
    /// clients crashed. Returns whether any task remained.
    pub fn run_and_crash(mut self, steps: u64, mut check: impl FnMut()) -> bool {
        for _ in 0..steps {
            if self.tasks.is_empty() {
                return false;
            }
            self.step();
            check();
        }
        !self.tasks.is_empty()
    }

    fn step(&mut self) {
        let i = self.choose();
        let mut context = Context::from_waker(Waker::noop());
        if self.tasks[i].1.as_mut().poll(&mut context) == Poll::Ready(()) {
            drop(self.tasks.swap_remove(i));
        }
    }

    fn choose(&mut self) -> usize {
        let any = self.rng.below(self.tasks.len());
        if self.favourite_steps == 0 || self.rng.one_in(16) {
            return any;
        }
        if self.rng.one_in(self.favourite_steps) {
            self.favourite = self.rng.below(self.spawned);
        }
        self.tasks.iter().position(|(name, _)| *name == self.favourite).unwrap_or(any)
    }
}
