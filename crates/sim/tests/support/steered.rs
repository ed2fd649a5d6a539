//! Steered histories, which random schedules hardly ever reach: single operations are stopped at the critical step, and
//! the other ones continue in a random order.
//!
//! Every history takes a seed and returns whether the intended schedule occurred. It panics if the store broke a
//! promise.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use fusee_core::error::Error;
use fusee_core::layout::{Identity, Opcode, Pair, Slot};
use fusee_core::race::Buckets;
use fusee_core::view::{PoolPlace, SlotRef};
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{ClusterOptions, Nanos, Rng, SimClient, SimCluster, Stepper};

use super::crash::idle;
use super::workload::StepWorkload;
use super::{MAX_STEPS, alone, clients_in_order, small, stepwise, stepwise_or_immediate};

const KEY: &[u8] = b"key";
/// A time longer than anything takes in a stepwise cluster.
const HELD_NS: Nanos = 1 << 60;

/// A running operation, which takes one step per poll.
struct SteeredTask<'s> {
    future: Pin<Box<dyn Future<Output = Result<(), Error>> + 's>>,
    result: Option<Result<(), Error>>,
}

impl<'s> SteeredTask<'s> {
    fn insert(store: &'s SimClient, key: &'s [u8]) -> SteeredTask<'s> {
        let future = async move { store.insert(key, b"value").await.map(drop) };
        SteeredTask { future: Box::pin(future), result: None }
    }

    fn delete(store: &'s SimClient, key: &'s [u8]) -> SteeredTask<'s> {
        let future = async move { store.delete(key, None).await.map(drop) };
        SteeredTask { future: Box::pin(future), result: None }
    }

    /// Takes at most `steps` steps, as long as `go_on` returns true.
    fn step(&mut self, steps: usize, go_on: impl Fn() -> bool) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..steps {
            if self.result.is_some() || !go_on() {
                return;
            }
            if let Poll::Ready(result) = self.future.as_mut().poll(&mut context) {
                self.result = Some(result);
            }
        }
    }
}

/// Runs the tasks to their ends, in random order. Returns their results.
fn finish<const N: usize>(
    mut tasks: [SteeredTask<'_>; N],
    cluster: &SimCluster,
    rng: &Rng,
) -> [Result<(), Error>; N] {
    for _ in 0..20_000 {
        let i = rng.below(N);
        tasks[i].step(1, || true);
        if tasks.iter().all(|t| t.result.is_some()) {
            break;
        }
    }
    check_replicas_agree(cluster);
    tasks.map(|t| t.result.expect("every operation ends"))
}

/// Returns the slot that an INSERT takes in an empty index.
fn first_choice(key: &[u8]) -> SlotRef {
    let (rng, cluster) = stepwise(0, &ClusterOptions::default());
    let store = cluster.client();
    alone(&rng, store.insert(key, b"value")).unwrap().place.unwrap().slot
}

/// Returns the slot that an INSERT of `KEY` takes in an empty index, and two other keys whose INSERTs take that slot
/// but whose fingerprints differ.
fn rivals() -> &'static (SlotRef, [Vec<u8>; 2]) {
    static RIVALS: OnceLock<(SlotRef, [Vec<u8>; 2])> = OnceLock::new();
    RIVALS.get_or_init(|| {
        let (_, cluster) = stepwise(0, &ClusterOptions::default());
        let fingerprint = |key: &[u8]| Buckets::of(key, &cluster.view()).fingerprint;
        let slot = first_choice(KEY);
        let mut rivals = (0..1000u32)
            .map(|i| format!("rival {i}").into_bytes())
            .filter(|k| first_choice(k) == slot && fingerprint(k) != fingerprint(KEY));
        let mut next = || rivals.next().expect("among a thousand keys there are some");
        (slot, [next(), next()])
    })
}

