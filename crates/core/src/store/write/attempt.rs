//! An attempt to write: its object, and its progress ([`AttemptStep`]).
//!
//! ```text
//! UPDATE, DELETE    Begun -> ReadingHint or Looking -> Contending -> Committing
//!    speculative    Begun -> Speculated -> Contending -> Committing
//! Move              Begun -> Contending -> Committing
//! INSERT            Begun -> Looking -> Installing or Contending -+-> Confirming -> Contended -> Committing
//!                                                                 +-> Contended -> Withdrawing -> Mentioned
//!    one replica    Begun -> Looking -> Mentioned -> Contending -> Contended -+-> Committing
//!                                                                             +-> Withdrawing -> Mentioned
//! ```
//!
//! If the CASes of the backups alone do not win the round, the step after `Contending` or `Installing` is `Contended`,
//! where the round is decided or lost. After a wrong hint, a speculative write is at `Begun` again.
//!
//! [`AttemptStep`] is the only record of an attempt's progress: it names the phase that was posted last. The step
//! determines how the attempt goes on after that phase ([`uncontended`](super::uncontended)), and which round has to be
//! resolved if the phase is not answered ([`resolve`](crate::store::session::resolve)). Both drivers of a write
//! ([`write`](super), [`write_now`](super::write_now)) hold one attempt at a time; `write_now` hands its attempt over
//! to `write` between two phases.
//!
//! The object is written, with its log entry, before any other operation can learn its address. A DELETE has a number
//! and a record instead of an object. After an attempt has posted a CAS, the next attempt uses another object or
//! number, unless all CASes of the first attempt were answered and none succeeded. So every word that is put into a
//! slot is new.

use alloc::vec::Vec;
use core::mem;

use arrayvec::ArrayVec;

use super::copies::{CopyAllocation, copies_found, free_copy};
use super::find::KeyProof;
use super::intent::{CannotBegin, Intent, KeepRedundancy, WriteValue};
use crate::conflict_rules::Winner;
use crate::data::{ObjectLocation, PerCopy};
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::{Identity, Opcode, Pair, Slot};
use crate::mutant::{Mutant, guard, passes, removed, right_or};
use crate::race::BucketWords;
use crate::slab::{Allocation, SlabKind};
use crate::store::session::DeleteNumber;
use crate::store::{Hint, HintTrust, Store, StoreOp};
use crate::verbs::{Fabric, Span, Ticket, VerbBatch};
use crate::view::{MAX_REPLICAS, SlotRef, View};

/// One item for each backup of a slot, without heap allocation.
pub(super) type PerBackup<T> = ArrayVec<T, { MAX_REPLICAS - 1 }>;

/// One writer's part in a conflict round: the slot, the round's old word, and the writer's own word.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct WriteRound {
    pub slot: SlotRef,
    /// The word that the primary showed in the slot. Slot and word identify the round.
    pub old: Slot,
    /// The word that this writer tries to put on the backups.
    pub own: Slot,
}

impl WriteRound {
    /// Returns whether both words lead to one object, as in a Move in place. Then this writer must not free the object:
    /// the slot still shows one of the two words, or the writer that replaced this word frees the object.
    pub fn is_in_place(&self) -> bool {
        let are_entries = !self.own.is_free() && !self.old.is_free();
        are_entries && self.own.address() == self.old.address()
    }
}

/// The posted CASes of the backups, and for an INSERT the look behind the first CAS.
#[derive(Debug)]
pub(in crate::store) struct PostedRound {
    pub cases: PerBackup<Ticket>,
    pub look: Option<[Ticket; 2]>,
}

/// The READs that an attempt with a hint posts together with the WRITE of its object.
#[derive(Clone, Copy)]
pub(in crate::store) struct HintReads {
    pub slot: Ticket,
    pub proof: KeyProof,
}

