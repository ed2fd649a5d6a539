//! Clusters of real servers and client processes, which tests kill, stop and start again.
//!
//! Servers and clients end at the end of their standard input, so none outlives the test. All their files are in a
//! directory that is removed with the cluster. If a test fails, the ends of the logs are printed.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_client::Status;
use fusee_control::master::{ClientRecovery, MasterReply, MasterRequest};
use fusee_control::rpc::{MasterClient, Runtime};
use fusee_core::verbs::{ClusterId, MnId};
use fusee_linearizability::OperationHistory;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use super::common::{CommandOutput, Scratch, eventually, finish, fusee, signal, wait};
use super::net::{self, NetNamespace, TestNetwork, command_in};
use super::writer::{self, WriterMode, WriterProcess, WriterTask};

/// Number of keys that all writers share, unless a test sets [`FaultyCluster::keys`].
const KEYS: u64 = 6;
/// Time limit for what the cluster does by itself. It is generous, because the machine can be slow. A soak on emulated
/// processors sets a longer one.
pub fn patience() -> Duration {
    static SECONDS: LazyLock<u64> = LazyLock::new(|| setting("FUSEE_SOAK_PATIENCE_S", 60));
    Duration::from_secs(*SECONDS)
}

/// Returns a setting from the environment.
pub fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} makes no sense"))
    })
}

/// Number of notes by which each writer's journal has to grow, as a proof that the writer works.
const SOME_NOTES: u64 = 200;
/// Microseconds between two operations of a writer. The pause leaves processor time to the servers.
const LOAD_PAUSE_US: u64 = 50;
/// Microseconds between two operations of each reader, of which there are many.
const READ_PAUSE_US: u64 = 40_000;
/// A lease in milliseconds that does not run out if a busy machine does not run a process for seconds.
pub const LONG_LEASE_MS: u32 = 4000;
/// Number of lines of each log that are printed when a test fails.
const TAIL: usize = 200;

/// At most two clusters run at a time. They mostly wait. More clusters would take processor time from each other's
/// processes, and a test whose processes starve finds nothing else.
static TURNS: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];

/// A server process.
pub struct FaultyServer {
    child: Child,
    pub announced: Value,
    /// The server's network namespace, if it has one of its own.
    pub at: Option<NetNamespace>,
}

