//! Moves in place: an EC-oriented object becomes erasure-coded, or the reverse, and keeps its data chunks.
//!
//! ```text
//!               1  READ                  2  WRITE, READ                               3, 4
//! EOR -> EC     the slot, k data chunks  m parity chunks; copy words, the slot        as of every Move
//! EC -> EOR     the slot, k chunks       copies; CAS copy words; the slot             as of every Move
//! ```
//!
//! The new word has the next *turn* of the same object ([`Slot::turn`](crate::layout::Slot)). Turns only grow, so no
//! word recurs. After the last turn, Moves are *out of place*: they write a new object.
//!
//! *Only the owner of the block moves in place.* The word of the next turn is the same for every writer, so two writers
//! of one round would both take the word for their own and both win. The owner excludes that, because a session runs
//! only one Move in place of an object at a time. Meanwhile the block counts as in use, so no other session gets it,
//! and its header tells recovery to look for the word.
//!
//! *The slot is read once more* after the Move has begun, because another Move of the session has possibly ended since
//! phase 1, and this Move would write the same word as that one. If that Move ended before this Move began, either it
//! or a writer that won against it has replaced the word that both Moves have read, so the primary shows another word.
//! If this second READ shows another word, the Move goes on out of place.
//!
//! The bytes of the stripe do not change, so a round that is lost, or left half-way, leaves nothing to undo: the parity
//! is the same in any case. Copy words are put only where there are none. If the session has moved the object since
//! this Move read the slot, or an earlier owner has died, there can be some. A Move that finds other copy words goes on
//! out of place. All Moves put their copy words into the same places, so if all places have the words of one Move, none
//! has the words of another.

use super::attempt::{Attempt, AttemptMeans, InPlaceMove, post_header};
use super::copies::{CopyAllocation, free_copy};
use super::intent::{CannotBegin, Intent, WriteValue};
use super::moving::PairMove;
use crate::data::{ObjectLocation, PerCopy, Redundancy};
use crate::error::Error;
use crate::host::Host;
use crate::layout::{Chunk, Identity, Opcode, Pair, Slot};
use crate::mutant::{Mutant, passes, removed, right_or};
use crate::slab::Allocation;
use crate::store::Hint;
use crate::store::memory::is_frozen;
use crate::verbs::{Fabric, Ticket, Verb, VerbOp};

