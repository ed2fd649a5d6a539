//! A whole simulated cluster: memory nodes, a master, and clients.
//!
//! All of them run the logic of the real programs, unchanged. The cluster forms as a real one does: nodes join, the
//! master plans and reserves memory, and sessions open with the resulting view.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_client::logic::{
    Keeper, KeeperTiming, LogicOptions, OpenReply, SessionGate, SessionHost, SessionLogic,
};
use fusee_client::{ConnectError, Policy};
use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_control::node::{BlockId, NodeReply, NodeRequest};
use fusee_core::Store;
use fusee_core::data::Redundancy;
use fusee_core::layout::first_extent;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Geometry, View};
use fusee_master::ClusterSettings;
use fusee_master::settings::LeaseSettings;
use fusee_memory_node::logic::{HeartbeatReply, NodeLogic};
use tokio::sync::oneshot;

use crate::check::entries::LiveEntries;
use crate::control::{ControlNetwork, NoAnswer, OpenDirections};
use crate::counts::count;
use crate::danger::Dangers;
use crate::engine::{Nanos, ProcessId, Sim};
use crate::environment::{SimEnvironment, SimMasterLink, SimSession, error};
use crate::executor::Executor;
use crate::fabric::SimFabric;
use crate::network::{Network, NetworkOptions};
use crate::servers::{MasterHost, NodeHost};

/// Options of a simulated cluster. The defaults make conflicts common.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// Number of memory nodes, 1 to 5.
    pub memory_nodes: u16,
    /// Replicas of each subtable, 1 to `memory_nodes`.
    pub index_replicas: u8,
    /// Replicas of each region, 1 to `memory_nodes`.
    pub data_replicas: u8,
    /// Number of keys for which the index is sized.
    pub index_keys: u64,
    /// Sizes of regions, blocks and subtables. The default is small: the two combined buckets of a key are half of the
    /// index.
    pub geometry: Geometry,
    /// Bytes that each node lends.
    pub pool_bytes: u64,
    /// Options of the sessions.
    pub session: LogicOptions,
    /// Milliseconds after which a silent process is expelled. With `None`, no process is ever expelled, even if its
    /// connection is closed.
    pub lease_ms: Option<u64>,
    /// Milliseconds after which a process with a closed connection is expelled.
    pub grace_ms: u64,
    /// Bytes per second that moves of replicas copy between nodes.
    pub move_bytes_per_s: u64,
    /// Bytes per second that the master reads to find damage; 0 turns scrubbing off.
    pub scrub_bytes_per_s: u64,
    /// The redundancy policy that the master tells sessions.
    pub policy: Policy,
}

impl ClusterOptions {
    /// Returns the times after which a silent or disconnected process counts as dead.
    pub(crate) fn lease(&self) -> LeaseSettings {
        match self.lease_ms {
            Some(lease_ms) => LeaseSettings { lease_ms, grace_ms: self.grace_ms },
            None => LeaseSettings { lease_ms: u64::MAX, grace_ms: u64::MAX },
        }
    }
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            memory_nodes: 3,
            index_replicas: 3,
            data_replicas: 2,
            index_keys: 1,
            geometry: Geometry {
                region_bytes: 1 << 17,
                block_bytes: 1 << 12,
                slots_per_bucket: 2,
                groups_per_subtable: 2,
                max_key_bytes: 64,
                max_value_bytes: 1024,
            },
            pool_bytes: 1 << 20,
            session: LogicOptions {
                cache_entries: 100,
                cache_threshold: 0.5,
                op_timeout: Duration::from_secs(5),
                spins: false,
                redundancy: None,
            },
            lease_ms: None,
            grace_ms: 1,
            move_bytes_per_s: 1 << 30,
            scrub_bytes_per_s: 0,
            policy: Policy::default(),
        }
    }
}

/// A simulated cluster. Clones share it, and are useless once the original is dropped.
pub struct SimCluster(Rc<SimClusterInner>, SimClusterOwnership);

