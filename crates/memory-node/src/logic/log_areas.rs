//! The log areas of the pool, each of which is lent to one session for the records of its DELETEs. A session gets one
//! for its first DELETE, and further ones, up to [`MAX_LOG_AREAS`], when it runs many DELETEs at once.
//!
//! Recovery of a dead session reads its areas. So an area is lent again only when its session has ended and needs no
//! recovery any more: a master's list of living sessions says so ([`LiveClients`]). A fenced session keeps its area
//! until it is recovered.
//!
//! [`LiveClients`]: fusee_core::ended_clients::LiveClients

use std::collections::BTreeMap;

use fusee_control::node::{NodeRefusal, NodeReply};
use fusee_core::layout::{LOG_AREA_BYTES, MAX_LOG_AREAS, log_area_offset, log_areas};
use fusee_core::verbs::ClientId;

use super::{NodeEffect, NodeLogic, NodeResult, bad, check_client_id, check_clients};

/// The log areas of a pool, and the sessions that have them.
#[derive(Debug)]
pub(super) struct LentLogAreas {
    /// The number of areas in the pool.
    all: u32,
    /// The areas that sessions have, by the session and its number of the area.
    of: BTreeMap<(ClientId, u8), u32>,
    /// Areas that were lent and came back, the next one to lend last.
    back: Vec<u32>,
    /// The first area that was never lent.
    fresh: u32,
}

impl LentLogAreas {
    /// Returns the areas of a pool that lends this number of bytes, all of them free.
    pub fn new(lent_bytes: u64) -> LentLogAreas {
        let all = log_areas(lent_bytes);
        LentLogAreas { all, of: BTreeMap::new(), back: Vec::new(), fresh: 0 }
    }

    /// Returns the number of areas, and how many of them are lent.
    pub fn counts(&self) -> (u32, u32) {
        (self.all, self.of.len() as u32)
    }

    /// Takes a free area for a session.
    fn take(&mut self, client: ClientId, number: u8) -> Option<u32> {
        let area = self.back.pop().or_else(|| {
            let fresh = self.fresh;
            self.fresh += u32::from(fresh < self.all);
            (fresh < self.all).then_some(fresh)
        })?;
        self.of.insert((client, number), area);
        Some(area)
    }

    /// Takes back the areas of these sessions.
    pub fn take_back(&mut self, has_ended: impl Fn(ClientId) -> bool) {
        let ended = self.of.extract_if(.., |(client, _), _| has_ended(*client));
        self.back.extend(ended.map(|(_, area)| area));
    }
}

impl NodeLogic {
    /// Lends a session its log area of this number, filled with zeros; the same one if it has it already.
    pub(super) fn log_area(
        &mut self,
        client: ClientId,
        number: u8,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        check_client_id(client)?;
        self.check_not_fenced(client)?;
        if usize::from(number) >= MAX_LOG_AREAS {
            return Err(bad("a session has only a few log areas"));
        }
        if let Some(area) = self.log_areas.of.get(&(client, number)) {
            return Ok(NodeReply::LogArea { area: *area });
        }
        let (areas, _) = self.log_areas.counts();
        let area = self.log_areas.take(client, number).ok_or(NodeRefusal::NoLogArea { areas })?;
        effects.push(NodeEffect::ZeroPool { offset: log_area_offset(area), bytes: LOG_AREA_BYTES });
        Ok(NodeReply::LogArea { area })
    }

    /// Returns the log areas of these sessions.
    pub(super) fn log_areas_of(&self, clients: &[ClientId]) -> NodeResult {
        check_clients(clients)?;
        let areas = clients.iter().flat_map(|client| {
            let of_client = self.log_areas.of.range((*client, 0)..=(*client, u8::MAX));
            of_client.map(|((client, _), area)| (*client, *area))
        });
        Ok(NodeReply::LogAreas(areas.collect()))
    }
}
