//! Runs in which clients and memory nodes with index replicas fail, under random schedules, each from one seed. A run
//! that breaks a promise panics.
//!
//! * [`client_crash`]: some clients die at random steps while other clients run. Each dead client is recovered a random
//!   time later, while other clients run, and its recovery is sometimes cut off and repeated. The remainders of its
//!   blocks go to other clients, some of which die as well.
//! * [`insert_crash`]: the same happens to clients whose INSERTs find each other.
//! * [`index_node_loss`]: all clients die, then a memory node with index replicas is lost, then the slots that it held
//!   are settled and the clients are recovered.
//!
//! Every run checks that no key is live twice at any step, that no task waits for ever, that replicas agree at rest,
//! that the history of every key is linearizable, and that a second recovery changes nothing.

// Promise REC-2: Recovery may be interrupted and run again; twice changes nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use fusee_control::master::{MasterReply, MasterRequest, Orphan};
use fusee_control::node::BlockId;
use fusee_core::recovery::{BlockReport, RecoveryResult, recover};
use fusee_core::repair::transform;
use fusee_core::slab::BlockRemainder;
use fusee_core::stats::OpKind::{self, Delete, Insert, Search, SearchMany, Update, Upsert};
use fusee_core::verbs::{ClientId, MnId};
use fusee_sim::check::{check_quiescent, check_replicas_agree};
use fusee_sim::{ClusterOptions, Rng, SimClient, SimCluster, Stepper};

use super::crash::{ClientLife, cut_off, idle};
use super::seeds::Seeds;
use super::workload::StepWorkload;
use super::{
    MAX_STEPS, alone, blocks_of, forget, index, log_areas_of, operator_fabric, replicas_differ,
    small, stepwise_or_immediate,
};

/// Counts of a run, which show whether the run was a hard one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Clients that died during an operation. Clients that die at one step count as one.
    pub crashed: u64,
    /// Times that a session found a slot word that leads to a pair lost with its only memory node.
    pub gone: u64,
    /// Recoveries and other jobs that were cut off.
    pub cut_off: u64,
    /// Conflict rounds that recovery committed.
    pub committed: u64,
    /// See [`RecoveryResult::withdrawn`].
    pub withdrawn: u64,
    /// See [`RecoveryResult::dropped`].
    pub dropped: u64,
    /// Block remainders that were handed on to other sessions.
    pub handed_on: u64,
    /// Slots that settling has changed.
    pub slots_settled: u64,
    /// View changes that began again because another node was lost.
    pub begun_anew: u64,
    /// Times that a view change suspended writes of a session.
    pub stopped: u64,
    /// Writes to objects whose addresses had been used before.
    pub reused: u64,
    /// Writes that found no memory.
    pub out_of_memory: u64,
    /// SEARCHes that `search_now` answered.
    pub searches_now: u64,
    /// Writes that took no more phases than `Op::write_now` takes.
    pub writes_now: u64,
    /// Writes that used the first bytes of an object as proof for a slot on another node.
    pub proofs_across_nodes: u64,
    /// Writes that began with a speculative write.
    pub speculations: u64,
    /// Entries that splits moved, and replicas that view changes moved.
    pub moved: u64,
    /// Words of live objects that were damaged.
    pub damaged: u64,
}

impl FailureCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &FailureCounts) {
        self.crashed += other.crashed;
        self.gone += other.gone;
        self.cut_off += other.cut_off;
        self.committed += other.committed;
        self.withdrawn += other.withdrawn;
        self.dropped += other.dropped;
        self.handed_on += other.handed_on;
        self.slots_settled += other.slots_settled;
        self.begun_anew += other.begun_anew;
        self.stopped += other.stopped;
        self.moved += other.moved;
        self.damaged += other.damaged;
        self.speculations += other.speculations;
        self.searches_now += other.searches_now;
        self.writes_now += other.writes_now;
        self.proofs_across_nodes += other.proofs_across_nodes;
        self.reused += other.reused;
        self.out_of_memory += other.out_of_memory;
    }
}

