//! The simulated fabric, which executes the verbs of a batch piece by piece, in one lane for each memory node.
//!
//! A batch is in flight from the first poll of its future. From then on it no longer depends on its client, and
//! continues if the client crashes. Its verbs for one node form a *lane* and execute in order. There is no order
//! between lanes, nor between batches of one client.
//!
//! This models NICs, and memory nodes that serve TCP. [`NetworkOptions::cards`](crate::NetworkOptions::cards) adds
//! further behaviour of NICs. On an [immediate](crate::NetworkOptions::immediate) network the client's processor
//! executes the verbs, in [`immediate`](crate::immediate). On a testbed, [`testbed_batch`](crate::testbed_batch)
//! replaces this module.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fusee_core::verbs::{ClientId, Fabric, MnId, Verb, VerbBatch, VerbError, VerbOp};

use crate::counts::count;
use crate::engine::{Nanos, Sim, SimEvent};
use crate::network::Network;
use crate::switches::{HELD_NS, HELD_TIMES};
use crate::unsound_cas::ForgedCas;

/// One client's access to the memory nodes.
#[derive(Clone)]
pub struct SimFabric {
    pub(crate) network: Network,
    pub(crate) client: ClientId,
}

impl SimFabric {
    /// Returns whether any memory was damaged in this run.
    pub fn rots(&self) -> bool {
        self.network.memories().rots()
    }

    /// Returns whether any memory node has fenced this client.
    pub fn is_fenced(&self) -> bool {
        self.network.memories().has_fenced(self.client)
    }

    /// Makes the fabric of a client.
    pub fn new(network: &Network, client: ClientId) -> SimFabric {
        SimFabric { network: network.clone(), client }
    }
}

/// A batch in flight on the simulated fabric.
pub(crate) struct BatchFlight {
    fabric: SimFabric,
    batch: RefCell<VerbBatch>,
    lanes: RefCell<Vec<NodeLane>>,
    /// Number of the batch's lanes whose completions have not reached the client.
    left: Cell<usize>,
    waker: RefCell<Option<Waker>>,
    /// Whether the client no longer waits for the batch, because it has crashed or has given up these verbs.
    orphaned: Cell<bool>,
    /// The number that switches use for the batch's first verb; 0 if there are no switches.
    number: u64,
    /// Whether the batch consists of verbs that a client has given up.
    late: bool,
}

/// The lane of one node in a batch: its verbs and their progress.
struct NodeLane {
    node: MnId,
    /// Indices of the verbs that are not finished, in reverse order: the current one is last.
    verbs: Vec<usize>,
    /// Remaining pieces of the current verb, in reverse order; empty if the verb has not begun.
    pieces: Vec<Range<usize>>,
    posted: Nanos,
    state: LaneState,
    /// The number of times that a switch has held the lane's verbs so far; `None` if no switch is on the link.
    switched: Option<u32>,
    /// The number of the lane's valid event. When a link is released, the lane gets an earlier event with the next
    /// number, and the event with the old number is ignored.
    turn: u32,
    /// Whether the lane waits for the release of a held link.
    parked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneState {
    /// The verbs are on the way to the switch, which this many of them have passed.
    Sent(usize),
    /// The current verb has not begun: the verbs are on the way to the node, or the previous verb has just finished.
    Waiting,
    /// Some of the pieces into which the current verb is cut have executed.
    Begun,
    /// All verbs have executed, and the completions are on the way back to the switch.
    Answering,
    /// All verbs have executed or failed, and the completions are on the way back to the client.
    Returning,
    Done,
}

impl Fabric for SimFabric {
    async fn execute(&self, batch: VerbBatch) -> VerbBatch {
        if self.is_immediate() {
            return self.execute_here(batch).await;
        }
        if self.network.options().testbed.is_some() {
            return self.ride(batch).await;
        }
        let flight = BatchFlight::new(self, batch);
        if self.network.options().stepwise {
            poll_fn(|context| flight.step_any(context)).await;
            return flight.batch.take();
        }
        flight.launch();
        let guard = FlightGuard(&flight);
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

    /// Returns false, without executing anything, if the batch could not be interrupted between two verbs. Then the
    /// caller uses [`Fabric::execute`].
    fn execute_now(&self, batch: &mut VerbBatch) -> bool {
        self.is_immediate() && self.execute_on_stack(batch)
    }

    fn is_immediate(&self) -> bool {
        self.network.options().immediate
    }

    fn may_steer(&self) -> bool {
        !self.is_immediate() && self.network.switches().is_some()
    }

    fn waits_for_reads(&self) -> bool {
        let options = self.network.options();
        options.cards && !options.immediate
    }
}

/// Returns whether a batch has a READ that is posted behind a WRITE for the same node.
fn reads_behind_a_write(verbs: &[Verb]) -> bool {
    let is_write = |verb: &Verb| matches!(verb.op, VerbOp::Write { .. });
    let writes = verbs.iter().enumerate().filter(|(_, verb)| is_write(verb));
    let mut writes = writes.map(|(at, write)| (&verbs[at + 1..], write.node));
    writes.any(|(behind, node)| behind.iter().any(|verb| verb.is_read() && verb.node == node))
}

/// A guard that is dropped with its future when the client crashes.
struct FlightGuard<'f>(&'f BatchFlight);

impl Drop for FlightGuard<'_> {
    fn drop(&mut self) {
        self.0.orphan();
    }
}

