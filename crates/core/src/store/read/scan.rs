//! SCAN: all pairs, in the order of the index, one *piece* at a time.
//!
//! A piece is one operation of two phases: READ some slots of a subtable from its primary, then READ the objects that
//! their words lead to, as a SEARCH without a hint does. So each pair is shown as it was at some moment during the
//! piece. Between pieces a scan holds nothing, so however long it takes, it delays neither view changes nor the reuse
//! of memory.
//!
//! *A pair that exists from the beginning of a scan to its end is shown exactly once*, because it stays in its slot: an
//! UPDATE or a Move only replaces the slot's word. Only a split moves a pair, into the slot of the same number in the
//! subtable's sibling ([`repair::split`](crate::repair)). So the rest of a scan is a list of ranges of hashes, each
//! with the number of the first slot that is still to be read ([`ScanCursor`]). If a range's subtable has been split,
//! each half of the range continues at the same slot number. An entry that a split has moved but not yet cleared in the
//! old subtable belongs to the sibling, by its key, so the scan skips it.
//!
//! A pair that is deleted and inserted again during the scan is possibly shown twice, or not at all: at some moment of
//! the scan it did not exist.
//!
//! An object that proves nothing is re-read from all replicas, together with its slot ([`damage`](super::damage)). If
//! too little of it is undamaged, the scan counts the pair as damaged, and goes on.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::damage::{PairReread, reread_pair};
use super::scan_cursor::{ScanCursor, ScanStep};
use crate::data::{Fetch, Redundancy};
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::Buckets;
use crate::stats::OpKind;
use crate::store::session::is_vouched_for_in;
use crate::store::{Hint, HintTrust, Store, StoreOp};
use crate::verbs::{Fabric, MAX_BATCH_VERBS, MnId, Span, VerbError};
use crate::view::SlotRef;

/// The number of times that the re-read of a slot is repeated because other sessions keep changing the slot. After
/// that, the whole piece of the scan is read anew.
const MAX_LOOKS: u32 = 4;

/// The limits of what one piece of a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanLimits {
    /// The number of index slots that the piece reads at most; 0 counts as 1.
    pub slots: u32,
    /// The number of bytes after which the piece reads no further object.
    pub bytes: u64,
}

impl ScanLimits {
    /// Returns the limits of a piece of up to this many slots and about 2 MiB of objects.
    pub fn of_slots(slots: u32) -> ScanLimits {
        ScanLimits { slots, bytes: 2 << 20 }
    }
}

/// A pair, as a scan shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScannedPair<'b> {
    /// The pair's key.
    pub key: &'b [u8],
    /// The pair's value.
    pub value: &'b [u8],
    /// The pair's redundancy.
    pub redundancy: Redundancy,
}

/// A pair that the scan shows; the spans are its key and value in the batch.
struct ScannedSpans {
    key: Span,
    value: Span,
    redundancy: Redundancy,
}

/// A slot and its word, with the posted READs of the object to which the word leads.
struct AskedPair {
    place: Hint,
    object: Fetch,
}

/// A piece of a scan that is being read.
struct ScanPiece {
    subtable: u32,
    good: Vec<ScannedSpans>,
    /// The number of the first slot that the piece does not cover.
    end: u32,
    /// The number of pairs of which too little is undamaged, and of words that lead to no object.
    damaged: u64,
    /// Whether a pair is being lost, so that the piece has to be read anew.
    is_being_lost: bool,
}

impl<F: Fabric, H: Host> Store<F, H> {
    /// Calls `show` for the next pairs of a scan, and advances the cursor. Returns the number of pairs that were
    /// skipped because too little of them is undamaged. If the call fails, `show` was not called, and the cursor is
    /// unchanged.
    ///
    /// Takes two phases. Takes more if objects are damaged, slots change, memory nodes do not answer, or members have
    /// to vouch.
    pub async fn scan(
        &self,
        cursor: &mut ScanCursor,
        limits: ScanLimits,
        show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        let mut op = self.operation();
        let limits = ScanLimits { slots: limits.slots.max(1), ..limits };
        let result = PieceScan { op: &mut op, limits }.run(cursor, show).await;
        op.finish(OpKind::Scan);
        result
    }
}

/// The work of reading one piece of a scan, as a part of an operation.
struct PieceScan<'o, 's, F: Fabric, H: Host> {
    op: &'o mut StoreOp<'s, F, H>,
    limits: ScanLimits,
}

