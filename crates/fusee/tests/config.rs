//! `fusee config`, and settings that change in running servers.

// Promise API-22: Every mistake of a settings file is named; reloads apply changes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{CommandOutput, Scratch, eventually, finish, fusee, is_alive, signal, wait};

fn check(scratch: &Scratch, text: &str, more: &[&str]) -> CommandOutput {
    let file = scratch.file("checked.toml", text.as_bytes());
    finish(fusee(&["config", "check", &file]).args(more))
}

#[test]
fn a_good_file_is_known_by_its_names() {
    let scratch = Scratch::new();
    for (text, server) in [
        ("memory-nodes = 4\nlisten = \"127.0.0.1:0\"", "master"),
        ("pool = \"1GiB\"", "memory-node"),
        ("slots = 7", "switch"),
    ] {
        let text = check(&scratch, text, &[]).expect_code(0).text();
        assert!(text.contains(&format!("settings of a {server}")), "{text}");
    }
    check(&scratch, "listen = \"127.0.0.1:0\"", &[]).expect_error(2, "say with --for");
    check(&scratch, "listen = \"127.0.0.1:0", &[]).expect_error(1, "1 mistake in");
    check(&scratch, "listen = \"127.0.0.1:0\"", &["--for", "switch"]).expect_code(0);
    check(&scratch, "pool = 1", &["--for", "master"]).expect_error(1, "1 mistake in");
    finish(&mut fusee(&["config", "check", "--for", "master", "/no/file"])).expect_code(1);
    // A check considers neither the environment nor flags.
    let file = scratch.file("alone.toml", b"memory-nodes = 4\n");
    let mut alone = fusee(&["config", "check", &file]);
    finish(alone.env("FUSEE_LEASE", "1").env("FUSEE_MEMORY_NODES", "x")).expect_code(0);
}

#[test]
fn all_mistakes_of_a_file_are_named_with_their_places() {
    let scratch = Scratch::new();
    let secret = scratch.path().join("secret");
    finish(&mut fusee(&["secret", "new", secret.to_str().unwrap()])).expect_code(0);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let text = format!(
        "secret = \"{}\"\nmemory-nodes = 2\nlease = 3\n\n[redundancy]\npromote-after = 1\n",
        secret.display()
    );
    let output = check(&scratch, &text, &[]).expect_code(1);
    let file = scratch.path().join("checked.toml");
    for (line, says) in [
        (1, "`chmod 600` it"),
        (2, "or lower --index-replicas"),
        (6, "redundancy.promote-after is 1; it must be 2..=10000"),
    ] {
        let place = format!("{}:{line}:1: ", file.display());
        let text = output.text();
        let named = text.lines().any(|said| said.starts_with(&place) && said.contains(says));
        assert!(named, "{place}{says} is not in: {text}");
    }
    let text = "listen = 5\nnope = 1\nindex-keys = -1\nblock-bytes = \"4 Mib/s\"\nlog = \"a=b\"\n";
    let report = check(&scratch, text, &["--for", "master", "--json"]).expect_code(1).json();
    assert_eq!(report["server"], "master");
    let problems = report["problems"].as_array().unwrap();
    let place =
        |problem: &Value| (problem["line"].as_u64().unwrap(), problem["column"].as_u64().unwrap());
    let places: Vec<_> = problems.iter().map(place).collect();
    assert_eq!(places, [(1, 10), (2, 1), (3, 14), (4, 15), (5, 7)], "{report}");
    assert_eq!(problems[3]["setting"], "block-bytes");
    assert!(problems[3]["message"].as_str().unwrap().contains("is no number of bytes"), "{report}");
    assert!(problems[4]["message"].as_str().unwrap().contains("is no filter of a log"), "{report}");
}

/// A wrong name does not hide another mistake.
#[test]
fn names_and_values_that_are_wrong_are_named_together() {
    let scratch = Scratch::new();
    let text =
        "memory-node = 5\nlease = 3\nindex-keys = \"many\"\n[redundancy]\npromote-after = 1\n";
    let text = check(&scratch, text, &["--for", "master"]).expect_code(1).text();
    for says in [
        ":1:1: unknown field `memory-node`: did you mean `memory-nodes`?",
        ":2:1: --lease is 3; it must be at least 4",
        ":3:14: index-keys: invalid type",
        ":5:1: redundancy.promote-after is 1",
    ] {
        assert!(text.contains(says), "{says} is not in: {text}");
    }
    assert_eq!(text.lines().count(), 4, "{text}");
}

