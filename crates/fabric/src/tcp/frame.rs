//! The frames of the TCP fabric: pure encoding and decoding.
//!
//! ```text
//! hello, 16 bytes      | magic 8 | client 4 | layout 4 |                  client → node
//! welcome, 24 bytes    | magic 8 | pool bytes 8 | status 4 | layout 4 |   node → client
//!
//! request, 16 + body   | body bytes 4 | verbs 4 | id 8 | verb, verb, …                 client → node
//!   verb               | opcode 1 | zero 3 | len 4 | offset 8 | operands
//!     READ  (1)        | nothing
//!     WRITE (2)        | data, padded with zeros to a multiple of 8
//!     CAS   (3)        | expected 8 | swap 8       len = 8
//!     FAA   (4)        | addend 8                  len = 8
//!     steered READ (5) | nothing                   a READ for the node; see `fusee-switch`
//!
//! reply, 16 + body     | body bytes 4 | kind 4 | id 8 | result, result, …              node → client
//!   kind 0, results    READ: data, padded to a multiple of 8; WRITE: nothing; CAS, FAA: 8 bytes
//!   kind 1, fenced     no body; the node closes the connection
//! ```
//!
//! Before the hello, both ends prove that they know the node's key (`challenge`). With TLS, challenge, hello and
//! frames all are inside TLS. The first byte distinguishes a TLS record from a call.
//!
//! Numbers are little-endian. The magic ends in the protocol's version; `layout` is the version of the pools'
//! layout. Every length is a multiple of 8. The client chooses the id; replies come in the order of the requests.
//!
//! Limits: [`MAX_BODY_BYTES`] for the body of a request *and* for the body of its reply, [`MAX_BATCH_VERBS`] verbs
//! in a request. A client splits larger requests and keeps the order.
//!
//! The decoders accept any bytes. They return an error for bytes that no client sends, and never panic.

use fusee_core::layout::{LAYOUT_VERSION, LAYOUTS};
use fusee_core::verbs::{
    ClientId, MAX_BATCH_VERBS, MAX_VERB_BYTES, MnId, Span, Verb, VerbError, VerbOp,
};
use fusee_core::version::{ConnectionEnd, VersionError};

use crate::version::{Protocol, ProtocolMismatch};

/// The magic of messages. Version 2 added the layout of pools, version 3 the proofs of the node's key.
pub(crate) const PROTOCOL: Protocol = Protocol::new("FUSEtcp", "the TCP protocol", 3);
/// The magic: the name and version with which messages of this protocol begin.
pub const MAGIC: [u8; 8] = PROTOCOL.magic();
/// Length of a hello, in bytes.
pub const HELLO_BYTES: usize = 16;
/// Length of a welcome, in bytes.
pub const WELCOME_BYTES: usize = 24;
/// Length of the header of a request or reply, in bytes.
pub const HEADER_BYTES: usize = 16;
/// Length of the header of a verb, in bytes.
pub const VERB_BYTES: usize = 16;
/// The longest body of a request or reply, in bytes: enough for one verb of any size, or for many small verbs.
pub const MAX_BODY_BYTES: usize = MAX_VERB_BYTES as usize + (64 << 10);

const READ: u8 = 1;
const WRITE: u8 = 2;
const CAS: u8 = 3;
const FAA: u8 = 4;
const STEERED: u8 = 5;

/// Errors of decoding a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes do not start with the protocol's name.
    #[error("not our protocol")]
    Magic,
    /// The sender uses another version of the protocol.
    #[error("{0}")]
    Version(#[from] VersionError),
    /// A length exceeds its limit.
    #[error("a frame, or the reply it asks for, is too long")]
    TooLong,
    /// The number of verbs is zero, or larger than a batch can have.
    #[error("a frame has an impossible number of verbs")]
    VerbCount,
    /// The body does not consist of the verbs that the header announces.
    #[error("a frame is malformed: {0}")]
    Malformed(&'static str),
}

impl From<ProtocolMismatch> for FrameError {
    fn from(foreign: ProtocolMismatch) -> FrameError {
        match foreign {
            ProtocolMismatch::Stranger => FrameError::Magic,
            ProtocolMismatch::Version(error) => FrameError::Version(error),
        }
    }
}

/// Takes `N` bytes off the front of `bytes`.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_le_bytes)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes).map(u64::from_le_bytes)
}

/// Takes `len` bytes and their padding off the front of `bytes`. Returns the `len` bytes.
fn take_padded<'a>(bytes: &mut &'a [u8], len: u32) -> Option<&'a [u8]> {
    let padded = padded(len);
    if bytes.len() < padded {
        return None;
    }
    let (data, rest) = bytes.split_at(padded);
    *bytes = rest;
    Some(&data[..len as usize])
}

