//! Damaged objects: a second look at one that is not what its slot says.
//!
//! Memory rots. An object that fails its CRC, or whose start shows another key, proves nothing: of a
//! slot's object every replica may be damaged but one. So before a word counts as *another key's* its
//! object has been read whole with a good CRC, and before it counts as *nobody's* all replicas have been.
//!
//! ```text
//! look     READ the slot again, and every replica of its object, whole           (1 phase, rare)
//! repair   WRITE the good replica over the bad ones                              (1 phase, rarer)
//! ```
//!
//! *The slot has changed*: what led here is out of date, the caller starts again. *It has not*: since
//! before the object was read the word has stood there, so the object was complete on all replicas, has
//! not been used again, and what fails its CRC is damaged. Any good replica answers. If none is good the
//! operation ends with an error: it must neither find nor miss the key. That says nothing of a replica that a
//! change has just made, and whose switch the session has not heard of.
//!
//! Damage is *repaired* where the word is the primary's, and not tentative. Such a word is committed;
//! its object stays as it is, whoever replaces the word, until this operation has ended, so the WRITE
//! puts bytes where the same bytes belong. A word that only backups show may be that of a speculative write, whose
//! object need not be elsewhere yet. Nothing is written by a view that changes: a change copies.
//! The WRITE counts as posted until it is answered: like a CAS, it must not execute after the
//! operation has ended, when the object may be another one.

use super::{BROKEN_WORD, Hint, Op};
use crate::data::Found;
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::stats::Damage;
use crate::verbs::{Fabric, MnId, Span};

/// What a second look has shown.
pub(super) enum SecondLook {
    /// It is the key's; with its value.
    Value(Span),
    /// It is another key's, certainly.
    OtherKey,
    /// The slot holds another word by now.
    Stale,
}

/// The same, of whichever key.
pub(super) enum Look {
    /// What it holds.
    Pair { key: Span, value: Span },
    /// Not the pair of the key that was looked for.
    OtherKey,
    /// The slot holds another word by now.
    Stale,
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Looks again at the object of a word that its slot has shown on this node.
    pub(super) async fn look_again(
        &mut self,
        hint: Hint,
        shown_on: MnId,
        key: Key<'_>,
    ) -> Result<SecondLook, Error> {
        Ok(match self.look_at_word(hint, shown_on, Some(key)).await? {
            Look::Pair { key: found, value } if self.batch.bytes(found) == &*key => {
                SecondLook::Value(value)
            }
            Look::Pair { .. } | Look::OtherKey => SecondLook::OtherKey,
            Look::Stale => SecondLook::Stale,
        })
    }

    /// The same, for whoever looks for this key, or for any.
    pub(super) async fn look_at_word(
        &mut self,
        hint: Hint,
        shown_on: MnId,
        key: Option<Key<'_>>,
    ) -> Result<Look, Error> {
        let Hint { slot, word, .. } = hint;
        let view = self.view.clone();
        let Some(object) = view.object_of(word) else { return Err(BROKEN_WORD) };
        let shown = view.slot_places(slot).find(|place| place.node == shown_on);
        let Some(shown) = shown else { return Ok(Look::Stale) };
        self.batch.next_phase();
        let slot_read = self.batch.read(shown.node, shown.offset, 8);
        let reads = object.read_all(&mut self.batch);
        self.phase().await;
        if self.slot_word(slot_read).map_err(|f| self.failed(f))? != word {
            return Ok(Look::Stale);
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
                // A speculative write by a newer view may have put the word there, whose object is whole on that node
                // alone: a replica of which this view knows nothing.
                return Ok(Look::Stale);
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
        Ok(Look::Pair { key, value })
    }

    /// Two phases, and one if something is repaired: of an EC-oriented object chunks are lost or damaged, and there
    /// is no parity instead. Any of its copies has the value.
    async fn look_at_copies(
        &mut self,
        word: Slot,
        shows: &Found,
        is_committed: bool,
        key: Option<Key<'_>>,
    ) -> Result<Look, Error> {
        const LOST: Error = Error::Corrupt { what: "of an EC-oriented object too little is left" };
        let (_, shown_key) = shows.part.ok_or(LOST)?;
        if key.is_some_and(|key| self.batch.bytes(shown_key) != &*key) {
            return Ok(Look::OtherKey);
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
        // What a silent node has is not lost.
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
        Ok(Look::Pair { key: shown_key, value })
    }

    /// One phase: writes a good replica over those that are damaged.
    async fn repair(&mut self, shows: &Found) -> Result<(), Error> {
        self.batch.next_phase();
        shows.mend(&mut self.batch);
        self.post_repair().await
    }

    /// One phase: what repairs something.
    async fn post_repair(&mut self) -> Result<(), Error> {
        let is_awaited = !removed(Mutant::RepairNotAwaited);
        let posted = core::mem::replace(&mut self.pin.posted, is_awaited);
        self.phase().await;
        self.pin.on_its_way &= is_awaited;
        self.batch.check().map_err(|f| self.failed(f))?;
        self.pin.posted = posted;
        Ok(())
    }

    fn note_damage(&self, damage: Damage) {
        self.store.counters.add_damage(damage);
        self.store.host.found_damage(damage);
    }
}
