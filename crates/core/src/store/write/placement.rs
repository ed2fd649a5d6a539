//! The redundancy of a write's pair, and with it the slab of its object.
//!
//! 1. *Before the write* the slab is chosen by the request's placement and hint. Nothing else is known yet of the pair
//!    that the write replaces.
//! 2. *When the pair is found*, or found missing, the slab is checked, before any CAS names the object
//!    ([`is_well_placed`](super::attempt::Attempt::is_well_placed)). A right hint needs no check in the view that was
//!    used to choose the slab, because a region never changes its redundancy. In a newer view, which possibly has a
//!    region that the choice did not know, the slab is checked before the hint is used.
//! 3. *If the slab is wrong*, or its redundancy lacks memory nodes, the write begins again with another slab. If other
//!    sessions change the pair's redundancy again and again, the write gives up in the end.

use alloc::vec::Vec;

use super::intent::{Intent, KeepRedundancy, WriteValue};
use super::request::WriteRequest;
use crate::data::{Redundancy, RedundancyError};
use crate::error::{Error, FailedWriteOutcome};
use crate::host::Host;
use crate::layout::Opcode;
use crate::race::Key;
use crate::slab::SlabKind;
use crate::store::session::is_vouched_for;
use crate::store::{Hint, Store, StoreOp, WriteResult};
use crate::verbs::Fabric;

/// The slab that was chosen for the object of a write.
pub(super) struct PlacedWrite {
    pub slab: SlabKind,
    /// Whether a pair that exists keeps its redundancy.
    pub keeps: KeepRedundancy,
    /// The number of the view that was used to choose the slab.
    pub view: u64,
}

/// A slab that was chosen after the first one has proved wrong, and the hint of the next attempt.
pub(super) struct PlacedAnew {
    pub placed: PlacedWrite,
    /// The slot where the key possibly is.
    pub hint: Option<Hint>,
}

/// A slab that lacks memory nodes.
#[derive(Clone, Copy)]
pub(super) struct LackingSlab {
    pub slab: SlabKind,
    /// The number of the view in which it lacks them.
    pub view: u64,
}

/// The reason why a write failed with the slab that was chosen for it.
pub(super) enum NotWritten {
    /// The slab has another redundancy than the pair at this place, or, without a place, than a new pair should have.
    Misplaced(Option<Hint>),
    /// The write fails with this error.
    Failed(Error),
}

impl From<Error> for NotWritten {
    fn from(error: Error) -> NotWritten {
        NotWritten::Failed(error)
    }
}

/// The choice of the slab for the object of a requested write.
pub(super) struct WritePlacement<'r, F, H> {
    pub store: &'r Store<F, H>,
    pub request: &'r WriteRequest<'r, Key<'r>>,
}

