//! Copies between a pool that others change meanwhile and memory that is ours alone.
//!
//! Every access to a pool, here and everywhere, is an *aligned 8-byte* access. That gives the
//! guarantee that READ and WRITE tear only between aligned words, and it keeps out of accesses of
//! different sizes to the same bytes, which Rust's memory model leaves undefined. A READ of a
//! part of a word loads the word and keeps the part; a WRITE of a part swaps the word with
//! compare-and-swap, so the neighbouring bytes that somebody else may be writing survive.
//!
//! Short runs of whole words go one by one, longer ones by `rep movsq`, which moves whole
//! quadwords, but more of them at a time. `rep movsb`, which memcpy uses, is not good enough:
//! where it cuts is its own business. Measured on two cores of a Xeon with the example `latency`,
//! for the whole batch: a READ of 4 KiB in cache takes 70 ns instead of 180 ns; but a WRITE of
//! 1 KiB to memory that is not takes 690 ns instead of 490 ns. Hence two limits.
//!
//! Order among the words of one `rep movsq` is undefined (fast-string stores may be weakly
//! ordered), but stores before and after the instruction are ordered with it. So the last word of
//! a WRITE is stored on its own, with release semantics.
//!
//! All functions take word-aligned pool addresses; their callers have checked the bounds.

use crate::sync::{AtomicU64, Ordering};

/// Whether long runs go by string instructions. Miri interprets no assembly.
const STRINGS: bool = cfg!(all(target_arch = "x86_64", not(miri)));
/// The longest run, in words, that a READ copies word by word.
const READ_LOOP_WORDS: usize = if STRINGS { 16 } else { usize::MAX };
/// The longest run, in words, that a WRITE copies word by word: an object of 1 KiB and a bit.
const WRITE_LOOP_WORDS: usize = if STRINGS { 160 } else { usize::MAX };

