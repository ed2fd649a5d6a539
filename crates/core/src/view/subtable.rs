//! A part of the index, and the places of its replicas.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::place::{PoolPlace, exchange};
use crate::verbs::MnId;

/// A subtable of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtable {
    /// Directory bits that lead here.
    pub local_depth: u8,
    /// The start of the subtable on each of its memory nodes. The first is the primary, the others
    /// are the backups, in the order in which INSERT uses them.
    replicas: Vec<PoolPlace>,
}

impl Subtable {
    /// Returns a subtable with its replicas, the primary first. A subtable in a view has at least
    /// one replica.
    pub fn new(local_depth: u8, replicas: Vec<PoolPlace>) -> Subtable {
        Subtable { local_depth, replicas }
    }

    /// Returns the start of each replica, the primary first.
    #[inline]
    pub fn replicas(&self) -> &[PoolPlace] {
        &self.replicas
    }

    /// Returns the start of the replica that readers read.
    ///
    /// # Panics
    /// Panics if it has no replica; such a subtable is in no view.
    #[inline]
    pub fn primary(&self) -> PoolPlace {
        self.replicas[0]
    }

    /// Returns the starts of the other replicas, in the order in which INSERT uses them.
    #[inline]
    pub fn backups(&self) -> &[PoolPlace] {
        &self.replicas[1..]
    }

    /// Whether a replica lies on a memory node.
    #[inline]
    pub fn lies_on(&self, node: MnId) -> bool {
        self.replicas.iter().any(|place| place.node == node)
    }

    /// Whether a replica survives the loss of these memory nodes.
    pub fn survives(&self, is_lost: impl Fn(MnId) -> bool) -> bool {
        self.replicas.iter().any(|place| !is_lost(place.node))
    }

    /// Removes the lost replicas. Returns whether any is left.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&PoolPlace) -> bool) -> bool {
        self.replicas.retain(|place| !is_lost(place));
        !self.replicas.is_empty()
    }

    /// Makes the switch: a replica joins, or one leaves, or the joining one takes the place of the leaving one.
    pub(super) fn exchange(&mut self, joining: Option<PoolPlace>, leaving: Option<PoolPlace>) {
        exchange(&mut self.replicas, joining, leaving);
    }
}