/// Returns the length that `len` bytes of data have on the wire, in bytes: rounded up to a multiple of 8.
pub fn padded(len: u32) -> usize {
    (len as usize).next_multiple_of(8)
}

/// The message that a client sends with its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHello {
    /// The client whose session this connection is.
    pub client: ClientId,
}

impl TcpHello {
    /// Returns the hello's bytes.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.client.0.to_le_bytes());
        bytes[12..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes
    }

    /// Decodes a hello. Returns `None` if bytes are missing. A wrong magic is an error even if bytes are missing.
    pub fn decode(mut bytes: &[u8]) -> Result<Option<TcpHello>, FrameError> {
        PROTOCOL.check(ConnectionEnd::Server, bytes)?;
        let bytes = &mut bytes;
        match (take_u64(bytes), take_u32(bytes), take_u32(bytes)) {
            (Some(_), Some(client), Some(layout)) => {
                LAYOUTS.check(ConnectionEnd::Server, layout)?;
                Ok(Some(TcpHello { client: ClientId(client) }))
            }
            _ => Ok(None),
        }
    }
}

/// A node's decision about a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpHelloStatus {
    /// The session is open, and requests can follow.
    Welcome,
    /// The client has been fenced.
    Fenced,
    /// The node has no room for another session.
    Full,
    /// The client has another version. The client notices the difference by the magic, before it reads the status.
    OtherVersion,
}

/// A node's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpWelcome {
    /// The length of the node's pool in bytes.
    pub pool_bytes: u64,
    /// The node's decision about the client's hello.
    pub status: TcpHelloStatus,
}

impl TcpWelcome {
    /// Returns the welcome's bytes.
    pub fn encode(self) -> [u8; WELCOME_BYTES] {
        let status = match self.status {
            TcpHelloStatus::Welcome => 0u32,
            TcpHelloStatus::Fenced => 1,
            TcpHelloStatus::Full => 2,
            TcpHelloStatus::OtherVersion => 3,
        };
        let mut bytes = [0; WELCOME_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.pool_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&status.to_le_bytes());
        bytes[20..].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        bytes
    }

    /// Decodes a welcome.
    pub fn decode(bytes: &[u8; WELCOME_BYTES]) -> Result<TcpWelcome, FrameError> {
        let bytes = &mut &bytes[..];
        PROTOCOL.check(ConnectionEnd::Client, bytes)?;
        let (Some(_), Some(pool_bytes)) = (take_u64(bytes), take_u64(bytes)) else {
            return Err(FrameError::Malformed("short welcome"));
        };
        let (Some(status), Some(layout)) = (take_u32(bytes), take_u32(bytes)) else {
            return Err(FrameError::Malformed("short welcome"));
        };
        LAYOUTS.check(ConnectionEnd::Client, layout)?;
        let status = match status {
            0 => TcpHelloStatus::Welcome,
            1 => TcpHelloStatus::Fenced,
            2 => TcpHelloStatus::Full,
            3 => TcpHelloStatus::OtherVersion,
            _ => return Err(FrameError::Malformed("unknown status")),
        };
        Ok(TcpWelcome { pool_bytes, status })
    }
}

/// An operation of a verb on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireOp<'a> {
    /// A READ of this many bytes.
    Read(u32),
    /// A steered READ of this many bytes. A switch has possibly changed the offset.
    Steered(u32),
    /// A WRITE of these bytes.
    Write(&'a [u8]),
    /// Compare-and-swap.
    Cas {
        /// The value that the word must have for the CAS to succeed.
        expected: u64,
        /// The value that a successful CAS gives the word.
        swap: u64,
    },
    /// Fetch-and-add.
    Faa {
        /// The number that the FAA adds to the word.
        add: u64,
    },
}

/// A verb on the wire, with its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireVerb<'a> {
    /// Byte offset in the pool.
    pub offset: u64,
    /// The operation of the verb.
    pub op: WireOp<'a>,
}

impl WireVerb<'_> {
    /// Checks the verb by the rules that every fabric enforces.
    pub fn check(&self, pool_bytes: u64) -> Result<(), VerbError> {
        let buf = |len| Span { start: 0, len };
        let op = match self.op {
            WireOp::Read(len) => VerbOp::Read { buf: buf(len), steered: false },
            WireOp::Steered(len) => VerbOp::Read { buf: buf(len), steered: true },
            WireOp::Write(data) => VerbOp::Write { buf: buf(data.len() as u32) },
            WireOp::Cas { expected, swap } => VerbOp::Cas { expected, swap, found: 0 },
            WireOp::Faa { add } => VerbOp::Faa { add, found: 0 },
        };
        Verb { node: MnId(0), offset: self.offset, op, result: Ok(()) }.check(pool_bytes)
    }

    /// Returns the length of the verb's result in a reply, in bytes.
    pub fn result_bytes(&self) -> usize {
        match self.op {
            WireOp::Read(len) | WireOp::Steered(len) => padded(len),
            WireOp::Write(_) => 0,
            WireOp::Cas { .. } | WireOp::Faa { .. } => 8,
        }
    }
}

