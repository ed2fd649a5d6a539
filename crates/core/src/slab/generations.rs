//! Generations of a block's objects: the next one of each object, and the first one under the next owner.
//!
//! *No word comes back within a window of epochs* ([`WINDOW_EPOCHS`]), whichever sessions own the
//! block meanwhile. An object gets one generation after the other, modulo 512, and each of its lives takes
//! an epoch at least. So within one *tenure*, the time of a block in one size class, a word takes
//! 511 epochs to come back. A tenure ends when the block is wholly free, and all objects of the next
//! one begin with the same generation, the *base*, which stands in the block's header:
//!
//! * It is the one that follows the latest of all objects. So a generation that another object has
//!   skipped has taken epochs, too: those of the object with the most lives.
//! * An object that is behind by more than [`SPREAD`] lives would meet its own last words too early.
//!   Then there is no base: the block waits a whole window before it goes back to the pool.
//!
//! The header says so before the first zero is written, so an owner may die anywhere. The next owner
//! counts lives from the base on, by the generations in the objects' headers. These cannot tell
//! 3 lives from 515; so before an object has more than [`TOLD`] lives the header says that the block
//! is *wrapped*, and such a block has no base at its end, unless its owner has counted them all. The
//! header is written so twice, first when an object has had half as many lives: a header that does
//! not say so, and is still on its way then, has arrived, or never will, when the second is posted.
//!
//! `spec/Generations.tla` has all of this.

use alloc::vec;
use alloc::vec::Vec;

use crate::layout::{BlockHeader, GenerationBase, Slot};
use crate::mutant::{Mutant, removed};

/// The number of epochs for which a word is not written again after it was in any slot.
pub const WINDOW_EPOCHS: u64 = (Slot::GENERATIONS - SPREAD - 1) as u64;
/// The number of lives that objects of a block may be apart when a tenure ends without a wait.
const SPREAD: u16 = 128;
/// The number of lives that an object's header can tell: with more, a generation behind the base looks
/// as if it were ahead.
const TOLD: u16 = Slot::GENERATIONS - 1 - SPREAD;
/// The largest count of lives. An object with more counts as one with fewer, of the same generation.
const MOST: u16 = u16::MAX - 1;
/// The lives of an object that are not known: its header has to be read.
const UNKNOWN: u16 = u16::MAX;

/// The state of the generations of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GenerationState {
    /// Its header has to be read first, not before this epoch.
    Unread { not_before: u64 },
    /// No header tells the base: the block can only be emptied.
    Lost,
    /// Objects may be allocated.
    Known,
}

/// The generations of one block.
#[derive(Debug)]
pub(crate) struct Generations {
    state: GenerationState,
    base: u16,
    /// Number of generations that a life takes: the turns of an EC-oriented object.
    turns: u16,
    /// The lives since the base of every object that was ever allocated, or [`UNKNOWN`].
    lives: Vec<u16>,
    /// Whether the header says, or is about to say, that lives cannot be told from it.
    wrapped: bool,
    /// Whether the header says so for the second time.
    is_told: bool,
    /// Whether the owner cannot tell how far the objects are apart.
    is_wide: bool,
}

/// The headers of a block's replicas, as they were read.
pub(crate) enum ReplicaHeaders {
    /// No replica has one: the block was never used.
    None,
    /// None is whole.
    Damaged,
    /// The newest base.
    Base(GenerationBase),
}

impl ReplicaHeaders {
    /// Decodes the headers of all replicas.
    pub fn of<'b>(replicas: impl Iterator<Item = &'b [u8]>) -> ReplicaHeaders {
        let mut headers = ReplicaHeaders::None;
        for bytes in replicas {
            let header = bytes.first_chunk().and_then(BlockHeader::decode);
            headers = match (headers, header) {
                (ReplicaHeaders::Base(known), Some(found)) => {
                    ReplicaHeaders::Base(known.newest(found.base))
                }
                (ReplicaHeaders::None | ReplicaHeaders::Damaged, Some(found)) => {
                    ReplicaHeaders::Base(found.base)
                }
                (ReplicaHeaders::None, None) if bytes.iter().any(|byte| *byte != 0) => {
                    ReplicaHeaders::Damaged
                }
                (known, None) => known,
            };
        }
        headers
    }
}

