//! Scrubbing: checks whether replicas agree, and whether the index agrees with the objects, in memory that no operation
//! reads.
//!
//! Memory decays, also where no operation reads it. [`check_slots`] reads some slots of a subtable from all replicas,
//! every replica of the objects that the slots lead to, and the free bits of these objects. It writes nothing but
//! objects.
//!
//! | finding | proof | action |
//! |---|---|---|
//! | a replica that does not match a slot that stays unchanged | it is damaged (1) | repaired from a whole one |
//! | an object without a whole replica | the pair is lost, or all replicas of its slot are damaged | reported |
//! | a set free bit of an object in use (2) | the bitmap is damaged | reported: the region's bitmaps begin anew (3) |
//! | slots that differ | nothing yet: a write is possibly under way | reported (4) |
//!
//! 1. The documentation of `store/read/damage.rs` proves this.
//! 2. The primary's slot refers to the object before and after the READ of the bit. A session that sets the bit has
//!    replaced the word before.
//! 3. [`RegionChange::renewed`](crate::view::change::RegionChange::renewed).
//! 4. If a check finds the same words much later, the subtable is settled.
//!
//! *Settling differing slots is always right*, whether or not they are damaged: every change does it, while no session
//! writes in its scope ([`repair`](crate::repair)). If the replicas of a slot differ, words that lead to nothing are
//! not chosen (`leads_here`): a writer's object is complete on one of its replicas before any slot contains its word,
//! so only damage makes such a word. Free words that differ are made equal, too.
//!
//! Preconditions: the view is stable. The scrubbing session is pinned in an epoch, so no object of a word that it has
//! read is reused before the check ends. A scrubbing session whose check has possibly not ended is fenced.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::data::{ObjectLocation, ObjectReadResult, ObjectReads, ReplicaContents};
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::stats::Damage;
use crate::verbs::{Fabric, FailedVerb, MAX_BATCH_VERBS, Ticket, VerbBatch};
use crate::view::{MAX_REPLICAS, PoolPlace, View};

/// The number of slots that are read in one phase, such that one more phase can read every replica and the bitmap word
/// of their objects.
const CHUNK_SLOTS: u64 = (MAX_BATCH_VERBS / (MAX_REPLICAS + 1)) as u64;
/// The largest number of bytes of objects that are read in one phase, except for a single object that has more.
const CHUNK_BYTES: u64 = 1 << 20;

/// The findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubFindings {
    /// The number of the first slot that was not checked.
    pub next: u64,
    /// The number of bytes that were read.
    pub bytes: u64,
    /// The number of replicas that do not match their slots, and the number of replicas that were repaired. Replicas of
    /// lost pairs are not counted.
    pub damage: Damage,
    /// Slots that lead to objects of which too little is undamaged.
    pub lost: Vec<UnreadableSlot>,
    /// Slots whose replicas differ.
    pub differing: Vec<DifferingSlot>,
    /// Regions in which the free bit of an object in use is set.
    pub marked: Vec<u32>,
}

/// A slot that leads to an object of which too little is undamaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadableSlot {
    /// The number of the slot in the subtable.
    pub slot: u64,
    /// The word that the slot contains.
    pub word: u64,
    /// The number of replicas or chunks of the object that are damaged.
    pub damaged: u64,
}

/// A slot whose replicas differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DifferingSlot {
    /// The number of the slot in the subtable.
    pub slot: u64,
    /// The words of the slot's replicas, the primary's first.
    pub words: Vec<u64>,
}

type PerReplica<T> = ArrayVec<T, MAX_REPLICAS>;

/// Whether this object can belong to an entry with this word in a slot of this number.
pub(crate) fn leads_here(view: &View, slot: u32, word: Slot, object: &ReplicaContents<'_>) -> bool {
    let buckets = Buckets::of(object.key, view);
    let is_turned = view.object_of(word).is_some_and(|object| object.is_turned(word));
    // A copy belongs to no entry. Only words of Moves have the moved bit.
    object.opcode != Some(Opcode::Copy)
        && word.is_moved() == (is_turned || object.opcode == Some(Opcode::Move))
        && word.class() == object.class
        && buckets.fingerprint == word.fingerprint()
        && buckets.covers_number(slot)
}

/// Checks slots of a subtable from `first` on, until `count` slots are checked or `bytes` bytes are read.
pub async fn check_slots<F: Fabric>(
    fabric: &F,
    view: &View,
    subtable: u32,
    first: u64,
    count: u64,
    bytes: u64,
) -> Result<ScrubFindings, FailedVerb> {
    let found = ScrubFindings { next: first, ..ScrubFindings::default() };
    let mut work = SubtableScrub { fabric, view, subtable, batch: VerbBatch::new(), found };
    let end = view.geometry.subtable_slots().min(first.saturating_add(count));
    while work.found.next < end && work.found.bytes < bytes {
        let first = work.found.next;
        let count = CHUNK_SLOTS.min(end - first);
        let words = work.slots(first, count).await?;
        work.found.next = work.objects(&words, bytes).await?.unwrap_or(first + count);
    }
    work.found.marked.sort_unstable();
    work.found.marked.dedup();
    Ok(work.found)
}

