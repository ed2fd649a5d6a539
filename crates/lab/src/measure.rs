//! The measurement of a setup: it loads the keys, lets clients learn where keys are, and counts operations.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use fusee_baselines::lock::RemoteLock;
use fusee_baselines::published::PublishedParameters;
use fusee_baselines::sequencer::Sequencer;
use fusee_core::data::Redundancy;
use fusee_core::stats::KindStats;
use fusee_core::verbs::MnId;
use fusee_sim::{
    BusyTime, Executor, MachineId, Nanos, NetworkOptions, PostedTotals, ProcessId, Rng, Switches,
};
use fusee_switch::{SwitchCounts, fusee};
use fusee_workload::{Frontier, KeyChooser, WorkloadOperation, key_bytes};

use crate::baselines;
use crate::setup::{
    HardwareUse, LabLatency, LabLoad, LabResults, LabSetup, LabStep, LabSwitch, LabSwitchWork,
    LabSystem, TimelineEvent,
};
use crate::subject::{FuseeSubject, LabSession, Subject};

/// Number of counted operations for each operation of the warm-up. The warm-up brings clients out of step with each
/// other.
const WARM_UP: u64 = 8;
/// Number of simulated events between two calls of `stop`.
const EVENTS_PER_LOOK: u64 = 1 << 12;
/// Time between two checks whether a session is open.
const NEXT_LOOK: Nanos = 10_000;

/// Reasons for which a measurement gives no results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeasurementError {
    /// The function `stop` of the caller returned true.
    Stopped,
    /// An operation failed because of a fault in the model or in the store, with a description.
    Operation(String),
}

/// Measures a setup, unless `stop` returns true.
pub fn measure(setup: &LabSetup, stop: &dyn Fn() -> bool) -> Result<LabResults, MeasurementError> {
    let network = NetworkOptions {
        testbed: Some(setup.hardware()),
        delays: false,
        tearing: false,
        // Clients notice a silent memory node within one window of the timeline.
        verb_timeout_ns: setup.timeline.map_or(1_000_000_000, |timeline| timeline.window_ns()),
        ..NetworkOptions::default()
    };
    match setup.system {
        LabSystem::Fusee => {
            let ours = FuseeSubject::new(setup, network);
            if let Some(LabSwitch::Ours { slots, rounds }) = setup.switch {
                let switch = fusee::FuseeSwitch::new(fusee::FuseeSwitchOptions { slots, rounds });
                ours.network().put_switches(Switches::one(Box::new(switch)));
            }
            measure_in(&ours, setup, stop)
        }
        LabSystem::Published => baselines::published(setup, |parameters| parameters, network, stop),
        LabSystem::OneByOne => {
            baselines::published(setup, PublishedParameters::one_by_one, network, stop)
        }
        LabSystem::NodesAllocate => {
            baselines::published(setup, PublishedParameters::allocated_by_nodes, network, stop)
        }
        LabSystem::Clover => baselines::clover(setup, network, stop),
        LabSystem::PdpmDirect => baselines::pdpm_direct(setup, network, stop),
        LabSystem::Lock => baselines::one_object::<RemoteLock>(setup, network, stop),
        LabSystem::Sequencer => baselines::one_object::<Sequencer>(setup, network, stop),
    }
}

