//! Standard error and output that take no data: a full disk (`/dev/full`), a closed pipe, or a reader that has stopped
//! reading. A server must neither end nor wait because of that, and a command must end as usual. Strangers must not be
//! able to make a log grow without end.

// Promise SEC-14: A full or stuck log stops no server and no command.

use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::common::{Scratch, UpCluster, eventually, http, is_alive, signal, wait};

const SMALL: [&str; 5] =
    ["--pool=256MiB", "--memory-nodes=2", "--index-keys=1000", "--lease=1000", "--http=0"];

const O_NONBLOCK: i32 = 0o4000;

fn full() -> Stdio {
    File::create("/dev/full").unwrap().into()
}

/// Returns a standard error whose reader has been closed.
fn closed() -> Stdio {
    let (_, writer) = pipe().unwrap();
    writer.into()
}

/// Returns a full pipe. A write to it blocks until bytes are read.
fn stalled() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    // The new descriptor is non-blocking, whereas that of the server blocks.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filler = OpenOptions::new();
    let mut filler = filler.write(true).custom_flags(O_NONBLOCK).open(path).unwrap();
    for bytes in [&[b'x'; 4096][..], b"x"] {
        while filler.write(bytes).is_ok() {}
    }
    (reader, writer)
}

/// Returns the control addresses of all servers.
fn ports(up: &UpCluster) -> Vec<String> {
    let nodes = up.report["memory_nodes"].as_array().unwrap().iter();
    let nodes = nodes.map(|node| node["control"].as_str().unwrap().to_owned());
    std::iter::once(up.master.clone()).chain(nodes).collect()
}

/// Sends bytes that cause a line in the server's log.
fn annoy(port: &str) {
    let mut stream = TcpStream::connect(port).expect("the port is open");
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _closed = stream.write_all(b"garbage, and no hello of anything");
    let _closed = stream.read(&mut [0]);
}

#[track_caller]
fn serves_on(up: &UpCluster) {
    for pid in up.pids() {
        assert!(is_alive(pid), "{pid} has ended");
    }
    up.run(&["put", "k", "v"]).expect_code(0);
    assert_eq!(up.run(&["get", "k"]).expect_code(0).stdout, b"v");
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    assert_eq!(status["ready"], true, "{status}");
}

/// Returns a number from the master's metrics.
fn metric(up: &UpCluster, name: &str) -> u64 {
    let at = up.report["master"]["http"].as_str().unwrap().parse().unwrap();
    let page = http::get(at, "/metrics");
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or_else(|_| panic!("no {name} in {page}"))
}

fn a_log_that_takes_nothing(stderr: Stdio) {
    let up = UpCluster::start_with(&SMALL, stderr);
    for port in ports(&up) {
        (0..3).for_each(|_| annoy(&port));
    }
    serves_on(&up);
    // This is longer than a lease.
    sleep(Duration::from_millis(1500));
    ports(&up).iter().for_each(|port| annoy(port));
    serves_on(&up);
    eventually("lines are missed", || metric(&up, "fusee_log_lines_missing_total") >= 3);
}

#[test]
fn servers_go_on_whose_log_is_on_a_full_disk() {
    a_log_that_takes_nothing(full());
}

#[test]
fn servers_go_on_whose_log_nobody_reads_any_more() {
    a_log_that_takes_nothing(closed());
}

/// The servers also end when they are told to end, although no line of their logs can be written.
#[test]
fn servers_go_on_while_the_reader_of_their_log_stands_still() {
    let (mut reader, writer) = stalled();
    let mut up = UpCluster::start_with(&SMALL, writer.into());
    for port in ports(&up) {
        (0..50).for_each(|_| annoy(&port));
    }
    serves_on(&up);
    sleep(Duration::from_millis(1500));
    serves_on(&up);
    let pids = up.pids();
    let begun = Instant::now();
    signal("TERM", up.child.id());
    wait(&mut up.child);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    drop(up);
    reader.read_exact(&mut [0; 4096]).unwrap();
}

