//! A soak, which is run by hand: one cluster suffers every kind of fault in turn, for hours if wanted.
//!
//! ```text
//! tests/soak tcp 60
//! tests/soak shm 60
//! tests/rdma/soak 60
//! ```
//!
//! The cluster lives for the whole soak. Clients live for a *chapter* of about half a minute, which has its own keys.
//! At the end of a chapter this project's checker judges its history, and, if Go is installed, porcupine does so too.
//! Then the history is dropped, so a soak needs no more memory in its last hour than in its first.
//!
//! For every fault the soak measures three durations: until the cluster is whole again, the longest time without an
//! acknowledged write, and the longest operation of a living client. At its end the soak prints them as a table, by
//! kind of fault, for `docs/results`. `FUSEE_SOAK_FAULTS` names the kinds of faults, separated by commas;
//! `FUSEE_SOAK_LEASE_MS` is the lease (1000; over shared memory 2000), `FUSEE_SOAK_PAUSE_US` the time between two
//! operations of a writer (500), and `FUSEE_SOAK_PATIENCE_S` the time limit for what the cluster does by itself, after
//! which the soak fails (60).
//!
//! `tests/rdma/soak` runs the soak in a virtual machine and over RDMA. `FUSEE_SOAK_HOSTS=10.0.0.1,10.0.0.2` sets the
//! addresses of the master and of the memory nodes. `FUSEE_SOAK_OWN_MACHINE=1` says that only the soak uses the
//! machine, so that the soak is allowed to suspend it.
//!
//! If network namespaces are available ([`super::net`]), each process is in a namespace of its own. If they are, or if
//! the machine is the soak's own, the master's store and the logs of all servers are on small file systems of their
//! own. Without these means the faults that need them are left out, with a message.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_client::{BlockingClient, Client, FabricKind, Options};
use fusee_linearizability::{HistoryAnswer, HistoryCall, HistoryRecord, OperationHistory};
use rand::RngExt;
use rustix::time::{ClockId, clock_gettime};

use super::cluster::{ClusterShape, FaultyCluster, setting};
use super::common::eventually;
use super::journal::now_ns;
use super::net::{self, NetNamespace, is_inside};
use super::porcupine::{self, PorcupineVerdict};
use super::writer::{self, WriterMode, WriterProcess};

/// Length of a chapter. After it no further fault begins.
const CHAPTER: Duration = Duration::from_secs(30);
/// Number of keys that the operations of a chapter share.
const KEYS: u64 = 16;
/// Default time between two operations of a writer. It is so long that porcupine can judge the history too.
const PAUSE_US: u64 = 500;
/// Number of client processes, and of writers in each.
const CLIENTS: (usize, u32) = (3, 2);
/// Time for which a master whose disk is full gets sessions to record.
const STORE_FAILS_WITHIN: Duration = Duration::from_secs(5);
/// Size of the file system of the master's store and of that of the logs.
const FILES_MIB: u32 = 16;
/// Number of strangers at each server's port, which cause log lines that find no room.
const STRANGERS: u32 = 5;
/// Time for which the machine is suspended, or the master is stopped. It is so long that all processes close their
/// connections.
const LONG_MS: Range<u64> = 8_000..9_000;
/// Time between the end of one fault and the next fault.
const REST_MS: Range<u64> = 100..800;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SoakFault {
    ClientKilled,
    ClientStoppedShortly,
    ClientStoppedForGood,
    ClientForks,
    NodeKilled,
    NodeStopped,
    NodeReplaced,
    MasterKilled,
    MasterStopped,
    MasterStoppedForLong,
    MasterAndNodeKilled,
    MasterAndNodeGone,
    EverythingKilledInTurn,
    NodeCutOff,
    NodeNotHeard,
    MasterCutOff,
    ReaderAndNodeCutOff,
    PacketsLost,
    StoreFull,
    LogsFull,
    MachineSleeps,
}

