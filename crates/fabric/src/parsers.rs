//! Checks of the promises that every parser of this crate keeps for any bytes. Tests and fuzz targets provide the
//! bytes. Each function passes them to one parser, panics if the result breaks a promise, and returns whether the
//! parser accepted the bytes.
//!
//! No parser panics or allocates. A request over TCP obeys the limits that the node relies on, and has only one
//! encoding, apart from padding. Any other message that was decoded, encoded again and decoded again has the same
//! value.

use crate::shm::wire as shm;
use crate::tcp::frame::{
    self, HEADER_BYTES, MAX_BODY_BYTES, TcpHello, TcpReply, TcpRequest, TcpWelcome, WELCOME_BYTES,
    WireOp,
};
use crate::verbs::switch::packet::{self, FrameContents, RoceRequest};
use crate::verbs::wire as verbs;

/// Checks a request to a software NIC.
pub fn tcp_request(bytes: &[u8]) -> bool {
    let Ok(Some(request)) = TcpRequest::decode(bytes) else { return false };
    assert!(request.frame_bytes <= bytes.len() && request.reply_bytes <= MAX_BODY_BYTES);
    assert_eq!(frame::frame_bytes(bytes), request.frame_bytes);
    let mut body = Vec::new();
    let mut verbs = 0;
    let mut reply_bytes = 0;
    let mut padded = false;
    for verb in request.verbs() {
        frame::encode_verb(verb, |piece| body.extend_from_slice(piece));
        reply_bytes += verb.result_bytes();
        padded |= matches!(verb.op, WireOp::Write(data) if data.len() % 8 != 0);
        verbs += 1;
        let inside = verb.check(4096).is_ok();
        let end = verb.offset.checked_add(verb.result_bytes() as u64);
        assert!(!inside || end.is_some_and(|end| end <= 4096 + 8));
    }
    assert_eq!(reply_bytes, request.reply_bytes);
    let header = frame::request_header(body.len(), verbs, request.id);
    assert_eq!(header, bytes[..HEADER_BYTES]);
    // Padding bytes can have any value.
    assert!(padded || body == bytes[HEADER_BYTES..request.frame_bytes]);
    true
}

/// Checks a reply of a software NIC.
pub fn tcp_reply(bytes: &[u8]) -> bool {
    let Ok(Some(mut reply)) = TcpReply::decode(bytes) else { return false };
    assert!(reply.frame_bytes <= bytes.len());
    let header = frame::reply_header(reply.results.len(), reply.kind, reply.id);
    assert_eq!(header, bytes[..HEADER_BYTES]);
    let len = reply.results.len();
    let mut both = reply.results;
    assert!(both.data(u32::MAX).is_err() || len >= u32::MAX as usize);
    while reply.results.word().is_ok() {}
    assert!(reply.results.len() < 8 && len + HEADER_BYTES == reply.frame_bytes);
    true
}

/// Checks a hello to a software NIC.
pub fn tcp_hello(bytes: &[u8]) -> bool {
    let Ok(Some(hello)) = TcpHello::decode(bytes) else { return false };
    assert!(bytes.starts_with(&hello.encode()));
    true
}

/// Checks the welcome of a software NIC.
pub fn tcp_welcome(bytes: &[u8]) -> bool {
    let Some(first) = bytes.first_chunk::<WELCOME_BYTES>() else { return false };
    let Ok(welcome) = TcpWelcome::decode(first) else { return false };
    assert_eq!(TcpWelcome::decode(&welcome.encode()), Ok(welcome));
    true
}

/// Checks a hello to a memory node over shared memory.
pub fn shm_hello(bytes: &[u8]) -> bool {
    let Some(Ok(hello)) = bytes.first_chunk().map(shm::ShmHello::decode) else { return false };
    assert!(bytes.starts_with(&hello.encode()));
    true
}

/// Checks the welcome of a memory node over shared memory.
pub fn shm_welcome(bytes: &[u8]) -> bool {
    let Some(Ok(welcome)) = bytes.first_chunk().map(shm::ShmWelcome::decode) else { return false };
    assert_eq!(shm::ShmWelcome::decode(&welcome.encode()), Ok(welcome));
    true
}

/// Checks a hello to a memory node over verbs.
pub fn verbs_hello(bytes: &[u8]) -> bool {
    let Some(Ok(hello)) = bytes.first_chunk().map(verbs::VerbsHello::decode) else { return false };
    assert!(bytes.starts_with(&hello.encode()));
    true
}

