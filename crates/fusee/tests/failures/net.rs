//! Networks for tests. Each process is in a network namespace, and a router between any two namespaces drops the
//! packets that the test chooses, in one direction or both.
//!
//! ```text
//! the master          memory nodes, clients
//!  [eth0]              [eth0]   [eth0]        a namespace each, 10.77.N.2
//!     |                   |        |
//!  [v1]----- router ----[v2]-----[v3]         the test's own namespace, 10.77.N.1
//! ```
//!
//! *Nothing is left behind.* A test that needs a network runs itself once more, inside namespaces for networks and
//! mounts ([`is_inside`]). These vanish with the last process in them, together with their addresses, rules and mounts.
//! Each namespace is kept by a process, which ends at the end of its standard input. Servers and clients also end at
//! the end of their standard input, and so does the inner run of the test, which therefore ends with the outer run.
//!
//! This needs root, `ip`, `nft`, `unshare` and `nsenter`. If one is missing, the tests print SKIPPED; with
//! `FUSEE_NETNS_REQUIRED=1` they fail.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::process::{Child, Command, Stdio};

use super::cluster;

/// The environment variable that is set for the inner run of a test.
const INSIDE: &str = "FUSEE_TEST_INSIDE";

/// Returns whether this is the inner run of the test with this name. Otherwise executes the inner run, asserts that it
/// succeeds, and returns false; the caller has to return then. If the machine lacks something, the inner run is
/// skipped.
#[track_caller]
pub fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        std::thread::spawn(|| {
            let _end = stdin().read_to_end(&mut Vec::new());
            eprintln!("the test outside has ended");
            std::process::exit(1);
        });
        return true;
    }
    if let Err(obstacle) = try_out() {
        let required = std::env::var_os("FUSEE_NETNS_REQUIRED").is_some_and(|v| v == "1");
        assert!(
            !required,
            "FUSEE_NETNS_REQUIRED=1, but there are no networks to be had: {obstacle}"
        );
        // `println` would not show this, because the test harness captures its output.
        let _told = Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED: no networks of the test's own: {obstacle}\n"),
        );
        return false;
    }
    let _turn = cluster::turn();
    let inside = "exec 2>&1; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c", inside, "sh"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--include-ignored", "--nocapture"]).env(INSIDE, "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // Standard input stays open until the inner run has ended.
    let stdin = child.stdin.take();
    let said = BufReader::new(child.stdout.take().unwrap());
    said.lines().map_while(Result::ok).for_each(|line| println!("{line}"));
    let status = child.wait().unwrap();
    drop(stdin);
    assert!(status.success(), "{test}, inside: {status}");
    false
}

/// Returns an error if the machine lacks something that the networks need.
pub fn try_out() -> Result<(), String> {
    let all = "ip link add v0 type veth peer name v1 && echo 1 > /proc/sys/net/ipv4/ip_forward &&
        nft add table inet t && nsenter --net=/proc/$$/ns/net true &&
        mount -t tmpfs none /mnt && command -v tc";
    let tried = Command::new("unshare").args(["--net", "--mount", "sh", "-c", all]).output();
    let tried = tried.map_err(|error| format!("unshare: {error}"))?;
    if tried.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&tried.stderr);
    Err(format!("{} (root, iproute2, nftables and util-linux are needed)", said.trim()))
}

/// A network namespace, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetNamespace(usize);

impl NetNamespace {
    /// Returns the address of the namespace.
    pub fn ip(self) -> String {
        format!("10.77.{}.2", self.0)
    }

    /// Returns the router's device for the namespace.
    fn device(self) -> String {
        format!("v{}", self.0)
    }
}

/// A network of namespaces. Dropping it ends each namespace that has no other process left.
#[derive(Default)]
pub struct TestNetwork {
    holders: Vec<Child>,
    rules: RefCell<PacketRules>,
}

#[derive(Default)]
struct PacketRules {
    /// Pairs of sender and receiver between which packets are dropped.
    cuts: BTreeSet<(NetNamespace, NetNamespace)>,
    /// Percentage of all packets that are dropped.
    loss: u32,
    slow: BTreeSet<NetNamespace>,
}

impl TestNetwork {
    /// Creates the router. Must be called in the [inner run](is_inside) of a test.
    pub fn new() -> TestNetwork {
        assert!(std::env::var_os(INSIDE).is_some(), "this network is not the test's");
        shell("ip link set lo up; echo 1 > /proc/sys/net/ipv4/ip_forward");
        TestNetwork::default()
    }

