//! Random operations of random clients on a few keys: every history must be linearizable, and no
//! key may be live twice at any step.
//!
//! A failure prints its seed; `FUSEE_SIM_SEED=<seed>` runs nothing but that seed again.

use fusee_core::stats::OpKind::{self, Delete, Insert, Search, SearchMany, Update, Upsert};
use fusee_core::view::Geometry;
use fusee_sim::{Cluster, ClusterOptions, Executor, Rng, SimStore, Workload};

const MAX_STEPS: u64 = 2_000_000;

/// The one seed to run, if the environment names one.
fn replay() -> Option<u64> {
    let seed = std::env::var("FUSEE_SIM_SEED").ok()?;
    Some(seed.parse().expect("FUSEE_SIM_SEED is a number"))
}

/// Runs `scenario` for every seed. Neighbouring seeds differ in the number of index replicas.
fn for_all(seeds: u64, replicas: &[usize], scenario: impl Fn(&mut Cluster, &Rng)) {
    for seed in replay().map_or(0..seeds, |seed| seed..seed + 1) {
        let rng = Rng::new(seed);
        let index_replicas = replicas[seed as usize % replicas.len()];
        // Thousands of clusters are made: small ones.
        let geometry = Geometry {
            region_bytes: 1 << 17,
            block_bytes: 1 << 12,
            slots_per_bucket: 1 + rng.below(2) as u8,
            max_value_bytes: 512,
            ..ClusterOptions::default().geometry
        };
        let options = ClusterOptions {
            memory_nodes: 5,
            index_replicas,
            geometry,
            ..ClusterOptions::default()
        };
        let run = || scenario(&mut Cluster::new(&rng, &options), &rng);
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            eprintln!("failed with {index_replicas} index replicas: FUSEE_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// What one task does, one operation after another.
type Plan = Vec<(OpKind, usize)>;

/// How often each kind of operation is drawn.
type Mix = [(OpKind, usize); 6];

fn draw(rng: &Rng, mix: &Mix) -> OpKind {
    let mut left = rng.below(mix.iter().map(|(_, weight)| weight).sum());
    let drawn = mix.iter().find(|(_, weight)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    drawn.expect("the weights cover what was drawn").0
}

/// A few keys, sometimes with the same buckets and fingerprint.
fn few_keys(cluster: &Cluster, rng: &Rng) -> Vec<Vec<u8>> {
    let n = 1 + rng.below(3);
    match rng.below(2) {
        0 => Workload::keys(cluster.view(), n, 0),
        _ => Workload::keys(cluster.view(), 1, n - 1),
    }
}

/// Plans of 2 to 4 tasks that mix everything, with one of several emphases.
fn mixed_plans(rng: &Rng, keys: usize) -> Vec<Plan> {
    let weights = [
        [3, 2, 1, 3, 2, 1],
        [4, 0, 0, 4, 1, 0],
        [2, 1, 2, 3, 1, 0],
        [0, 3, 3, 2, 2, 1],
        [4, 1, 1, 4, 0, 0],
    ][rng.below(5)];
    let kinds = [Insert, Update, Upsert, Delete, Search, SearchMany];
    let mix: Mix = std::array::from_fn(|i| (kinds[i], weights[i]));
    (0..2 + rng.below(3))
        .map(|_| (0..2 + rng.below(5)).map(|_| (draw(rng, &mix), rng.below(keys))).collect())
        .collect()
}

/// Plans of 3 tasks that insert and delete key 0, and of up to 2 more that keep the slots around
/// it moving with other keys.
fn fighting_plans(rng: &Rng, keys: usize) -> Vec<Plan> {
    let fight: Mix = [(Insert, 2), (Delete, 2), (Search, 1), (Update, 0), (Upsert, 0), (Search, 0)];
    let churn: Mix = [(Insert, 1), (Delete, 1), (Search, 0), (Update, 0), (Upsert, 0), (Search, 0)];
    let other = || 1 + rng.below(keys - 1);
    (0..3 + rng.below(3))
        .map(|task| {
            (0..2 + rng.below(5))
                .map(|_| match task {
                    0..3 if rng.below(8) > 0 => (draw(rng, &fight), 0),
                    0..3 => (draw(rng, &fight), other()),
                    _ => (draw(rng, &churn), other()),
                })
                .collect()
        })
        .collect()
}

/// One task per plan, on up to 4 sessions. Some keys exist before.
fn tasks<'t>(
    rng: &Rng,
    cluster: &Cluster,
    workload: &'t Workload,
    stores: &'t [SimStore],
    keys: usize,
    plans: Vec<Plan>,
) -> Executor<'t> {
    let existing: Vec<usize> = (0..keys).filter(|_| rng.below(2) == 0).collect();
    let mut executor = Executor::new(rng);
    executor.spawn(async {
        for key in existing {
            workload.run(&stores[0], Insert, key).await;
        }
    });
    executor.run(MAX_STEPS, || cluster.assert_no_duplicates());
    let mut executor = Executor::new(rng);
    for (i, plan) in plans.into_iter().enumerate() {
        let store = &stores[i % stores.len()];
        executor.spawn(async move {
            for (kind, key) in plan {
                workload.run(store, kind, key).await;
            }
        });
    }
    executor
}

fn sessions(rng: &Rng, cluster: &Cluster) -> Vec<SimStore> {
    (0..1 + rng.below(4)).map(|_| cluster.client()).collect()
}

/// Runs the plans to their end, then reads every key.
fn run(rng: &Rng, cluster: &Cluster, workload: &Workload, keys: usize, plans: Vec<Plan>) {
    let stores = sessions(rng, cluster);
    let executor = tasks(rng, cluster, workload, &stores, keys, plans);
    executor.run(MAX_STEPS, || cluster.assert_no_duplicates());
    cluster.assert_replicas_agree();
    let mut executor = Executor::new(rng);
    executor.spawn(async {
        for key in 0..keys {
            workload.run(&stores[0], Search, key).await;
        }
    });
    executor.run(MAX_STEPS, || ());
}

#[test]
fn operations_of_all_kinds_are_linearizable() {
    for_all(25_000, &[1, 2, 3, 4, 5], |cluster, rng| {
        let keys = few_keys(cluster, rng);
        let n = keys.len();
        let workload = Workload::new(rng, keys);
        run(rng, cluster, &workload, n, mixed_plans(rng, n));
        workload.assert_linearizable();
    });
}

/// The hard case of INSERT: several clients want one key in different free slots, while DELETEs
/// and other keys keep changing which slots are free.
#[test]
fn inserts_of_one_key_among_moving_slots_are_linearizable() {
    for_all(30_000, &[1, 2, 3, 4, 5], |cluster, rng| {
        let n = 3 + rng.below(4);
        let workload = Workload::new(rng, Workload::keys(cluster.view(), 1, n - 1));
        run(rng, cluster, &workload, n, fighting_plans(rng, n));
        workload.assert_linearizable();
    });
}

/// All clients crash at some step and a node of the index is lost: after the repair its replicas
/// agree, no key is live twice, and new clients see what any acknowledged or observed write left.
#[test]
fn what_crashed_clients_leave_survives_the_loss_of_an_index_node() {
    let crashed = std::cell::Cell::new(0);
    for_all(15_000, &[2, 3, 4, 5], |cluster, rng| {
        let keys = few_keys(cluster, rng);
        let n = keys.len();
        let workload = Workload::new(rng, keys);
        let stores = sessions(rng, cluster);
        let executor = tasks(rng, cluster, &workload, &stores, n, mixed_plans(rng, n));
        let steps = 1 + rng.below(300) as u64;
        let crash = executor.run_and_crash(steps, || cluster.assert_no_duplicates());
        crashed.set(crashed.get() + u64::from(crash));
        let replicas = cluster.view().subtables[0].places.len();
        cluster.lose_index_replica(rng.below(replicas));
        cluster.assert_replicas_agree();
        cluster.assert_no_duplicates();
        run(rng, cluster, &workload, n, mixed_plans(rng, n));
        workload.assert_linearizable();
    });
    let enough = crashed.get() > 7_000 || replay().is_some();
    assert!(enough, "clients were running in {} crashes only", crashed.get());
}