/// The progress of an attempt of a write.
pub(in crate::store) enum AttemptStep {
    /// The attempt has posted no CAS that can execute, or all its CASes are answered and none has succeeded. So no slot
    /// shows a word of the attempt, or ever will.
    Begun,
    /// The WRITE of the object is posted, and the READs that show whether the hint is right.
    ReadingHint(HintReads),
    /// The WRITE of the object, the CASes of the backups, and the READ of the slot are posted. It is not known yet
    /// whether the round was still open when the operation began.
    Speculated(WriteRound, PostedRound, Ticket),
    /// Without a hint: the WRITE of the object and the READs of the key's buckets are posted.
    Looking([Ticket; 2]),
    /// The CASes of the slot's backups are posted.
    Contending(WriteRound, PostedRound),
    /// For a new key, the CASes of the backups of a free slot are posted: the own word is tentative, and a look is
    /// posted behind the first CAS. The spans hold the buckets as the primary showed them before.
    Installing(WriteRound, PostedRound, [Span; 2]),
    /// The tentative word has won, and no other slot has the key. The CASes that clear the word's tentative bit on the
    /// backups are posted.
    Confirming(WriteRound, PerBackup<Ticket>, Winner),
    /// The CASes of the backups are answered, and the word is not committed. Either the round is still being decided;
    /// or this writer has won it (an INSERT possibly still looks, or has just confirmed its word); or this writer has
    /// lost it, and waits for its end.
    Contended(WriteRound),
    /// The CAS of the slot's primary is posted, which commits the word.
    Committing(WriteRound, Ticket),
    /// The attempt is an INSERT that withdraws its tentative word.
    Withdrawing(WriteRound),
    /// A CAS has named the attempt's object, but there is no round to resolve: the word was withdrawn, or it is the
    /// tentative word of an INSERT with one index replica.
    Mentioned,
}

impl AttemptStep {
    /// Returns the round of the attempt, if a slot possibly shows the attempt's word.
    pub fn round(&self) -> Option<&WriteRound> {
        match self {
            AttemptStep::Begun
            | AttemptStep::ReadingHint(_)
            | AttemptStep::Looking(_)
            | AttemptStep::Mentioned => None,
            AttemptStep::Speculated(round, ..)
            | AttemptStep::Contending(round, _)
            | AttemptStep::Installing(round, ..)
            | AttemptStep::Confirming(round, ..)
            | AttemptStep::Contended(round)
            | AttemptStep::Committing(round, _)
            | AttemptStep::Withdrawing(round) => Some(round),
        }
    }

    /// Returns whether a CAS has possibly put the identity of the attempt's object into a slot.
    pub fn is_mentioned(&self) -> bool {
        !matches!(self, AttemptStep::Begun | AttemptStep::ReadingHint(_) | AttemptStep::Looking(_))
    }

    fn leads_to(&self, next: &AttemptStep) -> bool {
        use AttemptStep::*;
        match self {
            Begun => {
                matches!(
                    next,
                    ReadingHint(_) | Speculated(..) | Looking(_) | Contending(..) | Mentioned
                )
            }
            ReadingHint(_) => matches!(next, Begun | Contending(..) | Mentioned),
            Looking(_) => matches!(next, Begun | Contending(..) | Installing(..) | Mentioned),
            Speculated(..) => matches!(next, Begun | Contending(..)),
            Contending(..) => matches!(next, Contended(_) | Committing(..)),
            Installing(..) => matches!(next, Contended(_) | Confirming(..)),
            Confirming(..) => matches!(next, Contended(_)),
            Contended(_) => matches!(next, Confirming(..) | Committing(..) | Withdrawing(_)),
            Withdrawing(_) => matches!(next, Mentioned),
            Mentioned => matches!(next, Contending(..)),
            Committing(..) => false,
        }
    }
}

/// The object or number that an attempt has taken, and that makes its own word new.
#[derive(Clone, Copy)]
pub(in crate::store) enum AttemptMeans {
    /// The object to which the word refers.
    Object(Allocation),
    /// The number that is the word, of a DELETE.
    Number(DeleteNumber),
}

/// The additional state of an attempt that is a Move in place.
pub(in crate::store) struct InPlaceMove {
    /// The opcode that the object's chunks contain already.
    pub opcode: Opcode,
    /// The copies that belong to the replaced word. The Move frees them when it commits.
    pub old_copies: PerCopy<Identity>,
}

