//! A cluster inside a test: each test of a program starts its own cluster, in milliseconds, which runs the code of real
//! memory nodes and a real master.
//!
//! `cargo run -p fusee-client --example embedded_test`

use std::error::Error;
use std::time::Instant;

use fusee_client::{BlockingClient, Client, EmbeddedOptions, WriteError};

/// The code under test: a registry in which a name belongs to the first process that registers it.
struct NameRegistry {
    store: BlockingClient,
}

#[derive(Debug, PartialEq)]
enum Registered {
    Ours,
    Taken,
}

impl NameRegistry {
    fn register(&self, name: &str, owner: &str) -> Result<Registered, WriteError> {
        match self.store.insert(name.as_bytes(), owner.as_bytes()) {
            Ok(()) => Ok(Registered::Ours),
            Err(WriteError::AlreadyExists) => Ok(Registered::Taken),
            Err(error) => Err(error),
        }
    }
}

/// Starts a cluster for one test. The cluster ends when the last clone of its client is dropped.
fn cluster() -> BlockingClient {
    let options = EmbeddedOptions::default()
        .with_memory_nodes(3)
        .with_pool_bytes(256 << 20)
        .with_index_keys(10_000);
    Client::embedded(options).expect("a cluster needs memory and nothing else").blocking()
}

/// A test; in a real program it would be marked by `#[test]`.
fn a_name_has_one_owner() -> Result<(), Box<dyn Error>> {
    let store = cluster();
    let registry = NameRegistry { store: store.clone() };
    assert_eq!(registry.register("ada", "process 1")?, Registered::Ours);
    assert_eq!(registry.register("ada", "process 2")?, Registered::Taken);
    assert_eq!(store.get(b"ada")?.as_deref(), Some(&b"process 1"[..]));
    Ok(())
}

/// Another test, which can run at the same time: its cluster has no pairs of the first test's.
fn names_are_empty_at_first() -> Result<(), Box<dyn Error>> {
    let registry = NameRegistry { store: cluster() };
    assert_eq!(registry.register("ada", "process 3")?, Registered::Ours);
    let view = registry.store.view();
    assert_eq!(view.members.len(), 3, "what runs is a whole cluster");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    a_name_has_one_owner()?;
    names_are_empty_at_first()?;
    println!("two tests, each with a cluster of its own, in {:.0?}", begun.elapsed());
    Ok(())
}