/// Means of a soak in addition to killing and stopping processes.
#[derive(Clone, Copy, Debug)]
struct SoakMeans {
    /// Whether each process is in a network namespace.
    networks: bool,
    /// Whether the store and the logs are on small file systems.
    files: bool,
    /// Whether the soak is allowed to suspend the machine.
    machine: bool,
}

impl SoakFault {
    const ALL: [SoakFault; 21] = [
        SoakFault::ClientKilled,
        SoakFault::ClientStoppedShortly,
        SoakFault::ClientStoppedForGood,
        SoakFault::ClientForks,
        SoakFault::NodeKilled,
        SoakFault::NodeStopped,
        SoakFault::NodeReplaced,
        SoakFault::MasterKilled,
        SoakFault::MasterStopped,
        SoakFault::MasterStoppedForLong,
        SoakFault::MasterAndNodeKilled,
        SoakFault::MasterAndNodeGone,
        SoakFault::EverythingKilledInTurn,
        SoakFault::NodeCutOff,
        SoakFault::NodeNotHeard,
        SoakFault::MasterCutOff,
        SoakFault::ReaderAndNodeCutOff,
        SoakFault::PacketsLost,
        SoakFault::StoreFull,
        SoakFault::LogsFull,
        SoakFault::MachineSleeps,
    ];

    fn is_possible(self, with: SoakMeans) -> bool {
        match self {
            SoakFault::NodeCutOff
            | SoakFault::NodeNotHeard
            | SoakFault::MasterCutOff
            | SoakFault::ReaderAndNodeCutOff
            | SoakFault::PacketsLost => with.networks,
            SoakFault::StoreFull | SoakFault::LogsFull => with.files,
            SoakFault::MachineSleeps => with.machine,
            _ => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            SoakFault::ClientKilled => "a client is killed",
            SoakFault::ClientStoppedShortly => "a client stops for less than a lease",
            SoakFault::ClientStoppedForGood => "a client stops for longer than a lease",
            SoakFault::ClientForks => "client processes fork",
            SoakFault::NodeKilled => "a memory node is killed",
            SoakFault::NodeStopped => "a memory node stops for longer than a lease",
            SoakFault::NodeReplaced => "a memory node is drained, another takes its place",
            SoakFault::MasterKilled => "the master is killed",
            SoakFault::MasterStopped => "the master stops",
            SoakFault::MasterStoppedForLong => "the master stops for longer than all leases",
            SoakFault::MasterAndNodeKilled => "master and memory node are killed",
            SoakFault::MasterAndNodeGone => {
                "master killed and memory node stopped, for three leases"
            }
            SoakFault::EverythingKilledInTurn => "all servers are killed, one after the other",
            SoakFault::NodeCutOff => "a memory node is cut off from everybody",
            SoakFault::NodeNotHeard => "a memory node hears the master, which does not hear it",
            SoakFault::MasterCutOff => "the master is cut off from everybody",
            SoakFault::ReaderAndNodeCutOff => "a reader and a memory node are cut off together",
            SoakFault::PacketsLost => "three of a hundred packets are lost for seconds",
            SoakFault::StoreFull => {
                "the disk of the master's store is full, and a memory node is killed"
            }
            SoakFault::LogsFull => "the disk of all servers' logs is full, and strangers write",
            SoakFault::MachineSleeps => "the machine sleeps for longer than all leases",
        }
    }

