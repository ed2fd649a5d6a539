//! Runs in which memory nodes are lost while clients work, under random schedules, each from one seed. A run that
//! breaks a promise panics.
//!
//! A [`ViewChanger`] stands in for the master: it makes the views, publishes each view to the sessions at different
//! times, and waits until the sessions' own gates acknowledge the view. A lost node has crashed, or is only cut off;
//! then sessions at an older view still use it. Some clients die, and are recovered when the view is stable again. In
//! any stage of a change, another node can be lost. New replicas are filled while clients write.
//!
//! Every run checks the promises of [`failures`](super::failures), and that every task ends.

use std::cell::Cell;
use std::sync::Arc;

use fusee_client::logic::SessionGate;
use fusee_control::node::{Extent, NodeReply, NodeRequest};
use fusee_core::data::Redundancy;
use fusee_core::mutant::{Mutant, removed};
use fusee_core::stats::OpKind;
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::change::{ChangeStage, NewReplica, ViewChange};
use fusee_core::view::{Geometry, PoolPlace, SlotRef, View};
use fusee_master::jobs::{self, JobContext, JobEnvironment, JobReport, MasterJob, transform};
use fusee_sim::{ClusterOptions, Rng, SimClient, SimCluster, Stepper, check::check_replicas_agree};

use super::crash::{ClientLife, cut_off, idle};
use super::failures::{FailureCounts, FailureRun, PlanKind};
use super::{OPERATOR, operator_fabric, replicas_differ, small};

/// Nodes are lost while clients work. There are 2 to 5 index replicas.
pub fn node_loss(seed: u64) -> FailureCounts {
    let plans = if seed.is_multiple_of(3) { PlanKind::Fights } else { PlanKind::Mixed };
    lose_nodes(FailureRun::new(seed, 2 + seed as u8 % 4, plans))
}

/// Nodes are lost while clients work, in any cluster with two replicas of everything.
pub fn lose_nodes(run: FailureRun) -> FailureCounts {
    run.work(&[false]);
    for _ in 0..1 + run.rng.below(2) {
        change(&run, ChangeCause::Loss);
    }
    run.end()
}

/// A node is lost, and later the index gets replicas on the remaining nodes.
pub fn node_loss_and_return(seed: u64) -> FailureCounts {
    let run = FailureRun::new(seed, 2 + seed as u8 % 3, PlanKind::Mixed);
    run.work(&[false]);
    change(&run, ChangeCause::Loss);
    change(&run, ChangeCause::Growth);
    change(&run, ChangeCause::Loss);
    run.end()
}

/// The index grows while clients work and nodes are lost. There are 1 to 5 index replicas.
pub fn splits(seed: u64) -> FailureCounts {
    let plans = if seed.is_multiple_of(3) { PlanKind::Fights } else { PlanKind::Mixed };
    let run = FailureRun::new(seed, 1 + seed as u8 % 5, plans);
    run.work(&[false]);
    for _ in 0..1 + run.rng.below(3) {
        change(&run, ChangeCause::Split);
    }
    run.end()
}

/// Replicas of subtables and regions, including primaries, move while clients work and nodes are lost. There are 1 to 4
/// index replicas on 5 nodes.
pub fn moves(seed: u64) -> FailureCounts {
    let plans = if seed.is_multiple_of(3) { PlanKind::Fights } else { PlanKind::Mixed };
    let options = small(seed, 1 + seed as u8 % 4);
    // Every node has room for further regions.
    let data_replicas = 1 + seed as u8 / 4 % 2;
    let pool_bytes = 3 << 18;
    let options = ClusterOptions { data_replicas, pool_bytes, ..options };
    move_replicas(FailureRun::of(seed, &options, plans))
}

/// Replicas move while clients work and nodes are lost, in any cluster.
pub fn move_replicas(run: FailureRun) -> FailureCounts {
    run.work(&[false]);
    for _ in 0..1 + run.rng.below(3) {
        change(&run, ChangeCause::Move);
    }
    run.end()
}

