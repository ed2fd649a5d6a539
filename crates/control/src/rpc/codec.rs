//! Encoding of messages.
//!
//! The envelopes around the messages are our own, not tarpc's. A deadline is a bounded number of milliseconds,
//! since tarpc's decoder panics on one that overflows the clock. Trace ids are left out, since no tracing
//! system uses them.
//!
//! ```text
//! Envelope  | variant | id | deadline, ms | request |       or  | variant | id |  (cancel)
//! Answer    | id | Ok reply or Err text |
//! ```
//!
//! All in postcard encoding (variable-length integers, no padding).

use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fusee_auth::FrameCodes;
use futures_util::{Sink, Stream};
use serde::{Deserialize, Serialize};
use tarpc::tokio_serde::{Deserializer, Serializer};
use tarpc::tokio_util::bytes::{Bytes, BytesMut};
use tarpc::tokio_util::codec::Framed;
use tarpc::{ClientMessage, Request, Response, ServerError, context};

use super::frames::Frames;
use super::guests::Guest;
use super::wire::Wire;
use super::{MAX_DEADLINE, MAX_FRAME_BYTES};

#[derive(Serialize, Deserialize)]
enum Envelope<R> {
    Call { id: u64, deadline_ms: u32, request: R },
    Cancel { id: u64 },
}

#[derive(Serialize, Deserialize)]
struct Answer<R> {
    id: u64,
    outcome: Result<R, Failed>,
}

#[derive(Serialize, Deserialize)]
enum Failed {
    /// The handler failed.
    Handler(String),
    /// The request needs another key.
    Denied(String),
}

/// Encodes messages of one direction and decodes those of the other.
pub(super) struct Codec<R>(PhantomData<fn(R)>);

impl<R> Codec<R> {
    pub(super) fn new() -> Codec<R> {
        Codec(PhantomData)
    }
}

/// A framed connection that sends `Out` and receives `In`.
pub(super) type Transport<In, Out, R> = Framed<Wire, Frames<In, Out, R>>;

/// The client's end of a connection.
pub(super) type ClientTransport<Req, Reply> =
    Transport<Response<Reply>, ClientMessage<Req>, (Req, Reply)>;
/// The server's end of a connection.
pub(super) type ServerTransport<Req, Reply> =
    Transport<ClientMessage<Req>, Response<Reply>, (Req, Reply)>;

/// Makes the transport over a connection after the hello. `guest` is the server's entry of the connection, if
/// there is one.
pub(super) fn transport<In, Out, R>(
    wire: Wire,
    guest: Option<Guest>,
    codes: Option<FrameCodes>,
) -> Transport<In, Out, R> {
    Framed::new(wire, Frames::new(guest, codes))
}

/// A transport with an error at its end. Without the error tarpc would answer all requests before it notices
/// that the peer is gone, and an answer may be delayed for long.
pub(super) struct Ending<T>(Pin<Box<T>>);

impl<T> Ending<T> {
    pub(super) fn new(transport: T) -> Ending<T> {
        Ending(Box::pin(transport))
    }
}

impl<M, T: Stream<Item = io::Result<M>>> Stream for Ending<T> {
    type Item = io::Result<M>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.0.as_mut().poll_next(cx);
        next.map(|next| Some(next.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))))
    }
}

impl<M, T: Sink<M, Error = io::Error>> Sink<M> for Ending<T> {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: M) -> io::Result<()> {
        self.0.as_mut().start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_close(cx)
    }
}

/// A transport that receives nothing while it is paused.
pub(super) struct Pausing<T> {
    transport: T,
    paused: Arc<AtomicBool>,
}

impl<T> Pausing<T> {
    /// Returns the transport with the flag that pauses it. Code that clears the flag must poll the transport
    /// again.
    pub(super) fn new(transport: T) -> (Pausing<T>, Arc<AtomicBool>) {
        let paused = Arc::new(AtomicBool::new(false));
        (Pausing { transport, paused: Arc::clone(&paused) }, paused)
    }
}

impl<T: Stream + Unpin> Stream for Pausing<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T::Item>> {
        if self.paused.load(Ordering::Relaxed) {
            Poll::Pending
        } else {
            Pin::new(&mut self.transport).poll_next(cx)
        }
    }
}

impl<M, T: Sink<M> + Unpin> Sink<M> for Pausing<T> {
    type Error = T::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        Pin::new(&mut self.transport).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, item: M) -> Result<(), T::Error> {
        Pin::new(&mut self.transport).start_send(item)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        Pin::new(&mut self.transport).poll_close(cx)
    }
}

pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Bytes> {
    let bytes = postcard::to_stdvec(message).map_err(invalid)?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(invalid(format!("a message of {} bytes is too long", bytes.len())));
    }
    Ok(bytes.into())
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes).map_err(invalid)? {
        (message, []) => Ok(message),
        (_, rest) => Err(invalid(format!("{} bytes too many", rest.len()))),
    }
}

