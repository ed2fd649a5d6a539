//! What a change of the view does to memory: index subtables get one word per slot, the same on
//! all replicas that are left, and new replicas are filled (P §5.2).
//!
//! Writers have stopped anywhere inside of their rounds, so the survivors of a slot may differ.
//! [`settled`] names the word that all of them get:
//!
//! * the word of any backup that is left; of the primary if there is none. Whatever has been
//!   acknowledged or read stands on all backups, so any one of them has it;
//! * not a word that leads to nothing ([`scrub`](crate::scrub)), where they differ: it is damaged;
//! * nor a free word beside an entry that is confirmed and leads to something, unless a DELETE of the key, or a
//!   split, has put it there: what was there before the entry has been replaced everywhere before it was confirmed;
//! * of the primary as well, if what a backup has is the same identity in another state, and the primary's
//!   is neither free nor tentative: who has committed changes nothing any more, so the backup's is damaged;
//! * a tentative word becomes the free slot of the same identity: its INSERT may have been about
//!   to find a duplicate, and was not acknowledged;
//! * so does a word whose INSERT had begun to withdraw on another backup.
//!
//! [`transform`] does it to all subtables in the scope of a change, by bulk READs and a CAS where a word must
//! change. The backups first, the primary last: readers use the primary, so what they see changes
//! at most once, to a word that by then stands on every backup, which a second run would choose
//! again. If the primary is lost, readers may use the first backup meanwhile: its word is the one
//! that is chosen. So it may stop anywhere and be run again.
//!
//! Before it changes a slot, it completes (`complete.rs`) the object of the word that the slot
//! gets: the word of a writer that guessed may stand on a backup while its object stands beside that
//! backup only. Where nothing has to change, the object is complete. Either the primary is left, and shows
//! only what is; or all backups that are left show the word. Then the object is complete beside each of
//! them, and lies nowhere else but beside the primary that is lost ([`store`](crate::store), guesses).
//!
//! A subtable that gets a replica, or a sibling ([`split`]), is made equal first, and copied then; a
//! region is only copied, what is damaged from where it is not,
//! since an object stands on all replicas before anybody can learn of it, but for those of dead clients,
//! which are completed before ([`recovery::complete_objects`](crate::recovery::complete_objects)).
//!
//! Preconditions: the change is in the stage *transforming*: no operation that touches its scope
//! runs, and clients that did not acknowledge that are fenced ([`change`](crate::change)). Dead
//! clients are recovered afterwards, in the new view (P §5.4); they then find their words on all
//! replicas or on none.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::change::{RegionChange, Split, Stage, SubtableChange};
use crate::complete::complete;
use crate::layout::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockShape, Identity, Object, Opcode, Slot, bitmap_bytes,
};
use crate::mutant::{Mutant, removed};
use crate::scrub::{leads_here, replicas};
use crate::split;
use crate::stats::Cost;
use crate::verbs::{Batch, Fabric, Failure, MAX_BATCH_VERBS, Span, Ticket};
use crate::view::{MAX_REPLICAS, Place, View};

/// Slots that are read from each survivor in one phase.
const CHUNK_SLOTS: u64 = 8192;
/// Bytes that are copied in one READ and one WRITE.
const CHUNK_BYTES: u64 = 1 << 20;

/// Why a change could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairError {
    /// A memory node failed: to be run again, in a view without it perhaps.
    #[error("repair stopped: {0}")]
    Unreachable(#[from] Failure),
    /// A slot changed meanwhile.
    #[error("slot {slot} of subtable {subtable} changed during its repair: it was not frozen")]
    NotFrozen {
        /// The subtable.
        subtable: u32,
        /// The slot.
        slot: u64,
    },
    /// An object that a split has to place is damaged on all of its replicas: nobody can tell where it
    /// belongs, and the subtable stays as it is.
    #[error(
        "slot {slot} of subtable {subtable} leads to an object that is damaged on all of its \
         replicas: nobody can tell on which side of the split its key belongs"
    )]
    Unreadable {
        /// The subtable.
        subtable: u32,
        /// The slot.
        slot: u64,
    },
}

