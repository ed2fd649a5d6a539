//! Who is there: leases, closed connections, and answers that are held back.
//!
//! Sessions and memory nodes say again and again that they are there. Each of these requests is
//! answered when there is something to say, or a part of the lease later, so that the asker comes
//! back in time. Who is silent for longer than the lease is gone; whoever's connection was closed
//! is gone after a short grace, unless it speaks over another one. A session that is gone is given
//! up, a memory node is lost.
//!
//! A session that renews its lease but does not leave old views behind is given up as well, after
//! a lease: everybody would wait for it.
//!
//! Nothing but detection rests on clocks. When the master itself was away, all silence counts from
//! its return: nobody could have renewed anything.

use std::collections::{BTreeMap, BTreeSet};

use fusee_control::master::{Epochs, MasterReply, Note, Pulse};
use fusee_control::node::{Bars, NodeReply, NodeRequest};
use fusee_core::change::Stage;
use fusee_core::verbs::{ClientId, MnId};

use fusee_core::view::Member;

use super::context::{Ctx, Purpose};
use super::{Action, Phase, State};
use crate::sessions::Session;
use crate::settings::Lease;

/// How long a member that is suspected has to answer a question at most, in milliseconds, and at least;
/// else half a lease.
const MAX_PROBE_MS: u64 = 500;
const MIN_PROBE_MS: u64 = 20;
/// The connection that never closes.
const LOCAL: u64 = 0;

/// What was heard of a memory node.
#[derive(Debug, Default)]
struct Presence {
    heard_ms: u64,
    /// Over which connection it spoke last.
    connection: Option<u64>,
    /// When it is gone, unless it speaks over another connection.
    gone_at_ms: Option<u64>,
}

/// A request that is answered later.
#[derive(Debug)]
struct Waiting {
    token: u64,
    until_ms: u64,
    asker: Asker,
}

#[derive(Debug)]
pub(super) enum Asker {
    /// The keeper of these sessions, with the epochs that it knows, and the newest one when it came.
    Sessions {
        clients: Vec<ClientId>,
        newer_than: u64,
        known: Epochs,
        reclaims: bool,
        mark: u64,
        heeded: u64,
        asked_ms: u64,
    },
    Node {
        identity: u64,
    },
}

/// Who was heard when.
#[derive(Debug, Default)]
pub(super) struct Presences {
    /// The last event, and since when the master has been there without a gap.
    last_ms: Option<u64>,
    begun_ms: u64,
    nodes: BTreeMap<MnId, Presence>,
    /// Members that were asked whether they are there, and until when they have to answer.
    probes: BTreeMap<MnId, u64>,
    /// Members that are gone and still in the view.
    pub losing: BTreeSet<MnId>,
    waiting: Vec<Waiting>,
}

impl Presences {
    /// Notes the time of an event.
    pub fn pass(&mut self, now_ms: u64, lease: Lease) {
        let away = |last: u64| now_ms.saturating_sub(last) > lease.lease_ms / 2;
        if self.last_ms.is_none_or(away) {
            self.begun_ms = now_ms;
        }
        self.last_ms = Some(now_ms);
    }

    /// Whether a lease has passed since a moment, and the master was there all the time.
    fn is_over(&self, now_ms: u64, since_ms: u64, lease: Lease) -> bool {
        now_ms.saturating_sub(since_ms.max(self.begun_ms)) > lease.lease_ms
    }

    /// Why somebody counts as gone, if he does, who was heard last at this time.
    fn gone(
        &self,
        now_ms: u64,
        heard_ms: u64,
        gone_at_ms: Option<u64>,
        lease: Lease,
    ) -> Option<&'static str> {
        if gone_at_ms.is_some_and(|at| at <= now_ms) {
            return Some("its connection was closed");
        }
        self.is_over(now_ms, heard_ms, lease).then_some("it is silent")
    }

    fn node_is_gone(&self, now_ms: u64, node: MnId, lease: Lease) -> Option<&'static str> {
        match self.nodes.get(&node) {
            // A node inside of this process is there as long as the process is.
            Some(presence) if presence.connection == Some(LOCAL) => None,
            Some(presence) => self.gone(now_ms, presence.heard_ms, presence.gone_at_ms, lease),
            None => self.gone(now_ms, 0, None, lease),
        }
    }

    /// Whether a node is inside of this process.
    pub fn is_local(&self, node: MnId) -> bool {
        let connection = self.nodes.get(&node).and_then(|presence| presence.connection);
        connection == Some(LOCAL)
    }

    /// Those whose answers are held back, who get them otherwise.
    pub fn take_waiting(&mut self) -> Vec<(u64, Asker)> {
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.map(|asking| (asking.token, asking.asker)).collect()
    }

    /// Whether a node has said that it is there since it joined.
    pub fn has_spoken(&self, node: MnId) -> bool {
        self.nodes.get(&node).is_some_and(|presence| presence.connection.is_some())
    }

    /// Forgets a node.
    pub fn forget(&mut self, node: MnId) {
        self.nodes.remove(&node);
        self.probes.remove(&node);
        self.losing.remove(&node);
    }
}

