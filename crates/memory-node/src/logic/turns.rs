//! Requests of sessions, and of the master's jobs, take effect in turn.
//!
//! A session that gives a request up does not know whether it will still arrive: over a connection that
//! stood still, long after what the session asked since over another one. Late, an ALLOC gives a block to
//! who is not there any more, and a `SetOwner` takes one away from who has it by now. So requests have
//! numbers, and say which ones have ended for their session: what comes of those behind an answer is refused.
//!
//! So it is with jobs. A job that got no answer is over, and the next one begins; what it had asked for may come
//! when that one is through and sessions have gone on: a table of owners as it was before, for one. Jobs run one
//! at a time, so all that they ask for together has one number. A repairer that is given up is fenced before
//! another one works, and nothing of it takes effect from then on.

use std::collections::BTreeMap;

use fusee_control::node::{BlockRequest, JobRequest, NodeRefusal, NodeReply};
use fusee_core::mutant::{Mutant, removed};
use fusee_core::verbs::ClientId;

use super::{Answer, Effect, Node, Step, check_somebody};

/// Sessions that are remembered; beyond, a quarter is forgotten: those that have asked nothing for longest.
const MAX_SESSIONS: usize = 1 << 16;

/// How far each session's requests have got.
#[derive(Debug, Default)]
pub(super) struct Turns {
    sessions: BTreeMap<ClientId, Progress>,
    /// All that have come.
    requests: u64,
}

#[derive(Debug, Default)]
struct Progress {
    /// The number below which requests have ended.
    over: u64,
    /// The last request, counted over all sessions.
    last: u64,
}

impl Turns {
    /// Whether a request takes effect, which says up to where those of its session have ended.
    fn takes(&mut self, client: ClientId, turn: u64, ended: u64) -> bool {
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

impl Node {
    /// Decides about a request of a session.
    pub(super) fn in_turn(
        &mut self,
        client: ClientId,
        (turn, ended): (u64, u64),
        request: BlockRequest,
    ) -> Step {
        let refused = |refusal| Step { effects: vec![], reply: NodeReply::Refused(refusal) };
        if self.over.has(client) {
            // Also to what gives a block back: its recovery has read the table, or is about to.
            return refused(NodeRefusal::Fenced { client });
        }
        if !self.turns.takes(client, turn, ended) {
            return refused(NodeRefusal::Late);
        }
        self.handle(request.of(client))
    }

    /// Decides about a request of a job of the master.
    pub(super) fn of_job(
        &mut self,
        repairer: ClientId,
        job: u64,
        request: JobRequest,
        effects: &mut Vec<Effect>,
    ) -> Answer {
        check_somebody(repairer)?;
        if !removed(Mutant::LateJobsObeyed) {
            self.check_not_fenced(repairer)?;
            if !self.turns.takes(repairer, job, job) {
                return Err(NodeRefusal::Late);
            }
        }
        match request {
            JobRequest::BlocksOf { clients } => self.blocks_of(clients),
            JobRequest::OwnersOf { region } => self.owners_of(region),
            JobRequest::SetOwners { region, owners } => self.set_owners(region, &owners, effects),
            JobRequest::TakeBack { block, from, to } => {
                self.check_fenced(from)?;
                self.replace_owner(block, from, to, effects)
            }
            JobRequest::Free { block, from } => {
                self.replace_owner(block, from, ClientId::NOBODY, effects)
            }
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
        let mut turns = Turns::default();
        let old = ClientId(1);
        assert!(turns.takes(old, 7, 5));
        for other in 2..3 * MAX_SESSIONS as u32 {
            assert!(turns.takes(ClientId(other), 1, 1));
            if other % 1000 == 0 {
                assert!(!turns.takes(old, 4, 4), "it has ended, after {other} sessions");
            }
        }
        assert!(turns.sessions.len() <= MAX_SESSIONS);
    }
}