/// What a transformation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transformed {
    /// Slots of which at least one survivor changed.
    pub slots_changed: u64,
    /// Bytes that were copied to new replicas.
    pub bytes_copied: u64,
    /// Objects that were damaged where they were copied from, and taken from another replica.
    pub objects_repaired: u64,
    /// What it cost.
    pub cost: Cost,
}

/// The word that all surviving replicas of a slot get. `primary` is `None` if it was lost; at
/// least one replica is left. `chosen` says which of the surviving backups to trust, counted from
/// 0 and round again: every choice is right, tests try them all.
pub fn settled(primary: Option<Slot>, backups: &[Slot], chosen: usize) -> Slot {
    let word = match (backups, primary) {
        ([], primary) => primary.expect("at least one replica is left"),
        (_, Some(primary)) if backups.iter().all(|b| *b == primary) => primary,
        _ => backups[chosen % backups.len()],
    };
    let committed = primary.filter(|word| !word.is_free() && !word.is_tentative());
    if let Some(committed) = committed.filter(|c| c.identity() == word.identity()) {
        return committed;
    }
    let withdrawn = backups.iter().any(|b| b.is_free() && b.identity() == word.identity());
    let tentative = word.is_tentative() && !removed(Mutant::SettleKeepsTentative);
    if tentative || withdrawn { word.aborted() } else { word }
}

/// Carries out the change of a view that has passed [`View::check`]. May be run again after it
/// stopped anywhere.
///
/// # Panics
/// If the view has no change that is transforming.
pub async fn transform<F: Fabric>(fabric: &F, view: &View) -> Result<Transformed, RepairError> {
    let change = view.change.as_ref().expect("a change is under way");
    assert_eq!(change.stage, Stage::Transforming, "nobody has stopped for it");
    let mut result = Transformed::default();
    for SubtableChange { subtable, joining, split, .. } in &change.subtables {
        settle_subtable(fabric, view, *subtable, &mut result).await?;
        if let Some(Split::Filling(sibling)) = split {
            split::fill(fabric, view, *subtable, sibling, &mut result).await?;
        }
        if let Some(joining) = joining {
            let from = view.subtables[*subtable as usize].places[0];
            let bytes = view.geometry.subtable_bytes();
            copy(fabric, from, *joining, bytes, &mut result).await?;
        }
    }
    for RegionChange { region, joining, renewed, .. } in &change.regions {
        if *renewed {
            clear_bitmaps(fabric, view, *region, &mut result).await?;
        }
        let Some(joining) = joining else { continue };
        let from = &view.regions[*region as usize].places;
        let work = CopyRegion { fabric, view, from, to: *joining, result: &mut result };
        work.copy().await?;
    }
    Ok(result)
}

/// A region gets a replica.
struct CopyRegion<'r, F> {
    fabric: &'r F,
    view: &'r View,
    /// Where it is now.
    from: &'r [Place],
    to: Place,
    result: &'r mut Transformed,
}

fn at(place: Place, offset: u64) -> Place {
    Place { offset: place.offset + offset, ..place }
}

