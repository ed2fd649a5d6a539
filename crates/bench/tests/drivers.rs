//! `fusee-bench ycsb --join`: drivers meet in the store and run together.

// Promise API-14: Drivers give one report, or name the missing or dead one.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fusee_testing::{
    CommandOutput, Scratch, UpCluster, eventually, finish, fusee_bench, signal, wait,
};
use serde_json::Value;

fn cluster() -> UpCluster {
    UpCluster::start(&["--pool", "512MiB", "--fabric", "tcp"])
}

fn driver(up: &UpCluster, drivers: usize, more: &[&str]) -> Command {
    let mut command = fusee_bench(&["ycsb", "--json", "--master", &up.master]);
    command.args(["--join", &drivers.to_string(), "--fabric", "tcp", "--threads", "2"]);
    command.args(["--coroutines", "2", "--keys", "120"]).args(more);
    command
}

fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn output(mut child: Child) -> CommandOutput {
    let status = wait(&mut child);
    let mut stdout = Vec::new();
    let mut stderr = String::new();
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    CommandOutput { code: status.code(), stdout, stderr }
}

/// Starts drivers at the same time. Returns the report of the first driver, then the reports of the others.
#[track_caller]
fn together(up: &UpCluster, drivers: usize, more: &[&str]) -> (Value, Vec<Value>) {
    let children: Vec<Child> = (0..drivers).map(|_| start(driver(up, drivers, more))).collect();
    let outputs = children.into_iter().map(output);
    let printed: Vec<Value> = outputs.map(|output| output.expect_code(0).json()).collect();
    let (first, others): (Vec<Value>, Vec<Value>) =
        printed.into_iter().partition(|value| value.get("benchmark").is_some());
    let [first] = &first[..] else { panic!("{} reports", first.len()) };
    (first.clone(), others)
}

/// Asserts that no pairs and no meetings are left.
#[track_caller]
fn expect_empty(up: &UpCluster) {
    up.run(&["get", "fusee-bench/ycsb"]).expect_code(1);
    for key in [0, 1, 2, 60, 119, 120, 121] {
        up.run(&["get", &format!("user{key:012}")]).expect_code(1);
    }
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    if let Some(pairs) = status["pairs"].as_u64() {
        assert_eq!(pairs, 0, "{status:#}");
    }
}

/// Waits until the keys are loaded, and then until the run has probably begun.
fn wait_for_run(up: &UpCluster) {
    eventually("keys are loaded", || up.run(&["get", "user000000000119"]).code == Some(0));
    thread::sleep(Duration::from_millis(300));
}

#[test]
fn three_drivers_give_one_report_of_the_sum() {
    let up = cluster();
    for workload in ["a", "d"] {
        for keys_of in ["shared", "own"] {
            let more = ["--workload", workload, "--operations", "3001", "--keys-of", keys_of];
            let (report, others) = together(&up, 3, &more);
            assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
            assert_eq!(report["operations"], 3001, "{report:#}");
            assert_eq!(report["load"]["per_operation"]["insert"]["count"], 120);
            let inserts = report["per_operation"]["insert"]["count"].as_u64().unwrap_or(0);
            // The keys that each driver would have inserted next are read back as well.
            assert!(report["verified_keys"].as_u64().unwrap() >= 120 + inserts, "{report:#}");
            let drivers = report["together"]["drivers"].as_array().unwrap();
            let parts: Vec<u64> =
                drivers.iter().map(|driver| driver["operations"].as_u64().unwrap()).collect();
            assert_eq!((parts.len(), parts.iter().sum::<u64>()), (3, 3001), "{report:#}");
            assert!(parts.iter().all(|part| (1000..=1001).contains(part)), "{parts:?}");
            let skew = report["together"]["skew_us"].as_array().unwrap();
            assert!(skew.iter().all(|us| (0.1..5e6).contains(&us.as_f64().unwrap())), "{skew:?}");
            // The other drivers report their own parts.
            let mut told: Vec<(u64, u64)> = others
                .iter()
                .map(|o| (o["driver"].as_u64().unwrap(), o["part"]["operations"].as_u64().unwrap()))
                .collect();
            told.sort_unstable();
            assert_eq!(told, [(1, parts[1]), (2, parts[2])]);
        }
    }
    expect_empty(&up);
}

#[test]
fn drivers_share_the_lines_of_files() {
    let up = cluster();
    let scratch = Scratch::new();
    let lines = |kind: &str, of: usize| -> String {
        (0..of).map(|i| format!("{kind} usertable k{}\n", i % 40)).collect()
    };
    let load = scratch.file("load", lines("INSERT", 40).as_bytes());
    let trans = scratch.file("trans", lines("UPDATE", 101).as_bytes());
    let drive = |trans: &str| {
        let mut command = fusee_bench(&["ycsb", "--json", "--master", &up.master, "--join", "2"]);
        command.args(["--load-file", &load, "--trans-file", trans, "--fabric", "tcp"]);
        start(command)
    };
    let outputs = [drive(&trans), drive(&trans)].map(output);
    let report = outputs.map(|output| output.expect_code(0).json());
    let report = report.iter().find(|value| value.get("benchmark").is_some()).unwrap();
    assert_eq!(report["operations"], 101, "{report:#}");
    assert_eq!((&report["verified_keys"], &report["mismatches"]), (&40.into(), &0.into()));
    // A driver whose file has other content is refused.
    let first = drive(&trans);
    eventually("a driver has come", || up.run(&["get", "fusee-bench/ycsb"]).code == Some(0));
    let other = scratch.file("other", lines("READ", 101).as_bytes());
    output(drive(&other)).expect_error(2, "--trans-file is of digest");
    output(drive(&trans)).expect_code(0);
    output(first).expect_code(0);
    up.run(&["get", "k0"]).expect_code(1);
}