impl Generations {
    /// Makes the generations of a granted block, of which `allocated` objects were allocated before.
    pub fn unread(allocated: u32, turns: u16) -> Generations {
        let lives = vec![UNKNOWN; allocated as usize];
        let state = GenerationState::Unread { not_before: 0 };
        Generations { state, base: 0, turns, lives, wrapped: false, is_told: false, is_wide: false }
    }

    /// Whether objects may be allocated.
    pub fn is_known(&self) -> bool {
        self.state == GenerationState::Known
    }

    /// Whether the header was read, and says that no session may use the block before a later epoch
    /// than this.
    pub fn waits(&self, epoch: u64) -> bool {
        matches!(self.state, GenerationState::Unread { not_before } if not_before > epoch)
    }

    /// Whether the header is yet to be read.
    pub fn is_open(&self) -> bool {
        matches!(self.state, GenerationState::Unread { .. })
    }

    /// Forgets all: the headers of the block and of its objects are to be read again.
    pub fn forget(&mut self) {
        self.lives.fill(UNKNOWN);
        self.state = GenerationState::Unread { not_before: 0 };
    }

    /// Whether the header is to be read in this epoch.
    pub fn is_unread(&self, epoch: u64) -> bool {
        matches!(self.state, GenerationState::Unread { not_before } if not_before <= epoch)
    }

    /// Takes the headers, which were read in this epoch.
    pub fn read(&mut self, headers: &ReplicaHeaders, epoch: u64) {
        if !self.is_open() {
            return;
        }
        self.is_told = false;
        self.state = match headers {
            ReplicaHeaders::None => GenerationState::Known,
            ReplicaHeaders::Damaged => GenerationState::Lost,
            ReplicaHeaders::Base(base) if base.not_before > epoch => {
                GenerationState::Unread { not_before: base.not_before }
            }
            ReplicaHeaders::Base(base) => {
                // Emptied without a base: it has waited since.
                let has_waited = base.not_before > 0;
                // A base that was written for this number of turns is a multiple already.
                self.base = base.generation.next_multiple_of(self.turns) % Slot::GENERATIONS;
                self.wrapped = base.is_wrapped && !has_waited;
                self.is_wide = self.wrapped;
                GenerationState::Known
            }
        };
    }

    /// Returns the base for the block's header.
    pub fn base(&self) -> GenerationBase {
        let not_before = match self.state {
            GenerationState::Unread { not_before } => not_before,
            GenerationState::Lost | GenerationState::Known => 0,
        };
        GenerationBase { generation: self.base, is_wrapped: self.wrapped, not_before }
    }

    /// Adds an object that is allocated for the first time.
    pub fn push(&mut self) {
        self.lives.push(0);
    }

    /// Whether the lives of an object have to be read.
    pub fn is_unknown(&self, object: u32) -> bool {
        self.lives.get(object as usize) == Some(&UNKNOWN)
    }

    /// Returns the generation for an object's next life, and whether the header has to be written before.
    pub fn next(&mut self, object: u32) -> (u16, bool) {
        let lives = &mut self.lives[object as usize];
        debug_assert!(*lives != UNKNOWN, "its header was read");
        let generation = (self.base + *lives % Slot::GENERATIONS) % Slot::GENERATIONS;
        if removed(Mutant::GenerationStays) || removed(Mutant::ReusedAtOnce) {
            return (generation, false);
        }
        *lives += self.turns;
        if *lives > MOST - self.turns {
            *lives -= 64 * Slot::GENERATIONS;
            self.is_wide = true;
        }
        let is_first = *lives > TOLD / 2 && !self.wrapped;
        let is_second = *lives > TOLD && !self.is_told;
        self.wrapped |= is_first || is_second;
        self.is_told |= is_second;
        (generation, is_first || is_second)
    }

