//! `fusee-bench churn`: freed memory is used again on small pools, and a run that shows otherwise fails.

use fusee_testing::{finish, fusee_bench};
use serde_json::Value;

/// Pools with regions of 32 MiB and blocks of 2 MiB: 60 blocks, counted for one replica.
const SMALL: [&str; 3] = ["churn", "--pool=128MiB", "--pair-bytes=4096"];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Updates all pairs repeatedly, and checks the report.
fn update(more: &[&str], passes: u64, fill: f64) {
    let mut command = fusee_bench(&SMALL);
    command.args(["--sessions=2", "--every=2", "--rounds=0", "--json"]).args(more);
    command.args([format!("--passes={passes}"), format!("--fill={fill}")]);
    let report = finish(&mut command).expect_code(0).json();
    assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
    assert_eq!(report["rounds"], Value::Null);
    let updates = &report["updates"];
    let keys = &updates["keys"];
    let live = number(&updates["live_bytes"]);
    assert_eq!((keys, keys), (&updates["read_back"], &report["verified_keys"]));
    assert!((number(&updates["fill"]) - fill).abs() < 0.01, "{report:#}");
    assert_eq!(live, number(keys) * number(&report["memory"]["object_bytes"]));
    let most = number(&updates["most_in_use_bytes"]);
    let data = &report["memory"]["data_bytes"];
    assert!((number(&updates["factor"]) - most / live).abs() < 1e-9, "{report:#}");
    assert!(most >= live && most <= number(data), "{report:#}");
    assert!(passes as f64 * live > 1.5 * number(data), "more was written than there is room for");
    let rows = updates["passes"].as_array().unwrap();
    let shown: Vec<u64> = rows.iter().map(|pass| pass["pass"].as_u64().unwrap()).collect();
    assert_eq!((shown[0], shown[1], shown.last()), (1, 2, Some(&passes)), "{report:#}");
    assert_eq!(updates["passes_done"], passes);
    for pass in rows {
        assert!(number(&pass["ops_per_s"]) > 0.0 && number(&pass["most_in_use_bytes"]) <= most);
        let nodes = pass["nodes"].as_object().unwrap();
        let bytes: u64 = nodes.values().map(|n| n["in_use_bytes"].as_u64().unwrap()).sum();
        assert_eq!((nodes.len(), &pass["in_use_bytes"]), (3, &bytes.into()));
    }
    for kind in ["update", "search"] {
        let count = number(&updates["operations"][kind]["count"]);
        assert_eq!(count, passes as f64 * number(keys), "{kind}: {report:#}");
    }
}

// Promise MEM-22: Updates need no more memory than their pairs.
#[test]
fn updates_need_no_more_memory_than_their_pairs_and_what_is_on_its_way() {
    for fabric in ["shm", "tcp"] {
        update(&["--fabric", fabric], 5, 0.35);
    }
}

#[test]
fn updates_go_on_when_hardly_anything_is_free() {
    update(&[], 10, 0.7);
}

/// Checks the rounds of a report, of a run that succeeded or failed. Returns how many pairs fitted in each round.
fn check_rounds(report: &Value) -> Vec<u64> {
    assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
    let rounds = &report["rounds"];
    let fits = rounds["rounds"].as_array().unwrap().iter().map(|round| {
        let fit = round["fit"].as_u64().unwrap();
        // Every second pair was deleted, beginning with the first or the second pair.
        let half = round["deleted"].as_u64().unwrap();
        assert!((fit / 2..=fit.div_ceil(2)).contains(&half), "{round:#}");
        fit
    });
    let fits: Vec<u64> = fits.collect();
    assert_eq!(rounds["first_fit"], fits[0]);
    assert_eq!(rounds["last_fit"], fits[fits.len() - 1]);
    assert_eq!(rounds["least_fit"], *fits.iter().min().unwrap());
    // Each round reads all keys twice, and all keys are read once more at the end.
    let reads = (2 * fits.len() as u64 + 1) * fits[0];
    assert!(report["verified_keys"].as_u64().unwrap() >= reads, "{report:#}");
    fits
}

#[test]
fn what_is_deleted_makes_room() {
    let line = ["--passes=0", "--rounds=3", "--fill-up=0.5", "--sessions=2", "--json"];
    let report = finish(fusee_bench(&SMALL).args(line)).expect_code(0).json();
    let fits = check_rounds(&report);
    let wanted = number(&report["memory"]["data_bytes"]) * 0.5;
    assert_eq!(fits, [(wanted / number(&report["memory"]["object_bytes"])) as u64; 3]);
}

#[test]
fn a_full_pool_can_be_emptied_and_filled_again() {
    let line = ["--passes=0", "--rounds=3", "--sessions=2", "--json"];
    let report = finish(fusee_bench(&SMALL).args(line)).expect_code(0).json();
    assert_eq!(check_rounds(&report).len(), 3);
    // By default, nine tenths of the pairs of the first round have to fit in every round.
    let fill = &report["rounds"]["rounds"][0]["fill"];
    let least = &report["rounds"]["least_share"];
    assert!(number(fill) > 0.6 && number(least) >= 0.9, "{report:#}");
}

#[test]
fn a_pool_that_is_too_full_for_updates_fails_the_run() {
    let line = ["--sessions=2", "--passes=1", "--rounds=0", "--fill=1", "--json"];
    let output = finish(fusee_bench(&SMALL).args(line)).expect_code(1);
    assert!(output.stderr.contains("the benchmark failed"), "{}", output.stderr);
    let report = output.json();
    let refused = report["errors"]["by_kind"]["out_of_memory"].as_u64();
    assert!(refused > Some(0) && report["mismatches"] == 0, "{report:#}");
}

#[test]
fn impossible_churn_is_refused_before_it_starts() {
    for (more, says) in [
        (&["--fill", "1.5"][..], "--fill must be more than 0 and at most 1"),
        (&["--least-share", "0"], "--least-share must be"),
        (&["--fill-up", "0"], "--fill-up must be"),
        (&["--passes", "0", "--rounds", "0"], "there is nothing to do"),
        (&["--pool", "1MiB"], "needs at least 64.0 MiB"),
        (&["--pool", "1TiB"], "lower --pool or --memory-nodes"),
        (&["--pair-bytes", "39"], "at least 40 bytes"),
        (&["--pair-bytes", "2000000"], "pairs have at most 1048592 bytes"),
        (&["--memory-nodes", "2", "--index-replicas", "3"], "--index-replicas is 3"),
    ] {
        finish(fusee_bench(&["churn"]).args(more)).expect_error(2, says);
    }
}
