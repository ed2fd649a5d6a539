//! A running memory node: the pool, its fabrics, the control service, and the connection to the master.
//!
//! Requests are decided one at a time under a lock, and their effects on the pool are carried out before the lock is
//! released. So the copy of the block table in the pool changes in the order of the decisions. Fencing can take long,
//! because it sometimes has to wait for a process to die. So fences are carried out outside of the lock, on a thread of
//! their own, and the reply to a request waits until the request's fence is complete.
//!
//! [`MemoryNode::start`] opens ports and joins a master; [`MemoryNode::start_local`] makes a node for a cluster
//! inside one process, without a control port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fusee_auth::Keyring;
use fusee_control::master::{MasterReply, MasterReplyId, MasterRequest};
use fusee_control::node::{AttachedSessions, NodeDescription, NodeReply, NodeRequest};
use fusee_control::rpc::{
    self, Caller, MasterClient, NodeClient, NodeService, RequestTimes, RpcError, Runtime, Server,
};
use fusee_core::layout::{BLOCK_HEADER_BYTES, HeaderWord, first_extent};
use fusee_core::verbs::{ClusterId, MnId};
use fusee_fabric::pool::{POOL_ALIGN_BYTES, PageKind};
use fusee_fabric::tcp::DEFAULT_SPIN;
use fusee_fabric::verbs::default_device;
use fusee_fabric::{
    Clock, FabricKind, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions, ServeError,
};
use tokio::sync::{Mutex, watch};
use tokio::task::spawn_blocking;

use crate::config::MemoryNodeConfig;
use crate::logic::{HeartbeatReply, NodeEffect, NodeLogic};

/// The first and the longest pause between two requests to join. The pause doubles with each request.
const FIRST_JOIN_PAUSE: Duration = Duration::from_millis(50);
const LAST_JOIN_PAUSE: Duration = Duration::from_secs(2);
/// The time from one heartbeat to the next, unless the answer takes longer. While no master takes note of the node,
/// this time doubles with each heartbeat, from the first value to the longest. It begins small because a broken
/// connection must be replaced at once; otherwise the master would treat the node as dead.
const FIRST_STAY_PAUSE: Duration = Duration::from_millis(1);
const LAST_STAY_PAUSE: Duration = Duration::from_millis(100);

/// The time after which a warning is logged again if it has not changed.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Reasons why a memory node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeStartError {
    /// The system does not provide the memory.
    #[error("cannot make a pool of {bytes} bytes: {source}; ask for less, or free memory")]
    Pool {
        /// The size of the pool.
        bytes: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A server of a fabric cannot start.
    #[error(transparent)]
    Fabrics(#[from] ServeError),
    /// The control service cannot listen.
    #[error(transparent)]
    Control(#[from] rpc::ServeError),
    /// An address of the configuration is invalid.
    #[error("{addr} is no address to listen at: {cause}")]
    Address {
        /// The invalid address.
        addr: String,
        /// The reason.
        cause: String,
    },
    /// There is no address to advertise.
    #[error(
        "{at} stands for every address of this machine; say by --advertise under which one others reach it"
    )]
    Advertise {
        /// The address at which the node listens.
        at: SocketAddr,
    },
    /// The thread of the control service cannot be started.
    #[error("cannot start the control thread: {0}")]
    Thread(#[from] io::Error),
}

#[derive(Debug)]
struct NodeServerState {
    node: Mutex<NodeLogic>,
    fabrics: NodeFabrics,
    /// Whether the pages of a region or subtable are populated when it is reserved.
    populates: bool,
    /// The time of the node's start, by a clock that also counts the time in which the machine sleeps.
    begun: Duration,
}

/// The reason why the cluster goes on without a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dismissal {
    /// The node was silent for too long.
    Expelled,
    /// The node was drained, because an operator wants it to stop.
    Drained,
}

/// A running memory node. Dropping the value ends the node, and the lent memory is lost.
#[derive(Debug)]
pub struct MemoryNode {
    // Fields drop in this order: first the control service, so that no new request comes in, and later the fabrics.
    server: Server,
    client: Option<NodeClient>,
    shared: Arc<NodeServerState>,
    joined: watch::Receiver<Option<MnId>>,
    expelled: watch::Receiver<Option<Dismissal>>,
    /// The settings, with the ports that the system has chosen; `None` for a node inside a process.
    config: Option<MemoryNodeConfig>,
    description: NodeDescription,
    control: String,
    runtime: Runtime,
}

