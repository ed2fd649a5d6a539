//! Shared counters: each worker counts under its own key, and a reader adds up the counts of all workers. When a worker
//! dies, its counts are kept, and none is counted twice.
//!
//! `cargo run -p fusee-client --example shared_counters`

mod support;

use std::error::Error;
use std::thread;

use fusee_client::{BlockingClient, ReadError, WriteError};

const WORKERS: usize = 4;
const PAGES: [&str; 3] = ["home", "search", "help"];

/// The counts of one worker. Only this worker writes them, so no atomic operation is needed.
struct Worker {
    store: BlockingClient,
    number: usize,
}

fn key(page: &str, worker: usize) -> String {
    format!("views/{page}/{worker}")
}

fn count_of(value: &[u8]) -> u64 {
    value.try_into().map_or(0, u64::from_le_bytes)
}

impl Worker {
    /// Adds one to a page's count. A worker that restarts continues with its last count.
    fn count(&self, page: &str) -> Result<(), WriteError> {
        let key = key(page, self.number);
        let before = self.store.get_with(key.as_bytes(), |count| count.map_or(0, count_of))?;
        self.store.put(key.as_bytes(), &(before + 1).to_le_bytes())
    }
}

/// Returns the sum of all workers' counts of a page, read in one round trip.
fn total(store: &BlockingClient, page: &str) -> Result<u64, ReadError> {
    let keys: Vec<String> = (0..WORKERS).map(|worker| key(page, worker)).collect();
    Ok(store.get_many(&keys)?.iter().flatten().map(|count| count_of(count)).sum())
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = support::store()?;
    let before: u64 = total(&store, "home")?;
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|number| {
                let worker = Worker { store: store.clone(), number };
                scope.spawn(move || {
                    (0..300).try_for_each(|view| worker.count(PAGES[view % PAGES.len()]))
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    for page in PAGES {
        println!("{page}: {} views", total(&store, page)?);
    }
    assert_eq!(total(&store, "home")? - before, 100 * WORKERS as u64);
    Ok(())
}
