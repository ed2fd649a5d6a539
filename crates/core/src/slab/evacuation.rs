//! The choice of blocks whose pairs are moved into other blocks of their slabs, so that memory becomes free for other
//! slabs ([`store`](crate::store)).

use alloc::vec::Vec;

use super::{Block, SlabKind, Slabs};
use crate::layout::Address;

/// A block whose pairs are to be moved into other blocks of its slab.
#[derive(Debug)]
pub(crate) struct BlockEvacuation {
    pub address: Address,
    pub bytes: u64,
    pub kind: SlabKind,
    /// Objects that are in use, as far as the session knows.
    pub objects: Vec<Address>,
    /// The number of all objects that are in use.
    in_use: u32,
}

/// The result of the search for a block to evacuate.
#[derive(Debug)]
pub(crate) enum EvacuationChoice {
    Block(BlockEvacuation),
    /// A slab soon has room for the pairs of one of its blocks.
    Waits,
    Nothing,
}

/// The number of objects of one slab that can be allocated.
struct SlabRoom {
    kind: SlabKind,
    now: u64,
    /// The number of objects that can be allocated now or soon.
    soon: u64,
}

impl Slabs {
    /// Begins to evacuate a block, for a slab that is short of memory: a block of a slab that is not short itself, with
    /// the same redundancy, if the other blocks of that slab have room for the block's pairs. Of these blocks, returns
    /// the one with the largest part of its objects free, and at most `limit` of the objects in use. The block is not
    /// used before [`Slabs::end_ask`]. A block with objects that were seen set free, and that still have to wait, is
    /// not chosen, because its bitmap is not read again before they have waited. `has_passed` is that of
    /// [`Epochs`](crate::host::Epochs).
    pub(crate) fn begin_evacuation(
        &mut self,
        short: SlabKind,
        limit: usize,
        is_frozen: impl Fn(Address) -> bool,
        has_passed: impl Fn(u64) -> bool,
    ) -> EvacuationChoice {
        let rooms = self.rooms(&is_frozen, &has_passed);
        let mut waits = false;
        let mut best: Option<(u64, u64, usize)> = None;
        for (at, block) in self.aside.iter().enumerate() {
            let has_to_wait = block.bitmap.seen().is_some_and(|seen| !has_passed(seen.mark));
            if block.evacuated_for == Some(short) {
                waits |= has_to_wait;
                continue;
            }
            let is_due = block.evacuated_for.is_none() && !block.is_free();
            let is_short = block.kind == short || self.is_asking(block.kind);
            let serves = block.kind.redundancy == short.redundancy && !is_short;
            if !is_due || !serves || !block.may_evacuate() || is_frozen(block.address) {
                continue;
            }
            let Some(room) = rooms.iter().find(|room| room.kind == block.kind) else { continue };
            let in_use = u64::from(block.in_use());
            // The block's own free objects are no room for its pairs.
            let has_place = room.now >= in_use + u64::from(block.free_now(&has_passed));
            let soon = room.soon >= in_use + u64::from(block.prospect());
            if has_to_wait || !has_place {
                waits |= soon;
                continue;
            }
            let objects = u64::from(block.shape.objects);
            let permille = (objects - in_use) * 1000 / objects;
            best = best.max(Some((permille, block.bytes, at)));
        }
        let Some((.., at)) = best else {
            return if waits { EvacuationChoice::Waits } else { EvacuationChoice::Nothing };
        };
        let block = &mut self.aside[at];
        block.evacuated_for = Some(short);
        let Block { address, bytes, kind, .. } = *block;
        let mut objects = block.objects_in_use();
        let in_use = objects.len() as u32;
        objects.truncate(limit);
        EvacuationChoice::Block(BlockEvacuation { address, bytes, kind, objects, in_use })
    }

    /// Records the numbers of pairs that an evacuation has moved, and of objects that stayed. If pairs were moved, but
    /// not all objects of the block were examined, the block can be chosen again.
    pub(crate) fn note_evacuated(&mut self, evacuation: &BlockEvacuation, moved: u32, stayed: u32) {
        let Some(block) = self.aside_at(evacuation.address) else { return };
        if moved + stayed == evacuation.in_use {
            block.stayed = stayed;
        } else if moved > 0 {
            block.evacuated_for = None;
        }
    }

    fn is_asking(&self, kind: SlabKind) -> bool {
        self.slabs.iter().any(|slab| slab.asking && slab.kind == kind)
    }

