//! A running master: its logic on a thread of its own, behind a control service.
//!
//! Requests and answers of memory nodes reach the thread through one queue. The thread takes all messages in the queue,
//! decides about them one by one, makes all resulting records durable together, and then carries out the other actions
//! in order. A write to the store blocks the thread. Calls to memory nodes run on the [`Runtime`], jobs on a thread of
//! their own (`repairer.rs`), and the results of both come back through the queue. If the store fails, the thread ends,
//! because a master that cannot store its decisions must not decide; later requests are answered accordingly. One of
//! several masters (feature `etcd`) has such a thread for each of its terms, and stands by between them.
//!
//! The messages that tell the logic of passing time go through the [`Runtime`], behind all messages that have arrived
//! before. So when the logic finds that a process was silent, the master has read every message of that process. A
//! master that is told to stop completes the change of the view that is under way, and begins no other.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::iter::once;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::Duration;

use fusee_control::events::{Level, Topic};
use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{
    self, Caller, MasterClient, MasterService, NodeClient, RequestTimes, RpcError, Runtime, Server,
};
use fusee_control::view_pieces;
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::View;
use fusee_fabric::Clock;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::config::MasterConfig;
#[cfg(feature = "etcd")]
use crate::election::{CandidateOptions, ElectionCandidate};
use crate::jobs::{JobError, JobReport, MasterJob};
use crate::journal::EventJournal;
use crate::logic::{MasterAction, MasterEvent, MasterLogic, RestoreError};
use crate::record::{MasterRecord, RecordWrite};
use crate::repairer::{NodeCredentials, QueuedJob, Repairer};
use crate::request_kinds::{ClusterRequest, HostRequest, LogicRequest, RoutedRequest};
use crate::request_router::RequestRouter;
use crate::settings::{ClusterSettings, MAX_MEMORY_NODES, SettingsError};
use crate::store::address::StoreAddressError;
use crate::store::{MasterStore, StoreError};
use crate::view_pieces::EncodedViews;

/// The time between two ticks of the logic: several ticks fit in a grace period or a short lease.
const TICK: Duration = Duration::from_millis(5);
/// The number of times that the task of a tick yields to the runtime's other tasks: enough for requests to get from
/// readable sockets to the queue.
const ROUNDS: u32 = 4;
/// The longest time that a stopping master waits for the end of a change: less than the 10 s of `docker stop`.
pub const FINISHES_WITHIN: Duration = Duration::from_secs(8);
/// The deadline of a call to a memory node, which sometimes has to zero memory first.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// The interval at which [`MasterServer::wait_formed`] asks for the view.
const LOOK: Duration = Duration::from_millis(5);
/// The limit on the number of clients of memory nodes that are kept.
const MAX_CLIENTS: usize = 4 * MAX_MEMORY_NODES as usize;
/// The reason with which a master has ended that was told to stop.
const STOPPED: &str = "it was stopped";
/// The limit on events that are decided together, before the resulting records are made durable.
const MAX_TOGETHER: usize = 256;

