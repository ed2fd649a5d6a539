//! Models of READ, WRITE, CAS and FAA of several sessions on the same words.
//!
//! A pool is a few words, and a session is a [`VerbOrder`]. Other sessions can see a WRITE as separate words, in
//! any order in which the last word is last (docs/decisions/0007). All else that a session does must be seen in the
//! order in which it was posted.

// Promise FAB-3: The last word of a WRITE lands last; verbs land in order.

use std::sync::Arc;

use crate::order::VerbOrder;
use crate::sync::{AtomicU64, Fault, inject};
use crate::{bounded, tallies};

/// The first content of all words, and the words that WRITEs store. All bytes of a stored word differ, so that a
/// mixture of two words is noticed.
const OLD: u64 = 0;
const NEW: u64 = 0x1122_3344_5566_7788;
const NEWER: u64 = 0x99aa_bbcc_ddee_ff00;

/// A pool of `N` words, all zeros at first.
struct Words<const N: usize>([AtomicU64; N]);

impl<const N: usize> Words<N> {
    fn new() -> Arc<Words<N>> {
        Arc::new(Words(std::array::from_fn(|_| AtomicU64::new(OLD))))
    }

    fn at(&self, offset: usize, len: usize) -> (*const AtomicU64, usize) {
        assert!(offset + len <= 8 * N, "a verb reaches out of the pool");
        (self.0[offset / 8..].as_ptr(), offset % 8)
    }

    fn write(&self, order: &mut VerbOrder, offset: usize, data: &[u8]) {
        let (word, skip) = self.at(offset, data.len());
        // SAFETY: `at` has checked the bounds, and the pool outlives the call.
        unsafe { order.write(word, skip, data) };
    }

    fn read<const LEN: usize>(&self, order: &mut VerbOrder, offset: usize) -> [u8; LEN] {
        let (word, skip) = self.at(offset, LEN);
        let mut out = [0xee; LEN];
        // SAFETY: `at` has checked the bounds, and the pool outlives the call.
        unsafe { order.read(word, skip, &mut out) };
        out
    }

    fn read_words<const LEN: usize>(&self, order: &mut VerbOrder, first: usize) -> [u64; LEN] {
        std::array::from_fn(|i| u64::from_ne_bytes(self.read(order, 8 * (first + i))))
    }
}

/// Returns the bytes of `n` equal words.
fn bytes(word: u64, n: usize) -> Vec<u8> {
    word.to_ne_bytes().repeat(n)
}

