//! Tests that the clock of leases counts the time in which the machine sleeps, and that the code of leases uses no
//! other clock.

// Promise SIL-10

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fusee_fabric::Clock;

/// The environment variable that marks the child process of this test. The child runs in a time namespace, in which the
/// machine seems to have slept for as long as the test chooses.
const SEES: &str = "FUSEE_CLOCK_SEES";

#[test]
fn the_precise_clock_counts_sleep() {
    if std::env::var_os(SEES).is_some() {
        println!("\nprecise {}", Clock::Precise.now().as_secs());
        return println!("coarse {}", Clock::Coarse.now().as_secs());
    }
    let slept_s = 1_000_000;
    let name = "the_precise_clock_counts_sleep";
    let mut command = Command::new("unshare");
    command.args(["--time", "--boottime", &slept_s.to_string()]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    let seen = command.env(SEES, "1").output();
    let Some(seen) = seen.ok().filter(|seen| seen.status.success()) else {
        return eprintln!("SKIPPED: no time namespace can be made here");
    };
    let seen = String::from_utf8(seen.stdout).unwrap();
    let of = |clock| -> u64 {
        let line = seen.lines().find_map(|line| line.strip_prefix(clock));
        line.unwrap_or_else(|| panic!("{seen}")).trim().parse().unwrap()
    };
    let precise = Clock::Precise.now().as_secs();
    let coarse = Clock::Coarse.now().as_secs();
    assert!(of("precise ") + 300 >= precise + slept_s, "{seen}");
    assert!(of("coarse ") < coarse + 600, "{seen}");
}

/// The directories whose code must use [`Clock`] only: the master with its election and store, memory nodes,
/// keepers.
const GOES_BY_LEASES: [&str; 3] = ["master/src", "memory-node/src", "client/src/logic"];

fn sources(at: &Path, found: &mut Vec<PathBuf>) {
    if at.is_dir() {
        let entries = fs::read_dir(at).unwrap().flatten();
        return entries.for_each(|entry| sources(&entry.path(), found));
    }
    // Files of tests are left out, because tests measure how long something takes.
    let name = at.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name.ends_with(".rs") && name != "tests.rs" {
        found.push(at.to_owned());
    }
}

#[test]
fn leases_go_by_clocks_that_count_sleep() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    GOES_BY_LEASES.iter().for_each(|part| sources(&crates.join(part), &mut files));
    assert!(files.len() > 40, "{files:?}");
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            // The async runtime's own instants are used only for sleeping.
            let line = line.replace("tokio::time::Instant", "");
            let is_comment = line.trim_start().starts_with("//");
            if !is_comment && line.contains("Instant") {
                wrong.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "use fusee_fabric::Clock: {wrong:#?}");
}
