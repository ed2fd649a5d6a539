//! Calls for memory: when memory is short, the master calls on sessions to hand on blocks that they do not need.
//!
//! Sessions keep unused blocks for later. When a session finds no free block, and no region can be added, the master
//! *calls on* all open sessions. The answer to each process's heartbeat says that memory is short. The keeper of the
//! process hands on (`HandOn`) the blocks that its sessions have offered, without waking these sessions. Its next
//! heartbeat acknowledges the call. The call ends when all sessions have acknowledged it, or when the longest wait is
//! over. Then the session that is short of memory finds the blocks among the orphaned blocks.
//!
//! A session that asks for memory receives the number of a call that begins after its request. It asks again with this
//! number until the call has ended, and only then is refused. The session itself is *spared* if no other session waits:
//! it keeps its offered blocks. A pause between two calls keeps a pool that is really full from occupying all sessions.
//!
//! If a call brought nothing, there can be blocks a moment later, so a refused session asks a few more times. This is
//! useless if the call was *in vain*: all sessions have acknowledged it, only blocks that are known to be in use were
//! handed on, no session said that it will free memory soon (`SessionHeartbeat::stirs`), and no expired session waits
//! for recovery. Then only operations that begin later can free memory. For a short time, sessions that waited for this
//! call or an earlier one are told that it was in vain, unless a block has been handed on since.
//!
//! None of this is stored: a master that restarts knows none of the numbers, and calls again.

use std::collections::BTreeSet;

use fusee_core::verbs::ClientId;

use super::context::EventContext;
use crate::sessions::SessionRegistry;

/// The pause after a call for memory, during which no other call begins, in milliseconds.
const PAUSE_MS: u64 = 10;
/// A session that waited for one of this many latest calls is told that the call has ended, until [`VALID_FOR_MS`]
/// after the end of the latest call.
const VALID_CALLS: u64 = 4;
const VALID_FOR_MS: u64 = 2_000;
/// The time after the pause during which sessions are told that a call was in vain.
const IN_VAIN_FOR_MS: u64 = 50;
/// The longest wait for the sessions' acknowledgements of a call, in milliseconds.
const MOST_PATIENCE_MS: u64 = 2_000;

/// The call for memory that is under way, and the latest earlier ones.
#[derive(Debug)]
pub(super) struct MemoryShortage {
    /// A number smaller than the numbers of all calls of this master.
    before: u64,
    /// The number of the latest call for memory.
    last: u64,
    /// Whether the latest call for memory is under way.
    is_running: bool,
    /// The sessions that have not acknowledged the latest call for memory.
    called: BTreeSet<ClientId>,
    /// The sessions that wait for the next call.
    waiting: BTreeSet<ClientId>,
    /// The session for which the latest call began, if no other session waited for that call. It keeps its blocks.
    spared: Option<ClientId>,
    /// The time at which the wait for the sessions' acknowledgements ends.
    until_ms: u64,
    /// The earliest time at which the next call can begin.
    not_before_ms: u64,
    /// The time until which a session can refer to one of the latest calls for memory.
    valid_until_ms: u64,
    /// Whether a session that acknowledged the latest call will possibly free memory soon.
    stirs: bool,
    /// The number of blocks handed on ([`SessionRegistry::handed_on`]) at the start of the latest call.
    handed_on: u64,
    /// The number of the latest call, if it was in vain and no block has been handed on since; otherwise 0.
    in_vain: u64,
}

impl MemoryShortage {
    /// Returns the state without any call. `fresh` is a random number, so that the numbers of calls differ from those
    /// of an earlier master.
    pub fn new(fresh: u64) -> MemoryShortage {
        let before = fresh >> 1;
        MemoryShortage {
            before,
            last: before,
            is_running: false,
            called: BTreeSet::new(),
            waiting: BTreeSet::new(),
            spared: None,
            until_ms: 0,
            not_before_ms: 0,
            valid_until_ms: 0,
            stirs: false,
            handed_on: 0,
            in_vain: 0,
        }
    }

