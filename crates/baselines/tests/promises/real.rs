//! The baselines over shared memory and TCP. Each thread of this process has a session, on memory nodes of this
//! process. A server replies at once, to one request after the other.

use std::net::Ipv4Addr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;

use fusee_baselines::clover::{self, CloverClient, MetadataServer};
use fusee_baselines::lock::RemoteLock;
use fusee_baselines::object::{Exclusion, OneObjectClient};
use fusee_baselines::pdpm::{self, PdpmClient, PdpmDirectory};
use fusee_baselines::published::{
    self, Allocator, PublishedClient, PublishedLayout, PublishedParameters,
};
use fusee_baselines::sequencer::Sequencer;
use fusee_baselines::{BaselineServer, BaselineSession, Rpc};
use fusee_core::verbs::{ClientId, MnId};
use fusee_core::view::Member;
use fusee_fabric::tcp::DEFAULT_SPIN;
use fusee_fabric::{
    AnyFabric, FabricKind, NodeFabrics, NodeFabricsOptions, Pool, PoolOptions, attach_all,
};
use fusee_linearizability::{
    HistoryAnswer, HistoryCall, HistoryOperation, HistoryRecord, OperationHistory,
};
use fusee_sim::Rng;

use crate::support::{VALUE_BYTES, key, number_of, value};

const BYTES: u32 = VALUE_BYTES as u32;
const NODES: u16 = 2;
const THREADS: u32 = 4;
const OPERATIONS: usize = 300;
const KEYS: u64 = 3;

/// A connection to a server in this process. A mutex orders the requests.
struct LockedRpc<S>(Arc<Mutex<S>>);

impl<S> Clone for LockedRpc<S> {
    fn clone(&self) -> LockedRpc<S> {
        LockedRpc(self.0.clone())
    }
}

impl<S> LockedRpc<S> {
    fn new(server: S) -> LockedRpc<S> {
        LockedRpc(Arc::new(Mutex::new(server)))
    }
}

impl<S: BaselineServer> Rpc<S> for LockedRpc<S> {
    async fn call(&self, request: S::Request) -> S::Reply {
        self.0.lock().unwrap().serve(request)
    }
}

/// Memory nodes, each of which serves both fabrics.
struct RealNodes {
    _served: Vec<NodeFabrics>,
    members: Vec<Member>,
}

impl RealNodes {
    fn start(pool_bytes: u64) -> RealNodes {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut served = Vec::new();
        let mut members = Vec::new();
        for node in 0..NODES {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            let identity = (u64::from(std::process::id()) << 32) + next;
            let bytes = pool_bytes.next_multiple_of(4096);
            let pool = Pool::new(PoolOptions { bytes, huge_pages: false }).unwrap();
            let shm = std::env::temp_dir().join(format!("fusee-baselines-{identity:x}"));
            let options = NodeFabricsOptions {
                pool,
                identity,
                tcp: Some((Ipv4Addr::LOCALHOST, 0).into()),
                spin: DEFAULT_SPIN,
                shm: Some(shm),
                verbs: None,
                steered: false,
                tls: None,
                keys: None,
            };
            let fabrics = NodeFabrics::start(options).unwrap();
            members.push(Member {
                node: MnId(node),
                identity,
                control: String::new(),
                tcp: fabrics.tcp_addr().map(|addr| addr.to_string()),
                shm: fabrics.shm_path().map(|path| path.display().to_string()),
                verbs: None,
                pool_bytes: fabrics.pool().bytes(),
            });
            served.push(fabrics);
        }
        RealNodes { _served: served, members }
    }

    fn names(&self) -> Vec<MnId> {
        self.members.iter().map(|member| member.node).collect()
    }
}

/// Runs an operation to its end, and meanwhile the background work of its session.
fn drive<T>(
    fabric: &AnyFabric,
    background: &mut Pin<&mut impl Future<Output = ()>>,
    has_ended: &mut bool,
    operation: impl Future<Output = T>,
) -> T {
    let mut operation = pin!(operation);
    let waker = fabric.waker();
    let context = &mut Context::from_waker(&waker);
    loop {
        *has_ended = *has_ended || background.as_mut().poll(context).is_ready();
        match operation.as_mut().poll(context) {
            Poll::Ready(done) => return done,
            Poll::Pending => fabric.turn(Some(std::time::Duration::from_millis(1))),
        }
    }
}

