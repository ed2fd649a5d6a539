//! Client processes, which tests kill or stop. Such a process is this same executable, run for one test that is no real
//! test.
//!
//! Each writer is a thread of a process. The writers of all processes operate on the same few keys, and each keeps a
//! journal ([`super::journal`]). A process ends at the end of its standard input, so it does not outlive the test.
//!
//! A value contains the name of the write that wrote it, repeated in every word, so that a mixture of two values is
//! noticed.

use std::fs::OpenOptions;
use std::io::{Read, Write, stdin};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fusee_client::{BlockingClient, Client, FabricChoice, Options, WriteError};
use fusee_linearizability::{HistoryCall, HistoryRecord};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::cluster::patience;
use super::journal::{self, Journal};
use super::net::command_in;

/// The environment variable that makes this binary a client.
const ROLE: &str = "FUSEE_TEST_WRITER";
/// Timeout of an operation. A writer possibly has to wait for another one that was stopped: until the lease
/// ([`super::cluster::LONG_LEASE_MS`]) has run out, then over shared memory one second until the fence kills the
/// process, then until it is recovered.
const OP_TIMEOUT: Duration = Duration::from_secs(15);
/// The message that tells a client process to fork.
const FORK: &[u8] = b"f";
/// Time limit in seconds of a child that uses its parent's client.
const CHILD_TIMEOUT_S: u32 = 20;
/// Number of keys that are read together.
const TOGETHER: u64 = 4;

/// The task of a client process.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct WriterTask {
    pub master: String,
    /// `shm` or `tcp`.
    pub fabric: String,
    /// The directory of the journals, which are called `writer-N`, and of the complaints.
    pub dir: PathBuf,
    /// The number of the first writer. Numbers are unique within the test.
    pub first: u32,
    pub writers: u32,
    /// Keys on which the writers operate.
    pub keys: Range<u64>,
    pub seed: u64,
    /// Microseconds between two operations of a writer.
    pub pause_us: u64,
    pub mode: WriterMode,
    /// The path of the process's network namespace; `None` for the test's own.
    pub network: Option<String>,
}

/// The kind of work that all writers of a process do.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum WriterMode {
    /// Operate on random keys until the process is told to end.
    Load,
    /// Work as in `Load`, but a writer ends at its first error.
    LoadUntilError,
    /// Read until the process is told to end. Each writer reads one key, alone and in a list. So a writer that waits
    /// for one memory node does not keep other writers from reading at another node.
    Read,
    /// Put and read every key once, and end.
    Sweep,
    /// Read every key once, and end.
    Look,
}

impl WriterMode {
    fn is_load(self) -> bool {
        matches!(self, WriterMode::Load | WriterMode::LoadUntilError | WriterMode::Read)
    }
}

impl WriterTask {
    fn journal(&self, writer: u32) -> PathBuf {
        self.dir.join(format!("writer-{writer}"))
    }

    fn complaints(&self) -> PathBuf {
        self.dir.join(format!("complaints-{}", self.first))
    }

    /// Returns the path of a file with a byte for each fork whose children have ended.
    fn forks(&self) -> PathBuf {
        self.dir.join(format!("forks-{}", self.first))
    }
}

