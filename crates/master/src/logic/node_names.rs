//! The names of memory nodes: which are given, and which become free again.
//!
//! Sessions and other members keep the names in views for as long as they like, so the name of a member is never given
//! again. Only this master knows the name of a node that waits to become a member: other processes call the node at its
//! address, and identify it by its identity. So if the node ends, or another process takes its address, before any view
//! lists it, its name becomes free. Otherwise a node that joins again and again would use up the 65,535 names.
//!
//! Late events for a name that became free:
//!
//! * *The node itself.* It reports by identity (`Join`, `Alive`), never by name, and is told that it is unknown.
//! * *Answers to calls* to it. The calls are forgotten together with the node.
//! * *A session.* It knows names only from views, and says hello by identity.
//! * *A command of an operator*, with a name from an earlier status. So that `fusee drain` does not mean another node
//!   than a moment ago, a name is given again only after [`REST`] other names have become free.
//!
//! The write that forgets a node also frees its name, and the write that records the next node also takes the name. So
//! whenever the master crashes, the name belongs to one of the two nodes, or is free.

// Promise MST-6

use std::collections::VecDeque;

use fusee_core::verbs::MnId;

use crate::record::{MasterRecord, RecordWrite};

/// The number of free names behind which a name waits before it is given again.
pub(super) const REST: usize = 64;

/// The names that memory nodes can get in the cluster.
#[derive(Debug, Default)]
pub(super) struct NodeNames {
    /// The least name that no node has ever got.
    next: u16,
    /// The names that became free again, in the order in which they became free.
    free: VecDeque<u16>,
}

impl NodeNames {
    pub fn restore_next(&mut self, next: u16) {
        self.next = next;
    }

    pub fn restore_free(&mut self, free: Vec<u16>) {
        self.free = free.into();
    }

    /// Returns a name for another node; `None` if no name is left.
    pub fn take(&mut self, writes: &mut Vec<RecordWrite>) -> Option<MnId> {
        let fresh = self.next.checked_add(1);
        if self.free.len() > REST || fresh.is_none() {
            let name = self.free.pop_front()?;
            writes.push(self.free_record());
            return Some(MnId(name));
        }
        let name = self.next;
        self.next = fresh?;
        writes.push(RecordWrite::Put(MasterRecord::NextNode(self.next)));
        Some(MnId(name))
    }

    /// Returns whether a name is left for another node.
    pub fn are_left(&self) -> bool {
        self.next < u16::MAX || !self.free.is_empty()
    }

    /// Frees the name of a node that no view has ever listed.
    pub fn give_back(&mut self, node: MnId, writes: &mut Vec<RecordWrite>) {
        if !self.free.contains(&node.0) {
            self.free.push_back(node.0);
            writes.push(self.free_record());
        }
    }

    fn free_record(&self) -> RecordWrite {
        RecordWrite::Put(MasterRecord::FreeNames(self.free.iter().copied().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_rest_before_they_are_given_again_and_the_last_ones_do_not_have_to() {
        let mut names = NodeNames::default();
        let mut writes = Vec::new();
        let mut last = None;
        for _ in 0..REST + 10 {
            let name = names.take(&mut writes).unwrap();
            assert!(last.is_none_or(|last| last < name), "given again at once");
            names.give_back(name, &mut writes);
            last = Some(name);
            if names.free.len() > REST {
                break;
            }
        }
        assert_eq!(names.take(&mut writes), Some(MnId(0)));
        assert_eq!(names.next as usize, REST + 1);
        names.next = u16::MAX;
        names.free.truncate(1);
        assert_eq!(names.take(&mut writes), Some(MnId(1)));
        assert!(!names.are_left());
        assert_eq!(names.take(&mut writes), None);
    }
}
