//! A session's end of a connection to one memory node: a queue pair, and the memory that its NIC uses.
//!
//! The *arena* is one registered range of memory for each queue pair, made when the session attaches. The NIC takes
//! the bytes of WRITEs from the arena, and puts the bytes that it fetches there. So no memory is registered on the
//! path of a verb, and the NIC never accesses the memory of a batch, which can be freed at any time. No Rust
//! reference leads into the arena: bytes are copied in and out through pointers. Bytes that are copied out too
//! early are old or torn, but the copy itself is sound.
//!
//! [`Requester::add`] gathers verbs, [`Requester::ring`] hands all gathered verbs to the NIC with one doorbell. The
//! NIC reports only signalled verbs as complete; the verbs before a completed one are complete, too.

use std::sync::Arc;

use fusee_core::layout::POOL_HEADER_BYTES;
use fusee_core::verbs::VerbOp;

use super::device::{CompletionQueue, Device, QueuePair, RegisteredMemory, SendQueueSize};
use super::ffi::{self, SendWr, Sge, Wc};
use super::ports::SelectedPort;
use super::wire::{QueuePairAddress, VerbsWelcome};
use crate::error::RdmaError;

/// The largest number of requests in flight on one queue pair, unless the NIC allows fewer.
const VERBS: u32 = 512;
/// The longest WRITE in bytes that is posted inline, unless the NIC allows less.
const INLINE_BYTES: u32 = 220;
/// The length of an arena in bytes.
pub(super) const ARENA_BYTES: u32 = 512 << 10;
/// If this number of successive requests would have no signal, the last of them is signalled, to show that the NIC
/// makes progress.
const SIGNAL_VERBS: u32 = 128;
/// The largest number of completions that one call takes from the completion queue.
const AT_ONCE: usize = 32;

/// A work request: a verb, or a fragment of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct NicRequest {
    /// The id of the request. It increases by one from request to request.
    pub(super) id: u64,
    /// The operation. The length is `len`; the spans in `op` are not used.
    pub(super) op: VerbOp,
    pub(super) len: u32,
    /// The offset in the arena of the bytes to send or to receive.
    pub(super) place: u32,
    /// The offset in the pool of the remote bytes.
    pub(super) offset: u64,
}

/// The completion of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct NicCompletion {
    /// The id of the request.
    pub(super) id: u64,
    /// The driver's number for the reason, if the request failed.
    pub(super) failure: Option<u32>,
}

/// Counts of the work that was handed to NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounts {
    /// The number of doorbells, each for a list of verbs.
    pub posts: u64,
    /// The number of requests. A verb that is long or starts within a word has several.
    pub verbs: u64,
    /// The number of requests that were signalled.
    pub signals: u64,
    /// The number of completions that were taken from completion queues.
    pub completions: u64,
    /// The number of verbs that were held back to keep the order, each for a round trip.
    pub waits: u64,
    /// The number of WRITEs that were posted inline.
    pub inline: u64,
}

impl std::ops::AddAssign for NicCounts {
    fn add_assign(&mut self, other: NicCounts) {
        self.posts += other.posts;
        self.verbs += other.verbs;
        self.signals += other.signals;
        self.completions += other.completions;
        self.waits += other.waits;
        self.inline += other.inline;
    }
}

/// A queue pair that posts verbs, with its completion queue and arena.
pub(super) struct Requester {
    // Fields drop in order: the NIC stops using the arena when the queue pair is destroyed.
    pair: QueuePair,
    completions: CompletionQueue,
    arena: RegisteredMemory,
    /// The requests for the next doorbell. The capacity suffices for all requests of the queue pair, so the entries
    /// never move.
    list: Vec<SendWr>,
    pieces: Vec<Sge>,
    remote_base: u64,
    remote_key: u32,
    header_key: u32,
    /// The RDMA key of steered READs.
    steered_key: u32,
    /// The number of requests added after the last signalled one.
    unsignalled: u32,
    pub(super) counts: NicCounts,
}

// SAFETY: the pointers in `list` lead to this value's own vectors and arena, so they move along with it, and only
// one thread at a time uses them.
unsafe impl Send for Requester {}

impl std::fmt::Debug for Requester {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requester").field("pair", &self.pair).finish()
    }
}

impl Requester {
    pub(super) fn new(device: &Arc<Device>, port: &SelectedPort) -> Result<Requester, RdmaError> {
        let verbs = VERBS.min(device.max_verbs);
        let arena = RegisteredMemory::arena(device, ARENA_BYTES as usize)?;
        // The completion queue has room for all requests in flight, because a queue pair that fails completes all of
        // them.
        let completions = CompletionQueue::new(device, verbs, true)?;
        let size = SendQueueSize { verbs, inline_bytes: INLINE_BYTES };
        let pair = QueuePair::requester(device, port, &completions, size)?;
        Ok(Requester {
            pair,
            completions,
            arena,
            list: Vec::with_capacity(verbs as usize),
            pieces: Vec::with_capacity(verbs as usize),
            remote_base: 0,
            remote_key: 0,
            header_key: 0,
            steered_key: 0,
            unsignalled: 0,
            counts: NicCounts::default(),
        })
    }

    /// Returns the address of this queue pair, to be sent to the memory node.
    pub(super) fn address(&self) -> QueuePairAddress {
        self.pair.address()
    }

    /// Connects to the queue pair of the memory node that has sent this welcome.
    pub(super) fn connect(&mut self, welcome: &VerbsWelcome) -> Result<(), RdmaError> {
        (self.remote_base, self.remote_key) = (welcome.base, welcome.key);
        self.header_key = welcome.header_key;
        // A node that offers no steered READs has no RDMA key for them, so the pool's key is used.
        self.steered_key = match welcome.steered_key {
            0 => welcome.key,
            key => key,
        };
        self.pair.connect(&welcome.address)
    }

