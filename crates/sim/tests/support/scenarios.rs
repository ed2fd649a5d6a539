//! Operations under random schedules, in some scenarios with a crash of all clients at once. Each run follows from one
//! seed.
//!
//! Every run checks that no key is live twice at any step, that the replicas agree at the end, and that each key has a
//! linearizable history.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fusee_core::stats::OpKind::{self, Delete, Insert, Search, SearchMany, Update, Upsert};
use fusee_sim::check::check_replicas_agree;
use fusee_sim::{Rng, SimClient, SimCluster, Stepper};

use super::crash::idle;
use super::workload::StepWorkload;
use super::{MAX_STEPS, alone, lose_index_replica, small, stepwise_or_immediate};

/// The operations of one task, in order.
type Plan = Vec<(OpKind, usize)>;

/// A run with its cluster and keys.
struct StepRun {
    rng: Rng,
    cluster: SimCluster,
    workload: StepWorkload,
    keys: usize,
}

impl StepRun {
    /// Makes a run. Successive seeds have different numbers of index replicas.
    fn new(seed: u64, replicas: &[u8], keys: fn(&Rng) -> (usize, usize)) -> StepRun {
        let index_replicas = replicas[seed as usize % replicas.len()];
        let (rng, cluster) = stepwise_or_immediate(seed, &small(seed, index_replicas));
        let (colliding, others) = keys(&rng);
        let workload =
            StepWorkload::new(&rng, StepWorkload::keys(&cluster.view(), colliding, others));
        StepRun { rng, cluster, workload, keys: colliding + others }
    }

    fn sessions(&self, at_least: usize) -> Vec<SimClient> {
        (0..at_least + self.rng.below(4)).map(|_| self.cluster.client()).collect()
    }

