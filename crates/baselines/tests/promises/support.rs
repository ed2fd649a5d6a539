//! Random histories of a system's clients over an adversarial network, checked for linearizability.

use std::cell::{Cell, RefCell};

use std::future::poll_fn;
use std::task::Poll;

use fusee_baselines::{BaselineServer, BaselineSession, InProcessRpc, Rpc};
use fusee_core::verbs::MnId;
use fusee_linearizability::{
    HistoryAnswer, HistoryCall, HistoryFindings, HistoryOperation, HistoryRecord, OperationHistory,
};
use fusee_sim::{Executor, Nanos, Network, NetworkOptions, Rack, Rng, Sim, SimFabric, Testbed};

/// Length of a value. Its first eight bytes are its number, and the others repeat them.
pub const VALUE_BYTES: usize = 100;
/// Largest number of events of a run.
const MOST_EVENTS: u64 = 20_000_000;

/// The dimensions of a run, and the operations of its clients.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLoad {
    pub memory_nodes: u16,
    pub pool_bytes: u64,
    pub clients: usize,
    pub coroutines: usize,
    pub operations: usize,
    pub keys: u64,
    /// Whether keys are inserted while clients use them. Otherwise all keys exist from the beginning.
    pub inserts: bool,
    /// Whether the system implements DELETE.
    pub deletes: bool,
}

/// Returns the value with this number. A mixture of two such values is not the value of any number.
pub fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(VALUE_BYTES).collect()
}

/// Returns the number of a value, or `None` if the value is a mixture of several.
pub fn number_of(value: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(value.get(..8)?.try_into().ok()?);
    (value == self::value(number)).then_some(number)
}

pub fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key 000000000000";
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Runs clients with delays and torn verbs, by this seed, and checks their history.
pub fn findings<S: BaselineSession>(
    seed: u64,
    load: HistoryLoad,
    open: impl FnMut(SimFabric, &[MnId]) -> S,
) -> HistoryFindings {
    findings_on(seed, load, MOST_EVENTS, |_| (), |_| (), open)
}

/// Does the same as [`findings`] within `most_events` events, and calls `before` and `after` with the network.
///
/// # Panics
/// If the run does not end.
pub fn findings_on<S: BaselineSession>(
    seed: u64,
    load: HistoryLoad,
    most_events: u64,
    before: impl FnOnce(&Network),
    after: impl FnOnce(&Network),
    mut open: impl FnMut(SimFabric, &[MnId]) -> S,
) -> HistoryFindings {
    let sim = Sim::new(seed);
    let rack = Rack::new(&sim, NetworkOptions::default(), load.memory_nodes, load.pool_bytes);
    before(rack.network());
    let machine = rack.network().hardware().machine();
    let members: Vec<_> = (0..load.clients)
        .map(|_| {
            let (process, fabric) = rack.client_on(machine);
            (process, open(fabric, rack.nodes()))
        })
        .collect();
    let history = RefCell::new(OperationHistory::new());
    let next = Cell::new(0u64);
    let time = Cell::new(0u64);
    let tick = || time.replace(time.get() + 1);
    let fresh = || next.replace(next.get() + 1);
    let run = HistoryRun { load, rng: Rng::named(seed, "operations"), history: &history };
    let mut executor = Executor::new(&sim);
    for (process, session) in &members {
        executor.spawn_background(*process, session.background());
    }
    if !load.inserts {
        executor.spawn(members[0].0, async {
            for key_number in 0..load.keys {
                let begun = tick();
                let number = fresh();
                let done = members[0].1.insert(&key(key_number), &value(number)).await.unwrap();
                run.record(
                    0,
                    key_number,
                    HistoryCall::Insert(number),
                    written(done, true),
                    begun,
                    tick(),
                );
            }
        });
        executor.run(most_events, || ());
    }
    for (client, (process, session)) in members.iter().enumerate() {
        for coroutine in 0..load.coroutines {
            let run = &run;
            let tick = &tick;
            let fresh = &fresh;
            let number = (client * load.coroutines + coroutine) as u32 + 1;
            executor.spawn(*process, async move {
                for _ in 0..load.operations {
                    let key_number = run.rng.below_u64(load.keys);
                    let key = key(key_number);
                    let call = run.draw(fresh);
                    let begun = tick();
                    let answer = match call {
                        HistoryCall::Search => match session.search(&key).await.unwrap() {
                            None => HistoryAnswer::Absent,
                            Some(found) => {
                                HistoryAnswer::Found(number_of(&found).expect("a whole value"))
                            }
                        },
                        HistoryCall::Update(new) => {
                            written(session.update(&key, &value(new)).await.unwrap(), false)
                        }
                        HistoryCall::Insert(new) => {
                            written(session.insert(&key, &value(new)).await.unwrap(), true)
                        }
                        HistoryCall::Delete => written(session.delete(&key).await.unwrap(), false),
                        HistoryCall::Upsert(_) => unreachable!("nobody upserts"),
                    };
                    run.record(number, key_number, call, answer, begun, tick());
                }
            });
        }
    }
    executor.run(most_events, || ());
    drop(executor);
    after(rack.network());
    history.into_inner().check()
}

