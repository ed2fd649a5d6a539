//! UPDATE, UPSERT and DELETE straight through, where the fabric is immediate and the hint right.
//!
//! The steps are those of [`write`](super::write), made of the same parts: WRITE the object and READ slot
//! and key, CAS the backups, CAS the primary. Each phase is a call. Futures are what remains of an operation's cost
//! when there is nothing to wait for, so there are none here. As soon as there is anything else to do than these
//! three phases, the operation goes on in [`write`](super::write), from the step that was executed last:
//! with the same object, the same view and what the batch has found.

use super::lead::Lead;
use super::write::{Attempt, Begun, Intent, Step};
use super::{Hint, Op, Written};
use crate::host::Host;
use crate::layout::{Object, Opcode};
use crate::slab::USED_AGAIN_AT;
use crate::verbs::Fabric;

impl<F: Fabric, H: Host> Op<'_, F, H> {
    /// The whole operation, or how far it came.
    pub(super) fn write_now(
        &mut self,
        intent: &Intent<'_>,
        hint: Option<Hint>,
    ) -> Result<Written, Begun> {
        let nothing = Begun { object: None, step: Step::Nothing(hint) };
        let Some(hint) = hint.filter(|_| self.store.fabric.is_immediate()) else {
            return Err(nothing);
        };
        if intent.opcode == Opcode::Insert || !self.may_write_now(intent.key) {
            return Err(nothing);
        }
        let Some(lead) = Lead::new(&self.view, &self.store.silent, hint, intent.key) else {
            return Err(nothing);
        };
        let class = Object::class(intent.key.len(), intent.value.len());
        let allocate = |class| self.store.allocate(class, USED_AGAIN_AT, &self.view);
        let Some(object) = class.and_then(allocate) else { return Err(nothing) };

        let led = match self.post_led(intent, &lead, &object) {
            Ok(led) if self.phase_now() => led,
            // Nothing was executed: nobody has heard of the object.
            _ => {
                self.store.slabs.borrow_mut().give_back(&object);
                return Err(nothing);
            }
        };
        let begun = |step| Err(Begun { object: Some(object), step });
        let Ok(Ok(found)) = self.confirm(&led, intent.key, &object) else {
            return begun(Step::Led(led));
        };
        let round = self.round(intent, found.slot, found.word, &object);
        let posted = self.post_round(&round, None);
        if !posted.cases.is_empty() {
            self.surely_now();
        }
        let Some(winner) = self.won_by_rule_1(&round, &posted) else {
            return begun(Step::Contending(round, posted));
        };
        let cas = self.post_commit(winner, &round, round.old, round.own);
        self.surely_now();
        let Ok(true) = self.is_committed(&round, round.old, cas) else {
            return begun(Step::Committing(round, cas));
        };
        let attempt = Ok(self.ended(intent, &round, true));
        self.done_with(&object, &attempt);
        let place = if let Ok(Attempt::Done(place)) = attempt { place } else { None };
        Ok(Written { place, hint_held: self.hint_held })
    }

    /// A phase of an operation of which one was executed at once.
    fn surely_now(&mut self) {
        assert!(self.phase_now(), "a fabric is immediate for all phases of a call");
    }
}
