//! Properties that all parsers of messages have, whatever the bytes. Tests and fuzz targets choose the bytes. Each
//! function gives the bytes to one parser, panics if the result violates a property, and returns the result or whether
//! there was one.
//!
//! Parsers never panic, and take no more memory than a few times the number of bytes. A message that was parsed,
//! written and parsed again is the same, and its written form is no longer than the bytes that were parsed.

use fusee_core::version::ConnectionEnd;
use fusee_core::view::View;
use fusee_core::view::update::ViewUpdate;
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::BufReader;
use tokio::time::Instant;

use super::codec::{AnswerEnvelope, RequestEnvelope, deadline, decode, encode};
use super::frames::FrameReader;
use super::{MAX_DEADLINE, MasterService, NodeService, Service, Stamped, hello};
use crate::master::MasterReply;
use crate::view_pieces::{self, ViewAssembler};

/// Parses a message of any type, as the codec does.
pub fn message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    bytes: &[u8],
) -> Option<T> {
    let message: T = decode(bytes).ok()?;
    let again = encode(&message).expect("it is no longer than it was");
    assert!(again.len() <= bytes.len(), "{message:?}");
    assert_eq!(decode::<T>(&again).ok().as_ref(), Some(&message));
    Some(message)
}

/// Writes a message, as the codec does.
pub fn written<T: Serialize>(message: &T) -> Vec<u8> {
    encode(message).expect("messages of tests are short")
}

/// Parses a message from the beginning of these bytes, however many of them it takes. Used to make arbitrary messages.
pub fn drawn<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().map(|(message, _)| message)
}

/// A frame to a service.
type ServiceEnvelope<S> = RequestEnvelope<Stamped<<S as Service>::Request>>;

/// Parses a frame to a service: a call, or its cancellation.
fn call<S: Service>(bytes: &[u8]) -> bool {
    let frame: Option<ServiceEnvelope<S>> = decode(bytes).ok();
    if let Some(RequestEnvelope::Call { ms_left, .. }) = &frame {
        assert!(deadline(*ms_left) <= Instant::now() + MAX_DEADLINE);
    }
    frame.is_some()
}

/// Parses a frame of a service: an answer.
fn answer<S: Service>(bytes: &[u8]) -> bool {
    decode::<AnswerEnvelope<S::Reply>>(bytes).is_ok()
}

/// Parses a stream to the master that arrives in pieces of this length. Returns the number of frames before the first
/// invalid one.
pub fn stream_to_master(bytes: &[u8], piece_bytes: usize) -> usize {
    let pieces = BufReader::with_capacity(piece_bytes.max(1), bytes);
    let mut frames = FrameReader::new(pieces, None, None);
    let mut next = || frames.next::<ServiceEnvelope<MasterService>>().now_or_never();
    std::iter::from_fn(|| next().expect("bytes in memory need no waiting").ok().flatten()).count()
}

/// Parses a frame to the master.
pub fn call_of_master(bytes: &[u8]) -> bool {
    call::<MasterService>(bytes)
}

/// Parses a frame to a memory node.
pub fn call_of_node(bytes: &[u8]) -> bool {
    call::<NodeService>(bytes)
}

/// Parses a frame of the master.
pub fn answer_of_master(bytes: &[u8]) -> bool {
    answer::<MasterService>(bytes)
}

/// Parses a frame of a memory node.
pub fn answer_of_node(bytes: &[u8]) -> bool {
    answer::<NodeService>(bytes)
}

/// Parses the first message of a connection.
pub fn first_message(bytes: &[u8]) -> bool {
    let Some(Ok(role)) =
        bytes.first_chunk().map(|bytes| hello::decode(bytes, ConnectionEnd::Server))
    else {
        return false;
    };
    // The same bytes have to come back, except that any value of the last byte is accepted.
    let (role, says) = role;
    assert_eq!(hello::encode(role, says), bytes[..8]);
    true
}

/// Parses a piece of a view: the bytes as a message of a master, and as a whole encoded view.
pub fn view_piece(bytes: &[u8]) -> bool {
    let mut forged = ViewAssembler::new(7);
    let fits = message::<MasterReply>(bytes).is_some_and(|reply| forged.take(reply).is_ok());
    let told = ViewAssembler::new(7).take(view_pieces::piece(7, bytes, 0));
    if let Ok(Some(view)) = &told {
        assert!(view.number == 7 && view_pieces::written(view).len() <= bytes.len());
    }
    fits || matches!(told, Ok(Some(_)))
}

/// Parses an update of the view, for a process that has the view `from`. An update can match `from` and still lead to
/// an invalid view; then the check must find that.
pub fn view_update(from: &View, bytes: &[u8]) -> bool {
    let Some(update) = message::<ViewUpdate>(bytes) else { return false };
    let number = update.number();
    let Ok(view) = update.apply(from) else { return false };
    assert_eq!(view.number, number);
    if view.check().is_err() {
        return false;
    }
    // The directory can be too long for a message, because one wrong byte can give it 2^24 entries.
    let Ok(bytes) = encode(&view) else { return false };
    assert_eq!(message::<View>(&bytes).as_ref(), Some(&view));
    let told = ViewUpdate::to(&view, Some(from));
    assert_eq!(told.apply(from), Ok(view));
    true
}
