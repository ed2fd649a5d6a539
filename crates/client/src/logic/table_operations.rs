//! The operations of a session that use the [work table](super::work_table) of its process.
//!
//! A leader runs as it would without a table. A follower puts its leader's result into the index cache as an uncertain
//! hint, because it was another session that saw the slot.

use std::pin::pin;
use std::sync::Arc;

use fusee_core::Error;
use fusee_core::host::Epochs;
use fusee_core::layout::Opcode;
use fusee_core::race::Key;
use fusee_core::store::{Hint, WriteRequest};
use fusee_core::verbs::Fabric;
use futures_util::future::join;

use super::work_table::{FollowedRequest, GetRole, LeaderPair, LeaderRole, SetRole, WaitedSetRole};
use super::{Environment, RequestTable, SessionLogic};

impl<F: Fabric, E: Environment> SessionLogic<F, E> {
    /// Runs [`SessionLogic::get_with`] in the role that the work table gives it.
    pub(super) async fn get_by<R>(
        &self,
        table: &Arc<RequestTable>,
        key: Key<'_>,
        hint: Option<Hint>,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let slot = hint.map(|hint| hint.slot);
        let (is_ride, found) = match table.get(&key, slot, self.epoch()) {
            GetRole::Lead(lead) => return self.get_alone(key, hint, Some(lead), f).await,
            GetRole::Alone => return self.get_alone(key, hint, None, f).await,
            GetRole::Value(value) => return Ok(f(Some(&value))),
            GetRole::Ride(followed) => (true, self.landed(table, &key, &followed).await),
            GetRole::Compare(slot, followed) => {
                // The READ of the slot and the wait for the leader's result run concurrently, because mostly both end
                // after one round trip.
                let shown = self.store().word_in(key, slot);
                let landed = self.landed(table, &key, &followed);
                let (shown, found) = join(pin!(shown), pin!(landed)).await;
                let is_shown = |found: &Arc<LeaderPair>| match shown {
                    Ok(Some(word)) => found.is_shown_by(slot, word, self.epoch()),
                    _ => false,
                };
                (false, found.filter(is_shown))
            }
        };
        table.count_followed(is_ride, found.is_some());
        let Some(found) = found else { return self.get_alone(key, hint, None, f).await };
        self.cache.with(|cache| cache.found(&key, hint, found.place()));
        Ok(f(found.value()))
    }

    async fn get_alone<R>(
        &self,
        key: Key<'_>,
        hint: Option<Hint>,
        lead: Option<LeaderRole>,
        f: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let found = self.store().search(key, hint).await?;
        if hint.is_none() || found.hint() != hint {
            self.cache.with(|cache| cache.found(&key, hint, found.hint()));
        }
        if let Some(lead) = lead {
            lead.land_get(found.hint(), found.value());
        }
        Ok(f(found.value()))
    }

    /// Runs an UPDATE or UPSERT in the role that the work table gives it.
    pub(super) async fn set_by(
        &self,
        table: &Arc<RequestTable>,
        request: WriteRequest<'_, Key<'_>>,
    ) -> Result<(), Error> {
        // The write is checked here, because a write that another set absorbs is not checked again.
        self.store().check_write(&request)?;
        let opcode = request.opcode();
        let key = request.key();
        let mut room = Vec::new();
        let value = request.value().bytes(&mut room);
        let slot = self.hint(&key).map(|hint| hint.slot);
        let lead = match table.set(opcode, &key, Some(value), slot, self.epoch()) {
            SetRole::Alone => None,
            SetRole::Refused => return Err(Error::WriteUnderWay),
            SetRole::Lead(lead, gets) => {
                self.let_gets_land(table, &key, gets).await;
                Some(lead)
            }
            SetRole::Wait(turn) => match self.store().host().follow(turn).await {
                Some(Ok(turn)) => {
                    table.count_waited(&turn);
                    match turn {
                        WaitedSetRole::Lead(lead) => Some(lead),
                        WaitedSetRole::Absorbed(answer) => return answer,
                    }
                }
                _ => None,
            },
        };
        let hint = self.hint(&key);
        let watch = || {
            if let Some(lead) = &lead {
                lead.commits();
            }
        };
        let result = self.store().write(request.hinted(hint).watched(&watch)).await;
        if let Some(lead) = lead {
            lead.land_set(result.as_ref().map(|written| written.place), value);
        }
        self.forget_if_absent(&key, &result);
        let written = result?;
        self.cache.with(|cache| cache.written(&key, hint, written));
        Ok(())
    }

    /// Registers an INSERT, a DELETE or a Move. Returns a value that must be kept while the operation runs; `None` if
    /// the table is strict, because these operations are not registered there.
    pub(super) async fn register_change(
        &self,
        table: &Arc<RequestTable>,
        key: &Key<'_>,
        value: Option<&[u8]>,
    ) -> Result<Option<LeaderRole>, Error> {
        if !table.is_relaxed() {
            return Ok(None);
        }
        match table.set(Opcode::Insert, key, value, None, self.epoch()) {
            SetRole::Lead(lead, gets) => {
                self.let_gets_land(table, key, gets).await;
                Ok(Some(lead))
            }
            _ => Err(Error::WriteUnderWay),
        }
    }

    async fn let_gets_land(&self, table: &RequestTable, key: &[u8], gets: Option<FollowedRequest>) {
        if let Some(gets) = gets {
            self.landed(table, key, &gets).await;
        }
    }

    /// Returns the result of another request; `None` if it does not come in time, or followers cannot use it.
    async fn landed(
        &self,
        table: &RequestTable,
        key: &[u8],
        followed: &FollowedRequest,
    ) -> Option<Arc<LeaderPair>> {
        match self.store().host().follow(followed.landing.clone()).await {
            Some(found) => found.ok(),
            None => {
                table.abandon(key, followed);
                None
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.store().host().epoch()
    }
}
