//! Control messages between clients, memory nodes and the master.
//!
//! A message takes some tens of microseconds. It is lost by chance, or when its receiver has crashed or is cut off. A
//! request to a stopped process waits until the process continues. The sender mostly notices a loss only by its own
//! deadline. The sender notices a crash of the receiver sooner, because the connections of a crashed process break.
//!
//! A request of a master's job can be delayed in a stalled connection, and then arrive after the job has ended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::counts::count;
use crate::engine::{Nanos, ProcessId, Sim, SimEvent};

/// The number of steps that a message takes in a stepwise cluster is random and below this number.
pub(crate) const MESSAGE_STEPS: usize = 8;

/// The control network of a cluster.
pub(crate) struct ControlNetwork {
    sim: Sim,
    /// Processes that are cut off from the master, in one or both directions.
    cut_off: RefCell<BTreeMap<ProcessId, CutDirection>>,
    /// For each memory node, the time until which requests of the master's jobs are delayed.
    held: RefCell<BTreeMap<ProcessId, Nanos>>,
    /// One of this many control messages is lost by chance; 0: no message is lost.
    pub lost_one_in: Cell<usize>,
    /// Nanoseconds that each message takes; `None`: the time is random.
    pub message_ns: Cell<Option<Nanos>>,
}

/// The directions in which a process and the master are cut off from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutDirection {
    Both,
    /// The process's messages do not reach the master.
    ToMaster,
    /// The master's messages do not reach the process.
    FromMaster,
}

/// The directions between a called process and its caller that are not cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenDirections {
    /// Requests of the caller reach the process.
    pub(crate) requests: bool,
    /// Answers of the process reach the caller.
    pub(crate) answers: bool,
}

impl OpenDirections {
    pub(crate) const BOTH: OpenDirections = OpenDirections { requests: true, answers: true };
}

/// Reasons why an answer is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The receiver of the request has crashed.
    Closed,
    TimedOut,
}

impl ControlNetwork {
    pub fn new(sim: &Sim) -> ControlNetwork {
        let cut_off = RefCell::default();
        let lost_one_in = Cell::new(0);
        let held = RefCell::default();
        ControlNetwork { sim: sim.clone(), cut_off, held, lost_one_in, message_ns: Cell::new(None) }
    }

    /// Cuts a process off from the master, or ends the cut.
    pub fn cut_off(&self, process: ProcessId, cut: Option<CutDirection>) {
        let mut cut_off = self.cut_off.borrow_mut();
        match cut {
            Some(cut) => cut_off.insert(process, cut),
            None => cut_off.remove(&process),
        };
    }

    /// Returns whether a process is cut off from the master in any direction.
    pub fn is_cut_off(&self, process: ProcessId) -> bool {
        self.cut_off.borrow().contains_key(&process)
    }

    /// Returns whether a process's messages reach the master.
    pub fn reaches_master(&self, process: ProcessId) -> bool {
        self.cut_off.borrow().get(&process).is_none_or(|cut| *cut == CutDirection::FromMaster)
    }

    /// Returns whether the master's messages reach a process.
    pub fn hears_master(&self, process: ProcessId) -> bool {
        self.cut_off.borrow().get(&process).is_none_or(|cut| *cut == CutDirection::ToMaster)
    }

    /// Delays requests of the master's jobs to a memory node for `time`.
    pub fn hold_orders(&self, process: ProcessId, time: Nanos) {
        self.held.borrow_mut().insert(process, self.sim.now() + time);
    }

    /// Returns the additional delay of a job's request that is sent to a process now.
    pub fn order_delay(&self, process: ProcessId) -> Nanos {
        let until = self.held.borrow().get(&process).copied().unwrap_or(0);
        let delay = until.saturating_sub(self.sim.now());
        if delay > 0 {
            count(&self.sim.counts().late_orders);
        }
        delay
    }

    /// Draws whether a message is lost. A message is lost if its direction is cut (`open` is false) or by chance, but
    /// only if `may_be` allows the loss.
    fn draw_loss(&self, open: bool, may_be: impl FnOnce() -> bool) -> bool {
        let one_in = self.lost_one_in.get();
        let by_chance = one_in > 0 && self.sim.rng().one_in(one_in);
        let lost = (!open || by_chance) && may_be();
        if lost {
            count(&self.sim.counts().lost_messages);
        }
        lost
    }

    /// Sends a message to a process. Unless the message is lost, `arrive` runs there, `delay` later than usual.
    pub fn send(
        &self,
        to: ProcessId,
        delay: Nanos,
        open: bool,
        may_be_lost: impl FnOnce() -> bool,
        arrive: impl FnOnce() + 'static,
    ) {
        if self.draw_loss(open, may_be_lost) {
            return;
        }
        let sim = self.sim.clone();
        self.sim.after(delay + self.latency(), move || {
            if let Some(event) = sim.reach(to, SimEvent::Call(Box::new(arrive))) {
                event.happen();
            }
        });
    }

    /// Sends an answer back. A stopped caller sees the answer at its next step. A caller that has crashed or no longer
    /// waits ignores the answer.
    pub fn send_back(
        &self,
        open: bool,
        may_be_lost: impl FnOnce() -> bool,
        arrive: impl FnOnce() + 'static,
    ) {
        if !self.draw_loss(open, may_be_lost) {
            self.sim.after(self.latency(), arrive);
        }
    }

    fn latency(&self) -> Nanos {
        if let Some(latency) = self.message_ns.get() {
            return latency;
        }
        let rng = self.sim.rng();
        5_000 + rng.below_u64(rng.pick(&[10_000, 100_000]))
    }

    /// Waits for an answer until the deadline.
    pub async fn wait<T>(
        &self,
        answer: oneshot::Receiver<T>,
        deadline: Nanos,
    ) -> Result<T, NoAnswer> {
        match select(answer, pin!(self.sim.sleep(deadline))).await {
            Either::Left((Ok(answer), _)) => Ok(answer),
            // The sender half was dropped because the message was lost or its receiver has crashed.
            Either::Left((Err(_), rest)) => {
                rest.await;
                Err(NoAnswer::TimedOut)
            }
            Either::Right(_) => Err(NoAnswer::TimedOut),
        }
    }
}