/// A look proves something only after the session's own word is on the first backup.
///
/// A and C compete for a slot with different keys; C gets the first backup, A the second. A's CAS on the first backup
/// fails, so the look behind it proves nothing. Now D inserts A's key into another slot, because D began when the first
/// slot was still taken by a key that has been deleted since. D sees no entry of A's key on the first backup. A wins by
/// Rule 3, with the smaller identity. Only the look behind A's repair of the first backup shows D's entry.
pub fn early_look(seed: u64) -> bool {
    let (slot, [gone, other]) = rivals();
    let (rng, cluster) = stepwise(seed, &ClusterOptions::default());
    // A has a smaller identity than C, because clients are in order.
    let clients = clients_in_order(&rng, &cluster);
    let [a, c, d, e] = &clients;
    alone(&rng, e.insert(gone, b"value")).unwrap();
    let mut late = SteeredTask::insert(d, KEY);
    late.step(4 + rng.below(10), || true);
    alone(&rng, e.delete(gone, None)).unwrap();

    let backups: Vec<_> = cluster.view().slot_on_backups(*slot).collect();
    let on = |i: usize| cluster.network().memories().word_at(backups[i]);
    let free = on(0);
    let mut rival = SteeredTask::insert(c, other);
    rival.step(40, || on(0) == free && on(1) == free);
    let c_first = on(0) != free && on(1) == free;
    let mut first = SteeredTask::insert(a, KEY);
    first.step(6 + rng.below(20), || true);
    let steered = c_first && on(1) != free && on(1) != on(0);

    late.step(400, || true);
    let [first, late, rival] = finish([first, late, rival], &cluster, &rng);
    assert_eq!(rival, Ok(()));
    let both = [&first, &late];
    assert_eq!(both.iter().filter(|r| r.is_ok()).count(), 1, "{both:?}");
    steered
}

/// A slot that is free on the first backup is possibly still live on the primary.
///
/// D is about to insert a key. The slot of its first choice is taken by a key that is deleted. Then A inserts D's key
/// into that slot. E deletes D's key again, and stops when the backups show the slot as free and the primary does not
/// yet. D tries another slot, and sees on the first backup that the first slot is free. Only D's second READ of the
/// primary shows that the key is still live.
pub fn freed_slot(seed: u64) -> bool {
    let (slot, [gone, _]) = rivals();
    let (rng, cluster) = stepwise(seed, &ClusterOptions::default());
    let clients = clients_in_order(&rng, &cluster);
    let [a, d, e] = &clients;
    alone(&rng, e.insert(gone, b"value")).unwrap();
    let mut late = SteeredTask::insert(d, KEY);
    late.step(4 + rng.below(10), || true);
    alone(&rng, e.delete(gone, None)).unwrap();
    // If D has already written an entry, A's INSERT does not end within these steps.
    let mut first = SteeredTask::insert(a, KEY);
    first.step(400, || true);

    let places: Vec<_> = cluster.view().slot_places(*slot).collect();
    let on = |i: usize| cluster.network().memories().word_at(places[i]);
    let live = on(0);
    let mut delete = SteeredTask::delete(e, KEY);
    delete.step(100, || on(1) == live || on(2) == live);
    let steered = first.result.is_some() && on(0) == live && on(1).is_free() && on(2).is_free();

    late.step(rng.below(60), || true);
    let [first, late, delete] = finish([first, late, delete], &cluster, &rng);
    assert_balance(&cluster, &[(KEY, &[first, late], &[delete])]);
    steered
}