    /// Takes the generations in the headers of an object's replicas that name the object. They differ if a client
    /// died that had written speculatively, or within a WRITE. The next generation is in none of them, so no reader
    /// ever takes what was left there for what is written next.
    pub fn learn(&mut self, object: u32, standing: impl Iterator<Item = Option<u16>>) {
        debug_assert!(!self.is_open(), "the header comes first");
        let Some(lives) = self.lives.get_mut(object as usize) else { return };
        if self.wrapped && removed(Mutant::WrappedLivesStartAnew) {
            *lives = 0;
            return;
        }
        let is_born = |generation: &u16| generation.is_multiple_of(self.turns);
        let ahead = |generation: u16| {
            let next = generation + self.turns + Slot::GENERATIONS - self.base;
            let ahead = next % Slot::GENERATIONS;
            // Behind the base: of an earlier tenure, and not overwritten by zeros at its end.
            if ahead > TOLD && !self.wrapped { 0 } else { ahead }
        };
        let mut ahead = standing.flatten().filter(is_born).map(ahead);
        let Some(first) = ahead.next() else {
            *lives = 0;
            return;
        };
        let half = Slot::GENERATIONS / 2;
        let newer = |known: u16, found: u16| match self.wrapped {
            true if (found + Slot::GENERATIONS - known) % Slot::GENERATIONS < half => found,
            true => known,
            false => known.max(found),
        };
        *lives = ahead.fold(first, newer);
    }

    /// Ends the tenure in this epoch: no object of the block is in use, and soon no operation knows one.
    /// From now on all objects begin with another base, or the block is to wait.
    pub fn end_tenure(&mut self, epoch: u64) {
        let latest = self.lives.iter().filter(|lives| **lives != UNKNOWN).max();
        let latest = latest.copied().unwrap_or(0);
        if self.has_base() {
            let skipped = if removed(Mutant::BasesStay) { 0 } else { latest };
            self.base = (self.base + skipped % Slot::GENERATIONS) % Slot::GENERATIONS;
            self.wrapped = false;
        } else {
            self.wrapped = true;
            // A session may be an epoch behind.
            let waits = if removed(Mutant::EmptiedDoesNotWait) { 0 } else { WINDOW_EPOCHS + 1 };
            self.state = GenerationState::Unread { not_before: epoch + waits };
        }
        (self.is_wide, self.is_told) = (false, false);
        self.lives.fill(0);
    }

    /// Whether the block can go back to the pool without a wait.
    pub fn has_base(&self) -> bool {
        self.is_known() && !self.lives.contains(&UNKNOWN) && !self.is_apart()
    }

