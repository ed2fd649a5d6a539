//! The memory node's side: registers the pool, connects queue pairs, and waits for leases to end.
//!
//! One thread, one event loop, that no verb passes. It owns the queue pairs and the list of fenced clients.
//! So fencing is a message to the loop: it records the client, destroys its queue pairs, and says so when
//! the last one has gone; a hello that comes later is refused.
//!
//! A queue pair reaches what its protection domain has registered, which is the pool, and only with
//! the pool's keys: one for what is lent, and one for the header, which allows READs only. The card
//! refuses everything else, and the connection of who tries it with it. Whatever a client sends to
//! this loop, the node lives on.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fusee_core::verbs::ClientId;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use super::device::{self, Device, Registered, Responder};
use super::ports::Selected;
use super::wire::{FENCED, HELLO_BYTES, Hello, Status, Welcome};
use crate::doors::{Doors, Full, NEWCOMER_GRACE, NodeLimits, ROOM_RETRY};
use crate::error::{RdmaError, ServeError};
use crate::pool::Pool;
use crate::sys;

/// A client says hello within this time, or is sent away.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// After a failure to accept (no descriptors left, say), the next attempt waits so long.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST: usize = 2;

enum Command {
    /// Shut the client out, then say so.
    Fence(ClientId, SyncSender<()>),
}

/// A pool that network cards reach; dropping it ends all sessions.
#[derive(Debug)]
pub struct VerbsNode {
    addr: SocketAddr,
    commands: Option<Sender<Command>>,
    waker: Waker,
    sessions: Arc<AtomicU64>,
    device: Arc<Device>,
    thread: Option<JoinHandle<()>>,
}

impl VerbsNode {
    /// Registers `pool` with a card and takes hellos at `addr` (port 0: a free one). The card is the one
    /// that has this address, or the first; see `ports`.
    ///
    /// All of the pool is taken from the system, and stays in memory.
    pub fn start(pool: &Pool, identity: u64, addr: SocketAddr) -> Result<VerbsNode, ServeError> {
        VerbsNode::start_limited(pool, identity, addr, NodeLimits::default())
    }

    /// As [`VerbsNode::start`], with other limits.
    pub fn start_limited(
        pool: &Pool,
        identity: u64,
        addr: SocketAddr,
        limits: NodeLimits,
    ) -> Result<VerbsNode, ServeError> {
        let at = || addr.to_string();
        let io = |source| ServeError::Io { at: at(), source };
        let near = Some(addr.ip()).filter(|ip| !ip.is_unspecified());
        let (device, port) = device::choose(near)?;
        let registered = Registered::pool(&device, pool)?;
        let header = Registered::header(&device, pool)?;
        let poll = Poll::new().map_err(io)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(io)?;
        let mut listener = TcpListener::bind(addr).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::AddressInUse { at: at() },
            _ => io(source),
        })?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(io)?;
        let addr = listener.local_addr().map_err(io)?;
        let (commands, received) = mpsc::channel();
        let doors = Doors::new(limits);
        let sessions = doors.counter();
        if device.is_software {
            tracing::warn!("software RoCE may tear words: it is for tests, serve tcp instead");
        }
        let (name, gid) = (&port.port.device, port.gid.index);
        tracing::info!(device = name, port = port.port.number, gid, "serving verbs");
        let server = Loop {
            poll,
            listener,
            commands: received,
            identity,
            doors,
            fenced: HashSet::new(),
            open: HashMap::new(),
            next: FIRST,
            greeting: VecDeque::new(),
            device: device.clone(),
            port,
            pool_bytes: pool.bytes(),
            registered,
            header,
        };
        let thread = std::thread::Builder::new().name("fusee-verbs".into());
        let thread = Some(thread.spawn(move || server.run()).map_err(io)?);
        Ok(VerbsNode { addr, commands: Some(commands), waker, sessions, device, thread })
    }

    /// Where it takes hellos, with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The number of sessions.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The card's name, and whether its atomics and the processor's see each other.
    pub fn device(&self) -> (&str, bool) {
        (&self.device.name, self.device.shares_atomics)
    }

    /// Shuts a client out for ever; returns when no verb of it executes here any more.
    ///
    /// # Panics
    /// If the driver does not destroy a queue pair: then nobody may take the client for fenced.
    pub fn fence(&self, client: ClientId) {
        let (done, wait) = mpsc::sync_channel(1);
        let commands = self.commands.as_ref().expect("taken at the drop only");
        commands.send(Command::Fence(client, done)).expect("the verbs server runs");
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the verbs server, the fence waits for events");
        }
        wait.recv().expect("the verbs server destroys the client's queue pairs");
    }
}