    /// Returns the descriptor that becomes readable with a completion, if the completion queue was armed.
    pub(super) fn fd(&self) -> i32 {
        self.completions.fd().expect("made with events")
    }

    pub(super) fn completions(&mut self) -> &mut CompletionQueue {
        &mut self.completions
    }

    /// Returns the largest number of requests in flight.
    pub(super) fn depth(&self) -> usize {
        self.list.capacity()
    }

    fn at(&self, place: u32, len: usize) -> *mut u8 {
        let end = place as usize + len;
        assert!(end <= ARENA_BYTES as usize, "outside of the arena");
        self.arena.arena_start().wrapping_add(place as usize)
    }

    /// Copies bytes into the arena, to the offset `place`.
    pub(super) fn put(&mut self, place: u32, bytes: &[u8]) {
        let to = self.at(place, bytes.len());
        // SAFETY: `at` has checked that the range is in the arena, to which no references exist.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies bytes out of the arena, from the offset `place`.
    pub(super) fn get(&self, place: u32, bytes: &mut [u8]) {
        let from = self.at(place, bytes.len());
        // SAFETY: `at` has checked that the range is in the arena, to which no references exist.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Returns the word at the offset `place` of the arena: the result of a CAS or FAA.
    pub(super) fn word(&self, place: u32) -> u64 {
        let mut bytes = [0; 8];
        self.get(place, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Adds a request to the list for the next doorbell.
    ///
    /// # Panics
    /// If the list is full, or the request's bytes would lie outside the arena.
    pub(super) fn add(&mut self, work: &NicRequest) {
        assert!(self.list.len() < self.list.capacity(), "more verbs than the queue pair takes");
        let start = self.at(work.place, work.len as usize);
        let piece = Sge { addr: start as u64, length: work.len, lkey: self.arena.local_key() };
        let remote_addr = self.remote_base.wrapping_add(work.offset);
        let is_header = work.offset < POOL_HEADER_BYTES;
        let rkey = match work.op {
            _ if is_header => self.header_key,
            VerbOp::Read { steered: true, .. } => self.steered_key,
            _ => self.remote_key,
        };
        let atomic = |compare_add, swap| ffi::Operands {
            atomic: ffi::Atomic { remote_addr, compare_add, swap, rkey },
        };
        let rdma = ffi::Operands { rdma: ffi::Rdma { remote_addr, rkey } };
        let (opcode, wr) = match work.op {
            VerbOp::Read { .. } => (ffi::WR_RDMA_READ, rdma),
            VerbOp::Write { .. } => (ffi::WR_RDMA_WRITE, rdma),
            VerbOp::Cas { expected, swap, .. } => {
                (ffi::WR_ATOMIC_CMP_AND_SWP, atomic(expected, swap))
            }
            VerbOp::Faa { add, .. } => (ffi::WR_ATOMIC_FETCH_AND_ADD, atomic(add, 0)),
        };
        let mut send_flags = 0;
        if opcode == ffi::WR_RDMA_WRITE && work.len <= self.pair.max_inline {
            send_flags |= ffi::SEND_INLINE;
            self.counts.inline += 1;
        }
        self.pieces.push(piece);
        let wr_id = work.id;
        let num_sge = 1;
        self.list.push(SendWr { wr_id, num_sge, opcode, send_flags, wr, ..SendWr::EMPTY });
        self.counts.verbs += 1;
        self.unsignalled += 1;
        if self.unsignalled == SIGNAL_VERBS {
            self.signal();
        }
    }

    /// Asks for a completion of the request that was added last.
    pub(super) fn signal(&mut self) {
        if let Some(last) = self.list.last_mut()
            && last.send_flags & ffi::SEND_SIGNALED == 0
        {
            last.send_flags |= ffi::SEND_SIGNALED;
            self.counts.signals += 1;
            self.unsignalled = 0;
        }
    }

    /// Hands the list to the NIC with one doorbell. The last request is signalled, because otherwise no completion
    /// would show that there is room again.
    pub(super) fn ring(&mut self) -> Result<(), i32> {
        self.signal();
        if self.list.is_empty() {
            return Ok(());
        }
        let list = self.list.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        for at in 0..self.list.len() {
            // SAFETY: both vectors have `list.len()` entries or more, and neither moves before the call below.
            unsafe {
                (*list.add(at)).sg_list = pieces.add(at);
                let is_last = at + 1 == self.list.len();
                (*list.add(at)).next =
                    if is_last { std::ptr::null_mut() } else { list.add(at + 1) };
            }
        }
        self.counts.posts += 1;
        // SAFETY: the list ends in null, and the bytes that its requests refer to lie in the arena, which is registered
        // as long as the queue pair lives. No other thread uses the queue pair, which is borrowed exclusively. The
        // driver copies the list.
        let result = unsafe { ffi::post_send(self.pair.raw(), list) };
        self.list.clear();
        self.pieces.clear();
        if result == 0 { Ok(()) } else { Err(result) }
    }

    /// Takes all completions that are there, and passes each to `done`.
    pub(super) fn poll(
        &mut self,
        mut done: impl FnMut(&Requester, NicCompletion),
    ) -> Result<(), RdmaError> {
        let mut found = [Wc::default(); AT_ONCE];
        loop {
            let count = self.completions.poll(&mut found)?;
            self.counts.completions += count as u64;
            for wc in &found[..count] {
                let failure = (wc.status != ffi::WC_SUCCESS).then_some(wc.status);
                done(self, NicCompletion { id: wc.wr_id, failure });
            }
            if count < found.len() {
                return Ok(());
            }
        }
    }
}
