//! The redundancy of a write's pair, and with it the slab of its object.
//!
//! 1. *Before the write* the slab is chosen by the request's placement and hint. Nothing else is known yet of the pair
//!    that the write replaces.
//! 2. *When the pair is found*, or found missing, the slab is checked, before any CAS names the object
//!    ([`is_well_placed`](super::attempt::Attempt::is_well_placed)). A right hint needs no check in the view that was
//!    used to choose the slab, because a region never changes its redundancy. In a newer view, which possibly has a
//!    region that the choice did not know, the slab is checked before the hint is used.
//! 3. *If the slab is wrong*, or its redundancy lacks memory nodes, the write begins again with another slab. It does
//!    so a few times at most, so that it ends even if other sessions change the pair's redundancy again and again.

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
    /// The slot where the key possibly is.
    pub hint: Option<Hint>,
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
        match store.view.slab_of(demand.redundancy, key.len(), value.len()) {
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
        Ok(self.placed(slab, keeps, *hint))
    }

    /// Chooses the slab of the write by a search, because of `error`: a new pair cannot have its redundancy
    /// ([`WritePlacement::place`]), or the slab `failed`, which was chosen without knowledge of the pair, lacks memory
    /// nodes. It is the slab of the pair that the write replaces, or that of a new pair.
    pub async fn place_by_search(
        &self,
        error: Error,
        failed: Option<SlabKind>,
    ) -> Result<PlacedWrite, Error> {
        let Self { store, request } = *self;
        let WriteRequest { opcode, key, placement, .. } = *request;
        let Error::Redundancy(reason) = &error else { return Err(error) };
        let keeps = placement.keeps_existing();
        let value_bytes = request.value.len();
        let demand = placement.of_new_pair();
        if keeps && matches!(opcode, Opcode::Update | Opcode::Upsert) {
            let found = store.search(key, None).await?;
            let is_there = found.value().is_some();
            let found = found.hint();
            let kept =
                found.and_then(|found| store.view.slab_of_word(found.word, &key, value_bytes));
            match kept {
                // The cluster has too few memory nodes for the pair's redundancy, so the write takes the redundancy
                // that a new pair would have.
                Some(slab) if Some(slab) == failed => {
                    let slab = self.slab_of_new().map_err(|_| error)?;
                    return Ok(self.placed(slab, KeepRedundancy::No, None));
                }
                // The pair can be deleted before the write begins. Then the write adds a new pair, which gets the
                // demanded redundancy and not that of the deleted pair.
                Some(slab) => {
                    let keeps = KeepRedundancy::AsSearched(demand.redundancy);
                    return Ok(self.placed(slab, keeps, found.map(Hint::uncertain)));
                }
                None if !is_there && opcode == Opcode::Update => return Err(Error::NotFound),
                None => {}
            }
        }
        let slab = match self.slab_of_new() {
            Ok(slab) if Some(slab) == failed => self.slab_instead(*reason)?,
            slab => slab?,
        };
        let keeps = if keeps { KeepRedundancy::IfItExists } else { KeepRedundancy::No };
        Ok(self.placed(slab, keeps, None))
    }

    /// Chooses another slab after that of this intent has proved wrong, and a hint for the next attempt.
    async fn place_again(
        &self,
        intent: &Intent<'_>,
        why: NotWritten,
    ) -> Result<PlacedWrite, Error> {
        let Self { store, request } = *self;
        let WriteRequest { key, value, placement, .. } = request;
        let (slab, keeps, hint) = match (why, intent.keeps) {
            (NotWritten::Misplaced(Some(found)), _) => {
                let hint = Some(found.uncertain());
                match store.view.slab_of_word(found.word, key, value.len()) {
                    Some(kept) => {
                        let of_new = placement.of_new_pair().redundancy;
                        (kept, KeepRedundancy::AsFound(of_new), hint)
                    }
                    None => (self.slab_of_new()?, KeepRedundancy::No, hint),
                }
            }
            (NotWritten::Misplaced(None), _) => (self.slab_of_new()?, KeepRedundancy::No, None),
            // The cluster has too few memory nodes for the pair's redundancy, so the write takes the redundancy that a
            // new pair would have.
            (
                NotWritten::Failed(error),
                KeepRedundancy::AsSearched(_) | KeepRedundancy::AsFound(_),
            ) => (self.slab_of_new().map_err(|_| error)?, KeepRedundancy::No, None),
            // The hint is possibly wrong.
            (
                NotWritten::Failed(error),
                KeepRedundancy::IfItExists | KeepRedundancy::AsHinted(_),
            ) => return self.place_by_search(error, Some(intent.slab)).await,
            (NotWritten::Failed(Error::Redundancy(error)), KeepRedundancy::No) => {
                (self.slab_instead(error)?, KeepRedundancy::No, None)
            }
            (NotWritten::Failed(error), KeepRedundancy::No) => return Err(error),
        };
        Ok(self.placed(slab, keeps, hint))
    }

    /// Returns the choice of this slab, with the number of the view that new operations follow.
    #[inline]
    fn placed(&self, slab: SlabKind, keeps: KeepRedundancy, hint: Option<Hint>) -> PlacedWrite {
        PlacedWrite { slab, keeps, view: self.store.view.borrow().number, hint }
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
    /// ends, because the write keeps a pair's redundancy first `AsHinted` or `IfItExists`, then `AsSearched`, then
    /// `AsFound`, then not at all. Between these, it tries the slab of a new pair once, and that of replicated pairs
    /// once, because replicated pairs never lack memory nodes.
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
            let placed = if is_misplaced && !is_vouched_for(self, intent.key).await? {
                let waiting_for = "a key that others keep changing";
                let outcome = FailedWriteOutcome::NotApplied;
                let gave_up = Error::GaveUp { waiting_for, outcome };
                self.pause().await.map_err(|_| gave_up)?;
                let Intent { slab, keeps, placed_in: view, .. } = intent;
                PlacedWrite { slab, keeps, view, hint: None }
            } else {
                self.pin.pause();
                placement.place_again(&intent, why).await?
            };
            let PlacedWrite { slab, keeps, view, hint } = placed;
            intent = Intent { slab, keeps, placed_in: view, ..intent };
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