/// Runs a scenario for every seed, and returns the sums of the counts. Returns `None` if fewer seeds were to run.
pub fn for_all(seeds: u64, scenario: fn(u64) -> FailureCounts) -> Option<FailureCounts> {
    let seeds = Seeds::of(seeds);
    let are_all = seeds.are_all;
    let mut events = FailureCounts::default();
    seeds.for_each(|seed| events.add(&scenario(seed)));
    println!("{events:?}");
    are_all.then_some(events)
}

/// Clients die while other clients run, and are recovered. Successive seeds have different numbers of index replicas,
/// from 1 to 5.
pub fn client_crash(seed: u64) -> FailureCounts {
    crash_and_recover(FailureRun::new(seed, 1 + seed as u8 % 5, PlanKind::Mixed))
}

/// Clients die and are recovered while they insert and delete one key, and other clients change which slots are free.
/// Therefore INSERTs have tentative words in several slots, find each other, and withdraw.
pub fn insert_crash(seed: u64) -> FailureCounts {
    crash_and_recover(FailureRun::new(seed, 1 + seed as u8 % 5, PlanKind::Fights))
}

/// Some clients die, and are recovered while other clients run.
pub fn crash_and_recover(run: FailureRun) -> FailureCounts {
    run.work(&[false]);
    for _ in 0..1 + run.rng.below(2) {
        let fates: Vec<bool> = (0..2 + run.rng.below(4)).map(|_| run.rng.below(5) > 1).collect();
        run.work(&fates);
        run.recover_again();
    }
    run.end()
}

/// All clients die at once. A memory node with index replicas is lost, and the slots that it held are settled. Then the
/// clients are recovered in the view without the node. There are 2 to 5 index replicas.
pub fn index_node_loss(seed: u64) -> FailureCounts {
    all_die_and_a_node(FailureRun::new(seed, 2 + seed as u8 % 4, PlanKind::Mixed))
}

/// All clients die at once, and then a memory node with index replicas is lost.
pub fn all_die_and_a_node(run: FailureRun) -> FailureCounts {
    run.work(&[false]);
    let before = run.clients.borrow().len();
    run.work_and_die();
    let places = run.cluster.view().subtables[0].replicas().to_vec();
    let lost = places[run.rng.below(places.len())].node;
    run.settle(lost);
    check_replicas_agree(&run.cluster);
    let died = run.clients.borrow()[before..].to_vec();
    for client in died {
        let report = run.alone(run.recover(client));
        let nothing = (report.committed, report.withdrawn, report.dropped, report.strange);
        assert_eq!(nothing, (0, 0, 0, 0), "settling leaves nothing half-way: {report:?}");
        run.hand_on(client, &report);
    }
    run.work(&[false, false]);
    run.end()
}

/// The kinds of operations that the clients of a run draw.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PlanKind {
    /// Operations of all kinds, with an emphasis that is drawn for each task.
    Mixed,
    /// Mostly INSERTs and DELETEs of key 0.
    Fights,
}

/// A run: its cluster, its keys, and its counts.
pub struct FailureRun {
    pub rng: Rng,
    plans: PlanKind,
    pub cluster: SimCluster,
    pub workload: StepWorkload,
    keys: usize,
    /// Number of regions with which the cluster was formed.
    regions: u32,
    /// All clients of the run so far.
    clients: RefCell<Vec<ClientId>>,
    /// The blocks that clients have left to the master.
    orphans: RefCell<BTreeMap<BlockId, Orphan>>,
    pub events: Cell<FailureCounts>,
    /// Number of jobs that the run has begun in the master's place.
    pub jobs: Cell<u64>,
}

impl FailureRun {
    /// Makes a run with this number of index replicas.
    pub fn new(seed: u64, index_replicas: u8, plans: PlanKind) -> FailureRun {
        FailureRun::of(seed, &small(seed, index_replicas), plans)
    }

