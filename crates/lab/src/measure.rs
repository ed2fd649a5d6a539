//! Measures a setup: loads the keys, lets clients learn where they are, and counts operations.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use fusee_client::logic::Keeper;
use fusee_sim::{
    Busy, Cluster, Executor, MachineId, Nanos, NetworkOptions, ProcessId, Rng, Sim, SimSession,
};
use fusee_workload::{Chooser, Frontier, Request, key_bytes};

use crate::setup::{Latency, Measured, Setup, Use};

/// Of as many operations as are counted this part ends before: until the clients are out of step.
const WARM_UP: u64 = 8;
/// Events between two questions whether to stop.
const EVENTS_PER_LOOK: u64 = 1 << 12;
/// How long a session may be silent. It never is.
const LEASE: Duration = Duration::from_secs(1);

/// Why there is no measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Somebody asked to stop.
    Stopped,
    /// An operation failed, which is a fault of the model or of the store.
    Operation(String),
}

/// Measures a setup, unless `stop` says so.
pub fn measure(setup: &Setup, stop: &dyn Fn() -> bool) -> Result<Measured, Failed> {
    let sim = Sim::steady();
    let network = NetworkOptions {
        testbed: Some(setup.hardware()),
        delays: false,
        tearing: false,
        verb_timeout_ns: 1_000_000_000,
        ..NetworkOptions::default()
    };
    let cluster = Cluster::with_network(&sim, &setup.cluster(), network);
    cluster.never_watch();
    let machines: Vec<MachineId> =
        (0..setup.machines).map(|_| cluster.network().machine()).collect();
    let run = Run {
        sim: sim.clone(),
        cluster: &cluster,
        setup,
        frontier: Frontier::new(setup.keys),
        chooser: Chooser::new(setup.workload.distribution(), setup.keys, setup.theta, setup.seed),
        warm_up: setup.operations / WARM_UP,
        done: Cell::new(0),
        begun: Cell::new(0),
        ended: Cell::new(0),
        busy: RefCell::default(),
        latencies: RefCell::default(),
        failed: RefCell::default(),
    };
    let members: Vec<Member> = (0..setup.clients)
        .map(|number| Member::new(&cluster, machines[number % machines.len()]))
        .collect();
    // One for all: keepers live as long as it does.
    let mut executor = Executor::new(&sim);
    let mut events = 0;
    let mut go = |executor: &mut Executor<'_>| -> Result<(), Failed> {
        while executor.is_running() {
            assert!(executor.step(), "everything waits for ever");
            events += 1;
            if u64::is_multiple_of(events, EVENTS_PER_LOOK) && stop() {
                return Err(Failed::Stopped);
            }
            if let Some(error) = run.failed.take() {
                return Err(Failed::Operation(error));
            }
        }
        Ok(())
    };
    for (number, member) in members.iter().enumerate() {
        executor.spawn(member.process, run.begin(member, number));
    }
    go(&mut executor)?;
    if setup.cached {
        executor.spawn(members[0].process, run.look_at_all(&members[0]));
        go(&mut executor)?;
        let (first, others) = members.split_first().expect("there are clients");
        others.iter().for_each(|member| member.session().learn_from(first.session()));
    }
    let hints = || -> u64 { members.iter().map(|m| m.session().cache_stats().wrong).sum() };
    let wrong = hints();
    for (number, member) in members.iter().enumerate() {
        for coroutine in 0..setup.coroutines {
            let stream = number * setup.coroutines + coroutine;
            executor.spawn(member.process, run.operate(member, stream));
        }
    }
    go(&mut executor)?;
    drop(executor);
    let took = run.ended.get() - run.begun.get();
    let uses = uses(&run.busy.take(), took);
    let busiest =
        uses.iter().max_by(|a, b| a.share.total_cmp(&b.share)).expect("there is hardware");
    let latencies = run.latencies.take();
    let operations: u64 = latencies.iter().map(|all| all.len() as u64).sum();
    Ok(Measured {
        operations,
        virtual_ns: took,
        ops_per_s: operations as f64 * 1e9 / took as f64,
        latencies: summed_up(latencies),
        wrong_hints: (hints() - wrong) as f64 / operations as f64,
        busiest: busiest.clone(),
        uses: uses.clone(),
        events,
    })
}

/// A client process, which keeps its session.
struct Member {
    process: ProcessId,
    keeper: Rc<Keeper>,
    session: OnceCell<SimSession>,
}

impl Member {
    fn new(cluster: &Cluster, machine: MachineId) -> Member {
        let process = cluster.client_process();
        cluster.network().place(process, machine);
        let keeper = cluster.keeper(process, LEASE);
        Member { process, keeper, session: OnceCell::new() }
    }

    fn session(&self) -> &SimSession {
        self.session.get().expect("it was opened")
    }
}

/// Kinds of operations, by [`Request`].
const KINDS: [&str; 4] = ["search", "update", "insert", "delete"];

