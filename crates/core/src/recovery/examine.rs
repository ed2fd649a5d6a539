//! The progress of a dead client's writes, judged by the slots that can hold an object's key.
//!
//! The primary's slots are read first. If one shows the object's identity, the round is over. Otherwise the backups'
//! slots are read. A backup that shows the identity has shown it since before the primary was read, because identities
//! do not recur while an operation runs that knows them. So the round had not ended when the primary was read, and the
//! primary showed the round's old word.
//!
//! A round leaves these traces, and no others:
//!
//! | primary | backups | state of the write |
//! |---|---|---|
//! | own word | – | committed |
//! | own identity, size class 0 | – | an INSERT withdrawn |
//! | tentative | – | an INSERT with one index replica, before its commit |
//! | – | – | not begun, lost, or replaced since |
//! | occupied | own word on some | UPDATE, UPSERT, Move or DELETE, anywhere before the commit |
//! | free | size class 0 on some | an INSERT that was withdrawing |
//! | free | own word on some, tentative on the others | an INSERT that was confirming |
//! | free | tentative on some | an INSERT, anywhere before |
//!
//! A slot word whose pair is lost shows no key, and is therefore treated as free: the traces are those of a round that
//! began after the loss. Rounds that began before the loss were settled, and left no traces.

use alloc::vec::Vec;
use core::ops::Range;

use arrayvec::ArrayVec;

use super::{FoundWrite, GROUP, Recovery, RecoveryError};
use crate::data::complete;
use crate::layout::{Opcode, Slot};
use crate::mutant::{Mutant, removed};
use crate::race::BucketWords;
use crate::verbs::{Fabric, Ticket};
use crate::view::{MAX_REPLICAS, SlotRef};

const _: () = assert!(GROUP * 2 * MAX_REPLICAS <= crate::verbs::MAX_BATCH_VERBS);

/// One item for each backup, without heap allocation.
pub(super) type PerBackup<T> = ArrayVec<T, { MAX_REPLICAS - 1 }>;

/// A slot that contains the identity of an object that recovery examines.
#[derive(Clone, Debug)]
pub(super) struct RecoverySlot {
    pub slot: SlotRef,
    /// The word of the primary, which is read first.
    pub primary: Slot,
    /// The words of the backups, read after the primary's; empty if the primary's word has decided.
    pub backups: PerBackup<Slot>,
}

/// The step by which recovery ends a write of the dead client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecoveryStep {
    /// Do nothing, because the primary shows that the round is over.
    Done,
    /// Go on with the round, for this word, and commit the word if it wins.
    Commit(Slot),
    /// Go on with the round for this tentative word. If the word wins the round, withdraw the INSERT.
    WinAndWithdraw(Slot),
    /// Replace the tentative words on the backups by this confirmed word, then commit the confirmed word.
    Confirm(Slot),
    /// Replace the dead client's words on the backups, and then on the primary, by this word of size class 0.
    Withdraw(Slot),
    /// Do nothing, because no correct client leaves the words that the slot's replicas show.
    Strange,
}

/// Decides by the table in this module's documentation. A slot whose pair is gone counts as free.
pub(super) fn judge(opcode: Opcode, own: Slot, seen: &RecoverySlot, is_gone: bool) -> RecoveryStep {
    let identity = own.identity();
    let is_own = |word: &&Slot| word.identity() == identity;
    let tentative = own.tentative();
    let withdrawn = own.withdrawn();
    let inserts = matches!(opcode, Opcode::Insert | Opcode::Upsert);
    let possible = |word: &Slot| match opcode {
        Opcode::Delete | Opcode::Update | Opcode::Move => *word == own,
        Opcode::Insert | Opcode::Upsert => [own, tentative, withdrawn].contains(word),
        Opcode::Copy => false,
    };
    let mut all = seen.backups.iter().chain([&seen.primary]).filter(is_own);
    if !all.all(possible) {
        return RecoveryStep::Strange;
    }
    let old = seen.primary;
    if old.identity() == identity {
        return if old.is_tentative() {
            RecoveryStep::Withdraw(withdrawn)
        } else {
            RecoveryStep::Done
        };
    }
    let is_free = old.is_free() || is_gone && !removed(Mutant::RecoveryKnowsNothingGone);
    let shows = |word: Slot| seen.backups.contains(&word);
    match opcode {
        _ if old.is_tentative() => RecoveryStep::Strange,
        Opcode::Delete | Opcode::Update | Opcode::Move if !is_free => RecoveryStep::Commit(own),
        Opcode::Upsert if !is_free && !shows(tentative) && !shows(withdrawn) => {
            RecoveryStep::Commit(own)
        }
        _ if !inserts || !is_free => RecoveryStep::Strange,
        _ if shows(withdrawn) && removed(Mutant::RecoveryIgnoresWithdrawnCopies) => {
            RecoveryStep::Done
        }
        _ if shows(withdrawn) => RecoveryStep::Withdraw(withdrawn),
        _ if shows(own) => RecoveryStep::Confirm(own),
        _ => RecoveryStep::WinAndWithdraw(tentative),
    }
}

