//! Requests of sessions take effect in turn.
//!
//! A session that gives a request up does not know whether it will still arrive: over a connection that
//! stood still, long after what the session asked since over another one. Late, an ALLOC gives a block to
//! who is not there any more, and a `SetOwner` takes one away from who has it by now. So requests have
//! numbers, and say which ones have ended for their session: what comes of those behind an answer is refused.

use std::collections::BTreeMap;

use fusee_control::node::{BlockRequest, NodeRefusal, NodeReply};
use fusee_core::verbs::ClientId;

use super::{Node, Step};

/// Sessions that are remembered; beyond, the oldest are forgotten, which have ended long ago.
const MAX_SESSIONS: usize = 1 << 16;

/// By session, the number below which requests have ended.
#[derive(Debug, Default)]
pub(super) struct Turns(BTreeMap<ClientId, u64>);

impl Turns {
    /// Whether a request takes effect, which says up to where those of its session have ended.
    fn takes(&mut self, client: ClientId, turn: u64, ended: u64) -> bool {
        let over = self.0.entry(client).or_default();
        *over = ended.max(*over);
        let is_in_time = turn >= *over;
        if self.0.len() > MAX_SESSIONS {
            self.0.pop_first();
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
        if self.fenced.contains(&client) {
            // Also to what gives a block back: its recovery has read the table, or is about to.
            return refused(NodeRefusal::Fenced { client });
        }
        if !self.turns.takes(client, turn, ended) {
            return refused(NodeRefusal::Late);
        }
        self.handle(request.of(client))
    }
}
