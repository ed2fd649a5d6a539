//! Damaged objects: the *re-read* of an object that does not match its slot word, and its repair.
//!
//! An object that fails its CRC, or whose start shows another key, proves nothing, because possibly this replica is
//! damaged and another one is not. So before an operation takes a word for another key's, it has READ the word's object
//! whole, with a good CRC. Before it gives an object up as damaged, it has READ all replicas of the object whole.
//!
//! ```text
//! re-read  READ the slot again, and every replica of its object, whole           (1 phase, rare)
//! repair   WRITE the good replica over the bad ones                              (1 phase, rarer)
//! ```
//!
//! *If the slot has changed*, the word is outdated, and the caller starts again. *If the slot is unchanged*, it has
//! shown the word since before the object was read. So the object was complete on all replicas and has not been reused,
//! and a replica that fails its CRC is damaged. Any good replica shows whether the object is the key's. If no replica
//! is good, the operation ends with an error, because it can report the key neither as found nor as missing. There is
//! one exception: if a session of a newer view has written the word speculatively, the object is possibly whole only in
//! a replica that this view does not have. Then the caller starts again, too.
//!
//! The operation *repairs* damaged replicas if the primary shows the word and the word is not tentative, because such a
//! word is committed. Its object stays as it is until this operation ends, even if another writer replaces the word.
//! Therefore the WRITE puts bytes only where the same bytes belong. A word that only backups show can belong to a
//! speculative write, whose object need not be on other nodes yet. The WRITE counts as posted until it is answered:
//! like a CAS, it must not execute after the operation has ended, when another object is possibly at that address.

use crate::data::ObjectReadResult;
use crate::error::Error;
use crate::host::Host;
use crate::mutant::{Mutant, guard, removed};
use crate::race::Key;
use crate::stats::Damage;
use crate::store::{BROKEN_WORD, Hint, StoreOp};
use crate::verbs::{Fabric, MnId, Span, VerbBatch};

/// The result of a re-read for one key.
pub(in crate::store) enum KeyReread {
    /// The object belongs to the key. Contains the place of the value in the batch.
    Value(Span),
    /// The object certainly belongs to another key.
    OtherKey,
    /// The slot contains another word by now.
    Stale,
}

/// The result of a re-read, whether for one key or for any key.
pub(super) enum PairReread {
    /// The pair that the object contains. The spans are its key and its value in the batch.
    Pair { key: Span, value: Span },
    /// The object certainly belongs to another key.
    OtherKey,
    /// The slot contains another word by now.
    Stale,
}

/// Re-reads the object of a hint's word, for a reader of this key. `shown_on` is the node on which the slot has shown
/// the word.
pub(in crate::store) async fn reread_for_key<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    hint: Hint,
    shown_on: MnId,
    key: Key<'_>,
) -> Result<KeyReread, Error> {
    Ok(match (Reread { op, hint, shown_on, key: Some(key) }).run().await? {
        PairReread::Pair { key: found, value } if op.batch.bytes(found) == &*key => {
            KeyReread::Value(value)
        }
        PairReread::Pair { .. } | PairReread::OtherKey => KeyReread::OtherKey,
        PairReread::Stale => KeyReread::Stale,
    })
}

/// Re-reads the object of a hint's word, for a reader of any key. `shown_on` is the node on which the slot has shown
/// the word.
pub(super) async fn reread_pair<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    hint: Hint,
    shown_on: MnId,
) -> Result<PairReread, Error> {
    Reread { op, hint, shown_on, key: None }.run().await
}

/// The re-read of the object of a word, as a part of an operation.
struct Reread<'o, 's, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    hint: Hint,
    /// The node from which the slot's word was read.
    shown_on: MnId,
    /// The key that the operation looks for; `None` if the object of any key is wanted.
    key: Option<Key<'o>>,
}