/// An index entry that is being scrubbed, with the READs that were posted for it.
struct ScrubbedEntry<'w> {
    slot: u32,
    word: Slot,
    /// The location of the entry's object and the READs of it; `None` if no such object can exist.
    object: Option<(ObjectLocation<'w>, ObjectReads)>,
    /// The READ of the bitmap word that contains the object's free bit, the mask of that bit, and the number of the
    /// object's region.
    mark: Option<(Ticket, u64, u32)>,
}

struct SubtableScrub<'w, F> {
    fabric: &'w F,
    view: &'w View,
    subtable: u32,
    batch: VerbBatch,
    found: ScrubFindings,
}

impl<'w, F: Fabric> SubtableScrub<'w, F> {
    async fn phase(&mut self) {
        let batch = core::mem::take(&mut self.batch);
        self.batch = self.fabric.execute(batch).await;
        self.found.bytes += self.batch.touched_bytes();
    }

    fn slot_place(&self, slot: u32) -> PoolPlace {
        self.view.subtables[self.subtable as usize].primary().plus(u64::from(slot) * 8)
    }

    /// Notes slots whose replicas differ. Returns the numbers and words of the other slots.
    async fn slots(&mut self, first: u64, count: u64) -> Result<Vec<(u32, Slot)>, FailedVerb> {
        self.batch.clear();
        let replicas = self.view.subtables[self.subtable as usize].replicas();
        let read = |place: &PoolPlace| {
            self.batch.read(place.node, place.offset + first * 8, count as u32 * 8)
        };
        let reads: PerReplica<Ticket> = replicas.iter().map(read).collect();
        self.phase().await;
        let mut shown = PerReplica::<Vec<u64>>::new();
        for read in reads {
            let words = self.batch.data(read)?.as_chunks().0.iter();
            shown.push(words.map(|word| u64::from_le_bytes(*word)).collect());
        }
        let mut equal = Vec::new();
        for i in 0..count as usize {
            let words: Vec<u64> = shown.iter().map(|words| words[i]).collect();
            let slot = first + i as u64;
            if words.iter().all(|word| *word == words[0]) {
                equal.push((slot as u32, Slot(words[0])))
            } else {
                self.found.differing.push(DifferingSlot { slot, words })
            }
        }
        Ok(equal)
    }

    /// Checks the objects that these words lead to, until `bytes` bytes are read. Returns the first slot whose object
    /// was not checked.
    async fn objects(
        &mut self,
        words: &[(u32, Slot)],
        bytes: u64,
    ) -> Result<Option<u64>, FailedVerb> {
        // INSERTs can withdraw their tentative words, which then lead to no object any more.
        let is_entry = |word: Slot| !word.is_free() && !word.is_tentative();
        let view = self.view;
        let entries = words.iter().copied();
        let mut entries = entries.filter(|(_, word)| is_entry(*word) && !view.is_gone(*word));
        let mut next = entries.next();
        while next.is_some() {
            self.batch.clear();
            let mut asked = Vec::new();
            while let Some((slot, word)) = next {
                let Some(object) = self.view.object_of(word) else {
                    // The second READ of the slot tells whether the slot still contains this word.
                    asked.push(ScrubbedEntry { slot, word, object: None, mark: None });
                    next = entries.next();
                    continue;
                };
                let bytes = object.bytes() * object.places().len() as u64;
                let together = self.batch.touched_bytes() + bytes;
                let verbs = self.batch.verbs().len() + object.places().len() + 1;
                let fits = together <= CHUNK_BYTES && verbs <= MAX_BATCH_VERBS;
                if !fits && self.batch.touched_bytes() > 0 {
                    break;
                }
                asked.push(self.ask(slot, word, Some(object)));
                next = entries.next();
            }
            if self.batch.touched_bytes() > 0 {
                self.phase().await;
            }
            let mut doubtful = Vec::new();
            for entry in asked {
                if self.is_doubtful(&entry)? {
                    doubtful.push(entry);
                }
            }
            for entry in doubtful {
                self.look_again(entry).await?;
            }
            if self.found.bytes >= bytes {
                break;
            }
        }
        Ok(next.map(|(slot, _)| slot.into()))
    }

