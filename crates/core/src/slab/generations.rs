//! The generations of a block's objects: each object's next one, and the first one under the next owner.
//!
//! *No slot word comes back within a window of epochs* ([`WINDOW_EPOCHS`]), whichever sessions own the block in that
//! time. The *lives* of an object, one for each allocation, have consecutive generations, modulo 512, and each life
//! takes at least one epoch. So within one *tenure*, the time that a block spends in one size class, a word comes back
//! after 511 epochs at the earliest. A tenure ends when the block is wholly free. All objects of the next tenure begin
//! with the same generation, the *base*, which the block's header contains:
//!
//! * The base follows the newest generation of all objects. So objects skip generations, but each skipped generation
//!   has taken an epoch, too: that of a life of the object with the most lives.
//! * An object that is more than [`SPREAD`] lives behind would get its own last slot words again too early. If there is
//!   one, there is no base, and the block waits a whole window before any session uses it again.
//!
//! The header tells the base, or the wait, before the first zero is written, so the owner can die at any moment. The
//! next owner counts lives from the base on, by the generations in the objects' headers. These cannot tell 3 lives from
//! 515. So before an object has more than [`TOLD`] lives the header says that the block is *wrapped*, and such a block
//! has no base when its tenure ends, unless the owner has counted all lives. The header that says so is written twice,
//! the first time when an object has had half as many lives. An older header, which does not say so, is possibly still
//! on its way at the first time; at the second time it has arrived, or never will.
//!
//! `spec/Generations.tla` is a model of all this.

use alloc::vec;
use alloc::vec::Vec;

use crate::layout::{BlockHeader, GenerationBase, Slot};
use crate::mutant::{Mutant, removed};

/// The number of epochs, after a word has left all slots, in which no session writes the word again.
pub const WINDOW_EPOCHS: u64 = (Slot::GENERATIONS - SPREAD - 1) as u64;
/// The largest difference in lives between a block's objects that lets the block's tenure end without a wait.
const SPREAD: u16 = 128;
/// The largest number of lives that an object's header can tell: after more lives, a generation that is behind the base
/// looks as if it were ahead of it.
const TOLD: u16 = Slot::GENERATIONS - 1 - SPREAD;
/// The largest count of lives. For an object with more, a smaller count that gives the same generation is noted.
const MOST: u16 = u16::MAX - 1;
/// The count that stands for unknown lives: the object's header has to be read.
const UNKNOWN: u16 = u16::MAX;

/// The knowledge of a block's owner about the start of the generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GenerationState {
    /// Before objects are allocated, the block's header has to be read, and not earlier than in this epoch.
    Unread { not_before: u64 },
    /// No header tells the base. Nothing can be allocated until the block has been emptied.
    Lost,
    /// The base is known, and objects can be allocated.
    Known,
}

/// The generations of the objects of one block.
#[derive(Debug)]
pub(crate) struct Generations {
    state: GenerationState,
    base: u16,
    /// The base if the block has no header: the one that the pool has noted. `None` if the block is mixed, or has a
    /// header.
    noted: Option<u16>,
    /// The number of generations of one life: the turns of an EC-oriented object, otherwise 1.
    turns: u16,
    /// The lives since the base of every object that was ever allocated, or [`UNKNOWN`].
    lives: Vec<u16>,
    /// Whether the header says, or is about to say, that generations do not tell all lives.
    wrapped: bool,
    /// Whether the header has been written, or is about to be written, with `wrapped` for the second time.
    is_told: bool,
    /// Whether the owner does not know by how many lives the objects differ.
    is_wide: bool,
}

/// The result of reading the headers of a block on all its replicas.
pub(crate) enum ReplicaHeaders {
    /// No replica has a header, because no session has used the block since the pool had it.
    None,
    /// No replica has a whole header.
    Damaged,
    /// The newest base in the headers.
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

/// Returns the epoch in which the window ends for words that were in use in the newest epoch that a session knows.
fn window_end(newest: u64) -> u64 {
    // That epoch can be one behind the newest epoch of the cluster.
    newest + if removed(Mutant::EmptiedDoesNotWait) { 0 } else { WINDOW_EPOCHS + 1 }
}

impl Generations {
    /// Returns the generations of a granted block whose first `allocated` objects were allocated before.
    /// `noted` is the base that holds if the block has no header.
    pub fn unread(allocated: u32, turns: u16, noted: Option<u16>) -> Generations {
        Generations {
            state: GenerationState::Unread { not_before: 0 },
            base: 0,
            noted,
            turns,
            lives: vec![UNKNOWN; allocated as usize],
            wrapped: false,
            is_told: false,
            is_wide: false,
        }
    }

    /// Returns the base for the next owner, if the block has no header. `None` if that owner has to wait a window.
    pub fn base_without_header(&self) -> Option<u16> {
        if self.is_known() { Some(self.base) } else { self.noted }
    }

    /// Whether objects can be allocated.
    pub fn is_known(&self) -> bool {
        self.state == GenerationState::Known
    }

    /// Whether the header was read, and says that no session is allowed to use the block in this epoch yet.
    pub fn waits(&self, epoch: u64) -> bool {
        matches!(self.state, GenerationState::Unread { not_before } if not_before > epoch)
    }

    /// Whether the block's header has yet to be read.
    pub fn is_open(&self) -> bool {
        matches!(self.state, GenerationState::Unread { .. })
    }

    /// Whether the block's headers were read and none of them tells the base.
    pub fn is_lost(&self) -> bool {
        self.state == GenerationState::Lost
    }

    /// Whether the block can be used as it is, and would have to wait a whole window if it was emptied.
    pub fn is_better_kept(&self) -> bool {
        self.is_known() && self.is_apart()
    }

