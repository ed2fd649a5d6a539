//! What a memory node's servers for TCP connections share: a thread that listens, newcomers that have to
//! say hello in time, and fences.
//!
//! [`Server`] is the owner's side, [`Reception`] the thread's. The thread owns all connections, so fencing
//! is a message to it: once it has recorded the client, closed its connections and dropped what they had
//! sent, it says so, and whoever comes later is refused.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Instant;

use fusee_core::over::{Living, Over};
use fusee_core::verbs::ClientId;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Poll, Token, Waker};

use crate::doors::{ACCEPT_RETRY, Doors, HELLO_WAIT, NEWCOMER_GRACE, NodeLimits, ROOM_RETRY};
use crate::error::ServeError;
use crate::sys;

/// Somebody wants to connect.
pub(crate) const LISTENER: Token = Token(0);
/// The owner wants something.
pub(crate) const WAKER: Token = Token(1);
const FIRST: usize = 2;

/// Fences this client, then says so.
type Fence = (ClientId, SyncSender<()>);

/// What the owner wants.
enum Wish {
    Fence(Fence),
    Learn(Living),
}

/// The thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server has ended")]
pub(crate) struct Ended;

/// A server as its owner sees it; dropping it ends the thread and its connections.
#[derive(Debug)]
pub(crate) struct Server {
    /// For the log.
    name: &'static str,
    addr: SocketAddr,
    wishes: Option<Sender<Wish>>,
    waker: Waker,
    sessions: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `addr` (port 0: a free one), and lets a thread of this name serve who comes. `interest`
    /// is the kind of events of its connections.
    pub(crate) fn start<G: Guest>(
        (name, thread): (&'static str, &str),
        addr: SocketAddr,
        limits: NodeLimits,
        interest: Interest,
        serve: impl FnOnce(Reception<G>) + Send + 'static,
    ) -> Result<Server, ServeError> {
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
        let doors = Doors::new(limits);
        let sessions = doors.counter();
        let reception = Reception {
            poll,
            listener,
            interest,
            wishes: received,
            doors,
            over: Over::new(),
            open: HashMap::new(),
            next: FIRST,
            greeting: VecDeque::new(),
            accept_again: None,
        };
        let thread = std::thread::Builder::new().name(thread.into());
        let thread = Some(thread.spawn(move || serve(reception)).map_err(io)?);
        Ok(Server { name, addr, wishes: Some(wishes), waker, sessions, thread })
    }

    /// Where it listens, with the actual port.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The number of sessions that have said hello and are still connected.
    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Fences a client for ever; returns when its connections have ended.
    pub(crate) fn fence(&self, client: ClientId) -> Result<(), Ended> {
        let (done, wait) = mpsc::sync_channel(1);
        let wishes = self.wishes.as_ref().ok_or(Ended)?;
        wishes.send(Wish::Fence((client, done))).map_err(|_| Ended)?;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake {}, the fence waits for events", self.name);
        }
        wait.recv().map_err(|_| Ended)
    }

    /// Learns who lives among the first clients, before the next fence at the latest.
    pub(crate) fn learn(&self, living: &Living) {
        let Some(wishes) = &self.wishes else { return };
        if wishes.send(Wish::Learn(living.clone())).is_ok()
            && let Err(error) = self.waker.wake()
        {
            tracing::debug!(%error, "cannot wake {}, it learns later who lives", self.name);
        }
    }
}

impl Drop for Server {
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

/// A connection.
pub(crate) trait Guest: Send + Sized + 'static {
    /// A newcomer's.
    fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<Self>;

    /// For its events.
    fn stream(&mut self) -> &mut TcpStream;

    /// Where it comes from.
    fn peer(&self) -> SocketAddr;

    /// Who has said hello over it.
    fn client(&self) -> Option<ClientId>;

    /// Whose connection it is, as far as limits are concerned.
    fn peer_ip(&self) -> IpAddr {
        self.peer().ip().to_canonical()
    }
}

/// A server's connections.
pub(crate) struct Reception<G> {
    pub(crate) poll: Poll,
    listener: TcpListener,
    interest: Interest,
    wishes: Receiver<Wish>,
    pub(crate) doors: Doors<IpAddr>,
    pub(crate) over: Over,
    /// By token. Tokens are never used again, so a late event finds nobody.
    pub(crate) open: HashMap<usize, G>,
    next: usize,
    /// Who has yet to say hello until when, in the order of the deadlines.
    greeting: VecDeque<(Instant, usize)>,
    /// After a failure, when to accept again.
    accept_again: Option<Instant>,
}

impl<G: Guest> Reception<G> {
    /// Until when nothing will have to be done unless something happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let greeting = self.greeting.front().map(|(deadline, _)| *deadline);
        greeting.into_iter().chain(self.accept_again).min()
    }

    /// Whom the owner wants to fence, and where to say that it is done; an error: the end.
    pub(crate) fn next_fence(&mut self) -> Result<Option<Fence>, Ended> {
        loop {
            match self.wishes.try_recv() {
                Ok(Wish::Fence(fence)) => return Ok(Some(fence)),
                Ok(Wish::Learn(living)) => self.over.learn(&living),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(Ended),
            }
        }
    }

    /// Takes the connections of a client, whose hellos are refused from now on. They are to be ended.
    pub(crate) fn fence(&mut self, client: ClientId) -> Vec<G> {
        self.over.fence(client);
        let is_of = |_: &usize, guest: &mut G| guest.client() == Some(client);
        self.open.extract_if(is_of).map(|(_, guest)| guest).collect()
    }

    /// A connection has ended that is not in the list any more: its place is free.
    pub(crate) fn has_left(&mut self, guest: &G) {
        if guest.client().is_some() {
            self.doors.leave(guest.peer_ip());
        }
    }

    /// After a failure to accept: whether it is time to try again.
    pub(crate) fn is_to_accept(&self) -> bool {
        self.accept_again.is_some_and(|at| at <= Instant::now())
    }

    /// Accepts all who wait; passes those to `end` who make room for them.
    pub(crate) fn accept(&mut self, mut end: impl FnMut(G)) {
        self.accept_again = loop {
            // Until then those who connect wait in the queue of the operating system.
            if self.doors.is_crowded(self.open.len()) && !self.make_room(&mut end) {
                break Some(Instant::now() + ROOM_RETRY);
            }
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    if let Err(error) = self.greet(stream, peer) {
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

    /// Lets a newcomer in.
    fn greet(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let token = self.next;
        self.next += 1;
        sys::keep_alive(&stream)?;
        let mut guest = G::new(stream, peer)?;
        self.poll.registry().register(guest.stream(), Token(token), self.interest)?;
        self.open.insert(token, guest);
        self.greeting.push_back((Instant::now() + HELLO_WAIT, token));
        Ok(())
    }

    /// Sends the oldest newcomer away, if it had the time to say hello.
    fn make_room(&mut self, end: &mut impl FnMut(G)) -> bool {
        let latest = Instant::now() + (HELLO_WAIT - NEWCOMER_GRACE);
        let Some(guest) = self.take_silent(latest) else { return false };
        tracing::debug!(peer = %guest.peer(), "a silent client makes room for others");
        end(guest);
        true
    }

    /// Takes those who did not say hello in time.
    pub(crate) fn send_silent_away(&mut self, mut end: impl FnMut(G)) {
        // No clock without newcomers: this is on the way of every request.
        while !self.greeting.is_empty()
            && let Some(guest) = self.take_silent(Instant::now())
        {
            tracing::warn!(peer = %guest.peer(), "a client did not say hello in time");
            end(guest);
        }
    }

    /// The oldest newcomer, if its deadline is not later than this.
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