/// Reasons why a master cannot start.
#[derive(Debug, thiserror::Error)]
pub enum MasterStartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The address of the shared store, or a setting for it, is invalid.
    #[error(transparent)]
    StoreAddress(#[from] StoreAddressError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The master cannot continue from the store's contents.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The configuration names no directory for the store, and there is no default directory.
    #[error(
        "no data_dir is given, and there is no home directory to have one in; name a directory"
    )]
    NoDataDir,
    /// The control service cannot listen.
    #[error(transparent)]
    Control(#[from] rpc::ServeError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Reasons why there is no view yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// The cluster cannot be formed with the memory nodes that joined.
    #[error("cannot form the cluster: {0}")]
    Refused(String),
    /// Memory nodes are missing, or the cluster is still being formed.
    #[error("the cluster is not formed yet: {joined} of {expected} memory nodes joined")]
    NotReady {
        /// The number of memory nodes that have joined the master.
        joined: u32,
        /// The number of memory nodes that the cluster needs to form.
        expected: u32,
    },
    /// The master does not answer the request for the view.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

/// A message to the thread that runs a logic.
pub(crate) enum LogicMessage {
    Input(LogicInput),
    /// Tells the logic that it has got all messages that had arrived when this message was requested.
    Listened,
    /// Stop as soon as no change is under way, and no later than at this time.
    Finish {
        until: Duration,
    },
    Stop,
}

/// An input of the logic from outside of its thread.
pub(crate) enum LogicInput {
    Request { caller: Caller, request: MasterRequest, reply: oneshot::Sender<MasterReply> },
    Closed { connection: u64 },
    Answer { node: MnId, token: u64, result: Result<NodeReply, String> },
    Done { token: u64, result: Result<JobReport, JobError> },
}

/// A running master. Dropping this value ends the master.
#[derive(Debug)]
pub struct MasterServer {
    // The fields are declared in the order in which they have to end, because they are dropped in this order.
    server: Option<Server>,
    client: MasterClient,
    /// A client inside of this process, which needs no connection, and the server that answers it.
    inside: (MasterClient, Option<Server>),
    /// The reason why the master makes no decisions any more; `None` while it makes decisions.
    ended: watch::Receiver<Option<String>>,
    /// The settings in force, which the logic reads.
    settings: watch::Sender<ClusterSettings>,
    work: LogicHandle,
    runtime: Runtime,
}

/// The owner of the logic. Dropping this value ends the logic.
#[derive(Debug)]
enum LogicHandle {
    /// One logic, from the start of the master to its end.
    Sole { queue: Sender<LogicMessage>, thread: Option<JoinHandle<()>> },
    /// A new logic for each term for which this master is elected.
    #[cfg(feature = "etcd")]
    Elected { candidate: ElectionCandidate },
}

impl MasterServer {
    /// Starts a master with threads of its own, which continues from its store. One of several masters stands by until
    /// it is elected, which can happen at once, or never.
    pub fn start(config: MasterConfig) -> Result<MasterServer, MasterStartError> {
        let settings = config.settings();
        settings.check()?;
        let shared = config.shared_store()?;
        let runtime = Runtime::with_keys("fusee-master-io", config.keys.clone())?;
        let runtime = runtime.with_tls(config.tls.clone());
        let listener = rpc::bind(&config.listen)?;
        let addr = listener.local_addr()?;
        let connect = connector(&runtime);
        let (end, ended) = watch::channel(None);
        let (settings, told) = watch::channel(settings);
        let (seat, work) = match shared {
            None => {
                if config.data_dir.as_os_str().is_empty() {
                    return Err(MasterStartError::NoDataDir);
                }
                let store = MasterStore::open(&config.data_dir)?;
                let (queue, thread) = drive(&runtime, told, store, connect, end)?;
                (
                    Arc::new(RequestRouter::sole(queue.clone())),
                    LogicHandle::Sole { queue, thread: Some(thread) },
                )
            }
            #[cfg(feature = "etcd")]
            Some(address) => {
                let lead = {
                    let runtime = runtime.clone();
                    move |store| {
                        // The end of a term does not end this master, so its reason is not passed on.
                        let (term, _) = watch::channel(None);
                        drive(&runtime, told.clone(), store, connect.clone(), term)
                    }
                };
                let advertise = config.advertise.unwrap_or_else(|| addr.to_string());
                let seat = Arc::new(RequestRouter::contested(end));
                let platform = CandidateOptions { address, advertise, ttl_s: config.lease_ttl_s };
                let candidate =
                    ElectionCandidate::start(&runtime, platform, Arc::clone(&seat), lead)?;
                (seat, LogicHandle::Elected { candidate })
            }
            #[cfg(not(feature = "etcd"))]
            Some(never) => match never {},
        };
        // The `MasterServer` is made before its port opens: if that fails, dropping the `MasterServer` ends the thread.
        let client = MasterClient::new(&runtime, addr.to_string());
        let io = runtime.clone();
        let name = addr.to_string();
        let answer = handler(Arc::clone(&seat));
        let (inside, answers) = rpc::serve_local::<MasterService, _, _>(&io, &name, answer);
        let inside = (inside.into(), Some(answers));
        let mut master =
            MasterServer { server: None, client, inside, ended, settings, work, runtime };
        let closed = closed(Arc::clone(&seat));
        let server =
            rpc::serve_connections::<MasterService, _, _, _>(&io, listener, handler(seat), closed)?;
        tracing::info!(%addr, "master started");
        master.server = Some(server);
        Ok(master)
    }

    /// Starts a master inside of this process, without port or file, for a new cluster. The master reaches memory nodes
    /// through `nodes`, whose names are the control addresses with which the nodes join.
    pub fn start_local(
        runtime: &Runtime,
        settings: ClusterSettings,
        nodes: Vec<NodeClient>,
    ) -> Result<MasterServer, MasterStartError> {
        settings.check()?;
        let remote = runtime.clone();
        let mut store = MasterStore::memory();
        store.persist(vec![RecordWrite::Put(MasterRecord::Cluster(random_cluster()))])?;
        let (end, ended) = watch::channel(None);
        let connect = move |control: &str| {
            let named = nodes.iter().find(|node| node.addr() == control);
            named.cloned().unwrap_or_else(|| NodeClient::new(&remote, control))
        };
        let (settings, told) = watch::channel(settings);
        let (queue, thread) = drive(runtime, told, store, connect, end)?;
        let answer = handler(Arc::new(RequestRouter::sole(queue.clone())));
        let (client, server) = rpc::serve_local::<MasterService, _, _>(runtime, "master", answer);
        let work = LogicHandle::Sole { queue, thread: Some(thread) };
        let server = Some(server);
        let runtime = runtime.clone();
        let client = MasterClient::from(client);
        let inside = (client.clone(), None);
        Ok(MasterServer { server, client, inside, ended, settings, work, runtime })
    }

    /// Returns the address at which the master listens; `None` for a master inside of a process.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.server.as_ref().and_then(Server::addr)
    }

    /// Returns the runtime of the master's connections.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns a client of the master.
    pub fn client(&self) -> MasterClient {
        self.client.clone()
    }

    /// Waits until this master makes no more decisions, because its store has failed or cannot be used. Returns the
    /// reason. The process should end then, so that its supervisor restarts it.
    pub fn ended(&self) -> impl Future<Output = String> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            match ended.wait_for(Option::is_some).await {
                Ok(why) => why.clone().unwrap_or_default(),
                Err(_) => "its thread panicked; see its log".into(),
            }
        }
    }

    /// Adopts those of the new settings that a running master is allowed to change: see [`ClusterSettings::adjust`].
    pub fn adjust(&self, new: &ClusterSettings) {
        self.settings.send_modify(|settings| settings.adjust(new));
    }

    /// Returns the times that the master takes to answer requests over its port, by kind of request.
    pub fn times(&self) -> RequestTimes {
        self.server.as_ref().map(Server::times).unwrap_or_default()
    }

    /// Returns a client of the master inside of this process, which needs no proof and no network. So it also reaches a
    /// master whose certificate does not name the address at which it listens. The client's name is that address.
    pub fn inside(&self) -> MasterClient {
        self.inside.0.clone()
    }

    /// Asks the master, which has no cluster yet, to form a new cluster from the memory nodes that join.
    pub fn form(&self) -> Result<ClusterId, FormError> {
        let cluster = random_cluster();
        let request = MasterRequest::Form { cluster };
        match self.inside().call_blocking(request)? {
            MasterReply::Done => Ok(cluster),
            MasterReply::Refused { reason } => Err(FormError::Refused(reason)),
            other => Err(FormError::Refused(format!("wrong answer: {other:?}"))),
        }
    }

    /// Waits until the cluster is formed. Fails when `timeout` has passed, or when the cluster cannot be formed from
    /// the memory nodes that joined.
    pub fn wait_formed(&self, timeout: Duration) -> Result<View, FormError> {
        let end = Clock::Precise.now() + timeout;
        loop {
            let error = match self.client.call_blocking(MasterRequest::GetView { newer_than: 0 })? {
                MasterReply::View(Some(view)) => return Ok(view),
                MasterReply::NotReady { joined, expected } => {
                    FormError::NotReady { joined, expected }
                }
                MasterReply::Refused { reason } => return Err(FormError::Refused(reason)),
                other => return Err(FormError::Refused(format!("wrong answer: {other:?}"))),
            };
            if Clock::Precise.now() >= end {
                return Err(error);
            }
            sleep(LOOK);
        }
    }

    /// Completes the change of the view that is under way, within [`FINISHES_WITHIN`], and then makes no more
    /// decisions. Call this before [`MasterServer::stop`] if the cluster continues to run: otherwise writes in the
    /// scope of an unfinished change wait for the next master.
    pub fn finish(&mut self) {
        match &mut self.work {
            LogicHandle::Sole { queue, thread } => {
                if let Some(thread) = thread.take() {
                    finish(queue);
                    join(thread);
                }
            }
            #[cfg(feature = "etcd")]
            LogicHandle::Elected { candidate } => candidate.finish(),
        }
    }

    /// Ends the master. Returns when its port is closed and its store is released.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl Drop for LogicHandle {
    fn drop(&mut self) {
        match self {
            LogicHandle::Sole { queue, thread } => {
                if let Some(thread) = thread.take() {
                    end(queue, thread);
                }
            }
            #[cfg(feature = "etcd")]
            LogicHandle::Elected { .. } => {}
        }
    }
}

