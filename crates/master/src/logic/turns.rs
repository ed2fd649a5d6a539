//! The order of changes, if several are wanted.
//!
//! In a stable view there may be subtables to split, regions to add, and missing replicas to restore. Each change does
//! one of these, and its kind then goes to the end of the line: so a kind that is always wanted does not keep the
//! others away. A reservation of room for this view is completed first, since a change of another kind would end it.
//! But a memory node that takes long to answer does not hold up the other kinds.

use fusee_core::mutant::{Mutant, removed};

use super::State;
use super::context::Ctx;

/// The purpose of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Full subtables ([`splitting`](super::splitting)).
    Splits,
    /// New regions ([`adding`](super::adding)).
    Regions,
    /// Missing replicas ([`growth`](super::growth)).
    Replicas,
}

/// The line of the kinds of changes, the next one first.
#[derive(Debug)]
pub(super) struct Turns([Kind; 3]);

impl Default for Turns {
    fn default() -> Turns {
        Turns([Kind::Splits, Kind::Regions, Kind::Replicas])
    }
}

impl Turns {
    /// Takes note that a change of this kind has begun, or was impossible.
    pub fn had(&mut self, kind: Kind) {
        if removed(Mutant::NobodyYields) {
            return;
        }
        if let Some(at) = self.0.iter().position(|next| *next == kind) {
            self.0[at..].rotate_left(1);
        }
    }
}

impl State {
    /// Returns whether room for splits or regions is being reserved, however long that takes.
    pub(super) fn reserves_room(&self) -> bool {
        self.splitting.has_begun() || self.adding.has_begun()
    }

    /// Begins the next wanted change in the line. Returns whether all other changes wait for it.
    pub(super) fn begin_next(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let is_under_way = |kind: &Kind| match kind {
            Kind::Splits => self.splitting.is_under_way(ctx.now_ms),
            Kind::Regions => self.adding.is_under_way(ctx.now_ms),
            Kind::Replicas => self.growth.adds_missing(ctx.now_ms),
        };
        let first = self.turns.0.into_iter().find(is_under_way);
        let mut line = first.into_iter().chain(self.turns.0);
        line.any(|kind| match kind {
            Kind::Splits => self.split(ctx),
            Kind::Regions => self.add_regions(ctx),
            Kind::Replicas => self.add_missing(ctx),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_a_turn_is_last() {
        let mut turns = Turns::default();
        turns.had(Kind::Splits);
        assert_eq!(turns.0, [Kind::Regions, Kind::Replicas, Kind::Splits]);
        turns.had(Kind::Replicas);
        assert_eq!(turns.0, [Kind::Regions, Kind::Splits, Kind::Replicas]);
        turns.had(Kind::Replicas);
        assert_eq!(turns.0, [Kind::Regions, Kind::Splits, Kind::Replicas]);
    }
}
