//! Virtual time, and everything that is going to happen in it.
//!
//! A run is one thread that takes the earliest event, sets the clock to its time and lets it
//! happen: a verb executes, a message arrives, a timer wakes a task. Time is in nanoseconds and
//! passes only between events. Events at one time happen in random order.
//!
//! *Processes* are what can be stopped, resumed and crashed: each client process, each memory
//! node, the master. A stopped process takes no step; what reaches it waits. A crashed one never
//! takes another. Verbs that a client has posted are no longer in its hands: they execute all the
//! same, unless the memory node has fenced the client.
//!
//! Each process has a pace of its own that changes now and then: between being woken and taking
//! its next step a process loses between a few nanoseconds and many phases' worth of time, as one
//! does that is preempted. Conflicts that need one client to do much while another does nothing
//! are common that way.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::MnId;

use crate::counts::Counts;
use crate::fabric::Flight;
use crate::ride::{Leg, Ride};
use crate::rng::Rng;
use crate::trace::Trace;

/// Virtual nanoseconds.
pub type Nanos = u64;

/// So far clocks are off: two of them differ by less than a tenth, which leases allow for.
const DRIFT_PERCENT: u64 = 4;

/// Names a process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub usize);

/// What is going to happen.
pub(crate) enum Event {
    /// A task of the executor takes a step.
    Poll(usize),
    /// A timer ends.
    Wake(Waker),
    /// A lane of a batch takes a step, if it has not been given another turn since.
    Lane { flight: Rc<Flight>, lane: usize, turn: u32 },
    /// What a batch has for a node comes to the end of a leg, on a testbed.
    Ride { ride: Rc<Ride>, node: MnId, leg: Leg },
    /// A message arrives, or whatever else.
    Call(Box<dyn FnOnce()>),
}

struct Scheduled {
    at: Nanos,
    /// Random: the order of what happens at one time.
    tie: u32,
    /// Makes the order total.
    number: u64,
    event: Event,
}

impl Scheduled {
    fn key(&self) -> (Nanos, u32, u64) {
        (self.at, self.tie, self.number)
    }
}
impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// How long things take at the moment: a factor of two to the power of `shift`, for the next
/// `left` times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    shift: u8,
    left: u16,
}

impl Pace {
    /// How long the next step takes, given what it takes at least about.
    pub(crate) fn draw(&mut self, rng: &Rng, base: Nanos) -> Nanos {
        if self.left == 0 {
            self.shift = rng.pick(&[0, 0, 0, 1, 2, 4, 6]);
            self.left = 1 + rng.below(40) as u16;
        }
        self.left -= 1;
        base / 2 + rng.below_u64((base << self.shift).max(1))
    }
}

struct Process {
    name: String,
    pace: Pace,
    stopped: bool,
    /// Since when it is, and for how long it was before.
    stopped_at: Option<Nanos>,
    stopped_ns: Nanos,
    crashed: bool,
    /// What reached it while it was stopped.
    waiting: Vec<Event>,
    /// Steps until it crashes.
    crash_in: Option<u32>,
}

/// A run: its clock, its chance, its processes. Clones share it.
#[derive(Clone)]
pub struct Sim(Rc<Inner>);

/// A task of a process.
pub(crate) type Spawned = Pin<Box<dyn Future<Output = ()>>>;

/// What is called after a crash.
type Hear = Rc<dyn Fn(ProcessId)>;

struct Inner {
    now: Cell<Nanos>,
    rng: Rng,
    /// See [`Sim::steady`].
    is_steady: bool,
    queue: RefCell<BinaryHeap<Reverse<Scheduled>>>,
    next_number: Cell<u64>,
    next_task: Cell<usize>,
    processes: RefCell<Vec<Process>>,
    crashes: Cell<u64>,
    /// Tasks that were woken since the last look.
    woken: Arc<Mutex<Vec<usize>>>,
    /// Tasks that processes start by themselves, for the executor to take.
    born: RefCell<Vec<(ProcessId, Spawned)>>,
    /// Who hears of crashes.
    on_crash: RefCell<Option<Hear>>,
    counts: Counts,
    trace: RefCell<Trace>,
}

/// Mean time between being woken and taking a step, when nothing is in the way.
const STEP_NS: Nanos = 100;

impl Sim {
    /// Starts a run. Its schedule comes from the seed.
    pub fn new(seed: u64) -> Sim {
        Sim::begin(seed, false)
    }

    /// Starts a run in which nothing is left to chance: steps take no time but what a
    /// [testbed](crate::Testbed) says, events at one time happen in the order in which they were caused, clocks are
    /// right, and there is no digest. For what is to be timed.
    pub fn steady() -> Sim {
        Sim::begin(0, true)
    }

    fn begin(seed: u64, is_steady: bool) -> Sim {
        Sim(Rc::new(Inner {
            now: Cell::new(0),
            rng: Rng::named(seed, "schedule"),
            is_steady,
            queue: RefCell::default(),
            next_number: Cell::new(0),
            next_task: Cell::new(0),
            processes: RefCell::default(),
            crashes: Cell::new(0),
            woken: Arc::default(),
            born: RefCell::default(),
            on_crash: RefCell::default(),
            counts: Counts::default(),
            trace: RefCell::default(),
        }))
    }

