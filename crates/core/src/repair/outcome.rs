//! Results and errors of the stage *transforming* of a view change.

use crate::data::CopyResult;
use crate::stats::Cost;
use crate::verbs::FailedVerb;

/// The reason why the transformation of a view change stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// A memory node failed. The change has to be run again, possibly in a view without that node.
    #[error("repair stopped: {0}")]
    Unreachable(#[from] FailedVerb),
    /// A slot changed during the transformation.
    #[error("slot {slot} of subtable {subtable} changed during its repair: it was not frozen")]
    NotFrozen {
        /// The number of the subtable.
        subtable: u32,
        /// The number of the slot in the subtable.
        slot: u64,
    },
    /// An object whose key a split needs is damaged on all of its replicas. The key's side of the split is unknown, so
    /// the subtable stays as it is.
    #[error(
        "slot {slot} of subtable {subtable} leads to an object of which too little is \
         undamaged: nobody can tell on which side of the split its key belongs"
    )]
    Unreadable {
        /// The number of the subtable.
        subtable: u32,
        /// The number of the slot in the subtable.
        slot: u64,
    },
}

/// The result of a transformation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransformResult {
    /// The number of slots that were changed on at least one remaining replica.
    pub slots_changed: u64,
    /// The number of bytes that were copied to new replicas.
    pub bytes_copied: u64,
    /// The number of objects that were damaged at the source of a copy, and were taken from another replica.
    pub objects_repaired: u64,
    /// The cost of the transformation: phases (round trips), verbs, atomics and bytes.
    pub cost: Cost,
}

impl TransformResult {
    /// Adds the result of copying regions or subtables.
    pub(super) fn add(&mut self, copied: &CopyResult) {
        self.bytes_copied += copied.bytes;
        self.objects_repaired += copied.objects_repaired;
        self.cost.add(&copied.cost);
    }
}
