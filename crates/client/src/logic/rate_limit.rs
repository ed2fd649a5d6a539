//! Limits of the work that a session does for the cluster's redundancy policy: a number of bytes per second, and only
//! keys that are read often.
//!
//! The caller passes the time. These limits are approximate, and correctness does not depend on them.

use std::collections::HashMap;
use std::time::Duration;

use fusee_core::data::Promotion;

/// Longest time for which unused allowance is saved up.
const SAVED: Duration = Duration::from_secs(1);
/// Limit of keys whose reads are counted in one time window. Reads of other keys are not counted before the next
/// window.
const MAX_KEYS: usize = 4096;

/// An allowance of bytes per second.
#[derive(Debug)]
pub struct ByteRateLimit {
    bytes_per_s: u64,
    /// Bytes that can be used now, times a billion; negative if more than the allowance was used.
    room: i128,
    at: Duration,
}

const NANOS: i128 = 1_000_000_000;

impl ByteRateLimit {
    /// Makes an allowance that begins to grow now.
    pub fn new(bytes_per_s: u64, now: Duration) -> ByteRateLimit {
        ByteRateLimit { bytes_per_s, room: 0, at: now }
    }

    /// Returns whether some allowance is left. A single use is allowed to exceed the allowance that is left.
    pub fn has_room(&mut self, now: Duration) -> bool {
        let rate = i128::from(self.bytes_per_s);
        let passed = now.saturating_sub(self.at).as_nanos() as i128;
        self.at = self.at.max(now);
        let most = rate.saturating_mul(SAVED.as_nanos() as i128);
        self.room = self.room.saturating_add(rate.saturating_mul(passed)).min(most);
        self.room > 0
    }

    /// Deducts used bytes from the allowance.
    pub fn spend(&mut self, bytes: u64) {
        self.room = self.room.saturating_sub(i128::from(bytes).saturating_mul(NANOS));
    }
}

/// Counts reads of keys, and decides which keys to promote.
#[derive(Debug)]
pub struct Promoter {
    promotion: Promotion,
    pace: ByteRateLimit,
    /// The beginning of the time window.
    since: Duration,
    /// Number of reads in the time window, by hash of the key; `DONE` for keys that were due in this window.
    reads: HashMap<u64, u16>,
}

const DONE: u16 = u16::MAX;

impl Promoter {
    /// Makes a promoter with a time window that begins now.
    pub fn new(promotion: Promotion, now: Duration) -> Promoter {
        let pace = ByteRateLimit::new(promotion.bytes_per_s, now);
        Promoter { promotion, pace, since: now, reads: HashMap::new() }
    }

    /// Counts a read of a pair that could be promoted. Returns whether to promote the pair now. A key's pair is
    /// promoted at most once in a time window, even if the promotion fails.
    pub fn is_due(&mut self, hash: u64, now: Duration) -> bool {
        let window = Duration::from_millis(self.promotion.window_ms.into());
        if now.saturating_sub(self.since) >= window {
            self.since = now;
            self.reads.clear();
        }
        if self.reads.len() == MAX_KEYS && !self.reads.contains_key(&hash) {
            return false;
        }
        let reads = self.reads.entry(hash).or_default();
        if *reads == DONE {
            return false;
        }
        *reads = (*reads + 1).min(DONE - 1);
        let is_due = *reads >= self.promotion.after_reads && self.pace.has_room(now);
        if is_due {
            *reads = DONE;
        }
        is_due
    }

    /// Deducts the bytes of a promoted value from the allowance.
    pub fn spend(&mut self, bytes: u64) {
        self.pace.spend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use fusee_core::data::PromotedRedundancy;

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_pace_is_kept_over_any_time() {
        for bytes in [1, 700, 5_000] {
            let mut pace = ByteRateLimit::new(1000, at(50));
            let mut used = 0;
            assert!(!pace.has_room(at(50)), "nothing is saved at first");
            for ms in 51..10_050 {
                if pace.has_room(at(ms)) {
                    pace.spend(bytes);
                    used += bytes;
                }
            }
            let most = 10_000 + bytes;
            assert!((9_000..=most).contains(&used), "{used} bytes in 10 s, {bytes} at a time");
        }
    }

    #[test]
    fn what_is_not_used_is_saved_for_a_second() {
        let mut pace = ByteRateLimit::new(1000, at(0));
        let mut at_once = 0;
        while pace.has_room(at(3_600_000)) {
            pace.spend(100);
            at_once += 100;
        }
        assert_eq!(at_once, 1000);
        assert!(!pace.has_room(at(0)), "a clock that goes back gives nothing");
        let mut any = ByteRateLimit::new(u64::MAX, at(0));
        assert!(any.has_room(Duration::MAX));
        any.spend(u64::MAX);
    }

    fn promoter(after_reads: u16, bytes_per_s: u64) -> Promoter {
        let to = PromotedRedundancy::Oriented;
        Promoter::new(Promotion { after_reads, window_ms: 1000, to, bytes_per_s }, at(0))
    }

    #[test]
    fn a_key_is_due_once_in_a_window_and_after_its_reads() {
        let mut promoter = promoter(3, 1 << 40);
        let due = |promoter: &mut Promoter, ms: &[u64]| -> Vec<bool> {
            ms.iter().map(|ms| promoter.is_due(7, at(*ms))).collect()
        };
        assert_eq!(due(&mut promoter, &[10, 20, 30, 40, 999]), [false, false, true, false, false]);
        // Reads in the last time window do not count in the next one.
        assert_eq!(due(&mut promoter, &[1000, 1990, 2100, 2200]), [false; 4]);
        assert_eq!(due(&mut promoter, &[2300]), [true]);
    }

    #[test]
    fn promotions_keep_their_pace_and_their_memory_is_bounded() {
        let mut promoter = promoter(2, 1000);
        assert!(!promoter.is_due(1, at(1)) && promoter.is_due(1, at(2)));
        promoter.spend(500);
        assert!(!promoter.is_due(2, at(3)) && !promoter.is_due(2, at(4)), "there is no room");
        assert!(promoter.is_due(2, at(600)), "and then there is");
        for key in 0..2 * MAX_KEYS as u64 {
            promoter.is_due(key, at(700));
        }
        assert_eq!(promoter.reads.len(), MAX_KEYS);
    }
}