// Promise SEC-15: Strangers write a bounded, counted part of the log.
#[test]
fn strangers_write_a_bounded_part_of_the_log_and_what_is_left_out_is_counted() {
    let scratch = Scratch::new();
    let path = scratch.file("log", b"");
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let mut up = UpCluster::start_with(&SMALL, file.into());
    let before = fs::metadata(&path).unwrap().len();
    let master = up.master.clone();
    (0..1500).for_each(|_| annoy(&master));
    let more = fs::metadata(&path).unwrap().len() - before;
    assert!(more < 20_000, "{more} bytes for 1500 lines");
    let left_out = metric(&up, "fusee_log_lines_left_out_total");
    assert!(left_out > 1400, "{left_out}");
    serves_on(&up);
    signal("TERM", up.child.id());
    wait(&mut up.child);
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains("more lines like this one: control connection refused"), "{log}");
}

/// Returns the exit code of a command that has this standard error.
fn code(mut command: Command, stderr: Stdio, input: &str) -> Option<i32> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    wait(&mut child).code()
}

#[test]
fn exit_codes_are_the_same_where_standard_error_takes_nothing() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=2", "--index-keys=1000"]);
    up.run(&["put", "k", "v"]).expect_code(0);
    for (line, input, expected) in [
        (&["get", "nothing"][..], "", 1),
        (&["get", "k", "--fabric", "pigeons"], "", 2),
        (&["status", "--master", "127.0.0.1:1"], "", 3),
        (&["export", "-"], "", 0),
        (&["shell"], "", 0),
        (&["shell"], "get nothing\n", 1),
        (&["form"], "", 1),
        (&["redundancy", "demote"], "", 0),
        (&["drain", "mn0", "--cancel"], "", 1),
        (&["events"], "", 0),
        (&["count"], "", 0),
    ] {
        for stderr in [full(), closed()] {
            assert_eq!(code(up.command(line), stderr, input), Some(expected), "{line:?}");
        }
    }
}

/// A command does not fail because the reader of its output has closed it.
#[test]
fn commands_end_quietly_whose_output_nobody_reads() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=2", "--index-keys=1000"]);
    up.run(&["put", "k", "v"]).expect_code(0);
    let unread = |line: &[&str]| {
        let mut command = up.command(line);
        let child = command.stdout(closed()).stderr(Stdio::piped()).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for line in [&["get", "k"][..], &["status"], &["keys"], &["--help"]] {
        assert_eq!(unread(line), (Some(0), String::new()), "{line:?}");
    }
    // An export is an exception, because it is incomplete if its reader has gone.
    let (code, says) = unread(&["export", "-"]);
    assert!(code == Some(1) && says.contains("cannot be written"), "{code:?}: {says}");
}

#[test]
fn exports_on_a_schedule_go_on_after_one_whose_failure_could_not_be_told() {
    let up = UpCluster::start(&["--pool=256MiB", "--memory-nodes=2", "--index-keys=1000"]);
    up.run(&["put", "k", "v"]).expect_code(0);
    let directory = up.scratch.path().join("exports");
    let mut command =
        up.command(&["export", "--every", "1s", "--dir", directory.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(full()).spawn().unwrap();
    let exports = || fs::read_dir(&directory).map_or(0, Iterator::count);
    eventually("the first export", || exports() > 0);
    fs::remove_dir_all(&directory).unwrap();
    sleep(Duration::from_millis(2500));
    fs::create_dir_all(&directory).unwrap();
    eventually("it goes on", || exports() > 0);
    signal("INT", child.id());
    assert_eq!(wait(&mut child).code(), Some(130));
}

/// A broken connection to another machine has this effect: the terminal is closed, and SIGHUP comes.
#[test]
fn what_runs_in_a_terminal_that_has_gone_ends_and_leaves_nothing_behind() {
    let mut up = UpCluster::start_with(&SMALL, closed());
    let pids = up.pids();
    signal("KILL", pids[2]);
    eventually("up takes note", || !is_alive(pids[2]));
    sleep(Duration::from_millis(200));
    assert!(is_alive(up.child.id()), "up goes on without a memory node");
    signal("HUP", up.child.id());
    wait(&mut up.child);
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert_eq!(up.scratch.entries(), Vec::<std::path::PathBuf>::new());
}