/// The index grows as in [`splits`], but no nodes are lost, objects are damaged on one replica, and keys have all
/// lengths. There are 2 to 5 index replicas.
pub fn damaged_splits(seed: u64) -> FailureCounts {
    let plans = if seed.is_multiple_of(3) { PlanKind::Fights } else { PlanKind::Mixed };
    let options = small(seed, 2 + seed as u8 % 4);
    let geometry = Geometry { max_key_bytes: 300, ..options.geometry };
    let options = ClusterOptions { data_replicas: 2 + seed as u8 / 4 % 2, geometry, ..options };
    let run = FailureRun::of(seed, &options, plans);
    rot(if seed.is_multiple_of(2) { run.with_long_keys() } else { run }, ChangeCause::Split)
}

/// Replicas move as in [`moves`], but no nodes are lost, and objects are damaged on one replica.
pub fn damaged_moves(seed: u64) -> FailureCounts {
    let options = small(seed, 2 + seed as u8 % 3);
    let data_replicas = 2 + seed as u8 / 4 % 2;
    let pool_bytes = 3 << 18;
    let options = ClusterOptions { data_replicas, pool_bytes, ..options };
    rot(FailureRun::of(seed, &options, PlanKind::Mixed), ChangeCause::Move)
}

fn rot(run: FailureRun, why: ChangeCause) -> FailureCounts {
    run.work(&[false]);
    for _ in 0..1 + run.rng.below(3) {
        change_beside(&run, why, true);
    }
    run.end()
}

/// Damages objects at random times, until `until` is set.
pub(super) async fn damage(run: &FailureRun, until: &Cell<bool>) {
    while !until.get() {
        for _ in 0..run.rng.below(4) {
            let damaged = run.cluster.network().damage().inflict(&run.rng);
            run.count(|e| e.damaged += u64::from(damaged));
        }
        idle(1 + run.rng.below(300)).await;
    }
}

/// The greatest number of steps of a run, most of which are waits.
pub(super) const STEPS: u64 = 3_000_000;

/// The node of a primary is cut off from the master, but not from clients. One client learns of the view without this
/// node much sooner than another client. Both clients read while a third client writes.
pub fn cut_off_primary(seed: u64) -> FailureCounts {
    let run = FailureRun::new(seed, 2 + seed as u8 % 4, PlanKind::Mixed);
    let forever = || ClientLife::new(None, || false);
    let dies = run.rng.below(2) == 0;
    let steps = 10 + run.rng.below(60) as u64;
    let short = if dies { ClientLife::new(Some(steps), || true) } else { forever() };
    let clients = [(run.client(), short), (run.client(), forever()), (run.client(), forever())];
    run.alone(run.workload.run(&clients[0].0, OpKind::Insert, 0));
    let leader =
        ViewChanger { run: &run, clients: &clients, is_done: Cell::new(false), losses_one_in: 2 };
    let [(writer, life), (early, _), (late, _)] = &clients;
    let now = run.cluster.view().clone();
    let subtable = run.workload.subtable_of(0, &now);
    let lost = now.subtables[subtable as usize].primary().node;
    let mut stepper = Stepper::new(&run.rng);
    stepper.spawn(life.task(async {
        idle(run.rng.below(20)).await;
        run.workload.run(writer, OpKind::Update, 0).await;
    }));
    stepper.spawn(leader.bury(writer, life));
    for reader in [early, late] {
        stepper.spawn(async {
            while !leader.is_done.get() {
                run.workload.run(reader, OpKind::Search, 0).await;
            }
        });
    }
    stepper.spawn(async {
        let Ok(view) = now.without(&[lost]) else { return leader.is_done.set(true) };
        idle(run.rng.below(40)).await;
        run.cluster.checks().stop_watching();
        early.session.gate().publish_view(&Arc::new(view.clone()));
        idle(run.rng.below(200)).await;
        leader.finish(view).await;
    });
    stepper.run(STEPS, || ());
    run.end()
}

/// Pairs without redundancy are on a node that is cut off from the master, but not from clients. One client learns of
/// the view without this node much sooner than another client. Both read and insert while a third client writes, which
/// dies in half of the runs. Then two further clients work on the keys, one of which dies.
pub fn cut_off_single(seed: u64) -> FailureCounts {
    cut_off_single_of(seed, true)
}

