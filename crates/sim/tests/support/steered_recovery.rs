//! Steered recoveries, which random schedules hardly ever reach: an operation is held up at the critical step until
//! another operation has come to the intended point.
//!
//! The seed decides after how many steps an operation is held up, so the intended schedule does not occur in every run.
//! The tests count the intended runs by the reports of recovery.

use std::cell::Cell;

use fusee_core::error::Error;
use fusee_sim::Stepper;
use fusee_sim::check::check_replicas_agree;

use super::clients_in_order;
use super::crash::{ClientLife, StepGate, idle};
use super::failures::{FailureCounts, FailureRun, PlanKind};
use super::replicas_differ;
use super::workload::StepWorkload;

/// Client A begins to insert a key, finds the slot of its first choice taken, and is held up. That slot becomes free,
/// and B inserts the key there. A continues, takes the slot of its second choice, and dies before it has withdrawn, so
/// recovery must not commit A's entry. There are 2 to 5 index replicas.
pub fn late_insert_crash(seed: u64) -> FailureCounts {
    let run = FailureRun::new(seed, 2 + seed as u8 % 4, PlanKind::Mixed);
    let rng = &run.rng;
    let cluster = &run.cluster;
    let clients = clients_in_order(rng, cluster);
    let [a, b, helper] = &clients;
    // Keys with the same buckets have the same slot as first choice for an INSERT.
    let keys = StepWorkload::keys(&cluster.view(), 2, 0);
    let [key, gone] = &keys[..] else { unreachable!("as many as were asked for") };
    run.alone(async { helper.insert(gone, b"gone").await.map(drop).unwrap() });

    let gate = StepGate::default();
    let other = StepGate::default();
    let life = ClientLife::new(Some(rng.below(30) as u64), || gate.is_open());
    let mut stepper = Stepper::new(rng);
    let steps = 2 + rng.below(12) as u64;
    stepper.spawn(life.task(async {
        // This INSERT fails if A finds the key.
        let _ = gate.hold(steps, a.insert(key, b"A")).await;
    }));
    stepper.spawn(async {
        gate.held().await;
        helper.delete(gone, None).await.map(drop).unwrap();
        // This INSERT fails if A was so fast that B finds the key. Then the gate does not hold B.
        let inserted = other.hold(u64::MAX, b.insert(key, b"B")).await;
        assert!(matches!(inserted, Ok(_) | Err(Error::AlreadyExists)), "{inserted:?}");
    });
    stepper.spawn(async {
        gate.held().await;
        // This wait is bounded, because B waits for A if A's word is already in the slot.
        other.held_within(2_000).await;
        gate.open();
    });
    stepper.spawn(run.bury(a.client(), &life));
    run.run(stepper);
    check_replicas_agree(cluster);
    assert_eq!(cluster.checks().live_keys(), [&key[..]]);
    run.events.get()
}

/// The word of a dead client D is on one of two backups. Its recovery has looked at the slot and is held up. W, with a
/// smaller identity, wins the conflict round by Rule 3 and commits. Then Y, with a larger identity, takes a backup for
/// the next round. If recovery treated Y's word as a part of D's round, it would conclude that D has won by Rule 3.
/// Only the READ of the primary shows that D's round is over.
pub fn recovery_overtaken(seed: u64) -> FailureCounts {
    let run = FailureRun::new(seed, 3, PlanKind::Mixed);
    let rng = &run.rng;
    let cluster = &run.cluster;
    let clients = clients_in_order(rng, cluster);
    let [w, d, y] = &clients;
    let keys = StepWorkload::keys(&cluster.view(), 1, 0);
    let [key] = &keys[..] else { unreachable!("as many as were asked for") };
    run.alone(async {
        w.insert(key, b"first").await.map(drop).unwrap();
    });
    let life = ClientLife::new(Some(0), || replicas_differ(cluster));
    let mut stepper = Stepper::new(rng);
    stepper.spawn(life.task(async { d.update(key, b"dead", None).await.map(drop).unwrap() }));
    run.run(stepper);

    let recovery = StepGate::default();
    let next = StepGate::default();
    let report = Cell::new(None);
    let mut stepper = Stepper::new(rng);
    stepper.spawn(async {
        let recover = run.recover(d.client());
        report.set(Some(recovery.hold(rng.below(60) as u64, recover).await));
    });
    stepper.spawn(async {
        recovery.held().await;
        w.update(key, b"second", None).await.unwrap();
        next.hold(rng.below(25) as u64, y.update(key, b"third", None)).await.unwrap();
    });
    stepper.spawn(async {
        // This wait is bounded, because W waits for D's recovery if D has already won.
        next.held_within(2_000).await;
        recovery.open();
        idle(rng.below(30)).await;
        next.open();
    });
    run.run(stepper);
    check_replicas_agree(cluster);
    let report = report.into_inner().expect("it ended");
    run.alone(async {
        let found = y.search(key, None).await.unwrap();
        assert_eq!(found.value(), Some(&b"third"[..]), "{report:?}");
    });
    let events = run.events.get();
    FailureCounts { dropped: events.dropped + report.dropped, ..events }
}