/// Returns the lengths in bytes of a verb in a request, and of the verb's result in a reply.
pub fn wire_bytes(op: &VerbOp) -> (usize, usize) {
    match op {
        VerbOp::Read { buf, .. } => (VERB_BYTES, padded(buf.len)),
        VerbOp::Write { buf } => (VERB_BYTES + padded(buf.len), 0),
        VerbOp::Cas { .. } => (VERB_BYTES + 16, 8),
        VerbOp::Faa { .. } => (VERB_BYTES + 8, 8),
    }
}

/// Returns the header of a request.
pub fn request_header(body_bytes: usize, verbs: u32, id: u64) -> [u8; HEADER_BYTES] {
    header(body_bytes, verbs, id)
}

/// Returns the header of a reply.
pub fn reply_header(body_bytes: usize, kind: ReplyKind, id: u64) -> [u8; HEADER_BYTES] {
    header(body_bytes, if kind == ReplyKind::Results { 0 } else { 1 }, id)
}

fn header(body_bytes: usize, number: u32, id: u64) -> [u8; HEADER_BYTES] {
    debug_assert!(body_bytes <= MAX_BODY_BYTES && body_bytes.is_multiple_of(8));
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&(body_bytes as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&number.to_le_bytes());
    bytes[8..].copy_from_slice(&id.to_le_bytes());
    bytes
}

/// Encodes a verb, and passes the bytes to `put` in several calls.
pub fn encode_verb(verb: WireVerb<'_>, mut put: impl FnMut(&[u8])) {
    let (opcode, len) = match verb.op {
        WireOp::Read(len) => (READ, len),
        WireOp::Steered(len) => (STEERED, len),
        WireOp::Write(data) => (WRITE, data.len() as u32),
        WireOp::Cas { .. } => (CAS, 8),
        WireOp::Faa { .. } => (FAA, 8),
    };
    let mut head = [0; VERB_BYTES];
    head[0] = opcode;
    head[4..8].copy_from_slice(&len.to_le_bytes());
    head[8..].copy_from_slice(&verb.offset.to_le_bytes());
    put(&head);
    match verb.op {
        WireOp::Read(_) | WireOp::Steered(_) => {}
        WireOp::Write(data) => {
            put(data);
            put(&[0; 8][..padded(len) - data.len()]);
        }
        WireOp::Cas { expected, swap } => {
            put(&expected.to_le_bytes());
            put(&swap.to_le_bytes());
        }
        WireOp::Faa { add } => put(&add.to_le_bytes()),
    }
}

/// Changes the offset in the encoded verb with which `verb` starts.
///
/// # Panics
/// If `verb` is shorter than the header of a verb.
pub fn set_offset(verb: &mut [u8], offset: u64) {
    verb[8..VERB_BYTES].copy_from_slice(&offset.to_le_bytes());
}

/// A complete request whose verbs are all well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpRequest<'a> {
    /// The id that the client has given the request.
    pub id: u64,
    /// The length of the request's frame in bytes.
    pub frame_bytes: usize,
    /// The length in bytes that the reply's body will have.
    pub reply_bytes: usize,
    verbs: u32,
    body: &'a [u8],
}

impl<'a> TcpRequest<'a> {
    /// Decodes the request at the front of `bytes`. Returns `None` if bytes are missing.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<TcpRequest<'a>>, FrameError> {
        let Some((body_bytes, verbs, id)) = decode_header(bytes)? else { return Ok(None) };
        if verbs == 0 || verbs as usize > MAX_BATCH_VERBS {
            return Err(FrameError::VerbCount);
        }
        let frame_bytes = HEADER_BYTES + body_bytes;
        let Some(body) = bytes.get(HEADER_BYTES..frame_bytes) else { return Ok(None) };
        let mut rest = body;
        let mut reply_bytes = 0;
        for _ in 0..verbs {
            reply_bytes += decode_verb(&mut rest)?.result_bytes();
            // Checked in the loop, so that a sum of lengths from outside cannot overflow.
            if reply_bytes > MAX_BODY_BYTES {
                return Err(FrameError::TooLong);
            }
        }
        if !rest.is_empty() {
            return Err(FrameError::Malformed("bytes behind the last verb"));
        }
        Ok(Some(TcpRequest { id, frame_bytes, reply_bytes, verbs, body }))
    }

    /// Returns the verbs, in the order posted.
    pub fn verbs(&self) -> impl Iterator<Item = WireVerb<'a>> + use<'a> {
        self.verbs_at().map(|(_, verb)| verb)
    }

    /// Returns the verbs, each with the position in the frame at which it starts.
    pub fn verbs_at(&self) -> impl Iterator<Item = (usize, WireVerb<'a>)> + use<'a> {
        let body_bytes = self.body.len();
        let mut rest = self.body;
        // `decode` has checked that all verbs are well-formed.
        (0..self.verbs).map_while(move |_| {
            let at = HEADER_BYTES + body_bytes - rest.len();
            Some((at, decode_verb(&mut rest).ok()?))
        })
    }
}

