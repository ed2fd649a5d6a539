//! Memory nodes by name: candidates and members, those that are to leave, have left or are lost.
//!
//! A node is a *candidate* from its join on, and a member once a view has it; the views know which of
//! them it is. What changes here and is recorded gives the record's change along.

use std::collections::{BTreeMap, BTreeSet};

use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use super::names::Names;
use crate::record::{Record, Write, drained_key, draining_key, lost_key, member_key};

/// The memory nodes that the master knows.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Candidates and members.
    nodes: BTreeMap<MnId, Member>,
    /// Members once; the cluster goes on without them.
    lost: BTreeMap<MnId, Member>,
    /// Members that are to leave.
    draining: BTreeSet<MnId>,
    /// Those that have left in good order.
    drained: BTreeMap<MnId, Member>,
    /// Candidates and members that have spoken to this process.
    present: BTreeSet<MnId>,
    names: Names,
}

impl Roster {
    /// From the store, if it is a record of this.
    pub fn restore(&mut self, record: Record) {
        match record {
            Record::NextNode(next) => self.names.restore_next(next),
            Record::FreeNames(free) => self.names.restore_free(free),
            Record::Member(member) => drop(self.nodes.insert(member.node, member)),
            Record::Lost(member) => drop(self.lost.insert(member.node, member)),
            Record::Draining(node) => drop(self.draining.insert(node)),
            Record::Drained(member) => drop(self.drained.insert(member.node, member)),
            _ => {}
        }
    }

    /// A candidate or member.
    pub fn get(&self, node: MnId) -> Option<&Member> {
        self.nodes.get(&node)
    }

    /// Who that candidate or member is.
    pub fn identity_of(&self, node: MnId) -> Option<u64> {
        self.get(node).map(|member| member.identity)
    }

    /// All candidates and members.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.nodes.values()
    }

    /// The candidate or member of this identity.
    pub fn find(&self, identity: u64) -> Option<&Member> {
        self.nodes().find(|member| member.identity == identity)
    }

    pub fn lost(&self) -> impl Iterator<Item = &Member> {
        self.lost.values()
    }

    pub fn is_lost(&self, node: MnId) -> bool {
        self.lost.contains_key(&node)
    }

    pub fn drained(&self) -> impl Iterator<Item = &Member> {
        self.drained.values()
    }

    pub fn is_drained(&self, node: MnId) -> bool {
        self.drained.contains_key(&node)
    }

    pub fn draining(&self) -> impl Iterator<Item = MnId> {
        self.draining.iter().copied()
    }

    pub fn is_draining(&self, node: MnId) -> bool {
        self.draining.contains(&node)
    }

    /// Those that have spoken to this process and have not fallen silent.
    pub fn present(&self) -> impl ExactSizeIterator<Item = MnId> {
        self.present.iter().copied()
    }

    pub fn is_present(&self, node: MnId) -> bool {
        self.present.contains(&node)
    }

    /// A node has spoken; whether it had not before.
    pub fn arrived(&mut self, node: MnId) -> bool {
        self.present.insert(node)
    }

    /// A node has fallen silent.
    pub fn departed(&mut self, node: MnId) {
        self.present.remove(&node);
    }

    /// Whether there is a name for another node.
    pub fn has_names(&self) -> bool {
        self.names.are_left()
    }

    /// Names a candidate. `None` if no name is left.
    pub fn add(&mut self, new: Member, writes: &mut Vec<Write>) -> Option<Member> {
        let new = Member { node: self.names.take(writes)?, ..new };
        writes.push(self.replace(new.clone()));
        Some(new)
    }

    /// A candidate has other addresses now.
    pub fn replace(&mut self, new: Member) -> Write {
        self.nodes.insert(new.node, new.clone());
        Write::Put(Record::Member(new))
    }

    /// Forgets a candidate that no view has ever had. Its name comes back.
    pub fn forget(&mut self, node: MnId, writes: &mut Vec<Write>) {
        self.nodes.remove(&node);
        self.present.remove(&node);
        writes.push(Write::Remove(member_key(node)));
        self.names.give_back(node, writes);
    }

    /// The cluster goes on without a member that is gone.
    pub fn lose(&mut self, node: MnId, writes: &mut Vec<Write>) {
        self.present.remove(&node);
        let Some(member) = self.nodes.remove(&node) else { return };
        if self.draining.remove(&node) {
            writes.push(Write::Remove(draining_key(node)));
        }
        writes.push(Write::Remove(member_key(node)));
        writes.push(Write::Put(Record::Lost(member.clone())));
        self.lost.insert(node, member);
    }

    /// A member is to leave.
    pub fn drain(&mut self, node: MnId) -> Write {
        self.draining.insert(node);
        Write::Put(Record::Draining(node))
    }

    /// A member that was to leave stays after all.
    pub fn keep(&mut self, node: MnId) -> Write {
        self.draining.remove(&node);
        Write::Remove(draining_key(node))
    }

    /// A member has left in good order.
    pub fn leave(&mut self, node: MnId, writes: &mut Vec<Write>) {
        self.present.remove(&node);
        self.draining.remove(&node);
        let Some(member) = self.nodes.remove(&node) else { return };
        writes.extend([
            Write::Remove(member_key(node)),
            Write::Remove(draining_key(node)),
            Write::Put(Record::Drained(member.clone())),
        ]);
        self.drained.insert(node, member);
    }

    /// Another process has this control address: whoever had it and is lost or drained is forgotten.
    pub fn take_place(&mut self, control: &str, writes: &mut Vec<Write>) {
        let of = |gone: &BTreeMap<MnId, Member>| {
            let found = gone.values().find(|member| member.control == control);
            found.map(|member| member.node)
        };
        if let Some(old) = of(&self.lost) {
            self.lost.remove(&old);
            writes.push(Write::Remove(lost_key(old)));
        }
        if let Some(old) = of(&self.drained) {
            self.drained.remove(&old);
            writes.push(Write::Remove(drained_key(old)));
        }
    }
}
