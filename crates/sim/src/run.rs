//! One run: a scenario, a seed, and what came of it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use fusee_core::stats::OpKind;
use fusee_core::verbs::{ClientId, MnId};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::adversary;
use crate::check::{at_rest, nothing_is_lost};
use crate::cluster::Cluster;
use crate::counts::count;
use crate::engine::{Nanos, ProcessId, Sim};
use crate::environment::SimSession;
use crate::executor::Executor;
use crate::network::NetworkOptions;
use crate::operator;
use crate::rng::Rng;
use crate::scenario::{Fault, Mix, Scenario, Shape};
use crate::trace::Trace;
use crate::workload::{Went, Workload};

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
    /// Whether to keep the text of the trace.
    pub trace: bool,
}

impl RunOptions {
    /// All of a seed's run.
    pub fn new(scenario: Scenario, seed: u64) -> RunOptions {
        let (operations, clients, without) = (None, None, BTreeSet::new());
        RunOptions { scenario, seed, operations, clients, without, trace: false }
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
    pub failure: Option<Failure>,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// In words.
    pub what: String,
    /// The operations that cannot be explained, for people, if that is what it is about.
    pub history: Vec<String>,
}

/// Events after which a run counts as stuck, per operation.
const EVENTS_PER_OPERATION: u64 = 3_000;

/// Runs a scenario.
pub fn run(options: &RunOptions) -> Outcome {
    let sim = Sim::new(options.seed);
    if options.trace {
        sim.record_trace();
    }
    let events = Cell::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| Run::new(&sim, options).run(&events)));
    let (operations, failure) = match result {
        Ok(Ok(operations)) => (operations, None),
        Ok(Err(failure)) => (0, Some(failure)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            let what = text.unwrap_or_else(|| "a panic without words".into());
            (0, Some(Failure { what, history: Vec::new() }))
        }
    };
    Outcome {
        operations,
        events: events.get(),
        virtual_ns: sim.now(),
        counts: sim.counts().all(),
        trace: sim.trace(),
        failure,
    }
}

/// The state of a run that its tasks share.
pub(crate) struct Run {
    pub sim: Sim,
    pub cluster: Cluster,
    pub shape: Shape,
    pub faults: BTreeSet<Fault>,
    pub fault_rng: Rng,
    op_rng: Rng,
    workload: Workload,
    /// Client processes that live, and their sessions.
    pub clients: RefCell<BTreeMap<ProcessId, Option<ClientId>>>,
    /// Sessions that ended without saying goodbye, for the operator to recover.
    pub torn: RefCell<Vec<ClientId>>,
    /// Client processes to start.
    births: Cell<usize>,
    /// Whether an operator has to be started.
    needs_operator: Cell<bool>,
    operator: Cell<Option<ProcessId>>,
    operators: Cell<u32>,
    /// Names under which operators that crashed have posted verbs.
    dead_operators: RefCell<Vec<ClientId>>,
    /// How many names of operators have been fenced.
    operators_fenced: Cell<u32>,
    /// Clients that are shut out at every memory node.
    pub fenced: RefCell<BTreeSet<ClientId>>,
    /// Clients stop, and wait.
    frozen: Cell<bool>,
}

impl Run {
    fn new(sim: &Sim, options: &RunOptions) -> Run {
        let named = |name| Rng::named(options.seed, name);
        let faults: BTreeSet<Fault> = options.scenario.faults().iter().copied().collect();
        let faults = &faults - &options.without;
        let mut shape = Shape::draw(options.scenario, &named("shape"), |f| faults.contains(&f));
        shape.operations = options.operations.unwrap_or(shape.operations);
        shape.processes = options.clients.unwrap_or(shape.processes);
        let cluster = Cluster::with_network(sim, &shape.cluster, shape.network);
        cluster.control().lost_one_in.set(shape.lost_messages_one_in);
        let keys = Workload::keys(&cluster.view(), shape.colliding_keys, shape.other_keys);
        Run {
            sim: sim.clone(),
            workload: Workload::new(keys),
            births: Cell::new(shape.processes),
            cluster,
            shape,
            faults,
            fault_rng: named("faults"),
            op_rng: named("operations"),
            clients: RefCell::default(),
            torn: RefCell::default(),
            needs_operator: Cell::new(true),
            operator: Cell::new(None),
            operators: Cell::new(0),
            dead_operators: RefCell::default(),
            operators_fenced: Cell::new(0),
            fenced: RefCell::default(),
            frozen: Cell::new(false),
        }
    }

