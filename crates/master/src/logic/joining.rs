//! Memory nodes that offer themselves. What the names mean stands in the module above.

use fusee_control::master::MasterReply;
use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use super::{Action, Actions, Level, Master, Phase, Purpose, refused};
use crate::record::{Record, Write, drained_key, lost_key, member_key};
use crate::settings::MAX_MEMORY_NODES;

/// The longest address that a node may give.
const MAX_ADDRESS_BYTES: usize = 512;

impl Master {
    pub(super) fn join(&mut self, now_ms: u64, new: Member, out: &mut Actions) -> MasterReply {
        if let Err(what) = check_member(&new) {
            return refused(what);
        }
        let known = self.members.values().find(|member| member.identity == new.identity);
        if let Some(known) = known.cloned() {
            return self.join_again(now_ms, &known, new, out);
        }
        if self.lost.values().any(|lost| lost.identity == new.identity) {
            return refused("the cluster goes on without this node; restart it to join empty");
        }
        if self.drained.values().any(|drained| drained.identity == new.identity) {
            return refused("this node has been drained; restart it to join empty");
        }
        let unused = |member: &&Member| !self.in_view(member.node);
        let old = self.members.values().filter(unused).find(|old| old.control == new.control);
        let old = old.map(|old| old.node);
        let count = self.members.len() - usize::from(old.is_some());
        let Some(next) =
            self.next_node.checked_add(1).filter(|_| count < MAX_MEMORY_NODES as usize)
        else {
            return refused("too many memory nodes have joined");
        };
        let node = new.node;
        let mut writes =
            vec![Write::Put(Record::NextNode(next)), Write::Put(Record::Member(new.clone()))];
        if let Some(old) = old {
            out.push(Action::Log(Level::Info, format!("{node} takes the place of {old}")));
            writes.push(Write::Remove(member_key(old)));
            self.members.remove(&old);
            self.present.remove(&old);
            self.abandon_attempt_of(now_ms, old);
        }
        self.its_place_is_taken(&new, &mut writes, out);
        out.push(Action::Persist(writes));
        self.next_node = next;
        let text = format!("{node} joined from {}", new.control);
        out.push(Action::Log(Level::Info, text));
        self.members.insert(node, new);
        self.arrived(now_ms, node);
        MasterReply::Joined { node }
    }

    /// Another process had this address: it is gone.
    fn its_place_is_taken(&mut self, new: &Member, writes: &mut Vec<Write>, out: &mut Actions) {
        let here = |member: &&Member| member.control == new.control;
        if let Some(old) = self.lost.values().find(here).map(|member| member.node) {
            self.lost.remove(&old);
            writes.push(Write::Remove(lost_key(old)));
        }
        if let Some(old) = self.drained.values().find(here).map(|member| member.node) {
            self.drained.remove(&old);
            writes.push(Write::Remove(drained_key(old)));
        }
        let old = self.view().and_then(|view| view.members.iter().find(here)).map(|m| m.node);
        if let Some(old) = old {
            self.suspect(old, "another process has its address", out);
        }
    }

    fn join_again(
        &mut self,
        now_ms: u64,
        known: &Member,
        new: Member,
        out: &mut Actions,
    ) -> MasterReply {
        let node = known.node;
        let new = Member { node, ..new };
        if *known != new {
            if self.in_view(node) {
                return refused(format!(
                    "{node} is part of the view as {}; restart it to join from elsewhere",
                    known.control
                ));
            }
            out.push(Action::Persist(vec![Write::Put(Record::Member(new.clone()))]));
            self.members.insert(node, new);
            self.abandon_attempt_of(now_ms, node);
        }
        self.arrived(now_ms, node);
        MasterReply::Joined { node }
    }

    pub(super) fn arrived(&mut self, now_ms: u64, node: MnId) {
        if !self.present.insert(node) {
            return;
        }
        // What was impossible may be possible with this one.
        match &mut self.phase {
            Phase::Forming { try_at_ms, .. } => *try_at_ms = now_ms,
            Phase::Formed(_) => self.growth.look_again(),
        }
    }

    fn abandon_attempt_of(&mut self, now_ms: u64, node: MnId) {
        if let Phase::Forming { attempt, .. } = &self.phase
            && attempt.as_ref().is_some_and(|attempt| attempt.includes(node))
        {
            self.abandon_attempt(now_ms);
        }
    }

    pub(super) fn abandon_attempt(&mut self, try_again_ms: u64) {
        if let Phase::Forming { attempt, try_at_ms, .. } = &mut self.phase {
            *attempt = None;
            *try_at_ms = try_again_ms;
        }
        self.calls.retain(|_, (_, purpose)| *purpose != Purpose::Format);
    }
}

/// A join comes from anybody: its numbers and texts are bounded before they are stored.
fn check_member(member: &Member) -> Result<(), &'static str> {
    let fabrics = [&member.tcp, &member.shm, &member.verbs].into_iter().flatten();
    if fabrics.chain([&member.control]).any(|a| a.is_empty() || a.len() > MAX_ADDRESS_BYTES) {
        return Err("an address must have 1..=512 bytes");
    }
    if member.pool_bytes == 0 {
        return Err("a memory node without memory is of no use; give it a pool");
    }
    Ok(())
}
