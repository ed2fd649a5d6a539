//! State that all sessions of a client share, on any thread: connections to the master and to the control services of
//! the memory nodes, the keeper, and the options.
//!
//! The client's own tokio runtime sends and receives control messages. A thread that needs an answer waits for it with
//! [`wait`], which works on any thread, also on a thread of another async runtime.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest, Usage};
use fusee_control::rpc::{MasterClient, NodeClient, RpcError, Runtime};
use fusee_core::data::Policy;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::{Member, View};
use fusee_fabric::{AttachOptions, Clock, FabricKind};

use tokio::task::JoinHandle;

use crate::error::ConnectError;
use crate::fabric_selection::SelectedFabric;
use crate::logic::{
    self, Keeper, KeeperEnvironment, KeeperTiming, OpenReply, SessionCounters, SessionGate,
};
use crate::metrics::ClientMetrics;
use crate::options::{Options, WorkTable};

/// Interval at which a joining client asks whether a cluster that is still forming is ready.
const READY_POLL: Duration = Duration::from_millis(20);

/// Longest wait for the master's answer at the end of a session.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Shortest interval between reports to the master that one memory node does not answer.
const REPORT_PACE: Duration = Duration::from_millis(100);
/// Deadline of a report to the master that a memory node does not answer.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Lease that the keeper assumes until the first session opens and brings the master's lease.
const LEASE: Duration = Duration::from_secs(1);

/// Interval at which the memory nodes are asked for their usage, if a policy depends on it.
const MEMORY_POLL: Duration = Duration::from_millis(250);
/// Used share of a pool, in percent, above which memory is short, unless the policy sets another share.
const SHORT_PERCENT: u8 = 85;

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(0);

/// State that all sessions of a client share, on any thread.
pub(crate) struct ClientContext {
    pub number: u64,
    pub runtime: Runtime,
    pub master: MasterClient,
    pub kind: FabricKind,
    /// Whether shared memory is not used although every memory node lends it on this host, because the pools are
    /// missing or closed to this process.
    shm_refused: bool,
    pub options: Options,
    pub keeper: Arc<Keeper>,
    counts: Mutex<ClientSessionCounts>,
    /// The work table that all sessions share, if the options ask for one.
    pub table: Option<Arc<logic::RequestTable>>,
    /// The index cache that all sessions share; `None` if each session has its own.
    pub cache: Option<Arc<Mutex<logic::IndexCache>>>,
    /// The keeper's task.
    keeping: JoinHandle<()>,
    nodes: Mutex<MemberConnections>,
    /// Whether a task of the client watches the usage of the memory nodes.
    watches_memory: AtomicBool,
    /// The time of the latest report to the master that a node does not answer, for each such node.
    reported: Mutex<HashMap<MnId, Instant>>,
    /// Whether the last clone of the client is dropped.
    closed: AtomicBool,
    /// Whether the client's embedded cluster has ended, too.
    cluster_gone: AtomicBool,
}

/// Counts of a client's sessions.
#[derive(Default)]
struct ClientSessionCounts {
    open: BTreeMap<ClientId, Arc<SessionCounters>>,
    /// Sums over the client's sessions that have ended.
    ended: ClientMetrics,
}

/// Control connections to the members of a view.
struct MemberConnections {
    /// The number of the view to whose members the connections lead.
    view: u64,
    clients: NodeClients,
}

pub(crate) type NodeClients = Arc<HashMap<MnId, NodeClient>>;

impl ClientContext {
    /// Adds the counters of a session that has opened to those that [`ClientContext::metrics`] sums up.
    pub fn began(&self, client: ClientId, counted: Arc<SessionCounters>) {
        self.counts().open.insert(client, counted);
    }

    /// Removes a session from the keeper, and adds its counts to the sums of ended sessions.
    pub fn ended(&self, client: ClientId) {
        self.keeper.close(client);
        let mut counts = self.counts();
        if let Some(counted) = counts.open.remove(&client) {
            counts.ended.add(&counted);
        }
    }

    /// Returns the counts of all sessions.
    pub fn metrics(&self) -> ClientMetrics {
        let counts = self.counts();
        let mut metrics = counts.ended.clone();
        metrics.sessions = counts.open.len() as u64;
        (metrics.fabric, metrics.is_shm_refused) = (Some(self.kind), self.shm_refused);
        metrics.work_table = self.table.as_ref().map(|table| table.stats());
        counts.open.values().for_each(|counted| metrics.add(counted));
        metrics
    }

