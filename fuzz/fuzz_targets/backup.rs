//! Feeds arbitrary bytes to the reader of exports: `tests/fuzz backup`.
#![no_main]

use fusee_backup::parsers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    parsers::all(bytes);
});