impl<F: Fabric, H: Host> Reread<'_, '_, F, H> {
    async fn run(&mut self) -> Result<PairReread, Error> {
        let Hint { slot, word, .. } = self.hint;
        let shown_on = self.shown_on;
        let op = &mut *self.op;
        let view = op.view.clone();
        let Some(object) = view.object_of(word) else { return Err(BROKEN_WORD) };
        let shown = view.slot_places(slot).find(|place| place.node == shown_on);
        let Some(shown) = shown else { return Ok(PairReread::Stale) };
        op.batch.next_phase();
        let slot_read = op.batch.read(shown.node, shown.offset, 8);
        let reads = object.read_all(&mut op.batch);
        op.phase().await;
        if op.slot_word(slot_read).map_err(|f| op.failed(f))? != word {
            return Ok(PairReread::Stale);
        }
        let shows = reads.judge(&mut op.batch, word, |_| true);
        let is_committed = self.is_committed();
        let found = shows.damaged() as u64;
        let Some(whole) = &shows.whole else {
            if object.has_copy(word) && shows.part.is_some() {
                return self.read_copies(&shows).await;
            }
            if is_committed {
                self.note_damage(Damage { found, repaired: 0 });
            } else {
                let is_elsewhere = object.places().all(|place| place.node != shown_on);
                // Possibly a speculative write of a session in a newer view has put the word on the node `shown_on`.
                // Then the object is possibly whole on that node alone, in a replica that this view does not have.
                if guard(Mutant::NewerViewIsDamage, is_elsewhere) {
                    return Ok(PairReread::Stale);
                }
            }
            let damaged = Error::Corrupt { what: "too little of an object is undamaged" };
            return Err(shows.silent.map_or(damaged, |failure| self.op.failed(failure)));
        };
        let pair = PairReread::Pair { key: whole.key, value: whole.value };
        if is_committed && found > 0 {
            let mend = |batch: &mut VerbBatch| {
                shows.mend(batch);
            };
            self.repair(found, mend).await?;
        }
        Ok(pair)
    }

    /// Returns whether the word is known to be committed, so that its object can be repaired.
    fn is_committed(&self) -> bool {
        let Hint { slot, word, .. } = self.hint;
        let is_committed = self.shown_on == self.op.primary(slot).node
            && !self.op.view.is_without_primary(slot.subtable)
            && !word.is_tentative();
        is_committed || removed(Mutant::RepairsUncommitted)
    }

    /// Reads the value from one of the object's copies, for an EC-oriented object at an even turn that has too few good
    /// chunks: such an object has no parity, but each copy has the whole value. Takes two phases, and one more for a
    /// repair.
    async fn read_copies(&mut self, shows: &ObjectReadResult) -> Result<PairReread, Error> {
        const LOST: Error = Error::Corrupt { what: "of an EC-oriented object too little is left" };
        let word = self.hint.word;
        let is_committed = self.is_committed();
        let op = &mut *self.op;
        let (_, shown_key) = shows.part.ok_or(LOST)?;
        if self.key.is_some_and(|key| op.batch.bytes(shown_key) != &*key) {
            return Ok(PairReread::OtherKey);
        }
        let view = op.view.clone();
        let object = view.object_of(word).ok_or(LOST)?;
        op.batch.next_phase();
        let words = object.read_copy_words(&mut op.batch, word);
        op.phase().await;
        let copies = words.named(&op.batch);
        let place_of = |address, bytes| view.object(address, bytes)?.places().next();
        op.batch.next_phase();
        let reads = shows.read_copies(&mut op.batch, &copies, &place_of);
        if !reads.is_empty() {
            op.phase().await;
        }
        let value = shows.value_of_copies(&op.batch, &copies, &reads);
        let value = value.map_err(|f| op.failed(f))?;
        // A chunk on a silent node is not lost, so the error is that the node did not answer.
        let silent = shows.silent.filter(|_| !removed(Mutant::SilentChunkIsLost));
        let value = value.ok_or_else(|| silent.map_or(LOST, |failure| op.failed(failure)))?;
        let found = shows.damaged() as u64;
        if is_committed && found > 0 {
            let mend = |batch: &mut VerbBatch| {
                shows.mend_by_copy(batch, object, word, &copies, value);
            };
            self.repair(found, mend).await?;
        }
        Ok(PairReread::Pair { key: shown_key, value })
    }

    /// Overwrites the damaged places, `found` in number, by the WRITEs that `mend` posts. Takes one phase.
    async fn repair(&mut self, found: u64, mend: impl FnOnce(&mut VerbBatch)) -> Result<(), Error> {
        if removed(Mutant::DamageStays) {
            self.note_damage(Damage { found, repaired: 0 });
            return Ok(());
        }
        let op = &mut *self.op;
        op.batch.next_phase();
        mend(&mut op.batch);
        let is_awaited = !removed(Mutant::RepairNotAwaited);
        let before = op.pin.traces.begin_repair(is_awaited);
        op.phase().await;
        if !is_awaited {
            op.pin.traces.clear_on_its_way();
        }
        op.batch.check().map_err(|f| op.failed(f))?;
        op.pin.traces.restore_posted(before);
        self.note_damage(Damage { found, repaired: found });
        Ok(())
    }

    fn note_damage(&self, damage: Damage) {
        let store = self.op.store;
        store.counters.add_damage(damage);
        store.host.report_damage(damage);
    }
}
