//! Scripts of free bitmaps: bits on a replica that is no longer read, and bits that are set late.

use std::rc::Rc;

use fusee_core::verbs::VerbOp;

use super::{HostScript, ScriptedCluster, ScriptedStore, VALUE, run};

/// Makes four pairs in two blocks. The first pair is replaced, and its old object's free bit is set.
fn prepared(
    stage: &ScriptedCluster,
    before_the_mark: impl FnOnce(&HostScript),
) -> (ScriptedStore, Rc<HostScript>) {
    let primary_since = stage.cluster.view().regions[0].primary_since();
    let (store, script) = stage.open(0..4, Some(primary_since));
    for key in [b"a", b"b", b"c", b"d"] {
        run(store.insert(key, &VALUE)).expect("there is room");
    }
    before_the_mark(&script);
    run(store.update(b"a", &VALUE, None)).expect("it is there");
    (store, script)
}

/// Free bits of objects are set, and then the region gets another first replica with an empty bitmap. The next owner of
/// the blocks must not treat this bitmap as complete.
pub fn left_behind(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let (store, script) = prepared(&stage, |_| ());
    stage.move_region(&[&script]);
    let rests = run(store.leave());
    assert_eq!(rests.len(), 2);
    stage.check(&rests);
}

/// Objects were seen as free in one replica's bitmap, and are to be reused when another replica has become the first.
/// Their bits in the new bitmap are clear, so the session must not clear them.
pub fn seen_elsewhere(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let (store, script) = prepared(&stage, |_| ());
    script.pass();
    stage.move_region(&[&script]);
    for key in [b"b", b"c", b"d", b"a", b"b"] {
        run(store.update(key, &VALUE, None)).expect("there is room");
    }
    stage.check(&run(store.leave()));
    assert_eq!(stage.values(&store, b"abcd").len(), 4);
}

/// The FAA that sets a free bit is delayed for long and had no answer. Whatever the session does next, it must not
/// report that all its freed objects have their bits set.
pub fn late_mark(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let loses = |script: &HostScript| script.lose(|verb| matches!(verb.op, VerbOp::Faa { .. }));
    let (store, script) = prepared(&stage, loses);
    assert_eq!(script.late(), 1, "the mark of what was replaced");
    script.lose(|_| false);
    for key in [b"b", b"c", b"d"] {
        run(store.update(key, &VALUE, None)).expect("there is room");
    }
    assert!(store.needs_recovery());
}
