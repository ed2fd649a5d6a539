//! `fusee-bench failover` and `fusee-bench recovery`: real processes are killed, and nothing is lost.

// Promise RED-4

use fusee_testing::{finish, fusee_bench};
use serde_json::Value;

fn failover(more: &[&str]) -> Value {
    let line = ["failover", "--json", "--rate=2000", "--before=1", "--after=3"];
    let report = finish(fusee_bench(&line).args(more)).expect_code(0).json();
    assert_eq!((&report["lost_writes"], &report["wrong_reads"]), (&0.into(), &0.into()));
    assert_eq!(report["verified_keys"], report["settings"]["keys"]);
    assert_eq!(
        (&report["linearizable"], &report["problems"]),
        (&true.into(), &Value::Array(Vec::new()))
    );
    assert!(report["acknowledged_writes"].as_u64().unwrap() > 100, "{report:#}");
    assert!(report["before"]["operations"].as_u64().unwrap() > 100, "{report:#}");
    let losses = report["losses"].as_array().unwrap();
    assert!(!losses.is_empty());
    for loss in losses {
        // Every thread of the load went on to read and to write.
        for of in ["reads", "writes"] {
            let pauses = loss[of]["per_session_ms"].as_array().unwrap();
            assert_eq!(pauses.len(), 4);
            assert!(pauses.iter().all(|ms| ms.as_f64().unwrap() < 2_900.0), "{report:#}");
        }
        assert!(loss["operations"].as_u64().unwrap() > 100, "{report:#}");
        assert!(loss["searches"].as_u64() < loss["operations"].as_u64(), "{report:#}");
        assert!(loss["stable_ms"].as_f64().unwrap() > 0.0, "{report:#}");
    }
    report
}

/// A coded redundancy, with small values and few keys.
const CODED: [&str; 3] = ["--redundancy=ec:2+2", "--pair-bytes=2000", "--keys=50"];

// Promise DUR-1: A memory node killed under load loses no acknowledged write.
#[test]
fn a_spare_takes_the_place_of_a_memory_node_that_is_killed() {
    let report = failover(&["--keys=100", "--spare"]);
    assert_eq!(report["fabric"], "shm");
    let loss = &report["losses"][0];
    assert_eq!((&loss["nodes"][0], &loss["missing_replicas"]), (&"mn1".into(), &0.into()));
    assert!(loss["whole_ms"].as_f64().unwrap() >= loss["stable_ms"].as_f64().unwrap());
    assert!(loss["stages"]["subtables"].as_u64().unwrap() > 0);
}

#[test]
fn the_load_goes_on_with_fewer_replicas_over_tcp() {
    let report = failover(&["--keys=100", "--victim=mn0", "--fabric=tcp", "--rate=1000"]);
    let loss = &report["losses"][0];
    assert!(loss["missing_replicas"].as_u64().unwrap() > 0);
    assert_eq!(loss["whole_ms"], Value::Null);
}

#[test]
fn coded_pairs_survive_losses_one_after_the_other_and_get_their_columns_back() {
    let report = failover(&[&CODED[..], &["--spare"]].concat());
    let cluster = &report["cluster"];
    assert_eq!((&cluster["memory_nodes"], &cluster["data_replicas"]), (&4.into(), &2.into()));
    let losses = report["losses"].as_array().unwrap();
    let nodes: Vec<&Value> = losses.iter().map(|loss| &loss["nodes"]).collect();
    assert_eq!(nodes, [&Value::from(["mn1"].to_vec()), &Value::from(["mn2"].to_vec())]);
    for loss in losses {
        assert_eq!(loss["missing_replicas"], 0, "{report:#}");
        assert!(loss["whole_ms"].as_f64().unwrap() > 0.0, "{report:#}");
    }
}

#[test]
fn coded_pairs_survive_as_many_losses_at_once_as_there_is_parity() {
    let report = failover(&[&CODED[..], &["--at-once=2", "--fabric=tcp", "--rate=1000"]].concat());
    assert_eq!(report["cluster"]["data_replicas"], 3);
    assert_eq!(report["settings"]["redundancy"], "ec:2+2");
    let losses = report["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 1, "{report:#}");
    assert_eq!(losses[0]["nodes"], Value::from(["mn1", "mn2"].to_vec()));
    assert!(losses[0]["missing_replicas"].as_u64().unwrap() > 0, "{report:#}");
}

#[test]
fn a_victim_that_does_not_exist_is_refused() {
    let output = finish(&mut fusee_bench(&["failover", "--victim", "mn7"]));
    output.expect_error(2, "the cluster has mn0, mn1, mn2");
}

#[test]
fn losses_that_end_the_cluster_are_refused() {
    for (more, says) in [
        (&["--redundancy=ec:4+2", "--losses=3"][..], "survive the loss of 2 memory nodes"),
        (&["--redundancy=ec:4+2", "--index-replicas=2"], "--index-replicas is 2"),
        (&["--redundancy=raid"], "is no redundancy"),
    ] {
        finish(fusee_bench(&["failover"]).args(more)).expect_error(2, says);
    }
}

// Promise DUR-2: Clients killed within an update are recovered.
#[test]
fn killed_clients_are_recovered_and_measured() {
    for fabric in ["shm", "tcp"] {
        let line = ["recovery", "--rounds=2", "--updates=200", "--keys=20", "--json"];
        let report = finish(fusee_bench(&line).args(["--fabric", fabric])).expect_code(0).json();
        assert_eq!((&report["errors"]["total"], &report["mismatches"]), (&0.into(), &0.into()));
        assert_eq!(report["verified_keys"], 40);
        let rounds = report["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            let recovery = &round["recovery"];
            // Blocks that were used up before are sealed, and are not walked.
            assert!(recovery["walked"].as_u64().unwrap() >= 20, "{report:#}");
            assert_eq!(recovery["strange"], 0, "{report:#}");
            assert!(recovery["total_ms"].as_f64().unwrap() > 0.0);
            assert!(round["recovered_ms"].as_f64() > recovery["total_ms"].as_f64());
        }
        assert!(report["paper"]["total_ms"].as_f64() == Some(177.0));
    }
}