/// Measures a system.
pub(crate) fn measure_in<S: Subject>(
    subject: &S,
    setup: &LabSetup,
    stop: &dyn Fn() -> bool,
) -> Result<LabResults, MeasurementError> {
    let sim = subject.sim();
    let network = subject.network();
    let machines: Vec<MachineId> =
        (0..setup.machines).map(|_| network.hardware().machine()).collect();
    let run = MeasurementRun {
        subject,
        setup,
        frontier: Frontier::new(setup.keys),
        chooser: KeyChooser::new(setup.load.distribution(), setup.keys, setup.theta, setup.seed),
        warm_up: setup.operations / WARM_UP,
        done: Cell::new(0),
        taken: Cell::new(0),
        missed: Cell::new(0),
        begun: Cell::new(0),
        ended: Cell::new(0),
        windows: RefCell::new(vec![0; setup.timeline.map_or(0, |timeline| timeline.windows)]),
        posted: Cell::default(),
        busy: RefCell::default(),
        latencies: RefCell::default(),
        failed: RefCell::default(),
    };
    let guests = setup.timeline.map_or(0, |timeline| timeline.guests());
    let members: Vec<LabClient<S>> = (0..setup.clients + guests)
        .map(|number| {
            let machine = machines[number % machines.len()];
            LabClient::new(subject, machine, number >= setup.clients)
        })
        .collect();
    let hosts = &members[..setup.clients];
    // One executor serves the whole measurement, because keepers live as long as their executor.
    let mut executor = Executor::new(sim);
    for member in &members {
        executor.spawn_background(member.process, run.run_background(member));
    }
    let mut events = 0;
    run.load_all(&mut executor, hosts);
    run.run_tasks(&mut executor, &mut events, stop)?;
    if setup.cached {
        executor.spawn(hosts[0].process, run.look_at_all(&hosts[0]));
        run.run_tasks(&mut executor, &mut events, stop)?;
        let (first, others) = hosts.split_first().expect("there are clients");
        others.iter().for_each(|member| member.session().learn_from(first.session()));
    }
    if let LabLoad::Moves { from, .. } = setup.load
        && from != setup.redundancy
    {
        executor.spawn(hosts[0].process, run.move_all(&hosts[0], from));
        run.run_tasks(&mut executor, &mut events, stop)?;
    }
    let hints = || -> u64 { hosts.iter().map(|m| m.session().wrong_hints()).sum() };
    let wrong = hints();
    let costs_before = costs(hosts);
    run.begin_timeline();
    run.operate_all(&mut executor, &members);
    run.run_tasks(&mut executor, &mut events, stop)?;
    run.end_timeline();
    drop(executor);
    let took = run.ended.get() - run.begun.get();
    let costs_after = costs(hosts);
    let uses = uses(&run.busy.take(), took);
    let busiest =
        uses.iter().max_by(|a, b| a.share.total_cmp(&b.share)).expect("there is hardware");
    let latencies = run.latencies.take();
    let operations: u64 = latencies.values().map(|all| all.len() as u64).sum();
    Ok(LabResults {
        operations,
        virtual_ns: took,
        ops_per_s: operations as f64 * 1e9 / took as f64,
        timeline: run.timeline(),
        latencies: latencies_by_kind(latencies, &costs_before, &costs_after),
        verbs: run.posted.get().verbs as f64 / operations as f64,
        bytes: run.posted.get().bytes as f64 / operations as f64,
        wrong_hints: (hints() - wrong) as f64 / operations as f64,
        missed: run.missed.get(),
        busiest: busiest.clone(),
        uses: uses.clone(),
        switch: network.switches().map(|switches| switched(&switches)),
        events,
    })
}

/// A client process, and its session once that is open.
struct LabClient<S: Subject> {
    process: ProcessId,
    seat: S::UnopenedClient,
    session: OnceCell<S::Session>,
    is_guest: bool,
}

impl<S: Subject> LabClient<S> {
    fn new(subject: &S, machine: MachineId, is_guest: bool) -> LabClient<S> {
        let (process, seat) = subject.create_client(machine);
        LabClient { process, seat, session: OnceCell::new(), is_guest }
    }

    fn session(&self) -> &S::Session {
        self.session.get().expect("it was opened")
    }
}

struct MeasurementRun<'r, S> {
    subject: &'r S,
    setup: &'r LabSetup,
    frontier: Frontier,
    /// A chooser that has drawn nothing. Clients clone it, because making a chooser takes long.
    chooser: KeyChooser,
    /// Number of operations that end before the first counted one.
    warm_up: u64,
    /// Number of operations that have ended, whether counted or not.
    done: Cell<u64>,
    /// Number of keys that DELETEs and Moves have used. No key is used twice.
    taken: Cell<u64>,
    /// Number of operations that did not find a key that had been inserted.
    missed: Cell<u64>,
    /// Time after which each operation that ends is counted.
    begun: Cell<Nanos>,
    /// Time at which the last counted operation ended. At `begun` and at this time, other operations are under way.
    ended: Cell<Nanos>,
    /// Number of operations that ended in each window of the timeline.
    windows: RefCell<Vec<u64>>,
    /// Verbs that were posted between `begun` and `ended`.
    posted: Cell<PostedTotals>,
    /// Busy times of the parts of the hardware between `begun` and `ended`.
    busy: RefCell<Vec<BusyTime>>,
    /// Latencies, by the name of the operation's kind.
    latencies: RefCell<BTreeMap<&'static str, Vec<Nanos>>>,
    failed: RefCell<Option<String>>,
}