impl Drop for VerbsNode {
    fn drop(&mut self) {
        self.commands = None;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot stop the verbs server");
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the verbs server has panicked");
        }
    }
}

/// A client's connection; with its hello it becomes a lease.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    hello: [u8; HELLO_BYTES],
    got: usize,
    session: Option<(ClientId, Responder)>,
}

/// Why a connection is closed by the node.
#[derive(Debug, thiserror::Error)]
enum Misbehaved {
    #[error("it is no client, or one of another version")]
    NotAClient,
    #[error("it says more than hello")]
    Talks,
    #[error("it expects another memory node, {0:016x}")]
    WrongIdentity(u64),
    #[error("{0} has been fenced")]
    Fenced(ClientId),
    #[error("{0}")]
    Full(#[from] Full),
    #[error("no queue pair for it: {0}")]
    Rdma(#[from] RdmaError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct Loop {
    poll: Poll,
    listener: TcpListener,
    commands: Receiver<Command>,
    identity: u64,
    doors: Doors<IpAddr>,
    fenced: HashSet<ClientId>,
    /// By token. Tokens are never used again, so a late event finds nobody.
    open: HashMap<usize, Connection>,
    next: usize,
    /// Who has yet to say hello until when, in the order of the deadlines.
    greeting: VecDeque<(Instant, usize)>,
    device: Arc<Device>,
    port: Selected,
    pool_bytes: u64,
    // After the queue pairs that reach it.
    registered: Registered,
    header: Registered,
}

impl Loop {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut accept_again: Option<Instant> = None;
        loop {
            if let Err(error) = self.poll.poll(&mut events, self.wait(accept_again)) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the verbs server stops");
                return;
            }
            if !self.obey() {
                return;
            }
            let mut accept = accept_again.is_some_and(|at| at <= Instant::now());
            for event in &events {
                match event.token() {
                    LISTENER => accept = true,
                    WAKER => {}
                    Token(token) => self.serve(token),
                }
            }
            if accept {
                accept_again = self.accept();
            }
            self.send_silent_away();
        }
    }

