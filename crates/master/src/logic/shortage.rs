//! Memory is short: sessions hand on what they can do without.
//!
//! Sessions keep blocks that they are not using, to use them again. When somebody finds no free block,
//! and no region can be added, all open sessions are called upon: the answer to the heartbeat of a
//! process says that memory is short, its keeper hands the blocks on that its sessions have offered
//! (`HandOn`), without waking them, and sends the next heartbeat. When all have come back, or did not in time, the
//! call is over, and who is short finds what was handed on among the orphaned blocks.
//!
//! Who asks for room is told the name of a call that begins after it had asked, and asks again by that
//! name until the call is over. Only then it is refused. Between two calls there is a pause, so that a
//! pool that is really full does not keep everybody busy.
//!
//! That nobody had anything to hand on does not mean that nobody will have in a moment: who is refused
//! asks a few times. Not so if a call was *in vain*: all have acknowledged it, nothing was handed on but what is
//! known to be in use, no session said that it stirs (`SessionHeartbeat::stirs`), and none has yet to be recovered.
//! Then nothing becomes free but by operations that begin later. Whoever waited for that call or an
//! earlier one is told so for a moment, as long as nothing has been handed on since.
//!
//! Nothing of that is stored: a master that starts anew knows none of the names, and calls again.

use std::collections::BTreeSet;

use fusee_control::master::{MasterReply, Orphan};
use fusee_control::node::BlockId;
use fusee_core::verbs::ClientId;

use super::context::Ctx;
use super::{Phase, State, refused};
use crate::sessions::Sessions;

/// How long nobody is called upon again.
const PAUSE_MS: u64 = 10;
/// Who has waited for one of so many calls hears that it is over, for so long after the last one was.
const VALID_CALLS: u64 = 4;
const VALID_FOR_MS: u64 = 2_000;
/// So long a block of which somebody saw that it is in use is for its own size class only.
const USED_FOR_MS: u64 = 1_000;
/// So long, after the pause, it counts that a call was in vain.
const IN_VAIN_FOR_MS: u64 = 50;
/// How long sessions are waited for at most.
const MOST_PATIENCE_MS: u64 = 2_000;

/// Who is called upon.
#[derive(Debug)]
pub(super) struct Shortage {
    /// The names of this master's calls follow this one.
    before: u64,
    /// The name of the last call.
    last: u64,
    /// Whether it is not over yet.
    is_running: bool,
    /// Who has not acknowledged it yet.
    called: BTreeSet<ClientId>,
    /// Until when they are waited for.
    until_ms: u64,
    /// When the next one may begin.
    not_before_ms: u64,
    /// Until when who waited for one of the last calls may say so.
    valid_until_ms: u64,
    /// Whether somebody who acknowledged the last call may soon have memory.
    stirs: bool,
    /// What had been handed on when the last call began ([`Sessions::handed_on`]).
    handed_on: u64,
    /// The last call that was in vain, if nothing has been handed on since.
    in_vain: u64,
}

impl Shortage {
    /// `fresh` is a random number: nobody takes a call for one of an earlier master.
    pub fn new(fresh: u64) -> Shortage {
        let before = fresh >> 1;
        Shortage {
            before,
            last: before,
            is_running: false,
            called: BTreeSet::new(),
            until_ms: 0,
            not_before_ms: 0,
            valid_until_ms: 0,
            stirs: false,
            handed_on: 0,
            in_vain: 0,
        }
    }

    /// The call that these sessions have not acknowledged, if they have this one; 0 if there is none.
    pub fn calls(&self, clients: &[ClientId], acked: u64) -> u64 {
        let is_new = acked != self.last && clients.iter().any(|c| self.called.contains(c));
        if self.is_running && is_new { self.last } else { 0 }
    }

    /// These sessions have acknowledged a call; whether one of them may soon have memory all the same.
    pub fn heard(&mut self, clients: &[ClientId], acked: u64, stirs: bool) {
        if acked == self.last {
            self.called.retain(|client| !clients.contains(client));
            self.stirs |= stirs && self.is_running;
        }
    }

    fn end_in_time(&mut self, now_ms: u64, sessions: &Sessions) {
        let is_new = self.handed_on != sessions.handed_on();
        if is_new {
            self.in_vain = 0;
        }
        if self.is_running && (self.called.is_empty() || self.until_ms <= now_ms) {
            self.is_running = false;
            let may_have = is_new || self.stirs || sessions.expired().next().is_some();
            let is_in_vain = self.called.is_empty() && !may_have;
            self.in_vain = if is_in_vain { self.last } else { 0 };
            self.not_before_ms = now_ms + PAUSE_MS;
            // Nobody may have asked for long.
            self.valid_until_ms = now_ms.min(self.until_ms) + VALID_FOR_MS;
        }
    }

    /// Whether a call of this master is over, and was not so long ago: who comes back by an older name had
    /// given up meanwhile.
    fn is_over(&self, now_ms: u64, call: u64) -> bool {
        let is_ours = self.before < call && call <= self.last;
        let is_late =
            call.saturating_add(VALID_CALLS) <= self.last || now_ms >= self.valid_until_ms;
        is_ours && !is_late && !(self.is_running && call == self.last)
    }
}

impl State {
    /// A session is short of memory, and has waited for this call, if it is not 0. The call that it is
    /// to wait for; an error if that is over: whether it was in vain.
    pub(super) fn call_for_memory(&mut self, ctx: &Ctx<'_>, waited_for: u64) -> Result<u64, bool> {
        let shortage = &mut self.shortage;
        let sessions = &self.sessions;
        shortage.called.retain(|client| sessions.is_open(*client));
        shortage.end_in_time(ctx.now_ms, sessions);
        if shortage.is_over(ctx.now_ms, waited_for) {
            let is_recent = ctx.now_ms < shortage.not_before_ms + IN_VAIN_FOR_MS;
            return Err(is_recent && waited_for <= shortage.in_vain);
        }
        if shortage.is_running {
            let is_known = waited_for == shortage.last;
            return Ok(if is_known { waited_for } else { shortage.last + 1 });
        }
        if ctx.now_ms < shortage.not_before_ms {
            return Ok(shortage.last + 1);
        }
        shortage.last += 1;
        shortage.is_running = true;
        (shortage.stirs, shortage.handed_on) = (false, sessions.handed_on());
        shortage.called = sessions.open_sessions().map(|(client, _)| client).collect();
        let patience = ctx.settings.lease.lease_ms / 2;
        shortage.until_ms = ctx.now_ms + patience.min(MOST_PATIENCE_MS);
        Ok(shortage.last)
    }

    /// A session hands blocks on.
    pub(super) fn hand_on(
        &mut self,
        ctx: &mut Ctx<'_>,
        (client, serial): (ClientId, u64),
        (orphans, used): (&[Orphan], &[BlockId]),
    ) -> MasterReply {
        let Phase::Formed(view) = &self.phase else {
            return refused("no session has been opened yet");
        };
        let mut writes = Vec::new();
        let until_ms = ctx.now_ms + USED_FOR_MS;
        let handed =
            self.sessions.hand_on((client, serial), orphans, (used, until_ms), view, &mut writes);
        ctx.persist(writes);
        match handed {
            Ok(()) => MasterReply::Done,
            Err(reason) => {
                ctx.complain(format!("{client}: {reason}"));
                refused(reason)
            }
        }
    }
}
