//! Many threads, one client: each thread works in a session of its own, and nothing is locked.
//!
//! `cargo run -p fusee-client --example threads`

use std::error::Error;
use std::thread;
use std::time::Instant;

use fusee_client::{Client, EmbeddedOptions};

const THREADS: u64 = 8;
const KEYS: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::embedded(EmbeddedOptions::default())?;
    let begun = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                // A thread gets its session with its first call. It ends with the thread.
                let client = client.clone();
                scope.spawn(move || {
                    (0..KEYS).try_for_each(|n| {
                        client.put(&(thread * KEYS + n).to_be_bytes(), &n.to_be_bytes())
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    let (keys, seconds) = (THREADS * KEYS, begun.elapsed().as_secs_f64());
    println!("{THREADS} threads put {keys} keys in {seconds:.2} s");

    // What others have written is there at once.
    for key in (0..keys).step_by(1000) {
        let value = client.get(&key.to_be_bytes())?;
        if value.as_deref() != Some(&(key % KEYS).to_be_bytes()[..]) {
            return Err(format!("key {key} has the value {value:?}").into());
        }
    }
    println!("{} sessions were opened", client.status()?.sessions_opened);
    Ok(())
}
