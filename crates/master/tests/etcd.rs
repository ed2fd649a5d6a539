//! Tests of several masters with a real etcd: a master dies, a master is stopped by SIGSTOP and later runs on, etcd
//! itself is down.
//!
//! A master that can be killed is a process of its own: this test's executable, started once more to run only
//! [`a_master_process`]. The process ends when its standard input ends, so no such process outlives the test.

mod etcd_server;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use etcd_server::EtcdServer;
use fusee_client::{BlockingClient, Client, FabricKind, Options};
use fusee_control::master::{MasterReply, MasterRequest, Status};
use fusee_control::rpc::{MasterClient, MasterService, RpcClient, RpcError, Runtime};
use fusee_core::view::{Geometry, View};
use fusee_master::{MasterConfig, MasterServer, random_cluster};
use fusee_memory_node::{MemoryNode, MemoryNodeConfig as NodeConfig};

/// The shortest lease that etcd gives, in seconds.
const TTL_S: u64 = 2;
/// A deadline that passes only if something fails.
const LONG: Duration = Duration::from_secs(60);
/// The longest lease, in seconds. No test waits for its end, because the master gives it back.
const LONG_TTL_S: u64 = 60;

const STORE: &str = "FUSEE_TEST_MASTER_STORE";
const TTL: &str = "FUSEE_TEST_MASTER_TTL_S";
/// The environment variable with the address at which the process has to listen.
const LISTEN: &str = "FUSEE_TEST_LISTEN";

fn config(store: &str, lease_ttl_s: u64) -> MasterConfig {
    MasterConfig {
        listen: "127.0.0.1:0".into(),
        store: Some(store.into()),
        lease_ttl_s,
        memory_nodes: 3,
        index_replicas: 2,
        index_keys: 100,
        geometry: Geometry {
            region_bytes: 256 << 10,
            block_bytes: 16 << 10,
            groups_per_subtable: 2,
            max_key_bytes: 64,
            max_value_bytes: 4096,
            ..Geometry::default()
        },
        ..MasterConfig::default()
    }
}

#[test]
#[ignore = "a part of the other tests, which start it as a process"]
fn a_master_process() {
    let Ok(store) = std::env::var(STORE) else { return };
    let ttl_s = std::env::var(TTL).unwrap().parse().unwrap();
    let listen = std::env::var(LISTEN).unwrap();
    let master = MasterServer::start(MasterConfig { listen, ..config(&store, ttl_s) }).unwrap();
    println!("\nmaster at {}", master.addr().unwrap());
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    master.stop();
}