/// Runs searches and updates of a few keys in several threads over a fabric, and checks the history.
fn is_linearizable<S: BaselineSession>(
    kind: FabricKind,
    keys: u64,
    pool_bytes: u64,
    open: impl Fn(Rc<AnyFabric>, &[MnId], ClientId) -> S + Sync,
) {
    let nodes = RealNodes::start(pool_bytes);
    let history = Mutex::new(OperationHistory::new());
    let clock = AtomicU64::new(0);
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    let session_of = |number: u32| {
        let client = ClientId(number);
        let fabric = Rc::new(attach_all(kind, client, &nodes.members).unwrap());
        (open(fabric.clone(), &nodes.names(), client), fabric)
    };
    let work = |number: u32| {
        let (session, fabric) = session_of(number);
        let mut background = pin!(session.background());
        let mut has_ended = false;
        let rng = Rng::named(number.into(), "operations of a thread");
        let calls: Vec<(u64, HistoryCall)> = match number {
            1 => (0..keys).map(|key| (key, HistoryCall::Insert(tick()))).collect(),
            _ => {
                let draw = |_| match rng.below(2) {
                    0 => (rng.below_u64(keys), HistoryCall::Search),
                    _ => (rng.below_u64(keys), HistoryCall::Update(tick())),
                };
                (0..OPERATIONS).map(draw).collect()
            }
        };
        for (number_of_key, call) in calls {
            let key = key(number_of_key);
            let invoked = tick();
            let done = drive(&fabric, &mut background, &mut has_ended, async {
                match call {
                    HistoryCall::Insert(new) => {
                        session.insert(&key, &value(new)).await.map(|_| None)
                    }
                    HistoryCall::Update(new) => {
                        session.update(&key, &value(new)).await.map(|_| None)
                    }
                    _ => session.search(&key).await,
                }
            });
            let answer = match (call, done.unwrap()) {
                (HistoryCall::Search, None) => HistoryAnswer::Absent,
                (HistoryCall::Search, Some(found)) => {
                    HistoryAnswer::Found(number_of(&found).expect("a whole value"))
                }
                _ => HistoryAnswer::Done,
            };
            let operation = HistoryOperation { call, invoked, returned: Some((tick(), answer)) };
            let record = HistoryRecord { key: number_of_key, client: number, operation };
            history.lock().unwrap().push(record);
        }
    };
    // The first thread inserts the keys before the others start.
    work(1);
    thread::scope(|scope| {
        for number in 2..2 + THREADS {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
    let findings = history.into_inner().unwrap().check();
    assert!(findings.is_clean(), "{kind}: {findings:?}");
    assert_eq!(findings.operations, u64::from(THREADS) * OPERATIONS as u64 + keys);
}

const FABRICS: [FabricKind; 2] = [FabricKind::Shm, FabricKind::Tcp];

fn one_object<T: Exclusion>() {
    for kind in FABRICS {
        is_linearizable(kind, 1, T::pool_bytes(BYTES), |fabric, nodes, _| {
            OneObjectClient::<_, T>::new(fabric, nodes, BYTES)
        });
    }
}

#[test]
fn a_locked_object() {
    one_object::<RemoteLock>();
}

#[test]
fn a_sequenced_object() {
    one_object::<Sequencer>();
}

#[test]
fn clover() {
    let sessions = THREADS as usize + 1;
    let operations = 1;
    let shape = clover::CloverShape {
        memory_nodes: NODES.into(),
        replicas: 2,
        value_bytes: BYTES,
        keys: KEYS,
        spare: clover::CloverShape::spare_for(sessions, operations),
    };
    for kind in FABRICS {
        let server = LockedRpc::new(MetadataServer::new(shape, clover::CloverCosts::FITTED));
        is_linearizable(kind, KEYS, shape.pool_bytes(), |fabric, nodes, _| {
            CloverClient::new(fabric, server.clone(), nodes, shape)
        });
    }
}

#[test]
fn pdpm_direct() {
    let shape =
        pdpm::PdpmShape { memory_nodes: NODES.into(), replicas: 2, value_bytes: BYTES, keys: KEYS };
    for kind in FABRICS {
        let server = LockedRpc::new(PdpmDirectory::new(shape, PdpmDirectory::ASSUMED));
        is_linearizable(kind, KEYS, shape.pool_bytes(), |fabric, nodes, _| {
            PdpmClient::new(fabric, server.clone(), nodes, shape)
        });
    }
}

#[test]
fn fusee_as_published_and_its_variants() {
    let variants: [fn(PublishedParameters) -> PublishedParameters; 4] = [
        |published| published,
        PublishedParameters::one_by_one,
        PublishedParameters::without_cache,
        PublishedParameters::allocated_by_nodes,
    ];
    let names: Vec<MnId> = (0..NODES).map(MnId).collect();
    for (kind, variant) in FABRICS.into_iter().flat_map(|kind| variants.map(|v| (kind, v))) {
        let parameters = variant(PublishedParameters::published(2, 2, KEYS, BYTES))
            .with_blocks(1 << 16, 1 << 20)
            .with_room_for(THREADS as u64 * OPERATIONS as u64, THREADS as u64 + 1, NODES.into());
        let pool_bytes = parameters.pool_bytes(NODES.into());
        let layout = Arc::new(PublishedLayout::new(&names, parameters.clone()).unwrap());
        let costs = published::AllocatorCosts::default();
        let servers: Vec<_> = (0..usize::from(NODES))
            .map(|node| LockedRpc::new(Allocator::new(layout.clone(), node, costs)))
            .collect();
        is_linearizable(kind, KEYS, pool_bytes, |fabric, _, client| {
            PublishedClient::new(fabric, layout.clone(), servers.clone(), client.0)
        });
    }
}
