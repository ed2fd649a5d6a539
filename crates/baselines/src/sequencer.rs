//! One object whose operations are ordered by a sequencer, as atomic broadcast orders them. A *stand-in* for replicated
//! state machines over RDMA: it has their order and their bottleneck, not their protocol.
//!
//! An operation draws a number from the sequencer's word by FAA, waits until the one before it is delivered, and is
//! delivered then: WRITE to all nodes, then WRITE of the number of operations delivered. A client that dies with a
//! number stops everybody.

use fusee_core::verbs::{Batch, Fabric, MnId, POOL_HEADER_BYTES};

use crate::object::Exclusion;
use crate::{Failed, word};

/// The next number to draw.
const NEXT: u64 = POOL_HEADER_BYTES;
/// Operations that are delivered.
const DELIVERED: u64 = NEXT + 64;

/// The sequencer's words.
pub enum Sequencer {}

impl Exclusion for Sequencer {
    const VALUE: u64 = DELIVERED + 8;

    async fn enter<F: Fabric>(fabric: &F, node: MnId) -> Result<u64, Failed> {
        let mut batch = Batch::new();
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

    fn end(entry: u64) -> (u64, u64) {
        (DELIVERED, entry + 1)
    }
}
