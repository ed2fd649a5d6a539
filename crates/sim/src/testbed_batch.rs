//! A batch on a testbed. All its verbs for one node arrive at one time, and execute and are answered together.
//!
//! For each node of the batch there are two events, or four if a switch is on the way; one more follows when all
//! answers have arrived. No verb is torn, and nothing is random; the [stations](crate::stations) decide the times. A
//! posted batch executes even if its client crashes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use fusee_core::verbs::{MnId, Verb, VerbBatch, VerbError};

use crate::engine::{Nanos, SimEvent};
use crate::fabric::SimFabric;
use crate::switches::HELD_NS;

/// A batch in flight on a testbed.
pub(crate) struct TestbedBatch {
    fabric: SimFabric,
    batch: RefCell<VerbBatch>,
    /// The number that the switch uses for the batch's first verb; 0 if there is no switch.
    number: u64,
    /// Number of nodes whose answers have not arrived.
    left: Cell<usize>,
    /// The time at which the client has all answers that have arrived so far.
    known: Cell<Nanos>,
    waker: RefCell<Option<Waker>>,
}

/// A section of the path of a batch's verbs for one node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TestbedLeg {
    /// The verbs travel to the switch, which this many of them have passed already.
    ToSwitch(usize),
    /// The verbs travel to their memory node.
    There,
    /// The answers travel to the switch.
    FromNode,
    /// The answers travel to the client.
    Back,
}

fn of(verbs: &[Verb], node: MnId) -> impl Iterator<Item = &Verb> + Clone {
    verbs.iter().filter(move |verb| verb.node == node)
}

impl SimFabric {
    /// Executes a batch on the machines of a testbed.
    pub(crate) async fn ride(&self, batch: VerbBatch) -> VerbBatch {
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
        let arrivals: Vec<(MnId, Nanos)> = self.network.hardware().on_machines(|machines| {
            let verbs = batch.verbs();
            nodes.iter().map(|n| (*n, machines.post(self.client, of(verbs, *n), now))).collect()
        });
        let switches = self.network.switches();
        let ride = Rc::new(TestbedBatch {
            fabric: self.clone(),
            number: switches.as_ref().map_or(0, |s| s.number(batch.verbs().len())),
            batch: RefCell::new(batch),
            left: Cell::new(nodes.len()),
            known: Cell::new(now),
            waker: RefCell::default(),
        });
        for (node, at) in arrivals {
            let half = if switches.is_some() { self.network.hardware().half_way() } else { 0 };
            let leg = if switches.is_some() { TestbedLeg::ToSwitch(0) } else { TestbedLeg::There };
            sim.schedule(at - half - now, SimEvent::Ride { ride: ride.clone(), node, leg });
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

impl TestbedBatch {
    /// Handles the end of a section of the path for the verbs of one node.
    pub(crate) fn step(self: Rc<TestbedBatch>, node: MnId, leg: TestbedLeg) {
        match leg {
            TestbedLeg::ToSwitch(passed) => self.pass(node, passed),
            TestbedLeg::There => self.arrive(node),
            TestbedLeg::FromNode => self.pass_back(node),
            TestbedLeg::Back => self.come_back(node),
        }
    }

    /// Passes the verbs for a node through the switch. A verb that the switch holds also delays the verbs behind it.
    fn pass(self: Rc<TestbedBatch>, node: MnId, passed: usize) {
        let network = &self.fabric.network;
        let client = self.fabric.client;
        let switches = network.switches().expect("it was there when this was posted");
        let mut batch = self.batch.borrow_mut();
        let (verbs, bytes) = batch.parts_mut();
        let mut next = (network.hardware().half_way(), TestbedLeg::There);
        let of_node = verbs.iter_mut().enumerate().filter(|(_, verb)| verb.node == node);
        for (at, (i, verb)) in of_node.enumerate().skip(passed) {
            let counts = network.sim().counts();
            let number = self.number + i as u64;
            if !switches.pass(counts, client, verb, bytes, number) {
                next = (HELD_NS, TestbedLeg::ToSwitch(at));
                break;
            }
        }
        drop(batch);
        let (wait, leg) = next;
        network.sim().schedule(wait, SimEvent::Ride { ride: self.clone(), node, leg });
    }

    /// Passes the answers of a node through the switch, on their way to the client.
    fn pass_back(self: Rc<TestbedBatch>, node: MnId) {
        let network = &self.fabric.network;
        let client = self.fabric.client;
        let switches = network.switches().expect("it was there when this was posted");
        let batch = self.batch.borrow();
        for (i, verb) in batch.verbs().iter().enumerate().filter(|(_, verb)| verb.node == node) {
            switches.come_back(client, verb, self.number + i as u64);
        }
        drop(batch);
        let ride = self.clone();
        let leg = TestbedLeg::Back;
        network.sim().schedule(network.hardware().half_way(), SimEvent::Ride { ride, node, leg });
    }

    fn arrive(self: Rc<TestbedBatch>, node: MnId) {
        let network = &self.fabric.network;
        let sim = network.sim();
        let client = self.fabric.client;
        let known = network.memories().with(node, |memory| memory.fenced.contains(&client));
        let refused = match known {
            None => Some(VerbError::Unreachable),
            Some(true) => Some(VerbError::Fenced),
            Some(false) if network.links().is_broken(client, node) => Some(VerbError::Unreachable),
            Some(false) => None,
        };
        let mut batch = self.batch.borrow_mut();
        let (verbs, bytes) = batch.parts_mut();
        let now = sim.now();
        let back = match refused {
            Some(error) => {
                verbs.iter_mut().filter(|v| v.node == node).for_each(|v| v.result = Err(error));
                // A lost node does not answer, so the client waits for its timeout.
                let waits = if known.is_none() { network.options().verb_timeout_ns } else { 0 };
                network
                    .hardware()
                    .on_machines(|machines| now + waits + machines.testbed().one_way_ns)
            }
            None => {
                let mut pieces = Vec::new();
                let switches = network.switches();
                let of_node = verbs.iter_mut().enumerate().filter(|(_, verb)| verb.node == node);
                for (i, verb) in of_node {
                    let forged = switches.as_ref().and_then(|s| s.forged(self.number + i as u64));
                    while !self.fabric.execute_forged(forged, verb, bytes, &mut pieces) {}
                    sim.counts().note_verb(verb);
                }
                network
                    .hardware()
                    .on_machines(|machines| machines.serve(node, of(verbs, node), now))
            }
        };
        drop(batch);
        let ride = self.clone();
        let half = network.switches().map_or(0, |_| network.hardware().half_way());
        let leg = if half > 0 { TestbedLeg::FromNode } else { TestbedLeg::Back };
        sim.schedule(back - half - now, SimEvent::Ride { ride, node, leg });
    }

    fn come_back(self: Rc<TestbedBatch>, node: MnId) {
        let network = &self.fabric.network;
        let sim = network.sim();
        let client = self.fabric.client;
        let now = sim.now();
        let done = network.hardware().on_machines(|machines| {
            machines.hear(client, of(self.batch.borrow().verbs(), node), now)
        });
        self.known.set(self.known.get().max(done));
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waker.take()
        {
            match self.known.get() - now {
                0 => waker.wake(),
                wait => sim.schedule(wait, SimEvent::Wake(waker)),
            }
        }
    }
}
