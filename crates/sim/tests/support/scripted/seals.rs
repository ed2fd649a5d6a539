//! Scripts of sealed blocks. A leaving session seals a block before it sets free bits of objects that were never
//! written, and only after it has read the block's header. Also scripts of the recovery of blocks whose objects are
//! zeros.

use std::rc::Rc;

use fusee_core::Error;
use fusee_core::layout::{Address, BlockHeader, BlockShape, Identity};
use fusee_core::recovery::{BlockContent, recover};
use fusee_core::verbs::{Verb, VerbOp};
use fusee_sim::SimFabric;

use super::super::largest_block;
use super::generations::{GenerationSession, LARGE, block, class, dies_when_empty, large_class};
use super::{VALUE, run};

/// A session that has given back objects leaves, and sets their free bits. The next owner of the block can die before
/// it uses the block, so the header must be sealed.
pub fn leaves(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    let exists = run(lives.store.insert(b"a", &VALUE)).map(|_| ());
    assert!(matches!(exists, Err(Error::AlreadyExists)), "{exists:?}");
    let rests = run(lives.store.leave());
    lives.stage.check(&rests);
    let header = lives.header();
    assert_eq!((header.sealed, header.fresh), (true, 2), "bits are set of what is no slot's");
}

/// A session gets a block that had been used and is all zeros, uses one object, and dies. Recovery treats all objects
/// as allocated.
pub fn zeros(seed: u64) {
    let lives = GenerationSession::new(seed);
    for key in [b"a", b"b", b"c"] {
        run(lives.store.insert(key, &VALUE)).expect("there is room");
    }
    [b"a", b"b", b"c"].into_iter().for_each(|key| lives.delete(key));
    let lives = dies_when_empty(lives);
    lives.lets_pass(64);
    run(lives.store.insert(b"y", &VALUE)).expect("all of the block is free before long");
    let header = lives.header();
    assert_eq!((header.sealed, header.first), (false, 0), "it is walked from the start");
    assert_eq!(first_new(&lives), 3, "three objects had been allocated");
}

/// A client dies within the WRITE of an object: one replica has only the object's identity. Recovery treats the object
/// as allocated.
pub fn torn(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    let view = lives.stage.cluster.view().clone();
    let shape = BlockShape::new(view.geometry.block_bytes, class()).expect("three fit");
    let at = Address::new(block(&lives.stage, 0).bytes() + shape.offset(1));
    let place = view.object(at, 64).expect("an object").places().nth(1).expect("a replica");
    lives.stage.cluster.network().memories().overwrite(place.plus(8), Identity::new(at, 0).word());
    assert_eq!(first_new(&lives), 2, "who goes on would write the same identity");
}

/// A client gave back an object that was never written, and dies while it seals the block: one replica has the new
/// header. Objects that this header shows as allocated must be treated so, although recovery prefers the other header.
// Promise REC-9: An object is allocated if any replica's block header says so.
pub fn half_sealed(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    let in_use = lives.header();
    assert_eq!((in_use.sealed, in_use.fresh), (false, 0), "it was new");
    let sealed = BlockHeader { sealed: true, first: 2, fresh: 2, ..in_use }.encode();
    let view = lives.stage.cluster.view().clone();
    let places = view.block(block(&lives.stage, 0)).expect("a block").places();
    let heard = places.collect::<Vec<_>>()[seed as usize % 2];
    for (word, at) in sealed.as_chunks().0.iter().zip(0..) {
        lives
            .stage
            .cluster
            .network()
            .memories()
            .overwrite(heard.plus(8 * at), u64::from_le_bytes(*word));
    }
    assert_eq!(first_new(&lives), 2, "two objects had been allocated");
}

/// Returns the number of the first object of the first block that was never allocated, as recovery reports it after the
/// death of the block's owner.
fn first_new(lives: &GenerationSession) -> u32 {
    let (stage, view) = (&lives.stage, lives.stage.cluster.view().clone());
    let fabric = SimFabric::new(stage.cluster.network(), stage.next_client());
    let dead = lives.store.client();
    let report = run(recover(&fabric, &view, dead, &[largest_block(&view.geometry, 0, 0)], &[]))
        .expect("all nodes answer");
    let BlockContent::Objects { first, .. } = report.blocks[0].content else {
        panic!("it has some")
    };
    first
}

/// A session cannot read the header of its new block for some time. During that time the block is neither used nor
/// sealed.
pub fn unread(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    (0..20).for_each(|_| lives.update(b"a"));
    lives.delete(b"a");
    lives.uses_for_another_class(64);
    lives.delete(b"x");
    lives.lets_pass(64);
    run(lives.store.insert(b"a", &VALUE)).expect("the block is free again");
    lives.script.then_nothing();
    assert!(lives.header().base.generation > 7, "it has a base");
    let rests = run(lives.store.leave());
    let stage = lives.stage.clone();
    let script = lives.script.clone();
    let (store, its) = stage.open(0..0, None);
    its.follow(&script);
    let rest = rests.iter().find(|rest| rest.class == class()).expect("the block");
    its.grant_remainder(rest);
    its.lose(is_header_read);
    its.grant(large_class(), block(&stage, 3), None);
    // While the session waits for the header, another operation of the session uses another block.
    let store = Rc::new(store);
    its.then({
        let store = store.clone();
        move || run(store.insert(b"x", &LARGE)).map(drop).expect("it has a block")
    });
    its.then({
        let its = its.clone();
        move || its.lose(|_| false)
    });
    for key in [b"y", b"z"] {
        run(store.insert(key, &VALUE)).expect("its header is read in the end");
    }
}

fn is_header_read(verb: &Verb) -> bool {
    const BLOCK: u64 = 4096;
    matches!(verb.op, VerbOp::Read { buf, .. } if buf.len == 64)
        && verb.offset.is_multiple_of(BLOCK)
}
