//! Programs that fork: clients that a child has inherited fail at once and change nothing, the parent goes on
//! undisturbed, and the child can open clients of its own.
//!
//! This test has its own `main`, because a fork copies one thread only: with the usual harness, other threads could
//! hold locks at the fork. The servers run in another process of this binary, which is started with [`ROLE`] set, so
//! that clients over shared memory connect through the memory nodes' sockets. Arguments select the tests whose names
//! contain one of them.

// Promise API-24: A forked child is refused at once; the parent goes on.

#![allow(unsafe_code)]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use common::{fabrics, master, node, options};
use fusee_client::{
    BatchWrite, BlockingClient, Client, ConnectError, FabricKind, FailedWriteOutcome, Options,
    PutOptions, ReadError, Redundancy, ScanCursor, ScanError, Session, SurveyError, WriteError,
};

/// The environment variable that selects another role for a process of this binary.
const ROLE: &str = "FUSEE_TEST_ROLE";
/// The longest time for a child's calls together. A call that waits for anything takes `op_timeout`, 5 s, or longer.
const AT_ONCE: Duration = Duration::from_secs(4);
/// Longest wait for events that should come soon, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

const UNWRITTEN: WriteError = WriteError::Forked { outcome: FailedWriteOutcome::NotApplied };

/// Servers in another process, which ends when this is dropped.
struct Servers {
    process: std::process::Child,
    master: String,
}

impl Servers {
    fn start() -> Servers {
        let (process, master) = start("servers");
        Servers { process, master }
    }

    fn connect(&self, fabric: FabricKind) -> BlockingClient {
        connect(&self.master, fabric)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn connect(master: &str, fabric: FabricKind) -> BlockingClient {
    Client::connect_with(master, Options::default().with_fabric(fabric)).unwrap().blocking()
}

/// Starts this binary in a role. Returns the process and the first line that it prints.
fn start(role: &str) -> (std::process::Child, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, line.trim().into())
}

/// Runs the servers until the standard input of this process ends.
fn run_servers() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path(), 2);
    let _nodes = [node(dir.path(), &master), node(dir.path(), &master)];
    master.wait_formed(PATIENCE).unwrap();
    say(&master.addr().unwrap().to_string());
    let _ = std::io::stdin().read(&mut [0]);
}

fn say(line: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "{line}").unwrap();
    output.flush().unwrap();
}

/// The ways in which a forked child ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The child returns and calls `exit`: destructors of the thread's variables run, and handlers of `atexit`.
    Exit,
    /// The child drops everything that it has, and then calls `exit`.
    DropAll,
    /// The child ends at once, by `_exit`, without dropping anything.
    Underscore,
    /// The child panics, and the panic is caught only after all of its frames have been unwound.
    Panic,
}

/// Runs `child` in a child of this process, which has to succeed and to end in time.
fn in_a_child(end: End, child: impl FnOnce()) {
    finish(fork(end, child), AT_ONCE);
}

fn fork(end: End, child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: `fork` has no memory safety requirement for a process with one thread. That a child of a process with
    // more threads can still run the actions below is what this test checks.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        let is_well = catch_unwind(AssertUnwindSafe(child)).is_ok();
        let code = i32::from(is_well == matches!(end, End::Panic));
        match end {
            // SAFETY: `_exit` has no preconditions; it ends the process.
            End::Underscore => unsafe { libc::_exit(code) },
            _ => std::process::exit(code),
        }
    }
    pid
}

fn finish(pid: libc::pid_t, patience: Duration) {
    let end = Instant::now() + patience;
    let mut status = 0;
    // SAFETY: `pid` is a child of this process that was not waited for before, and `status` outlives the call.
    let mut waits = || unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
    assert!(pid > 0, "nobody has forked");
    while waits() == 0 {
        if Instant::now() >= end {
            // SAFETY: `pid` is a child of this process that has not been waited for, so the id is not used by another
            // process.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("a child hangs");
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status), "a child died by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "a child failed");
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Polls a future once.
fn poll<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    match poll(future) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a call of a child waits"),
    }
}

