//! Reuse of memory in a stepwise cluster, with few keys, blocks of three objects, and epochs that pass as if there were
//! keepers and a master.
//!
//! Every client soon reclaims the objects that it has freed, so an address recurs after a few writes, often in one
//! slot, while other clients still know its earlier contents: readers between a slot and its object, writers with hints
//! of any age, losers of rounds, and clients that stop for long. Some clients die and are recovered; other clients
//! continue to use their blocks, which are unverified.

use std::cell::{Cell, RefCell};

use fusee_client::logic::SessionGate;
use fusee_core::stats::OpKind::{self, Delete, Insert, Search, Update, Upsert};
use fusee_core::view::Geometry;
use fusee_sim::{ClusterOptions, SimClient, Stepper};

use super::changes::STEPS;
use super::crash::{ClientLife, idle};
use super::failures::{FailureCounts, FailureRun, PlanKind};
use super::small;

/// A length of values with which three objects fit in a block.
const FILLER: &[usize] = &[1100];

/// Clients write and read, and some of them die. There are 1 to 4 index replicas.
pub fn reuse(seed: u64) -> FailureCounts {
    let data_replicas = 1 + seed as u8 / 4 % 2;
    use_again(tight(seed, ClusterOptions { data_replicas, ..small(seed, 1 + seed as u8 % 4) }))
}

/// Lengths of values for which blocks of one, two and four frames are the smallest.
const ALL_ORDERS: &[usize] = &[100, 1100, 5000, 9000];

/// Like [`reuse`], with values of such lengths that blocks are split and merged again and again.
pub fn block_sizes(seed: u64) -> FailureCounts {
    let data_replicas = 1 + seed as u8 / 4 % 2;
    let options = small(seed, 1 + seed as u8 % 4);
    let region_bytes = 1 << (15 + seed / 8 % 2);
    let block_bytes = 1 << 14;
    let max_value_bytes = 10_000;
    let geometry = Geometry { max_value_bytes, region_bytes, block_bytes, ..options.geometry };
    let pool_bytes = 2 * region_bytes + (1 << 13);
    let options = ClusterOptions { geometry, pool_bytes, data_replicas, ..options };
    let run = FailureRun::of(seed, &options, PlanKind::Mixed);
    run.workload.use_fillers(ALL_ORDERS);
    use_again(run)
}

/// Clients write and read, and some of them die, in any cluster made by [`tight`].
pub fn use_again(run: FailureRun) -> FailureCounts {
    let rng = &run.rng;
    let dying = rng.below(3);
    let client = |i| {
        let dies = i < dying;
        let life = if dies { run.short_life() } else { ClientLife::new(None, || false) };
        (run.client(), life)
    };
    let clients: Vec<(SimClient, ClientLife<'_>)> = (0..2 + rng.below(3)).map(client).collect();
    let epochs = EpochDriver::new(&run, &clients);
    let working = Cell::new(clients.len());
    let mut stepper = Stepper::new(rng);
    stepper.spawn(epochs.pass());
    for (i, (client, life)) in clients.iter().enumerate() {
        for _ in 0..1 + rng.below(2) {
            let plan = plan(&run);
            stepper.spawn(life.task(async {
                for (kind, key) in plan {
                    run.workload.run(client, kind, key).await;
                }
            }));
        }
        let epochs = &epochs;
        let working = &working;
        stepper.spawn(async move {
            life.ended().await;
            if life.crashed() {
                epochs.run.bury(client.client(), life).await;
            }
            epochs.gone.borrow_mut()[i] = life.crashed();
            working.set(working.get() - 1);
            epochs.is_done.set(working.get() == 0);
        });
    }
    stepper.run(STEPS, || ());
    run.leave_all(&clients);
    run.end()
}

/// Makes a run with so little memory that it is reused. In half of the runs memory is often short.
pub fn tight(seed: u64, options: ClusterOptions) -> FailureRun {
    let region_bytes = 1 << (14 + seed / 8 % 2);
    let geometry = Geometry { max_value_bytes: 1200, region_bytes, ..options.geometry };
    let pool_bytes = 2 * region_bytes + (1 << 13);
    let options = ClusterOptions { geometry, pool_bytes, ..options };
    let run = FailureRun::of(seed, &options, PlanKind::Mixed);
    run.workload.use_fillers(FILLER);
    run
}

/// Draws the operations of a task, most of which are writes of one key.
fn plan(run: &FailureRun) -> Vec<(OpKind, usize)> {
    let any = |n| run.rng.below(n);
    let emphasis = [
        [Update, Update, Upsert, Search],
        [Search, Search, Search, Update],
        [Insert, Delete, Upsert, Search],
        [Upsert, Upsert, Upsert, Upsert],
    ][any(4)];
    (0..8 + any(30)).map(|_| (emphasis[any(4)], any(2) * any(run.keys()))).collect()
}

/// Lets epochs pass, as keepers and the master together would.
struct EpochDriver<'r> {
    run: &'r FailureRun,
    clients: &'r [(SimClient, ClientLife<'r>)],
    /// For each client, whether it has died and been recovered.
    gone: RefCell<Vec<bool>>,
    is_done: Cell<bool>,
}

impl<'r> EpochDriver<'r> {
    fn new(run: &'r FailureRun, clients: &'r [(SimClient, ClientLife<'r>)]) -> EpochDriver<'r> {
        let gone = RefCell::new(vec![false; clients.len()]);
        EpochDriver { run, clients, gone, is_done: Cell::new(false) }
    }

    /// Sends one heartbeat after the other in the place of all sessions' keepers, and answers it in the place of the
    /// master, until all clients have ended.
    async fn pass(&self) {
        // For each heartbeat, the newest epoch at the time when it was sent.
        let mut asked: Vec<u64> = Vec::new();
        let mut newest = self.gates().map(SessionGate::epoch).max().unwrap_or(0);
        while !self.is_done.get() {
            asked.push(newest);
            for gate in self.gates() {
                gate.questions.asks(asked.len() as u64);
                idle(self.run.rng.below(8)).await;
            }
            newest += 1;
            for (client, life) in self.clients {
                idle(self.run.rng.below(8)).await;
                // A dead client does not learn of the new epoch.
                if !life.crashed() {
                    client.session.gate().publish_epoch(newest);
                }
            }
            let in_newest = |gate: &SessionGate| gate.heartbeat().pinned_in >= newest;
            while !self.is_done.get() && !self.gates().all(in_newest) {
                idle(1).await;
            }
            let frees_in =
                self.gates().map(|gate| gate.heartbeat().frees_in).min().unwrap_or(newest);
            let settled = asked.iter().take_while(|epoch| **epoch < frees_in).count() as u64;
            for gate in self.gates() {
                gate.questions.tell_passed(asked.len() as u64, settled);
                gate.questions.tell_passed_epoch(newest);
                idle(self.run.rng.below(8)).await;
            }
        }
    }

    /// Returns the gates of clients that live, or that have possibly left a write half-way.
    fn gates(&self) -> impl Iterator<Item = &SessionGate> {
        let gone = self.gone.borrow().clone();
        let left = self.clients.iter().zip(gone).filter(|(_, gone)| !gone);
        left.map(|((client, _), _)| &**client.session.gate())
    }
}