impl<S: Subject> MeasurementRun<'_, S> {
    fn fail(&self, what: &str, error: &str) {
        self.failed.replace(Some(format!("{what}: {error}")));
    }

    fn value(&self) -> Vec<u8> {
        vec![7; self.setup.value_bytes()]
    }

    /// Runs spawned tasks to their end.
    fn run_tasks(
        &self,
        executor: &mut Executor<'_>,
        events: &mut u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), MeasurementError> {
        while executor.is_running() {
            assert!(executor.step(), "everything waits for ever");
            *events += 1;
            if events.is_multiple_of(EVENTS_PER_LOOK) && stop() {
                return Err(MeasurementError::Stopped);
            }
            if let Some(error) = self.failed.take() {
                return Err(MeasurementError::Operation(error));
            }
        }
        Ok(())
    }

    /// Runs the background work of a session after the session has been opened.
    async fn run_background(&self, member: &LabClient<S>) {
        while member.session.get().is_none() {
            self.subject.sim().sleep(NEXT_LOOK).await;
        }
        member.session().background().await;
    }

    fn load_all<'t>(&'t self, executor: &mut Executor<'t>, hosts: &'t [LabClient<S>]) {
        for (number, member) in hosts.iter().enumerate() {
            executor.spawn(member.process, self.begin(member, number));
        }
    }

    fn operate_all<'t>(&'t self, executor: &mut Executor<'t>, members: &'t [LabClient<S>]) {
        for (number, member) in members.iter().enumerate() {
            for coroutine in 0..self.setup.coroutines {
                let stream = number * self.setup.coroutines + coroutine;
                if member.is_guest {
                    executor
                        .spawn(member.process, self.operate_as_guest(&members[0], member, stream));
                } else {
                    executor.spawn(member.process, self.operate(member, stream))
                }
            }
        }
    }

    fn begin_timeline(&self) {
        let Some(timeline) = self.setup.timeline else { return };
        self.begun.set(self.subject.sim().now());
        self.subject.network().hardware().take_busy();
        self.subject.network().hardware().take_posted();
        if let TimelineEvent::NodeCrashes(node) = timeline.what {
            self.subject.crash_after(MnId(node), timeline.at as u64 * timeline.window_ns());
        }
    }

    fn end_timeline(&self) {
        if self.setup.timeline.is_some() {
            self.ended.set(self.subject.sim().now());
            self.busy.replace(self.subject.network().hardware().take_busy());
            self.posted.set(self.subject.network().hardware().take_posted());
        }
    }

    /// Opens a client's session, and inserts its share of the keys.
    async fn begin(&self, member: &LabClient<S>, number: usize) {
        let session = match self.subject.open(member.process, &member.seat).await {
            Ok(session) => member.session.get_or_init(|| session),
            Err(error) => return self.fail("open", &error),
        };
        let value = self.value();
        for key in (number as u64..self.setup.keys).step_by(self.setup.clients) {
            if let Err(error) = self.load(session, &key_bytes(key), &value).await {
                return self.fail("insert", &error);
            }
        }
    }

    /// Inserts a key. If the system can lose keys, repeats the INSERT until a SEARCH finds the key.
    async fn load(&self, session: &S::Session, key: &[u8], value: &[u8]) -> Result<(), String> {
        if !session.execute(WorkloadOperation::Insert, key, value).await? {
            return Err("there is such a key".into());
        }
        while self.setup.system.misses_keys()
            && !session.execute(WorkloadOperation::Search, key, value).await?
        {
            session.execute(WorkloadOperation::Insert, key, value).await?;
        }
        Ok(())
    }

    /// Lets a client SEARCH for every key.
    async fn look_at_all(&self, member: &LabClient<S>) {
        for key in 0..self.setup.keys {
            let found =
                member.session().execute(WorkloadOperation::Search, &key_bytes(key), &[]).await;
            match found {
                Ok(true) => {}
                Ok(false) => return self.fail("search", "a key that was loaded is not there"),
                Err(error) => return self.fail("search", &error),
            }
        }
    }

    /// Moves every key's pair to another redundancy.
    async fn move_all(&self, member: &LabClient<S>, to: Redundancy) {
        for key in 0..self.setup.keys {
            if let Err(error) = member.session().set_redundancy(&key_bytes(key), to).await {
                return self.fail("move", &error);
            }
        }
    }

    /// Returns whether a client continues. It ends when all operations are done or, in a run with a timeline, at the
    /// end of the timeline or, as a guest, when it has to leave.
    fn goes_on(&self, member: &LabClient<S>) -> bool {
        let Some(timeline) = self.setup.timeline else {
            return self.done.get() < self.warm_up + self.setup.operations;
        };
        let until = match timeline.what {
            TimelineEvent::Guests { until, .. } if member.is_guest => until,
            _ => timeline.windows,
        };
        self.subject.sim().now() < self.begun.get() + until as u64 * timeline.window_ns()
    }

    /// Returns the operations per second of each window.
    fn timeline(&self) -> Vec<f64> {
        let seconds = self.setup.timeline.map_or(1.0, |of| of.window_ns() as f64 / 1e9);
        self.windows.borrow().iter().map(|count| *count as f64 / seconds).collect()
    }

    /// Runs a guest, which is a client that comes during the measurement. The guest's process opens the session when it
    /// comes, and copies the index cache of a client that runs already.
    async fn operate_as_guest(&self, host: &LabClient<S>, member: &LabClient<S>, stream: usize) {
        let timeline = self.setup.timeline.expect("guests come in a timeline");
        let sim = self.subject.sim();
        sim.sleep(timeline.at as u64 * timeline.window_ns()).await;
        if stream.is_multiple_of(self.setup.coroutines) {
            match self.subject.open(member.process, &member.seat).await {
                Ok(session) => member.session.get_or_init(|| session).learn_from(host.session()),
                Err(error) => return self.fail("open", &error),
            }
        }
        while member.session.get().is_none() {
            sim.sleep(NEXT_LOOK).await;
        }
        self.operate(member, stream).await;
    }

    /// Executes one operation after the other, as long as the client [continues](Self::goes_on).
    async fn operate(&self, member: &LabClient<S>, stream: usize) {
        let LabSetup { load, seed, .. } = *self.setup;
        let session = member.session();
        let sim = self.subject.sim();
        let rng = Rng::named(seed, &format!("operations {stream}"));
        let mut chooser = self.chooser.clone();
        let value = self.value();
        while self.goes_on(member) {
            let step = load.draw(&rng);
            let key = match step {
                LabStep::Request(WorkloadOperation::Insert) => self.frontier.claim(),
                LabStep::Request(WorkloadOperation::Delete) | LabStep::Move(_) => {
                    let key = self.taken.replace(self.taken.get() + 1);
                    if key == self.setup.keys {
                        return self.fail(step.name(), "all keys have had their turn");
                    }
                    key
                }
                _ => rng.with(|rng| chooser.next(rng, self.frontier.acknowledged())),
            };
            self.subject.network().hardware().work(session.client()).await;
            let begun = sim.now();
            let bytes = key_bytes(key);
            let done = match step {
                LabStep::Request(request) => session.execute(request, &bytes, &value).await,
                LabStep::Move(redundancy) => {
                    session.set_redundancy(&bytes, redundancy).await.map(|()| true)
                }
            };
            match done {
                Ok(true) => {}
                Ok(false) if self.setup.system.misses_keys() => {
                    self.missed.set(self.missed.get() + 1);
                }
                Ok(false) => return self.fail(step.name(), "a key was inserted and is not there"),
                Err(error) => return self.fail(step.name(), &error),
            }
            if step == LabStep::Request(WorkloadOperation::Insert) {
                self.frontier.finish(key);
            }
            self.ended(step, sim.now() - begun);
        }
    }

    /// Records an operation that has ended. It is counted unless it belongs to the warm-up or ended after the last
    /// counted one.
    fn ended(&self, step: LabStep, took: Nanos) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if let Some(timeline) = self.setup.timeline {
            let window = (self.subject.sim().now() - self.begun.get()) / timeline.window_ns();
            if let Some(count) = self.windows.borrow_mut().get_mut(window as usize) {
                *count += 1;
            }
            self.latencies.borrow_mut().entry(step.name()).or_default().push(took);
            return;
        }
        let counted = done.checked_sub(self.warm_up).filter(|n| *n <= self.setup.operations);
        match counted {
            None => {}
            Some(0) => {
                self.begun.set(self.subject.sim().now());
                self.subject.network().hardware().take_busy();
                self.subject.network().hardware().take_posted();
            }
            Some(number) => {
                self.latencies.borrow_mut().entry(step.name()).or_default().push(took);
                if number == self.setup.operations {
                    self.ended.set(self.subject.sim().now());
                    self.busy.replace(self.subject.network().hardware().take_busy());
                    self.posted.set(self.subject.network().hardware().take_posted());
                }
            }
        }
    }
}