impl BatchFlight {
    fn new(fabric: &SimFabric, batch: VerbBatch) -> Rc<BatchFlight> {
        let network = &fabric.network;
        let has = |is: fn(&VerbOp) -> bool| batch.verbs().iter().any(|verb| is(&verb.op));
        if has(|op| matches!(op, VerbOp::Write { .. }))
            && has(|op| matches!(op, VerbOp::Cas { .. }))
        {
            count(&network.sim().counts().speculations);
        }
        if fabric.waits_for_reads() && reads_behind_a_write(batch.verbs()) {
            count(&network.sim().counts().writes_before_reads);
        }
        let mut lanes: Vec<NodeLane> = Vec::new();
        for (i, verb) in batch.verbs().iter().enumerate() {
            match lanes.iter_mut().find(|l| l.node == verb.node) {
                Some(lane) => lane.verbs.push(i),
                None => lanes.push(NodeLane {
                    node: verb.node,
                    verbs: vec![i],
                    pieces: Vec::new(),
                    posted: network.sim().now(),
                    state: LaneState::Waiting,
                    switched: None,
                    turn: 0,
                    parked: false,
                }),
            }
        }
        lanes.iter_mut().for_each(|l| l.verbs.reverse());
        let mut number = 0;
        if let Some(switches) = network.switches() {
            number = switches.number(batch.verbs().len());
            for lane in &mut lanes {
                if switches.is_on(fabric.client, lane.node) {
                    (lane.state, lane.switched) = (LaneState::Sent(0), Some(0));
                }
            }
        }
        Rc::new(BatchFlight {
            fabric: fabric.clone(),
            batch: RefCell::new(batch),
            left: Cell::new(lanes.len()),
            lanes: RefCell::new(lanes),
            waker: RefCell::default(),
            orphaned: Cell::new(false),
            number,
            late: false,
        })
    }

