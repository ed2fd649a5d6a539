//! Histories that a test steers by hand, with three clients, and links that can be held.

use std::cell::{Cell, RefCell};
use std::pin::Pin;

use fusee_baselines::published::{PublishedParameters, SlotWriteProtocol};
use fusee_baselines::{BaselineError, BaselineSession};
use fusee_core::verbs::{ClientId, MnId};
use fusee_linearizability::{
    HistoryAnswer, HistoryCall, HistoryOperation, HistoryRecord, OperationHistory, Refutation,
};
use fusee_sim::{Executor, NetworkOptions, ProcessId, Rack, Sim};

use super::{InProcessPublished, open};
use crate::support::{key, number_of, value};

/// Number of memory nodes, if there are no more replicas than that.
const NODES: usize = 3;

/// Three clients of one store. A phase takes 1,600 ns: half of it to the nodes, and half of it back.
pub struct SteeredScene {
    sim: Sim,
    rack: Rack,
    parameters: PublishedParameters,
    members: Vec<(ProcessId, InProcessPublished)>,
    history: RefCell<OperationHistory>,
    ticks: Cell<u64>,
}

pub type Act<'s> = Pin<Box<dyn Future<Output = ()> + 's>>;

impl SteeredScene {
    pub fn new(parameters: PublishedParameters) -> SteeredScene {
        let sim = Sim::steady();
        let network = NetworkOptions {
            delays: false,
            tearing: false,
            verb_timeout_ns: 1_000_000_000,
            ..NetworkOptions::default()
        };
        let nodes = parameters.index_replicas.max(NODES);
        let rack = Rack::new(&sim, network, nodes as u16, parameters.pool_bytes(nodes));
        let mut open = open(parameters.clone());
        let members = (0..3)
            .map(|_| {
                let (process, fabric) = rack.client_on(rack.network().hardware().machine());
                (process, open(fabric, rack.nodes()))
            })
            .collect();
        SteeredScene {
            sim,
            rack,
            parameters,
            members,
            history: RefCell::default(),
            ticks: Cell::new(0),
        }
    }

    /// Executes a call of a client on the key with this number.
    pub async fn act(
        &self,
        client: usize,
        number: u64,
        call: HistoryCall,
    ) -> Result<HistoryAnswer, BaselineError> {
        let store = &self.members[client].1;
        let key = key(number);
        let tick = || self.ticks.replace(self.ticks.get() + 1);
        let invoked = tick();
        let done = |done, otherwise| if done { HistoryAnswer::Done } else { otherwise };
        let answer = match call {
            HistoryCall::Search => store.search(&key).await.map(|found| match found {
                Some(value) => HistoryAnswer::Found(number_of(&value).expect("a whole value")),
                None => HistoryAnswer::Absent,
            }),
            HistoryCall::Update(new) => {
                store.update(&key, &value(new)).await.map(|d| done(d, HistoryAnswer::Absent))
            }
            HistoryCall::Insert(new) => {
                store.insert(&key, &value(new)).await.map(|d| done(d, HistoryAnswer::Exists))
            }
            HistoryCall::Delete => store.delete(&key).await.map(|d| done(d, HistoryAnswer::Absent)),
            HistoryCall::Upsert(_) => unreachable!("nobody upserts"),
        };
        let returned = answer.ok().map(|answer| (tick(), answer));
        let operation = HistoryOperation { call, invoked, returned };
        self.history.borrow_mut().push(HistoryRecord {
            key: number,
            client: client as u32,
            operation,
        });
        answer
    }

    /// Returns the phases of an INSERT, or of an UPDATE with a right hint, without conflicts.
    pub fn phases_of_a_write(&self) -> u64 {
        match (self.parameters.index_replicas, self.parameters.writes) {
            (1, _) => 2,
            (_, SlotWriteProtocol::Snapshot) => 4,
            (replicas, SlotWriteProtocol::OneByOne) => 1 + replicas as u64,
        }
    }

    /// Nanoseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.sim.now()
    }

    pub async fn sleep(&self, ns: u64) {
        self.sim.sleep(ns).await;
    }

    /// Holds back the client's verbs that the node has not executed yet, until [`release`](SteeredScene::release).
    pub fn hold(&self, client: usize, node: u16) {
        self.rack.network().links().hold(ClientId(client as u32 + 1), MnId(node), 900_000_000);
    }

    pub fn release(&self, client: usize, node: u16) {
        self.rack.network().links().release(ClientId(client as u32 + 1), MnId(node));
    }

    /// Plays several acts at the same time until all have ended.
    pub fn play(&self, acts: Vec<Act<'_>>) {
        let mut executor = Executor::new(&self.sim);
        for (number, act) in acts.into_iter().enumerate() {
            executor.spawn(self.members[number % 3].0, act);
        }
        executor.run(10_000_000, || ());
    }

    /// Returns the shortest part of the history that is not linearizable; `None` if the history is linearizable.
    pub fn refutation(self) -> Option<Refutation> {
        self.history.take().check().refutation.map(|refutation| *refutation)
    }
}
