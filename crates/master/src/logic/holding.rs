//! Held answers: those to sessions and memory nodes that report again and again.
//!
//! Each of these requests is answered when there is news, or a part of the lease later, so that the next one comes in
//! time.

use fusee_control::master::{Epochs, MasterReply};
use fusee_core::verbs::ClientId;
use fusee_core::view::Member;

use super::context::Ctx;
use super::{Action, Phase, State};

/// A request that is answered later.
#[derive(Debug)]
struct Waiting {
    token: u64,
    until_ms: u64,
    asker: Asker,
}

/// The process whose answer is held back.
#[derive(Debug)]
pub(super) enum Asker {
    /// The keeper of these sessions. `known` are the epochs that it knows, and `mark` was the newest epoch when it
    /// asked.
    Sessions {
        clients: Vec<ClientId>,
        newer_than: u64,
        known: Epochs,
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
pub(super) struct Held {
    waiting: Vec<Waiting>,
}

impl Held {
    /// Removes all of them, and returns them with their tokens: the caller answers them.
    pub fn take(&mut self) -> Vec<(u64, Asker)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.map(|asking| (asking.token, asking.asker)).collect()
    }
}

impl State {
    /// Holds an answer back.
    pub(super) fn wait(&mut self, ctx: &Ctx<'_>, token: u64, asker: Asker) {
        let until_ms = ctx.now_ms + ctx.settings.lease.hold_ms();
        self.held.waiting.push(Waiting { token, until_ms, asker });
    }

    /// Answers the requests for which there is news, or that have waited long enough.
    pub(super) fn answer_waiting(&mut self, ctx: &mut Ctx<'_>) {
        let waiting = std::mem::take(&mut self.held.waiting);
        let epochs = self.epochs();
        for asking in &waiting {
            if let Asker::Sessions { newer_than, .. } = asking.asker
                && let Phase::Formed(view) = &self.phase
            {
                self.told.prepare(view, newer_than);
            }
        }
        for asking in waiting {
            match self.reply_to(ctx, &asking.asker, epochs, asking.until_ms <= ctx.now_ms) {
                Some(reply) => ctx.push(Action::Reply { token: asking.token, reply }),
                None => self.held.waiting.push(asking),
            }
        }
    }

    fn reply_to(
        &self,
        ctx: &Ctx<'_>,
        asker: &Asker,
        epochs: Epochs,
        is_late: bool,
    ) -> Option<MasterReply> {
        match asker {
            Asker::Sessions { clients, newer_than, known, reclaims, mark, acked, asked_ms } => {
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
            Asker::Node { identity } => {
                if self.roster.find(*identity).is_none() {
                    return Some(self.not_a_member(*identity));
                }
                is_late.then(|| self.noted(ctx))
            }
        }
    }

    /// Returns the answer to a known node.
    pub(super) fn noted(&self, ctx: &Ctx<'_>) -> MasterReply {
        let note = self.contact.note(ctx.now_ms);
        let lease_ms = ctx.settings.lease.lease_ms;
        MasterReply::Noted { note, lease_ms }
    }

    /// Returns the answer to a node that is no member: drained, expelled, or unknown to this master. An unknown node
    /// does not give up its contents for that.
    pub(super) fn not_a_member(&self, identity: u64) -> MasterReply {
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
