//! RACE hashing: the slots in which a key can be (P §4.2).
//!
//! A subtable is an array of groups of three buckets. The two outer buckets are *main*, the
//! middle one is the *overflow* that both share:
//!
//! ```text
//! group   | main 0 | overflow | main 1 |
//!         '-- combined 0 --'
//!                  '--- combined 1 ----'
//! ```
//!
//! A key hashes to two combined buckets, in different groups of one subtable. Each combined bucket is contiguous, so
//! one READ fetches it, and one batch of two READs fetches every slot in which the key can be. A new key goes to the
//! combined bucket with more free slots, and there to the main bucket first.
//!
//! Unlike RACE, buckets have no header. RACE's header tells a client with an old directory that it read the wrong
//! bucket; here the client learns that from the view.

mod key;

pub use key::{HashKey, IntoKey, Key};

use crate::conflict_rules::settled_word;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::verbs::{FailedVerb, Span, Ticket, VerbBatch};
use crate::view::{BUCKETS_PER_GROUP, PoolPlace, SlotRef, View};

/// The largest number of slots in which a key can be: two combined buckets of two buckets with 8 slots.
pub const MAX_CANDIDATES: usize = 32;

/// The slots in which a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// The subtable to which the directory leads for the key.
    pub subtable: u32,
    /// The fingerprint: 8 bits of the hash, independent of the buckets.
    pub fingerprint: u8,
    /// The first slot of each combined bucket.
    first: [u32; 2],
    /// The half of each combined bucket that is the main bucket: 0 or 1.
    main_half: [u32; 2],
    /// The number of slots in one bucket.
    bucket_slots: u32,
}

impl Buckets {
    /// Returns the buckets of a key.
    pub fn of<'k>(key: impl IntoKey<'k>, view: &View) -> Buckets {
        let key = key.into_key(&view.hash_key);
        let [low, high] = key.halves();
        let depth = view.depth();
        let entry = if depth == 0 { 0 } else { low >> (64 - depth) };
        let mask = view.geometry.groups_per_subtable - 1;
        let groups = [low as u32 & mask, high as u32 & mask];
        // The second combined bucket has to lie in another group than the first.
        let groups = [groups[0], if groups[1] == groups[0] { groups[1] ^ 1 } else { groups[1] }];
        let sides = [(low >> 32) as u32 & 1, (high >> 32) as u32 & 1];
        let bucket_slots = u32::from(view.geometry.slots_per_bucket);
        let first = |i: usize| (groups[i] * BUCKETS_PER_GROUP as u32 + sides[i]) * bucket_slots;
        Buckets {
            subtable: view.directory[entry as usize],
            fingerprint: key.fingerprint(),
            first: [first(0), first(1)],
            main_half: sides,
            bucket_slots,
        }
    }

    /// Returns the buckets of the key with this hash.
    pub fn of_hash(hash: u64, view: &View) -> Buckets {
        Buckets::of(Key::with_hash(hash), view)
    }

    /// Whether a key belongs to the sibling of its subtable, if that subtable is split at this depth. The key's next
    /// hash bit decides it.
    pub fn belongs_to_sibling(key: &[u8], local_depth: u8, view: &View) -> bool {
        let [low, _] = key.into_key(&view.hash_key).halves();
        low >> (63 - local_depth) & 1 == 1
    }

    /// Posts the two READs that fetch all slots of the key from the subtable replica at `place`.
    pub fn read(&self, batch: &mut VerbBatch, place: PoolPlace) -> [Ticket; 2] {
        let bytes = self.read_bytes() as u32;
        self.first.map(|f| batch.read(place.node, place.offset + u64::from(f) * 8, bytes))
    }

    /// Returns one place in each cache line of the key's buckets, on the subtable replica at `place`.
    pub fn lines(&self, place: PoolPlace) -> impl Iterator<Item = PoolPlace> + use<> {
        const LINE: u64 = 64;
        let first = self.first;
        let bytes = self.read_bytes();
        first.into_iter().flat_map(move |f| {
            let begin = place.offset + u64::from(f) * 8;
            let lines = begin / LINE..(begin + bytes).div_ceil(LINE);
            lines.map(move |line| PoolPlace { node: place.node, offset: (line * LINE).max(begin) })
        })
    }

    /// Bytes of each of the two READs of [`Buckets::read`].
    pub fn read_bytes(&self) -> u64 {
        2 * u64::from(self.bucket_slots) * 8
    }

    /// Returns the words of all slots, as the READs with these tickets fetched them.
    pub fn words(
        &self,
        batch: &VerbBatch,
        tickets: [Ticket; 2],
    ) -> Result<BucketWords, FailedVerb> {
        let [first, second] = tickets.map(|ticket| batch.data_span(ticket));
        Ok(self.words_in(batch, [first?, second?]))
    }

    /// Returns the words of all slots of the key, which READs of this phase or of an earlier one fetched into these
    /// spans.
    pub fn words_in(&self, batch: &VerbBatch, fetched: [Span; 2]) -> BucketWords {
        let mut slots = [Slot::default(); MAX_CANDIDATES];
        let (first, second) = slots.split_at_mut(2 * self.bucket_slots as usize);
        for (slots, span) in [first, second].into_iter().zip(fetched) {
            for (slot, word) in slots.iter_mut().zip(batch.bytes(span).chunks_exact(8)) {
                *slot = Slot(u64::from_le_bytes(word.try_into().expect("8 bytes")));
            }
        }
        BucketWords { buckets: *self, slots }
    }

    /// Whether a slot is one of those in which the key can be.
    pub fn covers(&self, slot: SlotRef) -> bool {
        slot.subtable == self.subtable && self.covers_number(slot.slot)
    }

    /// Whether the key could be in a slot of this number, in whatever subtable.
    pub(crate) fn covers_number(&self, slot: u32) -> bool {
        self.position(slot).is_some()
    }

    /// The position of the slot with number `slot` among the key's slots; `None` if it is not a slot of the key.
    fn position(&self, slot: u32) -> Option<usize> {
        let combined = 2 * self.bucket_slots;
        let offsets = self.first.map(|first| slot.wrapping_sub(first));
        let which = offsets.iter().position(|offset| *offset < combined)?;
        Some(which * combined as usize + offsets[which] as usize)
    }

    fn len(&self) -> usize {
        4 * self.bucket_slots as usize
    }

    /// The slot at a position; positions are counted over both combined buckets.
    fn slot(&self, position: usize) -> SlotRef {
        let combined = 2 * self.bucket_slots as usize;
        let slot = self.first[position / combined] + (position % combined) as u32;
        SlotRef { subtable: self.subtable, slot }
    }
}

