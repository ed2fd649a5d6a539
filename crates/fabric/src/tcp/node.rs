//! The memory node's software NIC: one thread that executes what TCP sessions send.
//!
//! One event loop owns all connections, the list of fenced clients, and the execution of verbs.
//! So fencing is a message to the loop: once the loop has taken it, closed the client's
//! connections and dropped what they had sent, no verb of the client can execute, and it says so.
//!
//! Whatever a client sends, the node lives on: a connection that misbehaves is closed, with the
//! reason in the log. One that does not say hello in time is closed, too.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fusee_core::verbs::ClientId;
use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use super::connection::{Connection, Context, Misbehaved, Served};
use crate::error::ServeError;
use crate::pool::{Order, Pool};
use crate::spin::Spin;

/// A client says hello within this time, or is sent away.
const HELLO_WAIT: Duration = Duration::from_secs(2);
/// After a failure to accept (no descriptors left, say), the next attempt waits so long.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

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
        let sessions = Arc::new(AtomicU64::new(0));
        let nic = Loop {
            poll,
            listener,
            commands: received,
            pool,
            identity,
            sessions: sessions.clone(),
            order: Order::default(),
            fenced: HashSet::new(),
            open: HashMap::new(),
            next: FIRST,
            again: VecDeque::new(),
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
    sessions: Arc<AtomicU64>,
    order: Order,
    fenced: HashSet<ClientId>,
    /// By token. Tokens are never used again, so a late event finds nobody.
    open: HashMap<usize, Connection>,
    next: usize,
    /// Connections with more to do than one turn allows.
    again: VecDeque<usize>,
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
        }
    }

    /// How long nothing will have to be done unless something happens.
    fn wait(&self, accept_again: Option<Instant>) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
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
                    drop(done);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn fence(&mut self, client: ClientId) {
        self.fenced.insert(client);
        self.open.retain(|_, connection| {
            let keep = connection.client != Some(client);
            if !keep {
                let peer = connection.peer;
                tracing::warn!(%client, %peer, "fenced, its connection is closed");
                connection.say_fenced();
                self.sessions.fetch_sub(1, Ordering::Relaxed);
            }
            keep
        });
    }

    /// Accepts all who wait; gives the time at which to try again after a failure.
    fn accept(&mut self) -> Option<Instant> {
        loop {
            let (mut stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return None,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => continue,
                    _ => {
                        tracing::error!(%error, "cannot accept TCP clients");
                        return Some(Instant::now() + ACCEPT_RETRY);
                    }
                },
            };
            let token = self.next;
            self.next += 1;
            let interest = Interest::READABLE | Interest::WRITABLE;
            let ready = stream
                .set_nodelay(true)
                .and_then(|()| self.poll.registry().register(&mut stream, Token(token), interest));
            if let Err(error) = ready {
                tracing::warn!(%error, %peer, "cannot serve a client");
                continue;
            }
            self.open.insert(token, Connection::new(stream, peer));
            self.greeting.push_back((Instant::now() + HELLO_WAIT, token));
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
            sessions: &self.sessions,
        };
        let served = connection.serve(&mut context);
        let attached = connection.client.is_some();
        match served {
            Ok(Served::Idle) => return,
            Ok(Served::Again) => {
                if !self.again.contains(&token) {
                    self.again.push_back(token);
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
        self.open.remove(&token);
        if attached {
            self.sessions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
