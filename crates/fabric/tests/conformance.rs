//! Runs the conformance suite on every fabric, in one process and across processes.
//!
//! The rigs: shared memory with nodes in this process; TCP over loopback, and through a switch; clients of both fabrics
//! at the same nodes; and both fabrics again with each node in a process of its own, which `kill` kills for good. With
//! an RDMA device, verbs in both arrangements; without one the test says so, and fails if `FUSEE_RDMA_REQUIRED=1`
//! (`tests/rdma/run` provides devices). With a wire for a switch, verbs through that switch as well. Clients over
//! shared memory that are fenced or killed run in child processes, too. A child process is this binary, started with
//! [`ROLE`] set. The child takes commands on its standard input and answers on its standard output. It ends when its
//! input is closed, and therefore with this process.
//!
//! This test has its own `main` because of the child processes. An argument selects the checks whose names contain it,
//! as with the usual harness: `cargo test --test conformance -- tcp/bounds`.

// Promise FAB-1: Every fabric keeps its [six guarantees](fabric.md#what-every-fabric-guarantees).

mod support;

use std::any::Any;
use std::collections::HashMap;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fusee_auth::NodeKey;
use fusee_core::ended_clients::LiveClients;
use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch};
use fusee_core::view::Member;
use fusee_fabric::conformance::{self, NODES, POOL_BYTES, Rig, START};
use fusee_fabric::tcp::TcpSwitch;
use fusee_fabric::verbs::WireSwitch;
use fusee_fabric::{
    AnyFabric, AttachCause, AttachError, FabricKind, NodeFabrics, SwitchLocation, attach_all,
    attach_all_through,
};
use fusee_switch::fusee::{FuseeSwitch, FuseeSwitchOptions};
use support::child::{Child, ROLE};
use support::{
    Scratch, Served, Wire, block_on, member, node, rdma_device, unique, verbs_node, wire,
};

/// The limit for steps that take a short time, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The fabric that each client uses.
#[derive(Clone, Copy, Debug)]
enum FabricMix {
    All(FabricKind),
    /// Clients with even numbers use shared memory, those with odd numbers TCP.
    Both,
}

impl FabricMix {
    fn kind(self, client: ClientId) -> FabricKind {
        match self {
            FabricMix::All(kind) => kind,
            FabricMix::Both if client.0.is_multiple_of(2) => FabricKind::Shm,
            FabricMix::Both => FabricKind::Tcp,
        }
    }
}

/// A rig with nodes in this process.
struct InProcessRig {
    mix: FabricMix,
    members: Vec<Member>,
    nodes: Mutex<Vec<Option<NodeFabrics>>>,
    scratch: Scratch,
}

impl InProcessRig {
    fn new(mix: FabricMix) -> InProcessRig {
        InProcessRig::with(mix, |scratch| match mix {
            FabricMix::All(FabricKind::Verbs) => verbs_node(POOL_BYTES),
            _ => node(POOL_BYTES, Some(scratch.socket())),
        })
    }

    fn with(mix: FabricMix, start: impl Fn(&Scratch) -> Served) -> InProcessRig {
        let scratch = Scratch::new();
        let nodes = NODES.map(|_| start(&scratch));
        let members = NODES.into_iter().zip(&nodes).map(|(name, n)| member(name, n)).collect();
        InProcessRig {
            mix,
            members,
            nodes: Mutex::new(nodes.map(|n| Some(n.fabrics)).into()),
            scratch,
        }
    }
}

impl Rig for InProcessRig {
    type Fabric = AnyFabric;

    fn attach(&self, client: ClientId) -> Result<AnyFabric, AttachError> {
        attach_all(self.mix.kind(client), client, &self.members)
    }

    fn turn(&self, fabric: &AnyFabric) {
        fabric.turn(Some(Duration::from_millis(10)));
    }

    fn fence(&self, node: MnId, client: ClientId) {
        let nodes = self.nodes.lock().unwrap();
        nodes[usize::from(node.0)].as_ref().expect("not killed").fence(&[client]);
    }

    fn learn(&self, node: MnId, living: &LiveClients) -> bool {
        let nodes = self.nodes.lock().unwrap();
        nodes[usize::from(node.0)].as_ref().expect("not killed").learn(living);
        true
    }

    fn cuts_batches(&self) -> bool {
        matches!(self.mix, FabricMix::All(FabricKind::Verbs))
    }

    fn kill(&self, node: MnId) {
        self.nodes.lock().unwrap()[usize::from(node.0)] = None;
    }
}