impl State {
    /// A memory node has joined. Over an ordinary connection that binds it to nothing: it may use
    /// another one from now on.
    pub(super) fn node_joined(&mut self, ctx: &Ctx<'_>, node: MnId, connection: u64) {
        let connection = (connection == LOCAL).then_some(LOCAL);
        let heard = Presence { heard_ms: ctx.now_ms, connection, gone_at_ms: None };
        self.presences.nodes.insert(node, heard);
    }

    /// A memory node says that it is there.
    pub(super) fn alive(
        &mut self,
        ctx: &Ctx<'_>,
        connection: u64,
        token: u64,
        (identity, heard, bars): (u64, Option<Note>, Bars),
    ) -> Option<MasterReply> {
        let found = self.members.values().find(|member| member.identity == identity);
        let Some(node) = found.map(|member| member.node) else {
            return Some(self.farewell(identity));
        };
        let presence =
            Presence { heard_ms: ctx.now_ms, connection: Some(connection), gone_at_ms: None };
        self.presences.nodes.insert(node, presence);
        self.is_there(node);
        self.arrived(ctx, node);
        let is_first = !self.contact.knows(heard);
        self.contact.alive(node, heard, &bars);
        if is_first {
            return Some(self.noted(ctx));
        }
        self.wait(ctx, token, Asker::Node { identity });
        None
    }

    fn noted(&self, ctx: &Ctx<'_>) -> MasterReply {
        let (note, lease_ms) = (self.contact.note(ctx.now_ms), ctx.settings.lease.lease_ms);
        MasterReply::Noted { note, lease_ms }
    }

    /// What a node hears that is no member any more; or that this master does not know, which is no
    /// reason for anybody to give up what it holds.
    fn farewell(&self, identity: u64) -> MasterReply {
        let same = |member: &Member| member.identity == identity;
        if self.drained.values().any(same) {
            MasterReply::Drained
        } else if self.lost.values().any(same) {
            MasterReply::Expelled
        } else {
            MasterReply::Unknown
        }
    }

    /// Sessions say that they are there. Returns their names.
    pub(super) fn renew(
        &mut self,
        ctx: &Ctx<'_>,
        connection: u64,
        pulses: &[Pulse],
    ) -> Vec<ClientId> {
        for pulse in pulses {
            self.sessions.pulse(ctx.now_ms, connection, pulse);
        }
        pulses.iter().map(|pulse| pulse.client).collect()
    }

    pub(super) fn wait(&mut self, ctx: &Ctx<'_>, token: u64, asker: Asker) {
        let until_ms = ctx.now_ms + ctx.settings.lease.hold_ms();
        self.presences.waiting.push(Waiting { token, until_ms, asker });
    }

    /// Answers who waits for something that has happened, or has waited long enough.
    pub(super) fn answer_waiting(&mut self, ctx: &mut Ctx<'_>) {
        let waiting = std::mem::take(&mut self.presences.waiting);
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
                None => self.presences.waiting.push(asking),
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
            Asker::Sessions { clients, newer_than, known, reclaims, mark, heeded, asked_ms } => {
                let gone = clients.iter().filter(|client| !self.sessions.is_open(**client));
                let expelled: Vec<ClientId> = gone.copied().collect();
                let newer = self.view().filter(|view| view.number > *newer_than);
                let view = newer.and_then(|_| self.told.update(*newer_than));
                let short = self.shortage.calls(clients, *heeded);
                let later = epochs.passed > known.passed || epochs.settled > known.settled;
                let told = view.is_some()
                    || !expelled.is_empty()
                    || epochs.newest > known.newest
                    || short != 0
                    || (*reclaims && later);
                let mark = *mark;
                let lease_ms = ctx.settings.lease.lease_ms;
                let behind_ms = self.behind_ms(*asked_ms);
                let reply = MasterReply::Renewed {
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
                if self.members.values().all(|member| member.identity != *identity) {
                    return Some(self.farewell(*identity));
                }
                is_late.then(|| self.noted(ctx))
            }
        }
    }

    pub(super) fn connection_closed(&mut self, ctx: &Ctx<'_>, connection: u64) {
        if connection == LOCAL {
            return;
        }
        let gone_at_ms = ctx.now_ms.saturating_add(ctx.settings.lease.grace_ms);
        self.sessions.connection_closed(connection, gone_at_ms);
        let nodes = self.presences.nodes.values_mut();
        for node in nodes.filter(|node| node.connection == Some(connection)) {
            node.gone_at_ms = Some(gone_at_ms);
        }
    }