    /// Draws a kind of operation by weight.
    fn draw(&self, mix: &[(OpKind, usize)]) -> OpKind {
        let mut left = self.rng.below(mix.iter().map(|(_, weight)| weight).sum());
        for (kind, weight) in mix {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *kind,
            }
        }
        unreachable!("the weights cover what was drawn")
    }

    async fn follow(&self, store: &SimClient, plan: Plan) {
        for (kind, key) in plan {
            self.workload.run(store, kind, key).await;
        }
    }

    /// Runs one plan without any other task.
    fn alone(&self, store: &SimClient, plan: Plan) {
        let mut stepper = Stepper::new(&self.rng);
        stepper.spawn(self.follow(store, plan));
        stepper.run(MAX_STEPS, || ());
    }

    /// Inserts about half of the keys.
    fn fill(&self, store: &SimClient) {
        let some = (0..self.keys).filter(|_| self.rng.below(2) == 0);
        self.alone(store, some.map(|key| (Insert, key)).collect());
    }

    fn tasks<'t>(&'t self, stores: &'t [SimClient], plans: Vec<Plan>) -> Stepper<'t> {
        let mut stepper = Stepper::new(&self.rng);
        for (i, plan) in plans.into_iter().enumerate() {
            stepper.spawn(self.follow(&stores[i % stores.len()], plan));
        }
        stepper
    }

    /// Runs the tasks to their ends, reads every key, and checks the histories.
    fn conclude(&self, tasks: Stepper<'_>, reader: &SimClient) {
        tasks.run(MAX_STEPS, || ());
        check_replicas_agree(&self.cluster);
        self.alone(reader, (0..self.keys).map(|key| (Search, key)).collect());
        self.workload.assert_linearizable();
    }

    /// Loses a memory node with index replicas after all clients have crashed, and then runs new clients.
    fn lose_a_replica(&self) {
        lose_index_replica(&self.rng, &self.cluster);
        check_replicas_agree(&self.cluster);
        let stores = self.sessions(1);
        self.conclude(self.tasks(&stores, self.mixed_plans()), &stores[0]);
    }

    /// Draws plans for 2 to 4 tasks with operations of all kinds, with one of several emphases.
    fn mixed_plans(&self) -> Vec<Plan> {
        let weights = [
            [3, 2, 1, 3, 2, 1],
            [4, 0, 0, 4, 1, 0],
            [2, 1, 2, 3, 1, 0],
            [0, 3, 3, 2, 2, 1],
            [4, 1, 1, 4, 0, 0],
        ][self.rng.below(5)];
        let kinds = [Insert, Update, Upsert, Delete, Search, SearchMany];
        let mix: [_; 6] = std::array::from_fn(|i| (kinds[i], weights[i]));
        let one = || (self.draw(&mix), self.rng.below(self.keys));
        (0..2 + self.rng.below(3))
            .map(|_| (0..2 + self.rng.below(5)).map(|_| one()).collect())
            .collect()
    }

    /// Draws plans for 3 tasks that insert and delete key 0, and for up to 2 further tasks that insert and delete other
    /// keys, to change the slots around key 0.
    fn fighting_plans(&self) -> Vec<Plan> {
        let fight = [(Insert, 2), (Delete, 2), (Search, 1)];
        let churn = [(Insert, 1), (Delete, 1)];
        let other = || 1 + self.rng.below(self.keys - 1);
        let one = |task| match task {
            0..3 if self.rng.below(8) > 0 => (self.draw(&fight), 0),
            0..3 => (self.draw(&fight), other()),
            _ => (self.draw(&churn), other()),
        };
        (0..3 + self.rng.below(3))
            .map(|task| (0..2 + self.rng.below(5)).map(|_| one(task)).collect())
            .collect()
    }

    /// Begins 4 to 9 operations one after another. Operations on key 0 stop after a few steps, mostly when they have
    /// just read which slots are free. Operations on other keys mostly end, and change which slots are free. Returns
    /// the operations that have not ended.
    fn burst<'t>(&'t self, stores: &'t [SimClient]) -> Stepper<'t> {
        let mix = [(Insert, 6), (Upsert, 1), (Delete, 2), (Search, 1)];
        let others = [(Insert, 1), (Delete, 1)];
        let mut stepper = Stepper::new(&self.rng);
        for i in 0..4 + self.rng.below(6) {
            let key = self.rng.below(2) * self.rng.below(self.keys);
            let kind = self.draw(if key == 0 { &mix } else { &others });
            let whole = self.rng.below(8) < if key == 0 { 1 } else { 6 };
            let steps = if whole { 2000 } else { 1 + self.rng.below(24) };
            let mut task = Box::pin(self.follow(&stores[i % stores.len()], vec![(kind, key)]));
            if !self.step(task.as_mut(), steps) {
                stepper.spawn(task);
            }
        }
        stepper
    }

    /// Takes up to `steps` steps of one task. Returns whether the task has ended.
    fn step(&self, mut task: Pin<&mut impl Future<Output = ()>>, steps: usize) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        (0..steps).any(|_| task.as_mut().poll(&mut context) == Poll::Ready(()))
    }
}

/// Draws 1 to 3 keys, which in half of the cases share their buckets and fingerprint.
fn few_keys(rng: &Rng) -> (usize, usize) {
    let n = 1 + rng.below(3);
    if rng.below(2) == 0 { (n, 0) } else { (1, n - 1) }
}

/// Draws 3 to 5 keys that share their buckets and fingerprint.
fn alike_keys(rng: &Rng) -> (usize, usize) {
    (3 + rng.below(3), 0)
}

/// Draws 3 to 6 keys that are not chosen to share buckets or fingerprints.
fn more_keys(rng: &Rng) -> (usize, usize) {
    (1, 2 + rng.below(4))
}

/// Operations of all kinds run on few keys.
pub fn mixed(seed: u64) {
    let run = StepRun::new(seed, &[1, 2, 3, 4, 5], few_keys);
    let stores = run.sessions(1);
    run.fill(&stores[0]);
    run.conclude(run.tasks(&stores, run.mixed_plans()), &stores[0]);
}

