//! Writes without futures, for a fabric that executes batches without waiting.
//!
//! If there is nothing to wait for, futures are the main cost of an operation. So this code has none: each phase is a
//! function call. As soon as an attempt has to leave the [straight path](super::uncontended), it goes on in
//! [`write`](super), from its present step: with the same object, the same view, and the results in the batch.

use super::attempt::{Attempt, AttemptEnd, AttemptMeans};
use super::intent::Intent;
use super::round::ended;
use super::uncontended::{AttemptAction, advance};
use crate::host::Host;
use crate::layout::Opcode;
use crate::slab::USED_AGAIN_AT;
use crate::store::session::may_write_now;
use crate::store::{Hint, StoreOp, WriteResult};
use crate::verbs::Fabric;

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Executes the whole write. If that is not possible, returns the attempt in its present state, if one has begun.
    #[expect(clippy::result_large_err, reason = "moved once; a box would be an allocation per op")]
    pub(super) fn write_now<'i>(
        &mut self,
        intent: &'i Intent<'i>,
        hint: Option<Hint>,
    ) -> Result<WriteResult, Option<Attempt<'i>>> {
        let is_immediate = self.store.fabric.is_immediate();
        let is_oriented = intent.slab.turns() > 1;
        if !is_immediate || is_oriented || !may_write_now(&self.view, intent.key) {
            return Err(None);
        }
        let begun = if intent.opcode == Opcode::Delete {
            self.store.deletes.take(intent.key, &self.view).map(AttemptMeans::Number)
        } else {
            let object = self.store.memory.allocate(intent.slab, USED_AGAIN_AT, &self.view, None);
            object.map(AttemptMeans::Object)
        };
        let Some(means) = begun else { return Err(None) };
        let mut attempt = Attempt::new(intent, hint, means);
        let mut is_first = true;
        loop {
            match advance(self, &mut attempt) {
                Ok(AttemptAction::Phase) if self.phase_now() => is_first = false,
                Ok(AttemptAction::Phase) => {
                    assert!(is_first, "a fabric is immediate for all phases of a call");
                    attempt.begins_again();
                    return Err(Some(attempt));
                }
                Ok(AttemptAction::Ended { committed: true }) => {
                    let ended = Ok(ended(self, &attempt, true));
                    attempt.end(self, &ended);
                    let place = if let Ok(AttemptEnd::Done(place)) = ended { place } else { None };
                    return Ok(WriteResult { place, hint_held: attempt.hint_held });
                }
                _ => return Err(Some(attempt)),
            }
        }
    }
}
