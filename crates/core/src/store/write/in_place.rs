//! Moves in place: an EC-oriented object becomes erasure-coded, or the reverse, and stays where it is.
//!
//! ```text
//!               1  READ                  2  WRITE, READ                               3, 4
//! EOR -> EC     the slot, k data chunks  m parity chunks; copy words, the slot        as of every Move
//! EC -> EOR     the slot, k chunks       copies; CAS copy words; the slot             as of every Move
//! ```
//!
//! The word goes on to the next *turn* of the same object ([`Slot::turn`](crate::layout::Slot)), and never back: so
//! no word recurs. After the last turn, Moves are out of place.
//!
//! *Only the owner of the block moves in place.* The word of the next turn is the same for every writer, and two
//! writers of one round with one word would both take themselves for its winner. The owner can exclude that: a
//! session begins no second Move in place of an object while one runs. The block counts as one in which an operation
//! is under way, so no other session gets it meanwhile, and its header says that it is in use, so that recovery looks
//! for the word.
//!
//! *The slot is read once more* when the Move has begun: another Move of the session may have ended since phase 1,
//! and its word is the one that this Move would write. A Move that ended before this one began has replaced the word
//! that both have read, or has lost it to a writer that did; so the primary does not show that word any more. If this
//! READ shows another word, the Move goes on out of place.
//!
//! The bytes of the stripe do not change, so a round that is lost, or left half-way, leaves nothing to undo: parity
//! is the same in any case. Copy words are put where there are none, but there may be some: the session may have
//! moved the object since this Move has read the slot, or an earlier owner may have died. A Move that finds other
//! copy words goes on out of place. All Moves put their words into the same places, so if the words of one Move stand
//! in all of them, those of another stand in none.

use super::attempt::{Attempt, CannotBegin, InPlaceMove, Intent, WriteValue};
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
    /// Begins an attempt that moves the pair in place. `None` if the pair cannot be moved in place.
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
        let (block, _) = view.geometry.block_of(word.address())?;
        if wanted != intent.slab.redundancy || is_frozen(&view, block) {
            return None;
        }
        let opcode = self.opcode_read(at)?;
        if next >= Slot::TURNS {
            return None;
        }
        let turn = right_or(Mutant::TurnGoesBack, next, if next > 2 { next - 2 } else { next });
        if self.op.store.memory.is_offered(word.address()) {
            self.op.store.take_back();
            self.op.made_room = true;
        }
        let object = self.op.store.memory.begin_move(word, turn);
        #[cfg(feature = "mutants")]
        let object = object.or_else(|| stranger(word, turn, of));
        let object = object?;
        let mut attempt = Attempt::new(intent, Some(found), object);
        attempt.in_place = Some(InPlaceMove { opcode, old_copies: PerCopy::new() });
        if intent.slab.turns() > 1 {
            match self.op.store.allocate_copies(intent, &object, self.least, &view) {
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

    /// Writes everything that has to stand before the word of the next turn does, in one phase. Returns whether it
    /// stands, and the slot still shows the word that is to be replaced. It may not: another Move may have put its
    /// copy words first, or the word may have gone before this Move began.
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
        self.op.post_header(&attempt.object)?;
        if !copies.is_empty() {
            self.op.post_copies(attempt)?;
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
        // If a column does not answer, one of the copies may stay unknown here: it is left to a comparison.
        let mut old_copies = words.named(&self.op.batch).known();
        if removed(Mutant::CopiesFreedBeforeCommit) {
            old_copies.drain(..).for_each(|copy| self.op.free_copy(copy));
        }
        attempt.in_place = Some(InPlaceMove { opcode, old_copies });
        Ok(true)
    }

    /// Returns whether the slot, as it was read after the Move had begun, shows the word that the Move is to replace.
    fn still_shows(&self, slot: Ticket, word: Slot) -> Result<bool, Error> {
        let shown = self.op.slot_word(slot).map_err(|f| self.op.failed(f))?;
        Ok(passes(Mutant::MovesStaleInPlace, shown == word))
    }
}

/// Makes the allocation by which a mutant moves an object in a block of another session.
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