    /// Puts the unfinished verbs of a lane that the client has given up into a batch of their own, which executes
    /// later.
    fn leave_behind(&self, lane: &NodeLane) {
        let mut batch = VerbBatch::new();
        {
            let given_up = self.batch.borrow();
            for verb in lane.verbs.iter().rev().map(|i| given_up.verbs()[*i]) {
                let node = verb.node;
                let offset = verb.offset;
                match verb.op {
                    VerbOp::Read { .. } => {}
                    VerbOp::Write { buf } => {
                        let span = batch.stage(buf.len);
                        batch.bytes_mut(span).copy_from_slice(given_up.bytes(buf));
                        batch.write(node, offset, span);
                    }
                    VerbOp::Cas { expected, swap, .. } => {
                        let _ticket = batch.cas(node, offset, expected, swap);
                    }
                    VerbOp::Faa { add, .. } => {
                        let _ticket = batch.faa(node, offset, add);
                    }
                }
            }
        }
        if !batch.verbs().is_empty() {
            count(&self.sim().counts().late_batches);
            let flight = BatchFlight::new(&self.fabric, batch);
            let flight =
                Rc::new(BatchFlight { late: true, ..Rc::into_inner(flight).expect("it is new") });
            flight.orphaned.set(true);
            self.sim().schedule(1, SimEvent::Lane { flight, lane: 0, turn: 0 });
        }
    }

    /// Sends the batch's lanes to their memory nodes.
    fn launch(self: &Rc<BatchFlight>) {
        let sim = self.sim();
        let client = self.fabric.client;
        for (number, lane) in self.lanes.borrow().iter().enumerate() {
            let delay = self.fabric.network.wire(client, lane.node);
            self.fabric.network.links().arrival(client, lane.node, sim.now() + delay);
            // A switch is half-way between client and node.
            let delay = if lane.switched.is_some() { delay / 2 } else { delay };
            sim.schedule(delay, SimEvent::Lane { flight: self.clone(), lane: number, turn: 0 });
        }
    }