/// INSERTs and DELETEs of one key run while other keys change which slots are free.
pub fn fight(seed: u64) {
    let run = StepRun::new(seed, &[1, 2, 3, 4, 5], more_keys);
    let stores = run.sessions(1);
    run.fill(&stores[0]);
    run.conclude(run.tasks(&stores, run.fighting_plans()), &stores[0]);
}

/// Operations stop half-way, each at another step, and then continue together.
pub fn bursts(seed: u64) {
    let run = StepRun::new(seed, &[1, 2, 3, 4, 5], alike_keys);
    let stores = run.sessions(1);
    run.fill(&stores[0]);
    run.conclude(run.burst(&stores), &stores[0]);
}

/// Conflict rounds on the slot of one key follow each other, and some clients fall behind.
pub fn rounds(seed: u64) {
    let run = StepRun::new(seed, &[2, 3, 4, 5], |_| (1, 0));
    let stores = run.sessions(2);
    run.alone(&stores[0], vec![(Insert, 0)]);
    let mix = [(Update, 6), (Upsert, 1), (Delete, 1), (Search, 2)];
    let plans = (0..3 + run.rng.below(3))
        .map(|_| (0..1 + run.rng.below(5)).map(|_| (run.draw(&mix), 0)).collect())
        .collect();
    run.conclude(run.tasks(&stores, plans), &stores[0]);
}

/// Operations run as in [`mixed`]. All clients crash together after a random number of steps, and then a memory node
/// with index replicas is lost.
pub fn crash(seed: u64) {
    let run = StepRun::new(seed, &[2, 3, 4, 5], few_keys);
    let stores = run.sessions(1);
    run.fill(&stores[0]);
    let tasks = run.tasks(&stores, run.mixed_plans());
    let steps = 1 + run.rng.below(300) as u64;
    tasks.run_and_crash(steps, || ());
    run.lose_a_replica();
}

/// Operations run as in [`bursts`]. All clients crash together, and then a memory node with index replicas is lost.
pub fn bursts_crash(seed: u64) {
    let run = StepRun::new(seed, &[2, 3, 4, 5], alike_keys);
    let stores = run.sessions(1);
    run.fill(&stores[0]);
    let tasks = run.burst(&stores);
    let steps = run.rng.below(100) as u64;
    tasks.run_and_crash(steps, || ());
    run.lose_a_replica();
}

/// Operations run as in [`mixed`] while objects are damaged on one replica. At the end most objects are damaged. A
/// SEARCH of each key repairs the damage that it meets, so that a second SEARCH meets none.
pub fn damage(seed: u64) {
    let run = StepRun::new(seed, &[1, 2, 3, 4, 5], few_keys);
    let stores = run.sessions(1);
    run.fill(&stores[0]);
    let network = run.cluster.network();
    let mut tasks = run.tasks(&stores, run.mixed_plans());
    tasks.spawn(async {
        for _ in 0..4 + run.rng.below(12) {
            idle(run.rng.below(60)).await;
            network.damage().inflict(&run.rng);
        }
    });
    run.conclude(tasks, &stores[0]);
    for _ in 0..3 * run.keys {
        network.damage().inflict(&run.rng);
    }
    let reader = &stores[0];
    let keys = run.cluster.checks().live_keys();
    let search_all = || {
        let before = *reader.stats().kind(Search);
        for key in &keys {
            let found = alone(&run.rng, reader.search(key, None)).map(|found| found.hint());
            assert!(matches!(found, Ok(Some(_))), "{key:02x?}: {found:?}");
        }
        reader.stats().kind(Search).phases - before.phases
    };
    search_all();
    assert_eq!(search_all(), 2 * keys.len() as u64, "the phases of SEARCHes of what is repaired");
}
