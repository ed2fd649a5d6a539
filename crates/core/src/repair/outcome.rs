//! What a transformation comes to, and why it stops.

use crate::data::Copied;
use crate::stats::Cost;
use crate::verbs::FailedVerb;

/// Why a change could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// A memory node failed: to be run again, in a view without it perhaps.
    #[error("repair stopped: {0}")]
    Unreachable(#[from] FailedVerb),
    /// A slot changed meanwhile.
    #[error("slot {slot} of subtable {subtable} changed during its repair: it was not frozen")]
    NotFrozen {
        /// The subtable.
        subtable: u32,
        /// The slot.
        slot: u64,
    },
    /// An object that a split has to place is damaged on all of its replicas: nobody can tell where it
    /// belongs, and the subtable stays as it is.
    #[error(
        "slot {slot} of subtable {subtable} leads to an object of which too little is \
         undamaged: nobody can tell on which side of the split its key belongs"
    )]
    Unreadable {
        /// The subtable.
        subtable: u32,
        /// The slot.
        slot: u64,
    },
}

/// What a transformation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transformed {
    /// Slots of which at least one survivor changed.
    pub slots_changed: u64,
    /// Bytes that were copied to new replicas.
    pub bytes_copied: u64,
    /// Objects that were damaged where they were copied from, and taken from another replica.
    pub objects_repaired: u64,
    /// What it cost.
    pub cost: Cost,
}

impl Transformed {
    /// Adds what copying came to.
    pub(super) fn add(&mut self, copied: &Copied) {
        self.bytes_copied += copied.bytes;
        self.objects_repaired += copied.objects_repaired;
        self.cost.add(&copied.cost);
    }
}
