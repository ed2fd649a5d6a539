//! The requests of YCSB workloads: the mix of operations, and the keys that exist.
//!
//! | workload | SEARCH | UPDATE | INSERT | requests |
//! |---|---|---|---|---|
//! | `a` | 50 % | 50 % | | Zipfian |
//! | `b` | 95 % | 5 % | | Zipfian |
//! | `c` | 100 % | | | Zipfian |
//! | `d` | 95 % | | 5 % | latest |
//! | `updX` | 100-X % | X % | | Zipfian |
//! | `churn` | 30 % | 20 % | 25 % | Zipfian |
//!
//! `churn` is not a workload of YCSB. It inserts and deletes keys that were loaded, each in 25 % of the operations. So
//! a loaded key possibly does not exist when an operation requests it.
//!
//! The key with number n has 16 bytes: `user`, and n in 12 digits.
//!
//! Workload D adds keys during the run. A new key can be requested as soon as it and all keys with lower numbers have
//! been inserted. The [`Frontier`] counts these keys, like YCSB's counter of acknowledged inserts.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rand::{Rng, RngExt};

use crate::zipf::Distribution;

/// Length of a key, in bytes.
pub const KEY_BYTES: usize = 16;
/// Bound of key numbers: each is lower than this.
pub const MAX_KEYS: u64 = 1_000_000_000_000;

/// Returns the bytes of the key with this number.
pub fn key_bytes(key: u64) -> [u8; KEY_BYTES] {
    let mut bytes = *b"user000000000000";
    let mut rest = key;
    for digit in bytes[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    bytes
}

/// A YCSB workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbWorkload {
    /// Session store: 50 % reads and 50 % updates.
    A,
    /// Photo tags: 95 % reads and 5 % updates.
    B,
    /// User profiles: only reads.
    C,
    /// Status updates: 95 % reads of recently inserted keys, and 5 % inserts.
    D,
    /// This percentage of updates; all other requests are reads.
    Updates(u8),
    /// Reads, updates, and inserts and deletes of loaded keys.
    Churn,
}

/// An operation of a YCSB workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadOperation {
    /// Read a key.
    Search,
    /// Replace the value of a key.
    Update,
    /// Add a key.
    Insert,
    /// Remove a key.
    Delete,
}

impl YcsbWorkload {
    /// Draws the next operation of the workload.
    pub fn draw(self, rng: &mut impl Rng) -> WorkloadOperation {
        let percent = rng.random_range(0..100);
        let until_insert = self.updates_percent() + self.inserts_percent();
        if percent < self.updates_percent() {
            WorkloadOperation::Update
        } else if percent < until_insert {
            WorkloadOperation::Insert
        } else if percent < until_insert + self.deletes_percent() {
            WorkloadOperation::Delete
        } else {
            WorkloadOperation::Search
        }
    }

    /// Returns the percentage of updates.
    pub fn updates_percent(self) -> u64 {
        match self {
            YcsbWorkload::A => 50,
            YcsbWorkload::B => 5,
            YcsbWorkload::C | YcsbWorkload::D => 0,
            YcsbWorkload::Updates(percent) => percent.into(),
            YcsbWorkload::Churn => 20,
        }
    }

    /// Returns the percentage of inserts.
    pub fn inserts_percent(self) -> u64 {
        match self {
            YcsbWorkload::D => 5,
            YcsbWorkload::Churn => 25,
            _ => 0,
        }
    }

    /// Returns the percentage of deletes.
    pub fn deletes_percent(self) -> u64 {
        if self == YcsbWorkload::Churn { 25 } else { 0 }
    }

    /// Returns whether the workload inserts keys beyond the loaded ones.
    pub fn adds_keys(self) -> bool {
        self == YcsbWorkload::D
    }

    /// Returns whether the workload deletes keys that were loaded.
    pub fn removes_keys(self) -> bool {
        self == YcsbWorkload::Churn
    }

    /// Returns the default distribution of the workload's requests.
    pub fn distribution(self) -> Distribution {
        if self == YcsbWorkload::D { Distribution::Latest } else { Distribution::Zipfian }
    }
}

impl fmt::Display for YcsbWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            YcsbWorkload::A => f.write_str("a"),
            YcsbWorkload::B => f.write_str("b"),
            YcsbWorkload::C => f.write_str("c"),
            YcsbWorkload::D => f.write_str("d"),
            YcsbWorkload::Updates(percent) => write!(f, "upd{percent}"),
            YcsbWorkload::Churn => f.write_str("churn"),
        }
    }
}

impl serde::Serialize for YcsbWorkload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for YcsbWorkload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<YcsbWorkload, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for YcsbWorkload {
    type Err = String;

    fn from_str(text: &str) -> Result<YcsbWorkload, String> {
        let text = text.to_ascii_lowercase();
        let unknown =
            || format!("no workload is called `{text}`; there are a, b, c, d, upd0..upd100, churn");
        match text.strip_prefix("workload").unwrap_or(&text) {
            "a" => Ok(YcsbWorkload::A),
            "b" => Ok(YcsbWorkload::B),
            "c" => Ok(YcsbWorkload::C),
            "d" => Ok(YcsbWorkload::D),
            "churn" => Ok(YcsbWorkload::Churn),
            other => {
                let percent = other.strip_prefix("upd").and_then(|p| p.parse().ok());
                percent.filter(|p| *p <= 100).map(YcsbWorkload::Updates).ok_or_else(unknown)
            }
        }
    }
}

