//! Tests of the barrier with real threads. `tests/loom` of the client crate compiles `barrier.rs` a second time,
//! with a model of the barrier.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::barrier::{heavy, light};

/// In each turn, both sides store the number of the turn, then check whether the other side has stored that number.
#[test]
fn at_least_one_side_sees_the_other() {
    const TURNS: u64 = 20_000;
    let often = AtomicU64::new(0);
    let seldom = AtomicU64::new(0);
    let ready = AtomicU64::new(0);
    let wait = |turn| {
        ready.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        while ready.load(std::sync::atomic::Ordering::SeqCst) < 2 * turn {
            std::hint::spin_loop();
        }
    };
    let (saw_seldom, saw_often) = std::thread::scope(|scope| {
        let side = scope.spawn(|| {
            (1..=TURNS)
                .map(|turn| {
                    wait(turn);
                    often.store(turn, Relaxed);
                    light();
                    seldom.load(Relaxed) >= turn
                })
                .collect::<Vec<bool>>()
        });
        let saw_often = (1..=TURNS)
            .map(|turn| {
                wait(turn);
                seldom.store(turn, Relaxed);
                heavy();
                often.load(Relaxed) >= turn
            })
            .collect::<Vec<bool>>();
        (side.join().unwrap(), saw_often)
    });
    assert!(saw_seldom.iter().zip(&saw_often).all(|(a, b)| *a || *b));
}
