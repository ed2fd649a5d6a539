//! Hosts of the memory nodes' logic, which is the same as in the real servers.
//!
//! A host stands in for the other parts of the real server: it executes the logic's effects in order, lets the node
//! join, and sends its heartbeats.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fusee_control::master::{MasterReply, MasterReplyId, MasterRequest};
use fusee_control::node::{MemberBars, NodeDescription, NodeReply, NodeRequest};
use fusee_core::layout::first_extent;
use fusee_core::verbs::{ClusterId, MnId};
use fusee_memory_node::logic::{HeartbeatReply, NodeEffect, NodeLogic};

use crate::cluster::SimCluster;
use crate::control::{ControlNetwork, CutDirection, OpenDirections};
use crate::counts::count;
use crate::engine::{Nanos, ProcessId, Sim};
use crate::master::CLUSTER;
use crate::network::Network;

/// Pause before a node asks the master again to let it join, in nanoseconds.
const JOIN_PAUSE_NS: Nanos = 1_000_000;

/// The host of a memory node's logic.
pub(crate) struct NodeHost {
    pub process: ProcessId,
    pub control: String,
    pub identity: u64,
    pub pool_bytes: u64,
    pub name: Cell<Option<MnId>>,
    logic: RefCell<NodeLogic>,
    /// Milliseconds by which the node's clock has jumped ahead.
    ahead_ms: Cell<u64>,
}

impl NodeHost {
    pub fn new(process: ProcessId, number: u64, pool_bytes: u64) -> NodeHost {
        let identity = 1000 + number;
        let description =
            NodeDescription { identity, pool_bytes, tcp: None, shm: None, verbs: None };
        NodeHost {
            process,
            control: format!("node-{number}"),
            identity,
            pool_bytes,
            name: Cell::new(None),
            logic: RefCell::new(NodeLogic::new(description)),
            ahead_ms: Cell::new(0),
        }
    }

    pub fn join_request(&self) -> MasterRequest {
        MasterRequest::Join {
            identity: self.identity,
            control: self.control.clone(),
            tcp: None,
            shm: None,
            verbs: None,
            pool_bytes: self.pool_bytes,
        }
    }

    /// Returns the cluster whose data the node possibly still holds.
    pub fn holds_of(&self) -> Option<ClusterId> {
        self.logic.borrow().held_cluster()
    }

    /// Returns the part of a heartbeat that reports the id of the master's last reply that the node received, and the
    /// node's bars.
    pub fn heard(&self) -> (Option<MasterReplyId>, MemberBars) {
        self.logic.borrow().heartbeat_report()
    }

    /// Handles the master's answer to a heartbeat.
    pub fn hear(&self, sim: &Sim, note: MasterReplyId, lease_ms: u64) {
        let mut logic = self.logic.borrow_mut();
        logic.pass(self.now_ms(sim));
        logic.note_master_reply(note, lease_ms);
    }

    fn now_ms(&self, sim: &Sim) -> u64 {
        sim.clock_of(self.process).as_millis() as u64 + self.ahead_ms.get()
    }

    /// Makes the node's clock jump ahead by `ms` milliseconds.
    pub fn jump(&self, ms: u64) {
        self.ahead_ms.set(self.ahead_ms.get() + ms);
    }

