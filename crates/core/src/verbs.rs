//! The operations of a memory node: READ, WRITE, compare-and-swap, fetch-and-add.
//!
//! A [`VerbBatch`] holds verbs that are posted together and awaited together. One batch is one *phase*, which is one
//! network round trip. Every [`Fabric`] guarantees, and the conformance suite in `crates/fabric` checks:
//!
//! 1. Verbs of one batch to one memory node execute in the order posted. Across memory nodes there is no order.
//! 2. CAS and FAA are atomic on aligned 8-byte words, with respect to all clients on all fabrics.
//! 3. READ and WRITE are atomic for each aligned 8-byte word only; the last word of a WRITE lands last.
//! 4. A verb executes within a bounded time or never. If a memory node fails, its own verbs fail with
//!    [`VerbError::Unreachable`], and the others complete.
//! 5. After a memory node acknowledged the fencing of a client, no verb of that client executes there.
//! 6. The memory node checks bounds, and never trusts the client. Clients can only READ the header of a pool.
//!
//! A batch owns the memory that its verbs read into and write from, and passes through [`Fabric::execute`] by value. If
//! the future is dropped (as when the simulator crashes a client), the fabric still owns the memory that a NIC possibly
//! still writes.
//!
//! Offsets and lengths are in bytes; offsets count from the start of a node's pool.

use alloc::vec::Vec;
use core::fmt;
use core::future::Future;
use core::num::NonZeroU64;
use core::ops::Deref;

use serde::{Deserialize, Serialize};

/// The name of a memory node within one cluster. The name of a former member is never reused: a node that comes back
/// gets a new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MnId(pub u16);

impl fmt::Display for MnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mn{}", self.0)
    }
}

/// The id of a session. A session has one log, one set of blocks, and is fenced as a whole. The master hands ids out,
/// and never reuses one. In block tables 0 means "no owner".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u32);

impl ClientId {
    /// The owner in the table entry of a free block.
    pub const NOBODY: ClientId = ClientId(0);
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client{}", self.0)
    }
}

/// The identity of a cluster: drawn at random when the cluster is formed, and never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(NonZeroU64);

impl ClusterId {
    /// Returns the cluster id of a word in a pool's header or in a message; `None` for 0, which stands for no cluster.
    pub const fn from_word(word: u64) -> Option<ClusterId> {
        match NonZeroU64::new(word) {
            Some(word) => Some(ClusterId(word)),
            None => None,
        }
    }

    /// Returns the id as a word.
    pub const fn word(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.word())
    }
}

/// Bytes of a pool's header, which only its memory node writes. The header is a page, so that it can be mapped
/// separately.
pub const POOL_HEADER_BYTES: u64 = 4096;

/// The largest number of verbs that every fabric has to accept in one batch.
pub const MAX_BATCH_VERBS: usize = 1024;

/// The largest number of bytes of one READ or WRITE: a whole 16 MiB block.
pub const MAX_VERB_BYTES: u32 = 16 << 20;

/// A range of a batch's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte, counted from the start of the batch's memory.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Span {
    /// The part of this span from `from` on, `len` bytes long.
    ///
    /// # Panics
    /// If that part does not lie inside the span.
    pub fn part(self, from: u32, len: u32) -> Span {
        assert!(from <= self.len && len <= self.len - from, "part outside of its span");
        Span { start: self.start + from, len }
    }

    /// The span as a range of indices.
    pub fn range(self) -> core::ops::Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// The operation of a verb, with its operands and the place of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbOp {
    /// Copies pool memory into `buf`.
    Read {
        /// The destination of the bytes, in the batch's memory.
        buf: Span,
        /// Allows a switch on the way to redirect the READ to another place of the same pool: to the object that, as
        /// far as the switch knows, the slot at this place leads to ([`Fabric::may_steer`]). So the READ can return any
        /// bytes.
        steered: bool,
    },
    /// Copies `buf` into pool memory, its last word last.
    Write {
        /// The source of the bytes, in the batch's memory.
        buf: Span,
    },
    /// Replaces the aligned 8-byte word by `swap` if the word equals `expected`.
    Cas {
        /// The value that the word has to have.
        expected: u64,
        /// The value to store.
        swap: u64,
        /// The result: the value that the word had when the CAS executed.
        found: u64,
    },
    /// Adds `add` to the aligned 8-byte word, wrapping around.
    Faa {
        /// The addend.
        add: u64,
        /// The result: the value that the word had when the FAA executed.
        found: u64,
    },
}

