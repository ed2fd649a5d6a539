//! A batch on a testbed: all its verbs for one node arrive, execute and are answered at once.
//!
//! Two events for each node, and one when all is back. Nothing is torn and nothing is drawn; how long it takes, the
//! [stations](crate::stations) say. A batch that was posted executes, whatever becomes of its client.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use fusee_core::verbs::{Batch, MnId, Verb, VerbError};

use crate::engine::{Event, Nanos};
use crate::fabric::SimFabric;

/// A batch on its way.
pub(crate) struct Ride {
    fabric: SimFabric,
    batch: RefCell<Batch>,
    /// Nodes whose answers are not back.
    left: Cell<usize>,
    /// When the last answer so far is known.
    known: Cell<Nanos>,
    waker: RefCell<Option<Waker>>,
}

/// Where the verbs of one node are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leg {
    /// They come to their node.
    There,
    /// Their answers come to the client.
    Back,
}

fn of(verbs: &[Verb], node: MnId) -> impl Iterator<Item = &Verb> + Clone {
    verbs.iter().filter(move |verb| verb.node == node)
}

impl SimFabric {
    /// Executes a batch on the machines of a testbed.
    pub(crate) async fn ride(&self, batch: Batch) -> Batch {
        let mut nodes: Vec<MnId> = Vec::with_capacity(4);
        for verb in batch.verbs() {
            if !nodes.contains(&verb.node) {
                nodes.push(verb.node);
            }
        }
        if nodes.is_empty() {
            return batch;
        }
        let sim = self.network.sim();
        let now = sim.now();
        let arrivals: Vec<(MnId, Nanos)> = self.network.on_machines(|machines| {
            let verbs = batch.verbs();
            nodes.iter().map(|n| (*n, machines.post(self.client, of(verbs, *n), now))).collect()
        });
        let ride = Rc::new(Ride {
            fabric: self.clone(),
            batch: RefCell::new(batch),
            left: Cell::new(nodes.len()),
            known: Cell::new(now),
            waker: RefCell::default(),
        });
        for (node, at) in arrivals {
            sim.schedule(at - now, Event::Ride { ride: ride.clone(), node, leg: Leg::There });
        }
        poll_fn(|context| {
            if ride.left.get() == 0 && sim.now() >= ride.known.get() {
                return Poll::Ready(());
            }
            *ride.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        ride.batch.take()
    }
}

impl Ride {
    /// The verbs of a node come to the end of a leg.
    pub(crate) fn step(self: Rc<Ride>, node: MnId, leg: Leg) {
        match leg {
            Leg::There => self.arrive(node),
            Leg::Back => self.come_back(node),
        }
    }

    fn arrive(self: Rc<Ride>, node: MnId) {
        let network = &self.fabric.network;
        let (sim, client) = (network.sim(), self.fabric.client);
        let known = network.with(node, |memory| memory.fenced.contains(&client));
        let refused = match known {
            None => Some(VerbError::Unreachable),
            Some(true) => Some(VerbError::Fenced),
            Some(false) if network.is_broken(client, node) => Some(VerbError::Unreachable),
            Some(false) => None,
        };
        let mut batch = self.batch.borrow_mut();
        let (verbs, bytes) = batch.parts_mut();
        let now = sim.now();
        let back = match refused {
            Some(error) => {
                verbs.iter_mut().filter(|v| v.node == node).for_each(|v| v.result = Err(error));
                // Who is not there does not answer.
                let waits = if known.is_none() { network.options().verb_timeout_ns } else { 0 };
                network.on_machines(|machines| now + waits + machines.testbed().one_way_ns)
            }
            None => {
                let mut pieces = Vec::new();
                for verb in verbs.iter_mut().filter(|verb| verb.node == node) {
                    while !self.fabric.execute_piece(verb, bytes, &mut pieces) {}
                    sim.counts().note_verb(verb);
                }
                network.on_machines(|machines| machines.serve(node, of(verbs, node), now))
            }
        };
        drop(batch);
        let ride = self.clone();
        sim.schedule(back - now, Event::Ride { ride, node, leg: Leg::Back });
    }

    fn come_back(self: Rc<Ride>, node: MnId) {
        let network = &self.fabric.network;
        let (sim, client) = (network.sim(), self.fabric.client);
        let now = sim.now();
        let done = network.on_machines(|machines| {
            machines.hear(client, of(self.batch.borrow().verbs(), node), now)
        });
        self.known.set(self.known.get().max(done));
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waker.take()
        {
            match self.known.get() - now {
                0 => waker.wake(),
                wait => sim.schedule(wait, Event::Wake(waker)),
            }
        }
    }
}
