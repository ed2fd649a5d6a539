//! Pools: the memory that a memory node lends. All processes that map a pool share it.
//!
//! A pool is a sealed memfd, mapped shared. The memory node makes the pool, client processes of the same host map
//! it too, and the node's software NIC works on it for clients over TCP. So the verbs of all these fabrics meet on
//! the same words, and a CAS is atomic against the verbs of all fabrics.
//!
//! Every access obeys two rules. *Size*: only aligned 8-byte words are accessed (see the module `copy`). *Order*:
//! verbs of one session execute in the order posted (see [`VerbOrder`], a parameter of the primitives below).
//!
//! The memfd is sealed against shrinking. Otherwise a client could truncate the file, and a bus error would kill
//! the memory node.
//!
//! A pool starts with its header (`fusee_core::layout::PoolHeader`), which only the memory node writes.
//! Verbs that would change the header are refused, and client processes of the host map it read-only.
//!
//! Lengths and offsets are in bytes; offsets count from the start of the pool.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::{Verb, VerbError, VerbOp};

use crate::copy;
pub use crate::order::VerbOrder;
use crate::sys::{self, Mapping};

/// The unit of a pool's length in bytes: every length is a multiple of this.
pub const POOL_ALIGN_BYTES: u64 = 4096;

/// Options for a new pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Length in bytes, the header included; rounded up to a multiple of [`POOL_ALIGN_BYTES`].
    pub bytes: u64,
    /// Whether to ask for huge pages. If the system has too few, the pool gets normal pages.
    pub huge_pages: bool,
}

/// Kinds of memory pages of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pages of the system's usual size.
    Normal,
    /// Huge pages.
    Huge,
}

/// The memory that a memory node lends. Clones share it.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

struct PoolInner {
    mapping: Mapping,
    bytes: u64,
    pages: PageKind,
    /// Whether a NIC has registered the pages. Registered pages must stay where they are.
    is_pinned: AtomicBool,
    /// The descriptor of the memfd, which the memory node passes on to clients. `None` in clients, which close their
    /// descriptor after they have mapped the pool.
    file: Option<OwnedFd>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("bytes", &self.bytes()).field("pages", &self.pages()).finish()
    }
}

/// The smallest page size in bytes. On systems with larger pages, the kernel refuses calls on smaller units.
const PAGE_BYTES: u64 = 4096;

/// The largest number of bytes whose pages are populated by one call of the system.
const POPULATED_TOGETHER: u64 = 8 << 20;

impl Pool {
    /// Makes a pool that is all zeros.
    pub fn new(options: PoolOptions) -> io::Result<Pool> {
        if options.bytes == 0 || options.bytes > 1 << 47 {
            let message = format!("a pool cannot have {} bytes", options.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let bytes = options.bytes.next_multiple_of(POOL_ALIGN_BYTES);
        if options.huge_pages {
            match sys::make_memfd(bytes, true) {
                Ok((file, mapping)) => return Ok(Pool::made(file, mapping, bytes, PageKind::Huge)),
                Err(error) => {
                    tracing::warn!(%error, bytes, "no huge pages for the pool, taking normal ones");
                }
            }
        }
        let (file, mapping) = sys::make_memfd(bytes, false)?;
        Ok(Pool::made(file, mapping, bytes, PageKind::Normal))
    }

    fn made(file: OwnedFd, mapping: Mapping, bytes: u64, pages: PageKind) -> Pool {
        tracing::debug!(bytes, ?pages, "pool mapped");
        let is_pinned = AtomicBool::new(false);
        let file = Some(file);
        Pool { inner: Arc::new(PoolInner { mapping, bytes, pages, is_pinned, file }) }
    }

    /// Maps the pool of another process by the descriptor that the memory node has sent.
    pub(crate) fn map(file: OwnedFd, bytes: u64) -> io::Result<Pool> {
        if !bytes.is_multiple_of(POOL_ALIGN_BYTES) || bytes == 0 {
            return Err(io::Error::other("the pool has an impossible length"));
        }
        let mapping = sys::map_sealed(&file, bytes)?;
        // Huge pages can be protected only as a whole, so this call fails on them. Then only the check of each verb
        // protects the header.
        if let Err(error) = mapping.protect_start(POOL_HEADER_BYTES as usize) {
            tracing::debug!(%error, "the header of a pool is mapped for writing");
        }
        let pages = PageKind::Normal;
        let is_pinned = AtomicBool::new(false);
        let inner = PoolInner { mapping, bytes, pages, is_pinned, file: None };
        Ok(Pool { inner: Arc::new(inner) })
    }

    /// Returns the length in bytes, the header included.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes
    }

    /// Returns the kind of pages. In a client that mapped another process's pool, always `Normal`.
    pub fn pages(&self) -> PageKind {
        self.inner.pages
    }

    /// Returns the pool's address in this process and its length, for a NIC. From now on no page goes back to the
    /// system, because the NIC would go on with the old page and the processor with a new one.
    pub(crate) fn pin(&self) -> (*mut u8, usize) {
        self.inner.is_pinned.store(true, Ordering::SeqCst);
        (self.inner.mapping.start(), self.bytes() as usize)
    }

    /// Returns the memfd; `None` except in the process that made it.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.inner.file.as_ref().map(|f| f.as_fd())
    }