/// The reason for which a verb has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbError {
    /// The batch has not been executed yet.
    #[error("not executed")]
    NotExecuted,
    /// The memory node does not answer. The verb has possibly executed, can still execute later, or never executes.
    #[error("memory node unreachable")]
    Unreachable,
    /// The range is not inside the node's pool, or the verb would change the pool's header, or a CAS or FAA is not
    /// 8-byte aligned, or a length is over [`MAX_VERB_BYTES`]. The verb did not execute.
    #[error("outside of the pool, in its header, misaligned or too long")]
    OutOfBounds,
    /// The node has fenced this client. The verb possibly executed before the fence.
    #[error("this client has been fenced")]
    Fenced,
}

/// One verb: an operation at an offset of a memory node's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// The memory node that executes the verb.
    pub node: MnId,
    /// The offset in the node's pool, in bytes.
    pub offset: u64,
    /// The operation.
    pub op: VerbOp,
    /// The result, set by the fabric.
    pub result: Result<(), VerbError>,
}

impl Verb {
    /// The number of pool bytes this verb touches.
    #[inline]
    pub fn bytes(&self) -> u32 {
        match self.op {
            VerbOp::Read { buf, .. } | VerbOp::Write { buf } => buf.len,
            VerbOp::Cas { .. } | VerbOp::Faa { .. } => 8,
        }
    }

    /// Whether this is a CAS or an FAA.
    #[inline]
    pub fn is_atomic(&self) -> bool {
        matches!(self.op, VerbOp::Cas { .. } | VerbOp::Faa { .. })
    }

    /// Whether this is a READ, steered or not.
    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self.op, VerbOp::Read { .. })
    }

    /// Checks the verb against the rules that every fabric enforces.
    #[inline]
    pub fn check(&self, pool_bytes: u64) -> Result<(), VerbError> {
        let len = u64::from(self.bytes());
        let inside = self.offset <= pool_bytes && len <= pool_bytes - self.offset;
        let aligned = !self.is_atomic() || self.offset.is_multiple_of(8);
        // Only READs are allowed in the pool's header: not even a WRITE of no bytes is.
        let allowed = self.is_read() || self.offset >= POOL_HEADER_BYTES;
        if inside && aligned && allowed && self.bytes() <= MAX_VERB_BYTES {
            Ok(())
        } else {
            Err(VerbError::OutOfBounds)
        }
    }
}

/// The number by which a batch names a verb that was posted to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u32);

impl Ticket {
    /// Returns the ticket of the verb that was posted `verbs` verbs after this one.
    pub(crate) fn plus(self, verbs: u32) -> Ticket {
        Ticket(self.0 + verbs)
    }
}

/// A verb that failed, with its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{node}: {error}")]
pub struct FailedVerb {
    /// The memory node that was to execute the verb.
    pub node: MnId,
    /// The error of the verb.
    pub error: VerbError,
}

/// Alignment of the batch's memory, so that word-wise copies line up with the pool's words.
const ALIGN: usize = 64;

/// Verbs posted together, and the memory they read into and write from.
///
/// Callers reuse a batch: after a few uses neither its verb list nor its memory grows any more.
#[derive(Default)]
pub struct VerbBatch {
    bytes: Vec<u8>,
    /// The offset in `bytes` at which the memory begins, at most [`ALIGN`]. A `u32` keeps batches, which are passed by
    /// value, small.
    base: u32,
    /// The number of staged bytes that survive [`VerbBatch::clear`].
    kept: u32,
    used: usize,
    verbs: Vec<Verb>,
    /// The number of CASes and FAAs among the verbs.
    atomics: u32,
    touched: u64,
}

impl fmt::Debug for VerbBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("used", &self.used).field("verbs", &self.verbs).finish()
    }
}

