// Promise REC-9

use alloc::vec;

use super::*;
use crate::data::Redundancy;
use crate::layout::{GenerationBase, SizeClass, UNIT_BYTES};

const BLOCK: u64 = 4096;
/// A subtable, and a function that tells whether a block lies beside it.
type Best = (u32, fn(Address) -> bool);
/// No preference for any block.
const NOWHERE: Option<Best> = None;

fn grant(n: u64, first: u32) -> BlockGrant {
    let address = Address::new(n * BLOCK);
    let marked = Some(1);
    let redundancy = Redundancy::Replicated;
    let bytes = BLOCK;
    let base = Some(0);
    BlockGrant {
        address,
        bytes,
        base,
        redundancy,
        class: class(),
        first,
        marked,
        pool_is_empty: false,
    }
}

fn kind() -> SlabKind {
    SlabKind { redundancy: Redundancy::Replicated, class: class() }
}

fn class() -> SizeClass {
    SizeClass::fitting(1024).unwrap()
}

/// Adds a block to the slabs. Its header was read, and no session has used it yet.
fn add(slabs: &mut Slabs, grant: BlockGrant) {
    assert!(slabs.add_block(kind(), grant));
    slabs.find(grant.address).expect("it was added").generations.read(&ReplicaHeaders::None, 0, 0);
}

fn block_shape() -> BlockShape {
    BlockShape::new(BLOCK, class()).unwrap()
}

/// Returns an identity that the header of an object of block 1 shows.
fn standing(object: u32, generation: u16) -> Option<Identity> {
    let address = Address::new(BLOCK + block_shape().offset(object));
    Some(Identity::new(address, generation))
}

/// Lets enough time pass for objects that were given back to become free.
fn pass(slabs: &mut Slabs) {
    for block in slabs.blocks() {
        (0..2).for_each(|_| block.reusable.take_returned(|_| true, || 0));
    }
}

fn take(slabs: &mut Slabs) -> Option<Allocation> {
    slabs.allocate(kind(), u32::MAX, |_| false, NOWHERE)
}

#[test]
fn objects_come_from_one_block_after_the_other() {
    let mut slabs = Slabs::new(ClientId(7));
    assert_eq!(take(&mut slabs), None);
    add(&mut slabs, grant(1, 0));
    add(&mut slabs, grant(5, 1));
    let all: Vec<Allocation> = core::iter::from_fn(|| take(&mut slabs)).collect();
    assert_eq!(all.len(), 3 + 2);
    assert!(all.iter().all(|object| object.generation == 0));
    let base = GenerationBase::default();
    let header =
        BlockHeader { class: class(), owner: ClientId(7), first: 0, fresh: 0, sealed: false, base };
    assert_eq!(all[0].header, Some((Address::new(BLOCK), header)));
    let header = BlockHeader { first: 1, fresh: 1, ..header };
    assert_eq!(all[3].header, Some((Address::new(5 * BLOCK), header)));
}

#[test]
fn what_is_given_back_comes_again_in_a_later_epoch_with_the_next_generation() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 0));
    let first = take(&mut slabs).unwrap();
    slabs.give_back(&first, |_| false, || 7);
    let others: Vec<Allocation> = core::iter::from_fn(|| take(&mut slabs)).collect();
    assert!(others.iter().all(|other| other.address != first.address));
    let block = slabs.find(Address::new(BLOCK)).unwrap();
    assert_eq!(
        (block.free_objects(), block.reusable.returned_objects(), block.prospect()),
        (0, 1, 1)
    );
    assert!(!block.taken()[0] && block.taken()[1], "it belongs to nothing");
    block.reusable.take_returned(|_| false, || 8);
    assert_eq!(block.free_objects(), 0, "some may know what was there before");
    slabs.give_back(&others[0], |mark| mark == 7, || 9);
    let block = slabs.find(Address::new(BLOCK)).unwrap();
    assert_eq!(
        (block.free_objects(), block.reusable.returned_objects()),
        (1, 1),
        "the other waits for another"
    );
    let again = take(&mut slabs).unwrap();
    assert_eq!((again.address, again.generation), (first.address, 1));
}

