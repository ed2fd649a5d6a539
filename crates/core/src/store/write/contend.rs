//! The choice of a round's winner: the rules of SNAPSHOT (P §4.3, Algorithm 1), and the interface for other rules.
//!
//! ```text
//! post      CAS old -> own on all backups                                   (1 phase; a speculative write
//!           posts these CASes in the phase that writes its object)
//! decide    no majority: READ the primary for Rule 3                        (+1)
//!           won by Rule 2 or 3: CAS own onto the backups that others took   (+1)
//! ```
//!
//! A store uses its [`Rules`] only through the trait [`ConflictRules`], so a protocol with other rules is another
//! implementation of this trait. The steps before a round (the object, the key's slot) and after it (the winner's
//! commit, the loser's wait: [`round`](super::round)) are the same for all rules.
//!
//! The rules are safe because no slot word recurs while an operation that knows it runs. So a CAS that expects `old`
//! can succeed only in the round that started from `old`. After a round's first CASes only the winner changes the slot,
//! so the winner's further CASes cannot fail. If such a CAS fails, another process has recovered this session, so this
//! session must stop.
//!
//! With one index replica there are no backups: the CAS of the primary is the whole round.

use super::attempt::{Attempt, AttemptMeans, AttemptStep, PerBackup, PostedRound, WriteRound};
use crate::conflict_rules::{RoundRule, RoundVerdict, Winner, evaluate};
use crate::error::Error;
use crate::host::Host;
use crate::layout::Slot;
use crate::mutant::{Mutant, passes, removed, right_or};
use crate::race::{BucketWords, Buckets};
use crate::store::StoreOp;
use crate::verbs::{Fabric, Ticket};
use crate::view::PoolPlace;

/// The conflict rules that the writers of all rounds use.
type Rules = SnapshotRules;

/// The rules that decide which of a round's writers wins.
///
/// Among all writers that expect the same word in the same slot, at most one gets a [`Winner`], as long as each word on
/// a backup is `old` or belongs to a writer of the round. When a writer has its `Winner`, its own word is on all
/// backups, and stays there until the winner changes it. A writer that has lost does not change the slot any more.
/// Every writer gets a result as long as the winner commits.
trait ConflictRules {
    /// Posts the first phase behind the verbs that are in the batch; nothing if there are no backups. With `look`,
    /// also posts the READ of these buckets on the first backup, right behind the CAS there.
    fn post<F: Fabric, H: Host>(
        op: &mut StoreOp<'_, F, H>,
        round: &WriteRound,
        look: Option<&Buckets>,
    ) -> PostedRound;

    /// Returns the winner's permission to commit if the executed first phase alone has won the round.
    fn won_at_once<F: Fabric, H: Host>(
        op: &StoreOp<'_, F, H>,
        round: &WriteRound,
        posted: &PostedRound,
    ) -> Result<Option<Winner>, Error>;

    /// Decides the round after its first phase was executed. Executes further phases until the round is decided.
    async fn decide<F: Fabric, H: Host>(
        op: &mut StoreOp<'_, F, H>,
        round: &WriteRound,
        look: Option<&Buckets>,
        posted: &PostedRound,
    ) -> Result<RoundOutcome, Error>;
}

/// The outcome of a round for one of its writers.
#[expect(clippy::large_enum_variant, reason = "moved once; a box would be an allocation per op")]
pub(super) enum RoundOutcome {
    /// This writer has won, and its word is on all backups. If a look was requested, contains both buckets as the first
    /// backup showed them after that backup got the word.
    Won(Winner, Option<BucketWords>),
    Lost,
}

/// Competes for the round. With `look`, the winner also gets these buckets, as the first backup shows them after it
/// got the winner's word.
pub(super) async fn contend<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    round: WriteRound,
    look: Option<&Buckets>,
) -> Result<RoundOutcome, Error> {
    if post_round(op, attempt, round, look) {
        op.phase().await;
    }
    decide(op, attempt, look).await
}

/// Posts the first phase of a round. Returns whether any verb was posted.
pub(super) fn post_round<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    round: WriteRound,
    look: Option<&Buckets>,
) -> bool {
    op.batch.next_phase();
    let posted = post_cases(op, attempt, &round, look);
    let asks = !posted.cases.is_empty();
    attempt.enter_step(AttemptStep::Contending(round, posted));
    asks
}

/// Posts the CASes of a round of an attempt behind the verbs that are in the batch; of a DELETE, its record in front of
/// them, so that no memory node shows the number without the record.
#[inline]
pub(super) fn post_cases<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &Attempt<'_>,
    round: &WriteRound,
    look: Option<&Buckets>,
) -> PostedRound {
    let AttemptMeans::Number(number) = &attempt.means else { return Rules::post(op, round, look) };
    let late = removed(Mutant::RecordsComeLate);
    let early = late.then(|| Rules::post(op, round, look));
    op.post_record(attempt.intent.key, number, round.slot);
    early.unwrap_or_else(|| Rules::post(op, round, look))
}

/// Returns the winner's permission if the executed CASes have put the own word on all backups.
pub(super) fn won_at_once<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    round: &WriteRound,
    posted: &PostedRound,
) -> Result<Option<Winner>, Error> {
    Rules::won_at_once(op, round, posted)
}

/// Decides the round after the CASes are executed. If this writer wins, its word is then on all backups.
pub(super) async fn decide<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    attempt: &mut Attempt<'_>,
    look: Option<&Buckets>,
) -> Result<RoundOutcome, Error> {
    let (round, posted) = attempt.take_contended();
    Rules::decide(op, &round, look, &posted).await
}

