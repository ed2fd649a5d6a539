//! The memory node's software NIC: one thread that executes what TCP sessions send.
//!
//! One event loop owns all connections, the list of fenced clients, and the execution of verbs.
//! So fencing is a message to the loop: once the loop has taken it, closed the client's
//! connections and dropped what they had sent, no verb of the client can execute, and it says so.
//!
//! Whatever a client sends, the node lives on: a connection that misbehaves is closed, with the
//! reason in the log. One that does not say hello in time is closed, too. What strangers and broken
//! clients may hold is bounded ([`NodeLimits`]): connections and sessions by `doors`, memory by `budget`.
//! Whoever waits for memory is served as soon as some is given back; who holds some and does not get on
//! loses its connection then. A session may be silent for as long as it likes, as long as its machine
//! answers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fusee_core::verbs::ClientId;
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::budget::Budget;
use super::connection::{Connection, Context, Misbehaved, Served};
use crate::doors::{Doors, NEWCOMER_GRACE, NodeLimits, ROOM_RETRY};
use crate::error::ServeError;
use crate::pool::{Order, Pool};
use crate::spin::Spin;
use crate::sys;

/// A client says hello within this time, or is sent away.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// After a failure to accept (no descriptors left, say), the next attempt waits so long.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How often it is looked whether who holds memory gets on, while others wait for it.
const STUCK_LOOK: Duration = Duration::from_millis(500);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST: usize = 2;

enum Command {
    /// Shut the client out, then drop the sender.
    Fence(ClientId, SyncSender<()>),
}

/// A running software NIC; dropping it closes all connections.
#[derive(Debug)]
pub struct TcpNode {
    addr: SocketAddr,
    commands: Option<Sender<Command>>,
    waker: Waker,
    sessions: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl TcpNode {
    /// Listens at `addr` (port 0: a free one) and serves `pool` there.
    ///
    /// `spin` is how long it looks for requests before it sleeps, zero: not at all.
    pub fn start(
        pool: Pool,
        identity: u64,
        addr: SocketAddr,
        spin: Duration,
    ) -> Result<TcpNode, ServeError> {
        TcpNode::start_limited(pool, identity, addr, spin, NodeLimits::default())
    }

    /// As [`TcpNode::start`], with other limits.
    pub fn start_limited(
        pool: Pool,
        identity: u64,
        addr: SocketAddr,
        spin: Duration,
        limits: NodeLimits,
    ) -> Result<TcpNode, ServeError> {
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
        let (commands, received) = mpsc::channel();
        let doors = Doors::new(limits);
        let sessions = doors.counter();
        let budget = || Budget::new(limits.frame_bytes, limits.frame_bytes_per_peer);
        let nic = Loop {
            poll,
            listener,
            commands: received,
            pool,
            identity,
            doors,
            requests: budget(),
            replies: budget(),
            patience: limits.patience,
            order: Order::default(),
            fenced: HashSet::new(),
            open: HashMap::new(),
            next: FIRST,
            again: VecDeque::new(),
            waiting: VecDeque::new(),
            stuck_look: Instant::now(),
            greeting: VecDeque::new(),
            spin: Spin::new(spin),
        };
        let thread = std::thread::Builder::new().name("fusee-tcp".into());
        let thread = Some(thread.spawn(move || nic.run()).map_err(io)?);
        Ok(TcpNode { addr, commands: Some(commands), waker, sessions, thread })
    }

    /// Where it listens, with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The number of clients that have said hello and are still connected.
    pub fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// Shuts a client out for ever; returns when no verb of it executes here any more.
    pub fn fence(&self, client: ClientId) {
        let (done, wait) = mpsc::sync_channel(0);
        let sent = self.commands.as_ref().map(|c| c.send(Command::Fence(client, done)));
        if sent.is_none_or(|sent| sent.is_err()) {
            // The loop has ended, and its connections with it.
            return;
        }
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake the software NIC, the fence waits for traffic");
        }
        // The loop drops the sender when it is done, or has ended; it never sends.
        wait.recv().expect_err("nothing is ever sent");
    }
}

