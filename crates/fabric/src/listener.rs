//! The common part of a memory node's servers for TCP connections: a listening thread, the deadline for the hello
//! on unauthenticated connections (`newcomer`), and fences.
//!
//! [`FabricServer`] is the handle of the server's owner, [`FabricListener`] the state of the server's thread. The
//! thread owns all connections, so a fence is a message to the thread. The thread records the fenced client, closes
//! the client's connections, discards the input that they have received, then reports that the fence is complete.
//! The thread refuses later connections of the client.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Instant;

use fusee_core::ended_clients::{EndedClients, LiveClients};
use fusee_core::verbs::ClientId;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Token, Waker};

use crate::error::ServeError;
use crate::limits::{
    ACCEPT_RETRY, HELLO_WAIT, NEWCOMER_GRACE, NodeLimits, ROOM_RETRY, SessionLimiter,
};
use crate::sys;

/// The token of the events for new connections.
pub(crate) const LISTENER: Token = Token(0);
/// The token of the events for messages from the owner.
pub(crate) const WAKER: Token = Token(1);
const FIRST: usize = 2;

/// A client to fence, and the channel on which to report that the fence is complete.
type FabricFenceRequest = (ClientId, SyncSender<()>);

/// A message from the server's owner to its thread.
enum FabricServerCommand {
    Fence(FabricFenceRequest),
    Learn(LiveClients),
}

/// The error of a call to a thread that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has ended")]
pub(crate) struct FabricServerEnded;

/// The names of a server and of its thread.
pub(crate) struct FabricServerNames {
    /// The server's name in the log.
    pub(crate) server: &'static str,
    pub(crate) thread: &'static str,
}

/// The owner's handle of a server. Dropping it ends the thread and the connections.
#[derive(Debug)]
pub(crate) struct FabricServer {
    /// The server's name in the log.
    name: &'static str,
    addr: SocketAddr,
    wishes: Option<Sender<FabricServerCommand>>,
    waker: Waker,
    sessions: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl FabricServer {
    /// Listens at `addr` (port 0: any free port), and starts a thread that runs `serve`. `interest` is the kind of
    /// events that connections are registered for.
    pub(crate) fn start<G: FabricConnection>(
        names: FabricServerNames,
        addr: SocketAddr,
        limits: NodeLimits,
        interest: Interest,
        serve: impl FnOnce(FabricListener<G>) + Send + 'static,
    ) -> Result<FabricServer, ServeError> {
        let at = || addr.to_string();
        let io = |source| ServeError::Io { at: at(), source };
        let poll = Poll::new().map_err(io)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(io)?;
        let mut listener = TcpListener::bind(addr).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::AddressInUse { at: at() },
            _ => io(source),
        })?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(io)?;
        let addr = listener.local_addr().map_err(io)?;
        let (wishes, received) = mpsc::channel();
        let doors = SessionLimiter::new(limits);
        let sessions = doors.counter();
        let reception = FabricListener {
            poll,
            listener,
            interest,
            wishes: received,
            doors,
            over: EndedClients::new(),
            open: HashMap::new(),
            next: FIRST,
            greeting: VecDeque::new(),
            accept_again: None,
        };
        let thread = std::thread::Builder::new().name(names.thread.into());
        let thread = Some(thread.spawn(move || serve(reception)).map_err(io)?);
        let name = names.server;
        Ok(FabricServer { name, addr, wishes: Some(wishes), waker, sessions, thread })
    }

    /// Returns the address at which the server listens, with the actual port.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the number of sessions: connections that have said hello and are still open.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Fences a client for ever. Returns when the client's connections have ended.
    pub(crate) fn fence(&self, client: ClientId) -> Result<(), FabricServerEnded> {
        let (done, wait) = mpsc::sync_channel(1);
        let wishes = self.wishes.as_ref().ok_or(FabricServerEnded)?;
        wishes.send(FabricServerCommand::Fence((client, done))).map_err(|_| FabricServerEnded)?;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake {}, the fence waits for events", self.name);
        }
        wait.recv().map_err(|_| FabricServerEnded)
    }

    /// Tells the thread which clients with ids below a bound are alive. The thread records this before it handles the
    /// next fence.
    pub(crate) fn learn(&self, living: &LiveClients) {
        let Some(wishes) = &self.wishes else { return };
        if wishes.send(FabricServerCommand::Learn(living.clone())).is_ok()
            && let Err(error) = self.waker.wake()
        {
            tracing::debug!(%error, "cannot wake {}, it learns later who lives", self.name);
        }
    }
}

impl Drop for FabricServer {
    fn drop(&mut self) {
        self.wishes = None;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot stop {}", self.name);
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("{} has panicked", self.name);
        }
    }
}

/// A connection of a server: unauthenticated before its hello, a session afterwards.
pub(crate) trait FabricConnection: Send + Sized + 'static {
    /// Makes an unauthenticated connection of an accepted stream.
    fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Self>;

    /// Returns the stream, to register it for events.
    fn stream(&mut self) -> &mut TcpStream;

    /// Returns the address of the other end.
    fn peer(&self) -> SocketAddr;

    /// Returns the client that has said hello over the connection; `None` before the hello.
    fn client(&self) -> Option<ClientId>;

    /// Returns the address to which limits attribute the connection.
    fn peer_ip(&self) -> IpAddr {
        self.peer().ip().to_canonical()
    }
}

