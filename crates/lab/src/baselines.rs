//! Measurements of the baselines on a testbed: the sizes of their stores, and the machines that their servers run on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fusee_baselines::clover::{self, CloverClient, MetadataServer};
use fusee_baselines::object::{Exclusion, OneObjectClient};
use fusee_baselines::pdpm::{self, PdpmClient, PdpmDirectory};
use fusee_baselines::published::{
    self, Allocator, PublishedClient, PublishedLayout, PublishedParameters,
};
use fusee_baselines::{BaselineServer, Rpc};
use fusee_core::verbs::ClientId;
use fusee_sim::{MachineId, MessageLengths, Nanos, Network, NetworkOptions, Rack, Rng, Switches};
use fusee_switch::clover::ChainTrust;
use fusee_workload::{KeyChooser, WorkloadOperation, key_bytes};

use crate::measure::{MeasurementError, measure_in};
use crate::setup::{LabLoad, LabResults, LabSetup, LabSwitch};
use crate::subject::{BaselineSubject, Subject};

/// A function that returns whether the measurement has to stop.
type StopCheck<'s> = &'s dyn Fn() -> bool;

/// Returns an upper bound of the number of keys that clients insert: in the warm-up, in the counted operations, and in
/// operations that are under way at the end.
fn new_keys(setup: &LabSetup) -> u64 {
    let inserts = match setup.load {
        LabLoad::Only(WorkloadOperation::Insert) => true,
        LabLoad::Ycsb(workload) => workload.adds_keys(),
        _ => false,
    };
    let under_way = (setup.clients * setup.coroutines) as u64;
    if inserts { setup.operations + setup.operations / 4 + under_way } else { 0 }
}

/// Measures a system that has a single object, which one client at a time uses.
pub(crate) fn one_object<X: Exclusion>(
    setup: &LabSetup,
    network: NetworkOptions,
    stop: StopCheck<'_>,
) -> Result<LabResults, MeasurementError> {
    let bytes = setup.value_bytes() as u32;
    let subject = BaselineSubject::new(setup, network, X::pool_bytes(bytes), |_| {
        move |rack: &Rack, fabric| OneObjectClient::<_, X>::new(fabric, rack.nodes(), bytes)
    });
    measure_in(&subject, setup, stop)
}

pub(crate) fn clover(
    setup: &LabSetup,
    network: NetworkOptions,
    stop: StopCheck<'_>,
) -> Result<LabResults, MeasurementError> {
    let shape = clover::CloverShape {
        memory_nodes: setup.memory_nodes.into(),
        replicas: setup.data_replicas.into(),
        value_bytes: setup.value_bytes() as u32,
        keys: setup.keys + new_keys(setup),
        spare: clover::CloverShape::spare_for(setup.clients, setup.coroutines)
            // With a switch more entries are needed, because entries whose CASes were steered are possibly never freed
            // (see `fusee_switch::clover`).
            + setup.switch.map_or(0, |_| 2 * setup.operations),
    };
    let costs = clover::CloverCosts::FITTED;
    let subject = BaselineSubject::new(setup, network, shape.pool_bytes(), |rack| {
        let machine = rack.network().hardware().server("metadata server", setup.metadata_cores);
        let server = Rc::new(RefCell::new(MetadataServer::new(shape, costs)));
        move |rack: &Rack, fabric| {
            let client = fabric.client();
            let rpc = TestbedRpc::new(rack.network(), client, machine, &server);
            CloverClient::new(fabric, rpc, rack.nodes(), shape)
        }
    });
    let trust = match setup.switch {
        Some(LabSwitch::Sent { keys }) => Some((ChainTrust::Sent, keys)),
        Some(LabSwitch::Answered { keys }) => Some((ChainTrust::Answered, keys)),
        Some(LabSwitch::Ours { .. }) | None => None,
    };
    if let Some((trust, keys)) = trust {
        let words = shape.chain_format().expect("a switch is for one memory node");
        let mut switch = fusee_switch::clover::CloverSwitch::new(words, trust, keys);
        // The published switch loses updates of a key after it has forgotten that key. A fixed set of keys prevents
        // that.
        if trust == ChainTrust::Sent && (keys as u64) < setup.keys {
            switch = switch.only(most_used(setup, keys));
        }
        subject.network().put_switches(Switches::one(Box::new(switch)));
    }
    measure_in(&subject, setup, stop)
}

pub(crate) fn pdpm_direct(
    setup: &LabSetup,
    network: NetworkOptions,
    stop: StopCheck<'_>,
) -> Result<LabResults, MeasurementError> {
    let shape = pdpm::PdpmShape {
        memory_nodes: setup.memory_nodes.into(),
        replicas: setup.data_replicas.into(),
        value_bytes: setup.value_bytes() as u32,
        keys: setup.keys + new_keys(setup),
    };
    let subject = BaselineSubject::new(setup, network, shape.pool_bytes(), |rack| {
        let machine = rack.network().hardware().server("directory", setup.metadata_cores);
        let server = Rc::new(RefCell::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED)));
        move |rack: &Rack, fabric| {
            let client = fabric.client();
            let rpc = TestbedRpc::new(rack.network(), client, machine, &server);
            PdpmClient::new(fabric, rpc, rack.nodes(), shape)
        }
    });
    measure_in(&subject, setup, stop)
}