/// The words of all slots in which a key can be, as one replica showed them.
#[derive(Clone, Copy, Debug)]
pub struct BucketWords {
    buckets: Buckets,
    slots: [Slot; MAX_CANDIDATES],
}

impl BucketWords {
    /// Returns the words to which the remaining backups would be settled, if these words are certain for all slots that
    /// can lead to the key: each backup alone would be settled to the same words, so the loss of further backups
    /// changes nothing. `None` if the words are not certain.
    ///
    /// # Panics
    /// If there is no backup.
    pub fn settled(backups: &[BucketWords]) -> Option<BucketWords> {
        let mut words = backups[0];
        let fingerprint = words.buckets.fingerprint;
        for (i, slot) in words.slots[..words.buckets.len()].iter_mut().enumerate() {
            let mut alone = backups.iter().map(|w| settled_word(None, &[w.slots[i]], 0));
            *slot = alone.next().expect("there is one");
            let matters = |w: &Slot| !w.is_free() && w.fingerprint() == fingerprint;
            let same = alone.all(|w| w == *slot || !(matters(&w) || matters(slot)));
            if !same && !removed(Mutant::ReadsDoubtfulBackups) {
                return None;
            }
        }
        Some(words)
    }

    /// Returns the subtable of the slots.
    pub fn subtable(&self) -> u32 {
        self.buckets.subtable
    }

