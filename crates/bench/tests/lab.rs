//! `fusee-bench lab` from the command line.

use std::process::{Command, Stdio};
use std::time::Duration;

use fusee_testing::{Scratch, finish, fusee_bench};
use serde_json::Value;

#[test]
fn figures_are_listed_and_unknown_ones_refused() {
    let text = finish(&mut fusee_bench(&["lab", "list"])).expect_code(0).text();
    assert!(text.contains("F14") && text.contains("memory nodes"), "{text}");
    finish(&mut fusee_bench(&["lab", "figure", "99"])).expect_error(2, "there are F2, F3");
    // FUSEE's Table 1 is about a real machine, so the lab does not have it.
    finish(&mut fusee_bench(&["lab", "table", "1"])).expect_error(2, "no table 1 here");
    finish(&mut fusee_bench(&["lab", "figure", "14", "--seeds", "0"])).expect_error(2, "--seeds");
    let unknown = ["lab", "figure", "14", "--testbed", "apt"];
    finish(&mut fusee_bench(&unknown)).expect_error(2, "there are connectx-3, connectx-5, tcp-10g");
}

#[test]
fn a_table_is_found_by_its_paper() {
    let args = ["lab", "table", "1", "--paper", "elasticmem", "--seeds", "1", "--json"];
    let text = finish(&mut fusee_bench(&args)).expect_code(0).text();
    let table: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(table["figure"], "ET1");
    let to_ec = |statement: &&Value| statement["says"].as_str().unwrap().contains("to EC");
    let statements = table["statements"].as_array().unwrap();
    let holding = statements.iter().filter(to_ec).filter(|statement| statement["holds"] == true);
    assert_eq!(holding.count(), 3, "{table}");
}

/// The test uses Figure 19, whose measurements have only one client each.
// Promise CHK-10: Figures of the lab repeat bytewise, and say "simulated".
#[test]
fn a_figure_is_the_same_bytes_every_time() {
    if fusee_testing::is_long_and_left_out() {
        return;
    }
    let args = ["lab", "figure", "19", "--seeds", "1", "--operations", "1000", "--json"];
    let text = || finish(&mut fusee_bench(&args)).expect_code(0).text();
    let first = text();
    assert_eq!(first, text());
    let figure: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(figure["source"], "simulated");
    assert_eq!(figure["rows"].as_array().unwrap().len(), 100);
    // Other tests judge whether the statements hold.
    let statements = figure["statements"].as_array().unwrap();
    assert!(statements.iter().all(|statement| statement["value"].is_number()), "{figure}");
    let says = |holds: bool| statements.iter().filter(|of| of["holds"] == holds).count();
    assert!(says(true) > says(false), "{statements:?}");
}

/// An HTML page is made from a folder of figures, and contains them with their charts.
#[test]
fn a_page_is_made_of_a_folder() {
    let folder = Scratch::new();
    let path = folder.path().to_str().unwrap();
    finish(&mut fusee_bench(&["lab", "report", path])).expect_error(2, "fusee-bench lab all --out");
    let args = ["lab", "figure", "3", "--seeds", "1", "--operations", "1000", "--out", path];
    let table = finish(&mut fusee_bench(&args)).expect_code(0).text();
    assert!(table.contains("sequencer"), "{table}");
    let figure = std::fs::read(folder.path().join("F3.json")).unwrap();
    let figure: Value = serde_json::from_slice(&figure).unwrap();
    assert!(figure["measurements"][0]["setup"]["testbed"].is_string(), "{figure}");
    let page = finish(&mut fusee_bench(&["lab", "report", path])).expect_code(0).text();
    let page = std::fs::read_to_string(page.trim()).unwrap();
    let picture = std::fs::read_to_string(folder.path().join("F3.svg")).unwrap();
    assert!(picture.starts_with("<svg") && page.contains(&picture), "{page}");
    std::fs::write(folder.path().join("F3.json"), "{}").unwrap();
    finish(&mut fusee_bench(&["lab", "report", path])).expect_error(1, "F3.json");
}

/// After a signal, the results so far are printed, and marked as incomplete.
#[test]
fn a_signal_ends_a_figure_with_what_is_there() {
    let args = ["lab", "figure", "18", "--seeds", "100", "--json"];
    let child = fusee_bench(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let figure: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figure["interrupted"], true);
}