/// Copies pool bytes from `skip` bytes behind `word` on into `out`, in ascending order.
///
/// # Safety
/// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
pub(crate) unsafe fn read(word: *const AtomicU64, skip: usize, out: &mut [u8]) {
    debug_assert!(skip < 8 && word.is_aligned());
    let (mut word, mut out) = (word, out);
    if skip != 0 && !out.is_empty() {
        let (head, rest) = out.split_at_mut(out.len().min(8 - skip));
        // SAFETY: the word overlaps the range.
        let bytes = unsafe { shared(word) }.load(Ordering::Relaxed).to_ne_bytes();
        head.copy_from_slice(&bytes[skip..skip + head.len()]);
        // SAFETY: at most one past the last word of the range.
        (word, out) = (unsafe { word.add(1) }, rest);
    }
    let words = out.len() / 8;
    let (body, tail) = out.split_at_mut(words * 8);
    if words <= READ_LOOP_WORDS {
        for (i, bytes) in body.chunks_exact_mut(8).enumerate() {
            // SAFETY: word `i` overlaps the range.
            let value = unsafe { shared(word.add(i)) }.load(Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
    } else {
        // SAFETY: `words` words overlap the range; `body` is as long, and ours.
        unsafe { move_words(body.as_mut_ptr(), word.cast(), words) };
    }
    if !tail.is_empty() {
        // SAFETY: the word behind the body overlaps the range.
        let bytes = unsafe { shared(word.add(words)) }.load(Ordering::Relaxed).to_ne_bytes();
        tail.copy_from_slice(&bytes[..tail.len()]);
    }
}

/// Copies `data` to the pool bytes from `skip` bytes behind `word` on; the last word lands last.
///
/// # Safety
/// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
pub(crate) unsafe fn write(word: *const AtomicU64, skip: usize, data: &[u8]) {
    debug_assert!(skip < 8 && word.is_aligned());
    let (mut word, mut data) = (word, data);
    if skip != 0 && !data.is_empty() {
        let (head, rest) = data.split_at(data.len().min(8 - skip));
        // SAFETY: the word overlaps the range.
        merge(unsafe { shared(word) }, skip, head);
        // SAFETY: at most one past the last word of the range.
        (word, data) = (unsafe { word.add(1) }, rest);
    }
    let (body, tail) = data.split_at(data.len() / 8 * 8);
    if let Some((rest, last)) = body.split_last_chunk::<8>() {
        let words = rest.len() / 8;
        if words <= WRITE_LOOP_WORDS {
            // SAFETY: `words` words overlap the range.
            unsafe { store_words(word, rest.as_chunks::<8>().0) };
        } else {
            // SAFETY: `words` words overlap the range; `rest` is as long.
            unsafe { move_words(word.cast_mut().cast(), rest.as_ptr(), words) };
        }
        // Release: whoever sees the last word with an acquire sees all words before it.
        // SAFETY: the word behind `rest` overlaps the range.
        let shared = unsafe { shared(word.add(words)) };
        shared.store(u64::from_ne_bytes(*last), Ordering::Release);
        // SAFETY: at most one past the last word of the range.
        word = unsafe { word.add(words + 1) };
    }
    if !tail.is_empty() {
        // SAFETY: the word behind the body overlaps the range.
        merge(unsafe { shared(word) }, 0, tail);
    }
}

/// Stores words one by one, several in a turn of the loop.
///
/// # Safety
/// `word` is aligned, and as many words from there on are in one live mapping.
unsafe fn store_words(word: *const AtomicU64, words: &[[u8; 8]]) {
    const TURN: usize = 8;
    // SAFETY: word `i` is one of them, by the caller.
    let store = |i: usize, bytes: &[u8; 8]| unsafe {
        shared(word.add(i)).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    };
    let (turns, rest) = words.as_chunks::<TURN>();
    for (turn, words) in turns.iter().enumerate() {
        for (i, bytes) in words.iter().enumerate() {
            store(turn * TURN + i, bytes);
        }
    }
    for (i, bytes) in rest.iter().enumerate() {
        store(turns.len() * TURN + i, bytes);
    }
}

/// Sets `words` words to zero, in any order.
///
/// # Safety
/// The words are aligned and in one live mapping.
pub(crate) unsafe fn zero(word: *const AtomicU64, words: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for the range. Each store is an aligned quadword, so this is as
    // good as relaxed atomic stores; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep stosq",
            inout("rcx") words => _,
            inout("rdi") word => _,
            in("rax") 0u64,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for i in 0..words {
        // SAFETY: the caller vouches for the range.
        unsafe { shared(word.add(i)) }.store(0, Ordering::Relaxed);
    }
}

/// Replaces `bytes.len()` bytes of a word from byte `at` on, and leaves the others alone.
pub(crate) fn merge(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut value = [0; 8];
    let mut mask = [0; 8];
    value[at..at + bytes.len()].copy_from_slice(bytes);
    mask[at..at + bytes.len()].fill(0xff);
    let (value, mask) = (u64::from_ne_bytes(value), u64::from_ne_bytes(mask));
    // Release: this may be the last word of a WRITE, see `write`. Relaxed on failure: the value
    // only feeds the next attempt.
    let mut old = word.load(Ordering::Relaxed);
    while let Err(now) =
        word.compare_exchange_weak(old, old & !mask | value, Ordering::Release, Ordering::Relaxed)
    {
        old = now;
    }
}

/// Begins to bring the cache line at an address closer, without waiting for it. Any address will do.
#[inline]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program sees, and faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// A word of the pool.
///
/// # Safety
/// `word` is aligned and in a mapping that outlives `'a`.
pub(crate) unsafe fn shared<'a>(word: *const AtomicU64) -> &'a AtomicU64 {
    // SAFETY: aligned and live by the caller; nobody accesses pool memory but by aligned words.
    unsafe { &*word }
}

/// Copies whole words; the pool's side is aligned, the other need not be.
///
/// # Safety
/// Both ranges are live and do not overlap; the one that is not the pool's is the caller's alone.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_words(to: *mut u8, from: *const u8, words: usize) {
    // SAFETY: the caller vouches for the ranges. On the pool's side each access is an aligned
    // quadword, which the architecture does not tear, so it is as good as a relaxed atomic;
    // being assembly, it is opaque to the compiler, and so no data race to it. The direction
    // flag is clear by the ABI.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Where there are no string instructions, no run is long enough to come here.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn move_words(_: *mut u8, _: *const u8, _: usize) {
    unreachable!("all runs go word by word");
}