    /// Whether the objects are too far apart for a base, or may be.
    pub fn is_apart(&self) -> bool {
        let mut used = self.lives.iter().filter(|lives| **lives > 0 && **lives != UNKNOWN);
        let Some(first) = used.next() else { return self.is_wide };
        let (least, most) =
            used.fold((*first, *first), |(least, most), n| (least.min(*n), most.max(*n)));
        self.is_wide || most - least > SPREAD && !removed(Mutant::LaggardsForgotten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(base: GenerationBase, allocated: u32) -> Generations {
        let mut generations = Generations::unread(allocated, 1);
        generations.read(&ReplicaHeaders::Base(base), 0);
        generations
    }

    fn fresh() -> Generations {
        let mut generations = Generations::unread(0, 1);
        generations.read(&ReplicaHeaders::None, 0);
        generations
    }

    fn lives(generations: &mut Generations, object: u32, count: u16) {
        for _ in 0..count {
            generations.next(object);
        }
    }

    #[test]
    fn an_object_gets_one_generation_after_the_other() {
        let mut generations = fresh();
        generations.push();
        for life in 0..2000 {
            let is_told = life == TOLD / 2 || life == TOLD;
            assert_eq!(generations.next(0), (life % Slot::GENERATIONS, is_told), "life {life}");
        }
        assert!(generations.base().is_wrapped);
    }

    #[test]
    fn a_life_of_an_ec_oriented_object_takes_four() {
        let mut generations = Generations::unread(1, 4);
        let base = GenerationBase { generation: 8, is_wrapped: false, not_before: 0 };
        generations.read(&ReplicaHeaders::Base(base), 0);
        generations.learn(0, [Some(12), Some(9)].into_iter());
        assert_eq!([0; 3].map(|object| generations.next(object).0), [16, 20, 24]);
        generations.end_tenure(7);
        assert_eq!(generations.base().generation, 28);
    }

    #[test]
    fn the_next_tenure_begins_behind_the_latest_object() {
        let mut generations = fresh();
        (0..3).for_each(|_| generations.push());
        lives(&mut generations, 1, SPREAD);
        generations.next(2);
        assert!(generations.has_base(), "they are {} apart", SPREAD - 1);
        generations.end_tenure(7);
        let base = GenerationBase { generation: SPREAD, is_wrapped: false, not_before: 0 };
        assert_eq!(generations.base(), base);
        assert_eq!([0, 1, 2].map(|object| generations.next(object).0), [SPREAD; 3]);
    }

    #[test]
    fn who_is_far_behind_makes_the_block_wait() {
        let mut generations = fresh();
        (0..2).for_each(|_| generations.push());
        generations.next(0);
        lives(&mut generations, 1, SPREAD + 2);
        assert!(!generations.has_base());
        generations.end_tenure(7);
        let base = generations.base();
        assert_eq!((base.is_wrapped, base.not_before), (true, 7 + WINDOW_EPOCHS + 1));
        assert!(!generations.is_known() && !generations.is_unread(base.not_before - 1));
        assert!(generations.is_unread(base.not_before));
        // The next owner.
        let mut next = known(base, 0);
        assert!(!next.is_known() && next.waits(base.not_before - 1));
        next.read(&ReplicaHeaders::Base(base), base.not_before);
        assert!(next.is_known() && next.has_base() && !next.base().is_wrapped);
    }

    #[test]
    fn lives_are_learnt_from_what_stands_there() {
        let base = GenerationBase { generation: 500, is_wrapped: false, not_before: 0 };
        let mut generations = known(base, 5);
        assert!(generations.is_unknown(0) && !generations.has_base());
        generations.learn(0, [Some(500), Some(501)].into_iter());
        generations.learn(1, [Some(1), Some(0), None].into_iter());
        generations.learn(2, [None, None].into_iter());
        generations.learn(3, [Some(499)].into_iter());
        assert_eq!([0, 1, 2, 3].map(|object| generations.next(object).0), [502, 2, 500, 500]);
        assert!(generations.is_unknown(4));
        generations.learn(4, [Some(510)].into_iter());
        assert!(generations.has_base());

        // A block that could not be emptied: what stands there counts.
        generations.forget();
        generations.read(&ReplicaHeaders::Base(base), 0);
        assert!(generations.is_unknown(4) && !generations.has_base() && !generations.is_apart());
        // Late headers change nothing.
        generations.read(&ReplicaHeaders::Damaged, 0);
        assert!(generations.is_known());

        let wrapped = GenerationBase { is_wrapped: true, ..base };
        for (standing, next) in [([499, 498], 500), ([480, 481], 482), ([40, 39], 41)] {
            let mut generations = known(wrapped, 1);
            generations.learn(0, standing.map(Some).into_iter());
            assert_eq!(generations.next(0).0, next, "of {standing:?}");
            assert!(!generations.has_base(), "it may have had 512 lives more");
        }
    }

    #[test]
    fn headers_count_if_they_are_whole_and_the_newest_base_does() {
        let header = |generation, is_wrapped| {
            let class = crate::layout::SizeClass::from_code(3).unwrap();
            let base = GenerationBase { generation, is_wrapped, not_before: 0 };
            let owner = crate::verbs::ClientId(7);
            BlockHeader { class, owner, first: 0, fresh: 0, sealed: true, base }.encode()
        };
        let zeros = [0; 64];
        let other = [7; 64];
        let of =
            |replicas: &[&[u8; 64]]| ReplicaHeaders::of(replicas.iter().map(|bytes| &bytes[..]));
        assert!(matches!(of(&[&zeros, &zeros]), ReplicaHeaders::None));
        assert!(matches!(of(&[&zeros, &other]), ReplicaHeaders::Damaged));
        for replicas in
            [[&header(511, false), &header(3, true)], [&header(3, true), &header(511, false)]]
        {
            let ReplicaHeaders::Base(base) = of(&replicas) else { panic!("both are whole") };
            assert_eq!((base.generation, base.is_wrapped), (3, true));
        }
        assert!(matches!(of(&[&other, &header(1, false)]), ReplicaHeaders::Base(_)));
    }
}
