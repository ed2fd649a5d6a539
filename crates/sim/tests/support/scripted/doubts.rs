//! Scripts of findings that are doubtful until a re-read: garbage in a comparison with the index, and damaged replicas.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use fusee_core::error::{Error, FailedWriteOutcome};
use fusee_core::layout::{Address, Object};
use fusee_core::stats::Damage;
use fusee_core::verbs::VerbOp;
use fusee_core::view::PoolPlace;

use super::super::largest_block;
use super::{HostScript, ScriptedCluster, ScriptedStore, VALUE, poll_until, run};

/// An object is being written, and its word is not in the index yet. Meanwhile another operation is short of memory and
/// compares the block with the index. The comparison must not treat the object as garbage.
pub fn beside_a_write(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    // The block is unverified.
    let (store, script) = stage.open(0..1, None);
    let store = Rc::new(store);
    run(store.insert(b"a", &VALUE)).expect("there is room");
    let view = stage.cluster.view().clone();
    let class = Object::class(1, VALUE.len()).expect("there is such a class");
    let shape = fusee_core::layout::BlockShape::new(view.geometry.block_bytes, class);
    let second = shape.expect("three fit").offset(1);
    let at = Address::new(largest_block(&view.geometry, 0, 0).address.bytes() + second);
    let places: Vec<PoolPlace> =
        view.object(at, class.bytes()).expect("it is there").places().collect();
    let network = stage.cluster.network();
    let is_written = || {
        let last =
            |place: &PoolPlace| PoolPlace { offset: place.offset + class.bytes() - 8, ..*place };
        places.iter().all(|place| network.memories().word_at(last(place)).0 != 0)
    };
    let writer = store.clone();
    let mut writing: Pin<Box<dyn Future<Output = _>>> =
        Box::pin(async move { writer.insert(b"b", &VALUE).await.map(drop) });
    assert_eq!(poll_until(&mut writing, is_written), None, "its word comes later");
    let writing = Rc::new(RefCell::new(Some(writing)));
    let ends = writing.clone();
    script.then(move || {
        let writing = ends.take().expect("once");
        assert_eq!(run(writing), Ok(()));
    });
    for _ in 0..6 {
        let passing = Rc::downgrade(&script);
        script.then(move || passing.upgrade().expect("it is there").pass());
    }
    let short = run(store.insert(b"s", b"small"));
    assert_eq!(short, Err(Error::OutOfMemory));
    assert!(writing.take().is_none(), "it waited");
    run(store.insert(b"c", &VALUE)).expect("a third one fits");
    assert_eq!(stage.values(&store, b"abc").len(), 3);
    stage.check(&run(store.leave()));
}

/// A write that lost its conflict round has left its word on a backup, and its client has died. If the primary were
/// lost now, the slot could be settled on this word. Therefore the word's object is not garbage.
pub fn lost_word(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let (store, script) = stage.open(0..1, None);
    let places = [b"a", b"b"].map(|key| {
        let written = run(store.insert(key, &VALUE)).expect("there is room");
        written.place.expect("nobody is in the way")
    });
    let lost = places[1];
    stage.cluster.checks().stop_watching();
    let view = stage.cluster.view().clone();
    let primary = view.slot_on_primary(lost.slot);
    stage.cluster.network().memories().overwrite(primary, 0);
    for _ in 0..6 {
        let passing = Rc::downgrade(&script);
        script.then(move || passing.upgrade().expect("it is there").pass());
    }
    assert_eq!(run(store.insert(b"s", b"small")), Err(Error::OutOfMemory));
    assert!(!stage.is_marked(lost.word.address()), "it is taken for garbage");
}

/// A replica is damaged, and the WRITE that repairs it is delayed for long. The WRITE can execute as long as its
/// session is pinned, so the object must not be reused while the session is pinned.
pub fn late_repair(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let primary_since = stage.cluster.view().regions[0].primary_since();
    let (writer, _) = stage.open(0..1, Some(primary_since));
    run(writer.insert(b"a", &VALUE)).expect("there is room");
    let view = stage.cluster.view().clone();
    let hint = run(writer.search(b"a", None)).expect("it is there").hint().expect("it is there");
    let places = view.object(hint.word.address(), 64).expect("it is there").places();
    // One of these replicas is the one that the reader reads first.
    for (i, place) in places.enumerate() {
        let key = PoolPlace { offset: place.offset + 24, ..place };
        stage.cluster.network().memories().flip(key, 1 << 40);
        let (reader, script) = stage.open(0..0, None);
        script.lose(|verb| matches!(verb.op, VerbOp::Write { .. }));
        let found = run(reader.search(b"a", None)).map(|found| found.value() == Some(&VALUE[..]));
        assert!(found != Ok(false), "replica {i}: {found:?}");
        if found.is_err() {
            assert_eq!((script.late(), script.damage()), (1, Damage::default()), "replica {i}");
            assert!(reader.needs_recovery());
            return;
        }
        stage.cluster.network().memories().flip(key, 1 << 40);
    }
    panic!("no replica is read");
}

