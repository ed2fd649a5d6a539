//! Held answers: those to sessions and memory nodes that report again and again.
//!
//! Each of these requests is answered when there is news, or a part of the lease later, so that the next one comes in
//! time.

use fusee_control::master::{ClusterEpochs, MasterReply};
use fusee_core::verbs::ClientId;
use fusee_core::view::Member;

use super::context::EventContext;
use super::{FormationState, MasterAction, MasterState};

/// A request that is answered later.
#[derive(Debug)]
struct HeldHeartbeat {
    token: u64,
    until_ms: u64,
    asker: HeartbeatSender,
}

/// The process whose answer is held back.
#[derive(Debug)]
pub(super) enum HeartbeatSender {
    /// The keeper of these sessions. `known` are the epochs that it knows, and `mark` was the newest epoch when it
    /// asked.
    Sessions {
        clients: Vec<ClientId>,
        newer_than: u64,
        known: ClusterEpochs,
        reclaims: bool,
        mark: u64,
        acked: u64,
        asked_ms: u64,
    },
    Node {
        identity: u64,
    },
}

/// The requests whose answers are held back.
#[derive(Debug, Default)]
pub(super) struct HeldHeartbeats {
    waiting: Vec<HeldHeartbeat>,
}

impl HeldHeartbeats {
    /// Removes all of them, and returns them with their tokens: the caller answers them.
    pub fn take(&mut self) -> Vec<(u64, HeartbeatSender)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.map(|asking| (asking.token, asking.asker)).collect()
    }
}

impl MasterState {
    /// Holds an answer back.
    pub(super) fn wait(&mut self, ctx: &EventContext<'_>, token: u64, asker: HeartbeatSender) {
        let until_ms = ctx.now_ms + ctx.settings.lease.hold_ms();
        self.held.waiting.push(HeldHeartbeat { token, until_ms, asker });
    }

    /// Answers the requests for which there is news, or that have waited long enough.
    pub(super) fn answer_waiting(&mut self, ctx: &mut EventContext<'_>) {
        let waiting = std::mem::take(&mut self.held.waiting);
        let epochs = self.epochs();
        for asking in &waiting {
            if let HeartbeatSender::Sessions { newer_than, .. } = asking.asker
                && let FormationState::Formed(view) = &self.phase
            {
                self.told.prepare(view, newer_than);
            }
        }
        for asking in waiting {
            match self.reply_to(ctx, &asking.asker, epochs, asking.until_ms <= ctx.now_ms) {
                Some(reply) => ctx.push(MasterAction::Reply { token: asking.token, reply }),
                None => self.held.waiting.push(asking),
            }
        }
    }

    fn reply_to(
        &self,
        ctx: &EventContext<'_>,
        asker: &HeartbeatSender,
        epochs: ClusterEpochs,
        is_late: bool,
    ) -> Option<MasterReply> {
        match asker {
            HeartbeatSender::Sessions {
                clients,
                newer_than,
                known,
                reclaims,
                mark,
                acked,
                asked_ms,
            } => {
                let gone = clients.iter().filter(|client| !self.sessions.is_open(**client));
                let expelled: Vec<ClientId> = gone.copied().collect();
                let newer = self.view().filter(|view| view.number > *newer_than);
                let view = newer.and_then(|_| self.told.update(*newer_than));
                let short = self.shortage.calls(clients, *acked);
                let later = epochs.passed > known.passed || epochs.settled > known.settled;
                let told = view.is_some()
                    || !expelled.is_empty()
                    || epochs.newest > known.newest
                    || short != 0
                    || (*reclaims && later);
                let mark = *mark;
                let lease_ms = ctx.settings.lease.lease_ms;
                let behind_ms = self.behind_ms(*asked_ms);
                let reply = MasterReply::Heartbeat {
                    view,
                    expelled,
                    epochs,
                    mark,
                    short,
                    lease_ms,
                    behind_ms,
                };
                (told || is_late).then_some(reply)
            }
            HeartbeatSender::Node { identity } => {
                if self.roster.find(*identity).is_none() {
                    return Some(self.non_member_reply(*identity));
                }
                is_late.then(|| self.noted_reply(ctx))
            }
        }
    }

    /// Returns the answer to a known node.
    pub(super) fn noted_reply(&self, ctx: &EventContext<'_>) -> MasterReply {
        let note = self.contact.note(ctx.now_ms);
        let lease_ms = ctx.settings.lease.lease_ms;
        MasterReply::Noted { note, lease_ms }
    }

    /// Returns the answer to a node that is no member: drained, expelled, or unknown to this master. An unknown node
    /// does not give up its contents for that.
    pub(super) fn non_member_reply(&self, identity: u64) -> MasterReply {
        let same = |member: &Member| member.identity == identity;
        if self.roster.drained().any(same) {
            MasterReply::Drained
        } else if self.roster.lost().any(same) {
            MasterReply::Expelled
        } else {
            MasterReply::Unknown
        }
    }
}
