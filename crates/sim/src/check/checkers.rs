//! The checkers that run at every WRITE and at every change of a word.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use fusee_core::layout::{HEADER_BYTES, Object, Slot};
use fusee_core::verbs::ClientId;
use fusee_core::view::PoolPlace;

use super::entries::LiveEntries;
use super::reuse::ReuseCheck;
use crate::memories::SimMemories;

/// Number of bytes that all chunks of a pair share at the start of their values: length and checksum of the pair's
/// value.
const CHUNKS_SHARE_BYTES: usize = 8;

/// The checkers of the memory nodes' memories.
pub(crate) struct MemoryCheckers {
    memories: Rc<SimMemories>,
    /// The checker of live entries, which is called at every piece of a WRITE, and at every change of a word.
    entries: RefCell<LiveEntries>,
    /// The checker of reuse, which is called at every WRITE and FAA, and at every change of a word.
    reuse: RefCell<ReuseCheck>,
}

impl MemoryCheckers {
    pub fn new(memories: &Rc<SimMemories>) -> MemoryCheckers {
        MemoryCheckers {
            memories: memories.clone(),
            entries: RefCell::default(),
            reuse: RefCell::default(),
        }
    }

    /// Checks changes of words against these entries from now on.
    pub fn watch(&self, entries: LiveEntries) {
        *self.entries.borrow_mut() = entries;
    }

    /// Returns the checker of reuse.
    pub fn reuse(&self) -> RefMut<'_, ReuseCheck> {
        self.reuse.borrow_mut()
    }

    pub fn watched(&self) -> Ref<'_, LiveEntries> {
        self.entries.borrow()
    }

    /// Passes the change of a word to the checkers.
    pub fn changed(&self, place: PoolPlace, old: u64, new: u64) {
        self.entries.borrow_mut().changed(&self.memories, place, Slot(old), Slot(new));
        self.reuse().changed(place, Slot(old), Slot(new), &self.memories);
    }

    /// Checks a WRITE before its first piece executes.
    ///
    /// # Panics
    /// If the WRITE repeats an identity or reuses memory too early.
    pub fn before_write(&self, who: ClientId, place: PoolPlace, bytes: &[u8]) {
        self.check_identity(who, place, bytes);
        self.reuse().written(who, place, bytes, &self.memories);
    }

    /// Checks one piece of a WRITE before the piece executes.
    ///
    /// # Panics
    /// If the piece changes a live object.
    pub fn before_piece(&self, place: PoolPlace, bytes: &[u8]) {
        self.watched().written(place.node, place.offset, bytes, self.memories.rots());
    }

    /// Checks the identity that a WRITE is about to write.
    ///
    /// # Panics
    /// If the WRITE writes an object while a replica holds another object of the same identity, because a reader would
    /// take one object for the other.
    // Promise LIN-15: No object is written where a replica has its identity already.
    fn check_identity(&self, who: ClientId, place: PoolPlace, bytes: &[u8]) {
        let Some(header) = bytes.get(..HEADER_BYTES as usize) else { return };
        if !self.reuse().is_in_block(place, &self.memories) || bytes.iter().all(|byte| *byte == 0) {
            return;
        }
        let replicas = self.reuse().replicas_of(place);
        let identity = Object::header_identity(header);
        for at in replicas {
            let other = self.memories.with(at.node, |memory| {
                let there = &memory.pool[at.offset as usize..][..bytes.len()];
                let is_same = there == bytes || Object::header_identity(there) != identity;
                (!is_same).then(|| there.to_vec())
            });
            let Some(Some(other)) = other else { continue };
            let (Ok(new), Ok(other)) = (Object::decode(bytes), Object::decode(&other)) else {
                continue;
            };
            // Chunks of one pair differ in their chunk numbers and payloads, but share the checksum of the value.
            let is_other_chunk = self.reuse().needed_at(place) > 1 && at != place;
            let of = |object: &Object<'_>| {
                let mut value = object.value().to_vec();
                if is_other_chunk {
                    value.truncate(CHUNKS_SHARE_BYTES);
                }
                (object.opcode(), object.key().to_vec(), object.value().len(), value)
            };
            assert!(
                of(&new) == of(&other),
                "{who} writes {new:?} to {place:?}, and {other:?} is at {at:?}"
            );
        }
    }
}
