//! What is measured: our store, or another system on the same hardware.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use fusee_baselines::{Rpc, Server};
use fusee_client::logic::{Keeper, LogicOptions};
use fusee_core::data::Redundancy;
use fusee_core::store::Transition;
use fusee_core::verbs::{ClientId, MnId};
use fusee_sim::{
    Cluster, MachineId, Message, Nanos, Network, NetworkOptions, ProcessId, Rack, Sim, SimFabric,
    SimSession,
};
use fusee_workload::Request;

use crate::setup::Setup;

/// How long a session of ours may be silent. It never is.
const LEASE: Duration = Duration::from_secs(1);

/// A system on a testbed, whose clients are measured.
pub(crate) trait Subject {
    /// What a client process has before its session is open.
    type Seat;
    /// What a client has.
    type Session: Operations;

    fn sim(&self) -> &Sim;

    fn network(&self) -> &Network;

    /// A client process on a machine.
    fn seat(&self, machine: MachineId) -> (ProcessId, Self::Seat);

    /// Opens its session.
    fn open(
        &self,
        process: ProcessId,
        seat: &Self::Seat,
    ) -> impl Future<Output = Result<Self::Session, String>>;

    /// A memory node dies then, with its memory.
    fn crash_after(&self, node: MnId, delay: Nanos);
}

/// A session, whatever the system.
pub(crate) trait Operations {
    fn client(&self) -> ClientId;

    /// Does something to a key. That a key is not there which should be, or the other way round, is an error.
    fn execute(
        &self,
        request: Request,
        key: &[u8],
        value: &[u8],
    ) -> impl Future<Output = Result<(), String>>;

    /// Gives a key's value another redundancy, which it has not.
    fn set_redundancy(
        &self,
        key: &[u8],
        redundancy: Redundancy,
    ) -> impl Future<Output = Result<(), String>>;

    /// Knows from now on where keys are that another one knows.
    fn learn_from(&self, other: &Self);

    /// Hints of its cache that were wrong so far.
    fn wrong_hints(&self) -> u64;
}

/// Ours.
pub(crate) struct Ours {
    cluster: Cluster,
    session: LogicOptions,
}

impl Ours {
    pub fn new(setup: &Setup, network: NetworkOptions) -> Ours {
        let cluster = Cluster::with_network(&Sim::steady(), &setup.cluster(), network);
        cluster.never_watch();
        Ours { cluster, session: setup.session() }
    }
}

impl Subject for Ours {
    type Seat = Rc<Keeper>;
    type Session = SimSession;

    fn sim(&self) -> &Sim {
        self.cluster.sim()
    }

    fn network(&self) -> &Network {
        self.cluster.network()
    }

    fn seat(&self, machine: MachineId) -> (ProcessId, Rc<Keeper>) {
        let process = self.cluster.client_process();
        self.network().place(process, machine);
        (process, self.cluster.keeper(process, LEASE))
    }

    async fn open(&self, process: ProcessId, keeper: &Rc<Keeper>) -> Result<SimSession, String> {
        let opened = self.cluster.open(process, self.session).await;
        let session = opened.map_err(|error| format!("{error:?}"))?;
        keeper.open(session.gate().clone());
        Ok(session)
    }

    fn crash_after(&self, node: MnId, delay: Nanos) {
        let cluster = self.cluster.clone();
        self.sim().after(delay, move || cluster.crash_node(node));
    }
}

impl Operations for SimSession {
    fn client(&self) -> ClientId {
        self.id()
    }

    async fn execute(&self, request: Request, key: &[u8], value: &[u8]) -> Result<(), String> {
        let done = match request {
            Request::Search => match self.get_with(key, |found| found.is_some()).await {
                Ok(false) => return Err("there is no such key".into()),
                found => found.map(drop),
            },
            Request::Update => self.update(key, value).await,
            Request::Insert => self.insert(key, value).await,
            Request::Delete => self.delete(key).await,
        };
        done.map_err(|error| error.to_string())
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
}

/// Another system, on bare memory nodes. `open` makes its sessions.
pub(crate) struct Theirs<O> {
    rack: Rack,
    open: O,
}

impl<S, O: Fn(&Rack, SimFabric) -> S> Theirs<O> {
    pub fn new(setup: &Setup, network: NetworkOptions, pool_bytes: u64, open: O) -> Theirs<O> {
        let rack = Rack::new(&Sim::steady(), network, setup.memory_nodes, pool_bytes);
        Theirs { rack, open }
    }
}

/// A session of another system.
pub(crate) struct TheirSession<S> {
    client: ClientId,
    session: S,
}

impl<S: fusee_baselines::Session, O: Fn(&Rack, SimFabric) -> S> Subject for Theirs<O> {
    type Seat = SimFabric;
    type Session = TheirSession<S>;

    fn sim(&self) -> &Sim {
        self.rack.sim()
    }

    fn network(&self) -> &Network {
        self.rack.network()
    }

    fn seat(&self, machine: MachineId) -> (ProcessId, SimFabric) {
        self.rack.client_on(machine)
    }

    async fn open(&self, _: ProcessId, fabric: &SimFabric) -> Result<TheirSession<S>, String> {
        let session = (self.open)(&self.rack, fabric.clone());
        Ok(TheirSession { client: fabric.client(), session })
    }

    fn crash_after(&self, node: MnId, delay: Nanos) {
        self.rack.crash_after(node, delay);
    }
}

impl<S: fusee_baselines::Session> Operations for TheirSession<S> {
    fn client(&self) -> ClientId {
        self.client
    }

    async fn execute(&self, request: Request, key: &[u8], value: &[u8]) -> Result<(), String> {
        let session = &self.session;
        let done = match request {
            Request::Search => session.search(key).await.map(|found| found.is_some()),
            Request::Update => session.update(key, value).await,
            Request::Insert => session.insert(key, value).await,
            Request::Delete => session.delete(key).await,
        };
        match done {
            Ok(true) => Ok(()),
            Ok(false) if request == Request::Insert => Err("there is such a key".into()),
            Ok(false) => Err("there is no such key".into()),
            Err(error) => Err(error.to_string()),
        }
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
}

/// The way of a client to a server of another system.
pub(crate) struct Reached<S> {
    pub network: Network,
    pub client: ClientId,
    pub machine: MachineId,
    pub server: Rc<RefCell<S>>,
}

impl<S: Server> Rpc<S> for Reached<S> {
    async fn call(&self, request: S::Request) -> S::Reply {
        let (takes, (there, back)) = {
            let server = self.server.borrow();
            (server.takes(&request), server.bytes(&request))
        };
        let message = Message { request: there, reply: back };
        let serve = || self.server.borrow_mut().serve(request);
        let takes = takes.as_nanos() as u64;
        self.network.call(self.client, self.machine, takes, message, serve).await
    }
}
