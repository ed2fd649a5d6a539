//! Copies between a pool, which other processes can change meanwhile, and private memory.
//!
//! Every access to a pool, in this module and elsewhere, is to *aligned 8-byte words*. That gives the guarantee that
//! READ and WRITE tear only between aligned words. It also avoids accesses of different sizes to the same bytes, which
//! Rust's memory model leaves undefined. A READ of a part of a word loads the whole word and keeps the part. A WRITE of
//! a part replaces the word by compare-and-swap, because another process can write the neighbouring bytes at the same
//! time, and these must survive.
//!
//! Short runs of whole words are copied one by one, longer runs by `rep movsq`, which moves one or more whole quadwords
//! at a time. `rep movsb`, which memcpy uses, is unsuitable because it can cut at any byte. The order among the words
//! of one `rep movsq` is undefined (fast-string stores can be weakly ordered), but stores before and after the
//! instruction are ordered with it.
//!
//! A WRITE of up to about 1 KiB copies *line by line*: four aligned stores of two words each. Processors with AVX
//! promise that an aligned move of 16 bytes is one access (Intel, Software Developer's Manual 3A, 9.1.1; AMD,
//! Architecture Programmer's Manual 2, 7.3.2), so no word tears. In their ordering these are stores like any other.
//! Objects are written to memory that was free for a while and therefore is in no cache. There, string instructions are
//! slow (690 ns, against 490 ns word by word, on two cores of a Xeon, by the example `latency`), and with stores of
//! single words, twice as many stores have to wait for the memory.
//!
//! The last word of a WRITE is stored on its own, with release semantics.
//!
//! All functions take word-aligned pool addresses. Their callers have checked the bounds.

use crate::sync::{AtomicU64, Ordering};

/// Whether long runs are copied by assembly. Miri does not interpret assembly.
const ASSEMBLY: bool = cfg!(all(target_arch = "x86_64", not(miri)));
/// The longest run, in words, that a READ copies word by word.
const READ_LOOP_WORDS: usize = if ASSEMBLY { 16 } else { usize::MAX };
/// The number of words in a line, the unit in which a WRITE copies.
const LINE_WORDS: usize = 8;
/// The longest run, in words, that a WRITE copies line by line: a little more than an object of 1 KiB.
const WRITE_LINES_UP_TO_WORDS: usize = if ASSEMBLY { 160 } else { usize::MAX };

/// Copies pool bytes into `out`, in ascending order. The range starts `skip` bytes behind `word`.
///
/// # Safety
/// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
pub(crate) unsafe fn read(word: *const AtomicU64, skip: usize, out: &mut [u8]) {
    debug_assert!(skip < 8 && word.is_aligned());
    if let (0, Ok(out)) = (skip, <&mut [u8; 8]>::try_from(&mut *out)) {
        // Half of all READs have the length of a slot.
        // SAFETY: the range is the aligned word, and the caller vouches that this word is in a live mapping.
        *out = unsafe { shared(word) }.load(Ordering::Relaxed).to_ne_bytes();
        return;
    }
    let mut word = word;
    let mut out = out;
    if skip != 0 && !out.is_empty() {
        let (head, rest) = out.split_at_mut(out.len().min(8 - skip));
        // SAFETY: the word overlaps the range, so it is in the live mapping.
        let bytes = unsafe { shared(word) }.load(Ordering::Relaxed).to_ne_bytes();
        head.copy_from_slice(&bytes[skip..skip + head.len()]);
        // SAFETY: the result is at most one past the last word of the range.
        (word, out) = (unsafe { word.add(1) }, rest);
    }
    let (body, tail) = out.as_chunks_mut::<8>();
    let words = body.len();
    if words <= READ_LOOP_WORDS {
        for (i, bytes) in body.iter_mut().enumerate() {
            // SAFETY: word `i` overlaps the range, so it is in the live mapping.
            *bytes = unsafe { shared(word.add(i)) }.load(Ordering::Relaxed).to_ne_bytes();
        }
    } else {
        // SAFETY: the `words` words overlap the range, so they are live; `body` has the same length and belongs to
        // the caller.
        unsafe { move_words(body.as_mut_ptr().cast(), word.cast(), words) };
    }
    if !tail.is_empty() {
        // SAFETY: the word behind the body overlaps the range, so it is in the live mapping.
        let bytes = unsafe { shared(word.add(words)) }.load(Ordering::Relaxed).to_ne_bytes();
        tail.copy_from_slice(&bytes[..tail.len()]);
    }
}

/// Copies `data` to the pool. The range starts `skip` bytes behind `word`. The last word is stored last.
///
/// # Safety
/// `word` is aligned, and all aligned words that overlap the range are in one live mapping.
pub(crate) unsafe fn write(word: *const AtomicU64, skip: usize, data: &[u8]) {
    debug_assert!(skip < 8 && word.is_aligned());
    let mut word = word;
    let mut data = data;
    if skip != 0 && !data.is_empty() {
        let (head, rest) = data.split_at(data.len().min(8 - skip));
        // SAFETY: the word overlaps the range, so it is in the live mapping.
        merge(unsafe { shared(word) }, skip, head);
        // SAFETY: the result is at most one past the last word of the range.
        (word, data) = (unsafe { word.add(1) }, rest);
    }
    let (body, tail) = data.as_chunks::<8>();
    if let Some((last, rest)) = body.split_last() {
        let words = rest.len();
        // SAFETY: the `words` words overlap the range, so they are in the live mapping.
        unsafe { store_run(word, rest) };
        // Release: a thread that loads the last word with acquire sees all words before the last one.
        // SAFETY: the word behind `rest` overlaps the range, so it is in the live mapping.
        let shared = unsafe { shared(word.add(words)) };
        shared.store(u64::from_ne_bytes(*last), Ordering::Release);
        // SAFETY: the result is at most one past the last word of the range.
        word = unsafe { word.add(words + 1) };
    }
    if !tail.is_empty() {
        // SAFETY: the word behind the body overlaps the range, so it is in the live mapping.
        merge(unsafe { shared(word) }, 0, tail);
    }
}