    /// Returns the word that holds the byte at `offset`, and the byte's position in that word. Checks first that
    /// `len` bytes from `offset` on are in the pool.
    fn word(&self, offset: u64, len: u64) -> Result<(*const AtomicU64, usize), VerbError> {
        if offset > self.bytes() || len > self.bytes() - offset {
            return Err(VerbError::OutOfBounds);
        }
        // The pool starts and ends at a word boundary, so all words that overlap the range are inside.
        let start = self.inner.mapping.start().wrapping_add((offset & !7) as usize);
        Ok((start.cast_const().cast(), (offset & 7) as usize))
    }

    fn aligned_word(&self, offset: u64) -> Result<&AtomicU64, VerbError> {
        match self.word(offset, 8)? {
            // SAFETY: the word is aligned and in bounds, and the mapping lives as long as `self`.
            (word, 0) => Ok(unsafe { copy::shared(word) }),
            _ => Err(VerbError::OutOfBounds),
        }
    }

    /// READ: copies `out.len()` bytes from `offset` on into `out`.
    pub fn read(
        &self,
        order: &mut VerbOrder,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), VerbError> {
        let (word, skip) = self.word(offset, out.len() as u64)?;
        // SAFETY: `word` has checked that all words of the range are in the mapping.
        unsafe { order.read(word, skip, out) };
        Ok(())
    }

    /// WRITE: copies `data` to `offset` and stores the last word last.
    pub fn write(&self, order: &mut VerbOrder, offset: u64, data: &[u8]) -> Result<(), VerbError> {
        let (word, skip) = self.word(offset, data.len() as u64)?;
        // SAFETY: `word` has checked that all words of the range are in the mapping.
        unsafe { order.write(word, skip, data) };
        Ok(())
    }

    /// CAS: replaces the word by `swap` if it equals `expected`. Returns the old word.
    pub fn cas(
        &self,
        order: &mut VerbOrder,
        offset: u64,
        expected: u64,
        swap: u64,
    ) -> Result<u64, VerbError> {
        Ok(order.cas(self.aligned_word(offset)?, expected, swap))
    }

    /// FAA: adds `add` to the word, wrapping on overflow. Returns the old word.
    pub fn faa(&self, order: &mut VerbOrder, offset: u64, add: u64) -> Result<u64, VerbError> {
        Ok(order.faa(self.aligned_word(offset)?, add))
    }