/// Runs [`cut_off_single`]. If `is_told` is false, the history does not contain the loss of the pairs, so that the
/// check fails if the history shows the loss.
pub fn cut_off_single_of(seed: u64, is_told: bool) -> FailureCounts {
    let options = small(seed, 2 + seed as u8 % 2);
    let pool_bytes = 2 * options.pool_bytes;
    let run = FailureRun::of(seed, &ClusterOptions { pool_bytes, ..options }, PlanKind::Mixed);
    let forever = || ClientLife::new(None, || false);
    let dies = run.rng.below(2) == 0;
    let steps = run.rng.below(10) as u64;
    let half_way = || replicas_differ(&run.cluster);
    let short = if dies { ClientLife::new(Some(steps), half_way) } else { forever() };
    let clients = [(run.client(), short), (run.client(), forever()), (run.client(), forever())];
    let leader = ViewChanger {
        run: &run,
        clients: &clients,
        is_done: Cell::new(false),
        losses_one_in: usize::MAX,
    };
    run.alone(async {
        let view = run.cluster.view().clone();
        let first = view.regions.len() as u32;
        // Only one of these two regions is lost, so only the pairs of that region are lost.
        let mut regions: Vec<(Redundancy, Vec<PoolPlace>)> = Vec::new();
        for region in first..first + 2 {
            let before: Vec<PoolPlace> =
                regions.iter().flat_map(|(_, places)| places.clone()).collect();
            let extent = Extent::Region { region, primary: false };
            let places = room_for(&run, &view, (extent, Redundancy::None), &before, 1);
            regions.push((Redundancy::None, places));
        }
        leader.finish(view.with_new_regions(&regions)).await;
    });
    leader.is_done.set(false);
    run.workload.use_redundancy(Redundancy::None);
    let [(writer, life), (early, _), (late, _)] = &clients;
    run.alone(async {
        for key in 0..run.keys() {
            run.workload.run(writer, OpKind::Insert, key).await;
        }
    });
    let now = run.cluster.view().clone();
    let first = run.workload.key(0);
    let lost = single_pairs_on(&run, &now);
    let place =
        run.alone(async { early.session.store().search(first, None).await.unwrap().hint() });
    let slot = place.expect("it was inserted").slot;
    let mut stepper = Stepper::new(&run.rng);
    stepper.spawn(life.task(async {
        idle(run.rng.below(20)).await;
        for _ in 0..3 {
            run.workload.run(writer, OpKind::Update, 0).await;
        }
    }));
    stepper.spawn(leader.bury(writer, life));
    for reader in [early, late] {
        stepper.spawn(async {
            while !leader.is_done.get() {
                run.workload.run(reader, OpKind::Search, 0).await;
            }
            // This READs the slot as a get does that has waited for another get of the lost pair.
            let word = reader.session.store().word_in(first, slot).await.expect("it is read");
            let is_lost = word.is_some_and(|word| run.cluster.view().leads_to_lost(word));
            assert!(!is_lost, "the word of a lost pair counts");
            run.workload.run(reader, OpKind::Insert, 0).await;
            run.workload.run(reader, OpKind::SearchMany, 0).await;
        });
    }
    stepper.spawn(async {
        let Ok(view) = now.without(&[lost]) else { return leader.is_done.set(true) };
        idle(run.rng.below(40)).await;
        run.cluster.checks().stop_watching();
        if is_told {
            run.workload.pairs_are_lost();
        }
        early.session.gate().publish_view(&Arc::new(view.clone()));
        idle(run.rng.below(200)).await;
        leader.finish(view).await;
    });
    stepper.run(STEPS, || ());
    for (client, _) in &clients {
        run.count(|e| e.gone += client.session.stats().gone());
    }
    run.leave_all(&clients);
    run.work(&[true, false]);
    run.end()
}

