//! The verbs fabric from the command line: real processes, an RDMA device, and memory nodes that stay idle.
//!
//! The tests need an RDMA device. Without one they print that they are skipped, and fail if `FUSEE_RDMA_REQUIRED` is 1.
//! `tests/rdma/run` provides a virtual machine with two devices, into which `--copy` copies this test and the programs.

// Promise FAB-10: Over verbs, memory nodes stay idle and histories are linearizable.

use std::fs;
use std::time::{Duration, Instant};

use fusee_client::{Client, FabricKind, Options};
use fusee_testing::{UpCluster, finish, fusee_bench};

fn has_device() -> bool {
    let found = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut all| all.next().is_some());
    if !found {
        // The harness of the tests captures what println prints, so this writes to standard error.
        let _told = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("SKIPPED: no RDMA device, so no cluster over verbs\n"),
        );
        let required = std::env::var("FUSEE_RDMA_REQUIRED").is_ok_and(|value| value == "1");
        assert!(!required, "FUSEE_RDMA_REQUIRED is 1, and there is no RDMA device");
    }
    found
}

#[test]
fn without_a_device_it_says_what_is_missing() {
    if fs::exists("/sys/class/infiniband").unwrap() {
        return;
    }
    let line = ["ycsb", "--fabric", "verbs", "--keys", "10", "--operations", "10"];
    let missing = finish(&mut fusee_bench(&line));
    let said = &missing.stderr;
    let is_said = said.contains("no RDMA device") || said.contains("apt install libibverbs1");
    assert!(missing.code != Some(0) && is_said, "{missing:?}");
}

#[test]
fn other_processes_put_and_get_over_verbs() {
    if !has_device() {
        return;
    }
    let up = UpCluster::start(&["--pool", "256MiB", "--fabric", "verbs"]);
    for fabric in ["verbs", "auto"] {
        let run = |line: &[&str]| finish(up.command(line).args(["--fabric", fabric]));
        run(&["put", "k", "v1"]).expect_code(0);
        run(&["insert", "k", "v2"]).expect_error(1, "already exists");
        run(&["update", "k", "v3"]).expect_code(0);
        assert_eq!(run(&["get", "k"]).expect_code(0).stdout, b"v3");
        run(&["delete", "k"]).expect_code(0);
        run(&["get", "k"]).expect_error(1, "key `k` not found");
    }
    // The node offers no fabric that needs its processor.
    for fabric in ["shm", "tcp"] {
        let refused = up.run(&["get", "k", "--fabric", fabric]);
        refused.expect_error(3, "does not offer this fabric");
    }
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["memory_nodes"][0]["verbs"], up.report["memory_nodes"][0]["verbs"]);
}

#[test]
fn what_two_processes_do_over_verbs_is_linearizable() {
    if !has_device() {
        return;
    }
    let line = ["ycsb", "--check", "--keys", "5", "--operations", "3000", "--json"];
    for workload in ["a", "churn"] {
        let more = ["--workload", workload, "--processes", "2", "--fabric", "verbs"];
        let report = finish(fusee_bench(&line).args(more)).expect_code(0).json();
        assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
        let check = &report["check"];
        assert_eq!((&check["violations"], &check["undecided_keys"]), (&0.into(), &0.into()));
        assert_eq!((&report["operations"], &report["fabric"]), (&3000.into(), &"verbs".into()));
    }
}

/// Returns the processor time that processes have used.
fn processor_time(pids: &[u32]) -> Duration {
    let ticks = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // Fields 14 and 15 of proc(5) are counted from behind the name in brackets.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    // Linux counts a hundred ticks per second.
    Duration::from_millis(pids.iter().map(ticks).sum::<u64>() * 10)
}

/// The RDMA device does all that an operation needs of a memory node (an emulated device does it in the kernel, in
/// interrupts).
#[test]
fn memory_nodes_do_nothing_while_others_read() {
    if !has_device() {
        return;
    }
    let up = UpCluster::start(&["--pool", "256MiB", "--fabric", "verbs"]);
    let options = Options::default().with_fabric(FabricKind::Verbs);
    let client = Client::connect_with(&up.master, options).unwrap().blocking();
    let keys: Vec<[u8; 4]> = (0..64u32).map(u32::to_le_bytes).collect();
    keys.iter().for_each(|key| client.put(key, &[7; 1000]).unwrap());
    let nodes = &up.pids()[1..];
    let during = |work: &mut dyn FnMut()| {
        let before = processor_time(nodes);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(3) {
            work();
        }
        processor_time(nodes) - before
    };
    // Idle nodes renew their leases, which takes processor time on an emulated machine.
    let idle = during(&mut || std::thread::sleep(Duration::from_millis(50)));
    let mut reads = 0;
    let busy = during(&mut || {
        for key in &keys {
            assert!(client.get(key).unwrap().is_some());
        }
        reads += keys.len();
    });
    println!("{reads} reads in 3 s; the memory nodes' processor time: {busy:?}, idle {idle:?}");
    assert!(reads > 1000, "{reads} reads are too few to tell");
    // Interrupts are billed to the processes that they interrupt.
    assert!(busy < idle + Duration::from_millis(150), "{busy:?}, and {idle:?} while nobody read");
}
