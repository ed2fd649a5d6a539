//! A session: one thread's own way into the store.
//!
//! It has its own client id, slabs, index cache and connections, so nothing is shared or locked
//! on the path of an operation. It stays on its thread; the futures of its operations may be
//! polled side by side there (the paper's coroutines). What it does is in
//! [`logic`](crate::logic); here it gets a thread, timers and connections.
//!
//! A future of a session must be driven to its end: dropping it half-way leaves other clients
//! where a crash of this client would. The calls of [`Client`](crate::Client) do not have this
//! edge.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{MasterClient, NodeClient, RpcError};
use fusee_core::Error;
use fusee_core::stats::Stats;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;
use fusee_fabric::{AnyFabric, FabricKind, attach_all};

use crate::error::ConnectError;
use crate::executor::Reactor;
use crate::logic::{self, Environment, LogicOptions};
use crate::shared::Shared;

/// What must not end before a session does.
pub(crate) type KeepAlive = Arc<dyn Send + Sync>;

/// One thread's own way into the store.
pub struct Session {
    logic: logic::Session<Rc<AnyFabric>, Surroundings>,
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
    /// Keeps an embedded cluster alive; not held by the sessions that threads get by themselves.
    _keep_alive: Option<KeepAlive>,
}

impl Session {
    pub(crate) fn open(
        shared: &Arc<Shared>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Session, ConnectError> {
        let (client, view) = shared.open_session()?;
        Session::attach(shared, keep_alive, client, view).inspect_err(|_| {
            // The master need not count a session that never was.
            shared.close_session(MasterRequest::Close { client, leftovers: Vec::new() });
        })
    }

    fn attach(
        shared: &Arc<Shared>,
        keep_alive: Option<KeepAlive>,
        client: ClientId,
        view: View,
    ) -> Result<Session, ConnectError> {
        let fabric = Rc::new(attach_all(shared.kind, client, &view.members)?);
        let reactor = Rc::new(Reactor::new(fabric.clone()));
        let env = Rc::new(Surroundings {
            reactor: reactor.clone(),
            master: shared.master.clone(),
            nodes: shared.node_clients(&view),
        });
        let options = LogicOptions {
            cache_entries: shared.options.cache_entries,
            cache_threshold: shared.options.cache_threshold,
            op_timeout: shared.options.op_timeout,
            spins: shared.kind == FabricKind::Shm,
        };
        let logic = logic::Session::new(fabric, env, client, view, options);
        Ok(Session { logic, reactor, shared: shared.clone(), _keep_alive: keep_alive })
    }

    /// Runs a future that uses this session to its end, on the calling thread.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.reactor.block_on(future)
    }

    /// The session's name in the cluster.
    pub fn id(&self) -> ClientId {
        self.logic.id()
    }

    /// What its operations cost so far.
    pub fn stats(&self) -> Stats {
        self.logic.stats()
    }

    /// Whether its client has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.is_closed()
    }

    /// Which fabric it uses.
    pub fn fabric(&self) -> FabricKind {
        self.shared.kind
    }

    /// Looks a key up and shows the value to `f` where it was fetched, without another copy.
    pub async fn get_with<R>(
        &self,
        key: &[u8],
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        self.logic.get_with(key, f).await
    }

    /// The value of a key; `None` if it does not exist.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.logic.get(key).await
    }

    /// The values of many keys, in shared phases.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.logic.get_many(keys).await
    }

    /// Adds a key; [`Error::AlreadyExists`] if it exists.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.logic.insert(key, value).await
    }

    /// Replaces the value of a key; [`Error::NotFound`] if it does not exist.
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.logic.update(key, value).await
    }

    /// Adds a key, or replaces its value.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.logic.put(key, value).await
    }

    /// Removes a key; [`Error::NotFound`] if it does not exist.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.logic.delete(key).await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // While panicking an operation may be half-way: that is a crash, not an end.
        if self.shared.is_cluster_gone() || std::thread::panicking() {
            return;
        }
        match self.logic.leave() {
            Some(leaving) => self.shared.close_session(leaving.request()),
            None => tracing::warn!(client = %self.id(), "a session ends with a write half-way"),
        }
    }
}

/// The thread's timers, and connections to the control services.
struct Surroundings {
    reactor: Rc<Reactor>,
    master: MasterClient,
    nodes: Arc<HashMap<MnId, NodeClient>>,
}

impl Environment for Surroundings {
    async fn sleep(&self, time: Duration) {
        self.reactor.sleep(time).await;
    }

    async fn yield_now(&self) {
        self.reactor.yield_now().await;
    }

    fn spin(&self, turns: u64) {
        for _ in 0..turns {
            std::hint::spin_loop();
        }
    }

    async fn ask_node(
        &self,
        node: MnId,
        request: NodeRequest,
        deadline: Duration,
    ) -> Result<NodeReply, RpcError> {
        let unknown = || RpcError::Unreachable {
            addr: node.to_string(),
            cause: "it is not a member of the view".into(),
        };
        let client = self.nodes.get(&node).ok_or_else(unknown)?;
        client.with_deadline(deadline).call(request).await
    }

    fn adopt(&self, _view: &View) {}

    fn report_unreachable(&self, _node: MnId) {}

    async fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> Result<MasterReply, RpcError> {
        self.master.with_deadline(deadline).call(request).await
    }
}