#[test]
fn objects_are_used_again_in_turn() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 3));
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    (0..3).for_each(|object| block.learn(object, [None].into_iter()));
    block.reusable.reclaim(&[2]);
    block.reusable.reclaim(&[0, 1]);
    let at = |object: Allocation| block_shape().object_at(object.address.bytes() - BLOCK);
    assert_eq!([(); 3].map(|()| take(&mut slabs).and_then(at)), [2, 0, 1].map(Some));
}

#[test]
fn nothing_is_allocated_before_the_header_was_read() {
    let mut slabs = Slabs::new(ClientId(1));
    assert!(slabs.add_block(kind(), grant(1, 0)));
    assert_eq!(take(&mut slabs), None);
    let base = GenerationBase { generation: 511, is_wrapped: false, not_before: 9 };
    let block = slabs.find(Address::new(BLOCK)).unwrap();
    block.generations.read(&ReplicaHeaders::Base(base), 8, 8);
    assert!(!block.generations.is_unread(8) && block.generations.is_unread(9));
    assert_eq!(take(&mut slabs), None, "it was emptied, and waits");
    slabs.find(Address::new(BLOCK)).unwrap().generations.read(&ReplicaHeaders::Base(base), 9, 9);
    let object = take(&mut slabs).unwrap();
    assert_eq!(object.generation, 511);
    assert_eq!(object.header.unwrap().1.base, GenerationBase { not_before: 0, ..base });
}

#[test]
fn what_was_seen_counts_as_free_only_when_it_is_taken_in() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 3));
    assert_eq!(take(&mut slabs), None);
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    let unit = block.shape.offset(1) / UNIT_BYTES;
    // One of the two bits stands for no object of the block.
    let words = vec![(0, 1 << unit | 1)];
    assert_eq!(block.marked(&words), (vec![1], vec![(0, 1 << unit)]));
    block.bitmap.note_seen(SeenFreeBits { primary_since: 1, mark: 0, words, objects: 1 });
    assert_eq!((block.free_objects(), block.prospect()), (0, 1));
    assert!(block.is_worth_reclaiming(kind(), 3) && !block.is_worth_reclaiming(kind(), 2));
    let rest = slabs.offer().0.pop().expect("nothing of it was reclaimed");
    assert_eq!((rest.first, rest.marked), (3, Some(1)));
    slabs.take_back(&[]);
    slabs.aside_at(Address::new(BLOCK)).unwrap().reusable.reclaim(&[1]);
    assert_eq!(slabs.offer(), (vec![], vec![]), "nobody else would find the object");
    slabs.take_back(&[]);
    slabs.aside_at(Address::new(BLOCK)).unwrap().bitmap.unverify();
    assert_eq!(slabs.aside()[0].prospect(), 1, "in doubt nothing is seen");
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    block.bitmap.verify(Some(SeenFreeBits {
        primary_since: 1,
        mark: 0,
        words: vec![(0, 1)],
        objects: 1,
    }));
    block.bitmap.follow(1);
    assert_eq!((block.bitmap.verification(), block.prospect()), (&Verification::Verified, 2));
    block.bitmap.follow(2);
    assert_eq!(
        (block.bitmap.verification(), block.prospect()),
        (&Verification::Due, 1),
        "another bitmap"
    );
}

#[test]
fn a_block_is_lent_when_memory_is_short_and_used_again_however_little_is_free() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 0));
    let _first = take(&mut slabs).unwrap();
    add(&mut slabs, grant(2, 0));
    assert!(slabs.use_best(kind(), 1, |_| false, |block| block == Address::new(2 * BLOCK)));
    let lies_there = |block| block == Address::new(2 * BLOCK);
    let second = slabs.allocate(kind(), 1, |_| false, Some((0, lies_there))).unwrap();
    slabs.end(&second);
    slabs.use_one();
    let rest = slabs.offer().0.pop().expect("nothing is under way in the second block");
    assert_eq!((rest.block, rest.first, rest.marked), (Address::new(2 * BLOCK), 1, Some(1)));
    slabs.take_back(&[]);
    let again = slabs.allocate(kind(), 1, |_| false, Some((0, lies_there)));
    assert!(again.is_some(), "a lent block will always do");
}