/// One attempt of a write, which ends with the write's result or is followed by another attempt.
pub(in crate::store) struct Attempt<'i> {
    pub intent: &'i Intent<'i>,
    /// The slot where the key possibly is.
    pub hint: Option<Hint>,
    /// Whether the slot of the hint held the hint's word.
    pub hint_held: bool,
    pub means: AttemptMeans,
    /// The allocated copies of an EC-oriented object. They belong to the attempt's word.
    pub copies: Vec<Allocation>,
    /// Set for a Move in place. Then the attempt's object is that of the old word.
    pub in_place: Option<InPlaceMove>,
    step: AttemptStep,
}

impl<'i> Attempt<'i> {
    /// Creates an attempt that has not posted anything yet.
    pub fn new(intent: &'i Intent<'i>, hint: Option<Hint>, means: AttemptMeans) -> Attempt<'i> {
        let copies = Vec::new();
        let in_place = None;
        let step = AttemptStep::Begun;
        Attempt { intent, hint, hint_held: false, means, copies, in_place, step }
    }

    /// Begins an attempt with an object to write, and with its copies if it has any; or with a number, if it deletes.
    #[inline]
    pub(super) fn begin<F: Fabric, H: Host>(
        store: &Store<F, H>,
        intent: &'i Intent<'i>,
        hint: Option<Hint>,
        least: u32,
        view: &View,
    ) -> Result<Attempt<'i>, CannotBegin> {
        if intent.opcode == Opcode::Delete {
            let number = store.deletes.take(intent.key, view).ok_or(CannotBegin::LacksLog)?;
            return Ok(Attempt::new(intent, hint, AttemptMeans::Number(number)));
        }
        let beside = best_beside(&store.fabric, hint, intent.slab, view);
        let object = store.memory.allocate(intent.slab, least, view, beside);
        let object = object.ok_or(CannotBegin::NoRoom(intent.slab))?;
        let mut attempt = Attempt::new(intent, hint, AttemptMeans::Object(object));
        if intent.slab.turns() > 1 {
            match (CopyAllocation { store, intent, least, view }).for_object(&object) {
                Ok(copies) => attempt.copies = copies,
                Err(why) => {
                    store.memory.give_back(&store.host, &object);
                    return Err(why);
                }
            }
        }
        Ok(attempt)
    }

    pub fn step(&self) -> &AttemptStep {
        &self.step
    }

    /// Notes that the attempt has posted its next step.
    pub fn enter_step(&mut self, step: AttemptStep) {
        debug_assert!(self.step.leads_to(&step), "a step that an attempt does not take");
        self.step = step;
    }

    /// Notes that the posted phase was not executed, or that none of its CASes succeeded.
    pub fn begins_again(&mut self) {
        self.enter_step(AttemptStep::Begun);
    }

    /// Notes that the verbs of the speculative write were answered, and that its round was open.
    pub fn speculated_right(&mut self) {
        let speculated = mem::replace(&mut self.step, AttemptStep::Begun);
        let AttemptStep::Speculated(round, posted, _) = speculated else {
            unreachable!("it speculated")
        };
        self.hint_held = true;
        self.step = AttemptStep::Contending(round, posted);
    }

    /// Notes that the CASes of the backups are answered, and do not decide the round alone. Returns the round, and
    /// the verbs that were posted.
    pub fn take_contended(&mut self) -> (WriteRound, PostedRound) {
        let (AttemptStep::Contending(round, posted) | AttemptStep::Installing(round, posted, _)) =
            mem::replace(&mut self.step, AttemptStep::Begun)
        else {
            unreachable!("it competes")
        };
        self.step = AttemptStep::Contended(round);
        (round, posted)
    }

    /// Notes that the attempt's word is confirmed on all backups. Returns the permission to commit.
    pub fn take_winner(&mut self) -> Winner {
        let AttemptStep::Confirming(round, _, winner) =
            mem::replace(&mut self.step, AttemptStep::Begun)
        else {
            unreachable!("it confirms")
        };
        self.step = AttemptStep::Contended(round);
        winner
    }

    /// Posts the WRITEs of the object and its copies, and of the header of each block whose header is not known to be
    /// written. Posts nothing for a DELETE, which has no object.
    pub(super) fn post_object<F: Fabric, H: Host>(
        &self,
        op: &mut StoreOp<'_, F, H>,
    ) -> Result<(), Error> {
        let Attempt { intent, means: AttemptMeans::Object(object), .. } = self else {
            return Ok(());
        };
        if object.header.is_some() {
            post_header(op, object)?;
        }
        let opcode = intent.opcode;
        let identity = object.identity();
        let at = object_at(&op.view, object)?;
        let value = match intent.value {
            WriteValue::Bytes(value) => value,
            WriteValue::Staged { object, value_bytes } => {
                let pair = Pair { key: &intent.key, value: &[], identity, opcode };
                write_around(at, &mut op.batch, &pair, object, value_bytes);
                return Ok(());
            }
        };
        let pair = Pair { key: &intent.key, value, identity, opcode };
        if self.copies.is_empty() {
            at.write(&mut op.batch, &pair);
            return Ok(());
        }
        let copies: PerCopy<Identity> = self.copies.iter().map(Allocation::identity).collect();
        at.write_oriented(&mut op.batch, &pair, &copies);
        self.post_copies(op)
    }

    /// Checks that all verbs of the phase that writes the object succeeded: all replicas must have the object before
    /// any other operation can learn of it. For a speculative write, this holds only for the nodes that show its word
    /// (`speculation.rs`).
    #[inline]
    pub(super) fn check_object_written<F: Fabric, H: Host>(
        &self,
        op: &mut StoreOp<'_, F, H>,
    ) -> Result<(), Error> {
        op.batch.check().map_err(|f| op.failed(f))?;
        let has_header = self.object().is_some_and(|object| object.header.is_some());
        if has_header || !self.copies.is_empty() {
            self.note_headers_written(op);
        }
        Ok(())
    }

    /// Notes that the headers of the attempt's blocks are written, if there were any to write.
    #[cold]
    fn note_headers_written<F: Fabric, H: Host>(&self, op: &StoreOp<'_, F, H>) {
        let memory = &op.store.memory;
        self.object()
            .into_iter()
            .chain(&self.copies)
            .for_each(|copy| memory.note_header_written(copy));
    }

    /// Ends an attempt, and its use of its object. If the outcome is unknown, the object stays in use and the session
    /// has to be recovered, because nothing else ever frees the object.
    #[inline]
    pub(super) fn end<F: Fabric, H: Host>(
        &self,
        op: &mut StoreOp<'_, F, H>,
        ended: &Result<AttemptEnd, Error>,
    ) {
        let is_known = match ended {
            Ok(_) => true,
            Err(error) => has_known_outcome(op, error),
        };
        if !guard(Mutant::IdentityUsedAgain, is_known) {
            return;
        }
        op.pin.end_object();
        match (&self.means, &self.in_place, self.step.is_mentioned()) {
            (AttemptMeans::Number(number), ..) => op.store.deletes.release(number),
            (AttemptMeans::Object(object), None, true) => op.store.memory.end_write(object),
            (AttemptMeans::Object(object), None, false) => {
                op.store.memory.give_back(&op.store.host, object);
            }
            (AttemptMeans::Object(object), Some(_), _) => op.store.memory.end_move(object),
        }
        if !self.copies.is_empty() || self.in_place.is_some() {
            self.end_copies(op, ended);
        }
        op.pin.end_hold();
    }

    /// Posts the WRITEs of an attempt's copies, and of the headers of their blocks.
    #[cold]
    pub(super) fn post_copies<F: Fabric, H: Host>(
        &self,
        op: &mut StoreOp<'_, F, H>,
    ) -> Result<(), Error> {
        let view = op.view.clone();
        for copy in &self.copies {
            post_header(op, copy)?;
            let at = view.object(copy.address, copy.kind.class.bytes());
            let at =
                at.ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })?;
            let Intent { key, value: WriteValue::Bytes(value), .. } = self.intent else {
                unreachable!("values of EC-oriented pairs are bytes")
            };
            let identity = copy.identity();
            let opcode = Opcode::Copy;
            at.write(&mut op.batch, &Pair { key, value, identity, opcode });
        }
        Ok(())
    }

    /// Ends the use of an attempt's copies. If the attempt's word was committed, the copies stay with it, and a Move in
    /// place frees the copies of the old word. Otherwise the attempt's copies are freed, or given back if no CAS has
    /// named the object.
    #[cold]
    pub(super) fn end_copies<F: Fabric, H: Host>(
        &self,
        op: &mut StoreOp<'_, F, H>,
        ended: &Result<AttemptEnd, Error>,
    ) {
        let stands = matches!(ended, Ok(AttemptEnd::Done(Some(_))));
        for copy in &self.copies {
            if !self.step().is_mentioned() {
                op.store.memory.give_back(&op.store.host, copy);
                continue;
            }
            op.store.memory.end_write(copy);
            if !stands {
                free_copy(op, copy.identity());
            }
        }
        let frees_old = passes(Mutant::CopiesFreedByLoser, stands);
        let old_copies = self.in_place.iter().flat_map(|in_place| &in_place.old_copies);
        for copy in old_copies.filter(|_| frees_old).take(copies_found()) {
            free_copy(op, *copy);
        }
    }

    /// Returns whether the slab of an attempt is right for the pair that was found, or for a new pair if none was
    /// found.
    pub(super) fn is_well_placed<F: Fabric, H: Host>(
        &self,
        op: &StoreOp<'_, F, H>,
        found: Option<Hint>,
    ) -> bool {
        let Intent { keeps, key, value, slab, .. } = self.intent;
        match (keeps, found) {
            (KeepRedundancy::No, _)
            | (KeepRedundancy::IfItExists | KeepRedundancy::Unless { .. }, None) => true,
            (KeepRedundancy::AsFound(_), Some(_)) if removed(Mutant::FirstFoundPlaces) => true,
            (KeepRedundancy::AsHinted(of_new) | KeepRedundancy::AsFound(of_new), None) => {
                *of_new == slab.redundancy
            }
            (keeps, Some(found)) => {
                // A value that cannot have the found pair's redundancy gets that of a new pair. If the hint was wrong,
                // the slab is neither's, but that of the pair to which the hint led.
                let of_new = match keeps {
                    KeepRedundancy::AsHinted(of_new) | KeepRedundancy::AsFound(of_new)
                        if !removed(Mutant::StaleHintPlaces) =>
                    {
                        *of_new
                    }
                    _ => slab.redundancy,
                };
                let kept = op.store.view.slab_of_word(found.word, key, value.len());
                let kept = kept.map(|kept| kept.redundancy);
                let view = op.store.view.borrow().number;
                let lacks_nodes = |redundancy: &_| {
                    *keeps == KeepRedundancy::Unless { redundancy: *redundancy, view }
                };
                kept.filter(|kept| !lacks_nodes(kept)).unwrap_or(of_new) == slab.redundancy
            }
        }
    }

    /// Returns the round in which a new key takes a free slot of `words`; `None` if no slot is free.
    #[inline]
    pub(super) fn round_on_new(&self, view: &View, words: &BucketWords) -> Option<WriteRound> {
        let (slot, old) = words.slot_for_new(view)?;
        let own = self.own_word();
        let is_alone = view.subtables[slot.subtable as usize].backups().is_empty();
        let is_plain = passes(Mutant::NeverTentative, is_alone);
        Some(WriteRound { slot, old, own: if is_plain { own } else { own.tentative() } })
    }

    /// Returns the attempt's object; `None` for a DELETE.
    #[inline]
    pub fn object(&self) -> Option<&Allocation> {
        match &self.means {
            AttemptMeans::Object(object) => Some(object),
            AttemptMeans::Number(_) => None,
        }
    }

    /// Returns the word that the attempt puts into the slot: the one that refers to its object, or its number.
    pub fn own_word(&self) -> Slot {
        let Attempt { intent, means, .. } = self;
        match means {
            AttemptMeans::Object(object) => {
                let fingerprint = intent.key.fingerprint();
                let class = object.kind.class;
                intent.opcode.puts(Slot::new(fingerprint, class, object.address, object.generation))
            }
            AttemptMeans::Number(number) => {
                right_or(Mutant::DeleteWritesZero, number.word, Slot(0))
            }
        }
    }

    /// Returns the round in which the attempt replaces the word of the key's slot.
    pub fn round_on(&self, found: Hint) -> WriteRound {
        WriteRound { slot: found.slot, old: found.word, own: self.own_word() }
    }
}