impl MemoryNode {
    /// Starts a memory node with its own threads. The node joins the master in the background, as soon as the
    /// master answers.
    pub fn start(mut config: MemoryNodeConfig) -> Result<MemoryNode, NodeStartError> {
        let runtime = Runtime::with_keys("fusee-mn", config.keys.clone())?;
        let runtime = runtime.with_tls(config.tls.clone());
        let identity: u64 = rand::random();
        let listener = rpc::bind(&config.listen)?;
        let at = listener.local_addr()?;
        let control = config.advertised(at)?;
        config.listen = at.to_string();
        // The file name is not the identity: knowledge of the identity suffices to attach, and every user can read
        // file names.
        let name: u64 = rand::random();
        let socket = |dir: &std::path::PathBuf| dir.join(format!("fusee-{name:016x}.sock"));
        let (pool, pool_bytes) = make_pool(config.pool_bytes, config.huge_pages)?;
        let fabrics = NodeFabrics::start(NodeFabricsOptions {
            pool,
            identity,
            tcp: config.tcp_addr()?,
            spin: config.spin,
            shm: config.shm_dir.as_ref().map(socket),
            verbs: config.verbs_addr()?,
            steered: config.steered,
            tls: config.tls.clone(),
            keys: config.keys.clone(),
        })?;
        let tcp = fabrics.tcp_addr().map(|at| config.advertised(at)).transpose()?;
        let verbs = fabrics.verbs_addr().map(|at| config.advertised(at)).transpose()?;
        config.tcp = fabrics.tcp_addr().map(|at| at.to_string());
        config.verbs = fabrics.verbs_addr().map(|at| at.to_string());
        let (shared, description) =
            share(identity, pool_bytes, fabrics, tcp, verbs, config.populate);
        let service = Arc::clone(&shared);
        let server =
            rpc::serve::<NodeService, _, _>(&runtime, listener, move |caller, request| {
                handle(Arc::clone(&service), caller, request)
            })?;
        tracing::info!(%control, pool_bytes = description.pool_bytes, "memory node started");
        let (tell, joined) = watch::channel(None);
        let (warn, expelled) = watch::channel(None);
        let master = MasterClient::new(&runtime, config.master.clone());
        let request = join_request(&description, &control);
        let member = Arc::clone(&shared);
        // The task ends with the runtime at the latest.
        runtime.handle().spawn(async move {
            let dismissal = loop {
                join(&master, &member, &request, &tell).await;
                if let Some(dismissal) = send_heartbeats(&master, &member, identity).await {
                    break dismissal;
                }
                // The node has no name until it is a member again.
                tell.send_replace(None);
            };
            warn.send_replace(Some(dismissal));
        });
        Ok(MemoryNode {
            server,
            client: None,
            shared,
            joined,
            expelled,
            config: Some(config),
            description,
            control,
            runtime,
        })
    }

    /// Starts a memory node for a cluster inside this process. The node has no control port, socket or connection
    /// to a master, and a software NIC or RDMA device only if `fabric` needs it. `name` is used in place of the
    /// control service's address. [`MemoryNode::join_request`] returns the request that registers the node with the
    /// master.
    pub fn start_local(
        runtime: &Runtime,
        name: &str,
        pool_bytes: u64,
        huge_pages: bool,
        fabric: FabricKind,
    ) -> Result<MemoryNode, NodeStartError> {
        let identity: u64 = rand::random();
        let (pool, pool_bytes) = make_pool(pool_bytes, huge_pages)?;
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let verbs = match fabric {
            // The device's own address, if it has one, distinguishes the devices of one machine.
            FabricKind::Verbs => {
                let found = default_device().map_err(ServeError::from)?;
                Some(SocketAddr::from((found.address.unwrap_or(loopback), 0)))
            }
            FabricKind::Shm | FabricKind::Tcp => None,
        };
        let tcp = (fabric == FabricKind::Tcp).then_some(SocketAddr::from((loopback, 0)));
        let fabrics = NodeFabrics::start(NodeFabricsOptions {
            pool,
            identity,
            tcp,
            spin: DEFAULT_SPIN,
            shm: None,
            verbs,
            steered: false,
            tls: None,
            keys: runtime.keys().map(|keys| Keyring::clone(keys)),
        })?;
        let tcp = fabrics.tcp_addr().map(|at| at.to_string());
        let verbs = fabrics.verbs_addr().map(|at| at.to_string());
        // The clients of the cluster are in the same process, and mostly use a part of the pool.
        let populates = false;
        let (shared, description) = share(identity, pool_bytes, fabrics, tcp, verbs, populates);
        let service = Arc::clone(&shared);
        let (client, server) =
            rpc::serve_local::<NodeService, _, _>(runtime, name, move |caller, request| {
                handle(Arc::clone(&service), caller, request)
            });
        let runtime = runtime.clone();
        let control = name.to_owned();
        let ((_, joined), (_, expelled)) = (watch::channel(None), watch::channel(None));
        Ok(MemoryNode {
            server,
            client: Some(client),
            shared,
            joined,
            expelled,
            config: None,
            description,
            control,
            runtime,
        })
    }