/// Waits until the test is allowed to run a cluster.
pub fn turn() -> MutexGuard<'static, ()> {
    loop {
        for turn in &TURNS {
            match turn.try_lock() {
                Ok(taken) => return taken,
                Err(TryLockError::Poisoned(taken)) => return taken.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        sleep(Duration::from_millis(20));
    }
}

impl FaultyServer {
    /// Starts a server, in its own network namespace if it has one.
    fn start(
        scratch: &Scratch,
        name: &str,
        arguments: &[&str],
        program: Option<&str>,
        (net, at): (Option<&TestNetwork>, Option<NetNamespace>),
    ) -> FaultyServer {
        let network = net.zip(at).map(|(net, at)| net.path(at));
        let log = scratch.path().join("logs").join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let binary = fusee(arguments);
        // Without this trap, a write to a file that cannot grow would kill the process instead of failing.
        let mut command = command_in(network.as_deref(), "sh");
        let program = program.map_or(binary.get_program(), str::as_ref);
        command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program);
        command.args(binary.get_args()).args(["--announce", "--stop-with-stdin"]);
        if !arguments.iter().any(|argument| argument.starts_with("127.0.0.1:")) {
            command.arg("--insecure");
        }
        let environment = binary.get_envs();
        environment.filter(|(_, value)| value.is_none()).for_each(|(name, _)| {
            command.env_remove(name);
        });
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced = serde_json::from_str(&line).expect("it says where it is");
        FaultyServer { child, announced, at }
    }

    pub fn control(&self) -> String {
        self.announced["control"].as_str().unwrap().into()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until the server ends by itself, and asserts that it was successful.
    #[track_caller]
    pub fn ends(&mut self) {
        let end = Instant::now() + patience();
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return assert!(status.success(), "{status}"),
                None => assert!(Instant::now() < end, "it does not end"),
            }
            sleep(Duration::from_millis(10));
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the server ends by itself. Returns its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        wait(&mut self.child).code()
    }

    pub fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct FaultyCluster {
    // The fields are in the order in which they are to be dropped.
    pub clients: Vec<WriterProcess>,
    /// Clients that were killed. Their journals belong to the history.
    pub dead: Vec<WriterProcess>,
    pub nodes: Vec<FaultyServer>,
    pub master: Option<FaultyServer>,
    asking: MasterClient,
    _runtime: Runtime,
    pub rng: RefCell<SmallRng>,
    pub shape: ClusterShape,
    pub master_at: Option<NetNamespace>,
    /// Network namespaces for memory nodes.
    node_places: Vec<NetNamespace>,
    /// Network namespace of the next client.
    pub client_at: Option<NetNamespace>,
    readers_at: Option<NetNamespace>,
    net: Option<TestNetwork>,
    address: String,
    next_writer: u32,
    next_node: u32,
    newest_view: Cell<u64>,
    /// The id of the cluster whose view was seen last.
    seen: Cell<Option<ClusterId>>,
    /// Keys on which the next clients operate.
    pub keys: Range<u64>,
    /// Microseconds between two operations of a writer that [`load`](FaultyCluster::load) starts.
    pub load_pause_us: u64,
    scratch: Scratch,
    _turn: MutexGuard<'static, ()>,
}

/// Returns the seed of a test: `FUSEE_TEST_SEED`, or a random one. The seed decides the times of events.
fn seed() -> u64 {
    let given = std::env::var("FUSEE_TEST_SEED").ok();
    given.map_or_else(rand::random, |seed| seed.parse().expect("FUSEE_TEST_SEED is a number"))
}

impl FaultyCluster {
    /// Starts a cluster of three memory nodes, with three replicas of the index and two of the data, and no client.
    pub fn start(fabric: &'static str) -> FaultyCluster {
        FaultyCluster::with_pools(fabric, "128MiB")
    }

    /// Starts a cluster as [`start`](FaultyCluster::start) does, but with the lease [`LONG_LEASE_MS`], for tests that
    /// are not about leases.
    pub fn with_long_leases(fabric: &'static str) -> FaultyCluster {
        FaultyCluster::of(ClusterShape {
            fabric,
            lease_ms: LONG_LEASE_MS,
            ..ClusterShape::default()
        })
    }

    /// Starts a cluster as [`start`](FaultyCluster::start) does, but with pools of this size.
    pub fn with_pools(fabric: &'static str, pool: &'static str) -> FaultyCluster {
        FaultyCluster::of(ClusterShape { fabric, pool, ..ClusterShape::default() })
    }

    pub fn of(shape: ClusterShape) -> FaultyCluster {
        let turn = turn();
        let seed = seed();
        println!("seed {seed}, {shape:?}");
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("sockets")).unwrap();
        let mut net = shape.apart.then(TestNetwork::new);
        let mut place = || net.as_mut().map(TestNetwork::place);
        let master_at = place();
        let client_at = place();
        fs::create_dir(scratch.path().join("logs")).unwrap();
        if let Some(mib) = shape.files_mib {
            net::mount_small(&scratch.path().join("master"), mib);
            net::mount_small(&scratch.path().join("logs"), mib);
        }
        let listen = master_at
            .map_or_else(|| format!("{}:0", shape.hosts[0]), |at| format!("{}:7400", at.ip()));
        let master = shape.start_master(&scratch, &listen, "master", (net.as_ref(), master_at));
        let address = master.control();
        form(&address);
        let runtime = Runtime::start("test").unwrap();
        let asking = MasterClient::new(&runtime, &*address).with_deadline(Duration::from_secs(1));
        let mut cluster = FaultyCluster {
            clients: Vec::new(),
            dead: Vec::new(),
            nodes: Vec::new(),
            master: Some(master),
            asking,
            _runtime: runtime,
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
            shape,
            master_at,
            node_places: Vec::new(),
            client_at,
            readers_at: None,
            net,
            address,
            next_writer: 1,
            next_node: 0,
            newest_view: Cell::new(0),
            seen: Cell::new(None),
            keys: 0..KEYS,
            load_pause_us: LOAD_PAUSE_US,
            scratch,
            _turn: turn,
        };
        (0..shape.nodes).for_each(|_| cluster.start_node());
        cluster.until("the cluster is formed", |status| status.view.is_some());
        cluster
    }

    pub fn start_node(&mut self) {
        self.start_node_with(&[]);
    }

    pub fn start_node_with(&mut self, more: &[&str]) {
        let sockets = format!("--shm-dir={}", self.scratch.path().join("sockets").display());
        let line = ["memory-node", "--master", &self.address, "--pool", self.shape.pool, &sockets];
        let name = format!("node-{}", self.next_node);
        self.next_node += 1;
        let mut at = self
            .node_places
            .iter()
            .copied()
            .find(|place| self.nodes.iter().all(|node| node.at != Some(*place)));
        if let (None, Some(net)) = (at, &mut self.net) {
            at = Some(net.place());
            self.node_places.extend(at);
        }
        let host = at.map_or_else(|| self.shape.hosts[1].into(), |at| at.ip().to_string());
        let listen = format!("{host}:0");
        // The RDMA device and the processor do not see each other's atomics, so verbs are the only fabric.
        let serve: &[&str] = match self.shape.fabric {
            "verbs" => &["--serve", "verbs"],
            _ => &[],
        };
        let line = [&line[..], &["--listen", &listen], serve, more].concat();
        let program = self.shape.program;
        let node =
            FaultyServer::start(&self.scratch, &name, &line, program, (self.net.as_ref(), at));
        self.nodes.push(node);
    }

    pub fn fabric(&self) -> &'static str {
        self.shape.fabric
    }

    /// Returns the network. Panics unless each process is in a namespace of its own.
    pub fn net(&self) -> &TestNetwork {
        self.net.as_ref().expect("each process is in a namespace of its own")
    }

    /// Returns a namespace for readers, which has no servers and no other clients.
    fn reader_place(&mut self) -> NetNamespace {
        let net = self.net.as_mut().expect("each process is in a namespace of its own");
        *self.readers_at.get_or_insert_with(|| net.place())
    }

    /// Fills the small file system of this directory, including the unused ends of log files' last pages, in which the
    /// logs could still grow.
    pub fn fill(&self, dir: &str) {
        let ballast = self.path(dir).join("ballast");
        File::create(&ballast).unwrap();
        let mut files = vec![ballast];
        let others = fs::read_dir(self.path(dir)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(others.filter(|path| path.extension() == Some("log".as_ref())));
        for path in files {
            let mut file = File::options().append(true).open(path).unwrap();
            for bytes in [64 << 10, 4 << 10, 1] {
                while file.write_all(&vec![b'\n'; bytes]).is_ok() {}
            }
        }
    }

    /// Makes room in the small file system of this directory again.
    pub fn make_room(&self, dir: &str) {
        fs::remove_file(self.path(dir).join("ballast")).unwrap();
    }

    /// Returns the address of the master.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn kill_master(&mut self) {
        self.master.take().expect("it runs").kill();
    }

    /// Stops the master as an operator does.
    pub fn stop_master(&mut self) {
        let mut master = self.master.take().expect("it runs");
        master.signal("TERM");
        assert_eq!(master.exit_code(), Some(0));
    }

    /// Starts the master again, with its store and its address.
    pub fn restart_master(&mut self) {
        assert!(self.master.is_none());
        self.start_master_in("master");
    }

    /// Starts another master in place of the killed one, with its own store in this directory.
    pub fn start_usurper(&mut self, data_dir: &str) {
        assert!(self.master.is_none());
        self.start_master_in(data_dir);
    }

    fn start_master_in(&mut self, data_dir: &str) {
        let at = (self.net.as_ref(), self.master_at);
        self.master = Some(self.shape.start_master(&self.scratch, &self.address, data_dir, at));
    }

    /// Returns the path of a file or directory of the cluster. `master` is the master's store, `logs` has the logs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Returns the texts of all memory nodes' logs.
    pub fn node_logs(&self) -> Vec<String> {
        let log = |node| fs::read_to_string(self.path(&format!("logs/node-{node}.log"))).unwrap();
        (0..self.next_node).map(log).collect()
    }

    /// Runs a command of `fusee` for this cluster.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        finish(fusee(arguments).env("FUSEE_MASTER", &self.address))
    }

    /// Starts a client process whose writers never pause, so that they are probably in an operation when the process is
    /// killed.
    pub fn victim(&mut self, mode: WriterMode) -> WriterProcess {
        self.task(2, 0, mode)
    }

    /// Starts a client process whose writers pause between operations, so that others get processor time.
    pub fn slow_victim(&mut self, writers: u32, mode: WriterMode) -> WriterProcess {
        self.task(writers, 2_000, mode)
    }

    /// Starts a client process that reads all keys, in a namespace without servers and other clients. Also returns that
    /// namespace.
    pub fn readers(&mut self) -> (WriterProcess, NetNamespace) {
        let place = self.reader_place();
        let others_at = self.client_at.replace(place);
        let readers = self.readers_here();
        self.client_at = others_at;
        (readers, place)
    }

    /// Starts a client process that reads all keys, in the namespace of the other clients.
    pub fn readers_here(&mut self) -> WriterProcess {
        let keys = (self.keys.end - self.keys.start) as u32;
        let readers = self.task(keys, READ_PAUSE_US, WriterMode::Read);
        eventually("all are read", || readers.progress() > 20);
        readers
    }

    fn task(&mut self, writers: u32, pause_us: u64, mode: WriterMode) -> WriterProcess {
        let first = self.next_writer;
        self.next_writer += writers;
        WriterProcess::start(WriterTask {
            master: self.address.clone(),
            fabric: self.shape.fabric.into(),
            dir: writer::dir(self.scratch.path()),
            first,
            writers,
            keys: self.keys.clone(),
            seed: self.rng.borrow_mut().random(),
            pause_us,
            mode,
            network: self.net.as_ref().zip(self.client_at).map(|(net, at)| net.path(at)),
        })
    }

    /// Starts client processes, and waits until each of their writers works.
    pub fn load(&mut self, processes: usize, writers: u32) {
        for _ in 0..processes {
            let client = self.task(writers, self.load_pause_us, WriterMode::Load);
            self.clients.push(client);
        }
        self.all_get_on("the load");
    }

    /// Pauses for a random time.
    pub fn pause(&self, ms: Range<u64>) {
        let ms = self.rng.borrow_mut().random_range(ms);
        sleep(Duration::from_millis(ms));
    }

    /// Returns a random number below this one.
    pub fn choose(&self, below: usize) -> usize {
        self.rng.borrow_mut().random_range(0..below)
    }

    /// Returns the master's status, or `None` if the master does not answer. Asserts that views of a cluster do not go
    /// backwards.
    pub fn status(&self) -> Option<Status> {
        let Ok(MasterReply::Status(status)) = self.asking.call_blocking(MasterRequest::Status)
        else {
            return None;
        };
        if self.seen.replace(status.cluster) != status.cluster {
            self.newest_view.set(0);
        }
        let number = status.view.as_ref().map_or(0, |view| view.number);
        assert!(number >= self.newest_view.get(), "view {number} after {}", self.newest_view.get());
        self.newest_view.set(number);
        Some(*status)
    }

    /// Waits until `is_so` accepts the master's status, and returns that status.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let end = Instant::now() + patience();
        loop {
            let status = self.status();
            match status {
                Some(status) if is_so(&status) => return status,
                _ => {}
            }
            assert!(Instant::now() < end, "not in time: {what}; {status:#?}");
            sleep(Duration::from_millis(10));
        }
    }

    /// Waits for a stable view with this number of memory nodes. With `whole`, no replica must be missing.
    #[track_caller]
    pub fn until_stable(&self, members: usize, whole: bool) -> Status {
        let what = format!("stable with {members} memory nodes, whole: {whole}");
        self.until(&what, |status| {
            let view = status.view.as_ref().expect("it is formed");
            let is_stable = view.change.is_none() && view.members.len() == members;
            is_stable && (!whole || status.missing_replicas == 0)
        })
    }

    /// Returns the name that the view gives to the memory node with this index; `None` if the node is no member.
    pub fn name_of(&self, node: usize) -> Option<MnId> {
        let control = self.nodes[node].control();
        let view = self.status()?.view?;
        view.members.iter().find(|member| member.control == control).map(|member| member.node)
    }

    /// Drains the memory node with this index, and waits until its process has ended.
    pub fn drain(&mut self, node: usize) {
        let name = self.name_of(node).expect("it is a member").to_string();
        let line = ["drain", &name, "--json", "--master", &self.address];
        let output = finish(&mut fusee(&line)).expect_code(0);
        assert!(output.text().contains("\"state\":\"drained\""), "{}", output.text());
        self.nodes[node].ends();
    }

    /// Waits until every writer of the load has advanced.
    #[track_caller]
    pub fn all_get_on(&self, when: &str) {
        let before: Vec<u64> = self.clients.iter().map(WriterProcess::progress).collect();
        let end = Instant::now() + patience();
        for (client, before) in self.clients.iter().zip(before) {
            while client.progress() < before + SOME_NOTES {
                let n = client.task.first;
                assert!(Instant::now() < end, "{when}: writers {n}.. do not get on");
                sleep(Duration::from_millis(5));
            }
        }
    }

    /// Ends the clients of the load.
    pub fn end_load(&mut self) {
        self.clients.iter_mut().for_each(WriterProcess::finish);
    }

    /// Runs a client that uses every key once, to its end. Asserts that it met no error.
    pub fn sweep(&mut self, mode: WriterMode) -> WriterProcess {
        let mut sweep = self.task(1, 0, mode);
        sweep.wait();
        let notes = if mode == WriterMode::Sweep { 4 } else { 2 };
        let keys = self.keys.end - self.keys.start;
        assert_eq!((sweep.progress(), &*sweep.complaints()), (notes * keys, ""));
        sweep
    }

    /// Ends the load and the test. Asserts that every key can be written and read, that the history is linearizable,
    /// and that all clients, killed or not, have met only errors that `excused` accepts.
    pub fn finish_excusing(mut self, excused: impl Fn(&str) -> bool) {
        self.end_load();
        let status = self.until("everybody is recovered", |status| {
            status.expired_sessions == 0 && status.open_sessions == 0
        });
        let strange: u64 = status.last_recoveries.iter().map(|recovery| recovery.strange).sum();
        assert_eq!(strange, 0, "{:#?}", status.last_recoveries);
        let sum =
            |of: fn(&ClientRecovery) -> u64| status.last_recoveries.iter().map(of).sum::<u64>();
        println!(
            "{} clients recovered; of the last ones {} writes completed, {} withdrawn",
            status.recoveries,
            sum(|r| r.committed),
            sum(|r| r.withdrawn)
        );
        let sweep = self.sweep(WriterMode::Sweep);
        self.clients.push(sweep);
        let mut complaints = String::new();
        let all = || self.clients.iter().chain(&self.dead);
        for client in all() {
            for line in client.complaints().lines().filter(|line| !excused(line)) {
                complaints += &format!("client {}: {line}\n", client.task.first);
            }
        }
        let findings = writer::read_all(all()).into_iter().collect::<OperationHistory>().check();
        println!(
            "{} operations on {} keys, {} overlapping, {} pending",
            findings.operations, findings.keys, findings.overlapping, findings.pending
        );
        let refutation = findings.refutation.as_deref();
        let shown = refutation.map(|r| {
            let name = |value| format!("w{}.{}", value >> 40, value & ((1 << 40) - 1));
            format!("key {}:\n{}", r.key, r.render(name))
        });
        assert!(findings.is_clean(), "{}", shown.unwrap_or_else(|| format!("{findings:?}")));
        assert_eq!(complaints, "");
    }

    pub fn finish(self) {
        self.finish_excusing(|_| false);
    }
}

