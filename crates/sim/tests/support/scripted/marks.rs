//! Free bitmaps: marks on a replica that is no longer read, and marks that come late.

use std::rc::Rc;

use fusee_core::verbs::VerbOp;

use super::{HostScript, ScriptedCluster, ScriptedStore, VALUE, run};

/// Makes four pairs in two blocks. The first pair is replaced, its object is marked, and the session has seen that.
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

/// Objects are marked as free; then the region has another first replica with an empty bitmap. The next owner of the
/// blocks must not take this bitmap for complete.
pub fn left_behind(seed: u64) {
    let stage = ScriptedCluster::new(seed);
    let (store, script) = prepared(&stage, |_| ());
    stage.move_region(&[&script]);
    let rests = run(store.leave());
    assert_eq!(rests.len(), 2);
    stage.check(&rests);
}

/// Objects seen as free on one replica's bitmap are to be reused when another replica comes first: there is no bit to
/// clear there.
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

/// A mark is delayed for long, and its session takes it for lost. Other sessions must not take the freeing for
/// settled, whatever the session does next: they would set the same bit.
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