/// A session that lacks objects of one kind offers to others all blocks of this kind except the best one, although it
/// could use them itself.
#[test]
fn who_is_short_offers_what_it_can_use_itself_but_for_the_best() {
    let mut slabs = Slabs::new(ClientId(1));
    for (block, seen) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
        add(&mut slabs, grant(block, 3));
        let words = vec![(0, u64::MAX)];
        let seen = SeenFreeBits { primary_since: 1, mark: 0, words, objects: seen };
        slabs.aside_at(Address::new(block * BLOCK)).unwrap().bitmap.note_seen(seen);
    }
    let offered = |slabs: &mut Slabs| {
        let (spare, surplus) = slabs.offer();
        slabs.take_back(&[]);
        assert_eq!(surplus, []);
        spare.iter().map(|rest| rest.block.bytes() / BLOCK).collect::<Vec<_>>()
    };
    assert!(slabs.begin_ask(kind()));
    assert_eq!(offered(&mut slabs), [3, 2]);
    slabs.end_ask(kind());
    assert_eq!(offered(&mut slabs), [4, 3, 2, 1]);
    // A session that is short of one kind does not offer its only block of that kind. It offers the block if it is
    // short of another kind only.
    slabs.begin_ask(kind());
    slabs.aside.retain(|block| block.address == Address::new(BLOCK));
    assert_eq!(offered(&mut slabs), []);
    slabs.end_ask(kind());
    slabs.begin_ask(SlabKind::of(Redundancy::Replicated, 1, 1).unwrap());
    assert_eq!(offered(&mut slabs), [1]);
}

#[test]
fn a_block_of_another_class_is_surplus_once_it_is_known_not_to_be_free() {
    let mut slabs = Slabs::new(ClientId(1));
    slabs.add_block(SlabKind::of(Redundancy::Replicated, 1, 1).unwrap(), grant(1, 3));
    assert_eq!((slabs.offer().0.len(), slabs.offer().1.len()), (1, 0), "nobody has looked");
    slabs.take_back(&[]);
    slabs.aside_at(Address::new(BLOCK)).unwrap().bitmap.note_look(1, 1);
    assert_eq!((slabs.offer().0.len(), slabs.offer().1.len()), (0, 1));
    slabs.take_back(&[]);
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    block.generations.read(&ReplicaHeaders::None, 0, 0);
    block.learn(2, [None].into_iter());
    block.reusable.reclaim(&[2]);
    let object = take(&mut slabs).expect("its class needs one");
    slabs.end(&object);
    slabs.set_aside();
    assert_eq!((slabs.offer().0.len(), slabs.offer().1.len()), (1, 0), "it is of use");
}

#[test]
fn a_header_goes_with_every_object_until_it_is_written() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 0));
    let first = take(&mut slabs).unwrap();
    let second = take(&mut slabs).unwrap();
    assert_eq!(first.header, second.header);
    assert!(second.header.is_some());
    slabs.header_written(&second);
    let third = take(&mut slabs).unwrap();
    assert_eq!(third.header, None);
    // The block is sealed, and is then taken into use again.
    slabs.set_aside();
    let block = Address::new(BLOCK);
    assert!(!slabs.aside()[0].may_seal(), "three writes are under way");
    [first, second].iter().for_each(|object| slabs.end(object));
    slabs.give_back(&third, |_| false, || 0);
    assert!(slabs.aside()[0].may_seal());
    let base = GenerationBase::default();
    let header =
        BlockHeader { class: class(), owner: ClientId(1), first: 3, fresh: 3, sealed: true, base };
    assert_eq!(slabs.sealed(block), Some(header), "all three were allocated once");
    slabs.end_seal(block, true);
    assert!(!slabs.aside()[0].may_seal());
    pass(&mut slabs);
    let (_, header) = take(&mut slabs).unwrap().header.unwrap();
    assert_eq!((header.first, header.fresh, header.sealed), (2, 3, false));
}