/// Makes every call that a child can make with its parent's client, and checks that all of them are refused.
fn refuses_all(client: &BlockingClient, session: &Session) {
    let key = b"key";
    let value = b"value";
    let redundancy = Redundancy::Replicated;
    let writes = [BatchWrite::put("key", "value"), BatchWrite::delete("key")];
    let none = || Err(UNWRITTEN);
    let mut start = ScanCursor::start();
    assert_eq!(client.get(key), Err(ReadError::Forked));
    assert_eq!(client.get_with(key, |_| panic!("shown")), Err::<(), _>(ReadError::Forked));
    assert_eq!(client.get_many(&["key"]), Err(ReadError::Forked));
    assert_eq!(client.insert(key, value), none());
    assert_eq!(client.update(key, value), none());
    assert_eq!(client.put(key, value), none());
    for options in all_options() {
        assert_eq!(client.put_with(key, value, options), none());
    }
    assert_eq!(client.put_from(key, 5, |_| panic!("filled")), none());
    assert_eq!(client.write_many(&writes), [none(), none()]);
    assert_eq!(client.scan(&mut start, |_| panic!("shown")), Err(ScanError::Forked));
    assert_eq!(client.delete(key), none());
    assert_eq!(client.set_redundancy(key, redundancy), Err(UNWRITTEN));
    assert_eq!(client.redundancy_of(key), Err(ReadError::Forked));
    let rules = client.admin().redundancy_rules();
    assert!(matches!(rules, Err(ConnectError::Forked)), "{rules:?}");
    assert!(matches!(client.session().err(), Some(ConnectError::Forked)));
    assert!(matches!(client.admin().status(), Err(ConnectError::Forked)));
    let survey = client.admin().survey_memory();
    assert!(matches!(survey, Err(SurveyError::Connect(ConnectError::Forked))), "{survey:?}");
    let pairs = client.admin().find_pairs(|_| true);
    assert!(matches!(pairs, Err(SurveyError::Connect(ConnectError::Forked))), "{pairs:?}");
    assert!(client.admin().usage().iter().all(|(_, usage)| usage.is_err()));
    assert_eq!(client.view().members.len(), client.admin().usage().len());
    assert_eq!((client.metrics().sessions, client.metrics().work_table), (0, None));
    refuses_all_async_calls(client.client());
    refuses_all_of_a_session(session);
}

fn all_options() -> [PutOptions; 3] {
    let options = PutOptions::default().with_redundancy(Redundancy::Replicated);
    [options.clone(), options.clone().if_absent(), options.if_present()]
}

fn refuses_all_async_calls(client: &Client) {
    let key = b"key";
    let value = b"value";
    let redundancy = Redundancy::Replicated;
    let writes = [BatchWrite::put("key", "value"), BatchWrite::delete("key")];
    let none = || Err(UNWRITTEN);
    let mut start = ScanCursor::start();
    let shown = client.get_with(key, |_| panic!("shown"));
    assert_eq!(at_once(shown), Err::<(), _>(ReadError::Forked));
    assert_eq!(at_once(client.get(key)), Err(ReadError::Forked));
    assert_eq!(at_once(client.get_many(&["key"])), Err(ReadError::Forked));
    assert_eq!(at_once(client.insert(key, value)), none());
    assert_eq!(at_once(client.update(key, value)), none());
    assert_eq!(at_once(client.put(key, value)), none());
    for options in all_options() {
        assert_eq!(at_once(client.put_with(key, value, options)), none());
    }
    assert_eq!(at_once(client.delete(key)), none());
    assert_eq!(at_once(client.write_many(&writes)), [none(), none()]);
    let scanned = client.scan(&mut start, |_| panic!("shown"));
    assert_eq!(at_once(scanned), Err(ScanError::Forked));
    assert_eq!(at_once(client.set_redundancy(key, redundancy)), Err(UNWRITTEN));
    assert_eq!(at_once(client.redundancy_of(key)), Err(ReadError::Forked));
}

