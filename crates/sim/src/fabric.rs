//! The simulated fabric: one lane per memory node of a batch, verbs executed piece by piece.
//!
//! A batch is in flight from the first poll of its future, and then out of its client's hands: it
//! goes on if the client crashes. Its verbs for one node form a *lane* and execute in order; lanes
//! know nothing of each other, nor of other batches of the same client.
//!
//! READs and WRITEs come in one piece or, every fourth, in up to five, cut between any two aligned
//! words and executed in any order. That is all that a fabric promises, with one exception: the
//! last piece of a WRITE, which holds its last word, comes last. CAS and FAA are one piece.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fusee_core::verbs::{Batch, ClientId, Fabric, MnId, Op, Verb, VerbError};
use fusee_core::view::Place;

use crate::counts::count;
use crate::engine::{Event, Nanos, Sim};
use crate::network::Network;

/// One client's access to the memory nodes.
#[derive(Clone)]
pub struct SimFabric {
    network: Network,
    client: ClientId,
}

impl SimFabric {
    /// The verbs of this client.
    pub fn new(network: &Network, client: ClientId) -> SimFabric {
        SimFabric { network: network.clone(), client }
    }
}

/// A batch on its way.
pub(crate) struct Flight {
    network: Network,
    client: ClientId,
    batch: RefCell<Batch>,
    lanes: RefCell<Vec<Lane>>,
    /// Lanes that have not come back.
    left: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// The client has crashed: of each lane only some verbs were sent.
    orphaned: Cell<bool>,
}

/// How far the verbs of one node have come.
struct Lane {
    node: MnId,
    /// Verbs that are not finished, the current one last.
    verbs: Vec<usize>,
    /// What is left of the current verb, in the order opposite to its execution; empty if it has
    /// not begun.
    pieces: Vec<Range<usize>>,
    posted: Nanos,
    /// When its first verb leaves the client's NIC.
    departure: Nanos,
    state: State,
    /// Which of its events is the one that counts: a released link gives it an earlier one.
    turn: u32,
    /// It stands before a link that is held.
    parked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// On the way, or before a verb that the NIC has not come to.
    Waiting,
    /// The NIC has come to the current verb.
    Served,
    /// All done; the completions are on the way back.
    Returning,
    Done,
}

impl Fabric for SimFabric {
    async fn execute(&self, batch: Batch) -> Batch {
        let flight = Flight::new(&self.network, self.client, batch);
        if self.network.options().stepwise {
            poll_fn(|context| flight.step_any(context)).await;
            return flight.batch.take();
        }
        flight.launch();
        let guard = InFlight(&flight);
        poll_fn(|context| {
            if flight.left.get() == 0 {
                return Poll::Ready(());
            }
            *flight.waker.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        std::mem::forget(guard);
        flight.batch.take()
    }
}

/// Dropped when its client crashes.
struct InFlight<'f>(&'f Flight);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.orphan();
    }
}

impl Flight {
    fn new(network: &Network, client: ClientId, batch: Batch) -> Rc<Flight> {
        let mut lanes: Vec<Lane> = Vec::new();
        for (i, verb) in batch.verbs().iter().enumerate() {
            let departure = network.departure(client, verb);
            match lanes.iter_mut().find(|l| l.node == verb.node) {
                Some(lane) => lane.verbs.push(i),
                None => lanes.push(Lane {
                    node: verb.node,
                    verbs: vec![i],
                    pieces: Vec::new(),
                    posted: network.sim().now(),
                    departure,
                    state: State::Waiting,
                    turn: 0,
                    parked: false,
                }),
            }
        }
        lanes.iter_mut().for_each(|l| l.verbs.reverse());
        Rc::new(Flight {
            network: network.clone(),
            client,
            batch: RefCell::new(batch),
            left: Cell::new(lanes.len()),
            lanes: RefCell::new(lanes),
            waker: RefCell::default(),
            orphaned: Cell::new(false),
        })
    }

    /// The lanes go on their ways.
    fn launch(self: &Rc<Flight>) {
        let (sim, client) = (self.sim(), self.client);
        for (number, lane) in self.lanes.borrow().iter().enumerate() {
            let delay = lane.departure - sim.now() + self.network.wire(client, lane.node);
            self.network.arrival(client, lane.node, sim.now() + delay);
            sim.schedule(delay, Event::Lane { flight: self.clone(), lane: number, turn: 0 });
        }
    }

