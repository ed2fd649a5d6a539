//! A table of bounded size that keeps the most used keys.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

/// Number of counters in each row of the sketch, for each key for which the table has room. A row has at least
/// `LEAST_COUNTERS`.
const COUNTERS: usize = 8;
const LEAST_COUNTERS: usize = 1 << 8;
/// All counts, and the number of accesses itself, are halved when there are this many accesses per counter of a row.
const FADES_AFTER: u32 = 4;

/// A table from keys to values that counts the accesses to each key. If the table is full, a new key replaces the one
/// with the lowest count as soon as the new key has a higher count. For keys outside of the table a sketch estimates
/// the counts (as in TinyLFU: Einziger, Friedman and Manes, ACM TOS 2017).
#[derive(Clone, Debug)]
pub struct HotKeyTable<V> {
    room: usize,
    entries: BTreeMap<u128, (u32, V)>,
    by_count: BTreeSet<(u32, u128)>,
    sketch: FrequencySketch,
}

impl<V> HotKeyTable<V> {
    /// Makes a table with room for `room` keys, which can be 0.
    pub fn new(room: usize) -> HotKeyTable<V> {
        HotKeyTable {
            room,
            entries: BTreeMap::new(),
            by_count: BTreeSet::new(),
            sketch: FrequencySketch::new(room),
        }
    }

    /// Returns the number of keys in the table.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: u128) -> Option<&V> {
        self.entries.get(&key).map(|(_, value)| value)
    }

    /// Returns the value of a key, to change it.
    pub fn get_mut(&mut self, key: u128) -> Option<&mut V> {
        self.entries.get_mut(&key).map(|(_, value)| value)
    }

    /// Counts an access to a key and returns the key's value. A key that is not in the table gets the value of `new` if
    /// the table has room or the key displaces another one.
    pub fn count_access(&mut self, key: u128, new: impl FnOnce() -> V) -> Option<&mut V> {
        if self.sketch.count(key) {
            self.fade();
        }
        if let Some((count, _)) = self.entries.get_mut(&key) {
            self.by_count.remove(&(*count, key));
            *count = count.saturating_add(1);
            self.by_count.insert((*count, key));
        } else {
            let mut count = 1;
            if self.entries.len() >= self.room {
                let (least, other) = *self.by_count.first()?;
                count = self.sketch.estimate(key);
                if count <= least {
                    return None;
                }
                self.remove(other);
            }
            self.entries.insert(key, (count, new()));
            self.by_count.insert((count, key));
        }
        self.get_mut(key)
    }

    /// Removes a key.
    pub fn remove(&mut self, key: u128) {
        if let Some((count, _)) = self.entries.remove(&key) {
            self.by_count.remove(&(count, key));
        }
    }

    /// Halves all counts, so that old accesses weigh less than new ones.
    fn fade(&mut self) {
        self.by_count.clear();
        for (key, (count, _)) in &mut self.entries {
            *count /= 2;
            self.by_count.insert((*count, *key));
        }
    }
}

/// A sketch that estimates each key's number of recent accesses, up to 255. Collisions make an estimate too high.
#[derive(Clone, Debug)]
struct FrequencySketch {
    /// Counters of [`ROWS`] rows, one row after the other.
    counters: Vec<u8>,
    questions: u32,
}

const ROWS: usize = 4;
/// Factors for hashing. They are odd, so that multiplication maps no two 64-bit numbers to one.
const FACTORS: [u64; ROWS] =
    [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb, 0xd6e8_feb8_6659_fd93];

impl FrequencySketch {
    fn new(room: usize) -> FrequencySketch {
        let row = (COUNTERS * room).next_power_of_two().clamp(LEAST_COUNTERS, 1 << 20);
        FrequencySketch { counters: vec![0; ROWS * row], questions: 0 }
    }

    fn row(&self) -> usize {
        self.counters.len() / ROWS
    }

    /// Returns the index of a key's counter in each row.
    fn places(&self, key: u128) -> [usize; ROWS] {
        let row = self.row();
        let key = key as u64 ^ ((key >> 64) as u64).rotate_left(32);
        core::array::from_fn(|i| {
            let mixed = (key ^ key >> 29).wrapping_mul(FACTORS[i]);
            let mixed = (mixed ^ mixed >> 32).wrapping_mul(FACTORS[i]);
            i * row + (mixed >> 40) as usize % row
        })
    }

    /// Counts an access. Returns whether the sketch has halved its counts, so that the caller has to halve its own.
    fn count(&mut self, key: u128) -> bool {
        for place in self.places(key) {
            self.counters[place] = self.counters[place].saturating_add(1);
        }
        self.questions += 1;
        if self.questions < FADES_AFTER * self.row() as u32 {
            return false;
        }
        self.questions /= 2;
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
        true
    }

    fn estimate(&self, key: u128) -> u32 {
        self.places(key).into_iter().map(|place| u32::from(self.counters[place])).min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_most_stays() {
        let mut table = HotKeyTable::<u128>::new(8);
        for round in 0..2_000u128 {
            for hot in 0..8 {
                table.count_access(hot, || 0);
            }
            for cold in 0..8 {
                table.count_access(1_000 + 8 * round + cold, || 0);
            }
        }
        let there = (0..8).filter(|key| table.get(*key).is_some()).count();
        assert!(there >= 7, "{there} of the 8 keys that are asked for most");
        assert_eq!(table.len(), 8);
    }

    #[test]
    fn other_keys_come_in_when_they_are_asked_for_more() {
        let mut table = HotKeyTable::<u128>::new(4);
        for _ in 0..1_000 {
            for key in 0..4 {
                table.count_access(key, || key);
            }
        }
        assert!(table.count_access(9, || 9).is_none(), "once is not enough");
        for _ in 0..4_000 {
            for key in 10..14 {
                table.count_access(key, || key);
            }
        }
        assert!((10..14).all(|key| table.get(key) == Some(&key)));
    }

    #[test]
    fn a_table_without_room_knows_nothing() {
        let mut table = HotKeyTable::<u128>::new(0);
        assert!((0..100).all(|key| table.count_access(key % 3, || 1).is_none()));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn the_count_of_a_key_and_its_place_agree() {
        let mut table = HotKeyTable::<u128>::new(3);
        for i in 0..10_000u128 {
            table.count_access(i * i % 7, || i);
            if i % 11 == 0 {
                table.remove(i % 7);
            }
            assert_eq!(table.by_count.len(), table.entries.len());
            assert!(table.entries.iter().all(|(k, (c, _))| table.by_count.contains(&(*c, *k))));
        }
    }
}