fn refuses_all_of_a_session(session: &Session) {
    let key = b"key";
    let value = b"value";
    let redundancy = Redundancy::Replicated;
    let writes = [BatchWrite::put("key", "value"), BatchWrite::delete("key")];
    let none = || Err(UNWRITTEN);
    assert!(session.is_lost());
    session.block_on(async {
        assert_eq!(session.get(key).await, Err(ReadError::Forked));
        let shown = session.get_with(key, |_| panic!("shown")).await;
        assert_eq!(shown, Err::<(), _>(ReadError::Forked));
        assert_eq!(session.get_many(&["key"]).await, Err(ReadError::Forked));
        let shown = session.get_many_with(&["key"], |_, _| panic!("shown")).await;
        assert_eq!(shown, Err(ReadError::Forked));
        assert_eq!(session.insert(key, value).await, none());
        assert_eq!(session.update(key, value).await, none());
        assert_eq!(session.put(key, value).await, none());
        for options in all_options() {
            assert_eq!(session.put_with(key, value, options).await, none());
        }
        assert_eq!(session.put_from(key, 5, |_| panic!("filled")).await, none());
        assert_eq!(session.write_many(&writes).await, [none(), none()]);
        let mut cursor = ScanCursor::start();
        assert_eq!(session.scan(&mut cursor, |_| panic!("shown")).await, Err(ScanError::Forked));
        assert_eq!(session.delete(key).await, none());
        assert_eq!(session.set_redundancy(key, redundancy).await, Err(UNWRITTEN));
        assert_eq!(session.redundancy_of(key).await, Err(ReadError::Forked));
    });
}

/// Puts pairs, and checks that gets return them.
fn works(client: &BlockingClient, tag: &str) {
    for i in 0..200 {
        let key = format!("{tag} {}", i % 50);
        let value = format!("value {i}");
        client.put(key.as_bytes(), value.as_bytes()).unwrap();
        assert_eq!(client.get(key.as_bytes()).unwrap().as_deref(), Some(value.as_bytes()));
    }
}

/// Runs `children` in a parent that has sessions of all kinds, and checks that these sessions still work afterwards.
fn beside_children(fabric: FabricKind, children: impl FnOnce(&str, BlockingClient, Session)) {
    let servers = Servers::start();
    let client = servers.connect(fabric);
    let session = client.session().unwrap();
    works(&client, "before");
    session.block_on(session.put(b"own", b"session")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(client.client().put(b"own", b"driver")).unwrap();
    let opened = client.admin().status().unwrap().sessions_opened;
    let kept = client.clone();
    children(&servers.master, client, session);
    works(&kept, "after");
    runtime.block_on(kept.client().put(b"own", b"driver again")).unwrap();
    let status = kept.admin().status().unwrap();
    assert!(status.sessions_opened >= opened);
    let others = BTreeSet::from([FabricKind::Shm, FabricKind::Tcp].map(|kind| kind.to_string()));
    for other in others {
        let other = servers.connect(other.parse().unwrap());
        assert_eq!(other.get(b"own").unwrap().as_deref(), Some(&b"driver again"[..]));
        assert_eq!(other.get(b"after 49").unwrap().as_deref(), Some(&b"value 199"[..]));
    }
}

/// Checks that the parent's sessions, which a child has inherited, still work in the parent.
fn goes_on(client: &BlockingClient, session: &Session, opened: u64) {
    works(client, "meanwhile");
    assert!(!session.is_lost());
    session.block_on(session.put(b"own", b"session again")).unwrap();
    let status = client.admin().status().unwrap();
    assert_eq!(status.sessions_opened, opened, "the parent had to open other sessions");
    assert_eq!(status.open_sessions, 3, "a child has ended sessions of its parent");
}

fn a_child_is_refused_and_ends_as_it_likes(fabric: FabricKind) {
    beside_children(fabric, |_, client, session| {
        let opened = client.admin().status().unwrap().sessions_opened;
        for end in [End::Exit, End::DropAll, End::Underscore, End::Panic] {
            println!("  {end:?}");
            let mine = Some((client.clone(), &session));
            in_a_child(end, move || {
                refuses_all(&client_of(&mine), mine.as_ref().unwrap().1);
                match end {
                    End::DropAll => drop(mine),
                    End::Panic => panic!("as it is asked to"),
                    End::Exit | End::Underscore => std::mem::forget(mine),
                }
            });
            goes_on(&client, &session, opened);
        }
        // This child makes no call: it only ends, by `exit`.
        let pid = fork(End::Exit, || ());
        finish(pid, AT_ONCE);
        goes_on(&client, &session, opened);
    });
}

fn client_of(mine: &Option<(BlockingClient, &Session)>) -> BlockingClient {
    mine.as_ref().unwrap().0.clone()
}

/// The child drops the last clone of a client in its process, and a session.
fn a_child_drops_all_of_a_client(fabric: FabricKind) {
    let servers = Servers::start();
    let client = servers.connect(fabric);
    let session = client.session().unwrap();
    works(&client, "before");
    let opened = client.admin().status().unwrap().sessions_opened;
    // SAFETY: as in `fork` above; the child only drops values and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(session);
        drop(client);
        std::process::exit(0);
    }
    finish(pid, AT_ONCE);
    works(&client, "after");
    session.block_on(session.put(b"own", b"session")).unwrap();
    let status = client.admin().status().unwrap();
    assert_eq!((status.sessions_opened, status.open_sessions), (opened, 2));
}

