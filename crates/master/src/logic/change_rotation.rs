//! The order of changes, if several are wanted.
//!
//! In a stable view there may be subtables to split, regions to add, and missing replicas to restore. Each change does
//! one of these, and its kind then goes to the end of the line: so a kind that is always wanted does not keep the
//! others away. A reservation of room for this view is completed first, since a change of another kind would end it.
//! But a memory node that takes long to answer does not hold up the other kinds.

use fusee_core::mutant::{Mutant, removed};

use super::MasterState;
use super::context::EventContext;

/// The purpose of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChangePurpose {
    /// Full subtables ([`splitting`](super::splitting)).
    Splits,
    /// New regions ([`adding`](super::adding)).
    Regions,
    /// Missing replicas ([`growth`](super::growth)).
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

impl MasterState {
    /// Returns whether room for splits or regions is being reserved, however long that takes.
    pub(super) fn reserves_room(&self) -> bool {
        self.splitting.has_begun() || self.adding.has_begun()
    }

    /// Begins the next wanted change in the line. Returns whether all other changes wait for it.
    pub(super) fn begin_next(&mut self, ctx: &mut EventContext<'_>) -> bool {
        let is_under_way = |kind: &ChangePurpose| match kind {
            ChangePurpose::Splits => self.splitting.is_under_way(ctx.now_ms),
            ChangePurpose::Regions => self.adding.is_under_way(ctx.now_ms),
            ChangePurpose::Replicas => self.growth.adds_missing(ctx.now_ms),
        };
        let first = self.turns.0.into_iter().find(is_under_way);
        let mut line = first.into_iter().chain(self.turns.0);
        line.any(|kind| match kind {
            ChangePurpose::Splits => self.split(ctx),
            ChangePurpose::Regions => self.add_regions(ctx),
            ChangePurpose::Replicas => self.add_missing(ctx),
        })
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
