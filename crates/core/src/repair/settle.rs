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
use crate::layout::{LOG_AREA_BYTES, LogRecord, Slot, log_area_offset, log_areas};
use crate::mutant::{Mutant, removed};
use crate::race::Key;
use crate::scrub::leads_here;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, MnId, Ticket, VerbBatch};
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
            let cost = &mut self.result.cost;
            let objects = self.view.objects_of(&words);
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
            let words = changes.iter().find(|change| change.slot == slot);
            let words = words.map(|change| change.words.clone()).expect("a slot that differs");
            if !self.is_deleted(word, &words, entries).await? {
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

    /// Returns whether a free word counts in a slot where other replicas show these `entries`, which lead to the given
    /// keys. A word that a split has put there does. A number does if a DELETE has put it there and possibly won: a
    /// session that read backups beside a barred primary has possibly answered "not found". Such a session saw free
    /// words on all backups, so an entry on a backup refutes the number. If only the primary shows the entry, the
    /// record decides, which lies beside each backup that shows the number.
    async fn is_deleted(
        &mut self,
        word: Slot,
        words: &PerSurvivor<Slot>,
        entries: &[(Slot, Vec<u8>)],
    ) -> Result<bool, RepairError> {
        if word.is_vacated() {
            return Ok(true);
        }
        let backups = &words[..words.len() - usize::from(self.has_primary)];
        let on_backup = backups.iter().any(|word| entries.iter().any(|(entry, _)| entry == word));
        if word.numbered_by().is_none() || on_backup {
            return Ok(false);
        }
        if removed(Mutant::NumberRefutedByPrimary) {
            return Ok(false);
        }
        let hash = Key::new(&entries[0].1, &self.view.hash_key).hash();
        let shown_by: PerSurvivor<MnId> = self
            .survivors
            .iter()
            .zip(backups)
            .filter(|(_, w)| **w == word)
            .map(|(p, _)| p.node)
            .collect();
        self.have_record(&shown_by, LogRecord { hash, number: word }).await
    }

    /// Returns whether a log area on one of these memory nodes contains this record. Reads all areas of the nodes,
    /// because this is rare, and a record of any session counts.
    async fn have_record(
        &mut self,
        nodes: &[MnId],
        record: LogRecord,
    ) -> Result<bool, RepairError> {
        self.batch.clear();
        let mut reads = PerSurvivor::new();
        for node in nodes {
            let lent = self.view.member(*node).map_or(0, |member| member.pool_bytes);
            let bytes = u64::from(log_areas(lent)) * LOG_AREA_BYTES;
            reads.push(self.batch.read(*node, log_area_offset(0), bytes as u32));
        }
        self.phase().await;
        for read in reads {
            if LogRecord::all_in(self.batch.data(read)?).any(|found| found == record) {
                return Ok(true);
            }
        }
        Ok(false)
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