fn a_child_opens_a_client_of_its_own(fabric: FabricKind) {
    beside_children(fabric, |master, client, _session| {
        let pid = fork(End::Exit, || {
            let own = connect(master, fabric);
            works(&own, "child");
            assert_eq!(client.get(b"child 49"), Err(ReadError::Forked));
            // Another thread of the child can use the child's client, too.
            thread::spawn(move || works(&own, "child's thread")).join().unwrap();
        });
        works(&client, "beside");
        finish(pid, PATIENCE);
        assert_eq!(client.get(b"child 49").unwrap().as_deref(), Some(&b"value 199"[..]));
    });
}

/// The child opens a client of its own and forks again. The grandchild cannot use the clients of its parent and its
/// grandparent, but works with a client of its own.
fn a_grandchild_is_neither_its_parent_nor_its_grandparent(fabric: FabricKind) {
    beside_children(fabric, |master, client, session| {
        in_a_child(End::Exit, || {
            let childs = connect(master, fabric);
            works(&childs, "child");
            in_a_child(End::Exit, || {
                refuses_all(&childs, &session);
                refuses_all(&client, &session);
                works(&connect(master, fabric), "grandchild");
            });
            works(&childs, "child again");
        });
    });
}

/// Callbacks of several kinds of operations fork, in the middle of these operations.
fn forks_within_calls(fabric: FabricKind) {
    beside_children(fabric, |_, client, session| {
        let opened = client.admin().status().unwrap().sessions_opened;
        let pair = (b"forked", vec![1; 3000]);
        client.put(pair.0, &pair.1).unwrap();
        let is_child = AtomicBool::new(false);
        let fork_here = || {
            // SAFETY: as in `fork` above; the child returns from the running operation and exits.
            let pid = unsafe { libc::fork() };
            is_child.store(pid == 0, Ordering::Relaxed);
            pid
        };
        // The child returns from the call as well as the parent; its exit code tells whether it got the right result.
        let end = |pid: libc::pid_t, is_well: bool| {
            if is_child.load(Ordering::Relaxed) {
                std::process::exit(i32::from(!is_well));
            }
            assert!(is_well, "the parent's call failed");
            finish(pid, AT_ONCE);
            goes_on(&client, &session, opened);
        };
        let mut pid = 0;
        let got = client.get_with(pair.0, |_| pid = fork_here());
        end(pid, got.is_ok() || is_child.load(Ordering::Relaxed));
        let put = client.put_from(b"filled", 3000, |_| pid = fork_here());
        let forked = matches!(put, Err(WriteError::Forked { .. }));
        end(pid, if is_child.load(Ordering::Relaxed) { forked } else { put.is_ok() });
        pid = 0;
        let mut cursor = ScanCursor::start();
        let mut scanned = Ok(0);
        while !cursor.is_done() && scanned.is_ok() {
            scanned = client.scan(&mut cursor, |_| {
                if pid == 0 && !is_child.load(Ordering::Relaxed) {
                    pid = fork_here();
                }
            });
        }
        let forked = matches!(scanned, Err(ScanError::Forked));
        end(pid, if is_child.load(Ordering::Relaxed) { forked } else { scanned.is_ok() });
        // Forks while other operations of the session are under way.
        let results = session.block_on(async {
            let keys: Vec<[u8; 1]> = (0..8).map(|i| [i]).collect();
            let mut puts: Vec<_> =
                keys.iter().map(|key| Box::pin(session.put(key, b"x"))).collect();
            let mut context = Context::from_waker(Waker::noop());
            let first: Vec<_> =
                puts.iter_mut().map(|put| put.as_mut().poll(&mut context)).collect();
            pid = fork_here();
            let mut results = Vec::new();
            for (first, put) in first.into_iter().zip(puts) {
                results.push(match first {
                    Poll::Ready(result) => result,
                    Poll::Pending => put.await,
                });
            }
            results
        });
        let forked =
            |r: &Result<(), WriteError>| matches!(r, Ok(()) | Err(WriteError::Forked { .. }));
        let is_well = if is_child.load(Ordering::Relaxed) {
            results.iter().all(forked)
        } else {
            results.iter().all(Result::is_ok)
        };
        end(pid, is_well);
    });
}

