//! Damaged objects: the re-read of an object that is not what its slot says.
//!
//! Memory rots. An object that fails its CRC, or whose start shows another key, proves nothing: all replicas but one
//! of a slot's object may be damaged. So before a word counts as *another key's*, its object has been read whole with
//! a good CRC; and before it counts as *no key's*, all replicas have been read whole.
//!
//! ```text
//! look     READ the slot again, and every replica of its object, whole           (1 phase, rare)
//! repair   WRITE the good replica over the bad ones                              (1 phase, rarer)
//! ```
//!
//! *If the slot has changed*, the word is out of date, and the caller starts again. *If it has not*, the word has
//! stood there since before the object was read. So the object was complete on all replicas and has not been reused,
//! and a replica that fails its CRC is damaged. Any good replica gives the answer. If none is good, the operation
//! ends with an error: it must neither find nor miss the key. This says nothing about a replica that a change has
//! just made, if the session has not heard of that change's switch.
//!
//! Damage is *repaired* if the word is the primary's and not tentative. Such a word is committed. Its object stays as
//! it is until this operation has ended, even if another writer replaces the word: so the WRITE puts bytes where the
//! same bytes belong. A word that only backups show may belong to a speculative write, whose object need not be on
//! other nodes yet. The WRITE counts as posted until it is answered: like a CAS, it must not execute after the
//! operation has ended, when another object may stand there.

use super::{BROKEN_WORD, Hint, StoreOp};
use crate::data::ObjectReadResult;
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::stats::Damage;
use crate::verbs::{Fabric, MnId, Span};

/// The result of a re-read for one key.
pub(super) enum KeyReread {
    /// The object is the key's; with its value.
    Value(Span),
    /// The object is certainly another key's.
    OtherKey,
    /// The slot holds another word by now.
    Stale,
}

/// The result of a re-read for one key, or for any.
pub(super) enum PairReread {
    /// The pair that the object holds.
    Pair { key: Span, value: Span },
    /// The pair is not that of the wanted key.
    OtherKey,
    /// The slot holds another word by now.
    Stale,
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Re-reads the object of a word that its slot has shown on this node.
    pub(super) async fn look_again(
        &mut self,
        hint: Hint,
        shown_on: MnId,
        key: Key<'_>,
    ) -> Result<KeyReread, Error> {
        Ok(match self.look_at_word(hint, shown_on, Some(key)).await? {
            PairReread::Pair { key: found, value } if self.batch.bytes(found) == &*key => {
                KeyReread::Value(value)
            }
            PairReread::Pair { .. } | PairReread::OtherKey => KeyReread::OtherKey,
            PairReread::Stale => KeyReread::Stale,
        })
    }

    /// Re-reads the object of a word for a reader of this key, or of any key.
    pub(super) async fn look_at_word(
        &mut self,
        hint: Hint,
        shown_on: MnId,
        key: Option<Key<'_>>,
    ) -> Result<PairReread, Error> {
        let Hint { slot, word, .. } = hint;
        let view = self.view.clone();
        let Some(object) = view.object_of(word) else { return Err(BROKEN_WORD) };
        let shown = view.slot_places(slot).find(|place| place.node == shown_on);
        let Some(shown) = shown else { return Ok(PairReread::Stale) };
        self.batch.next_phase();
        let slot_read = self.batch.read(shown.node, shown.offset, 8);
        let reads = object.read_all(&mut self.batch);
        self.phase().await;
        if self.slot_word(slot_read).map_err(|f| self.failed(f))? != word {
            return Ok(PairReread::Stale);
        }
        let shows = reads.judge(&mut self.batch, word, |_| true);
        let is_committed = shown_on == self.primary(slot).node
            && !self.view.is_without_primary(slot.subtable)
            && !word.is_tentative()
            || removed(Mutant::RepairsUncommitted);
        let found = shows.damaged() as u64;
        let Some(whole) = &shows.whole else {
            if object.has_copy(word) && shows.part.is_some() {
                return self.look_at_copies(word, &shows, is_committed, key).await;
            }
            if is_committed {
                self.note_damage(Damage { found, repaired: 0 });
            } else if object.places().all(|place| place.node != shown_on)
                && !removed(Mutant::NewerViewIsDamage)
            {
                // A speculative write by a newer view may have put the word there. Its object is whole on that node
                // alone, in a replica that this view does not know.
                return Ok(PairReread::Stale);
            }
            let damaged = Error::Corrupt { what: "too little of an object is undamaged" };
            return Err(shows.silent.map_or(damaged, |failure| self.failed(failure)));
        };
        let key = whole.key;
        let value = whole.value;
        if is_committed && found > 0 {
            let may_write = !removed(Mutant::DamageStays);
            if may_write {
                self.repair(&shows).await?;
            }
            self.note_damage(Damage { found, repaired: if may_write { found } else { 0 } });
        }
        Ok(PairReread::Pair { key, value })
    }