/// A word that a look sees on a backup possibly leads to an object that is complete only on that backup's node.
///
/// D is about to insert a key. The slot of its first choice is taken by a key that is deleted. Then A inserts D's key
/// into that slot. A updates the key by a speculative write, no verb of which reaches the primary's node, because the
/// link is held. D tries another slot, and sees A's word on the first backup. The object is missing on the other node,
/// so if D read it there, D would mistake it for an object of another key.
pub fn speculated_entry(seed: u64) -> bool {
    let (slot, [gone, _]) = rivals();
    let replicas =
        ClusterOptions { index_replicas: 2, data_replicas: 2, ..ClusterOptions::default() };
    let (rng, cluster) = stepwise(seed, &ClusterOptions { memory_nodes: 2, ..replicas });
    let clients = clients_in_order(&rng, &cluster);
    let [a, d, e] = &clients;
    alone(&rng, e.insert(gone, b"value")).unwrap();
    let mut late = SteeredTask::insert(d, KEY);
    late.step(4 + rng.below(10), || true);
    alone(&rng, e.delete(gone, None)).unwrap();

    let places: Vec<_> = cluster.view().slot_places(*slot).collect();
    let on = |i: usize| cluster.network().memories().word_at(places[i]);
    let inserted = Cell::new(false);
    let released = Cell::new(false);
    let insert_and_update = async {
        let place = a.insert(KEY, b"value").await?.place;
        // If D had already written an entry, A's INSERT ended only after the link was released, and the link is not
        // held again.
        if !released.get() {
            cluster.network().links().hold(a.client(), places[0].node, HELD_NS);
        }
        inserted.set(true);
        a.update(KEY, b"other", place).await.map(drop)
    };
    let mut first = SteeredTask { future: Box::pin(insert_and_update), result: None };
    first.step(400, || !inserted.get() || on(0) == on(1));
    let steered = inserted.get() && on(0) != on(1) && late.result.is_none();

    late.step(400, || true);
    cluster.network().links().release(a.client(), places[0].node);
    released.set(true);
    let [first, late] = finish([first, late], &cluster, &rng);
    assert!(matches!(late, Ok(()) | Err(Error::AlreadyExists)), "{late:?}");
    assert!(matches!(first, Ok(()) | Err(Error::AlreadyExists)), "{first:?}");
    assert_eq!(cluster.checks().live_keys(), [KEY]);
    steered
}

/// A client has stopped with a tentative entry. Therefore the other INSERTs of its key withdraw again and again, while
/// INSERTs of other keys compete for one slot.
pub fn standstill(seed: u64) -> bool {
    let (_, [gone, other]) = rivals();
    let index_replicas = 2 + seed as u8 % 4;
    let options = ClusterOptions { memory_nodes: 5, index_replicas, ..ClusterOptions::default() };
    let (rng, cluster) = stepwise(seed, &options);
    let clients = clients_in_order(&rng, &cluster);
    let [a, b, c, d, e] = &clients;
    alone(&rng, e.insert(gone, b"value")).unwrap();
    let mut late = SteeredTask::insert(d, KEY);
    late.step(4 + rng.below(10), || true);
    alone(&rng, e.delete(gone, None)).unwrap();
    let groups = cluster.view().geometry.subtable_slots() as u32;
    let backups: Vec<_> = (0..groups)
        .filter_map(|slot| cluster.view().slot_on_backups(SlotRef { subtable: 0, slot }).next())
        .collect();
    let installed =
        || backups.iter().any(|place| cluster.network().memories().word_at(*place).is_tentative());
    late.step(20, || !installed());
    let steered = installed() && late.result.is_none();

    let mut tasks = [
        SteeredTask::insert(a, KEY),
        SteeredTask::insert(b, gone),
        SteeredTask::insert(c, other),
        SteeredTask::delete(e, gone),
    ];
    for _ in 0..rng.below(300) {
        tasks[rng.below(4)].step(1 + rng.below(4), || true);
    }
    let [a, b, c, e] = tasks;
    let [a, b, c, e, late] = finish([a, b, c, e, late], &cluster, &rng);
    assert_balance(&cluster, &[(KEY, &[a, late], &[]), (gone, &[b], &[e]), (other, &[c], &[])]);
    steered
}

/// A key, with the results of its INSERTs and of its DELETEs.
type Answers<'a> = (&'a [u8], &'a [Result<(), Error>], &'a [Result<(), Error>]);