/// A header that an operation reports late as written is not the block's present header. If it was taken for the
/// present header, recovery would not walk the objects that only the present header covers.
#[test]
fn an_older_header_that_stands_everywhere_does_not_count() {
    let block = Address::new(BLOCK);
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 2));
    let older = take(&mut slabs).unwrap();
    assert_eq!(older.header.unwrap().1.first, 2);
    slabs.end(&older);
    slabs.set_aside();
    let found = slabs.aside_at(block).unwrap();
    found.learn(0, [standing(0, 189)].into_iter());
    found.reusable.reclaim(&[0]);
    let newer = take(&mut slabs).unwrap();
    assert_eq!(newer.header.unwrap().1.first, 0, "it is in use from its first object on");
    slabs.header_written(&older);
    assert!(
        slabs.find(block).unwrap().header.is_uncertain(),
        "one replica may know of the third object only"
    );
    slabs.header_written(&newer);
    assert!(slabs.find(block).unwrap().header.is_in_use());
    // After one more life of the object, the header says that the block is wrapped.
    slabs.give_back(&newer, |_| true, || 0);
    slabs.set_aside();
    pass(&mut slabs);
    let wrapped = take(&mut slabs).unwrap();
    assert!(wrapped.header.unwrap().1.base.is_wrapped);
    slabs.header_written(&newer);
    assert!(
        slabs.find(block).unwrap().header.is_uncertain(),
        "one replica may not say that it is wrapped"
    );
    slabs.header_written(&wrapped);
    assert!(slabs.find(block).unwrap().header.is_in_use());
}

#[test]
fn headers_of_one_use_are_the_same_though_objects_were_given_back() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 0));
    let first = take(&mut slabs).unwrap();
    let second = take(&mut slabs).unwrap();
    slabs.give_back(&second, |_| true, || 0);
    // The WRITE of the first header is not answered yet when the block is taken out of use and into use again.
    slabs.set_aside();
    let third = take(&mut slabs).unwrap();
    assert!(first.header.is_some());
    assert_eq!(first.header, third.header);
}

#[test]
fn a_block_with_little_room_is_used_only_if_that_will_do() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 2));
    assert_eq!(slabs.allocate(kind(), 2, |_| false, NOWHERE), None);
    assert_eq!(slabs.allocate(kind(), 3, |_| true, NOWHERE), None, "frozen");
    assert!(slabs.allocate(kind(), 3, |_| false, NOWHERE).is_some());
    assert_eq!(take(&mut slabs), None);
}

/// Allocates an object for which block `best` is the best one. Returns the number of the block that contains it.
fn best_in(slabs: &mut Slabs, best: u64) -> Option<u64> {
    let is_best = move |block: Address| block.bytes() / BLOCK == best;
    let object = slabs.allocate(kind(), u32::MAX, |_| false, Some((best as u32, is_best)));
    object.map(|object| object.address.bytes() / BLOCK)
}

/// Searches for block `best`. Returns whether it is in use now.
fn looked_for(slabs: &mut Slabs, best: u64) -> bool {
    assert!(slabs.begin_look(kind()) && !slabs.begin_look(kind()), "one looks");
    let is_best = |block: Address| block.bytes() / BLOCK == best;
    let found = slabs.use_best(kind(), u32::MAX, |_| false, is_best);
    slabs.end_look(kind(), found);
    found
}

#[test]
fn objects_come_from_where_they_are_best_as_soon_as_a_block_was_looked_for() {
    let mut slabs = Slabs::new(ClientId(7));
    assert_eq!(best_in(&mut slabs, 5), None);
    (1..=3).for_each(|n| add(&mut slabs, grant(n, 0)));
    // A new slab reports no shortage for its first allocations. Then it reports once that it lacks a block beside
    // subtable 5.
    let first: Vec<Option<u64>> = (0..2).map(|_| best_in(&mut slabs, 5)).collect();
    assert!(first[0] == first[1] && first[0].is_some_and(|block| block <= 3), "{first:?}");
    assert_ne!(slabs.take_shortage(kind()), Some(SlabShortage::Beside(5)));
    best_in(&mut slabs, 5);
    assert_eq!(slabs.take_shortage(kind()), Some(SlabShortage::Beside(5)));
    assert_ne!(slabs.take_shortage(kind()), Some(SlabShortage::Beside(5)));
    assert!(!looked_for(&mut slabs, 5));
    best_in(&mut slabs, 5);
    assert_ne!(
        slabs.take_shortage(kind()),
        Some(SlabShortage::Beside(5)),
        "in vain: content again"
    );

    // The new block is in use before it could be offered to other sessions.
    add(&mut slabs, grant(5, 0));
    assert!(looked_for(&mut slabs, 5));
    let (spare, _) = slabs.offer();
    assert!(spare.iter().all(|rest| rest.block != Address::new(5 * BLOCK)));
    assert_eq!(best_in(&mut slabs, 5), Some(5));
}