/// The words of all slots of one object's key, on some of the subtable's replicas.
type Replicas = ArrayVec<BucketWords, MAX_REPLICAS>;

impl<F: Fabric> Recovery<'_, F> {
    /// Reads the slots of up to [`GROUP`] objects, and completes their writes.
    pub(super) async fn examine(&mut self, group: &[FoundWrite]) -> Result<(), RecoveryError> {
        self.report.examined += group.len() as u64;
        let backups_first = removed(Mutant::RecoveryReadsBackupsFirst);
        let mut early = Vec::new();
        if backups_first {
            early = self.read_slots(group, 1..MAX_REPLICAS).await?;
        }
        let primaries = self.read_slots(group, 0..1).await?;
        let mut unsettled = Vec::new();
        let mut shown = Vec::new();
        for (i, (found, words)) in group.iter().zip(&primaries).enumerate() {
            let on_primary = words.iter().find_map(|w| sightings(found, w).next());
            if on_primary.is_some_and(|(_, word)| !word.is_tentative()) {
                self.report.on_primary += 1;
                continue;
            }
            unsettled.push(*found);
            let from = if backups_first { core::mem::take(&mut early[i]) } else { Replicas::new() };
            shown.push((*words.first().expect("the primary"), from));
        }
        if !backups_first {
            let backups = self.read_slots(&unsettled, 1..MAX_REPLICAS).await?;
            shown.iter_mut().zip(backups).for_each(|((_, later), b)| *later = b);
        }
        for (found, (primary, backups)) in unsettled.iter().zip(&shown) {
            match sighting(found, primary, backups) {
                Ok(Some(seen)) => self.finish(found, &seen).await?,
                Ok(None) => self.report.nowhere += 1,
                Err(DuplicateIdentity) => self.report.strange += 1,
            }
        }
        Ok(())
    }

    /// Completes those objects of a group (up to [`GROUP`]) whose identity some replica shows in a slot.
    pub(super) async fn complete_those_in_slots(
        &mut self,
        group: &[FoundWrite],
    ) -> Result<u64, RecoveryError> {
        let shown = self.read_slots(group, 0..MAX_REPLICAS).await?;
        let stands = |found: &FoundWrite, replicas: &Replicas| {
            replicas.iter().any(|words| sightings(found, words).next().is_some())
        };
        let shown = group.iter().zip(&shown).filter(|(found, replicas)| stands(found, replicas));
        let words: Vec<Slot> = shown.map(|(found, _)| found.own).collect();
        let objects = self.view.objects_of(&words);
        Ok(complete(self.fabric, objects, &mut self.report.cost).await?)
    }

    /// Reads, in one phase, the slots of the keys of all these objects, from those replicas of the keys' subtables
    /// whose numbers are in `replicas`.
    async fn read_slots(
        &mut self,
        group: &[FoundWrite],
        replicas: Range<usize>,
    ) -> Result<Vec<Replicas>, RecoveryError> {
        self.batch.clear();
        let mut tickets: Vec<ArrayVec<[Ticket; 2], MAX_REPLICAS>> = Vec::new();
        for found in group {
            let places = self.view.subtables[found.buckets.subtable as usize].replicas();
            let range = replicas.start.min(places.len())..replicas.end.min(places.len());
            let reads = places[range].iter().map(|p| found.buckets.read(&mut self.batch, *p));
            tickets.push(reads.collect());
        }
        if !self.batch.verbs().is_empty() {
            self.phase().await;
        }
        let mut all = Vec::new();
        for (found, tickets) in group.iter().zip(tickets) {
            let mut words = Replicas::new();
            for ticket in tickets {
                words.push(found.buckets.words(&self.batch, ticket)?);
            }
            all.push(words);
        }
        Ok(all)
    }
}

/// The error that two slots contain the identity of one object, although one attempt of a write changes only one slot.
struct DuplicateIdentity;

/// Returns the slots of a key that contain the identity of an object.
fn sightings<'w>(
    found: &FoundWrite,
    words: &'w BucketWords,
) -> impl Iterator<Item = (SlotRef, Slot)> + 'w {
    let identity = found.own.identity();
    words.iter().filter(move |(_, word)| word.identity() == identity)
}

