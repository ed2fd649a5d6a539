//! Joins a cluster that runs: writes a key and shows who serves it.
//!
//! `cargo run -p fusee-client --example connect -- 127.0.0.1:7400`

// Promise API-9: The examples run. | `examples/`

use std::error::Error;
use std::time::Duration;

use fusee_client::{Client, ConnectError, Options};

fn main() -> Result<(), Box<dyn Error>> {
    let Some(master) = std::env::args().nth(1) else {
        println!("usage: connect MASTER, an address as 127.0.0.1:7400");
        println!("`cargo run --release -- up` starts a cluster on this machine and prints it");
        return Ok(());
    };
    let options = Options::default().with_connect_timeout(Duration::from_secs(2));
    let client = match Client::connect_with(&master, options) {
        Ok(client) => client,
        Err(ConnectError::NotReady { joined, expected }) => {
            return Err(format!("{joined} of {expected} memory nodes have joined so far").into());
        }
        Err(error) => return Err(error.to_string().into()),
    };
    let view = client.view();
    println!("cluster {} over {}, view {}", view.cluster, client.fabric(), view.number);
    for member in &view.members {
        println!("  {} lends {} MiB", member.node, member.pool_bytes >> 20);
    }
    client.put(b"greeting", b"hello")?;
    let value = client.get(b"greeting")?.unwrap_or_default();
    println!("greeting = {}", String::from_utf8_lossy(&value));
    Ok(())
}
