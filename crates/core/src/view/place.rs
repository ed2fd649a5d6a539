//! Places in the pools of memory nodes, and lists of them.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::verbs::MnId;

/// The largest replication factor of index and data (P Fig. 18 goes to 5).
pub const MAX_REPLICAS: usize = 5;

/// The place of a byte in a memory node's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPlace {
    /// The memory node.
    pub node: MnId,
    /// Offset in the node's pool, in bytes.
    pub offset: u64,
}

impl PoolPlace {
    /// Returns the place this number of bytes further on.
    #[inline]
    pub fn plus(self, bytes: u64) -> PoolPlace {
        PoolPlace { node: self.node, offset: self.offset + bytes }
    }
}

/// Applies the switch of a change to a list of places: `joining` replaces `leaving`, or one of them is added or
/// removed.
pub(super) fn exchange(
    places: &mut Vec<PoolPlace>,
    joining: Option<PoolPlace>,
    leaving: Option<PoolPlace>,
) {
    let leaves = leaving.and_then(|leaving| places.iter().position(|place| *place == leaving));
    match (joining, leaves) {
        (Some(joining), Some(at)) => places[at] = joining,
        (Some(joining), None) => places.push(joining),
        (None, Some(at)) => drop(places.remove(at)),
        (None, None) => {}
    }
}
