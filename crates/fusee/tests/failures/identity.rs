//! Masters other than the cluster's own, on processes: started with another directory, with an emptied file, or with
//! the store of another cluster. The memory nodes keep their data and continue to serve. When the cluster's own master
//! comes back, it finds everything.

// Promise MST-3

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::cluster::FaultyCluster;

/// A time in which a lease runs out, and memory nodes ask the master repeatedly.
const A_WHILE: Duration = Duration::from_secs(3);

fn put(cluster: &FaultyCluster, key: &str, value: &str) {
    cluster.run(&["put", key, value]).expect_code(0);
}

#[track_caller]
fn expect(cluster: &FaultyCluster, key: &str, value: &str) {
    assert_eq!(cluster.run(&["get", key]).expect_code(0).text(), value);
}

/// Restarts the cluster's own master, and asserts that it continues with the same memory nodes.
fn own_master_comes_back(cluster: &mut FaultyCluster) {
    cluster.kill_master();
    cluster.restart_master();
    cluster.until_stable(3, true);
    expect(cluster, "key", "value");
    put(cluster, "key", "another");
    expect(cluster, "key", "another");
    for log in cluster.node_logs() {
        assert!(!log.contains("starting again, empty"), "{log}");
        assert!(log.contains("keeps what it holds"), "{log}");
    }
}

#[test]
fn a_master_over_an_empty_store_erases_nothing() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    cluster.kill_master();
    cluster.start_usurper("elsewhere");
    sleep(A_WHILE);
    // The master says what is wrong and what to do. No client gets an empty store.
    cluster.run(&["get", "key"]).expect_error(3, "has no cluster");
    cluster.run(&["put", "key", "lost"]).expect_error(3, "has no cluster");
    let status = cluster.run(&["status"]);
    assert!(status.text().contains("fusee form"), "{}", status.text());
    own_master_comes_back(&mut cluster);
}

#[test]
fn a_master_whose_store_was_emptied_erases_nothing() {
    let mut cluster = FaultyCluster::with_long_leases("shm");
    put(&cluster, "key", "value");
    cluster.kill_master();
    let store = cluster.path("master/master.redb");
    let kept = fs::read(&store).unwrap();
    fs::write(&store, b"").unwrap();
    cluster.restart_master();
    sleep(A_WHILE);
    cluster.run(&["get", "key"]).expect_error(3, "has no cluster");
    cluster.kill_master();
    fs::write(&store, kept).unwrap();
    cluster.start_usurper("elsewhere");
    own_master_comes_back(&mut cluster);
}

#[test]
fn another_cluster_in_the_masters_place_gets_none_of_its_nodes() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    let own = cluster.status().unwrap().cluster.unwrap();
    // This client runs during the whole test.
    cluster.load(1, 1);
    cluster.kill_master();
    cluster.start_usurper("another");
    cluster.run(&["form", "--no-wait"]).expect_code(0);
    sleep(A_WHILE);
    let status = cluster.status().unwrap();
    assert!(status.cluster.is_some_and(|other| other != own));
    assert_eq!((status.view, status.members.len()), (None, 0));
    for log in cluster.node_logs() {
        assert!(log.contains(&own.to_string()), "{log}");
        assert!(log.contains(&status.cluster.unwrap().to_string()), "{log}");
    }
    own_master_comes_back(&mut cluster);
    cluster.all_get_on("the own master is back");
    cluster.finish();
}

/// A script forms the cluster with an id that it has chosen. Then the master's store is lost, and the script runs
/// again.
#[test]
fn a_number_is_not_formed_again_over_an_empty_store_while_its_cluster_lives() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    let own = cluster.status().unwrap().cluster.unwrap().to_string();
    cluster.load(1, 1);
    // The script runs again at once, or after the nodes have reported for a while.
    for (store, waits) in [("emptied", false), ("emptied-too", true)] {
        cluster.kill_master();
        cluster.start_usurper(store);
        if waits {
            sleep(A_WHILE);
        }
        // The master could form a cluster of this additional node.
        cluster.start_node();
        cluster.run(&["form", "--id", &own]).expect_error(1, "exists already");
        // No client gets an empty store.
        cluster.run(&["get", "key"]).expect_error(3, "");
    }
    cluster.kill_master();
    cluster.restart_master();
    cluster.until("the own master is back", |status| status.view.is_some());
    expect(&cluster, "key", "value");
    cluster.all_get_on("the own master is back");
    cluster.finish();
}

