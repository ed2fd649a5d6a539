//! Systems to measure: our store, or a baseline on the same hardware.

use std::rc::Rc;
use std::time::Duration;

use fusee_client::logic::{Keeper, LogicOptions};
use fusee_core::Error;
use fusee_core::data::Redundancy;
use fusee_core::stats::{KindStats, OpKind};
use fusee_core::store::Transition;
use fusee_core::verbs::{ClientId, MnId};
use fusee_sim::{
    MachineId, Nanos, Network, NetworkOptions, ProcessId, Rack, Sim, SimCluster, SimFabric,
    SimSession,
};
use fusee_workload::WorkloadOperation;

use crate::setup::{LabSetup, LabStep};

/// A system on a testbed, with clients to measure.
pub(crate) trait Subject {
    /// State of a client process before its session is open.
    type UnopenedClient;
    /// A session of a client.
    type Session: LabSession;

    fn sim(&self) -> &Sim;

    fn network(&self) -> &Network;

    /// Starts a client process on a machine.
    fn create_client(&self, machine: MachineId) -> (ProcessId, Self::UnopenedClient);

    /// Opens the session of a client process.
    fn open(
        &self,
        process: ProcessId,
        seat: &Self::UnopenedClient,
    ) -> impl Future<Output = Result<Self::Session, String>>;

    /// Makes a memory node crash after this time and lose its memory.
    fn crash_after(&self, node: MnId, delay: Nanos);
}

/// A session of any system.
pub(crate) trait LabSession {
    fn client(&self) -> ClientId;

    /// Executes an operation on a key. Returns whether the key existed before; for an INSERT, whether it did not.
    fn execute(
        &self,
        request: WorkloadOperation,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<bool, String>>;

    /// Moves a key's pair to another redundancy.
    fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> impl Future<Output = Result<(), String>>;

    /// Copies the other session's knowledge of where keys are.
    fn learn_from(&self, other: &Self);

    /// Returns the number of wrong hints of the session's cache so far.
    fn wrong_hints(&self) -> u64;

    /// Returns the cost of all operations of a kind so far; `None` if the system does not report it.
    fn cost(&self, step: LabStep) -> Option<KindStats>;

    /// Executes the session's background work.
    fn background(&self) -> impl Future<Output = ()>;
}

/// FUSEE as this project implements it, on a simulated cluster.
pub(crate) struct FuseeSubject {
    cluster: SimCluster,
    session: LogicOptions,
    lease: Duration,
}

impl FuseeSubject {
    pub fn new(setup: &LabSetup, network: NetworkOptions) -> FuseeSubject {
        let cluster = SimCluster::with_network(&Sim::steady(), &setup.cluster(), network);
        cluster.checks().never_watch();
        FuseeSubject {
            cluster,
            session: setup.session(),
            lease: Duration::from_millis(setup.lease_ms()),
        }
    }
}

impl Subject for FuseeSubject {
    type UnopenedClient = Rc<Keeper>;
    type Session = SimSession;

    fn sim(&self) -> &Sim {
        self.cluster.sim()
    }

    fn network(&self) -> &Network {
        self.cluster.network()
    }

    fn create_client(&self, machine: MachineId) -> (ProcessId, Rc<Keeper>) {
        let process = self.cluster.client_process();
        self.network().hardware().place(process, machine);
        (process, self.cluster.keeper(process, self.lease))
    }

    async fn open(&self, process: ProcessId, keeper: &Rc<Keeper>) -> Result<SimSession, String> {
        let opened = self.cluster.open(process, self.session).await;
        let session = opened.map_err(|error| format!("{error:?}"))?;
        keeper.open(session.gate().clone());
        Ok(session)
    }

    fn crash_after(&self, node: MnId, delay: Nanos) {
        let cluster = self.cluster.clone();
        self.sim().after(delay, move || cluster.nodes().crash(node));
    }
}

impl LabSession for SimSession {
    fn client(&self) -> ClientId {
        self.id()
    }

