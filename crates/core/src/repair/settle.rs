//! Settling, which gives all remaining replicas of each slot of a subtable one word: the one that `settled` chooses.
//!
//! If replicas differ, words that lead to nothing are excluded first. The object of the chosen word is completed before
//! the word is written ([`data`](crate::data)).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::outcome::{RepairError, TransformResult};
use crate::conflict_rules::settled_word;
use crate::data::{ObjectLocation, ReplicaContents, complete};
use crate::layout::{HEADER_BYTES, Object, Opcode, Slot};
use crate::mutant::{Mutant, removed};
use crate::scrub::leads_here;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, Ticket, VerbBatch};
use crate::view::{MAX_REPLICAS, PoolPlace, View};

/// The number of slots that one phase reads from each survivor.
const CHUNK_SLOTS: u64 = 8192;

/// Makes the remaining replicas of a subtable equal.
pub(super) async fn settle_subtable<F: Fabric>(
    fabric: &F,
    view: &View,
    subtable: u32,
    result: &mut TransformResult,
) -> Result<(), RepairError> {
    let replicas = view.subtables[subtable as usize].replicas();
    let has_primary = !view.is_without_primary(subtable);
    let mut survivors: Survivors = replicas.iter().copied().collect();
    // The survivors are in the order in which their slots are written, so the primary is the last of them.
    survivors.rotate_left(usize::from(has_primary));
    let mut repair = SubtableSettlement {
        fabric,
        view,
        subtable,
        survivors,
        has_primary,
        batch: VerbBatch::new(),
        result,
    };
    let slots = view.geometry.subtable_slots();
    let mut from = 0;
    while from < slots {
        let count = CHUNK_SLOTS.min(slots - from);
        repair.settle(from, count).await?;
        from += count;
    }
    Ok(())
}

/// One item for each survivor, in the order: the backups, then the primary.
type PerSurvivor<T> = ArrayVec<T, MAX_REPLICAS>;
type Survivors = PerSurvivor<PoolPlace>;

/// A slot whose replicas are possibly not equal.
struct SlotChange {
    /// The number of the slot in the subtable.
    slot: u64,
    /// The word that each survivor shows in the slot.
    words: PerSurvivor<Slot>,
    to: Slot,
}

struct SubtableSettlement<'r, F> {
    fabric: &'r F,
    view: &'r View,
    subtable: u32,
    survivors: Survivors,
    has_primary: bool,
    batch: VerbBatch,
    result: &'r mut TransformResult,
}

impl<'r, F: Fabric> SubtableSettlement<'r, F> {
    async fn phase(&mut self) {
        let batch = core::mem::take(&mut self.batch);
        self.batch = self.fabric.execute(batch).await;
        self.result.cost.add_batch(&self.batch);
    }

    /// Reads a range of slots from all survivors and makes them equal.
    async fn settle(&mut self, from: u64, count: u64) -> Result<(), RepairError> {
        self.batch.clear();
        let mut reads = PerSurvivor::new();
        for place in &self.survivors {
            reads.push(self.batch.read(place.node, place.offset + from * 8, count as u32 * 8));
        }
        self.phase().await;
        let mut changes = self.changes(from, count, &reads)?;
        if !removed(Mutant::SettlesOnDamage) {
            self.refute(&mut changes).await?;
        }
        self.result.slots_changed += changes.len() as u64;
        if !removed(Mutant::SettlingDoesNotComplete) {
            let words: Vec<Slot> = changes.iter().map(|change| change.to).collect();
            let logs = self.logs_of(&words).await?;
            let cost = &mut self.result.cost;
            let objects = self.view.objects_of(&words).chain(logs);
            self.result.bytes_copied += complete(self.fabric, objects, cost).await?;
        }
        for changes in changes.chunks(MAX_BATCH_VERBS / MAX_REPLICAS) {
            let backups = self.survivors.len() - usize::from(self.has_primary);
            // Readers read the primary, so a word has to be on all backups before the primary shows it.
            let mut order = [0..backups, backups..self.survivors.len()];
            if removed(Mutant::SettlesPrimaryFirst) {
                order.reverse();
            }
            for survivors in order {
                self.write(changes, survivors).await?;
            }
        }
        Ok(())
    }

