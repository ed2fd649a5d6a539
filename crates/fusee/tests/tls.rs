//! Clusters whose servers use TLS. Clients with TLS are served, and clients without TLS get the reason for the refusal.

// Promise SEC-12
// Promise SEC-13

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fusee_client::{Client, FabricKind, Keyring, Options, TlsSettings};

use super::common::http::get;
use super::common::nic;
use super::common::{CommandOutput, Scratch, UpCluster, finish, fusee, wait};
use super::http::page_of;

#[path = "../../tls/src/testing.rs"]
pub mod testing;
use testing::Certificates;

/// Files of a cluster, named like the flags.
struct TlsClusterFiles {
    certificates: Certificates,
    scratch: Scratch,
}

impl TlsClusterFiles {
    fn new() -> TlsClusterFiles {
        let files = TlsClusterFiles { certificates: Certificates::new(), scratch: Scratch::new() };
        finish(&mut fusee(&["secret", "new", &files.secret()])).expect_code(0);
        files
    }

    fn secret(&self) -> String {
        self.scratch.path().join("secret").display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.certificates.path(name).display().to_string()
    }

    fn up(&self) -> UpCluster {
        let [ca, cert, key] = ["ca", "cert", "key"].map(|name| self.path(name));
        let tls = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
        UpCluster::start(&[&["--secret", &self.secret(), "--fabric", "tcp"][..], &tls].concat())
    }

    /// Runs a command with the secret, and with the authorities in this file.
    fn run(&self, up: &UpCluster, ca: &str, line: &[&str]) -> CommandOutput {
        up.run(&[line, &["--secret", &self.secret(), "--tls-ca", ca]].concat())
    }

    fn options(&self) -> Options {
        let keys = Keyring::of_client(self.secret().as_ref()).unwrap();
        let tls = TlsSettings::of_client(self.path("ca").as_ref()).unwrap();
        Options::default().with_fabric(FabricKind::Tcp).with_keys(keys).with_tls(tls)
    }
}

#[test]
fn a_cluster_works_over_tls_and_others_are_told() {
    let files = TlsClusterFiles::new();
    let others = TlsClusterFiles::new();
    let up = files.up();
    let ca = files.path("ca");
    files.run(&up, &ca, &["insert", "key", "first"]).expect_code(0);
    files.run(&up, &ca, &["update", "key", "second"]).expect_code(0);
    assert_eq!(files.run(&up, &ca, &["get", "key"]).expect_code(0).stdout, b"second");
    let status = files.run(&up, &ca, &["status", "--json"]).expect_code(0).json();
    let nodes = status["memory_nodes"].as_array().unwrap();
    assert!(nodes.len() == 3 && nodes.iter().all(|node| node["reachable"] == true), "{status}");
    let client = Client::connect_with(&up.master, files.options()).unwrap().blocking();
    let long = vec![7; 1 << 20];
    client.put(b"long", &long).unwrap();
    assert_eq!(client.get(b"long").unwrap().as_deref(), Some(&long[..]));

    up.run(&["get", "key", "--secret", &files.secret()]).expect_error(3, "--tls-ca");
    files.run(&up, &others.path("ca"), &["get", "key"]).expect_error(3, "does not believe");
    up.run(&["get", "key", "--tls-ca", &ca]).expect_error(3, "--secret");
    let plain = UpCluster::start(&["--fabric", "tcp"]);
    plain.run(&["get", "key", "--tls-ca", &ca]).expect_error(3, "speaks no TLS");

    // The port of the memory refuses any hello without TLS, with the number that means TLS.
    let tcp = up.report["memory_nodes"][0]["tcp"].as_str().unwrap();
    let (_stream, _call, said) = nic::call(tcp, 1);
    assert_eq!((said.len(), &said[8..12]), (nic::ANSWER_BYTES, &[3, 0, 0, 0][..]));
}