/// Returns a random id for a new cluster.
pub fn random_cluster() -> ClusterId {
    loop {
        if let Some(cluster) = ClusterId::from_word(rand::random()) {
            return cluster;
        }
    }
}

type ReplyFuture = std::pin::Pin<Box<dyn Future<Output = MasterReply> + Send>>;

/// Tells a logic to end as soon as no view change is under way.
pub(crate) fn finish(queue: &Sender<LogicMessage>) {
    // Sending fails only if the thread has ended already.
    let _ended = queue.send(LogicMessage::Finish { until: Clock::Precise.now() + FINISHES_WITHIN });
}

/// Ends the thread of a logic.
pub(crate) fn end(queue: &Sender<LogicMessage>, thread: JoinHandle<()>) {
    // Sending fails only if the thread has ended already.
    let _ended = queue.send(LogicMessage::Stop);
    join(thread);
}

/// Waits for the end of a logic's thread.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("the master's thread panicked");
    }
}

/// Returns a function that passes requests to the logic, and waits for the replies.
fn handler(seat: Arc<RequestRouter>) -> impl Fn(Caller, MasterRequest) -> ReplyFuture + Clone {
    move |caller, request| Box::pin(seat.ask(caller, request))
}

/// Returns a function that tells the logic that a connection has ended.
fn closed(seat: Arc<RequestRouter>) -> impl Fn(u64) + Clone {
    move |connection| seat.closed(connection)
}

