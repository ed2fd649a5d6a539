//! A store of blobs that saves memory: blobs are erasure-coded, and blobs that are read often get whole replicas, which
//! one READ fetches.
//!
//! `cargo run -p fusee-client --example blobs`

// Promise API-9: The examples run. | `examples/`

mod support;

use std::collections::HashMap;
use std::error::Error;

use fusee_client::{BlockingClient, PutOptions, Redundancy, Transition};

/// Number of reads after which a blob gets replicas.
const OFTEN: u32 = 100;

/// Redundancy of blobs that are rarely read. It needs three memory nodes, any two of which restore a blob.
const COLD: &str = "ec:2+1";

struct BlobStore {
    store: BlockingClient,
    cold: Redundancy,
    reads: HashMap<String, u32>,
}

impl BlobStore {
    fn put(&self, name: &str, blob: &[u8]) -> Result<(), fusee_client::Error> {
        let options = PutOptions::default().with_redundancy(self.cold);
        Ok(self.store.put_with(name.as_bytes(), blob, options)?)
    }

    fn get(&mut self, name: &str) -> Result<Option<Vec<u8>>, fusee_client::Error> {
        let blob = self.store.get(name.as_bytes())?;
        let reads = self.reads.entry(name.into()).or_default();
        *reads += 1;
        if *reads == OFTEN {
            // Readers in all processes find the blob at every moment of this change. If the blob is written at the same
            // time, that write wins.
            let promoted = self.store.set_redundancy(name.as_bytes(), Redundancy::Replicated)?;
            println!("{name} is read often: {}", said(promoted));
        }
        Ok(blob)
    }

    /// Makes the blobs that were not read often erasure-coded again, and forgets the counts.
    fn cool_down(&mut self) -> Result<(), fusee_client::Error> {
        for (name, reads) in self.reads.drain() {
            if reads < OFTEN {
                self.store.set_redundancy(name.as_bytes(), self.cold)?;
            }
        }
        Ok(())
    }
}

fn said(transition: Transition) -> &'static str {
    match transition {
        Transition::Moved => "it has replicas now",
        Transition::Unchanged => "it had replicas",
        Transition::Overtaken => "it was just written",
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let store = support::store()?;
    let mut blobs = BlobStore { store: store.clone(), cold: COLD.parse()?, reads: HashMap::new() };
    let blob: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    blobs.put("blob/rare", &blob)?;
    blobs.put("blob/popular", &blob)?;
    for turn in 0..OFTEN {
        assert_eq!(blobs.get("blob/popular")?.as_ref(), Some(&blob));
        if turn % 50 == 0 {
            assert_eq!(blobs.get("blob/rare")?.as_ref(), Some(&blob));
        }
    }
    assert_eq!(store.redundancy_of(b"blob/popular")?, Some(Redundancy::Replicated));
    assert_eq!(store.redundancy_of(b"blob/rare")?, Some(blobs.cold));
    blobs.cool_down()?;
    blobs.get("blob/popular")?;
    blobs.cool_down()?;
    assert_eq!(store.redundancy_of(b"blob/popular")?, Some(blobs.cold));
    println!("and erasure-coded again, once it is not");
    Ok(())
}