    /// Returns every slot with its word.
    pub fn iter(&self) -> impl Iterator<Item = (SlotRef, Slot)> + '_ {
        let slots = self.slots[..self.buckets.len()].iter().enumerate();
        slots.map(|(i, word)| (self.buckets.slot(i), *word))
    }

    /// Returns the slots that possibly lead to the key: those that are not free and show the key's fingerprint.
    #[inline]
    pub fn matching(&self) -> impl Iterator<Item = (SlotRef, Slot)> + '_ {
        let fingerprint = self.buckets.fingerprint;
        self.those(self.mask(|w| !w.is_free() & (w.fingerprint() == fingerprint)))
    }

    /// Whether a slot other than `own` is free now and showed another word in `before`.
    pub fn is_freed_since(&self, before: &BucketWords, own: SlotRef) -> bool {
        debug_assert_eq!(self.buckets, before.buckets, "words of one key");
        let mut expected = before.slots;
        if let Some(position) = self.buckets.position(own.slot) {
            expected[position] = self.slots[position];
        }
        // Usually no slot has changed, which one comparison of all words finds out.
        expected != self.slots && {
            let changed = self.slots.iter().zip(expected).filter(|(now, before)| *now != before);
            changed.into_iter().any(|(now, _)| now.is_free())
        }
    }

    /// Returns the slots at the positions whose bits are set in `left`, with their words.
    #[inline]
    fn those(&self, mut left: u32) -> impl Iterator<Item = (SlotRef, Slot)> + '_ {
        core::iter::from_fn(move || {
            let position = left.trailing_zeros() as usize;
            // The AND with the number below clears the lowest set bit.
            left &= left.checked_sub(1)?;
            Some((self.buckets.slot(position), self.slots[position]))
        })
    }

    /// Returns a mask with a bit for each position whose word passes the test. The loop has no branches, because
    /// usually few words or none pass.
    #[inline]
    fn mask(&self, is_one: impl Fn(Slot) -> bool) -> u32 {
        let all = (1u64 << self.buckets.len()) - 1;
        let mut mask = 0;
        for (i, word) in self.slots.iter().enumerate() {
            mask |= u32::from(is_one(*word)) << i;
        }
        mask & all as u32
    }

    /// Returns the word that a slot showed; `None` if the key cannot be in the slot.
    pub fn word(&self, slot: SlotRef) -> Option<Slot> {
        let position = self.buckets.position(slot.slot)?;
        (slot.subtable == self.buckets.subtable).then_some(self.slots[position])
    }

    /// Returns the slot that a new key should take: a slot of a lost pair that was possibly the key's, if there is one,
    /// otherwise a free slot, otherwise any slot of a lost pair.
    pub fn slot_for_new(&self, view: &View) -> Option<(SlotRef, Slot)> {
        let is_gone = |(_, word): &(SlotRef, Slot)| view.is_gone(*word);
        let own = self.matching().find(is_gone);
        own.or_else(|| self.free_slot()).or_else(|| self.iter().find(is_gone))
    }

    /// Returns the free slot that a new key should take: in the combined bucket with more free slots, in the main
    /// bucket before the shared overflow bucket (RACE hashing). Within a bucket, a slot that keeps the object of an
    /// INSERT that has withdrawn comes first, because this object can then be freed. All clients that see the same
    /// words choose the same slot, so two INSERTs of one key usually meet in one round.
    fn free_slot(&self) -> Option<(SlotRef, Slot)> {
        let half = self.buckets.bucket_slots as usize;
        let free = self.mask(Slot::is_free);
        let bucket = |combined: usize, half_of_it: usize| {
            ((1u32 << half) - 1) << ((2 * combined + half_of_it) * half)
        };
        let free_in = |c: usize| (free & (bucket(c, 0) | bucket(c, 1))).count_ones();
        let order = if free_in(1) > free_in(0) { [1, 0] } else { [0, 1] };
        order.into_iter().find_map(|c| {
            let main = self.buckets.main_half[c] as usize;
            [main, 1 - main].into_iter().find_map(|h| {
                let here = || self.those(free & bucket(c, h));
                here().find(|(_, word)| word.object().is_some()).or_else(|| here().next())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::verbs::ClusterId;
    use crate::view::{Geometry, View};

    fn view(groups: u32, slots: u8, depth: u32) -> View {
        View {
            number: 1,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry {
                groups_per_subtable: groups,
                slots_per_bucket: slots,
                ..Geometry::default()
            },
            members: vec![],
            regions: vec![],
            directory: (0..1 << depth).collect(),
            subtables: vec![],
            change: None,
        }
    }

    #[test]
    fn combined_buckets_never_overlap_and_stay_inside() {
        for (groups, slots, depth) in [(2, 1, 0), (2, 8, 3), (64, 7, 5), (1024, 8, 10)] {
            let view = view(groups, slots, depth);
            for key in 0..2000u32 {
                let buckets = Buckets::of(&key.to_le_bytes(), &view);
                let mut seen: vec::Vec<u32> =
                    (0..buckets.len()).map(|i| buckets.slot(i).slot).collect();
                assert!(seen.iter().all(|s| u64::from(*s) < view.geometry.subtable_slots()));
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), 4 * slots as usize);
                assert!(buckets.subtable < 1 << depth);
            }
        }
    }

    #[test]
    fn free_slots_come_from_the_emptier_bucket_main_first() {
        let view = view(4, 2, 0);
        let buckets = Buckets::of(b"key", &view);
        let taken = Slot(u64::MAX);
        let mut words = BucketWords { buckets, slots: [Slot::default(); MAX_CANDIDATES] };
        let main0 = buckets.main_half[0] as usize * 2;
        assert_eq!(words.free_slot().unwrap().0, buckets.slot(main0));
        words.slots[main0] = taken;
        let main1 = 4 + buckets.main_half[1] as usize * 2;
        assert_eq!(words.free_slot().unwrap().0, buckets.slot(main1));
        words.slots[..8].fill(taken);
        assert_eq!(words.free_slot(), None);
        words.slots[3] = Slot::default();
        assert_eq!(words.free_slot().unwrap().0, buckets.slot(3));
    }

    /// The slots in which a key can be never change, because existing clusters keep the key there.
    #[test]
    fn the_hash_never_changes() {
        let buckets = Buckets::of(b"FUSEE", &view(1024, 8, 6));
        let place = (buckets.subtable, buckets.fingerprint, buckets.first);
        assert_eq!(place, (19, 247, [5504, 8312]));
    }

    /// Both positions and the fingerprint come from one hash, and each is independent of the others.
    #[test]
    fn positions_and_fingerprints_are_spread_evenly_and_tell_nothing_of_each_other() {
        const KEYS: u32 = 1 << 16;
        let view = view(64, 8, 4);
        let all =
            (0..KEYS).map(|key| Buckets::of(&key.to_le_bytes(), &view)).collect::<vec::Vec<_>>();
        type Part = (&'static str, fn(&Buckets) -> usize);
        let group = |first: u32| (first / 24) as usize;
        let parts: [Part; 5] = [
            ("subtable", |b| b.subtable as usize),
            ("first group", |b| (b.first[0] / 24) as usize >> 1 & 15),
            ("second group", |b| (b.first[1] / 24) as usize >> 1 & 15),
            ("sides", |b| (b.main_half[0] * 2 + b.main_half[1]) as usize),
            ("fingerprint", |b| usize::from(b.fingerprint >> 4)),
        ];
        assert!(
            all.iter().all(|b| group(b.first[0]) < 64 && group(b.first[0]) != group(b.first[1]))
        );
        for (i, (name, part)) in parts.iter().enumerate() {
            for (other, of) in &parts[i + 1..] {
                let mut counts = [[0u32; 16]; 16];
                all.iter().for_each(|buckets| counts[part(buckets)][of(buckets)] += 1);
                let counts = counts.as_flattened().iter().filter(|count| **count > 0);
                let cells = counts.clone().count() as f64;
                let mean = f64::from(KEYS) / cells;
                let chi: f64 = counts.map(|n| (f64::from(*n) - mean).powi(2) / mean).sum();
                // The mean of chi is the number of cells, its standard deviation the square root of twice that.
                assert!(
                    chi < cells + 6.0 * (2.0 * cells).sqrt(),
                    "{name}, {other}: {chi} of {cells}"
                );
                assert!([64.0, 256.0].contains(&cells), "{name}, {other}: {cells} cells");
            }
        }
    }

    /// The debug output of values, as in logs and messages, does not show the hash key.
    // Promise SEC-20
    #[test]
    fn the_secret_is_not_printed() {
        let view = view(4, 2, 0);
        let secret = HashKey::new([0xab; 16]);
        let shown = alloc::format!(
            "{:?} {secret:?} {:?}",
            View { hash_key: secret, ..view },
            secret.derived((1, 2))
        );
        assert!(
            shown.contains("HashKey(..)") && !shown.contains("171") && !shown.contains("ab, ab"),
            "{shown}"
        );
    }

    #[test]
    fn derived_secrets_are_all_different_and_always_the_same() {
        let secret = HashKey::new([1; 16]);
        let of = [(0, 0), (0, 1), (1, 0), (1, 1)];
        for (i, a) in of.iter().enumerate() {
            assert_eq!(secret.derived(*a), secret.derived(*a));
            assert!(of[i + 1..].iter().all(|b| secret.derived(*a) != secret.derived(*b)));
            assert_ne!(secret.derived(*a), HashKey::new([2; 16]).derived(*a));
            assert_ne!(secret.derived(*a), secret);
        }
    }
}