struct MasterProcess {
    addr: String,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Standard output is kept open, because the process prints at its end.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl MasterProcess {
    fn start(store: &str) -> MasterProcess {
        MasterProcess::start_with(store, TTL_S)
    }

    fn start_with(store: &str, ttl_s: u64) -> MasterProcess {
        MasterProcess::start_at(store, ttl_s, "127.0.0.1:0")
    }

    fn start_at(store: &str, ttl_s: u64, listen: &str) -> MasterProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_master_process", "--ignored", "--nocapture"]);
        command.env(STORE, store).env(TTL, ttl_s.to_string()).env(LISTEN, listen);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = stdout.by_ref().map_while(Result::ok);
        let addr = lines.find_map(|line| line.strip_prefix("master at ").map(str::to_owned));
        let addr = addr.expect("the master starts");
        let stdin = child.stdin.take();
        MasterProcess { addr, child, stdin, _stdout: stdout }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &pid]).status();
        assert!(status.unwrap().success());
    }

    /// Stops the process by SIGSTOP, and returns when all of its threads have stopped. Otherwise a thread that the
    /// signal has not reached yet could still take a request, and the client would wait until its deadline.
    fn freeze(&self) {
        self.signal("STOP");
        let end = Instant::now() + LONG;
        while !self.is_frozen() {
            assert!(Instant::now() < end, "a master goes on");
            sleep(Duration::from_millis(1));
        }
    }

    fn is_frozen(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        threads.map(|thread| thread.unwrap().path().join("stat")).all(|stat| {
            // The format of the file is: PID (NAME) STATE ...
            let stat = std::fs::read_to_string(stat).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// Kills the process, and returns when it is dead and accepts no connections any more.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the master's process normally.
    fn stop(mut self) {
        drop(self.stdin.take());
        let end = Instant::now() + LONG;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "a master does not stop");
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for MasterProcess {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Three masters, three memory nodes, and the views and ids seen so far.
struct ElectedCluster {
    // The fields are declared in the order in which they have to end, because they are dropped in this order.
    nodes: Vec<MemoryNode>,
    masters: Vec<MasterProcess>,
    client: MasterClient,
    runtime: Runtime,
    view: Option<View>,
    ids: BTreeSet<u32>,
    store: String,
    _dir: tempfile::TempDir,
    etcd: EtcdServer,
}

impl ElectedCluster {
    fn start() -> Option<ElectedCluster> {
        ElectedCluster::start_with(2 << 20)
    }

    fn start_with(pool_bytes: u64) -> Option<ElectedCluster> {
        let etcd = EtcdServer::start()?;
        let store = format!("etcd://{}/test/cluster", etcd.endpoint());
        let masters: Vec<_> = (0..3).map(|_| MasterProcess::start(&store)).collect();
        let addrs: Vec<&str> = masters.iter().map(|master| master.addr.as_str()).collect();
        let addrs = addrs.join(",");
        let dir = tempfile::tempdir().unwrap();
        let node = NodeConfig {
            shm_dir: Some(dir.path().to_owned()),
            master: addrs.clone(),
            pool_bytes,
            ..NodeConfig::default()
        };
        let nodes = (0..3).map(|_| MemoryNode::start(node.clone()).unwrap()).collect();
        let runtime = Runtime::start("test-masters").unwrap();
        let client = MasterClient::new(&runtime, addrs).with_deadline(LONG);
        let form = MasterRequest::Form { cluster: random_cluster() };
        assert_eq!(client.call_blocking(form), Ok(MasterReply::Done));
        let ids = BTreeSet::new();
        let view = None;
        let mut cluster =
            ElectedCluster { nodes, masters, client, runtime, view, ids, store, _dir: dir, etcd };
        let formed = Instant::now() + LONG;
        while !cluster.open() {
            assert!(Instant::now() < formed, "the cluster is not formed");
            sleep(Duration::from_millis(20));
        }
        Some(cluster)
    }

    /// Opens a session. Checks that its id is new, and that view numbers do not decrease. Returns whether it was
    /// opened.
    fn open(&mut self) -> bool {
        match self.client.call_blocking(MasterRequest::Open) {
            Ok(MasterReply::Opened { client, view, .. }) => {
                assert!(self.ids.insert(client.0), "{client} was given twice");
                assert_eq!(self.ids.last(), Some(&client.0), "ids go backwards");
                if let Some(before) = &self.view {
                    assert!(view.number >= before.number, "the view went backwards");
                    assert_eq!(view.cluster, before.cluster, "it is another cluster");
                }
                self.view = Some(view);
                true
            }
            Ok(MasterReply::NotReady { .. }) => false,
            other => panic!("unexpected {other:?}"),
        }
    }

    fn status(&self) -> Status {
        match self.client.call_blocking(MasterRequest::Status) {
            Ok(MasterReply::Status(status)) => *status,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Returns the names of the memory nodes, with their addresses.
    fn names(&self) -> Vec<(u16, String)> {
        let members = self.status().members.into_iter();
        members.map(|member| (member.node.0, member.control)).collect()
    }

    /// Removes the leading master from the list, and returns it.
    fn leader(&mut self) -> MasterProcess {
        self.status();
        let leader = self.client.answered_by();
        let at = self.masters.iter().position(|master| master.addr == leader);
        self.masters.remove(at.expect("the leader is one of them"))
    }

    /// Kills the leader, and waits until another master answers.
    fn decides_again(&mut self, leader: &mut MasterProcess) {
        leader.kill();
        // The client possibly notices the broken connection only with this request; the next answer comes from another
        // master.
        let in_flight = self.client.call_blocking(MasterRequest::Status);
        assert!(matches!(in_flight, Ok(_) | Err(RpcError::Closed { .. })), "{in_flight:?}");
        assert!(self.open());
    }

    /// Waits until a master answers that it stands by, and names the leader.
    fn stands_by(&self, fresh: &MasterProcess) {
        let leader = self.masters[0].addr.clone();
        let end = Instant::now() + LONG;
        loop {
            match self.ask(&fresh.addr, MasterRequest::Open) {
                Ok(MasterReply::NotLeader { leader: Some(named) }) => {
                    return assert_eq!(named, leader);
                }
                Ok(MasterReply::NotLeader { leader: None })
                | Err(RpcError::TimedOut { .. } | RpcError::Unreachable { .. }) => {
                    assert!(Instant::now() < end, "it does not learn who leads");
                }
                other => panic!("unexpected {other:?}"),
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Sends one master a request, once.
    fn ask(&self, addr: &str, request: MasterRequest) -> Result<MasterReply, RpcError> {
        RpcClient::<MasterService>::new(&self.runtime, addr).call_blocking(request)
    }
}

// Promise MST-8: Of several masters one leads, also after each `kill -9`.
#[test]
fn a_stand_by_goes_on_where_a_killed_leader_was() {
    let Some(mut cluster) = ElectedCluster::start() else { return };
    let names = cluster.names();
    assert_eq!(names.len(), 3);
    for round in 0..2 {
        (0..5).for_each(|_| assert!(cluster.open()));
        let mut leader = cluster.leader();
        let killed = Instant::now();
        cluster.decides_again(&mut leader);
        let took = killed.elapsed();
        println!("round {round}: a leader was killed; {took:?} later another one decides");
        assert_ne!(cluster.client.answered_by(), leader.addr);
        assert_eq!(cluster.names(), names, "memory nodes have other names");
        assert_eq!(cluster.view.as_ref().unwrap().number, cluster.status().view.unwrap().number);
    }
    // Other masters start, stand by, and say so. A leader that stops normally gives its lease back, so the next one
    // leads at once: the first leader's lease is longer than every deadline of this test.
    for ttl_s in [LONG_TTL_S, TTL_S] {
        let fresh = MasterProcess::start_with(&cluster.store, ttl_s);
        cluster.stands_by(&fresh);
        let leader = cluster.leader();
        assert_ne!(leader.addr, fresh.addr);
        cluster.masters.push(fresh);
        cluster.client = MasterClient::new(&cluster.runtime, cluster.masters[0].addr.as_str());
        cluster.client = cluster.client.with_deadline(LONG / 2);
        let stopped = Instant::now();
        leader.stop();
        assert!(cluster.open());
        println!("a leader was stopped; {:?} later another one decides", stopped.elapsed());
        assert_eq!(cluster.names(), names);
    }
    // A master that stopped while it stood by does not keep another master from leading, either.
    let standing = MasterProcess::start_with(&cluster.store, LONG_TTL_S);
    cluster.stands_by(&standing);
    let next = MasterProcess::start_with(&cluster.store, TTL_S);
    cluster.stands_by(&next);
    standing.stop();
    let leader = cluster.leader();
    cluster.masters.push(next);
    leader.stop();
    cluster.client = MasterClient::new(&cluster.runtime, cluster.masters[0].addr.as_str());
    cluster.client = cluster.client.with_deadline(LONG / 2);
    assert!(cluster.open());
}

#[test]
fn a_leader_that_was_stopped_and_goes_on_decides_nothing() {
    let Some(mut cluster) = ElectedCluster::start() else { return };
    (0..3).for_each(|_| assert!(cluster.open()));
    let old = cluster.leader();
    old.freeze();
    // The request was sent to the old leader before the old leader's process runs on.
    let early = {
        let client = RpcClient::<MasterService>::new(&cluster.runtime, old.addr.as_str());
        let client = client.with_deadline(Duration::from_secs(30));
        std::thread::spawn(move || client.call_blocking(MasterRequest::Open))
    };
    let others: Vec<&str> = cluster.masters.iter().map(|master| master.addr.as_str()).collect();
    let others = MasterClient::new(&cluster.runtime, others.join(",")).with_deadline(LONG);
    cluster.client = others;
    // The ids of these sessions are beyond the range that the old leader has reserved in the store.
    (0..70).for_each(|_| assert!(cluster.open()));
    let newest = *cluster.ids.last().unwrap();
    old.signal("CONT");
    let end = Instant::now() + LONG;
    loop {
        match cluster.ask(&old.addr, MasterRequest::Open) {
            Ok(MasterReply::NotLeader { leader: Some(leader) }) => {
                break assert_ne!(leader, old.addr);
            }
            answer @ (Ok(MasterReply::NotLeader { leader: None }) | Err(_)) => {
                assert!(Instant::now() < end, "it does not learn who leads: {answer:?}");
                sleep(Duration::from_millis(10));
            }
            // This happens only if the machine stood still for a whole lease, and the old leader was elected anew. In
            // that case the old leader knows the ids that the other leader has assigned.
            Ok(MasterReply::Opened { client, .. }) => {
                assert!(client.0 > newest, "a deposed leader decides: {client} after {newest}");
                cluster.ids.insert(client.0);
                break;
            }
            other => panic!("a deposed leader decides: {other:?}"),
        }
    }
    if let Ok(MasterReply::Opened { client, .. }) = early.join().unwrap() {
        assert!(client.0 > newest, "a deposed leader decides: {client} after {newest}");
        assert!(cluster.ids.insert(client.0), "{client} was given twice");
    }
    assert!(cluster.open());
    // The old leader can lead again after another master has led.
    cluster.masters.push(old);
    let mut new = cluster.leader();
    let addrs: Vec<&str> = cluster.masters.iter().map(|master| master.addr.as_str()).collect();
    cluster.client = MasterClient::new(&cluster.runtime, addrs.join(",")).with_deadline(LONG);
    cluster.decides_again(&mut new);
}

/// A load of clients, with the longest time between two operations.
#[derive(Default)]
struct ClientLoad {
    ends: AtomicBool,
    operations: AtomicU64,
    longest: Mutex<Duration>,
}

/// A guard that ends the load, also when the test fails.
struct LoadGuard<'l>(&'l ClientLoad);

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.0.ends.store(true, Ordering::Relaxed);
    }
}

impl ClientLoad {
    /// Writes a key again and again, and reads it back each time.
    fn run(&self, client: &BlockingClient, key: &str) {
        client.insert(key.as_bytes(), b"0").unwrap();
        let mut last = Instant::now();
        for number in 1.. {
            if self.ends.load(Ordering::Relaxed) {
                return;
            }
            let value = format!("{number}");
            client.update(key.as_bytes(), value.as_bytes()).unwrap();
            assert_eq!(client.get(key.as_bytes()).unwrap().as_deref(), Some(value.as_bytes()));
            let mut longest = self.longest.lock().unwrap();
            *longest = longest.max(last.elapsed());
            last = Instant::now();
            self.operations.fetch_add(2, Ordering::Relaxed);
            // The pause limits the rate, because no freed memory is used again while no master runs.
            sleep(Duration::from_micros(500));
        }
    }

    /// Returns the longest time between two operations since the last call.
    fn longest(&self) -> Duration {
        std::mem::take(&mut self.longest.lock().unwrap())
    }

    /// Waits until the clients have done 400 more operations.
    fn gets_on(&self) {
        let goal = self.operations.load(Ordering::Relaxed) + 400;
        let end = Instant::now() + LONG;
        while self.operations.load(Ordering::Relaxed) < goal {
            assert!(Instant::now() < end, "the load does not go on");
            sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_load_goes_on_when_the_leader_dies_and_a_memory_node_with_it() {
    let Some(mut cluster) = ElectedCluster::start_with(64 << 20) else { return };
    let addrs: Vec<&str> = cluster.masters.iter().map(|master| master.addr.as_str()).collect();
    let fabric = FabricKind::Tcp;
    let options = Options::default().with_fabric(fabric).with_op_timeout(LONG);
    let client = Client::connect_with(&addrs.join(","), options).unwrap().blocking();
    let load = ClientLoad::default();
    std::thread::scope(|scope| {
        for key in ["one", "two"] {
            let load = &load;
            let client = client.clone();
            scope.spawn(move || load.run(&client, key));
        }
        let _ending = LoadGuard(&load);
        load.gets_on();
        println!("undisturbed, an update and a get take up to {:?}", load.longest());

        // Gets and puts need no master, so they go on while the leader is dead and the other masters are stopped.
        let mut leader = cluster.leader();
        let killed = Instant::now();
        cluster.masters.iter().for_each(MasterProcess::freeze);
        leader.kill();
        load.gets_on();
        cluster.masters.iter().for_each(|master| master.signal("CONT"));
        cluster.decides_again(&mut leader);
        let away = killed.elapsed();
        load.gets_on();
        let longest = load.longest();
        println!("a leader was killed: {away:?} without a master; the load waited {longest:?}");

        let mut leader = cluster.leader();
        let killed = Instant::now();
        drop(cluster.nodes.remove(0));
        cluster.decides_again(&mut leader);
        let away = killed.elapsed();
        load.gets_on();
        let longest = load.longest();
        println!(
            "a leader and a memory node were killed: {away:?} without a master; the load waited \
             {longest:?}"
        );
        let view = cluster.status().view.unwrap();
        assert_eq!(view.members.len(), 2);
    });
}

/// The masters are restarted as in an upgrade: first those that stand by, then the leader, each at its own address.
#[test]
fn masters_are_restarted_in_turn_and_the_load_goes_on() {
    let Some(mut cluster) = ElectedCluster::start_with(64 << 20) else { return };
    let mut addrs: Vec<String> = cluster.masters.iter().map(|m| m.addr.clone()).collect();
    let options = Options::default().with_fabric(FabricKind::Tcp).with_op_timeout(LONG);
    let client = Client::connect_with(&addrs.join(","), options).unwrap().blocking();
    let load = ClientLoad::default();
    let names = cluster.names();
    let leader = cluster.client.answered_by();
    addrs.sort_by_key(|addr| *addr == leader);
    std::thread::scope(|scope| {
        for key in ["one", "two"] {
            let load = &load;
            let client = client.clone();
            scope.spawn(move || load.run(&client, key));
        }
        let _ending = LoadGuard(&load);
        for addr in &addrs {
            load.gets_on();
            let at = cluster.masters.iter().position(|master| master.addr == *addr).unwrap();
            cluster.masters.remove(at).stop();
            cluster.masters.push(MasterProcess::start_at(&cluster.store, TTL_S, addr));
            // The client possibly notices only with this request that the connection is broken.
            let in_flight = cluster.client.call_blocking(MasterRequest::Status);
            assert!(matches!(in_flight, Ok(_) | Err(RpcError::Closed { .. })), "{in_flight:?}");
            assert!(cluster.open());
        }
        load.gets_on();
        println!("masters were restarted in turn; the load waited {:?}", load.longest());
    });
    assert_ne!(cluster.client.answered_by(), leader);
    assert_eq!((cluster.names(), cluster.status().recoveries), (names, 0));
}

#[test]
fn when_etcd_is_away_nobody_leads_and_afterwards_somebody_does() {
    let Some(mut cluster) = ElectedCluster::start() else { return };
    let names = cluster.names();
    assert!(cluster.open());
    // etcd is down for a short time: shorter than the lease, unless the machine is heavily loaded.
    cluster.etcd.pause();
    cluster.etcd.resume();
    assert!(cluster.open());
    assert_eq!(cluster.names(), names);
    // etcd is down for long, so all leases end by the clocks of their masters.
    cluster.etcd.pause();
    let end = Instant::now() + LONG;
    let asked = cluster.client.with_deadline(Duration::from_millis(300));
    loop {
        match asked.call_blocking(MasterRequest::Status) {
            Err(RpcError::NoLeader { .. }) => break,
            Ok(_) | Err(RpcError::TimedOut { .. } | RpcError::Unreachable { .. }) => {
                assert!(Instant::now() < end, "somebody leads without etcd");
            }
            other => panic!("unexpected {other:?}"),
        }
        sleep(Duration::from_millis(50));
    }
    // The memory nodes are not affected.
    let node = cluster.nodes[0].client();
    assert!(node.call_blocking(fusee_control::node::NodeRequest::Usage).is_ok());
    cluster.etcd.resume();
    let resumed = Instant::now();
    assert!(cluster.open());
    println!("etcd came back; {:?} later a master decides", resumed.elapsed());
    assert_eq!(cluster.names(), names);
    (0..70).for_each(|_| assert!(cluster.open()));
}