    /// Gives up the sessions that are gone, and notes the members that are.
    pub(super) fn expire(&mut self, ctx: &mut Ctx<'_>) {
        let lease = ctx.settings.lease;
        let gone = self.sessions.open_sessions().filter_map(|(client, session)| {
            let Session { heard_ms, gone_at_ms, .. } = *session;
            Some((client, self.presences.gone(ctx.now_ms, heard_ms, gone_at_ms, lease)?))
        });
        let gone: Vec<(ClientId, &str)> = gone.collect();
        self.give_up(ctx, &gone);
        if self.presences.is_over(ctx.now_ms, self.history.since_ms(), lease) {
            let late = self.laggards().map(|client| (client, "it does not leave old views behind"));
            let late: Vec<(ClientId, &str)> = late.collect();
            self.give_up(ctx, &late);
        }
        let late = self.presences.probes.iter().filter(|(_, until)| **until <= ctx.now_ms);
        let late: Vec<MnId> = late.map(|(node, _)| *node).collect();
        for node in late {
            self.presences.probes.remove(&node);
            self.suspect(ctx, node, "it does not answer");
        }
        let gone = self.members.keys().filter_map(|node| {
            Some((*node, self.presences.node_is_gone(ctx.now_ms, *node, lease)?))
        });
        let gone: Vec<(MnId, &str)> = gone.collect();
        for (node, why) in gone {
            self.present.remove(&node);
            if self.view().is_some() && !self.in_view(node) {
                let mut writes = Vec::new();
                self.forget_candidate(ctx, node, &mut writes);
                ctx.persist(writes);
                let text = format!("{node} is forgotten, it was no member yet: {why}");
                ctx.warn(text);
            } else {
                self.suspect(ctx, node, why);
            }
        }
    }

    /// Sessions that keep a stage of a change from ending.
    pub(super) fn laggards(&self) -> impl Iterator<Item = ClientId> {
        let stage = self.view().and_then(|view| view.change.as_ref()).map(|change| change.stage);
        let number = self.view().map_or(0, |view| view.number);
        let waits_for = move |session: &Session| match stage {
            Some(Stage::Frozen) => session.acts_by < number,
            Some(Stage::Switched) => session.acts_by < number || session.has_stopped,
            Some(Stage::Transforming) | None => false,
        };
        let open = self.sessions.open_sessions();
        open.filter(move |(_, session)| waits_for(session)).map(|(client, _)| client)
    }

    /// Whether a lease has passed since a moment, for all that this master knows.
    pub(super) fn lease_is_over(&self, ctx: &Ctx<'_>, since_ms: u64) -> bool {
        self.presences.is_over(ctx.now_ms, since_ms, ctx.settings.lease)
    }

    /// Whether the sessions that are given up can tell by their own clocks that nobody hears them: one
    /// whose connection broke may have been heard a moment before.
    pub(super) fn given_up_leases_are_over(&self, ctx: &Ctx<'_>) -> bool {
        self.sessions.given_up_heard_ms().all(|heard_ms| self.lease_is_over(ctx, heard_ms))
    }

    /// Shuts sessions out, each for its reason. They are fenced from now on.
    pub(super) fn give_up(&mut self, ctx: &mut Ctx<'_>, clients: &[(ClientId, &str)]) {
        let mut writes = Vec::new();
        for (client, _) in clients {
            if self.sessions.give_up(*client, &mut writes) {
                self.fences.add(*client);
            }
        }
        ctx.persist(writes);
        for (client, why) in clients {
            ctx.warn(format!("{client} is given up: {why}"));
        }
    }

    /// Somebody does not reach a member: it is asked whether it is there.
    pub(super) fn probe(&mut self, ctx: &mut Ctx<'_>, node: MnId) {
        if self.in_view(node) && !self.presences.probes.contains_key(&node) {
            let patience_ms = (ctx.settings.lease.lease_ms / 2).clamp(MIN_PROBE_MS, MAX_PROBE_MS);
            self.presences.probes.insert(node, ctx.now_ms.saturating_add(patience_ms));
            ctx.call(&self.members, node, NodeRequest::Describe, Purpose::Probe);
        }
    }

    /// A member answered the question whether it is there, or did not.
    pub(super) fn probed(
        &mut self,
        ctx: &mut Ctx<'_>,
        node: MnId,
        result: Result<NodeReply, String>,
    ) {
        self.presences.probes.remove(&node);
        let identity = self.members.get(&node).map(|member| member.identity);
        match result {
            Ok(NodeReply::Description(found)) if Some(found.identity) == identity => {
                self.is_there(node);
            }
            Ok(_) => self.suspect(ctx, node, "another process is in its place"),
            Err(cause) => self.suspect(ctx, node, &cause),
        }
    }

    /// A member is gone, as far as the cluster is concerned.
    pub(super) fn suspect(&mut self, ctx: &mut Ctx<'_>, node: MnId, why: &str) {
        if self.in_view(node) && self.presences.losing.insert(node) {
            ctx.warn(format!("{node} is lost: {why}"));
        }
    }

    /// A member that could not be done without is there after all.
    fn is_there(&mut self, node: MnId) {
        self.presences.losing.remove(&node);
    }
}
