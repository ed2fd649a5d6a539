//! Splits of subtables, which make the index larger: a full subtable gets a sibling (RACE hashing; P §4.2).
//!
//! The next bit of a key's hash decides whether the key belongs to the subtable or to the sibling; the numbers of its
//! slots are the same in both. `fill` runs while the change is *transforming*. The sibling gets the words of the
//! entries whose keys belong there, and otherwise zeros, as every new subtable. Readers do not know the sibling yet,
//! and the subtable stays as it is, so that suspended writers find the words that they look for.
//!
//! [`clear`] runs when the change is *switched*, no session is pinned by an older view any more, and no suspended write
//! is left. Entries that are in both subtables are removed from the old one, from the backups first and from the
//! primary last. They are replaced by a free word that only this split writes ([`Slot::vacated`]). A free word with the
//! entry's identity would be wrong: it would keep the object from reuse for ever, or would pass for the word of the
//! object's owner. An entry that the primary still shows is still to be cleared, so both functions can stop anywhere
//! and be run again. Writes to the two subtables wait until the change has ended.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::outcome::{RepairError, TransformResult};
use crate::data::{KeyReadResult, ObjectReads};
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, VerbBatch};
use crate::view::change::{ChangeStage, SplitProgress, SubtableChange};
use crate::view::{MAX_REPLICAS, PoolPlace, SlotRef, View};

/// The number of slots that are handled together, such that one phase reads every replica of their objects.
const CHUNK_SLOTS: u64 = (MAX_BATCH_VERBS / MAX_REPLICAS) as u64;
/// The number of bytes of an object that are read first; most keys are shorter.
const PREFIX_BYTES: u64 = 128;
/// The largest number of bytes of objects that are read in one phase, except for a single object that has more.
const CHUNK_BYTES: u64 = 4 << 20;

/// Fills the sibling of a subtable that is split. The subtable's replicas are equal.
pub(crate) async fn fill<F: Fabric>(
    fabric: &F,
    view: &View,
    subtable: u32,
    sibling: &[PoolPlace],
    result: &mut TransformResult,
) -> Result<(), RepairError> {
    let from = view.subtables[subtable as usize].primary();
    let mut work = SubtableSplit { fabric, view, batch: VerbBatch::new(), result };
    for (first, count) in chunks(view) {
        let [words] = work.read([from], first, count).await?;
        let moves = work.which_move(subtable, first, &words).await?;
        work.batch.clear();
        let image = work.batch.stage(count as u32 * 8);
        let slots = work.batch.bytes_mut(image).chunks_exact_mut(8);
        for ((bytes, word), moves) in slots.zip(&words).zip(moves) {
            let word = if moves { *word } else { Slot::default() };
            bytes.copy_from_slice(&word.0.to_le_bytes());
        }
        for place in sibling {
            work.batch.write(place.node, place.offset + first * 8, image);
        }
        work.phase().await;
        work.batch.check()?;
        work.result.bytes_copied += count * 8 * sibling.len() as u64;
    }
    Ok(())
}

/// Removes moved entries from the old subtables, in a view that is switched and that all sessions are at.
///
/// # Panics
/// If no change is under way, or the change is not switched.
pub async fn clear<F: Fabric>(fabric: &F, view: &View) -> Result<TransformResult, RepairError> {
    let change = view.change.as_ref().expect("a change is under way");
    assert_eq!(change.stage, ChangeStage::Switched, "readers may still be at the old place");
    let mut result = TransformResult::default();
    for SubtableChange { subtable, split, .. } in &change.subtables {
        let Some(SplitProgress::Clearing(sibling)) = split else { continue };
        let split = &view.subtables[*subtable as usize];
        let [old, new] = [split.primary(), view.subtables[*sibling as usize].primary()];
        let mut work = SubtableSplit { fabric, view, batch: VerbBatch::new(), result: &mut result };
        for (first, count) in chunks(view) {
            let [old, new] = work.read([old, new], first, count).await?;
            let both = (first..).zip(old.into_iter().zip(new));
            let moved = both.filter(|(_, (old, new))| old == new && !old.is_free());
            let moved: Vec<(u64, Slot)> = moved.map(|(slot, (word, _))| (slot, word)).collect();
            for moved in moved.chunks(MAX_BATCH_VERBS / MAX_REPLICAS) {
                let primary = &[split.primary()][..];
                let order = if removed(Mutant::ClearsPrimaryFirst) {
                    [primary, split.backups()]
                } else {
                    [split.backups(), primary]
                };
                for places in order {
                    work.take_out(*subtable, *sibling, places, moved).await?;
                }
                work.result.slots_changed += moved.len() as u64;
            }
        }
    }
    Ok(result)
}

/// Returns, for each chunk of a subtable, the first slot and the number of slots.
fn chunks(view: &View) -> impl Iterator<Item = (u64, u64)> + use<> {
    let slots = view.geometry.subtable_slots();
    let firsts = (0..slots).step_by(CHUNK_SLOTS as usize);
    firsts.map(move |first| (first, CHUNK_SLOTS.min(slots - first)))
}