    /// Returns the slots for which a survivor shows another word than the settled one.
    fn changes(
        &self,
        from: u64,
        count: u64,
        reads: &[Ticket],
    ) -> Result<Vec<SlotChange>, FailedVerb> {
        let mut replicas = PerSurvivor::<&[u8]>::new();
        for read in reads {
            replicas.push(self.batch.data(*read)?);
        }
        let word = |bytes: &[u8], i: usize| {
            Slot(u64::from_le_bytes(bytes[i * 8..][..8].try_into().expect("8 bytes")))
        };
        let mut changes = Vec::new();
        for i in 0..count as usize {
            let words: PerSurvivor<Slot> = replicas.iter().map(|bytes| word(bytes, i)).collect();
            let to = self.settled(&words, |_| true);
            if words.iter().any(|w| *w != to) {
                changes.push(SlotChange { slot: from + i as u64, words, to });
            }
        }
        Ok(changes)
    }

    /// Returns the word to which a slot is settled, chosen by those of its words for which `counts` is true, or by all
    /// of them if it is true for none.
    fn settled(&self, words: &PerSurvivor<Slot>, counts: impl Fn(Slot) -> bool) -> Slot {
        let (primary, backups) = match words.split_last() {
            Some((primary, backups)) if self.has_primary => (Some(*primary), backups),
            _ => (None, &words[..]),
        };
        let counting: PerSurvivor<Slot> = backups.iter().copied().filter(|w| counts(*w)).collect();
        match (counting.is_empty(), primary.filter(|word| counts(*word))) {
            (true, None) => settled_word(primary, backups, 0),
            (_, primary) => settled_word(primary, &counting, 0),
        }
    }

    /// Excludes, from slots that differ, words that lead to nothing. Only damage makes such a word, because a writer's
    /// object is complete on one of its replicas before any replica of the slot contains the word. If a replica has a
    /// confirmed entry, also excludes free words that no DELETE, withdrawal or split has put in the entry's place.
    async fn refute(&mut self, changes: &mut Vec<SlotChange>) -> Result<(), RepairError> {
        let mut refuted: BTreeSet<(u64, u64)> = BTreeSet::new();
        let differ =
            |change: &&SlotChange| change.words.iter().any(|word| *word != change.words[0]);
        let entries = changes.iter().filter(differ).flat_map(|change| {
            let words: BTreeSet<u64> = change.words.iter().map(|word| word.0).collect();
            words.into_iter().map(|word| (change.slot, Slot(word)))
        });
        let (free, entries): (Vec<_>, Vec<_>) = entries.partition(|(_, word)| word.is_free());
        let mut confirmed: BTreeMap<u64, Vec<(Slot, Vec<u8>)>> = BTreeMap::new();
        for (slot, word) in entries {
            let view = self.view;
            let slot_number = slot as u32;
            let leads = |shown: &ReplicaContents<'_>| leads_here(view, slot_number, word, shown);
            let key = match view.object_of(word) {
                Some(object) => self.key_of(object, word, leads).await?,
                // The word's pair was lost with its node, so the word did lead to an object.
                None if view.leads_to_lost(word) => continue,
                None => None,
            };
            match key {
                None => drop(refuted.insert((slot, word.0))),
                Some(_) if word.is_tentative() => {}
                Some(key) => confirmed.entry(slot).or_default().push((word, key)),
            }
        }
        for (slot, word) in free {
            let Some(entries) = confirmed.get(&slot) else { continue };
            let withdraws = |(entry, _): &(Slot, _)| entry.identity() == word.identity();
            if removed(Mutant::FreeWordsCount) || entries.iter().any(withdraws) {
                continue;
            }
            if !self.is_deleted(word, &entries[0].1).await? {
                refuted.insert((slot, word.0));
            }
        }
        if !refuted.is_empty() {
            for change in changes.iter_mut() {
                let counts = |word: Slot| !refuted.contains(&(change.slot, word.0));
                change.to = self.settled(&change.words, counts);
            }
            changes.retain(|change| change.words.iter().any(|word| *word != change.to));
        }
        Ok(())
    }

