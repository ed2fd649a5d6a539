//! The choice of a round's winner: the rules of SNAPSHOT (P §4.3, Algorithm 1), and the place for other rules.
//!
//! ```text
//! post      CAS old -> own on all backups                                   (1 phase; of a speculative
//!           write, speculation.rs, the one that writes the object)
//! decide    no majority: READ the primary for Rule 3                        (+1)
//!           won by Rule 2 or 3: CAS own onto the backups that others took   (+1)
//! ```
//!
//! A store contends by [`Rules`], and uses nothing of them but [`Contend`]: a protocol with other rules is another
//! implementation of that trait. The steps before a round (the object, the key's slot) and after it (the winner's
//! commit, the loser's wait: [`round`](super::round)) are the same for all rules.
//!
//! The rules are safe because no slot word ever recurs while an operation that knows it runs: a CAS that expects
//! `old` can succeed only in the round that started from `old`. Within a round only the winner changes a slot after
//! its first CASes, so the winner's further CASes cannot fail. If one does, this session has been recovered by another
//! process and must stop.
//!
//! With one index replica there are no backups: the CAS of the primary is the whole round.

use super::Op;
use super::attempt::{Attempt, PerBackup, Posted, Round, Step};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, removed};
use crate::race::{Buckets, Words};
use crate::snapshot::{Rule, Verdict, Winner, evaluate};
use crate::verbs::{Fabric, Ticket};
use crate::view::Place;

/// The rules by which the writers of all rounds contend.
type Rules = Snapshot;

/// The way in which the writers of a round come to one winner.
///
/// Among all writers that expect the same word in the same slot, at most one gets a [`Winner`], as long as each word
/// on a backup is `old` or belongs to a writer of the round. When a writer has its `Winner`, its own word stands on
/// all backups, and stays there until the winner changes it. A writer that has lost puts nothing into the slot any
/// more. Every writer gets an answer as long as the winner commits.
trait Contend {
    /// Posts the first phase behind the verbs that are in the batch; nothing if there are no backups. With `look`,
    /// also posts the READ of these buckets on the first backup, right behind the CAS there.
    fn post<F: Fabric, H: Host>(
        op: &mut Op<'_, F, H>,
        round: &Round,
        look: Option<&Buckets>,
    ) -> Posted;

    /// Returns the winner's permission if the executed first phase alone has won the round.
    fn won_at_once<F: Fabric, H: Host>(
        op: &Op<'_, F, H>,
        round: &Round,
        posted: &Posted,
    ) -> Result<Option<Winner>, Error>;

    /// Decides the round after the executed first phase, in as many further phases as that takes.
    async fn decide<F: Fabric, H: Host>(
        op: &mut Op<'_, F, H>,
        round: &Round,
        look: Option<&Buckets>,
        posted: &Posted,
    ) -> Result<Contended, Error>;
}

/// The end of a round for one of its writers.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
pub(super) enum Contended {
    /// The own word stands on all backups. If a look was asked for, with both buckets as the first backup showed them
    /// after the own word stood there.
    Won(Winner, Option<Words>),
    Lost,
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Competes for the round. With `look`, the winner also gets those buckets as the first backup shows them after
    /// the winner's word stood there.
    pub(super) async fn contend(
        &mut self,
        attempt: &mut Attempt<'_>,
        round: Round,
        look: Option<&Buckets>,
    ) -> Result<Contended, Error> {
        if self.post_round(attempt, round, look) {
            self.phase().await;
        }
        self.decide(attempt, look).await
    }

    /// Posts the first phase of a round. Returns whether there is anything to execute.
    pub(super) fn post_round(
        &mut self,
        attempt: &mut Attempt<'_>,
        round: Round,
        look: Option<&Buckets>,
    ) -> bool {
        self.batch.next_phase();
        let posted = self.post_cases(&round, look);
        let asks = !posted.cases.is_empty();
        attempt.goes_to(Step::Contending(round, posted));
        asks
    }

    /// Posts the CASes of a round behind the verbs that are in the batch.
    pub(super) fn post_cases(&mut self, round: &Round, look: Option<&Buckets>) -> Posted {
        Rules::post(self, round, look)
    }

    /// Returns the winner's permission if the executed CASes have put the own word on all backups.
    pub(super) fn won_at_once(
        &self,
        round: &Round,
        posted: &Posted,
    ) -> Result<Option<Winner>, Error> {
        Rules::won_at_once(self, round, posted)
    }

