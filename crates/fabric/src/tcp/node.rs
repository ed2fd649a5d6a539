//! The memory node's software NIC: one thread that executes the requests of TCP sessions.
//!
//! One event loop owns all connections, the list of fenced clients, and the execution of verbs. So a fence is a
//! message to the loop. The loop closes the client's connections and discards their input, after which no verb of
//! the client can execute; then it reports that the fence is complete.
//!
//! No client can stop the node. A connection that misbehaves or does not say hello in time is closed, and the log
//! has the reason. The resources of strangers and broken clients are bounded ([`NodeLimits`]): connections and
//! sessions by `doors`, memory by `budget`. A connection that waits for memory is served as soon as some memory is
//! given back. While a connection waits, another connection that holds memory and makes no progress is closed. A
//! session can be silent for any length of time as long as its machine answers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusee_auth::NodeKey;
use fusee_core::ended_clients::LiveClients;
use fusee_core::stats::Counter;
use fusee_core::verbs::ClientId;
use fusee_tls::TlsSettings;
use mio::event::Event;
use mio::{Events, Interest, Token};

use super::budget::TcpFrameBudget;
use super::connection::{TcpCloseReason, TcpConnection, TcpServeContext, TcpTurnOutcome};
use crate::error::ServeError;
use crate::limits::NodeLimits;
use crate::listener::{
    FabricConnection, FabricListener, FabricServer, FabricServerEnded, FabricServerNames, LISTENER,
    WAKER,
};
use crate::pool::{Pool, VerbOrder};
use crate::spin::Spin;

/// The time between two checks for connections that hold memory without progress while others wait for memory.
const STUCK_LOOK: Duration = Duration::from_millis(500);

/// Counts of the traffic over TCP since the node's start. Only the software NIC changes them.
#[derive(Debug, Default)]
pub(super) struct TrafficCounters {
    pub(super) requests: Counter,
    pub(super) bytes: Counter,
}

/// The traffic over TCP since the node's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpTraffic {
    /// The number of executed requests. A batch of a session consists of one or more requests.
    pub requests: u64,
    /// The number of bytes of requests and replies.
    pub bytes: u64,
}

/// A running software NIC. Dropping it closes all connections.
#[derive(Debug)]
pub struct TcpNode {
    server: FabricServer,
    spin_us: Arc<AtomicU64>,
    moved: Arc<TrafficCounters>,
}

impl TcpNode {
    /// Listens at `addr` (port 0: any free port), and serves `pool` there to clients that have the node's key.
    ///
    /// `spin` is the time to spin for requests before the thread sleeps; zero: not at all.
    pub fn start(
        pool: Pool,
        key: NodeKey,
        addr: SocketAddr,
        spin: Duration,
    ) -> Result<TcpNode, ServeError> {
        TcpNode::start_limited(pool, key, addr, spin, None, NodeLimits::default())
    }

    /// Starts a software NIC like [`TcpNode::start`], with these limits, and with TLS if `tls` has a certificate.
    pub fn start_limited(
        pool: Pool,
        key: NodeKey,
        addr: SocketAddr,
        spin: Duration,
        tls: Option<TlsSettings>,
        limits: NodeLimits,
    ) -> Result<TcpNode, ServeError> {
        let names = FabricServerNames { server: "the software NIC", thread: "fusee-tcp" };
        let interest = Interest::READABLE | Interest::WRITABLE;
        let budget = move || TcpFrameBudget::new(limits.frame_bytes, limits.frame_bytes_per_peer);
        let spin_us = Arc::new(AtomicU64::new(spin.as_micros() as u64));
        let told = Arc::clone(&spin_us);
        let moved = Arc::new(TrafficCounters::default());
        let counting = Arc::clone(&moved);
        let server = FabricServer::start(names, addr, limits, interest, move |guests| {
            let nic = TcpNodeLoop {
                guests,
                pool,
                key,
                requests: budget(),
                replies: budget(),
                patience: limits.patience,
                order: VerbOrder::default(),
                again: VecDeque::new(),
                waiting: VecDeque::new(),
                stuck_look: Instant::now(),
                spin: Spin::new(spin),
                spin_us: told,
                tls,
                moved: counting,
            };
            nic.run();
        })?;
        Ok(TcpNode { server, spin_us, moved })
    }

