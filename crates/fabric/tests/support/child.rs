//! Child processes that run this binary as a memory node or a client.
//!
//! A child takes commands from standard input, one per line, and answers each with one line. It ends when its input
//! ends, so no child outlives the test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fusee_core::verbs::{ClientId, Fabric, MnId, VerbBatch, VerbError};
use fusee_core::view::Member;
use fusee_fabric::{AnyFabric, FabricKind, attach_all};

use super::{START, Served, block_on, node, verbs_node};

/// The environment variable whose presence makes this binary a child process.
pub const ROLE: &str = "FUSEE_TEST_ROLE";

/// The time within which a node has to reach the state that a command asks for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running child process. Dropping it kills the process.
pub struct Child {
    process: Mutex<std::process::Child>,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Child {
    /// Starts a child. Returns it with the first line of its output.
    fn start(role: &str) -> (Child, String) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let pipes = Mutex::new((process.stdin.take().unwrap(), output));
        (Child { process: Mutex::new(process), pipes }, line.trim().into())
    }

    /// Starts a memory node in a process of its own.
    pub fn node(name: MnId, pool_bytes: u64, socket: &Path) -> (Child, Member) {
        let (child, identity, at) =
            Child::start_node(&format!("{pool_bytes} {}", socket.display()));
        let shm = Some(socket.display().to_string());
        let control = String::new();
        let node = name;
        let tcp = Some(at);
        let verbs = None;
        (child, Member { node, identity, control, tcp, shm, verbs, pool_bytes })
    }

    /// Starts a memory node with an RDMA device in a process of its own.
    pub fn verbs_node(name: MnId, pool_bytes: u64) -> (Child, Member) {
        let (child, identity, at) = Child::start_node(&format!("{pool_bytes} verbs"));
        let node = name;
        let tcp = None;
        let shm = None;
        let verbs = Some(at);
        (child, Member { node, identity, control: String::new(), tcp, shm, verbs, pool_bytes })
    }

    /// Starts a node. Returns its process, its identity and its address.
    fn start_node(how: &str) -> (Child, u64, String) {
        let (child, line) = Child::start(&format!("node {how}"));
        let (identity, at) = line.split_once(' ').expect("the node says where it is");
        let identity = identity.parse().unwrap();
        let at = at.to_owned();
        (child, identity, at)
    }

    fn start_client(at: &Member, client: ClientId) -> (Child, String) {
        let node = at.node.0;
        let path = at.shm.as_ref().unwrap();
        Child::start(&format!("client {} {node} {} {path}", client.0, at.identity))
    }

    /// Starts a shared-memory client in a process of its own. The client must be able to attach.
    pub fn client(at: &Member, client: ClientId) -> Child {
        let (child, line) = Child::start_client(at, client);
        assert_eq!(line, "attached");
        child
    }

    /// Starts a shared-memory client that is refused. Returns the error that it prints.
    pub fn refused_client(at: &Member, client: ClientId) -> String {
        Child::start_client(at, client).1
    }

