//! Feeds arbitrary bytes to every decoder of the TCP fabric.
//!
//! `cargo +nightly fuzz run frame`. Beyond not panicking, a request that decodes must obey the
//! limits that the node relies on, and must encode to the very bytes it came from: there is one
//! way to say a thing.
#![no_main]

use fusee_fabric::tcp::frame::{
    self, HEADER_BYTES, Hello, MAX_BODY_BYTES, Reply, Request, WELCOME_BYTES, Welcome, WireOp,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some(request)) = Request::decode(bytes) {
        check_request(bytes, request);
    }
    if let Ok(Some(mut reply)) = Reply::decode(bytes) {
        assert!(reply.frame_bytes <= bytes.len());
        let len = reply.results.len();
        while reply.results.word().is_ok() {}
        assert!(reply.results.len() < 8 && len + HEADER_BYTES == reply.frame_bytes);
    }
    if let Ok(Some(hello)) = Hello::decode(bytes) {
        assert!(bytes.starts_with(&hello.encode()));
    }
    if let Some(first) = bytes.first_chunk::<WELCOME_BYTES>() {
        let _ = Welcome::decode(first);
    }
});

fn check_request(bytes: &[u8], request: Request<'_>) {
    assert!(request.frame_bytes <= bytes.len() && request.reply_bytes <= MAX_BODY_BYTES);
    let (mut body, mut verbs, mut reply_bytes, mut padded) = (Vec::new(), 0, 0, false);
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
    // Padding may hold anything.
    assert!(padded || body == bytes[HEADER_BYTES..request.frame_bytes]);
}