    fn counts(&self) -> MutexGuard<'_, ClientSessionCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn new(
        runtime: Runtime,
        master: MasterClient,
        SelectedFabric { kind, refused }: SelectedFabric,
        options: Options,
        view: View,
        nodes: HashMap<MnId, NodeClient>,
    ) -> ClientContext {
        let own = |(name, node): (MnId, NodeClient)| (name, node.of_cluster(Some(view.cluster)));
        let clients = Arc::new(nodes.into_iter().map(own).collect());
        let nodes = MemberConnections { view: view.number, clients };
        let keeper = Arc::new(Keeper::new(view, KeeperTiming::for_lease(LEASE)));
        // The keeper has a connection of its own, which a slow answer to another request cannot break. This matters
        // because the master takes a client for dead soon after the keeper's connection has ended.
        let kept = keeper.clone();
        let link =
            RpcKeeperEnvironment { master: master.with_own_connection(), clock: Clock::of(kind) };
        let keeping = runtime.handle().spawn(async move { kept.keep(&link).await });
        let table = match options.work_table {
            WorkTable::Off => None,
            kind => Some(Arc::new(logic::RequestTable::new(kind == WorkTable::Relaxed))),
        };
        let cache = || logic::IndexCache::new(options.cache_entries, options.cache_threshold);
        let is_shared = kind != FabricKind::Shm && !options.cache_per_session;
        let cache = is_shared.then(|| Arc::new(Mutex::new(cache())));
        ClientContext {
            number: NEXT_CLIENT.fetch_add(1, Ordering::Relaxed),
            runtime,
            master,
            kind,
            shm_refused: refused.is_some(),
            options,
            keeper,
            counts: Mutex::default(),
            table,
            cache,
            keeping,
            nodes: Mutex::new(nodes),
            watches_memory: AtomicBool::new(false),
            reported: Mutex::default(),
            closed: AtomicBool::new(false),
            cluster_gone: AtomicBool::new(false),
        }
    }

    /// Ends the client, and also its embedded cluster if `with_cluster` is true.
    pub fn close(&self, with_cluster: bool) {
        if with_cluster {
            self.keeping.abort();
        }
        // Release ordering: a thread that sees one of these flags also sees everything that this thread did before.
        self.cluster_gone.store(with_cluster, Ordering::Release);
        self.closed.store(true, Ordering::Release);
    }

    /// Returns whether the embedded cluster has ended, so that there is no master to which a session could report its
    /// own end.
    pub fn is_cluster_gone(&self) -> bool {
        self.cluster_gone.load(Ordering::Acquire)
    }

    /// Returns whether the client has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits for a future of the control plane on the calling thread, even if that is a thread of another async
    /// runtime.
    pub fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        wait(&self.runtime, future)
    }

    /// Returns the parameters of connections to memory nodes.
    pub fn connection_parameters(&self) -> AttachOptions<'_> {
        let switch = self.options.switch.as_ref();
        let tls = self.options.tls.as_ref();
        AttachOptions {
            kind: self.kind,
            switch,
            tls,
            keys: self.runtime.keys().map(|keys| &**keys),
        }
    }

    /// Asks the master for a new session.
    pub fn open_session(&self) -> Result<Arc<SessionGate>, ConnectError> {
        if self.is_closed() {
            return Err(ConnectError::Refused("the client has ended".into()));
        }
        let master = self.master.clone();
        let asked_at = Clock::of(self.kind).now();
        let seen = self.keeper.view();
        let reply = self.wait(async move { master.call(MasterRequest::Open).await })?;
        let opened = OpenReply::from(reply)?;
        let found = opened.view.number;
        if found < seen.number || (found == seen.number && *seen != opened.view) {
            return Err(ConnectError::Forgotten { seen: seen.number, found });
        }
        self.keeper.follow_lease(opened.lease_ms);
        Ok(Arc::new(opened.gate(asked_at)))
    }

    /// Starts to watch the usage of the memory nodes for the sessions, if a policy depends on it. Memory is short if
    /// the used part of some pool is above the policy's limit. The used part of a pool is its reserved bytes times the
    /// cluster-wide share of blocks that have owners.
    pub fn watch_memory(self: &Arc<ClientContext>, policy: &Policy) {
        let is_wanted = policy.demotion.is_some() || policy.promotion.is_some();
        if !is_wanted || self.watches_memory.swap(true, Ordering::Relaxed) {
            return;
        }
        let above = policy.demotion.map_or(SHORT_PERCENT, |demotion| demotion.above_percent);
        let shared = Arc::downgrade(self);
        self.runtime.handle().spawn(async move {
            loop {
                // This reference is dropped before the wait below, so that the client can end.
                let (keeper, nodes) = match shared.upgrade() {
                    Some(shared) if !shared.is_closed() => {
                        (shared.keeper.clone(), shared.node_clients(&shared.keeper.view()))
                    }
                    _ => return,
                };
                let asked = nodes.values().map(|node| node.call(NodeRequest::Usage));
                let answers = futures_util::future::join_all(asked).await;
                let usages = answers.into_iter().filter_map(|answer| match answer {
                    Ok(NodeReply::Usage(usage)) => Some(usage),
                    _ => None,
                });
                keeper.tell_short(is_short(above, &usages.collect::<Vec<_>>()));
                tokio::time::sleep(MEMORY_POLL).await;
            }
        });
    }

    /// Sends the master the request that tells it that a session has ended.
    pub fn close_session(&self, request: MasterRequest) {
        let master = self.master.with_deadline(CLOSE_TIMEOUT);
        let closed = self.wait(async move { master.call(request).await });
        if !matches!(closed, Ok(MasterReply::Done)) {
            tracing::debug!(?closed, "the master took no note of the end");
        }
    }

    /// Returns control connections to a view's members, and makes the connections that do not exist yet. Connections to
    /// members of the newest view are kept for later calls.
    pub fn node_clients(&self, view: &View) -> NodeClients {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let same = view.members.iter().all(|m| nodes.clients.contains_key(&m.node));
        if same && view.members.len() == nodes.clients.len() {
            return nodes.clients.clone();
        }
        let client = |m: &Member| match nodes.clients.get(&m.node) {
            Some(known) => (m.node, known.clone()),
            None => {
                let new = NodeClient::new(&self.runtime, &m.control);
                (m.node, new.of_cluster(Some(view.cluster)))
            }
        };
        let clients: NodeClients = Arc::new(view.members.iter().map(client).collect());
        if view.number >= nodes.view {
            *nodes = MemberConnections { view: view.number, clients: clients.clone() };
        }
        clients
    }

    /// Tells the master that a memory node does not answer, unless this client has reported that node within
    /// [`REPORT_PACE`]. Does not wait for the master's answer.
    pub fn report_unreachable(&self, node: MnId) {
        let now = Instant::now();
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.get(&node).is_some_and(|last| now.duration_since(*last) < REPORT_PACE) {
            return;
        }
        if reported.insert(node, now).is_none() {
            tracing::warn!(%node, "a memory node does not answer, the master hears of it");
        }
        drop(reported);
        let master = self.master.with_deadline(REPORT_TIMEOUT);
        self.runtime.handle().spawn(async move {
            if let Err(error) = master.call(MasterRequest::Unreachable { node }).await {
                tracing::debug!(%node, %error, "the master does not hear of a silent memory node");
            }
        });
    }
}