/// Returns the `keys` keys that the load uses most.
fn most_used(setup: &LabSetup, keys: usize) -> Vec<u128> {
    let rng = Rng::named(setup.seed, "most used");
    let mut counts = BTreeMap::new();
    let mut chooser =
        KeyChooser::new(setup.load.distribution(), setup.keys, setup.theta, setup.seed);
    for _ in 0..200 * setup.keys {
        *counts.entry(rng.with(|rng| chooser.next(rng, setup.keys))).or_insert(0u64) += 1;
    }
    let mut all: Vec<(u64, u64)> = counts.into_iter().map(|(key, count)| (count, key)).collect();
    all.sort_unstable_by_key(|of| std::cmp::Reverse(*of));
    // The switch would take an empty list for all keys. Therefore the list has at least one key.
    let named = |(_, key): &(u64, u64)| u128::from_le_bytes(key_bytes(*key));
    all.iter().take(keys.max(1)).map(named).collect()
}

/// Sizes of blocks and regions of FUSEE as published. Like the sizes of our store here, they are smaller than the
/// paper's.
const BLOCK_BYTES: u64 = 1 << 18;
const REGION_BYTES: u64 = 1 << 25;

/// Measures FUSEE as published, with the parameters that `variant` returns.
pub(crate) fn published(
    setup: &LabSetup,
    variant: impl Fn(PublishedParameters) -> PublishedParameters,
    network: NetworkOptions,
    stop: StopCheck<'_>,
) -> Result<LabResults, MeasurementError> {
    let nodes = usize::from(setup.memory_nodes);
    let clients = setup.clients as u64;
    let keys = setup.keys + new_keys(setup);
    let index = setup.index_replicas.into();
    let data = setup.data_replicas.into();
    let parameters = PublishedParameters::published(index, data, keys, setup.value_bytes() as u32);
    let parameters = PublishedParameters {
        subtables: nodes,
        cache_threshold: setup.cached.then_some(setup.cache_threshold),
        ..variant(parameters)
    };
    // In the worst case every operation allocates an object, and no object is reused.
    let objects = keys + setup.operations + setup.operations / 4;
    let parameters = parameters.with_blocks(BLOCK_BYTES, REGION_BYTES).with_room_for(
        objects,
        clients * setup.coroutines as u64,
        nodes,
    );
    // A client requests an object or a block over a socket (P 6.1).
    let takes = Duration::from_nanos(setup.hardware().request_ns);
    let costs = published::AllocatorCosts { block: takes, object: takes };
    let pool_bytes = parameters.pool_bytes(nodes);
    let subject = BaselineSubject::new(setup, network, pool_bytes, |rack| {
        let layout = PublishedLayout::new(rack.nodes(), parameters.clone());
        let layout = Arc::new(layout.expect("setups have replicas on different nodes"));
        let server = |number| {
            let server = Rc::new(RefCell::new(Allocator::new(layout.clone(), number, costs)));
            (rack.network().hardware().machine_of(rack.nodes()[number]), server)
        };
        let servers: Vec<_> = (0..nodes).map(server).collect();
        move |rack: &Rack, fabric| {
            let client = fabric.client();
            let way = |(machine, server): &(MachineId, _)| {
                TestbedRpc::new(rack.network(), client, *machine, server).over_sockets()
            };
            let ways = servers.iter().map(way).collect();
            PublishedClient::new(fabric, layout.clone(), ways, client.0)
        }
    });
    measure_in(&subject, setup, stop)
}

/// The path of a client's requests to a server on a machine of the testbed.
struct TestbedRpc<S> {
    network: Network,
    client: ClientId,
    machine: MachineId,
    server: Rc<RefCell<S>>,
    /// Additional time of each message: that of the kernels, if messages go over sockets, otherwise 0.
    besides: Nanos,
}

impl<S> TestbedRpc<S> {
    fn new(
        network: &Network,
        client: ClientId,
        machine: MachineId,
        server: &Rc<RefCell<S>>,
    ) -> TestbedRpc<S> {
        TestbedRpc { network: network.clone(), client, machine, server: server.clone(), besides: 0 }
    }

    /// Adds the time that the kernels of both machines take for a message.
    fn over_sockets(self) -> TestbedRpc<S> {
        let besides = self.network.options().testbed.map_or(0, |testbed| testbed.message_ns);
        TestbedRpc { besides, ..self }
    }
}

impl<S: BaselineServer> Rpc<S> for TestbedRpc<S> {
    async fn call(&self, request: S::Request) -> S::Reply {
        let (takes, (there, back)) = {
            let server = self.server.borrow();
            (server.service_time(&request), server.bytes(&request))
        };
        let message = MessageLengths { request: there, reply: back };
        let takes = takes.as_nanos() as u64;
        self.network.hardware().pause(self.besides).await;
        let serve = || self.server.borrow_mut().serve(request);
        let reply =
            self.network.hardware().call(self.client, self.machine, takes, message, serve).await;
        self.network.hardware().pause(self.besides).await;
        reply
    }
}