/// Checks the welcome of a memory node over verbs.
pub fn verbs_welcome(bytes: &[u8]) -> bool {
    let Some(Ok(welcome)) = bytes.first_chunk().map(verbs::VerbsWelcome::decode) else {
        return false;
    };
    assert_eq!(verbs::VerbsWelcome::decode(&welcome.encode()), Ok(welcome));
    assert!(welcome.base.checked_add(welcome.pool_bytes).is_some());
    true
}

/// Checks a frame that passes a switch on a wire. In a frame, the switch changes at most the address of a READ, and
/// the checksums.
pub fn roce_frame(bytes: &[u8]) -> bool {
    let FrameContents::Request { to, psn, verb: RoceRequest::Read { address, key, len } } =
        packet::look(bytes)
    else {
        return false;
    };
    let mut steered = bytes.to_vec();
    packet::steer(&mut steered, !address).expect("it is a READ");
    let verb = RoceRequest::Read { address: !address, key, len };
    assert_eq!(packet::look(&steered), FrameContents::Request { to, psn, verb });
    let changed = bytes.iter().zip(&steered).filter(|(before, after)| before != after).count();
    assert!((8..=14).contains(&changed), "{changed} bytes");
    true
}

/// Makes the frame with a READ request as a NIC sends it, but without valid checksums.
fn roce_read(queue_pair: u32, psn: u32, address: u64, key: u32) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8];
    (frame[12], frame[14], frame[14 + 9]) = (0x08, 0x45, 17);
    frame[16..18].copy_from_slice(&60u16.to_be_bytes());
    frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
    frame[38..40].copy_from_slice(&40u16.to_be_bytes());
    frame.extend([[0x0c, 0, 0xff, 0xff], queue_pair.to_be_bytes(), psn.to_be_bytes()].concat());
    frame.extend(address.to_be_bytes());
    frame.extend([key.to_be_bytes(), [0, 0, 0, 64], [0; 4]].concat());
    frame
}

/// Makes a well-formed message of each kind from these numbers and data. Callers change some bytes of the messages.
pub fn samples(numbers: [u64; 4], data: &[u8]) -> Vec<Vec<u8>> {
    use fusee_core::verbs::ClientId;
    let [identity, pool_bytes, offset, word] = numbers;
    let client = ClientId(word as u32);
    let ops = [
        WireOp::Read(data.len() as u32),
        WireOp::Steered(data.len() as u32),
        WireOp::Write(data),
        WireOp::Cas { expected: word, swap: offset },
        WireOp::Faa { add: word },
    ];
    let mut body = Vec::new();
    let verbs = ops.len() as u32;
    for op in ops {
        frame::encode_verb(frame::WireVerb { offset, op }, |piece| body.extend_from_slice(piece));
    }
    let request = [&frame::request_header(body.len(), verbs, word)[..], &body].concat();
    let reply = frame::reply_header(body.len(), frame::ReplyKind::Results, word);
    let address = verbs::QueuePairAddress {
        queue_pair: identity as u32 >> 8,
        first_packet: word as u32 >> 8,
        lid: offset as u16,
        mtu: 1 + (word % 5) as u8,
        depth: 1 + (word % 200) as u8,
        gid: [offset as u8; 16],
    };
    let base = offset.min(u64::MAX - pool_bytes);
    let key = word as u32;
    let header_key = offset as u32;
    let steered_key = identity as u32;
    let refusal = verbs::VerbsWelcome::refusal(identity, verbs::VerbsHelloStatus::Welcome);
    let welcome =
        verbs::VerbsWelcome { pool_bytes, key, header_key, steered_key, base, address, ..refusal };
    vec![
        request,
        [&reply[..], &body].concat(),
        TcpHello { client }.encode().into(),
        TcpWelcome { pool_bytes, status: frame::TcpHelloStatus::Welcome }.encode().into(),
        shm::ShmHello { client }.encode().into(),
        shm::ShmWelcome { pool_bytes, status: shm::ShmHelloStatus::Fenced }.encode().into(),
        verbs::VerbsHello { node: identity, client, address }.encode().into(),
        welcome.encode().into(),
        roce_read(address.queue_pair, address.first_packet, offset, key),
    ]
}

/// Passes the bytes to all parsers, in the order of [`samples`]. Returns for each parser whether it accepted the
/// bytes.
pub fn all(bytes: &[u8]) -> [bool; 9] {
    [
        tcp_request(bytes),
        tcp_reply(bytes),
        tcp_hello(bytes),
        tcp_welcome(bytes),
        shm_hello(bytes),
        shm_welcome(bytes),
        verbs_hello(bytes),
        verbs_welcome(bytes),
        roce_frame(bytes),
    ]
}
