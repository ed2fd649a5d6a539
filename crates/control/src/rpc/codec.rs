//! Encoding of messages.
//!
//! ```text
//! RequestEnvelope | 0 | id | milliseconds that are left | request |       or  | 1 | id |  (cancel)
//! AnswerEnvelope  | id | 0 | reply |                                      or  | id | 1 | failure |
//! ```
//!
//! All in postcard encoding (variable-length integers, no padding).

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{MAX_DEADLINE, MAX_FRAME_BYTES};

/// A message of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum RequestEnvelope<R> {
    /// A request. Its id differs from those of all other running calls over the connection.
    Call { id: u64, ms_left: u32, request: R },
    /// The sign that no caller waits for the answer to this request any more.
    Cancel { id: u64 },
}

/// A message of a server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AnswerEnvelope<R> {
    pub(super) id: u64,
    pub(super) outcome: Result<R, CallFailure>,
}

/// The reason why a request has no reply, as a text.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum CallFailure {
    /// The handler failed.
    Handler(String),
    /// The caller lacks the key that the request needs.
    Denied(String),
}

/// Returns the time that is left until a deadline, in milliseconds, at most [`MAX_DEADLINE`].
pub(super) fn ms_left(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now()).min(MAX_DEADLINE);
    u32::try_from(left.as_millis()).expect("the largest deadline fits")
}

/// Returns the deadline of a call that has this many milliseconds left, at most [`MAX_DEADLINE`] from now.
pub(super) fn deadline(ms_left: u32) -> Instant {
    Instant::now() + Duration::from_millis(ms_left.into()).min(MAX_DEADLINE)
}

pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let bytes = postcard::to_stdvec(message).map_err(invalid)?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(invalid(format!("a message of {} bytes is too long", bytes.len())));
    }
    Ok(bytes)
}

pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes).map_err(invalid)? {
        (message, []) => Ok(message),
        (_, rest) => Err(invalid(format!("{} bytes too many", rest.len()))),
    }
}

pub(super) fn invalid(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeRequest;

    type NodeEnvelope = RequestEnvelope<NodeRequest>;

    #[test]
    fn a_call_comes_back_with_a_bounded_deadline() {
        let call = RequestEnvelope::Call { id: 7, ms_left: u32::MAX, request: NodeRequest::Usage };
        let bytes = encode(&call).unwrap();
        // The bytes are the kind of the message, the call's id, the time that is left, and the request.
        assert_eq!(bytes, [0, 7, 0xff, 0xff, 0xff, 0xff, 0x0f, 10]);
        let RequestEnvelope::Call { id, ms_left: left, request } = decode(&bytes).unwrap() else {
            panic!("a call became something else");
        };
        assert_eq!((id, request), (7, NodeRequest::Usage));
        assert!(deadline(left) <= Instant::now() + MAX_DEADLINE);
        let far = Instant::now() + 2 * MAX_DEADLINE;
        assert_eq!(u128::from(ms_left(far)), MAX_DEADLINE.as_millis());
        assert_eq!(ms_left(Instant::now() - Duration::from_secs(1)), 0);
    }

    #[test]
    fn garbage_and_trailing_bytes_are_errors() {
        assert!(decode::<NodeEnvelope>(&[]).is_err());
        assert!(decode::<NodeEnvelope>(&[9, 9, 9]).is_err());
        let mut bytes = encode(&NodeEnvelope::Cancel { id: 1 }).unwrap();
        assert_eq!(bytes, [1, 1]);
        assert!(decode::<NodeEnvelope>(&bytes).is_ok());
        bytes.push(0);
        assert!(decode::<NodeEnvelope>(&bytes).is_err());
    }

    #[test]
    fn a_length_that_lies_does_not_allocate() {
        // The bytes say: id 0, `Ok`, and a list that claims to have 2^60 numbers.
        let lie = [0, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
        assert!(decode::<AnswerEnvelope<Vec<u64>>>(&lie).is_err());
    }
}
