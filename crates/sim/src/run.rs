//! One run: a scenario, a seed, and what came of it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use fusee_client::logic::{IndexCache, WorkTable};
use fusee_control::master::{MasterReply, MasterRequest, Status};
use fusee_core::stats::OpKind;
use fusee_core::verbs::ClientId;
use fusee_switch::ours::Ours;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use crate::adversary;
use crate::check::{lost_objects, nothing_is_lost, quiescent};
use crate::cluster::Cluster;
use crate::counts::count;
use crate::engine::{Nanos, ProcessId, Sim};
use crate::environment::SimSession;
use crate::executor::Executor;
use crate::network::NetworkOptions;
use crate::rng::Rng;
use crate::scenario::{Fault, Mix, Scenario, Shape};
use crate::switches::Switches;
use crate::trace::Trace;
use crate::unsound::Unsound;
use crate::workload::{CallOutcome, Workload};

/// Which run, and how much of it.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What kind of run.
    pub scenario: Scenario,
    /// Decides everything else.
    pub seed: u64,
    /// Operations, instead of the scenario's number.
    pub operations: Option<usize>,
    /// Client processes, instead of the number that the seed draws.
    pub clients: Option<usize>,
    /// Faults of the scenario that are left out.
    pub without: BTreeSet<Fault>,
    /// Faults that are added: those that the scenario has seldom, or not at all.
    pub with: BTreeSet<Fault>,
    /// The master crashes before the action of this number, counted from the first loss of a memory
    /// node.
    pub master_crash: Option<u32>,
    /// All verbs travel, and through switches. Without, the seed draws whether there are any.
    pub switches: bool,
    /// What the switches do that no switch must do, if the run has any.
    pub unsound: Option<Unsound>,
    /// Whether to keep the text of the trace.
    pub trace: bool,
    /// Asked now and then; if it says so, the run ends where it is, and says nothing.
    pub stop: fn() -> bool,
}

impl RunOptions {
    /// All of a seed's run.
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

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Operations in the histories that were checked.
    pub operations: u64,
    /// Events that happened.
    pub events: u64,
    /// Virtual time that passed.
    pub virtual_ns: Nanos,
    /// See [`Counts`](crate::Counts).
    pub counts: Vec<(&'static str, u64)>,
    /// What happened.
    pub trace: Trace,
    /// The promise that was broken, if one was.
    pub failure: Option<Broken>,
    /// Whether it was stopped ([`RunOptions::stop`]) before anything could be said.
    pub is_stopped: bool,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Broken {
    /// In words.
    pub what: String,
    /// The operations that cannot be explained, for people, if that is what it is about.
    pub history: Vec<String>,
}

/// Events after which a run counts as stuck, per operation. After half as many nobody disturbs it any
/// more: the promise is that everything goes on when faults end, not under any number of them.
const EVENTS_PER_OPERATION: u64 = 3_000;

/// Operations that run at once, at most; no scenario has as many clients by itself. What the check of a
/// history costs grows exponentially with the operations on a key that overlap.
const MOST_AT_ONCE: usize = 24;

/// Objects that a session at most has freed and not set free, or may have replaced, when it is recovered.
const TAKEN_ALONG: u64 = 128;
/// Objects that a word at most keeps: an EC-oriented one its stripe and two copies.
const KEPT_BY_A_WORD: u64 = 3;

/// Events between two questions whether to stop.
const EVENTS_PER_LOOK: u64 = 1 << 12;

/// Runs a scenario.
pub fn run(options: &RunOptions) -> Outcome {
    let sim = Sim::new(options.seed);
    if options.trace {
        sim.record_trace();
    }
    let events = Cell::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| Run::new(&sim, options).run(&events)));
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
            (0, Some(Broken { what, history: Vec::new() }))
        }
    };
    Outcome {
        operations,
        events: events.get(),
        virtual_ns: sim.now(),
        counts: sim.counts().all(),
        trace: sim.trace(),
        failure,
        is_stopped,
    }
}

