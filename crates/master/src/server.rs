//! A running master: the logic on a thread of its own, the control service before it.
//!
//! Requests and the answers of memory nodes reach the thread through one queue; it decides about
//! them one by one, as many as are there, makes durable what is to be remembered of all of them,
//! and then carries the other actions out in order. A write to the store blocks the thread. Calls
//! to memory nodes run on the [`Runtime`] and come back through the queue, and so do jobs, which
//! run on a thread of their own (`repairer.rs`). A store that fails ends the thread: a master that
//! cannot remember must not decide, and whoever asks is told so. One of several masters (feature
//! `etcd`) has such a thread for each of its terms, and stands by between them.
//!
//! The logic hears that time passes by messages that go through the [`Runtime`], behind all that has come in by
//! then: whoever is silent is so although the master has read what there was to read. A master that is
//! told to stop ends the change of the view that is under way, and begins no other.

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
use fusee_control::pieces;
use fusee_control::rpc::{
    self, Caller, MasterClient, MasterService, NodeClient, RequestTimes, RpcError, Runtime, Server,
};
use fusee_core::race::HashKey;
use fusee_core::verbs::{ClientId, ClusterId, MnId};
use fusee_core::view::View;
use fusee_fabric::Clock;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::config::Config;
#[cfg(feature = "etcd")]
use crate::election::{Candidate, Platform};
use crate::jobs::{Job, JobError, JobReport};
use crate::journal::Journal;
use crate::logic::{Action, Event, Master, RestoreError};
use crate::pieces::Pieces;
use crate::record::{Record, Write};
use crate::repairer::{Order, Repairer, Trust};
use crate::seat::Seat;
use crate::settings::{MAX_MEMORY_NODES, Settings, SettingsError};
use crate::store::address::StoreAddressError;
use crate::store::{Store, StoreError};

/// How often the logic hears that time passes: several times in a grace or in a short lease.
const TICK: Duration = Duration::from_millis(5);
/// Rounds of the runtime before that: from a socket that has something to a request in the queue.
const ROUNDS: u32 = 4;
/// How long the end of a change is waited for by a master that is told to stop: less than the 10 s of `docker stop`.
pub const FINISHES_WITHIN: Duration = Duration::from_secs(8);
/// The deadline of a call to a memory node, which may have to zero memory.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// How often [`MasterServer::wait_formed`] looks.
const LOOK: Duration = Duration::from_millis(5);
/// Clients of memory nodes that are kept at a time, at most.
const MAX_CLIENTS: usize = 4 * MAX_MEMORY_NODES as usize;
/// Why a master ends that was told to.
const STOPPED: &str = "it was stopped";
/// Events that are decided about before what follows is made durable, at most.
const MAX_TOGETHER: usize = 256;

