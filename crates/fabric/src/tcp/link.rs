//! One session's TCP connection to one memory node.
//!
//! Requests queue in the output buffer until the next flush. Replies come in the order of the requests, so the
//! parts in flight form a queue. A *part* is the content of one frame: verbs of one batch for this node, or a piece
//! of a long verb. A large batch is split into several parts, in order. A READ or WRITE of more than
//! [`PIECE_BYTES`] is split into pieces, so the node serves other sessions between two of its frames, and neither
//! side needs memory for the whole of a long value. The last word of a long WRITE still lands last.

use std::collections::VecDeque;
use std::io;

use fusee_core::verbs::{MAX_BATCH_VERBS, MnId, Span, VerbBatch, VerbOp};
use fusee_tls::MaybeTlsStream;
use mio::event::Event;
use mio::{Interest, Registry, Token};

use super::buffer::{Buffer, SocketProgress};
use super::frame::{
    self, FrameError, ReplyKind, ReplyResults, TcpHello, TcpHelloStatus, TcpReply, TcpWelcome,
    WireOp, WireVerb,
};
use crate::driver::{self, BatchSlots, LinkError, LinkTarget, NoLinkCounts, is_for};
use crate::error::AttachCause;
use crate::hello;

/// The largest number of bytes that one READ or WRITE has in a frame.
const PIECE_BYTES: u32 = 128 << 10;

/// The verbs `from..to` of a batch, as far as they are for this node and have not failed yet.
#[derive(Clone, Copy, Debug)]
struct TcpBatchPart {
    /// The position of the part's batch in the session's [`BatchSlots`].
    slot: usize,
    from: u32,
    to: u32,
    /// The length of the reply's body in bytes.
    reply_bytes: usize,
    /// The range of bytes within the verb, if the part is a piece of a long verb.
    piece: Option<Span>,
}

/// A session's connection to a memory node.
#[derive(Debug)]
pub struct TcpLink {
    node: MnId,
    pool_bytes: u64,
    stream: MaybeTlsStream<mio::net::TcpStream>,
    /// Whether the socket was readable at the last event, and has not been drained since then.
    readable: bool,
    writable: bool,
    /// Whether the node has closed its side. If so, even a short read is followed by another one, which can find the
    /// end.
    read_closed: bool,
    input: Buffer,
    output: Buffer,
    parts: VecDeque<TcpBatchPart>,
    /// The id of the request at the front of `parts`.
    first_id: u64,
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> LinkError {
        LinkError::Broken(format!("the memory node sent garbage: {error}").into())
    }
}

/// Returns the number of bytes that a verb moves.
fn length(op: &VerbOp) -> u32 {
    match op {
        VerbOp::Read { buf, .. } | VerbOp::Write { buf } => buf.len,
        VerbOp::Cas { .. } | VerbOp::Faa { .. } => 8,
    }
}

/// Returns the length of a verb that has to be sent in pieces; `None` for other verbs. A steered READ stays whole,
/// because a switch redirects all of it to the object.
fn long_bytes(op: &VerbOp) -> Option<u32> {
    let is_steered = matches!(op, VerbOp::Read { steered: true, .. });
    Some(length(op)).filter(|bytes| *bytes > PIECE_BYTES && !is_steered)
}

fn wrong_reply() -> LinkError {
    LinkError::Broken("the memory node replied to something else".into())
}

impl TcpLink {
    fn has_output(&self) -> bool {
        !self.output.is_empty() || self.stream.has_unsent()
    }

    fn is_ours(&self, batch: &VerbBatch, verb: usize) -> bool {
        is_for(&batch.verbs()[verb], self.node)
    }

