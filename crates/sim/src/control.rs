//! Control messages: between clients, memory nodes and the master.
//!
//! A message takes some tens of microseconds, or is lost, or finds its receiver stopped, crashed
//! or cut off. Who asks learns about all of that only by its own deadline; a crashed process is
//! noticed sooner, since its connections break.
//!
//! What a job of the master asks may lie in a connection that stands still, and come when the job is over.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::counts::count;
use crate::engine::{Event, Nanos, ProcessId, Sim};

/// The control network of a cluster.
pub(crate) struct Control {
    sim: Sim,
    /// Processes that cannot reach the master, or not be reached by it.
    cut_off: RefCell<BTreeMap<ProcessId, Cut>>,
    /// Until when what jobs of the master ask of a memory node lies on its way.
    held: RefCell<BTreeMap<ProcessId, Nanos>>,
    /// One of so many messages is lost; 0: none is.
    pub lost_one_in: Cell<usize>,
    /// How long each takes, if that is not left to chance.
    pub message_ns: Cell<Option<Nanos>>,
}

/// Which way between a process and the master is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both.
    Both,
    /// The master does not hear the process.
    ToMaster,
    /// The process does not hear the master.
    FromMaster,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// The receiver has crashed.
    Closed,
    TimedOut,
}

impl Control {
    pub fn new(sim: &Sim) -> Control {
        let cut_off = RefCell::default();
        let lost_one_in = Cell::new(0);
        let held = RefCell::default();
        Control { sim: sim.clone(), cut_off, held, lost_one_in, message_ns: Cell::new(None) }
    }

    /// Cuts a process off from the master, or lets it reach it again.
    pub fn cut_off(&self, process: ProcessId, cut: Option<Cut>) {
        let mut cut_off = self.cut_off.borrow_mut();
        match cut {
            Some(cut) => cut_off.insert(process, cut),
            None => cut_off.remove(&process),
        };
    }

    /// Whether anything is cut between a process and the master.
    pub fn is_cut_off(&self, process: ProcessId) -> bool {
        self.cut_off.borrow().contains_key(&process)
    }

    /// Whether what a process says gets to the master.
    pub fn reaches_master(&self, process: ProcessId) -> bool {
        self.cut_off.borrow().get(&process).is_none_or(|cut| *cut == Cut::FromMaster)
    }

    /// Whether what the master says gets to a process.
    pub fn hears_master(&self, process: ProcessId) -> bool {
        self.cut_off.borrow().get(&process).is_none_or(|cut| *cut == Cut::ToMaster)
    }

    /// What jobs of the master ask of a memory node lies on its way for so long, at most.
    pub fn hold_orders(&self, process: ProcessId, time: Nanos) {
        self.held.borrow_mut().insert(process, self.sim.now() + time);
    }

    /// How long what a job asks of a process lies on its way besides.
    pub fn order_delay(&self, process: ProcessId) -> Nanos {
        let until = self.held.borrow().get(&process).copied().unwrap_or(0);
        let delay = until.saturating_sub(self.sim.now());
        if delay > 0 {
            count(&self.sim.counts().late_orders);
        }
        delay
    }

    /// Whether a message is lost: because the way is not open, or by chance; unless it must not be.
    fn is_lost(&self, open: bool, may_be: impl FnOnce() -> bool) -> bool {
        let one_in = self.lost_one_in.get();
        let by_chance = one_in > 0 && self.sim.rng().one_in(one_in);
        let lost = (!open || by_chance) && may_be();
        if lost {
            count(&self.sim.counts().lost_messages);
        }
        lost
    }

    /// Sends something to a process; `arrive` happens there, if it gets there, so much later than usual.
    pub fn send(
        &self,
        (to, delay): (ProcessId, Nanos),
        open: bool,
        may_be_lost: impl FnOnce() -> bool,
        arrive: impl FnOnce() + 'static,
    ) {
        if self.is_lost(open, may_be_lost) {
            return;
        }
        let sim = self.sim.clone();
        self.sim.after(delay + self.latency(), move || {
            if let Some(event) = sim.reach(to, Event::Call(Box::new(arrive))) {
                event.happen();
            }
        });
    }

    /// Sends an answer back. Whoever asked may be gone, stopped or tired of waiting: that shows
    /// when it takes its next step.
    pub fn send_back(
        &self,
        open: bool,
        may_be_lost: impl FnOnce() -> bool,
        arrive: impl FnOnce() + 'static,
    ) {
        if !self.is_lost(open, may_be_lost) {
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

    /// Waits for an answer.
    pub async fn wait<T>(
        &self,
        answer: oneshot::Receiver<T>,
        deadline: Nanos,
    ) -> Result<T, NoAnswer> {
        match select(answer, pin!(self.sim.sleep(deadline))).await {
            Either::Left((Ok(answer), _)) => Ok(answer),
            // Dropped on the way: lost, or by a receiver that crashed.
            Either::Left((Err(_), rest)) => {
                rest.await;
                Err(NoAnswer::TimedOut)
            }
            Either::Right(_) => Err(NoAnswer::TimedOut),
        }
    }
}
