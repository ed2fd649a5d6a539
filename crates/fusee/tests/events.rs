//! `fusee events` for a cluster that loses a memory node, and for a master that restarts.

// Promise API-19: Events have reasons and are kept, within bounds.

use serde_json::Value;

use crate::common::{UpCluster, eventually, finish, fusee, signal};

fn events(up: &UpCluster, more: &[&str]) -> Vec<Value> {
    let arguments = [&["events", "--json"], more].concat();
    let text = up.run(&arguments).expect_code(0).text();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn said(events: &[Value], topic: &str, part: &str) -> bool {
    let text = |event: &Value| event["text"].as_str().unwrap().to_owned();
    events.iter().any(|event| event["topic"] == topic && text(event).contains(part))
}

#[test]
fn what_happens_is_told_with_its_reason() {
    let up = UpCluster::start(&["--memory-nodes", "4", "--pool", "512MiB"]);
    let first = events(&up, &[]);
    assert!(said(&first, "member", "mn3 joined"), "{first:?}");
    assert!(said(&first, "cluster", "the cluster is formed: 4 memory nodes"), "{first:?}");
    let serials: Vec<u64> = first.iter().map(|event| event["serial"].as_u64().unwrap()).collect();
    assert!(serials.is_sorted() && serials[0] == 1, "{serials:?}");
    up.run(&["drain", "mn3"]).expect_code(0);
    let drained = events(&up, &["--topic", "drain"]);
    assert!(said(&drained, "drain", "mn3 is to leave"), "{drained:?}");
    assert!(said(&drained, "drain", "without mn3, which is drained"), "{drained:?}");
    signal("KILL", up.pids()[2]);
    eventually("the loss is told", || {
        said(&events(&up, &["--topic", "loss"]), "loss", "mn1 is lost: ")
    });
    let warnings = events(&up, &["--warnings", "--last", "5"]);
    assert!(!warnings.is_empty() && warnings.len() <= 5);
    assert!(warnings.iter().all(|event| event["level"] == "warn"), "{warnings:?}");
    let text = up.run(&["events", "--topic", "loss"]).expect_code(0).text();
    assert!(text.lines().next().unwrap().contains("Z  loss    WARN mn1 is lost"), "{text}");
}

#[test]
fn wrong_topics_and_masters_that_are_away_are_named() {
    finish(&mut fusee(&["events", "--topic", "weather"])).expect_error(2, "one of master, cluster");
    let mut nobody = fusee(&["events", "--master", "127.0.0.1:1", "--follow"]);
    finish(&mut nobody).expect_error(3, "127.0.0.1:1");
}
