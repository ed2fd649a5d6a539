//! The straight path of a write (fast path): the phases of an UPDATE, UPSERT or DELETE whose hint is right and
//! that nobody disturbs.
//!
//! ```text
//! WRITE the object, READ slot and key     or by a speculative write (speculation.rs) in one phase:
//! CAS the backups                         WRITE the object, CAS the backups, READ the slot
//! CAS the primary                         CAS the primary
//! ```
//!
//! [`Op::advance`] takes the answers of one phase in and posts the next one. It waits for nothing, so that
//! whoever executes the phases is free how: [`write`](super::write) awaits them, [`write_now`](super::write_now)
//! executes each on the spot. What is not on this path is told as an [`Aside`], and left to the former; what only
//! READs have found out stays as it is then, so that it can be asked again.

use super::attempt::{Attempt, Led, Step};
use super::target::{Target, may_hold};
use super::{Hint, Op, Proof, Sight};
use crate::error::Error;
use crate::host::Host;
use crate::mutant::{Mutant, removed};
use crate::verbs::{Fabric, Ticket};

/// What an attempt does next.
pub(super) enum Next {
    /// The phase that it has posted.
    Phase,
    /// Nothing: the CAS of the primary has taken its round's old word, or with one index replica found the word
    /// of somebody else.
    Ended { committed: bool },
    /// It leaves the straight path.
    Aside(Aside),
}

/// What an attempt does beside the straight path.
pub(super) enum Aside {
    /// It has no hint that could be right: writes the object and looks for the key.
    Search,
    /// The hint was wrong, and its slot shows this word. The object is written.
    Follow(Hint),
    /// The CASes of the backups alone have not won the round.
    Decide,
}

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// The phase that the attempt has posted, if any, is executed: posts the next one.
    #[inline]
    pub(super) fn advance(&mut self, attempt: &mut Attempt<'_>) -> Result<Next, Error> {
        loop {
            match attempt.step() {
                Step::Begun => return self.begin(attempt),
                Step::Led(led) => {
                    let led = *led;
                    match self.confirm(attempt, led)? {
                        Ok(found) if self.compete(attempt, found) => return Ok(Next::Phase),
                        Ok(_) => {}
                        Err(shown) => return Ok(Next::Aside(Aside::Follow(shown))),
                    }
                }
                Step::Speculated(..) => {
                    if let Some(shown) = self.confirm_speculation(attempt)? {
                        return Ok(Next::Aside(Aside::Follow(shown)));
                    }
                }
                Step::Contending(round, posted) => {
                    let Some(winner) = self.won_at_once(round, posted)? else {
                        return Ok(Next::Aside(Aside::Decide));
                    };
                    let round = *round;
                    self.post_commit(attempt, winner, round, round.old);
                    return Ok(Next::Phase);
                }
                Step::Committing(round, cas) => {
                    let committed = self.is_committed(round, round.old, *cas)?;
                    return Ok(Next::Ended { committed });
                }
                Step::Contended(_) | Step::Withdrawing(_) | Step::Mentioned => {
                    unreachable!("it has left the straight path")
                }
            }
        }
    }

    /// Posts the first phase.
    #[inline]
    fn begin(&mut self, attempt: &mut Attempt<'_>) -> Result<Next, Error> {
        let Some(hint) = attempt.hint else { return Ok(Next::Aside(Aside::Search)) };
        if self.may_speculate(hint, attempt) {
            self.post_speculation(attempt, hint)?;
            return Ok(Next::Phase);
        }
        let target = Target::new(&self.view, &self.store.silent, hint, attempt.intent.key);
        let Some(target) = target else { return Ok(Next::Aside(Aside::Search)) };
        self.post_led(attempt, &target)?;
        Ok(Next::Phase)
    }

    /// Whether the READs of the first phase go before its WRITEs. They do: what a processor stores it need not wait
    /// for before it loads. Where WRITEs would wait for them they go last. The order does not matter: across
    /// nodes there is none, nobody else knows of the object yet, and a READ that meets it (at the address of a
    /// hint that is not the slot's any more) counts for nothing, since the slot does not show the hint's word.
    pub(super) fn reads_first(&self) -> bool {
        !self.store.fabric.waits_for_reads()
    }

    fn post_led(&mut self, attempt: &mut Attempt<'_>, target: &Target) -> Result<(), Error> {
        self.batch.clear();
        let reads_first = self.reads_first();
        if !reads_first {
            self.post_object(attempt)?;
        }
        let slot = target.read_slot(&mut self.batch);
        let proof = match target.hint.is_doubted() && target.is_beside_its_slot() {
            true => Proof::Steered(target.read_steered(&mut self.batch)),
            false => self.read_proof(target, attempt.intent.key),
        };
        for backup in self.view.slot_places(target.hint.slot) {
            self.store.fabric.prefetch(backup.node, backup.offset);
        }
        self.store.fabric.prefetch(target.object.node, target.object.offset);
        if reads_first {
            self.post_object(attempt)?;
        }
        attempt.goes_to(Step::Led(Led { slot, proof }));
        Ok(())
    }

    /// The first phase is executed: the hint, if the slot still holds its word, and that leads to the key. Else
    /// the slot with the word that it holds.
    fn confirm(
        &mut self,
        attempt: &mut Attempt<'_>,
        led: Led,
    ) -> Result<Result<Hint, Hint>, Error> {
        self.is_written(attempt)?;
        let hint = attempt.hint.expect("it was led by one");
        let word = self.slot_word(led.slot).map_err(|f| self.failed(f))?;
        let shown = Hint { word, seen: Sight::Sometime, ..hint };
        if let Proof::Steered(steered) = led.proof {
            return self.confirm_steered(attempt, steered, shown);
        }
        let leads = self.is_proved(led.proof, word, attempt.intent.key)?;
        if (word == hint.word && leads) || removed(Mutant::HintIsTrusted) {
            attempt.hint_held = true;
            return Ok(Ok(hint));
        }
        Ok(Err(shown))
    }

    /// The same of a doubted hint, where the switch has brought the object that the slot leads to.
    #[cold]
    fn confirm_steered(
        &mut self,
        attempt: &mut Attempt<'_>,
        steered: Ticket,
        shown: Hint,
    ) -> Result<Result<Hint, Hint>, Error> {
        let key = attempt.intent.key;
        let leads = may_hold(shown.word, key) && self.steered(steered, shown, key)?.is_some();
        attempt.hint_held = leads && attempt.hint.is_some_and(|hint| hint.word == shown.word);
        Ok(match leads && !self.is_elsewhere(attempt, shown) {
            true => Ok(shown),
            false => Err(shown),
        })
    }

    /// The key's slot is known: posts the CASes of the backups; whether there are any.
    #[inline]
    pub(super) fn compete(&mut self, attempt: &mut Attempt<'_>, found: Hint) -> bool {
        let round = attempt.round_on(found);
        self.post_round(attempt, round, None)
    }
}