impl<F: Fabric> CopyRegion<'_, F> {
    /// Copies all but the free bitmaps: only those of the region's first place count, clients change them
    /// all the while, and those of the others are zeros until one of them comes first.
    ///
    /// From the first place, but for what is damaged there: of an object that is not whole, or a block
    /// header that is none, another replica may be.
    async fn copy(mut self) -> Result<(), RepairError> {
        let geometry = &self.view.geometry;
        let table = geometry.table_bytes();
        copy(self.fabric, self.from[0], self.to, table, self.result).await?;
        let bitmap = bitmap_bytes(geometry.block_bytes);
        for block in 0..geometry.blocks_per_region() {
            let block = geometry.block_offset(block);
            let header = self.copy_header(block).await?;
            if removed(Mutant::CopiesBitmaps) {
                let [from, to] = [self.from[0], self.to].map(|p| at(p, block + BLOCK_HEADER_BYTES));
                copy(self.fabric, from, to, bitmap, self.result).await?;
            }
            let mut copied = BLOCK_HEADER_BYTES + bitmap;
            let shape = header.and_then(|h| BlockShape::new(geometry.block_bytes, h.class));
            if let Some(shape) = shape.filter(|_| !removed(Mutant::CopiesDamage)) {
                self.copy_objects(block, shape).await?;
                copied = shape.first_offset + u64::from(shape.objects) * shape.object_bytes;
            }
            let [from, to] = [self.from[0], self.to].map(|place| at(place, block + copied));
            let bytes = geometry.block_bytes - copied;
            copy(self.fabric, from, to, bytes, self.result).await?;
        }
        Ok(())
    }

    async fn copy_header(&mut self, block: u64) -> Result<Option<BlockHeader>, RepairError> {
        let mut batch = Batch::new();
        let mut reads = PerSurvivor::<Ticket>::new();
        for place in self.from {
            reads.push(batch.read(place.node, place.offset + block, BLOCK_HEADER_BYTES as u32));
        }
        batch = self.execute(batch).await;
        let first = batch.data_span(reads[0])?;
        let mut chosen = (first, None);
        for read in reads {
            let span = batch.data_span(read)?;
            let bytes = batch.bytes(span).try_into().expect("as long as was asked for");
            if let Some(header) = BlockHeader::decode(bytes) {
                chosen = (span, Some(header));
                break;
            }
        }
        let (span, header) = chosen;
        batch.next_phase();
        batch.write(self.to.node, self.to.offset + block, span);
        batch = self.execute(batch).await;
        batch.check()?;
        self.result.bytes_copied += BLOCK_HEADER_BYTES;
        Ok(header)
    }

    async fn copy_objects(&mut self, block: u64, shape: BlockShape) -> Result<(), RepairError> {
        let together = (CHUNK_BYTES / shape.object_bytes).max(1) as u32;
        let mut batch = Batch::new();
        let mut next = 0;
        while next < shape.objects {
            let count = together.min(shape.objects - next);
            let offset = block + shape.offset(next);
            let bytes = (u64::from(count) * shape.object_bytes) as u32;
            let object = |span: Span, i: u32| {
                span.part(i * shape.object_bytes as u32, shape.object_bytes as u32)
            };
            batch.clear();
            let read = batch.read(self.from[0].node, self.from[0].offset + offset, bytes);
            batch = self.execute(batch).await;
            let all = batch.data_span(read)?;
            // Free objects that were never used are zeros: nothing is missing.
            let is_broken = |i: &u32| {
                let bytes = batch.bytes(object(all, *i));
                bytes.iter().any(|b| *b != 0) && Object::decode(bytes).is_err()
            };
            let broken: Vec<u32> = (0..count).filter(is_broken).collect();
            for broken in broken.chunks(MAX_BATCH_VERBS / MAX_REPLICAS) {
                self.mend(&mut batch, offset, all, broken, &object).await?;
            }
            batch.next_phase();
            batch.write(self.to.node, self.to.offset + offset, all);
            batch = self.execute(batch).await;
            batch.check()?;
            self.result.bytes_copied += u64::from(bytes);
            next += count;
        }
        Ok(())
    }

    /// Takes objects that are broken in what was read from another replica where one is whole. One that is
    /// whole nowhere is free, or what a dead client has not finished, or damaged on all: it stays as it is.
    async fn mend(
        &mut self,
        batch: &mut Batch,
        offset: u64,
        all: Span,
        broken: &[u32],
        object: &impl Fn(Span, u32) -> Span,
    ) -> Result<(), RepairError> {
        batch.next_phase();
        let mut reads: Vec<(u32, Ticket)> = Vec::new();
        for i in broken {
            let Span { len, .. } = object(all, *i);
            let offset = offset + u64::from(*i) * u64::from(len);
            for place in &self.from[1..] {
                reads.push((*i, batch.read(place.node, place.offset + offset, len)));
            }
        }
        if reads.is_empty() {
            return Ok(());
        }
        *batch = self.execute(core::mem::take(batch)).await;
        let mut mended = None;
        for (i, read) in reads {
            let span = batch.data_span(read)?;
            if mended != Some(i) && Object::decode(batch.bytes(span)).is_ok() {
                let whole = batch.bytes(span).to_vec();
                batch.bytes_mut(object(all, i)).copy_from_slice(&whole);
                mended = Some(i);
                self.result.objects_repaired += 1;
            }
        }
        Ok(())
    }

    async fn execute(&mut self, batch: Batch) -> Batch {
        let batch = self.fabric.execute(batch).await;
        self.result.cost.add_batch(&batch);
        batch
    }
}