    /// Handles a request, executes its effects, and returns the reply.
    pub fn handle(&self, cluster: &SimCluster, request: NodeRequest) -> NodeReply {
        cluster.sim().note(&[8, self.identity], || format!("{} asked: {request:?}", self.control));
        let step = {
            let mut logic = self.logic.borrow_mut();
            logic.pass(self.now_ms(cluster.sim()));
            logic.handle_from(Some(CLUSTER), request)
        };
        if let NodeReply::Barred { .. } = step.reply {
            count(&cluster.sim().counts().bars);
        }
        cluster
            .sim()
            .note(&[9, self.identity], || format!("{} answers: {:?}", self.control, step.reply));
        let node = self.name.get().expect("nobody knows a node before it has joined");
        for effect in step.effects {
            let network = cluster.network();
            match effect {
                NodeEffect::ZeroPool { offset, bytes } => {
                    let range = offset as usize..(offset + bytes) as usize;
                    network.memories().with(node, |memory| memory.pool[range].fill(0));
                }
                NodeEffect::PopulatePool { .. } => {}
                NodeEffect::WriteTable { offset, value } => {
                    let at = offset as usize;
                    let value = value.to_le_bytes();
                    network
                        .memories()
                        .with(node, |memory| memory.pool[at..at + 8].copy_from_slice(&value));
                }
                NodeEffect::WriteHeader { word, value } => {
                    network.memories().write_header(node, word, value);
                }
                NodeEffect::Living { living } => {
                    network.memories().with(node, |memory| memory.over.learn(&living));
                }
                NodeEffect::Fence { client } => network.fence(node, client),
            }
        }
        step.reply
    }
    /// Gives the node its id and its pool. The id comes with the answer to the node's join request, or with the first
    /// call of the master if that call comes earlier.
    pub fn take_name(&self, network: &Network, node: MnId) {
        if self.name.replace(Some(node)).is_none() {
            let pool = vec![0; (first_extent(self.pool_bytes) + self.pool_bytes) as usize];
            network.memories().add(node, self.process, pool);
            let (word, value) = NodeLogic::FIRST_WORD;
            network.memories().write_header(node, word, value);
        }
    }

    /// Asks the master again and again to let the node join, until the node has joined or crashed.
    pub fn join(self: Rc<NodeHost>, cluster: &SimCluster) {
        if self.name.get().is_some() || cluster.sim().is_crashed(self.process) {
            return;
        }
        let joining = self.clone();
        let network = cluster.network().clone();
        cluster.master().call(cluster, self.process, self.join_request(), move |reply| {
            if let MasterReply::Joined { node } = reply {
                joining.take_name(&network, node);
            }
        });
        let again = cluster.clone();
        cluster.sim().after(JOIN_PAUSE_NS, move || self.join(&again));
    }

    /// Returns a heartbeat of the node.
    pub fn heartbeat(&self) -> MasterRequest {
        let (heard, bars) = self.heard();
        MasterRequest::Alive { identity: self.identity, heard, bars }
    }

    /// Sends the node's heartbeats. If the cluster has expelled the node, an empty node replaces it.
    pub async fn stay(&self, cluster: &SimCluster) {
        let sim = cluster.sim();
        let deadline = cluster.options().lease().hold_ms().saturating_mul(1_000_000) * 2;
        loop {
            let alive = self.heartbeat();
            let answer = cluster.master().ask(cluster, self.process, alive, deadline).await;
            match answer.map(|reply| HeartbeatReply::of(&reply, self.holds_of())) {
                Ok(HeartbeatReply::Noted(note, lease_ms)) => {
                    self.hear(sim, note, lease_ms);
                    sim.sleep(1_000_000).await;
                }
                Ok(HeartbeatReply::Expelled) if self.name.get().is_some() => {
                    self.end(cluster);
                    cluster.start_node();
                    return;
                }
                Ok(HeartbeatReply::Drained) => {
                    count(&sim.counts().drained_nodes);
                    return self.end(cluster);
                }
                _ => sim.sleep(1_000_000).await,
            }
        }
    }

    /// Ends the node's process, and removes the node with its memory.
    fn end(&self, cluster: &SimCluster) {
        cluster.sim().crash(self.process);
        if let Some(node) = self.name.get() {
            cluster.network().memories().remove(node);
        }
    }

    /// Sends a request to the node. `answer` gets the reply; if the node has crashed, `answer` gets an error soon
    /// after. If a message is lost, `answer` is never called.
    pub fn call(
        self: Rc<NodeHost>,
        cluster: &SimCluster,
        open: OpenDirections,
        request: NodeRequest,
        answer: impl FnOnce(Result<NodeReply, String>) + 'static,
    ) {
        let to = self.process;
        if cluster.sim().is_crashed(to) {
            cluster.sim().after(20_000, move || answer(Err("connection refused".into())));
            return;
        }
        // If a node does not answer `Describe`, the master treats the node as lost.
        let is_harmless = request != NodeRequest::Describe;
        let may_be_lost = || is_harmless || cluster.dangers().may_lose_question_to(to);
        let delay = match request {
            NodeRequest::OfJob { .. } => cluster.control().order_delay(to),
            _ => 0,
        };
        let there = cluster.clone();
        cluster.control().send(to, delay, open.requests, may_be_lost, move || {
            let name = self.name.get();
            let back = there.clone();
            let answer_it = move || {
                let reply = self.handle(&back, request);
                let may_be_lost = || is_harmless || back.dangers().may_lose_question_to(to);
                let answer = move || answer(Ok(reply));
                back.control().send_back(open.answers, may_be_lost, answer);
            };
            match there.network().options().testbed.and(name) {
                Some(node) => {
                    let now = there.sim().now();
                    let done = there.network().hardware().on_machines(|m| m.request(node, now));
                    there.sim().after(done - now, answer_it);
                }
                None => answer_it(),
            }
        });
    }
}