    /// Sets the time to spin for requests before the thread sleeps.
    pub fn set_spin(&self, spin: Duration) {
        // Relaxed: no other data depends on the number.
        self.spin_us.store(spin.as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns the address at which the software NIC listens, with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Returns the number of sessions: clients that have said hello and are still connected.
    pub fn sessions(&self) -> u64 {
        self.server.sessions()
    }

    /// Returns the counts of the node's traffic over TCP since its start.
    pub fn traffic(&self) -> TcpTraffic {
        TcpTraffic { requests: self.moved.requests.get(), bytes: self.moved.bytes.get() }
    }

    /// Records which clients with ids below a bound are alive. All others below the bound count as ended.
    pub fn learn(&self, living: &LiveClients) {
        self.server.learn(living);
    }

    /// Fences a client for ever. Returns when none of the client's verbs executes here any more.
    pub fn fence(&self, client: ClientId) {
        if let Err(FabricServerEnded) = self.server.fence(client) {
            // The client's connections ended together with the thread that executed their verbs.
            tracing::debug!(%client, "fenced by the end of the software NIC");
        }
    }
}

struct TcpNodeLoop {
    guests: FabricListener<TcpConnection>,
    pool: Pool,
    key: NodeKey,
    /// The memory for long requests; `replies` is the memory for long replies.
    requests: TcpFrameBudget,
    replies: TcpFrameBudget,
    patience: Duration,
    order: VerbOrder,
    /// The connections that have more work than one turn allows.
    again: VecDeque<usize>,
    /// The connections that wait for memory of a frame budget.
    waiting: VecDeque<usize>,
    /// The time of the next check for stuck connections.
    stuck_look: Instant,
    spin: Spin,
    /// The longest time to spin, in microseconds.
    spin_us: Arc<AtomicU64>,
    tls: Option<TlsSettings>,
    moved: Arc<TrafficCounters>,
}

impl TcpNodeLoop {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let wait = self.wait();
            self.spin.set(Duration::from_micros(self.spin_us.load(Ordering::Relaxed)));
            // If the poll fails in the spin, the poll below fails too, and its error is handled there.
            let has_news = wait != Some(Duration::ZERO)
                && self.spin.until(|| {
                    let polled = self.guests.poll.poll(&mut events, Some(Duration::ZERO));
                    polled.is_ok() && !events.is_empty()
                });
            if !has_news && let Err(error) = self.guests.poll.poll(&mut events, wait) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the software NIC stops");
                return;
            }
            if let Err(FabricServerEnded) = self.handle_commands() {
                return;
            }
            let mut accept = self.guests.is_to_accept();
            // Each connection is served once, in the order of waiting. `serve` can queue it again.
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
            let mut end = |guest: TcpConnection| guest.end(&mut self.requests, &mut self.replies);
            if accept {
                self.guests.accept(&mut end);
            }
            self.guests.close_silent_connections(end);
            self.serve_waiting();
        }
    }

    /// Returns the time until the loop has to act even without events.
    fn wait(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let look = (!self.waiting.is_empty()).then_some(self.stuck_look);
        let at = self.guests.deadline().into_iter().chain(look).min()?;
        // Rounded up, because a wait of less than a millisecond must not become a busy loop.
        Some(at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Carries out the messages of the server's owner.
    fn handle_commands(&mut self) -> Result<(), FabricServerEnded> {
        while let Some((client, done)) = self.guests.next_fence()? {
            for mut connection in self.guests.fence(client) {
                let peer = connection.peer();
                tracing::warn!(%client, %peer, "fenced, its connection is closed");
                connection.say_fenced();
                self.end(connection);
            }
            // The send fails if the caller of the fence has ended.
            let _ = done.send(());
        }
        Ok(())
    }

    /// Ends a connection that is no longer in the list.
    fn end(&mut self, connection: TcpConnection) {
        self.guests.release_session(&connection);
        connection.end(&mut self.requests, &mut self.replies);
    }

    /// Serves the connections that wait for memory, if some memory was given back. From time to time closes
    /// connections that hold memory and are stuck.
    fn serve_waiting(&mut self) {
        let open = &self.guests.open;
        self.waiting.retain(|token| open.get(token).is_some_and(|connection| connection.waits));
        if self.waiting.is_empty() {
            return;
        }
        if self.stuck_look <= Instant::now() {
            self.stuck_look = Instant::now() + STUCK_LOOK;
            // Idle connections are not stuck, but possibly still keep memory for which others wait. So the memory of
            // idle connections is taken back first.
            self.release();
            self.close_stuck_connections();
        }
        if std::mem::take(&mut self.requests.has_more) | std::mem::take(&mut self.replies.has_more)
        {
            // Each connection is served once, in the order of waiting. `serve` can queue it again.
            for _ in 0..self.waiting.len() {
                if let Some(token) = self.waiting.pop_front() {
                    self.serve(token);
                }
            }
        }
    }

    /// Closes the connections that have held memory for too long without progress.
    fn close_stuck_connections(&mut self) {
        let now = Instant::now();
        let patience = self.patience;
        let is_stuck = |_: &usize, c: &mut TcpConnection| c.is_stuck(now, patience);
        let stuck: Vec<TcpConnection> =
            self.guests.open.extract_if(is_stuck).map(|(_, c)| c).collect();
        for connection in stuck {
            let peer = connection.peer();
            let client = connection.client();
            let reason = TcpCloseReason::Stuck;
            tracing::warn!(%peer, ?client, %reason, "a client is sent away");
            self.end(connection);
        }
    }

    fn handle(&mut self, token: usize, event: &Event) {
        let Some(connection) = self.guests.open.get_mut(&token) else { return };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        connection.read_closed |= event.is_read_closed() || event.is_error();
        connection.writable |= event.is_writable() || event.is_write_closed();
        self.serve(token);
    }

    fn serve(&mut self, token: usize) {
        let Some(connection) = self.guests.open.get_mut(&token) else { return };
        let over = &self.guests.over;
        let mut context = TcpServeContext {
            pool: &self.pool,
            key: &self.key,
            order: &mut self.order,
            is_fenced: &|client| over.has_ended(client),
            doors: &mut self.guests.doors,
            requests: &mut self.requests,
            replies: &mut self.replies,
            tls: self.tls.as_ref(),
            moved: &self.moved,
        };
        let served = connection.serve(&mut context);
        match served {
            Ok(TcpTurnOutcome::Idle) => return,
            Ok(TcpTurnOutcome::Again) => {
                if !self.again.contains(&token) {
                    self.again.push_back(token);
                }
                return;
            }
            Ok(TcpTurnOutcome::Waits) => {
                if !self.waiting.contains(&token) {
                    if self.waiting.is_empty() {
                        self.stuck_look = Instant::now();
                    }
                    self.waiting.push_back(token);
                    self.release();
                }
                return;
            }
            Ok(TcpTurnOutcome::Closed) => {}
            Err(TcpCloseReason::Io(error)) => {
                tracing::debug!(%error, peer = %connection.peer(), "a connection was lost");
            }
            Err(reason) => {
                let peer = connection.peer();
                let client = connection.client();
                tracing::warn!(%peer, ?client, %reason, "a client is sent away");
            }
        }
        if let Some(connection) = self.guests.open.remove(&token) {
            self.end(connection);
        }
    }

    /// Takes back the memory that connections keep for their next long frame.
    fn release(&mut self) {
        for connection in self.guests.open.values_mut() {
            connection.release(&mut self.requests, &mut self.replies);
        }
    }
}