#[test]
fn where_memory_is_short_others_may_have_all_blocks_but_one() {
    let mut slabs = Slabs::new(ClientId(7));
    for n in 1..=3 {
        add(&mut slabs, grant(n, 0));
        assert!(looked_for(&mut slabs, n));
    }
    // All of block 1 is used up, and an object of another block was given back and is free.
    (0..3).for_each(|_| assert_eq!(best_in(&mut slabs, 1), Some(1)));
    assert_eq!(slabs.aside().len(), 0, "all are in use");
    let taken = take(&mut slabs).expect("there is another one");
    slabs.give_back(&taken, |_| true, || 0);
    pass(&mut slabs);
    slabs.use_one();
    assert_eq!(slabs.aside().len(), 2);
    let (spare, _) = slabs.offer();
    assert_eq!(spare.len(), 1, "what is wholly in use is in flight yet");
    slabs.take_back(&[]);
    assert!(take(&mut slabs).is_some());
}

#[test]
fn blocks_in_use_together_are_bounded_and_the_oldest_makes_room() {
    let mut slabs = Slabs::new(ClientId(7));
    let blocks = IN_USE_TOGETHER as u64;
    for n in 0..=blocks {
        add(&mut slabs, grant(n, 0));
        assert!(looked_for(&mut slabs, n));
    }
    assert_eq!(slabs.aside().len(), 1);
    for best in 1..=blocks {
        assert_eq!(best_in(&mut slabs, best), Some(best));
    }
    assert_eq!(best_in(&mut slabs, 0), Some(1), "it is aside");
    assert!(looked_for(&mut slabs, 0));
    assert_eq!(best_in(&mut slabs, 0), Some(0));
}

#[test]
fn freed_objects_are_taken_in_with_the_generation_that_stands_there() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 3));
    assert_eq!(take(&mut slabs), None);
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    assert_eq!(block.taken(), [true; 3]);
    assert_eq!(block.unknown(&[1, 2]).collect::<Vec<u32>>(), [1, 2]);
    block.learn(2, [standing(2, 511)].into_iter());
    block.reusable.reclaim(&[2]);
    assert_eq!(block.taken(), [true, true, false]);
    assert_eq!(block.header.in_use_from(), u32::MAX, "not in use yet");
    let object = take(&mut slabs).unwrap();
    assert_eq!((object.address.bytes() - BLOCK, object.generation), (64 + 2048, 0));
    assert_eq!(take(&mut slabs), None);
}

#[test]
fn no_replica_has_the_generation_that_comes_next() {
    for (shown, next) in [
        (&[4][..], 5),
        (&[4, 4, 4], 5),
        (&[4, 5], 6),
        (&[5, 4], 6),
        (&[0, 1, 2, 3, 4], 5),
        (&[7, 8, 10], 11),
    ] {
        let mut slabs = Slabs::new(ClientId(1));
        add(&mut slabs, grant(1, 3));
        let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
        // The headers on the other replicas show no identity of this object.
        let elsewhere = [standing(1, 99), Some(Identity::from_word(0)), None];
        let shown = shown.iter().map(|generation| standing(2, *generation));
        block.learn(2, shown.chain(elsewhere));
        block.reusable.reclaim(&[2]);
        assert_eq!(take(&mut slabs).map(|object| object.generation), Some(next));
    }
}

