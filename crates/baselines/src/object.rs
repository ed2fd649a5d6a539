//! One object on several memory nodes, which one client at a time uses. Whose turn it is, [`Turns`] say: a
//! [lock](crate::lock) or a [sequencer](crate::sequencer).

use std::future::Future;
use std::marker::PhantomData;

use fusee_core::verbs::{Batch, Fabric, MnId};

use crate::{Failed, Session};

/// How clients take turns, by words on the first memory node.
pub trait Turns {
    /// Where the object begins on each node; before it is what turns need.
    const VALUE: u64;

    /// Waits for a turn, which has a number.
    fn enter<F: Fabric>(fabric: &F, node: MnId) -> impl Future<Output = Result<u64, Failed>>;

    /// Where the word stands that ends a turn, and what it is then.
    fn end(turn: u64) -> (u64, u64);

    /// Bytes that each node has to lend.
    fn pool_bytes(value_bytes: u32) -> u64 {
        Self::VALUE + u64::from(value_bytes)
    }
}

/// A client of the object. Its key does not matter.
pub struct OneObject<F, T> {
    fabric: F,
    nodes: Vec<MnId>,
    value_bytes: u32,
    turns: PhantomData<T>,
}

impl<F: Fabric, T: Turns> OneObject<F, T> {
    /// Of the object on these nodes, the first of which has what turns need.
    ///
    /// # Panics
    /// If there is no node.
    pub fn new(fabric: F, nodes: &[MnId], value_bytes: u32) -> OneObject<F, T> {
        assert!(!nodes.is_empty(), "an object lies somewhere");
        OneObject { fabric, nodes: nodes.to_vec(), value_bytes, turns: PhantomData }
    }

    async fn leave(&self, turn: u64) -> Result<(), Failed> {
        let (offset, word) = T::end(turn);
        let mut batch = Batch::new();
        let span = batch.stage(8);
        batch.bytes_mut(span).copy_from_slice(&word.to_le_bytes());
        batch.write(self.nodes[0], offset, span);
        Ok(self.fabric.execute(batch).await.check()?)
    }

    async fn put(&self, value: &[u8]) -> Result<bool, Failed> {
        if value.len() != self.value_bytes as usize {
            return Err(Failed::Length("value"));
        }
        let turn = T::enter(&self.fabric, self.nodes[0]).await?;
        let mut batch = Batch::new();
        let bytes = batch.stage(self.value_bytes);
        batch.bytes_mut(bytes).copy_from_slice(value);
        for node in &self.nodes {
            batch.write(*node, T::VALUE, bytes);
        }
        self.fabric.execute(batch).await.check()?;
        self.leave(turn).await?;
        Ok(true)
    }
}

impl<F: Fabric, T: Turns> Session for OneObject<F, T> {
    /// READs take a turn as well, since updates are in place.
    async fn search(&self, _: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        let turn = T::enter(&self.fabric, self.nodes[0]).await?;
        let mut batch = Batch::new();
        let value = batch.read(self.nodes[0], T::VALUE, self.value_bytes);
        let batch = self.fabric.execute(batch).await;
        let value = batch.data(value)?.to_vec();
        self.leave(turn).await?;
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
