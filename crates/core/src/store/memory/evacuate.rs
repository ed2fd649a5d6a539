//! Evacuation: when memory is short, a session moves the pairs of its sparse blocks into other blocks of their slabs.
//! The emptied blocks return to the pool, and serve other size classes.
//!
//! A pair leaves its block by a Move that keeps the pair's redundancy ([`MoveScope::OutOf`]). The Move begins with the
//! slot word that leads to the object, so a pair that was written meanwhile stays as it is, and what the session knows
//! of its blocks need not be exact. The Move frees the old object as every write does, and the block becomes free when
//! all its objects are set free and reclaimed ([`reclaim`](super::reclaim)).
//!
//! Objects that are in use without a pair remain: those that were lost with a client, until a comparison finds them
//! ([`compare`](super::compare)), and those that a withdrawal keeps. The blocks of EC-oriented pairs and of their
//! copies are not evacuated.

use super::out_of_memory::{EvacuationResult, MemorySearch};
use super::reclaim::BlockCollector;
use super::{is_frozen, set_free};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Address;
use crate::slab::{BlockEvacuation, EvacuationChoice, SlabKind};
use crate::store::{MoveScope, Transition};
use crate::verbs::Fabric;

/// The limit on the number of objects that are examined before the search for memory pauses, so that the memory of the
/// evacuated blocks becomes free before more blocks follow.
const EXAMINED_TOGETHER: usize = 256;

/// The result of an attempt to move one object's pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairLeft {
    Moved,
    /// The object belongs to no pair, or the pair cannot be moved now.
    Stayed,
    /// The slab has no room in other blocks.
    NoRoom,
    /// The evacuation has to stop.
    Stop,
}

impl<F: Fabric, H: Host> MemorySearch<'_, F, H> {
    /// Evacuates some blocks of other slabs, with at most [`EXAMINED_TOGETHER`] objects and not much more than one
    /// block of the largest size.
    pub(super) async fn evacuate(&self) -> EvacuationResult {
        let Self { store, kind, .. } = *self;
        // While an operation is left half-way, the session sets no object free, so no block would become free.
        if store.local_epochs.has_half_way() {
            return EvacuationResult::Nothing;
        }
        let mut moved = 0;
        let mut emptied = 0;
        let mut left = EXAMINED_TOGETHER;
        let result = loop {
            if left == 0 || emptied >= self.view.geometry.block_bytes {
                break EvacuationResult::Moved;
            }
            let choice = {
                let is_frozen = |block| is_frozen(self.view, block);
                let has_passed = |mark| store.host.has_passed(mark);
                let mut slabs = store.memory.slabs.borrow_mut();
                slabs.begin_evacuation(kind, left, is_frozen, has_passed)
            };
            let block = match choice {
                EvacuationChoice::Block(block) => block,
                EvacuationChoice::Waits => break EvacuationResult::Waits,
                EvacuationChoice::Nothing => break EvacuationResult::Nothing,
            };
            left -= block.objects.len();
            let (has_moved, goes_on) = self.evacuate_block(&block).await;
            moved += has_moved;
            emptied += block.bytes;
            if !goes_on {
                break EvacuationResult::Nothing;
            }
        };
        set_free(store).await;
        if moved > 0 { EvacuationResult::Moved } else { result }
    }

    /// Moves the pairs of one block. Returns the number of moved pairs, and whether the evacuation can go on.
    async fn evacuate_block(&self, block: &BlockEvacuation) -> (u32, bool) {
        let mut moved = 0;
        let mut stayed = 0;
        for object in &block.objects {
            match self.move_out(*object, block.kind).await {
                PairLeft::Moved => moved += 1,
                PairLeft::Stayed => stayed += 1,
                PairLeft::NoRoom => break,
                PairLeft::Stop => return (moved, false),
            }
        }
        self.store.memory.slabs.borrow_mut().note_evacuated(block, moved, stayed);
        (moved, true)
    }

    /// Moves the pair of an object into another block of the slab.
    async fn move_out(&self, object: Address, kind: SlabKind) -> PairLeft {
        let store = self.store;
        // During a view change, a Move would wait for its key's subtable.
        if self.view.change.is_some() || self.has_newer_view() || store.host.is_over() {
            return PairLeft::Stop;
        }
        let has_room = || {
            let is_frozen = |block| is_frozen(self.view, block);
            store.memory.slabs.borrow().has_room(kind, u32::MAX, is_frozen)
        };
        if !has_room() {
            let collector = BlockCollector { store, kind, least: u32::MAX, beside: None };
            collector.reclaim_what_is_due().await;
            if !has_room() {
                return PairLeft::NoRoom;
            }
        }
        let found = match store.pair_at(object, kind.class).await {
            Ok(Some((key, _))) => {
                let scope = MoveScope::OutOf(object);
                store.move_pair(&key[..], kind.redundancy, None, scope).await.map(|(how, _)| how)
            }
            Ok(None) => return PairLeft::Stayed,
            Err(error) => Err(error),
        };
        match found {
            Ok(Transition::Moved) => PairLeft::Moved,
            Ok(Transition::Unchanged | Transition::Overtaken) => PairLeft::Stayed,
            Err(Error::OutOfMemory) => PairLeft::NoRoom,
            Err(Error::NotFound | Error::Corrupt { .. } | Error::Redundancy(_)) => PairLeft::Stayed,
            // The search for memory goes on without Moves, and meets a lasting failure itself.
            Err(_) => PairLeft::Stop,
        }
    }
}