    /// Returns the key of a word's object, if some part of the object is good and passes the check `holds`.
    async fn key_of(
        &mut self,
        object: ObjectLocation<'_>,
        word: Slot,
        holds: impl Fn(&ReplicaContents<'_>) -> bool,
    ) -> Result<Option<Vec<u8>>, RepairError> {
        self.batch.clear();
        let reads = object.read_all(&mut self.batch);
        self.phase().await;
        let found = reads.judge(&mut self.batch, word, holds).answered()?;
        // A good part of the object proves the object's key.
        Ok(found.part.map(|(_, key)| self.batch.bytes(key).to_vec()))
    }

    /// Whether a free word has replaced an entry of this key. Either a split has put the word there, or a DELETE, whose
    /// log object is complete on one of its replicas before any slot contains the word, and stays as long as a slot
    /// contains the word.
    async fn is_deleted(&mut self, word: Slot, key: &[u8]) -> Result<bool, RepairError> {
        if word.is_vacated() {
            return Ok(true);
        }
        let class = Object::class(key.len(), 0);
        let (Some(class), Some(at)) = (class, word.object()) else { return Ok(false) };
        let Some(object) = self.view.object(at, class.bytes()) else { return Ok(false) };
        let is_log =
            |shown: &ReplicaContents<'_>| shown.opcode == Some(Opcode::Delete) && shown.key == key;
        Ok(self.key_of(object, word, is_log).await?.is_some())
    }

    /// Returns the log objects of the free words in the list. Log objects can be incomplete, because DELETEs can be
    /// speculative. A free word does not tell the length of its object, but the object's header does, on any place that
    /// has it. The result has an item for each length that a header shows; the right length is one of them.
    async fn logs_of(
        &mut self,
        words: &[Slot],
    ) -> Result<Vec<(Slot, ObjectLocation<'r>)>, RepairError> {
        let view = self.view;
        let start = |word: &Slot| Some((*word, view.object(word.object()?, HEADER_BYTES)?));
        let free =
            words.iter().filter(|word| word.is_free() && !removed(Mutant::SettlingForgetsLogs));
        let starts: Vec<_> =
            free.filter_map(start).filter(|(_, object)| object.may_be_incomplete()).collect();
        let mut logs = Vec::new();
        for starts in starts.chunks(MAX_BATCH_VERBS / MAX_REPLICAS) {
            self.batch.clear();
            let read = |(word, object): &(Slot, ObjectLocation<'_>)| {
                (*word, object.read_all(&mut self.batch))
            };
            let reads: Vec<_> = starts.iter().map(read).collect();
            self.phase().await;
            for (word, reads) in reads {
                let at = word.object().expect("it keeps one");
                let sizes = reads.sizes(&self.batch, word)?;
                logs.extend(
                    sizes.iter().filter_map(|bytes| Some((word, view.object(at, *bytes)?))),
                );
            }
        }
        Ok(logs)
    }

    /// Changes, in one phase, the words of these slots on the survivors that show other words. Executes no phase if no
    /// word has to change.
    async fn write(
        &mut self,
        changes: &[SlotChange],
        survivors: core::ops::Range<usize>,
    ) -> Result<(), RepairError> {
        self.batch.clear();
        let mut cases = Vec::new();
        for change in changes {
            for i in survivors.clone().filter(|i| change.words[*i] != change.to) {
                let place = self.survivors[i];
                let word = change.words[i];
                let at = place.offset + change.slot * 8;
                cases.push((change, word, self.batch.cas(place.node, at, word.0, change.to.0)));
            }
        }
        if cases.is_empty() {
            return Ok(());
        }
        self.phase().await;
        for (change, word, ticket) in cases {
            if self.batch.found(ticket)? != word.0 {
                let subtable = self.subtable;
                let slot = change.slot;
                return Err(RepairError::NotFrozen { subtable, slot });
            }
        }
        Ok(())
    }
}