impl Drop for FaultyCluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let dirs = ["logs", "clients"].map(|dir| fs::read_dir(self.path(dir)));
        let entries = dirs.into_iter().flatten().flatten().flatten();
        let logs = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".log") || name.starts_with("complaints")
        });
        for path in logs {
            let bytes = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            println!("--- {}", path.display());
            lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| println!("{line}"));
        }
    }
}

/// Asks the master to form the cluster, because the start of servers does not form one.
fn form(master: &str) {
    finish(&mut fusee(&["form", "--no-wait", "--master", master])).expect_code(0);
}

/// The shape of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct ClusterShape {
    pub fabric: &'static str,
    /// Size of each memory node's pool.
    pub pool: &'static str,
    pub block: &'static str,
    pub nodes: u32,
    pub index_replicas: u32,
    pub data_replicas: u32,
    pub lease_ms: u32,
    /// Hosts of the master and of the memory nodes, unless `apart` is set.
    pub hosts: [&'static str; 2],
    /// Whether each process is in its own network namespace.
    pub apart: bool,
    /// Size of the separate file systems of the master's store and of the logs, in MiB; `None` for no such file
    /// systems.
    pub files_mib: Option<u32>,
    /// The program of the servers; `None` for the program under test.
    pub program: Option<&'static str>,
}