/// Stores a run of words. Other threads must not rely on the order of the stores.
///
/// # Safety
/// `word` is aligned, and `words.len()` words from `word` on are in one live mapping.
#[inline]
unsafe fn store_run(word: *const AtomicU64, words: &[[u8; 8]]) {
    if words.len() > WRITE_LINES_UP_TO_WORDS {
        // SAFETY: the caller vouches for the pool's range; `words` has the same length.
        return unsafe { move_words(word.cast_mut().cast(), words.as_ptr().cast(), words.len()) };
    }
    let store = |word: *const AtomicU64, words: &[[u8; 8]]| {
        for (i, bytes) in words.iter().enumerate() {
            // SAFETY: word `i` is in the run, which is in a live mapping.
            let shared = unsafe { shared(word.add(i)) };
            shared.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
    };
    if words.len() <= LINE_WORDS || !stores_pairs() {
        return store(word, words);
    }
    let first = usize::from(!word.addr().is_multiple_of(16));
    let (head, rest) = words.split_at(first);
    let (lines, tail) = rest.as_chunks::<LINE_WORDS>();
    store(word, head);
    // SAFETY: the lines and the tail are parts of the run, which is in a live mapping; the lines start at an even
    // word, hence at a multiple of 16 bytes.
    unsafe {
        store_lines(word.add(first).cast_mut().cast(), lines.as_ptr().cast(), lines.len());
        store(word.add(words.len() - tail.len()), tail);
    }
}

/// Sets `words` words to zero, in any order.
///
/// # Safety
/// The words are aligned and in one live mapping.
pub(crate) unsafe fn zero(word: *const AtomicU64, words: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for the range. Each store is an aligned quadword, so this is as good as
    // relaxed atomic stores; the direction flag is clear by the ABI.
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

/// Replaces the bytes of a word from byte `at` on by `bytes`, and keeps the word's other bytes.
pub(crate) fn merge(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut value = [0; 8];
    let mut mask = [0; 8];
    value[at..at + bytes.len()].copy_from_slice(bytes);
    mask[at..at + bytes.len()].fill(0xff);
    let value = u64::from_ne_bytes(value);
    let mask = u64::from_ne_bytes(mask);
    // Release: this word can be the last word of a WRITE (see `write`). Relaxed on failure: the loaded value is
    // only used for the next attempt.
    let mut old = word.load(Ordering::Relaxed);
    while let Err(now) =
        word.compare_exchange_weak(old, old & !mask | value, Ordering::Release, Ordering::Relaxed)
    {
        old = now;
    }
}

/// Starts to load the cache line at an address, without waiting for it. Every address is allowed, even an unmapped
/// one.
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

/// Returns a word of the pool.
///
/// # Safety
/// `word` is aligned and in a mapping that outlives `'a`.
pub(crate) unsafe fn shared<'a>(word: *const AtomicU64) -> &'a AtomicU64 {
    // SAFETY: the caller vouches that the word is aligned and live; every access to pool memory is to aligned words.
    unsafe { &*word }
}

/// Copies whole words. The pool's side is aligned, the other side need not be.
///
/// # Safety
/// Both ranges are live and do not overlap. No other thread accesses the range outside of the pool.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_words(to: *mut u8, from: *const u8, words: usize) {
    // SAFETY: the caller vouches for the ranges. On the pool's side each access is an aligned quadword, which the
    // architecture does not tear, so it is as good as a relaxed atomic access. The compiler does not look into
    // assembly, so it sees no data race. The direction flag is clear by the ABI.
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

/// Returns whether an aligned store of 16 bytes is one access.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stores_pairs() -> bool {
    std::arch::is_x86_feature_detected!("avx")
}

/// Stores lines to the pool.
///
/// # Safety
/// Both ranges are live and do not overlap. `to` is aligned to 16 bytes. No other thread accesses `from`. `lines`
/// is not zero, and [`stores_pairs`] returned true.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn store_lines(to: *mut u8, from: *const u8, lines: usize) {
    // SAFETY: the caller vouches for the ranges. Each store to the pool is aligned and by an instruction that does
    // not tear, so it is as good as two relaxed atomic stores. The compiler does not look into assembly, so it sees
    // no data race.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movaps [{to}], {a}",
            "movaps [{to} + 16], {b}",
            "movaps [{to} + 32], {c}",
            "movaps [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use without_assembly::{move_words, store_lines, stores_pairs};

/// Replacements for the assembly, which are never called: without assembly all runs are copied word by word.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod without_assembly {
    pub fn stores_pairs() -> bool {
        false
    }

    pub unsafe fn move_words(_: *mut u8, _: *const u8, _: usize) {
        unreachable!("all runs go word by word");
    }

    pub use self::move_words as store_lines;
}