/// The state of a run that its tasks share.
pub(crate) struct Run {
    pub sim: Sim,
    pub cluster: Cluster,
    pub shape: Shape,
    pub faults: BTreeSet<Fault>,
    /// See [`RunOptions`]; until it comes.
    pub master_crash: Cell<Option<u32>>,
    pub fault_rng: Rng,
    op_rng: Rng,
    workload: Workload,
    /// The newest view that was looked at, and how many memory nodes were lost with pairs without redundancy.
    lost_pairs: Cell<(u64, usize)>,
    /// What processes share that are threads of one: each of them crashes, stops and is cut off by itself.
    tables: Vec<Arc<WorkTable>>,
    /// The index cache of all sessions, if they do not have one each.
    cache: Option<Arc<Mutex<IndexCache>>>,
    /// Client processes that live, and their sessions.
    pub clients: RefCell<BTreeMap<ProcessId, Option<ClientId>>>,
    /// Client processes to start.
    births: Cell<usize>,
    /// All clients have ended: nothing goes wrong any more.
    pub is_over: Cell<bool>,
    /// Whether the adversary may still go on.
    pub is_disturbed: Cell<bool>,
    /// Until when the cluster's own master is away for long, and until when it stays from then on: it needs
    /// some leases to put anything right.
    pub master_is_away: Cell<(Nanos, Nanos)>,
    /// Disturbances that have not ended.
    disturbances: Rc<Cell<usize>>,
    /// See [`RunOptions::stop`].
    stop: fn() -> bool,
    /// One for each operation that may run at once.
    permits: Semaphore,
}

/// At which pace the master looks for damage, where it does.
const SCRUB_BYTES_PER_S: u64 = 16 << 20;
/// How long everything has to be quiet in the end.
const QUIET_NS: Nanos = 50_000_000;
/// How long the master may take until everything is put right.
const REPAIR_LIMIT_NS: Nanos = 20_000_000_000;

