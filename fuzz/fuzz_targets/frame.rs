//! Feeds arbitrary bytes to every decoder of the fabrics: `tests/fuzz frame`.

// Promise FAB-6

#![no_main]

use fusee_fabric::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parsers::all(bytes);
});
