//! A part of the index, and where its replicas are.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::place::{Place, exchange};
use crate::verbs::MnId;

/// A subtable of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtable {
    /// Directory bits that lead here.
    pub local_depth: u8,
    /// Where it starts on each of its memory nodes. The first is the primary, the others are the
    /// backups, in the order in which INSERT uses them.
    replicas: Vec<Place>,
}

impl Subtable {
    /// A subtable with its replicas, the primary first. A view has at least one of each.
    pub fn new(local_depth: u8, replicas: Vec<Place>) -> Subtable {
        Subtable { local_depth, replicas }
    }

    /// Where each replica starts, the primary first.
    #[inline]
    pub fn replicas(&self) -> &[Place] {
        &self.replicas
    }

    /// Where the replica starts that readers read.
    ///
    /// # Panics
    /// If it has no replica, so that it is in no view.
    #[inline]
    pub fn primary(&self) -> Place {
        self.replicas[0]
    }

    /// Where the other replicas start, in the order in which INSERT uses them.
    #[inline]
    pub fn backups(&self) -> &[Place] {
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

    /// Goes on without the replicas that are lost. Whether any is left.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&Place) -> bool) -> bool {
        self.replicas.retain(|place| !is_lost(place));
        !self.replicas.is_empty()
    }

    /// The switch: one replica comes, one goes, in its place if both.
    pub(super) fn exchange(&mut self, joining: Option<Place>, leaving: Option<Place>) {
        exchange(&mut self.replicas, joining, leaving);
    }
}
