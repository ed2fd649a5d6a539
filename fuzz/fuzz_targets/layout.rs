//! Feeds arbitrary bytes to the decoders of the contents of memory nodes: `tests/fuzz layout`.

// Promise SEC-6

#![no_main]

use fusee_core::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parsers::object(bytes);
    parsers::chunk(bytes);
    if let Some(word) = bytes.first_chunk() {
        parsers::slot(u64::from_le_bytes(*word));
    }
    let _ = bytes.first_chunk().map(parsers::block_header);
    let _ = bytes.first_chunk().map(parsers::pool_header);
});
