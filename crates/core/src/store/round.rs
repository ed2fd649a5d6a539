//! A SNAPSHOT write round on one slot (P §4.3, Algorithm 1).
//!
//! ```text
//! contend   CAS old -> own on all backups; the rules name the winner        (1 phase, or with a
//!           guess (guess.rs) the one that writes the object)
//!           no majority: READ the primary for Rule 3                        (+1)
//!           won by Rule 2 or 3: CAS own onto the backups that others took   (+1)
//! commit    CAS old -> own on the primary, with a winner's permission       (1 phase)
//! lost      READ the primary until it shows that the round has ended
//! ```
//!
//! Safe because no slot value ever recurs while an operation that knows it runs: a CAS that
//! expects `old` can succeed only in the round that started from `old`. Within a round only the
//! winner touches a slot after its first CASes, so the winner's further CASes cannot fail; if one
//! does, this client has been recovered by somebody else and must stop.
//!
//! With one index replica there are no backups: the CAS of the primary is the whole round.

use arrayvec::ArrayVec;

use super::Op;
use super::stopped::Progress;
use crate::data::ObjectAt;
use crate::error::{Error, Outcome};
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Key, Words};
use crate::slab::Allocation;
use crate::snapshot::{Rule, Verdict, Winner, evaluate};
use crate::verbs::{Fabric, MnId, Ticket};
use crate::view::{MAX_REPLICAS, Place, SlotRef, View};

/// Something per backup, without touching the heap.
pub(super) type PerBackup<T> = ArrayVec<T, { MAX_REPLICAS - 1 }>;

/// A writer's try for one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub slot: SlotRef,
    /// What the primary showed: the round's name.
    pub old: Slot,
    /// What this writer puts on the backups.
    pub own: Slot,
}

/// The CASes of the backups, and the look behind the first.
pub(super) struct Posted {
    pub cases: PerBackup<Ticket>,
    pub look: Option<[Ticket; 2]>,
}

/// How `contend` ended.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
pub(super) enum Contended {
    /// Own value stands on all backups. With a look, if one was asked for: both buckets as the
    /// first backup showed them after the own value stood there.
    Won(Winner, Option<Words>),
    Lost,
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// The slot's place on each backup, in order.
    pub(super) fn backups(&self, slot: SlotRef) -> PerBackup<Place> {
        self.view.slot_on_backups(slot).collect()
    }

    /// Competes for the round. With `look`, the winner also gets those buckets as the first
    /// backup shows them after its value stood there.
    pub(super) async fn contend(
        &mut self,
        round: &Round,
        look: Option<&Buckets>,
    ) -> Result<Contended, Error> {
        let posted = self.post_round(round, look);
        if !posted.cases.is_empty() {
            self.phase().await;
        }
        self.decide(round, look, &posted).await
    }

    /// Posts the CASes of the backups; none with one index replica.
    pub(super) fn post_round(&mut self, round: &Round, look: Option<&Buckets>) -> Posted {
        self.progress = Progress::Contending(*round);
        self.mentioned = true;
        self.batch.next_phase();
        let swaps: PerBackup<_> =
            self.view.slot_on_backups(round.slot).map(|b| (b, round.old)).collect();
        if swaps.is_empty() {
            return Posted { cases: PerBackup::new(), look: None };
        }
        let (cases, look) = self.post_backups(&swaps, round.own, look);
        Posted { cases, look }
    }

    /// What each backup holds, now that the CASes are executed.
    pub(super) fn found_on_backups(
        &self,
        round: &Round,
        posted: &Posted,
    ) -> Result<PerBackup<Slot>, Error> {
        let mut seen = PerBackup::new();
        for ticket in &posted.cases {
            let found = Slot(self.batch.found(*ticket).map_err(|f| self.failed(f))?);
            seen.push(if found == round.old { round.own } else { found });
        }
        Ok(seen)
    }

    /// The winner's permission, if the own word stands on all backups.
    pub(super) fn won_by_rule_1(&self, round: &Round, posted: &Posted) -> Option<Winner> {
        let (own, seen) = (round.own.identity(), self.found_on_backups(round, posted).ok()?);
        let blind = removed(Mutant::WriteNowWinsUnseen);
        match evaluate(own, seen.iter().map(|s| if blind { own } else { s.identity() })) {
            Verdict::Won(winner) if winner.rule() == Rule::One => Some(winner),
            _ => None,
        }
    }