/// Why a master cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store is named in a way that makes no sense here.
    #[error(transparent)]
    StoreAddress(#[from] StoreAddressError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store's contents cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Nobody said where to keep the store, and there is no usual place.
    #[error(
        "no data_dir is given, and there is no home directory to have one in; name a directory"
    )]
    NoDataDir,
    /// The control service cannot listen.
    #[error(transparent)]
    Control(#[from] rpc::ServeError),
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// Why there is no view yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// It cannot be formed of the memory nodes that joined.
    #[error("cannot form the cluster: {0}")]
    Refused(String),
    /// Memory nodes are missing, or they are slow.
    #[error("the cluster is not formed yet: {joined} of {expected} memory nodes joined")]
    NotReady {
        /// Memory nodes that joined.
        joined: u32,
        /// Memory nodes that it needs.
        expected: u32,
    },
    /// The master does not answer.
    #[error(transparent)]
    Rpc(#[from] RpcError),
}

pub(crate) enum Message {
    Request {
        caller: Caller,
        request: MasterRequest,
        reply: oneshot::Sender<MasterReply>,
    },
    Closed {
        connection: u64,
    },
    Answer {
        node: MnId,
        token: u64,
        result: Result<NodeReply, String>,
    },
    Done {
        token: u64,
        result: Result<JobReport, JobError>,
    },
    /// What had come by the time at which this was asked for has been told.
    Listened,
    /// Stop when no change is under way, at this time at the latest.
    Finish {
        until: Duration,
    },
    Stop,
}

/// A running master. Dropping it ends it.
#[derive(Debug)]
pub struct MasterServer {
    // In the order in which they end.
    server: Option<Server>,
    client: MasterClient,
    /// A client that needs no connection, and what answers it.
    inside: (MasterClient, Option<Server>),
    /// Why it decides nothing any more.
    ended: watch::Receiver<Option<String>>,
    /// The settings in force, for whoever decides.
    settings: watch::Sender<Settings>,
    work: Work,
    runtime: Runtime,
}

/// What decides. Dropping it ends it.
#[derive(Debug)]
enum Work {
    /// The logic, from start to end.
    Sole { queue: Sender<Message>, thread: Option<JoinHandle<()>> },
    /// The logic, whenever this master is elected.
    #[cfg(feature = "etcd")]
    Elected { candidate: Candidate },
}

impl MasterServer {
    /// Starts a master with its own threads, from what its store remembers. One of several masters
    /// stands by until it is elected; that may be at once, or never.
    pub fn start(config: Config) -> Result<MasterServer, StartError> {
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
                    return Err(StartError::NoDataDir);
                }
                let store = Store::open(&config.data_dir)?;
                let (queue, thread) = drive(&runtime, told, store, connect, end)?;
                (Arc::new(Seat::sole(queue.clone())), Work::Sole { queue, thread: Some(thread) })
            }
            #[cfg(feature = "etcd")]
            Some(address) => {
                let lead = {
                    let runtime = runtime.clone();
                    move |store| {
                        // The end of a term is not the end of this master.
                        let (term, _) = watch::channel(None);
                        drive(&runtime, told.clone(), store, connect.clone(), term)
                    }
                };
                let advertise = config.advertise.unwrap_or_else(|| addr.to_string());
                let seat = Arc::new(Seat::contested(end));
                let platform = Platform { address, advertise, ttl_s: config.lease_ttl_s };
                let candidate = Candidate::start(&runtime, platform, Arc::clone(&seat), lead)?;
                (seat, Work::Elected { candidate })
            }
            #[cfg(not(feature = "etcd"))]
            Some(never) => match never {},
        };
        // Made first: if anything fails from here on, dropping it ends the thread.
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

    /// Starts a master for a cluster inside this process, which is to be formed: no port, no file. It
    /// reaches memory nodes through `nodes`, whose names are the control addresses that the nodes join with.
    pub fn start_local(
        runtime: &Runtime,
        settings: Settings,
        nodes: Vec<NodeClient>,
    ) -> Result<MasterServer, StartError> {
        settings.check()?;
        let remote = runtime.clone();
        let mut store = Store::memory();
        store.persist(vec![Write::Put(Record::Cluster(random_cluster()))])?;
        let (end, ended) = watch::channel(None);
        let connect = move |control: &str| {
            let named = nodes.iter().find(|node| node.addr() == control);
            named.cloned().unwrap_or_else(|| NodeClient::new(&remote, control))
        };
        let (settings, told) = watch::channel(settings);
        let (queue, thread) = drive(runtime, told, store, connect, end)?;
        let answer = handler(Arc::new(Seat::sole(queue.clone())));
        let (client, server) = rpc::serve_local::<MasterService, _, _>(runtime, "master", answer);
        let work = Work::Sole { queue, thread: Some(thread) };
        let server = Some(server);
        let runtime = runtime.clone();
        let client = MasterClient::from(client);
        let inside = (client.clone(), None);
        Ok(MasterServer { server, client, inside, ended, settings, work, runtime })
    }

    /// Where it listens; `None` inside a process.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.server.as_ref().and_then(Server::addr)
    }

    /// What its connections live on.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// A client of it.
    pub fn client(&self) -> MasterClient {
        self.client.clone()
    }

    /// Waits until this master decides nothing any more, and says why: its store failed, or cannot be
    /// used. Then it should end, so that whoever watches over it starts it again.
    pub fn ended(&self) -> impl Future<Output = String> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            match ended.wait_for(Option::is_some).await {
                Ok(why) => why.clone().unwrap_or_default(),
                Err(_) => "its thread panicked; see its log".into(),
            }
        }
    }

    /// Takes over what a running master can change: see [`Settings::adjust`].
    pub fn adjust(&self, new: &Settings) {
        self.settings.send_modify(|settings| settings.adjust(new));
    }

    /// How long it takes to answer what comes over its port.
    pub fn times(&self) -> RequestTimes {
        self.server.as_ref().map(Server::times).unwrap_or_default()
    }

    /// A client of it inside of this process, which proves nothing and goes over no network: so it also reaches a
    /// master whose certificate is for another name than the address that it listens at. Its name is that address.
    pub fn inside(&self) -> MasterClient {
        self.inside.0.clone()
    }

    /// Asks for a new cluster, of a master that has none yet: of the memory nodes that join.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
    pub fn form(&self) -> Result<ClusterId, FormError> {
        let cluster = random_cluster();
        let request = MasterRequest::Form { cluster };
        match self.inside().call_blocking(request)? {
            MasterReply::Done => Ok(cluster),
            MasterReply::Refused { reason } => Err(FormError::Refused(reason)),
            other => Err(FormError::Refused(format!("wrong answer: {other:?}"))),
        }
    }

    /// Waits until the cluster is formed; gives up when `timeout` has passed, or when it cannot
    /// be formed of the memory nodes that joined.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
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

    /// Ends the change of the view that is under way, if there is one and if that takes no longer than
    /// [`FINISHES_WITHIN`], and decides nothing any more. To be called before [`MasterServer::stop`] where the
    /// cluster goes on: writes to what a change has in its scope wait for a master.
    pub fn finish(&mut self) {
        match &mut self.work {
            Work::Sole { queue, thread } => {
                if let Some(thread) = thread.take() {
                    finish(queue);
                    join(thread);
                }
            }
            #[cfg(feature = "etcd")]
            Work::Elected { candidate } => candidate.finish(),
        }
    }

    /// Ends the master and returns when its port is closed and its store is released.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
    pub fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        match self {
            Work::Sole { queue, thread } => {
                if let Some(thread) = thread.take() {
                    end(queue, thread);
                }
            }
            #[cfg(feature = "etcd")]
            Work::Elected { .. } => {}
        }
    }
}