    /// Returns the number of operations checked.
    fn run(&self, events: &Cell<u64>) -> Result<u64, Failure> {
        let limit = (self.shape.operations as u64 + 200) * EVENTS_PER_OPERATION;
        let mut executor = Executor::new(&self.sim);
        let adversary = self.sim.process("adversary");
        executor.spawn_background(adversary, adversary::run(self));
        loop {
            for _ in 0..self.births.take() {
                let process = self.cluster.client_process();
                self.clients.borrow_mut().insert(process, None);
                executor.spawn(process, self.client(process));
            }
            if self.needs_operator.take() {
                let process = self.sim.process("operator");
                self.operator.set(Some(process));
                executor.spawn(process, operator::run(self, process));
            }
            if !executor.is_running() {
                break;
            }
            assert!(executor.step(), "everything waits for ever");
            events.set(events.get() + 1);
            assert!(events.get() < limit, "stuck after {limit} events");
        }
        drop(executor);
        self.calm();
        self.final_reads();
        let rests = self.cluster.take_rests();
        at_rest(&self.cluster, &rests);
        if self.faults.iter().all(|fault| [Fault::Delay, Fault::Tear].contains(fault)) {
            nothing_is_lost(&self.cluster, &rests);
        }
        let findings = self.workload.check();
        if let Some(refutation) = findings.refutation {
            let what = format!("the operations on key {} have no order", refutation.key);
            let text = refutation.render(|value| value.to_string());
            return Err(Failure { what, history: text.lines().map(str::to_string).collect() });
        }
        assert_eq!(findings.undecided_keys, 0, "too many operations overlap to tell");
        Ok(findings.operations)
    }

    /// Nothing goes wrong any more, and what is on its way arrives.
    fn calm(&self) {
        let options = self.cluster.network().options();
        self.cluster
            .network()
            .set_options(NetworkOptions { lost_completions_one_in: 0, ..options });
        self.cluster.control().lost_one_in.set(0);
        self.cluster.master().spare();
        self.sim.settle();
    }

    /// Whether there are operations left to do.
    pub fn goes_on(&self) -> bool {
        self.workload.invoked() < self.shape.operations as u64
    }

    /// A client process has crashed: its session is torn, and another process takes its place.
    pub fn client_crashed(&self, process: ProcessId) {
        count(&self.sim.counts().client_crashes);
        let client = self.clients.borrow_mut().remove(&process).flatten();
        if let Some(client) = client {
            self.tear(client);
        }
        self.births.set(self.births.get() + 1);
    }

    /// The operator crashes, and another one takes its place.
    pub fn crash_operator(&self) {
        if let Some(process) = self.operator.take() {
            count(&self.sim.counts().recovery_crashes);
            self.sim.crash(process);
            self.needs_operator.set(true);
            let names = (self.operators_fenced.get() + 1..=self.operators.get()).map(operator_name);
            *self.dead_operators.borrow_mut() = names.collect();
        }
    }

    /// Who has to be fenced before an operator may begin.
    pub fn dead_operators(&self) -> Vec<ClientId> {
        self.dead_operators.borrow().clone()
    }

    /// They have been.
    pub fn operators_are_fenced(&self) {
        self.dead_operators.borrow_mut().clear();
        self.operators_fenced.set(self.operators.get());
    }

    /// Whether all clients have ended and all that they left is put right.
    pub fn is_over(&self) -> bool {
        let alive = !self.clients.borrow().is_empty() || self.births.get() > 0;
        !alive && self.torn.borrow().is_empty() && self.lost_nodes().is_empty()
    }

    /// A name that nobody has had, for the verbs of an operator.
    pub fn operator_id(&self) -> ClientId {
        self.operators.set(self.operators.get() + 1);
        operator_name(self.operators.get())
    }

