//! Cursors: the rest of a scan.
//!
//! A cursor is a list of ranges of hashes, each with a slot number. In the range's subtable, the slots from that number
//! on are still to be read. If the subtable has been split, each half of the range continues at the same slot number.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::mutant::{Mutant, removed};
use crate::view::{MAX_DEPTH, View};

/// A range of hashes, with a slot number: in each subtable of the range, the slots from that number on are still to be
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScanRange {
    /// The first key hash of the range. Its bits after the first `depth` are 0.
    hash: u64,
    /// The number of leading bits that all key hashes of the range share.
    depth: u8,
    /// The first slot that is still to be read.
    slot: u32,
}

impl ScanRange {
    /// Returns the half whose next hash bit is 0, then the half whose next hash bit is 1.
    fn halves(self) -> [ScanRange; 2] {
        let depth = self.depth + 1;
        let slot = if removed(Mutant::ScansHalvesAnew) { 0 } else { self.slot };
        let second = self.hash | 1 << (64 - depth);
        [ScanRange { depth, slot, ..self }, ScanRange { hash: second, depth, slot }]
    }

    fn subtable(&self, view: &View) -> u32 {
        let depth = view.depth();
        let entry = if depth == 0 { 0 } else { self.hash >> (64 - depth) };
        view.directory[entry as usize]
    }
}

/// The rest of a scan. A cursor does not tell which pairs were shown, and holds no resources. It can be kept, written
/// as text (`Display`, `FromStr`), and continued by another session of the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// The ranges of key hashes that the scan has still to read, in descending order. The next range is the last.
    parts: Vec<ScanRange>,
}

/// The next step of a scan.
pub(super) enum ScanStep {
    /// Read the slots of this subtable (the first number), from this slot (the second number) on.
    Subtable(u32, u32),
    /// The scan has read everything.
    Nothing,
    /// Wait for a newer view, because the next range is a part of a subtable that this view has not split yet.
    Ahead,
}

impl ScanCursor {
    /// Returns the cursor of a whole scan.
    pub fn start() -> ScanCursor {
        ScanCursor { parts: Vec::from([ScanRange { hash: 0, depth: 0, slot: 0 }]) }
    }

    /// Returns whether the scan has read everything.
    pub fn is_done(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the share of the hash space that is done, from 0 to 1. The range under way counts as not done.
    pub fn progress(&self) -> f64 {
        let left = self.parts.iter().map(|part| 1.0 / (1_u64 << part.depth) as f64);
        1.0 - left.sum::<f64>().min(1.0)
    }

    /// Returns the next step. Halves the next range until it has the depth of its subtable.
    pub(super) fn next(&mut self, view: &View) -> ScanStep {
        loop {
            let Some(part) = self.parts.last() else { return ScanStep::Nothing };
            let subtable = part.subtable(view);
            let local_depth = view.subtables[subtable as usize].local_depth;
            if part.depth == local_depth {
                return ScanStep::Subtable(subtable, part.slot);
            }
            if part.depth > local_depth {
                if !removed(Mutant::ScansDropPartsAhead) {
                    return ScanStep::Ahead;
                }
                self.parts.pop();
                continue;
            }
            let [first, second] = part.halves();
            self.parts.pop();
            self.parts.extend([second, first]);
        }
    }

    /// Moves the start of the next range to this slot, or removes the range if its subtable has no slots left.
    pub(super) fn advance(&mut self, slot: u32, slots: u64) {
        match self.parts.last_mut() {
            Some(part) if u64::from(slot) < slots => part.slot = slot,
            _ => drop(self.parts.pop()),
        }
    }
}

impl fmt::Display for ScanCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ScanRange { hash, depth, slot }) in self.parts.iter().enumerate() {
            let separator = if i > 0 { "," } else { "" };
            write!(f, "{separator}{hash:x}/{depth}/{slot}")?;
        }
        Ok(())
    }
}

/// The error for a text that is not the text of a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no cursor of a scan")]
pub struct ParseCursorError;

impl FromStr for ScanCursor {
    type Err = ParseCursorError;

