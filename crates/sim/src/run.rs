//! One run of a scenario with a seed, and its outcome.

// Promise LIN-1: Operations are linearizable per key. | every run of `fusee-bench sim`

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use fusee_client::logic::{IndexCache, RequestTable};
use fusee_control::master::{MasterReply, MasterRequest, Status};
use fusee_core::stats::OpKind;
use fusee_core::verbs::ClientId;
use fusee_switch::fusee::FuseeSwitch;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use crate::adversary;
use crate::check::{check_nothing_lost, check_quiescent, lost_objects};
use crate::cluster::SimCluster;
use crate::counts::count;
use crate::engine::{Nanos, ProcessId, Sim};
use crate::environment::SimSession;
use crate::executor::Executor;
use crate::network::NetworkOptions;
use crate::rng::Rng;
use crate::scenario::{Fault, OperationMix, Scenario, ScenarioShape};
use crate::switches::Switches;
use crate::trace::SimTrace;
use crate::unsound_cas::UnsoundCas;
use crate::workload::{CallOutcome, SimWorkload};

/// Options of a run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The scenario from which the seed draws the run.
    pub scenario: Scenario,
    /// The seed, which decides everything else.
    pub seed: u64,
    /// Number of operations, instead of the number that the seed draws.
    pub operations: Option<usize>,
    /// Number of client processes, instead of the number that the seed draws.
    pub clients: Option<usize>,
    /// Faults of the scenario that the run leaves out.
    pub without: BTreeSet<Fault>,
    /// Additional faults, which the scenario injects seldom or never.
    pub with: BTreeSet<Fault>,
    /// The number of the action before which the master crashes, counted from the first loss of a memory node.
    pub master_crash: Option<u32>,
    /// Whether all verbs travel over links with switches. If false, the seed decides.
    pub switches: bool,
    /// A forbidden behaviour of the switches, if they have one.
    pub unsound: Option<UnsoundCas>,
    /// Whether to keep the trace as text.
    pub trace: bool,
    /// Called at regular intervals. If it returns true, the run ends at once, without a verdict.
    pub stop: fn() -> bool,
}

