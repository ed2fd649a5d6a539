//! A running master: the logic on a thread of its own, the control service before it.
//!
//! Requests and the answers of memory nodes reach the thread through one queue; it decides about
//! them one by one and carries the actions out in order. A write to the store blocks the thread,
//! which is what "durable before any later action" means. Calls to memory nodes run on the
//! [`Runtime`] and come back through the queue, and so do jobs, which run on a thread of their own
//! ([`repairer`](crate::repairer)). A store that fails ends the thread: a master that
//! cannot remember must not decide, and whoever asks is told so.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use fusee_control::master::{MasterReply, MasterRequest};
use fusee_control::node::{NodeReply, NodeRequest};
use fusee_control::rpc::{
    self, MasterClient, MasterService, NodeClient, RpcError, Runtime, Server,
};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::View;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::jobs::{Job, JobError, JobReport};
use crate::logic::{Action, Event, Level, Master, RestoreError};
use crate::repairer::{Order, Repairer};
use crate::settings::{Settings, SettingsError};
use crate::store::{Store, StoreError};

/// How often the logic hears that time passes: several times in a grace or in a short lease.
const TICK: Duration = Duration::from_millis(5);
/// The deadline of a call to a memory node, which may have to zero memory.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// How often [`MasterServer::wait_formed`] looks.
const LOOK: Duration = Duration::from_millis(5);
/// The number of the one connection inside of a process.
const LOCAL: u64 = 0;

/// Why a master cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store's contents cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
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

enum Message {
    Request { connection: u64, request: MasterRequest, reply: oneshot::Sender<MasterReply> },
    Closed { connection: u64 },
    Answer { node: MnId, token: u64, result: Result<NodeReply, String> },
    Done { token: u64, result: Result<JobReport, JobError> },
    Stop,
}

/// A running master. Dropping it ends it.
#[derive(Debug)]
pub struct MasterServer {
    // In the order in which they end.
    server: Option<Server>,
    client: MasterClient,
    queue: Sender<Message>,
    thread: Option<JoinHandle<()>>,
    runtime: Runtime,
}

impl MasterServer {
    /// Starts a master with its own threads, from what its store remembers.
    pub fn start(config: Config) -> Result<MasterServer, StartError> {
        let settings = config.settings();
        settings.check()?;
        let runtime = Runtime::start("fusee-master-io")?;
        let listener = rpc::bind(&config.listen)?;
        let store = Store::open(&config.data_dir, config.format)?;
        let remote = runtime.clone();
        let (queue, thread) =
            drive(&runtime, settings, store, move |control| NodeClient::new(&remote, control))?;
        // Made first: if anything fails from here on, dropping it ends the thread.
        let client = MasterClient::new(&runtime, config.listen);
        let (requests, io) = (queue.clone(), runtime.clone());
        let mut master =
            MasterServer { server: None, client, queue, thread: Some(thread), runtime };
        let closed = closed(requests.clone());
        let server = rpc::serve_connections::<MasterService, _, _, _>(
            &io,
            listener,
            handler(requests),
            closed,
        )?;
        if let Some(addr) = server.addr() {
            tracing::info!(%addr, "master started");
            master.client = MasterClient::new(&io, addr.to_string());
        }
        master.server = Some(server);
        Ok(master)
    }

