//! Scripts in which generations must not restart: a slot word recurs only after a whole window of epochs, whichever
//! session has the block meanwhile. The cluster checks this at every WRITE to an object, so the scripts only have to
//! use one block again and again.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use fusee_core::Error;
use fusee_core::layout::{Address, BlockHeader, BlockShape, Object, SizeClass, Slot};
use fusee_core::recovery::BlockSpan;
use fusee_core::slab::{BlockRemainder, WINDOW_EPOCHS};
use fusee_core::view::PoolPlace;

use super::super::largest_block;
use super::{HostScript, ScriptedCluster, ScriptedStore, VALUE, poll_until, run};

/// A value of another size class than [`VALUE`]. A block has room for one such object.
pub(super) const LARGE: [u8; 2500] = [2; 2500];

/// A session on a scripted cluster in which epochs pass.
pub struct GenerationSession {
    pub stage: Rc<ScriptedCluster>,
    pub store: ScriptedStore,
    pub script: Rc<HostScript>,
}

impl GenerationSession {
    /// Makes a session with one block for objects of [`VALUE`].
    pub fn new(seed: u64) -> GenerationSession {
        GenerationSession::of(ScriptedCluster::new(seed))
    }

    /// Makes a session for these tests on the cluster `stage`.
    pub fn of(stage: ScriptedCluster) -> GenerationSession {
        let stage = Rc::new(stage);
        let primary_since = Some(stage.cluster.view().regions[0].primary_since());
        let (store, script) = stage.open(0..1, primary_since);
        stage.cluster.checks().epoch_begins(script.epoch());
        GenerationSession { stage, store, script }
    }

    /// Lets up to `epochs` epochs pass while the session waits.
    pub fn lets_pass(&self, epochs: u64) {
        for _ in 0..epochs {
            let stage = self.stage.clone();
            let script = self.script.clone();
            self.script.then(move || {
                if script.is_idle() {
                    script.pass();
                    stage.cluster.checks().epoch_begins(script.epoch());
                }
            });
        }
    }

    pub fn update(&self, key: &[u8]) {
        self.lets_pass(8);
        run(self.store.update(key, &VALUE, None)).expect("there is room before long");
        self.script.then_nothing();
    }

    pub fn delete(&self, key: &[u8]) {
        self.lets_pass(8);
        run(self.store.delete(key, None)).expect("it is there");
        self.script.then_nothing();
    }

    /// Uses the emptied block for an object of another class. Returns the number of epochs that passed before this use.
    pub fn uses_for_another_class(&self, epochs: u64) -> u64 {
        let before = self.script.epoch();
        self.lets_pass(epochs);
        run(self.store.insert(b"x", &LARGE)).expect("the block is free");
        self.script.then_nothing();
        self.script.epoch() - before
    }

    pub fn header(&self) -> BlockHeader {
        let view = self.stage.cluster.view().clone();
        let at = view.block(block(&self.stage, 0)).expect("a block").places().next();
        let word = |i: u64| {
            let place = at.map(|at| PoolPlace { offset: at.offset + 8 * i, ..at });
            self.stage.cluster.network().memories().word_at(place.expect("a replica")).0
        };
        let bytes: Vec<u8> = (0..8).flat_map(|i| word(i).to_le_bytes()).collect();
        BlockHeader::decode(bytes.first_chunk().expect("64 bytes")).expect("it was used")
    }
}

pub(super) fn block(stage: &ScriptedCluster, number: u32) -> Address {
    largest_block(&stage.cluster.view().geometry, 0, number).address
}

/// Each INSERT of an existing key writes an object that no other session learns of. The object must not be written
/// again within one epoch.
pub fn given_back(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    for _ in 0..8 {
        lives.lets_pass(8);
        let exists = run(lives.store.insert(b"a", &VALUE)).map(|_| ());
        assert!(matches!(exists, Err(Error::AlreadyExists)), "{exists:?}");
        lives.script.then_nothing();
    }
}

/// A block is emptied and used for another class. Its generations continue.
pub fn emptied(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    (0..20).for_each(|_| lives.update(b"a"));
    lives.delete(b"a");
    let epochs = lives.uses_for_another_class(64);
    assert!(epochs < 64, "nothing was to wait for a window: {epochs}");
    let base = lives.header().base.generation;
    assert!((7..=21).contains(&base), "21 lives of three objects, and {base} of one of them");
}

/// One object keeps its first generation while the other objects of its block use up all generations. When all objects
/// are free, the next generation of the first object is the latest generation of the other objects. Therefore the block
/// must wait for a window of epochs.
pub fn laggard(seed: u64) {
    let lives = GenerationSession::new(seed);
    far_apart(&lives);
    let epochs = lives.uses_for_another_class(WINDOW_EPOCHS + 64);
    assert!(epochs >= WINDOW_EPOCHS, "it has waited for {epochs} only");
}

