//! `fusee-bench capacity`, on small clusters that it fills.

use fusee_testing::{finish, fusee_bench};

const SMALL: [&str; 5] = [
    "capacity",
    "--value-bytes=64KiB",
    "--pool=24MiB",
    "--region-bytes=1MiB",
    "--block-bytes=512KiB",
];

#[test]
fn a_code_holds_more_pairs_than_replicas_do() {
    let mut command = fusee_bench(&SMALL);
    command.args(["--redundancy=replicated,ec:2+1", "--memory-nodes=3", "--json"]);
    let report = finish(&mut command).expect_code(0).json();
    assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
    let full = report["full"].as_array().unwrap();
    assert_eq!(
        (&full[0]["redundancy"], &full[1]["redundancy"]),
        (&"replicated".into(), &"ec:2+1".into())
    );
    let pairs: Vec<u64> = full.iter().map(|full| full["pairs"].as_u64().unwrap()).collect();
    assert_eq!(report["verified_keys"].as_u64(), Some(pairs.iter().sum()), "{report:#}");
    // Three replicas take 3 times the value's bytes, the code 1.5 times. A few regions are replicated in any case.
    let ratio = full[1]["ratio"].as_f64().unwrap();
    assert!((1.5..2.1).contains(&ratio), "{report:#}");
    for full in full {
        let bytes = |name: &str| full[name].as_u64().unwrap();
        let parts = bytes("region_bytes") + bytes("other_region_bytes") + bytes("rest_bytes");
        assert_eq!(Some(parts), report["lent_bytes"].as_u64(), "{report:#}");
        // The pairs fill the regions, except for the ends of blocks, and for the smallest blocks.
        let held = full["block_bytes"].as_f64().unwrap() * bytes("pairs") as f64;
        let room = bytes("region_bytes") as f64;
        assert!(held > 0.75 * room && held < 1.001 * room, "{held} of {room}: {report:#}");
    }
    assert_eq!(full[0]["other_region_bytes"], 0);
}

#[test]
fn impossible_capacities_are_refused_before_they_start() {
    for (more, says) in [
        (&["--redundancy=ec:4+2", "--memory-nodes=5"][..], "take 6"),
        (&["--redundancy=ec:9+9"], "no erasure code"),
        (&["--redundancy=ec:4+2", "--value-bytes=1000"], "at least 1024"),
        (&["--value-bytes=8"], "at least 24"),
        (&["--value-bytes=64MiB"], "values have at most"),
        (&["--region-bytes=3MiB"], "power of two"),
        (&["--data-replicas=7", "--memory-nodes=7"], "--data-replicas is 7"),
    ] {
        finish(fusee_bench(&["capacity"]).args(more)).expect_error(2, says);
    }
}