/// Returns a random node that has pairs without redundancy.
fn single_pairs_on(run: &FailureRun, view: &View) -> MnId {
    let slots = (0..view.subtables.len() as u32).flat_map(|subtable| {
        (0..view.geometry.subtable_slots() as u32).map(move |slot| SlotRef { subtable, slot })
    });
    let words =
        slots.map(|slot| run.cluster.network().memories().word_at(view.slot_on_primary(slot)));
    let live = words.filter(|word| !word.is_free());
    let regions = live.filter_map(|word| view.region_of(word.address()));
    let nodes = regions.filter_map(|(region, _)| region.leader()).collect::<Vec<MnId>>();
    run.rng.pick(&nodes)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeCause {
    Loss,
    Growth,
    Split,
    Move,
}

/// Changes the view while clients work.
fn change(run: &FailureRun, why: ChangeCause) {
    change_beside(run, why, false);
}

/// Changes the view while clients work. Meanwhile either objects are damaged (`damages`), or nodes are lost.
fn change_beside(run: &FailureRun, why: ChangeCause, damages: bool) {
    let rng = &run.rng;
    let clients: Vec<(SimClient, ClientLife<'_>)> = (0..2 + rng.below(3))
        .map(|_| {
            let dies = rng.below(4) == 0;
            let life = if dies { run.short_life() } else { ClientLife::new(None, || false) };
            (run.client(), life)
        })
        .collect();
    let losses_one_in = if damages { usize::MAX } else { 12 };
    let leader = ViewChanger { run, clients: &clients, is_done: Cell::new(false), losses_one_in };
    let mut stepper = Stepper::new(rng);
    stepper.spawn(leader.lead(why));
    if damages {
        stepper.spawn(damage(run, &leader.is_done));
    }
    for (store, life) in &clients {
        run.spawn(&mut stepper, store, life);
        stepper.spawn(leader.bury(store, life));
    }
    stepper.run(STEPS, || ());
    check_replicas_agree(&run.cluster);
    run.leave_all(&clients);
}

/// A stand-in for the master that changes the view.
pub(super) struct ViewChanger<'r> {
    pub run: &'r FailureRun,
    pub clients: &'r [(SimClient, ClientLife<'r>)],
    pub is_done: Cell<bool>,
    /// In one of this many stages of changes, another node is lost.
    pub losses_one_in: usize,
}

