//! An etcd of the test's own: on free ports of this host, in a directory that goes with it.
//!
//! Where no `etcd` is in the path, tests that need one say SKIPPED; with FUSEE_ETCD_REQUIRED=1
//! they fail.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// No test takes longer; `timeout` ends an etcd whose test was killed.
const LIFE_S: u32 = 300;

pub struct EtcdServer {
    dir: tempfile::TempDir,
    ports: [u16; 2],
    process: Option<Child>,
}

impl EtcdServer {
    /// Starts one, or says why the test is skipped.
    pub fn start() -> Option<EtcdServer> {
        let found = Command::new("etcd").arg("--version").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            let required = std::env::var_os("FUSEE_ETCD_REQUIRED").is_some_and(|v| v == "1");
            assert!(!required, "FUSEE_ETCD_REQUIRED=1, but no etcd can be started");
            eprintln!("SKIPPED: no etcd in the path (Debian: apt-get install etcd-server)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut server = EtcdServer { dir, ports: free_ports(), process: None };
        server.resume();
        Some(server)
    }

    /// Host and port for clients.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Starts it again on what it had stored.
    pub fn resume(&mut self) {
        assert!(self.process.is_none());
        let url = |port| format!("http://127.0.0.1:{port}");
        let [client, peer] = self.ports.map(url);
        let life = format!("{LIFE_S}s");
        let mut command = Command::new("timeout");
        command.args(["-k", "5s", &life, "etcd", "--logger", "zap", "--log-level", "error"]);
        command.arg("--data-dir").arg(self.dir.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg(format!("--initial-cluster=default={peer}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(self.endpoint()).is_err() {
            assert!(Instant::now() < end, "etcd does not open its port");
            sleep(Duration::from_millis(10));
        }
    }

    /// Ends it; what it stored stays.
    pub fn pause(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        // `timeout` passes SIGTERM on, and waits.
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

/// Two ports that were free a moment ago.
fn free_ports() -> [u16; 2] {
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