    /// Starts to load the cache line of the byte at `offset`, without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        // An offset outside of the pool does no harm.
        copy::prefetch(self.inner.mapping.start().wrapping_add(offset as usize));
    }

    /// Executes a verb on the batch's memory and sets the verb's result.
    // Inlined, because a call takes a tenth of the time of a verb, and sessions of this host execute batches in a
    // loop.
    #[inline(always)]
    pub fn execute(&self, order: &mut VerbOrder, verb: &mut Verb, memory: &mut [u8]) {
        verb.result = verb.check(self.bytes()).and_then(|()| match &mut verb.op {
            VerbOp::Read { buf, .. } => self.read(order, verb.offset, &mut memory[buf.range()]),
            VerbOp::Write { buf } => self.write(order, verb.offset, &memory[buf.range()]),
            VerbOp::Cas { expected, swap, found } => {
                *found = self.cas(order, verb.offset, *expected, *swap)?;
                Ok(())
            }
            VerbOp::Faa { add, found } => {
                *found = self.faa(order, verb.offset, *add)?;
                Ok(())
            }
        });
    }

    /// Sets a range to zero. Whole pages go back to the system, unless a NIC has registered the pool. So a pool
    /// takes only as much memory as is in use, also after parts of it were emptied.
    ///
    /// # Panics
    /// If the range is not inside the pool.
    pub fn zero(&self, offset: u64, len: u64) {
        let first = offset.next_multiple_of(PAGE_BYTES);
        let pages = offset.saturating_add(len).saturating_sub(first) / PAGE_BYTES * PAGE_BYTES;
        if pages > 0
            && !self.inner.is_pinned.load(Ordering::SeqCst)
            && let Ok((word, _)) = self.word(first, pages)
            // SAFETY: `word` has checked that the range is in the mapping; `first` is a multiple of the page size,
            // and a mapping starts at a page.
            && unsafe { sys::discard_pages(word.cast_mut().cast(), pages as usize) }
        {
            self.overwrite_with_zeros(offset, first - offset);
            self.overwrite_with_zeros(first + pages, offset + len - first - pages);
        } else {
            self.overwrite_with_zeros(offset, len);
        }
    }

    /// Makes the system provide all pages of a range now, without changing their contents. Afterwards they count as
    /// memory of this process, and not of the process that writes to them first.
    ///
    /// # Panics
    /// If the range is not inside the pool.
    pub fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes());
        let end = end.expect("the range to populate must be inside the pool");
        let first = offset / PAGE_BYTES * PAGE_BYTES;
        // In parts, so that the kernel's locks on the mapping are free in between.
        for start in (first..end).step_by(POPULATED_TOGETHER as usize) {
            let bytes = POPULATED_TOGETHER.min(end - start);
            let (word, _) = self.word(start, bytes).expect("the range is inside the pool");
            // SAFETY: `word` has checked that the range is in the mapping; `start` is a multiple of the page size, and
            // a mapping starts at a page.
            match unsafe { sys::populate_pages(word.cast_mut().cast(), bytes as usize) } {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    for page in (start..start + bytes).step_by(PAGE_BYTES as usize) {
                        let word = self.aligned_word(page).expect("the range is inside the pool");
                        word.fetch_add(0, Ordering::Relaxed);
                    }
                }
                populated => populated?,
            }
        }
        Ok(())
    }

    fn overwrite_with_zeros(&self, offset: u64, len: u64) {
        let end = offset.checked_add(len).filter(|end| *end <= self.bytes());
        let end = end.expect("the range to zero must be inside the pool");
        let mut order = VerbOrder::default();
        let head = (offset.next_multiple_of(8).min(end) - offset) as usize;
        let words = (end - offset - head as u64) / 8;
        let body = offset + head as u64;
        let tail = (end - body - words * 8) as usize;
        let zeros = [0; 8];
        let inside = "checked above";
        self.write(&mut order, offset, &zeros[..head]).expect(inside);
        let (word, _) = self.word(body, words * 8).expect(inside);
        // SAFETY: `word` has checked that all words of the range are in the mapping.
        unsafe { copy::zero(word, words as usize) };
        self.write(&mut order, body + words * 8, &zeros[..tail]).expect(inside);
        // SeqCst: code that learns of the range afterwards must find zeros.
        fence(Ordering::SeqCst);
    }

    /// Writes a little-endian 64-bit number so that readers never see a part of it.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8, or the number is not inside the pool.
    pub fn write_u64(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8), "a 64-bit number must be aligned");
        let written = self.write(&mut VerbOrder::default(), offset, &value.to_le_bytes());
        written.expect("a 64-bit number must be inside the pool");
        fence(Ordering::SeqCst);
    }

    /// Writes a word of the header.
    ///
    /// # Panics
    /// If `offset` is not that of a word inside the header.
    pub fn write_header(&self, offset: u64, value: u64) {
        assert!(offset.is_multiple_of(8) && offset < POOL_HEADER_BYTES, "a word of the header");
        let written = self.write(&mut VerbOrder::default(), offset, &value.to_le_bytes());
        written.expect("a pool holds its header");
        fence(Ordering::SeqCst);
    }

    /// Reads a word of the header.
    ///
    /// # Panics
    /// If `offset` is not that of a word inside the header.
    pub fn read_header(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8) && offset < POOL_HEADER_BYTES, "a word of the header");
        let mut bytes = [0; 8];
        let read = self.read(&mut VerbOrder::default(), offset, &mut bytes);
        read.expect("a pool holds its header");
        u64::from_le_bytes(bytes)
    }

    /// Reads a little-endian 32-bit number that was written by [`Pool::write_u64`].
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4, or the number is not inside the pool.
    pub fn read_u32(&self, offset: u64) -> u32 {
        assert!(offset.is_multiple_of(4), "a 32-bit number must be aligned");
        let mut bytes = [0; 4];
        let read = self.read(&mut VerbOrder::default(), offset, &mut bytes);
        read.expect("a 32-bit number must be inside the pool");
        u32::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(bytes: u64) -> Pool {
        Pool::new(PoolOptions { bytes, huge_pages: false }).unwrap()
    }

    #[test]
    fn zero_clears_exactly_its_range() {
        const ALL: usize = 5 * 4096;
        let small = [(0, 4096), (8, 16), (3, 2), (5, 100), (7, 9), (4000, 96), (9, 0)];
        let pages =
            [(0, 20480), (4096, 8192), (4095, 8194), (1, 20000), (8191, 4098), (12288, 8192)];
        for (offset, len) in small.into_iter().chain(pages) {
            let pool = pool(ALL as u64);
            let mut order = VerbOrder::default();
            pool.write(&mut order, 0, &[0xaa; ALL]).unwrap();
            pool.zero(offset, len);
            let mut bytes = [0; ALL];
            pool.read(&mut order, 0, &mut bytes).unwrap();
            for (i, byte) in bytes.iter().enumerate() {
                let inside = (offset..offset + len).contains(&(i as u64));
                assert_eq!(*byte, if inside { 0 } else { 0xaa }, "byte {i} of {offset}+{len}");
            }
        }
    }

    #[test]
    fn populating_changes_nothing() {
        const ALL: usize = 5 * 4096;
        let pool = pool(ALL as u64);
        let mut order = VerbOrder::default();
        pool.write(&mut order, 100, &[0xaa; 9000]).unwrap();
        for (offset, len) in [(0, ALL as u64), (4095, 2), (100, 0), (12_288, 8192)] {
            pool.populate(offset, len).unwrap();
        }
        let mut bytes = [0; ALL];
        pool.read(&mut order, 0, &mut bytes).unwrap();
        for (i, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte, if (100..9100).contains(&i) { 0xaa } else { 0 }, "byte {i}");
        }
    }

    #[test]
    fn a_pool_asked_for_huge_pages_works_with_or_without() {
        let pool = Pool::new(PoolOptions { bytes: 5000, huge_pages: true }).unwrap();
        assert_eq!(pool.bytes(), 8192);
        pool.write_u64(8184, 7 << 32);
        assert_eq!(pool.read_u32(8188), 7);
        assert_eq!(pool.faa(&mut VerbOrder::default(), 8184, 1), Ok(7 << 32));
    }

    #[test]
    fn the_primitives_check_bounds_themselves() {
        let pool = pool(4096);
        let mut order = VerbOrder::default();
        let out = Err(VerbError::OutOfBounds);
        assert_eq!(pool.read(&mut order, 4090, &mut [0; 7]), out);
        assert_eq!(pool.write(&mut order, u64::MAX, &[0; 7]), out);
        assert_eq!(pool.cas(&mut order, 4, 0, 1).map(drop), out);
        assert_eq!(pool.faa(&mut order, 4096, 1).map(drop), out);
        assert_eq!(pool.read(&mut order, 4096, &mut []), Ok(()));
    }

    #[test]
    fn nobody_can_shrink_the_file_of_a_pool() {
        let pool = pool(8192);
        let file = pool.file().unwrap().try_clone_to_owned().unwrap();
        let file = std::fs::File::from(file);
        file.set_len(4096).unwrap_err();
    }
}
