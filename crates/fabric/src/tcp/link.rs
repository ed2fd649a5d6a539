//! One session's connection to one memory node.
//!
//! Requests queue in the output buffer until the next flush; replies come in the order of the
//! requests, so the parts in flight are a queue. A *part* is what one frame carries: verbs of one
//! batch, for this node. Large batches are split into several parts, in order.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use fusee_core::verbs::{Batch, ClientId, MAX_BATCH_VERBS, MnId, Op, VerbError};

use super::buffer::{Buffer, Progress};
use super::frame::{self, Hello, Reply, ReplyKind, Results, Status, Welcome, WireOp, WireVerb};
use crate::error::AttachCause;
use crate::hello::{self, GoesOn};

/// Verbs `from..to` of a batch that are for this node and not yet failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The slot of the batch.
    pub(super) slot: usize,
    from: u32,
    to: u32,
    /// Length of the reply's body.
    reply_bytes: usize,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: MnId,
    pub(super) pool_bytes: u64,
    pub(super) stream: mio::net::TcpStream,
    /// Why verbs to this node fail from now on.
    pub(super) failed: Option<VerbError>,
    pub(super) readable: bool,
    pub(super) read_closed: bool,
    pub(super) writable: bool,
    /// Since when we wait for a byte from the node; `None`: we do not know yet.
    pub(super) silent_since: Option<Instant>,
    input: Buffer,
    output: Buffer,
    parts: VecDeque<Part>,
    /// The id of the request at the front of `parts`.
    first_id: u64,
}

/// Why a link fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the memory node closed the connection")]
    Closed,
    #[error("this session has left it")]
    Left,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the memory node sent garbage: {0}")]
    Frame(#[from] frame::FrameError),
    #[error("the memory node replied to something else")]
    WrongReply,
    #[error("the memory node has fenced this client")]
    Fenced,
    #[error("the memory node did not answer for {0:?}")]
    Silent(Duration),
}

impl LinkError {
    /// What the verbs in flight get.
    pub(super) fn verb_error(&self) -> VerbError {
        match self {
            LinkError::Fenced => VerbError::Fenced,
            _ => VerbError::Unreachable,
        }
    }
}

/// Connects and says hello, within `wait` and as long as `goes_on`.
pub(super) fn connect(
    node: MnId,
    address: &str,
    client: ClientId,
    identity: u64,
    wait: Duration,
    goes_on: GoesOn<'_>,
) -> Result<Link, AttachCause> {
    let mut stream = hello::connect(address, wait, goes_on)?;
    let hello = Hello { identity, client }.encode();
    let welcome = hello::exchange(&mut stream, &hello, frame::MAGIC, wait, goes_on)?;
    let welcome = Welcome::decode(&welcome).map_err(|_| AttachCause::NotAMemoryNode)?;
    match welcome.status {
        Status::Welcome if welcome.identity == identity => {}
        Status::Welcome | Status::WrongIdentity => {
            let found = welcome.identity;
            return Err(AttachCause::WrongIdentity { expected: identity, found });
        }
        Status::Fenced => return Err(AttachCause::Fenced),
        Status::Full => return Err(AttachCause::Full),
    }
    stream.set_nonblocking(true)?;
    Ok(Link {
        node,
        pool_bytes: welcome.pool_bytes,
        stream: mio::net::TcpStream::from_std(stream),
        failed: None,
        readable: false,
        read_closed: false,
        writable: true,
        silent_since: None,
        input: Buffer::default(),
        output: Buffer::default(),
        parts: VecDeque::new(),
        first_id: 0,
    })
}

