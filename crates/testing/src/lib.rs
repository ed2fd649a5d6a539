//! Support for tests of the programs: runs of their commands with a time limit, and clusters of `fusee up`, each in a
//! directory of its own.
//!
//! [`fusee`] and [`fusee_bench`] return commands of the programs that Cargo has built beside the test.

pub mod manual;
pub mod switch;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time limit of a command, longer than any command of these tests takes on a loaded machine.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns a command of the program `fusee`, without the environment variables that configure FUSEE.
pub fn fusee(arguments: &[&str]) -> Command {
    command("fusee", arguments)
}

/// Returns a command of the program `fusee-bench`, without the environment variables that configure FUSEE.
pub fn fusee_bench(arguments: &[&str]) -> Command {
    command("fusee-bench", arguments)
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(path(program));
    command.args(arguments).env_remove("RUST_LOG");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FUSEE_")) {
        command.env_remove(name);
    }
    command
}

/// Returns the path of a program that was built together with the test.
pub fn path(program: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Cargo puts tests one directory below the programs. Without Cargo, tests and programs can be in one directory.
    let found = test.ancestors().skip(1).take(2).map(|directory| directory.join(program));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("no {program} beside {}: `cargo build -p {program}` builds it", test.display())
    })
}

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit code; `None` if a signal ended the command.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// Returns the standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Panics unless the command ended with this exit code.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> CommandOutput {
        assert_eq!(self.code, Some(code), "{}\n{}", self.text(), self.stderr);
        self
    }

    /// Panics unless the command ended with this exit code and its standard error contains the text.
    #[track_caller]
    pub fn expect_error(self, code: i32, says: &str) {
        let output = self.expect_code(code);
        assert!(output.stderr.contains(says), "{says} is not in: {}", output.stderr);
    }
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> CommandOutput {
    finish_with(command, b"")
}

/// Runs a command to its end, with `input` as its standard input.
pub fn finish_with(command: &mut Command, input: &[u8]) -> CommandOutput {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut err = child.stderr.take().unwrap();
    let input = input.to_vec();
    // The command can end before it has read all input, so an error is ignored.
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let out = thread::spawn(move || {
        let mut bytes = Vec::new();
        out.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).map(|_| text)
    });
    let status = wait(&mut child);
    writer.join().unwrap();
    CommandOutput {
        code: status.code(),
        stdout: out.join().unwrap().unwrap(),
        stderr: err.join().unwrap().unwrap(),
    }
}

/// Waits for a child process to end. Kills the child and panics after [`TIMEOUT`].
pub fn wait(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a command took longer than {TIMEOUT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a condition holds. Panics after a minute.
#[track_caller]
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A temporary directory, which is removed when this value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory with a new name.
    #[expect(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fusee-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file in the directory. Returns the path of the file.
    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_string()
    }

    /// Returns the paths of all entries of the directory.
    pub fn entries(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns whether a test that takes many seconds is left out, and says so: without `FUSEE_TESTS=all`.
pub fn is_long_and_left_out() -> bool {
    let is_left_out = std::env::var("FUSEE_TESTS").map_or(true, |value| value != "all");
    if is_left_out {
        println!("SKIPPED: takes many seconds: FUSEE_TESTS=all");
    }
    is_left_out
}

/// A cluster of `fusee up`. Dropping this value ends `up` and its servers.
pub struct UpCluster {
    /// The process of `up`.
    pub child: Child,
    /// The temporary directory in which `up` keeps the directory of the servers.
    pub scratch: Scratch,
    /// The report that `up` printed.
    pub report: Value,
    /// The host and port of the master.
    pub master: String,
}

impl UpCluster {
    /// Starts a cluster with these arguments of `fusee up`.
    pub fn start(arguments: &[&str]) -> UpCluster {
        UpCluster::start_with(arguments, Stdio::inherit())
    }

    /// Starts a cluster whose servers have this standard error.
    pub fn start_with(arguments: &[&str], stderr: Stdio) -> UpCluster {
        let scratch = Scratch::new();
        let mut command = fusee(&["up", "--port", "0", "--json"]);
        // Most tests use a small part of their pools.
        command.arg("--overcommit");
        if !arguments.iter().any(|argument| argument.starts_with("--populate")) {
            command.arg("--populate=false");
        }
        command.args(arguments).env("XDG_RUNTIME_DIR", scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let report: Value = serde_json::from_str(&line).expect("up prints JSON when it is ready");
        let master = report["master"]["control"].as_str().unwrap().to_string();
        UpCluster { child, scratch, report, master }
    }

    /// Returns a command of `fusee` that uses this cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fusee(arguments);
        command.env("FUSEE_MASTER", &self.master);
        command
    }

    /// Runs a command of `fusee` on this cluster.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        finish(&mut self.command(arguments))
    }

    /// Returns the process ids of the servers, the master first.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |server: &Value| server["pid"].as_u64().unwrap() as u32;
        let nodes = self.report["memory_nodes"].as_array().unwrap();
        std::iter::once(pid(&self.report["master"])).chain(nodes.iter().map(pid)).collect()
    }
}

impl Drop for UpCluster {
    fn drop(&mut self) {
        // `up` is not ended by SIGKILL if possible, because its servers would outlive it for a moment.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        }
        let end = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > end {
                let _ = self.child.kill();
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends a signal to a process that this test started.
pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Returns whether a process runs. A zombie does not run.
pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
