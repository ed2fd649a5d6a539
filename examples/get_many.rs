//! Reads many keys in shared round trips, and counts them.
//!
//! `cargo run -p fusee-client --example get_many`

use std::error::Error;

use fusee_client::{Client, EmbeddedOptions, FabricKind, OpKind};

const KEYS: u32 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    // Over TCP, where a round trip takes long enough to be worth sharing.
    let client = Client::embedded(EmbeddedOptions::default().with_fabric(FabricKind::Tcp))?;
    // A session of its own shows what its operations cost, in phases: one is one round trip.
    let session = client.session()?;
    let phases = |kind| session.stats().kind(kind).phases;
    let keys: Vec<[u8; 4]> = (0..KEYS).map(u32::to_le_bytes).collect();
    session.block_on(async {
        for key in &keys {
            session.insert(key, key).await?;
        }
        Ok::<_, fusee_client::Error>(())
    })?;

    session.block_on(async {
        for key in &keys {
            session.get(key).await?;
        }
        Ok::<_, fusee_client::Error>(())
    })?;
    let values = session.block_on(session.get_many(&keys))?;
    let (one_by_one, together) = (phases(OpKind::Search), phases(OpKind::SearchMany));
    println!("round trips of {KEYS} keys: {one_by_one} one by one, {together} in get_many");
    let found = values.iter().zip(&keys).filter(|(value, key)| value.as_deref() == Some(*key));
    if found.count() < keys.len() { Err("some values are missing".into()) } else { Ok(()) }
}