/// The connections of a server, and the rest of its thread's state.
pub(crate) struct FabricListener<G> {
    pub(crate) poll: Poll,
    listener: TcpListener,
    interest: Interest,
    wishes: Receiver<FabricServerCommand>,
    pub(crate) doors: SessionLimiter<IpAddr>,
    pub(crate) over: EndedClients,
    /// The connections by token. Tokens are never used again, so a late event finds no connection.
    pub(crate) open: HashMap<usize, G>,
    next: usize,
    /// The deadlines of hellos with the tokens of their connections, earliest first.
    greeting: VecDeque<(Instant, usize)>,
    /// The time at which to try to accept again, after a failure or without room.
    accept_again: Option<Instant>,
}

impl<G: FabricConnection> FabricListener<G> {
    /// Returns the time at which the thread has to act even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let greeting = self.greeting.front().map(|(deadline, _)| *deadline);
        greeting.into_iter().chain(self.accept_again).min()
    }

    /// Returns the next fence that the owner asks for, if any. An error means that the owner is gone and the server
    /// has to end.
    pub(crate) fn next_fence(&mut self) -> Result<Option<FabricFenceRequest>, FabricServerEnded> {
        loop {
            match self.wishes.try_recv() {
                Ok(FabricServerCommand::Fence(fence)) => return Ok(Some(fence)),
                Ok(FabricServerCommand::Learn(living)) => self.over.learn(&living),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(FabricServerEnded),
            }
        }
    }

    /// Fences a client: refuses its hellos from now on, and removes its connections from the list. Returns these
    /// connections, which the caller has to end.
    pub(crate) fn fence(&mut self, client: ClientId) -> Vec<G> {
        self.over.fence(client);
        let is_of = |_: &usize, guest: &mut G| guest.client() == Some(client);
        self.open.extract_if(is_of).map(|(_, guest)| guest).collect()
    }

    /// Removes a session from the counts when its connection has ended and is no longer in the list.
    pub(crate) fn release_session(&mut self, guest: &G) {
        if guest.client().is_some() {
            self.doors.leave(guest.peer_ip());
        }
    }

    /// Returns whether the server has to try again to accept connections, after a failure or a lack of room.
    pub(crate) fn is_to_accept(&self) -> bool {
        self.accept_again.is_some_and(|at| at <= Instant::now())
    }

    /// Accepts all waiting connections. Passes the unauthenticated connections that have to make room to `end`.
    pub(crate) fn accept(&mut self, mut end: impl FnMut(G)) {
        self.accept_again = loop {
            // Until there is room, new connections wait in the operating system's queue.
            if self.doors.is_crowded(self.open.len()) && !self.make_room(&mut end) {
                break Some(Instant::now() + ROOM_RETRY);
            }
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    if let Err(error) = self.add_connection(stream, peer) {
                        tracing::warn!(%error, %peer, "cannot serve a client");
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break None,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::error!(%error, "cannot accept clients");
                        self.make_room(&mut end);
                        break Some(Instant::now() + ACCEPT_RETRY);
                    }
                },
            }
        };
    }

    /// Adds an unauthenticated connection to the list.
    fn add_connection(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let token = self.next;
        self.next += 1;
        sys::keep_alive(&stream)?;
        let mut guest = G::new(stream, peer)?;
        self.poll.registry().register(guest.stream(), Token(token), self.interest)?;
        self.open.insert(token, guest);
        self.greeting.push_back((Instant::now() + HELLO_WAIT, token));
        Ok(())
    }

    /// Passes the oldest unauthenticated connection to `end`, if it had enough time for its hello. Returns whether
    /// it did.
    fn make_room(&mut self, end: &mut impl FnMut(G)) -> bool {
        let latest = Instant::now() + (HELLO_WAIT - NEWCOMER_GRACE);
        let Some(guest) = self.take_silent(latest) else { return false };
        tracing::debug!(peer = %guest.peer(), "a silent client makes room for others");
        end(guest);
        true
    }

    /// Passes the unauthenticated connections that missed the deadline of their hello to `end`.
    pub(crate) fn close_silent_connections(&mut self, mut end: impl FnMut(G)) {
        // The clock is read only if the list has deadlines, because this code runs for every request.
        while !self.greeting.is_empty()
            && let Some(guest) = self.take_silent(Instant::now())
        {
            tracing::warn!(peer = %guest.peer(), "a client did not say hello in time");
            end(guest);
        }
    }

    /// Removes and returns the oldest unauthenticated connection, if its deadline is not later than `latest`.
    fn take_silent(&mut self, latest: Instant) -> Option<G> {
        while let Some((deadline, token)) = self.greeting.front().copied() {
            let is_silent = self.open.get(&token).is_some_and(|guest| guest.client().is_none());
            if is_silent && deadline > latest {
                return None;
            }
            self.greeting.pop_front();
            if is_silent {
                return self.open.remove(&token);
            }
        }
        None
    }
}
