//! The whole cluster is lost: neither its memory nodes nor its master answer any more. A waiting operation ends at its
//! own time limit, whatever it tries meanwhile, or at the deadline of its caller if there is one.

use std::pin::{Pin, pin};
use std::time::Duration;

use fusee_client::logic::LogicOptions;
use fusee_core::error::Error;
use fusee_core::host::Backoff;
use fusee_core::store::{ScanCursor, ScanLimits};
use fusee_sim::{ClusterOptions, Nanos, Sim, SimCluster, SimSession};

const KEY: &[u8] = b"key";
const LEASE: Duration = Duration::from_millis(50);
const OP_TIMEOUT: Duration = Duration::from_millis(600);
const DEADLINE: Duration = Duration::from_millis(90);
/// Time of an operation besides its waits: until the session learns that no process answers, and for the phases in
/// flight.
const SLACK: Duration = Duration::from_millis(30);
const FOR_GOOD: Nanos = 1 << 50;
/// Duration of one attempt of an operation that keeps trying.
const ATTEMPT_NS: Nanos = 5_000_000;

async fn operate(session: &SimSession, which: u64) -> Result<(), Error> {
    match which {
        0 => session.get(KEY).await.map(drop),
        1 => session.put(KEY, b"second").await,
        2 => session.delete(KEY).await,
        3 => session.insert(b"another", b"one").await,
        _ => {
            session.scan(&mut ScanCursor::start(), ScanLimits::of_slots(8), |_| ()).await.map(drop)
        }
    }
}

/// Runs an operation within its session's time limit, beside other operations of the session.
async fn timed(session: &SimSession, which: u64) -> Result<(), Error> {
    session.timed(pin!(operate(session, which))).await
}

async fn within<F: Future<Output = Result<(), Error>>>(
    session: &SimSession,
    operation: Pin<&mut F>,
) -> Result<(), Error> {
    session.within(DEADLINE, operation).await
}

/// Runs an operation that does not only wait, but also takes time between its waits, and does not stop by itself.
async fn insists(sim: &Sim, session: &SimSession) {
    let host = session.store().host();
    for attempt in 0.. {
        if host.pause(attempt).await.is_err() {
            return;
        }
        sim.sleep(ATTEMPT_NS).await;
    }
}

/// Operations that begin after the loss of the cluster end in time.
pub fn gone(seed: u64) {
    let sim = Sim::new(seed);
    let defaults = ClusterOptions::default();
    let session = LogicOptions { op_timeout: OP_TIMEOUT, ..defaults.session };
    let lease_ms = Some(LEASE.as_millis() as u64);
    let options = ClusterOptions { lease_ms, session, ..defaults };
    let cluster = SimCluster::new(&sim, &options);
    let process = cluster.client_process();
    let keeper = cluster.keeper(process, LEASE);
    cluster.block_on(process, async {
        let session = cluster.open(process, session).await.expect("a master leads");
        keeper.open(session.gate().clone());
        session.put(KEY, b"first").await.expect("all nodes answer");
        cluster.restart_master(FOR_GOOD);
        for (node, _) in cluster.nodes().processes() {
            cluster.nodes().crash(node);
        }
        sim.sleep(sim.rng().below_u64(2 * LEASE.as_nanos() as u64)).await;
        let has_deadline = sim.rng().below(2) == 0;
        let which = sim.rng().below_u64(5);
        let other = sim.rng().below_u64(5);
        let begun = sim.now();
        let both = async {
            let beside = async {
                sim.sleep(DEADLINE.as_nanos() as u64 / 3).await;
                timed(&session, other).await
            };
            let operation = async {
                let ended = if has_deadline {
                    within(&session, pin!(timed(&session, which))).await
                } else {
                    timed(&session, which).await
                };
                (ended, Duration::from_nanos(sim.now() - begun))
            };
            futures_util::future::join(operation, beside).await
        };
        let ((ended, took), beside) = both.await;
        assert!(ended.is_err() && beside.is_err(), "{ended:?}, {beside:?}: nobody has answered");
        let longest = if has_deadline { DEADLINE } else { OP_TIMEOUT } + SLACK;
        assert!(
            took <= longest,
            "operation {which} has waited {took:?}, with a deadline: {has_deadline}"
        );
        let all = Duration::from_nanos(sim.now() - begun);
        assert!(all <= OP_TIMEOUT + DEADLINE / 3 + SLACK, "operation {other} beside it: {all:?}");
        let begun = sim.now();
        session.timed(pin!(insists(&sim, &session))).await;
        let took = Duration::from_nanos(sim.now() - begun);
        // The pauses after the first 64 attempts do not check the time limit.
        let quick = Duration::from_nanos(64 * ATTEMPT_NS);
        assert!(took <= OP_TIMEOUT + quick + SLACK, "it has insisted for {took:?}");
    });
}
