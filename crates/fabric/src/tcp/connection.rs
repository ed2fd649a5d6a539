//! One connection of the software NIC: a hello, then requests, executed as they come.
//!
//! All of a request is received and checked before its first verb executes. So a malformed frame
//! has no effect, and a client that dies while sending leaves nothing half done.
//!
//! Replies queue in the output buffer. While more than [`OUTPUT_BOUND`] bytes wait there, no
//! further request is executed or read: a client that does not fetch its replies slows down
//! itself, and costs the node a bounded amount of memory.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use fusee_core::verbs::{ClientId, VerbError};
use mio::net::TcpStream;

use super::buffer::{Buffer, Progress};
use super::frame::{self, FrameError, Hello, ReplyKind, Request, Status, Welcome, WireOp};
use crate::pool::{Order, Pool};

/// With more bytes of replies waiting than this, the next request has to wait.
const OUTPUT_BOUND: usize = 1 << 20;
/// Requests executed before other connections get their turn.
const TURN_REQUESTS: usize = 64;

/// What a connection is served with.
pub(super) struct Context<'a> {
    pub(super) pool: &'a Pool,
    pub(super) identity: u64,
    pub(super) order: &'a mut Order,
    pub(super) is_fenced: &'a dyn Fn(ClientId) -> bool,
    /// The number of connections with a client.
    pub(super) sessions: &'a AtomicU64,
}

/// Why a connection is closed by the node.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misbehaved {
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("a verb is {0}")]
    Verb(#[from] VerbError),
    #[error("it expects another memory node, {0:016x}")]
    WrongIdentity(u64),
    #[error("{0} has been fenced")]
    Fenced(ClientId),
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// What a turn of service came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// Nothing to do until the next event.
    Idle,
    /// There is more to do.
    Again,
    /// The client has closed it.
    Closed,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    /// `None` before the hello.
    pub(super) client: Option<ClientId>,
    /// The last event said so, and nothing since has said otherwise.
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has closed its side: a short read does not mean that nothing is left to see.
    pub(super) read_closed: bool,
    input: Buffer,
    output: Buffer,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr) -> Connection {
        Connection {
            stream,
            peer,
            client: None,
            readable: false,
            writable: false,
            read_closed: false,
            input: Buffer::default(),
            output: Buffer::default(),
        }
    }

    /// Executes what has arrived and sends what is ready, up to a turn's worth.
    pub(super) fn serve(&mut self, context: &mut Context<'_>) -> Result<Served, Misbehaved> {
        let mut budget = TURN_REQUESTS;
        loop {
            let executed = self.execute(context, &mut budget)?;
            let sent = self.send()?;
            if sent == Progress::End {
                return Ok(Served::Closed);
            }
            if budget == 0 {
                return Ok(Served::Again);
            }
            if self.output.len() > OUTPUT_BOUND {
                // Blocked for sure: whatever was writable has been written.
                return Ok(Served::Idle);
            }
            if executed {
                continue;
            }
            if !self.readable {
                return Ok(Served::Idle);
            }
            let wanted = frame::frame_bytes(self.input.filled()).saturating_sub(self.input.len());
            match self.input.fill(&mut self.stream, wanted)? {
                Progress::More => {}
                Progress::Blocked => self.readable = self.read_closed,
                Progress::End => return Ok(Served::Closed),
            }
        }
    }

    fn send(&mut self) -> Result<Progress, Misbehaved> {
        if !self.writable {
            return Ok(Progress::Blocked);
        }
        let progress = self.output.drain(&mut self.stream)?;
        self.writable = progress == Progress::More;
        Ok(progress)
    }

    /// Executes what the input holds, until the output is full; whether it stopped for that.
    fn execute(
        &mut self,
        context: &mut Context<'_>,
        budget: &mut usize,
    ) -> Result<bool, Misbehaved> {
        if self.client.is_none() && !self.greet(context)? {
            return Ok(false);
        }
        while *budget > 0 && self.output.len() <= OUTPUT_BOUND {
            let Some(request) = Request::decode(self.input.filled())? else { return Ok(false) };
            for verb in request.verbs() {
                verb.check(context.pool.bytes())?;
            }
            execute(&request, context, &mut self.output)?;
            let len = request.frame_bytes;
            self.input.consume(len);
            *budget -= 1;
        }
        Ok(true)
    }

    /// Answers the hello, if it has arrived.
    fn greet(&mut self, context: &Context<'_>) -> Result<bool, Misbehaved> {
        let Some(hello) = Hello::decode(self.input.filled())? else { return Ok(false) };
        self.input.consume(frame::HELLO_BYTES);
        // "Nobody" cannot be fenced.
        if hello.client == ClientId::NOBODY {
            return Err(Misbehaved::Frame(FrameError::Malformed("a hello without a client")));
        }
        let status = if hello.identity != context.identity {
            Status::WrongIdentity
        } else if (context.is_fenced)(hello.client) {
            Status::Fenced
        } else {
            Status::Welcome
        };
        let (identity, pool_bytes) = (context.identity, context.pool.bytes());
        self.output.append(&Welcome { identity, pool_bytes, status }.encode());
        match status {
            Status::Welcome => {
                // Counted before the client can know that it is welcome.
                context.sessions.fetch_add(1, Ordering::Relaxed);
                self.client = Some(hello.client);
                Ok(true)
            }
            Status::WrongIdentity => {
                self.last_words();
                Err(Misbehaved::WrongIdentity(hello.identity))
            }
            Status::Fenced => {
                self.last_words();
                Err(Misbehaved::Fenced(hello.client))
            }
        }
    }

    /// Tells the client that it has been fenced, if it can be told without waiting.
    pub(super) fn say_fenced(&mut self) {
        self.output.append(&frame::reply_header(0, ReplyKind::Fenced, 0));
        self.last_words();
    }

    /// Tries to send what is in the output before the connection is closed.
    fn last_words(&mut self) {
        if let Err(error) = self.output.drain(&mut self.stream) {
            tracing::debug!(%error, peer = %self.peer, "could not say why the connection ends");
        }
        drop(self.stream.shutdown(std::net::Shutdown::Write));
    }
}

/// Executes the verbs of a request, whose bounds have been checked, and appends the reply.
fn execute(
    request: &Request<'_>,
    context: &mut Context<'_>,
    output: &mut Buffer,
) -> Result<(), VerbError> {
    let (pool, order) = (context.pool, &mut *context.order);
    output.append(&frame::reply_header(request.reply_bytes, ReplyKind::Results, request.id));
    for verb in request.verbs() {
        match verb.op {
            WireOp::Read(len) => {
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
