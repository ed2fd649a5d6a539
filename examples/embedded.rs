//! A whole cluster inside one process: insert, update, read and delete a key.
//!
//! `cargo run -p fusee-client --example embedded`

use std::error::Error;

use fusee_client::{Client, EmbeddedOptions};

fn main() -> Result<(), Box<dyn Error>> {
    // Three memory nodes and a master. They end with the last clone of the client.
    let options = EmbeddedOptions::default().with_memory_nodes(3).with_data_replicas(2);
    let client = Client::embedded(options)?;
    println!("a cluster of {} memory nodes in this process", client.view().members.len());

    client.insert(b"answer", b"41")?;
    client.update(b"answer", b"42")?;
    let value = client.get(b"answer")?.ok_or("the key was just written")?;
    println!("answer = {}", String::from_utf8_lossy(&value));

    // Errors are typed: a second INSERT of a key does not replace its value.
    match client.insert(b"answer", b"43") {
        Err(fusee_client::Error::AlreadyExists) => println!("answer exists already"),
        other => return Err(format!("a key was inserted twice: {other:?}").into()),
    }

    client.delete(b"answer")?;
    println!("answer = {:?}", client.get(b"answer")?);
    Ok(())
}