/// An async call that is under way at the fork goes on in the parent, and fails in the child.
fn an_async_call_under_way_is_the_parents(fabric: FabricKind) {
    beside_children(fabric, |_, client, _session| {
        let mut put = pin!(client.client().put(b"under way", b"value"));
        let mut context = Context::from_waker(Waker::noop());
        if put.as_mut().poll(&mut context).is_pending() {
            // SAFETY: as in `fork` above; the child polls one future and exits.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let unknown =
                    Poll::Ready(Err(WriteError::Forked { outcome: FailedWriteOutcome::Unknown }));
                std::process::exit(i32::from(put.as_mut().poll(&mut context) != unknown));
            }
            finish(pid, AT_ONCE);
            wait_until("the put", || put.as_mut().poll(&mut context).is_ready());
        }
        assert_eq!(client.get(b"under way").unwrap().as_deref(), Some(&b"value"[..]));
    });
}

/// Forks while other threads are inside of operations and possibly hold locks.
fn forks_beside_busy_threads(fabric: FabricKind) {
    let servers = Servers::start();
    let client = servers.connect(fabric);
    let session = client.session().unwrap();
    let is_over = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let client = client.clone();
            let is_over = &is_over;
            let rounds = &rounds;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    works(&client, &format!("thread {thread}"));
                    client.metrics();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for fork in 0..20 {
            let before = rounds.load(Ordering::Relaxed);
            let end = if fork % 2 == 0 { End::Exit } else { End::DropAll };
            finish(
                self::fork(end, || {
                    refuses_all(&client, &session);
                    works(&connect(&servers.master, fabric), "child");
                }),
                PATIENCE,
            );
            wait_until("a round", || rounds.load(Ordering::Relaxed) > before);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // The sessions of the threads end some time after the threads. The other two sessions were not ended by a child,
    // and no child has left a session behind.
    wait_until("the end of the threads' sessions", || {
        client.admin().status().unwrap().open_sessions == 2
    });
    session.block_on(session.put(b"own", b"session")).unwrap();
    assert_eq!(client.admin().status().unwrap().expired_sessions, 0);
}

/// `exec` closes all descriptors that a client has opened, whatever call executes it.
// Promise API-25: `exec` closes every descriptor of a client.
fn every_descriptor_is_closed_by_exec(fabric: FabricKind) {
    let before: BTreeSet<u32> = descriptors().into_iter().map(|(fd, _)| fd).collect();
    beside_children(fabric, |_, client, _session| {
        let embedded = Client::embedded(options(fabric)).unwrap().blocking();
        works(&embedded, "embedded");
        let new = descriptors().into_iter().filter(|(fd, _)| !before.contains(fd));
        let open: Vec<_> = new.filter(|(_, flags)| flags & 0o2_000_000 == 0).collect();
        // The pipes to the servers are closed by `exec`, too, as all pipes of the standard library are.
        assert!(open.is_empty(), "{open:?}");
        // `Command` uses posix_spawn, or vfork and exec.
        let sees = Command::new("ls").arg("/proc/self/fd").output().unwrap();
        let sees = String::from_utf8(sees.stdout).unwrap();
        // `ls` has three standard descriptors and the directory that it reads; and it can have descriptors that this
        // process has inherited.
        assert!(sees.lines().count() <= 4 + before.len(), "{sees}");
        works(&client, "beside");
    });
}

/// Returns the descriptors of this process, with their flags.
fn descriptors() -> Vec<(u32, u32)> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds: Vec<u32> =
        all.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    let flags = |fd: &u32| {
        // The descriptor that was used to read the directory is closed by now, so its file is missing.
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        Some((*fd, u32::from_str_radix(flags.trim(), 8).unwrap()))
    };
    fds.iter().filter_map(flags).collect()
}