struct SubtableSplit<'w, F> {
    fabric: &'w F,
    view: &'w View,
    batch: VerbBatch,
    result: &'w mut TransformResult,
}

impl<F: Fabric> SubtableSplit<'_, F> {
    async fn phase(&mut self) {
        let batch = core::mem::take(&mut self.batch);
        self.batch = self.fabric.execute(batch).await;
        self.result.cost.add_batch(&self.batch);
    }

    /// Reads one range of slots at each of several places.
    async fn read<const N: usize>(
        &mut self,
        places: [PoolPlace; N],
        first: u64,
        count: u64,
    ) -> Result<[Vec<Slot>; N], FailedVerb> {
        self.batch.clear();
        let reads = places
            .map(|place| self.batch.read(place.node, place.offset + first * 8, count as u32 * 8));
        self.phase().await;
        let mut all = [const { Vec::new() }; N];
        for (words, read) in all.iter_mut().zip(reads) {
            let bytes = self.batch.data(read)?.as_chunks().0;
            words.extend(bytes.iter().map(|word| Slot(u64::from_le_bytes(*word))));
        }
        Ok(all)
    }

    /// Returns for every word whether it is an entry of the sibling. A word that leads to no object is not, nor is one
    /// whose pair is lost, because no operation finds such a word in either subtable.
    ///
    /// The starts of all replicas of an object are read. If they do not agree on a key that belongs to the word's slot,
    /// a replica is damaged, or the key is longer than the starts, so the whole object is read and the CRC of any
    /// replica decides. If no replica of an entry is good, the entry's side of the split is unknown, and the split
    /// fails.
    async fn which_move(
        &mut self,
        subtable: u32,
        first: u64,
        words: &[Slot],
    ) -> Result<Vec<bool>, RepairError> {
        let depth = self.view.subtables[subtable as usize].local_depth;
        let mut moves = Vec::new();
        moves.resize(words.len(), false);
        let live = (0..words.len()).filter(|i| !words[*i].is_free());
        let mut asked: VecDeque<(usize, u64)> = live.map(|i| (i, PREFIX_BYTES)).collect();
        while !asked.is_empty() {
            self.batch.clear();
            let mut reads: Vec<(usize, u64, ObjectReads)> = Vec::new();
            while let Some((i, bytes)) = asked.front().copied() {
                let Some(object) = self.view.object_of(words[i]) else {
                    asked.pop_front();
                    continue;
                };
                let whole = object.bytes();
                let bytes = bytes.min(whole);
                let together = self.batch.touched_bytes() + bytes * object.places().len() as u64;
                let verbs = self.batch.verbs().len() + object.places().len();
                if !reads.is_empty() && (together > CHUNK_BYTES || verbs > MAX_BATCH_VERBS) {
                    break;
                }
                asked.pop_front();
                let starts = object.read_starts(&mut self.batch, bytes);
                reads.push((i, if bytes == whole { 0 } else { whole }, starts));
            }
            if reads.is_empty() {
                break;
            }
            self.phase().await;
            for (i, whole, starts) in reads {
                let slot = SlotRef { subtable, slot: (first + i as u64) as u32 };
                match starts.key(&self.batch, words[i], whole == 0)? {
                    KeyReadResult::Key(key)
                        if whole == 0 || self.leads_here(slot, words[i], key) =>
                    {
                        moves[i] = Buckets::belongs_to_sibling(key, depth, self.view);
                    }
                    KeyReadResult::Longer(_) if removed(Mutant::SplitReadsOnce) => {}
                    KeyReadResult::Longer(bytes) => asked.push_back((i, bytes)),
                    KeyReadResult::Nothing if whole == 0 => {
                        return Err(RepairError::Unreadable { subtable, slot: slot.slot.into() });
                    }
                    KeyReadResult::Key(_) | KeyReadResult::Nothing => asked.push_back((i, whole)),
                }
            }
        }
        Ok(moves)
    }

    /// Whether an object with this key can be the object of a word in this slot.
    fn leads_here(&self, slot: SlotRef, word: Slot, key: &[u8]) -> bool {
        let buckets = Buckets::of(key, self.view);
        buckets.fingerprint == word.fingerprint() && buckets.covers(slot)
            || removed(Mutant::SplitTrustsOneReplica)
    }

    /// Frees slots at some of the places of a subtable, including slots that were freed before.
    async fn take_out(
        &mut self,
        subtable: u32,
        sibling: u32,
        places: &[PoolPlace],
        moved: &[(u64, Slot)],
    ) -> Result<(), RepairError> {
        self.batch.clear();
        let left = Slot::vacated(sibling);
        let mut cases = Vec::new();
        for (slot, word) in moved {
            for place in places {
                let at = place.offset + slot * 8;
                cases.push((*slot, *word, self.batch.cas(place.node, at, word.0, left.0)));
            }
        }
        if cases.is_empty() {
            return Ok(());
        }
        self.phase().await;
        for (slot, word, ticket) in cases {
            let found = self.batch.found(ticket)?;
            if found != word.0 && found != left.0 {
                return Err(RepairError::NotFrozen { subtable, slot });
            }
        }
        Ok(())
    }
}