/// Returns a function that makes clients of memory nodes.
fn connector(runtime: &Runtime) -> impl Fn(&str) -> NodeClient + Clone + Send + 'static {
    let runtime = runtime.clone();
    move |control| NodeClient::new(&runtime, control)
}

/// The thread that runs a logic and carries out the logic's actions.
struct LogicThread<C> {
    logic: MasterLogic,
    /// The settings in force, which can change while the master runs.
    settings: watch::Receiver<ClusterSettings>,
    store: MasterStore,
    /// The newest events of the cluster.
    journal: EventJournal,
    pieces: EncodedViews,
    /// A function that makes a client for the control address of a memory node.
    connect: C,
    nodes: HashMap<String, NodeClient>,
    handle: Handle,
    queue: Sender<LogicMessage>,
    repairer: Repairer,
    /// The members in the view of the last job, and a flag that tells the job that one of them is no longer a member.
    job: Option<(Vec<MnId>, Arc<AtomicBool>)>,
    waiting: HashMap<u64, oneshot::Sender<MasterReply>>,
    next_token: u64,
    /// The time of the start, by a clock that includes sleep of the machine, because leases depend on it.
    begun: Duration,
    /// The latest time at which the master ends; `None` unless the master was told to stop.
    stops_by: Option<Duration>,
}

