//! The DELETEs of a dead client: the records in its log areas.
//!
//! A DELETE puts its number on a backup only behind its record on the same node. Recovery writes no records, but goes
//! on only with numbers that have one. So if no member has a record of a DELETE any more, the slot has been settled
//! since the node with the record was lost: all replicas show the number, or none does.
//!
//! A record tells the key's hash, and with it the slots that possibly show the number. Everything else is judged by
//! these slots, as for an object ([`examine`](super::examine)). A record that is half-written, or of a DELETE that
//! ended long ago, leads to nothing: no slot shows its number, or the primary does.

use alloc::vec::Vec;

use super::{FoundWrite, Recovery, RecoveryError};
use crate::layout::{LOG_AREA_BYTES, LogRecord, Opcode, log_area_offset};
use crate::race::Buckets;
use crate::verbs::{Fabric, MAX_BATCH_VERBS, MnId};

impl<F: Fabric> Recovery<'_, F> {
    /// Reads the records in these log areas, each of which lies on a memory node, and notes their DELETEs to be
    /// examined.
    pub(super) async fn read_records(
        &mut self,
        areas: &[(MnId, u32)],
    ) -> Result<(), RecoveryError> {
        let mut records: Vec<LogRecord> = Vec::new();
        for areas in areas.chunks(MAX_BATCH_VERBS) {
            self.batch.clear();
            let read = |(node, area): &(MnId, u32)| {
                self.batch.read(*node, log_area_offset(*area), LOG_AREA_BYTES as u32)
            };
            let reads: Vec<_> = areas.iter().map(read).collect();
            self.phase().await;
            for read in reads {
                records.extend(LogRecord::all_in(self.batch.data(read)?));
            }
        }
        records.sort_unstable_by_key(|record| (record.number.0, record.hash));
        records.dedup();
        let view = self.view;
        self.pending.extend(records.into_iter().map(|LogRecord { hash, number }| {
            let buckets = Buckets::of_hash(hash, view);
            FoundWrite { buckets, own: number, opcode: Opcode::Delete, is_everywhere: true }
        }));
        Ok(())
    }
}