    /// Returns the request by which this node joins the master.
    pub fn join_request(&self) -> MasterRequest {
        join_request(&self.description, &self.control)
    }

    /// Returns the advertised address of the control service.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// Returns the node's description: identity, lent bytes and addresses.
    pub fn description(&self) -> &NodeDescription {
        &self.description
    }

    /// Returns the fabrics, for sessions of this process.
    pub fn fabrics(&self) -> &NodeFabrics {
        &self.shared.fabrics
    }

    /// Returns a client of the control service.
    pub fn client(&self) -> NodeClient {
        let over_tcp = || NodeClient::new(&self.runtime, self.control.clone());
        self.client.clone().unwrap_or_else(over_tcp)
    }

    /// Returns the node's name in the cluster; `None` until it has joined.
    pub fn name(&self) -> Option<MnId> {
        *self.joined.borrow()
    }

    /// Returns the times that requests to the control service have taken.
    pub fn times(&self) -> RequestTimes {
        self.server.times()
    }

    /// Returns a receiver of the node's name in the cluster and of the name's changes.
    pub fn names(&self) -> watch::Receiver<Option<MnId>> {
        self.joined.clone()
    }

    /// Sets the time for which the software NIC polls for requests before it sleeps.
    pub fn set_spin(&mut self, spin: Duration) {
        self.shared.fabrics.set_spin(spin);
        if let Some(config) = &mut self.config {
            config.spin = spin;
        }
    }

    /// Returns the settings for a node that replaces this node and has the same addresses. `None` for a node inside a
    /// process.
    pub fn config(&self) -> Option<&MemoryNodeConfig> {
        self.config.as_ref()
    }

    /// Waits until the cluster goes on without this node, and returns the reason. The node is of no use after that.
    /// If it was expelled, another node, with another identity and an empty pool, can join in its place.
    pub fn wait_for_dismissal(&self) -> impl Future<Output = Dismissal> + Send + 'static {
        let mut expelled = self.expelled.clone();
        async move {
            if let Ok(why) = expelled.wait_for(Option::is_some).await
                && let Some(why) = *why
            {
                return why;
            }
            // The node has ended without being dismissed, so this future never completes.
            std::future::pending().await
        }
    }

    /// Returns whether the pool has huge pages. Without free ones it has normal pages, whatever was asked for.
    pub fn has_huge_pages(&self) -> bool {
        self.shared.fabrics.pool().pages() == PageKind::Huge
    }

    /// Ends the node, as dropping it does. Returns when the node's ports are closed and its threads have ended.
    ///
    /// # Panics
    /// If the calling thread belongs to an async runtime.
    pub fn stop(self) {
        self.server.stop();
    }
}

/// Makes a pool with its header. Also returns the number of bytes that the pool lends: `bytes`, rounded up to whole
/// pages.
fn make_pool(bytes: u64, huge_pages: bool) -> Result<(Pool, u64), NodeStartError> {
    // `Pool::new` refuses a pool of zero bytes or of too many bytes. A pool of zero bytes must not get a header, which
    // would hide the zero from `Pool::new`.
    let lent_bytes = bytes.checked_next_multiple_of(POOL_ALIGN_BYTES).unwrap_or(bytes);
    let header_bytes = if lent_bytes == 0 { 0 } else { first_extent(lent_bytes) };
    let bytes = lent_bytes.saturating_add(header_bytes);
    let made = Pool::new(PoolOptions { bytes, huge_pages });
    let pool = made.map_err(|source| NodeStartError::Pool { bytes: lent_bytes, source })?;
    let (word, value) = NodeLogic::FIRST_WORD;
    pool.write_header(word.offset(), value);
    Ok((pool, lent_bytes))
}

