//! Automatic changes of redundancy by a session: demotion and promotion, by the cluster's policy.
//!
//! A demotion or promotion is a Move like any other: it affects memory and time, but no result. It runs within an
//! operation of the session, because no other session has the session's blocks. A write demotes some pairs before it
//! begins, if memory is short. A read that has found an erasure-coded pair promotes it, if the pair is read often,
//! after the read's own result is known. Demotions and promotions each have a limited rate, and their outcome does not
//! change the operation's result. A Move that fails half-way leaves the session lost, as any Move does.

use std::cell::Cell;

use fusee_core::data::{Orientation, PromotedRedundancy, Redundancy, Transitions};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::race::Key;
use fusee_core::store::{Hint, ObjectDemotion, SearchResult, Transition};
use fusee_core::verbs::Fabric;

use super::{Environment, SessionHost, SessionLogic};

/// Limit of pairs that one write demotes. It is more than one, because a write takes about as much memory as several
/// demotions give back.
const DEMOTED_TOGETHER: u32 = 4;
/// Limit of objects that one write examines to find pairs to demote.
const LOOKED_AT: u32 = 16;
/// Number of replicas that a pair gets if promotion makes it EC-oriented and it never was before.
const REPLICAS: u8 = 2;

/// A pair that a read has found and that is to be promoted.
pub(super) struct PromotionCandidate {
    hint: Hint,
    to: Redundancy,
    value_bytes: u64,
}

/// A mark that a demotion of the session runs. Dropping the guard removes the mark.
struct DemotionGuard<'s>(&'s Cell<bool>);

impl Drop for DemotionGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<F: Fabric, E: Environment> SessionLogic<F, E> {
    /// Returns whether a write has to demote some pairs of the session before it begins.
    #[inline]
    pub(super) fn demotes(&self) -> bool {
        self.demotion.is_some() && self.gate().is_short() && !self.is_demoting.get()
    }

    /// Makes some EC-oriented pairs erasure-coded, those in this session's oldest blocks first.
    pub(super) async fn demote_some(&self) {
        let Some(pace) = &self.demotion else { return };
        self.is_demoting.set(true);
        let _ends = DemotionGuard(&self.is_demoting);
        let mut demoted = 0;
        let mut looked_at = 0;
        while demoted < DEMOTED_TOGETHER && looked_at < LOOKED_AT {
            if !pace.borrow_mut().has_room(self.store.host().now()) {
                return;
            }
            looked_at += 1;
            match self.store.demote_next().await {
                Ok(ObjectDemotion::Pair(bytes)) => {
                    demoted += 1;
                    if !removed(Mutant::DemotionSpendsNothing) {
                        pace.borrow_mut().spend(bytes);
                    }
                    let demoted_pairs = 1;
                    let demoted_bytes = bytes;
                    self.gate().add_transitions(Transitions {
                        demoted_pairs,
                        demoted_bytes,
                        ..Transitions::default()
                    });
                }
                Ok(ObjectDemotion::Nothing) => {}
                Ok(ObjectDemotion::AllDone) | Err(_) => return,
            }
        }
    }

    /// Returns the pair that a read has found, if it is to be promoted.
    #[cold]
    pub(super) fn promotable(
        &self,
        key: &Key<'_>,
        found: &SearchResult<'_, F, SessionHost<E>>,
    ) -> Option<PromotionCandidate> {
        let promoter = self.promoter.as_ref()?;
        let (hint, Redundancy::Coded(coding)) = (found.hint()?, found.redundancy()?) else {
            return None;
        };
        if self.gate().is_short() || self.store.found_no_block() {
            return None;
        }
        let to = match self.gate().policy().promotion?.to {
            PromotedRedundancy::Oriented => {
                let view = self.store.view();
                let (region, _) = view.region_of(hint.word.address())?;
                match region.redundancy() {
                    // The pair was EC-oriented before its demotion, so it can become EC-oriented again in place.
                    before @ Redundancy::Oriented(_) => before,
                    _ => Redundancy::Oriented(Orientation::new(REPLICAS, coding).ok()?),
                }
            }
            PromotedRedundancy::Replicated => Redundancy::Replicated,
        };
        let is_due = promoter.borrow_mut().is_due(key.hash(), self.store.host().now());
        let value_bytes = found.value()?.len() as u64;
        is_due.then_some(PromotionCandidate { hint: hint.uncertain(), to, value_bytes })
    }

    /// Promotes a pair that a read has found.
    pub(super) async fn promote(&self, key: Key<'_>, promotable: PromotionCandidate) {
        let PromotionCandidate { hint, to, value_bytes } = promotable;
        let result = self.store.set_redundancy(key, to, Some(hint)).await;
        self.forget_if_absent(&key, &result);
        let Ok((transition, written)) = result else { return };
        self.cache.with(|cache| cache.written(&key, Some(hint), written));
        if transition == Transition::Moved {
            if let Some(promoter) = &self.promoter
                && !removed(Mutant::PromotionSpendsNothing)
            {
                promoter.borrow_mut().spend(value_bytes);
            }
            let promoted_pairs = 1;
            let promoted_bytes = value_bytes;
            self.gate().add_transitions(Transitions {
                promoted_pairs,
                promoted_bytes,
                ..Transitions::default()
            });
        }
    }
}