/// A connection to a server on which each request and each reply takes a random number of the process's steps.
pub struct DelayedRpc<S> {
    server: InProcessRpc<S>,
    rng: Rng,
}

impl<S> DelayedRpc<S> {
    pub fn new(seed: u64, server: &InProcessRpc<S>) -> DelayedRpc<S> {
        DelayedRpc { server: server.clone(), rng: Rng::named(seed, "way to the server") }
    }

    async fn way(&self) {
        for _ in 0..self.rng.below(self.rng.pick(&[1, 4, 40])) + 1 {
            pause().await;
        }
    }
}

impl<S: BaselineServer> Rpc<S> for DelayedRpc<S> {
    async fn call(&self, request: S::Request) -> S::Reply {
        self.way().await;
        let reply = self.server.call(request).await;
        self.way().await;
        reply
    }
}

/// Waits until the process takes its next step.
async fn pause() {
    let mut is_over = false;
    poll_fn(|context| {
        if is_over {
            return Poll::Ready(());
        }
        is_over = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Duration of a phase on a quiet network, in nanoseconds.
pub const PHASE_NS: Nanos = 2 * Testbed::UNLIMITED.one_way_ns;

/// Memory nodes on a network where only phases take time.
pub struct QuietRack {
    pub rack: Rack,
}

impl QuietRack {
    pub fn new(memory_nodes: u16, pool_bytes: u64) -> QuietRack {
        let options =
            NetworkOptions { testbed: Some(Testbed::UNLIMITED), ..NetworkOptions::default() };
        QuietRack { rack: Rack::new(&Sim::steady(), options, memory_nodes, pool_bytes) }
    }

    pub fn fabric(&self) -> SimFabric {
        self.rack.client_on(self.rack.network().hardware().machine()).1
    }

    /// Runs a task alone. Returns its result and its number of phases.
    pub fn phases<T>(&self, task: impl Future<Output = T>) -> (T, f64) {
        let sim = self.rack.sim();
        let begun = sim.now();
        let result = RefCell::new(None);
        let mut executor = Executor::new(sim);
        executor.spawn(sim.process("task"), async {
            *result.borrow_mut() = Some(task.await);
        });
        executor.run(MOST_EVENTS, || ());
        drop(executor);
        let result = result.into_inner().expect("the task has ended");
        (result, (sim.now() - begun) as f64 / PHASE_NS as f64)
    }

    /// Runs an endless task for the time of this many phases.
    pub fn let_run(&self, phases: u64, task: impl Future<Output = ()>) {
        let sim = self.rack.sim();
        let process = sim.process("background");
        let mut executor = Executor::new(sim);
        executor.spawn_background(process, task);
        executor.spawn(process, sim.sleep(phases * PHASE_NS));
        executor.run(MOST_EVENTS, || ());
    }
}

fn written(done: bool, is_insert: bool) -> HistoryAnswer {
    match (done, is_insert) {
        (true, _) => HistoryAnswer::Done,
        (false, true) => HistoryAnswer::Exists,
        (false, false) => HistoryAnswer::Absent,
    }
}

struct HistoryRun<'h> {
    load: HistoryLoad,
    rng: Rng,
    history: &'h RefCell<OperationHistory>,
}

impl HistoryRun<'_> {
    fn draw(&self, fresh: impl Fn() -> u64) -> HistoryCall {
        match self.rng.below(10) {
            0 if self.load.deletes => HistoryCall::Delete,
            1 | 2 if self.load.inserts => HistoryCall::Insert(fresh()),
            3..=5 => HistoryCall::Update(fresh()),
            _ => HistoryCall::Search,
        }
    }

    fn record(
        &self,
        client: u32,
        key: u64,
        call: HistoryCall,
        answer: HistoryAnswer,
        begun: u64,
        ended: u64,
    ) {
        let operation = HistoryOperation { call, invoked: begun, returned: Some((ended, answer)) };
        self.history.borrow_mut().push(HistoryRecord { key, client, operation });
    }
}