/// The part of a [`SimCluster`] that breaks a cycle of references: scheduled events hold clones of the cluster, which
/// holds the events. Dropping the owner drops the events.
#[derive(PartialEq)]
enum SimClusterOwnership {
    Owner,
    Sharer,
}

impl Clone for SimCluster {
    fn clone(&self) -> SimCluster {
        SimCluster(self.0.clone(), SimClusterOwnership::Sharer)
    }
}

impl Drop for SimCluster {
    fn drop(&mut self) {
        if self.1 == SimClusterOwnership::Owner {
            self.0.sim.forget_events();
            self.0.master.forget_requests();
        }
    }
}

struct SimClusterInner {
    sim: Sim,
    network: Network,
    control: ControlNetwork,
    dangers: Dangers,
    options: ClusterOptions,
    master: MasterHost,
    nodes: RefCell<Vec<Rc<NodeHost>>>,
    /// The view that new sessions follow.
    view: RefCell<Option<View>>,
    /// Whether the checkers of entries and reuse are on.
    watches: Cell<bool>,
    next_process: Cell<u32>,
}

/// The number of steps that a message takes in a stepwise cluster is random and below this number.
const MESSAGE_STEPS: usize = 8;
/// Pause before a node asks the master again to let it join, in nanoseconds.
const JOIN_PAUSE_NS: Nanos = 1_000_000;
/// Greatest number of events until a cluster has formed.
const FORMING_EVENTS: u64 = 1_000_000;

fn nanos(milliseconds: u64) -> Nanos {
    milliseconds.saturating_mul(1_000_000)
}

impl SimCluster {
    /// Makes an empty cluster that has formed.
    ///
    /// # Panics
    /// If the options contradict each other.
    pub fn new(sim: &Sim, options: &ClusterOptions) -> SimCluster {
        SimCluster::with_network(sim, options, NetworkOptions::default())
    }

    /// Makes an empty cluster that has formed, on a network with these options.
    ///
    /// # Panics
    /// If the options contradict each other.
    pub fn with_network(
        sim: &Sim,
        options: &ClusterOptions,
        network: NetworkOptions,
    ) -> SimCluster {
        let settings = ClusterSettings {
            memory_nodes: options.memory_nodes.into(),
            index_replicas: options.index_replicas,
            data_replicas: options.data_replicas,
            index_keys: options.index_keys,
            geometry: options.geometry,
            lease: options.lease(),
            move_bytes_per_s: options.move_bytes_per_s,
            scrub_bytes_per_s: options.scrub_bytes_per_s,
            redundancy: options.policy,
        };
        settings.check().expect("the simulated cluster is possible");
        let inner = SimClusterInner {
            sim: sim.clone(),
            network: Network::new(sim, network),
            control: ControlNetwork::new(sim),
            dangers: Dangers::default(),
            options: *options,
            master: MasterHost::new(settings, sim.process("master")),
            nodes: RefCell::default(),
            view: RefCell::default(),
            watches: Cell::new(true),
            next_process: Cell::new(0),
        };
        let cluster = SimCluster(Rc::new(inner), SimClusterOwnership::Owner);
        let testbed = network.testbed;
        cluster.control().message_ns.set(testbed.map(|testbed| testbed.message_ns));
        cluster.master().start(&cluster);
        for _ in 0..options.memory_nodes {
            cluster.start_node();
        }
        sim.run_until(FORMING_EVENTS, || cluster.master().view().is_some());
        cluster.first_signs_of_life();
        let hearing = cluster.clone();
        sim.on_crash(move |process| hearing.process_crashed(process));
        cluster
    }

    /// Makes an empty, formed cluster in which no time passes ([`NetworkOptions::stepwise`]).
    pub fn stepwise(sim: &Sim, options: &ClusterOptions) -> SimCluster {
        let cluster = SimCluster::new(sim, options);
        let network = &cluster.0.network;
        network.set_options(NetworkOptions { stepwise: true, ..network.options() });
        cluster
    }