impl Default for ClusterShape {
    fn default() -> ClusterShape {
        ClusterShape {
            fabric: "tcp",
            pool: "128MiB",
            block: "256KiB",
            nodes: 3,
            index_replicas: 3,
            data_replicas: 2,
            lease_ms: 1000,
            hosts: ["127.0.0.1"; 2],
            apart: false,
            files_mib: None,
            program: None,
        }
    }
}

impl ClusterShape {
    /// Starts a master with small regions, blocks and subtables, so that a short load fills several of them.
    fn start_master(
        &self,
        scratch: &Scratch,
        listen: &str,
        data_dir: &str,
        at: (Option<&TestNetwork>, Option<NetNamespace>),
    ) -> FaultyServer {
        let data_dir = format!("--data-dir={}", scratch.path().join(data_dir).display());
        let line = ["master", "--listen", listen, &data_dir];
        let block = format!("--block-bytes={}", self.block);
        let sizes = ["--region-bytes=16MiB", &block, "--max-value-bytes=64KiB"];
        let index = ["--index-keys=1000", "--groups-per-subtable=16", "-v"];
        let numbers = [
            format!("--memory-nodes={}", self.nodes),
            format!("--index-replicas={}", self.index_replicas),
            format!("--data-replicas={}", self.data_replicas),
            format!("--lease={}", self.lease_ms),
        ];
        let numbers = numbers.each_ref().map(String::as_str);
        let line = [&line[..], &sizes, &index, &numbers].concat();
        FaultyServer::start(scratch, "master", &line, self.program, at)
    }
}