/// Overwrites the free bitmaps of a region by zeros. No owner clears bits there meanwhile; who sets some in
/// vain is as if he had set them before.
async fn clear_bitmaps<F: Fabric>(
    fabric: &F,
    view: &View,
    region: u32,
    result: &mut Transformed,
) -> Result<(), RepairError> {
    let geometry = &view.geometry;
    let first = view.regions[region as usize].places[0];
    let bytes = bitmap_bytes(geometry.block_bytes);
    let mut batch = Batch::new();
    let together = (CHUNK_BYTES / bytes).clamp(1, MAX_BATCH_VERBS as u64) as usize;
    let blocks: Vec<u32> = (0..geometry.blocks_per_region()).collect();
    for blocks in blocks.chunks(together) {
        batch.clear();
        let zeros = batch.stage(bytes as u32);
        batch.bytes_mut(zeros).fill(0);
        for block in blocks {
            let at = geometry.block_offset(*block) + BLOCK_HEADER_BYTES;
            batch.write(first.node, first.offset + at, zeros);
        }
        batch = fabric.execute(batch).await;
        result.cost.add_batch(&batch);
        batch.check()?;
    }
    Ok(())
}

/// Copies `bytes` bytes, which nobody writes meanwhile.
async fn copy<F: Fabric>(
    fabric: &F,
    from: Place,
    to: Place,
    bytes: u64,
    result: &mut Transformed,
) -> Result<(), RepairError> {
    let mut batch = Batch::new();
    let mut at = 0;
    while at < bytes {
        let count = CHUNK_BYTES.min(bytes - at);
        batch.clear();
        let read = batch.read(from.node, from.offset + at, count as u32);
        batch = fabric.execute(batch).await;
        result.cost.add_batch(&batch);
        let span = batch.data_span(read)?;
        batch.next_phase();
        batch.write(to.node, to.offset + at, span);
        batch = fabric.execute(batch).await;
        result.cost.add_batch(&batch);
        batch.check()?;
        result.bytes_copied += count;
        at += count;
    }
    Ok(())
}

/// Makes the replicas of a subtable equal that are left.
async fn settle_subtable<F: Fabric>(
    fabric: &F,
    view: &View,
    subtable: u32,
    result: &mut Transformed,
) -> Result<(), RepairError> {
    let places = &view.subtables[subtable as usize].places;
    let has_primary = !view.is_headless(subtable);
    let mut survivors: Survivors = places.iter().copied().collect();
    // In the order in which they are written.
    survivors.rotate_left(usize::from(has_primary));
    let mut repair =
        Repair { fabric, view, subtable, survivors, has_primary, batch: Batch::new(), result };
    let slots = view.geometry.subtable_slots();
    let mut from = 0;
    while from < slots {
        let count = CHUNK_SLOTS.min(slots - from);
        repair.settle(from, count).await?;
        from += count;
    }
    Ok(())
}

/// Something per survivor: the backups in order, then the primary.
type PerSurvivor<T> = ArrayVec<T, MAX_REPLICAS>;
type Survivors = PerSurvivor<Place>;