    fn from_str(text: &str) -> Result<ScanCursor, ParseCursorError> {
        let part = |text: &str| {
            let mut fields = text.split('/');
            let hash = u64::from_str_radix(fields.next()?, 16).ok()?;
            let depth: u8 = fields.next()?.parse().ok()?;
            let slot = fields.next()?.parse().ok()?;
            if u32::from(depth) > MAX_DEPTH || fields.next().is_some() {
                return None;
            }
            let shared = u64::MAX.checked_shl(64 - u32::from(depth)).unwrap_or(0);
            let is_one = hash & !shared == 0;
            is_one.then_some(ScanRange { hash, depth, slot })
        };
        let parts: Option<Vec<ScanRange>> =
            text.split(',').filter(|text| !text.is_empty()).map(part).collect();
        let parts =
            parts.filter(|parts| parts.len() <= MAX_DEPTH as usize + 1).ok_or(ParseCursorError)?;
        // The first range of the text ends at the last hash, and each further range ends where the preceding range of
        // the text begins.
        let mut end = 1_u128 << 64;
        for part in &parts {
            let begin = u128::from(part.hash);
            if begin + (1 << (64 - u32::from(part.depth))) != end {
                return Err(ParseCursorError);
            }
            end = begin;
        }
        Ok(ScanCursor { parts })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::race::HashKey;
    use crate::verbs::ClusterId;
    use crate::view::{Geometry, Subtable};

    fn cursor(parts: &[(u64, u8, u32)]) -> ScanCursor {
        let part = |(hash, depth, slot): &(u64, u8, u32)| ScanRange {
            hash: *hash,
            depth: *depth,
            slot: *slot,
        };
        ScanCursor { parts: parts.iter().map(part).collect() }
    }

    #[test]
    fn a_part_that_is_split_goes_on_with_its_slot_in_both_halves() {
        let [first, second] = ScanRange { hash: 1 << 63, depth: 1, slot: 40 }.halves();
        assert_eq!(first, ScanRange { hash: 1 << 63, depth: 2, slot: 40 });
        assert_eq!(second, ScanRange { hash: 3 << 62, depth: 2, slot: 40 });
    }

    #[test]
    fn a_cursor_is_taken_to_the_depth_of_the_index_and_waits_if_it_is_ahead() {
        let view = |depth: u8| View {
            number: 1,
            cluster: ClusterId::from_word(1).unwrap(),
            hash_key: HashKey::new([7; 16]),
            geometry: Geometry::default(),
            members: Vec::new(),
            regions: Vec::new(),
            directory: (0..1 << depth).collect(),
            subtables: (0..1 << depth).map(|_| Subtable::new(depth, Vec::new())).collect(),
            change: None,
        };
        let mut all = ScanCursor::start();
        assert!(matches!(all.next(&view(2)), ScanStep::Subtable(0, 0)));
        all.advance(9, 100);
        assert!(matches!(all.next(&view(3)), ScanStep::Subtable(0, 9)));
        all.advance(100, 100);
        assert!(
            matches!(all.next(&view(3)), ScanStep::Subtable(1, 9)),
            "the other half, from there"
        );
        assert!(matches!(all.next(&view(2)), ScanStep::Ahead), "who has not heard of the split");
        for subtable in 1..8 {
            let first = if subtable == 1 { 9 } else { 0 };
            assert!(
                matches!(all.next(&view(3)), ScanStep::Subtable(s, f) if (s, f) == (subtable, first))
            );
            all.advance(100, 100);
        }
        assert!(matches!(all.next(&view(3)), ScanStep::Nothing) && all.is_done());
    }

    #[test]
    fn cursors_are_written_and_read() {
        let half = cursor(&[(3 << 62, 2, 7), (1 << 63, 2, 9)]);
        for cursor in [ScanCursor::start(), half.clone(), cursor(&[])] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        assert_eq!(half.to_string(), "c000000000000000/2/7,8000000000000000/2/9");
        assert!((half.progress() - 0.5).abs() < 1e-9);
        assert!(cursor(&[]).is_done() && !half.is_done());
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in [
            "x",
            "0",
            "0/0",
            "0/0/x",
            "0/0/1/2",
            "1/0/0",
            // The depth exceeds the largest allowed depth.
            "0/25/0",
            "0/130/330",
            "0/300/0",
            // The ranges do not reach the last hash, are in the wrong order, overlap, or leave a gap.
            "0/1/0",
            "8000000000000000/2/9,c000000000000000/2/7",
            "8000000000000000/1/0,8000000000000000/1/0",
            "c000000000000000/2/0,4000000000000000/2/0",
        ] {
            assert_eq!(text.parse::<ScanCursor>(), Err(ParseCursorError), "{text}");
        }
    }
}
