//! The order of changes, if several are wanted.
//!
//! In a stable view there may be subtables to split, regions to add, and missing replicas to restore. Each change does
//! one of these, and its kind then goes to the end of the line: so a kind that is always wanted does not keep the
//! others away. A reservation of room for this view is completed first, since a change of another kind would end it.
//! But a memory node that takes long to answer does not hold up the other kinds.

use fusee_core::mutant::{Mutant, removed};

/// The purpose of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangePurpose {
    /// Full subtables ([`splitting`](super::splitting)).
    Splits,
    /// New regions ([`region_addition`](super::region_addition)).
    Regions,
    /// Missing replicas ([`replica_addition`](super::replica_addition)).
    Replicas,
}

/// The line of the kinds of changes, the next one first.
#[derive(Debug)]
pub(super) struct ChangeRotation([ChangePurpose; 3]);

impl Default for ChangeRotation {
    fn default() -> ChangeRotation {
        ChangeRotation([ChangePurpose::Splits, ChangePurpose::Regions, ChangePurpose::Replicas])
    }
}

impl ChangeRotation {
    /// Returns the line, the next one first.
    pub fn line(&self) -> [ChangePurpose; 3] {
        self.0
    }

    /// Takes note that a change of this kind has begun, or was impossible.
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
