//! `fusee master` and `fusee memory-node`, started by hand, with settings from three sources and an orderly end.

// Promise API-3

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::{Scratch, eventually, finish, fusee, signal, wait};

/// A server that has announced its addresses.
struct AnnouncedServer {
    child: Child,
    announced: Value,
}

impl AnnouncedServer {
    fn start(command: &mut Command) -> AnnouncedServer {
        command.arg("--announce").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(announced) = serde_json::from_str(&line) else {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            panic!("no announcement: {text}");
        };
        AnnouncedServer { child, announced }
    }

    fn control(&self) -> &str {
        self.announced["control"].as_str().unwrap()
    }

    fn stop(mut self, name: &str) {
        signal(name, self.child.id());
        assert_eq!(wait(&mut self.child).code(), Some(0));
    }
}

impl Drop for AnnouncedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(master: &str) -> Value {
    let output = finish(&mut fusee(&["status", "--json", "--master", master]));
    // The exit code is 1 while no cluster is ready.
    let report = output.json();
    output.expect_code(i32::from(report["ready"] != true));
    report
}

#[test]
fn a_flag_beats_the_environment_and_the_environment_beats_the_file() {
    let scratch = Scratch::new();
    let text = format!(
        "listen = \"127.0.0.1:0\"\nmemory-nodes = 5\ndata-dir = \"{}\"\nregion-bytes = \"1GiB\"\n",
        scratch.path().join("master").display()
    );
    let file = scratch.file("master.toml", text.as_bytes());
    let expected = |command: &mut Command| {
        let master = AnnouncedServer::start(command);
        let expected = status(master.control())["expected_memory_nodes"].clone();
        master.stop("TERM");
        expected
    };
    let line = ["master", "--config", &file];
    assert_eq!(expected(&mut fusee(&line)), 5);
    assert_eq!(expected(fusee(&line).env("FUSEE_MEMORY_NODES", "4")), 4);
    let both = &mut fusee(&line);
    assert_eq!(expected(both.env("FUSEE_MEMORY_NODES", "4").args(["--memory-nodes", "3"])), 3);
}

#[test]
fn mistakes_in_a_file_are_named_with_their_line() {
    let scratch = Scratch::new();
    for (server, text, says) in [
        ("master", "memory-nodes = 3\nreplicas = 2\n", "unknown field `replicas`"),
        ("master", "listen = 5\n", ":1:10: listen: invalid type"),
        ("memory-node", "\n\npol = \"1GiB\"\n", ":3:1: unknown field `pol`"),
        ("memory-node", "pool = \"lots\"\n", "is no number of bytes"),
        ("memory-node", "serve = [\"pigeon\"]\n", "pigeon"),
    ] {
        let file = scratch.file("bad.toml", text.as_bytes());
        let output = finish(&mut fusee(&[server, "--config", &file]));
        assert!(output.stderr.contains(&file), "{}", output.stderr);
        output.expect_error(2, says);
    }
    finish(&mut fusee(&["master", "--config", "/nowhere"])).expect_error(2, "/nowhere");
    finish(fusee(&["master"]).env("FUSEE_INDEX_REPLICAS", "many")).expect_error(2, "many");
}

#[test]
fn servers_form_a_cluster_and_stop_cleanly() {
    let scratch = Scratch::new();
    let data_dir = format!("--data-dir={}", scratch.path().join("master").display());
    let replicas = ["--memory-nodes=1", "--index-replicas=1", "--data-replicas=1"];
    let sizes = ["--region-bytes=128MiB", "--block-bytes=4MiB", "--index-keys=1000"];
    let line = ["master", "--listen=127.0.0.1:0", &data_dir];
    let master = AnnouncedServer::start(fusee(&line).args(replicas).args(sizes));
    let address = master.control().to_string();
    let empty = status(&address);
    assert_eq!((&empty["ready"], &empty["cluster"]), (&false.into(), &Value::Null));
    let get = ["get", "k", "--master", &address];
    finish(&mut fusee(&get)).expect_error(3, &format!("fusee form --master {address}"));
    finish(&mut fusee(&["status", "--master", &address])).expect_error(1, "run `fusee form`");
    let form = ["form", "--no-wait", "--json", "--master", &address];
    finish(fusee(&form).args(["--id", "0"])).expect_error(2, "16 hexadecimal digits");
    let named = [&form[..], &["--id", "00000000000000ab"]].concat();
    let formed = finish(&mut fusee(&named)).expect_code(0).json();
    assert_eq!(formed["cluster"], "00000000000000ab");
    let forming = status(&address);
    assert_eq!((&forming["ready"], &forming["view"]), (&false.into(), &0.into()));
    assert_eq!(forming["cluster"], formed["cluster"]);
    finish(&mut fusee(&["status", "--master", &address])).expect_error(1, "is forming");
    // A master forms only one cluster. A repeated request for the same cluster succeeds.
    finish(&mut fusee(&form)).expect_error(1, formed["cluster"].as_str().unwrap());
    let other = [&form[..], &["--id", "00000000000000ac"]].concat();
    finish(&mut fusee(&other)).expect_error(1, "00000000000000ab");
    for again in [&named, &[&form[..], &["--if-unformed"]].concat()] {
        assert_eq!(finish(&mut fusee(again)).expect_code(0).json(), formed);
    }
    let file = scratch.file("node.toml", b"pool = \"256MiB\"\nserve = [\"shm\", \"tcp\"]\n");
    let sockets = scratch.path().join("sockets");
    std::fs::create_dir(&sockets).unwrap();
    let mut node = fusee(&["memory-node", "--config", &file]);
    node.env("FUSEE_MASTER", &address).env("FUSEE_SHM_DIR", &sockets);
    let node = AnnouncedServer::start(&mut node);
    eventually("the cluster is ready", || status(&address)["ready"] == true);
    let again = ["form", "--if-unformed", "--json", "--master", &address];
    let again = finish(&mut fusee(&again)).expect_code(0).json();
    assert_eq!((&again["cluster"], &again["formed"]), (&formed["cluster"], &true.into()));
    finish(&mut fusee(&["put", "k", "v", "--master", &address])).expect_code(0);
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 1);
    node.stop("INT");
    assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0, "its socket is left");
    master.stop("INT");
}

#[test]
fn a_server_can_be_bound_to_its_standard_input() {
    let scratch = Scratch::new();
    let data_dir = format!("--data-dir={}", scratch.path().display());
    let mut command = fusee(&["master", "--listen=127.0.0.1:0", "--stop-with-stdin", &data_dir]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    assert_eq!(wait(&mut child).code(), Some(0));
}
