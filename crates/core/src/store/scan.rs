//! SCAN: all pairs, piece by piece, in the order of the index.
//!
//! A piece is one operation of two phases: READ some slots of a subtable from its primary, then the objects that
//! their words lead to, as a SEARCH without a hint does. So each pair is shown as it was at some moment of the piece.
//! Nothing is held between pieces: however long a scan takes, it holds up neither view changes nor the reuse of
//! memory.
//!
//! *A pair that exists from the beginning of a scan to its end is shown exactly once.* It stays in its slot as long
//! as it exists: an UPDATE replaces the word of the slot, and so does a Move. Only a split takes it elsewhere, into
//! the slot of the same number of its subtable's sibling ([`repair::split`](crate::repair)). So the rest of a scan is
//! described by parts of the hash space, each with a slot number: the slots of the part from that number on are still
//! to be read ([`ScanCursor`]). If a part's subtable has been split, each half is a part from the same slot on. A word
//! that a split has not cleared from the old subtable yet belongs to the sibling: the key says so.
//!
//! A pair that is deleted and inserted again meanwhile may be shown twice, or not at all: at some moment of the scan
//! it did not exist.
//!
//! An object that proves nothing is re-read from all places, with its slot ([`damage`](super::damage)). If too little
//! of it is undamaged, the pair counts as damaged, and the scan goes on.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::damage::PairReread;
use super::{Hint, HintTrust, Store, StoreOp};
use crate::data::{Fetch, Redundancy};
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::stats::OpKind;
use crate::verbs::{Fabric, MAX_BATCH_VERBS, MnId, Span, VerbError};
use crate::view::{MAX_DEPTH, SlotRef, View};

/// Re-reads of a slot that others change meanwhile, before its piece is begun anew.
const MAX_LOOKS: u32 = 4;

/// The largest amount that one piece of a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// Slots of the index; one at least.
    pub slots: u32,
    /// Bytes, unless a single object has more.
    pub bytes: u64,
}

impl ScanLimits {
    /// Returns limits of this many slots, and 2 MiB.
    pub fn of_slots(slots: u32) -> ScanLimits {
        ScanLimits { slots, bytes: 2 << 20 }
    }
}

/// A part of the hash space, with a slot number: in each of its subtables the slots from that number on are still to
/// be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScanRange {
    /// Its first hash; the bits below its depth are 0.
    hash: u64,
    /// The number of bits of the hash that all of the part shares.
    depth: u8,
    /// The first slot that is still to be read.
    slot: u32,
}

impl ScanRange {
    /// Returns the half whose next hash bit is 0, and the other half.
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

/// The rest of a scan. It does not tell which pairs were shown, and holds no resources: it may be kept, written down
/// (`Display`, `FromStr`) and continued by another session of the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// The parts that are left, the next one last.
    parts: Vec<ScanRange>,
}

/// The next read of a scan.
enum ScanStep {
    /// This subtable, from this slot on.
    Subtable(u32, u32),
    /// Nothing is left.
    Nothing,
    /// A part of a subtable that is not split in the view.
    Ahead,
}

impl ScanCursor {
    /// Returns the cursor of a whole scan.
    pub fn start() -> ScanCursor {
        ScanCursor { parts: Vec::from([ScanRange { hash: 0, depth: 0, slot: 0 }]) }
    }

    /// Returns whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the share of the hash space that is done, from 0 to 1. The part that is under way counts as not done.
    pub fn progress(&self) -> f64 {
        let left = self.parts.iter().map(|part| 1.0 / (1_u64 << part.depth) as f64);
        1.0 - left.sum::<f64>().min(1.0)
    }

    /// Returns the next read. Divides the next part until it is as deep as its subtable.
    fn next(&mut self, view: &View) -> ScanStep {
        loop {
            let Some(part) = self.parts.last() else { return ScanStep::Nothing };
            let subtable = part.subtable(view);
            let local_depth = view.subtables[subtable as usize].local_depth;
            if part.depth == local_depth {
                return ScanStep::Subtable(subtable, part.slot);
            }
            if part.depth > local_depth {
                if removed(Mutant::ScansDropPartsAhead) {
                    self.parts.pop();
                    continue;
                }
                return ScanStep::Ahead;
            }
            let [first, second] = part.halves();
            self.parts.pop();
            self.parts.extend([second, first]);
        }
    }