/// The way in which an attempt of a write has ended.
pub(in crate::store) enum AttemptEnd {
    /// The write is done. Contains the hint for the index cache, if there is one.
    Done(Option<Hint>),
    /// The write has to start again, with a new object or number: another writer has won, or a slot has changed since
    /// it was read.
    Retry,
    /// The attempt's object has another redundancy than the pair at this place, or, without a place, than a new pair
    /// should have. No CAS has named the object.
    Misplaced(Option<Hint>),
    /// The view changes while the attempt waits for another writer of its round.
    Suspended,
}

/// Writes an object around its staged value. Cold and not inlined, so that other writes do not pay for this case.
#[cold]
fn write_around(
    at: ObjectLocation<'_>,
    batch: &mut VerbBatch,
    pair: &Pair<'_>,
    object: Span,
    value_bytes: usize,
) {
    at.write_around(batch, pair, object, value_bytes);
}

/// Returns the places of an allocated object in this view.
fn object_at<'v>(view: &'v View, object: &Allocation) -> Result<ObjectLocation<'v>, Error> {
    view.object(object.address, object.kind.class.bytes())
        .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })
}

/// Posts the WRITEs of the header of an object's block, if the header is not known to be written.
#[cold]
pub(super) fn post_header<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    object: &Allocation,
) -> Result<(), Error> {
    if let Some((block, header)) = &object.header {
        let bytes = header.encode();
        let span = op.batch.stage(bytes.len() as u32);
        op.batch.bytes_mut(span).copy_from_slice(&bytes);
        let view = &op.view;
        let block = view
            .block(*block)
            .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })?;
        block.write_header(&mut op.batch, span);
    }
    Ok(())
}

