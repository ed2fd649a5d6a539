//! The memory node's side of verbs: registers the pool, connects queue pairs, and waits for leases to end.
//!
//! One thread with one event loop owns the queue pairs and the list of fenced clients; no verb passes through it.
//! So a fence is a message to the loop. The loop records the client, destroys the client's queue pairs, and reports
//! when the last one is destroyed. A later hello of the client is refused.
//!
//! A queue pair reaches only memory that its protection domain has registered, which is the pool, and only with an RDMA
//! key of the pool. One key is for the lent memory, one for READs of the header, and a third, if there is one, for
//! steered READs of the lent memory. The NIC refuses everything else, and ends the connection of a session that tries.
//! No client can stop this loop by the bytes that it sends.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fusee_auth::NodeKey;
use fusee_core::ended_clients::LiveClients;
use fusee_core::verbs::ClientId;
use fusee_core::version::{ConnectionEnd, VersionError};
use mio::net::TcpStream;
use mio::{Events, Interest, Token};

use super::device::{self, Device, RegisteredMemory, Responder};
use super::ports::SelectedPort;
use super::wire::{FENCED, HELLO_BYTES, PROTOCOL, VerbsHello, VerbsHelloStatus, VerbsWelcome};
use crate::challenge::{self, CALL_BYTES, ChallengeRefusal, NodeChallenge, PROOF_BYTES};
use crate::error::{RdmaError, ServeError};
use crate::limits::{NodeLimits, SessionLimitError};
use crate::listener::{
    FabricConnection, FabricListener, FabricServer, FabricServerEnded, FabricServerNames, LISTENER,
    WAKER,
};
use crate::pool::Pool;
use crate::version::ProtocolMismatch;

/// A pool that a NIC lends to sessions. Dropping this ends all sessions.
#[derive(Debug)]
pub struct VerbsNode {
    server: FabricServer,
    device: Arc<Device>,
}

impl VerbsNode {
    /// Registers `pool` with a NIC and accepts hellos at `addr` (port 0: any free port). The NIC is the one with
    /// this address, or else the machine's default (see `ports`).
    ///
    /// Registration allocates the whole pool and keeps it in memory.
    pub fn start(pool: &Pool, key: NodeKey, addr: SocketAddr) -> Result<VerbsNode, ServeError> {
        VerbsNode::start_limited(pool, key, addr, false, NodeLimits::default())
    }

    /// Starts the server like [`VerbsNode::start`], with these limits. If `steered` is true, the pool is registered a
    /// second time, with the RDMA key for steered READs.
    pub fn start_limited(
        pool: &Pool,
        key: NodeKey,
        addr: SocketAddr,
        steered: bool,
        limits: NodeLimits,
    ) -> Result<VerbsNode, ServeError> {
        let near = Some(addr.ip()).filter(|ip| !ip.is_unspecified());
        let (device, port) = device::choose(near)?;
        let registered = RegisteredMemory::pool(&device, pool)?;
        let header = RegisteredMemory::header(&device, pool)?;
        let steered = steered.then(|| RegisteredMemory::steered(&device, pool)).transpose()?;
        let pool_bytes = pool.bytes();
        let its_device = device.clone();
        let its_port = port.clone();
        let names = FabricServerNames { server: "the verbs server", thread: "fusee-verbs" };
        let server = FabricServer::start(names, addr, limits, Interest::READABLE, move |guests| {
            let device = its_device;
            let port = its_port;
            VerbsNodeLoop { guests, key, device, port, pool_bytes, registered, header, steered }
                .run();
        })?;
        if device.is_software {
            tracing::warn!("software RoCE may tear words: it is for tests, serve tcp instead");
        }
        let name = &port.port.device;
        let gid = port.gid.index;
        tracing::info!(device = name, port = port.port.number, gid, "serving verbs");
        Ok(VerbsNode { server, device })
    }

    /// Returns the address at which the server accepts hellos, with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Returns the number of sessions that are attached over verbs.
    pub fn sessions(&self) -> u64 {
        self.server.sessions()
    }

    /// Returns the NIC's name, and whether the NIC's atomics and the processor's are atomic with each other.
    pub fn device(&self) -> (&str, bool) {
        (&self.device.name, self.device.shares_atomics)
    }

    /// Records which clients with ids below a bound are alive. All others below the bound count as ended.
    pub fn learn(&self, living: &LiveClients) {
        self.server.learn(living);
    }

    /// Fences a client for ever. Returns when none of the client's verbs executes here any more.
    ///
    /// # Panics
    /// If the driver does not destroy a queue pair, because then the client must not count as fenced.
    pub fn fence(&self, client: ClientId) {
        let fenced = self.server.fence(client);
        fenced.expect("the verbs server destroys the client's queue pairs");
    }
}

/// The length of a client's proof and hello together. A call fits in the same buffer.
const GREETING_BYTES: usize = PROOF_BYTES + HELLO_BYTES;
const _: () = assert!(CALL_BYTES <= GREETING_BYTES);

