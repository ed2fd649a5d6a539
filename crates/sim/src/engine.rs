//! Virtual time, and the queue of events in virtual time.
//!
//! A run is one thread that takes the earliest event, sets the clock to the event's time and executes the event: a verb
//! executes, a message arrives, or a timer wakes a task. Time is in nanoseconds and passes only between events. Events
//! at the same time happen in random order.
//!
//! Each client process, each memory node and the master is a *process*, which can be stopped, resumed and crashed. A
//! stopped process takes no step, and events that reach it wait. A crashed process never takes another step. Verbs that
//! a client has posted no longer depend on the client: they execute even if the client crashes, unless the memory node
//! has fenced its session.
//!
//! Each process has its own pace, which changes now and then. Between a wakeup and the next step, a process loses
//! between some tens of nanoseconds and the time of several phases, like a process that is preempted. So conflicts are
//! common in which one client does much while another does nothing.

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

use crate::counts::SimCounts;
use crate::fabric::BatchFlight;
use crate::rng::Rng;
use crate::testbed_batch::{TestbedBatch, TestbedLeg};
use crate::trace::SimTrace;

/// Virtual nanoseconds.
pub type Nanos = u64;

/// The greatest error of a process's clock, in percent. Two clocks differ by less than a tenth, which leases allow for.
const DRIFT_PERCENT: u64 = 4;

/// The number of a process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub usize);

/// An event of the run.
pub(crate) enum SimEvent {
    /// A task of the executor takes a step.
    Poll(usize),
    /// A timer ends.
    Wake(Waker),
    /// The verbs of a batch for one memory node (a lane) take a step. The event is ignored if it has been replaced by
    /// an earlier event since it was scheduled: then `turn` is no longer the number of the lane's valid event.
    Lane { flight: Rc<BatchFlight>, lane: usize, turn: u32 },
    /// On a testbed, the verbs of a batch for one node, or their answers, reach the end of a section of their path.
    Ride { ride: Rc<TestbedBatch>, node: MnId, leg: TestbedLeg },
    /// Any other event, such as the arrival of a message.
    Call(Box<dyn FnOnce()>),
}

struct ScheduledEvent {
    at: Nanos,
    /// A random number that orders events at the same time.
    tie: u32,
    /// The event's number, which orders events with the same time and the same `tie`.
    number: u64,
    event: SimEvent,
}