#[test]
fn remainders_say_what_was_never_allocated() {
    let mut slabs = Slabs::new(ClientId(1));
    add(&mut slabs, grant(1, 0));
    add(&mut slabs, grant(2, 0));
    let object = take(&mut slabs).unwrap();
    slabs.give_back(&object, |_| false, || 0);
    let mut end_seal = slabs.take_remainders();
    end_seal.sort_by_key(|rest| rest.first);
    assert_eq!(end_seal.iter().map(|rest| rest.first).collect::<Vec<u32>>(), [0, 1]);
    assert!(slabs.take_remainders().is_empty());
    add(&mut slabs, grant(1, 3));
    assert!(!slabs.add_block(kind(), grant(5, 4)));
    let too_large = BlockGrant { class: SizeClass::MAX, ..grant(1, 0) };
    assert!(!slabs.add_block(kind(), too_large), "too large for a block");
}

#[test]
fn the_oldest_block_that_is_not_in_use_is_demoted_first_and_each_object_once() {
    let coding = crate::erasure::Coding::new(2, 1).unwrap();
    let of = crate::data::Orientation::new(2, coding).unwrap();
    let redundancy = Redundancy::Oriented(of);
    let oriented = SlabKind { redundancy, class: class() };
    let mut slabs = Slabs::new(ClientId(7));
    for n in [8, 3, 5] {
        assert!(slabs.add_block(oriented, BlockGrant { redundancy, ..grant(n, 0) }));
        slabs.find(Address::new(n * BLOCK)).unwrap().generations.read(&ReplicaHeaders::None, 0, 0);
    }
    add(&mut slabs, grant(1, 0));
    let objects = block_shape().objects as usize;
    let take =
        |slabs: &mut Slabs| slabs.allocate(oriented, u32::MAX, |_| false, NOWHERE).unwrap().address;
    let all: Vec<Address> = (0..3 * objects).map(|_| take(&mut slabs)).collect();
    take_all_of(&mut slabs);
    let next = |slabs: &mut Slabs| slabs.next_to_demote(|_| false).map(|(object, _)| object);
    // The last block is in use for writes. The blocks that came before it are out of use.
    let in_use = all[2 * objects].bytes() / BLOCK;
    let mut due: Vec<Address> = core::iter::from_fn(|| next(&mut slabs)).collect();
    assert_eq!(due.len(), 2 * objects, "each once, of the blocks that are not in use");
    assert!(due.iter().all(|object| object.bytes() / BLOCK != in_use));
    let order: Vec<u64> = due.iter().map(|object| object.bytes() / BLOCK).collect();
    let came = [8, 3, 5].into_iter().filter(|n| *n != in_use);
    assert!(order.iter().copied().eq(came.flat_map(|n| vec![n; objects])), "{order:?}");
    due.dedup();
    assert_eq!(due.len(), 2 * objects);
    assert_eq!(next(&mut slabs), None);
    let frozen = |block: Address| block.bytes() == 8 * BLOCK;
    assert_eq!(slabs.next_to_demote(frozen), None);
}

/// Allocates all objects of the replicated slab. Objects of that slab are never demoted.
fn take_all_of(slabs: &mut Slabs) {
    while take(slabs).is_some() {}
}

#[test]
fn a_slab_uses_blocks_that_it_has_outgrown_only_when_memory_is_short() {
    let mut slabs = Slabs::new(ClientId(7));
    add(&mut slabs, grant(1, 0));
    let large = |n, times| BlockGrant { bytes: times * BLOCK, ..grant(n, 0) };
    let is_small = |slabs: &mut Slabs| slabs.find(Address::new(BLOCK)).unwrap().outgrown;
    (2..80).for_each(|n| add(&mut slabs, grant(n, 0)));
    add(&mut slabs, large(128, 32));
    assert!(!is_small(&mut slabs), "a thirty-second of the largest block, however many there are");
    add(&mut slabs, large(256, 64));
    assert!(is_small(&mut slabs));
    let count = |slabs: &mut Slabs, least| {
        core::iter::from_fn(|| slabs.allocate(kind(), least, |_| false, NOWHERE)).count()
    };
    let of = |times: u64| BlockShape::new(times * BLOCK, class()).unwrap().objects as usize;
    assert_eq!(count(&mut slabs, USED_AGAIN_AT), of(64) + of(32));
    assert!(!slabs.has_room(kind(), USED_AGAIN_AT, |_| false));
    assert_eq!(count(&mut slabs, u32::MAX), 79 * of(1));
}
