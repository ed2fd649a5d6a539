//! One object whose operations are ordered by a sequencer, as in atomic broadcast. This is a *stand-in* for replicated
//! state machines over RDMA: it has their order and their bottleneck, not their protocol.
//!
//! An operation draws a number from the sequencer's word by FAA and waits until the operation with the previous number
//! is delivered. To deliver itself, it WRITEs the object on all nodes, then WRITEs the number of delivered operations.
//! If a client dies between the draw and the delivery, all others wait for ever.

use fusee_core::verbs::{Fabric, MnId, POOL_HEADER_BYTES, VerbBatch};

use crate::object::Exclusion;
use crate::{BaselineError, word};

/// Offset of the word with the next number that a client draws.
const NEXT: u64 = POOL_HEADER_BYTES;
/// Offset of the word with the number of delivered operations.
const DELIVERED: u64 = NEXT + 64;

/// Exclusion by the sequencer's two words on the first node.
pub enum Sequencer {}

impl Exclusion for Sequencer {
    const VALUE: u64 = DELIVERED + 8;

    async fn enter<F: Fabric>(fabric: &F, node: MnId) -> Result<u64, BaselineError> {
        let mut batch = VerbBatch::new();
        let drawn = batch.faa(node, NEXT, 1);
        batch = fabric.execute(batch).await;
        let number = batch.found(drawn)?;
        loop {
            batch.clear();
            let delivered = batch.read(node, DELIVERED, 8);
            batch = fabric.execute(batch).await;
            if word(batch.data(delivered)?) == number {
                return Ok(number);
            }
        }
    }

    fn release_word(entry: u64) -> (u64, u64) {
        (DELIVERED, entry + 1)
    }
}