impl ScheduledEvent {
    fn key(&self) -> (Nanos, u32, u64) {
        (self.at, self.tie, self.number)
    }
}
impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        self.key() == other.key()
    }
}
impl Eq for ScheduledEvent {}
impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ScheduledEvent {
    fn cmp(&self, other: &ScheduledEvent) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The pace of a process or link: for the next `left` draws, times are multiplied by up to two to the power of `shift`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SimPace {
    shift: u8,
    left: u16,
}

impl SimPace {
    /// Draws the time of the next step, from its usual time `base`.
    pub(crate) fn draw(&mut self, rng: &Rng, base: Nanos) -> Nanos {
        if self.left == 0 {
            self.shift = rng.pick(&[0, 0, 0, 1, 2, 4, 6]);
            self.left = 1 + rng.below(40) as u16;
        }
        self.left -= 1;
        base / 2 + rng.below_u64((base << self.shift).max(1))
    }
}

struct SimProcess {
    name: String,
    pace: SimPace,
    stopped: bool,
    /// The time at which the process was stopped, if it is stopped now; `stopped_ns` is the total time of all earlier
    /// stops.
    stopped_at: Option<Nanos>,
    stopped_ns: Nanos,
    crashed: bool,
    /// Events that reached the process while it was stopped.
    waiting: Vec<SimEvent>,
    /// The number of further steps after which the process crashes, if a crash is planned.
    crash_in: Option<u32>,
}

/// A run of the simulator: its clock, its random numbers and its processes. Clones share one run.
#[derive(Clone)]
pub struct Sim(Rc<SimInner>);

/// A task of a process.
pub(crate) type SpawnedTask = Pin<Box<dyn Future<Output = ()>>>;

/// A function that is called after a crash.
type CrashHook = Rc<dyn Fn(ProcessId)>;

struct SimInner {
    now: Cell<Nanos>,
    rng: Rng,
    /// See [`Sim::steady`].
    is_steady: bool,
    queue: RefCell<BinaryHeap<Reverse<ScheduledEvent>>>,
    next_number: Cell<u64>,
    next_task: Cell<usize>,
    processes: RefCell<Vec<SimProcess>>,
    crashes: Cell<u64>,
    /// Tasks that were woken since the executor last took this list.
    woken: Arc<Mutex<Vec<usize>>>,
    /// Tasks that processes have started and that the executor has not taken yet.
    born: RefCell<Vec<(ProcessId, SpawnedTask)>>,
    /// The function that is called after each crash.
    on_crash: RefCell<Option<CrashHook>>,
    counts: SimCounts,
    trace: RefCell<SimTrace>,
}

/// Mean time between a wakeup and the next step of a process, at the fastest pace, in nanoseconds.
const STEP_NS: Nanos = 100;

impl Sim {
    /// Starts a run whose schedule follows from the seed.
    pub fn new(seed: u64) -> Sim {
        Sim::begin(seed, false)
    }

    /// Starts a run without randomness, for measurements: steps take only the time that a [testbed](crate::Testbed)
    /// states, events of one time happen in the order in which they were scheduled, clocks are exact, and no trace is
    /// kept.
    pub fn steady() -> Sim {
        Sim::begin(0, true)
    }

    fn begin(seed: u64, is_steady: bool) -> Sim {
        Sim(Rc::new(SimInner {
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
            counts: SimCounts::default(),
            trace: RefCell::default(),
        }))
    }

    /// Returns the source of random numbers that decides the schedule.
    pub fn rng(&self) -> &Rng {
        &self.0.rng
    }

    /// Returns the virtual nanoseconds since the start.
    pub fn now(&self) -> Nanos {
        self.0.now.get()
    }

    /// Returns the time on the clock of a process. The clock is up to 4 % too fast or too slow, always by the same
    /// factor.
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

    /// Returns the total time for which a process has been stopped.
    fn stopped_for(&self, process: ProcessId) -> Nanos {
        let process = &self.0.processes.borrow()[process.0];
        process.stopped_ns + process.stopped_at.map_or(0, |at| self.now() - at)
    }

    /// Returns the counters of the run.
    pub fn counts(&self) -> &SimCounts {
        &self.0.counts
    }

    /// Keeps the trace as text from now on, in addition to its digest.
    pub fn record_trace(&self) {
        self.0.trace.borrow_mut().record();
    }

    /// Returns the trace so far.
    pub fn trace(&self) -> SimTrace {
        self.0.trace.borrow().clone()
    }

    /// Notes an event in the trace. Two runs with equal traces were identical.
    pub(crate) fn note(&self, words: &[u64], text: impl FnOnce() -> String) {
        if !self.0.is_steady {
            self.0.trace.borrow_mut().note(self.now(), words, text);
        }
    }

    pub(crate) fn schedule(&self, delay: Nanos, event: SimEvent) {
        let number = self.0.next_number.get();
        self.0.next_number.set(number + 1);
        let tie = if self.0.is_steady { 0 } else { self.0.rng.below(1 << 16) as u32 };
        let at = self.now() + delay;
        self.0.queue.borrow_mut().push(Reverse(ScheduledEvent { at, tie, number, event }));
    }

    /// Calls `what` when `delay` has passed.
    pub fn after(&self, delay: Nanos, what: impl FnOnce() + 'static) {
        self.schedule(delay, SimEvent::Call(Box::new(what)));
    }

    /// Takes the next event, and sets the clock to its time.
    pub(crate) fn next_event(&self) -> Option<SimEvent> {
        let Reverse(next) = self.0.queue.borrow_mut().pop()?;
        self.0.now.set(next.at);
        Some(next.event)
    }

    /// Executes events until `done` returns true. A step of a task is not allowed among these events.
    ///
    /// # Panics
    /// If `done` is still false after `limit` events.
    pub fn run_until(&self, limit: u64, done: impl Fn() -> bool) {
        for _ in 0..limit {
            if done() {
                return;
            }
            match self.next_event().expect("something is going to happen") {
                SimEvent::Poll(task) => unreachable!("no executor runs task {task}"),
                event => event.happen(),
            }
        }
        panic!("{limit} events were not enough");
    }

    /// Drops all events, including those that wait for stopped processes.
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

    /// Waits for some time. If the process is stopped meanwhile, it wakes up late.
    pub async fn sleep(&self, time: Nanos) {
        let end = self.now() + time;
        let mut set = false;
        poll_fn(|context| {
            if self.now() >= end {
                return Poll::Ready(());
            }
            if !set {
                set = true;
                self.schedule(end - self.now(), SimEvent::Wake(context.waker().clone()));
            }
            Poll::Pending
        })
        .await;
    }

    /// Takes a random number of idle steps below `steps`.
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

    /// Starts a task of a process during the run. The run does not wait for the task's end.
    pub(crate) fn spawn(&self, process: ProcessId, task: impl Future<Output = ()> + 'static) {
        self.0.born.borrow_mut().push((process, Box::pin(task)));
    }

    pub(crate) fn take_born(&self) -> Vec<(ProcessId, SpawnedTask)> {
        std::mem::take(&mut self.0.born.borrow_mut())
    }

    /// Sets the function that is called after every crash.
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

impl SimEvent {
    /// Executes an event that is not a step of a task.
    pub(crate) fn happen(self) {
        match self {
            SimEvent::Poll(_) => unreachable!("the executor's"),
            SimEvent::Wake(waker) => waker.wake(),
            SimEvent::Lane { flight, lane, turn } => flight.step(lane, turn),
            SimEvent::Ride { ride, node, leg } => ride.step(node, leg),
            SimEvent::Call(call) => call(),
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

/// Processes of the run.
impl Sim {
    /// Adds a process.
    pub fn process(&self, name: impl Into<String>) -> ProcessId {
        let mut processes = self.0.processes.borrow_mut();
        processes.push(SimProcess {
            name: name.into(),
            pace: SimPace::default(),
            stopped: false,
            stopped_at: None,
            stopped_ns: 0,
            crashed: false,
            waiting: Vec::new(),
            crash_in: None,
        });
        ProcessId(processes.len() - 1)
    }

    /// Returns the name of a process in the trace.
    pub fn process_name(&self, process: ProcessId) -> String {
        self.0.processes.borrow()[process.0].name.clone()
    }

    /// Stops a process, like SIGSTOP.
    pub fn stop(&self, process: ProcessId) {
        {
            let stopped = &mut self.0.processes.borrow_mut()[process.0];
            stopped.stopped = true;
            stopped.stopped_at.get_or_insert(self.now());
        }
        self.note(&[1, process.0 as u64], || format!("stop {}", self.process_name(process)));
    }

    /// Lets a stopped process continue.
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

    /// Crashes a process. The executor drops its tasks before the next event.
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

    /// Crashes a process after `steps` further steps, that is, at a random await point.
    pub fn crash_in(&self, process: ProcessId, steps: u32) {
        self.0.processes.borrow_mut()[process.0].crash_in = Some(steps);
    }

    /// Returns whether a process has crashed.
    pub fn is_crashed(&self, process: ProcessId) -> bool {
        self.0.processes.borrow()[process.0].crashed
    }

    /// Returns the number of crashes so far.
    pub(crate) fn crashes(&self) -> u64 {
        self.0.crashes.get()
    }

    /// Returns whether a process is stopped.
    pub fn is_stopped(&self, process: ProcessId) -> bool {
        self.0.processes.borrow()[process.0].stopped
    }

    /// Draws the time until the process's next step.
    pub(crate) fn pace(&self, process: ProcessId) -> Nanos {
        if self.0.is_steady {
            return 0;
        }
        self.0.processes.borrow_mut()[process.0].pace.draw(&self.0.rng, STEP_NS)
    }

    /// Returns an event if the process can take it now. If the process is stopped, the event waits; if the process has
    /// crashed, the event is lost.
    pub(crate) fn reach(&self, process: ProcessId, event: SimEvent) -> Option<SimEvent> {
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

    /// Counts a step of a process. If this is the step of the planned crash, crashes the process and returns true.
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