fn split(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Each word that a READ yields is either old or new, in the part of the word that was written.
#[test]
fn a_read_yields_words_that_somebody_wrote() {
    let (mixed, tally) = tallies();
    loom::model(move || {
        let pool = Words::<3>::new();
        let writer = pool.clone();
        let data: [u8; 19] = bytes(NEW, 3)[2..21].try_into().unwrap();
        let writer = loom::thread::spawn(move || writer.write(&mut VerbOrder::default(), 2, &data));
        let seen: [u8; 24] = pool.read(&mut VerbOrder::default(), 0);
        let mut new = [0; 24];
        let old = [0; 24];
        new[2..21].copy_from_slice(&data);
        let words = seen.chunks(8).zip(new.chunks(8)).zip(old.chunks(8));
        let new_ones = words.map(|((seen, new), old)| {
            assert!(seen == new || seen == old, "{seen:x?}");
            seen == new
        });
        // The READ can tear between words, in every way except that the last word is new before the others.
        tally.count(new_ones.eq([false, true, false]));
        writer.join().unwrap();
    });
    mixed.assert_happened();
}

#[test]
fn a_read_beside_two_writes_yields_words_of_both() {
    let (mixed, tally) = tallies();
    bounded(2, move || {
        let pool = Words::<2>::new();
        let writers = [NEW, NEWER].map(|word| {
            let pool = pool.clone();
            loom::thread::spawn(move || pool.write(&mut VerbOrder::default(), 0, &bytes(word, 2)))
        });
        let seen = split(&pool.read::<16>(&mut VerbOrder::default(), 0));
        assert!(seen.iter().all(|word| [OLD, NEW, NEWER].contains(word)), "{seen:x?}");
        tally.count(seen.contains(&NEW) && seen.contains(&NEWER));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    mixed.assert_happened();
}

/// READs the last byte of a WRITE, then the whole range. If the first READ sees the WRITE, the second READ must see
/// all of it. The range can end with a whole word or with a part of one.
fn who_sees_the_last_word_sees_all<const LEN: usize>() {
    let (seen, tally) = tallies();
    bounded(4, move || {
        let pool = Words::<3>::new();
        let writer = pool.clone();
        let writer = loom::thread::spawn(move || {
            writer.write(&mut VerbOrder::default(), 0, &bytes(NEW, 3)[..LEN]);
        });
        let mut order = VerbOrder::default();
        let last: [u8; 1] = pool.read(&mut order, LEN - 1);
        let all: [u8; LEN] = pool.read(&mut order, 0);
        let done = last[0] == bytes(NEW, 3)[LEN - 1];
        assert!(!done || all == bytes(NEW, 3)[..LEN], "the last byte, but {all:x?}");
        tally.count(done);
        writer.join().unwrap();
    });
    seen.assert_happened();
}

#[test]
fn the_last_word_lands_last() {
    who_sees_the_last_word_sees_all::<24>();
}

#[test]
fn the_last_part_of_a_word_lands_last() {
    who_sees_the_last_word_sees_all::<20>();
}

#[test]
#[should_panic(expected = "the last byte, but")]
fn the_last_word_without_its_release() {
    inject(Fault::Relaxed);
    who_sees_the_last_word_sees_all::<24>();
}

#[test]
#[should_panic(expected = "the last byte, but")]
fn the_last_word_without_the_readers_fence() {
    inject(Fault::NoFence);
    who_sees_the_last_word_sees_all::<24>();
}

/// Executes two WRITEs of one batch. A session that sees a word of the second WRITE must see all of the first one.
fn writes_land_in_order() {
    loom::model(|| {
        let pool = Words::<4>::new();
        let writer = pool.clone();
        let writer = loom::thread::spawn(move || {
            let mut order = VerbOrder::default();
            writer.write(&mut order, 0, &bytes(NEW, 2));
            writer.write(&mut order, 16, &bytes(NEW, 2));
        });
        let mut order = VerbOrder::default();
        let [second]: [u64; 1] = pool.read_words(&mut order, 2);
        let first: [u64; 2] = pool.read_words(&mut order, 0);
        assert!(second == OLD || first == [NEW; 2], "the second WRITE, but {first:x?}");
        writer.join().unwrap();
    });
}

#[test]
fn writes_of_one_session_land_in_order() {
    writes_land_in_order();
}

#[test]
#[should_panic(expected = "the second WRITE, but")]
fn writes_of_one_session_without_fences() {
    inject(Fault::NoFence);
    writes_land_in_order();
}

/// Lets two sessions each WRITE a word and READ the word that the other one WRITEs. At least one of them must see
/// the other's WRITE.
fn reads_stay_behind_writes() {
    loom::model(|| {
        let pool = Words::<2>::new();
        let play = |pool: &Words<2>, own: usize| {
            let mut order = VerbOrder::default();
            pool.write(&mut order, 8 * own, &bytes(NEW, 1));
            let [other]: [u64; 1] = pool.read_words(&mut order, 1 - own);
            other
        };
        let other = pool.clone();
        let other = loom::thread::spawn(move || play(&other, 1));
        let seen = [play(&pool, 0), other.join().unwrap()];
        assert!(seen.contains(&NEW), "both READs passed the WRITEs before them");
    });
}

#[test]
fn reads_do_not_pass_writes() {
    reads_stay_behind_writes();
}

#[test]
#[should_panic(expected = "both READs passed")]
fn reads_pass_writes_without_fences() {
    inject(Fault::NoFence);
    reads_stay_behind_writes();
}

/// WRITEs an object, then CASes its address into a slot, as the store does. A session that READs the address must READ
/// the object.
fn a_cas_publishes() {
    let (seen, tally) = tallies();
    loom::model(move || {
        let pool = Words::<3>::new();
        let writer = pool.clone();
        let writer = loom::thread::spawn(move || {
            let mut order = VerbOrder::default();
            writer.write(&mut order, 8, &bytes(NEW, 2));
            assert_eq!(order.cas(&writer.0[0], OLD, 8u64.to_le()), OLD);
        });
        let mut order = VerbOrder::default();
        let [slot]: [u64; 1] = pool.read_words(&mut order, 0);
        let object = split(&pool.read::<16>(&mut order, 8));
        assert!(slot == OLD || object == [NEW; 2], "the address, but {object:x?}");
        tally.count(slot != OLD);
        writer.join().unwrap();
    });
    seen.assert_happened();
}

#[test]
fn a_cas_publishes_what_was_written_before_it() {
    a_cas_publishes();
}

#[test]
#[should_panic(expected = "the address, but")]
fn a_relaxed_cas_publishes_nothing() {
    inject(Fault::Relaxed);
    a_cas_publishes();
}

#[test]
fn of_several_cas_one_wins() {
    bounded(2, || {
        let pool = Words::<1>::new();
        let cas = |pool: &Words<1>, swap| VerbOrder::default().cas(&pool.0[0], OLD, swap);
        let others = [2, 3].map(|swap| {
            let pool = pool.clone();
            loom::thread::spawn(move || cas(&pool, swap))
        });
        let own = cas(&pool, 1);
        let found = [own].into_iter().chain(others.map(|other| other.join().unwrap()));
        let found: Vec<u64> = found.collect();
        let [word]: [u64; 1] = pool.read_words(&mut VerbOrder::default(), 0);
        let winner = u64::from_le(word);
        for (swap, found) in (1..).zip(&found) {
            // Losers find the winner's value, and the winner finds the initial value.
            assert_eq!(*found, if swap == winner { OLD } else { winner });
        }
    });
}

#[test]
fn no_faa_is_lost() {
    bounded(2, || {
        let pool = Words::<1>::new();
        let add = |pool: &Words<1>| {
            let mut order = VerbOrder::default();
            [order.faa(&pool.0[0], 1), order.faa(&pool.0[0], 1)]
        };
        let others = [(), ()].map(|()| {
            let pool = pool.clone();
            loom::thread::spawn(move || add(&pool))
        });
        let mut found = add(&pool).to_vec();
        others.into_iter().for_each(|other| found.extend(other.join().unwrap()));
        found.sort_unstable();
        assert_eq!(found, [0, 1, 2, 3, 4, 5]);
    });
}

/// WRITEs of parts of a word keep the rest of the word, beside an FAA that only changes that rest.
#[test]
fn neighbours_of_a_write_survive() {
    bounded(2, || {
        let pool = Words::<2>::new();
        let first = pool.clone();
        let first = loom::thread::spawn(move || {
            // The range is the end of the first word and three bytes of the second.
            first.write(&mut VerbOrder::default(), 6, &[1, 2, 3, 4, 5]);
        });
        let second = pool.clone();
        let second = loom::thread::spawn(move || {
            second.write(&mut VerbOrder::default(), 12, &[6, 7]);
        });
        let adds_at_the_start = cfg!(target_endian = "little");
        if adds_at_the_start {
            VerbOrder::default().faa(&pool.0[0], 9);
        }
        first.join().unwrap();
        second.join().unwrap();
        let all: [u8; 16] = pool.read(&mut VerbOrder::default(), 0);
        let nine = if adds_at_the_start { 9 } else { 0 };
        assert_eq!(all, [nine, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 6, 7, 0, 0]);
    });
}