#[test]
fn files_that_the_docs_show_are_good() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations");
    let scratch = Scratch::new();
    let mut shown = 0;
    for page in fs::read_dir(root).unwrap() {
        let page = fs::read_to_string(page.unwrap().path()).unwrap();
        for block in page.split("```toml\n").skip(1) {
            let text = block.split("```").next().unwrap();
            let output = check(&scratch, text, &[]);
            assert_eq!(output.code, Some(0), "{text}: {output:?}");
            shown += 1;
        }
    }
    assert!(shown > 1);
}

#[test]
fn what_is_in_force_is_shown_with_its_origin_and_is_a_file() {
    let scratch = Scratch::new();
    let file = scratch.file(
        "master.toml",
        b"memory-nodes = 4\nlease = 200\n[redundancy]\nfallback = \"replicated\"\n",
    );
    let line = ["master", "--config", &file, "--data-replicas", "1", "--redundancy", "4KiB=ec:2+1"];
    let show = |more: &[&str]| {
        let mut command = fusee(&["config", "show"]);
        command.args(more).args(line).env("FUSEE_LEASE", "300").env("FUSEE_INDEX_KEYS", "77");
        finish(&mut command).expect_code(0)
    };
    let report = show(&["--json"]).json();
    let setting = |name: &str| {
        let settings = report["settings"].as_array().unwrap().iter();
        settings.clone().find(|setting| setting["name"] == name).unwrap().clone()
    };
    for (name, expected) in [
        (
            "memory-nodes",
            json!({"value": 4, "origin": "file", "file": file, "line": 1, "column": 1}),
        ),
        ("lease", json!({"value": 300, "origin": "environment", "variable": "FUSEE_LEASE"})),
        ("data-replicas", json!({"value": 1, "origin": "flag", "flag": "--data-replicas"})),
        ("index-replicas", json!({"value": 3, "origin": "default"})),
        ("store", json!({"value": null, "origin": "default"})),
        ("redundancy.fallback", json!({"value": "replicated", "origin": "file", "line": 4})),
        ("redundancy.default", json!({"value": "replicated", "origin": "flag"})),
        ("redundancy.rules", json!({"value": [{"from": 4096, "redundancy": "ec:2+1"}]})),
        ("max-value-bytes", json!({"value": 4 << 20, "live": false})),
        ("scrub-bytes-per-s", json!({"value": 4 << 20, "live": true})),
    ] {
        let setting = setting(name);
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&setting[key], value, "{name}: {setting}");
        }
    }
    // The output is a file that sets the same values.
    let shown = scratch.file("shown.toml", show(&[]).text().as_bytes());
    finish(&mut fusee(&["config", "check", &shown])).expect_code(0);
    let again = finish(&mut fusee(&["config", "show", "--json", "master", "--config", &shown]));
    let values = |report: &Value| -> Vec<(Value, Value)> {
        let settings = report["settings"].as_array().unwrap().iter();
        settings.map(|setting| (setting["name"].clone(), setting["value"].clone())).collect()
    };
    assert_eq!(values(&again.expect_code(0).json()), values(&report));
    for server in ["memory-node", "switch"] {
        let text = finish(&mut fusee(&["config", "show", server])).expect_code(0).text();
        let shown = scratch.file("shown.toml", text.as_bytes());
        finish(&mut fusee(&["config", "check", &shown])).expect_code(0);
    }
    let wrong = ["config", "show", "master", "--lease", "1"];
    finish(&mut fusee(&wrong)).expect_error(2, "--lease is 1; it must be at least 4");
    let mut wrong = fusee(&["config", "show", "master"]);
    finish(wrong.env("FUSEE_LEASE", "1")).expect_error(2, "FUSEE_LEASE in the environment");
}

/// A server that has announced its addresses and writes its log to a file.
pub struct LoggedServer {
    child: Child,
    pub log: String,
    pub announced: Value,
}

impl LoggedServer {
    pub fn start(scratch: &Scratch, name: &str, command: &mut Command) -> LoggedServer {
        let log = scratch.file(name, b"");
        command.arg("--announce").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced = serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("{error}: {line}{}", fs::read_to_string(&log).unwrap_or_default())
        });
        LoggedServer { child, log, announced }
    }

    /// Makes the server read its settings again, and waits until the log contains `until`. Returns the lines logged
    /// since the call.
    fn reload(&self, until: &str) -> String {
        let said = || fs::read_to_string(&self.log).unwrap();
        let before = said().len();
        signal("HUP", self.child.id());
        eventually(until, || said()[before..].contains(until));
        said()[before..].to_owned()
    }
}

impl Drop for LoggedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const AGAIN: &str = "the settings were read again; in force now: ";

