use super::*;

const BLOCK: u64 = 4096;

fn grant(n: u64, first: u32) -> BlockGrant {
    let (address, marked) = (Address::new(n * BLOCK), Some(1));
    BlockGrant { address, class: class(), first, marked, pool_is_empty: false }
}

fn class() -> SizeClass {
    SizeClass::fitting(1024).unwrap()
}

fn take(slabs: &mut Slabs) -> Option<Allocation> {
    slabs.allocate(class(), u32::MAX, |_| false)
}

#[test]
fn objects_come_from_one_block_after_the_other() {
    let mut slabs = Slabs::new(ClientId(7), BLOCK);
    assert_eq!(take(&mut slabs), None);
    assert!(slabs.add_block(class(), grant(1, 0)));
    assert!(slabs.add_block(class(), grant(5, 1)));
    let all: Vec<Allocation> = core::iter::from_fn(|| take(&mut slabs)).collect();
    assert_eq!(all.len(), 3 + 2);
    assert!(all.iter().all(|object| object.generation == 0));
    let header = BlockHeader { class: class(), owner: ClientId(7), first: 0, at_rest: false };
    assert_eq!(all[0].header, Some((Address::new(BLOCK), header)));
    let header = BlockHeader { first: 1, ..header };
    assert_eq!(all[3].header, Some((Address::new(5 * BLOCK), header)));
}

#[test]
fn what_is_given_back_comes_again_with_the_next_generation() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 0));
    let first = take(&mut slabs).unwrap();
    let _second = take(&mut slabs).unwrap();
    slabs.give_back(&first);
    let again = take(&mut slabs).unwrap();
    assert_eq!((again.address, again.generation), (first.address, 1));
    let mut object = again;
    for i in 2..=u32::from(Slot::GENERATIONS) {
        slabs.give_back(&object);
        object = take(&mut slabs).unwrap();
        assert_eq!(u32::from(object.generation), i % u32::from(Slot::GENERATIONS));
    }
    assert_eq!(take(&mut slabs).unwrap().generation, 0, "the third one, never used");
}

#[test]
fn what_was_seen_counts_as_free_only_when_it_is_taken_in() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 3));
    assert_eq!(take(&mut slabs), None);
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    let unit = block.shape.offset(1) / UNIT_BYTES;
    // One of them stands for no object.
    let words = vec![(0, 1 << unit | 1)];
    assert_eq!(block.marked(&words), (vec![1], vec![(0, 1 << unit)]));
    block.seen = Some(Seen { led_since: 1, mark: 0, words, objects: 1 });
    assert_eq!((block.free_objects(), block.prospect()), (0, 1));
    assert!(block.is_worth_collecting(class(), 3) && !block.is_worth_collecting(class(), 2));
    let rest = slabs.offer().0.pop().expect("nothing of it was collected");
    assert_eq!((rest.first, rest.marked), (3, Some(1)));
    slabs.take_back(&[]);
    slabs.aside_at(Address::new(BLOCK)).unwrap().take_in(&[1]);
    assert_eq!(slabs.offer(), (vec![], vec![]), "nobody else would find the object");
    slabs.take_back(&[]);
    slabs.aside_at(Address::new(BLOCK)).unwrap().begin_doubt(Doubt::Open);
    assert_eq!(slabs.aside()[0].prospect(), 1, "in doubt nothing is seen");
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    block.end_doubt(Some(Seen { led_since: 1, mark: 0, words: vec![(0, 1)], objects: 1 }));
    block.follow(1);
    assert_eq!((block.doubt(), block.prospect()), (&Doubt::None, 2));
    block.follow(2);
    assert_eq!((block.doubt(), block.prospect()), (&Doubt::Open, 1), "another bitmap");
}

#[test]
fn a_block_is_lent_between_two_operations_and_used_again_however_little_is_free() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 0));
    let first = take(&mut slabs).unwrap();
    slabs.lend(class());
    assert_eq!(slabs.offer(), (vec![], vec![]), "an operation uses an object of it");
    slabs.take_back(&[]);
    slabs.give_back(&first);
    assert_eq!(slabs.offer().0[0].marked, None, "nobody else knows what is free");
    assert_eq!(slabs.allocate(class(), 2, |_| false), None, "it may be gone");
    slabs.take_back(&[]);
    let again = take(&mut slabs).expect("it is not");
    slabs.end(&again);
    let second = take(&mut slabs).unwrap();
    slabs.end(&second);
    slabs.lend(class());
    let rest = slabs.offer().0.pop().expect("nothing is under way");
    assert_eq!((rest.first, rest.marked), (2, Some(1)));
    slabs.take_back(&[]);
    let third = slabs.allocate(class(), 1, |_| false).expect("a lent block will always do");
    slabs.end(&third);
    slabs.lend(class());
    assert_eq!(slabs.offer(), (vec![], vec![]), "there is nothing left to lend");
}