/// Asserts for each key that as many INSERTs succeeded as DELETEs, or one more if the key is live.
fn assert_balance(cluster: &SimCluster, answers: &[Answers<'_>]) {
    let live = cluster.checks().live_keys();
    for (key, inserts, deletes) in answers {
        let done = |all: &[Result<(), Error>]| all.iter().filter(|r| r.is_ok()).count();
        let is_live = usize::from(live.iter().any(|k| k == key));
        let what = format!("{inserts:?}, {deletes:?}, live: {is_live}");
        assert_eq!(done(inserts), done(deletes) + is_live, "{what}");
        assert!(inserts.iter().all(|r| matches!(r, Ok(()) | Err(Error::AlreadyExists))), "{what}");
        assert!(deletes.iter().all(|r| matches!(r, Ok(()) | Err(Error::NotFound))), "{what}");
    }
}

/// The first bytes of an object prove nothing if they were possibly read before the slot.
///
/// A slot word recurs for another key with an equal fingerprint. A session with a hint of the word's earlier use writes
/// the first key. It READs the object from one node and the slot from another. The READ of the object executes while
/// the object is half written: the generation is already the new one, but the key is still that of the previous object,
/// which is the key of the hint. The READ of the slot executes after the second key's word is in the slot. As far as
/// any session can tell, the first key was never inserted, so the second key must remain.
///
/// The run skips the uses of the object in between: the object's bytes are written directly, and the hint is made up.
/// Returns whether the two nodes differ and verbs to them are not ordered.
pub fn early_prefix(seed: u64) -> bool {
    let options = ClusterOptions { data_replicas: 1, ..small(seed, 1 + seed as u8 % 3) };
    let prepared = || {
        let (rng, cluster) = stepwise_or_immediate(seed, &options);
        let clients: [SimClient; 2] = clients_in_order(&rng, &cluster);
        let keys = StepWorkload::keys(&cluster.view(), 2, 0);
        (rng, cluster, clients, keys)
    };
    let hint = {
        let (rng, _cluster, [writer, _], keys) = prepared();
        alone(&rng, writer.insert(&keys[1], b"value")).unwrap().place.unwrap().uncertain()
    };

    let (rng, cluster, [writer, other], keys) = prepared();
    let view = cluster.view().clone();
    let class = hint.word.class().expect("it refers to an object");
    let generation = (hint.word.generation() + Slot::GENERATIONS - 1) % Slot::GENERATIONS;
    let mut before = vec![0; class.bytes() as usize];
    let identity = Identity::new(hint.word.address(), generation);
    let pair = Pair { key: &keys[0], value: b"value", identity, opcode: Opcode::Update };
    pair.encode(&mut before);
    let object = view.object(hint.word.address(), class.bytes()).unwrap().places().next().unwrap();
    for (offset, word) in (object.offset..).step_by(8).zip(before.chunks(8)) {
        let word = u64::from_le_bytes(word.try_into().expect("objects are whole words"));
        cluster.network().memories().overwrite(PoolPlace { node: object.node, offset }, word);
    }

    let slot = view.slot_on_primary(hint.slot);
    let network = cluster.network();
    network.links().hold(other.client(), slot.node, HELD_NS);
    let updated = Cell::new(None);
    let mut stepper = Stepper::new(&rng);
    stepper.spawn(async {
        let written = writer.insert(&keys[1], b"value").await;
        let place = written.unwrap().place.map(|place| place.uncertain());
        assert_eq!(place, Some(hint), "as it went before");
        network.links().release(other.client(), slot.node);
    });
    stepper.spawn(async {
        idle(rng.below(16)).await;
        updated.set(Some(other.update(&keys[0], b"other", Some(hint)).await));
    });
    stepper.run(MAX_STEPS, || ());
    assert_eq!(updated.take(), Some(Err(Error::NotFound)), "nobody has inserted it");
    let found = alone(&rng, writer.search(&keys[1], None)).unwrap();
    assert_eq!(found.value(), Some(&b"value"[..]));
    check_replicas_agree(&cluster);
    slot.node != object.node && !network.options().immediate
}