fn drive<C>(
    runtime: &Runtime,
    mut settings: watch::Receiver<ClusterSettings>,
    mut store: MasterStore,
    connect: C,
    ended: watch::Sender<Option<String>>,
) -> Result<(Sender<LogicMessage>, JoinHandle<()>), MasterStartError>
where
    C: Fn(&str) -> NodeClient + Send + 'static,
{
    let now = settings.borrow_and_update().clone();
    let geometry = now.geometry;
    let mut records = store.load()?;
    let mut journal = EventJournal::restore(&mut records);
    let logic = MasterLogic::restore(now, rand::random(), HashKey::new(rand::random()), records)?;
    if logic.cluster().is_none() {
        // Clearing the store removes remainders of a destroyed cluster.
        store.clear()?;
        journal.clear();
    }
    let name = store.name();
    match logic.cluster() {
        Some(cluster) => {
            tracing::info!(%cluster, store = name, "goes on from its store");
            journal.add(Level::Info, Topic::Master, "a master leads, and goes on from its store");
        }
        // This is logged as information, not as a warning, because every new cluster begins like this, and the master
        // tells it to every process that asks.
        None => tracing::info!(
            store = name,
            "the store is empty: this master has no cluster, and waits. If it should lead one that \
             exists, stop it and start it on the store of that cluster; to form a new one, run \
             `fusee form`"
        ),
    }
    if logic.view().is_some_and(|view| view.geometry != geometry) {
        tracing::warn!("the cluster was formed with another geometry, which stays in force");
    }
    let (queue, messages) = channel();
    let done: Sender<LogicMessage> = queue.clone();
    let trust = NodeCredentials { keys: runtime.keys().cloned(), tls: runtime.tls().cloned() };
    let repairer = Repairer::start(trust, move |token, result| {
        // Sending fails when the master has ended.
        let _ended = done.send(LogicMessage::Input(LogicInput::Done { token, result }));
    })?;
    let driver = LogicThread {
        repairer,
        job: None,
        logic,
        settings,
        store,
        journal,
        pieces: EncodedViews::default(),
        connect,
        nodes: HashMap::new(),
        handle: runtime.handle().clone(),
        queue: queue.clone(),
        waiting: HashMap::new(),
        next_token: 0,
        begun: Clock::Precise.now(),
        stops_by: None,
    };
    let work = move || drop(ended.send_replace(Some(driver.run(&messages))));
    let thread = Builder::new().name("fusee-master".into()).spawn(work)?;
    Ok((queue, thread))
}

impl<C: Fn(&str) -> NodeClient> LogicThread<C> {
    /// Handles messages until the master has to end. Returns the reason for the end.
    fn run(mut self, messages: &Receiver<LogicMessage>) -> String {
        self.listen();
        while let Ok(first) = messages.recv() {
            let mut events = Vec::new();
            let mut has_listened = false;
            for message in once(first).chain(messages.try_iter().take(MAX_TOGETHER - 1)) {
                match message {
                    LogicMessage::Stop => return STOPPED.into(),
                    LogicMessage::Finish { until } => {
                        self.stops_by = Some(until);
                        self.logic.finish();
                    }
                    LogicMessage::Listened => has_listened = true,
                    LogicMessage::Input(input) => events.extend(self.event(input)),
                }
            }
            // The tick comes behind everything that had arrived. Otherwise, after a write to the store that took long,
            // leases would seem to have ended whose renewals are in the queue.
            events.extend(has_listened.then_some(MasterEvent::Tick));
            if !self.store.holds() {
                tracing::warn!("this master's term is over");
                return "its term is over".into();
            }
            // `has_changed` fails if the sender is gone; then the settings change no more.
            if self.settings.has_changed().unwrap_or(false) {
                self.logic.adjust(&self.settings.borrow_and_update());
            }
            let now = Clock::Precise.now();
            let now_ms = (now - self.begun).as_millis() as u64;
            let decided = self.decide(now_ms, events).and_then(|()| self.store.settle());
            if let Err(error) = decided {
                tracing::error!(%error, "the master decides no more: its store failed");
                return error.to_string();
            }
            if let Some(stops_by) = self.stops_by {
                let is_at_rest = self.logic.is_at_rest();
                if !is_at_rest && now >= stops_by {
                    tracing::warn!(
                        "stops in the middle of a change of the view: some writes wait for the next master"
                    );
                }
                if is_at_rest || now >= stops_by {
                    return STOPPED.into();
                }
            }
            if has_listened {
                self.listen();
            }
        }
        STOPPED.into()
    }

