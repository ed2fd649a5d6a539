//! One object on several memory nodes under a remote lock: whoever wants it spins until it has the lock.
//!
//! READs take the lock as well, since updates are in place. An update takes three phases if nobody else has the lock:
//! CAS of the lock word on the first node, WRITE on all nodes, WRITE of the lock word. A client that dies with the lock
//! keeps it for ever.

use std::cell::Cell;

use fusee_core::verbs::{Batch, Fabric, MnId, POOL_HEADER_BYTES};

use crate::{Failed, Session};

/// The lock word.
const LOCK: u64 = POOL_HEADER_BYTES;
/// The value.
const VALUE: u64 = LOCK + 64;
const FREE: u64 = 0;
const HELD: u64 = 1;

/// Bytes that each node has to lend.
pub fn pool_bytes(value_bytes: u32) -> u64 {
    VALUE + u64::from(value_bytes)
}

/// A client of the object. Its key does not matter.
pub struct Locked<F> {
    fabric: F,
    nodes: Vec<MnId>,
    value_bytes: u32,
    spins: Cell<u64>,
}

impl<F: Fabric> Locked<F> {
    /// Of the object on these nodes, the first of which has the lock.
    ///
    /// # Panics
    /// If there is no node.
    pub fn new(fabric: F, nodes: &[MnId], value_bytes: u32) -> Locked<F> {
        assert!(!nodes.is_empty(), "an object lies somewhere");
        Locked { fabric, nodes: nodes.to_vec(), value_bytes, spins: Cell::new(0) }
    }

    /// How often somebody else had the lock.
    pub fn spins(&self) -> u64 {
        self.spins.get()
    }

    async fn lock(&self) -> Result<(), Failed> {
        let mut batch = Batch::new();
        loop {
            batch.clear();
            let lock = batch.cas(self.nodes[0], LOCK, FREE, HELD);
            batch = self.fabric.execute(batch).await;
            if batch.found(lock)? == FREE {
                return Ok(());
            }
            self.spins.set(self.spins.get() + 1);
        }
    }

    async fn unlock(&self) -> Result<(), Failed> {
        let mut batch = Batch::new();
        let word = batch.stage(8);
        batch.bytes_mut(word).copy_from_slice(&FREE.to_le_bytes());
        batch.write(self.nodes[0], LOCK, word);
        Ok(self.fabric.execute(batch).await.check()?)
    }

    async fn put(&self, value: &[u8]) -> Result<bool, Failed> {
        if value.len() != self.value_bytes as usize {
            return Err(Failed::Length("value"));
        }
        self.lock().await?;
        let mut batch = Batch::new();
        let bytes = batch.stage(self.value_bytes);
        batch.bytes_mut(bytes).copy_from_slice(value);
        for node in &self.nodes {
            batch.write(*node, VALUE, bytes);
        }
        self.fabric.execute(batch).await.check()?;
        self.unlock().await?;
        Ok(true)
    }
}

impl<F: Fabric> Session for Locked<F> {
    async fn search(&self, _: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        self.lock().await?;
        let mut batch = Batch::new();
        let value = batch.read(self.nodes[0], VALUE, self.value_bytes);
        let batch = self.fabric.execute(batch).await;
        let value = batch.data(value)?.to_vec();
        self.unlock().await?;
        Ok(Some(value))
    }

    async fn update(&self, _: &[u8], value: &[u8]) -> Result<bool, Failed> {
        self.put(value).await
    }

    /// The object is always there: the first value of it.
    async fn insert(&self, _: &[u8], value: &[u8]) -> Result<bool, Failed> {
        self.put(value).await
    }

    async fn delete(&self, _: &[u8]) -> Result<bool, Failed> {
        Err(Failed::Unsupported("DELETE"))
    }

    fn learn_from(&self, _: &Self) {}
}
