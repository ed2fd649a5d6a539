//! Execution of tasks in virtual time.
//!
//! Every task belongs to a process. After a wakeup the task takes a step a little later, at the pace of its process,
//! unless the process has been stopped or has crashed. The tasks of a crashed process are dropped at their current
//! await points.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::engine::{ProcessId, Sim, SimEvent};

type TaskFuture<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

struct SimTask<'t> {
    process: ProcessId,
    waker: Waker,
    future: TaskFuture<'t>,
    /// Whether the task's next step is scheduled.
    scheduled: bool,
    /// Whether the run ends without waiting for this task.
    background: bool,
}

/// An executor that runs tasks until all foreground tasks have ended.
pub struct Executor<'t> {
    sim: Sim,
    /// Tasks that have not ended, by their numbers.
    tasks: BTreeMap<usize, SimTask<'t>>,
    /// The number of the next task; `None` before the first task.
    next: Option<usize>,
    running: usize,
    woken: Vec<usize>,
    /// Number of crashes whose processes' tasks have been dropped.
    reaped: u64,
}

impl<'t> Executor<'t> {
    /// Makes an executor without tasks. A run has only one executor at a time.
    pub fn new(sim: &Sim) -> Executor<'t> {
        Executor {
            sim: sim.clone(),
            tasks: BTreeMap::new(),
            next: None,
            running: 0,
            woken: Vec::new(),
            reaped: sim.crashes(),
        }
    }

    /// Adds a foreground task of a process.
    pub fn spawn(&mut self, process: ProcessId, task: impl Future<Output = ()> + 't) {
        self.add(process, Box::pin(task), false);
    }

    /// Adds a background task of a process: the run does not wait for its end.
    pub fn spawn_background(&mut self, process: ProcessId, task: impl Future<Output = ()> + 't) {
        self.add(process, Box::pin(task), true);
    }

    fn add(&mut self, process: ProcessId, future: TaskFuture<'t>, background: bool) {
        let (number, waker) = self.sim.new_task();
        let next = self.next.replace(number + 1);
        assert!(next.is_none_or(|next| next == number), "one executor at a time");
        self.running += usize::from(!background);
        self.tasks.insert(number, SimTask { process, waker, future, scheduled: false, background });
    }

    /// Runs until every foreground task has ended or crashed. Calls `check` after every event. Returns the number of
    /// events.
    ///
    /// # Panics
    /// If tasks still run after `limit` events, or if all of them wait for ever.
    pub fn run(&mut self, limit: u64, mut check: impl FnMut()) -> u64 {
        let mut events = 0;
        while self.running > 0 {
            assert!(events < limit, "{} tasks still run after {limit} events", self.running);
            if !self.step() {
                panic!("{} tasks wait for ever", self.running);
            }
            events += 1;
            check();
        }
        events
    }

    /// Runs until `done` returns true, or until all foreground tasks have ended. Calls `done` before every event.
    /// Returns whether `done` returned true. For tests that steer a history by hand.
    ///
    /// # Panics
    /// If tasks still run after `limit` events, or if all of them wait for ever.
    pub fn run_until(&mut self, limit: u64, mut done: impl FnMut() -> bool) -> bool {
        for _ in 0..limit {
            if done() {
                return true;
            }
            if self.running == 0 {
                return false;
            }
            assert!(self.step(), "{} tasks wait for ever", self.running);
        }
        panic!("{} tasks still run after {limit} events", self.running);
    }

    /// Executes one event, such as a task's step. Returns whether there was an event.
    pub fn step(&mut self) -> bool {
        for (process, task) in self.sim.take_born() {
            self.add(process, task, true);
        }
        self.schedule_woken();
        let Some(event) = self.sim.next_event() else { return false };
        match event {
            SimEvent::Poll(task) => self.poll(task),
            event => event.happen(),
        }
        if self.sim.crashes() != self.reaped {
            self.reap();
        }
        true
    }

    /// Returns whether any foreground task still runs.
    pub fn is_running(&self) -> bool {
        self.running > 0
    }

    fn schedule_woken(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        self.sim.take_woken(&mut woken);
        for number in woken.drain(..) {
            // Wakers of ended tasks and of earlier executors are ignored.
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            if !std::mem::replace(&mut task.scheduled, true) {
                let process = task.process;
                let delay = self.sim.pace(process);
                self.sim.schedule(delay, SimEvent::Poll(number));
            }
        }
        self.woken = woken;
    }

    fn poll(&mut self, number: usize) {
        let Some(task) = self.tasks.get(&number) else { return };
        let process = task.process;
        if self.sim.reach(process, SimEvent::Poll(number)).is_none()
            || self.sim.crash_is_due(process)
        {
            return;
        }
        self.sim.note(&[4, number as u64], || format!("step of task {number}"));
        let task = self.tasks.get_mut(&number).expect("just seen");
        task.scheduled = false;
        let waker = task.waker.clone();
        let done = task.future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(());
        if done {
            self.end(number);
        }
    }

    fn end(&mut self, number: usize) {
        if let Some(task) = self.tasks.remove(&number) {
            self.running -= usize::from(!task.background);
        }
    }

    /// Drops the tasks of crashed processes.
    fn reap(&mut self) {
        self.reaped = self.sim.crashes();
        let crashed = self.tasks.iter().filter(|(_, task)| self.sim.is_crashed(task.process));
        let crashed: Vec<usize> = crashed.map(|(number, _)| *number).collect();
        for number in crashed {
            self.end(number);
        }
    }
}