    /// Requests a message that arrives in the queue behind all messages that have arrived by now.
    fn listen(&self) {
        let queue = self.queue.clone();
        self.handle.spawn(async move {
            tokio::time::sleep(TICK).await;
            for _ in 0..ROUNDS {
                tokio::task::yield_now().await;
            }
            // Sending fails when the master has ended.
            let _ended = queue.send(LogicMessage::Listened);
        });
    }

    fn decide(&mut self, now_ms: u64, events: Vec<MasterEvent>) -> Result<(), StoreError> {
        let mut actions = Vec::new();
        for event in events {
            actions.extend(self.logic.handle(now_ms, event));
            // Actions up to a `Clear` are carried out first, so that `Clear` does not remove the writes of later
            // actions.
            if let Some(at) = actions.iter().position(|action| *action == MasterAction::Clear) {
                let after = actions.split_off(at + 1);
                self.perform_all(std::mem::replace(&mut actions, after))?;
            }
        }
        self.overtake_job();
        self.perform_all(actions)
    }

    /// Returns the event for the logic; `None` if the host has answered the request.
    fn event(&mut self, input: LogicInput) -> Option<MasterEvent> {
        Some(match input {
            LogicInput::Request { caller, request, reply } => match RoutedRequest::from(request) {
                RoutedRequest::Host(request) => return self.answer(caller, request, reply),
                RoutedRequest::Logic(request) => self.ask(caller, request, reply),
            },
            LogicInput::Closed { connection } => MasterEvent::ConnectionClosed { connection },
            LogicInput::Done { token, result } => MasterEvent::JobDone { token, result },
            LogicInput::Answer { node, token, result } => {
                MasterEvent::NodeAnswer { node, token, result }
            }
        })
    }

    /// Answers a request for events or a piece of a view. Returns the event that the logic has to handle for it, if
    /// any.
    fn answer(
        &mut self,
        caller: Caller,
        request: HostRequest,
        reply: oneshot::Sender<MasterReply>,
    ) -> Option<MasterEvent> {
        match request {
            HostRequest::Events { after } => {
                let (events, newest) = self.journal.after(after);
                // Sending fails if no task waits for the reply any more.
                let _gone = reply.send(MasterReply::Events { events, newest });
                None
            }
            HostRequest::ViewPiece { number, from } => {
                let is_own = caller.cluster.is_none_or(|it| Some(it) == self.logic.cluster());
                let view = self.logic.view().filter(|_| is_own);
                let Some(piece) = self.pieces.piece(view, number, from) else {
                    return Some(self.ask(caller, ClusterRequest::ViewPiece.into(), reply));
                };
                let _gone = reply.send(piece);
                Some(MasterEvent::Fetching { connection: caller.connection })
            }
        }
    }

    /// Returns the event for a request that the logic has to answer.
    fn ask(
        &mut self,
        caller: Caller,
        request: LogicRequest,
        reply: oneshot::Sender<MasterReply>,
    ) -> MasterEvent {
        let token = self.next_token;
        self.next_token += 1;
        self.waiting.insert(token, reply);
        MasterEvent::Request { token, caller, request }
    }