/// A slot to change.
struct Change {
    /// Its number in the subtable.
    slot: u64,
    /// What each survivor holds.
    words: PerSurvivor<Slot>,
    to: Slot,
}

struct Repair<'r, F> {
    fabric: &'r F,
    view: &'r View,
    subtable: u32,
    survivors: Survivors,
    has_primary: bool,
    batch: Batch,
    result: &'r mut Transformed,
}

impl<F: Fabric> Repair<'_, F> {
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
            self.result.bytes_copied += complete(self.fabric, self.view, &words, cost).await?;
        }
        for changes in changes.chunks(MAX_BATCH_VERBS / MAX_REPLICAS) {
            let backups = self.survivors.len() - usize::from(self.has_primary);
            self.write(changes, 0..backups).await?;
            self.write(changes, backups..self.survivors.len()).await?;
        }
        Ok(())
    }

    /// The slots of which a survivor holds another word than it will.
    fn changes(&self, from: u64, count: u64, reads: &[Ticket]) -> Result<Vec<Change>, Failure> {
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
                changes.push(Change { slot: from + i as u64, words, to });
            }
        }
        Ok(changes)
    }

    /// What becomes of a slot, by those of the words that count; by all if none does.
    fn settled(&self, words: &PerSurvivor<Slot>, counts: impl Fn(Slot) -> bool) -> Slot {
        let (primary, backups) = match words.split_last() {
            Some((primary, backups)) if self.has_primary => (Some(*primary), backups),
            _ => (None, &words[..]),
        };
        let counting: PerSurvivor<Slot> = backups.iter().copied().filter(|w| counts(*w)).collect();
        match (counting.is_empty(), primary.filter(|word| counts(*word))) {
            (true, None) => settled(primary, backups, 0),
            (_, primary) => settled(primary, &counting, 0),
        }
    }

    /// Where words differ, those do not count that lead to nothing: a writer's object is complete on one of
    /// its replicas before its word stands anywhere.
    async fn refute(&mut self, changes: &mut Vec<Change>) -> Result<(), RepairError> {
        let mut refuted: BTreeSet<(u64, u64)> = BTreeSet::new();
        let differ = |change: &&Change| change.words.iter().any(|word| *word != change.words[0]);
        let entries = changes.iter().filter(differ).flat_map(|change| {
            let words: BTreeSet<u64> = change.words.iter().map(|word| word.0).collect();
            words.into_iter().map(|word| (change.slot, Slot(word)))
        });
        let (free, entries): (Vec<_>, Vec<_>) = entries.partition(|(_, word)| word.is_free());
        let mut confirmed: BTreeMap<u64, Vec<(Slot, Vec<u8>)>> = BTreeMap::new();
        for (slot, word) in entries {
            let key = match replicas(self.view, word) {
                Some((bytes, places)) => {
                    let (view, slot) = (self.view, slot as u32);
                    let leads = |object: &Object<'_>| leads_here(view, slot, word, object);
                    self.key_of(bytes, &places, word.leads_to(), leads).await?
                }
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

    /// The key of an object, by any of its replicas that is whole and of which this holds.
    async fn key_of(
        &mut self,
        bytes: u64,
        places: &[Place],
        identity: Identity,
        holds: impl Fn(&Object<'_>) -> bool,
    ) -> Result<Option<Vec<u8>>, RepairError> {
        self.batch.clear();
        let read = |p: &Place| self.batch.read(p.node, p.offset, bytes as u32);
        let reads: PerSurvivor<Ticket> = places.iter().map(read).collect();
        self.phase().await;
        for read in reads {
            let object = Object::decode_of(self.batch.data(read)?, identity);
            if let Some(object) = object.ok().filter(|object| holds(object)) {
                return Ok(Some(object.key().to_vec()));
            }
        }
        Ok(None)
    }

    /// Whether a free word has been put there instead of an entry of this key: by a split, or by a DELETE, whose
    /// log object is complete before its word stands anywhere, and stays as long as the word does.
    async fn is_deleted(&mut self, word: Slot, key: &[u8]) -> Result<bool, RepairError> {
        if word.is_vacated() {
            return Ok(true);
        }
        let class = Object::class(key.len(), 0);
        let (Some(class), Some(at)) = (class, word.object()) else { return Ok(false) };
        let Some(places) = self.view.object_places(at, class.bytes()) else { return Ok(false) };
        let places: PerSurvivor<Place> = places.collect();
        let is_log =
            |object: &Object<'_>| object.opcode() == Some(Opcode::Delete) && object.key() == key;
        Ok(self.key_of(class.bytes(), &places, word.leads_to(), is_log).await?.is_some())
    }

    /// One phase, or none: changes these slots on some of the survivors.
    async fn write(
        &mut self,
        changes: &[Change],
        survivors: core::ops::Range<usize>,
    ) -> Result<(), RepairError> {
        self.batch.clear();
        let mut cases = Vec::new();
        for change in changes {
            for i in survivors.clone().filter(|i| change.words[*i] != change.to) {
                let (place, word) = (self.survivors[i], change.words[i]);
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
                let (subtable, slot) = (self.subtable, change.slot);
                return Err(RepairError::NotFrozen { subtable, slot });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Address, SizeClass};

    fn slot(n: u64) -> Slot {
        Slot::new(1, SizeClass::from_code(1).unwrap(), Address::new(n * 64), 0)
    }

    #[test]
    fn slots_are_settled_by_the_rules() {
        let (old, own, other) = (slot(1), slot(2), slot(3));
        let word = |primary, backups: &[Slot]| settled(primary, backups, 0);
        assert_eq!(word(Some(old), &[old, old]), old, "untouched");
        assert_eq!(word(Some(old), &[]), old, "only the primary is left");
        assert_eq!(word(Some(old), &[own, other]), own, "a backup");
        assert_eq!(settled(Some(old), &[own, other], 1), other, "any backup");
        assert_eq!(word(None, &[own, old]), own);
        assert_eq!(word(None, &[own.tentative(), old]), own.aborted());
        assert_eq!(word(Some(old), &[own.tentative()]), own.aborted());
        assert_eq!(word(Some(old.tentative()), &[]), old.aborted(), "of one replica");
        assert_eq!(word(None, &[own.tentative(), own]), own.aborted(), "not confirmed everywhere");
        assert_eq!(word(None, &[own, own.tentative()]), own, "confirmed somewhere");
        assert_eq!(word(None, &[own, own.aborted()]), own.aborted(), "withdrawn somewhere");
        assert_eq!(word(None, &[Slot::default(); 2]), Slot::default());
        assert_eq!(word(Some(own), &[own.aborted()]), own, "nobody withdraws what is committed");
        assert_eq!(word(Some(own), &[own.tentative()]), own, "nor confirms it afterwards");
        assert_eq!(word(Some(own.tentative()), &[own]), own, "confirmed");
    }

    /// A run that was cut off anywhere between its writes is followed by one that comes to the
    /// same word: whatever part of the backups has been written, or all of them and the primary.
    #[test]
    fn settling_again_comes_to_the_same_word() {
        let (old, own, other) = (slot(1), slot(2), slot(3));
        let words = [old, own, own.tentative(), own.aborted(), other];
        let all = (0..125).map(|n| [n % 5, n / 5 % 5, n / 25].map(|i| words[i]));
        for [primary, first, second] in all {
            for primary in [Some(primary), None] {
                let to = settled(primary, &[first, second], 0);
                assert_eq!(settled(primary, &[to, second], 0), to);
                assert_eq!(settled(primary, &[first, to], 0), to);
                assert_eq!(settled(primary, &[to, to], 0), to);
                assert_eq!(settled(primary.map(|_| to), &[to, to], 0), to);
            }
        }
    }
}
