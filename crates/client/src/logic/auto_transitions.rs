//! Automatic changes of redundancy by a session: demotion and promotion, by the cluster's policy.
//!
//! A demotion or promotion is a Move like any other: it affects memory and time, but no result. It runs within an
//! operation of the session, because only this session uses its blocks. A write demotes some pairs before it begins, if
//! memory is short. A read that has found an erasure-coded pair promotes it, if the pair is read often, after the
//! read's own result is known. Demotions and promotions each have a limited rate, and their outcome does not change the
//! operation's result. A Move that fails half-way leaves the session lost, as any Move does.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use fusee_core::Store;
use fusee_core::data::{
    Demotion, Orientation, Policy, PromotedRedundancy, Redundancy, Transitions,
};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::race::Key;
use fusee_core::store::{Hint, ObjectDemotion, SearchResult, Transition};
use fusee_core::verbs::Fabric;

use super::cached_store::CachedStore;
use super::rate_limit::{ByteRateLimit, Promoter};
use super::{Environment, SessionHost};

/// Limit of pairs that one write demotes. It is more than one, because a write takes about as much memory as several
/// demotions give back.
const DEMOTED_TOGETHER: u32 = 4;
/// Limit of objects that one write examines to find pairs to demote.
const LOOKED_AT: u32 = 16;
/// Number of replicas that a pair gets if promotion makes it EC-oriented and it never was EC-oriented before.
const REPLICAS: u8 = 2;

/// A pair that a read has found and that is to be promoted.
pub(super) struct PromotionCandidate {
    hint: Hint,
    to: Redundancy,
    value_bytes: u64,
}

/// The automatic changes of redundancy that one session makes, within their rate limits.
pub(super) struct AutoTransitions {
    /// The rate limit of demotions; `None` if the session demotes no pairs when memory is short.
    demotion: Option<RefCell<ByteRateLimit>>,
    /// Whether an operation of the session is demoting pairs.
    is_demoting: Cell<bool>,
    /// The counts of reads; `None` if the session promotes no pairs that are read often.
    promoter: Option<RefCell<Promoter>>,
}

/// A guard that exists while a demotion of the session runs. Its drop sets [`AutoTransitions::is_demoting`] to false.
struct DemotionGuard<'s>(&'s Cell<bool>);

impl Drop for DemotionGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl AutoTransitions {
    /// Makes the automatic changes that a policy asks for. Their byte allowances begin to grow at `now`.
    pub fn new(policy: &Policy, now: Duration) -> AutoTransitions {
        let pace = |demotion: Demotion| RefCell::new(ByteRateLimit::new(demotion.bytes_per_s, now));
        let promoter = |promotion| RefCell::new(Promoter::new(promotion, now));
        AutoTransitions {
            demotion: policy.demotion.map(pace),
            is_demoting: Cell::new(false),
            promoter: policy.promotion.map(promoter),
        }
    }

    /// Returns whether a write has to demote some pairs of the session before it begins.
    #[inline]
    pub fn demotes<F: Fabric, E: Environment>(&self, store: &Store<F, SessionHost<E>>) -> bool {
        self.demotion.is_some() && store.host().gate().is_short() && !self.is_demoting.get()
    }

    /// Makes some EC-oriented pairs erasure-coded, those in this session's oldest blocks first.
    pub async fn demote_some<F: Fabric, E: Environment>(&self, store: &Store<F, SessionHost<E>>) {
        let Some(pace) = &self.demotion else { return };
        self.is_demoting.set(true);
        let _ends = DemotionGuard(&self.is_demoting);
        let mut demoted = 0;
        let mut looked_at = 0;
        while demoted < DEMOTED_TOGETHER && looked_at < LOOKED_AT {
            if !pace.borrow_mut().has_room(store.host().now()) {
                return;
            }
            looked_at += 1;
            match store.demote_next().await {
                Ok(ObjectDemotion::Pair(bytes)) => {
                    demoted += 1;
                    if !removed(Mutant::DemotionSpendsNothing) {
                        pace.borrow_mut().spend(bytes);
                    }
                    let demoted_pairs = 1;
                    let demoted_bytes = bytes;
                    store.host().gate().add_transitions(Transitions {
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

    /// Returns whether the session counts its reads of erasure-coded pairs, to promote pairs that are read often.
    #[inline]
    pub fn counts_reads(&self) -> bool {
        self.promoter.is_some()
    }

    /// Returns the pair that a read has found, if it is to be promoted.
    #[cold]
    pub fn promotable<F: Fabric, E: Environment>(
        &self,
        store: &Store<F, SessionHost<E>>,
        key: &Key<'_>,
        found: &SearchResult<'_, F, SessionHost<E>>,
    ) -> Option<PromotionCandidate> {
        let promoter = self.promoter.as_ref()?;
        let (hint, Redundancy::Coded(coding)) = (found.hint()?, found.redundancy()?) else {
            return None;
        };
        if store.host().gate().is_short() || store.found_no_block() {
            return None;
        }
        let to = match store.host().gate().policy().promotion?.to {
            PromotedRedundancy::Oriented => {
                let view = store.view();
                let (region, _) = view.region_of(hint.word.address())?;
                match region.redundancy() {
                    // The pair was EC-oriented before its demotion, so it can become EC-oriented again in place.
                    before @ Redundancy::Oriented(_) => before,
                    _ => Redundancy::Oriented(Orientation::new(REPLICAS, coding).ok()?),
                }
            }
            PromotedRedundancy::Replicated => Redundancy::Replicated,
        };
        let is_due = promoter.borrow_mut().is_due(key.hash(), store.host().now());
        let value_bytes = found.value()?.len() as u64;
        is_due.then_some(PromotionCandidate { hint: hint.uncertain(), to, value_bytes })
    }

    /// Promotes a pair that a read has found.
    pub async fn promote<F: Fabric, E: Environment>(
        &self,
        cached: &CachedStore<F, E>,
        key: Key<'_>,
        promotable: PromotionCandidate,
    ) {
        let store = cached.store();
        let PromotionCandidate { hint, to, value_bytes } = promotable;
        let result = store.set_redundancy(key, to, Some(hint)).await;
        cached.forget_if_absent(&key, &result);
        let Ok((transition, written)) = result else { return };
        cached.note_written(&key, Some(hint), written);
        if transition == Transition::Moved {
            if let Some(promoter) = &self.promoter
                && !removed(Mutant::PromotionSpendsNothing)
            {
                promoter.borrow_mut().spend(value_bytes);
            }
            let promoted_pairs = 1;
            let promoted_bytes = value_bytes;
            store.host().gate().add_transitions(Transitions {
                promoted_pairs,
                promoted_bytes,
                ..Transitions::default()
            });
        }
    }
}
