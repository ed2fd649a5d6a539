//! Frames: a length, a message, and a code if both ends have proved to have a key.
//!
//! ```text
//! | length of the message 4, big-endian | message | code 16 |
//! ```
//!
//! The code ([`FrameCodes`]) is checked before the message is parsed, so no message of a peer without a key is
//! parsed.
//!
//! A frame is received in pieces. Memory is taken for bytes that have come, not for the announced length: four
//! bytes of a stranger must not cost 16 MiB. A server counts the memory of incomplete frames, and that of
//! complete ones ([`Guest`]). The memory of a long frame is freed with the frame; a connection keeps a few KiB.

use std::io;
use std::marker::PhantomData;
use std::pin::Pin;

use fusee_auth::{CODE_BYTES, FrameCodes};
use tarpc::tokio_serde::{Deserializer, Serializer};
use tarpc::tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tarpc::tokio_util::codec::{Decoder, Encoder};

use super::MAX_FRAME_BYTES;
use super::codec::Codec;
use super::guests::{FREE_FRAME_BYTES, Guest};

/// Length of the length, in bytes.
const HEAD_BYTES: usize = 4;

/// Turns messages `Out` into bytes, and bytes into messages `In`.
pub(super) struct Frames<In, Out, R> {
    codec: Codec<R>,
    /// The connection that the memory counts for; clients do not count it.
    guest: Option<Guest>,
    /// `None`: no key was proved, or TLS protects the connection.
    codes: Option<FrameCodes>,
    types: PhantomData<fn(Out) -> In>,
}

impl<In, Out, R> Frames<In, Out, R> {
    pub(super) fn new(guest: Option<Guest>, codes: Option<FrameCodes>) -> Frames<In, Out, R> {
        Frames { codec: Codec::new(), guest, codes, types: PhantomData }
    }

    /// Cuts off the first frame of the received bytes, without its length. `None`: bytes are missing.
    fn cut(&self, bytes: &mut BytesMut) -> io::Result<Option<BytesMut>> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            if let Some(guest) = self.guest.as_ref().filter(|_| !bytes.is_empty()) {
                guest.holds(bytes.len())?;
            }
            return Ok(None);
        };
        let len = u32::from_be_bytes(*head) as usize;
        if len > MAX_FRAME_BYTES {
            let what = format!("a frame of {len} bytes is too long");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let whole = HEAD_BYTES + len + self.codes.as_ref().map_or(0, |_| CODE_BYTES);
        if bytes.len() < whole {
            // Reserves only when necessary, and at most as much again as has come: `reserve` may double.
            let missing = whole - bytes.len();
            if bytes.capacity() - bytes.len() < missing.min(FREE_FRAME_BYTES) {
                bytes.reserve(missing.min(bytes.len().max(FREE_FRAME_BYTES)));
            }
            if let Some(guest) = &self.guest {
                guest.holds(bytes.capacity())?;
            }
            return Ok(None);
        }
        if let Some(guest) = &self.guest {
            guest.has_whole(whole)?;
        }
        let mut frame = if whole > FREE_FRAME_BYTES {
            // The bytes behind the frame move to memory of their own, so that this memory is freed with the
            // frame.
            let rest = BytesMut::from(&bytes[whole..]);
            let mut frame = std::mem::replace(bytes, rest);
            frame.truncate(whole);
            frame
        } else {
            bytes.split_to(whole)
        };
        frame.advance(HEAD_BYTES);
        Ok(Some(frame))
    }
}