/// Returns the id of the cluster, as users see it.
fn name(cluster: &FaultyCluster) -> String {
    cluster.status().unwrap().cluster.unwrap().to_string()
}

/// Forms a new cluster of the servers of the destroyed one.
fn form_anew(cluster: &FaultyCluster, old: &str) {
    assert_eq!(cluster.status().unwrap().cluster, None);
    cluster.run(&["form"]).expect_code(0);
    assert_ne!(name(cluster), old);
    cluster.run(&["get", "key"]).expect_code(1);
    put(cluster, "key", "new");
    expect(cluster, "key", "new");
}

#[test]
fn a_cluster_that_was_stopped_as_a_whole_says_what_is_gone_and_the_way_out() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    let old = name(&cluster);
    for node in &mut cluster.nodes {
        node.signal("TERM");
        node.ends();
    }
    cluster.nodes.clear();
    cluster.kill_master();
    cluster.restart_master();
    (0..3).for_each(|_| cluster.start_node());
    cluster.until("it says what is gone", |status| {
        status.problem.as_ref().is_some_and(|problem| problem.contains("fusee destroy"))
    });
    cluster.run(&["get", "key"]).expect_error(3, "3 of 3 regions");
    // Without options the command only shows what would be lost.
    cluster.run(&["destroy"]).expect_error(1, "nothing was changed");
    assert_eq!(name(&cluster), old);
    let done = cluster.run(&["destroy", "--destroy-data"]).expect_code(0);
    assert!(done.text().contains(&old), "{}", done.text());
    form_anew(&cluster, &old);
}

#[test]
fn living_data_are_destroyed_only_if_that_is_said_twice_and_only_once() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    let old = name(&cluster);
    cluster.run(&["destroy", "--destroy-data"]).expect_error(1, &format!("--cluster {old}"));
    let other = ["destroy", "--destroy-data", "--cluster", "00000000000000aa"];
    cluster.run(&other).expect_error(1, "nothing was changed");
    cluster.run(&["destroy", "--cluster", &old]).expect_error(2, "--destroy-data");
    expect(&cluster, "key", "value");
    cluster.run(&["destroy", "--destroy-data", "--cluster", &old]).expect_code(0);
    form_anew(&cluster, &old);
    for log in cluster.node_logs() {
        assert!(log.contains("starting again, empty"), "{log}");
    }
    // Restarts of the master after the new cluster has been formed destroy nothing.
    for _ in 0..2 {
        cluster.kill_master();
        cluster.restart_master();
        cluster.until_stable(3, true);
    }
    expect(&cluster, "key", "new");
    cluster.run(&["destroy", "--destroy-data", "--cluster", &old]).expect_error(1, "not that one");
}

#[test]
fn a_master_whose_store_fails_ends_with_an_error_and_goes_on_when_there_is_room() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    // Limits the size of the master's files to slightly more than its log has now, so that the end of the log still
    // fits.
    let room = fs::metadata(cluster.path("logs/master.log")).unwrap().len() + 4096;
    let master = cluster.master.as_mut().unwrap();
    let pid = master.id().to_string();
    let limited = Command::new("prlimit")
        .args(["--pid", &pid, &format!("--fsize={room}:{room}")])
        .status()
        .unwrap();
    assert!(limited.success());
    // The master has to record a session, which does not fit into its store.
    cluster.run(&["get", "key"]);
    assert_eq!(cluster.master.as_mut().unwrap().exit_code(), Some(1));
    let log = fs::read_to_string(cluster.path("logs/master.log")).unwrap();
    assert!(log.contains("the master ends: ") && log.contains("has room"), "{log}");
    cluster.master = None;
    cluster.restart_master();
    cluster.until_stable(3, true);
    expect(&cluster, "key", "value");
}

#[test]
fn a_node_that_clients_could_not_reach_gets_nothing() {
    let mut cluster = FaultyCluster::with_long_leases("tcp");
    put(&cluster, "key", "value");
    cluster.start_node_with(&["--serve=shm"]);
    sleep(Duration::from_secs(1));
    let log = cluster.node_logs().pop().unwrap();
    assert!(log.contains("the master refuses") && log.contains("serve what they do"), "{log}");
    assert_eq!(cluster.status().unwrap().members.len(), 3);
    cluster.run(&["get", "key", "--fabric", "tcp"]).expect_code(0);
    // A node that serves the same fabrics as the other nodes is accepted.
    cluster.start_node();
    cluster.until_stable(4, true);
}
