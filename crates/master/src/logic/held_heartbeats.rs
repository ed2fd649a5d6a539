//! Heartbeats of sessions and memory nodes, whose answers the master holds back.
//!
//! The master answers each of these requests when it has something new to say. Otherwise it answers after a part of the
//! lease, so that the next heartbeat comes in time.

use fusee_control::master::{ClusterEpochs, MasterReply};
use fusee_core::verbs::ClientId;

use super::MasterAction;
use super::contact::Contact;
use super::context::EventContext;
use super::facts::ClusterFacts;
use super::shortage::MemoryShortage;
use super::view_updates::ViewUpdateCache;

/// A heartbeat whose answer is held back.
#[derive(Debug)]
struct HeldHeartbeat {
    token: u64,
    until_ms: u64,
    asker: HeartbeatSender,
}

/// The sender of a heartbeat whose answer is held back.
#[derive(Debug)]
pub(super) enum HeartbeatSender {
    /// The keeper of these sessions. `known` has the epochs that the keeper knows, and `mark` was the newest epoch when
    /// its heartbeat arrived.
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

/// The heartbeats whose answers are held back.
#[derive(Debug, Default)]
pub(super) struct HeldHeartbeats {
    waiting: Vec<HeldHeartbeat>,
}

impl HeldHeartbeats {
    /// Removes all heartbeats, and returns their tokens and senders. The caller answers them.
    pub fn take(&mut self) -> Vec<(u64, HeartbeatSender)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.map(|asking| (asking.token, asking.asker)).collect()
    }
}

/// The facts from which the answers to held heartbeats are made.
#[derive(Debug)]
pub(super) struct HeldReplyFacts<'a> {
    pub cluster: &'a ClusterFacts,
    pub epochs: ClusterEpochs,
    pub shortage: &'a MemoryShortage,
    pub contact: &'a Contact,
    pub updates: &'a mut ViewUpdateCache,
}

impl HeldHeartbeats {
    /// Holds back the answer to a heartbeat.
    pub fn wait(&mut self, ctx: &EventContext<'_>, token: u64, asker: HeartbeatSender) {
        let until_ms = ctx.now_ms + ctx.settings.lease.hold_ms();
        self.waiting.push(HeldHeartbeat { token, until_ms, asker });
    }

    /// Answers the heartbeats for which there is something new to say, and those held back for long enough.
    pub fn step(&mut self, ctx: &mut EventContext<'_>, facts: HeldReplyFacts<'_>) {
        for asking in &self.waiting {
            if let HeartbeatSender::Sessions { newer_than, .. } = asking.asker
                && let Some(view) = &facts.cluster.view
            {
                facts.updates.prepare(view, newer_than);
            }
        }
        for asking in std::mem::take(&mut self.waiting) {
            match facts.reply_to(ctx, &asking.asker, asking.until_ms <= ctx.now_ms) {
                Some(reply) => ctx.push(MasterAction::Reply { token: asking.token, reply }),
                None => self.waiting.push(asking),
            }
        }
    }
}

impl HeldReplyFacts<'_> {
    fn reply_to(
        &self,
        ctx: &EventContext<'_>,
        asker: &HeartbeatSender,
        is_late: bool,
    ) -> Option<MasterReply> {
        let HeldReplyFacts { cluster, epochs, .. } = *self;
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
                let gone = clients.iter().filter(|client| !cluster.sessions.is_open(**client));
                let expelled: Vec<ClientId> = gone.copied().collect();
                let newer = cluster.view.as_ref().filter(|view| view.number > *newer_than);
                let view = newer.and_then(|_| self.updates.update(*newer_than));
                let short = self.shortage.calls(clients, *acked);
                let later = epochs.passed > known.passed || epochs.settled > known.settled;
                let told = view.is_some()
                    || !expelled.is_empty()
                    || epochs.newest > known.newest
                    || short != 0
                    || (*reclaims && later);
                let mark = *mark;
                let lease_ms = ctx.settings.lease.lease_ms;
                let behind_ms = self.contact.behind_ms(*asked_ms);
                let reply = MasterReply::Heartbeat {
                    view,
                    expelled,
                    epochs,
                    mark,
                    short,
                    spared: self.shortage.spared(),
                    lease_ms,
                    behind_ms,
                };
                (told || is_late).then_some(reply)
            }
            HeartbeatSender::Node { identity } => {
                if cluster.roster.find(*identity).is_none() {
                    return Some(cluster.non_member_reply(*identity));
                }
                is_late.then(|| self.contact.noted_reply(ctx))
            }
        }
    }
}