/// The WRITE of an object is delayed for long and had no answer. No word refers to the object, and the INSERT has
/// failed. The session must not leave, because the WRITE could execute when the block already has another owner.
pub fn late_object(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let primary_since = stage.cluster.view().regions[0].primary_since();
    let (store, script) = stage.open(0..2, Some(primary_since));
    script.lose(|verb| matches!(verb.op, VerbOp::Write { .. }));
    let inserted = run(store.insert(b"a", &VALUE)).map(drop);
    let Err(Error::Unreachable { outcome, .. }) = inserted else { panic!("{inserted:?}") };
    assert_eq!(outcome, FailedWriteOutcome::NotApplied);
    assert!(script.late() > 0 && store.needs_recovery());
}

/// An object is written, and the following READ has no answer. The write has failed, and none of its verbs can execute
/// later. The session can be used further, and the object is free again.
// Promise MEM-30: Objects of failed or dropped writes are given back or recovered.
pub fn unanswered_read(seed: u64) {
    let (stage, store, script) = before_a_second_phase(seed);
    script.lose(|verb| verb.is_read() && verb.bytes() > 1000);
    let written = run(store.upsert(b"a", &VALUE, None)).map(drop);
    let Err(Error::Unreachable { outcome, .. }) = written else { panic!("{written:?}") };
    assert_eq!((outcome, script.late()), (FailedWriteOutcome::NotApplied, 0));
    assert!(!store.needs_recovery(), "nothing is left half-way");
    script.lose(|_| false);
    stage.check(&run(store.leave()));
}

/// An object is written, and then the caller drops the write, so that no operation needs the object. The session either
/// leaves it to recovery, or frees it.
// Promise MEM-30
pub fn dropped_write(seed: u64) {
    let (stage, store, script) = before_a_second_phase(seed);
    let [phases, ..] = script.moved();
    let mut write: Pin<Box<dyn Future<Output = _>>> = Box::pin(store.upsert(b"a", &VALUE, None));
    let ended = poll_until(&mut write, || script.moved()[0] == phases + 2);
    assert!(ended.is_none(), "it needs a second phase");
    drop(write);
    if !store.needs_recovery() {
        stage.check(&run(store.leave()));
    }
}

/// Makes a pair whose object a write without a hint must READ in a second phase, after it has written its own object.
fn before_a_second_phase(seed: u64) -> (ScriptedCluster, ScriptedStore, Rc<HostScript>) {
    let stage = ScriptedCluster::new(seed);
    let primary_since = stage.cluster.view().regions[0].primary_since();
    let (store, script) = stage.open(0..2, Some(primary_since));
    run(store.insert(b"a", &VALUE)).expect("there is room");
    (stage, store, script)
}

/// A session gets its first block only after a new region has been added. Epochs pass meanwhile, because a session that
/// waits for a region is not pinned.
// Promise MEM-29: A session that waits for a region holds no epoch.
pub fn region_to_come(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let (store, script) = stage.open(0..1, None);
    script.put_off(3);
    let before = script.epoch();
    run(store.insert(b"a", &VALUE)).expect("it has come");
    assert_eq!(script.epoch(), before + 3);
}

/// A new region is added late. Before it is added, the session can use memory that it has freed itself.
// Promise MEM-31: A session that waits for a region uses memory freed meanwhile.
pub fn own_memory_first(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let primary_since = stage.cluster.view().regions[0].primary_since();
    let (store, script) = stage.open(0..1, Some(primary_since));
    for key in [b"a", b"b"] {
        run(store.insert(key, &VALUE)).expect("there is room");
    }
    run(store.update(b"a", &VALUE, None)).expect("three fit");
    script.put_off(1000);
    let before = script.epoch();
    run(store.update(b"b", &VALUE, None)).expect("the first object is free");
    assert!(script.epoch() < before + 10, "{} epochs passed", script.epoch() - before);
}