    /// Starts a master for a cluster inside this process: no port, no file. It reaches memory
    /// nodes through `nodes`, whose names are the control addresses that the nodes join with.
    pub fn start_local(
        runtime: &Runtime,
        settings: Settings,
        nodes: Vec<NodeClient>,
    ) -> Result<MasterServer, StartError> {
        settings.check()?;
        let remote = runtime.clone();
        let (queue, thread) = drive(runtime, settings, Store::memory(), move |control| {
            let named = nodes.iter().find(|node| node.addr() == control);
            named.cloned().unwrap_or_else(|| NodeClient::new(&remote, control))
        })?;
        let answer = handler(queue.clone());
        let (client, server) =
            rpc::serve_local::<MasterService, _, _>(runtime, "master", move |request| {
                answer(LOCAL, request)
            });
        let (server, thread) = (Some(server), Some(thread));
        let runtime = runtime.clone();
        Ok(MasterServer { server, client, queue, thread, runtime })
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

    /// Waits until the cluster is formed; gives up when `timeout` has passed, or when it cannot
    /// be formed of the memory nodes that joined.
    ///
    /// # Panics
    /// If the calling thread is an async runtime's.
    pub fn wait_formed(&self, timeout: Duration) -> Result<View, FormError> {
        let end = Instant::now() + timeout;
        loop {
            let error = match self.client.call_blocking(MasterRequest::GetView { newer_than: 0 })? {
                MasterReply::View(Some(view)) => return Ok(view),
                MasterReply::NotReady { joined, expected } => {
                    FormError::NotReady { joined, expected }
                }
                MasterReply::Refused { reason } => return Err(FormError::Refused(reason)),
                other => return Err(FormError::Refused(format!("wrong answer: {other:?}"))),
            };
            if Instant::now() >= end {
                return Err(error);
            }
            sleep(LOOK);
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

impl Drop for MasterServer {
    fn drop(&mut self) {
        self.server.take();
        // It fails only if the thread has ended already.
        let _ended = self.queue.send(Message::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the master's thread panicked");
        }
    }
}

type Answer = std::pin::Pin<Box<dyn Future<Output = MasterReply> + Send>>;

/// Puts requests into the queue and waits for their replies.
fn handler(queue: Sender<Message>) -> impl Fn(u64, MasterRequest) -> Answer + Clone {
    move |connection, request| {
        let (reply, replied) = oneshot::channel();
        let sent = queue.send(Message::Request { connection, request, reply });
        Box::pin(async move {
            let ended = "this master has ended, or its store failed; see its log";
            let refused = || MasterReply::Refused { reason: ended.into() };
            if sent.is_err() {
                return refused();
            }
            replied.await.unwrap_or_else(|_| refused())
        })
    }
}

/// Puts the ends of connections into the queue.
fn closed(queue: Sender<Message>) -> impl Fn(u64) + Clone {
    move |connection| {
        // Nobody listens any more when the master ends.
        let _ended = queue.send(Message::Closed { connection });
    }
}

/// Carries out what the logic decides.
struct Driver<C> {
    logic: Master,
    store: Store,
    /// Makes a client for a control address.
    connect: C,
    nodes: HashMap<String, NodeClient>,
    handle: Handle,
    queue: Sender<Message>,
    repairer: Repairer,
    waiting: HashMap<u64, oneshot::Sender<MasterReply>>,
    next_token: u64,
    begun: Instant,
}

fn drive<C>(
    runtime: &Runtime,
    settings: Settings,
    store: Store,
    connect: C,
) -> Result<(Sender<Message>, JoinHandle<()>), StartError>
where
    C: Fn(&str) -> NodeClient + Send + 'static,
{
    let geometry = settings.geometry;
    let logic = Master::restore(settings, rand::random(), store.load()?)?;
    if logic.view().is_some_and(|view| view.geometry != geometry) {
        tracing::warn!("the cluster was formed with another geometry, which stays in force");
    }
    let (queue, messages) = channel();
    let done: Sender<Message> = queue.clone();
    let repairer = Repairer::start(move |token, result| {
        // Nobody listens any more when the master ends.
        let _ended = done.send(Message::Done { token, result });
    })?;
    let driver = Driver {
        repairer,
        logic,
        store,
        connect,
        nodes: HashMap::new(),
        handle: runtime.handle().clone(),
        queue: queue.clone(),
        waiting: HashMap::new(),
        next_token: 0,
        begun: Instant::now(),
    };
    let thread = Builder::new().name("fusee-master".into()).spawn(move || driver.run(&messages))?;
    Ok((queue, thread))
}

impl<C: Fn(&str) -> NodeClient> Driver<C> {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut next_tick = Instant::now();
        loop {
            let wait = next_tick.saturating_duration_since(Instant::now());
            let event = match messages.recv_timeout(wait) {
                Ok(Message::Request { connection, request, reply }) => {
                    let token = self.next_token;
                    self.next_token += 1;
                    self.waiting.insert(token, reply);
                    Event::Request { token, connection, request }
                }
                Ok(Message::Closed { connection }) => Event::ConnectionClosed { connection },
                Ok(Message::Done { token, result }) => Event::JobDone { token, result },
                Ok(Message::Answer { node, token, result }) => {
                    Event::NodeAnswer { node, token, result }
                }
                Err(RecvTimeoutError::Timeout) => {
                    next_tick = Instant::now() + TICK;
                    Event::Tick
                }
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            };
            let now_ms = self.begun.elapsed().as_millis() as u64;
            let actions = self.logic.handle(now_ms, event);
            if let Err(error) = actions.into_iter().try_for_each(|action| self.perform(action)) {
                tracing::error!(%error, "the master ends: its store failed");
                return;
            }
        }
    }

    fn perform(&mut self, action: Action) -> Result<(), StoreError> {
        match action {
            Action::Persist(writes) => self.store.persist(writes)?,
            Action::Reply { token, reply } => {
                // Who asked may have gone; then nobody waits for the reply.
                if let Some(waiting) = self.waiting.remove(&token) {
                    let _gone = waiting.send(reply);
                }
            }
            Action::Call { node, control, token, request } => {
                self.call(node, control, token, request);
            }
            Action::Job { token, client, view, job } => self.start(token, client, *view, job),
            Action::Log(Level::Info, text) => tracing::info!("{text}"),
            Action::Log(Level::Warn, text) => tracing::warn!("{text}"),
        }
        Ok(())
    }

    fn client(&mut self, control: &str) -> NodeClient {
        let connect = &self.connect;
        let control = control.to_owned();
        self.nodes.entry(control).or_insert_with_key(|control| connect(control)).clone()
    }

    fn start(&mut self, token: u64, client: ClientId, view: View, job: Job) {
        let members: Vec<(MnId, String)> =
            view.members.iter().map(|member| (member.node, member.control.clone())).collect();
        let nodes = members.into_iter().map(|(node, control)| (node, self.client(&control)));
        let nodes = nodes.collect();
        self.repairer.order(Order { token, client, view, job, nodes });
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
