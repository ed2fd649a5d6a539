//! Feeds arbitrary bytes to whatever reads a master's store: `tests/fuzz store`.
#![no_main]

use fusee_master::store::{Store, sealed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = sealed::read_format(bytes);
    let _ = sealed::decode("view", bytes);
    // What stands behind a checksum that is right, too.
    let _ = sealed::decode("view", &sealed::seal("view", bytes.to_vec()));
    let _ = Store::read_image(bytes);
});