    /// Reads the value from a copy. Some chunks of the EC-oriented object are lost or damaged, and there is no
    /// parity, but each of its copies has the value. Takes two phases, and one more for a repair.
    async fn look_at_copies(
        &mut self,
        word: Slot,
        shows: &ObjectReadResult,
        is_committed: bool,
        key: Option<Key<'_>>,
    ) -> Result<PairReread, Error> {
        const LOST: Error = Error::Corrupt { what: "of an EC-oriented object too little is left" };
        let (_, shown_key) = shows.part.ok_or(LOST)?;
        if key.is_some_and(|key| self.batch.bytes(shown_key) != &*key) {
            return Ok(PairReread::OtherKey);
        }
        let view = self.view.clone();
        let object = view.object_of(word).ok_or(LOST)?;
        self.batch.next_phase();
        let words = object.read_copy_words(&mut self.batch, word);
        self.phase().await;
        let copies = words.named(&self.batch);
        let place_of = |address, bytes| view.object(address, bytes)?.places().next();
        self.batch.next_phase();
        let reads = shows.read_copies(&mut self.batch, &copies, &place_of);
        if !reads.is_empty() {
            self.phase().await;
        }
        let value = shows.value_of_copies(&self.batch, &copies, &reads);
        let value = value.map_err(|f| self.failed(f))?;
        // Data on a silent node is not lost.
        let silent = shows.silent.filter(|_| !removed(Mutant::SilentChunkIsLost));
        let value = value.ok_or_else(|| silent.map_or(LOST, |failure| self.failed(failure)))?;
        let found = shows.damaged() as u64;
        if is_committed && found > 0 {
            let may_write = !removed(Mutant::DamageStays);
            if may_write {
                self.batch.next_phase();
                shows.mend_by_copy(&mut self.batch, object, (word, &copies), value);
                self.post_repair().await?;
            }
            self.note_damage(Damage { found, repaired: if may_write { found } else { 0 } });
        }
        Ok(PairReread::Pair { key: shown_key, value })
    }

    /// Writes a good replica over the damaged ones, in one phase.
    async fn repair(&mut self, shows: &ObjectReadResult) -> Result<(), Error> {
        self.batch.next_phase();
        shows.mend(&mut self.batch);
        self.post_repair().await
    }

    /// Executes the WRITEs of a repair: one phase.
    async fn post_repair(&mut self) -> Result<(), Error> {
        let is_awaited = !removed(Mutant::RepairNotAwaited);
        let before = self.pin.traces.begin_repair(is_awaited);
        self.phase().await;
        if !is_awaited {
            self.pin.traces.clear_on_its_way();
        }
        self.batch.check().map_err(|f| self.failed(f))?;
        self.pin.traces.restore_posted(before);
        Ok(())
    }

    fn note_damage(&self, damage: Damage) {
        self.store.counters.add_damage(damage);
        self.store.host.report_damage(damage);
    }
}
