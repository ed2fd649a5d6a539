//! Control messages: between clients, memory nodes and the master.
//!
//! A message takes some tens of microseconds, or is lost, or finds its receiver stopped, crashed or cut off. In most
//! of these cases the sender notices only by its own deadline. It notices a crash sooner, since the connections of a
//! crashed process break.
//!
//! A request of a master's job may be delayed in a stalled connection, and arrive when the job is over.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::counts::count;
use crate::engine::{Nanos, ProcessId, Sim, SimEvent};

/// The control network of a cluster.
pub(crate) struct ControlNetwork {
    sim: Sim,
    /// Processes that are cut off from the master, in one or both directions.
    cut_off: RefCell<BTreeMap<ProcessId, CutDirection>>,
    /// Times until which requests of the master's jobs to a memory node are delayed.
    held: RefCell<BTreeMap<ProcessId, Nanos>>,
    /// One of this many messages is lost; 0: none.
    pub lost_one_in: Cell<usize>,
    /// The time of each message, if it is not random.
    pub message_ns: Cell<Option<Nanos>>,
}

/// The direction in which a process and the master are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutDirection {
    /// Both directions.
    Both,
    /// The master does not hear the process.
    ToMaster,
    /// The process does not hear the master.
    FromMaster,
}

/// The directions between a process and the process that calls it that are not cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenDirections {
    /// Requests reach the process.
    pub(crate) requests: bool,
    /// Its answers reach the caller.
    pub(crate) answers: bool,
}

impl OpenDirections {
    pub(crate) const BOTH: OpenDirections = OpenDirections { requests: true, answers: true };
}

/// Reasons for a missing answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The receiver has crashed.
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

    /// Delays requests of the master's jobs to a memory node until `time` has passed.
    pub fn hold_orders(&self, process: ProcessId, time: Nanos) {
        self.held.borrow_mut().insert(process, self.sim.now() + time);
    }

    /// Returns the additional delay of a job's request to a process.
    pub fn order_delay(&self, process: ProcessId) -> Nanos {
        let until = self.held.borrow().get(&process).copied().unwrap_or(0);
        let delay = until.saturating_sub(self.sim.now());
        if delay > 0 {
            count(&self.sim.counts().late_orders);
        }
        delay
    }

    /// Returns whether a message is lost: because its direction is cut or by chance, and only if it may be lost.
    fn draw_loss(&self, open: bool, may_be: impl FnOnce() -> bool) -> bool {
        let one_in = self.lost_one_in.get();
        let by_chance = one_in > 0 && self.sim.rng().one_in(one_in);
        let lost = (!open || by_chance) && may_be();
        if lost {
            count(&self.sim.counts().lost_messages);
        }
        lost
    }

    /// Sends a message to a process. `arrive` runs there, `delay` later than usual, unless the message is lost.
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

    /// Sends an answer back. The asker may be crashed, stopped or no longer waiting; then it ignores the answer at
    /// its next step.
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
            // The sender was dropped: the message is lost, or its receiver has crashed.
            Either::Left((Err(_), rest)) => {
                rest.await;
                Err(NoAnswer::TimedOut)
            }
            Either::Right(_) => Err(NoAnswer::TimedOut),
        }
    }
}