    /// Adds a namespace, which reaches all others.
    pub fn place(&mut self) -> NetNamespace {
        let mut holder = Command::new("unshare");
        holder.args(["--net", "sh", "-c", "echo there; exec cat > /dev/null"]);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "there\n");
        self.holders.push(holder);
        let place = NetNamespace(self.holders.len());
        let ip = place.ip();
        let device = place.device();
        let n = place.0;
        let pid = self.holders[n - 1].id();
        shell(&format!(
            "ip link add {device} type veth peer name eth0 netns {pid}
             ip addr add 10.77.{n}.1/24 dev {device}
             ip link set {device} up
             nsenter --net=/proc/{pid}/ns/net sh -ec '
                 ip link set lo up
                 ip addr add {ip}/24 dev eth0
                 ip link set eth0 up
                 ip route add default via 10.77.{n}.1'"
        ));
        place
    }

    /// Returns the path of the namespace, for `nsenter`.
    pub fn path(&self, place: NetNamespace) -> String {
        format!("/proc/{}/ns/net", self.holders[place.0 - 1].id())
    }

    /// Drops all packets from any of the namespaces in `from` to any of those in `to`.
    pub fn cut(&self, from: &[NetNamespace], to: &[NetNamespace]) {
        let pairs = from.iter().flat_map(|from| to.iter().map(|to| (*from, *to)));
        self.rules.borrow_mut().cuts.extend(pairs);
        self.apply();
    }

    /// Drops all packets between two groups of namespaces, in both directions.
    pub fn part(&self, one: &[NetNamespace], other: &[NetNamespace]) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Drops this percentage of all packets.
    pub fn lose(&self, of_hundred: u32) {
        self.rules.borrow_mut().loss = of_hundred;
        self.apply();
    }

    /// Ends all cuts, losses and delays.
    pub fn heal(&self) {
        let slow = std::mem::take(&mut self.rules.borrow_mut().slow);
        slow.into_iter().for_each(|place| self.queue(place, "tc qdisc del dev $1 root"));
        *self.rules.borrow_mut() = PacketRules::default();
        self.apply();
    }

    fn apply(&self) {
        let mut rules = String::new();
        let PacketRules { cuts, loss, .. } = &*self.rules.borrow();
        for (from, to) in cuts {
            let from = from.ip();
            let to = to.ip();
            writeln!(rules, "ip saddr {from} ip daddr {to} counter drop").unwrap();
        }
        if *loss > 0 {
            writeln!(rules, "numgen random mod 100 < {loss} counter drop").unwrap();
        }
        // The rules are replaced in one transaction, so that they are always in force.
        let table = format!(
            "table inet cuts {{ }}\ndelete table inet cuts\ntable inet cuts {{\nchain between {{\n\
             type filter hook forward priority 0; policy accept;\n{rules}}}\n}}\n"
        );
        let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        nft.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
        assert!(nft.wait().unwrap().success(), "{table}");
    }

    /// Returns the numbers of packets that the present rules have dropped: for each cut, sorted by sender and receiver,
    /// and last for `loss`.
    pub fn dropped(&self) -> Vec<u64> {
        let list = Command::new("nft").args(["list", "table", "inet", "cuts"]).output().unwrap();
        let text = String::from_utf8_lossy(&list.stdout).into_owned();
        let counts = text.split("counter packets ").skip(1);
        counts.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect()
    }

    /// Makes the traffic of a namespace slow. If the kernel has netem, packets arrive 20 ms late. Otherwise 50 kB per
    /// second pass, so that packets wait behind earlier ones.
    pub fn slow(&self, place: NetNamespace) {
        let delay = "tc qdisc replace dev $1 root netem delay 20ms 10ms 2> /dev/null ||
            tc qdisc replace dev $1 root tbf rate 400kbit burst 3kb latency 2s";
        self.rules.borrow_mut().slow.insert(place);
        self.queue(place, delay);
    }

    /// Runs a script that sets the queueing, at both ends of the namespace's link. The script's `$1` is the device.
    fn queue(&self, place: NetNamespace, script: &str) {
        let path = self.path(place);
        let device = place.device();
        shell(&format!("set -- {device}; {script}"));
        let within = ["sh", "-ec", script, "sh", "eth0"];
        let told = Command::new("nsenter").arg(format!("--net={path}")).args(within).status();
        assert!(told.unwrap().success());
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            drop(holder.stdin.take());
            let _ended = holder.wait();
        }
    }
}

/// Returns a command that runs in the namespace with this path, if a path is given.
pub fn command_in(path: Option<&str>, program: &str) -> Command {
    let Some(path) = path else { return Command::new(program) };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={path}")).arg(program);
    command
}

/// Mounts a file system of `mib` MiB in memory. It vanishes when the [inner run](is_inside) of the test ends.
pub fn mount_small(dir: &std::path::Path, mib: u32) {
    fs::create_dir_all(dir).unwrap();
    shell(&format!("mount -t tmpfs -o size={mib}m,mode=700 none '{}'", dir.display()));
}

fn shell(script: &str) {
    let status = Command::new("sh").args(["-ec", script]).status().unwrap();
    assert!(status.success(), "{script}");
}

#[test]
fn packets_are_dropped_one_way_and_by_chance() {
    if !is_inside("net::packets_are_dropped_one_way_and_by_chance") {
        return;
    }
    let mut net = TestNetwork::new();
    let a = net.place();
    let b = net.place();
    // Sends datagrams, with a program that every such machine has.
    let send = |from: NetNamespace, to: NetNamespace, count: u32| {
        let script = format!(
            "for i in $(seq {count}); do echo x > /dev/udp/{}/9; done 2> /dev/null; true",
            to.ip()
        );
        let status = command_in(Some(&net.path(from)), "bash").args(["-c", &script]).status();
        assert!(status.unwrap().success());
    };
    net.cut(&[a], &[b]);
    send(a, b, 5);
    send(b, a, 5);
    // Node b's datagrams arrive; only the refusals that a sends back to b are dropped.
    let [dropped] = net.dropped()[..] else { panic!("{:?}", net.dropped()) };
    assert!(dropped >= 5, "{dropped}");
    net.part(&[a], &[b]);
    send(a, b, 5);
    send(b, a, 5);
    assert_eq!(net.dropped(), [5, 5]);
    net.heal();
    net.lose(50);
    send(a, b, 200);
    let [dropped] = net.dropped()[..] else { panic!("{:?}", net.dropped()) };
    assert!((20..400).contains(&dropped), "{dropped} of 200 and their refusals");
    net.heal();
    assert_eq!(net.dropped(), [0; 0]);
}
