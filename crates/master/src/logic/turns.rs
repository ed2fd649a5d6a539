//! Who has the next change, where several want one.
//!
//! By a stable view subtables are to be split, regions to be added, missing replicas to be restored. Each change
//! does one of these. Whoever has had one goes to the end of the line: so nobody who always wants one keeps the others
//! away. What reserves room for this view goes on before, as the change of another kind would end it; but a memory node
//! that takes long to answer holds none of the others up.

use fusee_core::mutant::{Mutant, removed};

use super::State;
use super::context::Ctx;

/// What a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Full subtables ([`splitting`](super::splitting)).
    Splits,
    /// New regions ([`adding`](super::adding)).
    Regions,
    /// Missing replicas ([`growth`](super::growth)).
    Replicas,
}

/// The line.
#[derive(Debug)]
pub(super) struct Turns([Kind; 3]);

impl Default for Turns {
    fn default() -> Turns {
        Turns([Kind::Splits, Kind::Regions, Kind::Replicas])
    }
}

impl Turns {
    /// A change of this kind has begun, or could not.
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
    /// Whether room is reserved for what somebody waits for, however long that takes.
    pub(super) fn reserves_room(&self) -> bool {
        self.splitting.has_begun() || self.adding.has_begun()
    }

    /// Begins what is next in the line, and is wanted; whether all others wait for it.
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