    /// Decides the round after the CASes are executed. If it is won, the own word then stands on all backups.
    pub(super) async fn decide(
        &mut self,
        attempt: &mut Attempt<'_>,
        look: Option<&Buckets>,
    ) -> Result<Contended, Error> {
        let (round, posted) = attempt.is_contended();
        Rules::decide(self, &round, look, &posted).await
    }

    /// Returns the word that each backup holds after the executed CASes.
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
}

/// SNAPSHOT: all writers CAS all backups at once, and the words that the backups then hold determine the winner.
struct Snapshot;

impl Contend for Snapshot {
    fn post<F: Fabric, H: Host>(
        op: &mut Op<'_, F, H>,
        round: &Round,
        look: Option<&Buckets>,
    ) -> Posted {
        let view = op.view.clone();
        let swaps = view.slot_on_backups(round.slot).map(|place| (place, round.old));
        op.post_backups(swaps, round.own, look)
    }

    fn won_at_once<F: Fabric, H: Host>(
        op: &Op<'_, F, H>,
        round: &Round,
        posted: &Posted,
    ) -> Result<Option<Winner>, Error> {
        let own = round.own.identity();
        let seen = op.found_on_backups(round, posted)?;
        let blind = removed(Mutant::WriteNowWinsUnseen);
        let seen = seen.iter().map(|s| if blind { own } else { s.identity() });
        Ok(match evaluate(own, seen) {
            Verdict::Won(winner) if winner.rule() == Rule::One => Some(winner),
            _ => None,
        })
    }

    async fn decide<F: Fabric, H: Host>(
        op: &mut Op<'_, F, H>,
        round: &Round,
        look: Option<&Buckets>,
        posted: &Posted,
    ) -> Result<Contended, Error> {
        let seen = op.found_on_backups(round, posted)?;
        let counts = seen.first() == Some(&round.own) || removed(Mutant::LookOfALostCasCounts);
        let mut looked = op.look_result(look, posted.look)?.filter(|_| counts);
        let winner = match evaluate(round.own.identity(), seen.iter().map(|s| s.identity())) {
            Verdict::Won(winner) => winner,
            Verdict::Lost => return Ok(Contended::Lost),
            Verdict::Undecided(undecided) => {
                let primary = op.fetch_slot(round.slot).await?;
                match undecided.decide(primary, round.old) {
                    Some(winner) => winner,
                    None => return Ok(Contended::Lost),
                }
            }
        };
        let foreign: PerBackup<(Place, Slot)> =
            op.backups(round.slot).into_iter().zip(seen).filter(|(_, s)| *s != round.own).collect();
        let left_alone = removed(Mutant::BackupsNotFixed) && look.is_none();
        if !foreign.is_empty() && !left_alone {
            // A look counts only after the own word stands on the first backup: look again if another writer's word
            // stood there.
            let again = if looked.is_none() { look } else { None };
            op.batch.next_phase();
            let fixed = op.post_backups(foreign.iter().copied(), round.own, again);
            op.phase().await;
            for ((_, expected), ticket) in foreign.iter().zip(fixed.cases) {
                let found = Slot(op.batch.found(ticket).map_err(|f| op.failed(f))?);
                if found != *expected {
                    return Err(Error::Interrupted { what: "a backup changed under its winner" });
                }
            }
            if again.is_some() {
                looked = op.look_result(again, fixed.look)?;
            }
        }
        Ok(Contended::Won(winner, looked))
    }
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// Posts for each place a CAS from the word that the place is expected to hold to `own`, and the look right
    /// behind the first CAS.
    fn post_backups(
        &mut self,
        swaps: impl Iterator<Item = (Place, Slot)>,
        own: Slot,
        look: Option<&Buckets>,
    ) -> Posted {
        let mut looks = None;
        if removed(Mutant::LooksBeforeItsCas) {
            looks = self.post_look(look);
        }
        let mut cases = PerBackup::new();
        for (place, expected) in swaps {
            cases.push(self.batch.cas(place.node, place.offset, expected.0, own.0));
            if looks.is_none() {
                looks = self.post_look(look);
            }
        }
        Posted { cases, look: looks }
    }

    fn post_look(&mut self, look: Option<&Buckets>) -> Option<[Ticket; 2]> {
        let buckets = look?;
        let replica = if removed(Mutant::LooksOnPrimary) { 0 } else { 1 };
        let place = self.view.subtables[buckets.subtable as usize].replicas()[replica];
        Some(buckets.read(&mut self.batch, place))
    }

    pub(super) fn look_result(
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
}
