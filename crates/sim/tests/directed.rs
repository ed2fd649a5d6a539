//! Histories that random schedules hardly ever come to, steered by hand.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fusee_core::error::Error;
use fusee_core::race::Buckets;
use fusee_core::view::SlotRef;
use fusee_sim::{Cluster, ClusterOptions, Rng, SimStore};

/// A running INSERT or other operation, one step per poll.
struct Task<'s> {
    future: Pin<Box<dyn Future<Output = Result<(), Error>> + 's>>,
    result: Option<Result<(), Error>>,
}

impl<'s> Task<'s> {
    fn insert(store: &'s SimStore, key: &'s [u8]) -> Task<'s> {
        let future = async move { store.insert(key, b"value").await.map(drop) };
        Task { future: Box::pin(future), result: None }
    }

    /// Takes up to `steps` steps, while `go_on`.
    fn step(&mut self, cluster: &Cluster, steps: usize, go_on: impl Fn() -> bool) {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..steps {
            if self.result.is_some() || !go_on() {
                return;
            }
            if let Poll::Ready(result) = self.future.as_mut().poll(&mut context) {
                self.result = Some(result);
            }
            cluster.assert_no_duplicates();
        }
    }
}

/// Runs one operation to its end, alone.
fn alone<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100_000 {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
    }
    panic!("an operation that runs alone does not end");
}

/// The slot that an INSERT takes in an empty index.
fn first_choice(key: &[u8]) -> SlotRef {
    let cluster = Cluster::new(&Rng::new(0), &ClusterOptions::default());
    let store = cluster.client();
    alone(store.insert(key, b"value")).unwrap().place.unwrap().slot
}

/// Two more keys whose first choice is that of `key`, with fingerprints of their own.
fn rivals_of(key: &[u8]) -> [Vec<u8>; 2] {
    let cluster = Cluster::new(&Rng::new(0), &ClusterOptions::default());
    let fingerprint = |key: &[u8]| Buckets::of(key, cluster.view()).fingerprint;
    let slot = first_choice(key);
    let mut rivals = (0..1000u32)
        .map(|i| format!("rival {i}").into_bytes())
        .filter(|k| first_choice(k) == slot && fingerprint(k) != fingerprint(key));
    let mut next = || rivals.next().expect("among a thousand keys there are some");
    [next(), next()]
}

/// A look counts only after the own word stands on the first backup.
///
/// A and C fight for a slot with different keys; C gets the first backup, A the second. A's CAS
/// on the first backup fails, so the look behind it proves nothing. Now D inserts A's key into
/// another slot (D began when the first slot was still taken by a key that is gone since) and
/// sees nothing of A on the first backup. A wins by Rule 3, having the smaller identity. Only the
/// look behind its repair of the first backup shows D's entry.
#[test]
fn a_look_before_the_own_word_stands_proves_nothing() {
    let key = b"key";
    let slot = first_choice(key);
    let [gone, other] = rivals_of(key);
    let mut steered = 0;
    for seed in 0..4000 {
        let rng = Rng::new(seed);
        let cluster = Cluster::new(&rng, &ClusterOptions::default());
        let stores: Vec<SimStore> = (0..4).map(|_| cluster.client()).collect();
        let [a, c, d, e] = &stores[..] else { unreachable!() };
        // A gets its block before C, and so the smaller identity.
        for store in [a, c, d] {
            assert_eq!(alone(store.update(b"none", b"", None)), Err(Error::NotFound));
        }
        alone(e.insert(&gone, b"value")).unwrap();
        let mut late = Task::insert(d, key);
        late.step(&cluster, 4 + rng.below(10), || true);
        alone(e.delete(&gone, None)).unwrap();

        let backups: Vec<_> = cluster.view().slot_places(slot).skip(1).collect();
        let on = |i: usize| cluster.word_at(backups[i]);
        let free = on(0);
        let mut rival = Task::insert(c, &other);
        rival.step(&cluster, 40, || on(0) == free && on(1) == free);
        let c_first = on(0) != free && on(1) == free;
        let mut first = Task::insert(a, key);
        first.step(&cluster, 6 + rng.below(20), || true);
        steered += usize::from(c_first && on(1) != free && on(1) != on(0));

        late.step(&cluster, 400, || true);
        let mut tasks = [first, late, rival];
        for _ in 0..20_000 {
            let i = rng.below(3);
            tasks[i].step(&cluster, 1, || true);
            if tasks.iter().all(|t| t.result.is_some()) {
                break;
            }
        }
        cluster.assert_replicas_agree();
        let [first, late, rival] = tasks.map(|t| t.result.expect("every INSERT ends"));
        assert_eq!(rival, Ok(()));
        let both = [&first, &late];
        assert_eq!(both.iter().filter(|r| r.is_ok()).count(), 1, "seed {seed}: {both:?}");
    }
    assert!(steered > 100, "the schedule is hardly ever the intended one: {steered}");
}
