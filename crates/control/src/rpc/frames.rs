//! Frames: a length, a message, and a code if both ends have proved to have a key.
//!
//! ```text
//! | length of the message 4, big-endian | message | code 16 |
//! ```
//!
//! The code ([`FrameCodes`](fusee_auth::FrameCodes)) is checked before the message is parsed, so no message of a peer
//! without a key is parsed.
//!
//! A frame is received in pieces. Memory is allocated for bytes that have arrived, not for the announced length:
//! otherwise four bytes from an unauthenticated peer could cost 16 MiB. A server counts the memory of incomplete and of
//! complete frames ([`RpcConnection`]). The memory of a frame is freed with the frame; a connection keeps a few KiB.

use std::io;

use fusee_auth::{CODE_BYTES, ReceivedCodes, SentCodes};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;

use super::MAX_FRAME_BYTES;
use super::codec::{decode, invalid};
use super::connections::{FREE_FRAME_BYTES, RpcConnection};

/// Number of bytes of a frame's length field.
const HEAD_BYTES: usize = 4;

/// The receiving end of a connection.
pub(super) struct FrameReader<I> {
    input: I,
    /// The bytes of the next frame that have arrived.
    frame: Vec<u8>,
    /// The connection for which the memory is counted; `None` on clients, which do not count it.
    guest: Option<RpcConnection>,
    /// The codes to check; `None` if no key was proved, or TLS protects the connection.
    codes: Option<ReceivedCodes>,
}

impl<I: AsyncBufRead + Unpin> FrameReader<I> {
    pub(super) fn new(
        input: I,
        guest: Option<RpcConnection>,
        codes: Option<ReceivedCodes>,
    ) -> FrameReader<I> {
        FrameReader { input, frame: Vec::new(), guest, codes }
    }

    /// Receives the next message; `None` at the end of the connection. If the future is dropped, the next call
    /// continues with the same frame.
    pub(super) async fn next<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        loop {
            let missing = self.length()? - self.frame.len();
            if missing == 0 {
                break;
            }
            let come = self.input.fill_buf().await?;
            if come.is_empty() {
                return match self.frame.len() {
                    0 => Ok(None),
                    _ => Err(io::Error::other("the connection ended within a frame")),
                };
            }
            if self.frame.len() == self.frame.capacity() {
                // The reservation at most doubles the memory, so the memory stays proportional to the bytes that have
                // arrived.
                self.frame.reserve_exact(missing.min(self.frame.len().max(FREE_FRAME_BYTES)));
            }
            let room = self.frame.capacity() - self.frame.len();
            let taken = come.len().min(missing).min(room);
            self.frame.extend_from_slice(&come[..taken]);
            self.input.consume(taken);
            if let Some(guest) = &self.guest {
                guest.holds(self.frame.capacity())?;
            }
        }
        let frame = std::mem::take(&mut self.frame);
        if let Some(guest) = &self.guest {
            guest.note_whole_frame(frame.len())?;
        }
        let mut message = &frame[HEAD_BYTES..];
        if let Some(codes) = &mut self.codes {
            let (coded, code) = message.split_last_chunk().expect("the frame is whole");
            if !codes.is_next(coded, code) {
                let what = "a frame has not the code that is next: somebody is in between";
                return Err(invalid(what));
            }
            message = coded;
        }
        decode(message).map(Some)
    }

    /// Returns the length of the incomplete frame, as far as it is known.
    fn length(&self) -> io::Result<usize> {
        let Some(head) = self.frame.first_chunk::<HEAD_BYTES>() else { return Ok(HEAD_BYTES) };
        let len = u32::from_be_bytes(*head) as usize;
        if len > MAX_FRAME_BYTES {
            return Err(invalid(format!("a frame of {len} bytes is too long")));
        }
        Ok(HEAD_BYTES + len + self.codes.as_ref().map_or(0, |_| CODE_BYTES))
    }
}

