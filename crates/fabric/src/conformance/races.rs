//! Guarantees 1 and 3 under concurrency: one session writes while another reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fusee_core::verbs::VerbBatch;

use super::{NODES, Rig, RigSession, START, staged, word};

const MN: fusee_core::verbs::MnId = NODES[0];
const BASE: u64 = START;
/// The duration of each race.
const RACE: Duration = Duration::from_millis(150);

/// Runs `write` and `read` in two threads until the duration of the race has passed.
fn race(write: impl FnOnce(&AtomicBool) + Send, read: impl FnOnce(&AtomicBool) + Send) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&over));
        scope.spawn(|| read(&over));
        std::thread::sleep(RACE);
        over.store(true, Ordering::Relaxed);
    });
}

/// Every word that a READ returns comes from one WRITE. If the READ or the WRITE covers only a part of a word, the
/// covered part comes from one WRITE. `rep movsb` and the kernel's copies break this, and so does a byte loop for the
/// partial words at both ends.
pub(super) fn words_do_not_tear<R: Rig>(rig: &R) {
    let shapes: [(u64, u32); 7] =
        [(0, 8), (2, 5), (3, 64), (0, 192), (5, 1000), (0, 4096), (1, 40_000)];
    for (shape, (skip, len)) in (1..).zip(shapes) {
        // Each combination of start and length has a range of its own in the pool, which no other combination has
        // written.
        let base = shape << 20;
        race(
            |over| {
                let session = RigSession::new(rig, 1);
                let mut value = 0u8;
                while !over.load(Ordering::Relaxed) {
                    value = value.wrapping_add(1);
                    let (mut batch, span) = staged(&vec![value; len as usize]);
                    batch.write(MN, base + skip, span);
                    session.done(batch);
                }
            },
            |over| {
                let session = RigSession::new(rig, 2);
                let mut reads = 0;
                while !over.load(Ordering::Relaxed) || reads == 0 {
                    // READs also start in the middle of words.
                    let from = skip + reads % 3 % u64::from(len);
                    let part = session.read(MN, base + from, (skip + u64::from(len) - from) as u32);
                    let mut at = from as usize;
                    let mut part = &part[..];
                    while !part.is_empty() {
                        let (piece, rest) = part.split_at(part.len().min(8 - at % 8));
                        let whole = piece.iter().all(|byte| *byte == piece[0]);
                        assert!(whole, "a word at {at} of {len} tore: {piece:?}");
                        (part, at) = (rest, at + piece.len());
                    }
                    reads += 1;
                }
            },
        );
    }
}

/// If a READ has seen the last word of a WRITE, later READs see all of that WRITE.
pub(super) fn the_last_word_lands_last<R: Rig>(rig: &R) {
    for words in [2usize, 17, 128, 161, 162, 2048] {
        let len = words * 8;
        race(
            |over| {
                let session = RigSession::new(rig, 1);
                let mut value = 0u64;
                while !over.load(Ordering::Relaxed) {
                    value += 1;
                    let (mut batch, span) = staged(&value.to_le_bytes().repeat(words));
                    batch.write(MN, BASE, span);
                    session.done(batch);
                }
                session.write(MN, BASE, &vec![0; len]);
            },
            |over| {
                let session = RigSession::new(rig, 2);
                while !over.load(Ordering::Relaxed) {
                    let mut batch = VerbBatch::new();
                    let last = batch.read(MN, BASE + len as u64 - 8, 8);
                    let all = batch.read(MN, BASE, len as u32);
                    let batch = session.done(batch);
                    let last = word(batch.data(last).unwrap());
                    for at in batch.data(all).unwrap().chunks_exact(8) {
                        // The writer's final WRITE is of zeros.
                        assert!(word(at) >= last || word(at) == 0, "{} < {last}", word(at));
                    }
                }
            },
        );
    }
}

/// Two sessions each WRITE their own word and READ the other's, in one batch or in two. At least one of them sees
/// the other's WRITE. A load that overtakes a store in the store buffer breaks this.
pub(super) fn reads_do_not_pass_writes<R: Rig>(rig: &R) {
    let arrived = AtomicU64::new(0);
    let last = AtomicU64::new(u64::MAX);
    let meet = |target: u64| {
        arrived.fetch_add(1, Ordering::AcqRel);
        let mut spins = 0u32;
        while arrived.load(Ordering::Acquire) < target {
            spins += 1;
            if spins > 2000 {
                std::thread::yield_now();
            }
        }
    };
    let player = |client: u64| {
        let session = RigSession::new(rig, client as u32 + 1);
        let own = BASE + client * 64;
        let other = BASE + (1 - client) * 64;
        let started = Instant::now();
        let mut seen = Vec::new();
        for round in 1u64.. {
            let (mut batch, span) = staged(&round.to_le_bytes());
            let mut second = VerbBatch::new();
            // This WRITE delays the next one: stores leave the store buffer in order, and this store is to memory
            // that is not in the cache.
            let filler = batch.stage(1024);
            let cold = ((1 + 8 * client) << 20) + (round << 12) % (4 << 20);
            batch.write(MN, cold, filler);
            batch.write(MN, own, span);
            if client == 0 && started.elapsed() > 3 * RACE {
                last.store(round, Ordering::Release);
            }
            meet(round * 2);
            if round >= last.load(Ordering::Acquire) {
                break;
            }
            // The sessions start a little apart, by a different delay in each round.
            (0..round * (7 + client) % 64).for_each(|_| std::hint::spin_loop());
            let found = if round.is_multiple_of(2) {
                let ticket = batch.read(MN, other, 8);
                word(session.done(batch).data(ticket).unwrap())
            } else {
                session.done(batch);
                let ticket = second.read(MN, other, 8);
                word(session.done(second).data(ticket).unwrap())
            };
            seen.push(found == round);
        }
        seen
    };
    let (a, b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| player(1));
        (player(0), other.join().expect("no panic"))
    });
    let both_missed = a.iter().zip(&b).filter(|(a, b)| !**a && !**b).count();
    assert_eq!(both_missed, 0, "of {} rounds", a.len());
}

/// WRITEs of different bytes of the same word do not undo each other.
pub(super) fn neighbours_of_a_write_survive<R: Rig>(rig: &R) {
    const ROUNDS: u32 = 1000;
    std::thread::scope(|scope| {
        for (client, at, len) in [(1u32, 0u64, 3usize), (2, 3, 1), (3, 4, 4)] {
            scope.spawn(move || {
                let session = RigSession::new(rig, client);
                for round in 0..ROUNDS {
                    let (mut batch, span) = staged(&vec![round as u8; len]);
                    batch.write(MN, BASE + at, span);
                    let ticket = batch.read(MN, BASE + at, len as u32);
                    let batch = session.done(batch);
                    assert_eq!(batch.data(ticket).unwrap(), vec![round as u8; len]);
                }
            });
        }
    });
}
