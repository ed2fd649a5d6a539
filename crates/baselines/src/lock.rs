//! One object under a remote lock. A client spins until it has the lock.
//!
//! An update takes three phases if the lock is free: CAS of the lock word on the first node, WRITE on all nodes,
//! WRITE of the lock word. A client that dies with the lock keeps it for ever.

use fusee_core::verbs::{Fabric, MnId, POOL_HEADER_BYTES, VerbBatch};

use crate::BaselineError;
use crate::object::Exclusion;

const LOCK: u64 = POOL_HEADER_BYTES;
const FREE: u64 = 0;
const HELD: u64 = 1;

/// Exclusion by a lock word on the first node.
pub enum RemoteLock {}

impl Exclusion for RemoteLock {
    const VALUE: u64 = LOCK + 64;

    async fn enter<F: Fabric>(fabric: &F, node: MnId) -> Result<u64, BaselineError> {
        let mut batch = VerbBatch::new();
        loop {
            batch.clear();
            let lock = batch.cas(node, LOCK, FREE, HELD);
            batch = fabric.execute(batch).await;
            if batch.found(lock)? == FREE {
                return Ok(FREE);
            }
        }
    }

    fn release_word(_: u64) -> (u64, u64) {
        (LOCK, FREE)
    }
}
