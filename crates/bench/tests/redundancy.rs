//! `fusee-bench redundancy`: a small run. The test does not judge times, but the run checks its reads and writes.

use std::fs;

use fusee_testing::{Scratch, finish, fusee_bench};

const SMALL: [&str; 6] = [
    "redundancy",
    "--set=2:replicated,ec:2+1",
    "--rounds=2",
    "--operations=3",
    "--memory-nodes=3",
    "--pool=512MiB",
];

#[test]
fn transitions_move_what_the_layouts_and_the_paper_say() {
    let scratch = Scratch::new();
    let plot = scratch.path().join("redundancy.svg");
    let mut command = fusee_bench(&SMALL);
    command.args(["--value-bytes=256B,16KiB,60KiB", "--json"]).arg("--plot").arg(&plot);
    let report = finish(&mut command).expect_code(0).json();
    assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
    // Values of 256 bytes can only be replicated; each other length has three groups of keys.
    assert_eq!((&report["verified_keys"], &report["fabric"]), (&21.into(), &"tcp".into()));
    let refused = report["refused"].as_array().unwrap();
    assert!(refused.len() == 1 && refused[0].as_str().unwrap().contains("512"), "{report:#}");
    let sized = report["sized"].as_array().unwrap();
    assert_eq!(sized.len(), 3);
    assert_eq!(sized[0]["accesses"].as_array().unwrap().len(), 1);
    for sized in &sized[1..] {
        let accesses = sized["accesses"].as_array().unwrap();
        let names: Vec<&str> =
            accesses.iter().map(|access| access["redundancy"].as_str().unwrap()).collect();
        assert_eq!(names, ["replicated (2)", "ec:2+1"]);
        assert_eq!(accesses[0]["read_ratio"]["median"], 1.0);
        assert!(accesses[1]["write_us"]["median"].as_f64().unwrap() > 0.0, "{report:#}");
        let transitions = sized["transitions"].as_array().unwrap();
        for (way, table_1) in transitions.iter().zip([2.5, 3.0]) {
            assert_eq!(
                (&way["lengths_by_table_1"], &way["transitions"]),
                (&table_1.into(), &6.into())
            );
            let number = |name: &str| way[name].as_f64().unwrap();
            // A transition also accesses a slot or two, and a session that has to wait for a block reads the value
            // again.
            let over = number("lengths") / number("lengths_by_class");
            assert!((1.0..1.5).contains(&over), "{over}: {report:#}");
            assert!(number("lengths_by_class") < 1.125 * table_1 + 0.1, "{report:#}");
        }
    }
    let svg = fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("transition, microseconds") && svg.contains("ec:2+1"), "{svg}");
}

#[test]
fn the_tables_have_what_the_paper_says_beside_them() {
    let mut command = fusee_bench(&SMALL);
    let text = finish(command.args(["--value-bytes=16KiB", "--fabric=shm"])).expect_code(0).text();
    for says in ["ElasticMem, Fig. 8", "Table 1", "replicated (2)", "0 mismatches, 0 errors"] {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn impossible_sets_are_refused_before_they_start() {
    for (more, says) in [
        (&["--set=replicated"][..], "3:replicated,ec:4+2"),
        (&["--set=3:raid"], "is no redundancy"),
        (&["--set=2:ec:2+1,ec:2+1"], "twice"),
        (&["--memory-nodes=5"], "takes 6"),
        (&["--value-bytes=1GiB"], "must be 24..=4194304"),
        (&["--set=9:replicated"], "--data-replicas is 9"),
    ] {
        finish(fusee_bench(&["redundancy"]).args(more)).expect_error(2, says);
    }
}