/// Sends encoded messages as frames, until all senders of the channel are dropped. An error in place of a message ends
/// the connection.
pub(super) async fn send(
    output: impl AsyncWrite + Unpin,
    mut codes: Option<SentCodes>,
    mut messages: mpsc::Receiver<io::Result<impl AsRef<[u8]>>>,
) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    while let Some(message) = messages.recv().await {
        let message = message?;
        let bytes = message.as_ref();
        output.write_u32(bytes.len().try_into().expect("the codec bounds messages")).await?;
        output.write_all(bytes).await?;
        if let Some(codes) = &mut codes {
            output.write_all(&codes.next(bytes)).await?;
        }
        if messages.is_empty() {
            output.flush().await?;
        }
    }
    output.shutdown().await
}

#[cfg(test)]
mod tests {
    use fusee_auth::{AuthTranscript, FrameCodes, PeerKind, Secret, Side};
    use futures_util::FutureExt;
    use tokio::io::{BufReader, DuplexStream, duplex};

    use super::*;
    use crate::node::NodeRequest;
    use crate::rpc::codec::{RequestEnvelope, encode};
    use crate::rpc::connections::{Limits, RpcCloseReason, RpcConnections};

    type NodeEnvelope = RequestEnvelope<NodeRequest>;

    /// The receiving end of a connection, in memory, and the peer's end.
    struct Receiver {
        peer: DuplexStream,
        frames: FrameReader<BufReader<DuplexStream>>,
    }

    impl Receiver {
        fn new(guest: Option<RpcConnection>, codes: Option<ReceivedCodes>) -> Receiver {
            let (peer, input) = duplex(32 << 20);
            let frames = FrameReader::new(BufReader::new(input), guest, codes);
            Receiver { peer, frames }
        }

        /// Receives these bytes. Returns the next message; `None` if the message is not complete yet.
        fn receives(&mut self, bytes: &[u8]) -> io::Result<Option<NodeEnvelope>> {
            self.peer.write_all(bytes).now_or_never().expect("there is room").unwrap();
            let come = self.frames.next().now_or_never().transpose()?;
            Ok(come.map(|message| message.expect("the connection does not end")))
        }

        /// Returns the memory that the incomplete frame takes.
        fn held(&self) -> usize {
            self.frames.frame.capacity()
        }
    }

    /// Returns the receiving end for requests, with its codes, and the codes of the end that sends requests.
    fn coded() -> (Receiver, SentCodes) {
        let keys = Secret::random().unwrap().keys(PeerKind::Client);
        let asker = fusee_auth::nonce().unwrap();
        let answerer = fusee_auth::nonce().unwrap();
        let said = AuthTranscript { kind: "test", about: b"", asker: &asker, answerer: &answerer };
        let codes = |side| -> FrameCodes { keys.codes(PeerKind::Client, side, &said).unwrap() };
        (Receiver::new(None, Some(codes(Side::Answerer).received)), codes(Side::Asker).sent)
    }

    /// Returns the frame of a cancellation of the call `id`.
    fn cancel(id: u64, codes: SentCodes) -> Vec<u8> {
        frames_of(&[encode(&NodeEnvelope::Cancel { id }).unwrap()], Some(codes))
    }

    /// Returns the frames of these messages.
    fn frames_of(messages: &[Vec<u8>], codes: Option<SentCodes>) -> Vec<u8> {
        let (sender, queue) = mpsc::channel(messages.len());
        messages.iter().for_each(|message| sender.try_send(Ok(message.clone())).unwrap());
        drop(sender);
        let mut sent = Vec::new();
        send(&mut sent, codes, queue).now_or_never().expect("memory has room").unwrap();
        sent
    }

    #[test]
    fn frames_with_codes_arrive_and_any_change_shows() {
        let (mut server, codes) = coded();
        let cancels = [0, 1, 2].map(|id| encode(&NodeEnvelope::Cancel { id }).unwrap());
        let sent = frames_of(&cancels, Some(codes));
        let length = sent.len() / 3;
        assert_eq!(length, HEAD_BYTES + 2 + CODE_BYTES);
        for (at, byte) in sent.iter().enumerate() {
            let come = server.receives(&[*byte]).unwrap();
            let expected = ((at + 1) % length == 0).then_some(at / length);
            let id = come.map(|come| match come {
                RequestEnvelope::Cancel { id } => id as usize,
                call => panic!("{call:?}"),
            });
            assert_eq!(id, expected);
        }
        for at in 0..length {
            let (mut server, codes) = coded();
            let mut bytes = cancel(1, codes);
            bytes[at] ^= 1;
            bytes.extend_from_slice(&[0; 1 << 10]);
            // If the change made the length longer, the reader waits for more bytes, or takes some of the zeros. If the
            // change made the length shorter, the code is wrong.
            let come = server.receives(&bytes);
            assert!(!matches!(come, Ok(Some(_))), "byte {at}");
        }
        // A repeated frame is refused, because its code is only valid at its first position in the stream.
        let (mut server, codes) = coded();
        let first = cancel(1, codes);
        assert!(server.receives(&first).unwrap().is_some());
        let error = server.receives(&first).map(drop).unwrap_err();
        assert!(error.to_string().contains("somebody is in between"), "{error}");
    }