/// The share of one process, if several processes run one workload. The process inserts every `of`-th key, and counts
/// its own keys by the indices 0, 1, 2, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct WorkloadShare {
    /// The number of this process among the processes that share the workload, from 0.
    pub number: u64,
    /// The number of processes that share the workload.
    pub of: u64,
}

impl WorkloadShare {
    /// The share of a process that runs the whole workload.
    pub const WHOLE: WorkloadShare = WorkloadShare { number: 0, of: 1 };

    /// Returns the number of the process's own key with this index.
    pub fn key(self, index: u64) -> u64 {
        index * self.of + self.number
    }

    /// Returns the index of a key among the process's own keys.
    pub fn index(self, key: u64) -> u64 {
        key / self.of
    }

    /// Returns the number of keys below `keys` that are the process's own.
    pub fn count(self, keys: u64) -> u64 {
        (keys + self.of - 1 - self.number) / self.of
    }
}

/// The keys that are known to exist: those with numbers below [`Frontier::acknowledged`].
#[derive(Debug)]
pub struct Frontier {
    next: AtomicU64,
    acknowledged: AtomicU64,
    /// Inserted keys above a key whose insert has not ended.
    beyond: Mutex<BTreeSet<u64>>,
}

impl Frontier {
    /// Creates a frontier for keys of which those below `keys` exist.
    pub fn new(keys: u64) -> Frontier {
        Frontier {
            next: AtomicU64::new(keys),
            acknowledged: AtomicU64::new(keys),
            beyond: Mutex::default(),
        }
    }

    /// Returns the next key to insert.
    pub fn claim(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the next key to insert, or `None` if all keys below `keys` have been claimed.
    pub fn claim_below(&self, keys: u64) -> Option<u64> {
        let below = |next| (next < keys).then_some(next + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).ok()
    }

    /// Notes that the insert of a claimed key has ended.
    pub fn finish(&self, key: u64) {
        let mut beyond = self.beyond.lock().unwrap_or_else(PoisonError::into_inner);
        beyond.insert(key);
        let mut acknowledged = self.acknowledged.load(Ordering::Relaxed);
        while beyond.remove(&acknowledged) {
            acknowledged += 1;
        }
        // Release: a reader that sees this number also sees the effects of the inserts before it.
        self.acknowledged.store(acknowledged, Ordering::Release);
    }

    /// Returns the number of keys that are allowed to be requested: all keys below it exist.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// Returns the number of keys that exist or have been claimed for an insert.
    pub fn claimed(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn names_are_understood_and_unknown_ones_refused() {
        for name in ["a", "b", "c", "d", "upd0", "upd7", "upd100", "churn"] {
            assert_eq!(name.parse::<YcsbWorkload>().unwrap().to_string(), name);
        }
        assert_eq!("workloada".parse(), Ok(YcsbWorkload::A));
        assert_eq!("D".parse(), Ok(YcsbWorkload::D));
        for name in ["", "e", "upd", "upd101", "upd-1", "aa"] {
            assert!(name.parse::<YcsbWorkload>().unwrap_err().contains("upd0..upd100"), "{name}");
        }
    }

    #[test]
    fn mixes_have_the_promised_shares() {
        let mut rng = StdRng::seed_from_u64(1);
        let cases = [
            ("a", 50, 0, 0),
            ("b", 5, 0, 0),
            ("c", 0, 0, 0),
            ("d", 0, 5, 0),
            ("upd100", 100, 0, 0),
            ("churn", 20, 25, 25),
        ];
        for (name, updates, inserts, deletes) in cases {
            let workload: YcsbWorkload = name.parse().unwrap();
            let mut counts = [0i64; 4];
            for _ in 0..100_000 {
                counts[workload.draw(&mut rng) as usize] += 1;
            }
            let expected = [100 - updates - inserts - deletes, updates, inserts, deletes];
            for (count, percent) in counts.into_iter().zip(expected) {
                assert!((count - percent * 1000).abs() < 1000, "{name}: {counts:?}");
                assert!(percent > 0 || count == 0, "{name}: {counts:?}");
            }
        }
    }

    #[test]
    fn keys_have_16_bytes_and_differ() {
        assert_eq!(&key_bytes(0), b"user000000000000");
        assert_eq!(&key_bytes(12_345), b"user000000012345");
        assert_eq!(&key_bytes(MAX_KEYS - 1), b"user999999999999");
    }

    #[test]
    fn every_key_belongs_to_one_part() {
        for of in 1..5 {
            for keys in 0..20 {
                let parts = (0..of).map(|number| WorkloadShare { number, of });
                let all = parts.flat_map(|p| (0..p.count(keys)).map(move |i| (p, p.key(i), i)));
                let mut numbers = BTreeSet::new();
                for (part, key, index) in all {
                    assert!(key < keys && part.index(key) == index && numbers.insert(key));
                }
                assert_eq!(numbers.len() as u64, keys);
            }
        }
    }

    #[test]
    fn the_frontier_waits_for_the_slowest_insert() {
        let frontier = Frontier::new(10);
        let first = frontier.claim();
        let second = frontier.claim();
        let third = frontier.claim();
        frontier.finish(third);
        frontier.finish(second);
        assert_eq!(frontier.acknowledged(), 10);
        frontier.finish(first);
        assert_eq!((frontier.acknowledged(), frontier.claimed()), (13, 13));
        assert_eq!((frontier.claim_below(13), frontier.claim_below(14)), (None, Some(13)));
    }
}