impl<In, Out, R> Decoder for Frames<In, Out, R>
where
    Codec<R>: Deserializer<In, Error = io::Error> + Unpin,
{
    type Item = In;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<In>> {
        let Some(mut frame) = self.cut(bytes)? else { return Ok(None) };
        if let Some(codes) = &mut self.codes {
            let (message, code) = frame.split_last_chunk().expect("it is cut with its code");
            if !codes.received.is_next(message, code) {
                let what = "a frame has not the code that is next: somebody is in between";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            frame.truncate(frame.len() - CODE_BYTES);
        }
        Pin::new(&mut self.codec).deserialize(&frame).map(Some)
    }
}

impl<In, Out, R> Encoder<Out> for Frames<In, Out, R>
where
    Codec<R>: Serializer<Out, Error = io::Error> + Unpin,
{
    type Error = io::Error;

    fn encode(&mut self, message: Out, bytes: &mut BytesMut) -> io::Result<()> {
        let body: Bytes = Pin::new(&mut self.codec).serialize(&message)?;
        let len = u32::try_from(body.len()).expect("the codec bounds its messages");
        bytes.reserve(HEAD_BYTES + body.len() + CODE_BYTES);
        bytes.put_u32(len);
        bytes.extend_from_slice(&body);
        if let Some(codes) = &mut self.codes {
            bytes.extend_from_slice(&codes.sent.next(&body));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fusee_auth::{AuthTranscript, PeerKind, Secret, Side};
    use tarpc::{ClientMessage, Response};

    use super::*;
    use crate::node::{NodeReply, NodeRequest};
    use crate::rpc::guests::{Guests, Limits, Refusal};

    type Both = (NodeRequest, NodeReply);
    type Received = Frames<ClientMessage<NodeRequest>, Response<NodeReply>, Both>;

    fn received(limits: Limits, numbers: &[u64]) -> Vec<(Received, Guests)> {
        let guests = Guests::new(limits);
        let peer = [127, 0, 0, 1].into();
        let each =
            numbers.iter().map(|number| Received::new(Some(guests.enter(*number, peer)), None));
        each.map(|frames| (frames, guests.clone())).collect()
    }

    /// Returns both ends of a connection with codes.
    fn coded() -> (Received, Frames<Response<NodeReply>, ClientMessage<NodeRequest>, Both>) {
        let keys = Secret::random().unwrap().keys(PeerKind::Client);
        let asker = fusee_auth::nonce().unwrap();
        let answerer = fusee_auth::nonce().unwrap();
        let said = AuthTranscript { kind: "test", about: b"", asker: &asker, answerer: &answerer };
        let codes = |side| keys.codes(PeerKind::Client, side, &said);
        (Frames::new(None, codes(Side::Answerer)), Frames::new(None, codes(Side::Asker)))
    }

    fn cancel(request_id: u64) -> ClientMessage<NodeRequest> {
        ClientMessage::Cancel { trace_context: tarpc::trace::Context::default(), request_id }
    }

    #[test]
    fn frames_with_codes_arrive_and_any_change_shows() {
        let (mut server, mut client) = coded();
        let mut bytes = BytesMut::new();
        for id in 0..3 {
            client.encode(cancel(id), &mut bytes).unwrap();
            let whole = bytes.split();
            for cut in 0..whole.len() {
                assert!(server.decode(&mut BytesMut::from(&whole[..cut])).unwrap().is_none());
            }
            bytes.extend_from_slice(&whole);
            let come = server.decode(&mut bytes).unwrap();
            assert!(
                matches!(come, Some(ClientMessage::Cancel { request_id, .. }) if request_id == id)
            );
            assert!(bytes.is_empty());
        }
        for at in 0..HEAD_BYTES + 2 + CODE_BYTES {
            let (mut server, mut client) = coded();
            client.encode(cancel(1), &mut bytes).unwrap();
            bytes[at] ^= 1;
            bytes.extend_from_slice(&[0; 1 << 10]);
            // If the change made the length longer, the decoder waits for more bytes, or takes some of these.
            let come = server.decode(&mut bytes);
            assert!(!matches!(come, Ok(Some(_))), "byte {at}");
            bytes.clear();
        }
        // A repeated frame is refused: its code belongs to the place before.
        let (mut server, mut client) = coded();
        client.encode(cancel(1), &mut bytes).unwrap();
        let first = bytes.split();
        assert!(server.decode(&mut BytesMut::from(&first[..])).unwrap().is_some());
        let error = server.decode(&mut BytesMut::from(&first[..])).map(drop).unwrap_err();
        assert!(error.to_string().contains("somebody is in between"), "{error}");
    }

    #[test]
    fn an_announced_length_costs_no_memory() {
        let frames = Received::new(None, None);
        let mut bytes = BytesMut::new();
        bytes.put_u32(MAX_FRAME_BYTES as u32);
        bytes.put_u8(0);
        assert!(frames.cut(&mut bytes).unwrap().is_none());
        assert!(bytes.capacity() <= 2 * FREE_FRAME_BYTES, "{}", bytes.capacity());
    }

    #[test]
    fn a_long_frame_comes_in_pieces_and_leaves_no_memory_behind() {
        let frames = Received::new(None, None);
        let mut bytes = BytesMut::new();
        let len = 4 << 20;
        bytes.put_u32(len);
        let piece = vec![7; 10_000];
        let mut sent = 0;
        let frame = loop {
            let n = piece.len().min(len as usize - sent);
            bytes.extend_from_slice(&piece[..n]);
            sent += n;
            if sent == len as usize {
                bytes.extend_from_slice(&[0, 0]);
            }
            match frames.cut(&mut bytes).unwrap() {
                Some(frame) => break frame,
                None => assert!(bytes.capacity() <= 2 * sent + 2 * FREE_FRAME_BYTES),
            }
        };
        assert_eq!((frame.len(), &bytes[..]), (len as usize, &[0, 0][..]));
        assert!(bytes.capacity() <= FREE_FRAME_BYTES, "{}", bytes.capacity());
    }

    #[test]
    fn what_is_half_received_is_bounded_for_each_peer_and_in_total() {
        for (frame_bytes, frame_bytes_per_peer) in [(2 << 20, 1 << 30), (1 << 30, 2 << 20)] {
            let limits = Limits { frame_bytes, frame_bytes_per_peer, ..Limits::default() };
            let mut half = BytesMut::new();
            half.put_u32(MAX_FRAME_BYTES as u32);
            half.resize(400_000, 0);
            let mut held = Vec::new();
            let mut refused = 0;
            for (frames, _) in received(limits, &[1, 2, 3, 4, 5]) {
                let mut bytes = half.clone();
                match frames.cut(&mut bytes) {
                    Ok(_) => held.push((frames, bytes)),
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("half received"), "{error}");
                    }
                }
            }
            assert_eq!((held.len(), refused), (2, 3));
        }
    }

    #[test]
    fn whoever_is_gone_or_has_come_whole_holds_nothing() {
        let limits = Limits { frame_bytes: 1 << 20, ..Limits::default() };
        let guests = Guests::new(limits);
        let peer = [127, 0, 0, 1].into();
        for number in 0..10 {
            let guest = guests.enter(number, peer);
            assert_eq!(guest.holds(900_000), Ok(()));
            assert_eq!(guest.holds(2 << 20), Err(Refusal::FrameBytes));
            if number % 2 == 0 {
                assert_eq!(guest.has_whole(0), Ok(()));
                assert_eq!(guest.holds(900_000), Ok(()));
            }
        }
    }
}