impl<F: Fabric, H: Host> WritePlacement<'_, F, H> {
    /// Returns an error if a pair of these sizes can have no redundancy that the placement allows, whatever redundancy
    /// the replaced pair has.
    pub fn check(&self) -> Result<(), Error> {
        let Self { store, request } = *self;
        let WriteRequest { key, value, placement, .. } = request;
        let demand = placement.of_new_pair();
        let slab = || store.view.slab_of(demand.redundancy, key.len(), value.len());
        let slab = slab().or_else(|_| {
            // The session has possibly not operated since the cluster got more memory nodes.
            store.follow_view();
            slab()
        });
        match slab {
            Err(Error::Redundancy(error))
                if placement.keeps_existing() || demand.falls_back(&error) =>
            {
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    /// Chooses the slab of a write: that of the pair that the hint shows, if the pair is to keep its redundancy; else
    /// that of a new pair.
    #[inline]
    pub fn place(&self) -> Result<PlacedWrite, Error> {
        let Self { store, request } = *self;
        let WriteRequest { key, placement, hint, .. } = request;
        let redundancy = placement.of_new_pair().redundancy;
        let value_bytes = request.value.len();
        // If all pairs are replicated, and new ones are to be, the result is always replicated.
        let is_always_replicated = store.view.has_one_redundancy() && redundancy.is_replicated();
        let keeps = placement.keeps_existing();
        let kept = hint.filter(|_| keeps && !is_always_replicated);
        let kept = kept.and_then(|hint| store.view.slab_of_word(hint.word, key, value_bytes));
        let (slab, keeps) = match kept {
            Some(slab) => (slab, KeepRedundancy::AsHinted(redundancy)),
            None => {
                let slab = store.view.slab_of(redundancy, key.len(), value_bytes)?;
                (slab, if keeps { KeepRedundancy::IfItExists } else { KeepRedundancy::No })
            }
        };
        Ok(self.placed(slab, keeps))
    }

    /// Chooses the slab of the write by a search, because of `error`: a new pair cannot have its redundancy
    /// ([`WritePlacement::place`]), or the slab `lacking`, which was chosen without knowledge of the pair, lacks memory
    /// nodes. It is the slab of the pair that the write replaces, or that of a new pair.
    pub async fn place_by_search(
        &self,
        mut error: Error,
        mut lacking: Option<LackingSlab>,
    ) -> Result<PlacedAnew, Error> {
        let Self { store, request } = *self;
        let WriteRequest { opcode, key, placement, .. } = *request;
        if lacking.is_none() {
            // The session has possibly not operated since the cluster got more memory nodes.
            store.follow_view();
            match self.place() {
                Ok(placed) => return Ok(PlacedAnew { placed, hint: request.hint }),
                Err(newer) => error = newer,
            }
        }
        let Error::Redundancy(reason) = &error else { return Err(error) };
        let keeps = placement.keeps_existing();
        let value_bytes = request.value.len();
        let demand = placement.of_new_pair();
        if keeps && matches!(opcode, Opcode::Update | Opcode::Upsert) {
            let found = store.search(key, None).await?;
            // The search possibly followed a newer view, in which there are enough memory nodes.
            lacking = lacking.filter(|lacking| lacking.view == store.view.borrow().number);
            let kept = found.redundancy();
            let kept = kept.and_then(|kept| store.view.slab_of(kept, key.len(), value_bytes).ok());
            match (kept, lacking) {
                (Some(kept), Some(lacking)) if kept == lacking.slab => {
                    return self.place_other_than(lacking, error);
                }
                // The pair can be deleted before the write begins. Then the write adds a new pair, which gets the
                // demanded redundancy and not that of the deleted pair.
                (Some(slab), _) => {
                    let keeps = KeepRedundancy::AsFound(demand.redundancy);
                    let hint = found.hint().map(Hint::uncertain);
                    return Ok(self.placed_anew(slab, keeps, hint));
                }
                (None, _) if found.value().is_none() && opcode == Opcode::Update => {
                    return Err(Error::NotFound);
                }
                (None, _) => {}
            }
        }
        let slab = self.slab_of_new_but(lacking, *reason)?;
        let keeps = if keeps { KeepRedundancy::IfItExists } else { KeepRedundancy::No };
        Ok(self.placed_anew(slab, keeps, None))
    }

    /// Chooses the slab of a new pair for a write that would keep the redundancy of the slab `lacking`, because the
    /// cluster has too few memory nodes for it.
    fn place_other_than(&self, lacking: LackingSlab, error: Error) -> Result<PlacedAnew, Error> {
        let Error::Redundancy(reason) = error else { return Err(error) };
        let slab = self.slab_of_new_but(Some(lacking), reason).map_err(|_| error)?;
        let LackingSlab { slab: SlabKind { redundancy, .. }, view } = lacking;
        Ok(self.placed_anew(slab, KeepRedundancy::Unless { redundancy, view }, None))
    }

    /// Chooses another slab after that of this intent has proved wrong in the view with this number, and a hint for the
    /// next attempt.
    async fn place_again(
        &self,
        intent: &Intent<'_>,
        why: NotWritten,
        view: u64,
    ) -> Result<PlacedAnew, Error> {
        let Self { store, request } = *self;
        let WriteRequest { key, value, placement, .. } = request;
        let lacking = LackingSlab { slab: intent.slab, view };
        store.follow_view();
        // In the view that is followed now, the only replica of the pair is possibly lost, or there are possibly enough
        // memory nodes. Then the write looks for its pair again.
        let looks_again = match &why {
            NotWritten::Misplaced(Some(found)) => store.view.borrow().leads_to_lost(found.word),
            NotWritten::Misplaced(None) => false,
            NotWritten::Failed(_) => store.view.borrow().number != view,
        };
        if looks_again {
            return Ok(self.placed_anew(intent.slab, intent.keeps, None));
        }
        let (slab, keeps, hint) = match (why, intent.keeps) {
            (NotWritten::Misplaced(Some(found)), _) => {
                let hint = Some(found.uncertain());
                match store.view.slab_of_word(found.word, key, value.len()) {
                    Some(kept) => {
                        let of_new = placement.of_new_pair().redundancy;
                        (kept, KeepRedundancy::AsFound(of_new), hint)
                    }
                    None => (self.slab_of_new()?, KeepRedundancy::IfItExists, hint),
                }
            }
            (NotWritten::Misplaced(None), _) => {
                (self.slab_of_new()?, KeepRedundancy::IfItExists, None)
            }
            (NotWritten::Failed(error), KeepRedundancy::AsFound(_)) => {
                return self.place_other_than(lacking, error);
            }
            // The hint is possibly wrong.
            (
                NotWritten::Failed(error),
                KeepRedundancy::IfItExists | KeepRedundancy::AsHinted(_),
            ) => return self.place_by_search(error, Some(lacking)).await,
            (
                NotWritten::Failed(Error::Redundancy(error)),
                keeps @ (KeepRedundancy::No | KeepRedundancy::Unless { .. }),
            ) => (self.slab_instead(error)?, keeps, None),
            (NotWritten::Failed(error), KeepRedundancy::No | KeepRedundancy::Unless { .. }) => {
                return Err(error);
            }
        };
        Ok(self.placed_anew(slab, keeps, hint))
    }

    /// Returns the choice of this slab, with the number of the view that new operations follow.
    #[inline]
    fn placed(&self, slab: SlabKind, keeps: KeepRedundancy) -> PlacedWrite {
        PlacedWrite { slab, keeps, view: self.store.view.borrow().number }
    }

    fn placed_anew(&self, slab: SlabKind, keeps: KeepRedundancy, hint: Option<Hint>) -> PlacedAnew {
        PlacedAnew { placed: self.placed(slab, keeps), hint }
    }

    /// Returns the slab for the request's new pair: of the demanded redundancy, or of the one to which the demand falls
    /// back.
    fn slab_of_new(&self) -> Result<SlabKind, Error> {
        let Self { store, request } = *self;
        let WriteRequest { key, value, placement, .. } = request;
        match store.view.slab_of(placement.of_new_pair().redundancy, key.len(), value.len()) {
            Err(Error::Redundancy(error)) => self.slab_instead(error),
            slab => slab,
        }
    }

    /// Returns the slab for the request's new pair ([`WritePlacement::slab_of_new`]). If that slab is `lacking`, the
    /// demand falls back for this reason.
    fn slab_of_new_but(
        &self,
        lacking: Option<LackingSlab>,
        reason: RedundancyError,
    ) -> Result<SlabKind, Error> {
        match self.slab_of_new() {
            Ok(slab) if lacking.is_some_and(|lacking| lacking.slab == slab) => {
                self.slab_instead(reason)
            }
            slab => slab,
        }
    }

    /// Returns the slab of replicated pairs, if the placement falls back to them after this error.
    fn slab_instead(&self, error: RedundancyError) -> Result<SlabKind, Error> {
        let Self { store, request } = *self;
        let WriteRequest { key, value, placement, .. } = request;
        if !placement.of_new_pair().falls_back(&error) {
            return Err(Error::Redundancy(error));
        }
        store.host.report_fallback();
        store.view.slab_of(Redundancy::Replicated, key.len(), value.len())
    }
}

impl<F: Fabric, H: Host> StoreOp<'_, F, H> {
    /// Executes the write again, with other slabs than its first one, until a slab is right and has room. The loop
    /// ends: a slab that was chosen for a pair that was found is wrong only if the pair has changed since, and then the
    /// write pauses, or if it lacks memory nodes. Replicated pairs never lack memory nodes. For a newer view, or for a
    /// pair that it has lost, the write looks again once, because a search in that view finds no lost pair.
    pub(super) async fn write_with_other_slab(
        &mut self,
        request: &WriteRequest<'_, Key<'_>>,
        intent: &Intent<'_>,
        mut why: NotWritten,
    ) -> Result<WriteResult, Error> {
        let placement = WritePlacement { store: self.store, request };
        let mut room = Vec::new();
        let value = WriteValue::Bytes(self.bytes_of(intent, &mut room));
        let mut intent = Intent { value, ..*intent };
        loop {
            // A slab is misplaced according to words that were READ. If the members do not vouch for them, the write
            // looks for its pair again.
            let is_misplaced = matches!(why, NotWritten::Misplaced(_));
            let looks_again = is_misplaced && !is_vouched_for(self, intent.key).await?;
            let has_changed = is_misplaced
                && matches!(
                    intent.keeps,
                    KeepRedundancy::AsFound(_) | KeepRedundancy::Unless { .. }
                );
            if !looks_again {
                self.pin.pause();
            }
            if looks_again || has_changed {
                let waiting_for = "a key that others keep changing";
                let outcome = FailedWriteOutcome::NotApplied;
                let gave_up = Error::GaveUp { waiting_for, outcome };
                self.pause().await.map_err(|_| gave_up)?;
            }
            let mut hint = None;
            if !looks_again {
                let anew = placement.place_again(&intent, why, self.view.number).await?;
                let PlacedWrite { slab, keeps, view } = anew.placed;
                intent = Intent { slab, keeps, placed_in: view, ..intent };
                hint = anew.hint;
            }
            why = match self.write(&intent, hint, None).await {
                Ok(written) => return Ok(WriteResult { hint_held: false, ..written }),
                Err(NotWritten::Failed(error)) if !matches!(error, Error::Redundancy(_)) => {
                    return Err(error);
                }
                Err(why) => why,
            };
        }
    }
}
