//! Completions and manual pages of `fusee-bench`.

use std::fs::read_to_string;

use fusee_testing::manual::expect_texts;
use fusee_testing::{Scratch, finish, fusee, fusee_bench};

const COMMANDS: [&str; 6] = ["ycsb", "micro", "compare", "lab", "sim", "completions"];

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = finish(&mut fusee_bench(&["completions", shell])).expect_code(0).text();
        for word in COMMANDS.iter().chain(&["workload"]) {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
    }
}

/// Both programs can write their pages into one directory, as a package does.
#[test]
fn every_command_has_a_manual_page_and_none_is_of_both_programs() {
    let [of_servers, of_benchmarks, both] = [(); 3].map(|()| Scratch::new());
    for (program, directory) in [
        (fusee as fn(&[&str]) -> _, of_servers.path()),
        (fusee_bench, of_benchmarks.path()),
        (fusee, both.path()),
        (fusee_bench, both.path()),
    ] {
        finish(&mut program(&["man", directory.to_str().unwrap()])).expect_code(0);
    }
    for command in COMMANDS {
        let path = of_benchmarks.path().join(format!("fusee-bench-{command}.1"));
        // In roff a hyphen of the text is written `\-`.
        let page = read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let page = page.replace("\\-", "-");
        assert!(page.contains(&format!("fusee-bench {command}")), "an example: {page}");
    }
    let pages = expect_texts(of_benchmarks.path());
    assert_eq!(expect_texts(of_servers.path()) + pages, expect_texts(both.path()));
}