    /// What decides the schedule.
    pub fn rng(&self) -> &Rng {
        &self.0.rng
    }

    /// Virtual nanoseconds since the start.
    pub fn now(&self) -> Nanos {
        self.0.now.get()
    }

    /// The time by the clock of a process. Clocks go faster or slower than they should, by up to
    /// 4 %, each always in the same way.
    pub fn clock_of(&self, process: ProcessId) -> Duration {
        if removed(Mutant::ClocksStandStill) {
            return Duration::from_nanos(self.now() - self.stopped_for(process));
        }
        if self.0.is_steady {
            return Duration::from_nanos(self.now());
        }
        let steps = 2 * DRIFT_PERCENT + 1;
        let percent = 100 - DRIFT_PERCENT + (process.0 as u64).wrapping_mul(7) % steps;
        Duration::from_nanos(self.now() / 100 * percent)
    }

    /// How long a process has been stopped so far.
    fn stopped_for(&self, process: ProcessId) -> Nanos {
        let process = &self.0.processes.borrow()[process.0];
        process.stopped_ns + process.stopped_at.map_or(0, |at| self.now() - at)
    }

    /// What has happened so far, counted.
    pub fn counts(&self) -> &Counts {
        &self.0.counts
    }

    /// From now on keeps the trace as text, not only its digest.
    pub fn record_trace(&self) {
        self.0.trace.borrow_mut().record();
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        self.0.trace.borrow().clone()
    }

    /// Notes that something happened. Two runs that note the same are the same run.
    pub(crate) fn note(&self, words: &[u64], text: impl FnOnce() -> String) {
        if !self.0.is_steady {
            self.0.trace.borrow_mut().note(self.now(), words, text);
        }
    }

    pub(crate) fn schedule(&self, delay: Nanos, event: Event) {
        let number = self.0.next_number.get();
        self.0.next_number.set(number + 1);
        let tie = if self.0.is_steady { 0 } else { self.0.rng.below(1 << 16) as u32 };
        let at = self.now() + delay;
        self.0.queue.borrow_mut().push(Reverse(Scheduled { at, tie, number, event }));
    }

    /// Lets something happen after some time.
    pub fn after(&self, delay: Nanos, what: impl FnOnce() + 'static) {
        self.schedule(delay, Event::Call(Box::new(what)));
    }