impl Drop for InProcessRig {
    fn drop(&mut self) {
        self.nodes.lock().unwrap().clear();
        self.scratch.assert_empty();
    }
}

/// A rig with nodes in this process, behind a switch that orders CASes and redirects steered READs.
struct SwitchRig {
    nodes: InProcessRig,
    at: SwitchLocation,
    /// The switch, and the wire if the switch is on one.
    _switch: Box<dyn Any + Sync>,
}

impl SwitchRig {
    const OPTIONS: FuseeSwitchOptions = FuseeSwitchOptions { slots: 10, rounds: 10 };

    /// Starts a rig whose sessions connect to the switch over TCP.
    fn over_tcp() -> SwitchRig {
        let nodes = InProcessRig::new(FabricMix::All(FabricKind::Tcp));
        let of = |member: &Member| {
            let name = NodeKey::new(None, member.identity).name();
            (name, (member.node, member.tcp.clone().expect("they serve TCP")))
        };
        let known: HashMap<u64, (MnId, String)> = nodes.members.iter().map(of).collect();
        let find = Box::new(move |name| known.get(&name).cloned());
        let switch = Box::new(FuseeSwitch::new(SwitchRig::OPTIONS));
        let switch = TcpSwitch::start("127.0.0.1:0".parse().unwrap(), switch, find).unwrap();
        let at = SwitchLocation::Address(switch.addr().to_string());
        SwitchRig { nodes, at, _switch: Box::new(switch) }
    }

    /// Starts a rig with the switch on the wire.
    fn on_the_wire() -> SwitchRig {
        let wire = Wire::of_this_machine().expect("it was asked for");
        let switch = Box::new(FuseeSwitch::new(SwitchRig::OPTIONS));
        let switch = WireSwitch::start(wire.interfaces(), switch).unwrap();
        let nodes =
            InProcessRig::with(FabricMix::All(FabricKind::Verbs), |_| wire.node(POOL_BYTES));
        SwitchRig { nodes, at: SwitchLocation::Wire, _switch: Box::new((switch, wire)) }
    }
}

impl Rig for SwitchRig {
    type Fabric = AnyFabric;

    fn attach(&self, client: ClientId) -> Result<AnyFabric, AttachError> {
        attach_all_through(&self.at, client, &self.nodes.members)
    }

    fn turn(&self, fabric: &AnyFabric) {
        self.nodes.turn(fabric);
    }

    fn fence(&self, node: MnId, client: ClientId) {
        self.nodes.fence(node, client);
    }

    fn cuts_batches(&self) -> bool {
        self.nodes.cuts_batches()
    }

    fn kill(&self, node: MnId) {
        self.nodes.kill(node);
    }
}

/// A rig with each node in a process of its own.
struct ChildProcessRig {
    kind: FabricKind,
    members: Vec<Member>,
    nodes: Vec<Child>,
    _scratch: Scratch,
}

impl ChildProcessRig {
    fn new(kind: FabricKind) -> ChildProcessRig {
        let scratch = Scratch::new();
        let nodes = NODES.map(|name| match kind {
            FabricKind::Verbs => Child::verbs_node(name, POOL_BYTES),
            _ => Child::node(name, POOL_BYTES, &scratch.socket()),
        });
        let (nodes, members) = nodes.into_iter().unzip();
        ChildProcessRig { kind, members, nodes, _scratch: scratch }
    }
}

impl Rig for ChildProcessRig {
    type Fabric = AnyFabric;

    fn attach(&self, client: ClientId) -> Result<AnyFabric, AttachError> {
        attach_all(self.kind, client, &self.members)
    }

    fn turn(&self, fabric: &AnyFabric) {
        fabric.turn(Some(Duration::from_millis(10)));
    }

    fn fence(&self, node: MnId, client: ClientId) {
        self.nodes[usize::from(node.0)].ask(&format!("fence {}", client.0));
    }

    fn cuts_batches(&self) -> bool {
        self.kind == FabricKind::Verbs
    }

    fn kill(&self, node: MnId) {
        self.nodes[usize::from(node.0)].kill();
    }
}