impl<F: Fabric, H: Host> PairMove<'_, '_, '_, F, H> {
    /// Begins an attempt that moves the pair in place. Returns `None` if the pair cannot be moved in place.
    pub(super) fn begin_in_place<'i>(
        &mut self,
        intent: &'i Intent<'i>,
        found: Hint,
    ) -> Option<Result<Attempt<'i>, CannotBegin>> {
        let word = found.word;
        let view = self.op.view.clone();
        let at = view.object_of(word)?;
        let of = match view.region_of(word.address())?.0.redundancy() {
            Redundancy::Oriented(of) => of,
            _ => return None,
        };
        let wanted = if word.turn().is_multiple_of(2) {
            Redundancy::Coded(of.coding())
        } else {
            Redundancy::Oriented(of)
        };
        let next = word.turn() + 1;
        if wanted != intent.slab.redundancy || is_frozen(&view, word.address()) {
            return None;
        }
        let opcode = self.opcode_read(at)?;
        if next >= Slot::TURNS {
            return None;
        }
        let turn = right_or(Mutant::TurnGoesBack, next, if next > 2 { next - 2 } else { next });
        if self.op.store.memory.is_offered(word.address()) {
            self.op.store.memory.take_back(&self.op.store.host);
            self.op.made_room = true;
        }
        let object = self.op.store.memory.begin_move(word, turn);
        #[cfg(feature = "mutants")]
        let object = object.or_else(|| stranger(word, turn, of));
        let object = object?;
        let mut attempt = Attempt::new(intent, Some(found), AttemptMeans::Object(object));
        attempt.in_place = Some(InPlaceMove { opcode, old_copies: PerCopy::new() });
        if intent.slab.turns() > 1 {
            let store = self.op.store;
            let copies = CopyAllocation { store, intent, least: self.least, view: &view };
            match copies.for_object(&object) {
                Ok(copies) => attempt.copies = copies,
                Err(why) => {
                    self.op.store.memory.end_move(&object);
                    return matches!(why, CannotBegin::NoRoom(_)).then_some(Err(why));
                }
            }
        }
        Some(Ok(attempt))
    }

    /// Returns the opcode of an object of which the last phase has read chunks. All its chunks have the same opcode.
    fn opcode_read(&self, at: ObjectLocation<'_>) -> Option<Opcode> {
        let columns = at.columns()?;
        let mut chunks = at.places().zip(columns.chunks()).filter_map(|(place, chunk)| {
            let is_of = |verb: &&Verb| (verb.node, verb.offset) == (place.node, place.offset);
            let verb = self.op.batch.verbs().iter().find(is_of)?;
            let VerbOp::Read { buf, .. } = verb.op else { return None };
            verb.result.ok()?;
            Chunk::decode(self.op.batch.bytes(buf), columns.coding(), (*chunk).into()).ok()
        });
        chunks.next().map(|chunk| chunk.opcode())
    }

    /// Writes, in one phase, everything that has to be complete before a slot gets the word of the next turn. Returns
    /// true if all of that is complete and the slot still shows the word to be replaced. Returns false if another Move
    /// has put its copy words first, or if the word was replaced before this Move began.
    pub(super) async fn write_in_place(
        &mut self,
        attempt: &mut Attempt<'_>,
        found: Hint,
        parity: bool,
    ) -> Result<bool, Error> {
        let Some(InPlaceMove { opcode, .. }) = attempt.in_place else { return Ok(true) };
        let copies: PerCopy<Identity> = attempt.copies.iter().map(Allocation::identity).collect();
        let word = found.word;
        let view = self.op.view.clone();
        let at = view.object_of(word).expect("it was read there");
        self.op.batch.clear();
        if let Some(object) = attempt.object() {
            post_header(self.op, object)?;
        }
        if !copies.is_empty() {
            attempt.post_copies(self.op)?;
            let put = at.put_copy_words(&mut self.op.batch, attempt.own_word(), &copies);
            let slot = self.op.read_slot(found.slot);
            self.op.phase().await;
            let stands = put.stands(&self.op.batch).map_err(|f| self.op.failed(f))?;
            return Ok(stands && self.still_shows(slot, word)?);
        }
        if parity {
            let Intent { key, value: WriteValue::Bytes(value), .. } = attempt.intent else {
                unreachable!("a Move has read its value")
            };
            let identity = at.identity_of(word);
            at.write_parity(&mut self.op.batch, &Pair { key, value, identity, opcode });
        }
        let words = at.read_copy_words(&mut self.op.batch, word);
        let slot = self.op.read_slot(found.slot);
        self.op.phase().await;
        if !self.still_shows(slot, word)? {
            return Ok(false);
        }
        // If a column did not answer, one of the copies is possibly not found. Then only a comparison with the index
        // frees that copy.
        let mut old_copies = words.named(&self.op.batch).known();
        if removed(Mutant::CopiesFreedBeforeCommit) {
            old_copies.drain(..).for_each(|copy| free_copy(self.op, copy));
        }
        attempt.in_place = Some(InPlaceMove { opcode, old_copies });
        Ok(true)
    }

    /// Returns whether the second READ of the slot, after the Move had begun, still shows the word to be replaced.
    fn still_shows(&self, slot: Ticket, word: Slot) -> Result<bool, Error> {
        let shown = self.op.slot_word(slot).map_err(|f| self.op.failed(f))?;
        Ok(passes(Mutant::MovesStaleInPlace, shown == word))
    }
}

/// Returns an allocation for a mutant, which moves an object in place although another session owns its block.
#[cfg(feature = "mutants")]
fn stranger(word: Slot, turn: u16, of: crate::data::Orientation) -> Option<Allocation> {
    use crate::slab::SlabKind;
    if !removed(Mutant::StrangerMovesInPlace) {
        return None;
    }
    let class = word.class().expect("it leads to an object");
    let kind = SlabKind { class, redundancy: Redundancy::Oriented(of) };
    let address = word.address();
    let generation = word.at_turn(turn).generation();
    Some(Allocation { address, kind, generation, header: None })
}
