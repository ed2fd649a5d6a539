//! A subtable: a part of the index, with the places of its replicas.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::place::{PoolPlace, exchange};
use crate::verbs::MnId;

/// A subtable of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtable {
    /// The number of leading bits that the hashes of all the subtable's keys share.
    pub local_depth: u8,
    /// The start of each replica. The first is the primary, the others are the backups, in the order in which INSERT
    /// uses them.
    replicas: Vec<PoolPlace>,
}

impl Subtable {
    /// Returns a subtable with these replicas, the primary first. A subtable in a view has at least one replica.
    pub fn new(local_depth: u8, replicas: Vec<PoolPlace>) -> Subtable {
        Subtable { local_depth, replicas }
    }

    /// Returns the place where each replica of the subtable begins, the primary first.
    #[inline]
    pub fn replicas(&self) -> &[PoolPlace] {
        &self.replicas
    }

    /// Returns the start of the replica that readers read.
    ///
    /// # Panics
    /// Panics if the subtable has no replica; no view contains such a subtable.
    #[inline]
    pub fn primary(&self) -> PoolPlace {
        self.replicas[0]
    }

    /// Returns the starts of the other replicas, in the order in which INSERT uses them.
    #[inline]
    pub fn backups(&self) -> &[PoolPlace] {
        &self.replicas[1..]
    }

    /// Whether a replica of the subtable lies on a memory node.
    #[inline]
    pub fn lies_on(&self, node: MnId) -> bool {
        self.replicas.iter().any(|place| place.node == node)
    }

    /// Whether at least one replica of the subtable survives the loss of these memory nodes.
    pub fn survives(&self, is_lost: impl Fn(MnId) -> bool) -> bool {
        self.replicas.iter().any(|place| !is_lost(place.node))
    }

    /// Removes the lost replicas of the subtable. Returns whether a replica is left.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&PoolPlace) -> bool) -> bool {
        self.replicas.retain(|place| !is_lost(place));
        !self.replicas.is_empty()
    }

    /// Makes the switch: a replica joins, a replica leaves, or the joining replica takes the place of the leaving one.
    pub(super) fn exchange(&mut self, joining: Option<PoolPlace>, leaving: Option<PoolPlace>) {
        exchange(&mut self.replicas, joining, leaving);
    }
}