/// Returns whether it is certain that the failed attempt has had no effect, and that none of its CASes and WRITEs
/// can still execute.
#[cold]
fn has_known_outcome<F: Fabric, H: Host>(op: &mut StoreOp<'_, F, H>, error: &Error) -> bool {
    if removed(Mutant::UnansweredReadsKeepObjects) && matches!(error, Error::Unreachable { .. }) {
        op.pin.end_object();
        return false;
    }
    op.pin.forget_lost();
    error.outcome() == FailedWriteOutcome::NotApplied && !op.pin.traces.is_on_its_way()
}

/// Returns the subtable of the hint's slot, if the write's object should lie [beside](crate::data::Region::lies_beside)
/// it, so that the write can begin speculatively. Returns `None` if the write cannot do that.
fn best_beside(
    fabric: &impl Fabric,
    hint: Option<Hint>,
    kind: SlabKind,
    view: &View,
) -> Option<u32> {
    let Hint { slot, seen: HintTrust::FreshSince(_), .. } = hint? else { return None };
    let may_lie_there = kind.redundancy.coding().is_none() && !fabric.is_immediate();
    let has_backups = !view.subtables.get(slot.subtable as usize)?.backups().is_empty();
    (may_lie_there && has_backups).then_some(slot.subtable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Address, SizeClass};
    use crate::verbs::ClientId;

    /// The bits of a number are possibly those of an address.
    #[test]
    fn only_entries_are_replaced_in_place() {
        let class = SizeClass::from_code(1).unwrap();
        let entry = |at, generation| Slot::new(1, class, Address::new(at), generation);
        let slot = SlotRef { subtable: 0, slot: 0 };
        let in_place = |old, own| WriteRound { slot, old, own }.is_in_place();
        let number = Slot::number(ClientId(1), 5 << 9);
        let same = entry(number.address().bytes(), 0);
        assert!(in_place(same, same.at_turn(1)) && !in_place(same, entry(1 << 20, 3)));
        assert!(!in_place(same, number) && !in_place(number, same.tentative()));
    }
}