/// Of the class of which an operation asks for a block.
#[test]
fn who_is_short_offers_what_it_can_use_itself_but_for_the_best() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    for (block, seen) in [(1, 0), (2, 1), (3, 2), (4, 3)] {
        slabs.add_block(class(), grant(block, 3));
        let words = vec![(0, u64::MAX)];
        let seen = Seen { led_since: 1, mark: 0, words, objects: seen };
        slabs.aside_at(Address::new(block * BLOCK)).unwrap().seen = Some(seen);
    }
    let offered = |slabs: &mut Slabs| {
        let (spare, surplus) = slabs.offer();
        slabs.take_back(&[]);
        assert_eq!(surplus, []);
        spare.iter().map(|rest| rest.block.bytes() / BLOCK).collect::<Vec<_>>()
    };
    assert!(slabs.begin_ask(class()));
    assert_eq!(offered(&mut slabs), [3, 2]);
    slabs.end_ask(class());
    assert_eq!(offered(&mut slabs), [4, 3, 2, 1]);
    // Who has nothing keeps what may become free; another class is not short.
    slabs.begin_ask(class());
    slabs.aside.retain(|block| block.address == Address::new(BLOCK));
    assert_eq!(offered(&mut slabs), []);
    slabs.end_ask(class());
    slabs.begin_ask(SizeClass::fitting(64).unwrap());
    assert_eq!(offered(&mut slabs), [1]);
}

#[test]
fn a_block_of_another_class_is_surplus_once_it_is_known_not_to_be_free() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(SizeClass::fitting(64).unwrap(), grant(1, 3));
    assert_eq!((slabs.offer().0.len(), slabs.offer().1.len()), (1, 0), "nobody has looked");
    slabs.take_back(&[]);
    slabs.aside_at(Address::new(BLOCK)).unwrap().looked = 1;
    assert_eq!((slabs.offer().0.len(), slabs.offer().1.len()), (0, 1));
    slabs.take_back(&[]);
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    block.learn(2, &[0]);
    block.take_in(&[2]);
    let object = take(&mut slabs).expect("its class needs one");
    slabs.end(&object);
    slabs.set_aside();
    assert_eq!((slabs.offer().0.len(), slabs.offer().1.len()), (1, 0), "it is of use");
}

#[test]
fn a_header_goes_with_every_object_until_it_is_written() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 0));
    let first = take(&mut slabs).unwrap();
    let second = take(&mut slabs).unwrap();
    assert_eq!(first.header, second.header);
    assert!(second.header.is_some());
    slabs.header_written(&second);
    let third = take(&mut slabs).unwrap();
    assert_eq!(third.header, None);
    // At rest, and in use once more.
    slabs.set_aside();
    let block = Address::new(BLOCK);
    assert!(!slabs.aside()[0].may_rest(), "three writes are under way");
    [first, second].iter().for_each(|object| slabs.end(object));
    slabs.give_back(&third);
    assert!(slabs.aside()[0].may_rest());
    let header = BlockHeader { class: class(), owner: ClientId(1), first: 3, at_rest: true };
    assert_eq!(slabs.at_rest(block), Some(header), "all three were allocated once");
    slabs.rests(block, true);
    assert!(!slabs.aside()[0].may_rest());
    let (_, header) = take(&mut slabs).unwrap().header.unwrap();
    assert_eq!((header.first, header.at_rest), (0, false));
}

#[test]
fn a_block_with_little_room_is_used_only_if_that_will_do() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 2));
    assert_eq!(slabs.allocate(class(), 2, |_| false), None);
    assert_eq!(slabs.allocate(class(), 3, |_| true), None, "frozen");
    assert!(slabs.allocate(class(), 3, |_| false).is_some());
    assert_eq!(take(&mut slabs), None);
}

#[test]
fn freed_objects_are_taken_in_with_the_generation_that_stands_there() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 3));
    assert_eq!(take(&mut slabs), None);
    let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
    assert_eq!(block.taken(), [true; 3]);
    assert_eq!(block.unknown(&[1, 2]).collect::<Vec<u32>>(), [1, 2]);
    block.learn(2, &[31]);
    block.take_in(&[2]);
    assert_eq!(block.taken(), [true, true, false]);
    assert_eq!(block.in_use_from, u32::MAX, "not in use yet");
    let object = take(&mut slabs).unwrap();
    assert_eq!((object.address.bytes() - BLOCK, object.generation), (128 + 2048, 0));
    assert_eq!(take(&mut slabs), None);
}

#[test]
fn no_replica_has_the_generation_that_comes_next() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 3));
    slabs.set_aside();
    for (standing, next) in [
        (&[4][..], 5),
        (&[4, 4, 4], 5),
        (&[4, 5], 6),
        (&[5, 4], 6),
        (&[31, 0, 1, 2, 3], 4),
        (&[30, 63], 0),
        (&[7, 8, 10], 9),
    ] {
        let block = slabs.aside_at(Address::new(BLOCK)).unwrap();
        block.learn(2, standing);
        assert_eq!(block.generations[2], next, "{standing:?}");
    }
}

#[test]
fn rests_say_what_was_never_allocated() {
    let mut slabs = Slabs::new(ClientId(1), BLOCK);
    slabs.add_block(class(), grant(1, 0));
    slabs.add_block(class(), grant(2, 0));
    let object = take(&mut slabs).unwrap();
    slabs.give_back(&object);
    let mut rests = slabs.take_rests();
    rests.sort_by_key(|rest| rest.first);
    assert_eq!(rests.iter().map(|rest| rest.first).collect::<Vec<u32>>(), [0, 1]);
    assert!(slabs.take_rests().is_empty());
    assert!(slabs.add_block(class(), grant(1, 3)), "all of it was allocated once");
    assert!(!slabs.add_block(class(), grant(5, 4)));
    let too_large = BlockGrant { class: SizeClass::MAX, ..grant(1, 0) };
    assert!(!slabs.add_block(class(), too_large), "too large for a block");
}