    /// Moves the next part on to this slot, or removes it if none of its slots are left.
    fn advance(&mut self, slot: u32, slots: u64) {
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

/// The error for a text that is no cursor.
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
        // The first part is the last of the hash space, and each part ends where the one before begins.
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

/// A pair, as a scan shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedPair<'b> {
    /// Its key.
    pub key: &'b [u8],
    /// Its value.
    pub value: &'b [u8],
    /// The way in which it survives failures.
    pub redundancy: Redundancy,
}

/// A pair that is to be shown.
struct ScannedSpans {
    key: Span,
    value: Span,
    redundancy: Redundancy,
}

/// The result of a piece.
struct ScanPiece {
    good: Vec<ScannedSpans>,
    /// The slot behind the piece.
    end: u32,
    /// Pairs of which too little is undamaged, and words that lead to no object.
    damaged: u64,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Shows the next pairs of a scan to `show`, and moves the cursor on. Returns the number of pairs that were
    /// passed over because too little of them is undamaged. After an error nothing was shown, and the cursor is as it
    /// was.
    ///
    /// Two phases, and more only where something is damaged or changes.
    pub async fn scan(
        &self,
        cursor: &mut ScanCursor,
        limits: ScanLimits,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        let mut op = self.operation();
        let limits = ScanLimits { slots: limits.slots.max(1), ..limits };
        let result = op.scan(cursor, limits, show).await;
        op.finish(OpKind::Scan);
        result
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    async fn scan(
        &mut self,
        cursor: &mut ScanCursor,
        limits: ScanLimits,
        mut show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        loop {
            let mut next = cursor.clone();
            let (subtable, first) = match next.next(&self.view) {
                ScanStep::Subtable(subtable, first) => (subtable, first),
                ScanStep::Nothing => {
                    *cursor = next;
                    return Ok(0);
                }
                // The cursor comes from a session that knows of a split of which this session has not heard yet.
                ScanStep::Ahead => {
                    self.wait_for_change().await?;
                    self.view = self.pin.resume();
                    continue;
                }
            };
            if !self.may_scan(subtable).await? {
                continue;
            }
            let silent = self.store.silent.times();
            // On the heap, like everything that does not belong to an operation on a key.
            let piece = match Box::pin(self.scan_piece(subtable, first, limits)).await {
                Ok(piece) => piece,
                Err(error @ Error::Unreachable { node, error: VerbError::Unreachable, .. }) => {
                    self.scan_elsewhere(subtable, node, silent, error).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(ScanPiece { good, end, damaged }) = piece else { continue };
            if !removed(Mutant::ScansUnheard) && !self.is_vouched_for_in(subtable).await? {
                continue;
            }
            next.advance(end, self.view.geometry.subtable_slots());
            *cursor = next;
            // The pairs are in the batch: `show` may take its time, and use the store.
            if !self.pin.traces.is_in_doubt() {
                self.pin.pause();
            }
            for ScannedSpans { key, value, redundancy } in good {
                let [key, value] = [key, value].map(|span| self.batch.bytes(span));
                show(ScannedPair { key, value, redundancy });
            }
            return Ok(damaged);
        }
    }

    /// Returns whether a subtable may be read by the view that the operation is pinned by. If not, the operation is
    /// now pinned by the newest view, or has waited for a change. Backups are not read instead: a scan takes its time
    /// anyway.
    async fn may_scan(&mut self, subtable: u32) -> Result<bool, Error> {
        if !self.pin.is_pinned() || self.newer_view_has_come() {
            self.view = self.pin.resume();
            return Ok(false);
        }
        if self.view.is_without_primary(subtable) || self.reads_backups(subtable) {
            self.wait_for_change().await?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Goes on after a memory node did not answer. Objects are read from another node next, if there is one. A
    /// primary is waited for, until the view does without it.
    async fn scan_elsewhere(
        &mut self,
        subtable: u32,
        node: MnId,
        times: u64,
        error: Error,
    ) -> Result<(), Error> {
        let is_primary = self.view.subtables[subtable as usize].primary().node == node;
        let is_in_doubt = self.pin.traces.is_in_doubt();
        if is_primary || is_in_doubt || self.store.silent.times() == times {
            return self.read_without(node, error).await;
        }
        self.pin.traces.forgive_reads();
        self.store.host.report_unreachable(node);
        Ok(())
    }

    /// Reads the pairs of some slots, from this one on. `None` if they have to be read anew.
    async fn scan_piece(
        &mut self,
        subtable: u32,
        first: u32,
        limits: ScanLimits,
    ) -> Result<Option<ScanPiece>, Error> {
        let view = self.view.clone();
        let primary = view.subtables[subtable as usize].primary();
        let mut piece = ScanPiece { good: Vec::new(), end: first, damaged: 0 };
        let left = view.geometry.subtable_slots().saturating_sub(first.into());
        if left == 0 {
            return Ok(Some(piece));
        }
        let slots = left.min(limits.slots.into()) as u32;
        self.batch.clear();
        let at = primary.offset + u64::from(first) * 8;
        let read = self.batch.read(primary.node, at, slots * 8);
        self.phase().await;
        let bytes = self.batch.data(read).map_err(|f| self.failed(f))?.as_chunks().0;
        let words: Vec<Slot> = bytes.iter().map(|word| Slot(u64::from_le_bytes(*word))).collect();
        self.batch.next_phase();
        let mut posted = 0;
        let mut reads: Vec<(SlotRef, Slot, Fetch)> = Vec::new();
        for (slot, word) in (first..).zip(words) {
            if !word.is_free() && !word.is_tentative() {
                let takes = view.object_of(word).map_or(0, |object| object.fetch_verbs());
                let has_room =
                    posted + takes <= MAX_BATCH_VERBS && self.batch.touched_bytes() <= limits.bytes;
                if posted > 0 && !has_room {
                    piece.end += u32::from(removed(Mutant::ScansPassFullPieces));
                    break;
                }
                match self.fetch(primary.node, word) {
                    Some(fetch) => reads.push((SlotRef { subtable, slot }, word, fetch)),
                    None if view.is_being_lost(word) => {
                        self.wait_for_change().await?;
                        return Ok(None);
                    }
                    None if self.is_gone(word) => {}
                    None => piece.damaged += 1,
                }
                posted += takes;
            }
            piece.end = slot + 1;
        }
        if posted > 0 {
            self.phase().await;
        }
        let mut unproved = Vec::new();
        for (slot, word, fetch) in reads {
            match fetch.pair(&mut self.batch, word).map_err(|f| self.failed(f))? {
                Some(pair) => self.add_scanned(&mut piece, subtable, word, pair),
                None => unproved.push(Hint { slot, word, seen: HintTrust::Unverified }),
            }
        }
        for hint in unproved.into_iter().filter(|_| !removed(Mutant::ScansPassUnproved)) {
            if !self.scan_again(&mut piece, hint).await? {
                return Ok(None);
            }
        }
        Ok(Some(piece))
    }

    /// Re-reads a slot whose object proves nothing. Returns false if its piece has to be begun anew.
    async fn scan_again(&mut self, piece: &mut ScanPiece, mut hint: Hint) -> Result<bool, Error> {
        let primary = self.primary(hint.slot).node;
        for looks in 0.. {
            if looks > MAX_LOOKS {
                // If the piece is begun again, the pairs that were read are not needed.
                return match self.pause().await {
                    Ok(()) => Ok(false),
                    Err(_) => Err(Error::GaveUp {
                        waiting_for: "a slot that others keep changing",
                        outcome: FailedWriteOutcome::NotApplied,
                    }),
                };
            }
            match self.look_at_word(hint, primary, None).await {
                Ok(PairReread::Pair { key, value }) => {
                    self.add_scanned(piece, hint.slot.subtable, hint.word, (key, value));
                    return Ok(true);
                }
                Err(Error::Corrupt { .. }) => {
                    piece.damaged += 1;
                    return Ok(true);
                }
                Ok(PairReread::OtherKey | PairReread::Stale) => {}
                Err(error) => return Err(error),
            }
            // Another operation has changed the slot.
            self.batch.next_phase();
            let read = self.read_slot(hint.slot);
            self.phase().await;
            hint.word = self.slot_word(read).map_err(|f| self.failed(f))?;
            if self.view.is_being_lost(hint.word) {
                self.wait_for_change().await?;
                return Ok(false);
            }
            if hint.word.is_free() || hint.word.is_tentative() || self.is_gone(hint.word) {
                return Ok(true);
            }
            // The object of that word is complete and stays until this operation has ended. The word need not be
            // there any more when the slot is read once more.
            self.batch.next_phase();
            let Some(fetch) = self.fetch(primary, hint.word) else { continue };
            self.phase().await;
            let shown = fetch.pair(&mut self.batch, hint.word).map_err(|f| self.failed(f))?;
            if let Some(pair) = shown {
                self.add_scanned(piece, hint.slot.subtable, hint.word, pair);
                return Ok(true);
            }
        }
        unreachable!("it looks until it knows")
    }

    /// Adds a pair that was read to the piece, if it belongs to the subtable in which it was found.
    fn add_scanned(
        &mut self,
        piece: &mut ScanPiece,
        subtable: u32,
        word: Slot,
        (key, value): (Span, Span),
    ) {
        let belongs_to = Buckets::of(self.batch.bytes(key), &self.view).subtable;
        let Some(redundancy) = self.view.redundancy_of(word) else { return };
        if belongs_to == subtable || removed(Mutant::ScansUnclearedEntries) {
            piece.good.push(ScannedSpans { key, value, redundancy });
        }
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
            // Too deep.
            "0/25/0",
            "0/130/330",
            "0/300/0",
            // Not up to the end of the hash space, in the wrong order, twice, with a gap.
            "0/1/0",
            "8000000000000000/2/9,c000000000000000/2/7",
            "8000000000000000/1/0,8000000000000000/1/0",
            "c000000000000000/2/0,4000000000000000/2/0",
        ] {
            assert_eq!(text.parse::<ScanCursor>(), Err(ParseCursorError), "{text}");
        }
    }
}