    /// The CASes are executed: who has won, and the winner's word on all backups.
    pub(super) async fn decide(
        &mut self,
        round: &Round,
        look: Option<&Buckets>,
        posted: &Posted,
    ) -> Result<Contended, Error> {
        let seen = self.found_on_backups(round, posted)?;
        let counts = seen.first() == Some(&round.own) || removed(Mutant::LookOfALostCasCounts);
        let mut looked = self.look_result(look, posted.look)?.filter(|_| counts);
        let verdict = evaluate(round.own.identity(), seen.iter().map(|s| s.identity()));
        let winner = match verdict {
            Verdict::Won(winner) => winner,
            Verdict::Lost => return Ok(Contended::Lost),
            Verdict::Undecided(undecided) => {
                let primary = self.fetch_slot(round.slot).await?;
                match undecided.decide(primary, round.old) {
                    Some(winner) => winner,
                    None => return Ok(Contended::Lost),
                }
            }
        };
        let backups = self.backups(round.slot);
        let foreign: PerBackup<(Place, Slot)> =
            backups.iter().copied().zip(seen).filter(|(_, s)| *s != round.own).collect();
        let left_alone = removed(Mutant::BackupsNotFixed) && look.is_none();
        if !foreign.is_empty() && !left_alone {
            // A look counts only after the own value stands on the first backup: look again if
            // that one was somebody else's.
            let again = if looked.is_none() { look } else { None };
            self.batch.next_phase();
            let (cases, look_tickets) = self.post_backups(&foreign, round.own, again);
            self.phase().await;
            for ((_, expected), ticket) in foreign.iter().zip(cases) {
                let found = Slot(self.batch.found(ticket).map_err(|f| self.failed(f))?);
                if found != *expected {
                    return Err(Error::Interrupted { what: "a backup changed under its winner" });
                }
            }
            if again.is_some() {
                looked = self.look_result(again, look_tickets)?;
            }
        }
        Ok(Contended::Won(winner, looked))
    }

    /// Posts a CAS to `own` for each place with the word it is expected to hold, and the look
    /// right behind the first one.
    fn post_backups(
        &mut self,
        swaps: &[(Place, Slot)],
        own: Slot,
        look: Option<&Buckets>,
    ) -> (PerBackup<Ticket>, Option<[Ticket; 2]>) {
        let mut look_tickets = None;
        if removed(Mutant::LooksBeforeItsCas) {
            look_tickets = self.post_look(look);
        }
        let mut cases = PerBackup::new();
        for (place, expected) in swaps {
            cases.push(self.batch.cas(place.node, place.offset, expected.0, own.0));
            if look_tickets.is_none() {
                look_tickets = self.post_look(look);
            }
        }
        (cases, look_tickets)
    }

    fn post_look(&mut self, look: Option<&Buckets>) -> Option<[Ticket; 2]> {
        let buckets = look?;
        let replica = if removed(Mutant::LooksOnPrimary) { 0 } else { 1 };
        let place = self.view.subtables[buckets.subtable as usize].replicas()[replica];
        Some(buckets.read(&mut self.batch, place))
    }

    fn look_result(
        &self,
        look: Option<&Buckets>,
        tickets: Option<[Ticket; 2]>,
    ) -> Result<Option<Words>, Error> {
        match (look, tickets) {
            (Some(buckets), Some(tickets)) => {
                buckets.words(&self.batch, tickets).map(Some).map_err(|f| self.failed(f))
            }
            _ => Ok(None),
        }
    }

    /// One phase: the primary slot. For use after a CAS of this operation.
    pub(super) async fn fetch_slot(&mut self, slot: SlotRef) -> Result<Slot, Error> {
        // Nothing that was staged is needed any more, and a loser may come here many times.
        self.batch.clear();
        let ticket = self.read_slot(slot);
        self.phase().await;
        self.slot_word(ticket).map_err(|f| self.failed(f))
    }