    /// Provokes the fault, and waits until the cluster is whole again.
    fn provoke(self, cluster: &mut FaultyCluster) {
        match self {
            SoakFault::ClientKilled => {
                let mut victim = victim(cluster, WriterMode::Load);
                victim.kill();
                cluster.dead.push(victim);
                cluster.until("it is recovered", |status| status.expired_sessions == 0);
            }
            SoakFault::ClientStoppedShortly => {
                let at = cluster.choose(cluster.clients.len());
                cluster.clients[at].signal("STOP");
                cluster.pause(100..400);
                cluster.clients[at].signal("CONT");
            }
            SoakFault::ClientStoppedForGood => {
                let mut victim = victim(cluster, WriterMode::LoadUntilError);
                let recoveries = cluster.until("the master is there", |_| true).recoveries;
                victim.signal("STOP");
                cluster.until("it is recovered", |status| {
                    status.recoveries > recoveries && status.expired_sessions == 0
                });
                // Over shared memory the fence has already killed the process.
                if victim.is_alive() {
                    victim.signal("CONT");
                    cluster.pause(100..300);
                }
                victim.kill();
                cluster.dead.push(victim);
            }
            SoakFault::ClientForks => {
                let before: Vec<u64> = cluster.clients.iter().map(WriterProcess::forks).collect();
                cluster.clients.iter_mut().for_each(WriterProcess::fork);
                for (client, before) in cluster.clients.iter().zip(before) {
                    eventually("its children end", || client.forks() > before);
                }
            }
            SoakFault::NodeKilled => {
                let mut node = take_node(cluster);
                node.kill();
                cluster.until_stable(2, false);
                cluster.start_node();
                cluster.until_stable(3, true);
            }
            SoakFault::NodeStopped => {
                let at = cluster.choose(3);
                cluster.nodes[at].signal("STOP");
                cluster.until_stable(2, false);
                cluster.nodes[at].signal("CONT");
                cluster.until_stable(3, true);
            }
            SoakFault::NodeReplaced => {
                cluster.start_node();
                cluster.until_stable(4, true);
                let at = cluster.choose(3);
                cluster.drain(at);
                cluster.nodes.remove(at);
                cluster.until_stable(3, true);
            }
            SoakFault::MasterKilled => {
                cluster.kill_master();
                cluster.pause(0..1000);
                cluster.restart_master();
                cluster.until_stable(3, true);
            }
            SoakFault::MasterStopped => {
                cluster.master.as_ref().unwrap().signal("STOP");
                cluster.pause(100..1500);
                cluster.master.as_ref().unwrap().signal("CONT");
                cluster.until_stable(3, true);
            }
            SoakFault::MasterStoppedForLong => {
                cluster.master.as_ref().unwrap().signal("STOP");
                cluster.pause(LONG_MS);
                cluster.master.as_ref().unwrap().signal("CONT");
                pause_for_a_lease(cluster);
                cluster.until_stable(3, true);
            }
            SoakFault::MasterAndNodeKilled => {
                let mut node = take_node(cluster);
                cluster.kill_master();
                node.kill();
                cluster.pause(0..500);
                cluster.restart_master();
                cluster.until_stable(2, false);
                cluster.start_node();
                cluster.until_stable(3, true);
            }
            // The faults last long enough for backup reads. The readers are clients of their own, so they do not wait
            // for writes.
            SoakFault::MasterAndNodeGone => {
                let mut reader = cluster.readers_here();
                cluster.kill_master();
                let at = cluster.choose(3);
                cluster.nodes[at].signal("STOP");
                let lease_ms = u64::from(cluster.shape.lease_ms);
                cluster.pause(3 * lease_ms..4 * lease_ms);
                cluster.nodes[at].signal("CONT");
                cluster.restart_master();
                cluster.until_stable(3, true);
                reader.kill();
                cluster.dead.push(reader);
                cluster.until("it is recovered", |status| status.expired_sessions == 0);
            }
            SoakFault::NodeCutOff => {
                let (node, others) = choose_place(cluster);
                let clients = cluster.client_at.unwrap();
                cluster.net().part(&[node], &[&others[..], &[clients]].concat());
                cluster.until_stable(2, false);
                cluster.net().heal();
                cluster.until_stable(3, true);
            }
            SoakFault::NodeNotHeard => {
                let (node, _) = choose_place(cluster);
                cluster.net().cut(&[node], &[cluster.master_at.unwrap()]);
                cluster.until_stable(2, false);
                cluster.net().heal();
                cluster.until_stable(3, true);
            }
            SoakFault::MasterCutOff => {
                let nodes = cluster.nodes.iter().filter_map(|node| node.at);
                let others: Vec<NetNamespace> = nodes.chain(cluster.client_at).collect();
                cluster.net().part(&[cluster.master_at.unwrap()], &others);
                // Over shared memory a fence would kill the clients, so the cut is shorter than a lease there.
                cluster.pause(if cluster.fabric() == "shm" { 100..400 } else { 200..1500 });
                cluster.net().heal();
                cluster.until_stable(3, true);
            }
            SoakFault::ReaderAndNodeCutOff => {
                let (mut reader, readers) = cluster.readers();
                let writers = cluster.client_at;
                let (node, others) = choose_place(cluster);
                cluster.net().part(&[node, readers], &others);
                cluster.net().part(&[node], &[writers.unwrap()]);
                cluster.until_stable(2, false);
                cluster.pause(500..2500);
                cluster.net().heal();
                cluster.until_stable(3, true);
                reader.kill();
                cluster.dead.push(reader);
                cluster.until("it is recovered", |status| status.expired_sessions == 0);
            }
            SoakFault::PacketsLost => {
                cluster.net().lose(3);
                cluster.pause(1000..3000);
                cluster.net().heal();
                cluster.until_stable(3, true);
            }
            SoakFault::StoreFull => {
                let crowd = crowd(cluster);
                cluster.fill("master");
                // The master has to record views and sessions. The file has room for only some of them.
                take_node(cluster).kill();
                let end = Instant::now() + STORE_FAILS_WITHIN;
                let mut sessions = Vec::new();
                while !cluster.master.as_mut().unwrap().has_ended() && Instant::now() < end {
                    sessions.extend(crowd.session());
                }
                println!("{} sessions later", sessions.len());
                cluster.make_room("master");
                if cluster.master.as_mut().unwrap().has_ended() {
                    cluster.master = None;
                    cluster.restart_master();
                } else {
                    println!("the master's store had room enough");
                }
                cluster.until_stable(2, false);
                cluster.start_node();
                cluster.until_stable(3, true);
            }
            SoakFault::LogsFull => {
                let before = missing_lines(cluster);
                cluster.fill("logs");
                (0..STRANGERS).for_each(|_| annoy_servers(cluster));
                cluster.all_get_on("with full logs");
                pause_for_a_lease(cluster);
                let running = cluster.nodes.iter_mut().chain(&mut cluster.master);
                assert!(
                    running.into_iter().all(|server| !server.has_ended()),
                    "a server has ended"
                );
                cluster.until_stable(3, true);
                cluster.make_room("logs");
                eventually("the logs say what is missing", || missing_lines(cluster) > before);
            }
            SoakFault::MachineSleeps => {
                let ms = cluster.rng.borrow_mut().random_range(LONG_MS);
                sleep_as_a_machine(ms.div_ceil(1000));
                pause_for_a_lease(cluster);
                cluster.until_stable(3, true);
            }
            SoakFault::EverythingKilledInTurn => {
                SoakFault::MasterKilled.provoke(cluster);
                for _ in 0..3 {
                    let mut node = cluster.nodes.remove(0);
                    node.kill();
                    // Two lost nodes would be too many, so the next node is killed only after this one has been
                    // replaced.
                    cluster.until_stable(2, false);
                    cluster.start_node();
                    cluster.until_stable(3, true);
                }
            }
        }
    }
}