    /// Returns the longest part that starts at verb `from`: its end, its number of verbs, and the lengths of the
    /// bodies of request and reply.
    fn fit(&self, batch: &VerbBatch, from: usize) -> (usize, u32, usize, usize) {
        let mut verbs = 0;
        let mut body = 0;
        let mut reply = 0;
        for at in from..batch.verbs().len() {
            if !self.is_ours(batch, at) {
                continue;
            }
            let op = &batch.verbs()[at].op;
            if long_bytes(op).is_some() {
                return (at, verbs, body, reply);
            }
            let (verb_body, verb_reply) = frame::wire_bytes(op);
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
        batch: &VerbBatch,
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
                VerbOp::Read { buf, steered: false } => WireOp::Read(buf.len),
                VerbOp::Read { buf, steered: true } => WireOp::Steered(buf.len),
                VerbOp::Write { buf } => WireOp::Write(batch.bytes(buf)),
                VerbOp::Cas { expected, swap, .. } => WireOp::Cas { expected, swap },
                VerbOp::Faa { add, .. } => WireOp::Faa { add },
            };
            let verb = WireVerb { offset: verb.offset, op };
            frame::encode_verb(verb, |bytes| self.output.append(bytes));
        }
    }

    /// Encodes the pieces of a long verb, each in a frame of its own. Returns the number of pieces.
    fn encode_long(&mut self, slot: usize, batch: &VerbBatch, at: usize, bytes: u32) -> usize {
        let verb = &batch.verbs()[at];
        let starts = (0..bytes).step_by(PIECE_BYTES as usize);
        let pieces = starts.len();
        for start in starts {
            let piece = Span { start, len: PIECE_BYTES.min(bytes - start) };
            let (op, body_bytes, reply_bytes) = match verb.op {
                VerbOp::Write { buf } => {
                    let data = batch.bytes(buf.part(start, piece.len));
                    (WireOp::Write(data), frame::VERB_BYTES + frame::padded(piece.len), 0)
                }
                _ => (WireOp::Read(piece.len), frame::VERB_BYTES, frame::padded(piece.len)),
            };
            let id = self.first_id.wrapping_add(self.parts.len() as u64);
            self.output.append(&frame::request_header(body_bytes, 1, id));
            let wire = WireVerb { offset: verb.offset + u64::from(start), op };
            frame::encode_verb(wire, |bytes| self.output.append(bytes));
            let from = at as u32;
            let to = at as u32 + 1;
            self.parts.push_back(TcpBatchPart { slot, from, to, reply_bytes, piece: Some(piece) });
        }
        pieces
    }

    /// Sends as much of the queued output as the socket accepts.
    fn flush(&mut self) -> Result<(), LinkError> {
        if self.writable {
            match self.output.drain(&mut self.stream)? {
                SocketProgress::More => {}
                SocketProgress::Blocked => self.writable = false,
                SocketProgress::End => return Err(LinkError::Closed),
            }
        }
        Ok(())
    }

    /// Receives replies and completes their parts. Returns whether any bytes came.
    fn take_replies(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        let mut has_come = false;
        while self.readable {
            let wanted = frame::frame_bytes(self.input.filled()).saturating_sub(self.input.len());
            let had = self.input.len();
            match self.input.fill(&mut self.stream, wanted)? {
                SocketProgress::More => {}
                SocketProgress::Blocked => self.readable = self.read_closed,
                SocketProgress::End => return Err(LinkError::Closed),
            }
            if self.input.len() == had {
                continue;
            }
            has_come = true;
            while let Some(reply) = TcpReply::decode(self.input.filled())? {
                if reply.kind == ReplyKind::Fenced {
                    return Err(LinkError::Fenced);
                }
                // The part stays in the list until it is complete, so that an error fails it together with the
                // other parts.
                let part = *self.parts.front().ok_or_else(wrong_reply)?;
                if reply.id != self.first_id || reply.results.len() != part.reply_bytes {
                    return Err(wrong_reply());
                }
                let len = reply.frame_bytes;
                if let Some(batch) = slots.awaited_batch(part.slot) {
                    part.complete(self.node, batch, reply.results)?;
                }
                slots.finish_part(part.slot);
                self.parts.pop_front();
                self.first_id = self.first_id.wrapping_add(1);
                self.input.consume(len);
            }
        }
        Ok(has_come)
    }
}

impl driver::FabricLink for TcpLink {
    const USER_SPACE: bool = false;
    const LOOKS_THAT_FIND_SOME: u32 = 5;
    const WAITS_FOR_READS: bool = false;
    type Counts = NoLinkCounts;

    fn connect(to: &LinkTarget<'_>) -> Result<TcpLink, AttachCause> {
        let stream = hello::connect(to.address, to.wait, to.goes_on)?;
        let mut stream = match to.tls {
            None => MaybeTlsStream::plain(stream),
            Some(tls) => {
                tls.dial(to.address, stream).map_err(|error| AttachCause::Tls(error.to_string()))?
            }
        };
        let hello = TcpHello { client: to.client }.encode();
        let proof = hello::verify_node(&mut stream, &frame::PROTOCOL, to, &hello)?;
        let hello = [&proof[..], &hello].concat();
        let welcome = hello::exchange(&mut stream, &hello, &frame::PROTOCOL, to.wait, to.goes_on)?;
        let welcome = TcpWelcome::decode(&welcome).map_err(|error| match error {
            FrameError::Version(error) => AttachCause::Version(error),
            _ => AttachCause::NotAMemoryNode,
        })?;
        match welcome.status {
            TcpHelloStatus::Welcome => {}
            TcpHelloStatus::Fenced => return Err(AttachCause::Fenced),
            TcpHelloStatus::Full => return Err(AttachCause::Full),
            TcpHelloStatus::OtherVersion => return Err(AttachCause::NotAMemoryNode),
        }
        stream.socket().set_nonblocking(true)?;
        Ok(TcpLink {
            node: to.node,
            pool_bytes: welcome.pool_bytes,
            stream: stream.map(mio::net::TcpStream::from_std),
            readable: false,
            read_closed: false,
            writable: true,
            input: Buffer::default(),
            output: Buffer::default(),
            parts: VecDeque::new(),
            first_id: 0,
        })
    }