/// A name for a new cluster.
pub fn random_cluster() -> ClusterId {
    loop {
        if let Some(cluster) = ClusterId::from_word(rand::random()) {
            return cluster;
        }
    }
}

type Answer = std::pin::Pin<Box<dyn Future<Output = MasterReply> + Send>>;

/// Has a logic end as soon as no change is under way.
pub(crate) fn finish(queue: &Sender<Message>) {
    // It fails only if the thread has ended already.
    let _ended = queue.send(Message::Finish { until: Clock::Precise.now() + FINISHES_WITHIN });
}

/// Ends the thread of a logic.
pub(crate) fn end(queue: &Sender<Message>, thread: JoinHandle<()>) {
    // It fails only if the thread has ended already.
    let _ended = queue.send(Message::Stop);
    join(thread);
}

/// Waits for the end of the thread of a logic.
pub(crate) fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("the master's thread panicked");
    }
}

/// Gives requests to whoever decides, and waits for the replies.
fn handler(seat: Arc<Seat>) -> impl Fn(Caller, MasterRequest) -> Answer + Clone {
    move |caller, request| Box::pin(seat.ask(caller, request))
}

/// Tells whoever decides of the ends of connections.
fn closed(seat: Arc<Seat>) -> impl Fn(u64) + Clone {
    move |connection| seat.closed(connection)
}

/// Makes clients of memory nodes.
fn connector(runtime: &Runtime) -> impl Fn(&str) -> NodeClient + Clone + Send + 'static {
    let runtime = runtime.clone();
    move |control| NodeClient::new(&runtime, control)
}

/// Carries out what the logic decides.
struct Driver<C> {
    logic: Master,
    /// Settings that change.
    settings: watch::Receiver<Settings>,
    store: Store,
    /// What was told.
    journal: Journal,
    pieces: Pieces,
    /// Makes a client for a control address.
    connect: C,
    nodes: HashMap<String, NodeClient>,
    handle: Handle,
    queue: Sender<Message>,
    repairer: Repairer,
    /// The members by whose view the last job works, and what it hears when one of them is none any more.
    job: Option<(Vec<MnId>, Arc<AtomicBool>)>,
    waiting: HashMap<u64, oneshot::Sender<MasterReply>>,
    next_token: u64,
    /// By a clock that goes on while the machine sleeps: leases rest on what follows from it.
    begun: Duration,
    /// It is told to stop, and ends at this time at the latest.
    stops_by: Option<Duration>,
}