    /// Returns the simulator run that the cluster belongs to.
    pub fn sim(&self) -> &Sim {
        &self.0.sim
    }

    /// Returns the pools of the memory nodes, and the links to them.
    pub fn network(&self) -> &Network {
        &self.0.network
    }

    pub(crate) fn control(&self) -> &ControlNetwork {
        &self.0.control
    }

    pub(crate) fn dangers(&self) -> &Dangers {
        &self.0.dangers
    }

    pub(crate) fn master(&self) -> &MasterHost {
        &self.0.master
    }

    /// Returns the client id under which the master runs a job, if a job runs.
    pub fn repairer(&self) -> Option<ClientId> {
        self.master().at_work()
    }

    /// Returns the options of the cluster.
    pub fn options(&self) -> &ClusterOptions {
        &self.0.options
    }

    /// Returns the view that new sessions follow.
    pub fn view(&self) -> Ref<'_, View> {
        Ref::map(self.0.view.borrow(), |view| view.as_ref().expect("the cluster is formed"))
    }

    /// Makes new sessions follow this view, whatever view the master has, and checks the entries in its primaries. For
    /// tests that stand in for the master.
    ///
    /// # Panics
    /// If the entries already break an invariant.
    pub fn set_view(&self, view: View) {
        self.view_begins(&view);
    }

    /// Takes over a view that the master has stored.
    pub(crate) fn view_begins(&self, view: &View) {
        if self.0.watches.get() {
            self.0.network.watch(LiveEntries::new(self.0.network.memories(), view));
            self.0.network.reuse().follow(Some(view));
        }
        *self.0.view.borrow_mut() = Some(view.clone());
    }

    /// Records that a dead session is recovered, so that none of its operations counts as running. For tests that stand
    /// in for the master.
    pub fn recovered(&self, client: ClientId) {
        self.0.network.reuse().note_recovered(client);
    }

    /// Tells the checkers that an epoch begins. For tests that stand in for the master.
    pub fn epoch_begins(&self, epoch: u64) {
        self.0.network.reuse().epoch(epoch);
    }

    /// Stops the checks of entries and of reuse for this view and all later ones. For tests that lose the last replica
    /// of something.
    pub fn never_watch(&self) {
        self.0.watches.set(false);
        self.stop_watching();
    }

    /// Stops the checks of entries and of reuse until the next view. For tests that write what no client would write.
    pub fn stop_watching(&self) {
        self.0.network.watch(LiveEntries::default());
        self.0.network.reuse().follow(None);
    }

    /// Returns the keys that a reader of the primaries could now find, in order.
    ///
    /// # Panics
    /// If a key is live twice, if an entry leads to no object, or if the entries differ from those that the checker has
    /// tracked.
    pub fn live_keys(&self) -> Vec<Vec<u8>> {
        let keys = LiveEntries::new(self.0.network.memories(), &self.view()).keys();
        assert_eq!(keys, self.0.network.watched().keys(), "an entry changed behind its slot");
        keys
    }

    /// Adds a client process.
    pub fn client_process(&self) -> ProcessId {
        let number = self.0.next_process.get();
        self.0.next_process.set(number + 1);
        self.0.sim.process(format!("client process {number}"))
    }

    /// Starts a memory node, which then joins the cluster.
    pub fn start_node(&self) {
        let number = self.0.nodes.borrow().len() as u64;
        let process = self.0.sim.process(format!("memory node {number}"));
        let host = Rc::new(NodeHost::new(process, number, self.0.options.pool_bytes));
        self.0.nodes.borrow_mut().push(host.clone());
        if self.0.view.borrow().is_some() {
            count(&self.0.sim.counts().joined_nodes);
        }
        self.join(host.clone());
        if !self.0.network.options().stepwise {
            let again = self.clone();
            self.0.sim.spawn(process, async move { again.stay(&host).await });
        }
    }

    /// Sends two heartbeats of every node, so that sessions have valid leases from the start.
    fn first_signs_of_life(&self) {
        let nodes = self.0.nodes.borrow().clone();
        for host in nodes.iter().chain(&nodes) {
            let again = self.clone();
            let of_reply = host.clone();
            let reply = move |reply| {
                if let MasterReply::Noted { note, lease_ms } = reply {
                    of_reply.hear(&again, note, lease_ms);
                }
            };
            let (heard, bars) = host.heard();
            let alive = MasterRequest::Alive { identity: host.identity, heard, bars };
            self.master().request(self, Some(host.process), alive, Box::new(reply));
        }
    }

    /// Sends a memory node's heartbeats. If the cluster has expelled the node, an empty node replaces it.
    async fn stay(&self, host: &NodeHost) {
        let deadline = nanos(self.0.options.lease().hold_ms()) * 2;
        loop {
            let (heard, bars) = host.heard();
            let alive = MasterRequest::Alive { identity: host.identity, heard, bars };
            let answer = self.ask_master(host.process, alive, deadline).await;
            match answer.map(|reply| HeartbeatReply::of(&reply, host.holds_of())) {
                Ok(HeartbeatReply::Noted(note, lease_ms)) => {
                    host.hear(self, note, lease_ms);
                    self.0.sim.sleep(1_000_000).await;
                }
                Ok(HeartbeatReply::Expelled) if host.name.get().is_some() => {
                    self.replace_node(host);
                    return;
                }
                Ok(HeartbeatReply::Drained) => {
                    count(&self.0.sim.counts().drained_nodes);
                    return self.end_node(host);
                }
                _ => self.0.sim.sleep(1_000_000).await,
            }
        }
    }

    fn replace_node(&self, host: &NodeHost) {
        self.end_node(host);
        self.start_node();
    }

    fn end_node(&self, host: &NodeHost) {
        self.0.sim.crash(host.process);
        if let Some(node) = host.name.get() {
            self.0.network.memories().remove(node);
        }
    }

    /// Breaks the connection of a crashed process to the master. In most cases the master notices this.
    fn process_crashed(&self, process: ProcessId) {
        let master = self.0.master.process.get();
        let control = &self.0.control;
        let noticed = control.lost_one_in.get() == 0 || !self.0.sim.rng().one_in(4);
        if process == master || !noticed || !control.reaches_master(process) {
            return;
        }
        let cluster = self.clone();
        self.0.sim.after(20_000, move || cluster.master().closed(&cluster, process));
    }

    fn join(&self, host: Rc<NodeHost>) {
        if host.name.get().is_some() || self.0.sim.is_crashed(host.process) {
            return;
        }
        let of_reply = self.clone();
        let joining = host.clone();
        self.call_master(host.process, host.join_request(), move |reply| {
            if let MasterReply::Joined { node } = reply {
                of_reply.named(&joining, node);
            }
        });
        let again = self.clone();
        self.0.sim.after(JOIN_PAUSE_NS, move || again.join(host));
    }

    /// Gives a node its number and its pool. The number comes with the answer to the node's join request, or with the
    /// first call of the master if that call comes earlier.
    pub(crate) fn named(&self, host: &NodeHost, node: MnId) {
        if host.name.replace(Some(node)).is_none() {
            let pool = vec![0; (first_extent(host.pool_bytes) + host.pool_bytes) as usize];
            self.0.network.memories().add(node, host.process, pool);
            let (word, value) = NodeLogic::FIRST_WORD;
            self.0.network.memories().write_header(node, word, value);
        }
    }

    pub(crate) fn node_at(&self, control: &str) -> Option<Rc<NodeHost>> {
        self.0.nodes.borrow().iter().find(|host| host.control == control).cloned()
    }

    /// Returns the ids of all memory nodes with their processes, including crashed ones.
    pub fn node_processes(&self) -> Vec<(MnId, ProcessId)> {
        let nodes = self.0.nodes.borrow();
        nodes.iter().filter_map(|host| Some((host.name.get()?, host.process))).collect()
    }

    /// Returns the process of a node.
    pub(crate) fn process_of(&self, node: MnId) -> Option<ProcessId> {
        Some(self.host_of(node)?.process)
    }

    pub(crate) fn host_of(&self, node: MnId) -> Option<Rc<NodeHost>> {
        self.0.nodes.borrow().iter().find(|host| host.name.get() == Some(node)).cloned()
    }

    /// Crashes a memory node. The contents of its memory are lost.
    pub fn crash_node(&self, node: MnId) {
        if let Some(host) = self.host_of(node) {
            self.0.sim.crash(host.process);
            self.0.network.memories().remove(node);
        }
    }

    /// Returns whether any live memory node bars this one.
    pub(crate) fn is_barred(&self, node: MnId) -> bool {
        let nodes = self.0.nodes.borrow();
        let mut living = nodes.iter().filter(|host| !self.0.sim.is_crashed(host.process));
        living.any(|host| host.heard().1.bars.iter().any(|bar| bar.node == node))
    }

    /// Asks a node's logic directly, without passing time. For checks.
    pub fn peek_node(&self, node: MnId, request: NodeRequest) -> Option<NodeReply> {
        let host = self.host_of(node).filter(|h| !self.0.sim.is_crashed(h.process))?;
        Some(host.handle(self, request))
    }

    /// Asks the master's logic directly, without passing time. For checks. Returns `None` if the master cannot answer
    /// at once.
    pub fn peek_master(&self, request: MasterRequest) -> Option<MasterReply> {
        let answer = Rc::new(Cell::new(None));
        let of_reply = answer.clone();
        let reply = Box::new(move |reply| of_reply.set(Some(reply)));
        self.master().request(self, None, request, reply);
        answer.take()
    }

    /// Ends the master's process, and starts the master again from its store after `down`.
    pub fn restart_master(&self, down: Nanos) {
        if self.master().is_running() {
            self.master().crash(self);
        }
        let again = self.clone();
        self.0.sim.after(down, move || {
            if !again.master().is_running() {
                again.master().process.set(again.0.sim.process("master, restarted"));
                again.master().start(&again);
            }
        });
    }

    /// Sends a request to a node. `answer` gets the reply; if the node has crashed, `answer` gets an error soon after.
    /// If a message is lost, `answer` is never called.
    pub(crate) fn call_node(
        &self,
        to: ProcessId,
        open: OpenDirections,
        request: NodeRequest,
        answer: impl FnOnce(Result<NodeReply, String>) + 'static,
    ) {
        let cluster = self.clone();
        if self.0.sim.is_crashed(to) {
            self.0.sim.after(20_000, move || answer(Err("connection refused".into())));
            return;
        }
        // If a node does not answer `Describe`, the master treats the node as lost.
        let is_harmless = request != NodeRequest::Describe;
        let may_be_lost = || is_harmless || self.may_lose_question_to(to);
        let delay = match request {
            NodeRequest::OfJob { .. } => self.0.control.order_delay(to),
            _ => 0,
        };
        self.0.control.send(to, delay, open.requests, may_be_lost, move || {
            let nodes = cluster.0.nodes.borrow();
            let host = nodes.iter().find(|h| h.process == to).expect("a node's process").clone();
            drop(nodes);
            let name = host.name.get();
            let answer_it = {
                let cluster = cluster.clone();
                move || {
                    let reply = host.handle(&cluster, request);
                    let may_be_lost = || is_harmless || cluster.may_lose_question_to(to);
                    let answer = move || answer(Ok(reply));
                    cluster.0.control.send_back(open.answers, may_be_lost, answer);
                }
            };
            match cluster.0.network.options().testbed.and(name) {
                Some(node) => {
                    let now = cluster.0.sim.now();
                    let done = cluster.0.network.on_machines(|m| m.request(node, now));
                    cluster.0.sim.after(done - now, answer_it);
                }
                None => answer_it(),
            }
        });
    }

    fn call_master(
        &self,
        from: ProcessId,
        request: MasterRequest,
        answer: impl FnOnce(MasterReply) + 'static,
    ) {
        let cluster = self.clone();
        let open = self.0.control.reaches_master(from);
        let to = self.master().process.get();
        let says_alive = matches!(request, MasterRequest::Alive { .. });
        // A node that is cut off must reach the master again soon, unless the cluster is allowed to lose the node.
        let may_be_lost = || !says_alive || !open || self.may_lose_word_of(from);
        self.0.control.send(to, 0, open, may_be_lost, move || {
            if says_alive {
                cluster.heard(from);
            }
            let back = cluster.clone();
            let reply = move |reply| {
                let open = back.0.control.hears_master(from);
                let may_be_lost = || !says_alive || !open || back.may_lose_word_of(from);
                back.0.control.send_back(open, may_be_lost, move || answer(reply));
            };
            cluster.master().request(&cluster, Some(from), request, Box::new(reply));
        });
    }

    /// Sends the master a request whose answer is ignored.
    pub(crate) fn tell_master(&self, from: ProcessId, request: MasterRequest) {
        if !self.0.network.options().stepwise {
            self.call_master(from, request, drop);
        }
    }

    pub(crate) async fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Nanos,
    ) -> Result<NodeReply, NoAnswer> {
        let Some(host) = self.host_of(node) else { return Err(NoAnswer::Closed) };
        if self.0.network.options().stepwise {
            self.0.sim.idle(MESSAGE_STEPS).await;
            let crashed = self.0.sim.is_crashed(host.process);
            return if crashed { Err(NoAnswer::Closed) } else { Ok(host.handle(self, request)) };
        }
        let (sender, answer) = oneshot::channel();
        self.call_node(host.process, OpenDirections::BOTH, request, move |reply| {
            drop(sender.send(reply));
        });
        self.0.control.wait(answer, deadline).await?.map_err(|_| NoAnswer::Closed)
    }

    pub(crate) async fn ask_master(
        &self,
        from: ProcessId,
        request: MasterRequest,
        deadline: Nanos,
    ) -> Result<MasterReply, NoAnswer> {
        let (sender, answer) = oneshot::channel();
        if self.0.network.options().stepwise {
            self.0.sim.idle(MESSAGE_STEPS).await;
            if matches!(request, MasterRequest::Split { .. } | MasterRequest::MoreRoom { .. }) {
                // In a stepwise cluster the tests stand in for the master and decide about growth themselves.
                let reason = "the cluster keeps its size here".into();
                return Ok(MasterReply::Refused { reason });
            }
            let reply = Box::new(|reply| drop(sender.send(reply)));
            self.master().request(self, None, request, reply);
            return answer.await.map_err(|_| NoAnswer::Closed);
        }
        self.call_master(from, request, move |reply| drop(sender.send(reply)));
        self.0.control.wait(answer, deadline).await
    }

    /// Opens a session for a client process.
    pub async fn open(
        &self,
        process: ProcessId,
        options: LogicOptions,
    ) -> Result<SimSession, ConnectError> {
        self.open_heard(process, options, true).await
    }

    /// Opens a session, like [`SimCluster::open`], whose lease has already run out by its own clock.
    pub async fn open_unheard(
        &self,
        process: ProcessId,
        options: LogicOptions,
    ) -> Result<SimSession, ConnectError> {
        self.open_heard(process, options, false).await
    }

    /// Opens a session, with a valid lease if `is_heard`.
    async fn open_heard(
        &self,
        process: ProcessId,
        options: LogicOptions,
        is_heard: bool,
    ) -> Result<SimSession, ConnectError> {
        let asked_at = self.0.sim.clock_of(process);
        let asked = self.ask_master(process, MasterRequest::Open, 1_000_000).await;
        let reply = asked.map_err(|why| error("master".into(), why))?;
        let opened = OpenReply::from(reply)?;
        let client = opened.client;
        // In a stepwise cluster, tests stand in for the master.
        let gate = if self.0.network.options().stepwise {
            SessionGate::new(client, Arc::new(self.view().clone()), opened.epoch)
        } else if is_heard {
            opened.gate(asked_at)
        } else {
            SessionGate::new(client, Arc::new(opened.view), opened.epoch)
                .with_lease_end(Duration::ZERO)
        };
        let gate = Arc::new(gate);
        let env = Rc::new(SimEnvironment::new(self, process, client));
        let fabric = SimFabric::new(&self.0.network, client);
        self.0.network.on_machines(|machines| machines.seat(client, process));
        let view = gate.view();
        self.0.network.adopted(client, &view);
        Ok(SessionLogic::behind(gate, view, fabric, env, options))
    }

    /// Takes all orphaned blocks from the master, as a session would.
    ///
    /// # Panics
    /// If the master is not running.
    pub fn take_orphans(&self) -> BTreeMap<BlockId, Orphan> {
        let ask = |request| self.peek_master(request).expect("the master answers at once");
        let MasterReply::Opened { client, view, .. } = ask(MasterRequest::Open) else {
            panic!("the master does not open a session");
        };
        let redundancies: BTreeSet<Redundancy> =
            view.regions.iter().map(|r| r.redundancy()).collect();
        let view = view.number;
        let mut orphans = BTreeMap::new();
        for redundancy in redundancies {
            while let MasterReply::Orphan { orphan: Some(orphan), .. } =
                ask(MasterRequest::TakeOrphan {
                    client,
                    turn: 0,
                    adopted: vec![],
                    class: None,
                    redundancy,
                    full: true,
                    view,
                })
            {
                let before = orphans.insert(orphan.block, orphan);
                assert_eq!(before, None, "{orphan:?} is there twice");
            }
        }
        orphans
    }

    /// Starts a keeper for the sessions of a client process.
    pub fn keeper(&self, process: ProcessId, lease: Duration) -> Rc<Keeper> {
        let keeper = Rc::new(Keeper::new(self.view().clone(), KeeperTiming::for_lease(lease)));
        let link = SimMasterLink { cluster: self.clone(), process };
        let kept = keeper.clone();
        self.0.sim.spawn(process, async move { kept.keep(&link).await });
        keeper
    }

    /// Makes a client process with a session, for tests that run single operations.
    ///
    /// # Panics
    /// If the master does not open a session.
    pub fn client(&self) -> SimClient {
        self.client_in(self.client_process())
    }

    pub(crate) fn client_in(&self, process: ProcessId) -> SimClient {
        let session = self.block_on(process, self.open(process, self.0.options.session));
        SimClient { process, session: Rc::new(session.expect("the master opens sessions")) }
    }

    /// Makes a client process with a session whose lease has already run out by its own clock.
    ///
    /// # Panics
    /// If the master does not open a session.
    pub fn unheard_client(&self) -> SimClient {
        let process = self.client_process();
        let opening = self.open_heard(process, self.0.options.session, false);
        let session = self.block_on(process, opening);
        SimClient { process, session: Rc::new(session.expect("the master opens sessions")) }
    }

    /// Runs a future of a process to its end. No other task runs in the meantime.
    ///
    /// # Panics
    /// If the future does not end, or if the process crashes.
    pub fn block_on<T>(&self, process: ProcessId, future: impl Future<Output = T>) -> T {
        let result = Cell::new(None);
        let mut executor = Executor::new(&self.0.sim);
        executor.spawn(process, async { result.set(Some(future.await)) });
        executor.run(10_000_000, || ());
        drop(executor);
        result.into_inner().expect("the process has not crashed")
    }
}

/// The operations of a simulated session, without its index cache.
pub type SimStore = Store<SimFabric, SessionHost<SimEnvironment>>;

/// A client process with one session. Dereferences to the [`SimStore`] of the session.
pub struct SimClient {
    /// The process, in which tasks can be spawned.
    pub process: ProcessId,
    /// The session of the process.
    pub session: Rc<SimSession>,
}

impl Deref for SimClient {
    type Target = SimStore;

    fn deref(&self) -> &SimStore {
        self.session.store()
    }
}