impl Run {
    fn new(sim: &Sim, options: &RunOptions) -> Run {
        let named = |name| Rng::named(options.seed, name);
        let mut faults: BTreeSet<Fault> = options.scenario.faults().iter().copied().collect();
        let seldom = named("seldom");
        faults.extend(options.scenario.seldom().iter().filter(|_| seldom.one_in(4)));
        faults.extend(&options.with);
        // Of who dies nobody knows what it had freed: in some runs nobody does, and more can be said in the end.
        if faults.contains(&Fault::NodeCrash) && named("spared").one_in(4) {
            faults.retain(|fault| ![Fault::ClientCrash, Fault::RecoveryCrash].contains(fault));
        }
        let faults = &faults - &options.without;
        let mut shape = Shape::draw(options.scenario, &named("shape"), |f| faults.contains(&f));
        shape.draw_fabric(&named("fabric"), options.switches);
        shape.draw_switches(&named("switches"), options.switches);
        if named("scrub").one_in(4) {
            shape.cluster.scrub_bytes_per_s = SCRUB_BYTES_PER_S;
        }
        shape.operations = options.operations.unwrap_or(shape.operations);
        shape.processes = options.clients.unwrap_or(shape.processes);
        let cluster = Cluster::with_network(sim, &shape.cluster, shape.network);
        if !shape.switches.is_empty() {
            let all = shape.switches.iter().map(|room| Box::new(Ours::new(*room)) as _).collect();
            let switches = Switches::adversarial(all, shape.mistakes, named("switch"));
            cluster.network().put_switches(switches.unsound(options.unsound));
        }
        cluster.control().lost_one_in.set(shape.lost_messages_one_in);
        let session = &shape.cluster.session;
        let cache = || IndexCache::new(session.cache_entries, session.cache_threshold);
        let shares = !shape.network.immediate && named("cache").one_in(2);
        let cache = shares.then(|| Arc::new(Mutex::new(cache())));
        let keys = Workload::keys(&cluster.view(), shape.colliding_keys, shape.other_keys);
        Run {
            sim: sim.clone(),
            workload: match shape.single_from {
                None => Workload::new(keys, shape.fillers, shape.redundancies.clone()),
                Some(from) => Workload::new(keys, shape.fillers, shape.redundancies.clone())
                    .with_single_pairs(from),
            },
            lost_pairs: Cell::new((0, 0)),
            tables: (0..shape.tables).map(|_| Arc::new(WorkTable::new(false))).collect(),
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

    /// Returns the number of operations checked; `None` if it was stopped.
    fn run(&self, events: &Cell<u64>) -> Result<Option<u64>, Broken> {
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
        quiescent(&self.cluster, &orphans);
        let counts = self.sim.counts();
        // Who compares blocks with the index tells others not to wait any longer for what they may set free; and a
        // session that gives up is recovered as one that has crashed. Either leaves something to comparisons.
        let is_left = counts.left_to_comparison.get() + counts.client_recoveries.get() > 0
            // With another first place come other bitmaps.
            || counts.moves.get() > 0;
        let is_fine = |fault: &Fault| [Fault::Delay, Fault::Tear].contains(fault);
        if !is_left && self.faults.iter().all(is_fine) {
            nothing_is_lost(&self.cluster, &orphans);
        }
        if !self.cluster.network().rots() {
            let lost = lost_objects(&self.cluster, &orphans);
            let taken_along = TAKEN_ALONG * counts.client_recoveries.get();
            let excused = KEPT_BY_A_WORD * counts.left_to_comparison.get() + taken_along;
            assert!(lost.len() as u64 <= excused, "{lost:?} are lost, of which {excused} may be");
        }
        let findings = self.workload.check();
        if let Some(refutation) = findings.refutation {
            let what = format!("the operations on key {} have no order", refutation.key);
            let text = refutation.render(|value| value.to_string());
            return Err(Broken { what, history: text.lines().map(str::to_string).collect() });
        }
        assert_eq!(findings.undecided_keys, 0, "too many operations overlap to tell");
        Ok(Some(findings.operations))
    }

    /// Notes which memory nodes were lost with pairs that had no redundancy.
    fn note_lost_pairs(&self) {
        let (looked_at, known) = self.lost_pairs.get();
        let view = self.cluster.view();
        if view.number == looked_at {
            return;
        }
        let lost = view.lost_pairs().len();
        for _ in known..lost {
            self.workload.pairs_are_lost();
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

    /// When all clients have ended: nothing goes wrong any more, what is on its way arrives, the
    /// master puts everything right, and a new client reads every key.
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
        // But where it shall crash at a given action, that may be one of those to come.
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

    /// Whether the master has nothing left to do.
    fn is_put_right(&self) -> bool {
        let Some(status) = self.status() else { return false };
        // It may have crashed when it had answered.
        let master = self.cluster.master();
        if !master.is_running() || master.puts_right() {
            return false;
        }
        let stable = status.view.is_some_and(|view| {
            let lives = |node| self.cluster.network().has(node);
            view.change.is_none() && view.members.iter().all(|member| lives(member.node))
        });
        let idle = status.expired_sessions == 0 && !status.rebalancing;
        stable && idle && status.open_sessions == 0
    }

    /// Fences kill whoever has the memory, if he still has it.
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

    /// Whether there are operations left to do.
    pub fn goes_on(&self) -> bool {
        self.workload.invoked() < self.shape.operations as u64
    }

    /// A disturbance ends after some time. Until then the end of the run waits.
    pub fn later(&self, time: Nanos, end: impl FnOnce() + 'static) {
        let disturbances = self.disturbances.clone();
        disturbances.set(disturbances.get() + 1);
        self.sim.after(time, move || {
            end();
            disturbances.set(disturbances.get() - 1);
        });
    }

    /// A client process has crashed, and another one takes its place.
    pub fn client_crashed(&self, process: ProcessId) {
        count(&self.sim.counts().client_crashes);
        self.clients.borrow_mut().remove(&process);
        self.births.set(self.births.get() + 1);
    }

    /// What a client process does: one session after the other, until there is nothing to do.
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
            // Where there is a policy for it, every second session demotes, and the others promote.
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
            // The master may not hear of it: then it gives the session up later.
            let _told = self.cluster.ask_master(process, goodbye, 500_000).await;
            let counts = self.sim.counts();
            match (expelled, closed) {
                (true, _) => count(&counts.expelled_sessions),
                (false, true) => count(&counts.sessions_closed),
                (false, false) => {}
            }
        }
        self.clients.borrow_mut().remove(&process);
        // It goes with its tasks: the keeper has nobody to speak for any more.
    }

    /// Runs operations on a session, until it is lost or has done its share.
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
                // What a session does by itself fails without a word.
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

    /// A new client reads every key.
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

fn draw_kind(rng: &Rng, mix: &Mix) -> OpKind {
    let mut left = rng.below(mix.iter().map(|(_, weight)| weight).sum());
    let drawn = mix.iter().find(|(_, weight)| {
        let here = left < *weight;
        left = left.saturating_sub(*weight);
        here
    });
    drawn.expect("the weights cover what was drawn").0
}