    /// Sends a command and waits for the answer.
    pub fn ask(&self, command: &str) {
        let mut pipes = self.pipes.lock().unwrap();
        writeln!(pipes.0, "{command}").unwrap();
        let mut line = String::new();
        pipes.1.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "done", "answer to {command}");
    }

    /// Kills the child.
    pub fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Sends the child a signal.
    pub fn signal(&self, name: &str) {
        let pid = self.process.lock().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(sent.success());
    }

    /// Stops the child. When this returns, none of the child's threads runs. (One thread takes the signal when it
    /// gets to run, and the other threads go on until then.)
    pub fn stop(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.process.lock().unwrap().id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            // In this file, the thread's state follows its name, which is in parentheses.
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        while !std::fs::read_dir(&tasks).unwrap().all(is_stopped) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns whether the child has ended.
    pub fn has_ended(&self) -> bool {
        self.process.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for the end of the child. Returns the signal that ended it.
    pub fn end_signal(&self) -> Option<i32> {
        self.process.lock().unwrap().wait().unwrap().signal()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs this process in the role of a child.
pub fn run(role: &str) {
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["node", bytes, "verbs"] => run_node(verbs_node(bytes.parse().unwrap())),
        ["node", bytes, path] => run_node(node(bytes.parse().unwrap(), Some(path.into()))),
        ["client", client, node, identity, path] => run_client(
            ClientId(client.parse().unwrap()),
            MnId(node.parse().unwrap()),
            identity.parse().unwrap(),
            path,
        ),
        _ => panic!("unknown role {role:?}"),
    }
}

fn commands() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(|line| line.unwrap())
}

fn run_node(served: Served) {
    let at = served.fabrics.tcp_addr().or(served.fabrics.verbs_addr());
    println!("{} {}", served.identity, at.unwrap());
    for command in commands() {
        match command.split_once(' ') {
            Some(("fence", client)) => {
                served.fabrics.fence(&[ClientId(client.parse().unwrap())]);
            }
            // The command waits until this many sessions are attached.
            Some(("holds", sessions)) => {
                let sessions = sessions.parse().unwrap();
                let until = Instant::now() + PATIENCE;
                while served.fabrics.attached_clients() != sessions && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if served.fabrics.attached_clients() != sessions {
                    println!("{} sessions", served.fabrics.attached_clients());
                    continue;
                }
            }
            _ => panic!("unknown command {command:?}"),
        }
        println!("done");
    }
}

/// Requests from the thread that reads commands to the client's main thread.
struct Asked {
    hammer: AtomicBool,
    detach: AtomicBool,
    leave: AtomicBool,
    also: AtomicBool,
    other_works: AtomicBool,
    /// The main thread's answer: whether the first session is fenced.
    is_fenced: AtomicBool,
}

static ASKED: Asked = Asked {
    hammer: AtomicBool::new(false),
    detach: AtomicBool::new(false),
    leave: AtomicBool::new(false),
    also: AtomicBool::new(false),
    other_works: AtomicBool::new(false),
    is_fenced: AtomicBool::new(false),
};

fn is_asked(asked: &AtomicBool) -> bool {
    asked.load(Ordering::Relaxed)
}

/// Makes a request, and waits until the main thread has carried it out.
fn has_done(asked: &AtomicBool) {
    asked.store(true, Ordering::Relaxed);
    while asked.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

fn obey() {
    for command in commands() {
        match &*command {
            "hammer" => ASKED.hammer.store(true, Ordering::Relaxed),
            "detach" => ASKED.detach.store(true, Ordering::Relaxed),
            "leave" => has_done(&ASKED.leave),
            // The command opens another session, with the next client id.
            "also" => has_done(&ASKED.also),
            // The command executes a verb of the session that `also` has opened.
            "other works" => has_done(&ASKED.other_works),
            "fenced" => {
                while !ASKED.is_fenced.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            "ping" => {}
            _ => panic!("unknown command {command:?}"),
        }
        println!("done");
    }
    std::process::exit(0);
}

fn run_client(client: ClientId, mn: MnId, identity: u64, path: &str) {
    let at = Member {
        node: mn,
        identity,
        control: String::new(),
        tcp: None,
        shm: Some(path.into()),
        verbs: None,
        pool_bytes: 0,
    };
    let attach = |client| attach_all(FabricKind::Shm, client, std::slice::from_ref(&at));
    let mut fabric = match attach(client) {
        Ok(fabric) => Some(fabric),
        Err(error) => return println!("{error}"),
    };
    let other = ClientId(client.0 + 1);
    let mut others: Option<AnyFabric> = None;
    println!("attached");
    std::thread::spawn(obey);
    let add = |fabric: &AnyFabric, client: ClientId| {
        let mut batch = VerbBatch::new();
        batch.faa(mn, START + u64::from(client.0) * 8, 1);
        block_on(fabric, fabric.execute(batch)).verbs()[0].result
    };
    loop {
        if is_asked(&ASKED.leave) {
            fabric.iter().for_each(|f| f.leave(Duration::from_secs(5)));
            ASKED.leave.store(false, Ordering::Relaxed);
        }
        if is_asked(&ASKED.detach) {
            fabric = None;
        }
        if is_asked(&ASKED.also) {
            others = Some(attach(other).unwrap());
            ASKED.also.store(false, Ordering::Relaxed);
        }
        if is_asked(&ASKED.other_works) {
            add(others.as_ref().unwrap(), other).unwrap();
            ASKED.other_works.store(false, Ordering::Relaxed);
        }
        match &fabric {
            Some(fabric) if is_asked(&ASKED.hammer) => match add(fabric, client) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, VerbError::Fenced);
                    ASKED.hammer.store(false, Ordering::Relaxed);
                    ASKED.is_fenced.store(true, Ordering::Relaxed);
                }
            },
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
