//! An etcd for one test, on free ports of this host, in a directory that is removed with it.
//!
//! If no `etcd` is in the path, tests that need one print SKIPPED; with FUSEE_ETCD_REQUIRED=1 they fail.
//!
//! *Ports.* Another process can take a free port before etcd listens there, or while etcd is stopped. So the ports are
//! below those that the system assigns by itself, and no two tests try the same ports. An etcd that ends during its
//! first start is started again on other ports.
//!
//! *Ready.* An etcd is ready when it reports its health and its process lives: an open port alone could belong to
//! another process.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The longest time of a test in seconds; then `timeout` ends the etcd, also if its test was killed.
const LIFE_S: u32 = 300;
/// The ports for etcds: below those that Linux assigns by itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// The limit on starts of an etcd whose process ends at once.
const STARTS: u32 = 5;
/// A deadline that passes only if something fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// A directory for files in memory: etcd waits for the disk at every write, and a busy disk takes seconds.
const MEMORY: &str = "/dev/shm";

pub struct EtcdServer {
    dir: tempfile::TempDir,
    ports: [u16; 3],
    /// The directory of `ca`, `cert` and `key`, if clients have to use TLS and show a certificate.
    files: Option<PathBuf>,
    process: Option<Child>,
}

impl EtcdServer {
    /// Starts an etcd, or prints that the test is skipped.
    pub fn start() -> Option<EtcdServer> {
        EtcdServer::start_with(None)
    }

    /// Starts an etcd, with TLS if `files` names the directory of its certificates.
    pub fn start_with(files: Option<PathBuf>) -> Option<EtcdServer> {
        let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            let required = std::env::var_os("FUSEE_ETCD_REQUIRED").is_some_and(|v| v == "1");
            assert!(!required, "FUSEE_ETCD_REQUIRED=1, but no etcd can be started");
            // This does not use `println`, because the test program captures its output.
            let _told = Write::write_fmt(
                &mut std::io::stderr(),
                format_args!(
                    "SKIPPED: no etcd in the path (Debian: apt-get install etcd-server)\n"
                ),
            );
            return None;
        }
        let in_memory = Path::new(MEMORY).is_dir().then(|| tempfile::tempdir_in(MEMORY));
        let dir = in_memory.and_then(Result::ok).map_or_else(tempfile::tempdir, Ok).unwrap();
        let mut server = EtcdServer { dir, ports: free_ports(), files, process: None };
        server.resume();
        Some(server)
    }

    /// Returns host and port for clients.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Returns host and port at which etcd reports its health.
    fn health(&self) -> String {
        format!("127.0.0.1:{}", self.ports[2])
    }

    /// Starts etcd again on its stored data.
    pub fn resume(&mut self) {
        let is_new = !self.dir.path().join("data").exists();
        for _ in 0..STARTS {
            if self.try_resume() {
                return;
            }
            eprintln!("etcd has ended: {}", self.log());
            if is_new {
                let _none = std::fs::remove_dir_all(self.dir.path().join("data"));
                self.ports = free_ports();
            }
            sleep(Duration::from_millis(200));
        }
        panic!("etcd does not start: {}", self.log());
    }

    /// Starts etcd, and returns whether it is ready; otherwise its process has ended.
    fn try_resume(&mut self) -> bool {
        assert!(self.process.is_none());
        let scheme = if self.files.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.ports[0]);
        let peer = format!("http://127.0.0.1:{}", self.ports[1]);
        let life = format!("{LIFE_S}s");
        let mut command = Command::new("timeout");
        command.args(["-k", "5s", &life, "etcd", "--logger", "zap", "--log-level", "error"]);
        command.arg("--data-dir").arg(self.dir.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg(format!("--initial-cluster=default={peer}"));
        if let Some(files) = &self.files {
            let file = |name| files.join(name);
            command.arg("--cert-file").arg(file("cert")).arg("--key-file").arg(file("key"));
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(file("ca"));
        }
        // The address at which etcd reports its health is without TLS.
        command.arg(format!("--listen-metrics-urls=http://{}", self.health()));
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut process = command.spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        loop {
            let is_healthy = self.is_healthy();
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            if is_healthy {
                self.process = Some(process);
                return true;
            }
            if Instant::now() > end {
                self.process = Some(process);
                panic!("etcd is not ready: {}", self.log());
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Returns whether a process at the port for health reports that it is healthy.
    fn is_healthy(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(self.health())?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        ask().is_ok_and(|answer: String| answer.contains(r#""health":"true""#))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Ends etcd; its stored data remain.
    pub fn pause(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // `timeout` passes SIGTERM on to etcd, and waits for its end.
        let told = Command::new("kill").arg(process.id().to_string()).status();
        let end = Instant::now() + Duration::from_secs(20);
        while told.is_ok() && process.try_wait().is_ok_and(|status| status.is_none()) {
            if Instant::now() > end {
                break;
            }
            sleep(Duration::from_millis(5));
        }
        let _ended = process.kill();
        let _ended = process.wait();
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.pause();
    }
}

/// Returns ports that are free, and that no other test of this process gets.
fn free_ports() -> [u16; 3] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    // Each process begins its search at another port.
    let first = std::process::id().wrapping_mul(97);
    let mut free = (0..count).filter_map(|_| {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = PORTS.start + u16::try_from(next).expect("it is below the number of ports");
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    });
    [0, 1, 2].map(|_| free.next().expect("some port is free"))
}
