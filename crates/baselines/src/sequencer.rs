//! One object on several memory nodes whose updates are ordered by a sequencer, as atomic broadcast orders them. A
//! *stand-in* for replicated state machines over RDMA: it has their order and their bottleneck, not their protocol.
//!
//! An update draws a number from the sequencer's word by FAA, waits until the update before it is delivered, and is
//! delivered then: WRITE to all nodes, then WRITE of the number of updates delivered. A client that dies with a number
//! stops everybody.

use std::cell::Cell;

use fusee_core::verbs::{Batch, Fabric, MnId, POOL_HEADER_BYTES};

use crate::{Failed, Session};

/// The next number to draw.
const NEXT: u64 = POOL_HEADER_BYTES;
/// Updates that are delivered; the value follows, so that one READ gets both.
const DELIVERED: u64 = NEXT + 64;
const VALUE: u64 = DELIVERED + 8;

/// Bytes that each node has to lend.
pub fn pool_bytes(value_bytes: u32) -> u64 {
    VALUE + u64::from(value_bytes)
}

/// A client of the object. Its key does not matter.
pub struct Sequenced<F> {
    fabric: F,
    nodes: Vec<MnId>,
    value_bytes: u32,
    waits: Cell<u64>,
}

impl<F: Fabric> Sequenced<F> {
    /// Of the object on these nodes, the first of which has the sequencer.
    ///
    /// # Panics
    /// If there is no node.
    pub fn new(fabric: F, nodes: &[MnId], value_bytes: u32) -> Sequenced<F> {
        assert!(!nodes.is_empty(), "an object lies somewhere");
        Sequenced { fabric, nodes: nodes.to_vec(), value_bytes, waits: Cell::new(0) }
    }

    /// How often it was not its turn yet.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Draws a number, and waits until it is next.
    async fn turn(&self) -> Result<u64, Failed> {
        let mut batch = Batch::new();
        let drawn = batch.faa(self.nodes[0], NEXT, 1);
        batch = self.fabric.execute(batch).await;
        let number = batch.found(drawn)?;
        loop {
            batch.clear();
            let delivered = batch.read(self.nodes[0], DELIVERED, 8);
            batch = self.fabric.execute(batch).await;
            let bytes = batch.data(delivered)?.try_into().expect("eight bytes were asked for");
            if u64::from_le_bytes(bytes) == number {
                return Ok(number);
            }
            self.waits.set(self.waits.get() + 1);
        }
    }

    /// All that has a smaller number is delivered, and this is.
    async fn delivered(&self, number: u64) -> Result<(), Failed> {
        let mut batch = Batch::new();
        let word = batch.stage(8);
        batch.bytes_mut(word).copy_from_slice(&(number + 1).to_le_bytes());
        batch.write(self.nodes[0], DELIVERED, word);
        Ok(self.fabric.execute(batch).await.check()?)
    }

    async fn put(&self, value: &[u8]) -> Result<bool, Failed> {
        if value.len() != self.value_bytes as usize {
            return Err(Failed::Length("value"));
        }
        let number = self.turn().await?;
        let mut batch = Batch::new();
        let bytes = batch.stage(self.value_bytes);
        batch.bytes_mut(bytes).copy_from_slice(value);
        for node in &self.nodes {
            batch.write(*node, VALUE, bytes);
        }
        self.fabric.execute(batch).await.check()?;
        self.delivered(number).await?;
        Ok(true)
    }
}

impl<F: Fabric> Session for Sequenced<F> {
    /// Reads are ordered as well.
    async fn search(&self, _: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        let number = self.turn().await?;
        let mut batch = Batch::new();
        let value = batch.read(self.nodes[0], VALUE, self.value_bytes);
        let batch = self.fabric.execute(batch).await;
        let value = batch.data(value)?.to_vec();
        self.delivered(number).await?;
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
