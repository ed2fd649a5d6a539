//! The operations of a session that use the [work table](super::work_table) of its process.
//!
//! A leader runs as it would without a table. A follower puts its leader's result into the index cache as an uncertain
//! hint, because it was another session that saw the slot.

use std::pin::pin;
use std::sync::Arc;

use fusee_core::host::Epochs;
use fusee_core::layout::Opcode;
use fusee_core::race::Key;
use fusee_core::store::{Hint, WriteRequest};
use fusee_core::verbs::Fabric;
use fusee_core::{Error, Store};
use futures_util::future::join;

use super::cached_store::CachedStore;
use super::work_table::{
    FollowedRequest, GetRole, LeaderPair, LeaderRole, SetKind, SetRole, WaitedSetRole,
};
use super::{Environment, RequestTable, SessionHost};

/// A session's access to the work table of its process.
pub(super) struct WorkTableAccess {
    table: Arc<RequestTable>,
}

impl WorkTableAccess {
    /// Returns the access to a table.
    pub fn new(table: Arc<RequestTable>) -> WorkTableAccess {
        WorkTableAccess { table }
    }

    /// Runs [`SessionLogic::get_with`](super::SessionLogic::get_with) in the role that the work table gives it.
    pub async fn get<F: Fabric, E: Environment, R>(
        &self,
        cached: &CachedStore<F, E>,
        key: Key<'_>,
        hint: Option<Hint>,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let store = cached.store();
        let slot = hint.map(|hint| hint.slot);
        let (is_ride, found) = match self.table.get(&key, slot, store.host().epoch()) {
            GetRole::Lead(lead) => return get_alone(cached, key, hint, Some(lead), f).await,
            GetRole::Alone => return get_alone(cached, key, hint, None, f).await,
            GetRole::Value(value) => return Ok(f(Some(&value))),
            GetRole::Ride(followed) => (true, self.landed(store, &key, &followed).await),
            GetRole::Compare(slot, followed) => {
                // The READ of the slot and the wait for the leader's result run concurrently, because mostly both end
                // after one round trip.
                let shown = store.word_in(key, slot);
                let landed = self.landed(store, &key, &followed);
                let (shown, found) = join(pin!(shown), pin!(landed)).await;
                let is_shown = |found: &Arc<LeaderPair>| match shown {
                    Ok(Some(word)) => found.is_shown_by(slot, word, store.host().epoch()),
                    _ => false,
                };
                (false, found.filter(is_shown))
            }
        };
        self.table.count_followed(is_ride, found.is_some());
        let Some(found) = found else { return get_alone(cached, key, hint, None, f).await };
        cached.note_found(&key, hint, found.place());
        Ok(f(found.value()))
    }

    /// Runs an UPDATE or UPSERT in the role that the work table gives it.
    pub async fn set<F: Fabric, E: Environment>(
        &self,
        cached: &CachedStore<F, E>,
        request: WriteRequest<'_, Key<'_>>,
    ) -> Result<(), Error> {
        let store = cached.store();
        // The write is checked here, because a write that another set absorbs is not checked again.
        store.check_write(&request)?;
        let placement = Some(request.placement());
        let depends_on_length = store.redundancy_depends_on_length(&request);
        let value_bytes = depends_on_length.then(|| request.value().len());
        let kind = SetKind { opcode: request.opcode(), placement, value_bytes };
        let key = request.key();
        let mut room = Vec::new();
        let value = request.value().bytes(&mut room);
        let slot = cached.hint(&key).map(|hint| hint.slot);
        let lead = match self.table.set(kind, &key, Some(value), slot, store.host().epoch()) {
            SetRole::Alone => None,
            SetRole::Refused => return Err(Error::WriteUnderWay),
            SetRole::Lead(lead, gets) => {
                self.let_gets_land(store, &key, gets).await;
                Some(lead)
            }
            SetRole::Wait(turn) => match store.host().follow(turn).await {
                Some(Ok(turn)) => {
                    self.table.count_waited(&turn);
                    match turn {
                        WaitedSetRole::Lead(lead) => Some(lead),
                        WaitedSetRole::Absorbed(answer) => return answer,
                    }
                }
                _ => None,
            },
        };
        let hint = cached.hint(&key);
        let watch = || {
            if let Some(lead) = &lead {
                lead.commits();
            }
        };
        let result = store.write(request.hinted(hint).watched(&watch)).await;
        // If the cluster has got its first region that is not replicated since, the sets that this one has absorbed run
        // alone.
        let lead =
            lead.filter(|_| depends_on_length || !store.redundancy_depends_on_length(&request));
        if let Some(lead) = lead {
            lead.land_set(result.as_ref().map(|written| written.place), value);
        }
        cached.forget_if_absent(&key, &result);
        let written = result?;
        cached.note_written(&key, hint, written);
        Ok(())
    }

    /// Registers an INSERT, a DELETE or a Move. Returns a value that must be kept while the operation runs; `None` if
    /// the table is strict, because these operations are not registered there.
    pub async fn register_change<F: Fabric, E: Environment>(
        &self,
        store: &Store<F, SessionHost<E>>,
        key: &Key<'_>,
        value: Option<&[u8]>,
    ) -> Result<Option<LeaderRole>, Error> {
        if !self.table.is_relaxed() {
            return Ok(None);
        }
        let kind = SetKind { opcode: Opcode::Insert, placement: None, value_bytes: None };
        match self.table.set(kind, key, value, None, store.host().epoch()) {
            SetRole::Lead(lead, gets) => {
                self.let_gets_land(store, key, gets).await;
                Ok(Some(lead))
            }
            _ => Err(Error::WriteUnderWay),
        }
    }

    async fn let_gets_land<F: Fabric, E: Environment>(
        &self,
        store: &Store<F, SessionHost<E>>,
        key: &[u8],
        gets: Option<FollowedRequest>,
    ) {
        if let Some(gets) = gets {
            self.landed(store, key, &gets).await;
        }
    }

    /// Returns the result of another request; `None` if it does not come in time, or followers cannot use it.
    async fn landed<F: Fabric, E: Environment>(
        &self,
        store: &Store<F, SessionHost<E>>,
        key: &[u8],
        followed: &FollowedRequest,
    ) -> Option<Arc<LeaderPair>> {
        match store.host().follow(followed.landing.clone()).await {
            Some(found) => found.ok(),
            None => {
                self.table.abandon(key, followed);
                None
            }
        }
    }
}

/// Searches for a key. If the search leads, passes its result to its followers.
async fn get_alone<F: Fabric, E: Environment, R>(
    cached: &CachedStore<F, E>,
    key: Key<'_>,
    hint: Option<Hint>,
    lead: Option<LeaderRole>,
    f: impl FnOnce(Option<&[u8]>) -> R,
) -> Result<R, Error> {
    let found = cached.store().search(key, hint).await?;
    if hint.is_none() || found.hint() != hint {
        cached.note_found(&key, hint, found.hint());
    }
    if let Some(lead) = lead {
        lead.land_get(found.hint(), found.value());
    }
    Ok(f(found.value()))
}