    /// Makes the run use keys that are longer than the part of an object that is READ first, some of them by little,
    /// some by much.
    pub fn with_long_keys(self) -> FailureRun {
        let length = || self.rng.pick(&[100, 112, 113, 200, 300]);
        let key = |i: usize| vec![i as u8; length()];
        let workload = StepWorkload::new(&self.rng, (0..self.keys).map(key).collect());
        FailureRun { workload, ..self }
    }

    /// Makes a run on a cluster with these options.
    pub fn of(seed: u64, options: &ClusterOptions, plans: PlanKind) -> FailureRun {
        let (rng, cluster) = stepwise_or_immediate(seed, options);
        let n = match plans {
            PlanKind::Mixed => 1 + rng.below(3),
            PlanKind::Fights => 3 + rng.below(4),
        };
        let keys = match rng.below(2) {
            0 if plans == PlanKind::Mixed => StepWorkload::keys(&cluster.view(), n, 0),
            _ => StepWorkload::keys(&cluster.view(), 1, n - 1),
        };
        let workload = StepWorkload::new(&rng, keys);
        let regions = cluster.view().regions.len() as u32;
        FailureRun {
            regions,
            rng,
            plans,
            cluster,
            workload,
            keys: n,
            clients: RefCell::default(),
            orphans: RefCell::default(),
            events: Cell::default(),
            jobs: Cell::default(),
        }
    }

    pub fn client(&self) -> SimClient {
        let client = self.cluster.client();
        self.clients.borrow_mut().push(client.client());
        client
    }

    /// Returns the number of keys of the workload.
    pub fn keys(&self) -> usize {
        self.keys
    }

    pub fn count(&self, change: impl FnOnce(&mut FailureCounts)) {
        let mut events = self.events.get();
        change(&mut events);
        self.events.set(events);
    }

    /// Draws the operations of a task.
    fn plan(&self) -> Vec<(OpKind, usize)> {
        let any = |n| self.rng.below(n);
        let mixed = [
            [Insert, Delete, Update, Upsert, Search, SearchMany],
            [Insert, Insert, Delete, Delete, Insert, Search],
            [Update, Update, Upsert, Delete, Update, Search],
            [Insert, Upsert, Upsert, Delete, Update, Search],
        ][any(4)];
        let fights = [Insert, Delete, Insert, Delete, Upsert, Search];
        let churns = any(3) == 0;
        let operation = || match self.plans {
            PlanKind::Mixed => (mixed[any(6)], any(self.keys)),
            PlanKind::Fights if churns || any(8) == 0 => (fights[any(2)], 1 + any(self.keys - 1)),
            PlanKind::Fights => (fights[any(6)], 0),
        };
        (0..2 + any(5)).map(|_| operation()).collect()
    }

