//! One object on several memory nodes, which one client at a time uses. An [`Exclusion`] admits the clients: a
//! [lock](crate::lock) or a [sequencer](crate::sequencer).

use std::future::Future;
use std::marker::PhantomData;

use fusee_core::verbs::{Fabric, MnId, VerbBatch};

use crate::{BaselineError, BaselineSession};

/// A mechanism that admits one client at a time, by words on the first memory node.
pub trait Exclusion {
    /// Offset of the object on each node. The words of the mechanism lie before it.
    const VALUE: u64;

    /// Waits until this client is admitted. Returns a number that [`release_word`](Exclusion::release_word) needs.
    fn enter<F: Fabric>(fabric: &F, node: MnId)
    -> impl Future<Output = Result<u64, BaselineError>>;

    /// Returns the offset and the value of the word whose WRITE admits the next client.
    fn release_word(entry: u64) -> (u64, u64);

    /// Returns the size of each node's pool.
    fn pool_bytes(value_bytes: u32) -> u64 {
        Self::VALUE + u64::from(value_bytes)
    }
}

/// A client of the object. Operations ignore the key.
pub struct OneObjectClient<F, X> {
    fabric: F,
    nodes: Vec<MnId>,
    value_bytes: u32,
    exclusion: PhantomData<X>,
}

impl<F: Fabric, X: Exclusion> OneObjectClient<F, X> {
    /// Opens the object on these nodes. The mechanism's words are on the first one.
    ///
    /// # Panics
    /// If there is no node.
    pub fn new(fabric: F, nodes: &[MnId], value_bytes: u32) -> OneObjectClient<F, X> {
        assert!(!nodes.is_empty(), "an object lies somewhere");
        OneObjectClient { fabric, nodes: nodes.to_vec(), value_bytes, exclusion: PhantomData }
    }

    async fn leave(&self, entry: u64) -> Result<(), BaselineError> {
        let (offset, word) = X::release_word(entry);
        let mut batch = VerbBatch::new();
        let span = batch.stage(8);
        batch.bytes_mut(span).copy_from_slice(&word.to_le_bytes());
        batch.write(self.nodes[0], offset, span);
        Ok(self.fabric.execute(batch).await.check()?)
    }

    async fn put(&self, value: &[u8]) -> Result<bool, BaselineError> {
        if value.len() != self.value_bytes as usize {
            return Err(BaselineError::Length("value"));
        }
        let entry = X::enter(&self.fabric, self.nodes[0]).await?;
        let mut batch = VerbBatch::new();
        let bytes = batch.stage(self.value_bytes);
        batch.bytes_mut(bytes).copy_from_slice(value);
        for node in &self.nodes {
            batch.write(*node, X::VALUE, bytes);
        }
        self.fabric.execute(batch).await.check()?;
        self.leave(entry).await?;
        Ok(true)
    }
}

impl<F: Fabric, X: Exclusion> BaselineSession for OneObjectClient<F, X> {
    /// A search needs exclusion too, because updates change the object in place.
    async fn search(&self, _: &[u8]) -> Result<Option<Vec<u8>>, BaselineError> {
        let entry = X::enter(&self.fabric, self.nodes[0]).await?;
        let mut batch = VerbBatch::new();
        let value = batch.read(self.nodes[0], X::VALUE, self.value_bytes);
        let batch = self.fabric.execute(batch).await;
        let value = batch.data(value)?.to_vec();
        self.leave(entry).await?;
        Ok(Some(value))
    }

    async fn update(&self, _: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        self.put(value).await
    }

    /// The object always exists, so an INSERT only writes its value.
    async fn insert(&self, _: &[u8], value: &[u8]) -> Result<bool, BaselineError> {
        self.put(value).await
    }

    async fn delete(&self, _: &[u8]) -> Result<bool, BaselineError> {
        Err(BaselineError::Unsupported("DELETE"))
    }

    fn learn_from(&self, _: &Self) {}
}
