//! A measurement that is run by hand: the throughput of the remaining clients while other clients crash.
//!
//! ```text
//! cargo test --release -p fusee --test failures -- --ignored --nocapture --test-threads 1 measure
//! ```
//!
//! A client is a session with an id of its own. Each process contains several sessions, because starting a process
//! costs far more than what is measured here. When the process is killed, all its sessions end in the middle of their
//! operations. Clients that come and work cost throughput too. To separate this cost from that of crashes, windows with
//! crashes alternate with windows in which as many clients leave in order.

// Promise REC-8 | by hand: `fusee/tests/failures/measure.rs`

use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_control::master::RecoveryTimes;

use super::cluster::FaultyCluster;
use super::writer::{WriterMode, WriterProcess};

/// Number of clients that end per second.
const RATE: u32 = 100;
/// Number of windows of each kind, and their length.
const WINDOWS: usize = 12;
const WINDOW: Duration = Duration::from_secs(5);
/// Pool of each memory node. The memory of overwritten values is not reused in the measurement, so with a tenth of this
/// pool the writers would run out of memory before the last window.
const POOL: &str = "2GiB";
/// Number of sessions of a process, including that of its main thread.
const SESSIONS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
enum ClientEnding {
    /// In this window no client comes or ends.
    Nobody,
    InOrder,
    Crash,
}

fn measure(fabric: &'static str) {
    let mut cluster = FaultyCluster::with_pools(fabric, POOL);
    cluster.load(2, 2);
    let ends = [ClientEnding::Nobody, ClientEnding::InOrder, ClientEnding::Crash];
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..WINDOWS {
        for (end, rates) in ends.iter().zip(&mut rates) {
            rates.push(window(&mut cluster, *end));
        }
    }
    for (end, rates) in ends.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        println!(
            "{fabric}, {end:?}: the others do {:.0} operations/s (median of {WINDOWS} windows, \
             {:.0}-{:.0})",
            rates[WINDOWS / 2],
            rates[0],
            rates[WINDOWS - 1]
        );
    }
    let median = |i: usize| rates[i][WINDOWS / 2];
    println!(
        "{fabric}: {:.2} of the throughput with clients that leave in order, {:.2} of that alone",
        median(2) / median(1),
        median(2) / median(0)
    );
    print_parts(&cluster);
    cluster.end_load();
}

/// Returns the operations per second of the load's clients in a window in which other clients end in the way `end`.
fn window(cluster: &mut FaultyCluster, end: ClientEnding) -> f64 {
    let before = cluster.status().unwrap().recoveries;
    let notes = notes(&cluster.clients);
    let begun = Instant::now();
    let mut ended = 0;
    let mut leaving = Vec::new();
    while begun.elapsed() < WINDOW {
        if end == ClientEnding::Nobody {
            sleep(WINDOW.saturating_sub(begun.elapsed()));
            continue;
        }
        let mut client = cluster.slow_victim(SESSIONS - 1, WriterMode::Load);
        while client.progress() == 0 && begun.elapsed() < 2 * WINDOW {
            sleep(Duration::from_millis(1));
        }
        let at = Duration::from_secs(1) * ended / RATE;
        sleep(at.saturating_sub(begun.elapsed()));
        ended += SESSIONS;
        if end == ClientEnding::Crash {
            client.kill();
        } else {
            client.tell_to_end();
            leaving.push(client);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let others = self::notes(&cluster.clients) - notes;
    leaving.iter_mut().for_each(WriterProcess::wait);
    cluster.until("all are recovered", |status| status.expired_sessions == 0);
    let recovered = cluster.status().unwrap().recoveries - before;
    println!(
        "{end:?}: {:.0} ends/s, {recovered} recovered, others {:.0} operations/s",
        f64::from(ended) / seconds,
        others as f64 / seconds
    );
    others as f64 / seconds
}

/// Prints how long the parts of the latest recoveries took.
fn print_parts(cluster: &FaultyCluster) {
    let last = cluster.status().unwrap().last_recoveries;
    let mean = |of: fn(&RecoveryTimes) -> u64| {
        last.iter().map(|recovery| of(&recovery.times)).sum::<u64>() / last.len().max(1) as u64
    };
    println!(
        "    of the last {}, in us: fence {}, metadata {}, log {}, tables {}, free lists {}",
        last.len(),
        mean(|t| t.reconnect_us),
        mean(|t| t.metadata_us),
        mean(|t| t.log_us),
        mean(|t| t.repair_us),
        mean(|t| t.free_lists_us)
    );
}

fn notes(clients: &[WriterProcess]) -> u64 {
    clients.iter().map(WriterProcess::notes).sum()
}

#[test]
#[ignore = "a measurement"]
fn crashes_per_second_on_shared_memory() {
    measure("shm");
}

#[test]
#[ignore = "a measurement"]
fn crashes_per_second_over_tcp() {
    measure("tcp");
}
