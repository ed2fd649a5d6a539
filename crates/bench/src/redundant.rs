//! A store that writes all pairs with one redundancy, and the number of memory nodes whose loss such pairs survive.
//!
//! Only the client library knows which redundancies exist; benchmarks accept all that it understands.

use std::fmt::Display;
use std::future::Future;

use fusee_client::{BlockingClient, CacheStats, MnId, PutOptions, Redundancy, Stats, WriteError};
use fusee_core::data::Region;
use fusee_core::view::PoolPlace;
use serde::Serializer;

use crate::store::{BenchSession, BenchStore};

/// A client whose sessions write with one redundancy, whatever the cluster's policy says.
#[derive(Clone, Copy)]
pub struct RedundantClient<'a> {
    pub client: &'a BlockingClient,
    pub redundancy: Redundancy,
}

/// A session of [`RedundantClient`].
pub struct RedundantSession {
    pub session: fusee_client::Session,
    redundancy: Redundancy,
}

impl RedundantSession {
    fn options(&self) -> PutOptions {
        PutOptions::default().with_redundancy(self.redundancy)
    }
}

impl BenchStore for RedundantClient<'_> {
    type Session = RedundantSession;

    fn open(&self) -> Result<RedundantSession, WriteError> {
        Ok(RedundantSession { session: self.client.session()?, redundancy: self.redundancy })
    }
}

impl BenchSession for RedundantSession {
    type Error = WriteError;

    fn block_on<T>(&self, operations: impl Future<Output = T>) -> T {
        self.session.block_on(operations)
    }

    async fn get_with<R>(
        &self,
        key: &[u8],
        found: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, WriteError> {
        Ok(self.session.get_with(key, found).await?)
    }

    fn insert(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), WriteError>> {
        self.session.put_with(key, value, self.options().if_absent())
    }

    fn update(&self, key: &[u8], value: &[u8]) -> impl Future<Output = Result<(), WriteError>> {
        self.session.put_with(key, value, self.options().if_present())
    }

    fn delete(&self, key: &[u8]) -> impl Future<Output = Result<(), WriteError>> {
        self.session.delete(key)
    }

    fn is_immediate(&self) -> bool {
        BenchSession::is_immediate(&self.session)
    }

    fn stats(&self) -> Stats {
        self.session.stats()
    }

    fn cache_stats(&self) -> CacheStats {
        self.session.cache_stats()
    }
}

/// Returns how many memory nodes can be lost at once, in any combination, without loss of a pair. `data_replicas` is
/// the number of replicas of a replicated region.
pub fn survivable_losses(redundancy: Redundancy, data_replicas: u8) -> usize {
    // The cluster survives the loss of a region without redundancy, but the region's pairs are lost.
    if redundancy == Redundancy::None {
        return 0;
    }
    let count = redundancy.places(data_replicas.into());
    let places =
        (0u16..).take(count).map(|node| PoolPlace { node: MnId(node), offset: 0 }).collect();
    let region = Region::new(redundancy, places, 0);
    let lost = |subset: u32| region.survives(|node| subset >> node.0 & 1 == 1);
    let survives = |losses: usize| {
        (0..1u32 << count).filter(|subset| subset.count_ones() as usize == losses).all(lost)
    };
    (1..=count).take_while(|losses| survives(*losses)).count()
}

/// Serializes a value for reports in the form that the command line accepts.
pub fn by_name<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use fusee_client::{Client, EmbeddedOptions};

    use super::*;
    use crate::driver;

    #[test]
    fn codes_survive_the_loss_of_as_many_nodes_as_they_have_parity() {
        for (redundancy, replicas, losses) in [
            ("replicated", 1, 0),
            ("replicated", 3, 2),
            ("ec:4+2", 1, 2),
            ("ec:2+1", 3, 1),
            ("none", 3, 0),
        ] {
            let parsed = redundancy.parse().unwrap();
            assert_eq!(survivable_losses(parsed, replicas), losses, "{redundancy}");
        }
    }

    #[test]
    fn what_is_written_has_the_redundancy() {
        let client = Client::embedded(EmbeddedOptions::default()).unwrap().blocking();
        let redundancy: Redundancy = "ec:2+1".parse().unwrap();
        let session = RedundantClient { client: &client, redundancy }.open().unwrap();
        let value = [7; 600];
        session.block_on(session.insert(b"key", &value)).unwrap();
        assert_eq!(client.redundancy_of(b"key").unwrap(), Some(redundancy));
        client
            .put_with(b"key", &value, PutOptions::default().with_redundancy(Redundancy::default()))
            .unwrap();
        assert_eq!(client.redundancy_of(b"key").unwrap(), Some(Redundancy::default()));
        session.block_on(session.update(b"key", &value)).unwrap();
        assert_eq!(client.redundancy_of(b"key").unwrap(), Some(redundancy));
        session.block_on(session.delete(b"key")).unwrap();
        driver::tests::drive(&RedundantClient {
            client: &client,
            redundancy: Redundancy::default(),
        });
    }
}
