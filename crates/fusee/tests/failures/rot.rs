//! Damaged memory on real processes: the test itself changes bytes in the pools of memory nodes.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fusee_client::Status;

use super::cluster::FaultyCluster;

/// Returns the paths of the memory nodes' pools, as files that this process can write to.
fn pools(cluster: &FaultyCluster) -> Vec<PathBuf> {
    let pids = cluster.nodes.iter().map(|node| node.id());
    let of = |pid: u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let fds = fds.map(|fd| fd.unwrap().path());
        let is_pool = |fd: &PathBuf| {
            let target = std::fs::read_link(fd).unwrap_or_default();
            target.to_string_lossy().contains("memfd:")
                && std::fs::metadata(fd).unwrap().len() > 1 << 20
        };
        fds.into_iter().find(is_pool)
    };
    pids.map(|pid| of(pid).expect("a pool is shared memory")).collect()
}

/// Returns the offsets of these bytes in a pool.
fn places(pool: &PathBuf, bytes: &[u8]) -> Vec<u64> {
    let memory = std::fs::read(pool).unwrap();
    let starts = memory.windows(bytes.len()).enumerate();
    starts.filter(|(_, found)| *found == bytes).map(|(at, _)| at as u64).collect()
}

// Promise DMG-6: The scrubber repairs damage of real memory.
#[test]
fn what_rots_in_a_pool_is_put_right() {
    let cluster = FaultyCluster::with_long_leases("shm");
    let value = b"a value that stands nowhere else in all of the memory";
    let text = std::str::from_utf8(value).unwrap();
    cluster.run(&["put", "key", text]).expect_code(0);
    let holders: Vec<(PathBuf, Vec<u64>)> =
        pools(&cluster).into_iter().map(|pool| (pool.clone(), places(&pool, value))).collect();
    let holders: Vec<_> = holders.into_iter().filter(|(_, places)| !places.is_empty()).collect();
    assert_eq!(holders.len(), 2, "two replicas: {holders:?}");
    // The replicas are damaged one after the other. Clients read only one of them, so reads alone would not repair
    // both.
    for (pool, places_before) in &holders {
        let file = OpenOptions::new().write(true).open(pool).unwrap();
        for at in places_before {
            file.write_all_at(b"A", *at).unwrap();
        }
        let end = Instant::now() + Duration::from_secs(120);
        while places(pool, value) != *places_before {
            assert!(Instant::now() < end, "nobody has repaired it");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    assert_eq!(cluster.run(&["get", "key"]).expect_code(0).text(), text);
    let damage = cluster.status().unwrap().damage;
    assert!(damage.found >= 2 && damage.repaired >= 2, "{damage:?}");
    cluster.finish();
}

/// The count does not depend on how often the scrubber finds the pair.
// Promise DMG-11: A pair lost to damage is reported and counted once.
#[test]
fn a_pair_that_is_lost_is_told_and_counted_once() {
    let cluster = FaultyCluster::with_long_leases("shm");
    let value = b"another value that stands nowhere else in all of the memory";
    let text = std::str::from_utf8(value).unwrap();
    cluster.run(&["put", "key", text]).expect_code(0);
    let holders: Vec<(PathBuf, Vec<u64>)> =
        pools(&cluster).into_iter().map(|pool| (pool.clone(), places(&pool, value))).collect();
    let files: Vec<_> = holders
        .iter()
        .map(|(pool, places)| (OpenOptions::new().write(true).open(pool).unwrap(), places))
        .collect();
    let wait = |what: &str, is_so: &dyn Fn(&Status) -> bool| -> Status {
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = cluster.status().filter(|status| is_so(status)) {
                return status;
            }
            assert!(Instant::now() < end, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    for (file, at) in
        files.iter().flat_map(|(file, places)| places.iter().map(move |at| (file, at)))
    {
        file.write_all_at(b"A", *at).unwrap();
    }
    let first = wait("it is lost", &|status| status.scrub.lost_pairs == 1);
    let passes = first.scrub.passes + 4;
    let last = wait("it is looked at again", &|status| status.scrub.passes >= passes);
    assert_eq!((last.scrub.lost_pairs, last.damage.found), (1, 2), "{:?}", last.damage);
    let told = cluster.run(&["events", "--topic", "damage"]).expect_code(0).text();
    assert_eq!(told.matches("the pair is lost").count(), 1, "{told}");
    cluster.finish();
}