#[test]
fn a_master_takes_over_what_can_change_and_names_what_cannot() {
    let scratch = Scratch::new();
    let write = |text: &str| {
        let data_dir = scratch.path().join("store");
        let head = format!("listen = \"127.0.0.1:0\"\ndata-dir = \"{}\"\n", data_dir.display());
        scratch.file("master.toml", (head + text).as_bytes())
    };
    let file = write("");
    let mut command = fusee(&["master", "--config", &file, "--scrub-bytes-per-s", "1MiB"]);
    let master = LoggedServer::start(&scratch, "log", &mut command);
    let address = master.announced["control"].as_str().unwrap();
    // At level `debug` the library that serves requests logs too.
    write(
        "log = \"debug\"\nlease = 500\nscrub-bytes-per-s = 5\n[redundancy]\ndefault = \"ec:2+1\"\n",
    );
    let said = master.reload(AGAIN);
    assert!(said.contains("in force now: log, redundancy\n"), "{said}");
    assert!(said.contains("lease has another value now: that needs a restart"), "{said}");
    assert!(!said.contains("scrub"), "a flag beats the file: {said}");
    let status = || finish(&mut fusee(&["status", "--json", "--master", address])).json();
    assert_eq!(status()["redundancy"]["default"], "ec:2+1", "{}", status());
    eventually("debug lines", || fs::read_to_string(&master.log).unwrap().contains(" DEBUG "));
    write(
        "log = \"debug\"\nmove-bytes-per-s = 5\nlease = 500\n[redundancy]\ndefault = \"ec:2+1\"\n",
    );
    let said = master.reload(AGAIN);
    assert!(said.contains("in force now: move-bytes-per-s\n"), "{said}");
    // A file with a mistake changes nothing, and the log names the mistake.
    write("move-bytes-per-s = 0\nlog = \"info\"\n");
    let said = master.reload("stay in force");
    assert!(said.contains(":3:1: --move-bytes-per-s is 0; it must be at least 1"), "{said}");
    write("[redundancy\n");
    let said = master.reload("stay in force");
    assert!(said.contains("master.toml:3:"), "{said}");
    assert_eq!(status()["redundancy"]["default"], "ec:2+1");
    fs::remove_file(&file).unwrap();
    master.reload("stay in force");
    write("log = \"info\"\n");
    let said = master.reload(AGAIN);
    assert!(said.contains("in force now: log, move-bytes-per-s, redundancy\n"), "{said}");
    master.reload("the settings were read again; nothing changes");
    assert!(is_alive(master.child.id()));
}

#[test]
fn a_memory_node_and_a_switch_take_over_what_can_change() {
    let scratch = Scratch::new();
    let file = scratch.file("node.toml", b"pool = \"64MiB\"\nserve = [\"tcp\"]\n");
    let mut command = fusee(&["memory-node", "--config", &file, "--master", "127.0.0.1:1"]);
    let node = LoggedServer::start(&scratch, "node.log", &mut command);
    let text = b"pool = \"128MiB\"\nserve = [\"tcp\"]\nspin-us = 0\nlog = \"debug\"\n";
    scratch.file("node.toml", text);
    let said = node.reload(AGAIN);
    assert!(said.contains("in force now: log, spin-us\n"), "{said}");
    assert!(said.contains("pool has another value now: that needs a restart"), "{said}");
    eventually("debug lines", || fs::read_to_string(&node.log).unwrap().contains(" DEBUG "));

    let up = crate::common::UpCluster::start(&[
        "--memory-nodes",
        "1",
        "--pool",
        "256MiB",
        "--fabric",
        "tcp",
    ]);
    let file = scratch.file("switch.toml", b"listen = \"127.0.0.1:0\"\nslots = 5\n");
    let mut command = up.command(&["switch", "--config", &file]);
    let switch = LoggedServer::start(&scratch, "switch.log", &mut command);
    scratch.file(
        "switch.toml",
        b"listen = \"127.0.0.1:0\"\nslots = 6\nforget-every = 10\nevery = 60\n",
    );
    let said = switch.reload(AGAIN);
    assert!(said.contains("in force now: every, forget-every\n"), "{said}");
    assert!(said.contains("slots has another value now: that needs a restart"), "{said}");
}

#[test]
fn without_a_file_a_hangup_ends_a_server() {
    let scratch = Scratch::new();
    let data_dir = scratch.path().join("store");
    let mut command = fusee(&["master", "--listen=127.0.0.1:0", "--data-dir"]);
    let mut master = LoggedServer::start(&scratch, "log", command.arg(data_dir));
    signal("HUP", master.child.id());
    assert_eq!(wait(&mut master.child).code(), Some(0));
}
