//! Histories that random schedules hardly ever come to, steered by hand.
//!
//! A client that is *halted* takes no step, and its verbs that are on the way stay there. The test
//! lets one client go on at a time, for a number of verbs or until memory shows something, and all
//! of them together in the end. Delays and tearing are those of any other run.

use std::cell::RefCell;

use fusee_core::error::Error;
use fusee_core::layout::Address;
use fusee_core::race::Buckets;
use fusee_core::view::SlotRef;
use fusee_sim::check::replicas_agree;
use fusee_sim::{Client, Cluster, ClusterOptions, Executor, Nanos, NetworkOptions, Sim};

/// Longer than any test takes, in virtual time.
const FOR_EVER: Nanos = 1 << 60;
const MAX_EVENTS: u64 = 2_000_000;

/// A cluster whose clients never take a node for unreachable, however long they are halted.
fn patient_cluster(sim: &Sim) -> Cluster {
    let network = NetworkOptions { verb_timeout_ns: 2 * FOR_EVER, ..NetworkOptions::default() };
    Cluster::with_network(sim, &ClusterOptions::default(), network)
}

/// From now on the client does nothing, and nothing that it has posted executes.
fn halt(cluster: &Cluster, client: &Client) {
    cluster.sim().stop(client.process);
    for (node, _) in cluster.node_processes() {
        cluster.network().hold(client.client(), node, FOR_EVER);
    }
}

/// A halted client goes on.
fn go(cluster: &Cluster, client: &Client) {
    for (node, _) in cluster.node_processes() {
        cluster.network().release(client.client(), node);
    }
    cluster.sim().resume(client.process);
}

/// Lets one halted client go on while all others are halted, until `verbs` of its verbs have
/// executed or `done`. It is halted again then.
fn advance(
    executor: &mut Executor<'_>,
    cluster: &Cluster,
    client: &Client,
    verbs: u64,
    done: impl Fn() -> bool,
) {
    let executed = || cluster.sim().counts().verbs.get();
    let end = executed() + verbs;
    go(cluster, client);
    executor.run_until(MAX_EVENTS, || executed() >= end || done());
    halt(cluster, client);
}

/// The slot that an INSERT takes in an empty index.
fn first_choice(key: &[u8]) -> SlotRef {
    let cluster = Cluster::new(&Sim::new(0), &ClusterOptions::default());
    let client = cluster.client();
    let inserted = cluster.block_on(client.process, client.insert(key, b"value"));
    inserted.unwrap().place.unwrap().slot
}

/// Two more keys whose first choice is that of `key`, with fingerprints of their own.
fn rivals_of(key: &[u8]) -> [Vec<u8>; 2] {
    let cluster = Cluster::new(&Sim::new(0), &ClusterOptions::default());
    let fingerprint = |key: &[u8]| Buckets::of(key, &cluster.view()).fingerprint;
    let slot = first_choice(key);
    let mut rivals = (0..1000u32)
        .map(|i| format!("rival {i}").into_bytes())
        .filter(|k| first_choice(k) == slot && fingerprint(k) != fingerprint(key));
    let mut next = || rivals.next().expect("among a thousand keys there are some");
    [next(), next()]
}

/// Where this client's objects are. All of its next ones come after this address, in one block.
fn takes_block(cluster: &Cluster, client: &Client) -> Address {
    cluster.block_on(client.process, async {
        let inserted = client.insert(b"else", b"value").await.unwrap();
        client.delete(b"else", None).await.unwrap();
        inserted.place.unwrap().word.address()
    })
}

/// What became of the three INSERTs: of one key by A and D, of another one by C.
struct Results {
    first: Result<(), Error>,
    late: Result<(), Error>,
    rival: Result<(), Error>,
    /// Whether C had the first backup and A the second.
    steered: bool,
}

/// One run of the history that [`a_look_before_the_own_word_stands_proves_nothing`] is about.
fn fight(seed: u64, slot: SlotRef, key: &[u8], gone: &[u8], other: &[u8]) -> Results {
    let sim = Sim::new(seed);
    let rng = sim.rng();
    let cluster = patient_cluster(&sim);
    let mut clients: Vec<Client> = (0..4).map(|_| cluster.client()).collect();
    // A has smaller addresses than C, and so the smaller identity.
    clients.sort_by_cached_key(|client| takes_block(&cluster, client));
    let [a, c, d, e] = &clients[..] else { unreachable!() };
    cluster.block_on(e.process, e.insert(gone, b"value")).unwrap();

    let results = RefCell::new([const { None }; 3]);
    let ended = |who: usize| results.borrow()[who].is_some();
    let insert = async |who: usize, client: &Client, key: &[u8]| {
        let result = client.insert(key, b"value").await.map(drop);
        results.borrow_mut()[who] = Some(result);
    };
    let e_is_done = RefCell::new(None);
    for client in &clients {
        halt(&cluster, client);
    }
    let mut executor = Executor::new(&sim);
    executor.spawn(a.process, insert(0, a, key));
    executor.spawn(d.process, insert(1, d, key));
    executor.spawn(c.process, insert(2, c, other));
    executor.spawn(e.process, async { *e_is_done.borrow_mut() = Some(e.delete(gone, None).await) });

    // D writes its object to two nodes and reads two buckets. Then some of it may come further.
    advance(&mut executor, &cluster, d, 4 + rng.below_u64(8), || ended(1));
    advance(&mut executor, &cluster, e, u64::MAX / 2, || e_is_done.borrow().is_some());
    e_is_done.take().expect("the DELETE has ended").unwrap();

    let backups: Vec<_> = cluster.view().slot_places(slot).skip(1).collect();
    let on = |i: usize| cluster.network().word_at(backups[i]);
    let free = on(0);
    advance(&mut executor, &cluster, c, 40, || ended(2) || on(0) != free || on(1) != free);
    let c_first = on(0) != free && on(1) == free;
    // A's first phase is as D's; the second is two CASes with two READs of the look.
    advance(&mut executor, &cluster, a, 5 + rng.below_u64(8), || ended(0));
    let steered = c_first && on(1) != free && on(1) != on(0);
    advance(&mut executor, &cluster, d, 400, || ended(1));

    for client in [a, c, d] {
        go(&cluster, client);
    }
    executor.run(MAX_EVENTS, || ());
    drop(executor);
    replicas_agree(&cluster);
    let keys = cluster.live_keys();
    assert_eq!(keys.iter().filter(|k| *k == key).count(), 1, "seed {seed}: {keys:?}");
    let [first, late, rival] = results.into_inner().map(|r| r.expect("every INSERT ends"));
    Results { first, late, rival, steered }
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
    for seed in 0..1000 {
        let results = fight(seed, slot, key, &gone, &other);
        steered += u32::from(results.steered);
        assert_eq!(results.rival, Ok(()), "seed {seed}");
        let both = [&results.first, &results.late];
        assert_eq!(both.iter().filter(|r| r.is_ok()).count(), 1, "seed {seed}: {both:?}");
        assert!(both.contains(&&Err(Error::AlreadyExists)), "seed {seed}: {both:?}");
    }
    assert!(steered > 100, "the schedule is hardly ever the intended one: {steered}");
}