/// A client's TCP connection. After the hello it is the session's lease.
#[derive(Debug)]
struct VerbsConnection {
    stream: TcpStream,
    peer: SocketAddr,
    /// The bytes of the call; after the call, the bytes of the proof and the hello.
    greeting: [u8; GREETING_BYTES],
    got: usize,
    /// The state that checks the client's proof, which comes with the hello; `None` before the call.
    challenged: Option<NodeChallenge>,
    session: Option<(ClientId, Responder)>,
}

/// Reasons for which the node closes a connection.
#[derive(Debug, thiserror::Error)]
enum VerbsCloseReason {
    #[error("it is no client")]
    NotAClient,
    #[error("{0}")]
    Version(#[from] VersionError),
    #[error("it says more than hello")]
    Talks,
    #[error("it expects another memory node")]
    WrongIdentity,
    #[error("it does not prove that it knows this memory node's key")]
    Unproved,
    #[error("{0} has been fenced")]
    Fenced(ClientId),
    #[error("{0}")]
    Full(#[from] SessionLimitError),
    #[error("no queue pair for it: {0}")]
    Rdma(#[from] RdmaError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct VerbsNodeLoop {
    guests: FabricListener<VerbsConnection>,
    key: NodeKey,
    device: Arc<Device>,
    port: SelectedPort,
    pool_bytes: u64,
    // The registered memory is dropped after the queue pairs that reach it.
    registered: RegisteredMemory,
    header: RegisteredMemory,
    steered: Option<RegisteredMemory>,
}

impl VerbsNodeLoop {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            if let Err(error) = self.guests.poll.poll(&mut events, self.wait()) {
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the verbs server stops");
                return;
            }
            if let Err(FabricServerEnded) = self.handle_commands() {
                return;
            }
            let mut accept = self.guests.is_to_accept();
            for event in &events {
                match event.token() {
                    LISTENER => accept = true,
                    WAKER => {}
                    Token(token) => self.serve(token),
                }
            }
            if accept {
                self.guests.accept(drop);
            }
            self.guests.close_silent_connections(drop);
        }
    }

    /// Returns the time until the loop has to act even without events.
    fn wait(&self) -> Option<Duration> {
        let at = self.guests.deadline()?;
        // Rounded up, because a wait of less than a millisecond must not become a busy loop.
        Some(at.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    /// Carries out the messages of the server's owner.
    fn handle_commands(&mut self) -> Result<(), FabricServerEnded> {
        while let Some((client, done)) = self.guests.next_fence()? {
            for mut connection in self.guests.fence(client) {
                let peer = connection.peer;
                tracing::warn!(%client, %peer, "fenced, its queue pair is destroyed");
                let (_, responder) = connection.session.take().expect("it is of the client");
                // If this panics, the caller that waits for the fence panics, too.
                responder.end().expect("a fenced queue pair is destroyed");
                self.guests.doors.leave(connection.peer_ip());
                connection.send_before_close(&[FENCED]);
            }
            // The send fails if the caller of the fence has ended.
            let _ = done.send(());
        }
        Ok(())
    }

    /// Reads from a connection. If the connection has ended, ends its session.
    fn serve(&mut self, token: usize) {
        let Some(mut connection) = self.guests.open.remove(&token) else { return };
        let reason = loop {
            match connection.read(&self.key) {
                Ok(Some(hello)) => {
                    if let Err(reason) = self.answer_hello(&mut connection, hello) {
                        break reason;
                    }
                }
                Ok(None) => {
                    self.guests.open.insert(token, connection);
                    return;
                }
                Err(reason) => break reason,
            }
        };
        let peer = connection.peer;
        match reason {
            VerbsCloseReason::Io(error) => tracing::debug!(%error, %peer, "a client has gone"),
            reason => tracing::warn!(%peer, %reason, "a client is sent away"),
        }
        self.guests.release_session(&connection);
    }

    /// Answers a hello whose proof is valid.
    fn answer_hello(
        &mut self,
        connection: &mut VerbsConnection,
        hello: VerbsHello,
    ) -> Result<(), VerbsCloseReason> {
        let refusal = |status| VerbsWelcome::refusal(self.key.name(), status).encode();
        // The reserved client id cannot be fenced.
        if hello.client == ClientId::NOBODY {
            return Err(VerbsCloseReason::NotAClient);
        }
        if self.guests.over.has_ended(hello.client) {
            connection.send_before_close(&refusal(VerbsHelloStatus::Fenced));
            return Err(VerbsCloseReason::Fenced(hello.client));
        }
        let peer = connection.peer_ip();
        if let Err(full) = self.guests.doors.enter(peer) {
            connection.send_before_close(&refusal(VerbsHelloStatus::Full));
            return Err(full.into());
        }
        let responder = match Responder::new(&self.device, &self.port, &hello.address) {
            Ok(responder) => responder,
            Err(error) => {
                self.guests.doors.leave(peer);
                connection.send_before_close(&refusal(VerbsHelloStatus::Unable));
                return Err(error.into());
            }
        };
        let welcome = VerbsWelcome {
            node: self.key.name(),
            pool_bytes: self.pool_bytes,
            status: VerbsHelloStatus::Welcome,
            key: self.registered.remote_key(),
            header_key: self.header.remote_key(),
            steered_key: self.steered.as_ref().map_or(0, RegisteredMemory::remote_key),
            base: self.header.base(),
            address: responder.address(),
        };
        // From here on the session is in the connection, so the code that ends the connection also removes the session
        // from the counts.
        connection.session = Some((hello.client, responder));
        // The write does not block, because the buffer of a new connection has room.
        connection.stream.write_all(&welcome.encode())?;
        tracing::debug!(client = %hello.client, peer = %connection.peer, "attached by verbs");
        Ok(())
    }
}

/// Returns the hello when it and the valid proof before it have arrived; `None` until then.
fn proved_hello(
    challenged: &NodeChallenge,
    greeting: &[u8],
) -> Result<Option<VerbsHello>, VerbsCloseReason> {
    let Some((proof, come)) = greeting.split_first_chunk::<PROOF_BYTES>() else { return Ok(None) };
    let Some(bytes) = come.first_chunk::<HELLO_BYTES>() else { return Ok(None) };
    let hello = VerbsHello::decode(bytes).map_err(|foreign| match foreign {
        ProtocolMismatch::Stranger => VerbsCloseReason::NotAClient,
        ProtocolMismatch::Version(error) => VerbsCloseReason::Version(error),
    })?;
    if !challenged.is_proved(proof, bytes) {
        return Err(VerbsCloseReason::Unproved);
    }
    Ok(Some(hello))
}

impl FabricConnection for VerbsConnection {
    fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<VerbsConnection> {
        let greeting = [0; GREETING_BYTES];
        Ok(VerbsConnection { stream, peer, greeting, got: 0, challenged: None, session: None })
    }

    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn client(&self) -> Option<ClientId> {
        self.session.as_ref().map(|(client, _)| *client)
    }
}

impl VerbsConnection {
    /// Reads until nothing more is there. Returns the hello when it has arrived with a valid proof.
    fn read(&mut self, key: &NodeKey) -> Result<Option<VerbsHello>, VerbsCloseReason> {
        loop {
            let mut byte = [0];
            let wanted = if self.challenged.is_none() { CALL_BYTES } else { GREETING_BYTES };
            let is_greeting = self.session.is_none() && self.got < wanted;
            let room = if is_greeting { &mut self.greeting[self.got..wanted] } else { &mut byte };
            match self.stream.read(room) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(_) if !is_greeting => return Err(VerbsCloseReason::Talks),
                Ok(n) => self.got += n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            let heard = match &self.challenged {
                None => self.answer_call(key).map(|()| None),
                Some(challenged) => proved_hello(challenged, &self.greeting[..self.got]),
            };
            match heard {
                Ok(None) => {}
                // The welcome tells a client with another layout of pools which layout this node uses.
                Err(error @ VerbsCloseReason::Version(_)) if self.challenged.is_some() => {
                    self.send_before_close(
                        &VerbsWelcome::refusal(0, VerbsHelloStatus::OtherVersion).encode(),
                    );
                    return Err(error);
                }
                heard => return heard,
            }
        }
    }

    /// Answers the call if it is complete.
    fn answer_call(&mut self, key: &NodeKey) -> Result<(), VerbsCloseReason> {
        match PROTOCOL.check(ConnectionEnd::Server, &self.greeting[..self.got]) {
            Ok(_) => {}
            Err(ProtocolMismatch::Stranger) => return Err(VerbsCloseReason::NotAClient),
            Err(ProtocolMismatch::Version(error)) => {
                // The refusal tells a client of another version this node's version.
                self.send_before_close(&ChallengeRefusal::OtherVersion.encode(&PROTOCOL));
                return Err(error.into());
            }
        }
        let Some(call) = self.greeting[..self.got].first_chunk::<CALL_BYTES>() else {
            return Ok(());
        };
        if challenge::called_node_name(&PROTOCOL, call).ok() != Some(key.name()) {
            self.send_before_close(&ChallengeRefusal::WrongNode.encode(&PROTOCOL));
            return Err(VerbsCloseReason::WrongIdentity);
        }
        let (answer, challenged) = NodeChallenge::new(&PROTOCOL, key, call)?;
        // The write does not block, because the buffer of a new connection has room.
        self.stream.write_all(&answer)?;
        (self.got, self.challenged) = (0, Some(challenged));
        Ok(())
    }

    /// Sends a message before the connection is closed, if the socket takes it without waiting.
    fn send_before_close(&mut self, words: &[u8]) {
        if let Err(error) = self.stream.write_all(words) {
            tracing::debug!(%error, peer = %self.peer, "could not say why the connection ends");
        }
        drop(self.stream.shutdown(std::net::Shutdown::Write));
    }
}
