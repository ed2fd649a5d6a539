//! Distribution of configuration: a publisher stores each version under new keys and then changes one pointer to it. A
//! service reads the old version or the new one, never a mixture.
//!
//! `cargo run -p fusee-client --example config_distribution`

mod support;

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fusee_client::{BatchWrite, BlockingClient, ReadError, WriteError};

const CURRENT: &[u8] = b"config/current";
const PARTS: [&str; 3] = ["limits", "routes", "texts"];

fn key(version: &str, part: &str) -> String {
    format!("config/{version}/{part}")
}

/// Stores all parts of a version in one batch, and then makes this version the current one.
fn publish(store: &BlockingClient, version: u32) -> Result<(), WriteError> {
    let name = version.to_string();
    let keys = PARTS.map(|part| key(&name, part));
    let text = format!("{version}");
    let writes: Vec<BatchWrite<'_>> = keys.iter().map(|key| BatchWrite::put(key, &text)).collect();
    store.write_many(&writes).into_iter().collect::<Result<(), _>>()?;
    store.put(CURRENT, name.as_bytes())?;
    // Services have read the previous version by now, so the one before that is not needed any more.
    if let Some(old) = version.checked_sub(2) {
        let keys = PARTS.map(|part| key(&old.to_string(), part));
        store.write_many(&keys.each_ref().map(BatchWrite::delete));
    }
    Ok(())
}

/// Returns the parts of the current version.
fn load(store: &BlockingClient) -> Result<Option<Vec<Vec<u8>>>, ReadError> {
    loop {
        let Some(version) = store.get(CURRENT)? else { return Ok(None) };
        let version = String::from_utf8_lossy(&version).into_owned();
        let parts = store.get_many(&PARTS.map(|part| key(&version, part)))?;
        // If this reader was so slow that the version has been deleted, another version is current by now.
        if let Some(parts) = parts.into_iter().collect() {
            return Ok(Some(parts));
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = support::store()?;
    publish(&store, 0)?;
    let is_over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let service = scope.spawn(|| {
            let mut seen = 0;
            while !is_over.load(Ordering::Relaxed) {
                let parts = load(&store)?.expect("a version is published");
                assert!(parts.iter().all(|part| *part == parts[0]), "a mixture: {parts:?}");
                seen += 1;
            }
            Ok::<u32, ReadError>(seen)
        });
        let published = (1..200).try_for_each(|version| publish(&store, version));
        is_over.store(true, Ordering::Relaxed);
        let seen = service.join().expect("no panic");
        published.map_err(fusee_client::Error::from).and(seen.map_err(Into::into))
    })?;
    println!("a service has read its configuration {seen} times during 199 publications");
    Ok(())
}