    /// As the winner, changes all backups from one own word to another: confirm and abort.
    pub(super) async fn rewrite_backups(
        &mut self,
        _winner: &Winner,
        slot: SlotRef,
        from: Slot,
        to: Slot,
    ) -> Result<(), Error> {
        self.batch.next_phase();
        let mut cases = PerBackup::<Ticket>::new();
        for place in self.backups(slot) {
            cases.push(self.batch.cas(place.node, place.offset, from.0, to.0));
        }
        self.phase().await;
        for ticket in cases {
            if self.batch.found(ticket).map_err(|f| self.failed(f))? != from.0 {
                return Err(Error::Interrupted { what: "a backup changed under its winner" });
            }
        }
        Ok(())
    }

    /// As the winner, commits `to` on the primary.
    ///
    /// Returns whether it is done; `false` only with one index replica, where the CAS of the
    /// primary is the round and another writer's came first.
    pub(super) async fn commit(
        &mut self,
        winner: Winner,
        round: &Round,
        expected: Slot,
        to: Slot,
    ) -> Result<bool, Error> {
        let cas = self.post_commit(winner, round, expected, to);
        self.phase().await;
        self.is_committed(round, expected, cas)
    }

    /// As the winner, posts the CAS of the primary.
    pub(super) fn post_commit(
        &mut self,
        _winner: Winner,
        round: &Round,
        expected: Slot,
        to: Slot,
    ) -> Ticket {
        self.progress = Progress::Committing(Round { own: to, ..*round });
        self.batch.next_phase();
        let primary = self.primary(round.slot);
        self.batch.cas(primary.node, primary.offset, expected.0, to.0)
    }

    /// The CAS of the primary is executed: see [`Op::commit`].
    pub(super) fn is_committed(
        &self,
        round: &Round,
        expected: Slot,
        cas: Ticket,
    ) -> Result<bool, Error> {
        let found = Slot(self.batch.found(cas).map_err(|f| self.failed(f))?);
        if found == expected {
            return Ok(true);
        }
        if self.view.subtables[round.slot.subtable as usize].backups().is_empty() {
            return Ok(false);
        }
        Err(Error::Interrupted { what: "the primary changed under its winner" })
    }

    /// As a loser, waits until the round is over. Returns what the primary shows then; `None` if
    /// the view changes: the winner may be dead, and is recovered only after the change.
    pub(super) async fn await_end(
        &mut self,
        slot: SlotRef,
        old: Slot,
    ) -> Result<Option<Slot>, Error> {
        loop {
            if self.pause().await.is_err() {
                let waiting_for = "the winner of a write conflict to finish";
                return Err(Error::GaveUp { waiting_for, outcome: Outcome::Unknown });
            }
            if self.newer_view_has_come() && !removed(Mutant::LoserIgnoresNewView) {
                self.view = self.acts.resume();
                if self.view.stage_of(slot.subtable).is_some() {
                    return Ok(None);
                }
            }
            let word = self.fetch_slot(slot).await?;
            if word != old {
                return Ok(Some(word));
            }
        }
    }

    /// One phase, if any of these slots, as they are shown on a node, matches the key: does another slot
    /// than `own` refer to it? An object that cannot be read whole counts as yes: withdrawing is always
    /// safe.
    pub(super) async fn has_other(
        &mut self,
        words: &Words,
        shown_on: MnId,
        own: SlotRef,
        known_other: &Words,
        key: Key<'_>,
    ) -> Result<bool, Error> {
        if removed(Mutant::InsertDoesNotLook) {
            return Ok(false);
        }
        // Words that led to a different key when the operation began need no second look. With one
        // index replica the primary shows tentative words, which were not looked into then.
        let settled = |w: Slot| !w.is_tentative() || removed(Mutant::TentativeIsKnown);
        let known = |s: SlotRef, w: Slot| settled(w) && known_other.word(s) == Some(w);
        let unknown = words.matching().filter(|(s, w)| *s != own && !known(*s, *w));
        Ok(!matches!(self.find_key(unknown, shown_on, key).await?, Ok(None)))
    }
}

/// Where an object goes.
pub(super) fn object_at<'v>(view: &'v View, object: &Allocation) -> Result<ObjectAt<'v>, Error> {
    view.object(object.address, object.class.bytes())
        .ok_or(Error::Corrupt { what: "a granted block lies outside of every region" })
}