/// Connects a client that opens many sessions. It does not use shared memory, where a fence would kill this test's
/// process.
fn crowd(cluster: &FaultyCluster) -> BlockingClient {
    let timeout = Duration::from_secs(1);
    let fabric = if cluster.fabric() == "verbs" { FabricKind::Verbs } else { FabricKind::Tcp };
    let options = Options::default()
        .with_fabric(fabric)
        .with_op_timeout(timeout)
        .with_connect_timeout(timeout);
    Client::connect_with(cluster.address(), options).unwrap().blocking()
}

/// Pauses until the master regards processes as dead that have just become silent.
fn pause_for_a_lease(cluster: &FaultyCluster) {
    let lease_ms = u64::from(cluster.shape.lease_ms);
    cluster.pause(lease_ms..2 * lease_ms);
}

/// Sends garbage to the control port of each server.
fn annoy_servers(cluster: &FaultyCluster) {
    for server in cluster.nodes.iter().chain(&cluster.master) {
        // Any reaction of the server is fine.
        let Ok(mut stream) = TcpStream::connect(server.control()) else { continue };
        let _refused = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _refused = stream.write_all(b"garbage, and no hello of anything");
        let _refused = stream.read(&mut [0]);
    }
}

/// Returns how often the logs say that lines are missing.
fn missing_lines(cluster: &FaultyCluster) -> usize {
    let logs = fs::read_dir(cluster.path("logs")).unwrap().flatten();
    let texts = logs.map(|log| fs::read(log.path()).unwrap_or_default());
    texts.map(|text| String::from_utf8_lossy(&text).matches(" missing here: ").count()).sum()
}