impl VerbBatch {
    /// An empty batch.
    pub fn new() -> VerbBatch {
        VerbBatch::default()
    }

    /// Forgets the verbs and the memory. All earlier [`Span`]s and [`Ticket`]s become invalid, except spans that are
    /// [kept](VerbBatch::keep).
    pub fn clear(&mut self) {
        self.next_phase();
        self.used = self.kept as usize;
    }

    /// Makes later calls of [`VerbBatch::clear`] keep all bytes that are staged so far.
    pub fn keep(&mut self) {
        self.kept = self.used as u32;
    }

    /// Makes later calls of [`VerbBatch::clear`] keep nothing.
    pub fn keep_nothing(&mut self) {
        self.kept = 0;
    }

    /// Forgets the verbs and keeps the memory: the next phase can write bytes that were staged for this phase.
    #[inline]
    pub fn next_phase(&mut self) {
        self.verbs.clear();
        (self.atomics, self.touched) = (0, 0);
    }

    /// Sets this error as the result of each verb, for a batch that is not executed.
    #[cold]
    pub fn fail(&mut self, error: VerbError) {
        self.verbs.iter_mut().for_each(|verb| verb.result = Err(error));
    }

    #[inline]
    fn base(&self) -> usize {
        self.base as usize
    }

    /// The number of bytes of the batch's memory that are in use: kept, or staged since the last [`VerbBatch::clear`].
    pub fn staged_bytes(&self) -> usize {
        self.used
    }

    /// The number of bytes of memory that the batch owns.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reserves `len` bytes of the batch's memory, 64-byte aligned. The reserved memory still contains old bytes of
    /// this batch.
    #[inline]
    pub fn stage(&mut self, len: u32) -> Span {
        let start = self.used.next_multiple_of(ALIGN);
        let end = start + len as usize;
        assert!(u32::try_from(end).is_ok(), "a batch holds less than 4 GiB");
        if self.base() + end > self.bytes.len() {
            self.grow(end);
        }
        self.used = end;
        Span { start: start as u32, len }
    }

    #[cold]
    fn grow(&mut self, end: usize) {
        let capacity = end.next_power_of_two().max(4096);
        let mut bytes = alloc::vec![0; capacity + ALIGN];
        let base = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        bytes[base..base + self.used].copy_from_slice(&self.bytes[self.base()..][..self.used]);
        self.bytes = bytes;
        self.base = base as u32;
    }