fn switched(switches: &Switches) -> LabSwitchWork {
    let SwitchCounts { asked, steered, held, .. } = switches.counts();
    LabSwitchWork { asked, steered, held, bytes: switches.bytes() }
}

/// Returns the cost of all operations so far, by the name of their kind, for kinds whose cost the system reports.
fn costs<S: Subject>(hosts: &[LabClient<S>]) -> BTreeMap<&'static str, KindStats> {
    let requests = [
        WorkloadOperation::Search,
        WorkloadOperation::Update,
        WorkloadOperation::Insert,
        WorkloadOperation::Delete,
    ];
    let steps = requests.map(LabStep::Request).into_iter().chain([LabStep::Move(Redundancy::None)]);
    let of = |step: LabStep| {
        let mut sum = KindStats::default();
        for cost in hosts.iter().map(|member| member.session().cost(step)) {
            let cost = cost?;
            sum.operations += cost.operations;
            sum.phases += cost.phases;
            sum.bytes += cost.bytes;
        }
        Some((step.name(), sum))
    };
    steps.filter_map(of).collect()
}

fn latencies_by_kind(
    latencies: BTreeMap<&'static str, Vec<Nanos>>,
    before: &BTreeMap<&'static str, KindStats>,
    after: &BTreeMap<&'static str, KindStats>,
) -> Vec<LabLatency> {
    let of = |(kind, mut all): (&'static str, Vec<Nanos>)| {
        all.sort_unstable();
        let at = |percent: usize| all[(all.len() - 1) * percent / 100];
        let cost = before.get(kind).zip(after.get(kind));
        let each = |of: fn(&KindStats) -> u64| {
            let (before, after) = cost?;
            let operations = after.operations - before.operations;
            (operations > 0).then(|| (of(after) - of(before)) as f64 / operations as f64)
        };
        LabLatency {
            kind,
            count: all.len() as u64,
            p50_ns: at(50),
            p99_ns: at(99),
            phases: each(|of| of.phases),
            bytes: each(|of| of.bytes),
        }
    };
    latencies.into_iter().map(of).collect()
}

/// Returns the busiest part of each kind (such as cores), separately for memory nodes and for other machines.
fn uses(busy: &[BusyTime], took: Nanos) -> Vec<HardwareUse> {
    let mut uses: Vec<HardwareUse> = Vec::new();
    for busy in busy {
        let share = busy.ns as f64 / (took as f64 * busy.servers as f64);
        let found = HardwareUse { machine: busy.machine.clone(), part: busy.part, share };
        let is_alike = |known: &&mut HardwareUse| {
            let is_node = |name: &str| name.starts_with("mn");
            known.part == busy.part && is_node(&known.machine) == is_node(&busy.machine)
        };
        match uses.iter_mut().find(is_alike) {
            Some(known) if known.share < share => *known = found,
            Some(_) => {}
            None => uses.push(found),
        }
    }
    uses
}
