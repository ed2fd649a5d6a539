//! `fusee switch`: sessions behind it, READs that it steers, and its end.

// Promise API-15: A switch serves sessions; its end ends them with an error.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::{UpCluster, eventually, signal, wait};

/// A switch of a cluster, which prints a report at its end.
struct SwitchUnderTest {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl SwitchUnderTest {
    fn start(up: &UpCluster, listen: &str) -> SwitchUnderTest {
        let mut command = up.command(&["switch", "--announce", "--json", "--listen", listen]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let announced: Value = serde_json::from_str(&line).expect("it announces its address");
        let address = announced["switch"].as_str().unwrap().to_string();
        SwitchUnderTest { child, out, address }
    }

    /// Ends the switch. Returns its report.
    fn stop(mut self) -> Value {
        signal("TERM", self.child.id());
        assert_eq!(wait(&mut self.child).code(), Some(0));
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).expect("a report")
    }
}

impl Drop for SwitchUnderTest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A session of `fusee shell` behind a switch.
struct ShellProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ShellProcess {
    fn start(up: &UpCluster, switch: &str) -> ShellProcess {
        let mut command = up.command(&["shell", "--switch", switch]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = child.stdout.take().unwrap();
        ShellProcess { child, input, output: BufReader::new(output) }
    }

    fn say(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_string()
    }
}

impl Drop for ShellProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_key_that_others_change_is_found_by_the_switch() {
    let up = UpCluster::start(&["--memory-nodes", "2", "--fabric", "tcp"]);
    let switch = SwitchUnderTest::start(&up, "127.0.0.1:0");
    let [mut first, mut second] = [(); 2].map(|()| ShellProcess::start(&up, &switch.address));
    first.say("put hot 0");
    for number in 1..200 {
        let value = format!("{number:03}");
        first.say(&format!("update hot {value}"));
        assert_eq!(second.say("get hot"), value);
    }
    drop((first, second));
    let report = switch.stop();
    let count = |name: &str| report[name].as_u64().unwrap();
    assert!(count("seen") > 1_000, "{report}");
    assert!(count("steered") > 100, "{report}");
    assert!(count("bytes_of_keys") > 0, "{report}");
}

#[test]
fn without_the_switch_a_session_fails_and_with_the_next_one_it_works() {
    let up = UpCluster::start(&["--memory-nodes", "2", "--fabric", "tcp"]);
    let mut switch = SwitchUnderTest::start(&up, "127.0.0.1:0");
    let address = switch.address.clone();
    up.run(&["put", "--switch", &address, "key", "value"]).expect_code(0);
    switch.child.kill().unwrap();
    wait(&mut switch.child);
    up.run(&["get", "--switch", &address, "key"]).expect_error(3, "no switch answers at");
    // A switch is in the path of one fabric.
    let on = |fabric: &str, at: &str| up.run(&["get", "key", "--fabric", fabric, "--switch", at]);
    on("tcp", "wire").expect_error(2, "is for verbs");
    on("tcp", "somewhere").expect_error(2, "is no address");
    // Written pairs do not depend on the switch.
    assert_eq!(up.run(&["get", "key"]).expect_code(0).text().trim(), "value");
    let again = SwitchUnderTest::start(&up, &address);
    eventually("the next switch serves", || {
        up.run(&["get", "--switch", &again.address, "key"]).text().trim() == "value"
    });
    up.run(&["get", "--switch", &address, "--fabric", "shm", "key"])
        .expect_error(2, "is for tcp, and --fabric is shm");
}

/// All sessions change the same few keys, as processes would, so hints are nearly always stale. With the
/// switch, a stale hint costs no phase if the switch knows better.
#[test]
fn hot_keys_take_fewer_phases_behind_a_switch() {
    let up = UpCluster::start(&["--memory-nodes", "2", "--fabric", "tcp", "--switch"]);
    let switch = up.report["switch"]["tcp"].as_str().expect("a switch").to_owned();
    let phases = |more: &[&str]| {
        let workload =
            ["--workload", "a", "--keys", "4", "--operations", "20000", "--pair-bytes", "64"];
        let clients = [
            "--master",
            &up.master,
            "--threads",
            "4",
            "--coroutines",
            "8",
            "--fabric",
            "tcp",
            "--cache-per-session",
            "--json",
        ];
        let output = up.run(&[&["bench", "ycsb"], &workload[..], &clients, more].concat());
        let report = output.expect_code(0).json();
        ["search", "update"].map(|kind| {
            let counts = &report["per_operation"][kind];
            counts["phases_mean"].as_f64().unwrap_or_else(|| panic!("{report:#}"))
        })
    };
    let without = phases(&[]);
    let with = phases(&["--switch", &switch]);
    println!("phases of a SEARCH and an UPDATE: {without:?} without, {with:?} with the switch");
    assert!(with[0] < without[0] - 0.2, "{with:?} with the switch, {without:?} without");
    assert!(with[1] < without[1], "{with:?} with the switch, {without:?} without");
}

/// A switch is told to stop, or killed, during a benchmark: the operations that are cut off fail, and the
/// history is linearizable.
#[test]
fn a_switch_that_ends_under_load_loses_nothing() {
    for name in ["TERM", "KILL"] {
        let up = UpCluster::start(&["--memory-nodes", "2", "--fabric", "tcp"]);
        let mut switch = SwitchUnderTest::start(&up, "127.0.0.1:0");
        up.run(&["put", "--switch", &switch.address, "before", "1"]).expect_code(0);
        let load =
            ["bench", "ycsb", "--workload", "churn", "--keys", "8", "--seconds", "6", "--check"];
        let mut bench = up.command(
            &[&load[..], &["--json", "--master", &up.master, "--switch", &switch.address]].concat(),
        );
        bench.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let bench = bench.spawn().unwrap();
        std::thread::sleep(Duration::from_secs(3));
        signal(name, switch.child.id());
        wait(&mut switch.child);
        let output = bench.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        println!("{name}: {:?}\n{text}\n{errors}", output.status);
        assert_eq!(output.status.code(), Some(1), "{text} {errors}");
        let report: Value = serde_json::from_str(&text).expect("a report");
        assert_eq!(report["check"]["violations"], 0, "{report:#}");
        assert_eq!(up.run(&["get", "before"]).expect_code(0).text().trim(), "1");
        // Another switch serves at the same address.
        let again = SwitchUnderTest::start(&up, &switch.address);
        up.run(&["get", "--switch", &again.address, "before"]).expect_code(0);
    }
}

#[test]
fn a_switch_says_what_is_wrong() {
    let up = UpCluster::start(&["--memory-nodes", "1", "--fabric", "tcp"]);
    let switch = SwitchUnderTest::start(&up, "127.0.0.1:0");
    up.run(&["switch", "--listen", &switch.address]).expect_error(1, "is in use");
    up.run(&["switch", "--master", "127.0.0.1:1"]).expect_error(3, "127.0.0.1:1");
    up.run(&["switch", "--slots", "many"]).expect_error(2, "many");
    up.run(&["switch", "--wire", "lo"]).expect_error(2, "two interfaces");
    up.run(&["switch", "--wire", "lo,lo"]).expect_error(2, "these are one");
    up.run(&["switch", "--wire", "lo,eth1", "--listen", "127.0.0.1:0"]).expect_error(2, "--listen");
    up.run(&["switch", "--wire", "lo,no-such-card"]).expect_error(1, "no-such-card");
    up.run(&["memory-node", "--steered"]).expect_error(2, "--steered is for verbs");
    up.run(&["up", "--switch", "--fabric", "shm"]).expect_error(2, "serve tcp");
}
