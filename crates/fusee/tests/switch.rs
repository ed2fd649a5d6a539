//! `fusee switch`: sessions that use it, READs that it steers, and the errors when it ends.

// Promise API-15: A switch serves sessions; its end ends them with an error.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::common::switch::SwitchUnderTest;
use crate::common::{UpCluster, eventually, wait};

/// A session of `fusee shell` that uses a switch.
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
    // No server of another test gets this address after the switch has ended.
    let mut switch = SwitchUnderTest::start(&up, "127.0.0.77:0");
    let address = switch.address.clone();
    up.run(&["put", "--switch", &address, "key", "value"]).expect_code(0);
    switch.child.kill().unwrap();
    wait(&mut switch.child);
    up.run(&["get", "--switch", &address, "key"]).expect_error(3, "no switch answers at");
    // A switch serves one fabric only.
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