    async fn execute(
        &self,
        request: WorkloadOperation,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, String> {
        let done = match request {
            WorkloadOperation::Search => self.get_with(key, |found| found.is_some()).await,
            WorkloadOperation::Update => self.update(key, value).await.map(|()| true),
            WorkloadOperation::Insert => self.insert(key, value).await.map(|()| true),
            WorkloadOperation::Delete => self.delete(key).await.map(|()| true),
        };
        match done {
            Err(Error::NotFound | Error::AlreadyExists) => Ok(false),
            done => done.map_err(|error| error.to_string()),
        }
    }

    async fn set_redundancy(&self, key: &[u8], redundancy: Redundancy) -> Result<(), String> {
        match SimSession::set_redundancy(self, key, redundancy).await {
            Ok(Transition::Moved) => Ok(()),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn learn_from(&self, other: &Self) {
        SimSession::learn_from(self, other);
    }

    fn wrong_hints(&self) -> u64 {
        self.cache_stats().wrong
    }

    fn cost(&self, step: LabStep) -> Option<KindStats> {
        let kind = match step {
            LabStep::Request(WorkloadOperation::Search) => OpKind::Search,
            LabStep::Request(WorkloadOperation::Update) => OpKind::Update,
            LabStep::Request(WorkloadOperation::Insert) => OpKind::Insert,
            LabStep::Request(WorkloadOperation::Delete) => OpKind::Delete,
            LabStep::Move(_) => OpKind::Move,
        };
        Some(*self.stats().kind(kind))
    }

    /// The session's keeper executes the background work.
    async fn background(&self) {}
}

/// A baseline, on bare memory nodes. `open` makes its sessions.
pub(crate) struct BaselineSubject<O> {
    rack: Rack,
    open: O,
}

impl<S, O: Fn(&Rack, SimFabric) -> S> BaselineSubject<O> {
    /// Creates memory nodes with pools of this size; `make` starts the servers and returns `open`.
    pub fn new(
        setup: &LabSetup,
        network: NetworkOptions,
        pool_bytes: u64,
        make: impl FnOnce(&Rack) -> O,
    ) -> BaselineSubject<O> {
        let rack = Rack::new(&Sim::steady(), network, setup.memory_nodes, pool_bytes);
        let open = make(&rack);
        BaselineSubject { rack, open }
    }
}

/// A session of a baseline.
pub(crate) struct BaselineLabSession<S> {
    client: ClientId,
    session: S,
}

impl<S: fusee_baselines::BaselineSession, O: Fn(&Rack, SimFabric) -> S> Subject
    for BaselineSubject<O>
{
    type UnopenedClient = SimFabric;
    type Session = BaselineLabSession<S>;

    fn sim(&self) -> &Sim {
        self.rack.sim()
    }

    fn network(&self) -> &Network {
        self.rack.network()
    }

    fn create_client(&self, machine: MachineId) -> (ProcessId, SimFabric) {
        self.rack.client_on(machine)
    }

    async fn open(
        &self,
        _: ProcessId,
        fabric: &SimFabric,
    ) -> Result<BaselineLabSession<S>, String> {
        let session = (self.open)(&self.rack, fabric.clone());
        Ok(BaselineLabSession { client: fabric.client(), session })
    }

    fn crash_after(&self, node: MnId, delay: Nanos) {
        self.rack.crash_after(node, delay);
    }
}

impl<S: fusee_baselines::BaselineSession> LabSession for BaselineLabSession<S> {
    fn client(&self) -> ClientId {
        self.client
    }

    async fn execute(
        &self,
        request: WorkloadOperation,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, String> {
        let session = &self.session;
        let done = match request {
            WorkloadOperation::Search => session.search(key).await.map(|found| found.is_some()),
            WorkloadOperation::Update => session.update(key, value).await,
            WorkloadOperation::Insert => session.insert(key, value).await,
            WorkloadOperation::Delete => session.delete(key).await,
        };
        done.map_err(|error| error.to_string())
    }

    async fn set_redundancy(&self, _: &[u8], _: Redundancy) -> Result<(), String> {
        Err("the system has no redundancies".into())
    }

    fn learn_from(&self, other: &Self) {
        self.session.learn_from(&other.session);
    }

    fn wrong_hints(&self) -> u64 {
        0
    }

    fn cost(&self, _: LabStep) -> Option<KindStats> {
        None
    }

    async fn background(&self) {
        self.session.background().await;
    }
}