    /// Posts READs of an entry's object, at all its places, and of the object's free bit.
    fn ask(
        &mut self,
        slot: u32,
        word: Slot,
        object: Option<ObjectLocation<'w>>,
    ) -> ScrubbedEntry<'w> {
        let object = object.map(|object| (object, object.read_all(&mut self.batch)));
        let mark = self.view.free_bit(word.address()).map(|(at, bit)| {
            let region = (word.address().bytes() / self.view.geometry.region_bytes) as u32;
            (self.batch.read(at.node, at.offset, 8), bit, region)
        });
        ScrubbedEntry { slot, word, object, mark }
    }

    /// Returns the result of the READs of an entry's object; `None` if no such object can exist.
    fn judge(&mut self, entry: &ScrubbedEntry<'_>) -> Result<Option<ObjectReadResult>, FailedVerb> {
        let Some((_, reads)) = &entry.object else { return Ok(None) };
        let view = self.view;
        let slot = entry.slot;
        let word = entry.word;
        let leads = |shown: &ReplicaContents<'_>| leads_here(view, slot, word, shown);
        reads.judge(&mut self.batch, word, leads).answered().map(Some)
    }

    /// Posts, after up to two phases, WRITEs of chunks over damaged ones of an EC-oriented object that lacks parity.
    /// The chunks are made from a copy of the object. Returns whether there is such a copy.
    async fn mend_by_copy(
        &mut self,
        found: &ObjectReadResult,
        object: ObjectLocation<'_>,
        word: Slot,
    ) -> Result<bool, FailedVerb> {
        if found.part.is_none() {
            return Ok(false);
        }
        self.batch.next_phase();
        let words = object.read_copy_words(&mut self.batch, word);
        self.phase().await;
        let copies = words.named(&self.batch);
        let place_of = |address, bytes| self.view.object(address, bytes)?.places().next();
        self.batch.next_phase();
        let reads = found.read_copies(&mut self.batch, &copies, &place_of);
        if !reads.is_empty() {
            self.phase().await;
        }
        let value = found.value_of_copies(&self.batch, &copies, &reads)?;
        let Some(value) = value else { return Ok(false) };
        self.batch.next_phase();
        found.mend_by_copy(&mut self.batch, object, word, &copies, value);
        Ok(true)
    }

    fn region_if_bit_set(&self, entry: &ScrubbedEntry<'_>) -> Result<Option<u32>, FailedVerb> {
        let Some((read, bit, region)) = entry.mark else { return Ok(None) };
        let word = self.batch.data(read)?.try_into().map_or(0, u64::from_le_bytes);
        Ok((word & bit != 0).then_some(region))
    }

    /// Whether an entry, its object or the object's free bit seems to be damaged. That is certain only if the slot
    /// still contains the word.
    fn is_doubtful(&mut self, entry: &ScrubbedEntry<'_>) -> Result<bool, FailedVerb> {
        let Some(found) = self.judge(entry)? else { return Ok(true) };
        Ok(found.damaged() > 0 || self.region_if_bit_set(entry)?.is_some())
    }

    /// Reads an entry a second time, and its slot after that. If the slot still shows the word, it has contained the
    /// word since before the first reading, so the findings are valid.
    async fn look_again(&mut self, entry: ScrubbedEntry<'w>) -> Result<(), FailedVerb> {
        let ScrubbedEntry { slot, word, object, .. } = entry;
        self.batch.clear();
        let entry = self.ask(slot, word, object.map(|(object, _)| object));
        self.phase().await;
        let marked = self.region_if_bit_set(&entry)?;
        let found = self.judge(&entry)?;
        self.batch.next_phase();
        let place = self.slot_place(slot);
        let slot_read = self.batch.read(place.node, place.offset, 8);
        self.phase().await;
        let now = self.batch.data(slot_read)?.try_into().map_or(0, u64::from_le_bytes);
        if now != word.0 && !removed(Mutant::ScrubLooksOnce) {
            return Ok(());
        }
        self.found.marked.extend(marked);
        let damaged = found.as_ref().map_or(0, ObjectReadResult::damaged) as u64;
        let lost = UnreadableSlot { slot: slot.into(), word: word.0, damaged };
        let posted = match (found, &entry.object) {
            (Some(found), _) if found.whole.is_some() => {
                self.batch.next_phase();
                Some(found.mend(&mut self.batch) > 0)
            }
            (Some(found), Some((object, _))) if object.has_copy(word) => {
                self.mend_by_copy(&found, *object, word).await?.then_some(true)
            }
            _ => None,
        };
        let Some(posted) = posted else {
            self.found.lost.push(lost);
            return Ok(());
        };
        self.found.damage.found += damaged;
        if damaged == 0 || !posted {
            return Ok(());
        }
        self.phase().await;
        self.batch.check()?;
        self.found.damage.repaired += damaged;
        Ok(())
    }
}