/// The hosts of all memory nodes of a cluster, including crashed ones, and the faults of single nodes.
pub struct NodeHosts {
    sim: Sim,
    network: Network,
    control: Rc<ControlNetwork>,
    hosts: RefCell<Vec<Rc<NodeHost>>>,
}

impl NodeHosts {
    pub(crate) fn new(sim: &Sim, network: &Network, control: &Rc<ControlNetwork>) -> NodeHosts {
        NodeHosts {
            sim: sim.clone(),
            network: network.clone(),
            control: control.clone(),
            hosts: RefCell::default(),
        }
    }

    /// Adds a memory node in a process of its own.
    pub(crate) fn add(&self, pool_bytes: u64) -> Rc<NodeHost> {
        let number = self.hosts.borrow().len() as u64;
        let process = self.sim.process(format!("memory node {number}"));
        let host = Rc::new(NodeHost::new(process, number, pool_bytes));
        self.hosts.borrow_mut().push(host.clone());
        host
    }

    pub(crate) fn all(&self) -> Vec<Rc<NodeHost>> {
        self.hosts.borrow().clone()
    }

    /// Returns the node with this control address.
    pub(crate) fn at(&self, control: &str) -> Option<Rc<NodeHost>> {
        self.hosts.borrow().iter().find(|host| host.control == control).cloned()
    }

    pub(crate) fn host_of(&self, node: MnId) -> Option<Rc<NodeHost>> {
        self.hosts.borrow().iter().find(|host| host.name.get() == Some(node)).cloned()
    }

    /// Returns the process of a node.
    pub(crate) fn process_of(&self, node: MnId) -> Option<ProcessId> {
        Some(self.host_of(node)?.process)
    }

    /// Returns the ids of all memory nodes with their processes, including crashed ones.
    pub fn processes(&self) -> Vec<(MnId, ProcessId)> {
        let hosts = self.hosts.borrow();
        hosts.iter().filter_map(|host| Some((host.name.get()?, host.process))).collect()
    }

    /// Returns whether any live memory node bars this one.
    pub(crate) fn is_barred(&self, node: MnId) -> bool {
        let hosts = self.hosts.borrow();
        let mut living = hosts.iter().filter(|host| !self.sim.is_crashed(host.process));
        living.any(|host| host.heard().1.bars.iter().any(|bar| bar.node == node))
    }

    /// Crashes a memory node. The contents of its memory are lost.
    pub fn crash(&self, node: MnId) {
        if let Some(host) = self.host_of(node) {
            self.sim.crash(host.process);
            self.network.memories().remove(node);
        }
    }

    /// Makes the clock of a memory node jump ahead by `ms` milliseconds.
    pub fn jump_clock(&self, node: MnId, ms: u64) {
        if let Some(host) = self.host_of(node) {
            host.jump(ms);
        }
    }

    /// Tells a memory node a lease, as a master whose messages reach only this node would.
    pub fn tell_lease(&self, node: MnId, lease_ms: u64) {
        if let Some(host) = self.host_of(node) {
            host.hear(&self.sim, MasterReplyId { by: 0, at_ms: 0 }, lease_ms);
        }
    }

    /// Delays requests of the master's jobs to a memory node for `time`.
    pub fn hold_orders(&self, node: MnId, time: Nanos) {
        if let Some(process) = self.process_of(node) {
            self.control.hold_orders(process, time);
        }
    }

    /// Cuts a memory node and the master off from each other.
    pub fn cut_off(&self, node: MnId) {
        if let Some(process) = self.process_of(node) {
            self.control.cut_off(process, Some(CutDirection::Both));
        }
    }

    /// Ends the cut between a memory node and the master.
    pub fn reconnect(&self, node: MnId) {
        if let Some(process) = self.process_of(node) {
            self.control.cut_off(process, None);
        }
    }
}
