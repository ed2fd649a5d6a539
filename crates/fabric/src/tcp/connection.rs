//! A connection of the software NIC: first call and hello, then requests, which are executed as they arrive.
//!
//! A request is received completely and checked before its first verb executes. So a malformed frame has no effect,
//! and a client that dies while it sends a request leaves nothing half done.
//!
//! Replies queue in the output buffer. While more than [`OUTPUT_BOUND`] bytes wait there, no further request is
//! read or executed: a client that does not fetch its replies slows down only itself, and costs the node a bounded
//! amount of memory. Long requests and replies take their memory from budgets that all connections share
//! ([`TcpFrameBudget`]). If a budget is used up, the connection waits and keeps the memory that it has.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use fusee_auth::NodeKey;
use fusee_core::verbs::{ClientId, VerbError};
use fusee_core::version::ConnectionEnd;
use fusee_tls::{FIRST_BYTE, MaybeTlsStream, SPEAKS_NONE, SPEAKS_TLS, TlsSettings};
use mio::net::TcpStream;

use super::budget::{self, TcpBudgetShare, TcpFrameBudget};
use super::buffer::{Buffer, SocketProgress};
use super::frame::{
    self, FrameError, HEADER_BYTES, ReplyKind, TcpHello, TcpHelloStatus, TcpRequest, TcpWelcome,
    WireOp,
};
use super::node::TrafficCounters;
use crate::challenge::{self, CALL_BYTES, ChallengeRefusal, NodeChallenge, PROOF_BYTES};
use crate::limits::{SessionLimitError, SessionLimiter};
use crate::listener::FabricConnection;
use crate::pool::{Pool, VerbOrder};
use crate::version::ProtocolMismatch;

/// The bytes of waiting replies beyond which the connection's next request has to wait.
const OUTPUT_BOUND: usize = 1 << 20;
/// The number of requests that a connection can execute before other connections get their turn.
const TURN_REQUESTS: usize = 64;
/// The number of bytes read or written that use up as much of a turn as one request.
const BYTES_PER_REQUEST: usize = 4 << 10;

/// The state of the server that all connections share.
pub(super) struct TcpServeContext<'a> {
    pub(super) pool: &'a Pool,
    pub(super) key: &'a NodeKey,
    pub(super) order: &'a mut VerbOrder,
    pub(super) is_fenced: &'a dyn Fn(ClientId) -> bool,
    pub(super) doors: &'a mut SessionLimiter<IpAddr>,
    pub(super) requests: &'a mut TcpFrameBudget,
    pub(super) replies: &'a mut TcpFrameBudget,
    pub(super) tls: Option<&'a TlsSettings>,
    pub(super) moved: &'a TrafficCounters,
}