    /// The bytes of a span of the batch's memory.
    #[inline]
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.bytes[self.base()..][span.range()]
    }

    /// The bytes of a span of the batch's memory, to be filled.
    pub fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let base = self.base();
        &mut self.bytes[base..][span.range()]
    }

    #[inline]
    fn post(&mut self, node: MnId, offset: u64, op: VerbOp) -> Ticket {
        let ticket = Ticket(self.verbs.len() as u32);
        let verb = Verb { node, offset, op, result: Err(VerbError::NotExecuted) };
        self.atomics += u32::from(verb.is_atomic());
        self.touched += u64::from(verb.bytes());
        self.verbs.push(verb);
        ticket
    }

    /// Stages bytes that are computed from bytes staged earlier: `make` gets all bytes staged before, and the bytes to
    /// fill.
    pub(crate) fn stage_from<T>(
        &mut self,
        len: u32,
        make: impl FnOnce(&[u8], &mut [u8]) -> T,
    ) -> (Span, T) {
        let span = self.stage(len);
        let base = self.base();
        let (before, from_there) = self.bytes[base..].split_at_mut(span.start as usize);
        (span, make(before, &mut from_there[..len as usize]))
    }

    /// Posts a READ of `len` bytes; the result is [`VerbBatch::data`].
    #[inline]
    pub fn read(&mut self, node: MnId, offset: u64, len: u32) -> Ticket {
        let buf = self.stage(len);
        self.post(node, offset, VerbOp::Read { buf, steered: false })
    }

    /// Posts a READ of `len` bytes that a switch is allowed to redirect to the object that the slot at `offset` leads
    /// to. The result is [`VerbBatch::data`], which does not tell where the bytes come from.
    pub fn steered(&mut self, node: MnId, offset: u64, len: u32) -> Ticket {
        let buf = self.stage(len);
        self.post(node, offset, VerbOp::Read { buf, steered: true })
    }

    /// Posts a WRITE of bytes that are staged in the batch.
    pub fn write(&mut self, node: MnId, offset: u64, buf: Span) -> Ticket {
        self.post(node, offset, VerbOp::Write { buf })
    }

    /// Posts a compare-and-swap; the result is [`VerbBatch::found`].
    pub fn cas(&mut self, node: MnId, offset: u64, expected: u64, swap: u64) -> Ticket {
        self.post(node, offset, VerbOp::Cas { expected, swap, found: 0 })
    }

    /// Posts a fetch-and-add; the result is [`VerbBatch::found`].
    pub fn faa(&mut self, node: MnId, offset: u64, add: u64) -> Ticket {
        self.post(node, offset, VerbOp::Faa { add, found: 0 })
    }

    /// The batch's verbs, in the order in which they were posted.
    pub fn verbs(&self) -> &[Verb] {
        &self.verbs
    }

    /// Whether the batch has a WRITE for which `holds` returns true.
    pub(crate) fn any_write(&self, holds: impl Fn(&Verb) -> bool) -> bool {
        self.verbs().iter().any(|verb| matches!(verb.op, VerbOp::Write { .. }) && holds(verb))
    }

    /// The number of CASes and FAAs among the verbs.
    #[inline]
    pub fn atomics(&self) -> u32 {
        self.atomics
    }

    /// The number of pool bytes that all verbs together touch.
    #[inline]
    pub fn touched_bytes(&self) -> u64 {
        self.touched
    }

    /// Whether at least one verb failed or has not been executed.
    #[inline]
    pub fn has_failures(&self) -> bool {
        self.verbs.iter().any(|verb| verb.result.is_err())
    }

    /// Returns, for fabrics, the verbs and the memory that their spans refer to.
    pub fn parts_mut(&mut self) -> (&mut [Verb], &mut [u8]) {
        let base = self.base();
        (&mut self.verbs, &mut self.bytes[base..])
    }

    /// Returns the error of the first verb that failed. A steered READ beyond the end of the pool is no failure: it
    /// only has no result.
    pub fn check(&self) -> Result<(), FailedVerb> {
        let failed = |verb: &Verb| {
            let error = verb.result.err()?;
            let is_none = matches!(verb.op, VerbOp::Read { steered: true, .. })
                && error == VerbError::OutOfBounds;
            (!is_none).then_some(FailedVerb { node: verb.node, error })
        };
        self.verbs.iter().find_map(failed).map_or(Ok(()), Err)
    }

    #[inline]
    fn done(&self, ticket: Ticket) -> Result<&Verb, FailedVerb> {
        let verb = &self.verbs[ticket.0 as usize];
        verb.result.map_err(|error| FailedVerb { node: verb.node, error })?;
        Ok(verb)
    }

    /// Returns the bytes that a READ fetched.
    ///
    /// # Panics
    /// If the ticket does not belong to a READ of this batch.
    #[inline]
    pub fn data(&self, ticket: Ticket) -> Result<&[u8], FailedVerb> {
        Ok(self.bytes(self.data_span(ticket)?))
    }

    /// Returns the span that a READ fetched its bytes into.
    ///
    /// # Panics
    /// If the ticket does not belong to a READ of this batch.
    #[inline]
    pub fn data_span(&self, ticket: Ticket) -> Result<Span, FailedVerb> {
        match self.done(ticket)?.op {
            VerbOp::Read { buf, .. } => Ok(buf),
            _ => panic!("data() of a verb that is no READ"),
        }
    }

    /// Returns the word that a CAS or FAA found.
    ///
    /// # Panics
    /// If the ticket does not belong to a CAS or FAA of this batch.
    #[inline]
    pub fn found(&self, ticket: Ticket) -> Result<u64, FailedVerb> {
        match self.done(ticket)?.op {
            VerbOp::Cas { found, .. } | VerbOp::Faa { found, .. } => Ok(found),
            _ => panic!("found() of a verb that is no atomic"),
        }
    }
}