/// Returns body length, number (of verbs, or the kind of reply) and id from a header; `None` if bytes are missing.
fn decode_header(mut bytes: &[u8]) -> Result<Option<(usize, u32, u64)>, FrameError> {
    let bytes = &mut bytes;
    let (Some(body_bytes), Some(number), Some(id)) =
        (take_u32(bytes), take_u32(bytes), take_u64(bytes))
    else {
        return Ok(None);
    };
    let body_bytes = body_bytes as usize;
    if body_bytes > MAX_BODY_BYTES {
        return Err(FrameError::TooLong);
    }
    if !body_bytes.is_multiple_of(8) {
        return Err(FrameError::Malformed("a length is no multiple of 8"));
    }
    Ok(Some((body_bytes, number, id)))
}

fn decode_verb<'a>(bytes: &mut &'a [u8]) -> Result<WireVerb<'a>, FrameError> {
    let short = FrameError::Malformed("a verb is cut off");
    let [opcode, reserved @ ..] = take::<4>(bytes).ok_or(short)?;
    if reserved != [0; 3] {
        return Err(FrameError::Malformed("reserved bytes"));
    }
    let len = take_u32(bytes).ok_or(short)?;
    let offset = take_u64(bytes).ok_or(short)?;
    if len > MAX_VERB_BYTES {
        return Err(FrameError::TooLong);
    }
    if matches!(opcode, CAS | FAA) && len != 8 {
        return Err(FrameError::Malformed("an atomic is 8 bytes long"));
    }
    let op = match opcode {
        READ => WireOp::Read(len),
        STEERED => WireOp::Steered(len),
        WRITE => WireOp::Write(take_padded(bytes, len).ok_or(short)?),
        CAS => WireOp::Cas {
            expected: take_u64(bytes).ok_or(short)?,
            swap: take_u64(bytes).ok_or(short)?,
        },
        FAA => WireOp::Faa { add: take_u64(bytes).ok_or(short)? },
        _ => return Err(FrameError::Malformed("unknown opcode")),
    };
    Ok(WireVerb { offset, op })
}

/// Kinds of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// The results of a request.
    Results,
    /// The message that the client has been fenced. No reply follows.
    Fenced,
}

/// A complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpReply<'a> {
    /// The kind of reply.
    pub kind: ReplyKind,
    /// The id that the client has given the request.
    pub id: u64,
    /// The length of the reply's frame in bytes.
    pub frame_bytes: usize,
    /// The results of the request's verbs.
    pub results: ReplyResults<'a>,
}

/// The results of a reply. The caller takes them in the order of the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyResults<'a>(&'a [u8]);

impl<'a> TcpReply<'a> {
    /// Decodes the reply at the front of `bytes`. Returns `None` if bytes are missing.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<TcpReply<'a>>, FrameError> {
        let Some((body_bytes, kind, id)) = decode_header(bytes)? else { return Ok(None) };
        let kind = match kind {
            0 => ReplyKind::Results,
            1 => ReplyKind::Fenced,
            _ => return Err(FrameError::Malformed("unknown kind of reply")),
        };
        let frame_bytes = HEADER_BYTES + body_bytes;
        let Some(body) = bytes.get(HEADER_BYTES..frame_bytes) else { return Ok(None) };
        Ok(Some(TcpReply { kind, id, frame_bytes, results: ReplyResults(body) }))
    }
}

impl<'a> ReplyResults<'a> {
    /// Returns the number of bytes of the reply's results that the caller has not taken.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether all results have been taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the result of a READ.
    pub fn data(&mut self, len: u32) -> Result<&'a [u8], FrameError> {
        take_padded(&mut self.0, len).ok_or(FrameError::Malformed("a result is cut off"))
    }

    /// Takes the result of a CAS or FAA.
    pub fn word(&mut self) -> Result<u64, FrameError> {
        take_u64(&mut self.0).ok_or(FrameError::Malformed("a result is cut off"))
    }
}

/// Returns the length in bytes of the frame at the front of `bytes`, or only that of the header if the header is
/// incomplete. Used to size buffers.
pub fn frame_bytes(bytes: &[u8]) -> usize {
    match decode_header(bytes) {
        Ok(Some((body_bytes, ..))) => HEADER_BYTES + body_bytes,
        _ => HEADER_BYTES,
    }
}
