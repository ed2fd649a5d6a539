//! Async calls under tokio: many tasks share one client.
//!
//! `cargo run -p fusee-client --example async_tokio`

use std::error::Error;

use fusee_client::{Client, EmbeddedOptions};

const TASKS: u32 = 1000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = Client::embedded(EmbeddedOptions::default())?;
    // The calls of all tasks run side by side on the client's own thread, so no worker of tokio's
    // ever waits for one. Dropping the future of a write does not stop the write.
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let key = format!("key-{n}");
                client.put_async(key.as_bytes(), &n.to_le_bytes()).await?;
                client.get_async(key.as_bytes()).await
            })
        })
        .collect();
    let mut found = 0;
    for (n, task) in (0..TASKS).zip(tasks) {
        let value = task.await??;
        found += u32::from(value.as_deref() == Some(&n.to_le_bytes()[..]));
    }
    println!("{found} of {TASKS} tasks read what they had written");
    if found < TASKS { Err("some tasks did not".into()) } else { Ok(()) }
}