    /// The next event; the clock is set to its time.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let Reverse(next) = self.0.queue.borrow_mut().pop()?;
        self.0.now.set(next.at);
        Some(next.event)
    }

    /// Lets events happen, none of which is a task's step, until `done`.
    ///
    /// # Panics
    /// If that does not come within `limit` events.
    pub fn run_until(&self, limit: u64, done: impl Fn() -> bool) {
        for _ in 0..limit {
            if done() {
                return;
            }
            match self.next_event().expect("something is going to happen") {
                Event::Poll(task) => unreachable!("no executor runs task {task}"),
                event => event.happen(),
            }
        }
        panic!("{limit} events were not enough");
    }

    /// Nothing is going to happen any more: neither what is to come nor what waits for a stopped
    /// process.
    pub(crate) fn forget_events(&self) {
        self.0.on_crash.take();
        drop(self.take_born());
        let events = std::mem::take(&mut *self.0.queue.borrow_mut());
        let mut processes = self.0.processes.borrow_mut();
        let waiting: Vec<_> =
            processes.iter_mut().map(|p| std::mem::take(&mut p.waiting)).collect();
        drop(processes);
        drop((events, waiting));
    }

    /// Waits for some time. Stopped processes wake up late.
    pub async fn sleep(&self, time: Nanos) {
        let end = self.now() + time;
        let mut set = false;
        poll_fn(|context| {
            if self.now() >= end {
                return Poll::Ready(());
            }
            if !set {
                set = true;
                self.schedule(end - self.now(), Event::Wake(context.waker().clone()));
            }
            Poll::Pending
        })
        .await;
    }

    /// Takes fewer than `steps` steps without doing anything.
    pub async fn idle(&self, steps: usize) {
        let mut left = self.rng().below(steps);
        poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Starts a task of a process, from within the run. Nobody waits for its end.
    pub(crate) fn spawn(&self, process: ProcessId, task: impl Future<Output = ()> + 'static) {
        self.0.born.borrow_mut().push((process, Box::pin(task)));
    }

    pub(crate) fn take_born(&self) -> Vec<(ProcessId, Spawned)> {
        std::mem::take(&mut self.0.born.borrow_mut())
    }

    /// From now on this is called after every crash.
    pub(crate) fn on_crash(&self, hear: impl Fn(ProcessId) + 'static) {
        *self.0.on_crash.borrow_mut() = Some(Rc::new(hear));
    }

    pub(crate) fn new_task(&self) -> (usize, Waker) {
        let task = self.0.next_task.get();
        self.0.next_task.set(task + 1);
        let woken = self.0.woken.clone();
        woken.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        (task, Waker::from(Arc::new(TaskWaker { task, woken })))
    }

    pub(crate) fn take_woken(&self, into: &mut Vec<usize>) {
        into.append(&mut self.0.woken.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Event {
    /// Lets everything but a task's step happen.
    pub(crate) fn happen(self) {
        match self {
            Event::Poll(_) => unreachable!("the executor's"),
            Event::Wake(waker) => waker.wake(),
            Event::Lane { flight, lane, turn } => flight.step(lane, turn),
            Event::Ride { ride, node, leg } => ride.step(node, leg),
            Event::Call(call) => call(),
        }
    }
}

struct TaskWaker {
    task: usize,
    woken: Arc<Mutex<Vec<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<TaskWaker>) {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.task);
    }
}

/// Processes.
impl Sim {
    /// A new process.
    pub fn process(&self, name: impl Into<String>) -> ProcessId {
        let mut processes = self.0.processes.borrow_mut();
        processes.push(Process {
            name: name.into(),
            pace: Pace::default(),
            stopped: false,
            stopped_at: None,
            stopped_ns: 0,
            crashed: false,
            waiting: Vec::new(),
            crash_in: None,
        });
        ProcessId(processes.len() - 1)
    }

    /// How it is called in the trace.
    pub fn process_name(&self, process: ProcessId) -> String {
        self.0.processes.borrow()[process.0].name.clone()
    }

    /// Stops it, as SIGSTOP does.
    pub fn stop(&self, process: ProcessId) {
        {
            let stopped = &mut self.0.processes.borrow_mut()[process.0];
            stopped.stopped = true;
            stopped.stopped_at.get_or_insert(self.now());
        }
        self.note(&[1, process.0 as u64], || format!("stop {}", self.process_name(process)));
    }

    /// Lets a stopped process go on.
    pub fn resume(&self, process: ProcessId) {
        let waiting = {
            let mut processes = self.0.processes.borrow_mut();
            let process = &mut processes[process.0];
            process.stopped = false;
            process.stopped_ns += process.stopped_at.take().map_or(0, |at| self.now() - at);
            std::mem::take(&mut process.waiting)
        };
        self.note(&[2, process.0 as u64], || format!("resume {}", self.process_name(process)));
        for event in waiting {
            let delay = self.pace(process);
            self.schedule(delay, event);
        }
    }

    /// Crashes it. The executor drops its tasks before anything else happens.
    pub fn crash(&self, process: ProcessId) {
        let mut processes = self.0.processes.borrow_mut();
        let dead = &mut processes[process.0];
        dead.crashed = true;
        let lost = std::mem::take(&mut dead.waiting);
        drop(processes);
        drop(lost);
        self.0.crashes.set(self.0.crashes.get() + 1);
        self.note(&[3, process.0 as u64], || format!("crash {}", self.process_name(process)));
        let hear = self.0.on_crash.borrow().clone();
        if let Some(hear) = hear {
            hear(process);
        }
    }

    /// Crashes it when it is about to take its `steps`-th step from now: at a random await point
    /// of whatever it does then.
    pub fn crash_in(&self, process: ProcessId, steps: u32) {
        self.0.processes.borrow_mut()[process.0].crash_in = Some(steps);
    }

    /// Whether it has crashed.
    pub fn is_crashed(&self, process: ProcessId) -> bool {
        self.0.processes.borrow()[process.0].crashed
    }

    /// Crashes so far.
    pub(crate) fn crashes(&self) -> u64 {
        self.0.crashes.get()
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self, process: ProcessId) -> bool {
        self.0.processes.borrow()[process.0].stopped
    }

    /// How long it takes the process to get to its next step.
    pub(crate) fn pace(&self, process: ProcessId) -> Nanos {
        if self.0.is_steady {
            return 0;
        }
        self.0.processes.borrow_mut()[process.0].pace.draw(&self.0.rng, STEP_NS)
    }

    /// Something reaches a process: gives it back if the process can take it now. If it is
    /// stopped, it waits; if it has crashed, it is lost.
    pub(crate) fn reach(&self, process: ProcessId, event: Event) -> Option<Event> {
        let mut processes = self.0.processes.borrow_mut();
        let process = &mut processes[process.0];
        if process.crashed {
            return None;
        }
        if process.stopped {
            process.waiting.push(event);
            return None;
        }
        Some(event)
    }

    /// A process is about to take a step: is this the one before which it was to crash?
    pub(crate) fn crash_is_due(&self, process: ProcessId) -> bool {
        let due = {
            let mut processes = self.0.processes.borrow_mut();
            let left = &mut processes[process.0].crash_in;
            match left {
                None => false,
                Some(0) => {
                    *left = None;
                    true
                }
                Some(n) => {
                    *n -= 1;
                    false
                }
            }
        };
        if due {
            self.crash(process);
        }
        due
    }
}