/// Reasons for which the node closes a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum TcpCloseReason {
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("a verb is {0}")]
    Verb(#[from] VerbError),
    #[error("it expects another memory node")]
    WrongIdentity,
    #[error("it does not prove that it knows this memory node's key")]
    Unproved,
    #[error("{0}")]
    Tls(&'static str),
    #[error("{0} has been fenced")]
    Fenced(ClientId),
    #[error("{0}")]
    Full(#[from] SessionLimitError),
    #[error("it holds memory that others wait for, and does not get on")]
    Stuck,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The outcome of one turn, in which a connection receives, executes and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpTurnOutcome {
    /// The connection has nothing to do until the next event.
    Idle,
    /// The connection has more work that it can do at once.
    Again,
    /// The connection has more to do as soon as it gets memory.
    Waits,
    /// The client has closed the connection.
    Closed,
}

#[derive(Debug)]
pub(super) struct TcpConnection {
    stream: MaybeTlsStream<TcpStream>,
    peer: SocketAddr,
    /// The state that checks the client's proof, which comes with the hello; `None` before the call.
    challenged: Option<NodeChallenge>,
    /// The client; `None` before the hello.
    client: Option<ClientId>,
    /// Whether the socket was readable at the last event, and has not been drained since then.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Whether the peer has closed its side. If so, even a short read is followed by another one, which can find the
    /// end.
    pub(super) read_closed: bool,
    /// Whether the connection waits for memory of a budget.
    pub(super) waits: bool,
    input: Buffer,
    output: Buffer,
    input_share: TcpBudgetShare,
    output_share: TcpBudgetShare,
}

/// The outcome of executing the requests that have arrived.
enum TcpExecuteOutcome {
    /// All complete requests are executed. The beginning of another request is possibly there.
    All,
    /// Some requests are left: the output has no room for their replies, or the turn is over.
    Some,
    /// Some requests are left: there is no memory for a reply.
    NoMemory,
}

impl FabricConnection for TcpConnection {
    fn new(stream: TcpStream, peer: SocketAddr) -> io::Result<TcpConnection> {
        stream.set_nodelay(true)?;
        Ok(TcpConnection {
            stream: MaybeTlsStream::plain(stream),
            peer,
            challenged: None,
            client: None,
            readable: false,
            writable: false,
            read_closed: false,
            waits: false,
            input: Buffer::default(),
            output: Buffer::default(),
            input_share: TcpBudgetShare::new(),
            output_share: TcpBudgetShare::new(),
        })
    }

    fn stream(&mut self) -> &mut TcpStream {
        self.stream.socket_mut()
    }

    fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn client(&self) -> Option<ClientId> {
        self.client
    }
}

impl TcpConnection {
    /// Gives back memory that the connection does not use.
    pub(super) fn release(&mut self, requests: &mut TcpFrameBudget, replies: &mut TcpFrameBudget) {
        let peer = self.peer_ip();
        budget::release(&mut self.input, &mut self.input_share, requests, peer);
        budget::release(&mut self.output, &mut self.output_share, replies, peer);
    }

    /// Ends the connection, and gives all its memory back.
    pub(super) fn end(mut self, requests: &mut TcpFrameBudget, replies: &mut TcpFrameBudget) {
        self.input_share.end(requests, self.peer_ip());
        self.output_share.end(replies, self.peer_ip());
    }

    /// Returns whether the connection has held memory for `patience` without progress, by its client's fault.
    pub(super) fn is_stuck(&self, now: Instant, patience: Duration) -> bool {
        // A connection that itself waits for memory cannot make progress with its request.
        self.output_share.is_stuck(now, patience)
            || (self.input_share.is_stuck(now, patience) && !self.waits)
    }

    /// Executes requests that have arrived and sends replies, up to the limit of a turn.
    pub(super) fn serve(
        &mut self,
        context: &mut TcpServeContext<'_>,
    ) -> Result<TcpTurnOutcome, TcpCloseReason> {
        let served = self.take_turn(context)?;
        let peer = self.peer_ip();
        self.input_share.give_back(context.requests, peer, self.input.capacity());
        self.output_share.give_back(context.replies, peer, self.output.capacity());
        self.waits = served == TcpTurnOutcome::Waits;
        Ok(served)
    }

    fn take_turn(
        &mut self,
        context: &mut TcpServeContext<'_>,
    ) -> Result<TcpTurnOutcome, TcpCloseReason> {
        let mut budget = TURN_REQUESTS;
        loop {
            let executed = self.execute(context, &mut budget)?;
            let sent = self.send()?;
            if sent == SocketProgress::End {
                return Ok(TcpTurnOutcome::Closed);
            }
            if budget == 0 {
                return Ok(TcpTurnOutcome::Again);
            }
            if self.output.len() > OUTPUT_BOUND {
                // The socket has taken all that it could, so the next event tells when to go on.
                return Ok(TcpTurnOutcome::Idle);
            }
            match executed {
                TcpExecuteOutcome::Some => continue,
                TcpExecuteOutcome::NoMemory => return Ok(TcpTurnOutcome::Waits),
                TcpExecuteOutcome::All => {}
            }
            if !self.readable {
                return Ok(TcpTurnOutcome::Idle);
            }
            // Bytes before the client's proof are not read as a frame, so no memory is reserved for a length in
            // them.
            let wanted = match self.client {
                None => 0,
                Some(_) => frame::frame_bytes(self.input.filled()).saturating_sub(self.input.len()),
            };
            let capacity = self.input.capacity_to_fill(wanted);
            let peer = self.peer_ip();
            if !self.input_share.take(context.requests, peer, capacity) {
                return Ok(TcpTurnOutcome::Waits);
            }
            let had = self.input.len();
            let filled = self.input.fill(&mut self.stream, wanted)?;
            self.input_share.count_moved_bytes(self.input.len() - had);
            match filled {
                SocketProgress::More => {}
                SocketProgress::Blocked => self.readable = self.read_closed,
                SocketProgress::End => return Ok(TcpTurnOutcome::Closed),
            }
        }
    }

    fn send(&mut self) -> Result<SocketProgress, TcpCloseReason> {
        if !self.writable {
            return Ok(SocketProgress::Blocked);
        }
        let had = self.output.len();
        let progress = self.output.drain(&mut self.stream)?;
        self.output_share.count_moved_bytes(had - self.output.len());
        self.writable = progress == SocketProgress::More;
        Ok(progress)
    }

    /// Executes the requests in the input until the output or the turn's `budget` is used up.
    fn execute(
        &mut self,
        context: &mut TcpServeContext<'_>,
        budget: &mut usize,
    ) -> Result<TcpExecuteOutcome, TcpCloseReason> {
        if self.client.is_none() && (!self.answer_call(context)? || !self.answer_hello(context)?) {
            return Ok(TcpExecuteOutcome::All);
        }
        while *budget > 0 && self.output.len() <= OUTPUT_BOUND {
            let Some(request) = TcpRequest::decode(self.input.filled())? else {
                return Ok(TcpExecuteOutcome::All);
            };
            for verb in request.verbs() {
                verb.check(context.pool.bytes())?;
            }
            let reply_bytes = HEADER_BYTES + request.reply_bytes;
            let capacity = self.output.capacity_to_append(reply_bytes);
            let peer = self.peer_ip();
            if !self.output_share.take(context.replies, peer, capacity) {
                return Ok(TcpExecuteOutcome::NoMemory);
            }
            self.output.reserve(reply_bytes);
            execute(&request, context, &mut self.output)?;
            let len = request.frame_bytes;
            let moved = request.frame_bytes + request.reply_bytes;
            self.input.consume(len);
            context.moved.requests.add(1);
            context.moved.bytes.add((HEADER_BYTES + moved) as u64);
            *budget = budget.saturating_sub(1 + moved / BYTES_PER_REQUEST);
        }
        Ok(TcpExecuteOutcome::Some)
    }

    /// Switches to TLS if the client uses TLS and this node has a certificate.
    fn look_for_tls(&mut self, context: &TcpServeContext<'_>) -> Result<(), TcpCloseReason> {
        if self.stream.is_tls() || self.input.filled().first() != Some(&FIRST_BYTE) {
            return Ok(());
        }
        let come = self.input.filled();
        let answers = context.tls.map(|tls| tls.answer(&mut self.stream, come)).transpose()?;
        if answers != Some(true) {
            // The refusal goes out in plain text, although the client expects TLS, because this node has no TLS.
            return self.refuse(ChallengeRefusal::SpeaksNoTls, TcpCloseReason::Tls(SPEAKS_TLS));
        }
        self.input.consume(self.input.len());
        // TLS has taken the bytes that came with the first record. The rest of the record is still in the socket.
        self.readable = true;
        Ok(())
    }

    /// Sends a refusal of the call and closes the node's side of the connection. Returns `reason`.
    fn refuse<T>(
        &mut self,
        refusal: ChallengeRefusal,
        reason: TcpCloseReason,
    ) -> Result<T, TcpCloseReason> {
        self.output.append(&refusal.encode(&frame::PROTOCOL));
        self.flush_before_close();
        Err(reason)
    }

    /// Answers the call if it has arrived. Returns whether it has.
    fn answer_call(&mut self, context: &TcpServeContext<'_>) -> Result<bool, TcpCloseReason> {
        if self.challenged.is_some() {
            return Ok(true);
        }
        // TLS is recognized by its first byte before the call only, because a proof can begin with any byte.
        self.look_for_tls(context)?;
        if let Err(foreign) = frame::PROTOCOL.check(ConnectionEnd::Server, self.input.filled()) {
            let reason = TcpCloseReason::Frame(foreign.into());
            // The refusal tells a client of another version this node's version.
            return match foreign {
                ProtocolMismatch::Version(_) => self.refuse(ChallengeRefusal::OtherVersion, reason),
                ProtocolMismatch::Stranger => Err(reason),
            };
        }
        let Some(call) = self.input.filled().first_chunk::<CALL_BYTES>().copied() else {
            return Ok(false);
        };
        self.input.consume(CALL_BYTES);
        if !self.stream.is_tls() && context.tls.is_some_and(TlsSettings::has_certificate) {
            return self.refuse(ChallengeRefusal::WantsTls, TcpCloseReason::Tls(SPEAKS_NONE));
        }
        let called =
            challenge::called_node_name(&frame::PROTOCOL, &call).map_err(FrameError::from)?;
        if called != context.key.name() {
            return self.refuse(ChallengeRefusal::WrongNode, TcpCloseReason::WrongIdentity);
        }
        let (answer, challenged) = NodeChallenge::new(&frame::PROTOCOL, context.key, &call)?;
        self.output.append(&answer);
        self.challenged = Some(challenged);
        Ok(true)
    }

    /// Answers the hello if it has arrived with its proof. Returns whether it has.
    fn answer_hello(&mut self, context: &mut TcpServeContext<'_>) -> Result<bool, TcpCloseReason> {
        let come = self.input.filled();
        let Some((proof, come)) = come.split_first_chunk::<PROOF_BYTES>() else {
            return Ok(false);
        };
        let hello = match TcpHello::decode(come) {
            Ok(Some(hello)) => hello,
            Ok(None) => return Ok(false),
            Err(error) => {
                // The welcome tells a client with another version this node's version.
                if matches!(error, FrameError::Version(_)) {
                    let pool_bytes = 0;
                    let status = TcpHelloStatus::OtherVersion;
                    self.output.append(&TcpWelcome { pool_bytes, status }.encode());
                    self.flush_before_close();
                }
                return Err(error.into());
            }
        };
        let challenged = self.challenged.as_ref().expect("a hello comes behind a call");
        if !challenged.is_proved(proof, &come[..frame::HELLO_BYTES]) {
            return Err(TcpCloseReason::Unproved);
        }
        self.input.consume(PROOF_BYTES + frame::HELLO_BYTES);
        // The reserved client id cannot be fenced.
        if hello.client == ClientId::NOBODY {
            return Err(TcpCloseReason::Frame(FrameError::Malformed("a hello without a client")));
        }
        let status = if (context.is_fenced)(hello.client) {
            TcpHelloStatus::Fenced
        } else if context.doors.enter(self.peer_ip()).is_err() {
            TcpHelloStatus::Full
        } else {
            // The session is already counted before the client can learn that it is welcome.
            TcpHelloStatus::Welcome
        };
        let pool_bytes = context.pool.bytes();
        self.output.append(&TcpWelcome { pool_bytes, status }.encode());
        match status {
            TcpHelloStatus::Welcome => {
                self.client = Some(hello.client);
                self.challenged = None;
                Ok(true)
            }
            TcpHelloStatus::Fenced => {
                self.flush_before_close();
                Err(TcpCloseReason::Fenced(hello.client))
            }
            TcpHelloStatus::Full => {
                self.flush_before_close();
                Err(TcpCloseReason::Full(SessionLimitError))
            }
            TcpHelloStatus::OtherVersion => unreachable!("its hello could not be read"),
        }
    }

    /// Tells the client that it has been fenced, if the socket takes the message without waiting.
    pub(super) fn say_fenced(&mut self) {
        self.output.append(&frame::reply_header(0, ReplyKind::Fenced, 0));
        self.flush_before_close();
    }

    /// Tries to send the output before the connection is closed.
    fn flush_before_close(&mut self) {
        if let Err(error) = self.output.drain(&mut self.stream) {
            tracing::debug!(%error, peer = %self.peer, "could not say why the connection ends");
        }
        drop(self.stream.socket().shutdown(std::net::Shutdown::Write));
    }
}

/// Executes the verbs of a request and appends the reply. The caller has checked the verbs' bounds.
fn execute(
    request: &TcpRequest<'_>,
    context: &mut TcpServeContext<'_>,
    output: &mut Buffer,
) -> Result<(), VerbError> {
    let pool = context.pool;
    let order = &mut *context.order;
    output.append(&frame::reply_header(request.reply_bytes, ReplyKind::Results, request.id));
    for verb in request.verbs() {
        match verb.op {
            WireOp::Read(len) | WireOp::Steered(len) => {
                let out = output.extend(frame::padded(len));
                let (data, padding) = out.split_at_mut(len as usize);
                pool.read(order, verb.offset, data)?;
                padding.fill(0);
            }
            WireOp::Write(data) => pool.write(order, verb.offset, data)?,
            WireOp::Cas { expected, swap } => {
                let found = pool.cas(order, verb.offset, expected, swap)?;
                output.append(&found.to_le_bytes());
            }
            WireOp::Faa { add } => {
                let found = pool.faa(order, verb.offset, add)?;
                output.append(&found.to_le_bytes());
            }
        }
    }
    Ok(())
}