/// Fences a client in a process of its own. A process that answers the fence goes on; a process that is stopped is
/// killed.
fn fence_a_process(stopped: bool) {
    let scratch = Scratch::new();
    let served = node(POOL_BYTES, Some(scratch.socket()));
    let at = member(NODES[0], &served);
    let client = Child::client(&at, ClientId(5));
    let bystander = Child::client(&at, ClientId(6));
    assert_eq!(served.fabrics.attached_clients(), 2);
    client.ask("hammer");
    bystander.ask("hammer");
    let here = attach_all(FabricKind::Shm, ClientId(1), std::slice::from_ref(&at)).unwrap();
    let words = || {
        let mut batch = VerbBatch::new();
        let of_client = batch.read(NODES[0], START + 5 * 8, 8);
        let of_bystander = batch.read(NODES[0], START + 6 * 8, 8);
        let batch = block_on(&here, here.execute(batch));
        [of_client, of_bystander]
            .map(|t| u64::from_le_bytes(batch.data(t).unwrap().try_into().unwrap()))
    };
    let started = Instant::now();
    while words().contains(&0) {
        assert!(started.elapsed() < PATIENCE, "the clients do not hammer");
        std::thread::yield_now();
    }
    if stopped {
        client.stop();
    }
    served.fabrics.fence(&[ClientId(5)]);
    let [after, bystander_before] = words();
    std::thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    loop {
        let [later, bystander_later] = words();
        assert_eq!(later, after, "a verb after the fence");
        if bystander_later > bystander_before {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "fencing one has stopped the other");
    }
    if stopped {
        assert_eq!(client.end_signal(), Some(9), "the stopped process lives")
    } else {
        // The process was told of the fence, and continues with other work.
        client.ask("fenced")
    }
    // Neither another process nor this one can attach with that client id again.
    let again = Child::refused_client(&at, ClientId(5));
    assert!(again.contains("has been fenced"), "{again}");
    let again = attach_all(FabricKind::Shm, ClientId(5), &[at]).unwrap_err();
    assert!(matches!(again.cause, AttachCause::Fenced));
}

/// If one session of a process is fenced, the process's other sessions go on.
fn fence_one_session_of_a_process() {
    let scratch = Scratch::new();
    let served = node(POOL_BYTES, Some(scratch.socket()));
    let client = Child::client(&member(NODES[0], &served), ClientId(5));
    client.ask("also");
    assert_eq!(served.fabrics.attached_clients(), 2);
    client.ask("hammer");
    served.fabrics.fence(&[ClientId(5)]);
    client.ask("fenced");
    client.ask("other works");
    assert_eq!(served.fabrics.attached_clients(), 1);
    // All sessions of the process can be fenced, one after the other.
    served.fabrics.fence(&[ClientId(6)]);
    client.ask("ping");
    assert_eq!(served.fabrics.attached_clients(), 0);
}

/// A process that stands still for a moment is not killed. The test is repeated because the machine can stand still
/// for longer, but not every time.
fn fence_a_process_that_pauses() {
    let is_spared = || {
        let scratch = Scratch::new();
        let served = node(POOL_BYTES, Some(scratch.socket()));
        let client = Child::client(&member(NODES[0], &served), ClientId(5));
        client.ask("hammer");
        client.stop();
        std::thread::scope(|scope| {
            let fence = scope.spawn(|| served.fabrics.fence(&[ClientId(5)]));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!fence.is_finished(), "a stopped process does not count as outside");
            client.signal("CONT");
        });
        let lives = !client.has_ended();
        if lives {
            client.ask("fenced");
        }
        lives
    };
    assert!((0..5).any(|_| is_spared()), "a process is killed that could have answered");
}

/// If several processes are stopped, a fence waits for all of them at the same time, not one after the other.
fn fence_many_stopped_processes() {
    let scratch = Scratch::new();
    let served = node(POOL_BYTES, Some(scratch.socket()));
    let at = member(NODES[0], &served);
    let clients = [5, 6, 7, 8, 9, 10].map(ClientId);
    let children = clients.map(|client| Child::client(&at, client));
    children.iter().for_each(Child::stop);
    let started = Instant::now();
    served.fabrics.fence(&clients);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "the fences take {took:?}: a second each");
    for child in &children {
        assert_eq!(child.end_signal(), Some(9));
    }
}

/// A node that stood still reads a hello after its client has given up. The node must not list that session: no
/// goodbye would come for it, and a fence would kill the process, which lives.
fn a_client_that_has_given_up_is_no_session() {
    let scratch = Scratch::new();
    let (served, at) = Child::node(NODES[0], 2 * START, &scratch.socket());
    let own = wire::key(at.identity);
    let say_hello = || {
        let mut socket = UnixStream::connect(at.shm.as_ref().unwrap()).unwrap();
        let call = wire::call(wire::SHM, &own, [3; 32]);
        let hello = wire::shm_hello(5);
        let answer = wire::ask(&mut socket, &call);
        let proof = wire::proof(wire::SHM, &own, &call, &answer, &hello);
        served.stop();
        socket.write_all(&[&proof[..], &hello].concat()).unwrap();
        socket
    };
    drop(say_hello());
    served.signal("CONT");
    served.ask("holds 0");
    // An attempt of this process to attach a session gives up too, while the node is stopped.
    served.stop();
    let refused = attach_all(FabricKind::Shm, ClientId(5), std::slice::from_ref(&at)).unwrap_err();
    assert!(matches!(refused.cause, AttachCause::Unreachable(_)), "{refused}");
    served.signal("CONT");
    let _session = attach_all(FabricKind::Shm, ClientId(5), std::slice::from_ref(&at)).unwrap();
    served.ask("holds 1");
}