    fn register(&mut self, registry: &Registry, [token, _]: [Token; 2]) -> io::Result<()> {
        registry.register(self.stream.socket_mut(), token, Interest::READABLE | Interest::WRITABLE)
    }

    fn node(&self) -> MnId {
        self.node
    }

    fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    fn is_waiting(&self) -> bool {
        !self.parts.is_empty()
    }

    fn is_blocked(&self) -> bool {
        self.has_output()
    }

    fn queue(&mut self, slot: usize, batch: &VerbBatch) -> usize {
        let mut parts = 0;
        let mut from = 0;
        while from < batch.verbs().len() {
            if self.is_ours(batch, from)
                && let Some(bytes) = long_bytes(&batch.verbs()[from].op)
            {
                parts += self.encode_long(slot, batch, from, bytes);
                from += 1;
                continue;
            }
            let (to, verbs, body_bytes, reply_bytes) = self.fit(batch, from);
            if verbs > 0 {
                self.encode(batch, from..to, verbs, body_bytes);
                let from = from as u32;
                let to = to as u32;
                self.parts.push_back(TcpBatchPart { slot, from, to, reply_bytes, piece: None });
                parts += 1;
            }
            from = to;
        }
        parts
    }

    fn post(&mut self, _: &mut BatchSlots) -> Result<(), LinkError> {
        if self.has_output() { self.flush() } else { Ok(()) }
    }

    fn take_event(&mut self, _: usize, event: &Event) -> Result<(), LinkError> {
        let closed = event.is_read_closed() || event.is_error();
        self.readable |= event.is_readable() || closed;
        self.read_closed |= closed;
        self.writable |= event.is_writable() || event.is_write_closed();
        Ok(())
    }

    fn receive(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        if !self.readable && !self.has_output() {
            return Ok(false);
        }
        let has_come = self.take_replies(slots)?;
        self.flush()?;
        Ok(has_come)
    }

    fn look(&mut self, slots: &mut BatchSlots) -> Result<bool, LinkError> {
        self.readable |= self.is_waiting();
        self.receive(slots)
    }

    /// Does nothing, because all answers cause events.
    fn arm(&mut self, _: &mut BatchSlots) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn counts(&self) -> NoLinkCounts {
        NoLinkCounts
    }

    fn end(mut self, unanswered: impl FnMut(usize)) {
        drop(self.stream.socket().shutdown(std::net::Shutdown::Both));
        self.abandon_after_fork(unanswered);
    }

    fn abandon_after_fork(&mut self, unanswered: impl FnMut(usize)) {
        std::mem::take(&mut self.parts).into_iter().map(|part| part.slot).for_each(unanswered);
    }
}

impl TcpBatchPart {
    /// Sets the results of the part's verbs from a reply of `node`. The caller has checked the reply's length.
    fn complete(
        self,
        node: MnId,
        batch: &mut VerbBatch,
        mut results: ReplyResults<'_>,
    ) -> Result<(), LinkError> {
        let (verbs, memory) = batch.parts_mut();
        let part = &mut verbs[self.from as usize..self.to as usize];
        if let Some(piece) = self.piece {
            let verb = &mut part[0];
            if let VerbOp::Read { buf, .. } = &verb.op {
                let into = buf.part(piece.start, piece.len);
                memory[into.range()].copy_from_slice(results.data(piece.len)?);
            }
            // The verbs of an awaited batch fail only together, when the link ends. So all earlier pieces of this verb
            // have succeeded.
            if is_for(verb, node) && piece.start + piece.len == length(&verb.op) {
                verb.result = Ok(());
            }
            return Ok(());
        }
        for verb in part.iter_mut().filter(|verb| is_for(verb, node)) {
            match &mut verb.op {
                VerbOp::Read { buf, .. } => {
                    memory[buf.range()].copy_from_slice(results.data(buf.len)?);
                }
                VerbOp::Write { .. } => {}
                VerbOp::Cas { found, .. } | VerbOp::Faa { found, .. } => *found = results.word()?,
            }
            verb.result = Ok(());
        }
        Ok(())
    }
}
