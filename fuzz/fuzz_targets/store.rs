//! Feeds arbitrary bytes to every function that reads a master's store: `tests/fuzz store`.
#![no_main]

use fusee_master::store::{MasterStore, entry_format};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = entry_format::read_format(bytes);
    let _ = entry_format::decode("view", bytes);
    // This also tests bytes behind a right checksum.
    let _ = entry_format::decode("view", &entry_format::seal("view", bytes.to_vec()));
    let _ = MasterStore::read_image(bytes);
});
