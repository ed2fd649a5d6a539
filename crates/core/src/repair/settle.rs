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
use crate::layout::{BARS_BYTES, HeaderWord, Slot, has_bar};
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
        is_barred: None,
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
    /// Whether a surviving backup bars the primary; `None` if that is not read yet. In a view that changes, no session
    /// bars anything.
    is_barred: Option<bool>,
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
        let mut confirmed: BTreeMap<u64, Vec<Slot>> = BTreeMap::new();
        for (slot, word) in entries {
            let view = self.view;
            let slot_number = slot as u32;
            let leads = |shown: &ReplicaContents<'_>| leads_here(view, slot_number, word, shown);
            let leads = match view.object_of(word) {
                Some(object) => self.has_good_part(object, word, leads).await?,
                // The word's pair was lost with its node, so the word did lead to an object.
                None if view.leads_to_lost(word) => continue,
                None => false,
            };
            if !leads {
                refuted.insert((slot, word.0));
            } else if !word.is_tentative() {
                confirmed.entry(slot).or_default().push(word);
            }
        }
        for (slot, word) in free {
            let Some(entries) = confirmed.get(&slot) else { continue };
            let withdraws = |entry: &Slot| entry.identity() == word.identity();
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

    /// Returns whether some part of a word's object is good and passes the check `holds`.
    async fn has_good_part(
        &mut self,
        object: ObjectLocation<'_>,
        word: Slot,
        holds: impl Fn(&ReplicaContents<'_>) -> bool,
    ) -> Result<bool, RepairError> {
        self.batch.clear();
        let reads = object.read_all(&mut self.batch);
        self.phase().await;
        let found = reads.judge(&mut self.batch, word, holds).answered()?;
        Ok(found.part.is_some())
    }

    /// Returns whether a free word counts in a slot where other replicas show one of these `entries`. The word of a
    /// split does. A number counts if the primary alone shows the entry, and is barred: a session that read the backups
    /// beside the primary has possibly answered that the key does not exist.
    ///
    /// Without a bar, both choices are right, because the DELETE is not acknowledged. The entry is chosen, because a
    /// damaged word can look like a number.
    async fn is_deleted(
        &mut self,
        word: Slot,
        words: &PerSurvivor<Slot>,
        entries: &[Slot],
    ) -> Result<bool, RepairError> {
        if word.is_vacated() {
            return Ok(true);
        }
        let backups = words.len() - usize::from(self.has_primary);
        let on_backup = words[..backups].iter().any(|word| entries.contains(word));
        if word.numbered_by().is_none() || on_backup || removed(Mutant::NumberRefutedByPrimary) {
            return Ok(false);
        }
        if self.is_barred.is_none() {
            self.is_barred = Some(self.is_primary_barred().await?);
        }
        Ok(self.is_barred == Some(true))
    }

    /// Returns whether a surviving backup bars the primary. All backups that were read beside a barred primary bar it
    /// until its slots are settled.
    async fn is_primary_barred(&mut self) -> Result<bool, RepairError> {
        let (Some(primary), true) = (self.survivors.last().copied(), self.has_primary) else {
            return Ok(false);
        };
        self.batch.clear();
        let backups = &self.survivors[..self.survivors.len() - 1];
        let read = |backup: &PoolPlace| {
            self.batch.read(backup.node, HeaderWord::Bar(0).offset(), BARS_BYTES as u32)
        };
        let reads: PerSurvivor<Ticket> = backups.iter().map(read).collect();
        self.phase().await;
        for read in reads {
            if has_bar(self.batch.data(read)?, primary.node) {
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