/// The pages work even if the master's certificate does not cover the address at which the master listens. Only
/// `/metrics/memory` needs a certificate for that address, because the master joins the cluster as a client for it.
#[test]
fn masters_show_their_cluster_over_tls() {
    let files = TlsClusterFiles::new();
    let up = files.up();
    files.run(&up, &files.path("ca"), &["put", "key", "value"]).expect_code(0);
    let memory = get(page_of(&up), "/metrics/memory");
    assert!(memory.contains("fusee_pairs{redundancy=\"replicated\"} 1\n"), "{memory}");

    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| files.path(name));
    let tls = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let mut master = fusee(&["master", "--listen=0.0.0.0:0", "--http=127.0.0.1:0", "--announce"]);
    master.args(["--stop-with-stdin", "--secret", &files.secret()]).args(tls);
    master.arg("--data-dir").arg(files.scratch.path().join("master"));
    let mut master = master.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(master.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let announced: serde_json::Value = serde_json::from_str(&line).unwrap();
    let at = announced["http"].as_str().unwrap().parse().unwrap();
    let health = get(at, "/healthz");
    assert!(health.starts_with("ok\nno_cluster: "), "{health}");
    assert!(get(at, "/metrics").contains("fusee_master_leads 1\n"));
    drop(master.stdin.take());
    wait(&mut master);
}

#[test]
fn a_node_that_dies_is_done_without_over_tls() {
    let files = TlsClusterFiles::new();
    let up = files.up();
    let client = Client::connect_with(&up.master, files.options()).unwrap().blocking();
    let key = |n: u32| n.to_le_bytes();
    for n in 0..100 {
        client.put(&key(n), b"before").unwrap();
    }
    let pid = up.pids()[2].to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let begun = Instant::now();
    let mut after = 0;
    while after < 100 {
        // Writes during which the node was lost possibly have to be repeated.
        match client.put(&key(after), b"after") {
            Ok(_) => after += 1,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{error}"),
        }
    }
    for n in 0..100 {
        assert_eq!(client.get(&key(n)).unwrap().as_deref(), Some(&b"after"[..]));
    }
}

#[test]
fn new_certificates_are_shown_without_a_restart() {
    let files = TlsClusterFiles::new();
    let up = files.up();
    let client = Client::connect_with(&up.master, files.options()).unwrap().blocking();
    client.put(b"key", b"value").unwrap();
    let old = Certificates::new();
    std::fs::copy(files.path("ca"), old.path("ca")).unwrap();
    let old = old.path("ca").display().to_string();
    files.run(&up, &old, &["get", "key"]).expect_code(0);
    files.certificates.renew();
    std::thread::sleep(fusee_tls::LOOK + Duration::from_millis(100));
    files.run(&up, &old, &["get", "key"]).expect_error(3, "does not believe");
    files.run(&up, &files.path("ca"), &["get", "key"]).expect_code(0);
    // Sessions and servers continue, and connect again.
    assert_eq!(client.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    std::thread::sleep(Duration::from_secs(2));
    let status = files.run(&up, &files.path("ca"), &["status", "--json"]).expect_code(0).json();
    assert!(status["problem"].is_null(), "{status}");
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let files = TlsClusterFiles::new();
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| files.path(name));
    let all = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let fails = |line: &[&str], says: &str| {
        finish(&mut fusee(line)).expect_error(2, says);
    };
    for server in ["master", "memory-node"] {
        let line = |tls: &[&str], says: &str| fails(&[&[server], tls].concat(), says);
        line(&["--tls-ca", &ca], "servers dial each other");
        line(&all[2..], "servers dial each other");
        line(&["--tls-ca", &key, "--tls-cert", &cert, "--tls-key", &key], "holds no certificate");
        line(&["--tls-ca", &ca, "--tls-cert", &key, "--tls-key", &key], "holds no certificate");
        line(&["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &ca], "holds no private key");
        line(&["--tls-ca", "/none", "--tls-cert", &cert, "--tls-key", &key], "/none");
    }
    fails(&["get", "key", "--tls-ca", &key], "holds no certificate");
    fails(&["switch", "--tls-ca", &ca], "without a switch");
    fails(&["get", "key", "--tls-ca", "/none"], "/none");
    files.certificates.put("cert", "garbage");
    fails(&[&["master"], &all[..]].concat(), "cert holds no certificate");
}