    /// Forgets everything: the headers of the block and of its objects have to be read again.
    pub fn forget(&mut self) {
        self.lives.fill(UNKNOWN);
        self.state = GenerationState::Unread { not_before: 0 };
    }

    /// Whether the block's header is to be read in this epoch.
    pub fn is_unread(&self, epoch: u64) -> bool {
        matches!(self.state, GenerationState::Unread { not_before } if not_before <= epoch)
    }

    /// Records what the block's headers say. They were read in the epoch `epoch`; `newest` is the newest one that the
    /// session knows.
    pub fn read(&mut self, headers: &ReplicaHeaders, epoch: u64, newest: u64) {
        let GenerationState::Unread { not_before } = self.state else { return };
        self.is_told = false;
        self.state = match headers {
            ReplicaHeaders::None => match self.noted {
                Some(noted) => {
                    self.base = noted.next_multiple_of(self.turns) % Slot::GENERATIONS;
                    GenerationState::Known
                }
                None if not_before > epoch => GenerationState::Unread { not_before },
                None if not_before > 0 => GenerationState::Known,
                None if removed(Mutant::MixedDoesNotWait) => GenerationState::Known,
                None => GenerationState::Unread { not_before: window_end(newest) },
            },
            ReplicaHeaders::Damaged => GenerationState::Lost,
            ReplicaHeaders::Base(base) if base.not_before > epoch => {
                GenerationState::Unread { not_before: base.not_before }
            }
            ReplicaHeaders::Base(base) => {
                // The block was emptied without a base, and its owner has waited since.
                let has_waited = base.not_before > 0;
                // A base that was written for objects with this number of turns is a multiple of it already.
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

    /// Whether an object's header has to be read, because the object's lives are unknown.
    pub fn is_unknown(&self, object: u32) -> bool {
        self.lives.get(object as usize) == Some(&UNKNOWN)
    }

    /// Returns the generation for an object's next life, and whether the block's header has to be written before the
    /// object.
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

    /// Records the generations that the headers of an object's replicas show; `None` for a header that does not name
    /// the object. The generations differ if a client died during a WRITE, or after a speculative WRITE. The next
    /// generation differs from all of them, so no reader takes what the dead client left for what is written next.
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
            // The generation is behind the base: it is left from an earlier tenure, and was not overwritten by zeros.
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

    /// Ends the tenure in this epoch: no object of the block is in use, and soon no running operation will know an
    /// object of it. From now on all objects begin with another base, or the block has to wait.
    pub fn end_tenure(&mut self, epoch: u64) {
        let latest = self.lives.iter().filter(|lives| **lives != UNKNOWN).max();
        let latest = latest.copied().unwrap_or(0);
        if self.has_base() {
            let skipped = if removed(Mutant::BasesStay) { 0 } else { latest };
            self.base = (self.base + skipped % Slot::GENERATIONS) % Slot::GENERATIONS;
            self.wrapped = false;
        } else {
            self.wrapped = true;
            self.state = GenerationState::Unread { not_before: window_end(epoch) };
        }
        (self.is_wide, self.is_told) = (false, false);
        self.lives.fill(0);
    }

    /// Whether the block can go back to the pool without a wait.
    pub fn has_base(&self) -> bool {
        self.is_known() && !self.lives.contains(&UNKNOWN) && !self.is_apart()
    }

    /// Whether the objects differ, or possibly differ, by too many lives for one base.
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
        let mut generations = Generations::unread(allocated, 1, Some(0));
        generations.read(&ReplicaHeaders::Base(base), 0, 0);
        generations
    }

    fn fresh() -> Generations {
        let mut generations = Generations::unread(0, 1, Some(0));
        generations.read(&ReplicaHeaders::None, 0, 0);
        generations
    }

    fn lives(generations: &mut Generations, object: u32, count: u16) {
        for _ in 0..count {
            generations.next(object);
        }
    }

    /// Two operations can read the headers of one block at the same time.
    #[test]
    fn a_mixed_block_waits_however_often_its_missing_header_is_read() {
        let mut mixed = Generations::unread(0, 1, None);
        let ready = 7 + WINDOW_EPOCHS + 1;
        for epoch in [7, 7, ready - 1] {
            mixed.read(&ReplicaHeaders::None, epoch, 7);
            assert!(mixed.waits(ready - 1) && !mixed.is_known(), "in epoch {epoch}");
            assert_eq!(mixed.base_without_header(), None, "the next owner waits anew");
        }
        mixed.read(&ReplicaHeaders::None, ready, ready);
        assert!(mixed.is_known() && mixed.has_base());
        assert_eq!(mixed.base_without_header(), Some(0));

        let mut based = Generations::unread(0, 4, Some(510));
        based.read(&ReplicaHeaders::None, 7, 7);
        assert_eq!(based.base_without_header(), Some(0), "a life takes four generations");
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
        let mut generations = Generations::unread(1, 4, Some(0));
        let base = GenerationBase { generation: 8, is_wrapped: false, not_before: 0 };
        generations.read(&ReplicaHeaders::Base(base), 0, 0);
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
        // The block's next owner has to wait until the same epoch.
        let mut next = known(base, 0);
        assert!(!next.is_known() && next.waits(base.not_before - 1));
        next.read(&ReplicaHeaders::Base(base), base.not_before, base.not_before);
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

        // If a block could not be emptied, the generations in the objects' headers are read again.
        generations.forget();
        generations.read(&ReplicaHeaders::Base(base), 0, 0);
        assert!(generations.is_unknown(4) && !generations.has_base() && !generations.is_apart());
        // Headers that are read after the base is known change nothing.
        generations.read(&ReplicaHeaders::Damaged, 0, 0);
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