/// Makes the kernel suspend the machine, as in the kernel's own test of suspend: no process runs, no interrupt is
/// served, and the monotonic clock stands still. After that only the clock that includes sleep has advanced.
fn sleep_as_a_machine(seconds: u64) {
    let slept =
        || clock_gettime(ClockId::Boottime).tv_sec - clock_gettime(ClockId::Monotonic).tv_sec;
    let before = slept();
    fs::write("/sys/module/suspend/parameters/pm_test_delay", seconds.to_string()).unwrap();
    fs::write("/sys/power/pm_test", "core").unwrap();
    fs::write("/sys/power/state", "mem").expect("the machine can sleep");
    assert!(slept() >= before + seconds as i64 - 2, "{before} s, then {} s", slept());
}

/// Starts a client, and waits until it works.
fn victim(cluster: &mut FaultyCluster, mode: WriterMode) -> WriterProcess {
    let victim = cluster.victim(mode);
    eventually("it works", || victim.progress() > 20);
    victim
}

/// Chooses a memory node. Returns its namespace, and those of the master and the other memory nodes.
fn choose_place(cluster: &FaultyCluster) -> (NetNamespace, Vec<NetNamespace>) {
    let chosen = cluster.nodes[cluster.choose(3)].at.unwrap();
    let all = cluster.nodes.iter().filter_map(|node| node.at).chain(cluster.master_at);
    (chosen, all.filter(|place| *place != chosen).collect())
}

fn take_node(cluster: &mut FaultyCluster) -> super::cluster::FaultyServer {
    let at = cluster.choose(cluster.nodes.len());
    cluster.nodes.remove(at)
}

/// The cost of a fault: three durations in milliseconds.
#[derive(Clone, Copy, Debug)]
struct FaultCost {
    until_whole: f64,
    without_a_write: f64,
    slowest: f64,
}

/// A fault that was provoked. Its beginning and end are times of the journals' clock.
struct ProvokedFault {
    fault: SoakFault,
    begun_ns: u64,
    whole_ns: u64,
}