impl Drop for TcpNode {
    fn drop(&mut self) {
        self.commands = None;
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot stop the software NIC");
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the software NIC has panicked");
        }
    }
}

struct Loop {
    poll: Poll,
    listener: TcpListener,
    commands: Receiver<Command>,
    pool: Pool,
    identity: u64,
    doors: Doors<IpAddr>,
    /// Memory for long requests and replies.
    requests: Budget,
    replies: Budget,
    patience: Duration,
    order: Order,
    fenced: HashSet<ClientId>,
    /// By token. Tokens are never used again, so a late event finds nobody.
    open: HashMap<usize, Connection>,
    next: usize,
    /// Connections with more to do than one turn allows.
    again: VecDeque<usize>,
    /// Connections that wait for memory.
    waiting: VecDeque<usize>,
    /// When to look next whether somebody is stuck.
    stuck_look: Instant,
    /// Who has yet to say hello until when, in the order of the deadlines.
    greeting: VecDeque<(Instant, usize)>,
    spin: Spin,
}

impl Loop {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut accept_again: Option<Instant> = None;
        loop {
            let wait = self.wait(accept_again);
            // A poll that fails while it spins fails again right behind.
            let has_news = wait != Some(Duration::ZERO)
                && self.spin.until(|| {
                    let polled = self.poll.poll(&mut events, Some(Duration::ZERO));
                    polled.is_ok() && !events.is_empty()
                });
            if !has_news && let Err(error) = self.poll.poll(&mut events, wait) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the software NIC stops");
                return;
            }
            if !self.obey() {
                return;
            }
            let mut accept = accept_again.is_some_and(|at| at <= Instant::now());
            // Those who waited first, each once: `serve` may queue them again.
            for _ in 0..self.again.len() {
                if let Some(token) = self.again.pop_front() {
                    self.serve(token);
                }
            }
            for event in &events {
                match event.token() {
                    LISTENER => accept = true,
                    WAKER => {}
                    Token(token) => self.handle(token, event),
                }
            }
            if accept {
                accept_again = self.accept();
            }
            self.send_silent_away();
            self.serve_waiting();
        }
    }

    /// How long nothing will have to be done unless something happens.
    fn wait(&self, accept_again: Option<Instant>) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline = self.greeting.front().map(|(deadline, _)| *deadline);
        let look = (!self.waiting.is_empty()).then_some(self.stuck_look);
        let at = deadline.into_iter().chain(accept_again).chain(look).min()?;
        // Rounded up: a wait of less than a millisecond must not become a busy loop.
        Some(at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Does what the owner wants; false: the end.
    fn obey(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Fence(client, done)) => {
                    self.fence(client);
                    drop(done);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn fence(&mut self, client: ClientId) {
        self.fenced.insert(client);
        let is_of = |_: &usize, connection: &mut Connection| connection.client == Some(client);
        let fenced: Vec<Connection> = self.open.extract_if(is_of).map(|(_, c)| c).collect();
        for mut connection in fenced {
            let peer = connection.peer;
            tracing::warn!(%client, %peer, "fenced, its connection is closed");
            connection.say_fenced();
            self.end(connection);
        }
    }

    /// Ends a connection that is not in the list any more.
    fn end(&mut self, mut connection: Connection) {
        connection.end(&mut self.requests, &mut self.replies);
        if connection.client.is_some() {
            self.doors.leave(connection.peer_ip());
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
                        tracing::error!(%error, "cannot accept TCP clients");
                        self.make_room();
                        return Some(Instant::now() + ACCEPT_RETRY);
                    }
                },
            };
            let token = self.next;
            self.next += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let ready = sys::keep_alive(&stream)
                .and_then(|()| stream.set_nodelay(true))
                .and_then(|()| self.poll.registry().register(&mut stream, Token(token), interest));
            if let Err(error) = ready {
                tracing::warn!(%error, %peer, "cannot serve a client");
                continue;
            }
            self.open.insert(token, Connection::new(stream, peer));
            self.greeting.push_back((Instant::now() + HELLO_WAIT, token));
        }
    }

    /// Sends the oldest newcomer away, if it had the time to say hello.
    fn make_room(&mut self) -> bool {
        while let Some((deadline, token)) = self.greeting.front().copied() {
            let silent = self.open.get(&token).is_some_and(|c| c.client.is_none());
            if silent && deadline > Instant::now() + (HELLO_WAIT - NEWCOMER_GRACE) {
                return false;
            }
            self.greeting.pop_front();
            if silent && let Some(connection) = self.open.remove(&token) {
                tracing::debug!(peer = %connection.peer, "a silent client makes room for others");
                self.end(connection);
                return true;
            }
        }
        false
    }

    /// Serves those who wait for memory, if some was given back; looks from time to time who keeps it.
    fn serve_waiting(&mut self) {
        let open = &self.open;
        self.waiting.retain(|token| open.get(token).is_some_and(|connection| connection.waits));
        if self.waiting.is_empty() {
            return;
        }
        if self.stuck_look <= Instant::now() {
            self.stuck_look = Instant::now() + STUCK_LOOK;
            self.send_stuck_away();
        }
        if std::mem::take(&mut self.requests.has_more) | std::mem::take(&mut self.replies.has_more)
        {
            // Those who waited first, each once: `serve` may queue them again.
            for _ in 0..self.waiting.len() {
                if let Some(token) = self.waiting.pop_front() {
                    self.serve(token);
                }
            }
        }
    }

    /// Closes the connections that hold memory and do not get on.
    fn send_stuck_away(&mut self) {
        let (now, patience) = (Instant::now(), self.patience);
        let is_stuck = |_: &usize, c: &mut Connection| c.is_stuck(now, patience);
        let stuck: Vec<Connection> = self.open.extract_if(is_stuck).map(|(_, c)| c).collect();
        for connection in stuck {
            let (peer, client, reason) = (connection.peer, connection.client, Misbehaved::Stuck);
            tracing::warn!(%peer, ?client, %reason, "a client is sent away");
            self.end(connection);
        }
    }

    fn send_silent_away(&mut self) {
        while let Some((deadline, token)) = self.greeting.front().copied() {
            let silent = self.open.get(&token).is_some_and(|c| c.client.is_none());
            if silent && deadline > Instant::now() {
                return;
            }
            self.greeting.pop_front();
            if silent && let Some(connection) = self.open.remove(&token) {
                tracing::warn!(peer = %connection.peer, "a client did not say hello in time");
                self.end(connection);
            }
        }
    }

    fn handle(&mut self, token: usize, event: &Event) {
        let Some(connection) = self.open.get_mut(&token) else { return };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        connection.read_closed |= event.is_read_closed() || event.is_error();
        connection.writable |= event.is_writable() || event.is_write_closed();
        self.serve(token);
    }

    fn serve(&mut self, token: usize) {
        let Some(connection) = self.open.get_mut(&token) else { return };
        let fenced = &self.fenced;
        let mut context = Context {
            pool: &self.pool,
            identity: self.identity,
            order: &mut self.order,
            is_fenced: &|client| fenced.contains(&client),
            doors: &mut self.doors,
            requests: &mut self.requests,
            replies: &mut self.replies,
        };
        let served = connection.serve(&mut context);
        match served {
            Ok(Served::Idle) => return,
            Ok(Served::Again) => {
                if !self.again.contains(&token) {
                    self.again.push_back(token);
                }
                return;
            }
            Ok(Served::Waits) => {
                if !self.waiting.contains(&token) {
                    if self.waiting.is_empty() {
                        self.stuck_look = Instant::now();
                    }
                    self.waiting.push_back(token);
                    self.release();
                }
                return;
            }
            Ok(Served::Closed) => {}
            Err(Misbehaved::Io(error)) => {
                tracing::debug!(%error, peer = %connection.peer, "a connection was lost");
            }
            Err(reason) => {
                let (peer, client) = (connection.peer, connection.client);
                tracing::warn!(%peer, ?client, %reason, "a client is sent away");
            }
        }
        if let Some(connection) = self.open.remove(&token) {
            self.end(connection);
        }
    }

    /// Takes back what connections keep for their next long frame.
    fn release(&mut self) {
        for connection in self.open.values_mut() {
            connection.release(&mut self.requests, &mut self.replies);
        }
    }
}