fn share(
    identity: u64,
    pool_bytes: u64,
    fabrics: NodeFabrics,
    tcp: Option<String>,
    verbs: Option<String>,
    populates: bool,
) -> (Arc<NodeServerState>, NodeDescription) {
    let shm = fabrics.shm_path().map(|path| path.to_string_lossy().into_owned());
    let description = NodeDescription { identity, pool_bytes, tcp, shm, verbs };
    let node = Mutex::new(NodeLogic::new(description.clone()));
    let begun = Clock::Precise.now();
    (Arc::new(NodeServerState { node, fabrics, populates, begun }), description)
}

fn join_request(description: &NodeDescription, control: &str) -> MasterRequest {
    MasterRequest::Join {
        identity: description.identity,
        control: control.to_owned(),
        tcp: description.tcp.clone(),
        shm: description.shm.clone(),
        verbs: description.verbs.clone(),
        pool_bytes: description.pool_bytes,
    }
}

/// Decides on a request to the control service, and carries the decision out.
async fn handle(shared: Arc<NodeServerState>, caller: Caller, request: NodeRequest) -> NodeReply {
    let mut node = shared.node.lock().await;
    node.pass(shared.now_ms());
    let step = node.handle_from(caller.cluster, request);
    let mut fences = Vec::new();
    let mut populated = Vec::new();
    for effect in step.effects {
        match effect {
            NodeEffect::WriteTable { offset, value } => {
                shared.fabrics.pool().write_u64(offset, value);
            }
            NodeEffect::ZeroPool { offset, bytes } if bytes == BLOCK_HEADER_BYTES => {
                shared.fabrics.pool().zero(offset, bytes);
            }
            NodeEffect::ZeroPool { offset, bytes } => {
                let pool = shared.fabrics.pool().clone();
                let zeroed = spawn_blocking(move || pool.zero(offset, bytes)).await;
                zeroed.expect("the node's extents lie inside the pool");
            }
            NodeEffect::WriteHeader { word, value } => {
                if word == HeaderWord::Cluster {
                    let cluster = node.cluster().map(|cluster| cluster.to_string());
                    tracing::info!(cluster, "a member of the cluster");
                }
                shared.fabrics.pool().write_header(word.offset(), value);
            }
            NodeEffect::Living { living } => shared.fabrics.learn(&living),
            NodeEffect::Fence { client } => fences.push(client),
            NodeEffect::PopulatePool { offset, bytes } => populated.push((offset, bytes)),
        }
    }
    drop(node);
    if shared.populates && !populated.is_empty() {
        let pool = shared.fabrics.pool().clone();
        let populate_all =
            move || populated.iter().try_for_each(|(offset, bytes)| pool.populate(*offset, *bytes));
        let populated = spawn_blocking(populate_all).await;
        // Without these pages the node works, too: the system provides them on their first use.
        if let Err(error) = populated.expect("the node's extents lie inside the pool") {
            tracing::warn!(%error, "the system provides no memory for the pool now");
        }
    }
    if !fences.is_empty() {
        let fencing = Arc::clone(&shared);
        let fence_all = move || {
            fencing.fabrics.fence(&fences);
            for client in fences {
                tracing::info!(%client, "fenced");
            }
        };
        // A fence that fails must not be acknowledged. The panic here becomes the caller's error.
        spawn_blocking(fence_all).await.expect("fencing ends");
    }
    match step.reply {
        NodeReply::Usage(mut usage) => {
            let over = |kind| shared.fabrics.attached_over(kind);
            usage.attached = AttachedSessions {
                shm: over(FabricKind::Shm),
                tcp: over(FabricKind::Tcp),
                verbs: over(FabricKind::Verbs),
            };
            let traffic = shared.fabrics.tcp_traffic();
            (usage.tcp_requests, usage.tcp_bytes) = (traffic.requests, traffic.bytes);
            usage.socket_gone = shared.fabrics.is_socket_gone();
            NodeReply::Usage(usage)
        }
        reply => reply,
    }
}

/// The warnings that a node cannot join or reach its master. A warning is logged once, and again from time to time as
/// long as its cause lasts.
#[derive(Default)]
struct RepeatedWarning {
    said: String,
    said_at: Option<Duration>,
}

impl RepeatedWarning {
    fn say(&mut self, text: String) {
        if self.said != text || self.said_at.is_none_or(|at| Clock::Precise.now() > at + SAY_AGAIN)
        {
            tracing::warn!("{text}");
            (self.said, self.said_at) = (text, Some(Clock::Precise.now()));
        }
    }
}

impl NodeServerState {
    fn now_ms(&self) -> u64 {
        (Clock::Precise.now() - self.begun).as_millis() as u64
    }

