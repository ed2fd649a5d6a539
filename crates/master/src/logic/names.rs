//! The names of memory nodes: who gets which, and which come back.
//!
//! A member's name is in views, which sessions and other members keep for as long as they like, so it is never
//! given to anybody else. A node that waits to become a member is named by nobody but this master: it is
//! called at its own address, and known by its identity. So if it goes, or another process takes its
//! address, before a view has had it, its name comes back; otherwise a node that joins again and again
//! would use the names up, of which there are 65,535.
//!
//! What may still come under a name that came back:
//!
//! * *The node itself*, late. It says who it is by its identity (`Join`, `Alive`), never by its name, and is
//!   told that nobody knows it.
//! * *Answers to calls* that were made to it. The calls are forgotten together with the node.
//! * *A session*: it knows names from views only, and says hello by identity.
//! * *A person* who has read the name in a status. So that `fusee drain` does not mean another node
//!   than it did a moment ago, a name rests until [`REST`] others have come back.
//!
//! A name comes back in the same change of the store that forgets its node, and goes in the one that
//! records the next: whenever the master crashes, it belongs to one of them, or to nobody.

use std::collections::VecDeque;

use fusee_core::verbs::MnId;

use crate::record::{Record, Write};

/// Names that rest before the first of them is given again.
pub(super) const REST: usize = 64;

/// The names that can be given.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// This one and all above were never given.
    next: u16,
    /// Those that came back, the one that has rested for longest first.
    free: VecDeque<u16>,
}

impl Names {
    pub fn restore_next(&mut self, next: u16) {
        self.next = next;
    }

    pub fn restore_free(&mut self, free: Vec<u16>) {
        self.free = free.into();
    }

    /// A name for another node; `None` if all have been used.
    pub fn take(&mut self, writes: &mut Vec<Write>) -> Option<MnId> {
        let fresh = self.next.checked_add(1);
        if self.free.len() > REST || fresh.is_none() {
            let name = self.free.pop_front()?;
            writes.push(self.free_record());
            return Some(MnId(name));
        }
        let name = self.next;
        self.next = fresh?;
        writes.push(Write::Put(Record::NextNode(self.next)));
        Some(MnId(name))
    }

    /// Whether there is a name for another node.
    pub fn are_left(&self) -> bool {
        self.next < u16::MAX || !self.free.is_empty()
    }

    /// The name of a node comes back that no view has ever had.
    pub fn give_back(&mut self, node: MnId, writes: &mut Vec<Write>) {
        if !self.free.contains(&node.0) {
            self.free.push_back(node.0);
            writes.push(self.free_record());
        }
    }

    fn free_record(&self) -> Write {
        Write::Put(Record::FreeNames(self.free.iter().copied().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_rest_before_they_are_given_again_and_the_last_ones_do_not_have_to() {
        let mut names = Names::default();
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
