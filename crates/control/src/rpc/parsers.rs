//! What holds of every parser of messages, whatever the bytes. For tests and fuzz targets, which find the
//! bytes: each function gives them to one parser, panics if what comes out breaks a promise, and returns
//! whether anything came out.
//!
//! Parsers panic at nothing, and take no more memory than a few times the bytes. What was read is read as
//! the same again when it is written anew, and is no longer then.

use std::pin::Pin;
use std::time::Instant;

use fusee_core::update::ViewUpdate;
use fusee_core::version::End;
use fusee_core::view::View;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tarpc::tokio_serde::Deserializer;
use tarpc::tokio_util::bytes::BytesMut;
use tarpc::tokio_util::codec::Decoder;
use tarpc::{ClientMessage, Response};

use super::codec::{Codec, decode, encode};
use super::frames::Frames;
use super::{MAX_DEADLINE, MasterService, NodeService, Service, Stamped, hello};
use crate::master::MasterReply;
use crate::pieces::{self, Assembly};

/// Reads a message of any kind, as the codec does.
pub fn message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(
    bytes: &[u8],
) -> Option<T> {
    let message: T = decode(bytes).ok()?;
    let again = encode(&message).expect("it is no longer than it was");
    assert!(again.len() <= bytes.len(), "{message:?}");
    assert_eq!(decode::<T>(&again).ok().as_ref(), Some(&message));
    Some(message)
}

/// A message as the codec writes it.
pub fn written<T: Serialize>(message: &T) -> Vec<u8> {
    encode(message).expect("messages of tests are short").into()
}

/// A message out of the first of these bytes, however many it takes: a way to come by messages.
pub fn drawn<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().map(|(message, _)| message)
}

type ServiceCodec<S> = Codec<(Stamped<<S as Service>::Request>, <S as Service>::Reply)>;

/// A frame to a service: a call, or the end of one.
fn call<S: Service>(bytes: &[u8]) -> bool {
    let mut codec: ServiceCodec<S> = Codec::new();
    let frame: Result<ClientMessage<Stamped<S::Request>>, _> =
        Pin::new(&mut codec).deserialize(&BytesMut::from(bytes));
    match frame {
        Ok(ClientMessage::Request(request)) => {
            assert!(request.context.deadline <= Instant::now() + MAX_DEADLINE);
            true
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

/// A frame of a service: an answer.
fn answer<S: Service>(bytes: &[u8]) -> bool {
    let mut codec: ServiceCodec<S> = Codec::new();
    let frame: Result<Response<S::Reply>, _> =
        Pin::new(&mut codec).deserialize(&BytesMut::from(bytes));
    frame.is_ok()
}

/// What comes to the master over a connection, in pieces of this length: frames, one after the other. How
/// many of them there are, up to the first that is none.
pub fn stream_to_master(bytes: &[u8], piece_bytes: usize) -> usize {
    type Call<S> = ClientMessage<Stamped<<S as Service>::Request>>;
    type Asked<S> = (Stamped<<S as Service>::Request>, <S as Service>::Reply);
    let mut frames: Frames<
        Call<MasterService>,
        Response<<MasterService as Service>::Reply>,
        Asked<MasterService>,
    > = Frames::new(None, None);
    let mut come = BytesMut::new();
    let mut whole = 0;
    for piece in bytes.chunks(piece_bytes.max(1)) {
        come.extend_from_slice(piece);
        loop {
            match frames.decode(&mut come) {
                Ok(Some(_)) => whole += 1,
                Ok(None) => break,
                Err(_) => return whole,
            }
        }
    }
    whole
}

/// A frame to the master.
pub fn call_of_master(bytes: &[u8]) -> bool {
    call::<MasterService>(bytes)
}

/// A frame to a memory node.
pub fn call_of_node(bytes: &[u8]) -> bool {
    call::<NodeService>(bytes)
}

/// A frame of the master.
pub fn answer_of_master(bytes: &[u8]) -> bool {
    answer::<MasterService>(bytes)
}

/// A frame of a memory node.
pub fn answer_of_node(bytes: &[u8]) -> bool {
    answer::<NodeService>(bytes)
}

/// The first message of a connection.
pub fn first_message(bytes: &[u8]) -> bool {
    let Some(Ok(role)) = bytes.first_chunk().map(|bytes| hello::decode(bytes, End::Server)) else {
        return false;
    };
    // The last byte is not looked at.
    let (role, says) = role;
    assert_eq!(hello::encode(role, says), bytes[..8]);
    true
}

/// A piece of a view: as a message from a master, and the bytes themselves as a view that is told in pieces.
pub fn view_piece(bytes: &[u8]) -> bool {
    let mut forged = Assembly::new(7);
    let fits = message::<MasterReply>(bytes).is_some_and(|reply| forged.take(reply).is_ok());
    let told = Assembly::new(7).take(pieces::piece(7, bytes, 0));
    if let Ok(Some(view)) = &told {
        assert!(view.number == 7 && pieces::written(view).len() <= bytes.len());
    }
    fits || matches!(told, Ok(Some(_)))
}

/// News of the view, for somebody who has this one. What fits may be no view that can be worked with:
/// then the check says so.
pub fn view_update(from: &View, bytes: &[u8]) -> bool {
    let Some(update) = message::<ViewUpdate>(bytes) else { return false };
    let number = update.number();
    let Ok(view) = update.apply(from) else { return false };
    assert_eq!(view.number, number);
    if view.check().is_err() {
        return false;
    }
    // A directory may be too long for a message: one wrong byte makes it two to the 24th entries.
    let Ok(bytes) = encode(&view) else { return false };
    assert_eq!(message::<View>(&bytes).as_ref(), Some(&view));
    let told = ViewUpdate::to(&view, Some(from));
    assert_eq!(told.apply(from), Ok(view));
    true
}