/// Returns the word that each backup holds after the executed CASes.
pub(super) fn found_on_backups<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    round: &WriteRound,
    posted: &PostedRound,
) -> Result<PerBackup<Slot>, Error> {
    if round.own.is_number() {
        // The record is beside each backup that has answered the CAS, because it was posted before it.
        op.batch.check().map_err(|f| op.failed(f))?;
    }
    let mut seen = PerBackup::new();
    for ticket in &posted.cases {
        let found = Slot(op.batch.found(*ticket).map_err(|f| op.failed(f))?);
        seen.push(if found == round.old { round.own } else { found });
    }
    Ok(seen)
}

/// Posts, for each place, a CAS that replaces the expected word by `own`. Posts the look right behind the first CAS.
fn post_backups<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    swaps: impl Iterator<Item = (PoolPlace, Slot)>,
    own: Slot,
    look: Option<&Buckets>,
) -> PostedRound {
    let mut looks = None;
    if removed(Mutant::LooksBeforeItsCas) {
        looks = post_look(op, look);
    }
    let mut cases = PerBackup::new();
    for (place, expected) in swaps {
        cases.push(op.batch.cas(place.node, place.offset, expected.0, own.0));
        if looks.is_none() {
            looks = post_look(op, look);
        }
    }
    PostedRound { cases, look: looks }
}

fn post_look<F: Fabric, H: Host>(
    op: &mut StoreOp<'_, F, H>,
    look: Option<&Buckets>,
) -> Option<[Ticket; 2]> {
    let buckets = look?;
    let replica = right_or(Mutant::LooksOnPrimary, 1, 0);
    let place = op.view.subtables[buckets.subtable as usize].replicas()[replica];
    Some(buckets.read(&mut op.batch, place))
}

pub(super) fn look_result<F: Fabric, H: Host>(
    op: &StoreOp<'_, F, H>,
    look: Option<&Buckets>,
    tickets: Option<[Ticket; 2]>,
) -> Result<Option<BucketWords>, Error> {
    match (look, tickets) {
        (Some(buckets), Some(tickets)) => {
            buckets.words(&op.batch, tickets).map(Some).map_err(|f| op.failed(f))
        }
        _ => Ok(None),
    }
}

/// SNAPSHOT: all writers CAS all backups at once, and the words that the backups then hold determine the winner.
struct SnapshotRules;

impl ConflictRules for SnapshotRules {
    fn post<F: Fabric, H: Host>(
        op: &mut StoreOp<'_, F, H>,
        round: &WriteRound,
        look: Option<&Buckets>,
    ) -> PostedRound {
        let view = op.view.clone();
        let swaps = view.slot_on_backups(round.slot).map(|place| (place, round.old));
        post_backups(op, swaps, round.own, look)
    }

    fn won_at_once<F: Fabric, H: Host>(
        op: &StoreOp<'_, F, H>,
        round: &WriteRound,
        posted: &PostedRound,
    ) -> Result<Option<Winner>, Error> {
        let own = round.own.identity();
        let seen = found_on_backups(op, round, posted)?;
        let blind = removed(Mutant::WriteNowWinsUnseen);
        let seen = seen.iter().map(|s| if blind { own } else { s.identity() });
        Ok(match evaluate(own, seen) {
            RoundVerdict::Won(winner) if winner.rule() == RoundRule::One => Some(winner),
            _ => None,
        })
    }

    async fn decide<F: Fabric, H: Host>(
        op: &mut StoreOp<'_, F, H>,
        round: &WriteRound,
        look: Option<&Buckets>,
        posted: &PostedRound,
    ) -> Result<RoundOutcome, Error> {
        let seen = found_on_backups(op, round, posted)?;
        let counts = passes(Mutant::LookOfALostCasCounts, seen.first() == Some(&round.own));
        let mut looked = look_result(op, look, posted.look)?.filter(|_| counts);
        let winner = match evaluate(round.own.identity(), seen.iter().map(|s| s.identity())) {
            RoundVerdict::Won(winner) => winner,
            RoundVerdict::Lost => return Ok(RoundOutcome::Lost),
            RoundVerdict::Undecided(undecided) => {
                let primary = op.fetch_slot(round.slot).await?;
                match undecided.decide(primary, round.old) {
                    Some(winner) => winner,
                    None => return Ok(RoundOutcome::Lost),
                }
            }
        };
        let foreign: PerBackup<(PoolPlace, Slot)> = op
            .view
            .slot_on_backups(round.slot)
            .zip(seen)
            .filter(|(_, s)| *s != round.own)
            .collect();
        if !foreign.is_empty() && (look.is_some() || !removed(Mutant::BackupsNotFixed)) {
            // A look is valid only if it follows the own word on the first backup. If another writer's word was there,
            // the winner looks again.
            let again = if looked.is_none() { look } else { None };
            op.batch.next_phase();
            let fixed = post_backups(op, foreign.iter().copied(), round.own, again);
            op.phase().await;
            for ((_, expected), ticket) in foreign.iter().zip(fixed.cases) {
                let found = Slot(op.batch.found(ticket).map_err(|f| op.failed(f))?);
                if found != *expected {
                    return Err(Error::Interrupted { what: "a backup changed under its winner" });
                }
            }
            if again.is_some() {
                looked = look_result(op, again, fixed.look)?;
            }
        }
        Ok(RoundOutcome::Won(winner, looked))
    }
}