fn invalid(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}

impl<Req: Serialize, Reply> Serializer<ClientMessage<Req>> for Codec<(Req, Reply)> {
    type Error = io::Error;

    fn serialize(self: Pin<&mut Self>, message: &ClientMessage<Req>) -> io::Result<Bytes> {
        match message {
            ClientMessage::Request(Request { context, id, message }) => {
                let left = context.deadline.saturating_duration_since(Instant::now());
                let left = left.min(MAX_DEADLINE).as_millis();
                let deadline_ms = u32::try_from(left).expect("the largest deadline fits");
                encode(&Envelope::Call { id: *id, deadline_ms, request: message })
            }
            ClientMessage::Cancel { request_id, .. } => {
                encode(&Envelope::<&Req>::Cancel { id: *request_id })
            }
            _ => Err(invalid("unknown kind of message")),
        }
    }
}

impl<Req, Reply> Deserializer<ClientMessage<Req>> for Codec<(Req, Reply)>
where
    Req: for<'de> Deserialize<'de>,
{
    type Error = io::Error;

    fn deserialize(self: Pin<&mut Self>, bytes: &BytesMut) -> io::Result<ClientMessage<Req>> {
        match decode(bytes)? {
            Envelope::Call { id, deadline_ms, request } => {
                let mut context = context::current();
                let left = Duration::from_millis(u64::from(deadline_ms)).min(MAX_DEADLINE);
                context.deadline = Instant::now() + left;
                Ok(ClientMessage::Request(Request { context, id, message: request }))
            }
            Envelope::Cancel { id } => Ok(ClientMessage::Cancel {
                trace_context: tarpc::trace::Context::default(),
                request_id: id,
            }),
        }
    }
}

impl<Req, Reply: Serialize> Serializer<Response<Reply>> for Codec<(Req, Reply)> {
    type Error = io::Error;

    fn serialize(self: Pin<&mut Self>, response: &Response<Reply>) -> io::Result<Bytes> {
        let failed = |error: &ServerError| match error.kind {
            io::ErrorKind::PermissionDenied => Failed::Denied(error.detail.clone()),
            _ => Failed::Handler(error.detail.clone()),
        };
        let outcome = response.message.as_ref().map_err(failed);
        encode(&Answer { id: response.request_id, outcome })
    }
}

impl<Req, Reply> Deserializer<Response<Reply>> for Codec<(Req, Reply)>
where
    Reply: for<'de> Deserialize<'de>,
{
    type Error = io::Error;

    fn deserialize(self: Pin<&mut Self>, bytes: &BytesMut) -> io::Result<Response<Reply>> {
        let Answer { id, outcome } = decode(bytes)?;
        let failed = |failed| match failed {
            Failed::Handler(detail) => ServerError::new(io::ErrorKind::Other, detail),
            Failed::Denied(detail) => ServerError::new(io::ErrorKind::PermissionDenied, detail),
        };
        Ok(Response { request_id: id, message: outcome.map_err(failed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{NodeReply, NodeRequest};

    type NodeCodec = Codec<(NodeRequest, NodeReply)>;

    fn decode_request(bytes: &[u8]) -> io::Result<ClientMessage<NodeRequest>> {
        let mut codec: NodeCodec = Codec(PhantomData);
        Pin::new(&mut codec).deserialize(&BytesMut::from(bytes))
    }

    #[test]
    fn a_call_comes_back_with_a_bounded_deadline() {
        let envelope = Envelope::Call { id: 7, deadline_ms: u32::MAX, request: NodeRequest::Usage };
        let bytes = encode(&envelope).unwrap();
        let ClientMessage::Request(request) = decode_request(&bytes).unwrap() else {
            panic!("a call became something else");
        };
        assert_eq!((request.id, request.message), (7, NodeRequest::Usage));
        assert!(request.context.deadline <= Instant::now() + MAX_DEADLINE);
    }

    #[test]
    fn garbage_and_trailing_bytes_are_errors() {
        assert!(decode_request(&[]).is_err());
        assert!(decode_request(&[9, 9, 9]).is_err());
        let mut bytes = encode(&Envelope::<NodeRequest>::Cancel { id: 1 }).unwrap().to_vec();
        assert!(decode_request(&bytes).is_ok());
        bytes.push(0);
        assert!(decode_request(&bytes).is_err());
    }

    #[test]
    fn a_length_that_lies_does_not_allocate() {
        // Answer, id 0, Ok, and a list that claims 2^60 numbers.
        let lie = [0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
        assert!(decode::<Answer<Vec<u64>>>(&lie).is_err());
    }
}
