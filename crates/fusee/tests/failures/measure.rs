//! A measurement, to be run by hand: what is left of the others' throughput while clients crash,
//! and how many crashes the cluster takes.
//!
//! ```text
//! cargo test --release -p fusee --test failures -- --ignored --nocapture measure
//! ```
//!
//! A client is a session with an id of its own. Several of them live in a process, since starting
//! a process costs far more than anything that is measured here: all of them die with it, in the
//! middle of their operations.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fusee_control::master::RecoveryTimes;

use super::cluster::Cluster;
use super::writer::{Mode, Writers};

/// How long each rate is held.
const HELD: Duration = Duration::from_secs(5);
/// Sessions of a process, that of its main thread included.
const SESSIONS: u32 = 10;

fn measure(fabric: &'static str) {
    let mut cluster = Cluster::start(fabric);
    cluster.load(2, 2);
    for rate in [0, 10, 25, 50, 100, 200] {
        let before = cluster.status().unwrap().recoveries;
        let (notes, begun) = (notes(&cluster.clients), Instant::now());
        let mut crashed = 0;
        while begun.elapsed() < HELD {
            if rate == 0 {
                sleep(Duration::from_millis(10));
                continue;
            }
            let mut victim = cluster.slow_victim(SESSIONS - 1, Mode::Load);
            while victim.progress() == 0 && begun.elapsed() < 2 * HELD {
                sleep(Duration::from_millis(1));
            }
            let at = Duration::from_secs(1) * crashed / rate;
            sleep(at.saturating_sub(begun.elapsed()));
            victim.kill();
            crashed += SESSIONS;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let others = self::notes(&cluster.clients) - notes;
        let recovered = cluster.status().unwrap().recoveries - before;
        println!(
            "{fabric}, wanted {rate} crashes/s: {:.0} crashes/s, {:.0} recovered/s, others {:.0} \
             operations/s",
            f64::from(crashed) / seconds,
            recovered as f64 / seconds,
            others as f64 / 2.0 / seconds
        );
        let begun = Instant::now();
        cluster.until("all are recovered", |status| status.given_up_sessions == 0);
        println!("    the rest were recovered {:.0} ms later", begun.elapsed().as_secs_f64() * 1e3);
        print_parts(&cluster);
    }
    cluster.end_load();
}

/// Where the time of the last recoveries went.
fn print_parts(cluster: &Cluster) {
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

fn notes(clients: &[Writers]) -> u64 {
    clients.iter().map(Writers::notes).sum()
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
