//! A memory barrier that costs one side nothing.
//!
//! Where two threads each store something and then load what the other one stored, at least one of
//! them must see the other. Both need a barrier between their store and their load. If one of them
//! does that for every operation and the other one seldom, the first one keeps its load behind its
//! store for the compiler only ([`light`]), and the other one makes every thread of the process pass a
//! barrier ([`heavy`], Linux' membarrier): wherever the first thread is then, either its store is seen
//! after [`heavy`], or its load comes after what was stored before.

use crate::sync::{Ordering, compiler_fence, fence};
use crate::sys;

/// Between a store and a load of the thread that does this often.
#[inline]
pub fn light() {
    if sys::can_barrier_everywhere() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Between a store and a load of a thread that does this seldom: a system call.
pub fn heavy() {
    fence(Ordering::SeqCst);
    if sys::can_barrier_everywhere() {
        sys::barrier_everywhere();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Both sides store the number of a turn and look whether the other one has come as far.
    #[test]
    fn at_least_one_side_sees_the_other() {
        const TURNS: u64 = 20_000;
        let (often, seldom, ready) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
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
                        super::light();
                        seldom.load(Relaxed) >= turn
                    })
                    .collect::<Vec<bool>>()
            });
            let saw_often = (1..=TURNS)
                .map(|turn| {
                    wait(turn);
                    seldom.store(turn, Relaxed);
                    super::heavy();
                    often.load(Relaxed) >= turn
                })
                .collect::<Vec<bool>>();
            (side.join().unwrap(), saw_often)
        });
        assert!(saw_seldom.iter().zip(&saw_often).all(|(a, b)| *a || *b));
    }
}
