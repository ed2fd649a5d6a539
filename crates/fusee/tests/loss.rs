//! The status of a cluster that has lost a memory node.

use serde_json::Value;

use crate::common::{UpCluster, eventually, signal};

#[test]
fn status_tells_of_a_loss_and_what_is_missing() {
    let up = UpCluster::start(&["--pool", "512MiB", "--lease", "500"]);
    up.run(&["put", "k", "v"]).expect_code(0);
    let status = up.run(&["status", "--json"]).expect_code(0).json();
    assert_eq!((&status["change"], &status["missing_replicas"]), (&Value::Null, &0.into()));
    assert_eq!((&status["expired_sessions"], &status["recoveries"]), (&0.into(), &0.into()));
    assert_eq!(status["memory_nodes"][1]["state"], "in_view");
    signal("KILL", up.pids()[2]);
    eventually("the cluster goes on without mn1", || {
        let status = up.run(&["status", "--json"]).json();
        status["memory_nodes"][1]["state"] == "lost" && status["reconfigurations"] != 0
    });
    let output = up.run(&["status", "--json"]);
    assert!(output.stderr.contains("no answer from mn1"), "{}", output.stderr);
    let status = output.expect_code(1).json();
    assert_eq!(status["ready"], true);
    assert_eq!(status["last_reconfigurations"][0]["lost"][0], "mn1");
    assert_eq!(status["last_reconfigurations"][0]["whole_after_ms"], Value::Null);
    assert!(status["missing_replicas"].as_u64().unwrap() > 0);
    assert_eq!(up.run(&["get", "k"]).expect_code(0).stdout, b"v");
    let table = up.run(&["status"]).expect_code(1).text();
    for says in ["lack a replica", "lost, the cluster goes on without it", "lost mn1, "] {
        assert!(table.contains(says), "{says}: {table}");
    }
    let recoveries = up.run(&["status", "--recoveries"]).expect_code(1).text();
    assert!(recoveries.starts_with("client") && recoveries.lines().count() == 1, "{recoveries}");
}