    /// One step of any lane; ready when all are done.
    fn step_any(&self, context: &Context<'_>) -> Poll<()> {
        if self.left.get() == 0 {
            return Poll::Ready(());
        }
        let mut lanes = self.lanes.borrow_mut();
        let open = lanes.iter_mut().filter(|l| l.state != State::Done);
        let lane = open.into_iter().nth(self.sim().rng().below(self.left.get()));
        let lane = lane.expect("as many as are left");
        self.advance(lane);
        if lane.state == State::Returning {
            lane.state = State::Done;
            self.left.set(self.left.get() - 1);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn sim(&self) -> &Sim {
        self.network.sim()
    }

    /// The client has crashed. What its NIC had not sent yet is never sent.
    fn orphan(&self) {
        self.orphaned.set(true);
        let rng = self.sim().rng();
        for lane in self.lanes.borrow_mut().iter_mut().filter(|l| l.state == State::Waiting) {
            if rng.one_in(2) {
                // The current verb is last: the first ones of the list are the last to be sent.
                let unsent = rng.below(lane.verbs.len() + 1);
                if unsent > 0 {
                    count(&self.sim().counts().cut_batches);
                }
                lane.verbs.drain(..unsent);
            }
        }
    }

    /// A link that a lane stood before has changed: the lane tries again now.
    pub(crate) fn unpark(self: Rc<Flight>, lane: usize) {
        let turn = {
            let lane = &mut self.lanes.borrow_mut()[lane];
            if !std::mem::take(&mut lane.parked) {
                return;
            }
            lane.turn += 1;
            lane.turn
        };
        self.sim().schedule(1, Event::Lane { flight: self.clone(), lane, turn });
    }

    /// One step of a lane.
    pub(crate) fn step(self: Rc<Flight>, lane: usize, turn: u32) {
        let mut lanes = self.lanes.borrow_mut();
        if lanes[lane].turn != turn {
            return;
        }
        let next = self.advance(&mut lanes[lane]);
        if lanes[lane].parked {
            self.network.park(self.client, lanes[lane].node, Rc::downgrade(&self), lane);
        }
        drop(lanes);
        if let Some(delay) = next {
            self.sim().schedule(delay, Event::Lane { flight: self.clone(), lane, turn });
        } else if self.left.replace(self.left.get() - 1) == 1
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Returns when to go on; `None` when the client knows.
    fn advance(&self, lane: &mut Lane) -> Option<Nanos> {
        lane.parked = false;
        if lane.state == State::Returning {
            lane.state = State::Done;
            return None;
        }
        let Some(current) = lane.verbs.last().copied() else { return Some(self.send_back(lane)) };
        let now = self.sim().now();
        if let Some(delay) = self.obstacle(lane, now) {
            return Some(delay);
        }
        let mut batch = self.batch.borrow_mut();
        let (verbs, bytes) = batch.parts_mut();
        let verb = &mut verbs[current];
        if lane.state == State::Waiting {
            lane.state = State::Served;
            let served = self.network.service(verb);
            if served > now {
                return Some(served - now);
            }
        }
        if self.execute_piece(verb, bytes, &mut lane.pieces) {
            lane.verbs.pop();
            lane.pieces.clear();
            lane.state = State::Waiting;
            count(&self.sim().counts().verbs);
        }
        drop(batch);
        match lane.verbs.is_empty() {
            true => Some(self.send_back(lane)),
            false => Some(self.gap()),
        }
    }

    /// What keeps the lane from going on: returns when to try again.
    fn obstacle(&self, lane: &mut Lane, now: Nanos) -> Option<Nanos> {
        let (client, node) = (self.client, lane.node);
        let options = self.network.options();
        let overdue = lane.posted + options.verb_timeout_ns;
        let known = self.network.with(node, |m| (m.process, m.fenced.contains(&client)));
        let Some((process, fenced)) = known else {
            return Some(self.fail(lane, VerbError::Unreachable, 0));
        };
        if fenced {
            let refused = lane.verbs.len() as u64;
            let counter = &self.sim().counts().fenced_verbs;
            counter.set(counter.get() + refused);
            return Some(self.fail(lane, VerbError::Fenced, 0));
        }
        if self.network.is_broken(client, node) {
            return Some(self.fail(lane, VerbError::Unreachable, 0));
        }
        let held = self.network.held_until(client, node);
        let stopped = options.nic_in_process && self.sim().is_stopped(process);
        if held <= now && !stopped {
            return None;
        }
        if now >= overdue {
            // Given up, so it must never execute: the queue pair goes into error.
            self.network.break_link(client, node);
            return Some(self.fail(lane, VerbError::Unreachable, 0));
        }
        lane.parked = held > now;
        Some((overdue - now).min(if stopped { 10_000 } else { held - now }).max(1))
    }

    /// Time between two pieces: mostly nothing, at times as much as a phase.
    fn gap(&self) -> Nanos {
        let rng = self.sim().rng();
        if self.network.options().delays {
            rng.below_u64(rng.pick(&[16, 64, 512, 2048]))
        } else {
            0
        }
    }

    /// The rest of the lane never executes.
    fn fail(&self, lane: &mut Lane, error: VerbError, delay: Nanos) -> Nanos {
        let mut batch = self.batch.borrow_mut();
        let (verbs, _) = batch.parts_mut();
        for i in lane.verbs.drain(..) {
            verbs[i].result = Err(error);
        }
        drop(batch);
        lane.state = State::Returning;
        delay + self.network.wire(self.client, lane.node)
    }

    /// All verbs have executed: when the client will know.
    fn send_back(&self, lane: &mut Lane) -> Nanos {
        lane.state = State::Returning;
        let options = self.network.options();
        let one_in = options.lost_completions_one_in;
        if one_in > 0 && !self.orphaned.get() && self.sim().rng().one_in(one_in) {
            count(&self.sim().counts().lost_completions);
            let mut batch = self.batch.borrow_mut();
            let of_lane = batch.parts_mut().0.iter_mut().filter(|v| v.node == lane.node);
            of_lane.for_each(|v| v.result = Err(VerbError::Unreachable));
            self.network.break_link(self.client, lane.node);
            self.sim().note(&[5, u64::from(lane.node.0)], || {
                format!("{}: the completion from {} is lost", self.client, lane.node)
            });
            return options.verb_timeout_ns;
        }
        self.network.wire(self.client, lane.node)
    }

    /// One piece of one verb. Returns whether it is finished.
    fn execute_piece(
        &self,
        verb: &mut Verb,
        bytes: &mut [u8],
        left: &mut Vec<Range<usize>>,
    ) -> bool {
        let (node, offset) = (verb.node, verb.offset);
        let size = self.network.with(node, |m| m.pool.len() as u64).expect("the node is there");
        verb.result = verb.check(size);
        if verb.result.is_err() {
            return true;
        }
        let is_write = matches!(verb.op, Op::Write { .. });
        match &mut verb.op {
            Op::Cas { expected, swap, found } => {
                let (expected, swap) = (*expected, *swap);
                *found = self.swap_word(node, offset, |now| (now == expected).then_some(swap));
                self.sim().note(&[6, node.0.into(), offset, expected, swap, *found], || {
                    let done = if *found == expected { "" } else { " (not done)" };
                    let who = self.client;
                    format!(
                        "{who} CAS {node}+{offset:#x} {expected:#x} -> {swap:#x}: {found:#x}{done}"
                    )
                });
                true
            }
            Op::Faa { add, found } => {
                let add = *add;
                *found = self.swap_word(node, offset, |now| Some(now.wrapping_add(add)));
                self.sim().note(&[7, node.0.into(), offset, add, *found], || {
                    format!("{} FAA {node}+{offset:#x} {add:#x}: {found:#x}", self.client)
                });
                true
            }
            Op::Read { buf } | Op::Write { buf } => {
                if left.is_empty() {
                    *left = self.pieces(offset, buf.len as usize, is_write);
                }
                let piece = left.pop().expect("it has pieces");
                let local = &mut bytes[buf.range()][piece.clone()];
                self.copy(node, offset + piece.start as u64, local, is_write);
                left.is_empty()
            }
        }
    }

    /// Changes a word, or not; returns what it was.
    fn swap_word(&self, node: MnId, offset: u64, to: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let at = offset as usize;
        let (old, new) = self
            .network
            .with(node, |memory| {
                let word = &mut memory.pool[at..at + 8];
                let old = u64::from_le_bytes((&*word).try_into().expect("8 bytes"));
                let new = to(old);
                if let Some(new) = new {
                    word.copy_from_slice(&new.to_le_bytes());
                }
                (old, new)
            })
            .expect("the node is there");
        if let Some(new) = new {
            self.network.changed(Place { node, offset }, old, new);
        }
        old
    }

    fn copy(&self, node: MnId, offset: u64, local: &mut [u8], is_write: bool) {
        let at = offset as usize;
        if is_write {
            self.network.watched().written(node, offset, local.len() as u64);
        }
        self.network.with(node, |memory| {
            let remote = &mut memory.pool[at..at + local.len()];
            if is_write {
                remote.copy_from_slice(local);
            } else {
                local.copy_from_slice(remote);
            }
        });
        let (kind, len) = (8 + u64::from(is_write), local.len() as u64);
        self.sim().note(&[kind, node.0.into(), offset, len], || {
            let what = if is_write { "WRITE" } else { "READ" };
            format!("{} {what} {node}+{offset:#x} {len} bytes", self.client)
        });
    }

    /// Cuts `len` bytes from pool offset `offset` on, in random order.
    fn pieces(&self, offset: u64, len: usize, is_write: bool) -> Vec<Range<usize>> {
        let rng = self.sim().rng();
        let first_cut = 8 - (offset % 8) as usize;
        if !self.network.options().tearing || first_cut >= len || !rng.one_in(4) {
            return std::iter::once(0..len).collect();
        }
        let mut cuts = vec![0, len];
        let places = (len - first_cut).div_ceil(8);
        // The first words matter more than the rest of a long value.
        let near = rng.pick(&[places, places.min(8)]);
        cuts.extend((0..1 + rng.below(4)).map(|_| first_cut + 8 * rng.below(near)));
        cuts.sort_unstable();
        let mut pieces: Vec<_> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        pieces.retain(|piece| !piece.is_empty());
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, rng.below(i + 1));
        }
        if is_write {
            let last = pieces.iter().position(|p| p.end == len);
            pieces.swap(0, last.expect("some piece is the last"));
        }
        count(&self.sim().counts().torn_verbs);
        pieces
    }
}
