//! Files that packages contain in addition to the program: completions, manual pages, and settings of servers.

use std::fs::{self, read_to_string};
use std::path::Path;
use std::process::Command;

use crate::common::manual::expect_texts;
use crate::common::{Scratch, UpCluster, finish, fusee};
use crate::tls::testing::Certificates;

/// Commands that every build has.
const COMMANDS: [&str; 5] = ["master", "memory-node", "form", "status", "completions"];

// Promise API-30: Shells complete commands, options and names of memory nodes.
#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = finish(&mut fusee(&["completions", shell])).expect_code(0).text();
        for word in COMMANDS.iter().chain(&["data-dir"]) {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
    }
    finish(&mut fusee(&["completions", "dos"])).expect_error(2, "invalid value 'dos'");
}

/// The completion asks the master for the names of memory nodes. If the master does not answer, no name is completed.
// Promise API-30
#[test]
fn completions_know_the_memory_nodes() {
    let up = UpCluster::start(&["--pool", "512MiB"]);
    let scratch = Scratch::new();
    let path = scratch.path().join("completions");
    fs::write(&path, finish(&mut fusee(&["completions", "bash"])).expect_code(0).stdout).unwrap();
    // The script calls the completion as bash does when the user presses Tab.
    let script = r#"source "$1"; line=$2; COMP_LINE=$line COMP_POINT=${#line}
        read -ra COMP_WORDS <<< "$line"; [[ $line != *" " ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _fusee_or_node fusee "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        echo "${COMPREPLY[@]}""#;
    let programs = Path::new(env!("CARGO_BIN_EXE_fusee")).parent().unwrap();
    let complete = |line: &str, master: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash", path.to_str().unwrap(), line]);
        bash.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
        finish(bash.env("FUSEE_MASTER", master)).expect_code(0).text().trim_end().to_owned()
    };
    assert_eq!(complete("fusee drain ", &up.master), "mn0 mn1 mn2");
    assert_eq!(complete("fusee drain mn1", &up.master), "mn1");
    let named = format!("fusee drain --master {} mn", up.master);
    assert_eq!(complete(&named, "127.0.0.1:1"), "mn0 mn1 mn2");
    assert!(!complete("fusee drain ", "127.0.0.1:1").contains("mn"));
    assert_eq!(complete("fusee drain --ca", &up.master), "--cancel");
    assert!(!complete("fusee drain --master ", &up.master).contains("mn0"));
    assert!(!complete("fusee get ", &up.master).contains("mn0"));
}

#[test]
fn every_command_has_a_manual_page() {
    let scratch = Scratch::new();
    finish(&mut fusee(&["man", scratch.path().to_str().unwrap()])).expect_code(0);
    let page = |name: &str| {
        let path = scratch.path().join(format!("{name}.1"));
        read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    assert!(page("fusee").contains(".TH fusee 1"));
    for command in COMMANDS {
        // In roff a hyphen of the text is written `\-`.
        let page = page(&format!("fusee-{command}")).replace("\\-", "-");
        assert!(page.contains(&format!("fusee {command}")), "an example of {command}: {page}");
    }
    expect_texts(scratch.path());
    let missing = scratch.path().join("missing");
    let missing = missing.to_str().unwrap();
    finish(&mut fusee(&["man", missing])).expect_error(1, missing);
}

/// Servers start with the settings of the Debian package, and with the settings in its comments.
#[test]
fn servers_take_the_settings_of_the_package() {
    let scratch = Scratch::new();
    let directory = scratch.path().to_str().unwrap();
    let secret = scratch.path().join("secret");
    let certificates = Certificates::new();
    finish(&mut fusee(&["secret", "new", secret.to_str().unwrap()])).expect_code(0);
    let [ca, cert, key] = ["ca", "cert", "key"].map(|name| certificates.path(name));
    let files = [("secret", secret), ("ca.pem", ca), ("server.pem", cert), ("server.key", key)];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/debian");
    // The ports in the files are possibly in use, so the test chooses other ports.
    let http = ["--http", "127.0.0.1:0"];
    let master = ["master", "--listen", "127.0.0.1:0", "--data-dir", directory];
    let node = ["memory-node", "--shm-dir", directory, "--pool", "64MiB"];
    for (server, file) in [(&master[..], "master.toml"), (&node[..], "memory-node.toml")] {
        let text = read_to_string(root.join(file)).unwrap();
        let is_setting = |line: &str| line.starts_with("#[") || line.contains(" = ");
        let all = text.lines().filter(|line| is_setting(line) && !line.starts_with("# "));
        // Settings that need other machines or a shared store cannot be tested here.
        let is_shared =
            |line: &str| line.starts_with("#store-") || line.starts_with("#lease-ttl-s");
        let is_here = |line: &&str| !line.contains("10.0.0.") && !is_shared(line);
        let all: Vec<&str> = all.filter(is_here).collect();
        assert!(all.iter().any(|line| line.starts_with('#')), "{file} shows settings in comments");
        let all = all.iter().map(|line| line.trim_start_matches('#').to_owned() + "\n");
        for text in [text.clone(), all.collect()] {
            // The test's files replace the files of an installation.
            let text = files.iter().fold(text, |text, (name, file)| {
                text.replace(&format!("/etc/fusee/{name}"), file.to_str().unwrap())
            });
            let file = scratch.file(file, text.as_bytes());
            let arguments = [server, &http, &["--config", &file, "--stop-with-stdin"]].concat();
            finish(&mut fusee(&arguments)).expect_code(0);
        }
    }
}