impl<F: Fabric, H: Host> PieceScan<'_, '_, F, H> {
    async fn run(
        &mut self,
        cursor: &mut ScanCursor,
        mut show: impl FnMut(ScannedPair<'_>),
    ) -> Result<u64, Error> {
        loop {
            let mut next = cursor.clone();
            let (subtable, first) = match next.next(&self.op.view) {
                ScanStep::Subtable(subtable, first) => (subtable, first),
                ScanStep::Nothing => {
                    *cursor = next;
                    return Ok(0);
                }
                // Another session wrote the cursor after a split of which this session has not heard yet.
                ScanStep::Ahead => {
                    self.op.wait_for_change().await?;
                    self.op.view = self.op.pin.resume();
                    continue;
                }
            };
            if !self.is_readable(subtable).await? {
                continue;
            }
            let times = self.op.store.silent.times();
            // Boxed, like all code that operations on single keys do not need, so that the futures of those operations
            // stay small.
            let piece = match Box::pin(self.read(subtable, first)).await {
                Ok(piece) => piece,
                Err(error @ Error::Unreachable { node, error: VerbError::Unreachable, .. }) => {
                    self.read_elsewhere(subtable, node, times, error).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(ScanPiece { good, end, damaged, .. }) = piece else { continue };
            if !removed(Mutant::ScansUnheard) && !is_vouched_for_in(self.op, subtable).await? {
                continue;
            }
            next.advance(end, self.op.view.geometry.subtable_slots());
            *cursor = next;
            // The batch holds the pairs, so the operation need not stay pinned: `show` can take long and can use the
            // store.
            if !self.op.pin.traces.is_in_doubt() {
                self.op.pin.pause();
            }
            for ScannedSpans { key, value, redundancy } in good {
                let [key, value] = [key, value].map(|span| self.op.batch.bytes(span));
                show(ScannedPair { key, value, redundancy });
            }
            return Ok(damaged);
        }
    }

    /// Returns whether a subtable's primary can be read in the view in which the operation is pinned. If not, the
    /// operation is now pinned in the newest view, or has waited for a view change. A scan does not read backups
    /// instead, because it has time to wait.
    async fn is_readable(&mut self, subtable: u32) -> Result<bool, Error> {
        let op = &mut *self.op;
        if !op.pin.is_pinned() || op.newer_view_has_come() {
            op.view = op.pin.resume();
            return Ok(false);
        }
        if op.view.is_without_primary(subtable) || op.store.reads.backups.has(&op.view, subtable) {
            op.wait_for_change().await?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Prepares the next try after a memory node did not answer. If the node held the slots' primary, waits until the
    /// view no longer has the node. Otherwise the next try reads objects from other nodes that have them.
    async fn read_elsewhere(
        &mut self,
        subtable: u32,
        node: MnId,
        times: u64,
        error: Error,
    ) -> Result<(), Error> {
        let op = &mut *self.op;
        let is_primary = op.view.subtables[subtable as usize].primary().node == node;
        let is_in_doubt = op.pin.traces.is_in_doubt();
        if is_primary || is_in_doubt || op.store.silent.times() == times {
            return op.read_without(node, error).await;
        }
        op.pin.traces.forgive_reads();
        op.store.host.report_unreachable(node);
        Ok(())
    }

    /// Reads the pairs of some slots, beginning with slot `first`. Returns `None` if the slots have to be read anew.
    async fn read(&mut self, subtable: u32, first: u32) -> Result<Option<ScanPiece>, Error> {
        let mut piece =
            ScanPiece { subtable, good: Vec::new(), end: first, damaged: 0, is_being_lost: false };
        let words = self.read_words(subtable, first).await?;
        if words.is_empty() {
            return Ok(Some(piece));
        }
        let asked = self.post_objects(&mut piece, words);
        if piece.is_being_lost {
            self.op.wait_for_change().await?;
            return Ok(None);
        }
        if !asked.is_empty() {
            self.op.phase().await;
        }
        let mut unproved = Vec::new();
        for AskedPair { place, object } in asked {
            if !self.add(&mut piece, place.word, object)? {
                unproved.push(place);
            }
        }
        for place in unproved.into_iter().filter(|_| !removed(Mutant::ScansPassUnproved)) {
            if !self.reread(&mut piece, place).await? {
                return Ok(None);
            }
        }
        Ok(Some(piece))
    }

    /// Reads the words of some slots, beginning with slot `first`: in one phase, or in none if no slots are left.
    async fn read_words(&mut self, subtable: u32, first: u32) -> Result<Vec<Slot>, Error> {
        let op = &mut *self.op;
        let primary = op.view.subtables[subtable as usize].primary();
        let left = op.view.geometry.subtable_slots().saturating_sub(first.into());
        if left == 0 {
            return Ok(Vec::new());
        }
        let slots = left.min(self.limits.slots.into()) as u32;
        op.batch.clear();
        let at = primary.offset + u64::from(first) * 8;
        let read = op.batch.read(primary.node, at, slots * 8);
        op.phase().await;
        let bytes = op.batch.data(read).map_err(|f| op.failed(f))?.as_chunks().0;
        Ok(bytes.iter().map(|word| Slot(u64::from_le_bytes(*word))).collect())
    }

    /// Posts the READs of the objects to which `words` lead, until the piece is full. The words are those of the slots
    /// from the piece's first slot on.
    fn post_objects(&mut self, piece: &mut ScanPiece, words: Vec<Slot>) -> Vec<AskedPair> {
        let op = &mut *self.op;
        let view = op.view.clone();
        let primary = view.subtables[piece.subtable as usize].primary().node;
        let mut verbs = 0;
        let mut asked = Vec::new();
        op.batch.next_phase();
        for (slot, word) in (piece.end..).zip(words) {
            if !word.is_free() && !word.is_tentative() {
                let takes = view.object_of(word).map_or(0, |object| object.fetch_verbs());
                let is_too_much =
                    verbs + takes > MAX_BATCH_VERBS || op.batch.touched_bytes() > self.limits.bytes;
                if verbs > 0 && is_too_much {
                    piece.end += u32::from(removed(Mutant::ScansPassFullPieces));
                    break;
                }
                match op.fetch(primary, word) {
                    Some(object) => {
                        let slot = SlotRef { subtable: piece.subtable, slot };
                        let place = Hint { slot, word, seen: HintTrust::Unverified };
                        asked.push(AskedPair { place, object });
                    }
                    None if view.is_being_lost(word) => {
                        piece.is_being_lost = true;
                        break;
                    }
                    None if op.is_gone(word) => {}
                    None => piece.damaged += 1,
                }
                verbs += takes;
            }
            piece.end = slot + 1;
        }
        asked
    }

    /// Re-reads a slot whose object proves nothing. Returns false if the slot's piece has to be read anew.
    async fn reread(&mut self, piece: &mut ScanPiece, mut hint: Hint) -> Result<bool, Error> {
        let primary = self.op.primary(hint.slot).node;
        for _ in 0..=MAX_LOOKS {
            match reread_pair(self.op, hint, primary).await {
                Ok(PairReread::Pair { key, value }) => {
                    piece.add(self.op, hint.word, key, value);
                    return Ok(true);
                }
                Err(Error::Corrupt { .. }) => {
                    piece.damaged += 1;
                    return Ok(true);
                }
                Ok(PairReread::OtherKey | PairReread::Stale) => {}
                Err(error) => return Err(error),
            }
            // The slot shows another word, because another operation has changed it.
            let op = &mut *self.op;
            op.batch.next_phase();
            let read = op.read_slot(hint.slot);
            op.phase().await;
            hint.word = op.slot_word(read).map_err(|f| op.failed(f))?;
            if op.view.is_being_lost(hint.word) {
                op.wait_for_change().await?;
                return Ok(false);
            }
            if hint.word.is_free() || hint.word.is_tentative() || op.is_gone(hint.word) {
                return Ok(true);
            }
            // The object of this word is complete, and stays so until this operation ends. So this READ is enough, even
            // if the slot shows yet another word by now.
            op.batch.next_phase();
            let Some(object) = op.fetch(primary, hint.word) else { continue };
            op.phase().await;
            if self.add(piece, hint.word, object)? {
                return Ok(true);
            }
        }
        // The piece is read anew after the pause, so the pairs that were read are dropped.
        let waiting_for = "a slot that others keep changing";
        let gave_up = Error::GaveUp { waiting_for, outcome: FailedWriteOutcome::NotApplied };
        self.op.pause().await.map_or(Err(gave_up), |()| Ok(false))
    }

    /// Adds the pair of a word's object, which was read. Returns false if the object proves nothing.
    fn add(&mut self, piece: &mut ScanPiece, word: Slot, object: Fetch) -> Result<bool, Error> {
        let op = &mut *self.op;
        let shown = object.pair(&mut op.batch, word).map_err(|f| op.failed(f))?;
        let Some((key, value)) = shown else { return Ok(false) };
        piece.add(op, word, key, value);
        Ok(true)
    }
}

impl ScanPiece {
    /// Adds a pair that was read, if it belongs to the subtable in which it was found.
    fn add<F: Fabric, H: Host>(
        &mut self,
        op: &StoreOp<'_, F, H>,
        word: Slot,
        key: Span,
        value: Span,
    ) {
        let belongs_to = Buckets::of(op.batch.bytes(key), &op.view).subtable;
        let Some(redundancy) = op.view.redundancy_of(word) else { return };
        if belongs_to == self.subtable || removed(Mutant::ScansUnclearedEntries) {
            self.good.push(ScannedSpans { key, value, redundancy });
        }
    }
}