impl ViewChanger<'_> {
    async fn lead(&self, why: ChangeCause) {
        let run = self.run;
        idle(run.rng.below(300)).await;
        let now = run.cluster.view().clone();
        let first = match why {
            ChangeCause::Loss => self.lose_a_node(&now).await,
            ChangeCause::Growth => grown(run, &now),
            ChangeCause::Split => split(run, &now),
            ChangeCause::Move => moved(run, &now),
        };
        if let Some(view) = first {
            run.cluster.checks().stop_watching();
            self.finish(view).await;
        }
        self.is_done.set(true);
    }

    /// Carries out a change to its end.
    pub async fn finish(&self, mut view: View) {
        while view.change.is_some() {
            view = self.take_step(view).await;
        }
        self.run.cluster.checks().follow(&view);
        self.publish(&view).await;
        self.is_done.set(true);
    }

    /// Returns the view without a random node, if the remaining nodes suffice. In half of the cases the node crashes;
    /// otherwise it is only cut off.
    async fn lose_a_node(&self, view: &View) -> Option<View> {
        let run = self.run;
        let places = view.subtables[run.rng.below(view.subtables.len())].replicas();
        let lost = match run.rng.below(4) {
            0 => view.members[run.rng.below(view.members.len())].node,
            _ => places[run.rng.below(places.len())].node,
        };
        let next = view.without(&[lost]).ok()?;
        if run.rng.below(2) == 0 {
            run.cluster.nodes().crash(lost);
            idle(run.rng.below(100)).await;
        }
        Some(next)
    }

    /// Executes one stage of a change: publishes the view, does the work of the stage, and returns the next view.
    pub async fn take_step(&self, view: View) -> View {
        let run = self.run;
        let stage = view.change.as_ref().expect("it is under way").stage;
        if stage == ChangeStage::Switched {
            run.cluster.checks().follow(&view);
        }
        if stage != ChangeStage::Transforming || run.rng.below(2) == 0 {
            self.publish(&view).await;
        }
        if run.rng.one_in(self.losses_one_in)
            && let Some(without) = self.lose_a_node(&view).await
        {
            run.cluster.checks().stop_watching();
            run.count(|e| e.begun_anew += 1);
            return without;
        }
        match stage {
            ChangeStage::Frozen if removed(Mutant::ChangeDoesNotWait) => {}
            ChangeStage::Switched if removed(Mutant::SwitchDoesNotWait) => {}
            ChangeStage::Frozen | ChangeStage::Switched => {
                while !self.gates().all(SessionGate::acknowledges) {
                    idle(1).await;
                }
                if stage == ChangeStage::Switched {
                    self.clear(&view).await;
                }
            }
            ChangeStage::Transforming => {
                self.gates().for_each(|gate| {
                    run.count(|e| e.stopped += u64::from(gate.heartbeat().has_suspended));
                });
                self.transform(&view).await;
            }
        }
        view.advanced()
    }

    async fn transform(&self, view: &View) {
        let run = self.run;
        while run.rng.below(3) == 0 {
            self.transform_partly(view, run.rng.below(40) as u64).await;
        }
        let fabric = operator_fabric(&run.cluster);
        let peek = StepJobEnvironment::of(run);
        let done = transform(&fabric, &peek.orders(), view, &self.dead()).await;
        run.count(|e| e.slots_settled += done.expect("everybody has stopped").slots_changed);
    }

    /// Runs the transformation for only this many steps, as a master does that dies then.
    pub async fn transform_partly(&self, view: &View, steps: u64) {
        let fabric = operator_fabric(&self.run.cluster);
        let peek = StepJobEnvironment::of(self.run);
        let cut = cut_off(steps, transform(&fabric, &peek.orders(), view, &self.dead())).await;
        self.run.count(|e| e.cut_off += u64::from(cut.is_none()));
    }

    fn dead(&self) -> Vec<ClientId> {
        let dead = self.clients.iter().filter(|(_, life)| life.crashed());
        dead.map(|(client, _)| client.client()).collect()
    }

    /// Clears the entries that a split has moved, and the places from which replicas have moved away.
    async fn clear(&self, view: &View) {
        let run = self.run;
        let fabric = operator_fabric(&run.cluster);
        let reach = StepJobEnvironment::of(run);
        while run.rng.below(3) == 0 {
            let steps = run.rng.below(40) as u64;
            let cut =
                cut_off(steps, jobs::run(&fabric, &reach.orders(), view, MasterJob::Clear)).await;
            run.count(|e| e.cut_off += u64::from(cut.is_none()));
        }
        let done = jobs::run(&fabric, &reach.orders(), view, MasterJob::Clear).await;
        match done.expect("everybody has left the old picture") {
            JobReport::Cleared { slots_changed } => run.count(|e| e.moved += slots_changed),
            other => panic!("unexpected {other:?}"),
        }
        run.count(|e| e.moved += view.change.iter().flat_map(ViewChange::leaving).count() as u64);
    }

    /// Returns the gates of the live clients.
    fn gates(&self) -> impl Iterator<Item = &SessionGate> {
        let living = self.clients.iter().filter(|(_, life)| !life.crashed());
        living.map(|(client, _)| &**client.session.gate())
    }

    /// Publishes a view to all clients, one after the other, after random waits.
    pub async fn publish(&self, view: &View) {
        view.check().expect("it follows from a view that is right");
        let view = Arc::new(view.clone());
        // If the change gives up a place, some clients learn of the view much later than other clients.
        let longest = if view.change.iter().any(|change| change.leaving().next().is_some()) {
            400
        } else {
            40
        };
        for (client, _) in self.clients {
            idle(self.run.rng.below(longest)).await;
            client.session.gate().publish_view(&view);
        }
    }

    /// Recovers a client after its death, once the view is stable.
    pub async fn bury(&self, client: &SimClient, life: &ClientLife<'_>) {
        life.ended().await;
        while !self.is_done.get() {
            idle(1).await;
        }
        if life.crashed() {
            self.run.bury(client.client(), life).await;
        }
    }
}

/// Reserves room for an extent on up to `most` nodes, none of which has one of the places `not`.
pub(super) fn room(
    run: &FailureRun,
    view: &View,
    extent: Extent,
    not: &[PoolPlace],
    most: usize,
) -> Vec<PoolPlace> {
    room_for(run, view, (extent, Redundancy::Replicated), not, most)
}