#[test]
fn a_driver_with_other_settings_is_refused_and_the_others_go_on() {
    let up = cluster();
    let first = start(driver(&up, 2, &["--operations", "500"]));
    eventually("a driver has come", || up.run(&["get", "fusee-bench/ycsb"]).code == Some(0));
    for (more, says) in [
        (&["--operations", "501"][..], "--operations is 501 here, and 500 at the first driver ("),
        (&["--operations", "500", "--workload", "c"], "--workload is c here, and a at"),
        (&["--operations", "500", "--seed", "9"], "--seed is 9 here, and 1 at"),
        (&["--operations", "500", "--keys-of", "own"], "--keys-of is own here, and shared at"),
    ] {
        output(start(driver(&up, 2, more))).expect_error(2, says);
    }
    let third = output(start(driver(&up, 3, &["--operations", "500"])));
    third.expect_error(2, "--join is 3 here, and 2 at the first driver");
    output(start(driver(&up, 2, &["--operations", "500"]))).expect_code(0);
    let report = output(first).expect_code(0).json();
    assert_eq!(report["operations"], 500, "{report:#}");
    expect_empty(&up);
}

#[test]
fn a_driver_that_does_not_come_is_not_waited_for_for_ever() {
    let up = cluster();
    let begun = Instant::now();
    let drivers = [(); 2].map(|()| start(driver(&up, 3, &["--join-timeout", "3"])));
    for driver in drivers {
        output(driver).expect_error(1, "only 2 of 3 drivers came to the meeting `ycsb` within 3 s");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    expect_empty(&up);
}

/// If one of three drivers is killed, the first or another one, the remaining drivers report which.
#[test]
fn a_driver_that_is_killed_ends_the_run_of_the_others() {
    if fusee_testing::is_long_and_left_out() {
        return;
    }
    let up = cluster();
    for victim in [0, 2] {
        let more = ["--workload", "d", "--seconds", "60", "--pair-bytes", "64"];
        let mut drivers = Vec::new();
        for _ in 0..3 {
            // The drivers start one after the other, so that it is known which one is the first.
            drivers.push(start(driver(&up, 3, &more)));
            eventually("it has come", || up.run(&["get", "fusee-bench/ycsb"]).code == Some(0));
        }
        wait_for_run(&up);
        let mut dead = drivers.remove(victim);
        let pid = dead.id();
        signal("KILL", pid);
        dead.wait().unwrap();
        let begun = Instant::now();
        for driver in drivers {
            let output = output(driver);
            let says = format!("pid {pid}) has not been heard for 5 s: it is dead");
            output.expect_error(1, &says);
        }
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
        expect_empty(&up);
    }
}

/// If all drivers of a meeting are killed, later drivers do not join that meeting.
#[test]
fn a_meeting_that_was_left_over_is_not_joined() {
    let up = cluster();
    let more = ["--seconds", "60"];
    let mut drivers = [(); 2].map(|()| start(driver(&up, 2, &more)));
    wait_for_run(&up);
    for driver in &mut drivers {
        signal("KILL", driver.id());
        driver.wait().unwrap();
    }
    up.run(&["get", "fusee-bench/ycsb"]).expect_code(0);
    let (report, _) = together(&up, 2, &["--operations", "1000"]);
    assert_eq!((&report["operations"], &report["mismatches"]), (&1000.into(), &0.into()));
    expect_empty(&up);
}

#[test]
fn ctrl_c_on_any_driver_ends_all_with_what_was_measured() {
    let up = cluster();
    for victim in [0, 1] {
        let more = ["--workload", "c", "--seconds", "60"];
        let mut drivers = Vec::new();
        for _ in 0..2 {
            drivers.push(start(driver(&up, 2, &more)));
            eventually("it has come", || up.run(&["get", "fusee-bench/ycsb"]).code == Some(0));
        }
        wait_for_run(&up);
        let pid = drivers[victim].id();
        signal("INT", pid);
        let outputs: Vec<CommandOutput> = drivers.into_iter().map(output).collect();
        for (number, output) in outputs.iter().enumerate() {
            let code = if number == victim { 130 } else { 1 };
            assert_eq!(output.code, Some(code), "driver {number}: {}", output.stderr);
            if number != victim {
                assert!(output.stderr.contains("was interrupted"), "{}", output.stderr);
            }
        }
        let report = outputs[0].json();
        assert_eq!(
            (&report["interrupted"], &report["ended_by"]),
            (&true.into(), &"interrupted".into())
        );
        assert!(report["operations"].as_u64().unwrap() > 0, "{report:#}");
        assert_eq!((&report["mismatches"], &report["verified_keys"]), (&0.into(), &120.into()));
        assert!(outputs[1].json()["part"]["operations"].as_u64().unwrap() > 0);
        expect_empty(&up);
    }
}

#[test]
fn what_drivers_cannot_do_is_refused() {
    for (more, says) in [
        (&["--join", "2"][..], "--master"),
        (&["--join", "1", "--master", "x:1"], "1 is not in 2..=256"),
        (&["--join", "2", "--master", "x:1", "--check"], "--check cannot be used with --join"),
        (&["--join", "2", "--master", "x:1", "--processes", "2"], "cannot be used with"),
        (
            &["--join", "2", "--master", "x:1", "--keys", "1"],
            "each of the 2 drivers loads at least",
        ),
        (&["--join", "2", "--master", "x:1", "--join-timeout", "0"], "must be more than 0"),
    ] {
        finish(fusee_bench(&["ycsb"]).args(more)).expect_error(2, says);
    }
}