struct Run<'c> {
    sim: Sim,
    cluster: &'c Cluster,
    setup: &'c Setup,
    frontier: Frontier,
    /// As it is before anything is drawn: to make it takes long.
    chooser: Chooser,
    /// So many operations end before any counts.
    warm_up: u64,
    /// Operations that have ended.
    done: Cell<u64>,
    /// Since when operations that end are counted.
    begun: Cell<Nanos>,
    /// When the last one that counts ended. Others were under way, as all the time before.
    ended: Cell<Nanos>,
    /// What was busy in between.
    busy: RefCell<Vec<Busy>>,
    /// By kind.
    latencies: RefCell<[Vec<Nanos>; 4]>,
    failed: RefCell<Option<String>>,
}

impl Run<'_> {
    fn fail(&self, what: &str, error: impl std::fmt::Debug) {
        self.failed.replace(Some(format!("{what}: {error:?}")));
    }

    fn value(&self) -> Vec<u8> {
        vec![7; self.setup.value_bytes()]
    }

    /// Opens a client's session, and inserts its share of the keys.
    async fn begin(&self, member: &Member, number: usize) {
        let session = match self.cluster.open(member.process, self.setup.session()).await {
            Ok(session) => member.session.get_or_init(|| session),
            Err(error) => return self.fail("open", error),
        };
        member.keeper.open(session.gate().clone());
        let value = self.value();
        for key in (number as u64..self.setup.keys).step_by(self.setup.clients) {
            if let Err(error) = session.insert(&key_bytes(key), &value).await {
                return self.fail("insert", error);
            }
        }
    }

    /// Has a client look at every key.
    async fn look_at_all(&self, member: &Member) {
        for key in 0..self.setup.keys {
            let found = member.session().get_with(&key_bytes(key), |v| v.is_some()).await;
            if found != Ok(true) {
                return self.fail("search", found);
            }
        }
    }

    /// One operation after the other, as long as there are any left.
    async fn operate(&self, member: &Member, stream: usize) {
        let Setup { workload, seed, .. } = *self.setup;
        let session = member.session();
        let rng = Rng::named(seed, &format!("operations {stream}"));
        let mut chooser = self.chooser.clone();
        let value = self.value();
        let total = self.warm_up + self.setup.operations;
        while self.done.get() < total {
            let request = rng.with(|rng| workload.draw(rng));
            let key = match request {
                Request::Insert => self.frontier.claim(),
                _ => rng.with(|rng| chooser.next(rng, self.frontier.acknowledged())),
            };
            self.cluster.network().work(session.id()).await;
            let begun = self.sim.now();
            if let Err(error) = self.execute(session, request, key, &value).await {
                return self.fail(KINDS[request as usize], error);
            }
            self.ended(request, self.sim.now() - begun);
        }
    }

    /// Counts an operation that has ended, if it is one of those that count.
    fn ended(&self, request: Request, took: Nanos) {
        let done = self.done.get() + 1;
        self.done.set(done);
        let counted = done.checked_sub(self.warm_up).filter(|n| *n <= self.setup.operations);
        match counted {
            None => {}
            Some(0) => {
                self.begun.set(self.sim.now());
                self.cluster.network().take_busy();
            }
            Some(number) => {
                self.latencies.borrow_mut()[request as usize].push(took);
                if number == self.setup.operations {
                    self.ended.set(self.sim.now());
                    self.busy.replace(self.cluster.network().take_busy());
                }
            }
        }
    }

    async fn execute(
        &self,
        session: &SimSession,
        request: Request,
        key: u64,
        value: &[u8],
    ) -> Result<(), fusee_core::Error> {
        let bytes = key_bytes(key);
        match request {
            Request::Search => {
                session.get_with(&bytes, |_| ()).await?;
            }
            Request::Update => {
                session.update(&bytes, value).await?;
            }
            Request::Insert => {
                session.insert(&bytes, value).await?;
                self.frontier.finish(key);
            }
            Request::Delete => {
                session.delete(&bytes).await?;
            }
        }
        Ok(())
    }
}

fn summed_up(latencies: [Vec<Nanos>; 4]) -> Vec<Latency> {
    let of = |(kind, mut all): (&'static str, Vec<Nanos>)| {
        all.sort_unstable();
        let at = |percent: usize| all[(all.len() - 1) * percent / 100];
        let count = all.len() as u64;
        (count > 0).then(|| Latency { kind, count, p50_ns: at(50), p99_ns: at(99) })
    };
    KINDS.into_iter().zip(latencies).filter_map(of).collect()
}

/// For each kind of machine and part the one that was used most.
fn uses(busy: &[Busy], took: Nanos) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    for busy in busy {
        let share = busy.ns as f64 / (took as f64 * busy.servers as f64);
        let found = Use { machine: busy.machine.clone(), part: busy.part, share };
        let is_alike = |known: &&mut Use| {
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
