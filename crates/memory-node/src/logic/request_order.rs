//! The ordering of the requests of sessions and of the master's jobs.
//!
//! A session that gives a request up does not know whether the request will still arrive. The request is possibly on a
//! stalled connection, and arrives long after later requests of the session that took another connection. A late ALLOC
//! would give a block to a session that has ended, and a late `SetOwner` would take a block from its present owner. So
//! requests have numbers, and each request says which requests of its session have ended. A request is refused if a
//! later request has said that the earlier one has ended.
//!
//! The same holds for jobs. A job that got no answer has ended, and the next job begins. A late request of the old job,
//! with for example an outdated table of owners, can arrive when the new job is complete and sessions have gone on.
//! Jobs run one at a time, so all requests of a job have one number. If the session under which jobs run (the
//! *repairer*) is given up, it is fenced before another repairer works. From then on, none of its requests has an
//! effect.

use std::collections::BTreeMap;

use fusee_control::node::{BlockRequest, JobRequest, NodeRefusal, NodeReply};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::ClientId;

use super::{NodeDecision, NodeEffect, NodeLogic, NodeResult, check_client_id};

/// The largest number of sessions whose progress is remembered. If there are more sessions, the quarter of them with
/// the oldest last requests is forgotten.
const MAX_SESSIONS: usize = 1 << 16;

/// The progress of the requests of each session, and of the jobs under each of the master's sessions.
#[derive(Debug, Default)]
pub(super) struct NodeRequestOrder {
    sessions: BTreeMap<ClientId, NodeRequestProgress>,
    /// The number of requests so far, of all sessions.
    requests: u64,
}

#[derive(Debug, Default)]
struct NodeRequestProgress {
    /// The session's requests with lower numbers have ended.
    over: u64,
    /// The position of the session's last request among the requests of all sessions.
    last: u64,
}

impl NodeRequestOrder {
    /// Records that the sender's requests below `ended` have ended. Returns whether the request `turn` takes
    /// effect.
    fn accept(&mut self, client: ClientId, turn: u64, ended: u64) -> bool {
        self.requests += 1;
        let progress = self.sessions.entry(client).or_default();
        progress.last = self.requests;
        progress.over = ended.max(progress.over);
        let is_in_time = turn >= progress.over;
        if self.sessions.len() > MAX_SESSIONS {
            let mut all: Vec<u64> = self.sessions.values().map(|session| session.last).collect();
            let (_, oldest, _) = all.select_nth_unstable(MAX_SESSIONS / 4);
            let oldest = *oldest;
            self.sessions.retain(|_, session| session.last > oldest);
        }
        is_in_time
    }
}

impl NodeLogic {
    /// Decides on a numbered request of a session.
    pub(super) fn in_turn(
        &mut self,
        client: ClientId,
        turn: u64,
        ended: u64,
        request: BlockRequest,
    ) -> NodeDecision {
        let refused =
            |refusal| NodeDecision { effects: vec![], reply: NodeReply::Refused(refusal) };
        if self.over.has_ended(client) {
            // Even a request that gives a block back is refused, because the session's recovery has read the table
            // or is about to.
            return refused(NodeRefusal::Fenced { client });
        }
        if !self.turns.accept(client, turn, ended) {
            return refused(NodeRefusal::Late);
        }
        self.handle(request.of(client))
    }

    /// Decides on a request of a numbered job of the master.
    pub(super) fn of_job(
        &mut self,
        repairer: ClientId,
        job: u64,
        request: JobRequest,
        effects: &mut Vec<NodeEffect>,
    ) -> NodeResult {
        check_client_id(repairer)?;
        if !removed(Mutant::LateJobsObeyed) {
            self.check_not_fenced(repairer)?;
            if !self.turns.accept(repairer, job, job) {
                return Err(NodeRefusal::Late);
            }
        }
        match request {
            JobRequest::BlocksOf { clients } => self.blocks_of(clients),
            JobRequest::LogAreasOf { clients } => self.log_areas_of(&clients),
            JobRequest::OwnersOf { region } => self.owners_of(region),
            JobRequest::SetOwners { region, owners } => self.set_owners(region, &owners, effects),
            JobRequest::TakeBack { block, from, to, base } => {
                self.check_fenced(from)?;
                self.replace_owner(block, from, to, base, effects)
            }
            JobRequest::Free { block, from } => self.free_unused(block, from, effects),
            JobRequest::Lead { regions, view } => self.lead(&regions, view),
            JobRequest::Release { extent, view } => Ok(self.release(extent, view, effects)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_lives_long_is_remembered() {
        let mut turns = NodeRequestOrder::default();
        let old = ClientId(1);
        assert!(turns.accept(old, 7, 5));
        for other in 2..3 * MAX_SESSIONS as u32 {
            assert!(turns.accept(ClientId(other), 1, 1));
            if other % 1000 == 0 {
                assert!(!turns.accept(old, 4, 4), "it has ended, after {other} sessions");
            }
        }
        assert!(turns.sessions.len() <= MAX_SESSIONS);
    }
}