impl RunOptions {
    /// Makes the options of an unchanged run with this seed.
    pub fn new(scenario: Scenario, seed: u64) -> RunOptions {
        RunOptions {
            scenario,
            seed,
            operations: None,
            clients: None,
            without: BTreeSet::new(),
            with: BTreeSet::new(),
            master_crash: None,
            switches: false,
            unsound: None,
            trace: false,
            stop: || false,
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct SimOutcome {
    /// Number of operations in the checked histories.
    pub operations: u64,
    /// Number of events that were executed.
    pub events: u64,
    /// Virtual time that passed during the run.
    pub virtual_ns: Nanos,
    /// The name and value of each counter in [`SimCounts`](crate::SimCounts).
    pub counts: Vec<(&'static str, u64)>,
    /// The trace of the run.
    pub trace: SimTrace,
    /// The broken promise, if the run broke one.
    pub failure: Option<BrokenPromise>,
    /// Whether the run was stopped ([`RunOptions::stop`]) before its verdict.
    pub is_stopped: bool,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct BrokenPromise {
    /// A description of the broken promise, in words.
    pub what: String,
    /// The operations that no order explains, as text; empty if the failure is not one of a history.
    pub history: Vec<String>,
}

/// Number of events per operation after which a run counts as stuck. After half of them no more faults are injected,
/// because the protocol promises progress only once faults end.
const EVENTS_PER_OPERATION: u64 = 3_000;

/// The greatest number of operations that run at once, however many clients there are. The cost of checking a history
/// grows exponentially with the number of overlapping operations on a key.
const MOST_AT_ONCE: usize = 24;

/// The greatest number of objects that a recovered session has freed without setting their bits, or has possibly
/// replaced.
const TAKEN_ALONG: u64 = 128;
/// The greatest number of objects that one word keeps in use: an EC-oriented word keeps its stripe and two copies.
const KEPT_BY_A_WORD: u64 = 3;

/// Number of events between two calls of [`RunOptions::stop`].
const EVENTS_PER_LOOK: u64 = 1 << 12;

/// Runs a scenario, and returns the outcome.
pub fn run(options: &RunOptions) -> SimOutcome {
    let sim = Sim::new(options.seed);
    if options.trace {
        sim.record_trace();
    }
    let events = Cell::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| SimRun::new(&sim, options).run(&events)));
    let mut is_stopped = false;
    let (operations, failure) = match result {
        Ok(Ok(Some(operations))) => (operations, None),
        Ok(Ok(None)) => {
            is_stopped = true;
            (0, None)
        }
        Ok(Err(failure)) => (0, Some(failure)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            let what = text.unwrap_or_else(|| "a panic without words".into());
            (0, Some(BrokenPromise { what, history: Vec::new() }))
        }
    };
    SimOutcome {
        operations,
        events: events.get(),
        virtual_ns: sim.now(),
        counts: sim.counts().all(),
        trace: sim.trace(),
        failure,
        is_stopped,
    }
}

/// The state of a run, which the run's tasks share.
pub(crate) struct SimRun {
    pub sim: Sim,
    pub cluster: SimCluster,
    pub shape: ScenarioShape,
    pub faults: BTreeSet<Fault>,
    /// See [`RunOptions::master_crash`]. `None` once the crash is planned.
    pub master_crash: Cell<Option<u32>>,
    pub fault_rng: Rng,
    op_rng: Rng,
    workload: SimWorkload,
    /// The number of the view that was last checked for lost pairs, and the number of memory nodes lost with pairs so
    /// far.
    lost_pairs: Cell<(u64, usize)>,
    /// The work tables, which client processes share as if they were threads of one process. Each client process still
    /// crashes, stops and is cut off separately.
    tables: Vec<Arc<RequestTable>>,
    /// The index cache that all sessions share. `None`: each session has a cache of its own.
    cache: Option<Arc<Mutex<IndexCache>>>,
    /// Live client processes, each with its session, if it has one.
    pub clients: RefCell<BTreeMap<ProcessId, Option<ClientId>>>,
    /// Number of client processes that are to be started.
    births: Cell<usize>,
    /// Set when all clients have ended. From then on no more faults are injected.
    pub is_over: Cell<bool>,
    /// Whether the adversary is still allowed to inject faults.
    pub is_disturbed: Cell<bool>,
    /// The time until which the cluster's own master is away, and the time until which the master must not be taken
    /// away for long again, because it needs some leases for repairs.
    pub master_is_away: Cell<(Nanos, Nanos)>,
    /// Number of disturbances that have not ended.
    disturbances: Rc<Cell<usize>>,
    /// See [`RunOptions::stop`].
    stop: fn() -> bool,
    /// Permits, one for each operation that is allowed to run at once.
    permits: Semaphore,
}

/// Bytes per second that the master reads to find damage, in runs with scrubbing.
const SCRUB_BYTES_PER_S: u64 = 16 << 20;
/// Time for which the cluster must be quiet at the end of a run.
const QUIET_NS: Nanos = 50_000_000;
/// Time within which the master must have repaired everything.
const REPAIR_LIMIT_NS: Nanos = 20_000_000_000;

impl SimRun {
    fn new(sim: &Sim, options: &RunOptions) -> SimRun {
        let named = |name| Rng::named(options.seed, name);
        let mut faults: BTreeSet<Fault> = options.scenario.faults().iter().copied().collect();
        let seldom = named("seldom");
        faults.extend(options.scenario.seldom().iter().filter(|_| seldom.one_in(4)));
        faults.extend(&options.with);
        // The checker cannot know which objects a dead client had freed. In some runs no client dies, so that the final
        // checks can be stricter.
        if faults.contains(&Fault::NodeCrash) && named("spared").one_in(4) {
            faults.retain(|fault| ![Fault::ClientCrash, Fault::RecoveryCrash].contains(fault));
        }
        let faults = &faults - &options.without;
        let mut shape =
            ScenarioShape::draw(options.scenario, &named("shape"), |f| faults.contains(&f));
        shape.draw_fabric(&named("fabric"), options.switches);
        shape.draw_switches(&named("switches"), options.switches);
        // Promise DMG-7 | `fusee-bench sim`: a quarter of seeds
        if named("scrub").one_in(4) {
            shape.cluster.scrub_bytes_per_s = SCRUB_BYTES_PER_S;
        }
        shape.operations = options.operations.unwrap_or(shape.operations);
        shape.processes = options.clients.unwrap_or(shape.processes);
        let cluster = SimCluster::with_network(sim, &shape.cluster, shape.network);
        if !shape.switches.is_empty() {
            let all =
                shape.switches.iter().map(|room| Box::new(FuseeSwitch::new(*room)) as _).collect();
            let switches = Switches::adversarial(all, shape.mistakes, named("switch"));
            cluster.network().put_switches(switches.unsound(options.unsound));
        }
        cluster.control().lost_one_in.set(shape.lost_messages_one_in);
        let session = &shape.cluster.session;
        let cache = || IndexCache::new(session.cache_entries, session.cache_threshold);
        let shares = !shape.network.immediate && named("cache").one_in(2);
        let cache = shares.then(|| Arc::new(Mutex::new(cache())));
        let keys = SimWorkload::keys(&cluster.view(), shape.colliding_keys, shape.other_keys);
        SimRun {
            sim: sim.clone(),
            workload: match shape.single_from {
                None => SimWorkload::new(keys, shape.fillers, shape.redundancies.clone()),
                Some(from) => SimWorkload::new(keys, shape.fillers, shape.redundancies.clone())
                    .with_single_pairs(from),
            },
            lost_pairs: Cell::new((0, 0)),
            tables: (0..shape.tables).map(|_| Arc::new(RequestTable::new(false))).collect(),
            cache,
            births: Cell::new(shape.processes),
            cluster,
            shape,
            faults,
            master_crash: Cell::new(options.master_crash),
            fault_rng: named("faults"),
            op_rng: named("operations"),
            clients: RefCell::default(),
            is_over: Cell::new(false),
            is_disturbed: Cell::new(true),
            master_is_away: Cell::new((0, 0)),
            disturbances: Rc::default(),
            stop: options.stop,
            permits: Semaphore::new(MOST_AT_ONCE),
        }
    }

    /// Runs to the end. Returns the number of checked operations, or `None` if the run was stopped.
    fn run(&self, events: &Cell<u64>) -> Result<Option<u64>, BrokenPromise> {
        let limit = (self.shape.operations as u64 + 200) * EVENTS_PER_OPERATION;
        let mut executor = Executor::new(&self.sim);
        let adversary = self.sim.process("adversary");
        executor.spawn_background(adversary, adversary::run(self));
        let observer = self.sim.process("observer");
        executor.spawn(observer, self.end());
        while executor.is_running() {
            for _ in 0..self.births.take() {
                let process = self.cluster.client_process();
                self.clients.borrow_mut().insert(process, None);
                executor.spawn(process, self.client(process));
            }
            assert!(executor.step(), "everything waits for ever");
            self.note_lost_pairs();
            self.kill_condemned();
            events.set(events.get() + 1);
            self.is_disturbed.set(events.get() < limit / 2);
            assert!(events.get() < limit, "stuck after {limit} events");
            if events.get().is_multiple_of(EVENTS_PER_LOOK) && (self.stop)() {
                return Ok(None);
            }
        }
        drop(executor);
        self.count_correlated();
        let orphans = self.cluster.take_orphans();
        check_quiescent(&self.cluster, &orphans);
        let counts = self.sim.counts();
        // Sessions leave some objects to later comparisons of their blocks with the index, and so do sessions that give
        // up and are recovered like crashed ones. The stricter check below would count the objects left to comparisons
        // as lost.
        let is_left = counts.left_to_comparison.get() + counts.client_recoveries.get() > 0
            // A region whose primary has moved has a new free bitmap, in which bits can be missing.
            || counts.moves.get() > 0;
        let is_fine = |fault: &Fault| [Fault::Delay, Fault::Tear].contains(fault);
        if !is_left && self.faults.iter().all(is_fine) {
            check_nothing_lost(&self.cluster, &orphans);
        }
        if !self.cluster.network().memories().rots() {
            let lost = lost_objects(&self.cluster, &orphans);
            let taken_along = TAKEN_ALONG * counts.client_recoveries.get();
            let excused = KEPT_BY_A_WORD * counts.left_to_comparison.get() + taken_along;
            assert!(lost.len() as u64 <= excused, "{lost:?} are lost, of which {excused} may be");
        }
        let findings = self.workload.check();
        if let Some(refutation) = findings.refutation {
            let what = format!("the operations on key {} have no order", refutation.key);
            let text = refutation.render(|value| value.to_string());
            return Err(BrokenPromise {
                what,
                history: text.lines().map(str::to_string).collect(),
            });
        }
        assert_eq!(findings.undecided_keys, 0, "too many operations overlap to tell");
        Ok(Some(findings.operations))
    }

    /// Counts the memory nodes that were lost together with pairs without redundancy.
    fn note_lost_pairs(&self) {
        let (looked_at, known) = self.lost_pairs.get();
        let view = self.cluster.view();
        if view.number == looked_at {
            return;
        }
        let lost = view.lost_pairs().len();
        for _ in known..lost {
            self.workload.record_pair_loss();
            count(&self.sim.counts().nodes_lost_with_pairs);
        }
        self.lost_pairs.set((view.number, lost));
    }

    fn count_correlated(&self) {
        let counts = self.sim.counts();
        for stats in self.tables.iter().map(|table| table.stats()) {
            let add = |to: &Cell<u64>, n| to.set(to.get() + n);
            add(&counts.rides, stats.rides);
            add(&counts.compared_words, stats.compared);
            add(&counts.followed_in_vain, stats.misses);
            add(&counts.absorbed_sets, stats.absorbed);
        }
    }

    /// Waits until all clients have ended. From then on no faults are injected, and the run ends when delayed messages
    /// have arrived, the master has repaired everything, and a new client has read every key.
    async fn end(&self) {
        while !self.clients.borrow().is_empty() || self.births.get() > 0 {
            self.sim.sleep(1_000_000).await;
        }
        self.is_over.set(true);
        let options = self.cluster.network().options();
        self.cluster
            .network()
            .set_options(NetworkOptions { lost_completions_one_in: 0, ..options });
        self.cluster.control().lost_one_in.set(0);
        // In runs without this fault, a planned crash is that of `RunOptions::master_crash`, which is still allowed to
        // happen.
        if self.faults.contains(&Fault::MasterRestart) {
            self.cluster.master().spare();
        }
        let begun = self.sim.now();
        let mut quiet = 0;
        while quiet < QUIET_NS {
            assert!(self.sim.now() < begun + REPAIR_LIMIT_NS, "not put right: {:?}", self.status());
            self.sim.sleep(5_000_000).await;
            let is_calm = self.disturbances.get() == 0;
            quiet = if is_calm && self.is_put_right() { quiet + 5_000_000 } else { 0 };
        }
        self.cluster.master().spare();
        self.final_reads().await;
    }

    fn status(&self) -> Option<Status> {
        match self.cluster.peek_master(MasterRequest::Status) {
            Some(MasterReply::Status(status)) => Some(*status),
            _ => None,
        }
    }

    /// Returns whether the master has nothing left to repair.
    fn is_put_right(&self) -> bool {
        let Some(status) = self.status() else { return false };
        // The status request itself has possibly made the master execute its planned crash.
        let master = self.cluster.master();
        if !master.is_running() || master.is_repairing() {
            return false;
        }
        let stable = status.view.is_some_and(|view| {
            let lives = |node| self.cluster.network().memories().has(node);
            view.change.is_none() && view.members.iter().all(|member| lives(member.node))
        });
        let idle = status.expired_sessions == 0 && !status.rebalancing;
        stable && idle && status.open_sessions == 0
    }

    /// Kills the processes of fenced sessions where fences kill.
    fn kill_condemned(&self) {
        for client in self.cluster.network().take_condemned() {
            let of = |(process, session): (&ProcessId, &Option<ClientId>)| {
                (*session == Some(client)).then_some(*process)
            };
            let process = self.clients.borrow().iter().find_map(of);
            if let Some(process) = process {
                count(&self.sim.counts().killed_by_fences);
                self.sim.crash(process);
                self.client_crashed(process);
            }
        }
    }

    /// Returns whether operations are left to invoke.
    pub fn goes_on(&self) -> bool {
        self.workload.invoked() < self.shape.operations as u64
    }

    /// Calls `end` after some time to end a disturbance. The run does not end before that.
    pub fn later(&self, time: Nanos, end: impl FnOnce() + 'static) {
        let disturbances = self.disturbances.clone();
        disturbances.set(disturbances.get() + 1);
        self.sim.after(time, move || {
            end();
            disturbances.set(disturbances.get() - 1);
        });
    }

    /// Schedules another client process in place of a crashed one.
    pub fn client_crashed(&self, process: ProcessId) {
        count(&self.sim.counts().client_crashes);
        self.clients.borrow_mut().remove(&process);
        self.births.set(self.births.get() + 1);
    }

    /// Runs a client process, which opens one session after the other until no operations are left.
    async fn client(&self, process: ProcessId) {
        let keeper = self.cluster.keeper(process, self.shape.lease());
        let tables = self.tables.len();
        let table = (tables > 0).then(|| self.tables[self.op_rng.below(tables)].clone());
        while self.goes_on() {
            let options = self.shape.cluster.session;
            let Ok(session) = self.cluster.open(process, options).await else {
                self.sim.sleep(20_000).await;
                continue;
            };
            let session = session.with_work_table(table.clone()).with_cache(self.cache.clone());
            let session = Rc::new(session);
            // In clusters with a policy of demotion and promotion, every second session is told that memory is short,
            // and demotes pairs; the other sessions promote pairs.
            session.gate().tell_short(session.id().0.is_multiple_of(2));
            keeper.open(session.gate().clone());
            self.clients.borrow_mut().insert(process, Some(session.id()));
            self.use_session(&session).await;
            let expelled = session.gate().is_expelled();
            let leaving = session.leave().await;
            let left = &self.sim.counts().left_to_comparison;
            left.set(left.get() + session.stats().left_to_comparison());
            let gone = &self.sim.counts().gone_words;
            gone.set(gone.get() + session.stats().gone());
            let steered = session.stats().steered();
            let counts = self.sim.counts();
            counts.steered_reads.set(counts.steered_reads.get() + steered.tried);
            counts.steered_right.set(counts.steered_right.get() + steered.right);
            keeper.close(session.id());
            self.clients.borrow_mut().insert(process, None);
            let goodbye = match leaving {
                Some(leaving) => leaving.request(),
                None => MasterRequest::Abandon { client: session.id() },
            };
            let closed = matches!(goodbye, MasterRequest::Close { .. });
            // If the message to the master is lost, the session expires later.
            let _told = self.cluster.master().ask(&self.cluster, process, goodbye, 500_000).await;
            let counts = self.sim.counts();
            match (expelled, closed) {
                (true, _) => count(&counts.expelled_sessions),
                (false, true) => count(&counts.sessions_closed),
                (false, false) => {}
            }
        }
        self.clients.borrow_mut().remove(&process);
        // The keeper ends with the other tasks of the process, because no session is left to keep.
    }

    /// Runs operations on a session until the session is lost, has done its share, or no operations are left.
    async fn use_session(&self, session: &Rc<SimSession>) {
        let lost = Cell::new(false);
        let left = Cell::new(1 + self.op_rng.below(2 * self.shape.session_operations));
        let coroutine = async || {
            loop {
                let permit = self.permits.acquire().await.expect("nobody closes it");
                if !self.goes_on() || lost.get() || left.get() == 0 {
                    return;
                }
                left.set(left.get() - 1);
                let (kind, key) = self.draw();
                let went = self.workload.run(&self.op_rng, session, kind, key).await;
                // Moves that a session runs for its policy report no failure, so the session itself is asked whether it
                // needs recovery.
                let shifts = self.shape.cluster.policy.promotion.is_some();
                if went == CallOutcome::Lost || (shifts && session.store().needs_recovery()) {
                    lost.set(true);
                }
                drop(permit);
                if self.op_rng.one_in(8) {
                    self.sim.sleep(self.op_rng.below_u64(20_000)).await;
                }
            }
        };
        let mut running: FuturesUnordered<_> =
            (0..self.shape.coroutines).map(|_| Box::pin(coroutine())).collect();
        while running.next().await.is_some() {}
    }

    fn draw(&self) -> (OpKind, usize) {
        let key = if self.op_rng.one_in(self.shape.first_key_one_in) {
            0
        } else {
            self.op_rng.below(self.workload.key_count())
        };
        let mix = if key == 0 { &self.shape.first_mix } else { &self.shape.other_mix };
        (draw_kind(&self.op_rng, mix), key)
    }

    /// Reads every key with a new client. Every read must succeed.
    async fn final_reads(&self) {
        let process = self.cluster.client_process();
        let session = self.cluster.open(process, self.shape.cluster.session).await;
        let session = Rc::new(session.expect("nothing fails any more"));
        for key in 0..self.workload.key_count() {
            let went = self.workload.run(&self.op_rng, &session, OpKind::Search, key).await;
            assert_eq!(went, CallOutcome::Well, "the last SEARCH of key {key}");
        }
    }
}

fn draw_kind(rng: &Rng, mix: &OperationMix) -> OpKind {
    let mut left = rng.below(mix.iter().map(|(_, weight)| weight).sum());
    let drawn = mix.iter().find(|(_, weight)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    drawn.expect("the weights cover what was drawn").0
}