/// A block waits as in [`laggard`], and another master takes over before the window has passed. The new master's epochs
/// are far ahead, and not all sessions know them yet: a session possibly still uses a word that it saw a moment ago.
/// Therefore the block waits on.
pub fn takeover(seed: u64) {
    let lives = GenerationSession::new(seed);
    far_apart(&lives);
    lives.lets_pass(64);
    let script = lives.script.clone();
    let has_jumped = Rc::new(Cell::new(false));
    for _ in 0..64 {
        let stage = lives.stage.clone();
        let script = script.clone();
        let has_jumped = has_jumped.clone();
        lives.script.then(move || {
            if script.is_idle() && !has_jumped.replace(true) {
                script.pass();
                stage.cluster.checks().epoch_begins(script.epoch());
                script.jump();
            }
        });
    }
    let inserted = run(lives.store.insert(b"x", &LARGE)).map(|_| ());
    assert_eq!((inserted, has_jumped.get()), (Err(Error::OutOfMemory), true), "the window lasts");
    lives.script.then_nothing();
    let epochs = lives.uses_for_another_class(64);
    assert!(epochs < 64, "all have heard, and it waits on: {epochs} epochs");
}

/// A block is handed to another session after its objects have had more generations than the header shows. The next
/// generation of an object follows the object's latest one, not the base in the block's header, which the object has
/// passed a few generations ago.
// Promise MEM-26: The next owner of a wrapped block continues its generations.
pub fn wrapped(seed: u64) {
    let lives = GenerationSession::new(seed);
    for key in [b"a", b"b"] {
        run(lives.store.insert(key, &VALUE)).expect("there is room");
    }
    // Two objects of the pair are written alternately, and each goes a few generations past its first one.
    (0..2 * u32::from(Slot::GENERATIONS) + 16).for_each(|_| lives.update(b"b"));
    assert!(lives.header().base.is_wrapped);
    let rests = run(lives.store.leave());
    let (store, script) = lives.stage.open(0..0, None);
    script.follow(&lives.script);
    lives.stage.cluster.checks().epoch_begins(script.epoch());
    rests.iter().for_each(|rest| script.grant_remainder(rest));
    let next = GenerationSession { stage: lives.stage.clone(), store, script };
    (0..8).for_each(|_| next.update(b"b"));
}

fn far_apart(lives: &GenerationSession) {
    for key in [b"a", b"b"] {
        run(lives.store.insert(key, &VALUE)).expect("there is room");
    }
    // Two objects of the pair are written alternately.
    (0..2 * u32::from(Slot::GENERATIONS) - 2).for_each(|_| lives.update(b"b"));
    assert!(lives.header().base.is_wrapped);
    lives.delete(b"a");
    lives.delete(b"b");
}

/// The owner of a block dies after emptying the block. The next owner knows only the header.
pub fn dies_when_it_is_empty(seed: u64) {
    let lives = GenerationSession::new(seed);
    run(lives.store.insert(b"a", &VALUE)).expect("there is room");
    (0..20).for_each(|_| lives.update(b"a"));
    lives.delete(b"a");
    let epochs = dies_and_is_inherited(lives);
    assert!(epochs < 64, "nothing was to wait for a window: {epochs}");
}

/// The owner dies while its emptied block waits for a window of epochs. The next owner needs the block for objects of
/// the earlier class, and waits as well, but only for the rest of the window.
pub fn inherited_while_it_waits(seed: u64) {
    let lives = GenerationSession::new(seed);
    far_apart(&lives);
    let epochs = dies_and_is_inherited(lives);
    assert!((WINDOW_EPOCHS - 64..WINDOW_EPOCHS + 64).contains(&epochs), "{epochs} epochs");
}

/// Makes the owner die, and returns the number of epochs that passed before another session could use the block.
fn dies_and_is_inherited(lives: GenerationSession) -> u64 {
    let lives = dies_when_empty(lives);
    let before = lives.script.epoch();
    lives.lets_pass(WINDOW_EPOCHS + 64);
    run(lives.store.insert(b"y", &VALUE)).expect("all of the block is free before long");
    lives.script.epoch() - before
}

/// Makes the owner die when the block is empty. Returns a session that owns the block next.
pub(super) fn dies_when_empty(lives: GenerationSession) -> GenerationSession {
    {
        lives.lets_pass(64);
        let mut insert: Pin<Box<dyn Future<Output = _> + '_>> =
            Box::pin(lives.store.insert(b"x", &LARGE));
        let shape = BlockShape::new(lives.stage.cluster.view().geometry.block_bytes, class());
        let shape = shape.expect("three fit");
        let is_empty = || {
            let view = lives.stage.cluster.view().clone();
            (0..shape.objects).all(|object| {
                let at = Address::new(block(&lives.stage, 0).bytes() + shape.offset(object));
                let mut places = view.object(at, 64).expect("an object").places();
                places.all(|place| lives.stage.cluster.network().memories().word_at(place).0 == 0)
            })
        };
        let ended = poll_until(&mut insert, is_empty);
        assert!(ended.is_none(), "it is in the middle");
    }
    let stage = &lives.stage;
    let script = &lives.script;
    let (next, its) = stage.open(0..0, None);
    its.follow(script);
    let BlockSpan { address, bytes } = largest_block(&stage.cluster.view().geometry, 0, 0);
    let (base, class, marked) = (None, class(), None);
    let rest = BlockRemainder { block: address, bytes, base, class, first: 3, marked };
    its.grant_remainder(&rest);
    GenerationSession { stage: stage.clone(), store: next, script: its }
}

pub(super) fn large_class() -> SizeClass {
    Object::class(1, LARGE.len()).expect("there is such a class")
}

pub(super) fn class() -> SizeClass {
    Object::class(1, VALUE.len()).expect("there is such a class")
}
