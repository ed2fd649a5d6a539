//! Feeds arbitrary bytes to the reader of exports: `tests/fuzz backup`.

// Promise API-17

#![no_main]

use fusee_export::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parsers::all(bytes);
});