    /// Adds the tasks of one client: one to three tasks.
    pub fn spawn<'t>(
        &'t self,
        stepper: &mut Stepper<'t>,
        store: &'t SimClient,
        life: &'t ClientLife<'t>,
    ) {
        for _ in 0..1 + self.rng.below(3) {
            let plan = self.plan();
            stepper.spawn(life.task(async move {
                for (kind, key) in plan {
                    self.workload.run(store, kind, key).await;
                }
            }));
        }
    }

    /// Runs the tasks to their end.
    pub fn run(&self, stepper: Stepper<'_>) {
        stepper.run(MAX_STEPS, || ());
    }

    /// Returns the life of a client that will crash. In half of the cases, only steps at which the replicas of some
    /// slot differ shorten the life. Then some client, perhaps this one, is in the middle of a conflict round at the
    /// crash.
    pub fn short_life(&self) -> ClientLife<'_> {
        match self.rng.below(2) {
            0 => ClientLife::new(Some(1 + self.rng.below(400) as u64), || true),
            _ => {
                ClientLife::new(Some(self.rng.below(40) as u64), || replicas_differ(&self.cluster))
            }
        }
    }

    /// Lets one client for each of the `fates` work. A client whose fate is true dies and is recovered.
    pub fn work(&self, fates: &[bool]) {
        let life =
            |dies: &bool| if *dies { self.short_life() } else { ClientLife::new(None, || false) };
        let clients: Vec<(SimClient, ClientLife<'_>)> =
            fates.iter().map(|dies| (self.client(), life(dies))).collect();
        let mut stepper = Stepper::new(&self.rng);
        for ((store, life), dies) in clients.iter().zip(fates) {
            self.spawn(&mut stepper, store, life);
            if *dies {
                stepper.spawn(self.bury(store.client(), life));
            }
        }
        self.run(stepper);
        check_replicas_agree(&self.cluster);
        let living = clients.iter().zip(fates).filter(|(_, dies)| !**dies);
        living.for_each(|((client, _), _)| self.leave(client));
    }

    /// Ends the sessions of the live clients.
    pub fn leave_all(&self, clients: &[(SimClient, ClientLife<'_>)]) {
        let living = clients.iter().filter(|(_, life)| !life.crashed());
        living.for_each(|(client, _)| self.leave(client));
    }

    /// Recovers a client some time after its death. Sometimes earlier attempts at the recovery are cut off.
    pub async fn bury(&self, client: ClientId, life: &ClientLife<'_>) {
        life.ended().await;
        self.count(|e| e.crashed += u64::from(life.crashed()));
        idle(self.rng.below(300)).await;
        while self.rng.below(3) == 0 {
            let cut = cut_off(self.rng.below(80) as u64, self.recover(client)).await;
            self.count(|e| e.cut_off += u64::from(cut.is_none()));
            idle(self.rng.below(100)).await;
        }
        let report = self.recover(client).await;
        self.count(|e| {
            e.committed += report.committed;
            e.withdrawn += report.withdrawn;
            e.dropped += report.dropped;
        });
        let again = self.recover(client).await;
        assert_eq!((again.committed, again.withdrawn), (0, 0), "{report:?}, then {again:?}");
        self.cluster.checks().recovered(client);
        self.hand_on(client, &report);
    }

    /// Recovers a client that takes no more steps.
    pub async fn recover(&self, client: ClientId) -> RecoveryResult {
        let fabric = operator_fabric(&self.cluster);
        let view = self.cluster.view().clone();
        let blocks = blocks_of(&self.cluster, client);
        let areas = log_areas_of(&self.cluster, client);
        let areas: Vec<_> =
            areas.into_iter().filter(|(node, _)| view.member(*node).is_some()).collect();
        let report = recover(&fabric, &view, client, &blocks, &areas).await;
        let report = report.expect("all nodes that are left answer");
        assert_eq!(report.strange, 0, "{report:?}");
        assert_eq!(report.blocks.len(), blocks.len());
        report
    }

    /// Hands the remainders of a dead client's blocks to the master, which gives them to other sessions.
    pub fn hand_on(&self, client: ClientId, report: &RecoveryResult) {
        let geometry = self.cluster.view().geometry;
        let orphan = |block: &BlockReport| {
            let BlockRemainder { block, bytes, base, class, first, marked } = block.remainder()?;
            let block = BlockId::at(block, bytes, &geometry)?;
            Some(Orphan { block, owner: client, class, first, base, marked })
        };
        let orphans: Vec<_> = report.blocks.iter().filter_map(orphan).collect();
        self.count(|e| e.handed_on += orphans.len() as u64);
        self.close(client, orphans);
    }

    /// Ends the session of a live client.
    pub fn leave(&self, client: &SimClient) {
        let leaving = self.alone(client.session.leave());
        let store = client.session.store();
        assert!(!store.needs_recovery(), "it has left nothing half-way");
        match leaving {
            Some(leaving) => self.close(leaving.client, leaving.orphans),
            // The session possibly has blocks that it does not know of.
            None => {
                let report = self.alone(self.recover(store.client()));
                assert_eq!((report.committed, report.withdrawn), (0, 0), "{report:?}");
                self.hand_on(store.client(), &report);
            }
        }
    }

    fn close(&self, client: ClientId, mut orphans: Vec<Orphan>) {
        self.orphans.borrow_mut().extend(orphans.iter().map(|left| (left.block, *left)));
        // The master does not know the later regions, which are only in views that the test has made.
        orphans.retain(|left| left.block.region < self.regions);
        let answer = self.cluster.peek_master(MasterRequest::Close {
            client,
            orphans,
            work: Default::default(),
        });
        assert_eq!(answer, Some(MasterReply::Done));
    }

    /// Runs a task without any other task, and returns its result.
    pub fn alone<T>(&self, task: impl Future<Output = T>) -> T {
        alone(&self.rng, task)
    }

    /// Checks that at rest the recovery of any earlier client finds nothing to do.
    fn recover_again(&self) {
        let before = index(&self.cluster);
        for client in self.clients.borrow().iter().copied() {
            let report = self.alone(self.recover(client));
            let nothing = (report.committed, report.withdrawn, report.dropped);
            assert_eq!(nothing, (0, 0, 0), "at rest: {report:?}");
        }
        assert!(before == index(&self.cluster), "recovery at rest changed the index");
    }

    /// Makes some clients work, and crash together at one step.
    fn work_and_die(&self) {
        let clients: Vec<SimClient> = (0..1 + self.rng.below(4)).map(|_| self.client()).collect();
        let life = self.short_life();
        let mut stepper = Stepper::new(&self.rng);
        clients.iter().for_each(|store| self.spawn(&mut stepper, store, &life));
        self.run(stepper);
        self.count(|e| e.crashed += u64::from(life.crashed()));
    }

    /// Crashes a memory node with index replicas, and settles the remaining replicas of its subtables, possibly after
    /// jobs that are cut off.
    fn settle(&self, lost: MnId) {
        self.cluster.nodes().crash(lost);
        let fabric = operator_fabric(&self.cluster);
        let frozen = self.cluster.view().without(&[lost]).expect("there are backups");
        let view = frozen.advanced();
        let mut stepper = Stepper::new(&self.rng);
        stepper.spawn(async {
            while self.rng.below(2) == 0 {
                let steps = self.rng.below(40) as u64;
                let cut = cut_off(steps, transform(&fabric, &view, &BTreeMap::new())).await;
                self.count(|e| e.cut_off += u64::from(cut.is_none()));
            }
            let settled = transform(&fabric, &view, &BTreeMap::new()).await.expect("it is frozen");
            self.count(|e| e.slots_settled += settled.slots_changed);
            let again = transform(&fabric, &view, &BTreeMap::new()).await.expect("it is frozen");
            assert_eq!(again.slots_changed, 0);
        });
        stepper.run(MAX_STEPS, || ());
        forget(&self.cluster, lost);
    }

    /// Reads every key, and checks the whole history.
    pub fn end(&self) -> FailureCounts {
        let store = self.client();
        self.alone(async {
            for key in 0..self.keys {
                self.workload.run(&store, Search, key).await;
            }
        });
        self.leave(&store);
        self.workload.assert_linearizable();
        check_quiescent(&self.cluster, &self.orphans.borrow());
        let reused = self.workload.reused();
        let out_of_memory = self.workload.out_of_memory();
        self.count(|e| (e.reused, e.out_of_memory) = (reused, out_of_memory));
        let counts = self.cluster.sim().counts();
        self.count(|e| {
            e.searches_now = counts.searches_now.get();
            e.writes_now = counts.writes_now.get();
            e.proofs_across_nodes = counts.proofs_across_nodes.get();
            e.speculations = counts.speculations.get();
        });
        self.events.get()
    }
}