    /// Returns the number of the call that these sessions have still to acknowledge, or 0. `acked` is the latest call
    /// that they have acknowledged.
    pub fn calls(&self, clients: &[ClientId], acked: u64) -> u64 {
        let is_new = acked != self.last && clients.iter().any(|c| self.called.contains(c));
        if self.is_running && is_new { self.last } else { 0 }
    }

    /// Returns the session that keeps its offered blocks in the latest call, if there is one.
    pub fn spared(&self) -> Option<ClientId> {
        self.spared
    }

    /// Records that sessions have acknowledged a call. `stirs` tells that one of them will possibly free memory soon.
    pub fn heard(&mut self, clients: &[ClientId], acked: u64, stirs: bool) {
        if acked == self.last {
            self.called.retain(|client| !clients.contains(client));
            self.stirs |= stirs && self.is_running;
        }
    }

    fn end_in_time(&mut self, now_ms: u64, sessions: &SessionRegistry) {
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
            // If no session has asked for a long time, the call is noticed only now, but ended at `until_ms`.
            self.valid_until_ms = now_ms.min(self.until_ms) + VALID_FOR_MS;
        }
    }

    /// Returns whether a call of this master has ended, a short time ago. A session that refers to an older call had
    /// given up its request.
    fn is_over(&self, now_ms: u64, call: u64) -> bool {
        let is_ours = self.before < call && call <= self.last;
        let is_late =
            call.saturating_add(VALID_CALLS) <= self.last || now_ms >= self.valid_until_ms;
        is_ours && !is_late && !(self.is_running && call == self.last)
    }
}

/// The answer to a session that is short of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryCall {
    /// The session has to wait for the end of the call with this number.
    Waits { call: u64 },
    /// The call for memory for which the session has waited has ended.
    Ended,
    /// The call for memory for which the session has waited has ended in vain: no usable memory was handed on for it,
    /// and no session will free memory soon.
    InVain,
}

impl MemoryShortage {
    /// Answers the session `client`, which is short of memory. `waited_for` is the call for which the session has
    /// waited, or 0.
    pub fn call_for_memory(
        &mut self,
        ctx: &EventContext<'_>,
        sessions: &SessionRegistry,
        client: ClientId,
        waited_for: u64,
    ) -> MemoryCall {
        self.called.retain(|client| sessions.is_open(*client));
        self.waiting.retain(|client| sessions.is_open(*client));
        self.end_in_time(ctx.now_ms, sessions);
        if self.is_over(ctx.now_ms, waited_for) {
            let is_recent = ctx.now_ms < self.not_before_ms + IN_VAIN_FOR_MS;
            // A spared session possibly has memory for others.
            let was_whole = self.spared.is_none_or(|spared| spared == client);
            let is_in_vain = is_recent && waited_for <= self.in_vain && was_whole;
            return if is_in_vain { MemoryCall::InVain } else { MemoryCall::Ended };
        }
        if self.is_running {
            if waited_for == self.last {
                return MemoryCall::Waits { call: waited_for };
            }
            self.waiting.insert(client);
            return MemoryCall::Waits { call: self.last + 1 };
        }
        if ctx.now_ms < self.not_before_ms {
            self.waiting.insert(client);
            return MemoryCall::Waits { call: self.last + 1 };
        }
        self.last += 1;
        self.is_running = true;
        (self.stirs, self.handed_on) = (false, sessions.handed_on());
        self.called = sessions.open_sessions().map(|(client, _)| client).collect();
        let is_alone = std::mem::take(&mut self.waiting).iter().all(|waiting| *waiting == client);
        self.spared = is_alone.then_some(client);
        let patience = ctx.settings.lease.lease_ms / 2;
        self.until_ms = ctx.now_ms + patience.min(MOST_PATIENCE_MS);
        MemoryCall::Waits { call: self.last }
    }
}