    /// The latest of these.
    pub fn newest_operator(&self) -> Option<ClientId> {
        (self.operators.get() > 0).then(|| operator_name(self.operators.get()))
    }

    /// The nodes of the view that have crashed.
    pub fn lost_nodes(&self) -> Vec<MnId> {
        let view = self.cluster.view();
        let nodes = view.members.iter().map(|m| m.node);
        nodes.filter(|node| !self.cluster.network().has(*node)).collect()
    }

    /// Those that have not.
    pub fn living_nodes(&self) -> Vec<MnId> {
        let view = self.cluster.view();
        let nodes = view.members.iter().map(|m| m.node);
        nodes.filter(|node| self.cluster.network().has(*node)).collect()
    }

    /// The session to recover next: any of them.
    pub fn next_torn(&self) -> Option<ClientId> {
        let torn = self.torn.borrow();
        (!torn.is_empty()).then(|| self.fault_rng.pick(&torn))
    }

    /// All sessions that are to be recovered.
    pub fn all_torn(&self) -> Vec<ClientId> {
        self.torn.borrow().clone()
    }

    /// A session has been recovered.
    pub fn recovered(&self, client: ClientId) {
        self.torn.borrow_mut().retain(|c| *c != client);
    }

    /// Stops the clients, or lets them go on.
    pub fn freeze(&self, yes: bool) {
        self.frozen.set(yes);
    }

    /// Whether a living client still has a session.
    pub fn sessions_are_open(&self) -> bool {
        self.clients.borrow().values().any(Option::is_some)
    }

    fn tear(&self, client: ClientId) {
        self.torn.borrow_mut().push(client);
    }

    /// What a client process does: one session after the other, until there is nothing to do.
    async fn client(&self, process: ProcessId) {
        while self.goes_on() {
            if self.frozen.get() {
                self.sim.sleep(20_000).await;
                continue;
            }
            let options = self.shape.cluster.session;
            let Ok(session) = self.cluster.open(process, options).await else {
                self.sim.sleep(20_000).await;
                continue;
            };
            self.clients.borrow_mut().insert(process, Some(session.id()));
            self.use_session(&session).await;
            let leaving = session.leave();
            self.clients.borrow_mut().insert(process, None);
            let Some(leaving) = leaving else {
                self.tear(session.id());
                continue;
            };
            // The master may not hear of it; then it counts the session as open.
            let _told = self.cluster.ask_master(process, leaving.request(), 500_000).await;
            count(&self.sim.counts().sessions_closed);
        }
        self.clients.borrow_mut().remove(&process);
    }

    /// Runs operations on a session, until it is lost, has done its share or has to stop.
    async fn use_session(&self, session: &SimSession) {
        let lost = Cell::new(false);
        let left = Cell::new(1 + self.op_rng.below(2 * self.shape.session_operations));
        let coroutine = async || {
            while self.goes_on() && !self.frozen.get() && !lost.get() && left.get() > 0 {
                left.set(left.get() - 1);
                let (kind, key) = self.draw();
                if self.workload.run(&self.op_rng, session, kind, key).await == Went::Lost {
                    lost.set(true);
                }
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
        let key = match self.op_rng.one_in(self.shape.first_key_one_in) {
            true => 0,
            false => self.op_rng.below(self.workload.key_count()),
        };
        let mix = if key == 0 { &self.shape.first_mix } else { &self.shape.other_mix };
        (draw_kind(&self.op_rng, mix), key)
    }

    /// A new client reads every key.
    fn final_reads(&self) {
        let process = self.cluster.client_process();
        self.cluster.block_on(process, async {
            let session = self.cluster.open(process, self.shape.cluster.session).await;
            let session = session.expect("nothing fails any more");
            for key in 0..self.workload.key_count() {
                let went = self.workload.run(&self.op_rng, &session, OpKind::Search, key).await;
                assert_eq!(went, Went::Well, "the last SEARCH of key {key}");
            }
        });
    }
}

/// The `n`-th name of an operator: far from those that the master gives.
fn operator_name(n: u32) -> ClientId {
    ClientId(u32::MAX - n)
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
