//! The memory nodes by name: candidates, members, and former members.
//!
//! A node is a *candidate* when it has joined, and a member once a view lists it; the views tell which. Methods that
//! change stored facts return the write for the store, or add it to `writes`.

use std::collections::{BTreeMap, BTreeSet};

use fusee_core::verbs::MnId;
use fusee_core::view::Member;

use super::node_names::NodeNames;
use crate::record::{MasterRecord, RecordWrite, drained_key, draining_key, lost_key, member_key};

/// The memory nodes that the master knows.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// All candidates and members.
    nodes: BTreeMap<MnId, Member>,
    /// Former members that a view change has removed because they failed.
    lost: BTreeMap<MnId, Member>,
    /// Members that are being drained.
    draining: BTreeSet<MnId>,
    /// Former members that left after a drain.
    drained: BTreeMap<MnId, Member>,
    /// Candidates and members that this process has heard from and that are not silent.
    present: BTreeSet<MnId>,
    names: NodeNames,
}

impl Roster {
    /// Restores a record from the store, if it concerns the roster.
    pub fn restore(&mut self, record: MasterRecord) {
        match record {
            MasterRecord::NextNode(next) => self.names.restore_next(next),
            MasterRecord::FreeNames(free) => self.names.restore_free(free),
            MasterRecord::Member(member) => drop(self.nodes.insert(member.node, member)),
            MasterRecord::Lost(member) => drop(self.lost.insert(member.node, member)),
            MasterRecord::Draining(node) => drop(self.draining.insert(node)),
            MasterRecord::Drained(member) => drop(self.drained.insert(member.node, member)),
            _ => {}
        }
    }

    /// Returns a candidate or member.
    pub fn get(&self, node: MnId) -> Option<&Member> {
        self.nodes.get(&node)
    }

    /// Returns the identity of a candidate or member.
    pub fn identity_of(&self, node: MnId) -> Option<u64> {
        self.get(node).map(|member| member.identity)
    }

    /// Returns all candidates and members.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.nodes.values()
    }

    /// Returns the candidate or member of this identity.
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

    /// Returns the candidates and members that this process has heard from and that are not silent.
    pub fn present(&self) -> impl ExactSizeIterator<Item = MnId> {
        self.present.iter().copied()
    }

    pub fn is_present(&self, node: MnId) -> bool {
        self.present.contains(&node)
    }

    /// Records that a node is present; returns whether it was absent before.
    pub fn arrived(&mut self, node: MnId) -> bool {
        self.present.insert(node)
    }

    /// Records that a node is silent.
    pub fn departed(&mut self, node: MnId) {
        self.present.remove(&node);
    }

    /// Returns whether a name is left for another node.
    pub fn has_names(&self) -> bool {
        self.names.are_left()
    }

    /// Adds a candidate, with a new name. Returns `None` if no name is left.
    pub fn add(&mut self, new: Member, writes: &mut Vec<RecordWrite>) -> Option<Member> {
        let new = Member { node: self.names.take(writes)?, ..new };
        writes.push(self.replace(new.clone()));
        Some(new)
    }

    /// Replaces the record of a candidate, for example by one with other addresses. Returns the write.
    pub fn replace(&mut self, new: Member) -> RecordWrite {
        self.nodes.insert(new.node, new.clone());
        RecordWrite::Put(MasterRecord::Member(new))
    }

    /// Forgets a candidate that no view has ever listed. The candidate's name becomes free.
    pub fn forget(&mut self, node: MnId, writes: &mut Vec<RecordWrite>) {
        self.nodes.remove(&node);
        self.present.remove(&node);
        writes.push(RecordWrite::Remove(member_key(node)));
        self.names.give_back(node, writes);
    }

    /// Turns a failed member into a lost one, because the next view lacks it.
    pub fn lose(&mut self, node: MnId, writes: &mut Vec<RecordWrite>) {
        self.present.remove(&node);
        let Some(member) = self.nodes.remove(&node) else { return };
        if self.draining.remove(&node) {
            writes.push(RecordWrite::Remove(draining_key(node)));
        }
        writes.push(RecordWrite::Remove(member_key(node)));
        writes.push(RecordWrite::Put(MasterRecord::Lost(member.clone())));
        self.lost.insert(node, member);
    }

    /// Records that a member is being drained.
    pub fn drain(&mut self, node: MnId) -> RecordWrite {
        self.draining.insert(node);
        RecordWrite::Put(MasterRecord::Draining(node))
    }

    /// Records that the drain of a member was cancelled.
    pub fn keep(&mut self, node: MnId) -> RecordWrite {
        self.draining.remove(&node);
        RecordWrite::Remove(draining_key(node))
    }

    /// Turns a member whose drain is complete into a drained one, because the next view lacks it.
    pub fn leave(&mut self, node: MnId, writes: &mut Vec<RecordWrite>) {
        self.present.remove(&node);
        self.draining.remove(&node);
        let Some(member) = self.nodes.remove(&node) else { return };
        writes.extend([
            RecordWrite::Remove(member_key(node)),
            RecordWrite::Remove(draining_key(node)),
            RecordWrite::Put(MasterRecord::Drained(member.clone())),
        ]);
        self.drained.insert(node, member);
    }

    /// Forgets a lost or drained node that had this control address, because another process has it now.
    pub fn take_place(&mut self, control: &str, writes: &mut Vec<RecordWrite>) {
        let of = |gone: &BTreeMap<MnId, Member>| {
            let found = gone.values().find(|member| member.control == control);
            found.map(|member| member.node)
        };
        if let Some(old) = of(&self.lost) {
            self.lost.remove(&old);
            writes.push(RecordWrite::Remove(lost_key(old)));
        }
        if let Some(old) = of(&self.drained) {
            self.drained.remove(&old);
            writes.push(RecordWrite::Remove(drained_key(old)));
        }
    }
}
