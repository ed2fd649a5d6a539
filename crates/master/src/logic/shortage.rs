//! Memory is short: sessions hand on what they can do without.
//!
//! Sessions keep blocks that they are not using, to use them again. When somebody finds no free block,
//! and no region can be added, all open sessions are called upon: the answer to the renewal of a
//! process says that memory is short, its keeper hands the blocks on that its sessions have offered
//! (`HandOn`), without waking them, and renews again. When all have come back, or did not in time, the
//! call is over, and who is short finds what was handed on among the leftovers.
//!
//! Until then who asks for room is told to wait. It is refused only after a call that began when it had
//! asked; between two calls there is a pause, so that a pool that is really full does not keep
//! everybody busy.
//!
//! Nothing of that is stored: a master that starts anew is asked again.

use std::collections::BTreeSet;

use fusee_control::master::{Leftover, MasterReply};
use fusee_core::verbs::ClientId;

use super::{Action, Actions, Level, Master, Phase, refused};

/// How long nobody is called upon again.
const PAUSE_MS: u64 = 50;
/// How long sessions are waited for at most.
const MOST_PATIENCE_MS: u64 = 2_000;

/// Who is called upon.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// The name of the call; 0 while there is none.
    call: u64,
    /// Calls so far.
    calls: u64,
    /// Who has not heeded it yet.
    called: BTreeSet<ClientId>,
    /// Until when they are waited for.
    until_ms: u64,
    /// Who had asked for memory before the call.
    callers: BTreeSet<ClientId>,
    /// Who asked afterwards, and waits for the next one.
    next: BTreeSet<ClientId>,
    /// For whom there was a call in vain, unless they find something now.
    served: BTreeSet<ClientId>,
    not_before_ms: u64,
}

impl Shortage {
    /// The call that these sessions have not heeded, if they have this one; 0 if there is none.
    pub fn calls(&self, clients: &[ClientId], heeded: u64) -> u64 {
        let is_new = heeded != self.call && clients.iter().any(|c| self.called.contains(c));
        if is_new { self.call } else { 0 }
    }

    /// These sessions have heeded a call.
    pub fn heard(&mut self, clients: &[ClientId], heeded: u64) {
        if heeded == self.call {
            self.called.retain(|client| !clients.contains(client));
        }
    }

    fn end(&mut self, now_ms: u64) {
        self.served.append(&mut self.callers);
        (self.call, self.not_before_ms) = (0, now_ms + PAUSE_MS);
    }
}

impl Master {
    /// A session is short of memory: calls upon all sessions, if that has not been done since it asked.
    /// Whether it is to wait for that.
    pub(super) fn call_for_memory(&mut self, now_ms: u64, client: ClientId) -> bool {
        let (shortage, sessions) = (&mut self.shortage, &self.sessions);
        shortage.called.retain(|client| sessions.is_open(*client));
        if shortage.call != 0 && (shortage.called.is_empty() || shortage.until_ms <= now_ms) {
            shortage.end(now_ms);
        }
        if shortage.served.remove(&client) {
            return false;
        }
        if shortage.callers.contains(&client) {
            return true;
        }
        shortage.next.insert(client);
        if shortage.call == 0 && shortage.not_before_ms <= now_ms {
            shortage.served.retain(|client| sessions.is_open(*client));
            shortage.callers = std::mem::take(&mut shortage.next);
            shortage.called = sessions.open_sessions().map(|(client, _)| client).collect();
            // Not to be taken for a call of an earlier master.
            shortage.call = self.fresh_cluster.wrapping_add(shortage.calls).max(1);
            shortage.calls += 1;
            let patience = self.settings.lease.lease_ms / 2;
            shortage.until_ms = now_ms + patience.min(MOST_PATIENCE_MS);
        }
        true
    }

    /// A session hands blocks on.
    pub(super) fn hand_on(
        &mut self,
        client: ClientId,
        leftovers: &[Leftover],
        out: &mut Actions,
    ) -> MasterReply {
        let Phase::Formed(view) = &self.phase else {
            return refused("no session has been opened yet");
        };
        let mut writes = Vec::new();
        let handed = self.sessions.hand_on(client, leftovers, view, &mut writes);
        if !writes.is_empty() {
            out.push(Action::Persist(writes));
        }
        match handed {
            Ok(()) => MasterReply::Done,
            Err(reason) => {
                out.push(Action::Log(Level::Warn, format!("{client}: {reason}")));
                refused(reason)
            }
        }
    }
}