fn drive<C>(
    runtime: &Runtime,
    mut settings: watch::Receiver<Settings>,
    mut store: Store,
    connect: C,
    ended: watch::Sender<Option<String>>,
) -> Result<(Sender<Message>, JoinHandle<()>), StartError>
where
    C: Fn(&str) -> NodeClient + Send + 'static,
{
    let now = settings.borrow_and_update().clone();
    let geometry = now.geometry;
    let mut records = store.load()?;
    let mut journal = Journal::restore(&mut records);
    let logic = Master::restore(now, rand::random(), HashKey::new(rand::random()), records)?;
    if logic.cluster().is_none() {
        // What may be left of one that was destroyed.
        store.clear()?;
        journal.clear();
    }
    let name = store.name();
    match logic.cluster() {
        Some(cluster) => {
            tracing::info!(%cluster, store = name, "goes on from its store");
            journal.add(Level::Info, Topic::Master, "a master leads, and goes on from its store");
        }
        // No warning: it is how every cluster begins, and whoever asks is told.
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
    let done: Sender<Message> = queue.clone();
    let trust = Trust { keys: runtime.keys().cloned(), tls: runtime.tls().cloned() };
    let repairer = Repairer::start(trust, move |token, result| {
        // Nobody listens any more when the master ends.
        let _ended = done.send(Message::Done { token, result });
    })?;
    let driver = Driver {
        repairer,
        job: None,
        logic,
        settings,
        store,
        journal,
        pieces: Pieces::default(),
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

impl<C: Fn(&str) -> NodeClient> Driver<C> {
    /// Returns why it ended.
    fn run(mut self, messages: &Receiver<Message>) -> String {
        self.listen();
        while let Ok(first) = messages.recv() {
            let mut events = Vec::new();
            let mut has_listened = false;
            for message in once(first).chain(messages.try_iter().take(MAX_TOGETHER - 1)) {
                match message {
                    Message::Stop => return STOPPED.into(),
                    Message::Finish { until } => {
                        self.stops_by = Some(until);
                        self.logic.finish();
                    }
                    Message::Listened => has_listened = true,
                    other => events.extend(self.event(other)),
                }
            }
            // Behind all that had come: the store may have kept us so long that leases seem to have ended that
            // were renewed in time.
            events.extend(has_listened.then_some(Event::Tick));
            if !self.store.holds() {
                tracing::warn!("this master's term is over");
                return "its term is over".into();
            }
            // An error: who could change them is gone.
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

    /// Asks to be told when what has come in by then is in the queue.
    fn listen(&self) {
        let queue = self.queue.clone();
        self.handle.spawn(async move {
            tokio::time::sleep(TICK).await;
            for _ in 0..ROUNDS {
                tokio::task::yield_now().await;
            }
            // Nobody listens any more when the master ends.
            let _ended = queue.send(Message::Listened);
        });
    }

    fn decide(&mut self, now_ms: u64, events: Vec<Event>) -> Result<(), StoreError> {
        let mut actions = Vec::new();
        for event in events {
            actions.extend(self.logic.handle(now_ms, event));
            // What comes after it is not to be cleared.
            if let Some(at) = actions.iter().position(|action| *action == Action::Clear) {
                let after = actions.split_off(at + 1);
                self.perform_all(std::mem::replace(&mut actions, after))?;
            }
        }
        self.overtake_job();
        self.perform_all(actions)
    }

    /// What the logic is to hear of.
    fn event(&mut self, message: Message) -> Option<Event> {
        Some(match message {
            Message::Request { request: MasterRequest::Events { after }, reply, .. } => {
                let (events, newest) = self.journal.after(after);
                // Who asked may have gone.
                let _gone = reply.send(MasterReply::Events { events, newest });
                return None;
            }
            Message::Request {
                caller,
                request: MasterRequest::ViewPiece { number, from },
                reply,
            } if caller.cluster.is_none_or(|asker| Some(asker) == self.logic.cluster())
                && self.logic.view().is_some() =>
            {
                let piece = self.pieces.piece(self.logic.view(), number, from);
                if let Some(piece) = piece {
                    let _gone = reply.send(piece);
                }
                Event::Fetching { connection: caller.connection }
            }
            Message::Request { caller, request, reply } => {
                let token = self.next_token;
                self.next_token += 1;
                self.waiting.insert(token, reply);
                Event::Request { token, caller, request }
            }
            Message::Closed { connection } => Event::ConnectionClosed { connection },
            Message::Done { token, result } => Event::JobDone { token, result },
            Message::Answer { node, token, result } => Event::NodeAnswer { node, token, result },
            Message::Listened | Message::Finish { .. } | Message::Stop => {
                unreachable!("these are looked for before")
            }
        })
    }

    /// Makes all that is to be remembered durable at once, which is what takes time; then nothing
    /// else can be too early.
    fn perform_all(&mut self, actions: Vec<Action>) -> Result<(), StoreError> {
        let mut writes = BTreeMap::new();
        let mut others = Vec::with_capacity(actions.len());
        for action in actions {
            match action {
                // The last write to a key is the one that counts.
                Action::Persist(more) => writes.extend(more.into_iter().map(|w| (w.key(), w))),
                Action::Tell(level, topic, text) => {
                    if let Some(topic) = topic {
                        self.journal.add(level, topic, &text);
                    }
                    others.push(Action::Tell(level, topic, text));
                }
                other => others.push(other),
            }
        }
        if !writes.is_empty() {
            writes.extend(self.journal.writes().into_iter().map(|write| (write.key(), write)));
            self.store.persist(writes.into_values().collect())?;
        }
        others.into_iter().try_for_each(|action| self.perform(action))
    }

    fn perform(&mut self, action: Action) -> Result<(), StoreError> {
        match action {
            Action::Clear => {
                self.nodes.clear();
                self.journal.clear();
                self.pieces.clear();
                self.store.clear()?;
            }
            Action::Persist(_) => unreachable!("these are performed before"),
            Action::Reply { token, mut reply } => {
                pieces::shorten(&mut reply, self.logic.view());
                // Who asked may have gone; then nobody waits for the reply.
                if let Some(waiting) = self.waiting.remove(&token) {
                    let _gone = waiting.send(reply);
                }
            }
            Action::Call { node, control, token, request } => {
                self.call(node, control, token, request);
            }
            Action::Job { token, client, view, job } => self.start(token, client, *view, job),
            Action::Tell(Level::Info, _, text) => tracing::info!("{text}"),
            Action::Tell(Level::Warn, _, text) => tracing::warn!("{text}"),
        }
        Ok(())
    }

    /// Ends the job that runs, if the cluster has given up a member that it may wait for.
    fn overtake_job(&mut self) {
        let Some(view) = self.logic.view() else { return };
        let is_gone = |node: &MnId| view.member(*node).is_none();
        if let Some((_, overtaken)) = self.job.take_if(|(nodes, _)| nodes.iter().any(is_gone)) {
            // Relaxed: the job looks again soon.
            overtaken.store(true, Ordering::Relaxed);
        }
    }

    fn client(&mut self, control: &str) -> NodeClient {
        if self.nodes.len() >= MAX_CLIENTS {
            // Of nodes that are long gone, most of them; the others connect again.
            self.nodes.clear();
        }
        let connect = &self.connect;
        let control = control.to_owned();
        let client = self.nodes.entry(control).or_insert_with_key(|control| connect(control));
        // Whoever has the address now must be of this cluster, or of none.
        client.of_cluster(self.logic.cluster())
    }

    fn start(&mut self, token: u64, client: ClientId, view: View, job: Job) {
        let members: Vec<(MnId, String)> =
            view.members.iter().map(|member| (member.node, member.control.clone())).collect();
        let is_overtaken = Arc::<AtomicBool>::default();
        let names = members.iter().map(|(node, _)| *node).collect();
        self.job = Some((names, is_overtaken.clone()));
        let nodes = members.into_iter().map(|(node, control)| (node, self.client(&control)));
        let nodes = nodes.collect();
        self.repairer.order(Order { token, client, view, job, nodes, is_overtaken });
    }

    fn call(&mut self, node: MnId, control: String, token: u64, request: NodeRequest) {
        let client = self.client(&control).with_deadline(NODE_DEADLINE);
        let queue = self.queue.clone();
        self.handle.spawn(async move {
            let result = client.call(request).await.map_err(|error| error.to_string());
            // Nobody listens any more when the master ends.
            let _ended = queue.send(Message::Answer { node, token, result });
        });
    }
}