/// Returns the slot that contains the identity of an object, with the words on all replicas read; `None` if there is
/// none.
fn sighting(
    found: &FoundWrite,
    primary: &BucketWords,
    backups: &[BucketWords],
) -> Result<Option<RecoverySlot>, DuplicateIdentity> {
    let replicas = || core::iter::once(primary).chain(backups);
    let mut slots = replicas().flat_map(|words| sightings(found, words)).map(|(slot, _)| slot);
    let Some(slot) = slots.next() else { return Ok(None) };
    if slots.any(|other| other != slot) {
        return Err(DuplicateIdentity);
    }
    let word = |words: &BucketWords| words.word(slot).expect("all replicas show the same slots");
    Ok(Some(RecoverySlot {
        slot,
        primary: word(primary),
        backups: backups.iter().map(word).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Address, SizeClass};
    use crate::verbs::ClientId;

    fn slot(n: u64) -> Slot {
        Slot::new(1, SizeClass::from_code(1).unwrap(), Address::new(n * 64), 0)
    }

    fn number(n: u32) -> Slot {
        Slot::number(ClientId(1), n)
    }

    fn judged(opcode: Opcode, own: Slot, primary: Slot, backups: &[Slot]) -> RecoveryStep {
        let slot = SlotRef { subtable: 0, slot: 0 };
        let backups = backups.iter().copied().collect();
        judge(opcode, own, &RecoverySlot { slot, primary, backups }, false)
    }

    #[test]
    fn a_word_on_the_primary_is_the_end_of_its_round() {
        let own = slot(2);
        for opcode in [Opcode::Insert, Opcode::Update, Opcode::Upsert] {
            assert_eq!(judged(opcode, own, own, &[]), RecoveryStep::Done);
        }
        assert_eq!(judged(Opcode::Insert, own, own.withdrawn(), &[]), RecoveryStep::Done);
        assert_eq!(judged(Opcode::Delete, number(2), number(2), &[]), RecoveryStep::Done);
        let tentative = judged(Opcode::Upsert, own, own.tentative(), &[]);
        assert_eq!(tentative, RecoveryStep::Withdraw(own.withdrawn()));
    }

    #[test]
    fn rounds_on_occupied_slots_go_on_with_the_word_they_began_with() {
        let old = slot(1);
        let own = slot(2);
        let other = slot(3);
        for opcode in [Opcode::Update, Opcode::Upsert, Opcode::Move] {
            let own = opcode.puts(own);
            assert_eq!(judged(opcode, own, old, &[other, own]), RecoveryStep::Commit(own));
        }
        let delete = judged(Opcode::Delete, number(2), old, &[number(2), old]);
        assert_eq!(delete, RecoveryStep::Commit(number(2)));
    }

    #[test]
    fn inserts_are_finished_as_far_as_they_had_decided() {
        let old = slot(1).withdrawn();
        let own = slot(2);
        let other = slot(3);
        let tentative = own.tentative();
        let withdrawn = own.withdrawn();
        for opcode in [Opcode::Insert, Opcode::Upsert] {
            let step = |backups: &[Slot]| judged(opcode, own, old, backups);
            assert_eq!(step(&[tentative, tentative]), RecoveryStep::WinAndWithdraw(tentative));
            assert_eq!(
                step(&[other.tentative(), tentative]),
                RecoveryStep::WinAndWithdraw(tentative)
            );
            assert_eq!(step(&[tentative, own, tentative]), RecoveryStep::Confirm(own));
            assert_eq!(step(&[tentative, withdrawn]), RecoveryStep::Withdraw(withdrawn));
            assert_eq!(step(&[withdrawn, withdrawn]), RecoveryStep::Withdraw(withdrawn));
        }
    }

    #[test]
    fn what_no_client_leaves_is_left_alone() {
        let old = slot(1);
        let own = slot(2);
        let free = old.withdrawn();
        let strange = |opcode, primary, backup: Slot| {
            assert_eq!(
                judged(opcode, own, primary, &[backup]),
                RecoveryStep::Strange,
                "{backup:?}"
            );
        };
        strange(Opcode::Update, free, own);
        let delete = judged(Opcode::Delete, number(2), free, &[number(2)]);
        assert_eq!(delete, RecoveryStep::Strange, "a DELETE begins from an entry");
        strange(Opcode::Insert, old, own.tentative());
        strange(Opcode::Upsert, old, own.tentative());
        strange(Opcode::Update, old, own.withdrawn());
        strange(Opcode::Update, old, own.moved());
        let moved = judged(Opcode::Move, own.moved(), old, &[own]);
        assert_eq!(moved, RecoveryStep::Strange, "a Move's word is marked");
        strange(Opcode::Update, old.tentative(), own);
        let other_class = SizeClass::from_code(2).unwrap();
        let misshapen = Slot::new(1, other_class, own.address(), own.generation());
        strange(Opcode::Insert, free, misshapen);
        strange(Opcode::Insert, misshapen, misshapen);
    }
}
