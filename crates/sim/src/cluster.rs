//! A whole simulated cluster: memory nodes, a master, and clients.
//!
//! All of them run the logic of the real programs, unchanged. The cluster forms as a real one does: nodes join, the
//! master plans and reserves memory, and sessions open with the resulting view.

use std::cell::{Cell, Ref};
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
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Geometry, View};
use fusee_master::ClusterSettings;
use fusee_master::settings::LeaseSettings;
use tokio::sync::oneshot;

use crate::control::{ControlNetwork, MESSAGE_STEPS, NoAnswer, OpenDirections};
use crate::counts::count;
use crate::danger::Dangers;
use crate::engine::{Nanos, ProcessId, Sim};
use crate::environment::{SimEnvironment, SimMasterLink, SimSession, error};
use crate::executor::Executor;
use crate::fabric::SimFabric;
use crate::hardware::MachineId;
use crate::master::MasterHost;
use crate::network::{Network, NetworkOptions};
use crate::nodes::NodeHosts;
use crate::view_checks::ViewChecks;

/// Options of a simulated cluster. The defaults make conflicts common.
#[derive(Clone, Copy, Debug)]
pub struct ClusterOptions {
    /// Number of memory nodes.
    pub memory_nodes: u16,
    /// Replicas of each subtable, 1 to 5, and at most `memory_nodes`.
    pub index_replicas: u8,
    /// Replicas of each region, 1 to 5, and at most `memory_nodes`.
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
    control: Rc<ControlNetwork>,
    options: ClusterOptions,
    master: MasterHost,
    nodes: Rc<NodeHosts>,
    checks: Rc<ViewChecks>,
    dangers: Dangers,
    next_process: Cell<u32>,
}

/// Greatest number of events until a cluster has formed.
const FORMING_EVENTS: u64 = 1_000_000;

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
        let testbed = network.testbed;
        let network = Network::new(sim, network);
        let control = Rc::new(ControlNetwork::new(sim));
        let nodes = Rc::new(NodeHosts::new(sim, &network, &control));
        let checks = Rc::new(ViewChecks::new(&network));
        let inner = SimClusterInner {
            sim: sim.clone(),
            control,
            options: *options,
            master: MasterHost::new(settings, sim.process("master")),
            dangers: Dangers::new(&network, &nodes, &checks),
            nodes,
            checks,
            network,
            next_process: Cell::new(0),
        };
        let cluster = SimCluster(Rc::new(inner), SimClusterOwnership::Owner);
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

    /// Returns the memory nodes.
    pub fn nodes(&self) -> &NodeHosts {
        &self.0.nodes
    }

    /// Returns the checks of memory against the view that new sessions follow.
    pub fn checks(&self) -> &ViewChecks {
        &self.0.checks
    }

    /// Returns the client id of the master's running job, if a job runs.
    pub fn repairer(&self) -> Option<ClientId> {
        self.master().at_work()
    }

    /// Returns the options of the cluster.
    pub fn options(&self) -> &ClusterOptions {
        &self.0.options
    }

    /// Returns the view that new sessions follow.
    pub fn view(&self) -> Ref<'_, View> {
        self.0.checks.view()
    }

    /// Adds a client process.
    pub fn client_process(&self) -> ProcessId {
        let number = self.0.next_process.get();
        self.0.next_process.set(number + 1);
        self.0.sim.process(format!("client process {number}"))
    }

    /// Starts a memory node, which then joins the cluster.
    pub fn start_node(&self) {
        let host = self.0.nodes.add(self.0.options.pool_bytes);
        if self.0.checks.has_view() {
            count(&self.0.sim.counts().joined_nodes);
        }
        host.clone().join(self);
        if !self.0.network.options().stepwise {
            let again = self.clone();
            self.0.sim.spawn(host.process, async move { host.stay(&again).await });
        }
    }

    /// Sends two heartbeats of every node, so that sessions have valid leases from the start.
    fn first_signs_of_life(&self) {
        let nodes = self.0.nodes.all();
        for host in nodes.iter().chain(&nodes) {
            let sim = self.0.sim.clone();
            let of_reply = host.clone();
            let reply = move |reply| {
                if let MasterReply::Noted { note, lease_ms } = reply {
                    of_reply.hear(&sim, note, lease_ms);
                }
            };
            self.master().request(self, Some(host.process), host.heartbeat(), Box::new(reply));
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

    /// Asks a node's logic directly, without passing time. For checks.
    pub fn peek_node(&self, node: MnId, request: NodeRequest) -> Option<NodeReply> {
        let host = self.0.nodes.host_of(node).filter(|h| !self.0.sim.is_crashed(h.process))?;
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

    /// Stops the master, as if its machine slept. The master's clock goes on.
    pub fn stop_master(&self) {
        self.0.sim.stop(self.master().process.get());
    }

    /// Resumes the master.
    pub fn resume_master(&self) {
        self.0.sim.resume(self.master().process.get());
    }

    /// Sends a request to a node, and waits for the reply until the deadline.
    pub(crate) async fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Nanos,
    ) -> Result<NodeReply, NoAnswer> {
        let Some(host) = self.0.nodes.host_of(node) else { return Err(NoAnswer::Closed) };
        if self.0.network.options().stepwise {
            self.0.sim.idle(MESSAGE_STEPS).await;
            let crashed = self.0.sim.is_crashed(host.process);
            return if crashed { Err(NoAnswer::Closed) } else { Ok(host.handle(self, request)) };
        }
        let (sender, answer) = oneshot::channel();
        host.call(self, OpenDirections::BOTH, request, move |reply| {
            drop(sender.send(reply));
        });
        self.0.control.wait(answer, deadline).await?.map_err(|_| NoAnswer::Closed)
    }

    /// Opens a session for a client process.
    pub async fn open(
        &self,
        process: ProcessId,
        options: LogicOptions,
    ) -> Result<SimSession, ConnectError> {
        self.open_heard(process, options, true).await
    }

    /// Opens a session with the cluster's options, whose lease the keeper renews. For tests.
    ///
    /// # Panics
    /// If the master does not open a session.
    pub async fn open_kept(&self, process: ProcessId, keeper: &Keeper) -> SimSession {
        let session = self.open(process, self.0.options.session).await.expect("a master leads");
        keeper.open(session.gate().clone());
        session
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
        let asked = self.master().ask(self, process, MasterRequest::Open, 1_000_000).await;
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
        self.0.network.hardware().on_machines(|machines| machines.seat(client, process));
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

    /// Makes a client process with a session, on a machine of the testbed.
    ///
    /// # Panics
    /// If the master does not open a session.
    pub fn client_on(&self, machine: MachineId) -> SimClient {
        let process = self.client_process();
        self.0.network.hardware().place(process, machine);
        self.client_in(process)
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