impl ProvokedFault {
    /// Returns the cost of the fault. `living` has the operations of clients that were not killed.
    fn cost(&self, living: &[HistoryRecord]) -> FaultCost {
        let is_near = |&(from, to): &(u64, u64)| to >= self.begun_ns && from <= self.whole_ns;
        let ended = living.iter().filter_map(|record| {
            record.operation.returned.map(|(at, answer)| (record.operation, at, answer))
        });
        let slowest =
            ended.clone().map(|(operation, at, _)| (operation.invoked, at)).filter(is_near);
        let mut writes: Vec<u64> = ended
            .filter(|(operation, _, answer)| {
                operation.call != HistoryCall::Search && *answer == HistoryAnswer::Done
            })
            .map(|(_, at, _)| at)
            .collect();
        writes.sort_unstable();
        let gaps = writes.windows(2).map(|pair| (pair[0], pair[1])).filter(is_near);
        let longest = |spans: &mut dyn Iterator<Item = (u64, u64)>| {
            ms(spans.map(|(from, to)| to - from).max().unwrap_or(0))
        };
        FaultCost {
            until_whole: ms(self.whole_ns - self.begun_ns),
            without_a_write: longest(&mut { gaps }),
            slowest: longest(&mut { slowest }),
        }
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The results of a soak so far.
#[derive(Default)]
struct SoakFindings {
    chapters: u64,
    operations: u64,
    overlapping: u64,
    pending: u64,
    /// Chapters that porcupine has judged too, and their operations. `undecided` counts chapters that porcupine gave
    /// up.
    judged_twice: (u64, u64),
    undecided: u64,
    costs: BTreeMap<SoakFault, Vec<FaultCost>>,
    /// Errors and mistakes that the clients reported, except clients that were killed.
    complaints: Vec<String>,
}

impl SoakFindings {
    /// Judges a chapter whose clients have ended, and drops its history.
    fn close(&mut self, cluster: &mut FaultyCluster, events: &[ProvokedFault]) {
        let living = writer::read_all(&cluster.clients);
        let all: Vec<HistoryRecord> =
            living.iter().copied().chain(writer::read_all(&cluster.dead)).collect();
        let found = all.iter().copied().collect::<OperationHistory>().check();
        assert!(found.is_clean(), "{:#?}", found.refutation);
        match porcupine::judge(&all) {
            Some(PorcupineVerdict::Linearizable) => {
                self.judged_twice.0 += 1;
                self.judged_twice.1 += found.operations;
            }
            Some(PorcupineVerdict::NotLinearizable) => panic!("porcupine finds no order"),
            Some(PorcupineVerdict::Undecided) => self.undecided += 1,
            None => {}
        }
        self.chapters += 1;
        self.operations += found.operations;
        self.overlapping += found.overlapping;
        self.pending += found.pending;
        for event in events {
            self.costs.entry(event.fault).or_default().push(event.cost(&living));
        }
        for client in &cluster.clients {
            let complaints = client.complaints();
            // Errors are allowed answers. Torn values, views that go backwards, and failed children are not.
            let wrong = complaints.lines().find(|line| !line.contains(": error: "));
            assert_eq!(wrong, None, "client process {}", client.task.first);
            self.complaints.extend(complaints.lines().map(str::to_owned));
        }
        let forgotten = cluster.clients.drain(..).chain(cluster.dead.drain(..));
        forgotten.for_each(|client| client.forget());
    }

    fn print(&self, fabric: &str, begun: Instant) {
        println!(
            "\n{fabric}: {:.0} minutes, {} chapters, {} operations ({} overlapping, {} pending), 0 violations; \
             porcupine has judged {} chapters of {} operations as well, and given {} up; {} errors of living clients",
            begun.elapsed().as_secs_f64() / 60.0,
            self.chapters,
            self.operations,
            self.overlapping,
            self.pending,
            self.judged_twice.0,
            self.judged_twice.1,
            self.undecided,
            self.complaints.len()
        );
        println!(
            "\n| fault | times | no acknowledged write, ms: median, longest \
             | slowest operation, ms: median, longest | whole again, ms: median, longest |\n\
             |---|---|---|---|---|"
        );
        for (fault, costs) in &self.costs {
            let cell = |of: fn(&FaultCost) -> f64| {
                let mut values: Vec<f64> = costs.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                format!("{:.0}, {:.0}", values[values.len() / 2], values[values.len() - 1])
            };
            println!(
                "| {} | {} | {} | {} | {} |",
                fault.name(),
                costs.len(),
                cell(|c| c.without_a_write),
                cell(|c| c.slowest),
                cell(|c| c.until_whole)
            );
        }
        self.complaints.iter().take(20).for_each(|line| println!("complaint: {line}"));
    }
}

/// Returns the kinds of faults that the soak provokes.
fn faults(with: SoakMeans) -> Vec<SoakFault> {
    let Ok(wanted) = std::env::var("FUSEE_SOAK_FAULTS") else {
        return SoakFault::ALL.into_iter().filter(|fault| fault.is_possible(with)).collect();
    };
    let named = |name: &str| SoakFault::ALL.into_iter().find(|fault| format!("{fault:?}") == name);
    let named =
        |name| named(name).unwrap_or_else(|| panic!("no fault {name}: {:?}", SoakFault::ALL));
    wanted.split(',').map(named).collect()
}

fn run(fabric: &'static str, length: Duration, with: SoakMeans) {
    let begun = Instant::now();
    let faults = faults(with);
    let hosts: String = setting("FUSEE_SOAK_HOSTS", "127.0.0.1,127.0.0.1".into());
    let (master, nodes) = hosts.leak().split_once(',').expect("FUSEE_SOAK_HOSTS are two");
    let mut cluster = FaultyCluster::of(ClusterShape {
        fabric,
        // The pool has to have room to grow. The cluster adds regions before it compares unverified blocks of lost
        // nodes with the index, and never removes regions: in 50 minutes it added 20 regions of 16 MiB. Pools for RDMA
        // are smaller, because they are pinned and the machine has little memory.
        pool: if fabric == "verbs" { "384MiB" } else { "1GiB" },
        // Over shared memory a fence kills the process. A cut of the master can seem longer than it is, because TCP
        // waits before it sends again. So the lease is longer there.
        lease_ms: setting("FUSEE_SOAK_LEASE_MS", if fabric == "shm" { 2000 } else { 1000 }),
        hosts: [master, nodes],
        apart: with.networks,
        files_mib: with.files.then_some(FILES_MIB),
        ..ClusterShape::default()
    });
    cluster.load_pause_us = setting("FUSEE_SOAK_PAUSE_US", PAUSE_US);
    let mut findings = SoakFindings::default();
    let mut order = faults.iter().copied().cycle();
    while begun.elapsed() < length {
        cluster.keys = cluster.keys.end..cluster.keys.end + KEYS;
        cluster.load(CLIENTS.0, CLIENTS.1);
        let chapter = Instant::now();
        let mut events = Vec::new();
        while chapter.elapsed() < CHAPTER && begun.elapsed() < length {
            cluster.pause(REST_MS);
            let fault = order.next().expect("there are kinds of faults");
            println!("{:.1} s: {}", begun.elapsed().as_secs_f64(), fault.name());
            let begun_ns = now_ns();
            fault.provoke(&mut cluster);
            cluster.all_get_on(fault.name());
            events.push(ProvokedFault { fault, begun_ns, whole_ns: now_ns() });
        }
        sleep(Duration::from_millis(200));
        cluster.end_load();
        findings.close(&mut cluster, &events);
        println!(
            "{:.1} min: {} operations in {} chapters, {} complaints",
            begun.elapsed().as_secs_f64() / 60.0,
            findings.operations,
            findings.chapters,
            findings.complaints.len()
        );
    }
    findings.print(fabric, begun);
    // As in every other test, at the end all clients are recovered, and every key can be written.
    cluster.finish();
}

#[test]
#[ignore = "a soak: hours, if wanted"]
fn soak() {
    let machine = std::env::var_os("FUSEE_SOAK_OWN_MACHINE").is_some_and(|v| v == "1");
    let networks = match net::try_out() {
        Ok(()) if !is_inside("soak::soak") => return,
        Ok(()) => true,
        Err(obstacle) => {
            // `println` would not show this, because the test harness captures its output.
            let _told = Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIPPED: whatever needs networks: {obstacle}\n"),
            );
            false
        }
    };
    let with = SoakMeans { networks, files: networks || machine, machine };
    let fabric: String = setting("FUSEE_SOAK_FABRIC", "tcp".into());
    let minutes: f64 = setting("FUSEE_SOAK_MINUTES", 60.0);
    run(fabric.leak(), Duration::from_secs_f64(60.0 * minutes), with);
}