    /// Takes one step of a random lane. Returns `Ready` when all lanes are done.
    fn step_any(&self, context: &Context<'_>) -> Poll<()> {
        if self.left.get() == 0 {
            return Poll::Ready(());
        }
        let mut lanes = self.lanes.borrow_mut();
        let open = lanes.iter_mut().filter(|l| l.state != LaneState::Done);
        let lane = open.into_iter().nth(self.sim().rng().below(self.left.get()));
        let lane = lane.expect("as many as are left");
        self.advance(lane);
        if lane.state == LaneState::Returning {
            lane.state = LaneState::Done;
            self.left.set(self.left.get() - 1);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn sim(&self) -> &Sim {
        self.fabric.network.sim()
    }

    /// Handles the crash of the client. Verbs that the client's NIC has not sent yet are never sent.
    fn orphan(&self) {
        self.orphaned.set(true);
        let rng = self.sim().rng();
        let is_sent =
            |l: &&mut NodeLane| matches!(l.state, LaneState::Sent(_) | LaneState::Waiting);
        for lane in self.lanes.borrow_mut().iter_mut().filter(is_sent) {
            if rng.one_in(2) {
                // The list is in reverse order, so its beginning has the verbs that would be sent last.
                let unsent = rng.below(lane.verbs.len() + 1);
                if unsent > 0 {
                    count(&self.sim().counts().cut_batches);
                }
                lane.verbs.drain(..unsent);
            }
        }
    }

    /// Lets a lane try again now, because the link that it waits for has changed.
    pub(crate) fn unpark(self: Rc<BatchFlight>, lane: usize) {
        let turn = {
            let lane = &mut self.lanes.borrow_mut()[lane];
            if !std::mem::take(&mut lane.parked) {
                return;
            }
            lane.turn += 1;
            lane.turn
        };
        self.sim().schedule(1, SimEvent::Lane { flight: self.clone(), lane, turn });
    }

    /// Takes one step of a lane, if `turn` is still the number of the lane's valid event.
    pub(crate) fn step(self: Rc<BatchFlight>, lane: usize, turn: u32) {
        let mut lanes = self.lanes.borrow_mut();
        if lanes[lane].turn != turn {
            return;
        }
        let next = self.advance(&mut lanes[lane]);
        if lanes[lane].parked {
            self.fabric.network.links().park(
                self.fabric.client,
                lanes[lane].node,
                Rc::downgrade(&self),
                lane,
            );
        }
        drop(lanes);
        if let Some(delay) = next {
            self.sim().schedule(delay, SimEvent::Lane { flight: self.clone(), lane, turn });
        } else if self.left.replace(self.left.get() - 1) == 1
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// Takes one step of a lane. Returns the delay until the next step, or `None` once the client has the completions.
    fn advance(&self, lane: &mut NodeLane) -> Option<Nanos> {
        lane.parked = false;
        if lane.state == LaneState::Returning {
            lane.state = LaneState::Done;
            return None;
        }
        if lane.state == LaneState::Answering {
            return Some(self.pass_back(lane));
        }
        if let LaneState::Sent(passed) = lane.state {
            return Some(self.pass_there(lane, passed));
        }
        let Some(current) = lane.verbs.last().copied() else { return Some(self.send_back(lane)) };
        let now = self.sim().now();
        if let Some(delay) = self.obstacle(lane, now) {
            return Some(delay);
        }
        let mut batch = self.batch.borrow_mut();
        let (verbs, bytes) = batch.parts_mut();
        let verb = &mut verbs[current];
        if lane.state == LaneState::Waiting {
            lane.state = LaneState::Begun;
        }
        let forged = lane.switched.and_then(|_| self.forged(current));
        if self.fabric.execute_forged(forged, verb, bytes, &mut lane.pieces) {
            lane.verbs.pop();
            lane.pieces.clear();
            lane.state = LaneState::Waiting;
            self.sim().counts().note_verb(verb);
            if self.late {
                count(&self.sim().counts().late_verbs);
            }
        }
        drop(batch);
        if lane.verbs.is_empty() { Some(self.send_back(lane)) } else { Some(self.gap()) }
    }

    /// Returns the change that a switch has made to this CAS, if a switch has changed the verb.
    fn forged(&self, verb: usize) -> Option<ForgedCas> {
        self.fabric.network.switches()?.forged(self.number + verb as u64)
    }

    /// Passes the lane's verbs through the switch. Returns the delay until the verbs reach the node, or until the lane
    /// tries again to pass a switch that has held a verb.
    fn pass_there(&self, lane: &mut NodeLane, passed: usize) -> Nanos {
        let network = &self.fabric.network;
        let client = self.fabric.client;
        let switches = network.switches().expect("it was there when this was posted");
        let mut batch = self.batch.borrow_mut();
        let (verbs, bytes) = batch.parts_mut();
        let held = lane.switched.get_or_insert(0);
        for (at, i) in lane.verbs.iter().rev().enumerate().skip(passed) {
            let counts = self.sim().counts();
            let number = self.number + *i as u64;
            let goes_on = switches.pass(counts, client, &mut verbs[*i], bytes, number);
            if !goes_on && *held < HELD_TIMES {
                *held += 1;
                lane.state = LaneState::Sent(at);
                return HELD_NS;
            }
        }
        lane.state = LaneState::Waiting;
        network.wire(client, lane.node) / 2
    }

    /// Passes the lane's answers through the switch. Returns the delay until the answers reach the client.
    fn pass_back(&self, lane: &mut NodeLane) -> Nanos {
        let network = &self.fabric.network;
        let client = self.fabric.client;
        let switches = network.switches().expect("it was there when this was posted");
        let batch = self.batch.borrow();
        let of_lane = batch.verbs().iter().enumerate().filter(|(_, verb)| verb.node == lane.node);
        for (i, verb) in of_lane {
            switches.come_back(client, verb, self.number + i as u64);
        }
        lane.state = LaneState::Returning;
        network.wire(client, lane.node) / 2
    }

    /// Returns the delay until the lane tries again, if its node or link keeps it from executing now.
    fn obstacle(&self, lane: &mut NodeLane, now: Nanos) -> Option<Nanos> {
        let client = self.fabric.client;
        let node = lane.node;
        let options = self.fabric.network.options();
        let overdue = lane.posted + options.verb_timeout_ns;
        let known =
            self.fabric.network.memories().with(node, |m| (m.process, m.fenced.contains(&client)));
        let Some((process, fenced)) = known else {
            return Some(self.fail(lane, VerbError::Unreachable, 0));
        };
        if fenced {
            let refused = lane.verbs.len() as u64;
            let counter = &self.sim().counts().fenced_verbs;
            counter.set(counter.get() + refused);
            return Some(self.fail(lane, VerbError::Fenced, 0));
        }
        if self.fabric.network.links().is_broken(client, node) && !self.late {
            return Some(self.fail(lane, VerbError::Unreachable, 0));
        }
        let held = self.fabric.network.links().held_until(client, node);
        let stopped = options.nic_in_process && self.sim().is_stopped(process);
        if held <= now && !stopped {
            return None;
        }
        if now >= overdue && !self.late {
            if options.late_verbs {
                self.leave_behind(lane);
            }
            // A verb that was given up must not execute later, except as a late verb. Therefore the queue pair goes
            // into error.
            self.fabric.network.links().break_link(client, node);
            return Some(self.fail(lane, VerbError::Unreachable, 0));
        }
        lane.parked = held > now;
        let until = if stopped { 10_000 } else { held - now };
        Some(if self.late { until } else { (overdue - now).min(until) }.max(1))
    }

    /// Draws the time between two pieces: mostly almost none, sometimes as long as a phase.
    fn gap(&self) -> Nanos {
        let rng = self.sim().rng();
        if self.fabric.network.options().delays {
            rng.below_u64(rng.pick(&[16, 64, 512, 2048]))
        } else {
            0
        }
    }

    /// Fails the remaining verbs of the lane, which never execute. On a network of NICs one completion reports the
    /// whole lane, so the results of verbs that have executed are unknown as well.
    fn fail(&self, lane: &mut NodeLane, error: VerbError, delay: Nanos) -> Nanos {
        let mut batch = self.batch.borrow_mut();
        let (verbs, _) = batch.parts_mut();
        for i in lane.verbs.drain(..) {
            verbs[i].result = Err(error);
        }
        if self.fabric.waits_for_reads() {
            let of_lane = verbs.iter_mut().filter(|verb| verb.node == lane.node);
            let executed = of_lane.filter(|verb| verb.result.is_ok());
            for verb in executed {
                verb.result = Err(error);
                count(&self.sim().counts().unheard_verbs);
            }
        }
        drop(batch);
        lane.state = LaneState::Returning;
        delay + self.fabric.network.wire(self.fabric.client, lane.node)
    }

    /// Sends the completions of a lane. Returns the delay until the next step.
    fn send_back(&self, lane: &mut NodeLane) -> Nanos {
        lane.state = LaneState::Returning;
        let options = self.fabric.network.options();
        let one_in = options.lost_completions_one_in;
        let is_mute = self.fabric.network.links().is_mute(self.fabric.client, lane.node);
        let is_lost = || is_mute || one_in > 0 && self.sim().rng().one_in(one_in);
        if !self.orphaned.get() && is_lost() {
            count(&self.sim().counts().lost_completions);
            let mut batch = self.batch.borrow_mut();
            let of_lane = batch.parts_mut().0.iter_mut().filter(|v| v.node == lane.node);
            of_lane.for_each(|v| v.result = Err(VerbError::Unreachable));
            self.fabric.network.links().break_link(self.fabric.client, lane.node);
            self.sim().note(&[5, u64::from(lane.node.0)], || {
                format!("{}: the completion from {} is lost", self.fabric.client, lane.node)
            });
            return options.verb_timeout_ns;
        }
        let wire = self.fabric.network.wire(self.fabric.client, lane.node);
        if lane.switched.is_none() {
            return wire;
        }
        lane.state = LaneState::Answering;
        wire / 2
    }
}
