//! The order of changes of different kinds.
//!
//! In a stable view, subtables to split, regions to add, and missing replicas to restore can be waiting at the same
//! time. Each change does one of these, and its kind then goes to the end of a queue. So a kind that is always wanted
//! does not keep the other kinds waiting. If a kind has begun to reserve room for this view, its change comes first,
//! because a change of another kind would make the reservation useless. But if a memory node takes long to answer, the
//! other kinds go on.

use fusee_core::mutant::{Mutant, removed};

/// The purpose of a view change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangePurpose {
    /// Splits full subtables ([`splitting`](super::splitting)).
    Splits,
    /// Adds new regions ([`region_addition`](super::region_addition)).
    Regions,
    /// Adds missing replicas ([`replica_addition`](super::replica_addition)).
    Replicas,
}

/// The queue of the purposes of view changes. The purpose to try next is the first.
#[derive(Debug)]
pub(super) struct ChangeRotation([ChangePurpose; 3]);

impl Default for ChangeRotation {
    fn default() -> ChangeRotation {
        ChangeRotation([ChangePurpose::Splits, ChangePurpose::Regions, ChangePurpose::Replicas])
    }
}

impl ChangeRotation {
    /// Returns the queue of purposes. The purpose to try next is the first.
    pub fn line(&self) -> [ChangePurpose; 3] {
        self.0
    }

    /// Moves a purpose to the end of the queue, because a change for this purpose has begun or was impossible.
    pub fn move_to_back(&mut self, kind: ChangePurpose) {
        if removed(Mutant::NobodyYields) {
            return;
        }
        if let Some(at) = self.0.iter().position(|next| *next == kind) {
            self.0[at..].rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_a_turn_is_last() {
        let mut turns = ChangeRotation::default();
        turns.move_to_back(ChangePurpose::Splits);
        assert_eq!(
            turns.0,
            [ChangePurpose::Regions, ChangePurpose::Replicas, ChangePurpose::Splits]
        );
        turns.move_to_back(ChangePurpose::Replicas);
        assert_eq!(
            turns.0,
            [ChangePurpose::Regions, ChangePurpose::Splits, ChangePurpose::Replicas]
        );
        turns.move_to_back(ChangePurpose::Replicas);
        assert_eq!(
            turns.0,
            [ChangePurpose::Regions, ChangePurpose::Splits, ChangePurpose::Replicas]
        );
    }
}