fn an_embedded_cluster_stays_in_the_parent(fabric: FabricKind) {
    let client = Client::embedded(options(fabric)).unwrap().blocking();
    let session = client.session().unwrap();
    works(&client, "before");
    for end in [End::Exit, End::DropAll, End::Underscore] {
        let mine = client.clone();
        let child = || {
            refuses_all(&mine, &session);
            works(&Client::embedded(options(fabric)).unwrap().blocking(), "the child's");
            if let End::DropAll = end {
                drop(mine);
            }
        };
        finish(fork(end, child), PATIENCE);
        works(&client, "after");
    }
    assert_eq!(client.get(b"the child's 1").unwrap(), None);
    // SAFETY: as in `fork` above; the child only drops values and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(session);
        drop(client);
        std::process::exit(0);
    }
    finish(pid, AT_ONCE);
    works(&client, "after");
    session.block_on(session.get(b"own")).unwrap();
}

/// A child keeps its parent's connections open. The parent's death is noticed all the same: over shared memory by its
/// exit, otherwise because its lease runs out.
fn a_dead_parent_is_missed_though_its_child_lives(fabric: FabricKind) {
    let servers = Servers::start();
    let observer = servers.connect(FabricKind::Tcp);
    let (mut parent, child) = start(&format!("parent {} {fabric}", servers.master));
    let open = || observer.admin().status().unwrap().open_sessions;
    assert_eq!(open(), 2);
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("the end of the parent's session", || open() == 1);
    for i in 0..50 {
        observer.put(format!("before {i}").as_bytes(), b"taken over").unwrap();
    }
    // SAFETY: `kill` has no memory safety requirement. The child waits for a signal, so its id is still its own.
    let killed = unsafe { libc::kill(child.parse().unwrap(), libc::SIGKILL) };
    assert_eq!(killed, 0, "the child was to outlive its parent");
}

fn run_parent(master: &str, fabric: FabricKind) {
    let client = connect(master, fabric);
    works(&client, "before");
    let child = fork(End::Underscore, || thread::sleep(PATIENCE * 2));
    say(&child.to_string());
    loop {
        works(&client, "before");
    }
}

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        match role.split(' ').collect::<Vec<_>>()[..] {
            ["servers"] => run_servers(),
            ["parent", master, fabric] => run_parent(master, fabric.parse().unwrap()),
            _ => panic!("unknown role {role:?}"),
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    type Test = fn(FabricKind);
    let tests: [(&str, Test); 10] = [
        ("a_child_is_refused_and_ends_as_it_likes", a_child_is_refused_and_ends_as_it_likes),
        ("a_child_drops_all_of_a_client", a_child_drops_all_of_a_client),
        ("a_child_opens_a_client_of_its_own", a_child_opens_a_client_of_its_own),
        (
            "a_grandchild_is_neither_its_parent_nor_its_grandparent",
            a_grandchild_is_neither_its_parent_nor_its_grandparent,
        ),
        ("forks_within_calls", forks_within_calls),
        ("an_async_call_under_way_is_the_parents", an_async_call_under_way_is_the_parents),
        ("forks_beside_busy_threads", forks_beside_busy_threads),
        ("every_descriptor_is_closed_by_exec", every_descriptor_is_closed_by_exec),
        ("an_embedded_cluster_stays_in_the_parent", an_embedded_cluster_stays_in_the_parent),
        (
            "a_dead_parent_is_missed_though_its_child_lives",
            a_dead_parent_is_missed_though_its_child_lives,
        ),
    ];
    let mut failed = Vec::new();
    for fabric in fabrics() {
        for (name, test) in tests {
            // The servers that these tests start do not serve verbs, but embedded clusters do.
            let is_embedded: Test = an_embedded_cluster_stays_in_the_parent;
            if fabric == FabricKind::Verbs && !std::ptr::fn_addr_eq(test, is_embedded) {
                continue;
            }
            let name = format!("{fabric}/{name}");
            if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter)) {
                continue;
            }
            let started = Instant::now();
            let is_well = catch_unwind(AssertUnwindSafe(|| test(fabric))).is_ok();
            let took = started.elapsed().as_millis();
            println!("{name} ... {} ({took} ms)", if is_well { "ok" } else { "FAILED" });
            if !is_well {
                failed.push(name);
            }
        }
    }
    println!("\nfailed: {failed:?}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