/// If a node stands still and its queue of connections is full, a client is delayed only for a bounded time.
fn a_full_queue_of_a_node_is_no_dead_end() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let squatter = UnixListener::bind(&path).unwrap();
    let queued = || {
        let socket = mio::net::UnixStream::connect(&path);
        socket.inspect_err(|error| assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock)).ok()
    };
    let queue: Vec<_> = std::iter::from_fn(queued).collect();
    let served = node(POOL_BYTES, None);
    let at = Member {
        identity: unique(),
        shm: Some(path.display().to_string()),
        ..member(NODES[0], &served)
    };
    let started = Instant::now();
    let refused = attach_all(FabricKind::Shm, ClientId(5), &[at]).unwrap_err();
    assert!(matches!(refused.cause, AttachCause::Unreachable(_)), "{refused}");
    assert!(started.elapsed() < PATIENCE);
    drop((queue, squatter));
}

/// If a client has detached with a goodbye, a later fence of this client does not kill the client's process.
fn fence_a_process_that_has_left() {
    let scratch = Scratch::new();
    let served = node(POOL_BYTES, Some(scratch.socket()));
    let client = Child::client(&member(NODES[0], &served), ClientId(5));
    client.ask("detach");
    let started = Instant::now();
    while served.fabrics.attached_clients() > 0 {
        assert!(started.elapsed() < PATIENCE, "the goodbye is not heard");
        std::thread::yield_now();
    }
    served.fabrics.fence(&[ClientId(5)]);
    client.ask("ping");
    client.kill();
}

/// When `leave` returns, the node has recorded that the session has ended.
fn fence_a_process_as_soon_as_it_has_left() {
    let scratch = Scratch::new();
    let served = node(POOL_BYTES, Some(scratch.socket()));
    let at = member(NODES[0], &served);
    for client in 1..=30 {
        let child = Child::client(&at, ClientId(client));
        child.ask("leave");
        served.fabrics.fence(&[ClientId(client)]);
        child.ask("ping");
        child.kill();
    }
}

/// The node notices the death of a client, and the client's fence is complete at once.
fn a_process_dies_by_itself() {
    let scratch = Scratch::new();
    let served = node(POOL_BYTES, Some(scratch.socket()));
    let client = Child::client(&member(NODES[0], &served), ClientId(5));
    client.ask("hammer");
    client.kill();
    let started = Instant::now();
    while served.fabrics.attached_clients() > 0 {
        assert!(started.elapsed() < PATIENCE, "the death is not noticed");
        std::thread::yield_now();
    }
    served.fabrics.fence(&[ClientId(5)]);
}

/// A node can start in place of one that was killed.
fn a_killed_node_leaves_its_socket_to_the_next() {
    let scratch = Scratch::new();
    let path = scratch.socket();
    let (first, _) = Child::node(NODES[0], 2 * START, &path);
    first.kill();
    assert!(path.exists(), "a killed process cannot clean up");
    let (second, at) = Child::node(NODES[0], 2 * START, &path);
    attach_all(FabricKind::Shm, ClientId(1), &[at]).unwrap();
    second.kill();
}

type Run = Box<dyn FnOnce()>;

/// Returns whether the rig keeps the guarantee that a check tests. Software RoCE breaks guarantee 3 without notice,
/// because the kernel copies bytes.
fn is_kept(rig: &str, check: &str, may_tear: bool) -> bool {
    let is_kept = !may_tear || !["words_do_not_tear", "the_last_word_lands_last"].contains(&check);
    if !is_kept {
        // Written to stderr directly, because the test harness captures the output of `println`.
        let _told = Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED: {rig}/{check}: software RoCE does not promise it\n"),
        );
    }
    is_kept
}