    /// Returns the blocks that were evacuated, and those that can be: for one of the slabs that are short of memory,
    /// or, if none is, for another slab later.
    pub(super) fn evacuable(&self) -> Vec<Address> {
        let short: Vec<SlabKind> =
            self.slabs.iter().filter(|slab| slab.asking).map(|slab| slab.kind).collect();
        let serves = |kind: SlabKind| {
            short.is_empty()
                || !short.contains(&kind) && short.iter().any(|s| s.redundancy == kind.redundancy)
        };
        let rooms = self.rooms(|_| false, |_| true);
        let has_place = |block: &Block| {
            let room = rooms.iter().find(|room| room.kind == block.kind);
            // The room includes the block's own free objects.
            room.is_some_and(|room| room.soon >= block.shape.objects.into())
        };
        let is_one = |block: &&Block| {
            let can_be = serves(block.kind) && block.may_evacuate() && has_place(block);
            block.evacuated_for.is_some() || can_be
        };
        self.aside.iter().filter(is_one).map(|block| block.address).collect()
    }

    /// Returns the room of each slab in blocks that other slabs do not need, and that the slab can use.
    fn rooms(
        &self,
        is_frozen: impl Fn(Address) -> bool,
        has_passed: impl Fn(u64) -> bool,
    ) -> Vec<SlabRoom> {
        let mut rooms: Vec<SlabRoom> = Vec::new();
        let is_usable = |block: &&Block| {
            block.is_worth_reclaiming(block.kind, u32::MAX) && !is_frozen(block.address)
        };
        for block in self.aside.iter().filter(is_usable) {
            let (now, soon) = (block.free_now(&has_passed).into(), block.prospect().into());
            match rooms.iter_mut().find(|room| room.kind == block.kind) {
                Some(room) => {
                    room.now += now;
                    room.soon += soon;
                }
                None => rooms.push(SlabRoom { kind: block.kind, now, soon }),
            }
        }
        rooms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Redundancy;
    use crate::layout::SizeClass;
    use crate::slab::{BlockGrant, ReplicaHeaders, SeenFreeBits};
    use crate::verbs::ClientId;

    const BLOCK: u64 = 4096;

    fn kind(bytes: u64) -> SlabKind {
        let class = SizeClass::fitting(bytes).unwrap();
        SlabKind { redundancy: Redundancy::Replicated, class }
    }

    /// Adds block `n`, all objects of which were allocated. The bits of the first `free` objects were seen at mark 1.
    fn add(slabs: &mut Slabs, n: u64, kind: SlabKind, free: u32) -> u32 {
        let SlabKind { class, redundancy } = kind;
        let objects = crate::layout::BlockShape::new(BLOCK, class).unwrap().objects;
        let grant = BlockGrant {
            address: Address::new(n * BLOCK),
            bytes: BLOCK,
            base: Some(0),
            redundancy,
            class,
            first: objects,
            marked: Some(1),
            pool_is_empty: false,
        };
        assert!(slabs.add_block(kind, grant));
        let block = slabs.find(grant.address).unwrap();
        block.generations.read(&ReplicaHeaders::None, 0, 0);
        block.bitmap.note_look(1, 1);
        let words: Vec<(u32, u64)> = (0..free)
            .map(|object| block.shape.offset(object) / crate::layout::UNIT_BYTES)
            .map(|unit| ((unit / 64) as u32, 1 << (unit % 64)))
            .collect();
        let (found, _) = block.marked(&words);
        assert_eq!(found.len(), free as usize);
        if free > 0 {
            block.bitmap.note_seen(SeenFreeBits {
                primary_since: 1,
                mark: 1,
                words,
                objects: free,
            });
        }
        objects
    }

    fn slabs() -> Slabs {
        Slabs::new(ClientId(7))
    }

    fn choose(slabs: &mut Slabs, short: SlabKind) -> EvacuationChoice {
        slabs.begin_evacuation(short, usize::MAX, |_| false, |_| true)
    }

    /// Returns the number of the chosen block, and the number of its objects in use.
    fn chosen(choice: &EvacuationChoice) -> Option<(u64, usize)> {
        match choice {
            EvacuationChoice::Block(block) => {
                Some((block.address.bytes() / BLOCK, block.objects.len()))
            }
            _ => None,
        }
    }

    #[test]
    fn the_sparsest_block_is_chosen_if_the_others_have_room_for_its_pairs() {
        let (small, large) = (kind(256), kind(1024));
        let mut slabs = slabs();
        let all = add(&mut slabs, 1, small, 9);
        assert_eq!(chosen(&choose(&mut slabs, large)), None, "there is no other block");
        add(&mut slabs, 2, small, 12);
        add(&mut slabs, 3, small, 0);
        assert_eq!(chosen(&choose(&mut slabs, large)), Some((2, all as usize - 12)));
        assert_eq!(chosen(&choose(&mut slabs, large)), None, "block 3 has no room");
        slabs.end_ask(large);
        assert_eq!(chosen(&choose(&mut slabs, large)), Some((2, all as usize - 12)));
    }

    #[test]
    fn nothing_is_gained_from_full_blocks_from_the_short_slab_and_from_other_redundancies() {
        let (small, large) = (kind(256), kind(1024));
        let other = SlabKind { redundancy: Redundancy::None, ..small };
        let mut slabs = slabs();
        let all = add(&mut slabs, 1, small, 3);
        add(&mut slabs, 2, small, all - 1);
        add(&mut slabs, 3, other, all / 2 + 1);
        add(&mut slabs, 4, other, all / 2 + 1);
        assert_eq!(chosen(&choose(&mut slabs, small)), None, "the slab is short itself");
        assert!(slabs.begin_ask(small));
        assert_eq!(chosen(&choose(&mut slabs, large)), None, "so it is while it asks");
        slabs.end_ask(small);
        assert_eq!(chosen(&choose(&mut slabs, large)), Some((2, 1)));
        assert_eq!(chosen(&choose(&mut slabs, large)), None, "block 1 is full");
        let lost = SlabKind { redundancy: Redundancy::None, ..large };
        assert!(chosen(&choose(&mut slabs, lost)).is_some_and(|(block, _)| block > 2));
    }

    #[test]
    fn room_whose_epochs_have_not_passed_is_waited_for() {
        let (small, large) = (kind(256), kind(1024));
        let mut slabs = slabs();
        let all = add(&mut slabs, 1, small, 10);
        add(&mut slabs, 2, small, 10);
        let choice = slabs.begin_evacuation(large, usize::MAX, |_| false, |mark| mark < 1);
        assert!(matches!(choice, EvacuationChoice::Waits), "{choice:?}");
        let is_frozen = |block: Address| block.bytes() == BLOCK;
        let choice = slabs.begin_evacuation(large, usize::MAX, is_frozen, |_| true);
        assert!(matches!(choice, EvacuationChoice::Nothing), "{choice:?}");
        assert_eq!(chosen(&choose(&mut slabs, large)).map(|(_, n)| n), Some(all as usize - 10));
    }

    #[test]
    fn a_block_is_chosen_again_until_all_its_objects_were_examined() {
        let (small, large) = (kind(256), kind(1024));
        let mut slabs = slabs();
        add(&mut slabs, 1, small, 9);
        add(&mut slabs, 2, small, 12);
        let choice = slabs.begin_evacuation(large, 2, |_| false, |_| true);
        assert_eq!(chosen(&choice), Some((2, 2)));
        let EvacuationChoice::Block(part) = choice else { unreachable!() };
        slabs.note_evacuated(&part, 2, 0);
        let choice = choose(&mut slabs, large);
        let EvacuationChoice::Block(whole) = choice else { panic!("{choice:?}") };
        assert_eq!(whole.address, part.address);
        // Nothing has left the block, and nothing in it will be different next time.
        slabs.note_evacuated(&whole, 0, whole.in_use);
        slabs.end_ask(large);
        assert_eq!(chosen(&choose(&mut slabs, large)).map(|(block, _)| block), Some(1));
    }

    #[test]
    fn what_can_be_evacuated_is_offered_to_nobody_while_memory_is_short() {
        let (small, large) = (kind(256), kind(1024));
        let mut slabs = slabs();
        let all = add(&mut slabs, 1, small, 3);
        add(&mut slabs, 2, small, all - 1);
        assert_eq!(slabs.offer().0.len(), 2, "memory is not short");
        slabs.take_back(&[]);
        assert!(slabs.begin_ask(large));
        let offered: Vec<Address> = slabs.offer().0.iter().map(|rest| rest.block).collect();
        assert_eq!(offered, [Address::new(BLOCK)], "hardly anything is free in block 1");
    }
}