fn room_for(
    run: &FailureRun,
    view: &View,
    (extent, redundancy): (Extent, Redundancy),
    not: &[PoolPlace],
    most: usize,
) -> Vec<PoolPlace> {
    let geometry = &view.geometry;
    let (bytes, block_bytes) = match extent {
        Extent::Region { .. } => (geometry.region_bytes, geometry.block_bytes),
        Extent::Subtable { .. } => (geometry.subtable_bytes(), 0),
    };
    let cluster = view.cluster;
    let view_number = view.number;
    let mut nodes: Vec<MnId> = view.members.iter().map(|member| member.node).collect();
    nodes.retain(|node| not.iter().all(|place| place.node != *node));
    let mut places = Vec::new();
    while places.len() < most && !nodes.is_empty() {
        let node = nodes.swap_remove(run.rng.below(nodes.len()));
        let request = NodeRequest::Reserve {
            redundancy,
            cluster,
            attempt: 1,
            view: view_number,
            extent,
            bytes,
            block_bytes,
        };
        if let Some(NodeReply::Reserved { offset }) = run.cluster.peek_node(node, request) {
            places.push(PoolPlace { node, offset });
        }
    }
    places
}

/// Returns a view in which every subtable gains a replica, if there is room.
pub(super) fn grown(run: &FailureRun, view: &View) -> Option<View> {
    let mut joining = Vec::new();
    for (subtable, table) in (0u32..).zip(&view.subtables) {
        let most = usize::from(table.replicas().len() < 5);
        let place = room(run, view, Extent::Subtable { subtable }, table.replicas(), most);
        let gain = |place: &PoolPlace| NewReplica { of: subtable, joining: *place, leaving: None };
        joining.extend(place.first().map(gain));
    }
    (!joining.is_empty()).then(|| view.growing(&joining, &[]))
}

/// Returns a view in which some replicas of subtables and regions move, if there is room.
fn moved(run: &FailureRun, view: &View) -> Option<View> {
    let mv = |of: u32, extent: Extent, places: &[PoolPlace]| -> Option<NewReplica> {
        if run.rng.below(3) == 0 {
            return None;
        }
        let joining = *room(run, view, extent, places, 1).first()?;
        let leaving = Some(places[run.rng.below(places.len())]);
        Some(NewReplica { of, joining, leaving })
    };
    let subtables = (0u32..).zip(&view.subtables);
    let subtables: Vec<NewReplica> = subtables
        .filter_map(|(n, s)| mv(n, Extent::Subtable { subtable: n }, s.replicas()))
        .collect();
    let regions = (0u32..).zip(&view.regions);
    // Not all regions move, because allocation needs some of them.
    let regions: Vec<NewReplica> = regions
        .filter_map(|(n, r)| mv(n, Extent::Region { region: n, primary: false }, r.places()))
        .take(view.regions.len() / 2)
        .collect();
    let some = !subtables.is_empty() || !regions.is_empty();
    some.then(|| view.growing(&subtables, &regions))
}

/// Returns a view in which some subtables are split, if there is room.
fn split(run: &FailureRun, view: &View) -> Option<View> {
    let mut splits = Vec::new();
    for (number, subtable) in (0u32..).zip(&view.subtables) {
        if subtable.local_depth < 4 && run.rng.below(3) > 0 {
            let sibling = (view.subtables.len() + splits.len()) as u32;
            let extent = Extent::Subtable { subtable: sibling };
            let places = room(run, view, extent, &[], subtable.replicas().len());
            if !places.is_empty() {
                splits.push((number, places));
            }
        }
    }
    (!splits.is_empty()).then(|| view.splitting(&splits))
}

/// The environment of a change's jobs: connections to the memory nodes on which each request takes at least one step.
pub(super) struct StepJobEnvironment<'r> {
    pub cluster: &'r SimCluster,
    pub rng: &'r Rng,
    /// Number of jobs that have begun, which is the number of the next job.
    pub jobs: &'r Cell<u64>,
}

impl<'r> StepJobEnvironment<'r> {
    fn of(run: &'r FailureRun) -> StepJobEnvironment<'r> {
        StepJobEnvironment { cluster: &run.cluster, rng: &run.rng, jobs: &run.jobs }
    }

    /// Returns the context of the next job.
    pub fn orders(&self) -> JobContext<'_, Self> {
        let job = self.jobs.get();
        self.jobs.set(job + 1);
        JobContext { reach: self, repairer: OPERATOR, job }
    }
}

impl JobEnvironment for StepJobEnvironment<'_> {
    async fn ask(&self, node: MnId, request: NodeRequest) -> Result<NodeReply, String> {
        idle(1 + self.rng.below(4)).await;
        self.cluster.peek_node(node, request).ok_or_else(|| "it has crashed".into())
    }

    fn now_us(&self) -> u64 {
        0
    }
}