fn all_checks() -> Vec<(String, Run)> {
    let mut all: Vec<(String, Run)> = Vec::new();
    let rdma = rdma_device();
    let can_run =
        |mix: &FabricMix| rdma.is_some() || !matches!(mix, FabricMix::All(FabricKind::Verbs));
    let may_tear = |kind| kind == FabricKind::Verbs && rdma.as_ref().is_some_and(|r| r.is_software);
    let inside = [
        ("shm", FabricMix::All(FabricKind::Shm)),
        ("tcp", FabricMix::All(FabricKind::Tcp)),
        ("both", FabricMix::Both),
        ("verbs", FabricMix::All(FabricKind::Verbs)),
    ];
    for (name, mix) in inside.into_iter().filter(|(_, mix)| can_run(mix)) {
        let checks = conformance::checks().into_iter().chain(conformance::fencing_checks());
        let may_tear = matches!(mix, FabricMix::All(kind) if may_tear(kind));
        for (check, run) in checks.filter(|(check, _)| is_kept(name, check, may_tear)) {
            all.push((format!("{name}/{check}"), Box::new(move || run(&InProcessRig::new(mix)))));
        }
    }
    let checks = conformance::checks().into_iter().chain(conformance::fencing_checks());
    // Promise FAB-17: The conformance suite holds behind a switch. | `fabric/tests/conformance.rs` (`switch/`, `wire/`)
    for (check, run) in checks {
        all.push((format!("switch/{check}"), Box::new(move || run(&SwitchRig::over_tcp()))));
    }
    if Wire::of_this_machine().is_some() {
        let checks = conformance::checks().into_iter().chain(conformance::fencing_checks());
        for (check, run) in
            checks.filter(|(check, _)| is_kept("wire", check, may_tear(FabricKind::Verbs)))
        {
            all.push((format!("wire/{check}"), Box::new(move || run(&SwitchRig::on_the_wire()))));
        }
    }
    let outside = [
        ("shm-processes", FabricKind::Shm),
        ("tcp-processes", FabricKind::Tcp),
        ("verbs-processes", FabricKind::Verbs),
    ];
    for (name, kind) in outside.into_iter().filter(|(_, kind)| can_run(&FabricMix::All(*kind))) {
        let mut checks = conformance::checks();
        if kind != FabricKind::Shm {
            checks.extend(conformance::fencing_checks());
        }
        checks.retain(|(check, _)| is_kept(name, check, may_tear(kind)));
        for (check, run) in checks {
            all.push((
                format!("{name}/{check}"),
                Box::new(move || run(&ChildProcessRig::new(kind))),
            ));
        }
    }
    let name = |check: &str| format!("shm-processes/{check}");
    all.push((name("a_fenced_process_lives_on"), Box::new(|| fence_a_process(false))));
    let one: fn() = fence_one_session_of_a_process;
    all.push((name("its_other_sessions_go_on"), Box::new(one)));
    // Promise FAB-22: Over shared memory, fences kill stopped processes only.
    all.push((name("a_process_that_pauses_is_spared"), Box::new(fence_a_process_that_pauses)));
    // Promise FAB-22
    all.push((name("a_stopped_process_is_fenced"), Box::new(|| fence_a_process(true))));
    all.push((
        // Promise FAB-27: Stopped processes are fenced together; clients that ended are not.
        name("stopped_processes_are_fenced_at_once"),
        Box::new(fence_many_stopped_processes),
    ));
    let given_up = a_client_that_has_given_up_is_no_session;
    // Promise FAB-27
    all.push((name("who_has_given_up_is_not_killed"), Box::new(given_up)));
    let full = a_full_queue_of_a_node_is_no_dead_end;
    all.push((name("a_full_queue_is_no_dead_end"), Box::new(full)));
    all.push((name("who_has_left_is_not_killed"), Box::new(fence_a_process_that_has_left)));
    let left = fence_a_process_as_soon_as_it_has_left;
    all.push((name("who_has_taken_leave_is_not_killed"), Box::new(left)));
    all.push((name("a_process_dies_by_itself"), Box::new(a_process_dies_by_itself)));
    let next: fn() = a_killed_node_leaves_its_socket_to_the_next;
    all.push((name("a_killed_node_leaves_its_socket"), Box::new(next)));
    all
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        support::child::run(&role);
        return ExitCode::SUCCESS;
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f));
    let mut passed = 0;
    let mut failed = Vec::new();
    for (name, run) in all_checks().into_iter().filter(|(name, _)| wanted(name)) {
        let started = Instant::now();
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(()) => {
                passed += 1;
                println!("{name} ... ok ({} ms)", started.elapsed().as_millis());
            }
            Err(_) => {
                println!("{name} ... FAILED");
                failed.push(name);
            }
        }
    }
    println!("\n{passed} passed, {} failed: {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