    /// Makes all records durable in one write, since each write takes long. Then carries out the other actions, for
    /// which the records had to be durable.
    fn perform_all(&mut self, mut actions: Vec<MasterAction>) -> Result<(), StoreError> {
        let mut writes = BTreeMap::new();
        for action in &mut actions {
            match action {
                // Of several writes of one record, only the last one is stored.
                MasterAction::Persist(more) => {
                    writes.extend(std::mem::take(more).into_iter().map(|w| (w.key(), w)));
                }
                MasterAction::Tell(level, Some(topic), text) => {
                    self.journal.add(*level, *topic, text);
                }
                _ => {}
            }
        }
        if !writes.is_empty() {
            writes.extend(self.journal.writes().into_iter().map(|write| (write.key(), write)));
            self.store.persist(writes.into_values().collect())?;
        }
        actions.into_iter().try_for_each(|action| self.perform(action))
    }

    fn perform(&mut self, action: MasterAction) -> Result<(), StoreError> {
        match action {
            // The writes are in the store by now: `perform_all` has put them there.
            MasterAction::Persist(_) => {}
            MasterAction::Clear => {
                self.nodes.clear();
                self.journal.clear();
                self.pieces.clear();
                self.store.clear()?;
            }
            MasterAction::Reply { token, mut reply } => {
                view_pieces::shorten(&mut reply, self.logic.view());
                // Sending fails if no task waits for the reply any more.
                if let Some(waiting) = self.waiting.remove(&token) {
                    let _gone = waiting.send(reply);
                }
            }
            MasterAction::Call { node, control, token, request } => {
                self.call(node, control, token, request);
            }
            MasterAction::Job { token, client, view, job } => self.start(token, client, *view, job),
            MasterAction::Tell(Level::Info, _, text) => tracing::info!("{text}"),
            MasterAction::Tell(Level::Warn, _, text) => tracing::warn!("{text}"),
        }
        Ok(())
    }

    /// Ends the running job if the view lacks one of its members, because the job possibly waits for that member. There
    /// is no view if the cluster was destroyed.
    fn overtake_job(&mut self) {
        let view = self.logic.view();
        let is_gone = |node: &MnId| view.is_none_or(|view| view.member(*node).is_none());
        if let Some((_, overtaken)) = self.job.take_if(|(nodes, _)| nodes.iter().any(is_gone)) {
            // Relaxed is enough, because the job checks the flag again soon.
            overtaken.store(true, Ordering::Relaxed);
        }
    }

    fn client(&mut self, control: &str) -> NodeClient {
        if self.nodes.len() >= MAX_CLIENTS {
            // Most of the kept clients are for nodes that are gone. Clients of other nodes are made again when they are
            // needed.
            self.nodes.clear();
        }
        let connect = &self.connect;
        let control = control.to_owned();
        let client = self.nodes.entry(control).or_insert_with_key(|control| connect(control));
        // The process at this address has to belong to this cluster, or to none.
        client.of_cluster(self.logic.cluster())
    }

    fn start(&mut self, token: u64, client: ClientId, view: View, job: MasterJob) {
        let members: Vec<(MnId, String)> =
            view.members.iter().map(|member| (member.node, member.control.clone())).collect();
        let is_overtaken = Arc::<AtomicBool>::default();
        let names = members.iter().map(|(node, _)| *node).collect();
        self.job = Some((names, is_overtaken.clone()));
        let nodes = members.into_iter().map(|(node, control)| (node, self.client(&control)));
        let nodes = nodes.collect();
        self.repairer.order(QueuedJob { token, client, view, job, nodes, is_overtaken });
    }

    fn call(&mut self, node: MnId, control: String, token: u64, request: NodeRequest) {
        let client = self.client(&control).with_deadline(NODE_DEADLINE);
        let queue = self.queue.clone();
        self.handle.spawn(async move {
            let result = client.call(request).await.map_err(|error| error.to_string());
            // Sending fails when the master has ended.
            let answer = LogicInput::Answer { node, token, result };
            let _ended = queue.send(LogicMessage::Input(answer));
        });
    }
}

#[cfg(test)]
mod tests;