/// A running client process. Dropping the value kills it.
pub struct WriterProcess {
    pub task: WriterTask,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl WriterProcess {
    pub fn start(task: WriterTask) -> WriterProcess {
        let binary = std::env::current_exe().unwrap();
        let mut command = command_in(task.network.as_deref(), binary.to_str().unwrap());
        command.args(["--exact", "writer::is_a_client", "--ignored", "--nocapture"]);
        command.env(ROLE, serde_json::to_string(&task).unwrap());
        let log = task.dir.join(format!("client-{}.log", task.first));
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        WriterProcess { task, child, stdin }
    }

    pub fn signal(&self, name: &str) {
        super::common::signal(name, self.child.id());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn is_alive(&self) -> bool {
        super::common::is_alive(self.child.id())
    }

    /// Tells the process to end, without waiting for that.
    pub fn tell_to_end(&mut self) {
        drop(self.stdin.take());
    }

    /// Tells the process to fork.
    pub fn fork(&mut self) {
        self.stdin.as_mut().unwrap().write_all(FORK).unwrap();
    }

    /// Returns the number of times that the process has forked and its children have ended.
    pub fn forks(&self) -> u64 {
        std::fs::metadata(self.task.forks()).map_or(0, |file| file.len())
    }

    /// Lets the process end. This takes at most the timeout of an operation.
    pub fn finish(&mut self) {
        self.tell_to_end();
        self.wait();
    }

    /// Waits until the process has ended, and asserts that it was successful.
    pub fn wait(&mut self) {
        let status = super::common::wait(&mut self.child);
        assert!(status.success(), "client process {}: {status}", self.task.first);
    }

    /// Returns the number of notes in the shortest of its writers' journals.
    pub fn progress(&self) -> u64 {
        self.numbers().map(|n| journal::notes(&self.task.journal(n))).min().unwrap()
    }

    /// Returns the number of notes in all its writers' journals.
    pub fn notes(&self) -> u64 {
        self.numbers().map(|n| journal::notes(&self.task.journal(n))).sum()
    }

    pub fn records(&self) -> Vec<HistoryRecord> {
        self.numbers().flat_map(|n| journal::read(&self.task.journal(n), n)).collect()
    }

    /// Removes the journals of the process, after they have been judged.
    pub fn forget(&self) {
        let files = self
            .numbers()
            .map(|n| self.task.journal(n))
            .chain([self.task.complaints(), self.task.forks()]);
        files.for_each(|file| drop(std::fs::remove_file(file)));
    }

    /// Returns errors, torn values, and views that went backwards, one a line.
    pub fn complaints(&self) -> String {
        std::fs::read_to_string(self.task.complaints()).unwrap_or_default()
    }

    fn numbers(&self) -> Range<u32> {
        self.task.first..self.task.first + self.task.writers
    }
}

impl Drop for WriterProcess {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This is no test, but the process that [`WriterProcess::start`] starts.
#[test]
#[ignore = "the client process of the other tests"]
fn is_a_client() {
    let Ok(task) = std::env::var(ROLE) else { return };
    let task: WriterTask = serde_json::from_str(&task).unwrap();
    let stop = AtomicBool::new(false);
    let client = join(&task);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..task.writers)
            .map(|i| (task.first + i, client.clone()))
            .map(|(number, client)| {
                let task = &task;
                let stop = &stop;
                scope.spawn(move || Writer::new(task, number, client).run(stop))
            })
            .collect();
        if task.mode.is_load() {
            // The loop ends when the test is over or has died.
            while stdin().read_exact(&mut [0; FORK.len()]).is_ok() {
                fork_twice(&task, &client);
            }
            stop.store(true, Ordering::Relaxed);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Forks twice. One child ends by `exit`, as programs do, and the other by `_exit`.
#[allow(unsafe_code, reason = "there is no safe fork")]
fn fork_twice(task: &WriterTask, client: &BlockingClient) {
    for by_exit in [true, false] {
        // SAFETY: after `fork` in a process with threads, a child should call only async-signal-safe functions. This
        // child calls its parent's client, as a user's program might: that is what the test is about. The alarm ends it
        // if it hangs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `alarm` has no preconditions.
            unsafe { libc::alarm(CHILD_TIMEOUT_S) };
            let asked = client.get(&name(task.keys.start)).map_err(WriteError::from);
            let told = client.put(&name(task.keys.start), &encode(0));
            let is_forked = |error| matches!(error, Some(WriteError::Forked { .. }));
            let code = i32::from(!is_forked(asked.err()) || !is_forked(told.err()));
            if by_exit {
                std::process::exit(code);
            }
            // SAFETY: `_exit` has no preconditions.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for writes, and `child` is a child of this process that nothing else waits for.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if (ended, status) != (child, 0) {
            complain(task, &format!("a child of process {}: status {status:#x}", task.first));
        }
    }
    let file = OpenOptions::new().create(true).append(true).open(task.forks());
    file.unwrap().write_all(b"f").unwrap();
}

/// Adds a line to [`WriterProcess::complaints`].
fn complain(task: &WriterTask, text: &str) {
    let file = OpenOptions::new().create(true).append(true).open(task.complaints());
    let at_ms = journal::now_ns() / 1_000_000;
    file.unwrap().write_all(format!("{at_ms} {text}\n").as_bytes()).unwrap();
}

/// Connects to the cluster, and tries again while the master is away.
fn join(task: &WriterTask) -> BlockingClient {
    let fabric = task.fabric.parse::<FabricChoice>().unwrap();
    let options = Options::default().with_fabric(fabric).with_op_timeout(OP_TIMEOUT);
    let end = Instant::now() + patience();
    loop {
        match Client::connect_with(&task.master, options.clone()) {
            Ok(client) => return client.blocking(),
            Err(error) if Instant::now() > end => panic!("cannot join: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

struct Writer<'a> {
    task: &'a WriterTask,
    number: u32,
    client: BlockingClient,
    journal: Journal,
    rng: SmallRng,
    /// Number of writes that the writer has begun so far.
    sequence: u64,
    /// Number of the newest view that the writer has seen.
    view: u64,
}

impl Writer<'_> {
    fn new(task: &WriterTask, number: u32, client: BlockingClient) -> Writer<'_> {
        let journal = Journal::create(&task.journal(number));
        let rng = SmallRng::seed_from_u64(task.seed ^ u64::from(number) << 32);
        Writer { task, number, client, journal, rng, sequence: 0, view: 0 }
    }

    fn run(&mut self, stop: &AtomicBool) {
        if !self.task.mode.is_load() {
            for key in self.task.keys.clone() {
                if self.task.mode == WriterMode::Sweep {
                    let value = self.next_value();
                    self.operate(key, HistoryCall::Upsert(value));
                }
                self.operate(key, HistoryCall::Search);
            }
            return;
        }
        while !stop.load(Ordering::Relaxed) {
            let went_well = self.step();
            if !went_well && self.task.mode == WriterMode::LoadUntilError {
                return;
            }
            self.look_at_view();
            if self.task.pause_us > 0 {
                std::thread::sleep(Duration::from_micros(self.task.pause_us));
            }
        }
    }

    /// Executes one operation. Returns whether it met no error.
    fn step(&mut self) -> bool {
        let keys = self.task.keys.clone();
        let all = keys.end - keys.start;
        if self.task.mode == WriterMode::Read {
            let own = keys.start + u64::from(self.number - self.task.first) % all;
            return if self.rng.random() {
                self.look_at(vec![own])
            } else {
                self.operate(own, HistoryCall::Search)
            };
        }
        let first = self.rng.random_range(0..all);
        if self.rng.random_range(0..20) == 0 {
            let several = (0..all.min(TOGETHER)).map(|i| keys.start + (first + i) % all);
            return self.look_at(several.collect());
        }
        let call = self.draw();
        self.operate(keys.start + first, call)
    }

    /// Reads keys together. Returns whether the read met no error.
    fn look_at(&mut self, keys: Vec<u64>) -> bool {
        let names: Vec<Vec<u8>> = keys.iter().map(|key| name(*key)).collect();
        let since_ns = journal::now_ns();
        match self.client.get_many(&names) {
            Ok(found) => {
                for (key, value) in keys.into_iter().zip(found) {
                    let value = value.map(|value| self.decode(&value));
                    self.journal.looked(key, since_ns, value);
                }
                true
            }
            Err(error) => {
                self.complain(&format!("error: a look at keys {keys:?}: {error}"));
                false
            }
        }
    }

    fn draw(&mut self) -> HistoryCall {
        let value = self.next_value();
        match self.rng.random_range(0..100) {
            0..30 => HistoryCall::Search,
            30..55 => HistoryCall::Update(value),
            55..75 => HistoryCall::Upsert(value),
            75..90 => HistoryCall::Insert(value),
            _ => HistoryCall::Delete,
        }
    }

    fn next_value(&mut self) -> u64 {
        self.sequence += 1;
        u64::from(self.number) << 40 | self.sequence
    }

    /// Executes this operation. Returns whether it met no error.
    fn operate(&mut self, key: u64, call: HistoryCall) -> bool {
        let name = name(key);
        self.journal.begin(key, call);
        let client = &self.client;
        let result = match call {
            HistoryCall::Search => {
                let found = client.get(&name).map_err(WriteError::from);
                found.map(|found| found.map(|value| self.decode(&value)))
            }
            HistoryCall::Insert(value) => client.insert(&name, &encode(value)).map(|()| None),
            HistoryCall::Update(value) => client.update(&name, &encode(value)).map(|()| None),
            HistoryCall::Upsert(value) => client.put(&name, &encode(value)).map(|()| None),
            HistoryCall::Delete => client.delete(&name).map(|()| None),
        };
        self.journal.end(&result, call == HistoryCall::Search);
        match result {
            Ok(_) | Err(WriteError::NotFound | WriteError::AlreadyExists) => true,
            Err(error) => {
                self.complain(&format!("error: {call:?} of key {key}: {error}"));
                false
            }
        }
    }

    fn decode(&self, value: &[u8]) -> u64 {
        let words: Vec<u64> = value.as_chunks().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let first = words.first().copied().unwrap_or(u64::MAX);
        if value != encode(first) {
            self.complain(&format!("torn: {words:x?}"));
        }
        first
    }

    fn look_at_view(&mut self) {
        let view = self.client.view().number;
        if view < self.view {
            self.complain(&format!("backwards: view {view} after {}", self.view));
        }
        self.view = view;
    }

    fn complain(&self, text: &str) {
        complain(self.task, &format!("w{}: {text}", self.number));
    }
}

fn name(key: u64) -> Vec<u8> {
    format!("crash-{key:04}").into_bytes()
}

/// Returns the bytes of a value, which has one of two lengths.
fn encode(value: u64) -> Vec<u8> {
    let words = if value.is_multiple_of(2) { 5 } else { 25 };
    value.to_le_bytes().repeat(words)
}

/// Returns the operations of all these clients.
pub fn read_all<'a>(writers: impl IntoIterator<Item = &'a WriterProcess>) -> Vec<HistoryRecord> {
    writers.into_iter().flat_map(WriterProcess::records).collect()
}

/// Creates and returns the directory for [`WriterTask::dir`].
pub fn dir(scratch: &Path) -> PathBuf {
    let dir = scratch.join("clients");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}
