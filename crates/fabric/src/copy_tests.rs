//! Tests of the module `copy` on plain memory, where Miri can check it.
//!
//! They are in a separate file because `tests/loom` compiles `copy` a second time, with other atomics. Tests that
//! need a pool are in the conformance suite.

use crate::copy::{read, write, zero};
use crate::sync::{AtomicU64, Ordering};

/// Makes a pool of `words` zero words in plain memory.
fn pool(words: usize) -> Vec<AtomicU64> {
    std::iter::repeat_with(|| AtomicU64::new(0)).take(words).collect()
}

/// Lengths in bytes, on both sides of the thresholds between the ways to copy runs.
const LENGTHS: [usize; 16] =
    [0, 1, 7, 8, 9, 24, 63, 64, 71, 72, 73, 80, 137, 1301, 4096 + 8, 4096 + 16];

#[test]
fn every_start_and_length_comes_back_and_spares_its_neighbours() {
    for (skip, len) in (0..16).flat_map(|skip| LENGTHS.map(|len| (skip, len))) {
        // Lines begin at an even word; a run can begin at an odd one.
        let first = skip / 8;
        let skip = skip % 8;
        let pool = &pool(first + (skip + len).div_ceil(8).max(1))[first..];
        for word in pool {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        let data: Vec<u8> = (0..len).map(|i| i as u8 & 0x7f).collect();
        // The private side of the copy is not aligned.
        let mut out = vec![0xee; len + 1];
        // SAFETY: `pool` covers the range, rounded up to whole words.
        unsafe {
            write(pool.as_ptr(), skip, &data);
            read(pool.as_ptr(), skip, &mut out[1..]);
        }
        assert_eq!(out[1..], data, "{len} bytes at {skip}");
        let mut all = vec![0; pool.len() * 8];
        // SAFETY: the range is all of `pool`.
        unsafe { read(pool.as_ptr(), 0, &mut all) };
        let outside = all[..skip].iter().chain(&all[skip + len..]);
        assert!(outside.copied().all(|byte| byte == 0xff), "{len} bytes at {skip}");
    }
}

#[test]
fn zero_sets_its_words() {
    let pool = pool(5);
    // SAFETY: the first range is all of `pool`, the second is three words of it.
    unsafe {
        write(pool.as_ptr(), 0, &[0xff; 40]);
        zero(pool.as_ptr().wrapping_add(1), 3);
    }
    let words: Vec<u64> = pool.iter().map(|word| word.load(Ordering::Relaxed)).collect();
    assert_eq!(words, [u64::MAX, 0, 0, 0, u64::MAX]);
}

/// A reader that sees the last word of a WRITE sees all its words. Under Miri the test also detects data races, and
/// loads can return old values.
#[test]
fn a_read_beside_a_write_sees_all_if_it_sees_the_last_word() {
    // Lengths in words. WRITE copies both by string instructions: line by line it copies only up to 160 words.
    [200, 600].into_iter().for_each(race);
}

fn race(words: usize) {
    let rounds = if cfg!(miri) { 3 } else { 2000 };
    let pool = pool(words);
    let shared = &pool;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 1..=rounds {
                let data = u64::to_ne_bytes(round).repeat(words);
                // SAFETY: the range is all of `pool`.
                unsafe { write(shared.as_ptr(), 0, &data) };
            }
        });
        let mut all = vec![0; words * 8];
        loop {
            let last = shared[words - 1].load(Ordering::Acquire);
            // SAFETY: the range is all of `pool`.
            unsafe { read(shared.as_ptr(), 0, &mut all) };
            for word in all.as_chunks().0 {
                assert!(u64::from_ne_bytes(*word) >= last, "a word of before {last}");
            }
            if last == rounds {
                break;
            }
            std::thread::yield_now();
        }
    });
}