impl Link {
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Whether the node owes a reply.
    pub(super) fn is_waiting(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Queues the verbs of a batch that are for this node; gives the number of parts.
    pub(super) fn submit(&mut self, slot: usize, batch: &Batch) -> usize {
        let (mut parts, mut from) = (0, 0);
        while from < batch.verbs().len() {
            let (to, verbs, body_bytes, reply_bytes) = self.fit(batch, from);
            if verbs > 0 {
                self.encode(batch, from..to, verbs, body_bytes);
                self.parts.push_back(Part { slot, from: from as u32, to: to as u32, reply_bytes });
                parts += 1;
            }
            from = to;
        }
        parts
    }

    fn is_ours(&self, batch: &Batch, verb: usize) -> bool {
        let verb = &batch.verbs()[verb];
        verb.node == self.node && verb.result == Err(VerbError::NotExecuted)
    }

    /// The longest part from verb `from` on: its end, number of verbs, and the lengths of the
    /// bodies of request and reply.
    fn fit(&self, batch: &Batch, from: usize) -> (usize, u32, usize, usize) {
        let (mut verbs, mut body, mut reply) = (0, 0, 0);
        for at in from..batch.verbs().len() {
            if !self.is_ours(batch, at) {
                continue;
            }
            let (verb_body, verb_reply) = frame::wire_bytes(&batch.verbs()[at].op);
            (body, reply) = (body + verb_body, reply + verb_reply);
            // A single verb always fits, so the part is not empty.
            if body.max(reply) > frame::MAX_BODY_BYTES || verbs as usize == MAX_BATCH_VERBS {
                return (at, verbs, body - verb_body, reply - verb_reply);
            }
            verbs += 1;
        }
        (batch.verbs().len(), verbs, body, reply)
    }

    fn encode(
        &mut self,
        batch: &Batch,
        range: std::ops::Range<usize>,
        verbs: u32,
        body_bytes: usize,
    ) {
        let id = self.first_id.wrapping_add(self.parts.len() as u64);
        self.output.append(&frame::request_header(body_bytes, verbs, id));
        for at in range {
            if !self.is_ours(batch, at) {
                continue;
            }
            let verb = &batch.verbs()[at];
            let op = match verb.op {
                Op::Read { buf } => WireOp::Read(buf.len),
                Op::Write { buf } => WireOp::Write(batch.bytes(buf)),
                Op::Cas { expected, swap, .. } => WireOp::Cas { expected, swap },
                Op::Faa { add, .. } => WireOp::Faa { add },
            };
            let verb = WireVerb { offset: verb.offset, op };
            frame::encode_verb(verb, |bytes| self.output.append(bytes));
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        if self.writable {
            match self.output.drain(&mut self.stream)? {
                Progress::More => {}
                Progress::Blocked => self.writable = false,
                Progress::End => return Err(LinkError::Closed),
            }
        }
        Ok(())
    }

    /// Receives what there is; passes each part that is complete to `done`.
    pub(super) fn receive(
        &mut self,
        done: &mut impl FnMut(MnId, Part, Results<'_>) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        while self.readable {
            let wanted = frame::frame_bytes(self.input.filled()).saturating_sub(self.input.len());
            let had = self.input.len();
            match self.input.fill(&mut self.stream, wanted)? {
                Progress::More => {}
                Progress::Blocked => self.readable = self.read_closed,
                Progress::End => return Err(LinkError::Closed),
            }
            if self.input.len() == had {
                continue;
            }
            self.silent_since = None;
            while let Some(reply) = Reply::decode(self.input.filled())? {
                if reply.kind == ReplyKind::Fenced {
                    return Err(LinkError::Fenced);
                }
                let part = self.parts.pop_front().ok_or(LinkError::WrongReply)?;
                if reply.id != self.first_id || reply.results.len() != part.reply_bytes {
                    self.parts.push_front(part);
                    return Err(LinkError::WrongReply);
                }
                self.first_id = self.first_id.wrapping_add(1);
                let len = reply.frame_bytes;
                if let Err(error) = done(self.node, part, reply.results) {
                    self.parts.push_front(part);
                    return Err(error);
                }
                self.input.consume(len);
            }
        }
        Ok(())
    }

    /// Fails for good; gives the parts that were in flight.
    pub(super) fn fail(&mut self, error: &LinkError) -> VecDeque<Part> {
        match error {
            LinkError::Left => tracing::debug!(node = %self.node, "left a memory node"),
            // Each session has its own; that the node is reported unreachable is told once.
            _ => tracing::debug!(node = %self.node, %error, "lost a memory node"),
        }
        self.failed = Some(error.verb_error());
        (self.input, self.output) = Default::default();
        drop(self.stream.shutdown(std::net::Shutdown::Both));
        std::mem::take(&mut self.parts)
    }
}

impl Part {
    /// Sets the results of the part's verbs from a reply of `node`, which has the right length.
    pub(super) fn complete(
        self,
        node: MnId,
        batch: &mut Batch,
        mut results: Results<'_>,
    ) -> Result<(), LinkError> {
        let (verbs, memory) = batch.parts_mut();
        for verb in &mut verbs[self.from as usize..self.to as usize] {
            if verb.node != node || verb.result != Err(VerbError::NotExecuted) {
                continue;
            }
            match &mut verb.op {
                Op::Read { buf } => memory[buf.range()].copy_from_slice(results.data(buf.len)?),
                Op::Write { .. } => {}
                Op::Cas { found, .. } | Op::Faa { found, .. } => *found = results.word()?,
            }
            verb.result = Ok(());
        }
        Ok(())
    }

    /// Fails the part's verbs.
    pub(super) fn fail(self, node: MnId, batch: &mut Batch, error: VerbError) {
        let (verbs, _) = batch.parts_mut();
        for verb in &mut verbs[self.from as usize..self.to as usize] {
            if verb.node == node && verb.result == Err(VerbError::NotExecuted) {
                verb.result = Err(error);
            }
        }
    }
}