    /// Records an answer of a master.
    async fn note_master_reply(&self, note: MasterReplyId, lease_ms: u64) {
        let mut node = self.node.lock().await;
        node.pass(self.now_ms());
        node.note_master_reply(note, lease_ms);
    }

    /// Returns the cluster of the node, if it is a member of one, and makes `master` name that cluster in requests.
    async fn tell_cluster(&self, master: &MasterClient) -> Option<ClusterId> {
        let cluster = self.node.lock().await.cluster();
        cluster.into_iter().for_each(|cluster| master.join(cluster));
        cluster
    }
}

/// Joins the master. Repeats the request until it succeeds, for however long.
async fn join(
    master: &MasterClient,
    shared: &NodeServerState,
    request: &MasterRequest,
    tell: &watch::Sender<Option<MnId>>,
) {
    let mut pause = FIRST_JOIN_PAUSE;
    let mut complaint = RepeatedWarning::default();
    loop {
        shared.tell_cluster(master).await;
        let obstacle = match master.call(request.clone()).await {
            Ok(MasterReply::Joined { node }) => {
                tracing::info!(%node, master = master.answered_by(), "joined the cluster");
                tell.send_replace(Some(node));
                return;
            }
            Ok(MasterReply::Refused { reason }) => format!("the master refuses: {reason}"),
            Ok(other) => format!("the master gave a wrong answer: {other:?}"),
            Err(error) => error.to_string(),
        };
        complaint.say(format!("cannot join yet, trying on: {obstacle}"));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_JOIN_PAUSE);
    }
}

/// Sends heartbeats to the master, which delays each answer. Returns `None` if the node has to join again, because
/// it is not a member yet and the master does not know it.
///
/// A member keeps what it holds, and goes on sending heartbeats, even if another master answers than its own: a
/// master of another cluster, one without a cluster, or one that has forgotten the node.
async fn send_heartbeats(
    master: &MasterClient,
    shared: &NodeServerState,
    identity: u64,
) -> Option<Dismissal> {
    let mut pause = FIRST_STAY_PAUSE;
    let mut complaint = RepeatedWarning::default();
    loop {
        let asked = tokio::time::Instant::now();
        shared.tell_cluster(master).await;
        let (heard, bars) = shared.node.lock().await.heartbeat_report();
        let answer = master.call(MasterRequest::Alive { identity, heard, bars }).await;
        // The cluster is asked for again, because the node has possibly become a member while the request was on
        // its way.
        let cluster = shared.tell_cluster(master).await;
        let holds_of = shared.node.lock().await.held_cluster();
        pause = match answer {
            Ok(reply) => match HeartbeatReply::of(&reply, holds_of) {
                HeartbeatReply::Noted(note, lease_ms) => {
                    shared.note_master_reply(note, lease_ms).await;
                    FIRST_STAY_PAUSE
                }
                HeartbeatReply::Expelled => {
                    tracing::warn!("the cluster goes on without this node");
                    return Some(Dismissal::Expelled);
                }
                HeartbeatReply::Drained => {
                    tracing::info!("this node has been drained");
                    return Some(Dismissal::Drained);
                }
                HeartbeatReply::JoinAgain => return None,
                HeartbeatReply::Forgotten => {
                    complaint.say(format!(
                        "the master at {} leads this node's cluster, but has never heard of this node: \
                         it goes on from an old copy of its store. This node keeps what it holds and \
                         goes on serving. Start the master on its newest store; or restart this node, \
                         which empties it",
                        master.answered_by()
                    ));
                    (pause * 2).min(LAST_STAY_PAUSE)
                }
                HeartbeatReply::Nothing => {
                    tracing::debug!(?reply, "the master takes no note of this node");
                    (pause * 2).min(LAST_STAY_PAUSE)
                }
            },
            Err(error @ RpcError::WrongCluster { .. }) if cluster.is_some() => {
                complaint.say(format!(
                    "{error}. This node keeps what it holds and goes on serving. To give its cluster \
                     up, restart this node, which empties it"
                ));
                (pause * 2).min(LAST_STAY_PAUSE)
            }
            // The store of the master that the node has joined no longer exists, so the node joins again.
            Err(RpcError::WrongCluster { .. }) => return None,
            Err(error) => {
                tracing::debug!(%error, "the master does not hear this node");
                (pause * 2).min(LAST_STAY_PAUSE)
            }
        };
        // The master delays its answers. After a delayed answer, this pause is zero.
        tokio::time::sleep_until(asked + pause).await;
    }
}