/// Returns whether memory is short, according to the usage of all memory nodes.
fn is_short(above_percent: u8, usages: &[Usage]) -> bool {
    let sum = |of: fn(&Usage) -> u64| usages.iter().map(of).sum::<u64>() as f64;
    // The share of owned blocks is computed over all memory nodes together, because each node reports only the blocks
    // of regions whose primary it holds.
    let owned = sum(|usage| usage.led_bytes_owned) / sum(|usage| usage.led_bytes).max(1.0);
    let level = f64::from(above_percent) / 100.0;
    usages.iter().any(|usage| usage.reserved_bytes as f64 * owned > usage.pool_bytes as f64 * level)
}

impl Drop for ClientContext {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// The keeper's environment: the master, and a clock.
struct RpcKeeperEnvironment {
    master: MasterClient,
    clock: Clock,
}

impl KeeperEnvironment for RpcKeeperEnvironment {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    async fn sleep(&self, time: Duration) {
        // The runtime's timers have a resolution of a millisecond. A shorter wait spins. Shorter waits are rare: they
        // occur when an operation is about to end.
        if time >= Duration::from_millis(1) {
            return tokio::time::sleep(time).await;
        }
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
    }

    async fn ask_master(
        &self,
        request: MasterRequest,
        deadline: Duration,
    ) -> Result<MasterReply, RpcError> {
        self.master.with_deadline(deadline).call(request).await
    }
}

/// Waits for a future of the control plane on the calling thread.
pub(crate) fn wait<T: Send + 'static>(
    runtime: &Runtime,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime.handle().spawn(async move { sender.send(future.await) });
    receiver.recv().expect("the runtime lives as long as its clients")
}

/// Waits until the cluster has formed, and returns its view.
pub(crate) async fn first_view(
    master: MasterClient,
    patience: Duration,
) -> Result<View, ConnectError> {
    let deadline = Instant::now() + patience;
    loop {
        let error = match master.call(MasterRequest::GetView { newer_than: 0 }).await {
            Ok(MasterReply::View(Some(view))) => return Ok(view),
            Ok(MasterReply::NotReady { joined, expected }) => {
                ConnectError::NotReady { joined, expected }
            }
            Ok(MasterReply::Refused { reason }) => return Err(ConnectError::Refused(reason)),
            Ok(_) => return Err(ConnectError::Protocol("another answer than to GetView")),
            Err(error) => return Err(error.into()),
        };
        if Instant::now() >= deadline {
            return Err(error);
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_short_where_a_pool_is_reserved_and_blocks_are_taken() {
        let usage = |reserved_bytes, led_bytes_owned| Usage {
            pool_bytes: 100,
            reserved_bytes,
            led_bytes: 10,
            led_bytes_owned,
            ..Usage::default()
        };
        assert!(!is_short(85, &[]));
        assert!(!is_short(85, &[usage(84, 10), usage(84, 10)]), "not above");
        assert!(is_short(85, &[usage(86, 10), usage(20, 10)]), "one pool is enough");
        assert!(!is_short(85, &[usage(99, 8), usage(99, 8)]), "blocks are free");
        assert!(is_short(85, &[usage(99, 8), usage(99, 10)]), "0.99 * 0.9");
        assert!(!is_short(85, &[usage(0, 0)]));
    }
}