    /// How long nothing will have to be done unless something happens.
    fn wait(&self, accept_again: Option<Instant>) -> Option<Duration> {
        let deadline = self.greeting.front().map(|(deadline, _)| *deadline);
        let at = deadline.into_iter().chain(accept_again).min()?;
        // Rounded up: a wait of less than a millisecond must not become a busy loop.
        Some(at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Does what the owner wants; false: the end.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Fence(client, done)) => {
                    self.fence(client);
                    // Who has asked may have gone.
                    let _ = done.send(());
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn fence(&mut self, client: ClientId) {
        self.fenced.insert(client);
        let is_of =
            |_: &usize, c: &mut Connection| c.session.as_ref().is_some_and(|s| s.0 == client);
        for (_, mut connection) in self.open.extract_if(is_of) {
            let peer = connection.peer;
            tracing::warn!(%client, %peer, "fenced, its queue pair is destroyed");
            let (_, responder) = connection.session.take().expect("it is of the client");
            // A panic here is one of who waits for the fence, too.
            responder.end().expect("a fenced queue pair is destroyed");
            self.doors.leave(peer.ip().to_canonical());
            connection.last_words(&[FENCED]);
        }
    }

    /// Accepts all who wait; gives the time at which to try again after a failure.
    fn accept(&mut self) -> Option<Instant> {
        loop {
            // Until then those who connect wait in the queue of the operating system.
            if self.doors.is_crowded(self.open.len()) && !self.make_room() {
                return Some(Instant::now() + ROOM_RETRY);
            }
            let (mut stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return None,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => {
                        tracing::error!(%error, "cannot accept clients");
                        self.make_room();
                        return Some(Instant::now() + ACCEPT_RETRY);
                    }
                },
            };
            let token = self.next;
            self.next += 1;
            let registry = self.poll.registry();
            let ready = sys::keep_alive(&stream)
                .and_then(|()| registry.register(&mut stream, Token(token), Interest::READABLE));
            if let Err(error) = ready {
                tracing::warn!(%error, %peer, "cannot serve a client");
                continue;
            }
            let hello = [0; HELLO_BYTES];
            self.open.insert(token, Connection { stream, peer, hello, got: 0, session: None });
            self.greeting.push_back((Instant::now() + HELLO_WAIT, token));
        }
    }

    /// Sends the oldest newcomer away, if it had the time to say hello.
    fn make_room(&mut self) -> bool {
        while let Some((deadline, token)) = self.greeting.front().copied() {
            let silent = self.open.get(&token).is_some_and(|c| c.session.is_none());
            if silent && deadline > Instant::now() + (HELLO_WAIT - NEWCOMER_GRACE) {
                return false;
            }
            self.greeting.pop_front();
            if silent && let Some(connection) = self.open.remove(&token) {
                tracing::debug!(peer = %connection.peer, "a silent client makes room for others");
                return true;
            }
        }
        false
    }

    fn send_silent_away(&mut self) {
        while let Some((deadline, token)) = self.greeting.front().copied() {
            let silent = self.open.get(&token).is_some_and(|c| c.session.is_none());
            if silent && deadline > Instant::now() {
                return;
            }
            self.greeting.pop_front();
            if silent && let Some(connection) = self.open.remove(&token) {
                tracing::warn!(peer = %connection.peer, "a client did not say hello in time");
            }
        }
    }

    /// Reads what has come. A lease is over when its connection is.
    fn serve(&mut self, token: usize) {
        let Some(mut connection) = self.open.remove(&token) else { return };
        let reason = loop {
            match connection.read() {
                Ok(Some(hello)) => {
                    if let Err(reason) = self.greet(&mut connection, hello) {
                        break reason;
                    }
                }
                Ok(None) => {
                    self.open.insert(token, connection);
                    return;
                }
                Err(reason) => break reason,
            }
        };
        let peer = connection.peer;
        match reason {
            Misbehaved::Io(error) => tracing::debug!(%error, %peer, "a client has gone"),
            reason => tracing::warn!(%peer, %reason, "a client is sent away"),
        }
        if connection.session.is_some() {
            self.doors.leave(peer.ip().to_canonical());
        }
    }

    /// Answers a hello.
    fn greet(&mut self, connection: &mut Connection, hello: Hello) -> Result<(), Misbehaved> {
        let refusal = |status| Welcome::refusal(self.identity, status).encode();
        // "Nobody" cannot be fenced.
        if hello.client == ClientId::NOBODY {
            return Err(Misbehaved::NotAClient);
        }
        if hello.identity != self.identity {
            connection.last_words(&refusal(Status::WrongIdentity));
            return Err(Misbehaved::WrongIdentity(hello.identity));
        }
        if self.fenced.contains(&hello.client) {
            connection.last_words(&refusal(Status::Fenced));
            return Err(Misbehaved::Fenced(hello.client));
        }
        let peer = connection.peer.ip().to_canonical();
        if let Err(full) = self.doors.enter(peer) {
            connection.last_words(&refusal(Status::Full));
            return Err(full.into());
        }
        let responder = match Responder::new(&self.device, &self.port, &hello.address) {
            Ok(responder) => responder,
            Err(error) => {
                self.doors.leave(peer);
                connection.last_words(&refusal(Status::Unable));
                return Err(error.into());
            }
        };
        let welcome = Welcome {
            identity: self.identity,
            pool_bytes: self.pool_bytes,
            status: Status::Welcome,
            key: self.registered.remote_key(),
            header_key: self.header.remote_key(),
            base: self.header.base(),
            address: responder.address(),
        };
        // From here on whoever ends it takes it out of the list.
        connection.session = Some((hello.client, responder));
        // The buffer of a fresh connection has room.
        connection.stream.write_all(&welcome.encode())?;
        tracing::debug!(client = %hello.client, peer = %connection.peer, "attached by verbs");
        Ok(())
    }
}

impl Connection {
    /// Reads until there is nothing more; gives the hello when it is whole.
    fn read(&mut self) -> Result<Option<Hello>, Misbehaved> {
        loop {
            let mut byte = [0];
            let is_greeting = self.got < HELLO_BYTES;
            let room = if is_greeting { &mut self.hello[self.got..] } else { &mut byte };
            match self.stream.read(room) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) if !is_greeting => return Err(Misbehaved::Talks),
                Ok(n) => self.got += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if is_greeting && self.got == HELLO_BYTES {
                return Hello::decode(&self.hello).map(Some).ok_or(Misbehaved::NotAClient);
            }
        }
    }

    /// Says something before the connection is closed, if it can be said without waiting.
    fn last_words(&mut self, words: &[u8]) {
        if let Err(error) = self.stream.write_all(words) {
            tracing::debug!(%error, peer = %self.peer, "could not say why the connection ends");
        }
        drop(self.stream.shutdown(std::net::Shutdown::Write));
    }
}