    #[test]
    fn an_announced_length_costs_no_memory() {
        let mut receiver = Receiver::new(None, None);
        let head = (MAX_FRAME_BYTES as u32).to_be_bytes();
        assert!(receiver.receives(&[&head[..], &[0]].concat()).unwrap().is_none());
        assert!(receiver.held() <= 2 * FREE_FRAME_BYTES, "{}", receiver.held());
        let mut receiver = Receiver::new(None, None);
        let head = (MAX_FRAME_BYTES as u32 + 1).to_be_bytes();
        assert!(receiver.receives(&head).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn a_long_frame_comes_in_pieces_and_leaves_no_memory_behind() {
        let mut receiver = Receiver::new(None, None);
        let clients = vec![fusee_core::verbs::ClientId(7); 4 << 20];
        let request = NodeRequest::Fence { clients };
        let call = encode(&RequestEnvelope::Call { id: 1, ms_left: 1, request: &request }).unwrap();
        let sent = frames_of(&[call], None);
        assert!(sent.len() > 4 << 20);
        let mut come = 0;
        for piece in sent.chunks(10_000) {
            come += piece.len();
            match receiver.receives(piece).unwrap() {
                Some(RequestEnvelope::Call { id: 1, request: whole, .. }) => {
                    assert_eq!(whole, request)
                }
                Some(other) => panic!("{other:?}"),
                None => {
                    assert!(come < sent.len());
                    assert!(receiver.held() <= 2 * come + 2 * FREE_FRAME_BYTES);
                }
            }
        }
        assert_eq!(receiver.held(), 0);
        // The bytes behind the frame begin the next frame.
        assert!(receiver.receives(&[0, 0]).unwrap().is_none());
        assert!(receiver.receives(&[0, 2, 1, 9]).unwrap().is_some());
    }

    #[test]
    fn an_end_within_a_frame_is_an_error() {
        for (bytes, is_error) in [(&[][..], false), (&[0], true), (&[0, 0, 0, 2, 1], true)] {
            let mut frames = FrameReader::new(bytes, None, None);
            let come = frames.next::<NodeEnvelope>().now_or_never().unwrap();
            assert_eq!(come.is_err(), is_error, "{bytes:?}");
            assert!(come.is_ok_and(|come| come.is_none()) || is_error);
        }
    }

    #[test]
    fn what_is_half_received_is_bounded_for_each_peer_and_in_total() {
        for (frame_bytes, frame_bytes_per_peer) in [(2 << 20, 1 << 30), (1 << 30, 2 << 20)] {
            let limits = Limits { frame_bytes, frame_bytes_per_peer, ..Limits::default() };
            let guests = RpcConnections::new(limits);
            let mut half = (MAX_FRAME_BYTES as u32).to_be_bytes().to_vec();
            half.resize(700_000, 0);
            let mut held = Vec::new();
            let mut refused = 0;
            for number in 0..5 {
                let guest = guests.enter(number, [127, 0, 0, 1].into());
                let mut receiver = Receiver::new(Some(guest), None);
                match receiver.receives(&half) {
                    Ok(_) => held.push(receiver),
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
        let guests = RpcConnections::new(limits);
        let peer = [127, 0, 0, 1].into();
        for number in 0..10 {
            let guest = guests.enter(number, peer);
            assert_eq!(guest.holds(900_000), Ok(()));
            assert_eq!(guest.holds(2 << 20), Err(RpcCloseReason::FrameBytes));
            if number % 2 == 0 {
                assert_eq!(guest.note_whole_frame(0), Ok(()));
                assert_eq!(guest.holds(900_000), Ok(()));
            }
        }
    }
}