/// An executor of batches: shared memory, TCP, RDMA or the simulator.
pub trait Fabric {
    /// Executes all verbs of the batch as one phase and sets every verb's `result`.
    ///
    /// To drop the future has the effect of a crash of the client: each verb executes or does not.
    fn execute(&self, batch: VerbBatch) -> impl Future<Output = VerbBatch>;

    /// Executes the batch if this fabric is [immediate](Fabric::is_immediate); otherwise does nothing. Returns whether
    /// it executed the batch. A simulated fabric is allowed to decline, so that other sessions can run between the
    /// verbs during [`Fabric::execute`]. But if it has executed one batch of a function that calls this several times,
    /// it also executes the function's later batches.
    #[inline]
    fn execute_now(&self, _batch: &mut VerbBatch) -> bool {
        false
    }

    /// Whether the session's own processor executes verbs, without any waiting. If so, the verbs of a batch execute in
    /// the order posted, also across memory nodes.
    #[inline]
    fn is_immediate(&self) -> bool {
        false
    }

    /// Whether a WRITE, CAS or FAA is delayed by a round trip behind a READ that the same batch posts before it to the
    /// same node. If so, operations that can choose post their READs last.
    #[inline]
    fn waits_for_reads(&self) -> bool {
        false
    }

    /// Whether a switch that steers READs is possibly on the way. Without such a switch, steered READs have no
    /// advantage.
    #[inline]
    fn may_steer(&self) -> bool {
        false
    }

    /// Announces a verb at this place. If the session's own processor executes verbs, prefetches the cache line;
    /// otherwise does nothing.
    #[inline]
    fn prefetch(&self, _node: MnId, _offset: u64) {}
}

/// A pointer to a fabric can be used as a fabric.
impl<P: Deref<Target: Fabric>> Fabric for P {
    fn execute(&self, batch: VerbBatch) -> impl Future<Output = VerbBatch> {
        (**self).execute(batch)
    }

    #[inline]
    fn execute_now(&self, batch: &mut VerbBatch) -> bool {
        (**self).execute_now(batch)
    }

    #[inline]
    fn is_immediate(&self) -> bool {
        (**self).is_immediate()
    }

    #[inline]
    fn waits_for_reads(&self) -> bool {
        (**self).waits_for_reads()
    }

    #[inline]
    fn may_steer(&self) -> bool {
        (**self).may_steer()
    }

    #[inline]
    fn prefetch(&self, node: MnId, offset: u64) {
        (**self).prefetch(node, offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_bytes_survive_growth_and_stay_aligned() {
        let mut batch = VerbBatch::new();
        let first = batch.stage(10);
        batch.bytes_mut(first).copy_from_slice(b"0123456789");
        let big = batch.stage(1 << 20);
        assert_eq!(batch.bytes(first), b"0123456789");
        assert_eq!(batch.bytes(big).as_ptr().align_offset(64), 0);
        assert_eq!(big.start % 64, 0);
    }

    #[test]
    fn what_is_kept_stays_when_a_batch_is_cleared() {
        let mut batch = VerbBatch::new();
        let kept = batch.stage(10);
        batch.bytes_mut(kept).copy_from_slice(b"0123456789");
        batch.keep();
        for _ in 0..3 {
            batch.clear();
            let other = batch.stage(1 << 20);
            batch.bytes_mut(other).fill(b'x');
            assert_eq!(batch.bytes(kept), b"0123456789");
        }
        batch.keep_nothing();
        batch.clear();
        assert_eq!((batch.staged_bytes(), batch.stage(10)), (0, kept));
    }

    #[test]
    fn verbs_are_checked_against_the_pool() {
        let mut batch = VerbBatch::new();
        batch.read(MnId(0), 56, 8);
        batch.read(MnId(0), 57, 8);
        batch.cas(MnId(0), 4, 0, 1);
        batch.read(MnId(0), u64::MAX, 8);
        batch.read(MnId(0), 64, 0);
        let ok: Vec<bool> = batch.verbs().iter().map(|v| v.check(64).is_ok()).collect();
        assert_eq!(ok, [true, false, false, false, true]);
        assert_eq!(batch.check().unwrap_err().error, VerbError::NotExecuted);
    }
}
